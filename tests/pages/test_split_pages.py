"""The pages that compare splits and pack one; ``test_sessions.py`` has what edits do."""

from __future__ import annotations

import json
import re

import pyarrow as pa
import pytest
from streamlit.testing.v1 import AppTest

from recipe_core.base.units import significant
from recipe_core.views.charts.views import VIEWS, View
from tests.fixtures.opening import (
    LLAMA_70B,
    PAGES,
    TABS,
    TP8,
    codes,
    edited,
    figure,
    open_view,
    opened,
    press,
    put,
    query_of,
    shown,
    words,
)
from tests.fixtures.rows import table

TP4 = "vllm.bf16.bf16.tp4.pp1.dp2.ep1"
CROWDED = f"compare.py?model={LLAMA_70B}&workload.concurrency=512&workload.max_context=24576"
"""A load that some splits queue under; others may not start: at tp 2 the cache of one such request
of Llama-3.1-70B just fits on an H100.
"""
PIPELINED = "compare.py?workload.kind=training&workload.tokens=1e10&hardware.nodes=4"
MI300X = '[{"device":"mi300x","per_node":8}]'


def compared(link: str = "", **query: str) -> AppTest:
    """The page for Llama-3.1-70B."""
    return opened(f"compare.py?{link}", model=LLAMA_70B, **query)


def user_axis(app: AppTest) -> bool:
    """Whether the tradeoff is drawn over what one user sees."""
    title = figure(app, "frontier")["layout"]["xaxis"]["title"]["text"]
    return bool(title == "Interactivity (tok/s)")


def names(app: AppTest) -> set[str]:
    """What the chart of the tradeoff has in its legend."""
    return {trace.get("name") for trace in figure(app, "frontier")["data"]}


def test_nothing_fits_names_the_shortfall_and_the_change_is_one_click() -> None:
    app = compared("hardware.per_node=1")
    assert "GiB short" in app.error[0].value
    shapes = figure(app, "memory")["layout"]["shapes"]
    assert len(shapes) == 2  # usable and capacity, drawn especially now
    assert press(app, "change-0").success or app.warning  # the best may queue
    assert not app.error


@pytest.mark.nightly
def test_pools_are_pinned_drawn_and_taken_like_other_splits() -> None:
    pools = "options.disaggregated=true"
    keys = compared(pools).dataframe[0].value["key"]
    key = next(key for key in keys if ".pre" in key)
    app = compared(pools, pins=key)
    assert "Pinned" in names(app)
    assert "prefill on" in words(app)
    press(app, f"use-{key}")
    degree = key.split(".pre")[1].split(".")[1].removeprefix("tp")
    assert query_of(app)["candidate.prefill.tp"] == degree
    assert app.selectbox(key="_split").value == key
    assert "prefill on" in app.table[0].value.to_string()
    assert not app.warning


def test_pins_of_a_link_are_drawn_taken_and_removable() -> None:
    app = opened("compare.py?objective.limits.tpot_ms=40", pins=TP8)
    assert "Pinned" in names(app)
    assert figure(app, "frontier")["layout"]["shapes"][0]["x0"] == 40
    assert "pins" not in query_of(press(app, f"unpin-{TP8}"))
    app = opened("compare.py", pins=TP8)
    assert press(app, f"use-{TP8}").title[0].value == PAGES["recipe.py"]
    assert (query_of(app)["candidate.tp"], app.selectbox(key="_split").value) == ("8", TP8)


def test_a_pin_says_how_likely_the_best_split_measures_better_and_is_looked_at() -> None:
    app = compared(pins=TP4)
    found = re.search(r"Probability that (.+) measures better: (\d+)%", words(app))
    assert found
    assert found[1] in app.success[0].value
    assert 50 <= int(found[2]) < 99  # the best of two close splits, by estimates that may err
    best = open_view(app, "Arithmetic").table[0].value.to_string()
    assert put(app, "focus", TP4).table[0].value.to_string() != best
    (command,) = (code.value for code in app.code if "vllm serve" in code.value)
    assert f"vllm serve {LLAMA_70B}" in command
    assert "--tensor-parallel-size 4" in command


