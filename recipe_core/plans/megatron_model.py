"""A model in the words of Megatron-LM, and what of it has none.

A bundle that left a property of a model out would train another model without a word, so each
property has its argument or is refused by name: ``engines/training/megatron.yaml``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from recipe_core.engines.megatron import Family, megatron_models
from recipe_core.models.attention import GroupedAttention, LatentAttention
from recipe_core.models.mlp import DenseMlp, MoeMlp
from recipe_core.models.spec import ModelSpec

Config = Mapping[str, Any]

_ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function")
_ACTIVATION_WORDS = {"silu": "swiglu", "relu2": "squared_relu", "gelu_pytorch_tanh": ""}
_ROTARY = ("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor")
_ROUTING = (
    "aux_loss_alpha",
    "n_group",
    "norm_topk_prob",
    "routed_scaling_factor",
    "router_aux_loss_coef",
    "scoring_func",
    "seq_aux",
    "topk_group",
    "topk_method",
)
# What ``--use-rope-scaling`` scales by, beside its factor (``rotary_pos_embedding.py``).
_LLAMA3 = {
    "low_freq_factor": 1,
    "high_freq_factor": 4,
    "original_max_position_embeddings": 8192,
}

# YaRN of latent attention has no arguments for these (``MLATransformerConfig``).
_YARN = {"beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 4096}

_YARN_FREE = frozenset({"factor", "mscale", "mscale_all_dim"})

# How many of a group's best scores rank it, by ``topk_method``; Megatron-LM sums top-k over the
# number of groups.
_SUMMED = {"noaux_tc": 2, "group_limited_greedy": 1}


@dataclass(frozen=True, slots=True)
class Word:
    """An argument, by the name of its destination, and its value."""

    argument: str
    value: Any


@dataclass(frozen=True, slots=True)
class Untold:
    """A property that no argument stands for, as it ends "a model with …"."""

    phrase: str


Items = Iterator[Word | Untold]


@dataclass(frozen=True, slots=True)
class MegatronModel:
    """A model as arguments of ``pretrain_gpt``, and the properties that have none."""

    words: dict[str, Any]
    untold: tuple[str, ...]


def megatron_model(model: ModelSpec) -> MegatronModel:
    """Return what can be told of a model: dimensions and layers, and every field of its config."""
    items = list(_model_items(model))
    words = {item.argument: item.value for item in items if isinstance(item, Word)}
    return MegatronModel(words, tuple(item.phrase for item in items if isinstance(item, Untold)))


def layer_pattern(marks: Sequence[bool]) -> str:
    """Marked layers as Megatron-LM reads a list: ``[0]*3+[1]*58``."""
    runs = ((int(mark), len(list(run))) for mark, run in groupby(marks))
    return "+".join(f"[{mark}]*{count}" for mark, count in runs)


def _model_items(model: ModelSpec) -> Items:
    models, name = megatron_models(), model.model_type
    family = models.families.get(name)
    if family is None:
        reason = models.refused.get(name)
        yield Untold(f"model_type {name!r} ({reason or 'its class is not known to be the same'})")
        return
    config = {**family.defaults, **{k: v for k, v in model.config.items() if v is not None}}
    yield from _total_items(model)
    yield from _attention_items(model)
    yield from _block_items(model, config, family)
    yield from _field_items(config, family)
    yield from _rotary_items(config, _has_latent_layers(model))
    if model.is_moe:
        yield from _routing_items(model, config, family)


# What the model's layers say


def _total_items(model: ModelSpec) -> Items:
    yield Word("num_layers", len(model.layers))
    yield Word("hidden_size", model.hidden)
    yield Word("vocab_size", model.vocabulary)
    yield Word("untie_embeddings_and_output_weights", not model.tied_embeddings)
    if not model.generates:
        yield Untold("no head for tokens")
    for tower in model.towers:
        yield Untold(f"the {tower.name}")
    for modality in model.left_out:
        yield Untold(f"an encoder of {modality}")
    for extra in model.extras:
        yield Untold(f"the {extra.name.replace('_', ' ')}")
    if any(layer.per_layer_input or layer.streams > 1 for layer, _ in model.kinds):
        yield Untold("more than one input per layer")


def _has_latent_layers(model: ModelSpec) -> bool:
    return any(isinstance(layer.attention, LatentAttention) for layer, _ in model.kinds)


def _attention_items(model: ModelSpec) -> Items:
    kinds = {layer.attention for layer, _ in model.kinds}
    grouped = [kind for kind in kinds if isinstance(kind, GroupedAttention)]
    latent = [kind for kind in kinds if isinstance(kind, LatentAttention)]
    if len(grouped) == len(kinds):
        yield from _grouped_items(model, grouped)
    elif len(kinds) == len(latent) == 1:
        yield from _latent_items(latent[0])
    else:
        yield Untold(f"layers of {len(kinds)} kinds of attention")


def _grouped_items(model: ModelSpec, kinds: Sequence[GroupedAttention]) -> Items:
    shapes = {(kind.heads, kind.kv_heads, kind.head_dim, kind.v_head_dim) for kind in kinds}
    heads, kv_heads, head_dim, v_head_dim = min(shapes)
    if len(shapes) > 1:
        yield Untold(f"attention of {len(shapes)} shapes")
    if v_head_dim != head_dim:
        yield Untold(f"values of {v_head_dim} beside keys of {head_dim} per head")
    if any(kind.gate or kind.shared_kv or kind.borrows_cache for kind in kinds):
        yield Untold("gated attention or shared keys and values")
    if any(kind.bidirectional for kind in kinds):
        yield Untold("attention to later tokens")
    yield Word("num_attention_heads", heads)
    yield Word("group_query_attention", kv_heads != heads)
    yield Word("num_query_groups", kv_heads)
    yield Word("kv_channels", head_dim)
    yield from _window_items(model, {kind.window for kind in kinds if kind.window})


def _window_items(model: ModelSpec, widths: set[int]) -> Items:
    """A window of w tokens is the token itself and w - 1 before it."""
    if len(widths) > 1:
        yield Untold(f"windows of {' and '.join(map(str, sorted(widths)))} tokens")
    if not widths:
        return
    yield Word("window_size", f"{min(widths) - 1},0")
    marks = [layer.attention is not None and bool(layer.attention.window) for layer in model.layers]
    if not all(marks):
        yield Word("window_attn_skip_freq", layer_pattern(marks))


def _latent_items(attention: LatentAttention) -> Items:
    if attention.index_heads or attention.attends:
        yield Untold("an indexer that chooses what is attended to")
    if attention.window:
        yield Untold(f"a window of {attention.window} tokens on latent attention")
    yield Word("multi_latent_attention", True)
    yield Word("num_attention_heads", attention.heads)
    if attention.q_lora_rank is not None:
        yield Word("q_lora_rank", attention.q_lora_rank)
    yield Word("kv_lora_rank", attention.kv_lora_rank)
    yield Word("qk_head_dim", attention.nope_head_dim)
    yield Word("qk_pos_emb_head_dim", attention.rope_head_dim)
    yield Word("v_head_dim", attention.v_head_dim)


def _block_items(model: ModelSpec, config: Config, family: Family) -> Items:
    dense = {block for block, _ in model.mlps if isinstance(block, DenseMlp)}
    experts = {block for block, _ in model.mlps if isinstance(block, MoeMlp)}
    if not dense | experts or any(layer.mlp is None for layer, _ in model.kinds):
        yield Untold("layers without a feed-forward block")
        return
    if len(dense) > 1 or len(experts) > 1:
        yield Untold("feed-forward blocks of several shapes")
    if any(block.latent or block.bias for block in experts):
        yield Untold("experts in a space of their own, or with biases")
    yield Word("ffn_hidden_size", min(block.intermediate for block in dense or experts))
    yield from _activation_items(config, family)
    if dense and experts:
        marks = [isinstance(layer.mlp, MoeMlp) for layer in model.layers]
        yield Word("moe_layer_freq", layer_pattern(marks))


def _activation_items(config: Config, family: Family) -> Items:
    """That of the family; a gate is a part of it. GELU is by its tanh approximation unasked."""
    usual = family.defaults.get("hidden_act", "silu")
    name = next((config[key] for key in _ACTIVATIONS if key in config), usual)
    if name != usual:
        yield Untold(f"hidden_act {name!r}")
    elif argument := _ACTIVATION_WORDS[usual]:
        yield Word(argument, True)


# What the fields of its config say


def _field_items(config: Config, family: Family) -> Items:
    """Every field has an argument, an allowed value, or no bearing on what is trained."""
    models = megatron_models()
    arguments = {**models.fields, **family.fields}
    allowed = {**models.allowed, **family.allowed}
    elsewhere = {*models.wordless, *_ACTIVATIONS, *_ROTARY, *_ROUTING, family.norm}
    yield Word("normalization", "RMSNorm")
    yield Word("disable_bias_linear", True)
    yield Word("attention_dropout", 0.0)
    yield Word("hidden_dropout", 0.0)
    yield from (Word(argument, value) for argument, value in family.always.items())
    for name, value in config.items():
        if name in arguments:
            yield from _flag_or_number_item(arguments[name], config, name)
        elif value not in allowed.get(name, () if name not in elsewhere else (value,)):
            yield Untold(f"{name} {value!r:.80}")
    yield from _number_item("norm_epsilon", config, family.norm)


def _flag_or_number_item(argument: str, config: Config, name: str) -> Items:
    value = config[name]
    yield from (
        (Word(argument, value),)
        if isinstance(value, bool)
        else _number_item(argument, config, name)
    )


def _number_item(argument: str, config: Config, name: str) -> Items:
    value = config.get(name)
    if value is None:
        yield Untold(f"no {name} in its config (give its folder)")
    elif isinstance(value, bool) or not isinstance(value, int | float):
        yield Untold(f"{name} {value!r:.80}, which is not a number")
    else:
        yield Word(argument, value)


def _rotary_items(config: Config, latent: bool) -> Items:
    """Base, share of the head, and the scaling of frequencies."""
    for name in ("rope_scaling", "rope_parameters"):
        if not isinstance(config.get(name, {}), Mapping):
            yield Untold(f"{name} {config[name]!r:.80}")
            return
    rope = {
        key: value
        for name in ("rope_scaling", "rope_parameters")
        for key, value in (config.get(name) or {}).items()
        if value is not None
    }
    moved = {key: rope.pop(key) for key in ("rope_theta", "partial_rotary_factor") if key in rope}
    fields = {**{key: config[key] for key in _ROTARY if key in config}, **moved}
    kind = rope.pop("type", None)
    kind = rope.pop("rope_type", kind) or "default"
    yield Word("position_embedding_type", "rope")
    yield from _whole_number_item("rotary_base", fields, "rope_theta")
    if "partial_rotary_factor" in fields:
        yield from _number_item("rotary_percent", fields, "partial_rotary_factor")
    if latent:
        yield Word("rope_type", "yarn" if kind == "yarn" else "rope")
        yield Word("no_rope_fusion", kind != "yarn")  # it fuses YaRN's only
    yield from _rope_scaling_items(str(kind), rope, latent)


def _whole_number_item(argument: str, config: Config, name: str) -> Items:
    for item in _number_item(argument, config, name):
        if isinstance(item, Untold):
            yield item
        elif not float(item.value).is_integer():
            yield Untold(f"{name} {item.value}, which is not whole")
        else:
            yield Word(argument, int(item.value))


def _rope_scaling_items(kind: str, rope: dict[str, Any], latent: bool) -> Items:
    """The scaling of rotary frequencies; ``rope`` is what is stated beside its kind."""
    if kind == "default" and not rope:
        return
    if kind == "linear" and rope.keys() == {"factor"}:
        yield from _whole_number_item("rotary_seq_len_interpolation_factor", rope, "factor")
    elif kind == "llama3" and not latent and _is_fixed(rope, _LLAMA3, frozenset({"factor"})):
        yield Word("use_rope_scaling", True)
        yield from _number_item("rope_scaling_factor", rope, "factor")
    elif kind == "yarn" and latent and _is_fixed(rope, _YARN, _YARN_FREE):
        yield from _number_item("rotary_scaling_factor", rope, "factor")
        usual = {"mscale": 1.0, "mscale_all_dim": 0.0} | rope
        yield from _number_item("mscale", usual, "mscale")
        yield from _number_item("mscale_all_dim", usual, "mscale_all_dim")
    else:
        yield Untold(f"rope_scaling { ({'type': kind} | rope)!r:.160}")


def _is_fixed(rope: Config, fixed: Config, free: frozenset[str]) -> bool:
    """Return whether a scaling states nothing but what can be told, and else what is built in."""
    original = "original_max_position_embeddings"  # left out, it is the whole context
    free_or_fixed = all(key in free or fixed.get(key) == value for key, value in rope.items())
    return free_or_fixed and rope.get(original) == fixed[original]


def _routing_items(model: ModelSpec, config: Config, family: Family) -> Items:
    experts = next(block for block, _ in model.mlps if isinstance(block, MoeMlp))
    if family.router is None:
        yield Untold(f"{experts.experts} experts in model_type {model.model_type!r}")
        return
    yield Word("num_experts", experts.experts)
    yield Word("moe_router_topk", experts.top_k)
    yield Word("moe_ffn_hidden_size", experts.intermediate)
    if experts.shared_intermediate:
        yield Word("moe_shared_expert_intermediate_size", experts.shared_intermediate)
    yield Word("moe_router_score_function", family.router)
    yield Word("moe_router_dtype", "fp32")  # as transformers computes weights of experts
    if config.get("scoring_func", family.router) != family.router:
        yield Untold(f"scoring_func {config['scoring_func']!r}")
    yield from _router_weight_items(config, family, experts.top_k)
    yield from _router_group_items(config, family, experts.top_k)
    yield from _balance_items(config, family)


def _router_weight_items(config: Config, family: Family, top_k: int) -> Items:
    """Softmax before the choice leaves weights as they are, after it they sum to one."""
    normalised = bool(config.get("norm_topk_prob"))
    if family.router == "sigmoid":
        yield Word("moe_router_enable_expert_bias", True)
        if not normalised:
            yield Untold("norm_topk_prob False beside sigmoid scores")
    elif not normalised:
        yield Word("moe_router_pre_softmax", True)
    elif top_k == 1:
        yield Untold("norm_topk_prob True with one expert per token")
    if config.get("routed_scaling_factor", 1) != 1:
        yield from _number_item("moe_router_topk_scaling_factor", config, "routed_scaling_factor")


def _router_group_items(config: Config, family: Family, top_k: int) -> Items:
    usual = "noaux_tc" if family.router == "sigmoid" else "greedy"
    method, groups = config.get("topk_method", usual), config.get("n_group", 1)
    limited = config.get("topk_group", 1)
    if method not in (usual, *(("group_limited_greedy",) if usual == "greedy" else ())):
        yield Untold(f"topk_method {method!r}")
    if groups == 1 or method == "greedy":
        return
    if not _is_count(groups) or not _is_count(limited) or top_k // limited != _SUMMED.get(method):
        yield Untold(f"n_group {groups}, of which {limited} give {top_k} experts")
    yield Word("moe_router_num_groups", groups)
    yield Word("moe_router_group_topk", limited)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _balance_items(config: Config, family: Family) -> Items:
    """The auxiliary loss; routers with a bias per expert are balanced without one."""
    name = "aux_loss_alpha" if "aux_loss_alpha" in config else "router_aux_loss_coef"
    if family.router == "sigmoid" and name not in config:
        yield Word("moe_router_load_balancing_type", "none")
        return
    kind = "seq_aux_loss" if config.get("seq_aux") else "aux_loss"
    yield Word("moe_router_load_balancing_type", kind)
    yield from _number_item("moe_aux_loss_coeff", config, name)
