"""Training bundles: what is in them, and that their own launcher reads them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from recipe_core.bundle.verify import read_bundle
from recipe_core.bundle.write import bundle_files, write_bundle, zip_bytes
from recipe_core.launch.training.start import launch_reasons
from recipe_core.launcher.plan import load_plan
from recipe_core.recipe import Recipe, make_recipe
from recipe_core.recipe.build import Additions
from recipe_core.request.schema import PlanRequest
from recipe_core.search.plans import plan
from recipe_core.targets import Parameters
from tests.fixtures.recipes import recipe_for_request

NIGHTLY = pytest.mark.nightly
IMAGE = Parameters(image="registry.example/trainer:1")
LLAMA = "meta-llama/Llama-3.1-8B"
TWO_NODES = {"nodes": 2, "device": "h100-sxm", "per_node": 8}


def sharded(dp: int, engine: str = "torch") -> dict[str, Any]:
    split = {"engine": engine, "tp": 1, "pp": 1, "dp": dp}
    return {**split, "zero_stage": 3, "micro_batch": 1, "recompute": "full"}


def request(
    model: Any,
    candidate: dict[str, Any] | None = None,
    *,
    nodes: int = 1,
    device: str = "cpu",
    per_node: int = 2,
) -> PlanRequest:
    workload = {"kind": "training", "sequence_length": 128, "global_batch": 16, "tokens": 2**20}
    hardware = {"device": device, "per_node": per_node, "nodes": nodes}
    split = {"candidate": candidate} if candidate else {"options": {"engines": ["torch"]}}
    return PlanRequest.parse({"model": model, "hardware": hardware, "workload": workload, **split})


@pytest.fixture
def recipe(tiny_config: dict[str, Any]) -> Recipe:
    split = {"engine": "torch", "tp": 1, "pp": 1, "dp": 2, "micro_batch": 4}
    return recipe_for_request(request(tiny_config | {"_name_or_path": "tiny"}, split))


def test_a_training_bundle_has_the_trainer_its_settings_and_a_text(recipe):
    files = bundle_files(recipe)
    assert {
        "train.py",
        "train.json",
        "trainer/main.py",
        "trainer/loop.py",
        "data/text.txt",
        "launcher/runs.py",
        "MANIFEST.json",
    } <= files.keys()
    settings = json.loads(files["train.json"])
    assert settings["model"]["config"]["hidden_size"] == 256
    assert settings["model"]["tokenizer"] == "data"
    assert settings["steps"] == 2**20 // (16 * 128)
    assert zip_bytes(recipe) == zip_bytes(recipe)


@pytest.mark.parametrize(
    "name",
    ["torch", "torchtitan", *(pytest.param(n, marks=NIGHTLY) for n in ("deepspeed", "accelerate"))],
)
def test_a_framework_without_an_image_comes_with_what_one_is_built_from(name):
    """Exact packages, on torch's own image, within the versions that the recipe is locked to."""
    asked = request(LLAMA, sharded(16, name), **TWO_NODES)
    found = make_recipe(asked)
    files = bundle_files(found)
    text = files["container/Containerfile"].decode()
    torch = {"torchtitan": r"2\.14\.1"}.get(name, r"2\.13\.0")
    kinds = "(runtime@sha256:[0-9a-f]{64}|devel)$"
    image = rf"^FROM pytorch/pytorch:{torch}-cuda13\.0-cudnn9-"
    assert re.search(image + kinds, text, re.MULTILINE)
    packages = dict(re.findall(r"^ {4}([\w-]+)==([\w.]+)", text, re.MULTILINE))
    assert found.lock
    for package, specifier in found.lock.engine.packages.items():
        assert packages[package] in SpecifierSet(specifier), package
    assert "Build one from container/Containerfile" in files["README.md"].decode()
    assert not any(path.startswith("targets/jobset") for path in files)
    named = bundle_files(make_recipe(asked, Additions(parameters=IMAGE)))
    assert b"registry.example/trainer:1" in named["targets/jobset/jobset.yaml"]


def test_no_image_is_built_where_no_base_is_known():
    asked = request(LLAMA, sharded(8), device="mi300x", per_node=8)
    assert "container/Containerfile" not in bundle_files(make_recipe(asked))


def test_a_training_bundle_verifies_and_its_launcher_reads_it(recipe, tmp_path):
    folder = write_bundle(recipe, tmp_path / "bundle")
    assert read_bundle(folder).recipe == recipe
    plan = load_plan(folder)
    assert (plan.kind, plan.nodes, plan.node, plan.needs_model) == ("training", 1, None, False)
    (process,) = plan.processes
    assert process.argv[0] == "torchrun"
    assert str(folder / "train.json") in process.argv
    assert "127.0.0.1" in process.argv
    assert not process.answers


def test_a_model_with_a_home_is_asked_for_when_it_starts(tmp_path):
    found = recipe_for_request(request(LLAMA, sharded(16), **TWO_NODES))
    folder = write_bundle(found, tmp_path / "bundle")
    plan = load_plan(folder, node=1, head="10.0.0.7")
    assert plan.needs_model
    assert [process.name for process in plan.processes] == ["trainer-1"]
    assert "10.0.0.7:8000" in plan.processes[0].argv or "10.0.0.7" in plan.processes[0].argv
    assert json.loads((folder / "train.json").read_text())["model"]["config"] is None


def test_adapters_are_trained_beside_the_weights_of_a_folder(tiny_config, tmp_path):
    """Rank and factor as asked, at the rate of pre-training; `tests/trainer` runs such settings."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(tiny_config))
    split = {"engine": "torch", "tp": 1, "pp": 1, "dp": 2, "zero_stage": 3, "micro_batch": 4}
    asked = request(str(model), split).model_dump(mode="json")
    rates = {}
    for method, more in (("lora", {"lora_rank": 8}), ("pretrain", {})):
        workload = asked["workload"] | {"method": method} | more
        trained = make_recipe(PlanRequest.parse(asked | {"workload": workload}))
        settings = json.loads(bundle_files(trained)["train.json"])
        rates[method] = settings["optimizer"]["learning_rate"]
        adapters = {"rank": 8, "alpha": 16.0, "targets": "all", "base": "16-bit"}
        assert settings.get("lora") == (adapters if more else None)
        assert settings["model"]["weights"] == ("pretrained" if more else "random")
    assert rates["lora"] == rates["pretrain"]


def test_an_open_request_gets_the_best_split_that_can_be_started():
    asked = request(LLAMA, nodes=1, device="h100-sxm", per_node=8)
    table = plan(asked)
    chosen = make_recipe(asked).candidate
    for row in map(int, table.order):
        reasons = launch_reasons(*table.detail(row))
        if table.candidate(row) == chosen:
            break
        assert reasons
    assert reasons == []
