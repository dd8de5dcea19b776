"""Configs that people paste or upload, and other checkpoints of a model."""

from __future__ import annotations

import json

from recipe_core.base.errors import ModelError
from recipe_core.bundle.write import bundle_of
from recipe_core.model.catalog import catalog_entry, catalog_ids, load_model
from recipe_core.model.config.read import read_config
from recipe_core.model.spec import UNPLACED
from recipe_core.model.uploaded import MAX_BYTES, essential, renamed, uploaded_config
from recipe_core.model.variants import variants
from recipe_core.recipe.build import Additions, make_recipe, redecide
from recipe_core.recipe.place import Parameters
from recipe_core.request.describe import model_name
from recipe_core.request.edit import change
from recipe_core.request.link import DEFAULT, from_query, to_query
from recipe_core.request.schema import PlanRequest
from recipe_core.search.plans import plan
from recipe_core.targets.start_command import start_command
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table

NAMES = [
    *("Qwen/Qwen3-0.6B", "deepseek-ai/DeepSeek-V3", "openai/gpt-oss-120b"),
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
]


@over("name", NAMES)
def test_what_is_left_of_a_config_is_the_same_model(name):
    labels = {str(k): "x" * 50 for k in range(200)}
    dropped = {"architectures": ["Some"], "id2label": labels, "bos_token_id": 1}
    config = catalog_entry(name).config | dropped
    left = uploaded_config(json.dumps(config).encode(), "config.json")
    assert read_config(left, "left").digest == read_config(config, "whole").digest
    assert not set(dropped) & set(left)
    assert left["name"].startswith(str(config["model_type"]))
    assert "weights" not in left


@over("data, said", table("uploaded", "no_configs"))
def test_what_is_no_config_is_refused_with_the_reason(data, said):
    assert said in str(refusal(uploaded_config, data.encode("latin-1"), "file.json"))
    for long, words in ((b"x" * (MAX_BYTES + 1), "the limit is"), (b"[" * 5000, "64 levels")):
        assert words in str(refusal(uploaded_config, long, "file.json"))


def test_a_config_keeps_its_own_name():
    config = catalog_entry("Qwen/Qwen3-0.6B").config
    assert essential(config, "my-model")["name"] == "my-model"
    stated = json.dumps(config | {"_name_or_path": "me/mine"}).encode()
    left = uploaded_config(stated, "x.json")
    # the id is often that of the model it was trained from: no place of these weights
    assert ("weights" in left, left["name"]) == (False, "mine")
    assert uploaded_config(json.dumps(config).encode(), "acme-7b.json")["name"] == "acme-7b"
    assert uploaded_config(json.dumps(config).encode(), "config.json")["name"] == "qwen3-0.596b"
    again = uploaded_config(json.dumps(left | {"weights": "/data/mine"}).encode(), "config.json")
    assert (again["name"], again["weights"]) == ("mine", "/data/mine")
    error = refusal(load_model, {**config, "weights": ["me/mine"]}, kind=ModelError)
    assert error.field == "model.weights"


QWEN = catalog_entry("Qwen/Qwen3-0.6B").config


@over("name, weights, said", table("uploaded", "names_and_places_that_no_command"))
def test_names_and_places_that_no_command_can_carry_are_refused(name, weights, said):
    first = essential(QWEN, "first")
    assert said in str(refusal(renamed, first, name, weights, kind=ModelError))
    if name:
        named = {**QWEN, "name": name, "weights": weights or None}
        assert said in str(refusal(load_model, named, kind=ModelError))


def asked(**model: str) -> PlanRequest:
    return change(DEFAULT, {"model": {**essential(QWEN, "acme-tiny"), **model}})


def test_the_name_and_the_weights_of_a_config_are_in_its_bundle():
    recipe = make_recipe(asked(weights="acme/tiny"), folders=False)
    assert recipe.model.id == "acme-tiny"
    assert recipe.name.startswith("acme-tiny-")
    assert not any("weights" in note for note in recipe.notes)
    bundle = bundle_of(recipe)
    launch = json.loads(bundle.files["launch.json"])
    assert launch["parameters"]["model"] == "acme/tiny"
    assert launch["api"]["model"] == "acme-tiny"
    assert isinstance(bundle.targets["kubernetes"], dict)
    assert "acme/tiny" in bundle.files["README.md"].decode()
    assert redecide(recipe).model.source == "acme/tiny"
    # it travels in a link
    assert from_query(to_query(asked(weights="acme/tiny"))) == (asked(weights="acme/tiny"), [])
    assert model_name(asked(weights="acme/tiny")) == "acme-tiny"


def test_a_config_without_a_place_of_weights_asks_for_it():
    request = asked()
    recipe = make_recipe(request, folders=False)
    assert "Where the weights of acme-tiny are is not stated" in recipe.notes[-1]
    bundle = bundle_of(recipe)
    launch = json.loads(bundle.files["launch.json"])
    assert launch["parameters"]["model"] == UNPLACED
    for name, reason in bundle.targets.items():
        if name != "monitoring":
            assert isinstance(reason, str), name
            assert "Where the weights of this model are is not known" in reason
    readme = bundle.files["README.md"].decode()
    assert "--model FOLDER_OR_ID" in readme
    table = plan(request)
    command = start_command(table, int(table.order[0]), folders=False)
    assert f"serve {UNPLACED}" in command
    assert "serve acme-tiny" not in command
    additions = Additions(parameters=Parameters(model="/data/tiny"))
    placed = make_recipe(request, additions, folders=False)
    assert not any("weights" in note for note in placed.notes)
    assert isinstance(bundle_of(placed).targets["kubernetes"], dict)


def test_adapters_of_a_config_ask_for_the_weights_they_stand_beside():
    run = change(asked(), {"workload.kind": "training"})
    adapters = change(run, {"workload.method": "lora"})
    words = make_recipe(adapters, folders=False)
    assert any("weights" in note for note in words.notes)
    assert "${model}" in " ".join(redecide(words).started().processes[0].argv)
    placed = make_recipe(change(adapters, {"model": asked(weights="/data/tiny").model}))
    assert json.loads(bundle_of(placed).files["launch.json"])["parameters"]["model"] == "/data/tiny"


def test_checkpoints_of_one_model_are_found_and_distilled_ones_are_not():
    found = variants("Qwen/Qwen3-32B")
    assert next(iter(found)) == "Qwen/Qwen3-32B"
    assert (found["Qwen/Qwen3-32B-FP8"], found["Qwen/Qwen3-32B-AWQ"]) == ("fp8-block", "int4")
    assert variants("qwen/qwen3-32b-fp8") == found
    llama = variants("meta-llama/Llama-3.1-70B-Instruct")
    assert "deepseek-ai/DeepSeek-R1-Distill-Llama-70B" in catalog_ids()
    assert not any("Distill" in name or "3.3" in name for name in llama)
    assert "Qwen/Qwen3-8B-Base" not in variants("Qwen/Qwen3-8B")  # the same shape for shorter texts
    assert variants("somebody/else") == {}
