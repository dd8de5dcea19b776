"""A recipe as facts, options with their origin and fallbacks, and its commands' answers as text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipe_core.base.units import count_text
from recipe_core.engines.spec import engine, engine_names
from recipe_core.plans.limits import limit_texts
from recipe_core.plans.remedies import change_label
from recipe_core.recipe.build import recipe_request
from recipe_core.recipe.options import LAYERS, Layer
from recipe_core.recipe.schema import Fallback, Recipe
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.describe import workload_name
from recipe_core.request.metrics import column_metric
from recipe_core.request.schema import PlanRequest
from recipe_core.request.split_key import split_name
from recipe_core.views.columns import Column
from recipe_core.views.estimates import estimate_text
from recipe_core.views.verdict import goals_text, hourly_text, percent, split_formats_text

if TYPE_CHECKING:
    from recipe_core.recipe.comparison import Difference
    from recipe_core.recipe.convert import Conversion
    from recipe_core.recipe.resolve import Resolved

# The meaning of a layer, to a reader.
LAYER_TEXTS: Mapping[Layer, str] = {
    "base": "required by the engine or its launch",
    "model": "from the checkpoint",
    "architecture": "required by the device's architecture or runtime",
    "device": "the engine's limit for a device of this size, or its network",
    "objective": "best of all splits for what you optimise",
    "user": "stated in your request",
}
_FALLBACKS = {
    "other-split": "Next best",
    "fewer-gpus": "Fewer devices",
    "other-precision": "Other formats",
    "lower-context": "Shorter context",
    "other-device": "Other devices",
}
_FORMATS = {"weight_dtype": "weights", "kv_dtype": "cache", "precision": "compute"}


# Degrees and options of a stated split that leaves them out.
_LEFT_OUT = {"cp": 1, "ep": 1, "virtual_stages": 1, "zero_stage": 0, "recompute": "none"}


@dataclass(frozen=True, slots=True)
class Origin:
    """A field of the split, an option or a variable: its value, and the layer that set it."""

    kind: str
    name: str
    value: str
    layer: Layer


def stated_split(candidate: CandidateRequest | None) -> str:
    """The split that a request states: ``tp 4 · dp 2``; a part of one leaves the rest open."""
    fields = candidate.model_dump(exclude_none=True) if candidate else {}
    if {"tp", "pp", "dp"} <= set(fields):
        return split_name({**_LEFT_OUT, **fields})
    return ", ".join(
        f"{name} {value}"
        for name, value in fields.items()
        if name not in ("prefill", "speculative")
    )


def recipe_facts(recipe: Recipe, chance: float | None = None) -> dict[str, str]:
    """The decisions of a recipe and its request, one line each.

    Args:
        recipe: as it was made.
        chance: probability that the split keeps the limits, where a plan tells.
    """
    c, lock = recipe.candidate, recipe.lock
    request = recipe_request(recipe)
    out = {
        "Model": f"{recipe.model.id} ({count_text(recipe.model.parameters)} parameters)",
        "Devices": _recipe_devices_text(recipe, request),
        "Split": split_name(c),
        "Formats": split_formats_text(c),
        "Engine": f"{recipe.engine.title} {recipe.engine.version}".strip(),
        "Workload": workload_name(request.workload),
        "Optimised for": goals_text(request),
        "Limits": "; ".join(limit_texts(request.objective.limits)) or "none",
    }
    out |= _confidence(request, chance)
    if (hour := recipe.estimate["cost"].get("usd_per_hour")) is not None:
        out["Price"] = hourly_text(hour)
    out |= {"Longest request": f"{recipe.max_context:,} tokens"} if recipe.max_context else {}
    if drafts := c.get("speculative"):
        out["Speculative decoding"] = (
            f"{drafts['tokens']} draft tokens per step, {drafts['method']}"
        )
    out |= {"Container": lock.image.reference} if lock and lock.image else {}
    return out


def _recipe_devices_text(recipe: Recipe, request: PlanRequest) -> str:
    """Devices that the split uses of those available: ``4 of 8 × NVIDIA H100 SXM5 80 GB``."""
    d, total = recipe.device, request.hardware.devices
    nodes = f" in {-(-d.count // d.per_node)} nodes" if d.per_node and d.count > d.per_node else ""
    used = f"{d.count:,} of {total:,}" if total > d.count else f"{d.count:,}"
    return f"{used} × {d.title}{nodes}"


def _confidence(request: PlanRequest, chance: float | None) -> dict[str, str]:
    confidence = request.objective.confidence
    if not limit_texts(request.objective.limits):
        return {}
    parts = [] if chance is None else [percent(chance)]
    parts += [] if confidence is None else [f"at least {confidence * 100:g} % asked for"]
    text = ", ".join(parts)
    return {"Limits hold with": text} if text else {}


def option_origins(recipe: Recipe) -> list[Origin]:
    """The origin of each field, option and variable, choices of a person or the search first."""
    spec = engine(recipe.engine.name) if recipe.engine.name in engine_names() else None
    flags = {option.name: option.flag for option in spec.options.by_name.values()} if spec else {}
    parts = {
        "split": ("candidate", recipe.candidate),
        "option": ("options", recipe.engine.options),
        "variable": ("environment", recipe.environment),
    }
    rows = []
    for kind, (part, values) in parts.items():
        for name, value in values.items():
            if layer := recipe.provenance.get(f"{part}.{name}"):
                title = flags.get(name, f"--{name}") if kind == "option" else name
                text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                rows.append(Origin(kind, title, text, layer))
    return sorted(rows, key=lambda row: -LAYERS.index(row.layer))


# Columns of ``option_origins``.
ORIGINS: list[Column[Origin]] = [
    Column("Kind", "kind", align="left"),
    Column("Option", "name", align="left"),
    Column("Value", "value", align="left"),
    Column("Set by", "layer", align="left"),
    Column("Why", lambda row: LAYER_TEXTS[row.layer], align="left"),
]


def fallback_columns(recipe: Recipe) -> list[Column[Fallback]]:
    return [
        Column("Instead", lambda row: _FALLBACKS[row.kind], align="left"),
        Column("Devices", lambda row: f"{row.gpus} × {row.device}", align="left"),
        Column("Split", lambda row: split_name(row.candidate), align="left"),
        Column("Change", lambda row: "; ".join(_fallback_changes(recipe, row)), align="left"),
        Column("Figures", lambda row: ", ".join(_figure_phrases(row.figures)), align="left"),
    ]


def _fallback_changes(recipe: Recipe, fallback: Fallback) -> Iterator[str]:
    for name, part in _FORMATS.items():
        if (value := fallback.candidate.get(name)) != recipe.candidate.get(name):
            yield f"{part} in {value}"
    plain = {name: value for name, value in fallback.changes.items() if not isinstance(value, dict)}
    if plain:
        yield change_label(plain)


# Figures of fallbacks.
_SHOWN = (
    *("output_tokens_per_s", "tpot_s", "usd_per_million_output_tokens"),
    *("tokens_per_s", "step_s", "usd_per_million_tokens"),
)


def _figure_phrases(figures: Mapping[str, float | None]) -> Iterator[str]:
    for name in _SHOWN:
        if (value := figures.get(name)) is not None:
            yield column_metric(name).phrase(value)


# --- answers of commands --------------------------------------------------------------------------


def build_text(recipe: Recipe, output: Path, note: str | None = None) -> str:
    """The estimate of a bundle, its place with a ``note``, and the next commands."""
    estimate = estimate_text(recipe.candidate, recipe.estimate)
    if scaling := recipe.estimate.get("scaling"):
        estimate += f"\n  {'Replicas':32} {scaling_text(scaling)}"
    written = f"{output}, {note}" if note else str(output)
    return f"{estimate}\nwrote {written}\nnext: recipe up {output} && recipe bench {output}"


def scaling_text(scaling: Mapping[str, Any]) -> str:
    """A policy's replicas, with what they cost a month as simulated and at most."""
    low, high = scaling["min_replicas"], scaling["max_replicas"]
    devices = scaling["devices_per_replica"]
    text = (
        f"{scaling['policy']}: {low} to {high} like this, of {devices} device{'s' * (devices > 1)}"
    )
    simulated, maximum = scaling.get("simulated"), scaling["usd_per_month_at_most"]
    if maximum is None:
        return text
    if simulated and simulated["current"]:
        text += f"; ${simulated['usd_per_month']:,.0f} a month as simulated"
    return f"{text}; ${maximum:,.0f} a month at most"


