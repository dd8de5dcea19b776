"""Check that an estimate has the figures that READMEs, launchers and comparisons read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from recipe_core.base.documents import to_json
from recipe_core.base.units import gib, per_second, seconds_text, token_rate_text, usd
from recipe_core.estimates.columns.scales import CALIBRATED

SERVING = {
    "ttft_s": ("Time to first token", seconds_text),
    "tpot_s": ("Time per output token", seconds_text),
    "request_latency_s": ("Request latency", seconds_text),
    "output_tokens_per_s": ("Output tokens per second", token_rate_text),
}
# What requests have that end with their prompt: embeddings and scores.
POOLED = {
    "request_latency_s": ("Request latency", seconds_text),
    "requests_per_s": ("Requests per second", lambda value: per_second(value, "request")),
    "input_tokens_per_s": ("Input tokens per second", token_rate_text),
}
TRAINING = {
    "step_s": ("Step time", seconds_text),
    "tokens_per_s_per_gpu": ("Tokens per second per device", token_rate_text),
    "flops_per_s_per_gpu": (
        "Model FLOP/s per device",
        lambda value: per_second(value, "FLOP"),
    ),
    "peak_memory_bytes": ("Memory of the fullest device", gib),
}
FIGURES = {"serving": SERVING, "training": TRAINING}


@dataclass(frozen=True, slots=True)
class TextRow:
    """One quantity as text, with the ends of its band and its basis."""

    label: str
    value: str
    low: str
    high: str
    basis: str


def text_rows(kind: str, estimate: Mapping[str, Any]) -> list[TextRow]:
    """Figures of a feasible estimate with a band: latency and throughput, or step and rates."""
    values, bands, basis = estimate[kind], estimate["bands"], estimate["basis"]
    figures = POOLED if is_pooled_estimate(estimate) else FIGURES[kind]
    return [
        TextRow(label, show(values[key]), show(bands[key][0]), show(bands[key][1]), basis[key])
        for key, (label, show) in figures.items()
        if key in bands
    ]


def is_pooled_estimate(estimate: Mapping[str, Any]) -> bool:
    """Whether an estimate is of requests that end with their prompt."""
    serving = estimate.get("serving")
    return isinstance(serving, Mapping) and "requests_per_s" in serving


def cost_text(estimate: Mapping[str, Any]) -> str | None:
    """Cost per hour and per million output tokens with its basis; None without a price.

    Where there are none, per million input tokens.
    """
    cost = estimate["cost"]
    if cost["usd_per_hour"] is None:
        return None
    name, tokens = "usd_per_million_output_tokens", "output tokens"
    if is_pooled_estimate(estimate):
        name, tokens = "usd_per_million_input_tokens_alone", "input tokens"
    per_million = usd(cost[name])
    basis = estimate["basis"]["usd_per_hour"]
    per_hour = usd(cost["usd_per_hour"])
    return f"{per_hour} per hour, {per_million} per million {tokens} ({basis})"


# Where each kind of recipe has the figure that estimates of two versions are compared by.
HEADLINE = {"serving": ("serving", "output_tokens_per_s"), "training": ("training", "tokens_per_s")}
_FIGURES = {
    "serving": ("ttft_s", "tpot_s", "request_latency_s", "output_tokens_per_s"),
    "training": ("step_s", "tokens_per_s", "tokens_per_s_per_gpu"),
}
_POOLED = ("request_latency_s", "requests_per_s", "input_tokens_per_s", "output_tokens_per_s")
_BANDS = {"serving": ("request_latency_s", "output_tokens_per_s"), "training": ()}
_PRICES = {
    "serving": ("usd_per_hour", "usd_per_million_output_tokens"),
    "training": ("usd_per_hour", "usd_per_million_tokens"),
}


# Figures that estimates of earlier versions lack.
_LATER = frozenset({"encoder_bytes"})


def check_estimate(kind: str, estimate: Mapping[str, Any]) -> None:
    """Raise ValueError naming the first figure that is missing or no number; prices may be null."""
    _check_figures(kind, estimate)
    for error in _type_errors(kind, estimate):
        name = error["loc"][-1] if error["loc"] else ""
        # pairs are lists in JSON
        if error["type"] != "tuple_type" and (error["type"] != "missing" or name not in _LATER):
            raise ValueError(f"{'.'.join(map(str, error['loc']))}: {error['msg']}")
    if empty := [name for name, part in estimate.items() if part is None]:
        raise ValueError(f"{empty[0]} is null; leave it out")


def _type_errors(kind: str, estimate: Mapping[str, Any]) -> list[Any]:
    try:
        _reader(kind).validate_json(to_json(estimate, indent=None), strict=True)
    except ValidationError as error:
        return list(error.errors(include_url=False, include_input=False))
    return []


@cache
def _reader(kind: str) -> TypeAdapter[Any]:
    if kind == "training":
        from recipe_core.estimates.training.results import TrainingEstimate

        return TypeAdapter(TrainingEstimate)
    from recipe_core.estimates.serving.results import ServingEstimate

    return TypeAdapter(ServingEstimate)


def _check_figures(kind: str, estimate: Mapping[str, Any]) -> None:
    """Raise ValueError naming the first figure that readers cannot do without."""
    figures = _POOLED if is_pooled_estimate(estimate) else _FIGURES[kind]
    for name in figures:
        _check_positive_figure(estimate, f"{kind}.{name}")
    _check_positive_figure(estimate, "memory.total_bytes")
    cost = estimate.get("cost")
    for name in _PRICES[kind]:
        if not isinstance(cost, Mapping) or name not in cost:
            raise ValueError(f"cost.{name} is missing")
        if cost[name] is not None:
            _check_positive_figure(estimate, f"cost.{name}")
    bands, basis = _estimate_value(estimate, "bands"), _estimate_value(estimate, "basis")
    if not isinstance(bands, Mapping) or not isinstance(basis, Mapping):
        raise ValueError("bands and basis of the estimate are missing")
    for name in _BANDS[kind]:
        if name not in bands:
            raise ValueError(f"bands.{name} is missing")
    for name, band in bands.items():
        if not isinstance(band, list | tuple) or len(band) != 2 or not all(map(_is_number, band)):
            raise ValueError(f"bands.{name} is not a pair of numbers")
        if not isinstance(basis.get(name), str):
            raise ValueError(f"basis.{name} is not text")
    notes = estimate.get("notes")
    if not isinstance(notes, list | tuple) or not all(isinstance(note, str) for note in notes):
        raise ValueError("notes is not a list of texts")


def _estimate_value(estimate: Mapping[str, Any], path: str) -> Any:
    value: Any = estimate
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def is_calibrated(estimate: Mapping[str, Any]) -> bool:
    """Whether measured runs of one's own corrected a figure of an estimate."""
    basis = _estimate_value(estimate, "basis")
    texts = basis.values() if isinstance(basis, Mapping) else ()
    return any(str(text).startswith(CALIBRATED) for text in texts)


def figure(estimate: Mapping[str, Any], path: str) -> float | None:
    """A figure by its dotted name; None where it is missing or not a number."""
    value = _estimate_value(estimate, path)
    return value if _is_number(value) else None


def _check_positive_figure(estimate: Mapping[str, Any], path: str) -> None:
    value = _estimate_value(estimate, path)
    if not _is_number(value) or value <= 0:
        raise ValueError(f"{path} is not a number above 0")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
