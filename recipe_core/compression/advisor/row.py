"""A technique as a row of advice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from recipe_core.accuracy.retained import Retained
from recipe_core.accuracy.support import Support
from recipe_core.accuracy.technique import Technique
from recipe_core.compression.advisor.figures import Split

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
    """What a technique does to the base.

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
