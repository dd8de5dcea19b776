"""Figures and tables drawn from a plan."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest

from recipe_core import charts, labels, tables, units
from recipe_core.advice import nearest
from recipe_core.plan import PlanTable, plan
from recipe_core.query import DEFAULT, change, split_key
from recipe_core.units import GIB

LLAMA_70B = "meta-llama/Llama-3.1-70B-Instruct"


@cache
def table(*changes: tuple[str, Any]) -> PlanTable:
    return plan(change(DEFAULT, {"model": LLAMA_70B} | dict(changes)))


def drawn(figure: Any) -> dict[str, Mapping[str, Any]]:
    return {trace["name"]: trace for trace in figure.to_dict()["data"] if trace.get("name")}


def keys(trace: Mapping[str, Any]) -> set[str]:
    return {point[0] for point in trace["customdata"]}


@pytest.mark.parametrize("axis", ["tpot", "interactivity"])
def test_every_feasible_split_is_in_the_scatter(axis: charts.XAxis) -> None:
    found = table()
    traces = drawn(charts.pareto(found, x=axis))
    feasible = {split_key(found.candidate(int(row))) for row in found.ranked}
    assert keys(traces["Fits"]) | keys(traces["Best tradeoffs"]) == feasible
    assert not keys(traces["Fits"]) & keys(traces["Best tradeoffs"])


def test_states_differ_by_symbol_and_colour() -> None:
    traces = drawn(charts.pareto(table(("objective.limits.tpot_ms", 40.0)), pins=["vllm.bf16.bf16.tp8.pp1.dp1.ep1"]))
    assert len({traces[name]["marker"]["symbol"] for name in ("Fits", "Best tradeoffs", "Over a limit", "Pinned")}) == 4
    assert len({traces[name]["marker"]["color"] for name in ("Fits", "Best tradeoffs", "Over a limit", "Pinned")}) == 4


def test_a_limit_is_a_line_and_what_it_refuses_is_drawn() -> None:
    found = table(("objective.limits.tpot_ms", 40.0))
    figure = charts.pareto(found)
    assert figure.to_dict()["layout"]["shapes"][0]["x0"] == 40.0
    assert min(drawn(figure)["Over a limit"]["x"]) > 40
    assert "shapes" not in charts.pareto(table()).to_dict()["layout"]


def test_the_front_is_a_staircase() -> None:
    steps = charts.pareto(table()).to_dict()["data"][0]
    assert steps["line"]["shape"] == "hv"
    assert list(steps["x"]) == sorted(steps["x"])
    assert list(steps["y"]) == sorted(steps["y"])


def test_pins_that_are_gone_are_not_drawn() -> None:
    assert "Pinned" not in drawn(charts.pareto(table(), pins=["vllm.bf16.bf16.tp99.pp1.dp1.ep1", "nonsense"]))


def test_many_points_are_thinned_but_the_front_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charts, "MAX_POINTS", 5)
    traces = drawn(charts.pareto(table()))
    some = next(name for name in traces if name.startswith("Fits ("))
    assert len(traces[some]["x"]) <= 5
    assert len(traces["Best tradeoffs"]["x"]) == table().front.sum()


def test_memory_is_drawn_with_its_capacity_when_it_is_exceeded() -> None:
    found = table(("hardware.per_node", 1))
    assert not len(found.ranked)
    rows = tables.memory_rows(found, [])
    assert rows == [nearest(found)]
    layout = charts.memory_bars(found, rows).to_dict()["layout"]
    capacity = float(found.columns["capacity_bytes"][0]) / GIB
    assert [shape["x0"] for shape in layout["shapes"]] == pytest.approx([float(found.columns["usable_bytes"][0]) / GIB, capacity])
    assert layout["xaxis"]["range"][1] > float(found.columns["total_bytes"][0]) / GIB > capacity


def test_memory_parts_add_to_the_total() -> None:
    found = table()
    rows = tables.memory_rows(found, ["vllm.bf16.bf16.tp8.pp1.dp1.ep1"])
    bars = [trace for trace in charts.memory_bars(found, rows).to_dict()["data"] if trace["type"] == "bar"]
    assert np.sum([bar["x"] for bar in bars], axis=0) * GIB == pytest.approx(found.columns["total_bytes"][rows])
    assert len({bar["marker"]["pattern"]["shape"] for bar in bars}) == len(bars)


def test_memory_rows_hold_pinned_best_and_nearest_refused() -> None:
    found = table()
    rows = tables.memory_rows(found, ["vllm.bf16.bf16.tp4.pp1.dp2.ep1"], best=2, refused=1)
    assert split_key(found.candidate(rows[0])) == "vllm.bf16.bf16.tp4.pp1.dp2.ep1"
    assert int(found.ranked[0]) in rows
    assert not found.columns["feasible"][rows[-1]]


def test_a_breakdown_shows_every_cause_largest_first() -> None:
    found = table()
    parts = found.estimate(int(found.ranked[0]))["breakdown_s"]["decode"]
    bar = charts.step_breakdown([("tp 8", parts)]).to_dict()["data"][0]
    assert list(bar["x"]) == sorted((seconds * 1e3 for seconds in parts.values()), reverse=True)
    assert set(bar["y"]) == {labels.CAUSES[cause] for cause in parts}


def test_every_cause_and_refusal_has_a_name() -> None:
    for model in (LLAMA_70B, "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-30B-A3B"):
        found = table(("model", model))
        for row in found.ranked[:20]:
            breakdown = found.estimate(int(row))["breakdown_s"]
            assert set(breakdown["decode"]) | set(breakdown["prefill"]) <= set(labels.CAUSES)
        assert {code for block in found.blocks for code, _ in block.rules()} <= set(labels.REFUSALS)
        assert set(found.found.model.parameters_by_part) <= set(labels.PARTS)


def test_tables_are_in_units_for_people() -> None:
    found = table()
    frame = tables.splits_frame(found, [int(row) for row in found.ranked])
    assert len(frame) == len(found.ranked)
    best = found.estimate(int(found.ranked[0]))
    assert frame["tpot"][0] == pytest.approx(best["serving"]["tpot_s"] * 1e3, rel=5e-3)
    assert frame["memory"][0] == pytest.approx(best["memory"]["total_bytes"] / GIB, rel=5e-3)
    assert (frame["front"] == "◆").sum() == found.front.sum()
    refused = tables.refused_frame(found)
    assert len(tables.refused_frame(found, at_most=3)) == 3
    assert len(refused) + len(frame) == len(found)
    assert (refused["why"] != "").all()
    assert sum(tables.refusal_counts(found).values()) >= len(refused)


def test_labels_name_what_differs() -> None:
    found = table(("options.weight_dtypes", ("bf16", "fp8")))
    names = {labels.split_label(found, row) for row in range(len(found))}
    assert len(names) == len(found)
    assert labels.degrees({"tp": 4, "pp": 1, "dp": 2, "ep": 8}) == "tp 4 · dp 2 · ep 8"


@pytest.mark.parametrize(("value", "text"), [(8.03e9, "8.03 B"), (630e6, "630 M"), (671e9, "671 B"), (1500, "1.50 k"), (12, "12.0")])
def test_counts_read_well(value: float, text: str) -> None:
    assert units.count(value) == text


def test_rates_and_rounding_read_well() -> None:
    assert units.per_second(3.35e12, "B") == "3.35 TB/s"
    assert units.per_second(989.4e12, "FLOP") == "989 TFLOP/s"
    assert units.rounded([12345.0, 0.0, 0.012345, np.inf]).tolist() == pytest.approx([12300.0, 0.0, 0.0123, np.inf])


def test_dark_and_light_differ() -> None:
    assert charts.palette(dark=True) != charts.palette(dark=False)
    assert charts.pareto(table(), dark=True) != charts.pareto(table())
    assert charts.parts_bars({"mlp": 10, "head": 20}).to_dict()["data"][0]["y"][0] == "Language-model head"
