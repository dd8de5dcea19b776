"""Plans of serving and training as people compare them."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
import pytest

from recipe_core.base import labels, units
from recipe_core.base.resources import PACKAGE
from recipe_core.hardware.request import HardwareRequest
from recipe_core.present import tables
from recipe_core.present.terminal import estimate_text
from recipe_core.request.edit import change
from recipe_core.request.link import DEFAULT
from recipe_core.search.plan import Plan
from recipe_core.search.plans import plan

SERVING: dict[str, Any] = {"model": "meta-llama/Llama-3.1-70B-Instruct"}
TRAINING: dict[str, Any] = {"workload.kind": "training", "hardware.nodes": 2}


BOARDS: dict[str, dict[str, Any]] = {
    "serving": SERVING,
    "training": TRAINING,
    "pooled": SERVING | {"options.disaggregated": True},
    "beside": {"options.hardware": (HardwareRequest(device="mi300x"),)},
}


@cache
def planned(name: str) -> Plan:
    return plan(change(DEFAULT, BOARDS[name]))


boards = pytest.mark.parametrize("name", ["serving", "training"])


@boards
def test_every_measure_is_read_in_its_unit(name: str) -> None:
    board = planned(name)
    for name, measure in board.measures.items():
        assert len(board.values(name)) == len(board)
        assert measure.title
        if board.known(name):
            assert board.text(name, board.best_row) != "unknown"


@pytest.mark.parametrize("name", BOARDS)
def test_every_row_has_its_own_key_and_is_found_by_it(name: str) -> None:
    board = planned(name)
    keys = [board.key(row) for row in range(len(board))]
    assert len(set(keys)) == len(keys)
    some = range(0, len(board), max(1, len(board) // 200))
    assert [board.find(keys[row]) for row in some] == list(some)
    other = planned("serving" if name == "training" else "training")
    if name == "beside":
        second = [row for row, key in enumerate(keys) if key.endswith(".on1")]
        assert 0 < len(second) < len(keys)
        assert "MI300X" in board.label(second[0])
    for key in ("nonsense", "vllm.bf16.bf16.tp99.pp1.dp1.ep1", other.key(0)):
        assert board.find(key) is None


def test_labels_name_what_differs_and_counts_rates_and_rounding_read_well() -> None:
    board = plan(change(DEFAULT, SERVING | {"options.weight_dtypes": ("bf16", "fp8")}))
    assert len({board.label(row) for row in range(len(board))}) == len(board)
    assert labels.degrees({"tp": 4, "pp": 1, "dp": 2, "ep": 8}) == "tp 4 · dp 2 · ep 8"
    split = {"tp": 1, "pp": 4, "cp": 1, "dp": 8, "ep": 1, "virtual_stages": 2, "zero_stage": 1}
    split |= {"micro_batch": 2, "recompute": "full"}
    whole = labels.training_split(split)
    assert whole == "dp 8 · pp 4 × 2 · zero 1 · micro-batch 2 · full recompute"
    assert labels.short_name(split) == whole.replace("micro-batch", "mb")
    board = planned("pooled")
    labelled = [board.label(int(row)) for row in board.order]
    assert len(set(labelled)) == len(labelled)
    assert any("prefill on" in label for label in labelled)
    some = next(int(row) for row in board.order if "prefill" in board.candidate(int(row)))
    short = board.label(some).replace(", prefill on ", " + ")
    assert labels.short_name(board.candidate(some)) == short
    counts = {8.03e9: "8.03 B", 630e6: "630 M", 671e9: "671 B", 1500: "1.50 k", 12: "12.0"}
    assert {value: units.count(value) for value in counts} == counts
    assert units.per_second(3.35e12, "B") == "3.35 TB/s"
    assert units.per_second(989.4e12, "FLOP") == "989 TFLOP/s"
    rounded = units.rounded([12345.0, 0.0, 0.012345, np.inf]).tolist()
    assert rounded == pytest.approx([12300.0, 0.0, 0.0123, np.inf])


@boards
def test_refused_rows_have_reasons_and_named_kinds(name: str) -> None:
    board = planned(name)
    rows = [int(row) for row in board.refused_rows()[:20]]
    assert rows
    for row, said in zip(rows, board.sentences(rows), strict=True):
        assert said == board.reasons(row)
        assert all(said)
        assert board.title(board.codes(row))
    assert set(board.rules()) <= set(board.titles)


def test_refusals_that_no_board_here_shows_have_names_too() -> None:
    for patterns, names in (
        (("space/rules.py", "search/limits.py", "physics/serving/*.py"), labels.REFUSALS),
        (("space/training_rules.py", "physics/training/*.py"), labels.TRAINING_REFUSALS),
    ):
        source = "".join(path.read_text() for pattern in patterns for path in PACKAGE.glob(pattern))
        codes = set(re.findall(r'(?:Refusal|_indivisible)\(\s*"([a-z-]+)"', source))
        assert len(codes) > 5
        assert codes <= set(names)


def test_every_cause_and_part_has_a_name() -> None:
    for model in (SERVING["model"], "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-30B-A3B"):
        board = plan(change(DEFAULT, {"model": model}))
        for row in board.order[:10]:
            breakdown = board.estimate(int(row)).to_json()["breakdown_s"]
            assert set(breakdown["decode"]) | set(breakdown["prefill"]) <= set(labels.CAUSES)
        assert set(board.rules()) <= set(labels.REFUSALS)
        assert set(board.problem.model.parameters_by_part) <= set(labels.PARTS)
    step = planned("training").estimate(planned("training").best_row).breakdown_s.step
    assert set(step) <= set(labels.TRAINING_CAUSES)


def test_a_training_precision_is_taken_from_the_candidate() -> None:
    board = plan(change(DEFAULT, TRAINING | {"candidate.precision": "fp8"}))
    assert board.candidate(0)["precision"] == "fp8"
    assert len(board) > 100


@boards
def test_tables_are_in_units_for_people(name: str) -> None:
    board = planned(name)
    frame = tables.splits_frame(board, [int(row) for row in board.order[:50]])
    assert frame["memory"][0] == pytest.approx(board.values("memory")[board.best_row], rel=5e-3)
    assert (frame["front"] == "◆").sum() == board.front(*board.axes)[board.order[:50]].sum()
    refused = tables.refused_frame(board, at_most=3)
    assert len(refused) == 3
    assert (refused["why"] != "").all()
    assert sum(tables.refusal_counts(board).values()) >= int((~board.feasible).sum())


@cache
def run_of(tokens: float) -> Plan:
    return plan(change(DEFAULT, TRAINING | {"workload.tokens": tokens}))


def test_mfu_is_a_measure_of_training_and_the_estimates_own():
    board = run_of(1e9)
    best = board.best_row
    estimate = board.estimate(best).training
    assert board.raw("mfu")[best] == pytest.approx(estimate.mfu, rel=1e-12)
    assert board.text("mfu", best) == f"{estimate.mfu:.1%}"
    assert all("mfu" in names for names in (board.headline, board.listed, board.tabled))
    assert board.measures["mfu"].more_is_better
    low, high = board.estimate(best).bands["mfu"]
    assert low < estimate.mfu < high
    assert board.pareto("mfu", "peak_memory_bytes")


def test_hfu_counts_what_is_computed_again_and_the_command_line_says_it():
    board = run_of(1e9)
    recompute = board.columns["recompute"]
    none, full = (next(int(row) for row in board.order if recompute[row] == k) for k in (0, 2))
    training = board.estimate(none).training
    assert training.hfu is None
    assert board.raw("hfu")[none] == pytest.approx(training.mfu, rel=1e-12)
    estimate = board.estimate(full)
    training = estimate.training  # a third forward pass of everything but embedding and head
    assert 1.25 < training.hfu / training.mfu < 1 + 1 / 3
    assert training.hfu < 1
    text = estimate_text(board.candidate(full), estimate.to_json())
    assert re.search(rf"MFU +{training.mfu:.1%}", text)
    assert re.search(rf"HFU, with recomputation +{training.hfu:.1%}", text)


@pytest.mark.parametrize(("tokens", "unit", "seconds"), [(1e9, "h", 3600), (1e11, "days", 86400)])
def test_the_time_to_finish_has_one_unit_in_a_plan(tokens, unit, seconds):
    board = run_of(tokens)
    measure = board.measures["wall"]
    assert measure.unit == unit
    assert measure.axis.endswith(f"({unit})")
    assert {board.text("wall", int(row)).split()[-1] for row in board.order} == {unit}
    best = board.best_row
    assert board.values("wall")[best] * seconds == pytest.approx(board.raw("wall")[best])
