"""Checkpoints that the catalog lacks, read off their names."""

from __future__ import annotations

import statistics

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
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table


@over("model_id, base, weights, cache", table("model_derived", "a_name_says_model_and_format"))
def test_a_name_says_model_and_format(model_id, base, weights, cache):
    assert not in_catalog(model_id)
    model = load_model(model_id, folders=False)
    assert (model.name, model.weight_dtype, model.kv_dtype) == (model_id, weights, cache)
    assert model.parameters == catalog_model(base).parameters
    assert f"its name is read as {base}" in model.notes[-1]


def test_other_names_stay_unknown():
    names = "nobody/nothing-FP8 nvidia/-FP4 FP8 amd/FP8-KV x/y-Qwen3-14B Qwen/Qwen3-14B-FP9"
    for model_id in names.split():
        assert derived_model(model_id) is None
        error = refusal(load_model, model_id, folders=False, kind=ModelError)
        assert "unknown model" in str(error)


def test_a_publishers_own_convention_comes_before_another_owners_copy():
    """Qwen's own Qwen3-32B-FP8 is in blocks; what NVIDIA calls so is not."""
    base = "Qwen3-235B-A22B"
    read = [name for name, _ in meanings(f"nvidia/{base}-FP8")]
    assert read[:2] == [base, f"{base}-FP8"]
    for owner, weights in (("nvidia", "fp8"), ("someone", "fp8-block")):
        assert load_model(f"{owner}/{base}-FP8", folders=False).weight_dtype == weights
    # a longer ending comes before the one that it ends in
    names = ("x/y-GPTQ-Int4", "x/y-GPTQ-Int8", "x/y-AWQ-INT4", "RedHatAI/y-NVFP4-FP8")
    first = [next(each.ending for _, each in meanings(name) if each) for name in names]
    found = [ending[:9] for ending in first]
    assert found == ["-gptq(-in", "-gptq-(in", "-awq(-int", "-nvfp4-fp"]


def test_conventions_agree_with_the_members_whose_configuration_is_known():
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
        stored = convention.applied(catalog_entry(base).config, experts=own.is_moe)
        alone = load_model({**stored, "_name_or_path": model_id})
        errors[model_id] = abs(alone.counted_bytes / own.counted_bytes - 1)
    assert len(errors) > 40
    assert statistics.median(errors.values()) < 1e-3
    assert sum(error < 0.03 for error in errors.values()) >= 0.85 * len(errors)
    # members that conventions name are in the catalog
    for each in conventions():
        assert each.like is None or in_catalog(each.like)
        assert each.like is None or each.base(*each.like.split("/"))


def test_estimates_of_derived_models_say_so():
    b200 = {"device": "b200-sxm", "per_node": 1}
    values = request_values(model="nvidia/Qwen3-14B-FP4", hardware=b200)
    answer = Answers(folders=False).estimate(values)
    assert answer["feasible"]
    assert any("its name is read as Qwen/Qwen3-14B" in note for note in answer["notes"])
    # In the 4-bit mixtures whose parts are known, Laguna and Inkling, attention is in bf16.
    model = load_model("someone/Mixtral-8x7B-Instruct-v0.1-NVFP4", folders=False)
    assert "attention" not in model.quantization.roles
    assert "experts" in model.quantization.roles
