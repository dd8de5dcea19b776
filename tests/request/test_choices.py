"""What pages offer: presets, aims, limits with their counts, prices of one's own, how well a device
is known, a request in one line.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from recipe_core.hardware.cluster import device, device_names
from recipe_core.hardware.ownership import OwnershipCost
from recipe_core.hardware.request import HardwareRequest
from recipe_core.measured.support import support
from recipe_core.request.describe import steps_of, summary
from recipe_core.request.edit import change
from recipe_core.request.link import DEFAULT
from recipe_core.request.objective import Limits
from recipe_core.request.presets import aim_of, aims, preset_changes, preset_of, presets
from recipe_core.search.plans import plan
from recipe_core.search.slos import keeping, limit_steps
from tests.fixtures.refusals import refusal

TRAINING = change(DEFAULT, {"workload.kind": "training"})


@pytest.mark.parametrize("request_", [DEFAULT, TRAINING], ids=["serving", "training"])
def test_presets_fit_and_presets_and_aims_are_recognised(request_: Any) -> None:
    for name in presets(request_):
        after = change(request_, preset_changes(request_, name))
        assert preset_of(after) == name
        assert plan(after).best_row is not None
    for name, aim in aims(request_).items():
        assert aim_of(change(request_, aim.changes)) == name
    assert aim_of(change(request_, {"objective.weights.cost": 2.0})) is None


def test_a_request_of_its_own_is_no_preset() -> None:
    assert preset_of(DEFAULT) == "chat"
    for changes in ({"workload.input_tokens": 1000}, {"workload.input_spread": 0.3}):
        assert preset_of(change(DEFAULT, changes)) is None


@pytest.mark.parametrize("name", ["tpot", "ttft", "usd", "usd_hour", "gpus", "output"])
def test_the_count_of_a_step_is_what_the_plan_then_has(name: str) -> None:
    request = change(
        DEFAULT, {"model": "meta-llama/Llama-3.1-70B-Instruct", "objective.limits.ttft_ms": 400.0}
    )
    board = plan(request)
    measure = board.measures[name]
    steps = limit_steps(measure.limit or "", devices=8)
    assert list(steps) == sorted(steps)
    counts = []
    for step in steps[:: max(1, len(steps) // 5)]:
        field = f"objective.limits.{measure.limit}"
        after = plan(change(request, {field: int(step) if name == "gpus" else step}))
        counts.append(keeping(board, name, step))
        assert counts[-1] == len(after.order)
    assert counts == sorted(counts, reverse=measure.more_is_better)
    assert keeping(board, name, None) == len(
        plan(change(request, {f"objective.limits.{measure.limit}": None})).order
    )


def test_steps_of_a_limit_are_round_its_own_and_the_stated_one() -> None:
    board = plan(change(DEFAULT, {"objective.limits.tpot_ms": 7.777}))
    assert 7.777 in limit_steps("tpot_ms", devices=8, stated=7.777)
    assert keeping(board, "tpot", 7.777) == len(board.order)
    assert keeping(board, "tpot", None) > len(board.order)
    for name in Limits.model_fields.keys() - {"percentile"}:
        steps = limit_steps(name, devices=12)
        assert 4 <= len(steps) <= 90, name
        digits = 3 if name == "accuracy_recovery" else 2  # of shares close to 1
        assert all(float(f"{step:.{digits}g}") == step for step in steps), name
    assert limit_steps("gpus", devices=12) == (1, 2, 4, 8, 12)


def test_measures_that_nobody_knows_or_training_has_are_counted_too() -> None:
    cpu = {"hardware.device": "cpu", "hardware.per_node": 1}
    board = plan(change(DEFAULT, cpu | {"model": "Qwen/Qwen3-0.6B"}))
    assert not np.isfinite(board.raw("usd")).any()
    assert keeping(board, "usd", 1e9) == 0
    board = plan(TRAINING)
    most = board.raw("gpus")[board.runs].max()
    assert keeping(board, "gpus", most) == keeping(board, "gpus", None) == len(board.order)


def test_owning_refuses_what_makes_no_sense() -> None:  # its sums: tests/sizing/test_buying.py
    bad = {"years": 0, "pue": 0.9, "use": 0, "capex_usd": float("nan"), "wheels": 4}
    for name, value in bad.items():
        assert name in str(refusal(OwnershipCost.of, **{name: value}))


def test_a_device_says_how_well_it_is_known_and_a_request_is_one_line() -> None:
    levels = {name: support(device(name)).level for name in device_names()}
    assert levels["h100-sxm"] == "measured"
    assert levels["rtx-5090"] == "computed"
    assert support(device("h100-sxm")).runs > 10
    assert "vllm" in support(device("mi300x")).engines
    assert set(levels.values()) <= {"measured", "calibrated", "computed", "unsupported"}
    said = "Llama-3.1-8B-Instruct · 8 × H100 SXM5 · 64 requests in flight, 1,024 → 256 tokens"
    assert summary(DEFAULT) == f"{said} · throughput"
    beside = (HardwareRequest(device="mi300x", per_node=8, nodes=2),)
    several = summary(change(DEFAULT, {"options.hardware": beside}))
    assert "8 × H100 SXM5 or 16 × MI300X in 2 nodes" in several
    run = "pre-train, 256 × 4,096 tokens per step, 10.0 B tokens · time to finish"
    assert summary(TRAINING).endswith(run)
    assert steps_of(TRAINING.workload) == "10.0 B tokens in steps of 1.05 M: 9,537 steps."
    assert summary(change(DEFAULT, {"workload.mode": "open"})).count("requests/s") == 1
