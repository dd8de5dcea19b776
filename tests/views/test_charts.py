"""Charts that compare the splits of a plan, figures of some of them, and the registry of views."""

import re
from functools import partial

import numpy as np
import pytest

from recipe_core.base.units import GIB
from recipe_core.estimates.serving.results import TIME_TITLES
from recipe_core.hardware.request import HardwareRequest
from recipe_core.plans.evaluation import band_ends
from recipe_core.plans.plan_json import cluster_title, held_text, queue_text, split_label
from recipe_core.plans.plans import plan_splits
from recipe_core.plans.rank import front_of_measures, nearest_row, rows_beyond_limits, tied_rows
from recipe_core.plans.serving_kind import explain_estimate
from recipe_core.plans.splits import find_row, row_key, row_keys, row_reasons, row_state
from recipe_core.request.edit import change
from recipe_core.request.link import DEFAULT
from recipe_core.views import tables
from recipe_core.views.charts import front, views
from recipe_core.views.charts.curves import load_curves, scaling_curve, swings, use_curves
from recipe_core.views.charts.parts import causes_bars, memory_bars, pipeline, stage_bars, waterfall
from recipe_core.views.charts.style import palette
from recipe_core.views.explanations import curves, formats
from recipe_core.views.explanations.training_time import timeline
from recipe_core.views.plan_words import capacity_bytes, likely_text, row_usable_bytes
from tests.conftest import LLAMA_70B
from tests.estimates import test_caches as caches
from tests.fixtures.plans import BESIDE, LONG, planned, training
from tests.fixtures.rows import table

LIMITED = ("objective.limits.tpot_ms", 40.0)


def drawn(figure):
    """Traces by name, without those that are a line of the legend alone."""
    return {trace.name: trace for trace in figure.data if trace.name and tuple(trace.x) != (None,)}


def points(figure):
    return [trace for trace in figure.data if trace.customdata is not None]


def keys(*traces):
    return [point[0] for trace in traces for point in trace["customdata"]]


def legend(figure):
    return [trace.name for trace in figure.data if trace.showlegend is not False and trace.name]


def diamonds(figure):
    return [trace for trace in points(figure) if trace.marker.symbol == "diamond"]


def test_every_feasible_split_is_in_the_tradeoff_once_and_in_its_state():
    splits = planned(("workload.concurrency", 512), LONG)
    titles = {name: state.title for name, state in front.states(splits).items()}
    titles.pop("beyond")
    for x in ("tpot", "interactivity", "usd", "ttft"):
        traces = drawn(front.tradeoff(splits, x, "per_gpu"))
        states = {name: keys(traces[title]) for name, title in titles.items()}
        every = sorted(row_key(splits, int(row)) for row in splits.order)
        assert sorted(key for some in states.values() for key in some) == every
        for name in ("queues", "uncertain"):
            rows = [row for row in map(int, splits.order) if row_state(splits, row) == name]
            assert sorted(states[name]) == sorted(row_keys(splits, rows))
    splits = planned(BESIDE, ("options.loads", (16, 512)), LONG)
    assert front.group_names(splits) == ["device", "load"]
    for by in ("device", "load", "none"):  # whatever colours tell
        shown = keys(*points(front.tradeoff(splits, "tpot", "per_gpu", by=by)))
        assert sorted(shown) == sorted(row_key(splits, int(row)) for row in splits.order)


def test_states_differ_by_symbol_and_colour_and_devices_by_size():
    splits = planned(("objective.limits.tpot_ms", 120.0), ("workload.concurrency", 384), LONG)
    pins = ["vllm.bf16.bf16.tp8.pp1.dp1.ep1"]
    traces = drawn(front.tradeoff(splits, "tpot", "per_gpu", pins=pins))
    titles = [*(state.title for state in front.states(splits).values()), "Pinned"]
    marked = [traces[title] for title in titles]
    for look in ("symbol", "color"):
        assert len({trace["marker"][look] for trace in marked}) == len(marked)
    assert len({trace["legendrank"] for trace in marked}) == len(marked)
    held = traces["Holds the load"]
    devices = [splits.raw("gpus")[find_row(splits, key)] for key in keys(held)]
    assert np.argmax(devices) == np.argmax(held["marker"]["size"])


