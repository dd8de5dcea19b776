"""The tradeoff, its groups, states and bands, and other charts that compare splits of a plan."""

from functools import partial

import numpy as np
import pytest

from recipe_core.hardware.request import HardwareRequest
from recipe_core.present import charts
from recipe_core.present.charts import front, groups, lines
from tests.fixtures.plans import BESIDE, LONG, planned, training

LIMITED = ("objective.limits.tpot_ms", 40.0)
DEVICES = ("h200-sxm", "a100-sxm-80gb", "b200-sxm", "l40s", "mi325x", "mi355x", "gh200-96gb")
DEVICES += ("mi350x", "h100-nvl")


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


both = pytest.mark.parametrize("make", [planned, training])


def test_every_feasible_split_is_in_the_tradeoff_once_and_in_its_state():
    splits = planned(("workload.concurrency", 512), LONG)
    titles = {name: state.title for name, state in front.states(splits).items()}
    titles.pop("beyond")
    for x in ("tpot", "interactivity", "usd", "ttft"):
        traces = drawn(charts.tradeoff(splits, x, "per_gpu"))
        states = {name: keys(traces[title]) for name, title in titles.items()}
        every = sorted(splits.key(int(row)) for row in splits.order)
        assert sorted(key for some in states.values() for key in some) == every
        for name in ("queues", "uncertain"):
            rows = [row for row in map(int, splits.order) if splits.state(row) == name]
            assert sorted(states[name]) == sorted(map(splits.key, rows))
    splits = planned(BESIDE, ("options.loads", (16, 512)), LONG)
    assert groups.group_names(splits) == ["device", "load"]
    for by in ("device", "load", "none"):  # whatever colours tell
        shown = keys(*points(charts.tradeoff(splits, "tpot", "per_gpu", by=by)))
        assert sorted(shown) == sorted(splits.key(int(row)) for row in splits.order)


def test_states_differ_by_symbol_and_colour_and_devices_by_size():
    splits = planned(("objective.limits.tpot_ms", 120.0), ("workload.concurrency", 384), LONG)
    pins = ["vllm.bf16.bf16.tp8.pp1.dp1.ep1"]
    traces = drawn(charts.tradeoff(splits, "tpot", "per_gpu", pins=pins))
    titles = [*(state.title for state in front.states(splits).values()), "Pinned"]
    marked = [traces[title] for title in titles]
    for look in ("symbol", "color"):
        assert len({trace["marker"][look] for trace in marked}) == len(marked)
    assert len({trace["legendrank"] for trace in marked}) == len(marked)
    held = traces["Holds the load"]
    devices = [splits.raw("gpus")[splits.find(key)] for key in keys(held)]
    assert np.argmax(devices) == np.argmax(held["marker"]["size"])


def test_a_limit_is_a_line_and_what_it_refuses_is_drawn():
    figure = charts.tradeoff(planned(LIMITED), "tpot", "per_gpu")
    assert figure.layout["shapes"][0]["x0"] == 40.0
    assert min(drawn(figure)["Over a limit"]["x"]) > 40
    for limited in (planned(LIMITED), planned(LIMITED, BESIDE)):
        inverse = charts.tradeoff(limited, "interactivity", "per_gpu")
        assert inverse.layout["shapes"][0]["x0"] == 25.0
    assert not charts.tradeoff(planned(), "tpot", "per_gpu").layout.shapes


def test_the_front_is_a_staircase_and_pins_that_are_gone_are_not_drawn():
    for x, y, shape, falling in (
        ("tpot", "per_gpu", "hv", False),
        ("interactivity", "usd", "vh", False),
        ("tpot", "usd", "hv", True),
    ):
        pins = ["vllm.bf16.bf16.tp99.pp1.dp1.ep1", "nonsense"]
        figure = charts.tradeoff(planned(), x, y, pins=pins)
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
        traces = drawn(charts.tradeoff(splits, "tpot", "per_gpu", by="none"))
        best = traces.pop("Best tradeoffs")
        assert all(len(trace["x"]) <= most for trace in traces.values())
        on = np.flatnonzero(splits.front("tpot", "per_gpu"))
        assert set(keys(best)) == {splits.key(int(row)) for row in on}
    assert any(name.startswith("Holds the load (") for name in traces)


@both
def test_no_chart_needs_webgl(make):
    """Without a GPU it takes seconds, and the report's policy forbids what it compiles."""
    splits = make()
    figures = [
        charts.tradeoff(splits, *splits.axes),
        charts.parallel(splits, splits.listed[:3]),
        charts.heatmap(splits, splits.listed[2]),
    ]
    types = {trace.type for figure in figures for trace in figure.data}
    assert not [name for name in types if name.endswith("gl") or name == "parcoords"]


