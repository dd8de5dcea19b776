"""Figures of a split that formats are compared by, as values and as ratios to the base."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from recipe_core.plans.plan import Plan
from recipe_core.plans.plan_json import split_label

# Figures with the column of the plan, whose metric has title and unit.
FIGURES: dict[str, str] = {
    "weights_bytes": "weights_bytes",
    "cache_bytes": "kv_needed_bytes",
    "total_bytes": "total_bytes",
    "cache_tokens": "kv_cache_tokens",
    "requests_held": "max_concurrency",
    "ttft_s": "ttft_s",
    "tpot_s": "tpot_s",
    "request_latency_s": "request_latency_s",
    "output_tokens_per_s": "output_tokens_per_s",
    "output_tokens_per_s_per_gpu": "output_tokens_per_s_per_gpu",
    "usd_per_million_output_tokens": "usd_per_million_output_tokens",
    "joules_per_token": "joules_per_token",
    "gpus": "gpus",
    "load": "load",
}
# Figures that are known of whatever is stored small; the others take a kernel for it too.
MEMORY = (
    "weights_bytes",
    "cache_bytes",
    "total_bytes",
    "cache_tokens",
    "requests_held",
    "gpus",
    "load",
)


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


def split_figures(plan: Plan, row: int, why: str = "") -> Split:
    """What a row of a plan does.

    ``why``: the reason for which times are not known, so that memory alone is said. A split that
    cannot run has no times either.
    """
    feasible = bool(plan.feasible[row])
    reasons = () if feasible else tuple(plan.reasons(row))
    names = FIGURES if feasible and not why else MEMORY
    values = {name: float(plan.columns[FIGURES[name]][row]) for name in names}
    if not why and not feasible:
        why = "the split cannot run"
    return Split(
        candidate=plan.candidate(row),
        title=split_label(plan, row, device=False),
        key=plan.key(row),
        state=plan.state(row),
        reasons=reasons,
        values={name: value for name, value in values.items() if math.isfinite(value)},
        why=why,
    )
