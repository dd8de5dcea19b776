"""Figures drawn from serving and training plans, and the registry of views."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest

from recipe_core.base import labels
from recipe_core.base.units import GIB
from recipe_core.explain import curves, tornado
from recipe_core.explain.timeline import timeline
from recipe_core.present import charts, tables
from recipe_core.present.charts import front, lines, views
from recipe_core.present.charts.views import View
from recipe_core.request.edit import change
from recipe_core.request.link import DEFAULT
from recipe_core.search.plan import Plan
from recipe_core.search.plans import plan

LLAMA_70B = "meta-llama/Llama-3.1-70B-Instruct"
TRAIN = ("workload.kind", "training")


LONG = ("workload.max_context", 24_576)
"""At tp 2 one such request may not fit on an H100."""


@cache
def planned(*changes: tuple[str, Any]) -> Plan:
    return plan(change(DEFAULT, {"model": LLAMA_70B} | dict(changes)))


def training() -> Plan:
    return planned(TRAIN, ("hardware.nodes", 4))


def drawn(figure: Any) -> dict[str, Mapping[str, Any]]:
    """Traces by name, without those that are a line of the legend alone."""
    return {trace.name: trace for trace in figure.data if trace.name and tuple(trace.x) != (None,)}


def keys(trace: Mapping[str, Any]) -> set[str]:
    return {point[0] for point in trace["customdata"]}


def key(tp: int, dp: int = 1) -> str:
    return f"vllm.bf16.bf16.tp{tp}.pp1.dp{dp}.ep1"


both = pytest.mark.parametrize("make", [planned, training])


def test_every_feasible_split_is_in_the_tradeoff() -> None:
    splits = planned(("workload.concurrency", 512), LONG)
    titles = {name: state.title for name, state in front.states(splits).items()}
    titles.pop("beyond")
    for x in ("tpot", "interactivity", "usd", "ttft"):
        traces = drawn(charts.tradeoff(splits, x, "per_gpu"))
        states = {name: keys(traces[title]) for name, title in titles.items()}
        assert set.union(*states.values()) == {splits.key(int(row)) for row in splits.order}
        assert sum(map(len, states.values())) == len(splits.order)
        for name in ("queues", "uncertain"):
            rows = [row for row in map(int, splits.order) if splits.state(row) == name]
            assert states[name] == {splits.key(row) for row in rows}


def test_states_differ_by_symbol_and_colour_and_devices_by_size() -> None:
    splits = planned(("objective.limits.tpot_ms", 120.0), ("workload.concurrency", 384), LONG)
    traces = drawn(charts.tradeoff(splits, "tpot", "per_gpu", pins=[key(8)]))
    names = [*(state.title for state in front.states(splits).values()), "Pinned"]
    for look in ("symbol", "color"):
        assert len({traces[name]["marker"][look] for name in names}) == len(names)
    assert len({traces[name]["legendrank"] for name in names}) == len(names)
    held = traces["Holds the load"]
    devices = [splits.raw("gpus")[splits.find(point[0])] for point in held["customdata"]]
    assert np.argmax(devices) == np.argmax(held["marker"]["size"])


def test_a_limit_is_a_line_and_what_it_refuses_is_drawn() -> None:
    limited = planned(("objective.limits.tpot_ms", 40.0))
    figure = charts.tradeoff(limited, "tpot", "per_gpu")
    assert figure.layout["shapes"][0]["x0"] == 40.0
    assert min(drawn(figure)["Over a limit"]["x"]) > 40
    inverse = charts.tradeoff(limited, "interactivity", "per_gpu")
    assert inverse.layout["shapes"][0]["x0"] == 25.0
    assert not charts.tradeoff(planned(), "tpot", "per_gpu").layout.shapes


def test_the_front_is_a_staircase_and_pins_that_are_gone_are_not_drawn() -> None:
    for x, y, shape, falling in (
        ("tpot", "per_gpu", "hv", False),
        ("interactivity", "usd", "vh", False),
        ("tpot", "usd", "hv", True),
    ):
        figure = charts.tradeoff(planned(), x, y, pins=[key(99), "nonsense"])
        steps = figure.data[0]
        assert steps["line"]["shape"] == shape
        assert list(steps["x"]) == sorted(steps["x"])
        assert list(steps["y"]) == sorted(steps["y"], reverse=falling)
        assert "Pinned" not in drawn(figure)


def test_many_points_are_thinned_but_the_front_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    many = planned(
        ("hardware.nodes", 16),
        ("options.kv_dtypes", ("auto", "fp8")),
        ("options.engines", ("vllm", "sglang", "tensorrt-llm")),
    )
    assert len(many.order) > front.MAX_POINTS
    for splits, most in ((many, front.MAX_POINTS), (planned(), 5)):
        monkeypatch.setattr(front, "MAX_POINTS", most)
        traces = drawn(charts.tradeoff(splits, "tpot", "per_gpu", by="none"))
        thinned = [trace for name, trace in traces.items() if name != "Best tradeoffs"]
        assert all(len(trace["x"]) <= most for trace in thinned)
        best = np.flatnonzero(splits.front("tpot", "per_gpu"))
        assert keys(traces["Best tradeoffs"]) == {splits.key(int(row)) for row in best}
    assert any(name.startswith("Holds the load (") for name in traces)


@both
def test_no_chart_needs_webgl(make: Any) -> None:
    """Without a GPU it takes seconds, and the report's policy forbids what it compiles."""
    splits = make()
    figures = [
        charts.tradeoff(splits, *splits.axes),
        charts.parallel(splits, splits.listed[:3]),
        charts.heatmap(splits, splits.listed[2]),
    ]
    types = {trace.type for figure in figures for trace in figure.data}
    assert not [name for name in types if name.endswith("gl") or name == "parcoords"]


