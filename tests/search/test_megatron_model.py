"""Every property of a model has its word for Megatron-LM, or its bundle is refused by name."""

from __future__ import annotations

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

LLAMA = {"model_type": "llama", "hidden_size": 256, "intermediate_size": 512}
LLAMA |= {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4}
LLAMA |= {"vocab_size": 1024, "max_position_embeddings": 8192, "tie_word_embeddings": False}
LLAMA |= {"rope_theta": 500000.0, "rms_norm_eps": 1e-5}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
QWEN_MOE = LLAMA | EXPERTS | {"model_type": "qwen3_moe", "head_dim": 32}
QWEN_MOE |= {"norm_topk_prob": True, "router_aux_loss_coef": 0.001}
LATENT = {"model_type": "deepseek_v3", "kv_lora_rank": 64, "q_lora_rank": None, "v_head_dim": 32}
LATENT |= {"qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "moe_intermediate_size": 128}
LATENT |= {"n_routed_experts": 16, "n_shared_experts": 2, "num_experts_per_tok": 4}
LATENT |= {"first_k_dense_replace": 1, "n_group": 4, "topk_group": 2}
YARN = {"type": "yarn", "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707}
YARN |= {"original_max_position_embeddings": 4096}
LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "factor": 16.0}
LLAMA3 |= {"original_max_position_embeddings": 8192}
NAMES = sorted({*catalog_ids(), *constants()})


def words_of(fields: dict[str, Any]) -> MegatronModel:
    """What Megatron-LM is told of a small model with these fields."""
    config = {key: value for key, value in (LLAMA | fields).items() if value is not None}
    return megatron_model(load_model(config))


# The catalog


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


def test_a_known_family_is_refused_by_the_name_of_a_field() -> None:
    for name in NAMES:
        model = catalog_model(name)
        family = megatron_models().families.get(model.model_type)
        for what in megatron_model(model).untold:
            if family is None:
                assert what.startswith(f"model_type {model.model_type!r} (")
            elif what.startswith("no ") and " in its config" in what:
                assert model.config.get(what.split()[1]) is None


def test_constants_are_those_of_models_in_the_catalog() -> None:
    assert all(in_catalog(name) for name in constants())
    assert all({"rope_theta", "rms_norm_eps"} <= fields.keys() for fields in constants().values())
    assert catalog_model("Qwen/Qwen2.5-7B").config["rope_theta"] == 1_000_000


PUBLISHED: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3-8B": {"qk_layernorm": True, "rotary_base": 1_000_000, "norm_epsilon": 1e-6},
    "Qwen/Qwen2.5-7B": {"add_qkv_bias": True, "rotary_base": 1_000_000},
    "meta-llama/Llama-3.1-405B": {"rotary_base": 500_000, "rope_scaling_factor": 8.0}
    | {"use_rope_scaling": True},
    "meta-llama/Llama-3.2-1B": {"rope_scaling_factor": 32.0},
    "mistralai/Mistral-7B-v0.1": {"window_size": "4095,0"},
    "mistralai/Mixtral-8x7B-v0.1": {"moe_aux_loss_coeff": 0.02, "moe_router_topk": 2},
    "Qwen/Qwen3-30B-A3B": {"moe_aux_loss_coeff": 0.001, "moe_ffn_hidden_size": 768},
    "deepseek-ai/DeepSeek-V3": {"multi_latent_attention": True, "qk_layernorm": True}
    | {"q_lora_rank": 1536, "kv_lora_rank": 512, "rope_type": "yarn", "mscale_all_dim": 1.0}
    | {"rotary_scaling_factor": 40, "moe_layer_freq": "[0]*3+[1]*58"}
    | {"moe_shared_expert_intermediate_size": 2048, "moe_router_score_function": "sigmoid"}
    | {"moe_router_enable_expert_bias": True, "moe_router_num_groups": 8}
    | {"moe_router_group_topk": 4, "moe_router_topk_scaling_factor": 2.5}
    | {"moe_router_load_balancing_type": "seq_aux_loss", "moe_aux_loss_coeff": 0.0001},
}


def test_models_are_told_as_they_were_published() -> None:
    dropout = {"attention_dropout": 0, "hidden_dropout": 0}
    for name, said in PUBLISHED.items():
        model = megatron_model(catalog_model(name))
        assert model.untold == (), name
        assert {word: model.words.get(word) for word in said | dropout} == said | dropout, name


def test_what_has_no_word_is_named() -> None:
    for name, what in (
        ("allenai/OLMo-2-1124-7B-Instruct", "norms after attention and feed-forward block"),
        ("Qwen/Qwen1.5-MoE-A2.7B", "a gate on its shared expert"),
        ("google/gemma-2-9b-it", "capped logits"),
        ("ibm-granite/granite-3.1-8b-instruct", "multipliers of embeddings"),
        ("openai/gpt-oss-20b", "attention sinks"),
        ("CohereLabs/c4ai-command-r-v01", "side by side"),
        ("moonshotai/Kimi-K2-Instruct", "rope_scaling {'type': 'yarn', 'beta_fast': 1.0"),
        ("01-ai/Yi-34B", "no rope_theta in its config (give its folder)"),
    ):
        assert what in " ".join(megatron_model(catalog_model(name)).untold), name


# One field at a time


