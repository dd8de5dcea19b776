"""Configs that people paste or upload, and other checkpoints of a model."""

from __future__ import annotations

import json

import pytest

from recipe_core.base.errors import InputError
from recipe_core.model.catalog import catalog_entry, catalog_ids
from recipe_core.model.config.read import read_config
from recipe_core.model.uploaded import MAX_BYTES, essential, uploaded_config
from recipe_core.model.variants import variants


@pytest.mark.parametrize(
    "name",
    [
        "Qwen/Qwen3-0.6B",
        "deepseek-ai/DeepSeek-V3",
        "openai/gpt-oss-120b",
        "Qwen/Qwen3-Next-80B-A3B-Instruct",
    ],
)
def test_what_is_left_of_a_config_is_the_same_model(name: str) -> None:
    config = catalog_entry(name).config | {
        "architectures": ["Some"],
        "id2label": {str(k): "x" * 50 for k in range(200)},
        "bos_token_id": 1,
    }
    left = uploaded_config(json.dumps(config).encode(), "config.json")
    assert read_config(left, "left").digest == read_config(config, "whole").digest
    assert not {"id2label", "bos_token_id", "architectures"} & set(left)
    assert left["_name_or_path"] == "config"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"x" * (MAX_BYTES + 1), "the limit is"),
        (b"PK\x03\x04 weights", "not text"),
        (b"\x80\x04pickle", "not text"),
        (b"GGUF\x03", "not text"),
        (b'{"a": "\x00"}', "not text"),
        (b"\xff\xfe{}", "UTF-8"),
        (b"hidden_size: 4096", "not valid JSON"),
        (b'{"hidden_size": NaN}', "not valid JSON"),
        (b"[1, 2]", "not an object"),
        (b"{}", "hidden_size"),
        (b'{"type_vocab_size": 2, "hidden_size": 8}', "encoder models"),
        (b"[" * 5000, "more than 64 levels"),
    ],
)
def test_what_is_no_config_is_refused_with_the_reason(data: bytes, said: str) -> None:
    with pytest.raises(InputError, match=said):
        uploaded_config(data, "file.json")


def test_a_config_keeps_its_own_name() -> None:
    config = catalog_entry("Qwen/Qwen3-0.6B").config
    assert essential(config, "my-model")["_name_or_path"] == "my-model"
    assert (
        uploaded_config(json.dumps(config | {"_name_or_path": "me/mine"}).encode(), "x.json")[
            "_name_or_path"
        ]
        == "me/mine"
    )


def test_checkpoints_of_one_model_are_found_and_distilled_ones_are_not() -> None:
    found = variants("Qwen/Qwen3-32B")
    assert next(iter(found)) == "Qwen/Qwen3-32B"
    assert {
        "Qwen/Qwen3-32B-FP8": "fp8-block",
        "Qwen/Qwen3-32B-AWQ": "int4",
    }.items() <= found.items()
    assert variants("qwen/qwen3-32b-fp8") == found
    llama = variants("meta-llama/Llama-3.1-70B-Instruct")
    assert "deepseek-ai/DeepSeek-R1-Distill-Llama-70B" in catalog_ids()
    assert not any("Distill" in name or "3.3" in name for name in llama)
    assert "Qwen/Qwen3-8B-Base" not in variants("Qwen/Qwen3-8B")  # the same shape for shorter texts
    assert variants("somebody/else") == {}