def test_memory_is_drawn_with_its_capacity_for_pinned_best_and_nearest_refused() -> None:
    splits = planned(("hardware.per_node", 1))
    assert not len(splits.order)
    rows = tables.memory_rows(splits, [])
    assert rows == [splits.nearest_row()]
    figure = charts.memory_bars(splits, rows)
    usable, capacity = splits.usable_bytes(0) / GIB, splits.capacity_bytes(0) / GIB
    assert [shape["x0"] for shape in figure.layout.shapes] == pytest.approx([usable, capacity])
    assert figure.layout["xaxis"]["range"][1] > splits.values("memory")[0] > capacity
    short = f"{splits.short_bytes(0) / GIB:,.1f}"
    assert figure.data[-1]["text"][0].endswith(f"{short} short")
    assert f"{short} GiB short" in splits.reasons(0)[0]
    splits = planned()
    rows = tables.memory_rows(splits, [key(4, 2)], best=2, refused=1)
    assert splits.key(rows[0]) == key(4, 2)
    assert splits.best_row in rows
    assert not splits.feasible[rows[-1]]


@both
def test_memory_parts_add_to_the_total(make: Any) -> None:
    splits = make()
    rows = tables.memory_rows(splits, [splits.key(splits.best_row)])
    bars = [trace for trace in charts.memory_bars(splits, rows).data if trace["type"] == "bar"]
    total = np.sum([bar["x"] for bar in bars], axis=0)
    assert total == pytest.approx(splits.values("memory")[rows])
    looks = {(bar["marker"]["color"], bar["marker"]["pattern"]["shape"]) for bar in bars}
    assert len(looks) == len(bars)


def test_stages_of_a_pipeline_have_their_capacity_and_every_pass_a_bar() -> None:
    splits = training()
    row = next(int(row) for row in splits.order if splits.degree("pp")[row] == 4)
    stages = [
        {name.removesuffix("_bytes"): value for name, value in stage.items()}
        for stage in splits.estimate(row).to_json()["memory"]["stages"]
    ]
    ends = (splits.usable_bytes(row), splits.capacity_bytes(row))
    figure = charts.stage_bars(stages, splits.parts, *ends)
    totals = np.sum([trace["y"] for trace in figure.data], axis=0)
    assert max(totals) == pytest.approx(splits.values("memory")[row])
    lines_at = [shape["y0"] for shape in figure.layout.shapes]
    assert lines_at == pytest.approx([end / GIB for end in ends])
    forward, backward = charts.pipeline(timeline("1f1b", 4, 8, 1.0, 2.0)).data
    assert len(forward["x"]) == len(backward["x"]) == 32
    assert forward["marker"]["pattern"]["shape"] != backward["marker"]["pattern"]["shape"]


