"""What pages offer, and edits of a request by field name: what they keep consistent."""

from functools import reduce

import numpy as np
import pytest

from recipe_core.hardware.cluster import device, device_names
from recipe_core.hardware.ownership import OwnershipCost
from recipe_core.hardware.request import HardwareRequest
from recipe_core.measured.support import support
from recipe_core.request.describe import steps_of, summary
from recipe_core.request.edit import TRAINING_TOKENS, change, select_split
from recipe_core.request.link import DEFAULT, START_LOADS, to_query
from recipe_core.request.objective import Limits
from recipe_core.request.presets import aim_of, aims, preset_changes, preset_of, presets
from recipe_core.request.serving_workload import LOADS
from recipe_core.request.split_key import cluster_of, key_of, split_key, split_of
from recipe_core.search.plans import plan
from recipe_core.search.slos import keeping, limit_steps
from tests.conftest import LLAMA_70B
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table

TRAINING = change(DEFAULT, {"workload.kind": "training"})


@pytest.mark.parametrize("request_", [DEFAULT, TRAINING], ids=["serving", "training"])
def test_presets_fit_and_presets_and_aims_are_recognised(request_):
    for name in presets(request_):
        after = change(request_, preset_changes(request_, name))
        assert preset_of(after) == name
        assert plan(after).best_row is not None
    for name, aim in aims(request_).items():
        assert aim_of(change(request_, aim.changes)) == name
    assert aim_of(change(request_, {"objective.weights.cost": 2.0})) is None
    assert preset_of(DEFAULT) == "chat"
    for changes in ({"workload.input_tokens": 1000}, {"workload.input_spread": 0.3}):
        assert preset_of(change(DEFAULT, changes)) is None


