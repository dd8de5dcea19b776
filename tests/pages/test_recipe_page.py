"""The page with the bundle."""

from __future__ import annotations

import json

import pytest
from streamlit.testing.v1 import AppTest

from tests.fixtures.opening import LLAMA_70B, PAGES, TP8, opened, query_of, words

TWO_NODES = {"model": "meta-llama/Llama-3.1-405B-Instruct", "hardware.nodes": "2"}
TRAINING = {"workload.kind": "training", "workload.tokens": "1e9"}
POOLS = {
    "model": LLAMA_70B,
    "candidate.engine": "vllm",
    "candidate.tp": "4",
    "candidate.pp": "1",
    "candidate.dp": "1",
}
POOLS |= {"candidate.prefill.tp": "4"}
TABS = ["Deploy", "Files", "Option provenance", "Other engines", "Fallbacks", "API and CLI"]


def shown(app: AppTest, tab: str) -> AppTest:
    """Open a tab; the others are not drawn."""
    app.session_state["tabs"] = tab
    app.run()
    assert not app.exception, [error.value for error in app.exception]
    return app


def codes(app: AppTest) -> str:
    return "\n".join(code.value for code in app.code)


def test_the_recipe_can_be_another_split() -> None:
    app = opened("recipe.py", pins=TP8)
    assert app.selectbox(key="_split").value == ""
    assert "--tensor-parallel-size" in codes(app)
    app.selectbox(key="_split").select(TP8).run()
    assert query_of(app)["candidate.tp"] == "8"
    assert "--tensor-parallel-size 8" in codes(app)
    snippets = codes(shown(app, "API and CLI"))
    assert "tp: 8" in snippets
    assert '"method": "tools/call"' in snippets


def test_a_chosen_split_that_no_longer_fits_is_said() -> None:
    chosen = {
        "engine": "vllm",
        "weight_dtype": "bf16",
        "kv_dtype": "bf16",
        "tp": "8",
        "pp": "1",
        "dp": "1",
        "ep": "1",
    }
    app = opened(
        "recipe.py",
        **{f"candidate.{name}": value for name, value in chosen.items()},
        **{"hardware.per_node": "4"},
    )
    assert "no longer fits" in app.warning[0].value
    assert app.get_by_key("download")


def test_a_split_that_cannot_be_started_is_refused_in_words_with_what_helps() -> None:
    split = {"engine": "tgi", "tp": "4", "pp": "1", "dp": "1", "prefill.tp": "4"}
    app = opened(
        "recipe.py",
        model=LLAMA_70B,
        **{f"candidate.{name}": value for name, value in split.items()},
    )
    assert "cannot be built" in app.error[0].value
    assert "The same split on another engine" in [header.value for header in app.header]
    assert app.button(key="use-vllm")


LORA = {
    "model": "meta-llama/Llama-3.1-8B",
    "hardware.device": "a100-sxm-80gb",
    "workload.kind": "training",
    "workload.method": "lora",
    "workload.tokens": "1e8",
}


def test_adapters_end_in_a_download_by_default() -> None:
    app = opened("recipe.py", **LORA)
    assert not app.error
    assert app.get_by_key("download")
    assert "torchrun" in codes(app)


@pytest.mark.parametrize("method", ["lora", "qlora", "dpo"])
def test_a_method_chosen_page_by_page_ends_in_a_download(method: str) -> None:
    """From serving, through every page, with nothing else chosen than the method."""
    app = opened("model.py")
    app.segmented_control(key="_workload.kind").set_value("training").run()
    app.switch_page("objective.py").run()
    app.segmented_control(key="_workload.method").set_value(method).run()
    for page in ("hardware.py", "compare.py", "recipe.py"):
        app.switch_page(page).run()
        assert not app.exception
        assert not app.error, page
    assert app.get_by_key("download")
    assert "torchrun" in codes(app)


def test_a_method_leaves_a_framework_that_does_not_launch_it() -> None:
    app = opened("objective.py", **LORA | {"workload.method": "pretrain"})
    app.selectbox(key="_candidate.engine").select("torchtitan").run()
    app.segmented_control(key="_workload.method").set_value("dpo").run()
    assert "candidate.engine" not in query_of(app)
    app.selectbox(key="_workload.data_format").select("preference").run()
    app.segmented_control(key="_workload.method").set_value("lora").run()
    assert "workload.data_format" not in query_of(app)
    app.selectbox(key="_workload.data_format").select("chat").run()
    app.selectbox(key="_workload.lora_targets").select("attention").run()
    assert query_of(app)["workload.lora_targets"] == "attention"
    app.switch_page("recipe.py").run()
    assert app.get_by_key("download")