def test_a_limit_is_a_line_and_the_front_a_staircase_without_pins_that_are_gone():
    figure = front.tradeoff(planned(LIMITED), "tpot", "per_gpu")
    assert figure.layout["shapes"][0]["x0"] == 40.0
    assert min(drawn(figure)["Over a limit"]["x"]) > 40
    assert " limit 40.0 ms" in [note["text"] for note in figure.layout.annotations]
    for limited in (planned(LIMITED), planned(LIMITED, BESIDE)):
        inverse = front.tradeoff(limited, "interactivity", "per_gpu")
        assert inverse.layout["shapes"][0]["x0"] == 25.0
    assert not front.tradeoff(planned(), "tpot", "per_gpu").layout.shapes
    pins = ["vllm.bf16.bf16.tp99.pp1.dp1.ep1", "nonsense"]
    for x, y, shape, falling in table("charts", "fronts"):
        figure = front.tradeoff(planned(), x, y, pins=pins)
        steps = figure.data[0]
        assert steps["line"]["shape"] == shape
        assert list(steps["x"]) == sorted(steps["x"])
        assert list(steps["y"]) == sorted(steps["y"], reverse=falling)
        assert "Pinned" not in drawn(figure)


def test_many_points_are_thinned_but_the_front_stays(monkeypatch):
    many = planned(
        ("hardware.nodes", 16),
        ("options.kv_dtypes", ("auto", "fp8")),
        ("options.engines", ("vllm", "sglang", "tensorrt-llm")),
    )
    assert len(many.order) > front.MAX_POINTS
    for splits, most in ((many, front.MAX_POINTS), (planned(), 5)):
        monkeypatch.setattr(front, "MAX_POINTS", most)
        traces = drawn(front.tradeoff(splits, "tpot", "per_gpu", by="none"))
        best = traces.pop("Best tradeoffs")
        assert all(len(trace["x"]) <= most for trace in traces.values())
        on = np.flatnonzero(front_of_measures(splits, "tpot", "per_gpu"))
        assert set(keys(best)) == {row_key(splits, int(row)) for row in on}
    assert any(name.startswith("Holds the load (") for name in traces)


def test_devices_have_a_front_each_and_what_differs_is_what_colours_tell():
    splits = planned(BESIDE)
    assert splits.shown.axes == ("interactivity", "per_gpu")
    assert planned().shown.axes == ("tpot", "per_gpu")
    figure = front.tradeoff(splits, *splits.shown.axes)
    assert {"H100 SXM5", "MI300X"} < set(legend(figure))
    fronts = diamonds(figure)
    assert len({trace.marker.color for trace in fronts}) == 2
    for cluster, trace in enumerate(fronts):
        own = splits.clusters_of_rows == cluster
        on = np.flatnonzero(front_of_measures(splits, *splits.shown.axes, among=own)).tolist()
        assert set(keys(trace)) == {row_key(splits, row) for row in on}
        assert trace.legendgroup == cluster_title(splits, int(np.flatnonzero(own)[0]))
    steps = [trace for trace in figure.data if trace.mode == "lines"]
    assert len({(step.line.color, step.line.dash) for step in steps}) == len(steps) == 2
    for field, values, name, titles in table("charts", "differs"):
        splits = planned((f"options.{field}", tuple(values)))
        assert front.group_names(splits) == [name]
        assert set(front.group_rows(splits, name).titles) == set(titles)
        assert set(titles) < set(legend(front.tradeoff(splits, "tpot", "per_gpu")))
    assert front.first_grouping(planned()) == front.ALONE
    alone = legend(front.tradeoff(planned(LONG), "tpot", "per_gpu"))
    assert alone == ["Over a limit", "May not start", "Holds the load", "Best tradeoffs"]