def test_the_table_lists_every_split_that_fits_and_the_refused_ones_say_why() -> None:
    app = opened(CROWDED)
    traces = {trace.get("name"): trace for trace in figure(app, "frontier")["data"]}
    assert traces["Starts, queues"]["marker"]["symbol"] == "hourglass-open"
    assert traces["May not start"]["marker"]["symbol"] == "triangle-up-open"
    ranked = app.dataframe[0].value
    assert ranked["state"].str.contains("queues: ").any()
    assert ranked["state"].str.contains("uncertain: starts with ").any()
    open_view(app, "Why not?")
    refused = app.dataframe[1].value
    possible = [why for why in refused["why"] if "divisible" not in why and "evenly" not in why]
    line = r"(\d+) of (\d+) legal splits hold the load · (\d+) start[^·]* · (\d+) may not start"
    counts = re.search(line, words(app))
    assert counts
    holding, legal, queueing, doubtful = map(int, counts.groups())
    assert (holding + queueing + doubtful, legal) == (len(ranked), len(ranked) + len(possible))
    assert (refused["why"].str.len() > 10).all()
    assert set(put(app, "filter-front-serving", True).dataframe[0].value["state"]) == {"holds"}


def assert_drawn(app: AppTest, kind: str) -> None:
    """Every view of a kind of split draws a chart, a table or a note."""
    for view in VIEWS.values():
        if kind in view.kinds:
            open_view(app, view.title)
            charts = [chart.proto.id for chart in app.get("plotly_chart")]
            assert any("frontier" not in chart for chart in charts) or app.table, view.name


def test_every_registered_view_of_a_serving_split_draws(registered_chart: View) -> None:
    app = compared(pins=f"{TP8},{TP4}")
    assert_drawn(app, "serving")
    assert figure(open_view(app, registered_chart.title), "devices")["data"][0]["y"]
    assert "Devices of a split" in words(app)


@pytest.mark.nightly
def test_every_registered_view_of_a_training_split_draws(registered_chart: View) -> None:
    table = opened(PIPELINED, model=LLAMA_70B).dataframe[0].value
    key = next(key for key in table["key"] if ".pp1." not in key)
    app = opened(PIPELINED, model=LLAMA_70B, pins=key)
    app.selectbox(key="focus").select(key)
    assert_drawn(app, "training")
    assert figure(open_view(app, registered_chart.title), "devices")["data"][0]["y"]


def test_axes_columns_and_the_picture_are_chosen() -> None:
    app = compared()
    cells = pa.ipc.open_stream(app.dataframe[0].proto.arrow_data.styler.display_values)
    texts, values = cells.read_pandas(), app.dataframe[0].value
    columns = ["usd", "tpot", "memory", "per_gpu"]
    for column in columns:
        assert texts[column].tolist() == [significant(value) for value in values[column]]
    assert any(text.endswith("0") and "." in text for text in texts[columns].to_numpy().ravel())
    chart = put(app, "picture-format", "svg").get_by_key("frontier").proto
    button = json.loads(chart.config)["toImageButtonOptions"]
    assert button["format"] == "svg"
    assert button["filename"] == "llama-3.1-70b-instruct-8x-h100-sxm-tradeoff"
    assert user_axis(put(app, "axis-horizontal-serving", "interactivity"))
    table = put(app, "columns-serving", ["joules", "tpot"]).dataframe[0].proto
    assert "joules" in json.loads(table.columns)
    assert list(table.column_order) == ["split", "state", "joules", "tpot", "front"]
    order = list(put(app, "column-ranges", True).dataframe[0].proto.column_order)
    assert order[2:] == ["joules", "joules_likely", "tpot", "tpot_likely", "front"]
    assert app.dataframe[0].value["tpot_likely"].str.contains(" to ").all()


def test_tiles_say_devices_prices_and_ranges() -> None:
    app = compared("objective.optimize=cost")
    tiles = {tile.label: tile for tile in app.metric}
    *ranged, hourly = tiles
    assert ranged == ["Output", "Per user", "Per token", "First token", "Per M tokens"]
    assert hourly == "Per hour"
    assert all(tiles[name].delta.endswith(" likely") for name in ranged)
    texts = tiles[hourly].value, tiles[hourly].delta
    hour, month = (float(re.sub(r"[^0-9.]", "", text)) for text in texts)
    assert month == pytest.approx(hour * 730, rel=0.01)
    assert "4 of 8 × H100 SXM5" in words(app)
    assert "-badge[64 in flight]" not in words(app)
    assert "-badge[128 in flight]" in words(compared("options.loads=[16,128]"))


