"""A recipe as tables: decision, expected figures, provenance of its options, fallbacks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from recipe_core.base.labels import TRAINING_MEMORY, change_label, split_name
from recipe_core.base.text_rows import TextRow, memory_parts, text_rows
from recipe_core.base.units import chance_text, count, duration, gib, rate, significant, usd
from recipe_core.engines.spec import engine, engine_names
from recipe_core.hardware.ownership import HOURS_PER_MONTH
from recipe_core.plans.limits import stated as stated_limits
from recipe_core.plans.measures import TRAINING, days, utilisation
from recipe_core.recipe.build import recipe_request
from recipe_core.recipe.provenance import LAYERS, Layer
from recipe_core.recipe.schema import Fallback, Recipe
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.describe import workload_name
from recipe_core.request.presets import aim_of, aims
from recipe_core.request.schema import PlanRequest

LAYER_TEXTS: Mapping[Layer, str] = {
    "base": "required by the engine or its launch",
    "model": "from the checkpoint",
    "architecture": "required by the device's architecture or runtime",
    "device": "the engine's limit for a device of this size, or its network",
    "objective": "best of all splits for what you optimise",
    "user": "stated in your request",
}
"""What a layer means, to a reader."""
_FALLBACKS = {
    "other-split": "Next best",
    "fewer-gpus": "Fewer devices",
    "other-precision": "Other formats",
    "lower-context": "Shorter context",
    "other-device": "Other devices",
}
_MEMORY = {
    "weights": "Weights",
    "encoder": "Vision and audio encoders",
    "kv_needed": "KV cache needed",
    "activations": "Activations",
    "runtime": "Runtime",
    **TRAINING_MEMORY,
}
_FORMATS = {"weight_dtype": "weights", "kv_dtype": "cache", "precision": "compute"}


_LEFT_OUT = {"cp": 1, "ep": 1, "virtual_stages": 1, "zero_stage": 0, "recompute": "none"}
"""What a stated split is where it leaves something out."""

Ends = tuple[str, str]
"""A range, low to high, as texts."""


@dataclass(frozen=True, slots=True)
class Origin:
    """A field of the split, an option or a variable: its value, and the layer that set it."""

    kind: str
    name: str
    value: str
    layer: Layer

    @property
    def why(self) -> str:
        """The layer in words."""
        return LAYER_TEXTS[self.layer]


def stated(candidate: CandidateRequest | None) -> str:
    """What a request states of its split: ``tp 4 · dp 2``; a part of one leaves the rest open."""
    fields = candidate.model_dump(exclude_none=True) if candidate else {}
    if {"tp", "pp", "dp"} <= set(fields):
        return split_name({**_LEFT_OUT, **fields})
    return ", ".join(
        f"{name} {value}"
        for name, value in fields.items()
        if name not in ("prefill", "speculative")
    )


def facts(recipe: Recipe, chance: float | None = None) -> dict[str, str]:
    """What the recipe decides and what was asked for, one line each.

    Args:
        recipe: as it was made.
        chance: probability that the split keeps the limits, where a plan tells.
    """
    c, lock = recipe.candidate, recipe.lock
    request = recipe_request(recipe)
    weights = c.get("precision") or f"{c['weight_dtype']} weights, {c['kv_dtype']} cache"
    out = {
        "Model": f"{recipe.model.id} ({count(recipe.model.parameters)} parameters)",
        "Devices": _devices(recipe, request),
        "Split": split_name(c),
        "Formats": weights,
        "Engine": f"{recipe.engine.title} {recipe.engine.version}".strip(),
        "Workload": workload_name(request.workload),
        "Optimised for": goals_text(request),
        "Limits": "; ".join(stated_limits(request.objective.limits)) or "none",
    }
    out |= _confidence(request, chance)
    out |= _price(recipe)
    out |= {"Longest request": f"{recipe.max_context:,} tokens"} if recipe.max_context else {}
    if drafts := c.get("speculative"):
        out["Speculative decoding"] = (
            f"{drafts['tokens']} draft tokens per step, {drafts['method']}"
        )
    out |= {"Container": lock.image.reference} if lock and lock.image else {}
    return out


def _devices(recipe: Recipe, request: PlanRequest) -> str:
    """``4 of 8 × NVIDIA H100 SXM5 80 GB``: what the split uses of what is there."""
    d, there = recipe.device, request.hardware.devices
    nodes = f" in {-(-d.count // d.per_node)} nodes" if d.per_node and d.count > d.per_node else ""
    used = f"{d.count:,} of {there:,}" if there > d.count else f"{d.count:,}"
    return f"{used} × {d.title}{nodes}"


def goals_text(request: PlanRequest) -> str:
    """What counts most, by its name on the pages; several goals with their weights."""
    aim = aim_of(request)
    if aim is not None:
        return aims(request)[aim].title
    goals = request.objective.goals.items()
    return ", ".join(f"{goal} × {significant(weight, 2)}" for goal, weight in goals)


def _confidence(request: PlanRequest, chance: float | None) -> dict[str, str]:
    """How surely the limits hold, and what was asked for; nothing without limits."""
    asked = request.objective.confidence
    if not stated_limits(request.objective.limits):
        return {}
    held = "" if chance is None else chance_text(chance).replace("%", " %")
    wanted = "" if asked is None else f"at least {asked * 100:g} % asked for"
    text = ", ".join(part for part in (held, wanted) if part)
    return {"Limits hold with": text} if text else {}


def _price(recipe: Recipe) -> dict[str, str]:
    """By the hour and the month; nothing where no price is known."""
    hour = recipe.estimate["cost"].get("usd_per_hour")
    if hour is None:
        return {}
    month = f"{usd(hour * HOURS_PER_MONTH)} a month of {HOURS_PER_MONTH:,.0f} hours"
    return {"Price": f"{usd(hour)} an hour, {month}"}


def expected(recipe: Recipe) -> list[TextRow]:
    """Figures with ranges and basis, then money and power."""
    estimate = recipe.estimate
    rows = text_rows(recipe.kind, estimate)
    return [*rows, *(_serving(estimate) if recipe.kind == "serving" else _training(estimate))]


def _row(
    estimate: Mapping[str, Any], label: str, value: str, basis: str = "", ends: Ends = ("", "")
) -> TextRow:
    return TextRow(label, value, *ends, estimate["basis"].get(basis, "computed"))


def _range(estimate: Mapping[str, Any], figure: str, text: Callable[[float], str]) -> Ends:
    """The ends of a figure's range; empty in recipes that were made before it had one."""
    ends = estimate["bands"].get(figure)
    return (text(ends[0]), text(ends[1])) if ends else ("", "")


