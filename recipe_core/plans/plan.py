"""A plan: every split of a request, judged and ranked.

Serving and training answer the same questions.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, overload

import numpy as np

from recipe_core.base.arrays import Int
from recipe_core.estimates.columns.standing import uncorrected
from recipe_core.plans.problem import Problem, resolve
from recipe_core.plans.rows import PlanRows
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.schema import PlanRequest

if TYPE_CHECKING:
    import pandas as pd

    from recipe_core.estimates.results import Estimate
    from recipe_core.plans.changes import Change
    from recipe_core.plans.sensitivity import Flip

PRICE, LENGTH, LOAD, LIMIT = 0.2, 0.5, 2.0, 0.2
"""How far a price per device and hour, mean lengths (as shares), the load (as a factor) and a limit
on a time (as a share) are moved."""

LISTED, REFUSED_LISTED = 1000, 5000
"""Candidates that an answer lists unless more are asked for, and refused ones; ``counts`` says how
many there are."""


class Plan(PlanRows):
    """Every split of a request, judged and ranked.

    ``best``, ``ranked`` and ``refused`` are splits; columns over all rows are in ``columns``.
    ``settled``: options that the request of one row no longer has.
    """

    kind: Literal["serving", "training"]
    sources: Int
    settled: ClassVar[tuple[str, ...]] = ("hardware",)

    @classmethod
    @abstractmethod
    def search(cls, problem: Problem[Any], candidate: CandidateRequest | None = None) -> Self:
        """The plan over every case of a problem that agrees with what ``candidate`` states."""

    @classmethod
    def together(cls, problems: Sequence[Problem[Any]]) -> Self:
        """One plan over every case of several problems with one objective.

        ``sources`` tells their rows apart.
        """
        blocks = [cls._searched(problem, None) for problem in problems]
        plan = cls(problems[0], [block for several in blocks for block in several])
        sizes = [sum(map(len, several)) for several in blocks]
        plan.sources = np.repeat(np.arange(len(problems)), sizes)
        return plan

    @classmethod
    @abstractmethod
    def _searched(cls, problem: Any, candidate: CandidateRequest | None) -> list[Any]:
        """Every case of a problem that agrees with what ``candidate`` states, judged."""

    @classmethod
    def stated(cls, problem: Problem[Any], candidate: CandidateRequest) -> Self | None:
        """The plan of the one split that a candidate states in full; None where it does not."""
        pair = cls.one_case(problem, candidate)
        return None if pair is None else cls.of(problem, *pair)

    @staticmethod
    @abstractmethod
    def one_case(problem: Any, candidate: CandidateRequest) -> tuple[Any, Any] | None:
        """Setting and case of a candidate that states its split in full, else None."""

    @staticmethod
    @abstractmethod
    def stack(parts: Sequence[Any]) -> Any:
        """Cases of one setting, one after another."""

    @classmethod
    @abstractmethod
    def of(cls, problem: Problem[Any], setting: Any, cases: Any) -> Self:
        """The plan of given cases of one setting."""

    def least_loaded(self) -> Self:
        """The plan with every split at its smallest load where loads are searched, else itself.

        Limits that more load helps to keep do not count there.
        """
        return self

    def replan(self, request: PlanRequest) -> Self:
        """The plan of another request of the same kind."""
        return self.search(self._resolved(request))

    def replan_stated(self, request: PlanRequest) -> Self | None:
        """The plan of the one split that another request states in full; None where it does not."""
        problem = self._resolved(request)
        return self.stated(problem, problem.candidate)

    def _resolved(self, request: PlanRequest) -> Problem[Any]:
        """Another request under the corrections of this plan, not those that hold by now."""
        with uncorrected():
            return resolve(request, corrections=self.problem.corrections)

    def request_of(self, row: int) -> PlanRequest:
        """The request of a row alone.

        On its hardware, under its load, with its split as the candidate.
        """
        request = self.request
        return request.model_copy(
            update={
                "options": request.options.model_copy(update=dict.fromkeys(self.settled, ())),
                "hardware": self.setting(row).cluster.asked or request.hardware,
                "candidate": CandidateRequest.model_validate(self.candidate(row)),
            }
        )

    # what a kind of workload knows to change

    @abstractmethod
    def remedies(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Changes by topic that may let a split in, the least intrusive first."""

    @abstractmethod
    def cures(self, row: int, codes: frozenset[str]) -> Iterator[dict[str, Any]]:
        """Changes that may let a refused row run, by the rules that it breaks."""

    def reliefs(self, _row: int, _codes: frozenset[str]) -> Iterator[dict[str, Any]]:
        """Changes to a row's own choices that may keep the limits it breaks: by default none."""
        yield from ()

    def finer_formats(self) -> Iterator[dict[str, Any]]:
        """Number formats that keep a limit on accuracy which nothing keeps: by default none."""
        yield from ()

    def launch_cures(self) -> Iterator[dict[str, Any]]:
        """Changes after which a bundle can be made, where ``launch_note`` says that none can."""
        yield from ()

    @abstractmethod
    def carried(self, _row: int, _fields: Mapping[str, Any]) -> dict[str, Any]:
        """What of the row's own split has to change with ``fields``."""

    def moves(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """What the decision may depend on, each moved.

        Its name, and the fields as they then are. Here the price, where it may change the choice:
        on one cluster it does not.
        """
        price = self.problem.cluster.usd_per_device_hour
        if price is not None and len(self.problem.clusters) > 1:
            for sign in (-1, 1):
                moved = round(price * (1 + sign * PRICE), 6)
                fields = {"hardware.usd_per_device_hour": moved, "hardware.offer": None}
                yield f"price {sign * PRICE:+.0%}", fields

    @abstractmethod
    def identity(self, row: int) -> tuple[Any, ...]:
        """What makes a row another choice."""

    # splits

    @property
    def best(self) -> Split | None:
        """The best feasible split, None when nothing is feasible."""
        return None if self.best_row is None else Split(self, self.best_row)

    @property
    def ranked(self) -> Splits:
        """Feasible splits, best first."""
        return Splits(self, self.order)

    @property
    def refused(self) -> Splits:
        """Refused splits, those with the fewest problems first."""
        return Splits(self, self.refused_rows())

    def pareto(self, *columns: str) -> Splits:
        """The Pareto front of two or three columns, in rank order.

        ``columns``: by default time per token or step against throughput per device.

        Raises:
            InputError: for a column that there is not, or another number of them.
        """
        on = self.front_of(*columns) if columns else self.frontier
        return Splits(self, self.order[on[self.order]])

    def changes(self) -> list[Change]:
        """Where nothing is feasible.

        A few changes to the request after which something is, each really planned.
        """
        from recipe_core.plans.changes import helpful_changes

        return helpful_changes(self)

    def sensitivity(self) -> list[Flip]:
        """What would flip the decision.

        The request planned again with price, lengths and load moved.
        """
        from recipe_core.plans.sensitivity import flips

        return flips(self)

    # whole plans

    def to_frame(self) -> pd.DataFrame:
        """All rows: split, ``columns``, ``state``, ``rank``, ``pareto``, ``reasons``.

        ``state``: ``holds``, ``queues``, ``uncertain`` or ``cannot run``; ``rank`` is empty where
        it cannot run.
        """
        import pandas as pd

        rank = pd.array([None] * len(self), dtype="Int64")
        rank[self.order] = np.arange(1, len(self.order) + 1)
        reasons = ["; ".join(sentences) for sentences in self.every_sentence()]
        split = self.split_columns()
        rest = {name: column for name, column in self.columns.items() if name not in split}
        return pd.DataFrame({**split, **rest}).assign(
            state=np.select(
                [self.holds, self.feasible & self.uncertain, self.feasible],
                ["holds", "uncertain", "queues"],
                "cannot run",
            ),
            rank=rank,
            pareto=self.frontier,
            reasons=reasons,
        )

    @abstractmethod
    def split_columns(self) -> Mapping[str, Any]:
        """What tells rows apart beside ``columns``: engine, formats …, one value per row."""

    def to_json(self, top: int | None = None, refused: int = REFUSED_LISTED) -> dict[str, Any]:
        """The plan as the contract writes it.

        The first ``top`` ranked, the first ``refused`` with their reasons.

        ``nearest`` is the nearest split when none is feasible, with changes after which something
        is. ``beats_best`` is the probability that a split, if both were measured, is better by the
        goal than the first (null for itself, and where only one of the two has a price);
        ``tied_with_best`` counts those of which it is 0.4 or more. ``confidence`` is the
        probability that a split keeps all limits (null without limits). ``unpriced``: devices of
        which no price is known. ``state`` is ``holds`` where a split holds its whole load at once,
        ``queues`` where it starts and does not; then ``holds_requests`` says how many it holds and
        ``queue`` how long the others wait. It is ``uncertain`` where its memory is too close to
        tell whether it starts: ``start_probability`` and ``doubt`` say how likely and why.
        ``feasible`` counts all three. ``checkpoint`` is the catalog's that has the weights of a
        split in a format which neither the request's has nor the engine makes; null where one has
        to be made first (``recipe compress``). ``pareto_accuracy``: whether no other split is
        better in cost, time per output token or accuracy without being worse in another, where
        splits differ in accuracy. ``bundle``: whether a bundle of the split can be made, else
        it is an estimate only. ``launch_note``: why no bundle can be made, where none can.
        """
        shown = self.order[: LISTED if top is None else top]
        rows = np.flatnonzero(~self.feasible)
        ranked = zip(
            shown.tolist(),
            self._cases_json(shown),
            self.estimates(shown),
            self.frontier[shown].tolist(),
            [None, *self.beats(shown[1:], int(shown[0]))] if len(shown) else [],
            self.confidence(shown).tolist() if self.limited else [None] * len(shown),
            strict=True,
        )
        reasons = zip(self._cases_json(rows[:refused]), self.sentences(rows[:refused]), strict=True)
        corrections = self.problem.corrections
        own = {} if corrections is None else {"own_runs": corrections.to_json()}
        return {
            "schema_version": 1,
            "candidates": [
                {
                    "rank": rank,
                    **case,
                    **self._state_json(row),
                    "bundle": self.bundled(row),
                    "estimate": estimate.to_json(),
                    "pareto": pareto,
                    "beats_best": chance,
                    "confidence": confidence,
                }
                for rank, (row, case, estimate, pareto, chance, confidence) in enumerate(ranked, 1)
            ],
            "refused": [{**case, "reasons": sentences} for case, sentences in reasons],
            "nearest": self._nearest_json(),
            "counts": {
                "candidates": len(self),
                "feasible": len(self.order),
                "holds": int(self.holds.sum()),
                "queues": int((self.feasible & self.queues).sum()),
                "uncertain": int((self.feasible & self.uncertain).sum()),
                "refused": len(rows),
                "tied_with_best": self.tied,
            },
            "unpriced": self.unpriced_devices,
            "launch_note": self.launch_note,
            **own,
        }

    def _cases_json(self, rows: Int) -> list[dict[str, Any]]:
        """The candidates, each with what it runs on and under where a plan has several of those."""
        out: list[dict[str, Any]] = [{"candidate": one} for one in self.candidates(rows)]
        if len(self.problem.clusters) > 1:
            for case, row in zip(out, rows.tolist(), strict=True):
                hardware = self.setting(row).cluster.asked
                case["hardware"] = hardware.model_dump(exclude_none=True) if hardware else None
        return out

    def _state_json(self, row: int) -> dict[str, Any]:
        """Whether a feasible row holds its load at once; where not, how much or why not."""
        state = self.state(row)
        if state == "uncertain":
            chance = float(self.columns["start_probability"][row])
            return {"state": state, "start_probability": chance, "doubt": self.doubt(row)}
        if state != "queues":
            return {"state": state}
        held = int(self.columns["held_requests"][row])
        return {"state": state, "holds_requests": held, "queue": self.queue_text(row)}

    def _nearest_json(self) -> dict[str, Any] | None:
        row = self.nearest_row()
        if row is None:
            return None
        return {
            "candidate": self.candidate(row),
            "estimate": self.estimate(row).to_json(),
            "reasons": self.reasons(row),
            "changes": [change.to_json() for change in self.changes()],
        }


@dataclass(frozen=True, slots=True)
class Split:
    """One row of a plan: how a model is cut over devices, and what that would do."""

    plan: Plan
    row: int

    @property
    def candidate(self) -> dict[str, Any]:
        """Engine, degrees and formats, as a request states them."""
        return self.plan.candidate(self.row)

    @property
    def estimate(self) -> Estimate:
        """Memory, time, throughput and cost; ``estimate.tpot_s`` is a figure with its band."""
        return self.plan.estimate(self.row)

    @property
    def reasons(self) -> list[str]:
        """Why it cannot run; empty when it can."""
        return self.plan.reasons(self.row)

    @property
    def feasible(self) -> bool:
        """Whether it can run within the limits."""
        return bool(self.plan.feasible[self.row])

    @property
    def rank(self) -> int | None:
        """1 for the best; None when it is refused."""
        places = np.flatnonzero(self.plan.order == self.row)
        return int(places[0]) + 1 if len(places) else None

    @property
    def request(self) -> PlanRequest:
        """The request of this split alone."""
        return self.plan.request_of(self.row)

    @property
    def key(self) -> str:
        """Its name in links."""
        return self.plan.key(self.row)

    def __str__(self) -> str:
        return self.plan.label(self.row)


@dataclass(frozen=True, slots=True)
class Splits(Sequence[Split]):
    """Some rows of a plan, in an order; a slice is as cheap."""

    plan: Plan
    rows: Any

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Split: ...
    @overload
    def __getitem__(self, index: slice) -> Splits: ...
    def __getitem__(self, index: int | slice) -> Split | Splits:
        if isinstance(index, slice):
            return Splits(self.plan, self.rows[index])
        return Split(self.plan, int(self.rows[index]))

    def __iter__(self) -> Iterator[Split]:
        return (Split(self.plan, int(row)) for row in self.rows)