def test_several_devices_are_coloured_filtered_and_named() -> None:
    app = opened(CROWDED, **{"options.hardware": MI300X})
    assert {"H100 SXM5", "MI300X"} <= names(app)
    assert user_axis(app)
    table = app.dataframe[0]
    assert list(table.proto.column_order)[:3] == ["split", "device", "state"]
    whole = len(table.value)
    assert set(put(app, "filter-device", ["MI300X"]).dataframe[0].value["device"]) == {"MI300X"}
    assert f"{len(app.dataframe[0].value)} of {whole} splits pass the filters" in words(app)
    put(app, "filter-state", ["queues"])
    assert "No split passes these filters" in words(app) or (
        app.dataframe[0].value["state"].str.startswith("queues").all()
    )


@pytest.mark.nightly
def test_filters_and_colours_follow_what_differs() -> None:
    """Filters forget what the plan has no more; colours are chosen where several things differ."""
    app = compared(**{"options.hardware": MI300X})
    assert not [box for box in app.selectbox if "colour" in box.key]
    edited(put(app, "filter-count", [8]), {"hardware.per_node": 4})
    assert len(put(app, "filter-count", []).dataframe[0].value) > 1
    app = compared('options.kv_dtypes=["auto","fp8"]', **{"options.hardware": MI300X})
    (box,) = (box for box in app.selectbox if box.key and box.key.startswith("colour-"))
    box.select("kv_dtype").run()
    assert {"bf16 cache", "fp8 cache"} <= names(app)
    assert "MI300X" not in names(app)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("degrees", "certain"), [("tp1.pp3.dp1.ep1", True), ("tp1.pp2.dp1.ep1", False)]
)
def test_what_would_let_a_refused_split_run_is_one_click(degrees: str, certain: bool) -> None:
    """A split that keeps no limit and may not start is also given what it surely starts with."""
    app = compared("objective.limits.tpot_ms=40&workload.max_context=28672")
    table = open_view(app, "Why not?").dataframe[1].value
    keys = table["key"].tolist()
    row = next(n for n, key in enumerate(keys) if key.endswith(f".{degrees}"))
    assert "in flight: time per output token" in table["why"][row]
    shown(app, **{"refused-splits": {"selection": {"rows": [row], "columns": [], "cells": []}}})
    assert float(query_of(press(app, "fix-0"))["objective.limits.tpot_ms"]) > 40
    ranked = app.dataframe[0].value.set_index("key")
    (split,) = ranked.index[ranked.index.str.endswith(f".{degrees}")]
    # where every split holds its load, the table has no column of states
    assert "state" not in ranked or ranked["state"][split] == "holds"
    shorter = int(query_of(app)["workload.max_context"]) < 28_672
    assert (keys[row] in ranked.index and not shorter) == certain


def test_alternatives_stand_beside_the_tiles_and_are_one_click() -> None:
    app = compared("objective.optimize=cost&objective.limits.tpot_ms=40")
    buttons = [button for button in app.button if (button.key or "").startswith("alternative-")]
    labels = {button.key: button.label.replace("\\", "") for button in buttons}
    assert 1 <= len(labels) <= 5
    key = next(key for key, label in labels.items() if label.startswith("fp8 weights"))
    assert re.fullmatch(r"fp8 weights: \$[\d.]+, −\d+ %, [\d.]+% accuracy", labels[key])
    figure_then = labels[key].split(": ")[1].split(",")[0]
    assert query_of(press(app, key))["options.weight_dtypes"] == "fp8"
    assert f"{figure_then} per million tokens" in words(app)


def test_formats_of_a_split_are_drawn_against_the_accuracy_they_lose() -> None:
    link = "compare.py?model=Qwen/Qwen3-8B&hardware.per_node=1&options.weight_dtypes=auto,fp8,int4"
    app = open_view(opened(f"{link}&objective.limits.accuracy_recovery=0.5"), "Accuracy")
    notes = figure(app, "accuracy-cost")["layout"]["annotations"]
    assert {"bf16", "fp8", "int4"} <= {note["text"].strip("←→↑↓ ") for note in notes}
    assert figure(app, "accuracy-axes")["layout"]["coloraxis"]["colorbar"]
    assert "Expected accuracy, mean of benchmarks" in words(app)
    assert "of the accuracy" in words(app)  # the bar names the figure that is limited


# The recipe

TRAINING = "workload.kind=training&workload.tokens=1e9"
BY_DAY, *BY_NIGHT = table("sessions", "recipes")


def copied(app: AppTest) -> str:
    return "\n".join(codes(app))


