"""One split under other loads and assumptions, devices over all loads, and pipelines in time."""

import itertools
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe_core.explain.curves import crossing, load_curve, scaling, usd_per_million_by_use
from recipe_core.explain.frontier import INTERACTIVITIES, frontier
from recipe_core.explain.timeline import best_with_pipeline, step_timeline, timeline
from recipe_core.explain.tornado import FIGURES, tornado
from recipe_core.physics.serving.estimates import estimate
from recipe_core.physics.training.schedule import bubble_micro_batches
from recipe_core.present import charts
from recipe_core.present.charts.frontier import frontier_lines, frontier_table
from recipe_core.search.plans import plan_candidate
from tests.fixtures.plans import BESIDE, planned, training
from tests.fixtures.refusals import refusal
from tests.fixtures.sizes import examples


@pytest.mark.parametrize("mode", ["closed", "open", "static", "offline"])
def test_a_load_curve_goes_through_the_request_and_crosses_a_limit_at_its_largest_load(mode):
    board = planned(("workload.mode", mode))
    row = board.best_row
    curve = load_curve(board, row)
    here = int(np.argmin(np.abs(curve.load - board.columns["load"][row])))
    assert curve.load[here] == board.columns["load"][row]
    assert curve.tpot_s[here] == pytest.approx(board.raw("tpot")[row])
    runs = np.flatnonzero(curve.runs)
    assert np.all(np.diff(curve.tpot_s[runs]) >= -1e-12)
    if mode in ("static", "offline"):
        return
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


def test_cost_falls_with_use_and_scaling_has_the_best_of_each_number_of_devices():
    use = np.array([0.25, 0.5, 1.0])
    assert usd_per_million_by_use(36.0, 1000.0, use) == pytest.approx([40.0, 20.0, 10.0])
    board = training()
    found, (gpus, rates) = scaling(board), map(board.raw, ("gpus", "output"))
    assert list(found.gpus) == sorted(set(gpus[board.feasible]))
    best = [rates[board.feasible & (gpus == number)].max() for number in found.gpus]
    assert list(found.tokens_per_s) == best
    ideal = best[0] * found.gpus[-1] / found.gpus[0]
    assert found.ideal_tokens_per_s[-1] == pytest.approx(ideal)


def test_a_tornado_moves_one_assumption_at_a_time_and_knows_which_way_things_go():
    board = planned()
    row = board.best_row
    for measure in FIGURES:
        base, swings = tornado(board, row, measure)
        assert base == pytest.approx(board.raw(measure)[row])
        widths = [swing.width(base) for swing in swings]
        assert widths == sorted(widths, reverse=True)
    base, swings = tornado(board, row, "usd")
    found = {swing.name: swing for swing in swings}
    price, bandwidth = found["Price of a device"], found["Memory bandwidth"]
    assert (price.less, price.more) == pytest.approx((0.8 * base, 1.2 * base))
    assert bandwidth.more < base < bandwidth.less
    assert "Prefix cache hits" not in found  # there are none to move
    ends = {"Input tokens": ("512", "1,536"), "Load": ("32 requests", "96 requests")}
    ends |= {"Memory bandwidth": ("2.68 TB/s", "4.02 TB/s")}
    assert {name: (found[name].low, found[name].high) for name in ends} == ends
    assert price.high.endswith("/h")
    # no load, or any, keeps such a limit
    assert crossing(board, row, 1e-6) is None
    slow = crossing(board, row, 1e6)
    assert (slow.within, slow.load) == (True, 16 * board.columns["load"][row])


LIMITED = (BESIDE, ("objective.limits.tpot_ms", 40.0))


@cache
def both():
    return frontier(planned(*LIMITED))


@cache
def free():
    return frontier(planned())


def test_each_device_has_an_envelope_that_only_falls_and_nothing_lies_beyond_it():
    wide = both()
    assert [one.title for one in wide.envelopes] == ["H100 SXM5", "MI300X"]
    assert (wide.loads.min(), wide.loads.max()) == (1.0, 1024.0)
    for number, envelope in enumerate(wide.envelopes):
        assert (np.diff(envelope.interactivity) > 0).all()
        assert (np.diff(envelope.per_gpu) < 0).all()
        assert not wide.plan.queues[envelope.rows].any()
        own = wide.plan.runs & ~wide.plan.queues & (wide.plan.clusters_of_rows == number)
        for row in np.flatnonzero(own):
            place = envelope.at(float(wide.plan.raw("interactivity")[row]))
            assert envelope.per_gpu[place] >= wide.plan.raw("per_gpu")[row]


OPEN = {"workload.mode": "open", "workload.request_rate": 2.0, "workload.concurrency": None}
STATIC = {"workload.mode": "static", "workload.batch": 64, "workload.concurrency": None}


@pytest.mark.parametrize("load", [{"workload.concurrency": 64}, OPEN, STATIC])
def test_points_agree_with_estimates_of_one_split(load):
    wide = frontier(planned(*load.items(), BESIDE))
    assert wide.envelopes
    for envelope in wide.envelopes:
        for place in range(0, len(envelope.rows), 5):
            alone, only = plan_candidate(wide.plan.request_of(int(envelope.rows[place])))
            serving = alone.estimate(only).serving
            assert 1 / serving.tpot_s == pytest.approx(envelope.interactivity[place])
            assert serving.output_tokens_per_s_per_gpu == pytest.approx(envelope.per_gpu[place])