def test_more_groups_than_colours_are_the_best_and_the_others_and_none_is_hidden(monkeypatch):
    several = (HardwareRequest(device=name, per_node=8) for name in table("charts", "devices"))
    splits = planned(("options.hardware", tuple(several)))
    told = front.group_rows(splits, "device")
    assert len(told.titles) == front.COLOURED + 1
    assert told.titles[-1] == "Others (2)"
    assert told.titles[told.codes[splits.best_row]] == cluster_title(splits, splits.best_row)
    traces = points(front.tradeoff(splits, *splits.shown.axes))
    assert len(keys(*traces)) == len(splits.order) + len(rows_beyond_limits(splits))
    others = {trace.marker.color for trace in traces if trace.legendgroup == told.titles[-1]}
    assert palette(dark=False).muted in others
    monkeypatch.setattr(front, "CELLS", (1, 1))
    monkeypatch.setattr(front, "MAX_POINTS", 4)
    splits = planned(BESIDE)
    rows = splits.order[splits.holds[splits.order]]
    codes = front.group_rows(splits, "device").codes
    thin = front.thinned(splits, rows, *splits.shown.axes, codes)
    assert set(codes[thin].tolist()) == set(codes[rows].tolist())


def luminance(colour):
    """Relative, of WCAG 2.1."""
    parts = np.array([int(colour[n : n + 2], 16) for n in (1, 3, 5)]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ np.array([0.2126, 0.7152, 0.0722]))


def test_colours_of_groups_are_distinct_and_seen_on_the_page_without_webgl():
    for dark in (False, True):
        colours = palette(dark=dark)
        assert len(set(colours.groups)) == front.COLOURED
        for colour in colours.groups:
            low, high = sorted(map(luminance, (colour, colours.paper)))
            assert (high + 0.05) / (low + 0.05) >= 3
    # WebGL takes seconds without a GPU, and the report's policy forbids what it compiles
    for splits in (planned(), training()):
        tradeoff = front.tradeoff(splits, *splits.shown.axes)
        figures = [tradeoff]
        types = {trace.type for figure in figures for trace in figure.data}
        assert not [name for name in types if name.endswith("gl") or name == "parcoords"]


