"""Figures of a recipe: what it should do, which readers rely on, and what was measured.

Records of measurements name everything that the figures depend on, and expire.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from recipe_core.base.documented import DescribedModel
from recipe_core.base.documents import to_json
from recipe_core.base.errors import InputError
from recipe_core.base.provenance import VALID_DAYS
from recipe_core.estimates.columns.scales import CALIBRATED
from recipe_core.request.metrics import Metric, column_metric

if TYPE_CHECKING:
    from recipe_core.recipe.schema import Recipe


class Claim(DescribedModel):
    """One measurement.

    It speaks for a recipe while engine, version, device, count and layout are the recipe's, until
    it expires.
    """

    engine: str
    """Name of the engine that was measured."""

    version: str
    """Version of that engine."""

    image_digest: str | None = None
    """Digest of the container image, where one was known."""

    device: str
    """Name of the device's profile."""

    count: int
    """Devices that were used."""

    candidate: dict[str, Any]
    """Layout that was measured, as the recipe's ``candidate``."""

    max_context: int | None = None
    """Longest request that the engine accepted, in tokens; null for training."""

    workload: dict[str, Any]
    """Load under which it was measured, as a request's ``workload``."""

    date: datetime.date
    """Day of the measurement."""

    expires: datetime.date
    """Last day on which the claim counts."""

    metrics: dict[str, float]
    """Measured figures by name; each name ends in its unit."""

    bundle_digest: str | None = None
    """Digest of the recipe whose bundle measured it."""

    def doubts(self, recipe: Recipe, today: datetime.date) -> list[str]:
        """Say why it does not speak for a recipe today; none where it does."""
        engine, device = recipe.engine, recipe.device
        same = {
            "engine": (self.engine, self.version) == (engine.name, engine.version),
            "device": (self.count, self.device) == (device.count, device.name),
            "layout": self.candidate == recipe.candidate,
        }
        doubts = [f"of another {part}" for part, holds in same.items() if not holds]
        return doubts if today <= self.expires else [f"expired on {self.expires}", *doubts]


def claim_of(
    recipe: Recipe,
    measurement: Mapping[str, Any],
    valid_days: int = VALID_DAYS,
) -> Claim:
    """A claim from a ``measurement.json`` that the recipe's own bundle wrote.

    Raises:
        InputError: when it is not a measurement, or of another engine, machine or recipe than this.
    """
    try:
        version, machine = measurement["engine"]["version"], measurement["machine"]
        name = measurement["recipe"]
        date = datetime.datetime.fromisoformat(measurement["created"]).date()
        figures = measurement["metrics"].items()
        metrics = {key: float(value) for key, value in figures if isinstance(value, int | float)}
        workload = dict(measurement.get("workload") or recipe.request["workload"])
        digest = measurement.get("recipe_digest")
        devices = [device["name"] for device in machine["devices"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        message = f"is not a measurement ({type(error).__name__}: {error})."
        hint = "Give the run/measurement.json of a bundle."
        raise InputError(message, field="measured", hint=hint) from None
    _check_same(recipe, version, machine, name, devices)
    return Claim(
        engine=recipe.engine.name,
        version=recipe.engine.version,
        image_digest=recipe.lock.image.digest if recipe.lock and recipe.lock.image else None,
        device=recipe.device.name,
        count=recipe.device.count,
        candidate=recipe.candidate,
        max_context=recipe.max_context,
        workload=workload,
        date=date,
        expires=date + datetime.timedelta(days=valid_days),
        metrics=metrics,
        bundle_digest=digest,
    )


def _check_same(
    recipe: Recipe,
    version: Any,
    machine: Mapping[str, Any],
    name: Any,
    devices: list[str],
) -> None:
    """Raise InputError for a measurement of something else."""
    engine, runtime = recipe.engine, recipe.device.runtime
    device_names = {alias.casefold() for alias in recipe.device.names}
    foreign = [
        device for device in devices if device_names and device.casefold() not in device_names
    ]
    problems = [
        (name != recipe.name, f"is of the recipe {name}, not of {recipe.name}."),
        (
            version != engine.version,
            f"was measured with {engine.name} {version}; the recipe pins {engine.version}.",
        ),
        (
            machine.get("runtime") != runtime,
            f"was measured on {machine.get('runtime')}, not on {runtime}.",
        ),
        (bool(foreign), f"was measured on {', '.join(devices)}."),
    ]
    for wrong, message in problems:
        if wrong:
            hint = "Give a measurement of this recipe's own bundle."
            raise InputError(message, field="measured", hint=hint)


# Figures of each kind that are printed, where they have a band; of them the registry has title and
# unit.
FIGURES = {
    "serving": ("ttft_s", "tpot_s", "request_latency_s", "output_tokens_per_s"),
    "training": ("step_s", "tokens_per_s_per_gpu", "flops_per_s_per_gpu", "peak_memory_bytes"),
}
# Those of requests that end with their prompt: embeddings and scores.
POOLED = ("request_latency_s", "requests_per_s", "input_tokens_per_s")


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
    names = POOLED if is_pooled_estimate(estimate) else FIGURES[kind]
    return [
        metric_row(estimate, column_metric(name), estimate[kind][name])
        for name in names
        if name in estimate["bands"]
    ]


def metric_row(
    estimate: Mapping[str, Any], metric: Metric, value: float, basis: str = ""
) -> TextRow:
    """A figure of an estimate; without a range in recipes made before it had one.

    ``basis``: the figure whose basis is this one's, where not its own.
    """
    ends = estimate["bands"].get(metric.column)
    low, high = map(metric.show, ends) if ends else ("", "")
    about = estimate["basis"].get(basis or metric.column, "computed")
    return TextRow(metric.title, metric.show(value), low, high, about)


def is_pooled_estimate(estimate: Mapping[str, Any]) -> bool:
    """Return whether an estimate is of requests that end with their prompt."""
    serving = estimate.get("serving")
    return isinstance(serving, Mapping) and "requests_per_s" in serving


def cost_text(estimate: Mapping[str, Any]) -> str | None:
    """Cost per hour and per million output tokens with its basis; None without a price.

    Where there are none, per million input tokens.
    """
    cost, hour = estimate["cost"], column_metric("usd_per_hour")
    if cost["usd_per_hour"] is None:
        return None
    tokens = token_cost_metric(estimate)
    amounts = ", ".join(metric.phrase(cost[metric.column]) for metric in (hour, tokens))
    return f"{amounts} ({estimate['basis']['usd_per_hour']})"


def token_cost_metric(estimate: Mapping[str, Any]) -> Metric:
    """The cost of output tokens; of input tokens where requests end with their prompt."""
    tokens = "input_tokens_alone" if is_pooled_estimate(estimate) else "output_tokens"
    return column_metric(f"usd_per_million_{tokens}")


# Where each kind of recipe has the figure that estimates of two versions are compared by.
HEADLINE = {"serving": ("serving", "output_tokens_per_s"), "training": ("training", "tokens_per_s")}
_NEEDED = {
    "serving": FIGURES["serving"],
    "training": ("step_s", "tokens_per_s", "tokens_per_s_per_gpu"),
}
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
    pooled = is_pooled_estimate(estimate)
    figures = (*POOLED, "output_tokens_per_s") if pooled else _NEEDED[kind]
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
    """Return whether measured runs of one's own corrected a figure of an estimate."""
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
