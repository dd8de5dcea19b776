"""Every page and its states, run as Streamlit runs them but without a browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from recipe_core.model.catalog import catalog_entry
from recipe_core.resources import root
from recipe_core.serve import FOLDERS

PAGES = {
    "model.py": "What do you want to run?",
    "hardware.py": "Where will it run?",
    "objective.py": "What matters?",
    "compare.py": "Which split?",
    "recipe.py": "Take it",
}
TP8 = "vllm.bf16.bf16.tp8.pp1.dp1.ep1"
LLAMA_70B = "meta-llama/Llama-3.1-70B-Instruct"


def opened(page: str = "model.py", **query: str) -> AppTest:
    app = AppTest.from_file(str(root("pages") / "_entry.py"), default_timeout=30)
    app.query_params.update(query)
    app.run()
    if page != "model.py":
        app.switch_page(page).run()
    assert not app.exception, [error.value for error in app.exception]
    return app


def said(app: AppTest) -> str:
    """Everything the page says in words."""
    kinds = (app.title, app.markdown, app.caption, app.success, app.warning, app.error, app.info)
    return "\n".join(str(element.value).replace("\\", "") for kind in kinds for element in kind)


def view(app: AppTest, name: str) -> AppTest:
    """Open a tab of the comparison; the others are not computed."""
    app.session_state["views"] = name
    app.run()
    assert not app.exception, [error.value for error in app.exception]
    return app


def figure(app: AppTest, key: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(app.get_by_key(key).proto.spec)
    return found


def query_of(app: AppTest) -> dict[str, str]:
    return {name: value[0] if isinstance(value, list) else value for name, value in app.query_params.items()}


@pytest.mark.parametrize("page", PAGES)
def test_every_page_asks_its_question_and_gives_a_verdict(page: str) -> None:
    app = opened(page)
    assert app.title[0].value == PAGES[page]
    assert "splits fit." in app.success[0].value
    assert "Best: **" in app.success[0].value


@pytest.mark.parametrize("page", ["objective.py", "compare.py", "recipe.py"])
@pytest.mark.parametrize(
    "query",
    [
        {"model": "deepseek-ai/DeepSeek-V3", "hardware.device": "mi300x"},
        {"model": "Qwen/Qwen3-30B-A3B", "options.weight_dtypes": "auto,fp8", "workload.mode": "open"},
        {"model": "Qwen/Qwen3-0.6B", "hardware.device": "cpu", "hardware.per_node": "1"},
        {"model": LLAMA_70B, "hardware.per_node": "1"},
        {"workload.mode": "static", "hardware.usd_per_device_hour": "2.5", "pins": TP8},
        {"workload.mode": "offline", "objective.limits.usd_per_hour": "0.01"},
        {"model": "nobody/nothing"},
        {"hardware.nodes": "100000"},
        {"options.hardware": '[{"device":"mi300x","per_node":8}]', "objective.limits.tpot_ms": "40"},
        {"options.engines": "vllm,sglang", "options.kv_dtypes": "auto,fp8", "objective.orientation": "balanced"},
        {"workload.kind": "training", "workload.tokens": "1e10"},
        {"workload.kind": "training", "hardware.nodes": "2", "candidate.engine": "megatron", "objective.limits.gpus": "8"},
        {"workload.kind": "training", "model": LLAMA_70B, "workload.method": "lora", "objective.optimize": "cost"},
        {"workload.kind": "training", "model": LLAMA_70B, "hardware.per_node": "1"},
        {"workload.kind": "training", "hardware.device": "cpu", "hardware.per_node": "1", "model": "Qwen/Qwen3-0.6B"},
    ],
    ids=[
        *("mla", "moe-open", "cpu", "too-small", "static-pinned", "limit", "unknown-model", "too-many", "clusters", "engines"),
        *("train", "train-limit", "train-lora", "train-too-small", "train-cpu"),
    ],
)
def test_every_page_draws_every_state(page: str, query: dict[str, str]) -> None:
    app = opened(page, **query)
    assert app.title[0].value == PAGES[page]
    assert len(app.success) + len(app.error) >= 1


def test_next_and_back_keep_the_choice() -> None:
    app = opened()
    app.selectbox(key="_model").select("Qwen/Qwen3-8B").run()
    app.button(key="next").click().run()
    assert app.title[0].value == PAGES["hardware.py"]
    assert query_of(app) == {"v": "1", "model": "Qwen/Qwen3-8B"}
    app.button(key="back").click().run()
    assert app.selectbox(key="_model").value == "Qwen/Qwen3-8B"


def test_a_bad_link_is_repaired_and_named() -> None:
    app = opened(**{"hardware.device": "h100-smx", "workload.input_tokens": "-5", "hardware.nodes": "2", "pins": "tp8"})
    warning = app.warning[0].value.replace("\\", "")
    assert "Did you mean 'h100-sxm'" in warning
    assert "workload.input_tokens=-5" in warning
    assert "pins" in warning
    assert query_of(app) == {"v": "1", "hardware.nodes": "2"}
    assert not app.run().warning  # said once


def test_an_unknown_model_names_close_ones_and_can_be_left() -> None:
    app = opened(model="meta-llama/Llama-3.1-80B-Instruct")
    assert "Did you mean" in app.error[0].value
    app.button(key="start-over").click().run()
    assert app.success
    assert query_of(app) == {"v": "1"}


def test_a_folder_with_a_config_is_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDERS, "1")
    (tmp_path / "config.json").write_text(json.dumps(catalog_entry("Qwen/Qwen3-0.6B").config))
    app = opened(model=str(tmp_path))
    assert app.metric[0].value == "596 M"
    assert opened(model=str(tmp_path / "missing")).error[0].value.replace("\\", "").startswith("model: there is no config.json")


def test_a_config_in_the_link_is_a_model() -> None:
    app = opened(model=json.dumps(catalog_entry("Qwen/Qwen3-0.6B").config))
    assert app.metric[0].value == "596 M"
    assert app.selectbox(key="_model").value == "config in the link"


def test_a_vendor_brings_its_device_and_drops_the_old_offer() -> None:
    app = opened("hardware.py", **{"hardware.offer": "lambda-h100-sxm"})
    app.get_by_key("_vendor").set_value("amd").run()
    assert query_of(app) == {"v": "1", "hardware.device": "mi300x"}
    assert "8 × mi300x" in said(app)


def test_a_price_of_ones_own() -> None:
    app = opened("hardware.py")
    app.get_by_key("_price_mode").set_value("stated").run()
    app.number_input(key="_hardware.usd_per_device_hour").set_value(1.5).run()
    assert query_of(app)["hardware.usd_per_device_hour"] == "1.5"


def test_a_device_says_what_its_estimates_rest_on() -> None:
    assert "timings taken on this device were fitted" in said(opened("hardware.py"))
    assert "usual efficiencies" in said(opened("hardware.py", **{"hardware.device": "rtx-5090"}))


def test_a_preset_fills_lengths_and_load() -> None:
    app = opened("objective.py")
    app.get_by_key("_preset").set_value("batch").run()
    assert query_of(app)["workload.mode"] == "offline"
    assert app.number_input(key="_workload.requests").value == 10_000
    assert app.get_by_key("_preset").value == "batch"


def test_a_mode_swaps_its_load() -> None:
    app = opened("objective.py")
    app.get_by_key("_workload.mode").set_value("open").run()
    assert app.number_input(key="_workload.request_rate").value == 4.0
    assert query_of(app) == {"v": "1", "workload.mode": "open"}


def test_a_limit_is_set_and_cleared() -> None:
    app = opened("objective.py", model=LLAMA_70B)
    everything = app.success[0].value
    app.select_slider(key="_objective.limits.tpot_ms").set_value(40.0).run()
    assert query_of(app)["objective.limits.tpot_ms"] == "40"
    assert app.success[0].value != everything
    app.select_slider(key="_objective.limits.tpot_ms").set_value("no limit").run()
    assert app.success[0].value == everything


def test_an_impossible_edit_is_refused_in_words() -> None:
    app = opened("objective.py")
    app.number_input(key="_workload.max_context").set_value(5).run()
    assert "shorter than" in app.error[0].value
    assert app.number_input(key="_workload.max_context").value is None


def test_nothing_fits_names_the_shortfall_and_the_change_is_one_click() -> None:
    app = opened("compare.py", model=LLAMA_70B, **{"hardware.per_node": "1"})
    assert "GiB too much" in app.error[0].value
    assert len(figure(app, "memory")["layout"]["shapes"]) == 2  # usable and capacity, drawn especially now
    app.button(key="remedy-0").click().run()
    assert app.success
    assert not app.error


def test_a_limit_that_refuses_all_can_be_loosened_by_a_click() -> None:
    app = opened("compare.py", **{"objective.limits.tpot_ms": "0.5"})
    assert "exceeds the limit" in app.error[0].value
    app.button(key="remedy-0").click().run()
    assert app.success


def test_two_limits_that_refuse_all_are_loosened_together() -> None:
    app = opened("compare.py", **{"objective.limits.tpot_ms": "0.5", "objective.limits.ttft_ms": "5"})
    assert "Over a limit" in [trace.get("name") for trace in figure(app, "frontier")["data"]]
    app.button(key="remedy-0").click().run()
    assert app.success


def test_pins_of_a_link_are_drawn_ticked_and_removable() -> None:
    app = opened("compare.py", pins=TP8, **{"objective.limits.tpot_ms": "40"})
    drawn = figure(app, "frontier")
    assert "Pinned" in [trace.get("name") for trace in drawn["data"]]
    assert drawn["layout"]["shapes"][0]["x0"] == 40
    app.button(key=f"unpin-{TP8}").click().run()
    assert "pins" not in query_of(app)


def test_a_pinned_split_is_taken_by_a_click() -> None:
    app = opened("compare.py", pins=TP8)
    app.button(key=f"take-{TP8}").click().run()
    assert app.title[0].value == PAGES["recipe.py"]
    assert query_of(app)["candidate.tp"] == "8"
    assert app.selectbox(key="_split").value == TP8


def test_a_pin_that_is_gone_is_said_not_dropped() -> None:
    app = opened("compare.py", pins=TP8, **{"hardware.per_node": "4"})
    assert "is not a split of this plan any more" in said(app)
    assert query_of(app)["pins"] == TP8


def test_the_table_lists_every_split_that_fits_and_the_refused_ones_say_why() -> None:
    app = opened("compare.py", model=LLAMA_70B)
    ranked = app.dataframe[0].value
    view(app, "Why not?")
    refused = app.dataframe[1].value
    assert f"{len(ranked)} of {len(ranked) + len(refused)} splits fit" in app.success[0].value
    assert (refused["why"].str.len() > 10).all()


def test_the_recipe_can_be_another_split() -> None:
    app = opened("recipe.py", pins=TP8)
    assert app.selectbox(key="_split").value == ""
    assert "--tensor-parallel-size" in " ".join(code.value for code in app.code)
    app.selectbox(key="_split").select(TP8).run()
    assert query_of(app)["candidate.tp"] == "8"
    assert any("--tensor-parallel-size 8" in code.value for code in app.code)
    assert any("tp: 8" in code.value for code in app.code)


def test_a_chosen_split_that_no_longer_fits_is_said() -> None:
    chosen = {"engine": "vllm", "weight_dtype": "bf16", "kv_dtype": "bf16", "tp": "8", "pp": "1", "dp": "1", "ep": "1"}
    app = opened("recipe.py", **{f"candidate.{name}": value for name, value in chosen.items()}, **{"hardware.per_node": "4"})
    assert "does not fit any more" in app.warning[0].value


def test_a_recipe_over_several_nodes_is_refused_in_words_or_built() -> None:
    app = opened("recipe.py", model="deepseek-ai/DeepSeek-V3", **{"hardware.device": "h100-sxm", "hardware.nodes": "2"})
    if "cannot be built" in said(app):
        app.button(key="one-node").click().run()
        assert "objective.limits.gpus" in query_of(app)
    else:
        assert app.get_by_key("download")


def test_the_recipe_page_shows_bands_and_the_other_doors() -> None:
    app = opened("recipe.py")
    assert "Likely between" in app.dataframe[0].value.columns
    codes = "\n".join(code.value for code in app.code)
    assert "curl" in codes
    assert "/api/v1/plan" in codes
    assert "recipe build request.yaml" in codes
    assert "launch.py preflight" in codes


SERVING_VIEWS = {
    "Memory": ["memory"],
    "Time": ["waterfall-decode", "waterfall-prefill", "causes"],
    "Load": ["load"],
    "Cost": ["use"],
    "Sensitivity": ["tornado"],
    "Degrees": ["heatmap", "parallel"],
    "Arithmetic": [],
    "Why not?": [],
}
TRAINING_VIEWS = {
    "Memory": ["memory", "stages"],
    "Time": ["waterfall-step"],
    "Pipeline": ["pipeline"],
    "Scaling": ["scaling"],
    "Degrees": ["heatmap", "parallel"],
    "Arithmetic": [],
    "Why not?": [],
}
PIPELINED = {"workload.kind": "training", "workload.tokens": "1e10", "model": LLAMA_70B, "hardware.nodes": "4"}


@pytest.mark.parametrize("name", SERVING_VIEWS)
def test_every_view_of_a_serving_split_draws(name: str) -> None:
    app = view(opened("compare.py", model=LLAMA_70B, pins=f"{TP8},vllm.bf16.bf16.tp4.pp1.dp2.ep1"), name)
    for key in SERVING_VIEWS[name]:
        assert figure(app, key)["data"]
    if name == "Arithmetic":
        assert "weights + cache + activations + runtime" in app.table[0].value.to_string()


@pytest.mark.parametrize("name", TRAINING_VIEWS)
def test_every_view_of_a_training_split_draws(name: str) -> None:
    app = opened("compare.py", **PIPELINED)
    key = next(key for key in app.dataframe[0].value["key"] if ".pp1." not in key)
    app = opened("compare.py", pins=key, **PIPELINED)
    app.selectbox(key="focus").select(key)
    view(app, name)
    for key in TRAINING_VIEWS[name]:
        assert figure(app, key)["data"]


def test_a_view_of_a_pinned_split_is_chosen() -> None:
    app = view(opened("compare.py", model=LLAMA_70B, pins="vllm.bf16.bf16.tp4.pp1.dp2.ep1"), "Arithmetic")
    best = app.table[0].value.to_string()
    app.selectbox(key="focus").select("vllm.bf16.bf16.tp4.pp1.dp2.ep1").run()
    assert app.table[0].value.to_string() != best


def test_where_no_price_is_known_the_cost_view_says_so() -> None:
    app = view(opened("compare.py", model="Qwen/Qwen3-0.6B", **{"hardware.device": "cpu", "hardware.per_node": "1"}), "Cost")
    assert "No price of these devices is known" in said(app)


def test_the_axes_of_the_tradeoff_are_chosen() -> None:
    app = opened("compare.py")
    app.selectbox(key="axis-across-serving").select("interactivity").run()
    assert figure(app, "frontier")["layout"]["xaxis"]["title"]["text"] == "Tokens/s that one user sees (tok/s)"


def test_the_columns_of_the_table_are_chosen() -> None:
    app = opened("compare.py")
    app.get_by_key("columns-serving").set_value(["joules", "tpot"]).run()
    order = json.loads(app.dataframe[0].proto.columns)
    assert "joules" in order
    assert list(app.dataframe[0].proto.column_order) == ["split", "joules", "tpot", "front"]


def test_serving_turns_into_training_and_back() -> None:
    app = opened("model.py", model=LLAMA_70B, **{"hardware.nodes": "4", "objective.limits.tpot_ms": "40"})
    kept = {"v": "1", "model": LLAMA_70B, "hardware.nodes": "4"}
    app.get_by_key("_workload.kind").set_value("training").run()
    assert query_of(app) == kept | {"workload.kind": "training", "workload.tokens": "10000000000"}
    assert "for the run" in app.success[0].value
    app.get_by_key("_workload.kind").set_value("serving").run()
    assert query_of(app) == kept


def test_a_training_precision_and_framework_are_in_the_link() -> None:
    app = opened("model.py", **{"workload.kind": "training"})
    app.get_by_key("_candidate.precision").set_value("fp8").run()
    assert query_of(app)["candidate.precision"] == "fp8"
    app.switch_page("objective.py").run()
    app.selectbox(key="_candidate.engine").select("megatron").run()
    assert query_of(app)["candidate.engine"] == "megatron"
    app.switch_page("compare.py").run()
    assert app.dataframe[0].value["key"][0].startswith("megatron.fp8.")


def test_a_training_split_is_taken_and_packed() -> None:
    app = opened("compare.py", **{"workload.kind": "training", "workload.tokens": "1e9"})
    key = app.dataframe[0].value["key"][1]
    app = opened("compare.py", pins=key, **{"workload.kind": "training", "workload.tokens": "1e9"})
    app.button(key=f"take-{key}").click().run()
    assert app.title[0].value == PAGES["recipe.py"]
    assert app.selectbox(key="_split").value == key
    assert app.get_by_key("download")
    assert any("torchtitan.train" in code.value for code in app.code)
    assert "Likely between" in app.dataframe[0].value.columns


def test_a_checkpoint_in_another_format_is_one_click() -> None:
    app = opened(model="Qwen/Qwen3-32B")
    app.get_by_key("_variant").set_value("Qwen/Qwen3-32B-FP8").run()
    assert query_of(app)["model"] == "Qwen/Qwen3-32B-FP8"
    assert app.get_by_key("_variant").value == "Qwen/Qwen3-32B-FP8"


def test_a_pasted_config_is_a_model_and_a_bad_one_is_refused() -> None:
    app = opened()
    app.text_area(key="paste").set_value(json.dumps(catalog_entry("Qwen/Qwen3-0.6B").config | {"junk": [1] * 1000})).run()
    assert app.metric[0].value == "596 M"
    assert "junk" not in query_of(app)["model"]
    app.text_area(key="paste").set_value("not a config").run()
    assert "not valid JSON" in app.error[0].value
    assert app.metric[0].value == "596 M"


def test_an_uploaded_config_is_a_model_and_weights_are_refused() -> None:
    app = opened()
    app.file_uploader(key="upload").set_value(
        ("config.json", json.dumps(catalog_entry("Qwen/Qwen3-0.6B").config).encode(), "application/json")
    ).run()
    assert app.metric[0].value == "596 M"
    app.file_uploader(key="upload").set_value(("model.json", b"PK\x03\x04", "application/json")).run()
    assert "weights are never read" in app.error[0].value


def test_a_cluster_is_put_beside_and_taken_away() -> None:
    app = opened("hardware.py")
    app.selectbox(key="_add").select("mi300x").run()
    assert "mi300x" in query_of(app)["options.hardware"]
    assert "8 × h100-sxm or 8 × mi300x" in said(app)
    app.number_input(key="_other_0_nodes").set_value(2).run()
    assert '"nodes":2' in query_of(app)["options.hardware"]
    app.button(key="drop-0").click().run()
    assert "options.hardware" not in query_of(app)


def test_own_hardware_makes_a_price() -> None:
    app = opened("hardware.py")
    app.get_by_key("_price_mode").set_value("owned").run()
    before = float(query_of(app)["hardware.usd_per_device_hour"])
    app.number_input(key="_own_capex_usd").set_value(60_000.0).run()
    after = float(query_of(app)["hardware.usd_per_device_hour"])
    assert after > 1.8 * before
    assert "written off" in said(app)
    app.get_by_key("_price_mode").set_value("offer").run()
    assert "hardware.usd_per_device_hour" not in query_of(app)


def test_this_machine_is_described_only_to_those_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDERS, raising=False)
    assert "does not describe its own" in said(opened("hardware.py"))
    monkeypatch.setenv(FOLDERS, "1")
    app = opened("hardware.py")
    app.button(key="detect").click().run()
    assert "found by" in said(app)


def test_links_between_devices_are_chosen() -> None:
    app = opened("hardware.py", **{"hardware.nodes": "2"})
    app.selectbox(key="_network").select("ethernet-100").run()
    assert query_of(app)["hardware.network"] == "ethernet-100"
    app.selectbox(key="_network").select("").run()
    assert "hardware.network" not in query_of(app)


def test_each_step_of_a_limit_says_how_many_splits_keep_it() -> None:
    app = opened("objective.py", model=LLAMA_70B)
    slider = app.select_slider(key="_objective.limits.tpot_ms")
    assert all("split" in option for option in slider.options[:-1])
    assert slider.options[-1] == "no limit"


def test_an_aim_is_an_orientation_or_a_goal() -> None:
    app = opened("objective.py")
    app.get_by_key("_aim").set_value("balanced").run()
    assert query_of(app)["objective.orientation"] == "balanced"
    app.get_by_key("_aim").set_value("cost").run()
    assert query_of(app) == {"v": "1", "objective.optimize": "cost"}


@pytest.mark.parametrize(
    ("command", "verdict"),
    [
        ("vllm serve Qwen/Qwen3-32B -tp 2 --max-model-len 40960", "It starts and holds the load."),
        ("vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 1", "It cannot start."),
        ("vllm serve Qwen/Qwen3-32B -tp 2 --tensor-paralel 4", "It cannot start."),
        ("vllm serve $MODEL", "It cannot be judged."),
        ("echo hello", "no known engine"),
    ],
)
def test_a_command_is_judged(command: str, verdict: str) -> None:
    app = opened("check.py")
    assert "Paste a command" in said(app)
    app.text_area(key="command").set_value(command).run()
    assert verdict in said(app)
    assert not app.exception


def test_an_example_is_judged_and_opened_in_the_builder() -> None:
    app = opened("check.py")
    app.button(key="example-0").click().run()
    assert "devices are idle" in said(app)
    assert any("--tensor-parallel-size" in code.value for code in app.code)
    app.button(key="to-builder").click().run()
    assert app.title[0].value == PAGES["compare.py"]
    assert query_of(app)["model"] == "Qwen/Qwen3-32B"


def test_what_would_let_a_refused_split_run_is_one_click() -> None:
    app = view(opened("compare.py", model=LLAMA_70B, **{"objective.limits.tpot_ms": "40"}), "Why not?")
    keys = app.dataframe[1].value["key"].tolist()
    why = app.dataframe[1].value["why"].tolist()
    row = next(n for n, said_ in enumerate(why) if said_.startswith("time per output token"))
    app.session_state["refused-splits"] = {"selection": {"rows": [row], "columns": [], "cells": []}}
    app.run()
    app.button(key="fix-0").click().run()
    assert float(query_of(app)["objective.limits.tpot_ms"]) > 40
    assert keys[row] in app.dataframe[0].value["key"].tolist()
