"""The page with the bundle."""

from __future__ import annotations

import json

import pytest
from streamlit.testing.v1 import AppTest

from tests.fixtures.opening import LLAMA_70B, PAGES, TP8, opened, press, put, query_of, shown, words

TWO_NODES = "recipe.py?model=meta-llama/Llama-3.1-405B-Instruct&hardware.nodes=2"
TRAINING = "workload.kind=training&workload.tokens=1e9"
SPLIT = "candidate.tp=4&candidate.pp=1&candidate.dp=1"
POOLS = f"recipe.py?model={LLAMA_70B}&candidate.engine=vllm&{SPLIT}&candidate.prefill.tp=4"
TABS = ["Deploy", "Files", "Option provenance", "Other engines", "Fallbacks", "API and CLI"]
LORA = "model=meta-llama/Llama-3.1-8B&hardware.device=a100-sxm-80gb&workload.kind=training"
LORA += "&workload.tokens=1e8&workload.method=lora"


def codes(app: AppTest) -> str:
    return "\n".join(code.value for code in app.code)


def assert_built(app: AppTest) -> None:
    assert not app.error
    assert app.get_by_key("download")


def test_the_recipe_can_be_another_split() -> None:
    app = opened("recipe.py", pins=TP8)
    (expected,) = [table.value for table in app.table if "Likely range" in table.value.columns]
    assert all(expected["Basis"])
    assert sum(bool(band) for band in expected["Likely range"]) >= 5
    assert app.selectbox(key="_split").value == ""
    assert "--tensor-parallel-size" in codes(app)
    assert query_of(put(app, "_split", TP8))["candidate.tp"] == "8"
    assert "--tensor-parallel-size 8" in codes(app)
    snippets = codes(shown(app, tabs="API and CLI"))
    for text in ("tp: 8", '"method": "tools/call"', "/api/v1/build", "urllib.request"):
        assert text in snippets
    assert "recipe build request.yaml" in snippets
    assert "recipe check" in snippets


def test_a_chosen_split_that_no_longer_fits_is_said() -> None:
    chosen = "candidate.engine=vllm&candidate.weight_dtype=bf16&candidate.kv_dtype=bf16"
    split = "candidate.tp=8&candidate.pp=1&candidate.dp=1&candidate.ep=1"
    app = opened(f"recipe.py?{chosen}&{split}&hardware.per_node=4")
    assert "no longer fits" in app.warning[0].value
    assert app.get_by_key("download")


def test_a_split_that_cannot_be_started_is_refused_in_words_with_what_helps() -> None:
    app = opened(POOLS.replace("vllm", "tgi"))
    assert "cannot be built" in app.error[0].value
    assert "The same split on another engine" in [header.value for header in app.header]
    assert app.button(key="use-vllm")


@pytest.mark.parametrize(
    "method", ["lora", *(pytest.param(m, marks=pytest.mark.nightly) for m in ("qlora", "dpo"))]
)
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
    assert_built(app)
    assert "torchrun" in codes(app)


@pytest.mark.nightly
def test_a_method_leaves_a_framework_that_does_not_launch_it() -> None:
    app = opened(f"objective.py?{LORA}".replace("=lora", "=pretrain"))
    app.selectbox(key="_candidate.engine").select("torchtitan").run()
    assert "candidate.engine" not in query_of(put(app, "_workload.method", "dpo"))
    app.selectbox(key="_workload.data_format").select("preference").run()
    assert "workload.data_format" not in query_of(put(app, "_workload.method", "lora"))
    app.selectbox(key="_workload.data_format").select("chat").run()
    app.selectbox(key="_workload.lora_targets").select("attention").run()
    assert query_of(app)["workload.lora_targets"] == "attention"
    app.switch_page("recipe.py").run()
    assert_built(app)


def test_what_no_framework_launches_is_left_with_one_click() -> None:
    app = opened(f"recipe.py?{LORA}&candidate.engine=torchtitan")
    assert "torchtitan cannot launch LoRA: use Plain torch" in words(app)
    assert "candidate.engine" not in words(app)
    assert query_of(press(app, "change-0"))["candidate.engine"] == "torch"
    assert_built(app)
    app = opened(f"recipe.py?{LORA}&workload.optimizer=muon")
    assert "No framework launches Muon" in words(app)
    assert "cannot be built" in app.error[0].value
    assert "workload.optimizer" not in words(app)
    assert "workload.optimizer" not in query_of(press(app, "buildable-0"))
    assert_built(app)
    assert "torchrun" in codes(app)


@pytest.mark.nightly
def test_a_stated_split_that_cannot_be_built_is_left_for_the_best_one() -> None:
    whole = f"recipe.py?{LORA}&candidate.engine=torch&{SPLIT}".replace("=lora", "=finetune")
    split = {"tp": "1", "dp": "8", "zero_stage": "1", "micro_batch": "1"}
    query = {f"candidate.{name}": value for name, value in split.items()}
    for device, said in (("a100-sxm-80gb", "101.8 GiB"), ("h200-sxm", "ZeRO-2 or 3, not 1")):
        app = opened(whole, **query, **{"hardware.device": device})
        assert said in app.error[0].value
        assert "candidate." not in app.error[0].value
    app.button(key="best-split").click().run()
    assert_built(app)