def test_a_framework_that_cannot_launch_adapters_is_left_with_one_click() -> None:
    app = opened("recipe.py", **LORA, **{"candidate.engine": "torchtitan"})
    assert "torchtitan cannot launch LoRA: use Plain torch" in words(app)
    assert "candidate.engine" not in words(app)
    app.button(key="change-0").click().run()
    assert query_of(app)["candidate.engine"] == "torch"
    assert app.get_by_key("download")


def test_what_is_only_estimated_is_said_and_left_with_one_click() -> None:
    app = opened("recipe.py", **LORA | {"workload.optimizer": "muon"})
    assert "No framework launches Muon" in words(app)
    assert "cannot be built" in app.error[0].value
    assert "workload.optimizer" not in words(app)
    app.button(key="buildable-0").click().run()
    assert "workload.optimizer" not in query_of(app)
    assert not app.error
    assert app.get_by_key("download")


def test_a_stated_split_that_cannot_be_built_is_left_for_the_best_one() -> None:
    split = {"engine": "torch", "tp": "1", "pp": "1", "dp": "8", "zero_stage": "1"}
    split |= {"micro_batch": "1"}
    query = LORA | {f"candidate.{name}": value for name, value in split.items()}
    for device, said in (("a100-sxm-80gb", "101.8 GiB"), ("h200-sxm", "ZeRO-2 or 3, not 1")):
        where = {"workload.method": "finetune", "hardware.device": device}
        app = opened("recipe.py", **query | where)
        assert said in app.error[0].value
        assert "candidate." not in app.error[0].value
    app.button(key="best-split").click().run()
    assert not app.error
    assert app.get_by_key("download")


@pytest.mark.parametrize(
    "query",
    [{}, TWO_NODES, {"hardware.device": "mi300x"}, TRAINING | {"hardware.nodes": "2"}, POOLS],
)
@pytest.mark.parametrize("tab", TABS)
def test_every_tab_of_every_kind_of_recipe_draws(query: dict[str, str], tab: str) -> None:
    app = shown(opened("recipe.py", **query), tab)
    assert [each.label for each in app.tabs if each.label in TABS] == TABS
    assert not app.error
    assert app.get_by_key("download")
    assert app.get_by_key("report")


def test_figures_have_bands_and_a_basis() -> None:
    app = opened("recipe.py")
    (expected,) = [table.value for table in app.table if "Likely range" in table.value.columns]
    assert all(expected["Basis"])
    assert sum(bool(band) for band in expected["Likely range"]) >= 5


@pytest.mark.parametrize(
    ("device", "install"),
    [
        ("h100-sxm", "pip install vllm=="),
        ("mi300x", "--extra-index-url https://wheels.vllm.ai/rocm"),
    ],
)
def test_the_engine_is_installed_by_the_command_of_its_devices(device: str, install: str) -> None:
    split = {f"candidate.{degree}": "1" for degree in ("tp", "pp", "dp")}
    place = {"hardware.device": device, "candidate.engine": "vllm"}
    app = opened("recipe.py", model="Qwen/Qwen3-8B", **place, **split)
    assert install in codes(app)


def test_every_node_has_its_commands() -> None:
    app = opened("recipe.py", **TWO_NODES)
    assert "python launch.py up --node 1 --head node0,node1" in codes(app)
    app.text_input(key="addresses").input("10.0.0.1, 10.0.0.2").run()
    assert "python launch.py up --node 1 --head 10.0.0.1,10.0.0.2" in codes(app)
    assert "--node-rank 1 --master-addr 10.0.0.1" in codes(app).replace(" \\\n   ", "")
    app.text_input(key="addresses").input("10.0.0.1").run()
    assert "has 1 addresses" in app.error[0].value.replace("\\", "")


def test_a_filled_in_place_changes_commands_targets_files_and_doors() -> None:
    app = opened("recipe.py")
    app.text_input(key="place-namespace").input("llm").run()
    app.text_input(key="place-port").input("9000").run()
    assert "--port 9000" in codes(app)
    app.pills(key="target").set_value("kubernetes").run()
    assert "namespace: llm" in codes(app)
    assert "'namespace': 'llm'" in codes(shown(app, "API and CLI"))
    assert "--set port=9000" in codes(app)
    app.session_state["file"] = "launch.json"
    assert json.loads(shown(app, "Files").code[0].value)["parameters"]["port"] == 9000
    assert not {name for name in query_of(app) if "llm" in name or "port" in name}
    shown(app, "Deploy").button(key="clear-place").click().run()
    assert "namespace: default" in codes(app)


