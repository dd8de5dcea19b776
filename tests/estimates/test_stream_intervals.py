"""What an engine does every so many steps only: estimated, chosen, launched and read."""

from dataclasses import replace

import numpy as np
import pytest
import yaml

from recipe_core.commands.context import CommandContext
from recipe_core.commands.judge import judge_command, read_command
from recipe_core.engines.spec import engine, engine_names
from recipe_core.estimates.serving.estimates import estimate_serving
from recipe_core.estimates.serving.kernels import total
from recipe_core.estimates.serving.simulate import simulate_serving
from recipe_core.plans.plans import plan_candidate, plan_splits
from recipe_core.plans.remedies import fixes
from recipe_core.recipe import relaunch
from recipe_core.recipe.convert import convert_to_recipe
from recipe_core.request.edit import change
from tests.conftest import make_request
from tests.estimates.test_simulate import ran
from tests.fixtures.catalogues import table
from tests.fixtures.recipes import recipe_of
from tests.fixtures.rows import over

QWEN = "Qwen/Qwen3-32B"
LONG = {"output_tokens": 1024}
OPEN = {"mode": "open", "request_rate": 1.0, "concurrency": None} | LONG
SGLANG = {"engine": "sglang", "tp": 8, "pp": 1, "dp": 1}
SLOW = {"stream_interval": 30, "scheduler_recv_interval": 30}
EVERY = dict.fromkeys(SLOW, 1)


def request_of(workload=LONG, device="b200-sxm", candidate=SGLANG, **parts):
    return make_request(QWEN, device, workload=dict(workload), candidate=candidate, **parts)


def estimates(workload=LONG, *, waits=False, **intervals):
    """Of one split; SGLang's first token leaves at once, or here ``waits`` for the others."""
    found, row = plan_candidate(request_of(workload, candidate=SGLANG | EVERY | intervals))
    block, i = found.at(row)
    spec = block.setting.engine
    held = spec.intervals.model_copy(update={"first_token_waits": waits})
    setting = replace(block.setting, engine=spec.model_copy(update={"intervals": held}))
    answer = estimate_serving(setting, block.cases.take([i]))
    s, tokens = answer.serving, answer.cases.output_tokens
    assert s.request_latency_s == pytest.approx(s.ttft_s + (tokens - 1) * s.tpot_s, rel=1e-12)
    assert total(s.prefill) == pytest.approx(s.ttft_s, rel=1e-12)
    assert total(s.decode) == pytest.approx(s.tpot_s, rel=1e-12)
    return answer


def both(workload=LONG, *, waits=False, **intervals):
    """What is served with every step, and with intervals."""
    return (estimates(workload, waits=waits, **each).serving for each in ({}, intervals))


def simulated(workload=LONG, *, waits=False, **intervals):
    e = estimates(workload, waits=waits, **intervals)
    return simulate_serving(e.setting, e.cases, e.memory).means_s


@over("workload", [LONG, OPEN])
def test_a_request_waits_half_an_interval_until_it_is_looked_for(workload):
    quick, slow = (estimates(workload, scheduler_recv_interval=n) for n in (1, 31))
    waited = slow.serving.ttft_s - quick.serving.ttft_s
    assert waited == pytest.approx(slow.serving.prefill["receive"])
    assert waited == pytest.approx(15 * quick.serving.tpot_s, rel=1e-3)
    assert slow.serving.tpot_s == pytest.approx(quick.serving.tpot_s)
    if slow.setting.mode == "closed":  # as many requests are in flight as there are
        rate = slow.serving.output_tokens_per_s / slow.cases.output_tokens
        assert rate * slow.serving.request_latency_s == pytest.approx(slow.cases.load)
    # a tenth of a simulated closed loop starts at once, finds the scheduler idle, does not wait
    slow = estimates(workload, scheduler_recv_interval=30).serving.prefill["receive"][0]
    ttft_s = [simulated(workload, scheduler_recv_interval=n)["ttft_s"][0] for n in (1, 30)]
    assert 0.6 < (ttft_s[1] - ttft_s[0]) / slow < 1.2


