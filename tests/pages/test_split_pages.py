"""The plan with its layouts, and the page that ships one; ``test_sessions.py`` has the edits."""

from __future__ import annotations

import json
import re

import pyarrow as pa
import pytest
from streamlit.testing.v1 import AppTest

from recipe_core.base.units import significant
from recipe_core.engines.spec import engine, engine_names
from recipe_core.plans.rank import NO_DIFFERENCE
from recipe_core.views.charts.views import VIEWS, View
from tests.fixtures.opening import (
    LLAMA_70B,
    TABS,
    TP8,
    codes,
    edited,
    figure,
    open_lens,
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
CROWDED = f"plan.py?model={LLAMA_70B}&workload.concurrency=512&workload.max_context=24576"
"""A load that some layouts queue under; others may not start: at TP 2 the cache of one such request
of Llama-3.1-70B just fits on an H100.
"""
PIPELINED = "plan.py?workload.kind=training&workload.tokens=1e10&hardware.nodes=4"
MI300X = '[{"device":"mi300x","per_node":8}]'


STATES = r"(\d+) hold the load, (\d+) start and queue, (\d+) may not start"
"""How many layouts of a plan are in which state, in the words of the chart's description."""


def compared(link: str = "", **query: str) -> AppTest:
    """The page for Llama-3.1-70B."""
    return opened(f"plan.py?{link}", model=LLAMA_70B, **query)


TRADEOFF = {"tradeoff-part": True}
"""Opens the chart of any two figures."""


def user_axis(app: AppTest) -> bool:
    """Whether the tradeoff is drawn over what one user sees."""
    title = figure(app, "tradeoff")["layout"]["xaxis"]["title"]["text"]
    return bool(title == "Interactivity (tok/s)")


def names(app: AppTest) -> set[str]:
    """What the chart of the tradeoff has in its legend."""
    return {trace.get("name") for trace in figure(app, "tradeoff")["data"]}


def test_nothing_fits_names_the_shortfall_and_the_change_is_one_click() -> None:
    app = compared("hardware.per_node=1")
    assert "GiB short" in app.error[0].value
    shapes = figure(shown(app, lens="why"), "memory")["layout"]["shapes"]
    assert len(shapes) == 2  # usable and capacity, drawn especially now
    assert not press(app, "change-0").error
    assert app.button(key="ship")


@pytest.mark.nightly
def test_pools_are_pinned_drawn_and_taken_like_other_splits() -> None:
    pools = "options.disaggregated=true"
    keys = compared(pools).dataframe[0].value["key"]
    key = next(key for key in keys if ".pre" in key)
    app = shown(compared(pools, pins=key), **TRADEOFF)
    assert "Pinned" in names(app)
    assert "prefill on" in words(app)
    press(app, f"use-{key}")
    app.switch_page("ship.py").run()
    degree = key.split(".pre")[1].split(".")[1].removeprefix("tp")
    assert query_of(app)["candidate.prefill.tp"] == degree
    assert app.selectbox(key="_split").value == key
    assert "prefill on" in app.table[0].value.to_string()
    assert not app.warning


def test_pins_of_a_link_are_drawn_taken_and_removable() -> None:
    app = shown(opened("plan.py?objective.limits.tpot_ms=40", pins=TP8), **TRADEOFF)
    assert "Pinned" in names(app)
    assert figure(app, "tradeoff")["layout"]["shapes"][0]["x0"] == 40
    assert "pins" not in query_of(press(app, f"unpin-{TP8}"))
    app = opened("plan.py", pins=TP8)
    assert query_of(press(app, f"use-{TP8}"))["candidate.tp"] == "8"
    assert app.session_state["page"] == "plan.py"  # whose card is then on it
    assert "**TP 8** ·" in words(app)
    assert press(app, "ship").selectbox(key="_split").value == TP8


def test_a_pin_says_how_likely_the_best_split_measures_better_and_is_looked_at() -> None:
    app = compared(pins=TP4)
    found = re.search(r"Probability that (.+) measures better: (\d+) ?%", words(app))
    assert found
    assert f"**{found[1]}**" in words(app)
    assert 50 <= int(found[2]) < 99  # the best of two close splits, by estimates that may err
    best = open_view(app, "Arithmetic").table[0].value.to_string()
    assert put(app, "focus", TP4).table[0].value.to_string() != best
    assert not [code.value for code in app.code if "vllm serve" in code.value], "closed"
    app = shown(app, **{"card-command": True})
    (command,) = (code.value for code in app.code if "vllm serve" in code.value)
    assert "--tensor-parallel-size 8" in command  # of the card, whatever is looked at
    press(open_lens(app, "layouts"), f"use-{TP4}")
    (command,) = (code.value for code in app.code if "vllm serve" in code.value)
    assert f"vllm serve {LLAMA_70B}" in command
    assert "--tensor-parallel-size 4" in command


def test_the_table_lists_every_split_that_fits_and_the_refused_ones_say_why() -> None:
    app = shown(opened(CROWDED), **TRADEOFF)
    traces = {trace.get("name"): trace for trace in figure(app, "tradeoff")["data"]}
    assert traces["Starts, queues"]["marker"]["symbol"] == "hourglass-open"
    assert traces["May not start"]["marker"]["symbol"] == "triangle-up-open"
    ranked = app.dataframe[0].value
    assert ranked["state"].str.contains("queues: ").any()
    assert ranked["state"].str.contains("uncertain: starts with ").any()
    refused = shown(app, **{"why-not": True}).dataframe[1].value
    possible = [why for why in refused["why"] if "divisible" not in why and "evenly" not in why]
    counts = re.search(STATES, app.get_by_key("tradeoff").proto.alt)
    assert counts
    assert sum(map(int, counts.groups())) == len(ranked)
    assert len(possible) > 1
    assert (refused["why"].str.len() > 10).all()
    assert set(put(app, "filter-front-serving", True).dataframe[0].value["state"]) == {"holds"}


def assert_drawn(app: AppTest, kind: str) -> None:
    """Every view of a kind of split draws a chart, a table or a note."""
    for view in VIEWS.values():
        if kind in view.kinds:
            open_view(app, view.title)
            charts = [chart.proto.id for chart in app.get("plotly_chart")]
            noted = "one device count only" in words(app)
            assert any("frontier" not in chart for chart in charts) or app.table or noted, view.name


def test_every_registered_view_of_a_serving_split_draws(registered_chart: View) -> None:
    app = compared(pins=f"{TP8},{TP4}")
    assert_drawn(app, "serving")
    assert figure(open_view(app, registered_chart.title), "devices")["data"][0]["y"]
    assert "Devices of a layout" in words(app)


@pytest.mark.nightly
def test_every_registered_view_of_a_training_split_draws(registered_chart: View) -> None:
    table = opened(PIPELINED, model=LLAMA_70B).dataframe[0].value
    key = next(key for key in table["key"] if ".pp1." not in key)
    app = shown(opened(PIPELINED, model=LLAMA_70B, pins=key), lens="why")
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
    chart = put(app, "picture-format-frontier", "svg").get_by_key("frontier").proto
    button = json.loads(chart.config)["toImageButtonOptions"]
    assert button["format"] == "svg"
    assert button["filename"] == "llama-3.1-70b-instruct-8x-h100-sxm-frontier"
    shown(app, **TRADEOFF)
    assert user_axis(put(app, "axis-horizontal-serving", "interactivity"))
    table = put(app, "columns-serving", ["joules", "tpot"]).dataframe[0].proto
    assert "joules" in json.loads(table.columns)
    assert list(table.column_order) == ["split", "state", "joules", "tpot", "front"]
    order = list(put(app, "column-ranges", True).dataframe[0].proto.column_order)
    assert order[2:] == ["joules", "joules_likely", "tpot", "tpot_likely", "front"]
    assert app.dataframe[0].value["tpot_likely"].str.contains(" to ").all()


def test_the_card_says_devices_money_figures_and_ranges() -> None:
    app = compared("objective.optimize=cost")
    tiles = {tile.label: tile for tile in app.metric}
    assert len(tiles) == 3
    assert "Per M tokens" in tiles
    assert all(tile.delta.endswith(" likely") for tile in tiles.values())
    where = app.header[0].value.replace("\\", "")
    money = re.fullmatch(r"4 of 8 × H100 SXM5 · \$([\d,]+) a month†?", where)
    assert money
    row = app.dataframe[0].value.iloc[0]
    served = row["output"] * 3600 * 730 / 1e6  # million tokens a month
    assert float(money[1].replace(",", "")) == pytest.approx(row["usd"] * served, rel=0.01)
    limited = compared("objective.limits.tpot_ms=40")
    assert any("limit 40" in tile.delta for tile in limited.metric)


def test_several_devices_are_coloured_filtered_and_named() -> None:
    app = shown(opened(CROWDED, **{"options.hardware": MI300X}), **TRADEOFF)
    assert {"H100 SXM5", "MI300X"} <= names(app)
    assert user_axis(app)
    table = app.dataframe[0]
    assert list(table.proto.column_order)[:3] == ["split", "device", "state"]
    whole = len(table.value)
    assert set(put(app, "filter-device", ["MI300X"]).dataframe[0].value["device"]) == {"MI300X"}
    assert f"{len(app.dataframe[0].value)} of {whole} layouts pass the filters" in words(app)
    put(app, "filter-state", ["queues"])
    assert "No layout passes these filters" in words(app) or (
        app.dataframe[0].value["state"].str.startswith("queues").all()
    )


@pytest.mark.nightly
def test_filters_and_colours_follow_what_differs() -> None:
    """Filters forget what the plan has no more; colours are chosen where several things differ."""
    app = shown(compared(**{"options.hardware": MI300X}), **TRADEOFF)
    assert not [box for box in app.selectbox if "colour" in box.key]
    edited(put(app, "filter-count", [8]), {"hardware.per_node": 4})
    assert len(put(app, "filter-count", []).dataframe[0].value) > 1
    app = compared('options.kv_dtypes=["auto","fp8"]', **{"options.hardware": MI300X})
    shown(app, **TRADEOFF)
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
    table = shown(app, **{"why-not": True}).dataframe[1].value
    keys = table["key"].tolist()
    row = next(n for n, key in enumerate(keys) if key.endswith(f".{degrees}"))
    assert re.search(r"at (one user|\d+ users at once): time per output token", table["why"][row])
    shown(app, **{"refused-splits": {"selection": {"rows": [row], "columns": [], "cells": []}}})
    assert float(query_of(press(app, "fix-0"))["objective.limits.tpot_ms"]) > 40
    ranked = app.dataframe[0].value.set_index("key")
    (split,) = ranked.index[ranked.index.str.endswith(f".{degrees}")]
    # where every split holds its load, the table has no column of states
    assert "state" not in ranked or ranked["state"][split] == "holds"
    shorter = int(query_of(app)["workload.max_context"]) < 28_672
    assert (keys[row] in ranked.index and not shorter) == certain


def test_runners_up_stand_below_the_card_and_are_one_click() -> None:
    app = compared("objective.optimize=cost&objective.limits.tpot_ms=40")
    labels = [label.replace("\\", "") for label in runners_up(app)]
    assert 1 <= len(labels) <= 5
    label = next(label for label in labels if label.startswith("fp8 weights"))
    assert re.fullmatch(r"fp8 weights: \$[\d.]+, −\d+ %, [\d.]+ % accuracy", label)
    assert label in words(app).replace("\\", "")  # in sight, beside the list
    figure_then = label.split(": ")[1].split(",")[0]
    taken = put(app, "_runner-up", next(each for each in runners_up(app) if "fp8 weights" in each))
    assert query_of(taken)["options.weight_dtypes"] == "fp8"
    assert figure_then in [tile.value for tile in taken.metric]
    assert taken.selectbox(key="_runner-up").value is None


def runners_up(app: AppTest) -> list[str]:
    return [str(label) for label in app.selectbox(key="_runner-up").options]


def test_another_engine_is_a_runner_up_and_a_tie_is_said_in_place_of_a_difference() -> None:
    app = compared("hardware.device=mi300x")
    titles = tuple(engine(name).title for name in engine_names())
    (other,) = (label for label in runners_up(app) if label.startswith(titles))
    assert other.endswith(f", {NO_DIFFERENCE}")
    query = query_of(put(app, "_runner-up", other))
    assert other.startswith(engine(query["options.engines"]).title)
    assert f"· {engine(query['options.engines']).title} ·" in words(app)
    both = compared("options.engines=vllm,tensorrt-llm")
    assert re.search(r"\d+ more ties? with the first: (it|each) measures better", words(both))


def test_formats_of_a_split_are_drawn_against_the_accuracy_they_lose() -> None:
    link = "plan.py?model=Qwen/Qwen3-8B&hardware.per_node=1&options.weight_dtypes=auto,fp8,int4"
    app = open_view(opened(f"{link}&objective.limits.accuracy_recovery=0.5"), "Accuracy")
    notes = figure(app, "accuracy-cost")["layout"]["annotations"]
    assert {"bf16", "fp8", "int4"} <= {note.get("text", "").strip("←→↑↓ ") for note in notes}
    assert figure(app, "accuracy-axes")["layout"]["coloraxis"]["colorbar"]
    assert "Expected accuracy, mean of benchmarks" in words(app)
    assert any("limit 50 %" in tile.delta for tile in app.metric)  # the figure that is limited


# The recipe

TRAINING = "workload.kind=training&workload.tokens=1e9"
BY_DAY, *BY_NIGHT = table("sessions", "recipes")


def copied(app: AppTest) -> str:
    return "\n".join(codes(app))


def assert_built(app: AppTest) -> None:
    assert not app.error
    assert app.get_by_key("download")


def test_the_recipe_can_be_another_split() -> None:
    app = opened("ship.py", pins=TP8)
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


def test_the_readme_of_a_bundle_is_of_the_target_that_is_chosen() -> None:
    app = opened("ship.py", model="Qwen/Qwen3-8B")
    by_hand = readme(app)
    on_slurm = readme(put(app, "target", "slurm"))
    assert not app.error
    assert "sbatch" in on_slurm
    assert "sbatch" not in by_hand.split("## Where else it runs")[0]
    assert readme(put(app, "target", "by hand")) == by_hand


def readme(app: AppTest) -> str:
    """What the page shows of the README that it gives away."""
    shown(app, tabs="Files")
    put(app, "_file", "README.md")
    return next(text for text in codes(app) if "## Expected" in text)


@pytest.mark.parametrize(
    "method", ["lora", *(pytest.param(m, marks=pytest.mark.nightly) for m in ("qlora", "dpo"))]
)
def test_a_method_chosen_page_by_page_ends_in_a_download(method: str) -> None:
    """From serving, through every page, with nothing else chosen than the method."""
    app = put(opened("model.py"), "_workload.kind", "training")
    app.switch_page("traffic.py").run()
    put(app, "_workload.method", method)
    for page in ("hardware.py", "plan.py", "ship.py"):
        app.switch_page(page)
        assert not shown(app).error, page
    assert_built(app)
    assert re.search("torchrun|--main_process_port", copied(app))


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
    rows = shown(opened("ship.py?hardware.device=mi300x"), tabs="Option provenance")
    table = rows.dataframe[0].value.set_index("Option")["Set by"]
    assert table["--tensor-parallel-size"] == "objective"
    assert table["VLLM_ROCM_USE_AITER"] == "architecture"
    app = shown(opened("ship.py", model=LLAMA_70B), tabs="Other engines")
    assert "(this recipe)" in app.table[-2].value["Engine"].iloc[0].replace("\\", "")
    assert query_of(press(app, "use-sglang"))["candidate.engine"] == "sglang"
    assert "sglang" in copied(shown(app, tabs="Decision"))
    assert not app.warning


def test_files_are_found_by_what_they_hold() -> None:
    app = shown(opened("ship.py"), tabs="Files")
    assert app.code[-1].value.startswith("# llama-3.1-8b")
    put(app, "find", "sbatch job-name")
    assert app.radio(key="_file").options == ["targets/slurm/job.sbatch"]
    assert app.code[-1].value.startswith("#!/bin/bash")
    put(app, "find", "")
    assert put(app, "_file", "launch.py").code[-1].value.startswith("#!/usr/bin/env python3")
    assert "No file matches" in words(put(app, "find", "recipe zebrawood"))


@pytest.mark.nightly
def test_a_training_split_is_taken_and_packed() -> None:
    link = f"plan.py?{TRAINING}"
    key = opened(link).dataframe[0].value["key"][1]
    app = opened(link, pins=key)
    press(press(app, f"use-{key}"), "ship")
    assert app.selectbox(key="_split").value == key
    assert_built(app)
    assert "--training.local-batch-size" in copied(app)
    assert "candidate.tp" not in query_of(put(app, "_split", ""))


def test_the_best_of_a_chosen_framework_stays_with_it() -> None:
    app = opened(f"plan.py?{TRAINING}&candidate.engine=torch&workload.sequence_length=1024")
    second = app.dataframe[0].value["key"][1]
    app.switch_page("ship.py").run()
    assert query_of(put(app, "_split", second))["candidate.micro_batch"]
    assert query_of(put(app, "_split", ""))["candidate.engine"] == "torch"
    assert "candidate.micro_batch" not in query_of(app)