def _serving(estimate: Mapping[str, Any]) -> Iterator[TextRow]:
    cost, name = estimate["cost"], "output_tokens_per_s_per_gpu"
    yield _row(
        estimate,
        "Output per device",
        rate(estimate["serving"][name]),
        name,
        _range(estimate, name, rate),
    )
    if cost["usd_per_hour"] is not None:
        figure = "usd_per_million_output_tokens"
        yield _row(
            estimate,
            "Cost per million output tokens",
            usd(cost[figure]),
            "usd_per_hour",
            _range(estimate, figure, usd),
        )
        yield _row(estimate, "Cost per hour", usd(cost["usd_per_hour"]), "usd_per_hour")
    yield _row(
        estimate, "Power of the devices", f"{significant(estimate['energy']['watts'])} W", "watts"
    )


def _training(estimate: Mapping[str, Any]) -> Iterator[TextRow]:
    run, cost = estimate.get("run") or {}, estimate["cost"]
    for name in ("mfu", "hfu"):
        # recipes of earlier versions have no HFU, and those without recomputation none of their own
        if (share := estimate["training"].get(name)) is not None:
            yield _row(estimate, TRAINING[name].title, utilisation(share), name)
    if run.get("goodput"):
        yield _row(estimate, TRAINING["goodput"].title, utilisation(run["goodput"]))
    if run.get("wall_s"):
        yield _row(estimate, "Time to finish", days(run["wall_s"]))
    for name, label in (("usd", "Cost of the run"), ("usd_per_hour", "Cost per hour")):
        if cost.get(name) is not None:
            yield _row(estimate, label, usd(cost[name]), "usd_per_hour")
    yield _row(
        estimate, "Power of the devices", f"{significant(estimate['energy']['watts'])} W", "watts"
    )