@pytest.mark.parametrize(
    "link",
    [
        "recipe.py",
        *(
            pytest.param(link, marks=pytest.mark.nightly)
            for link in (
                *(TWO_NODES, POOLS, "recipe.py?hardware.device=mi300x"),
                f"recipe.py?{TRAINING}&hardware.nodes=2",
            )
        ),
    ],
)
def test_every_tab_of_every_kind_of_recipe_draws(link: str) -> None:
    app = opened(link)
    for tab in TABS:
        shown(app, tabs=tab)
        assert [each.label for each in app.tabs if each.label in TABS] == TABS
        assert_built(app)
        assert app.get_by_key("report")


@pytest.mark.nightly
def test_the_engine_is_installed_by_the_command_of_its_devices() -> None:
    for device, install in (
        ("h100-sxm", "pip install vllm=="),
        ("mi300x", "--extra-index-url https://wheels.vllm.ai/rocm"),
    ):
        query = {"hardware.device": device, "candidate.engine": "vllm"}
        app = opened(f"recipe.py?model=Qwen/Qwen3-8B&{SPLIT}".replace("tp=4", "tp=1"), **query)
        assert install in codes(app)
    rows = shown(opened("recipe.py?hardware.device=mi300x"), tabs="Option provenance")
    table = rows.dataframe[0].value
    found = dict(zip(table["Option"], table["Set by"], strict=True))
    assert found["--tensor-parallel-size"] == "objective"
    assert found["VLLM_ROCM_USE_AITER"] == "architecture"


def test_every_node_has_its_commands() -> None:
    app = opened(TWO_NODES)
    assert "python launch.py up --node 1 --head node0,node1" in codes(app)
    app.text_input(key="addresses").input("10.0.0.1, 10.0.0.2").run()
    assert "python launch.py up --node 1 --head 10.0.0.1,10.0.0.2" in codes(app)
    assert "--node-rank 1 --master-addr 10.0.0.1" in codes(app).replace(" \\\n   ", "")
    assert "has 1 addresses" in put(app, "addresses", "10.0.0.1").error[0].value.replace("\\", "")


def test_a_filled_in_place_changes_commands_targets_files_and_doors() -> None:
    app = opened("recipe.py")
    assert "parameters.port" in put(app, "place-port", "70000").error[0].value.replace("\\", "")
    assert "--port 8000" in codes(app)
    app.text_input(key="place-namespace").input("llm").run()
    assert not put(app, "place-port", "9000").error
    assert "--port 9000" in codes(app)
    assert "namespace: llm" in codes(put(app, "target", "kubernetes"))
    assert "'namespace': 'llm'" in codes(shown(app, tabs="API and CLI"))
    assert "--set port=9000" in codes(app)
    shown(app, tabs="Files", file="launch.json")
    assert json.loads(app.code[0].value)["parameters"]["port"] == 9000
    assert not {name for name in query_of(app) if "llm" in name or "port" in name}
    shown(app, tabs="Deploy").button(key="clear-place").click().run()
    assert "namespace: default" in codes(app)


def test_a_refused_target_says_why_and_filling_in_what_it_lacks_offers_it() -> None:
    app = opened("recipe.py")
    assert "nothing to scale" in put(app, "target", "kubernetes-keda").warning[0].value
    assert not put(app, "place-max_replicas", "4").warning
    assert "kubectl apply -k targets/kubernetes-keda" in codes(app)


def test_files_are_found_by_what_they_hold() -> None:
    app = shown(opened("recipe.py"), tabs="Files")
    assert app.code[0].value.startswith("# llama-3.1-8b")
    app.text_input(key="find").input("sbatch job-name").run()
    assert app.radio(key="_file").options == ["targets/slurm/job.sbatch"]
    assert app.code[0].value.startswith("#!/bin/bash")
    app.text_input(key="find").input("").run()
    assert put(app, "_file", "launch.py").code[0].value.startswith("#!/usr/bin/env python3")
    assert "No file matches" in words(put(app, "find", "recipe zebrawood"))


@pytest.mark.nightly
def test_another_engine_takes_the_same_split() -> None:
    app = shown(opened("recipe.py", model=LLAMA_70B), tabs="Other engines")
    assert "(this recipe)" in app.table[-2].value["Engine"].iloc[0].replace("\\", "")
    assert query_of(press(app, "use-sglang"))["candidate.engine"] == "sglang"
    assert "sglang" in codes(shown(app, tabs="Deploy"))
    assert not app.warning


def test_pools_that_only_the_request_can_name_are_kept() -> None:
    app = opened(POOLS)
    assert app.selectbox(key="_split").value == "stated"
    assert "--prefill http://127.0.0.1:8001" in codes(app)
    assert "candidate.prefill.tp" not in query_of(put(app, "_split", ""))
    assert "--prefill" not in codes(app)


@pytest.mark.nightly
def test_a_training_split_is_taken_and_packed() -> None:
    link = f"compare.py?{TRAINING}"
    key = opened(link).dataframe[0].value["key"][1]
    app = opened(link, pins=key)
    assert press(app, f"use-{key}").title[0].value == PAGES["recipe.py"]
    assert app.selectbox(key="_split").value == key
    assert app.get_by_key("download")
    assert "--training.local-batch-size" in codes(app)
    assert "candidate.tp" not in query_of(put(app, "_split", ""))


def test_the_best_of_a_chosen_framework_stays_with_it() -> None:
    link = f"compare.py?{TRAINING}&candidate.engine=torch&workload.sequence_length=1024"
    app = opened(link)
    second = app.dataframe[0].value["key"][1]
    app.switch_page("recipe.py").run()
    assert query_of(put(app, "_split", second))["candidate.micro_batch"]
    assert query_of(put(app, "_split", ""))["candidate.engine"] == "torch"
    assert "candidate.micro_batch" not in query_of(app)
