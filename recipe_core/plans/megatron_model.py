"""A model in the words of Megatron-LM, and what of it has none.

A bundle that left a property of a model out would train another model without a word, so each
property has its argument or is refused by name: ``engines/training/megatron.yaml``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any, Literal

from pydantic import model_validator

from recipe_core.base.data_files import DataFile, DataRow
from recipe_core.base.resources import PACKAGE
from recipe_core.models.attention import GroupedAttention, LatentAttention
from recipe_core.models.mlp import DenseMlp, MoeMlp
from recipe_core.models.spec import ModelSpec
from recipe_core.plans.titan_models import read_attributes

MEGATRON = DataFile(PACKAGE / "engines" / "training" / "megatron.yaml", "engines")
Config = Mapping[str, Any]


class Family(DataRow):
    """A ``model_type``: what its class computes beside the fields of a ``config.json``.

    ``always``: arguments of all its models. ``fields``: arguments of fields; ``allowed``: values
    of fields that need none; both before those that all families share. ``defaults`` of its
    configuration class. ``norm``: the field with the epsilon of its norms. ``router``: how scores
    of experts become weights, None for a family without experts.
    """

    always: Mapping[str, Any] = {}
    fields: Mapping[str, str] = {}
    allowed: Mapping[str, tuple[Any, ...]] = {}
    defaults: Mapping[str, Any] = {}
    norm: str = "rms_norm_eps"
    router: Literal["softmax", "sigmoid"] | None = None


class MegatronModels(DataRow):
    """The arguments of ``pretrain_gpt`` at a release, by what they stand for.

    ``arguments``: by class of this project, of its attributes; ``lacking``: attributes that have
    none, as they end "a model with …". ``always``: values of arguments that hold for every model.
    ``activations``: arguments of activations, null for one that needs none.
    ``read``: fields of which a part is told in its own way, by the part. ``routers``: what
    families of a router allow.
    """

    schema_version: Literal[1]
    release: str
    source: str
    arguments: dict[str, dict[str, str]]
    lacking: dict[str, dict[str, str]]
    always: dict[str, Any]
    activations: dict[str, str | None]
    families: dict[str, Family]
    routers: dict[str, dict[str, tuple[Any, ...]]]
    refused: dict[str, str]
    neutral: dict[str, tuple[str, ...]]
    sizes: tuple[str, ...]
    read: dict[str, tuple[str, ...]]
    fields: dict[str, str]
    allowed: dict[str, tuple[Any, ...]]

    @model_validator(mode="after")
    def _sorts_each_once(self) -> MegatronModels:
        if both := sorted(self.families.keys() & self.refused.keys()):
            raise ValueError(f"{both[0]!r} is in families and in refused")
        names = [*self.sizes, *self.fields, *self.allowed]
        names += [name for listed in self.neutral.values() for name in listed]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{twice[0]!r} is listed twice")
        return self

    @property
    def wordless(self) -> frozenset[str]:
        return frozenset(self.sizes).union(*self.neutral.values(), *self.read.values())


@cache
def megatron_models() -> MegatronModels:
    """The file ``megatron.yaml``.

    Raises:
        InputError: naming what is wrong with it.
    """
    return MEGATRON.read_as(MegatronModels)


# What ``--use-rope-scaling`` scales by, beside its factor (``rotary_pos_embedding.py``).
_LLAMA3 = {"low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}
# YaRN of latent attention has no arguments for these (``MLATransformerConfig``).
_YARN = {"beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 4096}

_YARN_FREE = frozenset({"factor", "mscale", "mscale_all_dim"})

# How many of a group's best scores rank it, by ``topk_method``; Megatron-LM sums top-k over the
# number of groups.
_SUMMED = {"noaux_tc": 2, "group_limited_greedy": 1}


# An argument, by the name of its destination, with its value; or a property that no argument stands
# for, as it ends "a model with …".
Items = Iterator[tuple[str, Any] | str]


@dataclass(frozen=True, slots=True)
class MegatronModel:
    """A model as arguments of ``pretrain_gpt``, and the properties that have none."""

    words: dict[str, Any]
    untold: tuple[str, ...]


def megatron_model(model: ModelSpec) -> MegatronModel:
    """Return what can be told of a model: dimensions and layers, and every field of its config."""
    items = list(_model_items(model))
    words = dict(item for item in items if not isinstance(item, str))
    return MegatronModel(
        words, tuple(dict.fromkeys(item for item in items if isinstance(item, str)))
    )


def layer_pattern(marks: Sequence[bool]) -> str:
    """Marked layers as Megatron-LM reads a list: ``[0]*3+[1]*58``."""
    runs = ((int(mark), len(list(run))) for mark, run in groupby(marks))
    return "+".join(f"[{mark}]*{count}" for mark, count in runs)


def _model_items(model: ModelSpec) -> Items:
    models, name = megatron_models(), model.model_type
    family = models.families.get(name)
    if family is None:
        reason = models.refused.get(name)
        yield f"model_type {name!r} ({reason or 'its class is not known to be the same'})"
        return
    config = {**family.defaults, **{k: v for k, v in model.config.items() if v is not None}}
    yield from _total_items(model)
    yield from _attention_items(model)
    yield from _block_items(model, config, family)
    yield from _field_items(config, family)
    yield from _rotary_items(config, has_latent_layers(model))
    if model.is_moe:
        yield from _routing_items(model, config, family)


# What the model's layers say


def _part_items(*parts: object) -> Items:
    """Arguments of what parts of the model have of their attributes, and what has none."""
    models = megatron_models()
    for part in parts:
        yield from (item for item in read_attributes(part, models.arguments) if item[1])
        lacking = read_attributes(part, models.lacking)
        yield from (text.format(value) for text, value in lacking if value)


def _total_items(model: ModelSpec) -> Items:
    yield "num_layers", len(model.layers)
    yield from _part_items(model, *model.towers)
    yield "untie_embeddings_and_output_weights", not model.tied_embeddings
    if not model.generates:
        yield "no head for tokens"
    for modality in model.left_out:
        yield f"an encoder of {modality}"
    for extra in model.extras:
        yield f"the {extra.name.replace('_', ' ')}"
    if any(layer.per_layer_input or layer.streams > 1 for layer, _ in model.kinds):
        yield "more than one input per layer"


def has_latent_layers(model: ModelSpec) -> bool:
    return any(isinstance(layer.attention, LatentAttention) for layer, _ in model.kinds)


def _attention_items(model: ModelSpec) -> Items:
    kinds = {layer.attention for layer, _ in model.kinds}
    grouped = [kind for kind in kinds if isinstance(kind, GroupedAttention)]
    if len(grouped) == len(kinds):
        yield from _grouped_items(model, grouped)
    elif len(kinds) == 1 and has_latent_layers(model):
        yield "multi_latent_attention", True
        yield from _part_items(*kinds)
    else:
        yield f"layers of {len(kinds)} kinds of attention"


def _grouped_items(model: ModelSpec, kinds: Sequence[GroupedAttention]) -> Items:
    shapes = {(kind.heads, kind.kv_heads, kind.head_dim, kind.v_head_dim): kind for kind in kinds}
    kind = shapes[min(shapes)]
    if len(shapes) > 1:
        yield f"attention of {len(shapes)} shapes"
    if kind.v_head_dim != kind.head_dim:
        yield f"values of {kind.v_head_dim} beside keys of {kind.head_dim} per head"
    heads, *rest = _part_items(kind)
    yield heads
    yield "group_query_attention", kind.kv_heads != kind.heads
    yield from rest
    yield from (item for item in _part_items(*kinds) if isinstance(item, str))
    yield from _window_items(model, {kind.window for kind in kinds if kind.window})


def _window_items(model: ModelSpec, widths: set[int]) -> Items:
    """A window of w tokens is the token itself and w - 1 before it."""
    if len(widths) > 1:
        yield f"windows of {' and '.join(map(str, sorted(widths)))} tokens"
    if not widths:
        return
    yield "window_size", f"{min(widths) - 1},0"
    marks = [layer.attention is not None and bool(layer.attention.window) for layer in model.layers]
    if not all(marks):
        yield "window_attn_skip_freq", layer_pattern(marks)


def _block_items(model: ModelSpec, config: Config, family: Family) -> Items:
    dense = {block for block, _ in model.mlps if isinstance(block, DenseMlp)}
    experts = {block for block, _ in model.mlps if isinstance(block, MoeMlp)}
    if not dense | experts or any(layer.mlp is None for layer, _ in model.kinds):
        yield "layers without a feed-forward block"
        return
    if len(dense) > 1 or len(experts) > 1:
        yield "feed-forward blocks of several shapes"
    yield from (item for item in _part_items(*experts) if isinstance(item, str))
    yield "ffn_hidden_size", min(block.intermediate for block in dense or experts)
    yield from _activation_items(config, family)
    if dense and experts:
        marks = [isinstance(layer.mlp, MoeMlp) for layer in model.layers]
        yield "moe_layer_freq", layer_pattern(marks)


def _activation_items(config: Config, family: Family) -> Items:
    """That of the family; a gate is a part of it. GELU is by its tanh approximation unasked."""
    models, usual = megatron_models(), family.defaults.get("hidden_act", "silu")
    fields = models.read["activation"]
    name = next((config[key] for key in fields if key in config), usual)
    if name != usual:
        yield f"hidden_act {name!r}"
    elif argument := models.activations[usual]:
        yield argument, True


# What the fields of its config say


def _field_items(config: Config, family: Family) -> Items:
    """Every field has an argument, an allowed value, or no bearing on what is trained."""
    models = megatron_models()
    arguments = {**models.fields, **family.fields}
    allowed = {**models.allowed, **models.routers.get(family.router or "", {}), **family.allowed}
    elsewhere = {*models.wordless, family.norm}
    yield from {**models.always, **family.always}.items()
    for name, value in config.items():
        if name in arguments and isinstance(value, bool):
            yield arguments[name], value
        elif name in arguments:
            yield from _number_item(arguments[name], config, name)
        elif value not in allowed.get(name, () if name not in elsewhere else (value,)):
            yield f"{name} {value!r:.80}"
    yield from _number_item("norm_epsilon", config, family.norm)


def _number_item(argument: str, config: Config, name: str) -> Items:
    value = config.get(name)
    if value is None:
        yield f"no {name} in its config (give its folder)"
    elif isinstance(value, bool) or not isinstance(value, int | float):
        yield f"{name} {value!r:.80}, which is not a number"
    else:
        yield argument, value


def _rotary_items(config: Config, latent: bool) -> Items:
    """Base, share of the head, and the scaling of frequencies."""
    for name in ("rope_scaling", "rope_parameters"):
        if not isinstance(config.get(name, {}), Mapping):
            yield f"{name} {config[name]!r:.80}"
            return
    rope = {
        key: value
        for name in ("rope_scaling", "rope_parameters")
        for key, value in (config.get(name) or {}).items()
        if value is not None
    }
    moved = {key: rope.pop(key) for key in ("rope_theta", "partial_rotary_factor") if key in rope}
    rotary = megatron_models().read["rotary"]
    fields = {**{key: config[key] for key in rotary if key in config}, **moved}
    kind = rope.pop("type", None)
    kind = rope.pop("rope_type", kind) or "default"
    yield "position_embedding_type", "rope"
    yield from _whole_number_item("rotary_base", fields, "rope_theta")
    if "partial_rotary_factor" in fields:
        yield from _number_item("rotary_percent", fields, "partial_rotary_factor")
    if latent:
        yield "rope_type", "yarn" if kind == "yarn" else "rope"
        yield "no_rope_fusion", kind != "yarn"  # it fuses YaRN's only
    yield from _rope_scaling_items(str(kind), rope, latent)


def _whole_number_item(argument: str, config: Config, name: str) -> Items:
    for item in _number_item(argument, config, name):
        if isinstance(item, str):
            yield item
        elif not float(item[1]).is_integer():
            yield f"{name} {item[1]}, which is not whole"
        else:
            yield argument, int(item[1])


def _rope_scaling_items(kind: str, rope: dict[str, Any], latent: bool) -> Items:
    """The scaling of rotary frequencies; ``rope`` is what is stated beside its kind."""
    if kind == "default" and not rope:
        return
    if kind == "linear" and rope.keys() == {"factor"}:
        yield from _whole_number_item("rotary_seq_len_interpolation_factor", rope, "factor")
    elif kind == "llama3" and not latent and _is_fixed(rope, _LLAMA3, frozenset({"factor"})):
        yield "use_rope_scaling", True
        yield from _number_item("rope_scaling_factor", rope, "factor")
    elif kind == "yarn" and latent and _is_fixed(rope, _YARN, _YARN_FREE):
        yield from _number_item("rotary_scaling_factor", rope, "factor")
        usual = {"mscale": 1.0, "mscale_all_dim": 0.0} | rope
        yield from _number_item("mscale", usual, "mscale")
        yield from _number_item("mscale_all_dim", usual, "mscale_all_dim")
    else:
        yield f"rope_scaling { ({'type': kind} | rope)!r:.160}"


def _is_fixed(rope: Config, fixed: Config, free: frozenset[str]) -> bool:
    """Return whether a scaling states nothing but what can be told, and else what is built in."""
    original = "original_max_position_embeddings"  # left out, it is the whole context
    free_or_fixed = all(key in free or fixed.get(key) == value for key, value in rope.items())
    return free_or_fixed and rope.get(original) == fixed[original]


def _routing_items(model: ModelSpec, config: Config, family: Family) -> Items:
    experts = next(block for block, _ in model.mlps if isinstance(block, MoeMlp))
    if family.router is None:
        yield f"{experts.experts} experts in model_type {model.model_type!r}"
        return
    yield from _part_items(experts)
    yield "moe_router_score_function", family.router
    yield "moe_router_dtype", "fp32"  # as transformers computes weights of experts
    yield from _router_weight_items(config, family, experts.top_k)
    yield from _router_group_items(config, family, experts.top_k)
    yield from _balance_items(config, family)


def _router_weight_items(config: Config, family: Family, top_k: int) -> Items:
    """Softmax before the choice leaves weights as they are, after it they sum to one."""
    normalised = bool(config.get("norm_topk_prob"))
    if family.router == "sigmoid":
        yield "moe_router_enable_expert_bias", True
    elif not normalised:
        yield "moe_router_pre_softmax", True
    elif top_k == 1:
        yield "norm_topk_prob True with one expert per token"
    if config.get("routed_scaling_factor", 1) != 1:
        yield from _number_item("moe_router_topk_scaling_factor", config, "routed_scaling_factor")


def _router_group_items(config: Config, family: Family, top_k: int) -> Items:
    usual = "noaux_tc" if family.router == "sigmoid" else "greedy"
    method, groups = config.get("topk_method", usual), config.get("n_group", 1)
    limited = config.get("topk_group", 1)
    if groups == 1 or method == "greedy":
        return
    if not _is_count(groups) or not _is_count(limited) or top_k // limited != _SUMMED.get(method):
        yield f"n_group {groups}, of which {limited} give {top_k} experts"
    yield "moe_router_num_groups", groups
    yield "moe_router_group_topk", limited


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _balance_items(config: Config, family: Family) -> Items:
    """The auxiliary loss; routers with a bias per expert are balanced without one."""
    name = "aux_loss_alpha" if "aux_loss_alpha" in config else "router_aux_loss_coef"
    if family.router == "sigmoid" and name not in config:
        yield "moe_router_load_balancing_type", "none"
        return
    kind = "seq_aux_loss" if config.get("seq_aux") else "aux_loss"
    yield "moe_router_load_balancing_type", kind
    yield from _number_item("moe_aux_loss_coeff", config, name)
