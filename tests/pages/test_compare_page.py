"""The page that compares splits."""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa
import pytest
from streamlit.testing.v1 import AppTest

from recipe_core.base.units import significant
from recipe_core.present.charts.views import VIEWS, View
from recipe_core.request.edit import change
from tests.fixtures.opening import LLAMA_70B, PAGES, TP8, figure, open_view, opened, query_of, words

LONG = {"workload.max_context": "24576"}
"""At tp 2 the cache of one such request of Llama-3.1-70B just fits on an H100."""
CROWDED = {"workload.concurrency": "512", **LONG}
"""A load that some splits queue under; others may not start."""

PIPELINED = {
    "workload.kind": "training",
    "workload.tokens": "1e10",
    "model": LLAMA_70B,
    "hardware.nodes": "4",
}


def test_nothing_fits_names_the_shortfall_and_the_change_is_one_click() -> None:
    app = opened("compare.py", model=LLAMA_70B, **{"hardware.per_node": "1"})
    assert "GiB short" in app.error[0].value
    assert (
        len(figure(app, "memory")["layout"]["shapes"]) == 2
    )  # usable and capacity, drawn especially now
    app.button(key="change-0").click().run()
    assert app.success or app.warning  # the best may queue
    assert not app.error


def test_a_limit_that_refuses_all_can_be_loosened_by_a_click() -> None:
    app = opened("compare.py", **{"objective.limits.tpot_ms": "0.5"})
    assert "exceeds the limit" in app.error[0].value
    app.button(key="change-0").click().run()
    # the limit is now what is estimated, which holds about as often as not
    assert "coin toss" in app.warning[0].value


def test_two_limits_that_refuse_all_are_loosened_together() -> None:
    app = opened(
        "compare.py", **{"objective.limits.tpot_ms": "0.5", "objective.limits.ttft_ms": "5"}
    )
    assert "Over a limit" in [trace.get("name") for trace in figure(app, "frontier")["data"]]
    app.button(key="change-0").click().run()
    assert app.warning  # at the limits that the nearest split just keeps
    assert not app.error


def test_pools_are_pinned_drawn_and_taken_like_other_splits() -> None:
    query = {"model": LLAMA_70B, "options.disaggregated": "true"}
    table = opened("compare.py", **query).dataframe[0].value
    key = next(key for key in table["key"] if ".pre" in key)
    app = opened("compare.py", pins=key, **query)
    assert "Pinned" in [trace.get("name") for trace in figure(app, "frontier")["data"]]
    assert "prefill on" in words(app)
    app.button(key=f"use-{key}").click().run()
    assert query_of(app)["candidate.prefill.tp"] == key.split(".pre")[1].split(".")[1].removeprefix(
        "tp"
    )
    assert app.selectbox(key="_split").value == key
    assert "prefill on" in app.table[0].value.to_string()
    assert not app.warning


def test_pins_of_a_link_are_drawn_ticked_and_removable() -> None:
    app = opened("compare.py", pins=TP8, **{"objective.limits.tpot_ms": "40"})
    drawn = figure(app, "frontier")
    assert "Pinned" in [trace.get("name") for trace in drawn["data"]]
    assert drawn["layout"]["shapes"][0]["x0"] == 40
    app.button(key=f"unpin-{TP8}").click().run()
    assert "pins" not in query_of(app)


def test_a_pin_says_how_likely_the_best_split_measures_better() -> None:
    app = opened("compare.py", model=LLAMA_70B, pins="vllm.bf16.bf16.tp4.pp1.dp2.ep1")
    found = re.search(r"Probability that (.+) measures better: (\d+)%", words(app))
    assert found
    assert found[1] in app.success[0].value
    assert 50 <= int(found[2]) < 99  # the best of two close splits, by estimates that may err


def test_a_pinned_split_is_taken_by_a_click() -> None:
    app = opened("compare.py", pins=TP8)
    app.button(key=f"use-{TP8}").click().run()
    assert app.title[0].value == PAGES["recipe.py"]
    assert query_of(app)["candidate.tp"] == "8"
    assert app.selectbox(key="_split").value == TP8


