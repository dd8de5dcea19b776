"""Figures of a split that formats are compared by, as values and as ratios to the base."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from recipe_core.plans.plan import Plan

Kind = Literal["memory", "time"]


@dataclass(frozen=True, slots=True)
class Figure:
    """A quantity of a split: the plan's column, its unit, and whether more of it is better.

    ``kind``: memory is known of whatever is stored small; time also takes a kernel for it.
    """

    column: str
    label: str
    unit: str
    more_is_better: bool
    kind: Kind


FIGURES: dict[str, Figure] = {
    "weights_bytes": Figure("weights_bytes", "weights", "bytes/device", False, "memory"),
    "cache_bytes": Figure("kv_needed_bytes", "KV cache needed", "bytes/device", False, "memory"),
    "total_bytes": Figure("total_bytes", "memory in all", "bytes/device", False, "memory"),
    "cache_tokens": Figure(
        "kv_cache_tokens", "tokens that the cache holds", "tokens", True, "memory"
    ),
    "requests_held": Figure("max_concurrency", "requests held at once", "requests", True, "memory"),
    "ttft_s": Figure("ttft_s", "time to first token", "s", False, "time"),
    "tpot_s": Figure("tpot_s", "time per output token", "s", False, "time"),
    "request_latency_s": Figure("request_latency_s", "time of a request", "s", False, "time"),
    "output_tokens_per_s": Figure("output_tokens_per_s", "throughput", "tokens/s", True, "time"),
    "output_tokens_per_s_per_gpu": Figure(
        "output_tokens_per_s_per_gpu", "throughput per device", "tokens/s", True, "time"
    ),
    "usd_per_million_output_tokens": Figure(
        "usd_per_million_output_tokens", "cost of a million output tokens", "USD", False, "time"
    ),
    "joules_per_token": Figure("joules_per_token", "energy per output token", "J", False, "time"),
    "gpus": Figure("gpus", "devices", "devices", False, "memory"),
    "load": Figure("load", "load", "requests", True, "memory"),
}
MEMORY = tuple(name for name, figure in FIGURES.items() if figure.kind == "memory")


@dataclass(frozen=True, slots=True)
class Split:
    """What a split does.

    ``state``: holds, queues, uncertain, or "cannot run" with ``reasons``. ``values``: figures by
    name (SI), those that are known. ``candidate``: the split as a request states it. ``why``: why
    times are left out, where they are.
    """

    candidate: Mapping[str, Any]
    title: str
    key: str
    state: str
    reasons: tuple[str, ...] = ()
    values: Mapping[str, float] = field(default_factory=dict)
    why: str = ""

    @property
    def runs(self) -> bool:
        """Whether it can run within the limits."""
        return self.state != "cannot run"

    def ratio(self, name: str, base: Split) -> float | None:
        """A figure over the base's; None where either is not known."""
        before, after = base.values.get(name), self.values.get(name)
        if before is None or after is None or before <= 0:
            return None
        return after / before

    def to_json(self, base: Split | None = None) -> dict[str, Any]:
        """Plain values: each figure with its ratio to the base's; null where not known."""
        return {
            "split": self.title,
            "candidate": dict(self.candidate),
            "state": self.state,
            "reasons": list(self.reasons),
            "figures": {name: self._figure(name, base) for name in FIGURES},
            "why_null": self.why or None,
        }

    def _figure(self, name: str, base: Split | None) -> dict[str, float | None] | None:
        if name not in self.values:
            return None
        return {
            "value": self.values[name],
            "ratio": 1.0 if base is None else self.ratio(name, base),
        }


def split_of(plan: Plan, row: int, why: str = "") -> Split:
    """What a row of a plan does.

    ``why``: the reason for which times are not known, so that memory alone is said. A split that
    cannot run has no times either.
    """
    feasible = bool(plan.feasible[row])
    reasons = () if feasible else tuple(plan.reasons(row))
    names = FIGURES if feasible and not why else MEMORY
    values = {name: float(plan.columns[FIGURES[name].column][row]) for name in names}
    if not why and not feasible:
        why = "the split cannot run"
    return Split(
        candidate=plan.candidate(row),
        title=plan.label(row, device=False),
        key=plan.key(row),
        state=plan.state(row),
        reasons=reasons,
        values={name: value for name, value in values.items() if math.isfinite(value)},
        why=why,
    )
