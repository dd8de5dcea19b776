"""Lines that show the arithmetic, and splits under other loads, over all devices and in time."""

import itertools
import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe_core.estimates.serving.estimates import estimate_serving
from recipe_core.estimates.training.schedule import bubble_micro_batches
from recipe_core.plans.plans import plan_candidate, plan_splits
from recipe_core.plans.rank import refused_rows
from recipe_core.plans.splits import broken_rules, row_request
from recipe_core.request.edit import change
from recipe_core.request.link import DEFAULT
from recipe_core.request.metrics import column_metric
from recipe_core.request.schema import PlanRequest
from recipe_core.views.charts.frontier import frontier_lines
from recipe_core.views.charts.style import palette
from recipe_core.views.charts.views import frontier_table
from recipe_core.views.explanations.arithmetic import arithmetic, training_arithmetic
from recipe_core.views.explanations.curves import (
    INTERACTIVITIES,
    crossing,
    evaluate_frontier,
    load_curve,
    scaling,
    usd_per_million_by_use,
)
from recipe_core.views.explanations.formats import FIGURES, tornado
from recipe_core.views.explanations.serving_time import DECODING, REACHED, STARTING
from recipe_core.views.explanations.training_time import (
    STEP,
    best_with_pipeline,
    step_timeline,
    timeline,
)
from tests.calibration.test_own_runs import request as own_request
from tests.calibration.test_own_runs import taught, times_as_estimated
from tests.fixtures.catalogues import table
from tests.fixtures.plans import BESIDE, planned, training
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over
from tests.fixtures.sizes import examples

PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
UNITS = {"GiB": 2.0**30, "µs": 1e-6, "ms": 1e-3, "%": 0.01}
UNITS |= dict.fromkeys(("s", "J", "W", "h", "tok/s", "/s"), 1.0)
UNITS |= {p + u: n for p, n in PREFIXES.items() for u in ("B", "FLOP", "B/s", "FLOP/s")}
UNIT = "|".join(sorted(map(re.escape, UNITS), key=len, reverse=True))
NUMBER = re.compile(rf"(?<![\w.])(\d[\d,]*(?:\.\d+)?) ?({UNIT})?(?![A-Za-zµ])")
SIGNS = {"×": "*", "÷": "/", "^": "**"}


def value(text):
    """What an expression comes to, in SI, as a reader with a calculator gets it."""
    plain = NUMBER.sub(lambda m: repr(float(m[1].replace(",", "")) * UNITS[m[2] or "/s"]), text)
    for sign, python in SIGNS.items():
        plain = plain.replace(sign, python)
    assert re.fullmatch(r"[\d.e+*/() -]+", plain), text
    return float(eval(plain))


def holds(equation):
    """The value of ``expression = result``, which agree to the digits that are shown."""
    left, _, right = equation.rpartition(" = ")
    if left:
        assert value(left) == pytest.approx(value(right), rel=3e-3), equation
    return value(right)


def multiplied_out(row):
    """A row's equations hold, and lead from its work to its time."""
    for equation in (row.compute, row.moved):
        if equation:
            assert equation.rpartition(" = ")[2] in row.once, row
            holds(equation)
    once = holds(row.once)
    assert once == pytest.approx(row.once_s, rel=1e-3), row
    assert once * value(row.count) == pytest.approx(value(row.time), rel=2e-3), row
    assert row.once_s * row.number == pytest.approx(row.time_s, rel=1e-9), row


def line_holds(line, rel=2e-2):
    # a difference of two long times leaves fewer digits
    assert value(line.numbers) == pytest.approx(value(line.value), rel=rel), line


def lines(times):
    return {line.name: line for some in times.lines.values() for line in some}


def served(changes):
    return plan_splits(change(DEFAULT, changes))


def parts_hold(times, title, parts):
    """Every line of a time gives its part, and together they are the whole."""
    for line in times.lines[title]:
        line_holds(line)
    some = [line for line in times.lines[title] if not line.name.startswith("Factor")]
    assert len(some) == len([seconds for seconds in parts.values() if seconds > 0])
    whole = sum(value(line.numbers) for line in some)
    assert whole == pytest.approx(sum(parts.values()), rel=3e-3), title


def some_rows(board):
    """Splits of several kinds that run: the best, and the best with each degree."""
    order = [int(row) for row in board.order]
    pooled = [row for row in order if board.candidate(row).get("prefill")]
    rows = {*order[:1], *pooled[:1], *pooled[-1:]}
    for name in ("tp", "pp", "dp", "ep", "cp"):
        rows |= {*[row for row in order if board.columns[name][row] > 1][:1]}
    return sorted(rows)


SERVING = table("worked_splits.yaml", "serving")
NAMES = ("Weights", "Cache of one request", "KV cache needed", "Total", "Usable", "Throughput")
MFU = column_metric("mfu").title