@pytest.mark.parametrize("name", ["tpot", "ttft", "usd", "usd_hour", "gpus", "output"])
def test_the_count_of_a_step_is_what_the_plan_then_has(name):
    request = change(DEFAULT, {"model": LLAMA_70B, "objective.limits.ttft_ms": 400.0})
    board = plan(request)
    measure = board.measures[name]

    def counted(step):
        after = plan(change(request, {f"objective.limits.{measure.limit}": step}))
        assert keeping(board, name, step) == len(after.order)
        return len(after.order)

    steps = limit_steps(measure.limit or "", devices=8)
    assert list(steps) == sorted(steps)
    kind = int if name == "gpus" else float
    counts = [counted(kind(step)) for step in steps[:: max(1, len(steps) // 5)]]
    assert counts == sorted(counts, reverse=measure.more_is_better)
    counted(None)


def test_steps_of_a_limit_are_round_its_own_and_the_stated_one_and_any_measure_is_counted():
    board = plan(change(DEFAULT, {"objective.limits.tpot_ms": 7.777}))
    assert 7.777 in limit_steps("tpot_ms", devices=8, stated=7.777)
    assert keeping(board, "tpot", 7.777) == len(board.order) < keeping(board, "tpot", None)
    for name in Limits.model_fields.keys() - {"percentile"}:
        steps = limit_steps(name, devices=12)
        assert 4 <= len(steps) <= 90, name
        digits = 3 if name == "accuracy_recovery" else 2  # of shares close to 1
        assert all(float(f"{step:.{digits}g}") == step for step in steps), name
    assert limit_steps("gpus", devices=12) == (1, 2, 4, 8, 12)
    cpu = {"hardware.device": "cpu", "hardware.per_node": 1}
    board = plan(change(DEFAULT, cpu | {"model": "Qwen/Qwen3-0.6B"}))
    assert not np.isfinite(board.raw("usd")).any()
    assert keeping(board, "usd", 1e9) == 0
    board = plan(TRAINING)
    most = board.raw("gpus")[board.runs].max()
    assert keeping(board, "gpus", most) == keeping(board, "gpus", None) == len(board.order)


def test_a_device_says_how_well_it_is_known_and_owning_refuses_what_makes_no_sense():
    levels = {name: support(device(name)).level for name in device_names()}
    assert (levels["h100-sxm"], levels["rtx-5090"]) == ("measured", "computed")
    assert set(levels.values()) <= {"measured", "calibrated", "computed", "unsupported"}
    assert support(device("h100-sxm")).runs > 10
    assert "vllm" in support(device("mi300x")).engines
    bad = {"years": 0, "pue": 0.9, "use": 0, "capex_usd": float("nan"), "wheels": 4}
    for name, value in bad.items():  # its sums: tests/sizing/test_buying.py
        assert name in str(refusal(OwnershipCost.of, **{name: value}))


def test_a_request_is_one_line():
    said = "Llama-3.1-8B-Instruct · 8 × H100 SXM5 · 64 requests in flight, 1,024 → 256 tokens"
    assert summary(DEFAULT) == f"{said} · throughput"
    beside = (HardwareRequest(device="mi300x", per_node=8, nodes=2),)
    several = summary(change(DEFAULT, {"options.hardware": beside}))
    assert "8 × H100 SXM5 or 16 × MI300X in 2 nodes" in several
    run = "pre-train, 256 × 4,096 tokens per step, 10.0 B tokens · time to finish"
    assert summary(TRAINING).endswith(run)
    assert steps_of(TRAINING.workload) == "10.0 B tokens in steps of 1.05 M: 9,537 steps."
    assert summary(change(DEFAULT, {"workload.mode": "open"})).count("requests/s") == 1


@pytest.mark.parametrize("mode", sorted(LOADS))
def test_a_new_mode_swaps_the_load(mode):
    request = change(change(DEFAULT, {"workload.concurrency": 7}), {"workload.mode": mode})
    stated = {name for name in LOADS.values() if getattr(request.workload, name) is not None}
    assert stated == {LOADS[mode]}
    assert getattr(request.workload, LOADS[mode]) == (7 if mode == "closed" else START_LOADS[mode])


@over("edits then", table("edits", "bought"))
def test_an_offer_a_commitment_and_a_price_replace_each_other(edits, then):
    after = reduce(change, edits, DEFAULT).hardware
    assert after.model_dump() == HardwareRequest(**then).model_dump()


def test_longer_lengths_stretch_the_context_and_a_candidate_is_set_as_a_whole():
    longer = reduce(
        change, [{"workload.max_context": 2048}, {"workload.input_tokens": 4000}], DEFAULT
    )
    assert longer.workload.max_context == 4256
    assert "shorter than" in str(refusal(change, DEFAULT, {"workload.max_context": 10}))
    request = change(DEFAULT, {"candidate": {"tp": 8, "pp": 1, "dp": 1}})
    stated = {"candidate.tp": "8", "candidate.pp": "1", "candidate.dp": "1"}
    assert to_query(request) == {"v": "1"} | stated
    assert change(request, {"candidate": None}) == DEFAULT


def test_training_starts_from_its_usual_run_and_keeps_model_and_hardware():
    limits = {"objective.limits.tpot_ms": 40.0, "objective.limits.gpus": 4}
    here = change(DEFAULT, {"hardware.device": "mi300x", "candidate": {"tp": 8}} | limits)
    there = change(here, {"workload.kind": "training"})
    assert (there.workload.kind, there.workload.tokens) == ("training", TRAINING_TOKENS)
    assert (there.model, there.hardware, there.candidate) == (here.model, here.hardware, None)
    assert there.objective.limits.model_dump(exclude_none=True) == {"gpus": 4}
    assert change(there, {"workload.kind": "serving"}).workload == DEFAULT.workload
    short = change(
        change(DEFAULT, {"model": "EleutherAI/pythia-12b"}), {"workload.kind": "training"}
    )
    assert short.workload.sequence_length == 2048  # all that the model has
    assert len(plan(short))


def test_taking_a_split_swaps_clusters_and_keeps_its_prefill_pool():
    other = HardwareRequest(device="mi300x", per_node=4)
    request = change(DEFAULT, {"options.hardware": (other,)})
    after = change(request, select_split(request, "vllm.bf16.bf16.tp4.pp1.dp1.ep1.on1"))
    assert (after.hardware, after.options.hardware) == (other, (DEFAULT.hardware,))
    assert after.candidate.tp == 4
    request = change(DEFAULT, {"options.disaggregated": True})
    key = "vllm.bf16.bf16.tp2.pp1.dp1.ep1.x2.pre4.tp1.pp1.dp1.ep1"
    candidate = change(request, select_split(request, key)).candidate
    pools = (candidate.tp, candidate.replicas, candidate.prefill.tp, candidate.prefill.replicas)
    assert pools == (2, 2, 1, 4)
    assert key_of(candidate.model_dump()) == key


def test_a_key_is_read_back():
    for key in table("edits", "keys"):
        candidate = split_of(key)
        assert split_key(candidate, cluster_of(key)) == key
        assert key_of(candidate) == key.split(".on")[0]
    assert split_of("vllm.tp4") is None
    for open_split in ({"tp": 4, "pp": 1}, {"micro_batch": 4}):
        assert key_of(open_split) is None