def test_a_pin_that_is_gone_is_said_and_in_no_link() -> None:
    app = opened("compare.py", pins=TP8, **{"hardware.per_node": "4"})
    assert "is no longer a split of this plan" in words(app)
    assert "pins" not in query_of(app)
    assert f"keep-{TP8}" not in [button.key for button in app.button]  # nobody knows what it asked


def test_the_table_lists_every_split_that_fits_and_the_refused_ones_say_why() -> None:
    app = opened("compare.py", model=LLAMA_70B, **CROWDED)
    ranked = app.dataframe[0].value
    open_view(app, "Why not?")
    refused = app.dataframe[1].value
    possible = [why for why in refused["why"] if "divisible" not in why and "evenly" not in why]
    counts = re.search(
        r"(\d+) of (\d+) legal splits hold the load · (\d+) start[^·]* · (\d+) may not start",
        words(app),
    )
    assert counts
    holding, legal, queueing, doubtful = map(int, counts.groups())
    assert holding + queueing + doubtful == len(ranked)
    assert legal == len(ranked) + len(possible)
    assert (refused["why"].str.len() > 10).all()


def drawn(app: AppTest, view: View) -> list[str]:
    """Open a view, and give what it draws: chart keys, and titles of tables and notes."""
    open_view(app, view.title)
    charts = [chart.proto.id for chart in app.get("plotly_chart")]
    return [name for name in charts if "frontier" not in name] + [
        table.proto.alt for table in app.table
    ]


def of_kind(kind: str) -> list[Any]:
    return [pytest.param(view, id=view.name) for view in VIEWS.values() if kind in view.kinds]


@pytest.mark.parametrize("view", of_kind("serving"))
def test_every_registered_view_of_a_serving_split_draws(view: View) -> None:
    pins = f"{TP8},vllm.bf16.bf16.tp4.pp1.dp2.ep1"
    assert drawn(opened("compare.py", model=LLAMA_70B, pins=pins), view)


@pytest.mark.parametrize("view", of_kind("training"))
def test_every_registered_view_of_a_training_split_draws(view: View) -> None:
    app = opened("compare.py", **PIPELINED)
    key = next(key for key in app.dataframe[0].value["key"] if ".pp1." not in key)
    app = opened("compare.py", pins=key, **PIPELINED)
    app.selectbox(key="focus").select(key)
    assert drawn(app, view)


@pytest.mark.parametrize("query", [{"model": LLAMA_70B}, PIPELINED], ids=["serving", "training"])
def test_a_registered_chart_is_a_view_of_the_page(
    registered_chart: View, query: dict[str, str]
) -> None:
    app = open_view(opened("compare.py", **query), registered_chart.title)
    assert figure(app, "devices")["data"][0]["y"]
    assert "Devices of a split" in words(app)


def test_a_view_of_a_pinned_split_is_chosen() -> None:
    app = open_view(
        opened("compare.py", model=LLAMA_70B, pins="vllm.bf16.bf16.tp4.pp1.dp2.ep1"), "Arithmetic"
    )
    best = app.table[0].value.to_string()
    app.selectbox(key="focus").select("vllm.bf16.bf16.tp4.pp1.dp2.ep1").run()
    assert app.table[0].value.to_string() != best


def test_what_starts_the_split_that_is_looked_at_is_said() -> None:
    app = opened("compare.py", model=LLAMA_70B, pins=TP8)
    app.selectbox(key="focus").set_value(TP8).run()
    (command,) = (code.value for code in app.code if "vllm serve" in code.value)
    assert "vllm serve meta-llama/Llama-3.1-70B-Instruct" in command
    assert "--tensor-parallel-size 8" in command