def banded(row: TextRow) -> str:
    """The range that measured runs are expected in; empty where unknown."""
    return f"{row.low} – {row.high}" if row.low else ""


def memory(recipe: Recipe) -> dict[str, str]:
    """Parts of the fullest device's memory, their total, and what the cache holds."""
    m = recipe.estimate["memory"]
    if m.get("encoder_bytes"):
        m = {**m, **memory_parts(m)}
    rows = {
        label: gib(m[f"{part}_bytes"]) for part, label in _MEMORY.items() if m.get(f"{part}_bytes")
    }
    rows["Total"] = f"{gib(m['total_bytes'])} of {gib(m['usable_bytes'])} usable"
    if m.get("kv_cache_tokens"):
        rows["Cache capacity"] = (
            f"{m['kv_cache_tokens']:,} tokens, {m['max_concurrency']:,} requests"
        )
    if prefill := m.get("prefill"):
        rows["Prefill pool"] = (
            f"{gib(prefill['total_bytes'])} of {gib(prefill['usable_bytes'])} usable"
        )
    return rows


def origins(recipe: Recipe) -> list[Origin]:
    """What set each field, option and variable; what a person or the search chose comes first."""
    spec = engine(recipe.engine.name) if recipe.engine.name in engine_names() else None
    flags = {option.name: option.flag for option in spec.options.by_name.values()} if spec else {}
    values_of = {
        "split": {name: (name, value) for name, value in recipe.candidate.items()},
        "option": {
            name: (flags.get(name, f"--{name}"), value)
            for name, value in recipe.engine.options.items()
        },
        "variable": {name: (name, value) for name, value in recipe.environment.items()},
    }
    part = {"split": "candidate", "option": "options", "variable": "environment"}
    rows = [
        Origin(kind, shown, _value(value), layer)
        for kind, values in values_of.items()
        for name, (shown, value) in values.items()
        if (layer := recipe.provenance.get(f"{part[kind]}.{name}"))
    ]
    return sorted(rows, key=lambda row: -LAYERS.index(row.layer))


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def fallback_rows(recipe: Recipe) -> list[dict[str, str]]:
    """Where the recipe cannot run: what to use instead, what that changes, and its figures."""
    return [
        {
            "Instead": _FALLBACKS[fallback.kind],
            "Devices": f"{fallback.gpus} × {fallback.device}",
            "Split": split_name(fallback.candidate),
            "Change": "; ".join(_changes(recipe, fallback)),
            "Figures": ", ".join(_figures(fallback.figures)),
        }
        for fallback in recipe.fallbacks
    ]


def _changes(recipe: Recipe, fallback: Fallback) -> Iterator[str]:
    for name, part in _FORMATS.items():
        if (value := fallback.candidate.get(name)) != recipe.candidate.get(name):
            yield f"{part} in {value}"
    plain = {name: value for name, value in fallback.changes.items() if not isinstance(value, dict)}
    if plain:
        yield change_label(plain)


_SHOWN: Mapping[str, Callable[[float], str]] = {
    "output_tokens_per_s": rate,
    "tpot_s": lambda value: f"{duration(value)} per token",
    "usd_per_million_output_tokens": lambda value: f"{usd(value)} per million tokens",
    "tokens_per_s": rate,
    "step_s": lambda value: f"{duration(value)} per step",
    "usd_per_million_tokens": lambda value: f"{usd(value)} per million tokens",
}
"""Figures of fallbacks, with units."""


def _figures(figures: Mapping[str, float | None]) -> Iterator[str]:
    for name, show in _SHOWN.items():
        if (value := figures.get(name)) is not None:
            yield show(value)
