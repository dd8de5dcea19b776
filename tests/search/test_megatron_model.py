"""Every property of a model has its word for Megatron-LM, or its bundle is refused by name."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from recipe_core.engines.megatron import MEGATRON, MegatronModels, megatron_models
from recipe_core.engines.training_programs import facts
from recipe_core.model.catalog import catalog_ids, catalog_model, in_catalog, load_model
from recipe_core.model.constants import constants
from recipe_core.search.megatron_model import MegatronModel, layer_pattern, megatron_model
from tests.fixtures.rows import over, table

BASES = table("megatron_model", "bases")
NAMES = sorted({*catalog_ids(), *constants()})


def words_of(base: str, fields: dict[str, Any]) -> MegatronModel:
    """What Megatron-LM is told of a small model with these fields; a list is a base, changed."""
    fields = {
        name: BASES[value[0]] | value[1] if isinstance(value, list) and "rope" in name else value
        for name, value in fields.items()
    }
    config = BASES["llama"] | BASES[base] | fields
    known = {name: value for name, value in config.items() if value is not None}
    return megatron_model(load_model(known))


def counted(said: dict[str, Any]) -> int:
    """Parameters of the model that Megatron-LM builds from words, without norms of heads."""
    hidden, layers = said["hidden_size"], said["num_layers"]
    per_block = (3 if said.get("swiglu") else 2) * hidden
    marks: list[int] = [int("num_experts" in said)] * layers
    if pattern := said.get("moe_layer_freq"):
        runs = [run.split("*") for run in pattern.split("+")]
        marks = [int(mark[1]) for mark, count in runs for _ in range(int(count))]
    dense = per_block * said["ffn_hidden_size"]
    routed = 0
    if "num_experts" in said:
        shared = said.get("moe_shared_expert_intermediate_size", 0)
        width = said["num_experts"] * said["moe_ffn_hidden_size"] + shared
        routed = per_block * width + hidden * said["num_experts"]
    blocks = sum(routed if mark else dense for mark in marks)
    tables = 1 + said["untie_embeddings_and_output_weights"]
    whole = blocks + layers * (attention(said) + 2 * hidden) + hidden
    return int(whole + tables * said["vocab_size"] * hidden)


def attention(said: dict[str, Any]) -> int:
    hidden, heads = said["hidden_size"], said["num_attention_heads"]
    if not said.get("multi_latent_attention"):
        grouped = (heads + 2 * said["num_query_groups"]) * said["kv_channels"]
        bias = grouped if said.get("add_qkv_bias") else 0
        return int(hidden * (grouped + heads * said["kv_channels"]) + bias)
    rotary, latent, plain = (
        said[name] for name in ("qk_pos_emb_head_dim", "kv_lora_rank", "qk_head_dim")
    )
    queries = heads * (plain + rotary)
    low = said.get("q_lora_rank")
    first = low * (hidden + queries) if low else hidden * queries
    up = latent * heads * (plain + said["v_head_dim"])
    return int(first + hidden * (latent + rotary) + up + heads * said["v_head_dim"] * hidden)


def test_every_field_of_every_model_has_a_word_or_refuses_its_launch() -> None:
    """The model that is launched has the parameters of the one that was asked for, one by one."""
    models = {name: catalog_model(name) for name in NAMES}
    words = {name: megatron_model(model) for name, model in models.items()}
    launched = [name for name in NAMES if not words[name].untold]
    assert len(launched) > 100
    for name in launched:
        model = models[name]
        norms = model.parameters_by_part["norm"] - (2 * len(model.layers) + 1) * model.hidden
        assert counted(words[name].words) == model.parameters - norms, name
        for field, value in (("new_gate", True), ("attention_scale", 0.5), ("mixer", [])):
            changed = replace(model, config={**model.config, field: value})
            assert megatron_model(changed).untold == (f"{field} {value!r}",)


def test_known_families_constants_patterns_and_frameworks_are_as_the_table_says() -> None:
    assert all(in_catalog(name) for name in constants())
    assert all({"rope_theta", "rms_norm_eps"} <= fields.keys() for fields in constants().values())
    assert catalog_model("Qwen/Qwen2.5-7B").config["rope_theta"] == 1_000_000
    for name in NAMES:
        model = catalog_model(name)
        family = megatron_models().families.get(model.model_type)
        for what in megatron_model(model).untold:
            if family is None:
                assert what.startswith(f"model_type {model.model_type!r} (")
            elif what.startswith("no ") and " in its config" in what:
                assert model.config.get(what.split()[1]) is None
    assert layer_pattern([False] * 3 + [True] * 58) == "[0]*3+[1]*58"
    assert layer_pattern([True]) == "[1]*1"
    # Built by the model's own class from its config, from a shipped one, or from words.
    kinds = {name: engine.launches.models for name, engine in facts().engines.items()}
    assert kinds["megatron"] == "words"
    assert {kinds[name] for name in ("torch", "deepspeed", "accelerate")} == {"any"}


@over("name said", table("megatron_model", "published").items())
def test_models_are_told_as_they_were_published(name: str, said: dict[str, Any]) -> None:
    model = megatron_model(catalog_model(name))
    said = said | {"attention_dropout": 0, "hidden_dropout": 0}
    assert model.untold == ()
    assert {word: model.words.get(word) for word in said} == said


@over("name what", table("megatron_model", "without_words").items())
def test_what_has_no_word_is_named(name: str, what: str) -> None:
    assert what in " ".join(megatron_model(catalog_model(name)).untold)


@over("base fields said", table("megatron_model", "words"))
def test_a_field_has_its_word(base: str, fields: dict[str, Any], said: dict[str, Any]) -> None:
    model = words_of(base, fields)
    assert model.untold == ()
    assert {word: model.words.get(word) for word in said} == said


INFINITE = ("llama", {"rope_theta": math.inf}, "rope_theta inf, which is not whole")


@over("base fields what", [*table("megatron_model", "untold"), INFINITE])
def test_a_value_without_a_word_is_named(base: str, fields: dict[str, Any], what: str) -> None:
    (untold,) = words_of(base, fields).untold
    assert untold.startswith(what)


def test_a_field_is_sorted_once() -> None:
    document = yaml.safe_load(Path(MEGATRON.path).read_text(encoding="utf-8"))
    twice = {"llama": {"refused": {"llama": "no reason"}}, "mlp_bias": {"sizes": ["mlp_bias"]}}
    for name, part in twice.items():
        with pytest.raises(ValueError, match=f"'{name}' is"):
            MegatronModels.model_validate(document | part)