def test_a_split_that_cannot_be_started_says_why() -> None:
    refused = "torchtitan.bf16.tp1.pp2.v1.cp1.ep4.dp4.z1.mb2.selective"
    run = {"model": "Qwen/Qwen3-30B-A3B", "workload.kind": "training", "workload.tokens": "1e10"}
    app = opened("compare.py", pins=refused, **run)
    assert "is refused: " in words(app)
    assert "ZeRO-2 or 3" in words(app)
    assert refused not in app.dataframe[0].value["key"].tolist()


def test_a_split_without_a_pipeline_shows_the_best_that_has_one() -> None:
    app = open_view(
        opened("compare.py", **{"workload.kind": "training", "hardware.nodes": "2"}), "Pipeline"
    )
    assert "The best split with one: " in words(app)
    assert figure(app, "pipeline")["data"]


def test_where_no_price_is_known_the_cost_view_says_so() -> None:
    app = open_view(
        opened(
            "compare.py",
            model="Qwen/Qwen3-0.6B",
            **{"hardware.device": "cpu", "hardware.per_node": "1"},
        ),
        "Cost",
    )
    assert "No price is known for these devices" in words(app)


def test_the_axes_of_the_tradeoff_are_chosen() -> None:
    app = opened("compare.py")
    app.selectbox(key="axis-horizontal-serving").select("interactivity").run()
    assert (
        figure(app, "frontier")["layout"]["xaxis"]["title"]["text"]
        == "Tokens/s that one user sees (tok/s)"
    )


def test_the_columns_of_the_table_are_chosen() -> None:
    app = opened("compare.py")
    app.get_by_key("columns-serving").set_value(["joules", "tpot"]).run()
    order = json.loads(app.dataframe[0].proto.columns)
    assert "joules" in order
    assert list(app.dataframe[0].proto.column_order) == ["split", "joules", "tpot", "front"]
    app.toggle(key="column-ranges").set_value(True).run()
    order = list(app.dataframe[0].proto.column_order)
    assert order == ["split", "joules", "joules_likely", "tpot", "tpot_likely", "front"]
    assert app.dataframe[0].value["tpot_likely"].str.contains(" to ").all()


TWO_DEVICES = {
    "model": LLAMA_70B,
    "options.hardware": '[{"device": "mi300x", "per_node": 8}]',
}


def test_tiles_say_devices_prices_and_ranges() -> None:
    app = opened("compare.py", model=LLAMA_70B, **{"objective.optimize": "cost"})
    tiles = {tile.label: tile for tile in app.metric}
    assert list(tiles) == [
        "Output",
        "Per user",
        "Per token",
        "First token",
        "Per M tokens",
        "Per hour",
    ]
    assert all(tiles[name].delta.endswith(" likely") for name in list(tiles)[:5])
    hourly = tiles["Per hour"]
    hour, month = (float(re.sub(r"[^0-9.]", "", text)) for text in (hourly.value, hourly.delta))
    assert month == pytest.approx(hour * 730, rel=0.01)
    assert "4 of 8 × H100 SXM5" in words(app)
    assert "-badge[64 in flight]" not in words(app)
    several = opened("compare.py", model=LLAMA_70B, **{"options.loads": "[16,128]"})
    assert "-badge[128 in flight]" in words(several)


def test_several_devices_are_coloured_filtered_and_named() -> None:
    app = opened("compare.py", **TWO_DEVICES, **CROWDED)
    drawn = figure(app, "frontier")
    assert {"H100 SXM5", "MI300X"} <= {trace.get("name") for trace in drawn["data"]}
    assert drawn["layout"]["xaxis"]["title"]["text"] == "Tokens/s that one user sees (tok/s)"
    table = app.dataframe[0]
    assert list(table.proto.column_order)[:3] == ["split", "device", "state"]
    whole = len(table.value)
    app.multiselect(key="filter-device").set_value(["MI300X"]).run()
    assert set(app.dataframe[0].value["device"]) == {"MI300X"}
    assert f"{len(app.dataframe[0].value)} of {whole} splits pass the filters" in words(app)
    app.multiselect(key="filter-state").set_value(["queues"]).run()
    assert "No split passes these filters" in words(app) or (
        app.dataframe[0].value["state"].str.startswith("queues").all()
    )


