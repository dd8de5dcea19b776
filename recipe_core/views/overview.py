"""A recipe as facts, options with their origin and fallbacks, and its commands' answers as text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipe_core.base.units import chance_text
from recipe_core.engines.grammar import option_meanings
from recipe_core.engines.spec import engine, engine_names
from recipe_core.plans.kind import DEGREES
from recipe_core.plans.limits import limit_texts
from recipe_core.recipe.build import recipe_request
from recipe_core.recipe.fallbacks import fallback_changes
from recipe_core.recipe.options import LAYERS, Layer
from recipe_core.recipe.schema import Fallback, Recipe
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.describe import workload_name
from recipe_core.request.metrics import column_metric
from recipe_core.request.presets import preset_of, presets
from recipe_core.request.split_key import split_name
from recipe_core.views.columns import Column
from recipe_core.views.estimates import estimate_text
from recipe_core.views.texts import Phrases
from recipe_core.views.verdict import goals_text, hourly_text, split_formats_text

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
    "objective": "best of all layouts for what you optimise",
    "traffic": "what the traffic needs",
    "limits": "the load at which your limits hold",
    "user": "stated in your request",
}
_FALLBACKS = {
    "other-split": "Next best",
    "fewer-gpus": "Fewer devices",
    "other-precision": "Other formats",
    "lower-context": "Shorter context",
    "other-device": "Other devices",
}


# Degrees and options of a stated split that leaves them out.
_LEFT_OUT = {"cp": 1, "ep": 1, "virtual_stages": 1, "zero_stage": 0, "recompute": "none"}


@dataclass(frozen=True, slots=True)
class Origin:
    """A field of the split, an option or a variable: its value, the layer that set it, and why."""

    kind: str
    name: str
    value: str
    layer: Layer
    why: str


def stated_split(candidate: CandidateRequest | None) -> str:
    """The split that a request states: ``TP 4 × DP 2``; a part of one leaves the rest open."""
    fields = candidate.model_dump(exclude_none=True) if candidate else {}
    if {"tp", "pp", "dp"} <= set(fields):
        return split_name({**_LEFT_OUT, **fields})
    return ", ".join(
        f"{name.upper() if name in DEGREES else name.replace('_', ' ')} {value}"
        for name, value in fields.items()
        if name not in ("prefill", "speculative")
    )


def recipe_facts(recipe: Recipe, chance: float | None = None) -> dict[str, str]:
    """The decisions of a recipe and its request, one line each.

    Args:
        recipe: as it was made.
        chance: probability that the split keeps the limits, where a plan tells.
    """
    request, formats = recipe_request(recipe), split_formats_text(recipe.candidate)
    workload, limits = workload_name(request.workload), limit_texts(request.objective.limits)
    goals = goals_text(request)
    return _PHRASES.facts("facts", recipe, request, formats, workload, goals, limits, chance)


_PHRASES = Phrases("recipes", hourly=hourly_text, chance_percent=chance_text)


def option_origins(recipe: Recipe) -> list[Origin]:
    """The origin of each field, option and variable, choices of a person or the search first."""
    spec = engine(recipe.engine.name) if recipe.engine.name in engine_names() else None
    flags = {option.name: option.flag for option in spec.options.by_name.values()} if spec else {}
    parts = {
        "layout": ("candidate", recipe.candidate),
        "option": ("options", recipe.engine.options),
        "variable": ("environment", recipe.environment),
    }
    means = option_meanings(spec) if spec else {}
    rows = []
    for kind, (part, values) in parts.items():
        for name, value in values.items():
            if layer := recipe.provenance.get(f"{part}.{name}"):
                title = flags.get(name, f"--{name}") if kind == "option" else name
                text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                is_longest = kind == "option" and means.get(name) == "max_context"
                why = _longest_reason(recipe, layer) if is_longest else LAYER_TEXTS[layer]
                rows.append(Origin(kind, title, text, layer, why))
    return sorted(rows, key=lambda row: -LAYERS.index(row.layer))


def _longest_reason(recipe: Recipe, layer: Layer) -> str:
    """Say where the longest request comes from: its kind of traffic, or what was stated."""
    request = recipe_request(recipe)
    name = preset_of(request, any_load=True)
    title = presets(request)[name].title if name else ""
    kind = f"{title if title.isupper() else title.lower()} traffic" if name else "the traffic"
    return f"longest request of {kind}" + (", stated in your request" if layer == "user" else "")


# Columns of ``option_origins``.
ORIGINS: list[Column[Origin]] = [
    Column("Kind", "kind", align="left"),
    Column("Option", "name", align="left"),
    Column("Value", "value", align="left"),
    Column("Set by", "layer", align="left"),
    Column("Why", "why", align="left"),
]


def fallback_columns(recipe: Recipe) -> list[Column[Fallback]]:
    return [
        Column("Instead", lambda row: _FALLBACKS[row.kind], align="left"),
        Column("Devices", lambda row: f"{row.gpus} × {row.device}", align="left"),
        Column("Layout", lambda row: split_name(row.candidate), align="left"),
        Column("Change", lambda row: "; ".join(fallback_changes(recipe, row)), align="left"),
        Column("Figures", lambda row: ", ".join(_figure_phrases(row.figures)), align="left"),
    ]


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
    estimate, scaling = estimate_text(recipe.candidate, recipe.estimate), ""
    if policy := recipe.estimate.get("scaling"):
        scaling = scaling_text(policy)
    written = f"{output}, {note}" if note else str(output)
    return _PHRASES.text("built", estimate, scaling, written, output)


def scaling_text(scaling: Mapping[str, Any]) -> str:
    """A policy's replicas, with what they cost a month as simulated and at most."""
    return _PHRASES.sentence("scaling", scaling)


def lock_text(comparison: Sequence[Difference]) -> str:
    return _PHRASES.text("lock", comparison)


def resolved_text(recipe: Recipe, resolved: Resolved) -> str:
    """The variants that apply to other hardware, and the settings that change on it."""
    new = resolved.settings
    parts = [
        ("candidate", recipe.candidate, new.candidate),
        ("options", recipe.engine.options, new.options),
        ("environment", recipe.environment, new.environment),
    ]
    return _PHRASES.text("resolved", recipe, resolved, parts)


def conversion_text(conversion: Conversion, output: Path | None) -> str:
    """The recipe of a conversion, and what it could not carry over."""
    recipe = conversion.recipe
    estimate = estimate_text(recipe.candidate, recipe.estimate)
    return _PHRASES.text("converted", recipe, estimate, conversion, output)