def assert_built(app: AppTest) -> None:
    assert not app.error
    assert app.get_by_key("download")


def test_the_recipe_can_be_another_split() -> None:
    app = opened("recipe.py", pins=TP8)
    (expected,) = [table.value for table in app.table if "Likely range" in table.value.columns]
    assert all(expected["Basis"])
    assert sum(bool(band) for band in expected["Likely range"]) >= 5
    assert app.selectbox(key="_split").value == ""
    assert "--tensor-parallel-size" in copied(app)
    assert query_of(put(app, "_split", TP8))["candidate.tp"] == "8"
    assert "--tensor-parallel-size 8" in copied(app)
    snippets = copied(shown(app, tabs="API and CLI"))
    for text in (
        *("tp: 8", '"method": "tools/call"', "/api/v1/build", "urllib.request"),
        *("recipe build request.yaml", "recipe check"),
    ):
        assert text in snippets


@pytest.mark.parametrize(
    "method", ["lora", *(pytest.param(m, marks=pytest.mark.nightly) for m in ("qlora", "dpo"))]
)
def test_a_method_chosen_page_by_page_ends_in_a_download(method: str) -> None:
    """From serving, through every page, with nothing else chosen than the method."""
    app = put(opened("model.py"), "_workload.kind", "training")
    app.switch_page("objective.py").run()
    put(app, "_workload.method", method)
    for page in ("hardware.py", "compare.py", "recipe.py"):
        app.switch_page(page)
        assert not shown(app).error, page
    assert_built(app)
    assert "torchrun" in copied(app)


@pytest.mark.parametrize(
    "link", [BY_DAY, *(pytest.param(link, marks=pytest.mark.nightly) for link in BY_NIGHT)]
)
def test_every_tab_of_every_kind_of_recipe_draws(link: str) -> None:
    app = opened(link)
    for tab in TABS:
        shown(app, tabs=tab)
        assert [each.label for each in app.tabs if each.label in TABS] == TABS
        assert_built(app)
        assert app.get_by_key("report")


@pytest.mark.nightly
def test_options_say_who_set_them_and_another_engine_takes_the_same_split() -> None:
    rows = shown(opened("recipe.py?hardware.device=mi300x"), tabs="Option provenance")
    table = rows.dataframe[0].value.set_index("Option")["Set by"]
    assert table["--tensor-parallel-size"] == "objective"
    assert table["VLLM_ROCM_USE_AITER"] == "architecture"
    app = shown(opened("recipe.py", model=LLAMA_70B), tabs="Other engines")
    assert "(this recipe)" in app.table[-2].value["Engine"].iloc[0].replace("\\", "")
    assert query_of(press(app, "use-sglang"))["candidate.engine"] == "sglang"
    assert "sglang" in copied(shown(app, tabs="Deploy"))
    assert not app.warning


def test_files_are_found_by_what_they_hold() -> None:
    app = shown(opened("recipe.py"), tabs="Files")
    assert app.code[0].value.startswith("# llama-3.1-8b")
    put(app, "find", "sbatch job-name")
    assert app.radio(key="_file").options == ["targets/slurm/job.sbatch"]
    assert app.code[0].value.startswith("#!/bin/bash")
    put(app, "find", "")
    assert put(app, "_file", "launch.py").code[0].value.startswith("#!/usr/bin/env python3")
    assert "No file matches" in words(put(app, "find", "recipe zebrawood"))


@pytest.mark.nightly
def test_a_training_split_is_taken_and_packed() -> None:
    link = f"compare.py?{TRAINING}"
    key = opened(link).dataframe[0].value["key"][1]
    app = opened(link, pins=key)
    assert press(app, f"use-{key}").title[0].value == PAGES["recipe.py"]
    assert app.selectbox(key="_split").value == key
    assert_built(app)
    assert "--training.local-batch-size" in copied(app)
    assert "candidate.tp" not in query_of(put(app, "_split", ""))


def test_the_best_of_a_chosen_framework_stays_with_it() -> None:
    app = opened(f"compare.py?{TRAINING}&candidate.engine=torch&workload.sequence_length=1024")
    second = app.dataframe[0].value["key"][1]
    app.switch_page("recipe.py").run()
    assert query_of(put(app, "_split", second))["candidate.micro_batch"]
    assert query_of(put(app, "_split", ""))["candidate.engine"] == "torch"
    assert "candidate.micro_batch" not in query_of(app)
