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


@cache
def serving() -> Plan:
    return plan(change(DEFAULT, SERVING))


@cache
def training() -> Plan:
    return plan(change(DEFAULT, TRAINING))


@cache
def pooled() -> Plan:
    return plan(change(DEFAULT, SERVING | {"options.disaggregated": True}))


boards = pytest.mark.parametrize("make", [serving, training])


@boards
def test_every_measure_is_read_in_its_unit(make: Any) -> None:
    board = make()
    for name, measure in board.measures.items():
        assert len(board.values(name)) == len(board)
        assert measure.title
        if board.known(name):
            assert board.text(name, board.best_row) != "unknown"


@pytest.mark.parametrize("make", [serving, training, pooled])
def test_every_row_has_its_own_key_and_is_found_by_it(make: Any) -> None:
    board = make()
    keys = [board.key(row) for row in range(len(board))]
    assert len(set(keys)) == len(keys)
    some = range(0, len(board), max(1, len(board) // 200))
    assert [board.find(keys[row]) for row in some] == list(some)
    assert board.find("nonsense") is None
    assert board.find("vllm.bf16.bf16.tp99.pp1.dp1.ep1") is None


def test_pools_have_labels_of_their_own() -> None:
    board = pooled()
    labelled = [board.label(int(row)) for row in board.order]
    assert len(set(labelled)) == len(labelled)
    assert any("prefill on" in label for label in labelled)
    some = next(int(row) for row in board.order if "prefill" in board.candidate(int(row)))
    assert labels.short_name(board.candidate(some)) == board.label(some).replace(
        ", prefill on ", " + "
    )


def test_a_key_of_the_other_kind_names_no_row() -> None:
    assert serving().find(training().key(0)) is None
    assert training().find(serving().key(0)) is None


@boards
def test_what_a_front_holds_is_not_beaten(make: Any) -> None:
    board = make()
    x, y = board.axes
    on = board.front(x, y)
    assert on.any()
    xs, ys = (
        board.raw(name) * (-1 if board.measures[name].more_is_better else 1) for name in (x, y)
    )
    for row in np.flatnonzero(on):
        better = (
            board.feasible & (xs <= xs[row]) & (ys <= ys[row]) & ((xs < xs[row]) | (ys < ys[row]))
        )
        assert not better.any()


@boards
def test_refused_rows_have_reasons_and_kinds(make: Any) -> None:
    board = make()
    rows = [int(row) for row in board.refused_rows()[:20]]
    assert rows
    for row, said in zip(rows, board.sentences(rows), strict=True):
        assert said == board.reasons(row)
        assert all(said)
        assert board.title(board.codes(row))


@boards
def test_every_kind_of_refusal_has_a_name(make: Any) -> None:
    assert set(make().rules()) <= set(make().titles)


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (("space/rules.py", "search/limits.py", "physics/serving/*.py"), labels.REFUSALS),
        (("space/training_rules.py", "physics/training/*.py"), labels.TRAINING_REFUSALS),
    ],
)
def test_refusals_that_no_board_here_shows_have_names_too(
    patterns: tuple[str, ...], names: dict[str, str]
) -> None:
    source = "".join(path.read_text() for pattern in patterns for path in PACKAGE.glob(pattern))
    codes = set(re.findall(r'(?:Refusal|_indivisible)\(\s*"([a-z-]+)"', source))
    assert len(codes) > 5
    assert codes <= set(names)


def test_every_cause_and_part_has_a_name() -> None:
    for model in (
        "meta-llama/Llama-3.1-70B-Instruct",
        "deepseek-ai/DeepSeek-V3",
        "Qwen/Qwen3-30B-A3B",
    ):
        board = plan(change(DEFAULT, {"model": model}))
        for row in board.order[:10]:
            breakdown = board.estimate(int(row)).to_json()["breakdown_s"]
            assert set(breakdown["decode"]) | set(breakdown["prefill"]) <= set(labels.CAUSES)
        assert set(board.rules()) <= set(labels.REFUSALS)
        assert set(board.problem.model.parameters_by_part) <= set(labels.PARTS)
    step = training().estimate(training().best_row).breakdown_s.step
    assert set(step) <= set(labels.TRAINING_CAUSES)


def test_several_clusters_are_told_apart() -> None:
    request = change(DEFAULT, {"options.hardware": (HardwareRequest(device="mi300x", per_node=8),)})
    board = plan(request)
    keys = [board.key(row) for row in range(len(board))]
    assert len(set(keys)) == len(board)
    assert {key.endswith(".on1") for key in keys} == {True, False}
    assert [board.find(key) for key in keys] == list(range(len(board)))
    assert "MI300X" in board.label(board.find(next(key for key in keys if key.endswith(".on1"))))


def test_a_training_precision_is_taken_from_the_candidate() -> None:
    board = plan(change(DEFAULT, TRAINING | {"candidate.precision": "fp8"}))
    assert board.candidate(0)["precision"] == "fp8"
    assert len(board) > 100


