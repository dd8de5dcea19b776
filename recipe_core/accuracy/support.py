"""Whether an engine or compiler runs a technique on a device, and by which means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

# native: the matrix unit computes in the format, or the cache is read in it. weight-only kernel:
# stored small, multiplied in 16 bit or as integer dot products. emulated: quantised and dequantised
# around a 16-bit product. memory only: stored small at most. refused: an error, or no such format.
# unknown: sources disagree or say nothing.
Verdict = Literal[
    "native",
    "weight-only kernel",
    "emulated",
    "memory only",
    "refused",
    "unknown",
]

# Verdicts on which nothing can be planned.
VOID: frozenset[Verdict] = frozenset({"refused", "unknown"})


@dataclass(frozen=True, slots=True)
class Support:
    """One row of the knowledge base, or the answer where it has none.

    technique, engine, hardware (a family of devices): by name. variant: the engine's own word for
    the technique, "" where it is the technique's. min_version, last_version: the releases that it
    holds for; "": from the oldest, to the newest. words: what the engine itself says (an error, a
    cell of a table, a source line), shortened. source: title, address and date. inferred: whether a
    stated rule was applied to this hardware rather than read of it.
    """

    technique: str
    engine: str
    hardware: str
    verdict: Verdict
    variant: str = ""
    min_version: str = ""
    last_version: str = ""
    words: str = ""
    note: str = ""
    source: str = ""
    url: str = ""
    date: str = ""
    inferred: bool = False

    @property
    def runs(self) -> bool:
        return self.verdict not in VOID

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__} | {"runs": self.runs}