@pytest.mark.parametrize("make", [planned, partial(planned, BESIDE), training])
def test_bands_of_rows_are_those_of_their_estimates(make):
    splits = make()
    rows = [int(row) for row in splits.order[:: max(len(splits.order) // 40, 1)]]
    compared = 0
    for name, measure in splits.measures.items():
        low, high = band_ends(splits, name, rows)
        if name == "accuracy":  # of published figures: test_accuracy_in_plans
            continue
        if not splits.measures[name].band is not None:
            assert np.isnan(low).all()
            continue
        for n, row in enumerate(rows):
            value, ends = splits.raw(name)[row], (splits.estimate(row).bands or {})[measure.band]
            factors = np.array(ends) / float(splits.columns[measure.band][row])
            if measure.inverse:
                factors = 1 / factors[::-1]
            assert (low[n], high[n]) == pytest.approx(tuple(value * factors))
            assert low[n] <= value <= high[n]
            compared += 1
    assert compared > 3 * len(rows)


def test_best_tradeoffs_carry_their_bands_in_figures_and_words():
    splits = planned()
    (best,) = diamonds(front.tradeoff(splits, "interactivity", "per_gpu"))
    low, high = band_ends(splits, "interactivity", [find_row(splits, key) for key in keys(best)])
    assert best.x + best.error_x.array == pytest.approx(high)
    assert best.x - best.error_x.arrayminus == pytest.approx(low)
    assert "likely" in best.customdata[0][2]
    without = front.tradeoff(splits, "interactivity", "per_gpu", bands=False)
    assert all(trace.error_x.array is None for trace in points(without))
    row = splits.best_row
    low, high = (float(end[0]) * 1e3 for end in band_ends(splits, "tpot", [row]))
    assert likely_text(splits, "tpot", row) == f"{low:.1f} to {high:.1f} likely"
    assert likely_text(splits, "gpus", row) == ""


def test_marks_of_what_ties_with_the_best_say_so():
    splits = planned(("options.engines", ("vllm", "tensorrt-llm")))
    tied = set(row_keys(splits, np.flatnonzero(tied_rows(splits, np.arange(len(splits))))))
    marks = points(front.tradeoff(splits, "interactivity", "per_gpu"))
    said = {key for trace in marks for key, _, text in trace.customdata if "No measurable" in text}
    assert said == tied & set(keys(*marks))
    assert said


def test_memory_is_drawn_with_its_capacity_for_pinned_best_and_nearest_refused():
    splits = planned(("hardware.per_node", 1))
    assert not len(splits.order)
    rows = tables.memory_rows(splits, [])
    assert rows == [nearest_row(splits)]
    figure = memory_bars(splits, rows)
    usable, capacity = row_usable_bytes(splits, 0) / GIB, capacity_bytes(splits, 0) / GIB
    assert [shape["x0"] for shape in figure.layout.shapes] == pytest.approx([usable, capacity])
    assert figure.layout["xaxis"]["range"][1] > splits.values("memory")[0] > capacity
    short = f"{float(splits.columns['shortfall_bytes'][0]) / GIB:,.1f}"
    assert figure.data[-1]["text"][0].endswith(f"{short} short")
    assert f"{short} GiB short" in row_reasons(splits, 0)[0]
    splits, pinned = planned(), "vllm.bf16.bf16.tp4.pp1.dp2.ep1"
    rows = tables.memory_rows(splits, [pinned], best=2, refused=1)
    assert row_key(splits, rows[0]) == pinned
    assert splits.best_row in rows
    assert not splits.feasible[rows[-1]]


def test_memory_bars_say_what_waits_and_have_each_load_and_capacity():
    splits = planned(("workload.concurrency", 512))
    row = find_row(splits, "vllm.bf16.bf16.tp4.pp1.dp1.ep1")
    assert splits.queues[row]
    figure = memory_bars(splits, [row])
    held = held_text(splits, row)
    (text,) = figure.data[-1]["text"]
    assert text.endswith(f"needs {splits.values('memory')[row]:,.1f}, holds {held}")
    assert queue_text(splits, row).startswith(f"holds {held} at once")
    capacity = capacity_bytes(splits, row) / GIB
    assert sum(bar["x"][0] for bar in figure.data if bar["type"] == "bar") < capacity
    splits = planned(("options.loads", (16, 512)))
    tp, pp = splits.columns["tp"], splits.columns["pp"]
    figure = memory_bars(splits, np.flatnonzero((tp == 8) & (pp == 1)).tolist())
    loads = [f"TP 8 · {load} users at once" for load in (64, 16, 512)]
    assert list(figure.layout.yaxis.ticktext) == loads
    assert all(len(set(bar.y)) == 3 for bar in figure.data if bar.type == "bar")
    splits = planned(BESIDE)
    clusters = splits.clusters_of_rows[splits.order]
    rows = [int(splits.order[clusters == cluster][0]) for cluster in (0, 1)]
    figure = memory_bars(splits, rows)
    marks = {trace.name: list(trace.x) for trace in figure.data if trace.type == "scatter"}
    capacities = [capacity_bytes(splits, row) / GIB for row in rows]
    assert marks["Capacity"] == pytest.approx(capacities)
    assert marks["Usable"] == pytest.approx([row_usable_bytes(splits, row) / GIB for row in rows])
    assert not figure.layout.shapes
    texts = figure.data[-1]["text"]
    assert all(f"of {most:,.1f}" in text for text, most in zip(texts, capacities, strict=True))


@pytest.mark.parametrize("model", [LLAMA_70B, "Qwen/Qwen3-32B", "openai/gpt-oss-120b"])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_no_split_that_starts_is_drawn_beyond_its_capacity(model, engine):
    load = ("workload.concurrency", 4096)
    splits = planned(("model", model), ("options.engines", (engine,)), load)
    rows = np.flatnonzero(splits.feasible).tolist()
    held, needed = splits.spec.held_memory(splits, rows), splits.spec.memory(splits, rows)
    assert all((held[name] <= needed[name]).all() for name in held)
    capacity = np.array([capacity_bytes(splits, row) for row in rows])
    total, wanted = (np.sum(list(parts.values()), axis=0) for parts in (held, needed))
    assert (total <= capacity).all()
    enough = ~splits.queues[rows] & (wanted <= capacity)
    assert total[enough] == pytest.approx(wanted[enough], rel=0.01)
    assert splits.queues[rows].any()


@pytest.mark.parametrize("make", [planned, training])
def test_memory_parts_add_to_the_total(make):
    splits = make()
    rows = tables.memory_rows(splits, [row_key(splits, splits.best_row)])
    bars = [trace for trace in memory_bars(splits, rows).data if trace["type"] == "bar"]
    total = np.sum([bar["x"] for bar in bars], axis=0)
    assert total == pytest.approx(splits.values("memory")[rows])
    looks = {(bar["marker"]["color"], bar["marker"]["pattern"]["shape"]) for bar in bars}
    assert len(looks) == len(bars)


def test_stages_have_their_capacity_every_pass_a_bar_and_parts_of_a_time_end_at_the_whole():
    splits = training()
    row = next(int(row) for row in splits.order if splits.columns["pp"][row] == 4)
    stages = [
        {name.removesuffix("_bytes"): value for name, value in stage.items()}
        for stage in splits.estimate(row).to_json()["memory"]["stages"]
    ]
    ends = (row_usable_bytes(splits, row), capacity_bytes(splits, row))
    figure = stage_bars(stages, splits.spec.parts, *ends)
    totals = np.sum([trace["y"] for trace in figure.data], axis=0)
    assert max(totals) == pytest.approx(splits.values("memory")[row])
    lines = [shape["y0"] for shape in figure.layout.shapes]
    assert lines == pytest.approx([end / GIB for end in ends])
    forward, backward = pipeline(timeline("1f1b", 4, 8, 1.0, 2.0)).data
    assert len(forward["x"]) == len(backward["x"]) == 32
    assert forward["marker"]["pattern"]["shape"] != backward["marker"]["pattern"]["shape"]
    splits = planned()
    parts = splits.estimate(splits.best_row).to_json()["breakdown_s"]["decode"]
    bars = waterfall(parts, TIME_TITLES).data[0]
    assert list(bars["x"])[:-1] == sorted((part * 1e3 for part in parts.values()), reverse=True)
    assert bars["measure"][-1] == "total"
    assert set(bars["y"]) == {TIME_TITLES[cause] for cause in parts} | {"Total"}
    causes = explain_estimate(splits, splits.best_row).to_json()["causes_s"]["decode"]
    stacked = causes_bars([("best", causes)]).data
    whole = splits.values("tpot")[splits.best_row]
    assert sum(bar["x"][0] for bar in stacked) == pytest.approx(whole)
    assert len({bar["marker"]["pattern"]["shape"] for bar in stacked}) == len(stacked)


def test_curves_mark_the_request_and_scaling_is_drawn_beside_proportion():
    splits = planned()
    curve = curves.load_curve(splits, splits.best_row)
    figure = load_curves({"best": curve}, 64.0, "users at once", 40.0)
    assert {shape["x1"] for shape in figure.layout.shapes} == {40.0}
    largest = int(np.argmax(figure.data[0]["marker"]["size"]))
    assert figure.data[0]["customdata"][largest][0] == "64 users at once"
    curve = use_curves({"best": (25.6, 1000.0)}).data[0]
    price = dict(zip(np.round(curve["x"], 6), curve["y"], strict=True))
    assert price[50.0] == pytest.approx(2 * price[100.0]) == pytest.approx(2 * 25.6 / 3.6)
    run, splits = training(), planned()
    scaled = curves.scaling(run)
    ideal, best = scaling_curve(scaled, [split_label(run, row) for row in scaled.rows]).data
    assert ideal["y"][0] == best["y"][0]
    assert best["text"][0] == "100 %"
    base, moves = formats.tornado(splits, splits.best_row, "tpot")
    less, more = swings(base, moves, splits.measures["tpot"]).data
    assert set(less["base"]) == set(more["base"]) == {base * 1e3}
    assert less["x"][0] + base * 1e3 == pytest.approx(moves[0].less * 1e3)


def test_labels_of_loads_are_whole_and_never_on_each_other():
    saturated = plan_splits(change(DEFAULT, {"model": "Qwen/Qwen3-32B", "hardware.device": "l40s"}))
    rows = {split_label(saturated, int(row)): int(row) for row in saturated.order[:3]}
    loads = {name: curves.load_curve(saturated, row) for name, row in rows.items()}
    spots = {name: curves.crossing(saturated, row, 0.06) for name, row in rows.items()}
    at = {name: spot for name, spot in spots.items() if spot is not None}
    figure = load_curves(loads, 64.0, "users at once", 60.0, at)
    widest, highest = figure.layout.xaxis.range[1], figure.layout.yaxis.range[1]
    points = [
        point
        for trace in figure.data[: len(rows)]
        for point in zip(trace["x"], trace["y"], trace["text"], strict=True)
    ]
    places = [(x / widest, y / highest) for x, y, text in points if text]
    assert all(re.fullmatch(r"([\d,]+(–[\d,]+)?)?", text) for *_, text in points)
    assert len(places) > 3
    for n, (x, y) in enumerate(places):
        assert all(abs(x - a) > 0.05 or abs(y - b) > 0.04 for a, b in places[:n])
    said = [note.text for note in figure.layout.annotations]
    assert all(any(name in text for text in said) for name in loads)  # each at its end
    first = next(iter(at.values()))
    assert any(f"{first.load:,.0f} users at once, " in text and "tok/s" in text for text in said)


def test_a_view_is_registered_once_left_out_where_it_lacks_something_and_has_keys_of_its_own(
    registered_chart,
):
    assert palette(dark=True) != palette(dark=False)
    dark, light = (front.tradeoff(planned(), "tpot", "per_gpu", dark=on) for on in (True, False))
    assert dark != light
    assert all(registered_chart in views.views_of(splits) for splits in (planned(), training()))
    with pytest.raises(ValueError, match="devices"):
        views.view("devices", "Again")(registered_chart.draw)
    offered = {view.name for view in views.views_of(planned(("hardware.per_node", 1)))}
    assert offered == {"memory", "frontier", "arithmetic"}
    assert "cache" not in {view.name for view in views.views_of(planned())}  # no reuse is stated
    cpu = {"hardware.device": "cpu", "hardware.per_node": 1, "model": "Qwen/Qwen3-0.6B"}
    splits = plan_splits(change(DEFAULT, cpu))
    assert "cost" not in {view.name for view in views.views_of(splits)}  # it has no price
    for splits in (planned(), training()):
        row = next(int(row) for row in splits.order if splits.columns["pp"][row] > 1)
        keys = []
        for view in views.views_of(splits):
            focus = views.Focus(splits, row, measure=view.first_measure(splits))
            keys += [item.key for item in view.draw(focus) if isinstance(item, views.Chart)]
        assert len(keys) == len(set(keys)) >= 6


def test_what_caches_find_is_a_curve_with_the_devices_and_every_tier_or_says_what_is_missing():
    def shown(offload, reuse):
        work = caches.lengths(8000, 256, 16, reuse)
        found = caches.candidate(caches.request(caches.LLAMA_8B, work, offload))
        return list(views.VIEWS["cache"].draw(views.Focus(*found)))

    held, chart, tiers, *notes = shown(table("kv_words", "both"), caches.POINTS)
    assert (type(chart), type(tiers), len(notes)) == (views.Chart, views.Table, 3)
    assert "Free for reuse" in held.head
    line, *marks = chart.figure.data
    assert [mark.name for mark in marks] == ["Devices", "Host memory", "Drives", "Remote store"]
    sizes = np.log(np.asarray(line.x, dtype=float))
    for mark in marks:
        assert np.interp(np.log(mark.x[0]), sizes, line.y) == pytest.approx(mark.y[0], abs=0.02)
    assert [row[0] for row in tiers.rows] == ["Host memory", "Drives", "Remote store"]
    held, note = shown(None, ())
    assert (held.rows[0][-1], type(note)) == ("0.0 %, as stated", views.Note)
    assert "workload.prefix_reuse" in note.text
