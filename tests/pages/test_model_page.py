"""The page that asks what to run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from recipe_core.doors.settings import variable
from recipe_core.model.catalog import catalog_entry
from tests.fixtures.opening import (
    LLAMA_70B,
    assert_says,
    figure,
    opened,
    press,
    put,
    query_of,
    shown,
    words,
)

SMALL = catalog_entry("Qwen/Qwen3-0.6B").config


def upload(app: AppTest, data: object, name: str = "config.json") -> None:
    content = data if isinstance(data, bytes) else json.dumps(data).encode()
    app.file_uploader(key="upload").set_value((name, content, "application/json")).run()


def test_an_unknown_model_names_close_ones_and_can_be_left() -> None:
    app = opened(model="meta-llama/Llama-3.1-80B-Instruct")
    assert "Did you mean" in app.error[0].value
    assert not press(app, "start-over").error
    assert "No hardware is chosen yet" in words(app)
    assert query_of(app) == {"v": "1"}


def test_a_folder_with_a_config_is_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable("folders"), "1")
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    assert opened(model=str(tmp_path)).metric[0].value == "596 M"
    error = opened(model=str(tmp_path / "missing")).error[0].value
    assert error.replace("\\", "").startswith("model: no config.json")


def test_a_config_in_the_link_is_a_model() -> None:
    app = opened(model=json.dumps(SMALL))
    assert app.metric[0].value == "596 M"
    assert app.selectbox(key="_model").value == "inline config (your config.json)"


def test_serving_turns_into_training_and_back() -> None:
    app = opened("?hardware.nodes=4&objective.limits.tpot_ms=40", model=LLAMA_70B)
    kept = {"v": "1", "model": LLAMA_70B, "hardware.nodes": "4"}
    app.get_by_key("_workload.kind").set_value("training").run()
    assert query_of(app) == kept | {"workload.kind": "training", "workload.tokens": "10000000000"}
    assert "for the run" in app.success[0].value
    assert query_of(put(app, "_workload.kind", "serving")) == kept


@pytest.mark.nightly
def test_a_training_precision_and_framework_are_in_the_link() -> None:
    app = opened("?workload.kind=training")
    assert query_of(put(app, "_candidate.precision", "fp8"))["candidate.precision"] == "fp8"
    app.switch_page("objective.py").run()
    assert query_of(put(app, "_candidate.engine", "megatron"))["candidate.engine"] == "megatron"
    app.switch_page("compare.py").run()
    assert app.dataframe[0].value["key"][0].startswith("megatron.fp8.")


def test_a_checkpoint_in_another_format_is_one_click() -> None:
    app = opened(model="Qwen/Qwen3-32B")
    assert query_of(put(app, "_variant", "Qwen/Qwen3-32B-FP8"))["model"] == "Qwen/Qwen3-32B-FP8"
    assert app.get_by_key("_variant").value == "Qwen/Qwen3-32B-FP8"


def test_a_pasted_config_is_a_model_and_a_bad_one_is_refused() -> None:
    app = opened()
    assert put(app, "paste", json.dumps(SMALL | {"junk": [1] * 1000})).metric[0].value == "596 M"
    assert "junk" not in query_of(app)["model"]
    assert "not valid JSON" in put(app, "paste", "not a config").error[0].value
    assert app.metric[0].value == "596 M"
    upload(app, b"PK\x03\x04", "model.json")
    assert "weights are never read" in app.error[0].value


def test_an_uploaded_config_has_a_name_and_a_place_of_its_weights() -> None:
    app = opened("?candidate.tp=1&candidate.pp=1&candidate.dp=1")
    upload(app, SMALL | {"num_hidden_layers": 14})
    half = app.text_input(key="_upload-name").value
    upload(app, SMALL)
    assert half.startswith("qwen3-")
    assert half != "qwen3-0.596b"  # two uploads are told apart
    assert app.text_input(key="_upload-name").value == "qwen3-0.596b"
    assert_says(app, "28 layers, 596 M parameters", "Left open, the start command asks")
    app.text_input(key="_upload-name").input("acme-tiny").run()
    app.text_input(key="_upload-weights").input("acme/tiny").run()
    kept = json.loads(query_of(app)["model"])
    assert (kept["name"], kept["weights"]) == ("acme-tiny", "acme/tiny")
    assert app.selectbox(key="_model").value == "acme-tiny (your config.json)"
    assert "no place of weights" in put(app, "_upload-weights", "somewhere else").error[0].value
    assert json.loads(query_of(app)["model"])["weights"] == "acme/tiny"
    app.switch_page("recipe.py").run()
    shown = "\n".join(code.value for code in app.code)
    assert "acme/tiny" in shown
    assert "--served-model-name acme-tiny" in shown
    app.switch_page("model.py").run()
    app.button(key="remove-upload").click().run()
    assert app.selectbox(key="_model").value == "meta-llama/Llama-3.1-8B-Instruct"


def test_the_architecture_is_drawn_when_it_is_unfolded() -> None:
    app = opened(model=LLAMA_70B)
    assert not app.table
    shown(app, architecture=True)
    rows = app.table[0].value.to_string()
    assert "grouped-query" in rows
    assert "Feed-forward" in json.dumps(figure(app, "parts"))
