"""One split under other loads, prices, numbers of devices and assumptions."""

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


@cache
def serving(mode: str = "closed") -> tuple[ServingPlan, int]:
    board = plan(change(DEFAULT, {"workload.mode": mode}))
    return board, board.best_row


@pytest.mark.parametrize("mode", ["closed", "open", "static", "offline"])
def test_a_load_curve_goes_through_the_request(mode: str) -> None:
    board, row = serving(mode)
    curve = load_curve(board, row)
    here = int(np.argmin(np.abs(curve.load - board.columns["load"][row])))
    assert curve.load[here] == board.columns["load"][row]
    assert curve.tpot_s[here] == pytest.approx(board.raw("tpot")[row])
    assert np.all(np.diff(curve.tpot_s[curve.runs]) >= -1e-12)


def test_cost_falls_with_use_and_scaling_has_the_best_of_each_number_of_devices() -> None:
    use = np.array([0.25, 0.5, 1.0])
    assert usd_per_million_by_use(36.0, 1000.0, use) == pytest.approx([40.0, 20.0, 10.0])
    board = plan(change(DEFAULT, {"workload.kind": "training", "hardware.nodes": 2}))
    found, (gpus, rates) = scaling(board), map(board.raw, ("gpus", "output"))
    assert list(found.gpus) == sorted(set(gpus[board.feasible]))
    best = [rates[board.feasible & (gpus == number)].max() for number in found.gpus]
    assert list(found.tokens_per_s) == best
    ideal = best[0] * found.gpus[-1] / found.gpus[0]
    assert found.ideal_tokens_per_s[-1] == pytest.approx(ideal)


@pytest.mark.parametrize("measure", FIGURES)
def test_a_tornado_moves_one_assumption_at_a_time(measure: str) -> None:
    board, row = serving()
    base, swings = tornado(board, row, measure)
    assert base == pytest.approx(board.raw(measure)[row])
    widths = [swing.width(base) for swing in swings]
    assert widths == sorted(widths, reverse=True)


def test_a_tornado_knows_which_way_things_go_and_a_limit_may_be_crossed_at_no_load() -> None:
    base, swings = tornado(*serving(), "usd")
    found = {swing.name: swing for swing in swings}
    price, bandwidth = found["Price of a device"], found["Memory bandwidth"]
    assert (price.less, price.more) == pytest.approx((0.8 * base, 1.2 * base))
    assert bandwidth.more < base < bandwidth.less
    assert "Prefix cache hits" not in found  # there are none to move
    ends = {"Input tokens": ("512", "1,536"), "Load": ("32 requests", "96 requests")}
    ends |= {"Memory bandwidth": ("2.68 TB/s", "4.02 TB/s")}
    assert {name: (found[name].low, found[name].high) for name in ends} == ends
    assert price.high.endswith("/h")
    board, row = serving()
    assert crossing(board, row, 1e-6) is None
    slow = crossing(board, row, 1e6)
    assert slow.within
    assert slow.load == 16 * board.columns["load"][row]


@pytest.mark.parametrize("mode", ["closed", "open"])
def test_a_crossing_is_the_largest_load_within_the_limit(mode: str) -> None:
    board, row = serving(mode)
    curve = load_curve(board, row)
    runs = np.flatnonzero(curve.runs)
    middle = runs[len(runs) // 2]
    limit_s = float(curve.tpot_s[middle]) * 1.001
    at = crossing(board, row, limit_s)
    assert at.tpot_s <= limit_s
    assert not at.within
    assert at.load >= curve.load[middle] * 0.999
    block, i = board.at(row)
    more = at.load + 1 if mode == "closed" else at.load * 1.02
    beyond = estimate(block.setting, replace(block.cases.take([i]), load=np.array([more])))
    assert beyond.serving.tpot_s[0] > limit_s or not beyond.feasible[0]
