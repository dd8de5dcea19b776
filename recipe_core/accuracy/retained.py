"""What is retained of a model's accuracy, as an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Published:
    """A published figure of a compressed model beside its base.

    retained: value over base, upside down where less is better; 1: nothing lost. noise: standard
    error of ``retained`` by the number of the benchmark's items; None where that is not known.
    """

    model: str
    technique: str
    method: str
    benchmark: str
    base_value: float
    value: float
    retained: float
    noise: float | None
    source: str
    date: str

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Retained:
    """Expected accuracy of a compressed model over that of its base; 1: nothing lost.

    low to high: the band that 80 % of measurements lie in. basis: what the expectation rests on, in
    one sentence. known: whether published figures are near enough to speak of; where not, the
    figures are NaN and ``basis`` says what is missing. nearest: published figures, the nearest
    first.
    """

    value: float
    low: float
    high: float
    basis: str
    nearest: tuple[Published, ...] = ()
    known: bool = True

    def to_json(self) -> dict[str, Any]:
        """The contract of ``recipe compress``: ``retained`` is null where nothing near is known."""
        figures = {"value": self.value, "low": self.low, "high": self.high}
        return {
            "retained": figures if self.known else None,
            "basis": self.basis,
            "nearest": [figure.to_json() for figure in self.nearest],
        }
