"""``recipe models --refresh``: configs of a folder or the hub are kept, read again offline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recipe_core.base.errors import ModelError
from recipe_core.model.catalog import catalog_entry, load_model
from recipe_core.model.own_models import MAX_BYTES, VARIABLE, file_of, is_id, own_ids
from recipe_core.model.refresh import refresh
from tests.fixtures.command_line import recipe
from tests.fixtures.refusals import refusal

CONFIG = dict(catalog_entry("Qwen/Qwen3-0.6B").config)


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    folder = tmp_path / "configs"
    for place in ("me--one", "you/two"):
        (folder / place).mkdir(parents=True)
        (folder / place / "config.json").write_text(json.dumps(CONFIG))
    (folder / "they--three_config.json").write_text(json.dumps(CONFIG))
    quantized = {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (folder / "they--three_hf_quant_config.json").write_text(json.dumps(quantized))
    (folder / "they--encoder.json").write_text(json.dumps({"is_encoder_decoder": True}))
    (folder / "they--broken.json").write_text("[" * 5000)
    (folder / "they--huge.json").write_text(" " * (MAX_BYTES + 1))
    (folder / "they--list.json").write_text("[1]")
    (folder / "notes.json").write_text("{}")
    (folder / "they--link.json").symlink_to(folder / "they--three_config.json")
    return folder


def test_a_folder_is_kept_and_says_what_it_could_not_read(configs, tmp_path):
    out = tmp_path / "deep" / "own"
    answer = refresh(str(configs), out).to_json()
    assert answer["new"] == ["me/one", "they/three", "you/two"]
    refused = {row["id"]: row["reason"] for row in answer["not_modelled"]}
    assert set(refused) == {"they/encoder", "they/broken", "they/huge", "they/list"}
    assert "encoder-decoder" in refused["they/encoder"]
    assert "limit" in refused["they/huge"]
    assert own_ids(out) == ["me/one", "they/three", "you/two"]


def test_doing_it_again_changes_nothing(configs, tmp_path):
    refresh(str(configs), tmp_path / "own")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "own").iterdir()}
    answer = refresh(str(configs), tmp_path / "own").to_json()
    assert (answer["new"], answer["changed"], answer["same"]) == ([], [], 3)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "own").iterdir()} == before
    changed = {**CONFIG, "num_hidden_layers": 2}
    (configs / "me--one" / "config.json").write_text(json.dumps(changed))
    assert refresh(str(configs), tmp_path / "own").to_json()["changed"] == ["me/one"]


def test_what_is_kept_is_found_by_its_id(configs, tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "own"))
    refresh(str(configs), tmp_path / "own")
    model = load_model("Me/One")
    assert (model.name, model.parameters) == ("me/one", load_model("Qwen/Qwen3-0.6B").parameters)
    assert load_model("they/three").weight_dtype == "fp8"
    # public servers do not tell what this machine has
    refusal(load_model, "me/one", folders=False, kind=ModelError)
    # a file that was tampered with is named
    path = file_of(tmp_path / "own", "me/one")
    path.write_text(json.dumps({"id": "you/two", "config": CONFIG}))
    error = refusal(load_model, "me/one", kind=ModelError)
    assert "does not hold the config of me/one" in str(error)
    assert refresh(str(configs), tmp_path / "own").to_json()["changed"] == ["me/one"]


def test_the_hub_is_asked_for_ids(tmp_path):
    asked = []

    def fetch(model_id):
        asked.append(model_id)
        if model_id == "me/gone":
            raise ModelError("the hub has no config.json for me/gone.", field="model")
        return CONFIG

    ids = tmp_path / "ids.txt"
    ids.write_text("# mine\nme/one\nme/gone\n../etc/passwd\nme/one\n")
    answer = refresh(str(ids), tmp_path / "own", fetch=fetch).to_json()
    assert asked == ["me/one", "me/gone"]
    assert answer["new"] == ["me/one"]
    assert [row["id"] for row in answer["not_modelled"]] == ["../etc/passwd", "me/gone"]
    assert refresh("hub", tmp_path / "own", fetch=fetch).to_json()["same"] == 1
    assert refresh("hub", tmp_path / "own", only="me/two", fetch=fetch).to_json()["new"]


def test_ids_are_safe_as_paths_and_an_origin_that_is_none_refused(tmp_path):
    for text in ("a", "a/b/c", "../b", "a/..", "-a/b", "a/b\n", "a--b/c", ""):
        assert not is_id(text)
    assert "does not exist" in str(refusal(refresh, str(tmp_path / "nowhere"), tmp_path))
    assert "no models to refresh" in str(refusal(refresh, "hub", tmp_path / "own"))


def test_the_command_tells_what_changed(configs, tmp_path):
    out = str(tmp_path / "own")
    done = recipe("models", "--refresh", str(configs), "--out", out)
    assert done.returncode == 0
    assert "new: me/one" in done.stdout
    assert "3 new, 0 changed, 0 the same, 4 not modelled" in done.stdout
    again = json.loads(recipe("models", "--refresh", str(configs), "--out", out, "--json").stdout)
    assert again["same"] == 3
    assert recipe("models", "--out", out).returncode == 2