def test_a_filter_forgets_what_the_plan_has_no_more() -> None:
    app = opened("compare.py", **TWO_DEVICES)
    app.multiselect(key="filter-count").set_value([8]).run()
    app.session_state["request"] = change(app.session_state["request"], {"hardware.per_node": 4})
    app.session_state["edited"] = True
    app.run()
    assert not app.exception
    app.multiselect(key="filter-count").set_value([]).run()
    assert len(app.dataframe[0].value) > 1


def test_what_the_colours_tell_is_chosen_where_several_things_differ() -> None:
    assert not [box for box in opened("compare.py", **TWO_DEVICES).selectbox if "colour" in box.key]
    app = opened("compare.py", **TWO_DEVICES, **{"options.kv_dtypes": '["auto","fp8"]'})
    (box,) = (box for box in app.selectbox if box.key and box.key.startswith("colour-"))
    box.select("kv_dtype").run()
    names = {trace.get("name") for trace in figure(app, "frontier")["data"]}
    assert {"bf16 cache", "fp8 cache"} <= names
    assert "MI300X" not in names


def test_a_split_that_queues_is_marked_and_said() -> None:
    app = opened("compare.py", model=LLAMA_70B, **CROWDED)
    symbols = {
        trace.get("name"): trace["marker"]["symbol"]
        for trace in figure(app, "frontier")["data"]
        if trace.get("marker")
    }
    assert symbols["Starts, queues"] == "hourglass-open"
    assert symbols["May not start"] == "triangle-up-open"
    states = app.dataframe[0].value["state"]
    assert states.str.contains("queues: ").any()
    assert states.str.contains("uncertain: starts with ").any()
    app.toggle(key="filter-front-serving").set_value(True).run()
    assert set(app.dataframe[0].value["state"]) == {"holds"}


def test_the_picture_is_saved_as_chosen_under_the_name_of_the_request() -> None:
    app = opened("compare.py", model=LLAMA_70B)
    app.get_by_key("picture-format").set_value("svg").run()
    config = json.loads(app.get_by_key("frontier").proto.config)
    button = config["toImageButtonOptions"]
    assert button["format"] == "svg"
    assert button["filename"] == "llama-3.1-70b-instruct-8x-h100-sxm-tradeoff"


def test_cells_keep_their_trailing_zeros() -> None:
    app = opened("compare.py", model=LLAMA_70B)
    cells = pa.ipc.open_stream(app.dataframe[0].proto.arrow_data.styler.display_values)
    texts, values = cells.read_pandas(), app.dataframe[0].value
    names = ["usd", "tpot", "memory", "per_gpu"]
    for name in names:
        assert texts[name].tolist() == [significant(value) for value in values[name]]
    cells_shown = texts[names].to_numpy().ravel().tolist()
    assert any(text.endswith("0") and "." in text for text in cells_shown)


@pytest.mark.parametrize(
    ("degrees", "certain"), [("tp1.pp3.dp1.ep1", True), ("tp1.pp2.dp1.ep1", False)]
)
def test_what_would_let_a_refused_split_run_is_one_click(degrees: str, certain: bool) -> None:
    """A split that keeps no limit and may not start is also given what it surely starts with."""
    app = open_view(
        opened(
            "compare.py",
            model=LLAMA_70B,
            **{"objective.limits.tpot_ms": "40", "workload.max_context": "28672"},
        ),
        "Why not?",
    )
    keys = app.dataframe[1].value["key"].tolist()
    why = app.dataframe[1].value["why"].tolist()
    row = next(n for n, key in enumerate(keys) if key.endswith(f".{degrees}"))
    assert "in flight: time per output token" in why[row]
    app.session_state["refused-splits"] = {"selection": {"rows": [row], "columns": [], "cells": []}}
    app.run()
    app.button(key="fix-0").click().run()
    assert float(query_of(app)["objective.limits.tpot_ms"]) > 40
    ranked = app.dataframe[0].value.set_index("key")["state"]
    (state,) = ranked[ranked.index.str.endswith(f".{degrees}")]
    assert state == "holds"
    shorter = int(query_of(app)["workload.max_context"]) < 28_672
    assert (keys[row] in ranked.index and not shorter) == certain


