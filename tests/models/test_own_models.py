"""Configs and weights of one's own: refreshed, uploaded or in a folder."""

import json
import struct

import pytest

from recipe_core.base.errors import ModelError
from recipe_core.bundle.write import bundle_of
from recipe_core.models import hub, uploaded
from recipe_core.models.catalog import catalog_entry, catalog_ids, load_model_spec
from recipe_core.models.checkpoint import safetensors_bytes
from recipe_core.models.config.read import read_model_config
from recipe_core.models.hub import VARIABLE, is_id, own_ids, own_model_file
from recipe_core.models.refresh import refresh_configs
from recipe_core.models.spec import UNPLACED
from recipe_core.models.uploaded import essential_config, rename_config, uploaded_config
from recipe_core.models.variants import model_variants
from recipe_core.plans.plans import plan_splits
from recipe_core.recipe.build import Additions, make_recipe, redecide
from recipe_core.recipe.place import Parameters
from recipe_core.request.describe import model_name
from recipe_core.request.edit import change
from recipe_core.request.link import DEFAULT
from recipe_core.targets.by_hand import start_command
from tests.fixtures.command_line import recipe
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table

QWEN = dict(catalog_entry("Qwen/Qwen3-0.6B").config)


@pytest.fixture
def configs(tmp_path):
    folder = tmp_path / "configs"
    for place in ("me--one", "you/two"):
        (folder / place).mkdir(parents=True)
        (folder / place / "config.json").write_text(json.dumps(QWEN))
    (folder / "they--three_config.json").write_text(json.dumps(QWEN))
    quantized = {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (folder / "they--three_hf_quant_config.json").write_text(json.dumps(quantized))
    (folder / "they--encoder.json").write_text(json.dumps({"is_encoder_decoder": True}))
    (folder / "they--broken.json").write_text("[" * 5000)
    (folder / "they--huge.json").write_text(" " * (hub.MAX_BYTES + 1))
    (folder / "they--list.json").write_text("[1]")
    (folder / "notes.json").write_text("{}")
    (folder / "they--link.json").symlink_to(folder / "they--three_config.json")
    return folder


def test_a_folder_is_kept_once_and_says_what_it_could_not_read(configs, tmp_path):
    out = tmp_path / "deep" / "own"

    def refreshed():
        return refresh_configs(str(configs), out).to_json()

    answer = refreshed()
    assert answer["new"] == ["me/one", "they/three", "you/two"]
    refused = {row["id"]: row["reason"] for row in answer["not_modelled"]}
    assert set(refused) == {"they/encoder", "they/broken", "they/huge", "they/list"}
    assert "encoder-decoder" in refused["they/encoder"]
    assert "limit" in refused["they/huge"]
    assert own_ids(out) == answer["new"]
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    again = refreshed()
    assert (again["new"], again["changed"], again["same"]) == ([], [], 3)
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before
    changed = {**QWEN, "num_hidden_layers": 2}
    (configs / "me--one" / "config.json").write_text(json.dumps(changed))
    assert refreshed()["changed"] == ["me/one"]


def test_what_is_kept_is_found_by_its_id(configs, tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "own"))
    refresh_configs(str(configs), tmp_path / "own")
    model = load_model_spec("Me/One")
    assert (model.name, model.parameters) == (
        "me/one",
        load_model_spec("Qwen/Qwen3-0.6B").parameters,
    )
    assert load_model_spec("they/three").weight_dtype == "fp8"
    # public servers do not tell what this machine has
    refusal(load_model_spec, "me/one", folders=False, kind=ModelError)
    # a file that was tampered with is named
    path = own_model_file(tmp_path / "own", "me/one")
    path.write_text(json.dumps({"id": "you/two", "config": QWEN}))
    error = refusal(load_model_spec, "me/one", kind=ModelError)
    assert "does not hold the config of me/one" in str(error)
    assert refresh_configs(str(configs), tmp_path / "own").to_json()["changed"] == ["me/one"]


def test_the_hub_is_asked_for_ids(tmp_path):
    asked = []

    def fetch(model_id):
        asked.append(model_id)
        if model_id == "me/gone":
            raise ModelError("the hub has no config.json for me/gone.", field="model")
        return QWEN

    ids = tmp_path / "ids.txt"
    ids.write_text("# mine\nme/one\nme/gone\n../etc/passwd\nme/one\n")
    answer = refresh_configs(str(ids), tmp_path / "own", fetch=fetch).to_json()
    assert asked == ["me/one", "me/gone"]
    assert answer["new"] == ["me/one"]
    assert [row["id"] for row in answer["not_modelled"]] == ["../etc/passwd", "me/gone"]
    assert refresh_configs("hub", tmp_path / "own", fetch=fetch).to_json()["same"] == 1
    assert refresh_configs("hub", tmp_path / "own", only="me/two", fetch=fetch).to_json()["new"]


def test_ids_are_safe_as_paths_and_an_origin_that_is_none_refused(tmp_path):
    for text in ("a", "a/b/c", "../b", "a/..", "-a/b", "a/b\n", "a--b/c", ""):
        assert not is_id(text)
    assert "does not exist" in str(refusal(refresh_configs, str(tmp_path / "nowhere"), tmp_path))
    assert "no models to refresh" in str(refusal(refresh_configs, "hub", tmp_path / "own"))


def test_the_command_tells_what_changed(configs, tmp_path):
    out = str(tmp_path / "own")
    done = recipe("models", "--refresh", str(configs), "--out", out)
    assert done.returncode == 0
    assert "new: me/one" in done.stdout
    assert "3 new, 0 changed, 0 the same, 4 not modelled" in done.stdout
    assert recipe("models", "--out", out).returncode == 2