def test_a_first_token_that_waits_comes_with_the_others_and_the_last_as_before():
    quick, slow = both(waits=True, stream_interval=30)
    assert slow.ttft_s == pytest.approx(quick.ttft_s + 29 * quick.tpot_s)
    assert slow.request_latency_s == pytest.approx(quick.request_latency_s)
    assert slow.output_tokens_per_s == quick.output_tokens_per_s
    assert slow.tpot_s < quick.tpot_s
    before, after = (simulated(waits=True, stream_interval=n) for n in (1, 30))
    assert after["ttft_s"] == pytest.approx(before["ttft_s"] + 29 * before["tpot_s"], rel=1e-3)
    assert after["request_latency_s"] == pytest.approx(before["request_latency_s"], rel=1e-12)


@over("tokens", [1, 2, 30])
def test_no_more_tokens_are_held_than_an_answer_has(tokens):
    quick, slow = both({"output_tokens": tokens}, waits=True, stream_interval=1000)
    assert slow.request_latency_s == pytest.approx(quick.request_latency_s)
    assert slow.ttft_s == pytest.approx(quick.request_latency_s)
    assert tokens > 1 or slow.tpot_s == quick.tpot_s


def test_a_scheduler_looks_every_so_many_decode_steps_after_prompts_and_when_idle():
    # the first is at its third step when the second comes, and looks after the fifth
    two = ran([(1, 20), (1, 1)], sent=[0.0, 2.5], recv_interval=5)
    assert (two.first, two.done[0]) == ([1.0, 7.0], 20.0)
    three = ran([(1, 20), (15, 1), (1, 1)], sent=[0.0, 0.0, 1.5], recv_interval=5)
    assert three.first == [1.0, 2.0, 3.0]
    assert ran([(1, 3), (1, 1)], sent=[0.0, 3.0], recv_interval=100).first == [1.0, 4.0]


def ranked(dp, **workload):
    """TensorRT-LLM's attention cut by requests over so many ranks, which share experts."""
    split = {"engine": "tensorrt-llm", "tp": 1, "pp": 1, "dp": dp, "ep": dp}
    traffic = {"input_tokens": 1024, "output_tokens": 1024} | workload
    request = make_request("openai/gpt-oss-120b", "b200-sxm", workload=traffic, candidate=split)
    return plan_candidate(request)[0].blocks[0].estimates


def test_prompts_wait_for_those_of_other_ranks_no_longer_than_the_launch_says():
    alone, two, eight = (ranked(dp, concurrency=16 * dp).serving for dp in (1, 2, 8))
    assert "ranks" not in alone.prefill
    # as many arrive for each rank, so that eight have one after eight arrivals, two after two
    per_step = two.output_tokens_per_s / 1024 * two.step_s
    assert two.prefill["ranks"] == pytest.approx(two.step_s / 2 / per_step, rel=0.05)
    assert 20 * eight.step_s < eight.prefill["ranks"] < 31 * eight.step_s
    assert total(eight.prefill) == pytest.approx(eight.ttft_s, rel=1e-12)
    # so rarely that the launch's limit of 60 steps ends the wait of nearly each
    rare = ranked(8, mode="open", concurrency=None, request_rate=2.0, output_tokens=8192).serving
    assert 45 * rare.step_s < rare.prefill["ranks"] < 61 * rare.step_s
    quiet = ranked(8, concurrency=8).serving
    assert "ranks" not in quiet.prefill  # nothing decodes that a prompt would stop


def test_simulated_ranks_wait_as_long():
    block = ranked(8, concurrency=128)
    found = simulate_serving(block.setting, block.cases, block.memory).means_s["ttft_s"]
    assert found == pytest.approx(block.serving.ttft_s, rel=0.25)


def test_launches_let_ranks_take_their_prompts_together():
    split = {"engine": "tensorrt-llm", "tp": 1, "pp": 1, "dp": 4, "ep": 4}
    recipe = recipe_of("openai/gpt-oss-120b", "b200-sxm", candidate=split)
    files = relaunch(recipe).files
    told = yaml.safe_load(
        next(text for name, text in files.items() if "config" in name or name.endswith("yaml"))
    )["attention_dp_config"]
    most_steps = engine("tensorrt-llm").intervals.rank_wait_steps
    assert told == {"enable_balance": True, "batching_wait_iters": 0, "timeout_iters": most_steps}