def test_parts_of_a_time_end_at_the_whole_time() -> None:
    splits = planned()
    parts = splits.estimate(splits.best_row).to_json()["breakdown_s"]["decode"]
    bars = charts.waterfall(parts, labels.CAUSES).data[0]
    assert list(bars["x"])[:-1] == sorted(
        (seconds * 1e3 for seconds in parts.values()), reverse=True
    )
    assert bars["measure"][-1] == "total"
    assert set(bars["y"]) == {labels.CAUSES[cause] for cause in parts} | {"Total"}
    causes = splits.explained(splits.best_row).to_json()["causes_s"]["decode"]
    stacked = charts.causes_bars([("best", causes)]).data
    whole = splits.values("tpot")[splits.best_row]
    assert sum(bar["x"][0] for bar in stacked) == pytest.approx(whole)
    assert len({bar["marker"]["pattern"]["shape"] for bar in stacked}) == len(stacked)


def test_load_curves_mark_the_request_and_half_as_busy_costs_twice_as_much() -> None:
    splits = planned()
    curve = curves.load_curve(splits, splits.best_row)
    figure = charts.load_curves({"best": curve}, 64.0, "in flight", 40.0)
    assert {shape["x1"] for shape in figure.layout.shapes} == {40.0}
    largest = int(np.argmax(figure.data[0]["marker"]["size"]))
    assert figure.data[0]["customdata"][largest][0] == "64 in flight"
    curve = charts.use_curves({"best": (25.6, 1000.0)}).data[0]
    price = dict(zip(np.round(curve["x"], 6), curve["y"], strict=True))
    assert price[50.0] == pytest.approx(2 * price[100.0]) == pytest.approx(2 * 25.6 / 3.6)


def test_labels_of_loads_are_whole_and_never_on_each_other() -> None:
    saturated = plan(change(DEFAULT, {"model": "Qwen/Qwen3-32B", "hardware.device": "l40s"}))
    rows = {saturated.label(int(row)): int(row) for row in saturated.order[:3]}
    loads = {name: curves.load_curve(saturated, row) for name, row in rows.items()}
    spots = {name: curves.crossing(saturated, row, 0.06) for name, row in rows.items()}
    at = {name: spot for name, spot in spots.items() if spot is not None}
    figure = charts.load_curves(loads, 64.0, "in flight", 60.0, at)
    widest, highest = figure.layout.xaxis.range[1], figure.layout.yaxis.range[1]
    places = []
    for trace in figure.data[: len(rows)]:
        for x, y, text in zip(trace["x"], trace["y"], trace["text"], strict=True):
            if text:
                assert re.fullmatch(r"[\d,]+(–[\d,]+)?", text), text
                places.append((x / widest, y / highest))
    assert len(places) > 3
    for n, (x, y) in enumerate(places):
        assert all(abs(x - a) > 0.05 or abs(y - b) > 0.04 for a, b in places[:n])
    said = [note.text for note in figure.layout.annotations]
    assert all(any(name in text for text in said) for name in loads)  # each at its end
    first = next(iter(at.values()))
    assert any(f"{first.load:,.0f} in flight, " in text and "tok/s" in text for text in said)


def test_scaling_is_drawn_beside_proportion_and_a_tornado_starts_at_the_figure() -> None:
    run, splits = training(), planned()
    scaled = curves.scaling(run)
    ideal, best = charts.scaling_curve(scaled, [run.label(row) for row in scaled.rows]).data
    assert ideal["y"][0] == best["y"][0]
    assert best["text"][0] == "100%"
    base, swings = tornado.tornado(splits, splits.best_row, "tpot")
    less, more = charts.swings(base, swings, splits.measures["tpot"]).data
    assert set(less["base"]) == set(more["base"]) == {base * 1e3}
    assert less["x"][0] + base * 1e3 == pytest.approx(swings[0].less * 1e3)


