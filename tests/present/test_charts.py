"""Figures of splits of a plan: memory, time, load, scaling; and the registry of views."""

import re

import numpy as np
import pytest

from recipe_core.base import labels
from recipe_core.base.units import GIB
from recipe_core.explain import curves, tornado
from recipe_core.explain.timeline import timeline
from recipe_core.present import charts, tables
from recipe_core.present.charts import views
from recipe_core.request.edit import change
from recipe_core.request.link import DEFAULT
from recipe_core.search.plans import plan
from tests.conftest import LLAMA_70B
from tests.fixtures.plans import BESIDE, planned, training


def test_memory_is_drawn_with_its_capacity_for_pinned_best_and_nearest_refused():
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
    splits, pinned = planned(), "vllm.bf16.bf16.tp4.pp1.dp2.ep1"
    rows = tables.memory_rows(splits, [pinned], best=2, refused=1)
    assert splits.key(rows[0]) == pinned
    assert splits.best_row in rows
    assert not splits.feasible[rows[-1]]


def test_memory_bars_say_what_waits_and_have_each_load_and_capacity():
    splits = planned(("workload.concurrency", 512))
    row = splits.find("vllm.bf16.bf16.tp4.pp1.dp1.ep1")
    assert splits.queues[row]
    figure = charts.memory_bars(splits, [row])
    held = splits.held_text(row)
    (text,) = figure.data[-1]["text"]
    assert text.endswith(f"needs {splits.values('memory')[row]:,.1f}, holds {held}")
    assert splits.queue_text(row).startswith(f"holds {held} at once")
    capacity = splits.capacity_bytes(row) / GIB
    assert sum(bar["x"][0] for bar in figure.data if bar["type"] == "bar") < capacity
    splits = planned(("options.loads", (16, 512)))
    tp, pp = splits.degree("tp"), splits.degree("pp")
    figure = charts.memory_bars(splits, np.flatnonzero((tp == 8) & (pp == 1)).tolist())
    loads = [f"tp 8 · {load} in flight" for load in (64, 16, 512)]
    assert list(figure.layout.yaxis.ticktext) == loads
    assert all(len(set(bar.y)) == 3 for bar in figure.data if bar.type == "bar")
    splits = planned(BESIDE)
    clusters = splits.clusters_of_rows[splits.order]
    rows = [int(splits.order[clusters == cluster][0]) for cluster in (0, 1)]
    figure = charts.memory_bars(splits, rows)
    marks = {trace.name: list(trace.x) for trace in figure.data if trace.type == "scatter"}
    capacities = [splits.capacity_bytes(row) / GIB for row in rows]
    assert marks["Capacity"] == pytest.approx(capacities)
    assert marks["Usable"] == pytest.approx([splits.usable_bytes(row) / GIB for row in rows])
    assert not figure.layout.shapes
    texts = figure.data[-1]["text"]
    assert all(f"of {most:,.1f}" in text for text, most in zip(texts, capacities, strict=True))


@pytest.mark.parametrize("model", [LLAMA_70B, "Qwen/Qwen3-32B", "openai/gpt-oss-120b"])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_no_split_that_starts_is_drawn_beyond_its_capacity(model, engine):
    load = ("workload.concurrency", 4096)
    splits = planned(("model", model), ("options.engines", (engine,)), load)
    rows = np.flatnonzero(splits.feasible).tolist()
    held, needed = splits.held_memory(rows), splits.memory(rows)
    assert all((held[name] <= needed[name]).all() for name in held)
    capacity = np.array([splits.capacity_bytes(row) for row in rows])
    total, wanted = (np.sum(list(parts.values()), axis=0) for parts in (held, needed))
    assert (total <= capacity).all()
    enough = ~splits.queues[rows] & (wanted <= capacity)
    assert total[enough] == pytest.approx(wanted[enough], rel=0.01)
    assert splits.queues[rows].any()


@pytest.mark.parametrize("make", [planned, training])
def test_memory_parts_add_to_the_total(make):
    splits = make()
    rows = tables.memory_rows(splits, [splits.key(splits.best_row)])
    bars = [trace for trace in charts.memory_bars(splits, rows).data if trace["type"] == "bar"]
    total = np.sum([bar["x"] for bar in bars], axis=0)
    assert total == pytest.approx(splits.values("memory")[rows])
    looks = {(bar["marker"]["color"], bar["marker"]["pattern"]["shape"]) for bar in bars}
    assert len(looks) == len(bars)


def test_stages_of_a_pipeline_have_their_capacity_and_every_pass_a_bar():
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
    lines = [shape["y0"] for shape in figure.layout.shapes]
    assert lines == pytest.approx([end / GIB for end in ends])
    forward, backward = charts.pipeline(timeline("1f1b", 4, 8, 1.0, 2.0)).data
    assert len(forward["x"]) == len(backward["x"]) == 32
    assert forward["marker"]["pattern"]["shape"] != backward["marker"]["pattern"]["shape"]


