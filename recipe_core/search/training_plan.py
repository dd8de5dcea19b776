"""A training plan: every split judged, ranked and compared, as rows of a table."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from recipe_core.base.arrays import Float, Int
from recipe_core.base.errors import InputError, unknown
from recipe_core.base.units import rounded
from recipe_core.physics.training.estimates import TrainingEstimates
from recipe_core.search.training_problem import Asked

if TYPE_CHECKING:
    import pandas as pd

TIE_DIGITS = 4
LISTED, REFUSED_LISTED = 1000, 5000


MORE_IS_BETTER = frozenset({"tokens_per_s", "tokens_per_s_per_gpu"})


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change of the request that lets something run: the field, its value, and the best split there is then."""

    field: str
    value: str | int
    candidate: dict[str, Any]


@dataclass(frozen=True)
class TrainingTable:
    """Every split of a request, judged: all estimated, then those that can run ranked. ``remedies`` where none can."""

    asked: Asked
    estimates: TrainingEstimates
    remedies: tuple[Remedy, ...] = ()

    def __len__(self) -> int:
        return len(self.estimates)

    @cached_property
    def columns(self) -> dict[str, Any]:
        """What rows are compared by.

        ``gpus``; ``step_s``; ``tokens_per_s`` (of all devices, less what padding and failures cost), ``tokens_per_s_per_gpu`` (failures
        not counted); ``usd_per_million_tokens`` (NaN without a price); ``joules_per_token``; ``peak_memory_bytes`` of the fullest stage's
        rank; ``bubble_share`` of the step; ``tight`` (see `TrainingEstimates.tight`); ``feasible``.
        """
        e, ran = self.estimates, self.estimates.run
        return {
            "gpus": e.cases.devices,
            "step_s": e.step_s,
            "tokens_per_s": ran.tokens_per_s * ran.goodput,
            "tokens_per_s_per_gpu": ran.tokens_per_s / e.cases.devices,
            "usd_per_million_tokens": ran.usd_per_million_tokens,
            "joules_per_token": ran.joules_per_token,
            "peak_memory_bytes": e.memory.peak_bytes,
            "bubble_share": e.parts["bubble"] / e.step_s,
            "tight": e.tight,
            "feasible": e.feasible & self._within,
        }

    @cached_property
    def _within(self) -> Any:
        """Where the request's limits that training knows are kept."""
        limits, ran = self.asked.request.objective.limits, self.estimates.run
        fine = np.ones(len(self), dtype=np.bool_)
        for most, column in (
            (limits.gpus, self.estimates.cases.devices),
            (limits.usd_per_hour, ran.usd_per_hour),
            (limits.watts, ran.watts),
            (limits.joules_per_token, ran.joules_per_token),
        ):
            if most is not None:
                fine &= ~(column > most)
        return fine

    @cached_property
    def score(self) -> Float:
        """Less is better. Throughput counts what failures leave; ttft and tpot have no meaning and count as the time to finish."""
        c, goal = self.columns, self.asked.request.objective.optimize
        price = c["usd_per_million_tokens"]
        price = price if np.isfinite(price).any() else 1 / c["tokens_per_s_per_gpu"]
        scores = {"cost": price, "gpus": c["gpus"].astype(float), "energy": c["joules_per_token"]}
        return np.asarray(scores.get(goal, -c["tokens_per_s"]), dtype=float)

    @cached_property
    def ranked(self) -> Int:
        """Feasible rows, best first, those beyond the memory last; equal ones by throughput, then by simplicity."""
        c, cases = self.columns, self.estimates.cases
        rows = np.flatnonzero(c["feasible"])
        simple = (
            cases.zero_stage,
            cases.recompute,
            cases.virtual_stages,
            cases.cp,
            cases.ep,
            cases.tp,
            cases.pp,
        )
        over = c["peak_memory_bytes"] > self.estimates.memory.capacity_bytes
        keys = (*simple, -c["tokens_per_s"], c["gpus"], rounded(self.score, TIE_DIGITS), over)
        return np.asarray(rows[np.lexsort([key[rows] for key in keys])], dtype=np.int64)

    def front(self, x: str, y: str) -> Int:
        """Feasible rows that no other beats in two of ``columns`` (throughputs: more is better, else less), in order of ``x``.

        Raises:
            InputError: for an unknown column.
        """
        for name in (x, y):
            if name not in self.columns:
                message, hint = unknown("column", name, list(self.columns))
                raise InputError(message, field="columns", hint=hint)
        first, second = (
            np.asarray(self.columns[name], dtype=float) * (-1 if name in MORE_IS_BETTER else 1)
            for name in (x, y)
        )
        rows = self.ranked[np.lexsort((second[self.ranked], first[self.ranked]))]
        best_before = (
            np.minimum.accumulate(np.concatenate([[np.inf], second[rows][:-1]]))
            if len(rows)
            else np.empty(0)
        )
        return np.asarray(rows[second[rows] < best_before], dtype=np.int64)

    @property
    def nearest(self) -> int | None:
        """When nothing can run: the row that breaks no rule but memory's and lacks least; of all rows, where every one breaks another."""
        if len(self.ranked) or not len(self):
            return None
        legal = ~np.any([r.broken for r in self.estimates.refusals if r.code != "memory"], axis=0)
        return int(
            np.argmin(np.where(legal | ~legal.any(), self.columns["peak_memory_bytes"], np.inf))
        )

    def reasons(self, i: int) -> list[str]:
        """Why a row is refused."""
        limited = [] if self._within[i] else ["a limit of the objective is not kept"]
        return self.estimates.reasons(i) + limited

    def frame(self) -> pd.DataFrame:
        """All rows as a DataFrame: the split as a candidate's fields, `columns`, ``rank`` (empty when refused) and ``reasons``."""
        import pandas as pd

        splits = pd.DataFrame([self.estimates.candidate(i) for i in range(len(self))])
        rank = pd.array([None] * len(self), dtype="Int64")
        rank[self.ranked] = np.arange(1, len(self.ranked) + 1)
        reasons = ["; ".join(self.reasons(i)) for i in range(len(self))]
        return splits.assign(**self.columns, rank=rank, reasons=reasons)

    def view(self, top: int | None = None, refused: int = REFUSED_LISTED) -> dict[str, Any]:
        """The plan as the contract writes it: the first ``top`` that can run, the first ``refused`` that cannot."""
        e = self.estimates
        ranked = [
            {"rank": rank, "candidate": e.candidate(i), "estimate": e.row(i)}
            for rank, i in enumerate(map(int, self.ranked[: LISTED if top is None else top]), 1)
        ]
        rows = np.flatnonzero(~self.columns["feasible"])
        listed = [
            {"candidate": e.candidate(i), "reasons": self.reasons(i)}
            for i in map(int, rows[:refused])
        ]
        near = self.nearest
        nearest: dict[str, Any] | None = None
        if near is not None:
            nearest = {
                "candidate": e.candidate(near),
                "estimate": e.row(near),
                "reasons": self.reasons(near),
            }
            nearest["remedies"] = [asdict(remedy) for remedy in self.remedies]
        counts = {"candidates": len(self), "feasible": len(self.ranked), "refused": len(rows)}
        return {
            "schema_version": 1,
            "candidates": ranked,
            "refused": listed,
            "nearest": nearest,
            "counts": counts,
        }
