"""Models that torchtitan ships: ``training/titan_models.yaml``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Literal

from recipe_core.base.data_files import DataFile, DataRow
from recipe_core.base.resources import PACKAGE
from recipe_core.models.spec import (
    Attention,
    DenseMlp,
    GroupedAttention,
    LatentAttention,
    LinearAttention,
    ModelSpec,
    MoeMlp,
)

# The format of quantised checkpoints that a module reads.
_STORED = {"deepseek_v3": "fp8-block", "gpt_oss": "mxfp4"}

TITAN_MODELS = DataFile(PACKAGE / "engines" / "training" / "titan_models.yaml", "engines")


class TitanModel(DataRow):
    """A flavour of a model that torchtitan ships, by what tells it from others.

    ``mixers``: the layers that repeat, f for attention to all positions, w for a window, l for a
    linear state. Of a model with experts ``dense_layers`` come first. A width that a flavour does
    not have is None.
    """

    module: str
    flavor: str
    layers: int
    hidden: int
    vocabulary: int
    tied_embeddings: bool
    vision: bool
    mixers: str
    dense_layers: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    attention_bias: bool | None = None
    window: int | None = None
    q_lora_rank: int | None = None
    kv_lora_rank: int | None = None
    qk_nope_head_dim: int | None = None
    qk_rope_head_dim: int | None = None
    v_head_dim: int | None = None
    linear_key_heads: int | None = None
    linear_value_heads: int | None = None
    linear_key_head_dim: int | None = None
    linear_value_head_dim: int | None = None
    rope_theta: float | None = None
    rope_scaling: str = "none"
    rope_factor: float | None = None
    intermediate: int | None = None
    experts: int | None = None
    top_k: int | None = None
    expert_intermediate: int | None = None
    shared_intermediate: int | None = None
    router_score: str | None = None
    router_groups: int | None = None
    router_limited_groups: int | None = None
    router_scale: float | None = None
    router_norm: bool | None = None

    @property
    def title(self) -> str:
        """``qwen3 8B``."""
        return f"{self.module} {self.flavor}"


class _Facts(DataRow):
    schema_version: Literal[1]
    version: str
    source: str
    families: dict[str, tuple[str, ...]]
    models: tuple[TitanModel, ...]


@cache
def titan_facts() -> _Facts:
    """The file ``titan_models.yaml``."""
    return TITAN_MODELS.read_as(_Facts)


def shipped_configuration(model: ModelSpec) -> TitanModel | None:
    """The flavour that a model is; None where torchtitan ships none that is equal to it."""
    shape = titan_shape(model)
    equal = (
        flavour for flavour in _titan_family(model) if not any(_flavour_differences(flavour, shape))
    )
    return next(equal, None)


def reads_checkpoint(model: ModelSpec) -> bool:
    """Return whether a flavour starts from a checkpoint's weights in their stored format.

    Of stored formats beside 16 bits, two modules read that of their own first release.
    """
    flavour = shipped_configuration(model)
    if flavour is None or model.quantization is None:
        return True
    return model.quantization.dtype == _STORED.get(flavour.module)


def unlike_shipped(model: ModelSpec) -> str:
    """Say what keeps a model from being one that torchtitan ships, as the end of a sentence."""
    family = _titan_family(model)
    if not family:
        modules = ", ".join(titan_facts().families)
        return f"which it does not ship (it ships {modules})"
    shape = titan_shape(model)
    # The closest has the fewest differences; of several, the one nearest in width.
    best = min(
        family,
        key=lambda flavour: (
            len(list(_flavour_differences(flavour, shape))),
            abs(flavour.hidden - model.hidden),
        ),
    )
    differences = list(_flavour_differences(best, shape))
    rest = f" and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
    shown = ", ".join(differences[:_SHOWN])
    return f"which it does not ship: {best.title}, the closest, has {shown}{rest}"


def _titan_family(model: ModelSpec) -> tuple[TitanModel, ...]:
    """Flavours of the modules that train models of the ``model_type`` of a config."""
    facts = titan_facts()
    inner = _text_config(model).get("model_type")
    types = {model.model_type, str(inner or "")}
    modules = {name for name, family in facts.families.items() if types & set(family)}
    return tuple(flavour for flavour in facts.models if flavour.module in modules)


_SHAPE_NAMES = tuple(name for name in TitanModel.model_fields if name not in ("module", "flavor"))
# Differences that a sentence names.
_SHOWN = 4
# What a config may leave to its family's default: compared where it is stated.
_STATED = frozenset(
    (
        "rope_theta",
        "router_score",
        "router_groups",
        "router_limited_groups",
        "router_scale",
        "router_norm",
    )
)


def _flavour_differences(flavour: TitanModel, shape: Mapping[str, Any]) -> Iterator[str]:
    for name in _SHAPE_NAMES:
        theirs, ours = getattr(flavour, name), shape.get(name)
        if theirs != ours and not (name in _STATED and ours is None):
            yield f"{name} {_value_text(theirs)}, not {_value_text(ours)}"


def _value_text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


# A model's shape in the registry's words


def titan_shape(model: ModelSpec) -> dict[str, Any]:
    """Return what `TitanModel` states, of any model; a width that layers do not share is a list."""
    mixers = [layer.attention for layer in model.layers]
    blocks = [layer.mlp for layer in model.layers]
    routed = [isinstance(block, MoeMlp) for block in blocks]
    dense: Any = routed.index(True) if any(routed) else None
    shape: dict[str, Any] = {
        "layers": len(model.layers),
        "hidden": model.hidden,
        "vocabulary": model.vocabulary,
        "tied_embeddings": model.tied_embeddings,
        "vision": bool(model.towers or model.left_out or model.partial),
        "mixers": _repeating_letters("".join(_letter(mixer) for mixer in mixers)),
        "dense_layers": dense if routed == sorted(routed) else "among others",
    }
    parts = [_mixer_shape(mixer) for mixer in dict.fromkeys(mixers)]
    parts += [_block_shape(block) for block in dict.fromkeys(blocks)]
    for name in dict.fromkeys(name for part in parts for name in part):
        values = list(dict.fromkeys(part[name] for part in parts if name in part))
        shape[name] = values[0] if len(values) == 1 else values
    return shape | _rope_shape(_text_config(model)) | _router_shape(_text_config(model))


def _letter(mixer: Attention | None) -> str:
    if isinstance(mixer, LinearAttention):
        return "l"
    if isinstance(mixer, (GroupedAttention, LatentAttention)):
        return "w" if mixer.window else "f"
    return "?"


def _repeating_letters(letters: str) -> str:
    """The shortest start of a text that it repeats."""
    sizes = range(1, len(letters) + 1)
    return next(
        (letters[:n] for n in sizes if (letters[:n] * len(letters))[: len(letters)] == letters), ""
    )


def _mixer_shape(mixer: Attention | None) -> dict[str, Any]:
    if isinstance(mixer, LatentAttention):
        return {
            "heads": mixer.heads,
            "q_lora_rank": mixer.q_lora_rank,
            "kv_lora_rank": mixer.kv_lora_rank,
            "qk_nope_head_dim": mixer.nope_head_dim,
            "qk_rope_head_dim": mixer.rope_head_dim,
            "v_head_dim": mixer.v_head_dim,
        } | ({"window": mixer.attends} if mixer.attends else {})
    if isinstance(mixer, LinearAttention):
        return {
            "linear_key_heads": mixer.kv_heads,
            "linear_value_heads": mixer.heads,
            "linear_key_head_dim": mixer.head_dim,
            "linear_value_head_dim": mixer.v_head_dim,
        }
    if isinstance(mixer, GroupedAttention):
        return {
            "heads": mixer.heads,
            "kv_heads": mixer.kv_heads,
            "head_dim": mixer.head_dim,
            "attention_bias": mixer.bias,
        } | ({"window": mixer.window} if mixer.window else {})
    return {}


def _block_shape(block: DenseMlp | MoeMlp | None) -> dict[str, Any]:
    if isinstance(block, DenseMlp):
        return {"intermediate": block.intermediate}
    if block is None:
        return {}
    return {
        "experts": block.experts,
        "top_k": block.top_k,
        "expert_intermediate": block.intermediate,
        "shared_intermediate": block.shared_intermediate,
    }


def _text_config(model: ModelSpec) -> Mapping[str, Any]:
    text = model.config.get("text_config")
    return text if isinstance(text, Mapping) else model.config


def _rope_shape(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return how positions are turned: the base where it is stated, and the kind of scaling."""
    fields = config.get("rope_scaling") or config.get("rope_parameters")
    scaling = fields if isinstance(fields, Mapping) else {}
    kind = str(scaling.get("rope_type") or scaling.get("type") or "none")
    theta = scaling.get("rope_theta") or config.get("rope_theta")
    out: dict[str, Any] = {
        "rope_theta": None if theta is None else float(theta),
        "rope_scaling": "none" if kind in ("default", "mrope") else kind,
    }
    if out["rope_scaling"] != "none" and scaling.get("factor") is not None:
        out["rope_factor"] = float(scaling["factor"])
    return out


def _router_shape(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return how tokens are routed, as far as a config states it; else its family's score."""
    names = {
        "router_groups": "n_group",
        "router_limited_groups": "topk_group",
        "router_scale": "routed_scaling_factor",
        "router_norm": "norm_topk_prob",
    }
    scores = {"deepseek_v2": "softmax", "deepseek_v3": "sigmoid", "kimi_k2": "sigmoid"}
    score = config.get("scoring_func") or scores.get(str(config.get("model_type")))
    return {name: config.get(field) for name, field in names.items()} | {"router_score": score}
