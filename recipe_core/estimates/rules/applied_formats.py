"""What a setting's number formats do to the model's base, and whether its engine runs that.

The base is the checkpoint that others were quantised from. A model that was published quantised
(DeepSeek-V3 in fp8) is its own base: its makers trained, or chose, that format.
"""

from __future__ import annotations

from dataclasses import dataclass

from recipe_core.accuracy.choice import planned_dtype
from recipe_core.accuracy.lookup import support_of
from recipe_core.accuracy.runners import Support, Verdict, runners
from recipe_core.accuracy.technique import (
    Making,
    cache_technique,
    checkpoint_making,
    joint_techniques,
    technique,
    weight_technique,
)
from recipe_core.estimates.columns.serving import WIDE, Setting
from recipe_core.models.catalog import catalog_model, in_catalog
from recipe_core.models.spec import ModelSpec
from recipe_core.models.tensors import bytes_per_value, compute_dtype
from recipe_core.models.variants import base_checkpoint, stored_as

# Bytes a value over those of the base's format from which nothing is lost.
WIDER = 1.5
# The method of formats that an engine makes while it loads: plain rounding.
ROUNDED = "RTN"
# Verdicts on weights and activations where activations are rounded, or the engine does not start;
# with other kernels the weights alone are.
NARROW: frozenset[Verdict] = frozenset({"native", "emulated", "refused"})


@dataclass(frozen=True, slots=True)
class Applied:
    """What is done to a base.

    base: its name. techniques: by the names of ``techniques.yaml``; none where nothing is narrower
    than in the base. method: the algorithm of the weights, "" where it is not known. published:
    the format in which the base was published, where that is not one of 16 or 32 bit.
    """

    base: str
    techniques: tuple[str, ...]
    method: str = ""
    published: str = ""


def applied_techniques(setting: Setting) -> Applied:
    """Techniques of a setting's formats, beside the base of its model."""
    model = setting.model
    base = base_checkpoint(model.name) if model.quantization is not None else None
    base_spec = _catalog_spec(base) if base is not None else model
    weights, method = _technique_of_weights(setting, base_spec)
    cached = "" if _same_cache(setting, base_spec) else cache_technique(setting.kv_dtype)
    published = (
        base_spec.quantization.dtype if base_spec is not None and base_spec.quantization else ""
    )
    return Applied(base or model.name, joint_techniques(weights, cached), method, published)


def weights_refusal(setting: Setting) -> Support | None:
    """The engine's own refusal of what the weights are; None where it runs them, or nobody says."""
    if setting.assumed or setting.weight_dtype in WIDE:
        return None
    name, _ = _technique_as_run(setting)
    support = _technique_support(setting, name)
    return support if support is not None and support.verdict == "refused" else None


def weight_only_technique(setting: Setting) -> str:
    """The technique that stores only weights in the setting's format; "" where it does not run."""
    name = weight_technique(setting.weight_dtype, computed=False)
    support = _technique_support(setting, name)
    return name if support is not None and support.runs else ""


def _catalog_spec(name: str) -> ModelSpec | None:
    return catalog_model(name) if in_catalog(name) else None


def _same_cache(setting: Setting, base_spec: ModelSpec | None) -> bool:
    """Whether the cache is no narrower than that of the base."""
    if not setting.caches or setting.kv_dtype in WIDE:
        return True
    return base_spec is not None and base_spec.kv_dtype == setting.kv_dtype


def _technique_of_weights(setting: Setting, base_spec: ModelSpec | None) -> tuple[str, str]:
    """Technique and method of the weights, both empty where they are no narrower than the base."""
    dtype = setting.weight_dtype
    if dtype in WIDE or (base_spec is not None and _is_as_wide(dtype, base_spec.weight_dtype)):
        return "", ""
    return _technique_as_run(setting)


def _technique_as_run(setting: Setting) -> tuple[str, str]:
    """Technique and method of narrow weights, as the engine runs them on the device."""
    dtype = setting.weight_dtype
    weights_making, online = _weights_making(setting)
    if online and dtype in setting.engine.online_techniques:
        return setting.engine.online_techniques[dtype], weights_making.method
    name = weights_making.technique or weight_technique(dtype, computed=True)
    if weights_making.weights_only or not _rounds_activations(setting, name):
        alone = technique(name).act_bits >= 16
        name = name if alone else weight_technique(dtype, computed=False)
    return name, weights_making.method


def _rounds_activations(setting: Setting, name: str) -> bool:
    """Whether products of a technique take activations in its format, too.

    By the kernels that the engine says it has; where it says nothing, by the rates of the device.
    """
    support = _technique_support(setting, name)
    if support is not None and support.verdict != "unknown":
        return support.verdict in NARROW
    return compute_dtype(setting.weight_dtype, setting.cluster.device.peak_flops_per_s) not in WIDE


def _technique_support(setting: Setting, name: str) -> Support | None:
    """What is known of a technique under the setting's engine; None for one that nobody read."""
    engine = setting.engine
    if engine.name not in runners():
        return None
    return support_of(name, engine.name, setting.cluster.device, engine.version)


def _is_as_wide(dtype: str, stored: str) -> bool:
    """Whether a format holds what the base stores: the same, or one of clearly more bits."""
    if dtype.removesuffix("-block") == stored.removesuffix("-block"):
        return True
    return bytes_per_value(dtype) > WIDER * bytes_per_value(stored)


def _weights_making(setting: Setting) -> tuple[Making, bool]:
    """How the weights are made, and whether the engine makes them while it loads."""
    model, dtype, stated_making = setting.model, setting.weight_dtype, setting.making
    if model.weight_dtype == dtype:
        return checkpoint_making(model), False
    planned = (
        planned_dtype(stated_making.technique)
        if stated_making and stated_making.technique
        else None
    )
    if stated_making is not None and planned == dtype.removesuffix("-block"):
        return stated_making, False
    if not setting.needs_other_checkpoint:
        return Making(ROUNDED), True
    if stated_making is not None:
        return stated_making if planned is None else Making(), False
    checkpoint = stored_as(model.name, dtype)
    return (Making() if checkpoint is None else checkpoint_making(catalog_model(checkpoint))), False
