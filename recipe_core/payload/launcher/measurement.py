"""Measurements: what was measured, of which recipe, on what, beside what was predicted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from .files import digest, read_object
from .machine import Machine
from .plan import LaunchPlan
from .preflight import Preflight

# The figures that expected.json may predict of servers and of a training run, as people call them,
# in the order they are shown.
FIGURES: Mapping[str, Mapping[str, str]] = {
    "serving": {
        "ttft_s": "time to first token, mean",
        "ttft_p50_s": "time to first token, median",
        "ttft_p95_s": "time to first token, p95",
        "tpot_s": "time per output token, mean",
        "tpot_p95_s": "time per output token, p95",
        "request_latency_s": "request latency, mean",
        "output_tokens_per_s": "output tokens per second",
    },
    "training": {
        "step_s": "step time, median",
        "tokens_per_s": "tokens per second",
        "tokens_per_s_per_gpu": "tokens per second per device",
        "mfu": "model flops utilisation",
        "peak_memory_bytes": "peak memory of a device",
    },
}


def measurement_head(plan: LaunchPlan, machine: Machine, now: datetime) -> dict[str, Any]:
    """Return the head of every record of a measurement: its recipe, time and machine."""
    return {
        "schema_version": 1,
        "created": now.astimezone(timezone.utc).isoformat(timespec="seconds"),
        "recipe": plan.name,
        "recipe_digest": digest(plan.root),
        "machine": machine.to_json(),
    }


def record_measurement(
    plan: LaunchPlan, checked: Preflight, measured: Mapping[str, float | None], now: datetime
) -> dict[str, Any]:
    """Return what ``measurement.json`` says of servers and of a training run.

    ``ratio`` is measured over predicted: above 1 is more than predicted.
    """
    expected = read_object(plan.folder / "expected.json")
    predicted = predicted_figures(expected, plan.kind)
    return {
        **measurement_head(plan, checked.machine, now),
        "engine": {
            "name": plan.engine.name,
            "version": checked.engine_version,
            "planned_version": plan.engine.version,
        },
        "metrics": dict(measured),
        "predicted": predicted,
        "bands": {key: list(band) for key, band in expected_bands(expected).items()},
        "ratio": {key: _divide(measured.get(key), predicted[key]) for key in predicted},
    }


def predicted_figures(expected: dict[str, Any], kind: str) -> dict[str, float | None]:
    """The figures of a kind of plan from expected.json; None where it has no number."""
    section = expected.get(kind)
    section = section if isinstance(section, dict) else {}
    return {key: finite_number(section.get(key)) for key in FIGURES[kind]}


def expected_bands(expected: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Low and high ends from expected.json, where both are numbers."""
    value = expected.get("bands")
    out = {}
    for key, band in (value if isinstance(value, dict) else {}).items():
        ends = [finite_number(end) for end in band] if isinstance(band, list) else []
        if len(ends) == 2 and ends[0] is not None and ends[1] is not None:
            out[str(key)] = (ends[0], ends[1])
    return out


def _divide(measured: float | None, predicted: float | None) -> float | None:
    return round(measured / predicted, 4) if measured is not None and predicted else None


def finite_number(value: object) -> float | None:
    """A finite number; anything else, booleans too, counts as not given."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)
