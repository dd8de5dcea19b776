"""Never sure of what is not known: support of releases, memory that is free, uncounted options."""

import numpy as np
import pytest

from recipe_core.base.intervals import BAND
from recipe_core.commands.verdict import OK
from recipe_core.engines.grammar import grammars
from recipe_core.engines.spec import engine
from recipe_core.estimates.rules.own_options import NONE, Adapters, effects_of
from recipe_core.estimates.serving.bands import bands_of
from recipe_core.estimates.serving.starts import kernel_probability, start_errors, start_scale_bytes
from recipe_core.plans.plans import plan_candidate
from recipe_core.request.schema import PlanRequest
from tests.commands.test_check import check, ground
from tests.fixtures.rows import over, table
from tests.fixtures.verdicts import assert_says

LLAMA = {
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "hardware": {"device": "l40s", "per_node": 1},
    "workload": {"input_tokens": 512, "output_tokens": 128, "concurrency": 32},
    "candidate": {"engine": "vllm", "tp": 1, "pp": 1, "dp": 1},
}


@over("command, hardware, gpus, verdict, says", table("known", "commands"))
def test_public_outcomes_are_right_or_uncertain_with_the_reason(
    command, hardware, gpus, verdict, says
):
    answer = check(command, ground(hardware, gpus=gpus))
    assert_says(answer, {"verdict": verdict, "ok": OK[verdict]})
    assert says in " ".join(answer["reasons"])


def test_of_public_outcomes_none_is_surely_wrong():
    """Of sure answers at least 95 % are right; of those that a source tells, all are."""
    sure, low = start_errors().sure, 1 - start_errors().sure
    wrong = []
    for command, hardware, gpus, started in table("known", "outcomes"):
        answer = check(command, ground(hardware, gpus=gpus))
        chance = answer.get("start_probability")
        if OK[answer["verdict"]] is False:
            chance = 0.0
        if (started and chance <= low) or (not started and chance >= sure):
            wrong.append((command, answer["verdict"], chance))
    assert wrong == []


@over("command, hardware, says", table("known", "uncounted"))
def test_what_a_command_sets_and_nobody_counts_is_said(command, hardware, says):
    answer = check(command, ground(hardware, gpus=1))
    notes = [found["message"] for found in answer["findings"] if found["code"] == "unmodelled"]
    assert any(note.startswith(says) for note in notes), notes


def estimate(options=None, environment=None, name="vllm"):
    own = {"engine_options": options or {}, "environment": environment or {}}
    values = LLAMA | {"candidate": LLAMA["candidate"] | {"engine": name}, "options": own}
    plan, _ = plan_candidate(PlanRequest.parse(values))
    return plan.blocks[0].detail(0)[0]


def widths(found):
    """Relative widths of the band of times and of the error of memory, and doubt of the kernels."""
    ends = bands_of(found.setting)["tpot_s"].factors[BAND]
    scale = start_scale_bytes(found.setting, found.memory) / found.memory.usable_bytes
    doubt = 1 - kernel_probability(found.setting)
    return {"time": ends[1] / ends[0], "memory": float(scale[0]), "start": doubt}


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_every_option_and_variable_that_is_not_counted_is_named_and_widens_what_it_moves(name):
    grammar, plain = grammars()[name], widths(estimate(name=name))
    rows = [({option: "x"}, {}, row) for option, row in grammar.unmodelled.items()]
    rows += [({}, {variable: "x"}, row) for variable, row in grammar.variables.items()]
    for options, environment, row in rows:
        effects = effects_of(engine(name), options, environment)
        assert len(effects.uncounted) == 1
        assert row.what in effects.uncounted[0]
        assert effects.moved == set(row.moves), (options, environment)
    by_moves = {frozenset(row.moves): (o, e) for o, e, row in rows}
    for moves, (options, environment) in by_moves.items():
        found = estimate(options, environment, name)
        wider = {key for key, width in widths(found).items() if width > plain[key]}
        assert wider == moves
        notes = found.row(0).notes
        assert any("is not in the estimate" in note for note in notes)


def test_options_that_are_counted_change_their_figures():
    plain, gib = estimate(), 2.0**30
    offloaded = estimate({"cpu_offload_gb": 4})
    assert plain.memory.weights_bytes - offloaded.memory.weights_bytes == pytest.approx(4 * gib)
    # 4 GiB over a link of some 20 GB/s in every step
    assert 0.1 < float((offloaded.serving.tpot_s - plain.serving.tpot_s)[0]) < 0.4
    blocks = estimate({"num_gpu_blocks_override": 100})
    assert float(blocks.memory.kv_cache_tokens[0]) == pytest.approx(1_600, abs=1)
    stated = estimate({"kv_cache_memory_bytes": int(2 * gib)})
    assert float(stated.memory.kv_cache_bytes[0]) == 2 * gib
    assert estimate({"max_total_tokens": 5_000}, name="sglang").memory.kv_cache_tokens[
        0
    ] == pytest.approx(5_000, abs=1)


def test_adapters_take_memory_and_time_by_their_places_and_ranks():
    plain = estimate()
    adapted = {"enable_lora": True, "max_loras": 32, "max_lora_rank": 64, "max_cpu_loras": 100}
    found = estimate(adapted)
    # 4,096 wide, 14,336 in feed-forward, 1,024 of keys and of values: 32 layers, rank 64, 16 bits
    inputs_outputs = 3 * 4096 + 4096 + 2 * 1024 + 2 * 4096 + 3 * (4096 + 14336)
    counted = found.memory.runtime_bytes - plain.memory.runtime_bytes
    assert float(counted[0]) == pytest.approx(32 * 2 * 64 * 32 * inputs_outputs, rel=0.1)
    assert float(found.memory.kv_cache_tokens[0]) < 0.7 * float(plain.memory.kv_cache_tokens[0])
    assert np.all(found.serving.tpot_s > 1.1 * plain.serving.tpot_s)
    assert widths(found)["time"] > widths(plain)["time"]
    assert any("32 adapters of rank 64" in note for note in found.row(0).notes)
    fewer = estimate(adapted | {"max_loras": 1})
    assert found.memory.runtime_bytes > fewer.memory.runtime_bytes > plain.memory.runtime_bytes


def test_options_of_other_kinds_and_engines_do_nothing():
    assert effects_of(engine("vllm"), {}) is NONE
    assert effects_of(engine("llama-cpp"), {"enable_lora": True}) is NONE
    assert effects_of(engine("vllm"), {"enable_dbo": False, "cpu_offload_gb": "no"}) == NONE
    assert effects_of(engine("vllm"), {"--enable-lora": True}).adapters == Adapters()
    assert effects_of(engine("vllm"), {"kv_cache_dtype": "fp8"}).moved == set()
    other = effects_of(engine("vllm"), {"kv_cache_dtype": "turboquant_3bit_nc"})
    assert other.moved == {"memory", "time"}
    assert effects_of(engine("dynamo"), {"enable_lora": True}).adapters == Adapters()
