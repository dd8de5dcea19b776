"""A technique as a row of advice."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from recipe_core.accuracy.published import Retained
from recipe_core.accuracy.runners import Support
from recipe_core.accuracy.technique import Technique
from recipe_core.plans.plan import Plan
from recipe_core.plans.plan_json import split_label
from recipe_core.plans.splits import row_key, row_reasons, row_state

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
    """The figures of a split.

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
    """Return what a row of a plan does.

    ``why``: the reason for which times are not known, so that memory alone is said. A split that
    cannot run has no times either.
    """
    feasible = bool(plan.feasible[row])
    reasons = () if feasible else tuple(row_reasons(plan, row))
    names = FIGURES if feasible and not why else MEMORY
    values = {name: float(plan.columns[FIGURES[name]][row]) for name in names}
    if not why and not feasible:
        why = "the split cannot run"
    return Split(
        candidate=plan.candidate(row),
        title=split_label(plan, row, device=False),
        key=row_key(plan, row),
        state=row_state(plan, row),
        reasons=reasons,
        values={name: value for name, value in values.items() if math.isfinite(value)},
        why=why,
    )


# estimated: figures on its own split at least. memory only: no kernel, so no times. no split: it
# runs nowhere on this hardware. already: the base is it. void: nothing for it to work on, or
# nothing to gain. unknown: no source says whether it runs. refused: the engine's own words.
State = Literal["estimated", "memory only", "no split", "already", "void", "unknown", "refused"]

EFFECTS: dict[str, str] = {
    "native": "native: saves memory, and products run at the format's own rate",
    "weight-only kernel": "weight-only kernel: saves memory and its traffic; products stay 16 bit",
    "emulated": "emulated: saves memory, costs time",
    "memory only": "memory only: stored small at most, no kernel to gain from it",
    "refused": "refused: the engine does not start with it",
    "unknown": "unknown: no source says whether it runs",
}
CACHE_EFFECT = "native: the cache is read in it, so that it holds more and less is read"
SHAPE_EFFECT = "a smaller model in the same format: any engine that runs the base runs it"


@dataclass(frozen=True, slots=True)
class FormatRow:
    """A technique applied to the base.

    ``planned_as``: whether a plan has it as a format, or the same physics is applied to changed
    bytes. ``effect``: what the verdict means, ``why``: why figures are missing. ``same_split``: on
    the split of the base; ``best``: on the best split for it. ``accuracy``: what is retained of it.
    ``within``: whether it keeps the limit on accuracy; None without one or where accuracy is
    unknown. ``checkpoints``: of the catalog that are it already. ``fields``: edits that put it into
    the request; None where no plan has it. ``rank``: by the objective, 1 is the best. ``best_at``:
    goals at which no other technique is better.
    """

    name: str
    technique: Technique
    support: Support
    state: State
    effect: str
    why: str
    planned_as: str
    same_split: Split | None
    best: Split | None
    accuracy: Retained
    within: bool | None
    checkpoints: tuple[str, ...]
    fields: Mapping[str, Any] | None
    notes: tuple[str, ...]
    rank: int | None = None
    best_at: tuple[str, ...] = ()

    @property
    def runs(self) -> bool:
        return self.best is not None and self.best.runs

    def to_json(self, base: Split, best: Split) -> dict[str, Any]:
        """Plain values; ``docs/guide/compress.md`` says what each is."""
        accuracy = self.accuracy
        figures = {"value": accuracy.value, "low": accuracy.low, "high": accuracy.high}
        return {
            "technique": self.name,
            "title": self.technique.title,
            "kind": self.technique.kind,
            "bits": {
                "weights": self.technique.weight_bits,
                "activations": self.technique.act_bits,
                "kv": self.technique.kv_bits,
            },
            "state": self.state,
            "verdict": self.support.verdict,
            "effect": self.effect,
            "why": self.why or None,
            "support": self.support.to_json(),
            "way": self.planned_as or None,
            "rank": self.rank,
            "best_at": list(self.best_at),
            "accuracy": {
                "retained": figures if accuracy.known else None,
                "basis": accuracy.basis,
                "within_limit": self.within,
                "nearest": [figure.to_json() for figure in accuracy.nearest],
            },
            "same_split": None if self.same_split is None else self.same_split.to_json(base),
            "best_split": None if self.best is None else self.best.to_json(best),
            "checkpoints": list(self.checkpoints),
            "set": None if self.fields is None else dict(self.fields),
            "notes": list(self.notes),
        }