def lock_text(comparison: Sequence[Difference]) -> str:
    """A lock against this machine, one line per item."""
    words = {"same": "ok", "differs": "DIFFERS", "absent": "not here"}
    lines = []
    for item in comparison:
        installed = "" if item.actual in (None, item.locked) else f", here {item.actual}"
        lines.append(f"{words[item.level]:8}  {item.name}: {item.locked}{installed}")
    return "\n".join(lines)


_AS_IT_IS = "the recipe as it is; no variant is for these devices"


def resolved_text(recipe: Recipe, resolved: Resolved) -> str:
    """The variants that apply to other hardware, and the settings that change on it."""
    machine = f"{resolved.machine.count} × {resolved.machine.device}"
    applied = f"variants {', '.join(resolved.applied)}" if resolved.applied else _AS_IT_IS
    lines = [f"{recipe.name} on {machine}: {applied}"]
    before = {
        "candidate": recipe.candidate,
        "options": recipe.engine.options,
        "environment": recipe.environment,
    }
    for part, old in before.items():
        new = getattr(resolved.settings, part)
        for name in dict.fromkeys([*old, *new]):
            if old.get(name) != new.get(name):
                layer = resolved.provenance.get(f"{part}.{name}", "")
                origin = f" ({layer})" if name in new else ""
                change = f"{old.get(name, '–')} → {new.get(name, '–')}"
                lines.append(f"  {part}.{name}: {change}{origin}")
    return "\n".join([*lines, *(f"  note: {note}" for note in resolved.kept_out)])


def conversion_text(conversion: Conversion, output: Path | None) -> str:
    """The recipe of a conversion, and what it could not carry over."""
    recipe = conversion.recipe
    lines = [f"{recipe.name}: {recipe.model.id} on {recipe.device.count} × {recipe.device.title}"]
    lines.append(estimate_text(recipe.candidate, recipe.estimate))
    if conversion.carried:
        lines.append(f"carried over: {' '.join(conversion.carried)}")
    lines += [f"not carried over: {item.subject} ({item.why})" for item in conversion.lost]
    if output:
        lines.append(f"wrote {output}")
    return "\n".join(lines)