def safetensors(path, tensors):
    """A safetensors file with the given sizes in bytes."""
    header, start = {"__metadata__": {"format": "pt"}}, 0
    for name, size in tensors.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [start, start + size]}
        start += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(start))


def test_headers_are_added_up_the_index_comes_first_and_damaged_files_say_nothing(tmp_path):
    assert safetensors_bytes(tmp_path) is None
    safetensors(tmp_path / "a.safetensors", {"x": 10, "y": 20})
    safetensors(tmp_path / "b.safetensors", {"z": 5})
    assert safetensors_bytes(tmp_path) == 35
    index = {"metadata": {"total_size": 123}, "weight_map": {}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert safetensors_bytes(tmp_path) == 123
    (tmp_path / "model.safetensors.index.json").unlink()
    for damaged in (b"", b"\xff" * 8, struct.pack("<Q", 4) + b"{{{{"):
        (tmp_path / "a.safetensors").write_bytes(damaged)
        assert safetensors_bytes(tmp_path) is None


def test_a_folder_whose_files_hold_something_else_says_so(tmp_path, tiny_config):
    (tmp_path / "config.json").write_text(json.dumps(tiny_config))
    plain = load_model_spec(str(tmp_path))
    assert plain.checkpoint_bytes is None
    safetensors(tmp_path / "model.safetensors", {"all": int(plain.counted_bytes)})
    assert load_model_spec(str(tmp_path)).notes == plain.notes
    safetensors(tmp_path / "model.safetensors", {"all": int(plain.counted_bytes * 1.5)})
    assert "files on disk hold" in load_model_spec(str(tmp_path)).notes[-1]


@over("name", table("own_models", "shortened"))
def test_what_is_left_of_a_config_is_the_same_model(name):
    labels = {str(k): "x" * 50 for k in range(200)}
    dropped = {"architectures": ["Some"], "id2label": labels, "bos_token_id": 1}
    config = catalog_entry(name).config | dropped
    left = uploaded_config(json.dumps(config).encode(), "config.json")
    assert read_model_config(left, "left").digest == read_model_config(config, "whole").digest
    assert not set(dropped) & set(left)
    assert left["name"].startswith(str(config["model_type"]))
    assert "weights" not in left


@over("data, said", table("own_models", "no_configs"))
def test_what_is_no_config_is_refused_with_the_reason(data, said):
    assert said in str(refusal(uploaded_config, data.encode("latin-1"), "file.json"))
    large, deep = b"x" * (uploaded.MAX_BYTES + 1), b"[" * 5000
    assert "the limit is" in str(refusal(uploaded_config, large, "file.json"))
    assert "64 levels" in str(refusal(uploaded_config, deep, "file.json"))


def test_a_config_keeps_its_own_name():
    def read(config, file="config.json"):
        left = uploaded_config(json.dumps(config).encode(), file)
        return left["name"], left.get("weights")

    assert essential_config(QWEN, "my-model")["name"] == "my-model"
    # the id is often that of the model it was trained from: no place of these weights
    assert read(QWEN | {"_name_or_path": "me/mine"}, "x.json") == ("mine", None)
    assert read(QWEN, "acme-7b.json") == ("acme-7b", None)
    assert read(QWEN) == ("qwen3-0.596b", None)
    placed = essential_config(QWEN, "mine") | {"weights": "/data/mine"}
    assert read(placed) == ("mine", "/data/mine")
    error = refusal(load_model_spec, {**QWEN, "weights": ["me/mine"]}, kind=ModelError)
    assert error.field == "model.weights"


@over("name, weights, said", table("own_models", "names_and_places_that_no_command"))
def test_names_and_places_that_no_command_can_carry_are_refused(name, weights, said):
    first = essential_config(QWEN, "first")
    assert said in str(refusal(rename_config, first, name, weights, kind=ModelError))
    if name:
        named = {**QWEN, "name": name, "weights": weights or None}
        assert said in str(refusal(load_model_spec, named, kind=ModelError))


def asked(**model):
    return change(DEFAULT, {"model": {**essential_config(QWEN, "acme-tiny"), **model}})


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
    assert model_name(asked(weights="acme/tiny")) == "acme-tiny"


def test_a_config_without_a_place_of_weights_asks_for_it():
    request = asked()
    recipe = make_recipe(request, folders=False)
    assert "Where the weights of acme-tiny are is not stated" in recipe.notes[-1]
    bundle = bundle_of(recipe)
    assert json.loads(bundle.files["launch.json"])["parameters"]["model"] == UNPLACED
    for name, reason in bundle.targets.items():
        known = name == "monitoring" or "Where the weights of this model are is not known" in reason
        assert known, name
    assert "--model FOLDER_OR_ID" in bundle.files["README.md"].decode()
    table = plan_splits(request)
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
    found = model_variants("Qwen/Qwen3-32B")
    assert next(iter(found)) == "Qwen/Qwen3-32B"
    assert (found["Qwen/Qwen3-32B-FP8"], found["Qwen/Qwen3-32B-AWQ"]) == ("fp8-block", "int4")
    assert model_variants("qwen/qwen3-32b-fp8") == found
    llama = model_variants("meta-llama/Llama-3.1-70B-Instruct")
    assert "deepseek-ai/DeepSeek-R1-Distill-Llama-70B" in catalog_ids()
    assert not any("Distill" in name or "3.3" in name for name in llama)
    assert "Qwen/Qwen3-8B-Base" not in model_variants(
        "Qwen/Qwen3-8B"
    )  # the same shape for shorter texts
    assert model_variants("somebody/else") == {}
