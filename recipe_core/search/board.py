"""What pages, charts and tables ask of a plan, of serving or of training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.base.units import band
from recipe_core.request.schema import PlanRequest
from recipe_core.search.measures import Measure
from recipe_core.search.serving_plan import pareto_front


class Board(ABC):
    """A plan's rows with names, quantities and reasons.

    ``measures``: what rows are compared by; ``axes``: the two that are drawn first; ``listed``: those a table shows first.
    ``parts``: parts of a device's memory with what a person calls them. ``kinds``: titles of the kinds of refusal by code.
    """

    measures: Mapping[str, Measure]
    axes: tuple[str, str]
    listed: tuple[str, ...]
    parts: Mapping[str, str]
    kinds: Mapping[str, str]
    figures: tuple[str, ...]
    """Measures that say a split in one phrase."""
    headline: tuple[str, ...]
    """Measures of the best split that are shown large."""

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def request(self) -> PlanRequest:
        """What was asked."""

    @property
    @abstractmethod
    def columns(self) -> Mapping[str, Any]:
        """What measures read."""

    @property
    @abstractmethod
    def feasible(self) -> Bool:
        """Rows that nothing refuses."""

    @property
    @abstractmethod
    def runs(self) -> Bool:
        """Rows that nothing but a limit of the objective refuses."""

    @property
    @abstractmethod
    def ranked(self) -> Int:
        """Feasible rows, best first."""

    @property
    @abstractmethod
    def device_title(self) -> str:
        """What one device is called: a GPU, or a machine where the processor computes."""

    @abstractmethod
    def degree(self, name: str) -> Int:
        """A degree (tp, pp, dp, ep or cp) of every row."""

    @abstractmethod
    def candidate(self, row: int) -> dict[str, Any]:
        """The split of a row, as the contract writes it."""

    @abstractmethod
    def estimate(self, row: int) -> dict[str, Any]:
        """The estimate of a row, as the contract writes it."""

    @abstractmethod
    def key(self, row: int) -> str:
        """The name of a row in links and charts."""

    @abstractmethod
    def row(self, key: str) -> int | None:
        """The row that a key names, None when the plan has no such split."""

    @abstractmethod
    def label(self, row: int) -> str:
        """A row in a few characters: degrees, and what else differs in this plan."""

    def reasons(self, row: int) -> list[str]:
        """Why a row is refused; empty when it is not."""
        return self.sentences([row])[0]

    @abstractmethod
    def sentences(self, rows: Sequence[int]) -> list[list[str]]:
        """The reasons of some rows."""

    @abstractmethod
    def rules(self) -> dict[str, Bool]:
        """For each rule's code the rows that it refuses."""

    @abstractmethod
    def nearest(self) -> int | None:
        """When nothing fits, the row that lacks least."""

    @abstractmethod
    def beyond_limits(self) -> list[int]:
        """Rows that can run and only break limits of the objective, the nearest first."""

    @abstractmethod
    def memory(self, rows: Sequence[int]) -> dict[str, Float]:
        """Bytes of each of ``parts`` on the fullest device of some rows; NaN where a rule leaves them without an estimate."""

    @abstractmethod
    def short_bytes(self, row: int) -> float:
        """What a device lacks for the split to start at all; zero or less where it starts, NaN without an estimate."""

    @abstractmethod
    def usable_bytes(self, row: int) -> float:
        """What the engine may use of a device."""

    @abstractmethod
    def capacity_bytes(self, row: int) -> float:
        """What a process can have of a device."""

    @cached_property
    def _raw(self) -> dict[str, Float]:
        with np.errstate(divide="ignore", invalid="ignore"):
            return {name: measure.get(self.columns) for name, measure in self.measures.items()}

    def raw(self, name: str) -> Float:
        """A measure of every row, SI."""
        return self._raw[name]

    def bounded(self, name: str) -> Float:
        """What a limit on a measure bounds, SI: the measure, unless the objective asks for a percentile of it."""
        return self._raw[name]

    def values(self, name: str, rows: Any = slice(None)) -> Float:
        """A measure of some rows in the unit it is shown in."""
        shown: Float = self._raw[name][rows] * self.measures[name].factor
        return shown

    def text(self, name: str, row: int) -> str:
        """A measure of one row as a sentence says it."""
        value = float(self._raw[name][row])
        return self.measures[name].show(value) if np.isfinite(value) else "unknown"

    def known(self, name: str) -> bool:
        """Whether a measure is known of any row that fits (a price may not be)."""
        return (
            bool(np.isfinite(self._raw[name][self.feasible]).any())
            if self.feasible.any()
            else bool(np.isfinite(self._raw[name]).any())
        )

    def front(self, *names: str) -> Bool:
        """Rows that no other beats in one of the measures without losing in another."""
        signs = [-1 if self.measures[name].more_is_better else 1 for name in names]
        columns = [sign * self._raw[name] for name, sign in zip(names, signs, strict=True)]
        finite: Bool = np.all(np.isfinite(columns), axis=0)
        return pareto_front(*columns, among=self.feasible & finite)

    def limit(self, name: str) -> float | None:
        """The objective's limit on a measure, in the unit it is shown in."""
        measure = self.measures[name]
        stated = (
            None if measure.limit is None else getattr(self.request.objective.limits, measure.limit)
        )
        return None if stated is None else stated * measure.limit_factor * measure.factor

    def phrase(self, row: int) -> str:
        """A row's main figures in one phrase, without what is not known."""
        said = [
            f"{self.text(name, row)} {_TAIL.get(name, '')}".strip()
            for name in self.figures
            if np.isfinite(self._raw[name][row])
        ]
        return ", ".join(said)

    def band(self, name: str, row: int) -> str | None:
        """Where eight of ten measured runs are expected, as a sentence says it; None where that is not known."""
        figure = self.measures[name].band
        found = self.estimate(row).get("bands", {}).get(figure) if figure else None
        return band(found, self.measures[name].show) if found else None

    @property
    @abstractmethod
    def basis(self) -> str:
        """What the figures of the request's device rest on."""

    def best(self) -> int | None:
        """The best row, None when nothing fits."""
        return int(self.ranked[0]) if len(self.ranked) else None

    def refused(self) -> Int:
        """Rows that do not fit, those with the fewest problems first."""
        rows = np.flatnonzero(~self.feasible)
        problems = np.sum([broken[rows] for broken in self.rules().values()], axis=0)
        return np.asarray(rows[np.argsort(problems, kind="stable")], dtype=np.int64)

    def codes(self, row: int) -> frozenset[str]:
        """The codes of the rules that a row breaks."""
        return frozenset(code for code, broken in self.rules().items() if broken[row])

    def kind(self, codes: Iterable[str]) -> str:
        """Codes as a person calls them."""
        return "; ".join(sorted(self.kinds.get(code, code) for code in codes))


_TAIL = {
    "tpot": "per token",
    "usd": "per million tokens",
    "usd_run": "for the run",
    "step": "a step",
    "wall": "to finish",
}