def test_limits_on_time_leave_splits_in_and_large_plans_have_fewer_loads():
    timed = frontier(planned(("objective.limits.tpot_ms", 5.0)))
    assert timed.envelopes[0].per_gpu.tolist() == free().envelopes[0].per_gpu.tolist()
    few = frontier(planned(("objective.limits.gpus", 4)))
    assert few.plan.raw("gpus")[few.envelopes[0].rows].max() <= 4
    queue = {"workload.mode": "offline", "workload.requests": 1000, "workload.concurrency": None}
    assert "no load to vary" in str(refusal(frontier, planned(*queue.items())))
    wide = frontier(planned(("hardware.nodes", 16), ("options.engines", ("vllm", "sglang"))))
    assert 5 < len(wide.loads) < len(both().loads)
    assert wide.loads.max() == 1024


@pytest.mark.nightly
def test_percentiles_are_not_simulated_for_it():
    limits = {"objective.limits.tpot_ms": 60.0, "objective.limits.percentile": 95.0}
    wide = frontier(planned(*limits.items()))
    assert all(block.simulation is None for block in wide.plan.blocks)
    assert wide.envelopes[0].per_gpu.tolist() == free().envelopes[0].per_gpu.tolist()


def test_devices_are_compared_at_round_interactivities_and_drawn_with_limit_and_split():
    table = frontier_table(both())
    assert table.head[-1] == "MI300X over H100 SXM5"
    first, second = both().envelopes
    for row in table.rows:
        interactivity = float(row[0].split()[0])
        assert interactivity in INTERACTIVITIES
        one, other = first.at(interactivity), second.at(interactivity)
        if one is None or other is None:
            assert row[-1] == "–"
            continue
        gain = second.per_gpu[other] / first.per_gpu[one] - 1
        assert float(row[-1].rstrip("%")) == pytest.approx(gain * 100, abs=0.51)
    assert "in flight" in table.rows[0][1]
    splits = planned(*LIMITED)
    figure = frontier_lines(both(), splits, splits.best_row)
    names = [trace.name for trace in figure.data]
    assert names == ["H100 SXM5", "MI300X", "This split at its load"]
    assert figure.layout.shapes[0]["x0"] == 25.0
    assert {trace.line.shape for trace in figure.data[:2]} == {"vh"}
    assert figure.data[0].line.color == charts.palette(dark=False).groups[0]
    assert "in flight" in figure.data[0].customdata[0][0]


SCHEDULES = st.sampled_from(["1f1b", "gpipe", "interleaved"])


@settings(max_examples=examples(60))
@given(SCHEDULES, st.integers(2, 8), st.integers(1, 4), st.integers(2, 4))
def test_a_step_takes_its_micro_batches_and_the_bubble_and_nothing_runs_too_early(
    schedule, stages, groups, chunks
):
    chunks = chunks if schedule == "interleaved" else 1
    micro_batches = stages * groups
    tasks = timeline(schedule, stages, micro_batches, 1.0, 2.0, chunks)
    assert len(tasks) == 2 * stages * micro_batches * chunks
    end_s = 3.0 * (micro_batches + (stages - 1) / chunks)
    assert max(task.end_s for task in tasks) == pytest.approx(end_s)
    for before, after in itertools.pairwise(tasks):  # no stage does two things at once
        assert before.stage != after.stage or before.end_s <= after.start_s + 1e-9
    place = {(t.stage, t.chunk, t.micro_batch, t.backward): t for t in tasks}
    for (stage, chunk, m, backward), task in place.items():
        if backward:
            assert task.start_s >= place[stage, chunk, m, False].end_s - 1e-9
        elif stage:
            assert task.start_s >= place[stage - 1, chunk, m, False].end_s - 1e-9


def test_1f1b_holds_as_many_micro_batches_as_stages_and_a_row_is_drawn_with_its_own_bubble():
    tasks = [task for task in timeline("1f1b", 4, 16, 1.0, 2.0) if task.stage == 0]
    assert max(itertools.accumulate(-1 if task.backward else 1 for task in tasks)) == 4
    assert "zb-v" in str(refusal(timeline, "zb-v", 4, 8, 1.0, 2.0))
    assert "do not fill" in str(refusal(timeline, "interleaved", 4, 6, 1.0, 2.0, 2))
    board = training()
    deep, alone = (
        next(int(row) for row in board.order if board.degree("pp")[row] == pp) for pp in (4, 1)
    )
    tasks, note = step_timeline(board, deep)
    block, i = board.at(deep)
    micro_batches = len({task.micro_batch for task in tasks})
    bubble = bubble_micro_batches(block.cases.take([i]))[0]
    each = max(task.end_s for task in tasks) / (micro_batches + bubble)
    first = [task for task in tasks if task.stage == 0 and task.micro_batch == 0]
    assert sum(task.end_s - task.start_s for task in first) == pytest.approx(each)
    assert "micro-batches" in note
    best = best_with_pipeline(board)
    assert board.degree("pp")[best] > 1
    assert board.feasible[best]
    assert "no pipeline" in str(refusal(step_timeline, board, alone))