@over("changes", SERVING, share=2)
def test_serving_is_multiplied_out_to_its_figures(changes):
    board = served(changes)
    rows = some_rows(board)
    assert rows
    for row in rows:
        times, breakdown_s = arithmetic(board, row), board.estimate(row).breakdown_s
        for working in times.workings:
            assert working.rows
            for operator_row in working.rows:
                multiplied_out(operator_row)
        parts_hold(times, DECODING, breakdown_s.decode)
        parts_hold(times, STARTING, breakdown_s.prefill)
        for line in times.lines.get(REACHED, []):
            line_holds(line)
            assert value(line.value) < 1
        shown = lines(times)
        for line in (shown[name] for name in NAMES if name in shown):
            if "no layer" not in line.numbers and "blocks" not in line.numbers:
                line_holds(replace(line, numbers=line.numbers.replace(" of state", "")))


def test_a_prompt_of_ranks_that_step_together_is_multiplied_out_at_any_load():
    changes = {"model": "openai/gpt-oss-120b", "options.disaggregated": True}
    titles = set()
    for load in (8, 512):
        board = served(changes | {"workload.concurrency": load})
        pools = ((int(row), board.candidate(row).get("prefill") or {}) for row in board.order)
        row = next(row for row, pool in pools if pool.get("dp", 1) > 1 and pool["ep"] > 1)
        times, breakdown_s = arithmetic(board, row), board.estimate(row).breakdown_s
        parts_hold(times, STARTING, breakdown_s.prefill)
        titles |= {working.title for working in times.workings}
    assert {title for title in titles if "prompt" in title} >= {
        "Step of one prompt on all ranks in the prefill pool",
        "Step of one prompt on each rank in the prefill pool",
    }


@over("mode load", [("closed", 64), ("open", 2.0), ("static", 16), ("offline", 500)])
def test_what_own_runs_teach_is_a_factor_of_the_lines(mode, load):
    late = (row.model_copy(update={"ttft_ms": 900.0}) for row in times_as_estimated(1.3, 2))
    asked = PlanRequest.parse(own_request(mode, load))
    corrections = taught([*times_as_estimated(1.3, 4), *late])
    board, row = plan_candidate(asked, corrections=corrections)
    assert board.setting(row).correction is not None
    times, breakdown_s = arithmetic(board, row), board.estimate(row).breakdown_s
    parts_hold(times, DECODING, breakdown_s.decode)
    parts_hold(times, STARTING, breakdown_s.prefill)


def test_numbers_say_where_they_are_from_and_refused_splits_show_memory_alone():
    board = served(SERVING[0])
    constants = {number.name: number for number in arithmetic(board, board.best_row).constants}
    products = constants["Matrix products, bf16"]
    assert products.status == "fitted"
    assert "aiconfigurator" in products.source
    assert constants["Elementwise kernels"].status == "prior (assumed)"
    assert constants["Memory bandwidth"].status == "datasheet"
    assert any("own time" in name and number.source for name, number in constants.items())
    assert all(number.source and number.value and number.status for number in constants.values())
    # a refused split shows its memory alone
    short = next(
        int(row) for row in refused_rows(board) if broken_rules(board, int(row)) == {"memory"}
    )
    times = arithmetic(board, short)
    assert list(times.lines) == ["Memory per device"]
    assert (len(times.workings), len(times.constants)) == (0, 0)
    board = served({})
    shown = lines(arithmetic(board, board.best_row))
    names = ("Cost per hour", "Throughput", "Cost per million output tokens")
    hourly, rate, million = (value(shown[name].value.lstrip("$")) for name in names)
    assert hourly / (3600 * rate) * 1e6 == pytest.approx(million, rel=0.01)


@over("changes", table("worked_splits.yaml", "training"), share=2)
def test_training_is_multiplied_out_to_its_figures(changes):
    asked = {"workload.kind": "training", "hardware.nodes": 2, "workload.tokens": 1e9} | changes
    board = served(asked)
    order = [int(row) for row in board.order]
    rows = {order[0]}
    for name in ("tp", "pp", "ep", "cp", "zero_stage", "recompute", "virtual_stages"):
        least = 0 if name in ("zero_stage", "recompute") else 1
        rows |= {*[row for row in order if board.columns[name][row] > least][:1]}
    for row in sorted(rows):
        times = training_arithmetic(board, row)
        shown = lines(times)
        for working in times.workings:
            for operator_row in working.rows:
                multiplied_out(operator_row)
        parts_hold(times, STEP, board.estimate(row).breakdown_s.step)
        for name in ("Peak", "Tokens of a step", "Tokens per GPU", MFU):
            numbers = re.sub(r"(GiB) [a-z -]+?(?= \+|$)", r"\1", shown[name].numbers)
            line_holds(replace(shown[name], numbers=numbers))
        assert value(shown["Steps"].value) >= value(shown["Steps"].numbers)
        assert all(number.source and number.value and number.status for number in times.constants)


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
    beyond = estimate_serving(block.setting, replace(block.cases.take([i]), load=np.array([more])))
    assert beyond.serving.tpot_s[0] > limit_s or not beyond.feasible[0]


