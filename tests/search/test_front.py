"""The tradeoff's groups, states and bands; memory as it is held."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest

from recipe_core.base.units import GIB
from recipe_core.hardware.request import HardwareRequest
from recipe_core.present import charts, tables
from recipe_core.present.charts import front, groups
from recipe_core.request.edit import change
from recipe_core.request.link import DEFAULT
from recipe_core.search.plan import Plan
from recipe_core.search.plans import plan

LLAMA_70B = "meta-llama/Llama-3.1-70B-Instruct"
BESIDE = (HardwareRequest(device="mi300x", per_node=8),)
MARKS = ("Usable", "Capacity")
DEVICES = ("h200-sxm", "a100-sxm-80gb", "b200-sxm", "l40s", "mi325x", "mi355x", "gh200-96gb")
DEVICES += ("mi350x", "h100-nvl")

LONG = ("workload.max_context", 24_576)
"""At tp 2 one such request may not fit on an H100."""


@cache
def planned(*changes: tuple[str, Any]) -> Plan:
    return plan(change(DEFAULT, {"model": LLAMA_70B} | dict(changes)))


def beside() -> Plan:
    return planned(("options.hardware", BESIDE))


def devices_and_loads() -> Plan:
    return planned(("options.hardware", BESIDE), ("options.loads", (16, 512)), LONG)


def training() -> Plan:
    return planned(("workload.kind", "training"), ("hardware.nodes", 4))


def points(figure: Any) -> list[Mapping[str, Any]]:
    return [trace for trace in figure.data if trace.customdata is not None]


def keys(traces: list[Mapping[str, Any]]) -> list[str]:
    return [point[0] for trace in traces for point in trace["customdata"]]


def legend(figure: Any) -> list[str]:
    return [trace.name for trace in figure.data if trace.showlegend is not False and trace.name]


def test_devices_are_told_apart_have_a_front_each_and_are_drawn_by_interactivity() -> None:
    splits = beside()
    figure = charts.tradeoff(splits, *splits.axes)
    assert {"H100 SXM5", "MI300X"} < set(legend(figure))
    diamonds = [trace for trace in points(figure) if trace.marker.symbol == "diamond"]
    assert len({trace.marker.color for trace in diamonds}) == 2
    for cluster, trace in enumerate(diamonds):
        own = splits.clusters_of_rows == cluster
        on = np.flatnonzero(splits.front(*splits.axes, among=own)).tolist()
        assert set(keys([trace])) == {splits.key(row) for row in on}
        assert trace.legendgroup == splits.cluster_title(int(np.flatnonzero(own)[0]))
    lines = [trace for trace in figure.data if trace.mode == "lines"]
    assert len({(line.line.color, line.line.dash) for line in lines}) == len(lines) == 2
    assert beside().axes == ("interactivity", "per_gpu")
    assert planned().axes == ("tpot", "per_gpu")
    limited = planned(("options.hardware", BESIDE), ("objective.limits.tpot_ms", 40.0))
    figure = charts.tradeoff(limited, *limited.axes)
    assert figure.layout.shapes[0]["x0"] == 25.0


def test_what_differs_is_what_colours_tell() -> None:
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


def test_every_split_is_drawn_once_whatever_colours_tell() -> None:
    splits = devices_and_loads()
    assert groups.group_names(splits) == ["device", "load"]
    for by in ("device", "load", "none"):
        drawn = keys(points(charts.tradeoff(splits, "tpot", "per_gpu", by=by)))
        assert sorted(drawn) == sorted(splits.key(int(row)) for row in splits.order)


def test_more_groups_than_colours_are_the_best_and_the_others_and_none_is_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    several = tuple(HardwareRequest(device=name, per_node=8) for name in DEVICES)
    splits = planned(("options.hardware", several))
    told = groups.grouped(splits, "device")
    assert len(told.titles) == groups.COLOURED + 1
    assert told.titles[-1] == "Others (2)"
    assert told.titles[told.codes[splits.best_row]] == splits.cluster_title(splits.best_row)
    figure = charts.tradeoff(splits, *splits.axes)
    assert len(keys(points(figure))) == len(splits.order) + len(splits.beyond_limits())
    assert charts.palette(dark=False).muted in {
        trace.marker.color for trace in points(figure) if trace.legendgroup == told.titles[-1]
    }
    monkeypatch.setattr(front, "CELLS", (1, 1))
    monkeypatch.setattr(front, "MAX_POINTS", 4)
    splits = beside()
    rows = splits.order[splits.holds[splits.order]]
    codes = groups.grouped(splits, "device").codes
    thin = front.thinned(splits, rows, *splits.axes, codes)
    assert set(codes[thin].tolist()) == set(codes[rows].tolist())


def test_colours_of_groups_are_distinct_and_seen_on_the_page() -> None:
    for dark in (False, True):
        colours = charts.palette(dark=dark)
        assert len(set(colours.groups)) == groups.COLOURED
        assert min(contrast(colour, colours.paper) for colour in colours.groups) >= 3


def contrast(one: str, other: str) -> float:
    """WCAG 2.1, relative luminance."""

    def luminance(colour: str) -> float:
        parts = np.array([int(colour[n : n + 2], 16) for n in (1, 3, 5)]) / 255
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ np.array([0.2126, 0.7152, 0.0722]))

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("make", [planned, beside, training])
def test_bands_of_rows_are_those_of_their_estimates(make: Any) -> None:
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


def test_best_tradeoffs_carry_their_bands_in_figures_and_words() -> None:
    splits = planned()
    figure = charts.tradeoff(splits, "interactivity", "per_gpu")
    (diamonds,) = (trace for trace in points(figure) if trace.marker.symbol == "diamond")
    rows = [splits.find(key) for key in keys([diamonds])]
    low, high = splits.band_ends("interactivity", rows)
    assert diamonds.x + diamonds.error_x.array == pytest.approx(high)
    assert diamonds.x - diamonds.error_x.arrayminus == pytest.approx(low)
    assert "likely" in diamonds.customdata[0][2]
    without = charts.tradeoff(splits, "interactivity", "per_gpu", bands=False)
    assert not any(trace.error_x.array is not None for trace in points(without))
    row = splits.best_row
    low, high = (float(end[0]) * 1e3 for end in splits.band_ends("tpot", [row]))
    assert splits.likely("tpot", row) == f"{low:.1f} to {high:.1f} ms likely"
    assert splits.likely("tpot", row, unit=False) == f"{low:.1f} to {high:.1f} likely"
    assert splits.likely("gpus", row) == ""


@pytest.mark.parametrize("model", [LLAMA_70B, "Qwen/Qwen3-32B", "openai/gpt-oss-120b"])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_no_split_that_starts_is_drawn_beyond_its_capacity(model: str, engine: str) -> None:
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


def test_memory_bars_say_what_waits_and_have_each_load_and_capacity() -> None:
    splits = planned(("workload.concurrency", 512))
    row = splits.find("vllm.bf16.bf16.tp4.pp1.dp1.ep1")
    assert splits.queues[row]
    figure = charts.memory_bars(splits, [row])
    (text,) = figure.data[-1]["text"]
    held = splits.held_text(row)
    assert text.endswith(f"needs {splits.values('memory')[row]:,.1f}, holds {held}")
    assert splits.queue_text(row).startswith(f"holds {held} at once")
    capacity = splits.capacity_bytes(row) / GIB
    assert sum(bar["x"][0] for bar in figure.data if bar["type"] == "bar") < capacity
    splits = planned(("options.loads", (16, 512)))
    tp, pp = splits.degree("tp"), splits.degree("pp")
    tp8 = [row for row in range(len(splits)) if (tp[row], pp[row]) == (8, 1)]
    figure = charts.memory_bars(splits, tp8)
    assert list(figure.layout.yaxis.ticktext) == [
        f"tp 8 · {load} in flight" for load in (64, 16, 512)
    ]
    bars = [trace for trace in figure.data if trace.type == "bar"]
    assert all(len(set(bar.y)) == 3 for bar in bars)
    splits = beside()
    rows = [
        next(int(row) for row in splits.order if splits.cluster_number(int(row)) == cluster)
        for cluster in (0, 1)
    ]
    figure = charts.memory_bars(splits, rows)
    marks = {trace.name: list(trace.x) for trace in figure.data if trace.name in MARKS}
    capacities = [splits.capacity_bytes(row) / GIB for row in rows]
    assert marks["Capacity"] == pytest.approx(capacities)
    assert marks["Usable"] == pytest.approx([splits.usable_bytes(row) / GIB for row in rows])
    assert not figure.layout.shapes
    texts = figure.data[-1]["text"]
    assert all(f"of {most:,.1f}" in text for text, most in zip(texts, capacities, strict=True))


def test_tables_have_columns_for_what_differs_and_states_and_digits_of_sentences() -> None:
    assert list(tables.differing(planned())) == []
    splits = devices_and_loads()
    assert list(tables.differing(splits)) == ["device", "load"]
    frame = tables.splits_frame(splits, splits.order, ranges=True)
    assert set(frame["device"]) == {"H100 SXM5", "MI300X"}
    assert set(frame["load"]) == {16, 64, 512}
    assert "H100" not in "".join(frame["split"])
    assert (frame["tpot_low"] < frame["tpot"]).all()
    assert (frame["tpot"] < frame["tpot_high"]).all()
    assert frame["tpot_likely"].str.contains(" to ").all()
    splits = planned(("workload.concurrency", 512), LONG)
    states = tables.splits_frame(splits, splits.order)["state"]
    assert (states[splits.queues[splits.order]].str.startswith("queues: ")).all()
    assert set(states[splits.holds[splits.order]]) <= {"holds"}
    row = splits.find("vllm.bf16.bf16.tp4.pp1.dp1.ep1")
    assert tables.state_text(splits, row) == f"queues: {splits.held_text(row)}"
    row = splits.find("vllm.bf16.bf16.tp2.pp1.dp1.ep1")
    assert tables.state_text(splits, row).startswith("uncertain: starts with ")
    splits = planned()
    texts = tables.digits_of(splits)
    assert (texts["usd"](1.0), texts["gpus"](8.0)) == ("1.00", "8")
    assert texts["concurrency"](float("nan")) == "–"
    row = splits.best_row
    frame = tables.splits_frame(splits, [row])
    assert f"{texts['output'](frame['output'][0])} tok/s" == splits.text("output", row)


def test_filters_keep_what_they_name() -> None:
    splits = devices_and_loads()

    def filtered(**names: Any) -> Any:
        return tables.filtered(splits, tables.Filters(**names))

    assert filtered().tolist() == splits.order.tolist()
    mine = filtered(by=(("device", ("MI300X",)),))
    assert {splits.cluster_title(int(row)) for row in mine} == {"MI300X"}
    queueing = filtered(states=(tables.QUEUES,))
    assert splits.queues[queueing].all()
    assert len(queueing) == splits.queues[splits.order].sum()
    four = filtered(devices=(4,), states=(tables.HOLDS,))
    assert set(splits.raw("gpus")[four]) == {4}
    assert not splits.queues[four].any()
    best = filtered(front=splits.axes)
    assert set(splits.clusters_of_rows[best]) == {0, 1}
    loads = {f"{load} in flight" for load in (16, 64, 512)}
    assert set(tables.group_titles(splits, "load")) == loads
    assert tables.states_of(splits) == [tables.HOLDS, tables.QUEUES, tables.UNCERTAIN]
    doubtful = filtered(states=(tables.UNCERTAIN,))
    assert len(doubtful)
    assert splits.uncertain[doubtful].all()
    assert 4 in tables.device_counts(splits)


def test_devices_are_counted_of_those_there_and_clusters_of_one_are_told_apart() -> None:
    splits = planned()
    eight, four = (splits.find(f"vllm.bf16.bf16.tp{tp}.pp1.dp1.ep1") for tp in (8, 4))
    assert splits.devices_text(eight) == "8 × H100 SXM5"
    assert splits.devices_text(four) == "4 of 8 × H100 SXM5"
    twice = (HardwareRequest(device="h100-sxm", per_node=4),) * 2
    splits = planned(("options.hardware", twice))
    titles = {splits.cluster_title(row): None for row in range(len(splits))}
    assert list(titles) == ["8 × H100 SXM5", "4 × H100 SXM5 (1)", "4 × H100 SXM5 (2)"]