def test_a_place_that_cannot_be_is_named_and_nothing_changes() -> None:
    app = opened("recipe.py")
    app.text_input(key="place-port").input("70000").run()
    assert "parameters.port" in app.error[0].value.replace("\\", "")
    assert "--port 8000" in codes(app)
    app.text_input(key="place-port").input("9000").run()
    assert not app.error
    assert "--port 9000" in codes(app)


def test_a_refused_target_says_why_and_filling_in_what_it_lacks_offers_it() -> None:
    app = opened("recipe.py")
    app.pills(key="target").set_value("kubernetes-keda").run()
    assert "nothing to scale" in app.warning[0].value
    app.text_input(key="place-max_replicas").input("4").run()
    assert not app.warning
    assert "kubectl apply -k targets/kubernetes-keda" in codes(app)


def test_files_are_found_by_what_they_hold() -> None:
    app = shown(opened("recipe.py"), "Files")
    assert app.code[0].value.startswith("# llama-3.1-8b")
    app.text_input(key="find").input("sbatch job-name").run()
    assert app.radio(key="_file").options == ["targets/slurm/job.sbatch"]
    assert app.code[0].value.startswith("#!/bin/bash")
    app.text_input(key="find").input("").run()
    app.radio(key="_file").set_value("launch.py").run()
    assert app.code[0].value.startswith("#!/usr/bin/env python3")
    app.text_input(key="find").input("recipe zebrawood").run()
    assert "No file matches" in words(app)


def test_every_option_says_who_set_it() -> None:
    rows = (
        shown(opened("recipe.py", **{"hardware.device": "mi300x"}), "Option provenance")
        .dataframe[0]
        .value
    )
    found = dict(zip(rows["Option"], rows["Set by"], strict=True))
    assert found["--tensor-parallel-size"] == "objective"
    assert found["VLLM_ROCM_USE_AITER"] == "architecture"


def test_another_engine_takes_the_same_split() -> None:
    app = shown(opened("recipe.py", model=LLAMA_70B), "Other engines")
    assert "(this recipe)" in app.table[-2].value["Engine"].iloc[0].replace("\\", "")
    app.button(key="use-sglang").click().run()
    assert query_of(app)["candidate.engine"] == "sglang"
    assert "sglang" in codes(shown(app, "Deploy"))
    assert not app.warning


def test_pools_that_only_the_request_can_name_are_kept() -> None:
    app = opened("recipe.py", **POOLS)
    assert app.selectbox(key="_split").value == "stated"
    assert "--prefill http://127.0.0.1:8001" in codes(app)
    app.selectbox(key="_split").select("").run()
    assert "candidate.prefill.tp" not in query_of(app)
    assert "--prefill" not in codes(app)


def test_a_training_split_is_taken_and_packed() -> None:
    app = opened("compare.py", **TRAINING)
    key = app.dataframe[0].value["key"][1]
    app = opened("compare.py", pins=key, **TRAINING)
    app.button(key=f"use-{key}").click().run()
    assert app.title[0].value == PAGES["recipe.py"]
    assert app.selectbox(key="_split").value == key
    assert app.get_by_key("download")
    assert "--training.local-batch-size" in codes(app)
    app.selectbox(key="_split").select("").run()
    assert "candidate.tp" not in query_of(app)


def test_the_best_of_a_chosen_framework_stays_with_it() -> None:
    query = TRAINING | {"candidate.engine": "torch", "workload.sequence_length": "1024"}
    second = opened("compare.py", **query).dataframe[0].value["key"][1]
    app = opened("recipe.py", **query)
    app.selectbox(key="_split").select(second).run()
    assert query_of(app)["candidate.micro_batch"]
    app.selectbox(key="_split").select("").run()
    assert query_of(app)["candidate.engine"] == "torch"
    assert "candidate.micro_batch" not in query_of(app)


def test_the_other_doors_say_the_same() -> None:
    text = codes(shown(opened("recipe.py"), "API and CLI"))
    assert "/api/v1/build" in text
    assert "urllib.request" in text
    assert "recipe build request.yaml" in text
    assert "recipe check" in text
