"""A setting's number formats against the model's base, and the accuracy that they keep.

The base is the checkpoint that others were quantised from. A model that was published quantised
(DeepSeek-V3 in fp8) is its own base: its makers trained, or chose, that format.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import lru_cache

from recipe_core.accuracy.checkpoints import MeasuredCompression, with_own_figure
from recipe_core.accuracy.choice import planned_dtype
from recipe_core.accuracy.lookup import support_of
from recipe_core.accuracy.published import Retained
from recipe_core.accuracy.runners import Support, Verdict, runners
from recipe_core.accuracy.technique import (
    Making,
    cache_technique,
    checkpoint_making,
    joint_techniques,
    technique,
    weight_technique,
)
from recipe_core.base.intervals import BAND, LEVELS, Ends, Level, quantile_score
from recipe_core.estimates.bands import Uncertain
from recipe_core.estimates.columns.serving import WIDE, Setting
from recipe_core.estimates.prediction import Amount, Known, Part
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
    """The changes made to a base.

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
    """Return whether the cache is no narrower than that of the base."""
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
    """Return whether products of a technique take activations in its format, too.

    By the kernels that the engine says it has; where it says nothing, by the rates of the device.
    """
    support = _technique_support(setting, name)
    if support is not None and support.verdict != "unknown":
        return support.verdict in NARROW
    return compute_dtype(setting.weight_dtype, setting.cluster.device.peak_flops_per_s) not in WIDE


def _technique_support(setting: Setting, name: str) -> Support | None:
    """Look up a technique under the setting's engine; None for one that nobody read."""
    engine = setting.engine
    if engine.name not in runners():
        return None
    return support_of(name, engine.name, setting.cluster.device, engine.version)


def _is_as_wide(dtype: str, stored: str) -> bool:
    """Return whether a format holds what the base stores: the same, or one of clearly more bits."""
    if dtype.removesuffix("-block") == stored.removesuffix("-block"):
        return True
    return bytes_per_value(dtype) > WIDER * bytes_per_value(stored)


def _weights_making(setting: Setting) -> tuple[Making, bool]:
    """Return how the weights are made, and whether the engine makes them while it loads."""
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


# The column of the expected share that is kept.
COLUMN = "accuracy"
# Published figures that stand beside the estimate of a single split.
NEAREST = 5
OF_TEXT = "published figures are of models that generate text"
OF_TECHNIQUE = "its number formats stand for a technique, which is judged by its name"


@dataclass(frozen=True, slots=True)
class NearFigure(Part):
    """A published figure of a compressed model beside its base."""

    model: str
    """The model before it was compressed."""
    technique: str
    """What was done, by the names of ``recipe_core/accuracy/techniques.yaml``."""
    method: str
    """The algorithm; empty where the source states none."""
    benchmark: str
    """What was measured."""
    base_value: float
    """The base's value."""
    value: float
    """The compressed model's value."""
    retained: Amount
    """Value over that of the base, upside down where less is better; 1 where nothing is lost."""
    noise: Known
    """Standard error of ``retained`` by the benchmark's items; null where that is not known."""
    source: str
    """Where it is published."""
    date: str
    """When, as far as the source says it."""


@dataclass(frozen=True, slots=True)
class Accuracy(Part):
    """Accuracy beside that of the model's base: 1 where nothing is lost; null where unknown."""

    value: Known
    """Expected share of the base's accuracy that is kept."""
    low: Known
    """Lower end of the band in which eight of ten measured shares are expected."""
    high: Known
    """Upper end of that band; above 1 a compressed model measures better by chance."""
    basis: str
    """What the expectation rests on, or what is missing where it is unknown."""
    benchmark: str
    """Kind of benchmark that it is of, as ``objective.accuracy_of`` states it."""
    techniques: list[str]
    """What is done to the base, by the names of ``recipe_core/accuracy/techniques.yaml``."""
    nearest: list[NearFigure] | None = None
    """Published figures, the nearest first, where a single layout is estimated."""


def titles_of(setting: Setting) -> str:
    """Say what a setting does to the base, as people call it: ``INT4 weights and FP8 KV cache``."""
    return " and ".join(technique(name).title for name in applied_techniques(setting).techniques)


def accuracy_of(setting: Setting, benchmark: str | None = None, *, nearest: int = 0) -> Retained:
    """The share of its base's accuracy that a setting is expected to keep, with the 80 % band.

    ``benchmark``: a kind of benchmark; by default what the setting is judged on. ``nearest``: how
    many published figures stand beside it; the first of them take half a second to find.
    """
    if setting.assumed:
        return Retained(math.nan, math.nan, math.nan, f"Unknown: {OF_TECHNIQUE}.", is_known=False)
    kind = setting.judged_on if benchmark is None else benchmark
    return _cached_accuracy(_Same(setting), kind, nearest)


