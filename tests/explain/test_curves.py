"""One split under other loads, prices, numbers of devices and assumptions."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from recipe_core.explain.curves import crossing, load_curve, scaling, usd_per_million_by_use
from recipe_core.explain.tornado import FIGURES, tornado
from recipe_core.physics.serving.estimates import estimate
from recipe_core.request.edit import change
from recipe_core.request.link import DEFAULT
from recipe_core.search.plans import plan
from recipe_core.search.serving_plan import ServingPlan
from recipe_core.search.training_plan import TrainingPlan


@cache
def serving(mode: str = "closed") -> ServingPlan:
    board = plan(change(DEFAULT, {"workload.mode": mode}))
    assert isinstance(board, ServingPlan)
    return board


@pytest.mark.parametrize("mode", ["closed", "open", "static", "offline"])
def test_a_load_curve_goes_through_the_request(mode: str) -> None:
    board = serving(mode)
    row = board.best_row
    assert row is not None
    curve = load_curve(board, row)
    here = int(np.argmin(np.abs(curve.load - board.columns["load"][row])))
    assert curve.load[here] == board.columns["load"][row]
    assert curve.tpot_s[here] == pytest.approx(board.raw("tpot")[row])
    assert np.all(np.diff(curve.tpot_s[curve.runs]) >= -1e-12)


def test_cost_falls_with_use() -> None:
    use = np.array([0.25, 0.5, 1.0])
    assert usd_per_million_by_use(36.0, 1000.0, use) == pytest.approx([40.0, 20.0, 10.0])


def test_scaling_has_the_best_of_each_number_of_devices() -> None:
    board = plan(change(DEFAULT, {"workload.kind": "training", "hardware.nodes": 2}))
    assert isinstance(board, TrainingPlan)
    found = scaling(board)
    assert list(found.gpus) == sorted(set(board.raw("gpus")[board.feasible]))
    for gpus, rate in zip(found.gpus, found.tokens_per_s, strict=True):
        assert rate == board.raw("output")[board.feasible & (board.raw("gpus") == gpus)].max()
    assert found.ideal_tokens_per_s[-1] == pytest.approx(
        found.tokens_per_s[0] * found.gpus[-1] / found.gpus[0]
    )


@pytest.mark.parametrize("measure", FIGURES)
def test_a_tornado_moves_one_assumption_at_a_time(measure: str) -> None:
    board = serving()
    row = board.best_row
    assert row is not None
    base, swings = tornado(board, row, measure)
    assert base == pytest.approx(board.raw(measure)[row])
    assert [swing.width(base) for swing in swings] == sorted(
        (swing.width(base) for swing in swings), reverse=True
    )


def test_a_tornado_knows_which_way_things_go() -> None:
    board = serving()
    row = board.best_row
    assert row is not None
    base, swings = tornado(board, row, "usd")
    found = {swing.name: swing for swing in swings}
    assert found["Price of a device"].less == pytest.approx(0.8 * base)
    assert found["Price of a device"].more == pytest.approx(1.2 * base)
    assert found["Memory bandwidth"].more < base < found["Memory bandwidth"].less
    assert "Prefix cache hits" not in found  # there are none to move


def test_a_tornado_says_between_what_values_it_moves() -> None:
    board = serving()
    assert board.best_row is not None
    swings = {swing.name: swing for swing in tornado(board, board.best_row, "usd")[1]}
    assert (swings["Input tokens"].low, swings["Input tokens"].high) == ("512", "1,536")
    assert (swings["Load"].low, swings["Load"].high) == ("32 requests", "96 requests")
    assert (swings["Memory bandwidth"].low, swings["Memory bandwidth"].high) == (
        "2.68 TB/s",
        "4.02 TB/s",
    )
    assert swings["Price of a device"].high.endswith("/h")


@pytest.mark.parametrize("mode", ["closed", "open"])
def test_a_crossing_is_the_largest_load_within_the_limit(mode: str) -> None:
    board = serving(mode)
    row = board.best_row
    assert row is not None
    curve = load_curve(board, row)
    runs = np.flatnonzero(curve.runs)
    limit_s = float(curve.tpot_s[runs[len(runs) // 2]]) * 1.001
    at = crossing(board, row, limit_s)
    assert at is not None
    assert at.tpot_s <= limit_s
    assert not at.within
    assert at.load >= curve.load[runs[len(runs) // 2]] * 0.999
    block, i = board.at(row)
    more = at.load + 1 if mode == "closed" else at.load * 1.02
    cases = replace(block.cases.take([i]), load=np.array([more]))
    beyond = estimate(block.setting, cases)
    assert beyond.serving.tpot_s[0] > limit_s or not beyond.feasible[0]


def test_a_limit_may_be_crossed_at_no_load() -> None:
    board = serving()
    row = board.best_row
    assert row is not None
    assert crossing(board, row, 1e-6) is None
    slow = crossing(board, row, 1e6)
    assert slow is not None
    assert slow.within
    assert slow.load == 16 * board.columns["load"][row]