def test_parts_of_a_time_end_at_the_whole_time():
    splits = planned()
    parts = splits.estimate(splits.best_row).to_json()["breakdown_s"]["decode"]
    bars = charts.waterfall(parts, labels.CAUSES).data[0]
    assert list(bars["x"])[:-1] == sorted((part * 1e3 for part in parts.values()), reverse=True)
    assert bars["measure"][-1] == "total"
    assert set(bars["y"]) == {labels.CAUSES[cause] for cause in parts} | {"Total"}
    causes = splits.explained(splits.best_row).to_json()["causes_s"]["decode"]
    stacked = charts.causes_bars([("best", causes)]).data
    whole = splits.values("tpot")[splits.best_row]
    assert sum(bar["x"][0] for bar in stacked) == pytest.approx(whole)
    assert len({bar["marker"]["pattern"]["shape"] for bar in stacked}) == len(stacked)


def test_load_curves_mark_the_request_and_half_as_busy_costs_twice_as_much():
    splits = planned()
    curve = curves.load_curve(splits, splits.best_row)
    figure = charts.load_curves({"best": curve}, 64.0, "in flight", 40.0)
    assert {shape["x1"] for shape in figure.layout.shapes} == {40.0}
    largest = int(np.argmax(figure.data[0]["marker"]["size"]))
    assert figure.data[0]["customdata"][largest][0] == "64 in flight"
    curve = charts.use_curves({"best": (25.6, 1000.0)}).data[0]
    price = dict(zip(np.round(curve["x"], 6), curve["y"], strict=True))
    assert price[50.0] == pytest.approx(2 * price[100.0]) == pytest.approx(2 * 25.6 / 3.6)


def test_labels_of_loads_are_whole_and_never_on_each_other():
    saturated = plan(change(DEFAULT, {"model": "Qwen/Qwen3-32B", "hardware.device": "l40s"}))
    rows = {saturated.label(int(row)): int(row) for row in saturated.order[:3]}
    loads = {name: curves.load_curve(saturated, row) for name, row in rows.items()}
    spots = {name: curves.crossing(saturated, row, 0.06) for name, row in rows.items()}
    at = {name: spot for name, spot in spots.items() if spot is not None}
    figure = charts.load_curves(loads, 64.0, "in flight", 60.0, at)
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
    assert any(f"{first.load:,.0f} in flight, " in text and "tok/s" in text for text in said)


def test_scaling_is_drawn_beside_proportion_and_a_tornado_starts_at_the_figure():
    run, splits = training(), planned()
    scaled = curves.scaling(run)
    ideal, best = charts.scaling_curve(scaled, [run.label(row) for row in scaled.rows]).data
    assert ideal["y"][0] == best["y"][0]
    assert best["text"][0] == "100%"
    base, swings = tornado.tornado(splits, splits.best_row, "tpot")
    less, more = charts.swings(base, swings, splits.measures["tpot"]).data
    assert set(less["base"]) == set(more["base"]) == {base * 1e3}
    assert less["x"][0] + base * 1e3 == pytest.approx(swings[0].less * 1e3)


def test_dark_and_light_differ_and_a_view_is_registered_once(registered_chart):
    assert charts.palette(dark=True) != charts.palette(dark=False)
    dark, light = (charts.tradeoff(planned(), "tpot", "per_gpu", dark=on) for on in (True, False))
    assert dark != light
    assert charts.parts_bars({"mlp": 10, "head": 20}).data[0]["y"][0] == "Language-model head"
    assert all(registered_chart in views.views_of(splits) for splits in (planned(), training()))
    with pytest.raises(ValueError, match="devices"):
        views.view("devices", "Again")(registered_chart.draw)


def test_views_that_lack_a_split_or_a_price_are_left_out_and_keys_of_charts_are_unique():
    offered = {view.name for view in views.views_of(planned(("hardware.per_node", 1)))}
    assert offered == {"memory", "frontier", "arithmetic"}
    cpu = {"hardware.device": "cpu", "hardware.per_node": 1, "model": "Qwen/Qwen3-0.6B"}
    splits = plan(change(DEFAULT, cpu))
    (note,) = views.VIEWS["cost"].draw(views.Focus(splits, splits.best_row))
    assert isinstance(note, views.Note)
    for splits in (planned(), training()):
        row = next(int(row) for row in splits.order if splits.degree("pp")[row] > 1)
        keys = []
        for view in views.views_of(splits):
            focus = views.Focus(splits, row, measure=view.first_measure(splits))
            keys += [item.key for item in view.draw(focus) if isinstance(item, views.Chart)]
        assert len(keys) == len(set(keys)) >= 6