def test_devices_are_told_apart_have_a_front_each_and_are_drawn_by_interactivity():
    splits = planned(BESIDE)
    assert splits.axes == ("interactivity", "per_gpu")
    assert planned().axes == ("tpot", "per_gpu")
    figure = charts.tradeoff(splits, *splits.axes)
    assert {"H100 SXM5", "MI300X"} < set(legend(figure))
    fronts = diamonds(figure)
    assert len({trace.marker.color for trace in fronts}) == 2
    for cluster, trace in enumerate(fronts):
        own = splits.clusters_of_rows == cluster
        on = np.flatnonzero(splits.front(*splits.axes, among=own)).tolist()
        assert set(keys(trace)) == {splits.key(row) for row in on}
        assert trace.legendgroup == splits.cluster_title(int(np.flatnonzero(own)[0]))
    steps = [trace for trace in figure.data if trace.mode == "lines"]
    assert len({(step.line.color, step.line.dash) for step in steps}) == len(steps) == 2


def test_what_differs_is_what_colours_tell():
    for field, values, name, titles in (
        ("loads", (16, 512), "load", {"16 in flight", "64 in flight", "512 in flight"}),
        ("engines", ("vllm", "sglang"), "engine", {"vLLM", "SGLang"}),
        ("weight_dtypes", ("auto", "fp8"), "weight_dtype", {"bf16 weights", "fp8 weights"}),
        ("kv_dtypes", ("auto", "fp8"), "kv_dtype", {"bf16 cache", "fp8 cache"}),
    ):
        splits = planned((f"options.{field}", values))
        assert groups.group_names(splits) == [name]
        assert set(groups.grouped(splits, name).titles) == titles
        assert titles < set(legend(charts.tradeoff(splits, "tpot", "per_gpu")))
    assert groups.first_grouping(planned()) == groups.ALONE
    alone = legend(charts.tradeoff(planned(LONG), "tpot", "per_gpu"))
    assert alone == ["Over a limit", "May not start", "Holds the load", "Best tradeoffs"]


def test_more_groups_than_colours_are_the_best_and_the_others_and_none_is_hidden(monkeypatch):
    several = tuple(HardwareRequest(device=name, per_node=8) for name in DEVICES)
    splits = planned(("options.hardware", several))
    told = groups.grouped(splits, "device")
    assert len(told.titles) == groups.COLOURED + 1
    assert told.titles[-1] == "Others (2)"
    assert told.titles[told.codes[splits.best_row]] == splits.cluster_title(splits.best_row)
    traces = points(charts.tradeoff(splits, *splits.axes))
    assert len(keys(*traces)) == len(splits.order) + len(splits.beyond_limits())
    others = {trace.marker.color for trace in traces if trace.legendgroup == told.titles[-1]}
    assert charts.palette(dark=False).muted in others
    monkeypatch.setattr(front, "CELLS", (1, 1))
    monkeypatch.setattr(front, "MAX_POINTS", 4)
    splits = planned(BESIDE)
    rows = splits.order[splits.holds[splits.order]]
    codes = groups.grouped(splits, "device").codes
    thin = front.thinned(splits, rows, *splits.axes, codes)
    assert set(codes[thin].tolist()) == set(codes[rows].tolist())


def luminance(colour):
    """Relative, of WCAG 2.1."""
    parts = np.array([int(colour[n : n + 2], 16) for n in (1, 3, 5)]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ np.array([0.2126, 0.7152, 0.0722]))


def test_colours_of_groups_are_distinct_and_seen_on_the_page():
    for dark in (False, True):
        colours = charts.palette(dark=dark)
        assert len(set(colours.groups)) == groups.COLOURED
        for colour in colours.groups:
            low, high = sorted(map(luminance, (colour, colours.paper)))
            assert (high + 0.05) / (low + 0.05) >= 3


