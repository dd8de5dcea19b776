"""Checkpoints that the catalog lacks, read off their names."""

from __future__ import annotations

import statistics

import pytest

from recipe_core.base.errors import ModelError
from recipe_core.doors.answers import Answers
from recipe_core.model.catalog import (
    catalog_entry,
    catalog_ids,
    catalog_model,
    derived_model,
    in_catalog,
    load_model,
)
from recipe_core.model.derived import conventions, meanings
from tests.conftest import request_values


@pytest.mark.parametrize(
    ("model_id", "base", "weights", "cache"),
    [
        ("nvidia/Qwen3-14B-FP4", "Qwen/Qwen3-14B", "nvfp4", "fp8"),
        ("NVIDIA/qwen3-14b-fp8", "Qwen/Qwen3-14B", "fp8", "fp8"),
        ("Qwen/Qwen3-14B-FP8", "Qwen/Qwen3-14B", "fp8-block", None),
        ("amd/Llama-3.1-8B-Instruct-FP8-KV", "meta-llama/Llama-3.1-8B-Instruct", "fp8", "fp8"),
        (
            "amd/Llama-3.1-405B-Instruct-MXFP4-Preview",
            "meta-llama/Llama-3.1-405B-Instruct",
            "mxfp4",
            None,
        ),
        (
            "hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4",
            "meta-llama/Llama-3.1-8B-Instruct",
            "int4",
            None,
        ),
        ("TheBloke/Llama-2-70B-Chat-AWQ", "meta-llama/Llama-2-70b-hf", "int4", None),
        (
            "unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit",
            "meta-llama/Llama-3.1-8B-Instruct",
            "int4",
            None,
        ),
        ("unsloth/gpt-oss-120b-BF16", "openai/gpt-oss-120b", "bf16", None),
        ("someone/gemma-3-27b-it-qat-w4a16-ct", "google/gemma-3-27b-it", "int4", None),
        ("someone/gemma-3-1b-it-qat-mobile-ct", "google/gemma-3-1b-it", "int4", None),
        ("amd/gpt-oss-120b-w-mxfp4-a-fp8", "openai/gpt-oss-120b", "mxfp4", None),
        ("stepfun-ai/Step-3.5-Flash-INT8", "stepfun-ai/Step-3.5-Flash", "int8", None),
        ("stepfun-ai/Step-3.5-Flash-INT4", "stepfun-ai/Step-3.5-Flash", "int4", None),
        ("someone/Qwen3-14B-MXFP8", "Qwen/Qwen3-14B", "fp8", None),
        ("RedHatAI/Qwen3-14B-FP8-block", "Qwen/Qwen3-14B", "fp8-block", None),
        ("Someone/QWEN3-14b-fp4", "Qwen/Qwen3-14B", "nvfp4", None),
        (
            "NousResearch/Meta-Llama-3.1-8B-Instruct",
            "meta-llama/Llama-3.1-8B-Instruct",
            "bf16",
            None,
        ),
    ],
)
def test_a_name_says_model_and_format(
    model_id: str, base: str, weights: str, cache: str | None
) -> None:
    assert not in_catalog(model_id)
    model = load_model(model_id, folders=False)
    assert (model.name, model.weight_dtype, model.kv_dtype) == (model_id, weights, cache)
    assert model.parameters == catalog_model(base).parameters
    assert f"its name is read as {base}" in model.notes[-1]


@pytest.mark.parametrize(
    "model_id",
    [
        "nobody/nothing-FP8",
        "nvidia/-FP4",
        "FP8",
        "amd/FP8-KV",
        "x/y-Qwen3-14B",
        "Qwen/Qwen3-14B-FP9",
    ],
)
def test_other_names_stay_unknown(model_id: str) -> None:
    assert derived_model(model_id) is None
    with pytest.raises(ModelError, match="unknown model"):
        load_model(model_id, folders=False)


def test_a_publishers_own_convention_comes_before_another_owners_copy() -> None:
    """Qwen's own Qwen3-32B-FP8 is in blocks; what NVIDIA calls so is not."""
    assert [name for name, _ in meanings("nvidia/Qwen3-235B-A22B-FP8")][:2] == [
        "Qwen3-235B-A22B",
        "Qwen3-235B-A22B-FP8",
    ]
    assert load_model("nvidia/Qwen3-235B-A22B-FP8", folders=False).weight_dtype == "fp8"
    assert load_model("someone/Qwen3-235B-A22B-FP8", folders=False).weight_dtype == "fp8-block"


def test_conventions_agree_with_the_members_whose_configuration_is_known() -> None:
    """Bytes of every quantized catalog model derived from its name, against its configuration."""
    errors: dict[str, float] = {}
    for model_id in catalog_ids():
        own = catalog_model(model_id)
        base = catalog_entry(model_id).same_as
        if own.quantization is None or base is None or catalog_model(base).quantization is not None:
            continue
        plain = catalog_model(base)
        rules = (each for _, each in meanings(model_id) if each and each.concerns(plain))
        if (convention := next(rules, None)) is None:
            continue
        alone = load_model(
            {
                **convention.applied(catalog_entry(base).config, experts=own.is_moe),
                "_name_or_path": model_id,
            }
        )
        errors[model_id] = abs(alone.counted_bytes / own.counted_bytes - 1)
    assert len(errors) > 40
    assert statistics.median(errors.values()) < 1e-3
    assert sum(error < 0.03 for error in errors.values()) >= 0.85 * len(errors)


def test_members_that_conventions_name_are_in_the_catalog() -> None:
    for each in conventions():
        assert each.like is None or in_catalog(each.like)
        assert each.like is None or each.base(*each.like.split("/"))


def test_estimates_of_derived_models_say_so() -> None:
    answer = Answers(folders=False).estimate(
        request_values(model="nvidia/Qwen3-14B-FP4", hardware={"device": "b200-sxm", "per_node": 1})
    )
    assert answer["feasible"]
    assert any("its name is read as Qwen/Qwen3-14B" in note for note in answer["notes"])


def test_a_longer_ending_comes_before_the_one_that_it_ends_in() -> None:
    first = {
        name: next(each.ending for _, each in meanings(name) if each)
        for name in ("x/y-GPTQ-Int4", "x/y-GPTQ-Int8", "x/y-AWQ-INT4", "RedHatAI/y-NVFP4-FP8")
    }
    assert [ending[:9] for ending in first.values()] == [
        "-gptq(-in",
        "-gptq-(in",
        "-awq(-int",
        "-nvfp4-fp",
    ]


def test_four_bit_mixtures_keep_their_attention() -> None:
    """In the 4-bit mixtures whose parts are known, Laguna and Inkling, attention is in bf16."""
    model = load_model("someone/Mixtral-8x7B-Instruct-v0.1-NVFP4", folders=False)
    assert model.quantization is not None
    assert "attention" not in model.quantization.roles
    assert "experts" in model.quantization.roles