def test_cost_falls_with_use_scaling_has_the_best_and_a_tornado_moves_one_assumption_at_a_time():
    use = np.array([0.25, 0.5, 1.0])
    assert usd_per_million_by_use(36.0, 1000.0, use) == pytest.approx([40.0, 20.0, 10.0])
    board = training()
    found, (gpus, rates) = scaling(board), map(board.raw, ("gpus", "output"))
    sure = board.feasible & ~board.uncertain
    assert 0 < sure.sum() < board.feasible.sum()
    assert list(found.gpus) == sorted(set(gpus[sure]))
    best = [rates[sure & (gpus == number)].max() for number in found.gpus]
    assert list(found.tokens_per_s) == best
    assert set(found.rows) <= set(board.order)
    ideal = best[0] * found.gpus[-1] / found.gpus[0]
    assert found.ideal_tokens_per_s[-1] == pytest.approx(ideal)
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
def frontier_of(*changes):
    return evaluate_frontier(planned(*changes))


def test_each_device_has_an_envelope_that_only_falls_and_nothing_lies_beyond_it():
    wide = frontier_of(*LIMITED)
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
    wide = evaluate_frontier(planned(*load.items(), BESIDE))
    assert wide.envelopes
    for envelope in wide.envelopes:
        for place in range(0, len(envelope.rows), 5):
            alone, only = plan_candidate(row_request(wide.plan, int(envelope.rows[place])))
            serving = alone.estimate(only).serving
            assert 1 / serving.tpot_s == pytest.approx(envelope.interactivity[place])
            assert serving.output_tokens_per_s_per_gpu == pytest.approx(envelope.per_gpu[place])


def test_limits_on_time_leave_splits_in_and_large_plans_have_fewer_loads():
    timed = evaluate_frontier(planned(("objective.limits.tpot_ms", 5.0)))
    assert timed.envelopes[0].per_gpu.tolist() == frontier_of().envelopes[0].per_gpu.tolist()
    few = evaluate_frontier(planned(("objective.limits.gpus", 4)))
    assert few.plan.raw("gpus")[few.envelopes[0].rows].max() <= 4
    queue = {"workload.mode": "offline", "workload.requests": 1000, "workload.concurrency": None}
    assert "no load to vary" in str(refusal(evaluate_frontier, planned(*queue.items())))
    wide = evaluate_frontier(
        planned(("hardware.nodes", 16), ("options.engines", ("vllm", "sglang")))
    )
    assert 5 < len(wide.loads) < len(frontier_of(*LIMITED).loads)
    assert wide.loads.max() == 1024


@pytest.mark.nightly
def test_percentiles_are_not_simulated_for_it():
    limits = {"objective.limits.tpot_ms": 60.0, "objective.limits.percentile": 95.0}
    wide = evaluate_frontier(planned(*limits.items()))
    assert all(block.simulation is None for block in wide.plan.blocks)
    assert wide.envelopes[0].per_gpu.tolist() == frontier_of().envelopes[0].per_gpu.tolist()


def test_devices_are_compared_at_round_interactivities_and_drawn_with_limit_and_split():
    listed = frontier_table(frontier_of(*LIMITED))
    assert listed.head[-1] == "MI300X over H100 SXM5"
    first, second = frontier_of(*LIMITED).envelopes
    for row in listed.rows:
        interactivity = float(row[0].split()[0])
        assert interactivity in INTERACTIVITIES
        one, other = first.at(interactivity), second.at(interactivity)
        if one is None or other is None:
            assert row[-1] == "–"
            continue
        gain = second.per_gpu[other] / first.per_gpu[one] - 1
        assert float(row[-1].rstrip(" %")) == pytest.approx(gain * 100, abs=0.51)
    assert "users at once" in listed.rows[0][1]
    splits = planned(*LIMITED)
    figure = frontier_lines(frontier_of(*LIMITED), splits, splits.best_row)
    names = [trace.name for trace in figure.data]
    assert [name for name in names if name] == ["H100 SXM5", "MI300X", "Chosen"]
    zone, edge = figure.layout.shapes
    assert (zone["x0"], zone["x1"], edge["x0"]) == (0, 25.0, 25.0)
    curves = [trace for trace in figure.data if trace.name in ("H100 SXM5", "MI300X")]
    assert {trace.line.shape for trace in curves} == {"vh"}
    assert curves[0].line.color == palette(dark=False).groups[0]
    assert "users at once" in curves[0].customdata[0][1]


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
        next(int(row) for row in board.order if board.columns["pp"][row] == pp) for pp in (4, 1)
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
    assert board.columns["pp"][best] > 1
    assert board.feasible[best]
    assert "no pipeline" in str(refusal(step_timeline, board, alone))