@pytest.mark.parametrize("make", [planned, partial(planned, BESIDE), training])
def test_bands_of_rows_are_those_of_their_estimates(make):
    splits = make()
    rows = [int(row) for row in splits.order[:: max(len(splits.order) // 40, 1)]]
    compared = 0
    for name, measure in splits.measures.items():
        low, high = splits.band_ends(name, rows)
        if name == "accuracy":  # of published figures: test_accuracy_in_plans
            continue
        if not splits.has_band(name):
            assert np.isnan(low).all()
            continue
        for n, row in enumerate(rows):
            value, ends = splits.raw(name)[row], (splits.estimate(row).bands or {})[measure.band]
            factors = np.array(ends) / float(splits.columns[measure.band][row])
            if measure.band_inverse:
                factors = 1 / factors[::-1]
            assert (low[n], high[n]) == pytest.approx(tuple(value * factors))
            assert low[n] <= value <= high[n]
            compared += 1
    assert compared > 3 * len(rows)


def test_best_tradeoffs_carry_their_bands_in_figures_and_words():
    splits = planned()
    (best,) = diamonds(charts.tradeoff(splits, "interactivity", "per_gpu"))
    low, high = splits.band_ends("interactivity", [splits.find(key) for key in keys(best)])
    assert best.x + best.error_x.array == pytest.approx(high)
    assert best.x - best.error_x.arrayminus == pytest.approx(low)
    assert "likely" in best.customdata[0][2]
    without = charts.tradeoff(splits, "interactivity", "per_gpu", bands=False)
    assert all(trace.error_x.array is None for trace in points(without))
    row = splits.best_row
    low, high = (float(end[0]) * 1e3 for end in splits.band_ends("tpot", [row]))
    assert splits.likely("tpot", row) == f"{low:.1f} to {high:.1f} ms likely"
    assert splits.likely("tpot", row, unit=False) == f"{low:.1f} to {high:.1f} likely"
    assert splits.likely("gpus", row) == ""


@both
def test_the_heatmap_has_the_best_of_each_cell_and_crosses(make):
    splits = make()
    cells, crosses = charts.heatmap(splits, "per_gpu").data
    values = [value for line in cells["z"] for value in line]
    known = [value for value in values if value is not None]
    assert max(known) == pytest.approx(splits.values("per_gpu")[splits.feasible].max())
    assert len(crosses.text) == len(values) - len(known)
    assert all(said for line in cells["customdata"] for said in line)


@both
def test_parallel_axes_hold_degrees_and_measures(make):
    splits = make()
    figure = charts.parallel(splits, ("per_gpu", "memory"))
    titles = list(figure.layout.xaxis.ticktext)
    assert titles[-2:] == [splits.measures[name].head for name in ("per_gpu", "memory")]
    degrees = {name: splits.degree(name)[splits.order] for name in ("tp", "pp", "dp", "ep", "cp")}
    assert set(titles[:-2]) == {name for name, of in degrees.items() if len(np.unique(of)) > 1}
    places = np.concatenate([trace.y.reshape(-1, len(titles) + 1) for trace in figure.data[:-1]])
    assert len(places) == min(len(splits.order), lines.LINES)
    assert ((places[:, :-1] >= 0) & (places[:, :-1] <= 1)).all()
    assert np.isnan(places[:, -1]).all()  # a gap between two lines


def test_the_best_split_is_the_strongest_line_and_boxes_keep_what_passes_through_all():
    splits = planned()
    *weaker, strongest = charts.parallel(splits, ("tpot", "memory")).data[: lines.SHADES]
    best = int(splits.order[np.argmin(splits.raw("tpot")[splits.order])])
    assert any(splits.label(best) in said for said in strongest.text)
    assert strongest.line.color == charts.palette(dark=False).series[0]
    assert all(trace.line.width < strongest.line.width for trace in weaker)
    names = ("per_gpu", "memory")
    titles = list(charts.parallel(splits, names).layout.xaxis.ticktext)
    at = titles.index("tp")
    tp = splits.degree("tp")
    levels = np.unique(tp[splits.order])

    def passing(*boxes):
        marked = [{"x": [x + 0.2, x - 0.2], "y": [high, low]} for x, low, high in boxes]
        return charts.passing(splits, names, marked)

    top, bottom = (at, 0.95, 1.05), (at, -0.05, 0.05)
    largest = passing(top)
    assert set(tp[largest]) == {levels[-1]}
    assert set(tp[passing(top, bottom)]) == {levels[0], levels[-1]}
    memory = splits.raw("memory")
    least, span = memory[splits.order].min(), np.ptp(memory[splits.order])
    lean = [row for row in largest if memory[row] <= least + 0.5 * span]
    assert passing(top, (len(titles) - 1, -0.05, 0.5)) == lean
    between = {"x": [0.4, 0.6], "y": [0, 1]}  # two axes
    assert charts.passing(splits, names, [between]) == list(map(int, splits.order))