@over("parts expected", table("choices.yaml", "intervals"))
def test_the_objective_chooses_what_is_left_open(parts, expected):
    found, best = plan_candidate(request_of(**parts))
    assert [found.candidate(best).get(name, 1) for name in SLOW] == expected


def test_every_load_of_a_plan_has_its_own_and_intervals_are_options_of_engines():
    options = {"engines": ["sglang"], "loads": [64]}
    board = plan_splits(request_of(LONG | {"concurrency": 8}, options=options))
    found = {
        (float(board.columns["load"][row]), board.candidate(row)["scheduler_recv_interval"])
        for row in map(int, board.order)
    }
    assert found == {(8.0, 10), (64.0, 30)}
    for name in engine_names():
        spec = engine(name)
        for field in spec.intervals.options if spec.intervals else ():
            # TensorRT-LLM is told in its file of options
            assert field in spec.options.by_name or name == "tensorrt-llm"


@over("stated optimize expected layer", table("choices.yaml", "layers"))
def test_what_was_estimated_is_on_the_command(stated, optimize, expected, layer):
    parts = {"candidate": SGLANG | stated, "objective": {"optimize": optimize}}
    recipe = recipe_of(QWEN, "b200-sxm", workload=dict(LONG), **parts)
    words = relaunch(recipe).processes[0].argv
    for field, flag in zip(SLOW, ("--stream-interval", "--scheduler-recv-interval"), strict=True):
        assert words[words.index(flag) + 1] == str(expected)
        assert recipe.engine.options[field] == expected
        assert recipe.provenance[f"options.{field}"] == layer
        if layer != "user":
            assert recipe.provenance[f"candidate.{field}"] == layer


@over("interval", [None, 20])
def test_vllm_and_tensorrt_llm_are_told_what_is_not_their_default(interval):
    split = {"tp": 2, "pp": 1, "dp": 1, "stream_interval": interval}
    vllm, other = (
        relaunch(recipe_of(QWEN, candidate={"engine": name, **split}))
        for name in ("vllm", "tensorrt-llm")
    )
    assert ("--stream-interval" in vllm.processes[0].argv) == (interval is not None)
    (file,) = other.files.values()
    assert ("stream_interval: 20" in file) == (interval is not None)


@over("stream receive", [(30, 10), (30, None), (None, None)])
def test_a_command_is_read_and_written_again(stream, receive):
    """What it leaves out is the engine's default there, not the choice of an objective."""
    ground = CommandContext.of(hardware="b200-sxm:8", output_tokens=1024)
    command = f"sglang serve --model-path {QWEN} --tp-size 8"
    command += f" --stream-interval {stream}" if stream else ""
    command += f" --scheduler-recv-interval {receive}" if receive else ""
    found = convert_to_recipe(command, ground)
    assert not [lost for lost in found.lost if "interval" in lost.subject]
    words = relaunch(found.recipe).processes[0].argv
    for candidate in (
        judge_command(command, ground, folders=False)["candidate"],
        read_command(list(words), ground).candidate,
    ):
        assert [candidate[field] for field in SLOW] == [stream or 1, receive or 1]
    case = read_command("sglang serve --model-path m --stream-interval 0", ground)
    assert "range" in [finding.code for finding in case.findings]


def test_a_limit_that_an_interval_breaks_is_met_without_it():
    split = request_of(candidate=SGLANG | SLOW)
    with_it = plan_candidate(split)[0].estimate(0).serving.ttft_s
    limit = float(np.mean([with_it, estimates().serving.ttft_s[0]])) * 1e3
    load = split.workload.concurrency
    limits = {"objective.limits.ttft_ms": limit, "objective.confidence": 0.5}
    request = change(split, {**limits, "workload.concurrency": load})
    checked, row = plan_candidate(request)
    assert not checked.feasible[row]
    first = fixes(checked, row)[0]
    assert first.fields == {f"candidate.{name}": 1 for name in SLOW}
    assert plan_candidate(change(request, first.fields))[0].feasible[0]