@boards
def test_tables_are_in_units_for_people(make: Any) -> None:
    board = make()
    frame = tables.splits_frame(board, [int(row) for row in board.order[:50]])
    assert frame["memory"][0] == pytest.approx(board.values("memory")[board.best_row], rel=5e-3)
    assert (frame["front"] == "◆").sum() == board.front(*board.axes)[board.order[:50]].sum()
    refused = tables.refused_frame(board, at_most=3)
    assert len(refused) == 3
    assert (refused["why"] != "").all()
    assert sum(tables.refusal_counts(board).values()) >= int((~board.feasible).sum())


def test_labels_name_what_differs() -> None:
    board = plan(change(DEFAULT, SERVING | {"options.weight_dtypes": ("bf16", "fp8")}))
    assert len({board.label(row) for row in range(len(board))}) == len(board)
    assert labels.degrees({"tp": 4, "pp": 1, "dp": 2, "ep": 8}) == "tp 4 · dp 2 · ep 8"
    split = {
        "tp": 1,
        "pp": 4,
        "cp": 1,
        "dp": 8,
        "ep": 1,
        "virtual_stages": 2,
        "zero_stage": 1,
        "micro_batch": 2,
        "recompute": "full",
    }
    assert (
        labels.training_split(split) == "dp 8 · pp 4 × 2 · zero 1 · micro-batch 2 · full recompute"
    )
    assert labels.short_name(split) == "dp 8 · pp 4 × 2 · zero 1 · mb 2 · full recompute"


@pytest.mark.parametrize(
    ("value", "text"),
    [(8.03e9, "8.03 B"), (630e6, "630 M"), (671e9, "671 B"), (1500, "1.50 k"), (12, "12.0")],
)
def test_counts_read_well(value: float, text: str) -> None:
    assert units.count(value) == text


def test_rates_and_rounding_read_well() -> None:
    assert units.per_second(3.35e12, "B") == "3.35 TB/s"
    assert units.per_second(989.4e12, "FLOP") == "989 TFLOP/s"
    assert units.rounded([12345.0, 0.0, 0.012345, np.inf]).tolist() == pytest.approx(
        [12300.0, 0.0, 0.0123, np.inf]
    )


def training_plan(**changes):
    asked = {"workload.kind": "training", "hardware.nodes": 2, "workload.tokens": 1e9}
    return plan(
        change(DEFAULT, asked | {name.replace("__", "."): v for name, v in changes.items()})
    )


def test_mfu_is_a_measure_of_training_and_the_estimates_own():
    board = training_plan()
    best = board.best_row
    estimate = board.estimate(best).training
    assert board.raw("mfu")[best] == pytest.approx(estimate.mfu, rel=1e-12)
    assert board.text("mfu", best) == f"{estimate.mfu:.1%}"
    assert "mfu" in board.headline
    assert "mfu" in board.listed
    assert "mfu" in board.tabled
    assert board.measures["mfu"].more_is_better
    low, high = board.estimate(best).bands["mfu"]
    assert low < estimate.mfu < high
    assert board.pareto("mfu", "peak_memory_bytes")


def test_hfu_counts_what_is_computed_again():
    board = training_plan()
    recompute = board.columns["recompute"]
    for code, repeats in ((0, None), (2, 1 / 3)):
        row = next(int(row) for row in board.order if recompute[row] == code)
        training = board.estimate(row).training
        if repeats is None:
            assert training.hfu is None
            assert board.raw("hfu")[row] == pytest.approx(training.mfu, rel=1e-12)
        else:  # a third forward pass of everything but embedding and head
            assert 1.25 < training.hfu / training.mfu < 1 + repeats
            assert training.hfu < 1


def test_the_command_line_says_mfu_and_hfu():
    board = training_plan()
    row = next(int(row) for row in board.order if board.columns["recompute"][row] == 2)
    estimate = board.estimate(row)
    text = estimate_text(board.candidate(row), estimate.to_json())
    assert re.search(rf"MFU +{estimate.training.mfu:.1%}", text)
    assert re.search(rf"HFU, with recomputation +{estimate.training.hfu:.1%}", text)


@pytest.mark.parametrize(("tokens", "unit"), [(1e9, "h"), (1e11, "days")])
def test_the_time_to_finish_has_one_unit_in_a_plan(tokens, unit):
    board = training_plan(workload__tokens=tokens)
    measure = board.measures["wall"]
    assert measure.unit == unit
    assert measure.axis.endswith(f"({unit})")
    texts = {board.text("wall", int(row)).split()[-1] for row in board.order}
    assert texts == {unit}
    hours = 3600 if unit == "h" else 86400
    best = board.best_row
    assert board.values("wall")[best] * hours == pytest.approx(board.raw("wall")[best])