class _Same:
    """A setting by its identity: the columns of an estimate ask for the same one again."""

    __slots__ = ("setting",)

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def __hash__(self) -> int:
        return id(self.setting)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.setting is self.setting


@lru_cache(64)
def _cached_accuracy(same: _Same, kind: str, nearest: int) -> Retained:
    setting = same.setting
    done = applied_techniques(setting)
    if done.techniques and not setting.model.generates:
        return Retained(math.nan, math.nan, math.nan, f"Unknown: {OF_TEXT}.", is_known=False)
    names = {name.casefold() for name in _base_names(setting, done)}
    own_runs = tuple(run for run in setting.compressed if run.model.casefold() in names)
    return _retained_accuracy(
        done, round(setting.model.parameters / 1e9, 3), kind, nearest, own_runs
    )


def _base_names(setting: Setting, done: Applied) -> tuple[str, ...]:
    """Return names of the base among those who compress it: its own, or its weights' place."""
    model = setting.model
    weights = model.weights if model.quantization is None else None
    return (done.base,) if weights is None else (done.base, weights)


@lru_cache(4096)
def _retained_accuracy(
    done: Applied,
    parameters_b: float,
    kind: str,
    nearest: int,
    own_runs: tuple[MeasuredCompression, ...],
) -> Retained:
    if not done.techniques:
        return Retained(1.0, 1.0, 1.0, _base_text(done))
    # the table of published figures takes time to read, which a plan in 16 bit saves
    from recipe_core.accuracy.accuracy import combine_retained, estimate_retained

    parts = []
    benchmark = "" if kind == "mean" else kind
    for name in done.techniques:
        method = done.method if technique(name).kind != "kv cache" else ""
        expected = estimate_retained(
            done.base,
            name,
            method=method,
            benchmark=benchmark,
            parameters_b=parameters_b,
            nearest=nearest,
        )
        models = [run.model for run in own_runs]
        parts.append(
            _cap_accuracy(
                with_own_figure(expected, own_runs, models, name, method, benchmark=benchmark)
            )
        )
    return parts[0] if len(parts) == 1 else combine_retained(parts)


def _cap_accuracy(accuracy: Retained) -> Retained:
    """At most the base's accuracy: what measures better does so by chance, and is no promise."""
    if not accuracy.is_known:
        return accuracy
    return replace(accuracy, value=min(accuracy.value, 1.0), low=min(accuracy.low, 1.0))


def _base_text(done: Applied) -> str:
    if done.published:
        return (
            f"{done.base} is published in {done.published}: it is its own base, "
            "and nothing is narrower here."
        )
    return "No number format is narrower than the checkpoint's own."


def uncertain_accuracy(setting: Setting) -> Uncertain | None:
    """The intervals around a setting's accuracy; None where it is certain, or unknown.

    The ends of the 80 % band, moved to the other levels as logarithms of a normal error are.
    """
    accuracy = accuracy_of(setting)
    if (
        not accuracy.is_known
        or accuracy.low == accuracy.high
        or min(accuracy.value, accuracy.low) <= 0
    ):
        return None
    below, above = math.log(accuracy.low / accuracy.value), math.log(accuracy.high / accuracy.value)
    factors = {level: _scaled_ends(below, above, level) for level in LEVELS}
    return Uncertain(COLUMN, 1, factors)


def _scaled_ends(below: float, above: float, level: Level) -> Ends:
    share = quantile_score(level) / quantile_score(BAND)
    return math.exp(min(below, 0.0) * share), math.exp(max(above, 0.0) * share)


def accuracy_part(setting: Setting, *, explained: bool) -> Accuracy:
    """The accuracy of an estimate; ``explained`` with the nearest published figures."""
    accuracy, done = (
        accuracy_of(setting, nearest=NEAREST if explained else 0),
        applied_techniques(setting),
    )
    near_figures = [
        NearFigure(*(getattr(figure, f.name) for f in fields(NearFigure)))
        for figure in accuracy.nearest
    ]
    return Accuracy(
        value=accuracy.value if accuracy.is_known else None,
        low=accuracy.low if accuracy.is_known else None,
        high=accuracy.high if accuracy.is_known else None,
        basis=accuracy.basis,
        benchmark=setting.judged_on,
        techniques=list(done.techniques),
        nearest=near_figures if explained else None,
    )