def test_a_device_without_a_price_comes_last_and_is_named() -> None:
    """Beside a priced one: the bar's best has a price, and dollars rise down the table."""
    app = opened(
        "compare.py",
        model=LLAMA_70B,
        **{
            "objective.optimize": "cost",
            "workload.concurrency": "64",
            "options.hardware": json.dumps(
                [{"device": "gb300", "per_node": 4}, {"device": "gh200-144gb", "per_node": 4}]
            ),
        },
    )
    text = words(app)
    assert "No price of GH200 Grace Hopper 144 GB is known: its splits come last." in text
    usd = app.dataframe[0].value["usd"]
    priced = usd[usd.notna()]
    assert usd.isna().any()
    assert usd[: len(priced)].notna().all()
    holding = priced[app.dataframe[0].value["state"] == "holds"].tolist()
    assert 1 < len(holding) < len(priced)  # what queues comes after what holds the load
    assert holding == priced[: len(holding)].tolist() == sorted(holding)
    assert re.search(r"\*\* · \$[\d.]+ per M tokens", text)


def test_alternatives_stand_beside_the_tiles_and_are_one_click() -> None:
    app = opened(
        "compare.py",
        model=LLAMA_70B,
        **{"objective.optimize": "cost", "objective.limits.tpot_ms": "40"},
    )
    labels = {
        button.key: button.label.replace("\\", "")
        for button in app.button
        if (button.key or "").startswith("alternative-")
    }
    assert 1 <= len(labels) <= 5
    key = next(key for key, label in labels.items() if label.startswith("fp8 weights"))
    assert re.fullmatch(r"fp8 weights: \$[\d.]+, −\d+ %, [\d.]+% accuracy", labels[key])
    figure_then = labels[key].split(": ")[1].split(",")[0]
    app.button(key=key).click().run()
    assert query_of(app)["options.weight_dtypes"] == "fp8"
    assert f"{figure_then} per M tokens" in words(app)


def test_formats_of_a_split_are_drawn_against_the_accuracy_they_lose() -> None:
    app = opened(
        "compare.py",
        model="Qwen/Qwen3-8B",
        **{
            "hardware.per_node": "1",
            "options.weight_dtypes": "auto,fp8,int4",
            "objective.limits.accuracy_recovery": "0.5",
        },
    )
    open_view(app, "Accuracy")
    lines = figure(app, "accuracy-cost")["data"]
    assert {"bf16", "fp8", "int4"} <= {text for line in lines for text in line["text"]}
    assert figure(app, "accuracy-axes")["layout"]["coloraxis"]["colorbar"]
    assert "Expected accuracy, mean of benchmarks" in words(app)
    assert "of the accuracy" in words(app)  # the bar names the figure that is limited


def test_the_safe_split_is_one_click_and_the_best_one_click_back() -> None:
    app = opened(
        "compare.py",
        model=LLAMA_70B,
        **{
            "objective.optimize": "cost",
            "objective.limits.tpot_ms": "35",
            "workload.concurrency": "64",
        },
    )
    assert "may miss the limit: " in words(app)
    safe = app.button(key="safe")
    assert re.fullmatch(r"tp \d.* keeps it with (\d+|>99) %: use it", safe.label.replace("\\", ""))
    safe.click().run()
    assert "candidate.tp" in query_of(app)
    assert "Chosen: tp" in words(app)
    app.button(key="bar-best").click().run()
    assert "candidate.tp" not in query_of(app)
    app.button(key="sure").click().run()
    assert query_of(app)["objective.confidence"] == "0.8"
    assert "keeps the limit: " in words(app)