@both
def test_the_heatmap_has_the_best_of_each_cell_and_crosses(make: Any) -> None:
    splits = make()
    cells, crosses = charts.heatmap(splits, "per_gpu").data
    values = [value for line in cells["z"] for value in line]
    known = [value for value in values if value is not None]
    assert max(known) == pytest.approx(splits.values("per_gpu")[splits.feasible].max())
    assert len(crosses.text) == len(values) - len(known)
    assert all(said for line in cells["customdata"] for said in line)


@both
def test_parallel_axes_hold_degrees_and_measures(make: Any) -> None:
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


def test_the_best_split_is_the_strongest_line() -> None:
    splits = planned()
    *weaker, strongest = charts.parallel(splits, ("tpot", "memory")).data[: lines.SHADES]
    best = int(splits.order[np.argmin(splits.raw("tpot")[splits.order])])
    assert any(splits.label(best) in said for said in strongest.text)
    assert strongest.line.color == charts.palette(dark=False).series[0]
    assert all(trace.line.width < strongest.line.width for trace in weaker)


def test_boxes_keep_what_passes_through_all_marked_axes() -> None:
    splits, names = planned(), ("per_gpu", "memory")
    titles = list(charts.parallel(splits, names).layout.xaxis.ticktext)
    at = titles.index("tp")
    levels = np.unique(splits.degree("tp")[splits.order])

    def passing(*boxes: tuple[float, float, float]) -> list[int]:
        marked = [{"x": [x + 0.2, x - 0.2], "y": [high, low]} for x, low, high in boxes]
        return charts.passing(splits, names, marked)

    def degrees(rows: list[int]) -> set[int]:
        return {int(splits.degree("tp")[row]) for row in rows}

    top, bottom = (at, 0.95, 1.05), (at, -0.05, 0.05)
    largest = passing(top)
    assert degrees(largest) == {int(levels[-1])}
    assert degrees(passing(top, bottom)) == {int(levels[0]), int(levels[-1])}
    memory = splits.raw("memory")
    least, span = memory[splits.order].min(), np.ptp(memory[splits.order])
    lean = [row for row in largest if memory[row] <= least + 0.5 * span]
    assert passing(top, (len(titles) - 1, -0.05, 0.5)) == lean
    between = {"x": [0.4, 0.6], "y": [0, 1]}  # two axes
    assert charts.passing(splits, names, [between]) == list(map(int, splits.order))


def test_dark_and_light_differ_and_a_view_is_registered_once(registered_chart: View) -> None:
    assert charts.palette(dark=True) != charts.palette(dark=False)
    dark, light = (charts.tradeoff(planned(), "tpot", "per_gpu", dark=on) for on in (True, False))
    assert dark != light
    assert charts.parts_bars({"mlp": 10, "head": 20}).data[0]["y"][0] == "Language-model head"
    assert all(registered_chart in views.views_of(splits) for splits in (planned(), training()))
    with pytest.raises(ValueError, match="devices"):
        views.view("devices", "Again")(registered_chart.draw)


def test_views_that_lack_a_split_or_a_price_are_left_out() -> None:
    offered = {view.name for view in views.views_of(planned(("hardware.per_node", 1)))}
    assert offered == {"memory", "frontier", "arithmetic"}
    cpu = {"hardware.device": "cpu", "hardware.per_node": 1, "model": "Qwen/Qwen3-0.6B"}
    splits = plan(change(DEFAULT, cpu))
    (note,) = views.VIEWS["cost"].draw(views.Focus(splits, splits.best_row))
    assert isinstance(note, views.Note)


@both
def test_keys_of_charts_are_unique(make: Any) -> None:
    splits = make()
    row = next(int(row) for row in splits.order if splits.degree("pp")[row] > 1)
    keys = []
    for view in views.views_of(splits):
        focus = views.Focus(splits, row, measure=view.first_measure(splits))
        keys += [item.key for item in view.draw(focus) if isinstance(item, views.Chart)]
    assert len(keys) == len(set(keys)) >= 6