WORDS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"rotary_base": 500_000, "norm_epsilon": 1e-5, "swiglu": True}),
    ({"rope_theta": None, "rope_parameters": {"rope_theta": 1e6}}, {"rotary_base": 1_000_000}),
    (
        {"rope_scaling": {"type": "linear", "factor": 4.0}},
        {"rotary_seq_len_interpolation_factor": 4},
    ),
    (
        {"rope_theta": None, "rope_parameters": LLAMA3 | {"rope_theta": 5e5}},
        {"rope_scaling_factor": 16.0, "use_rope_scaling": True, "rotary_base": 500_000},
    ),
    (
        {"model_type": "nemotron", "hidden_act": "relu2", "norm_eps": 1e-5}
        | {"rms_norm_eps": None, "rope_parameters": {"partial_rotary_factor": 0.25}},
        {"rotary_percent": 0.25, "apply_layernorm_1p": True, "normalization": "LayerNorm"},
    ),
    ({"initializer_range": 0.01}, {"init_method_std": 0.01}),
    ({"attention_dropout": 0.1}, {"attention_dropout": 0.1}),
    ({"model_type": "phi3", "partial_rotary_factor": 0.75}, {"rotary_percent": 0.75}),
    (
        {"model_type": "arcee", "hidden_act": "relu2"},
        {"squared_relu": True, "disable_bias_linear": True},
    ),
    (
        {"model_type": "seed_oss", "attention_dropout": 0, "residual_dropout": 0},
        {"add_qkv_bias": True},
    ),
    (QWEN_MOE, {"moe_router_load_balancing_type": "aux_loss"}),
    (QWEN_MOE | {"norm_topk_prob": False}, {"moe_router_pre_softmax": True}),
    (
        QWEN_MOE | {"mlp_only_layers": [0, 2]},
        {"moe_layer_freq": "[0]*1+[1]*1+[0]*1+[1]*1", "ffn_hidden_size": 512},
    ),
    (
        LATENT,
        {"rope_type": "rope", "no_rope_fusion": True, "qk_head_dim": 32}
        | {"moe_layer_freq": "[0]*1+[1]*3", "moe_shared_expert_intermediate_size": 256}
        | {"moe_router_load_balancing_type": "none"},
    ),
    (LATENT | {"rope_scaling": YARN}, {"rope_type": "yarn", "mscale": 0.707}),
]


def test_a_field_has_its_word() -> None:
    for fields, said in WORDS:
        model = words_of(fields)
        assert model.untold == (), fields
        assert {word: model.words.get(word) for word in said} == said


UNTOLD: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "llama9"}, "model_type 'llama9' (its class is not known to be the same)"),
    ({"attention_bias": True}, "attention_bias True"),
    ({"mlp_bias": True}, "mlp_bias True"),
    ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    ({"hidden_act": "relu2"}, "hidden_act 'relu2'"),
    ({"rms_norm_eps": None}, "no rms_norm_eps in its config (give its folder)"),
    ({"rms_norm_eps": "tiny"}, "rms_norm_eps 'tiny', which is not a number"),
    ({"rope_theta": 10000.5}, "rope_theta 10000.5, which is not whole"),
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling {'type': 'dynamic'"),
    ({"rope_scaling": YARN}, "rope_scaling {'type': 'yarn'"),
    ({"rope_scaling": LLAMA3 | {"high_freq_factor": 8.0}}, "rope_scaling {'type': 'llama3'"),
    (
        LATENT | {"rope_scaling": YARN | {"original_max_position_embeddings": None}},
        "rope_scaling {'type': 'yarn'",
    ),
    ({"rope_theta": float("inf")}, "rope_theta inf, which is not whole"),
    ({"rope_scaling": LLAMA3, "rope_parameters": "dynamic"}, "rope_parameters 'dynamic'"),
    ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping 50.0"),
    ({"residual_multiplier": 0.22}, "residual_multiplier 0.22"),
    (QWEN_MOE | {"model_type": "llama"}, "8 experts in model_type 'llama'"),
    (QWEN_MOE | {"router_aux_loss_coef": None}, "no router_aux_loss_coef in its config"),
    (QWEN_MOE | {"num_experts_per_tok": 1}, "norm_topk_prob True with one expert per token"),
    (LATENT | {"norm_topk_prob": False}, "norm_topk_prob False beside sigmoid scores"),
    (LATENT | {"scoring_func": "softmax"}, "scoring_func 'softmax'"),
    (LATENT | {"topk_method": "greedy"}, "topk_method 'greedy'"),
    (LATENT | {"topk_group": 1}, "n_group 4, of which 1 give 4 experts"),
    (LATENT | {"topk_group": "many"}, "n_group 4, of which many give 4 experts"),
    (LATENT | {"rope_scaling": YARN | {"beta_fast": 1}}, "rope_scaling {'type': 'yarn'"),
]


def test_a_value_without_a_word_is_named() -> None:
    wrong = []
    for fields, what in UNTOLD:
        untold = words_of(fields).untold
        if len(untold) != 1 or not untold[0].startswith(what):
            wrong.append((what, untold))
    assert wrong == []


def test_patterns_are_runs_of_layers() -> None:
    assert layer_pattern([False] * 3 + [True] * 58) == "[0]*3+[1]*58"
    assert layer_pattern([True]) == "[1]*1"


# The table


def test_each_framework_says_how_it_gets_a_model() -> None:
    """Built by the model's own class from its config, from a shipped one, or from words."""
    kinds = {name: engine.launches.models for name, engine in facts().engines.items()}
    assert kinds["megatron"] == "words"
    assert {kinds[name] for name in ("torch", "deepspeed", "accelerate")} == {"any"}


def test_a_field_is_sorted_once() -> None:
    document = yaml.safe_load(Path(MEGATRON.path).read_text(encoding="utf-8"))
    twice = {"llama": {"refused": {"llama": "no reason"}}, "mlp_bias": {"sizes": ["mlp_bias"]}}
    for name, part in twice.items():
        with pytest.raises(ValueError, match=f"'{name}' is"):
            MegatronModels.model_validate(document | part)
