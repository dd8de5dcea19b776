"""A plan: candidate splits as columns, masks of what refuses them, and an order.

What differs between serving and training is data and functions of a ``Kind``; ranking, fronts,
remedies and words are functions in the modules beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.base.errors import RecipeError
from recipe_core.estimates.columns.scopes import without_corrections
from recipe_core.hardware.cluster import Cluster
from recipe_core.plans.confidence import confidence
from recipe_core.plans.evaluation import EvaluatedCases, repeat_blocks
from recipe_core.plans.kind import Block, Kind
from recipe_core.plans.problem import Problem, resolve_problem
from recipe_core.plans.rank import front_of_columns, rank_rows, refused_rows, score_rows
from recipe_core.plans.splits import Split, Splits, refusal_reasons
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.edit import change
from recipe_core.request.schema import PlanRequest

if TYPE_CHECKING:
    import pandas as pd

    from recipe_core.estimates.results import Estimate
    from recipe_core.plans.flips import Flip
    from recipe_core.plans.own_runs import OwnRunsEffect
    from recipe_core.plans.remedies import Change

# Candidates that an answer lists unless more are asked for, and refused ones; ``counts`` says how
# many there are.
LISTED, REFUSED_LISTED = 1000, 5000

Answer = TypeVar("Answer")


class Plan:
    """Every split of a request, judged and ranked.

    ``best``, ``ranked`` and ``refused`` are splits; columns over all rows are in ``columns``. Rows
    are numbered through ``blocks``, each of one setting.
    """

    def __init__(self, spec: Kind, problem: Problem[Any], blocks: Sequence[Block]) -> None:
        self.spec = spec
        self.problem = problem
        self.blocks = tuple(blocks)
        self.shown = spec.shown(self)
        self.measures = self.shown.measures

    @staticmethod
    def of_search(
        kind: Kind, problem: Problem[Any], candidate: CandidateRequest | None = None
    ) -> Plan:
        """Every case of a problem that agrees with what ``candidate`` states."""
        return Plan(kind, *kind.search_cases(kind, problem, candidate))

    @staticmethod
    def of_stated(kind: Kind, problem: Problem[Any], candidate: CandidateRequest) -> Plan | None:
        """The one split that a candidate states in full; None where it does not."""
        pair = kind.find_case(kind, problem, candidate)
        return None if pair is None else Plan(kind, problem, kind.judge_cases(kind, problem, *pair))

    def __len__(self) -> int:
        return sum(len(block) for block in self.blocks)

    @property
    def kind(self) -> Literal["serving", "training"]:
        return self.spec.name

    @property
    def request(self) -> PlanRequest:
        return self.problem.request

    # columns and masks

    @cached_property
    def _ends(self) -> Int:
        """Past the last row of each block."""
        return np.cumsum([len(block) for block in self.blocks])

    @cached_property
    def columns(self) -> Mapping[str, Any]:
        """Degrees, quantities (SI, units in the names) and ``feasible``, each over all rows.

        Memory is per device, throughput of the whole deployment or run. NaN where a rule leaves a
        row without an estimate.
        """
        names = self.blocks[0].columns if self.blocks else {"feasible": None}
        columns = {
            name: np.concatenate(
                [np.asarray(block.columns[name]) for block in self.blocks] or [np.zeros(0)]
            )
            for name in names
        }
        if self.blocks:
            self.spec.add_columns(columns)
        return columns

    @cached_property
    def feasible(self) -> Bool:
        return np.asarray(self.columns["feasible"], dtype=np.bool_)

    @cached_property
    def runs(self) -> Bool:
        """Rows that nothing but a limit of the objective refuses."""
        return np.concatenate([block.runs for block in self.blocks])

    @cached_property
    def queues(self) -> Bool:
        """Rows that start, but do not hold their whole load at once: the rest waits in a queue."""
        return self.spec.overloaded(self) & ~self.uncertain

    @cached_property
    def uncertain(self) -> Bool:
        """Rows that no rule but a limit refuses, whose start is uncertain (``is_uncertain``)."""
        if not self.blocks:
            return np.zeros(len(self), dtype=np.bool_)
        return self.runs & self.spec.is_uncertain(self.columns["start_probability"])

    @cached_property
    def certain(self) -> Bool:
        """Rows that start, beyond the error of estimates: they hold their load, or queue."""
        return self.feasible & ~self.uncertain

    @cached_property
    def holds(self) -> Bool:
        return self.certain & ~self.queues

    @cached_property
    def chances(self) -> Float:
        """The probability that each row keeps every limit, were it measured.

        NaN where it cannot run at all.
        """
        limits = self.request.objective.limits
        return np.concatenate([confidence(block, limits) for block in self.blocks] or [np.zeros(0)])

    @cached_property
    def clusters(self) -> tuple[Cluster, ...]:
        """The request's cluster, those of its options, then those of other problems."""
        places = (*self.problem.clusters, *(block.setting.cluster for block in self.blocks))
        return tuple({id(place): place for place in places}.values())

    @cached_property
    def clusters_of_rows(self) -> Int:
        """The place of every row's cluster in ``clusters``."""
        numbers = {id(place): number for number, place in enumerate(self.clusters)}
        places = repeat_blocks(self, lambda block: numbers[id(block.setting.cluster)])
        return np.asarray(places, dtype=np.int64)

    @cached_property
    def differs(self) -> frozenset[str]:
        """Names of device, engine, formats and stated loads that this plan has several of."""
        rows = [
            {"device": id(block.setting.cluster), **self.spec.names_of(block.setting)}
            for block in self.blocks
        ]
        names = rows[0] if rows else ()
        several = {name for name in names if len({row[name] for row in rows}) > 1}
        loads = self.request.options.loads and len(np.unique(self.columns["load"])) > 1
        return frozenset(several | ({"load"} if loads else set()))

    # one row

    def at(self, row: int) -> tuple[Block, int]:
        """The block of a row, and the row's place in it."""
        k = int(np.searchsorted(self._ends, row, side="right"))
        return self.blocks[k], row - int(self._ends[k]) + len(self.blocks[k])

    def setting(self, row: int) -> Any:
        """Return what the split of a row shares with its block: model, cluster, engine, formats."""
        return self.at(row)[0].setting

    def candidate(self, row: int) -> dict[str, Any]:
        return self.candidates([row])[0]

    def candidates(self, rows: Sequence[int] | Int) -> list[dict[str, Any]]:
        return self.by_block(rows, lambda block, cases: self.spec.describe(self, block, cases))

    def estimate(self, row: int) -> Any:
        """The estimate of a row: a ``ServingEstimate`` or a ``TrainingEstimate``."""
        return self.estimates([row])[0]

    def estimates(self, rows: Sequence[int] | Int) -> list[Any]:
        return self.by_block(rows, EvaluatedCases.rows)

    def by_block(
        self,
        rows: Sequence[int] | Int,
        answer: Callable[[Block, Int], Iterable[Answer]],
    ) -> list[Answer]:
        """Answers of blocks about their cases, in the order of ``rows``."""
        index = np.asarray(rows, dtype=np.int64)
        if len(index) == 1:  # a single row is the most frequent question
            block, i = self.at(int(index[0]))
            return list(answer(block, np.array([i])))
        out: dict[int, Answer] = {}
        for block, places, inside in self.split_rows(index):
            out.update(zip(places.tolist(), answer(block, inside), strict=True))
        return [out[place] for place in range(len(index))]

    def split_rows(self, rows: Int) -> Iterator[tuple[Block, Int, Int]]:
        """Blocks that hold some rows: the places among ``rows`` of these, and their cases there."""
        numbers = np.searchsorted(self._ends, rows, side="right")
        for k in np.unique(numbers).tolist():
            block, places = self.blocks[k], np.flatnonzero(numbers == k)
            yield block, places, rows[places] - self._ends[k] + len(block)

    # order

    @cached_property
    def score(self) -> Float:
        """Figures that rows are ranked by, less is better (``rank.score_rows``)."""
        return score_rows(self)

    @cached_property
    def order(self) -> Int:
        """Feasible rows, best first (``rank.rank_rows``)."""
        return rank_rows(self)

    @property
    def best_row(self) -> int | None:
        """The best row, None when nothing is feasible."""
        return int(self.order[0]) if len(self.order) else None

    # rules

    @cached_property
    def rules(self) -> dict[str, Bool]:
        out: dict[str, Bool] = {}
        start = 0
        for block in self.blocks:
            for code, broken in block.rules():
                rows = out.setdefault(code, np.zeros(len(self), dtype=np.bool_))
                rows[start : start + len(block)] |= broken
            start += len(block)
        return out

    # measures

    def raw(self, name: str) -> Float:
        """A measure of every row, SI."""
        return np.asarray(self.columns[self.measures[name].column], dtype=float)

    def values(self, name: str, rows: Any = slice(None)) -> Float:
        return np.asarray(self.raw(name)[rows] * self.measures[name].factor)

    # answers

    complete: Callable[[Plan, int, Any], Estimate] | None = None
    """Adds to the estimate of a row what later rooms know: what its checkpoint takes to make."""

    def completed(self, row: int) -> Any:
        """The estimate of a row with what ``complete`` adds."""
        estimate = self.estimate(row)
        return estimate if self.complete is None else self.complete(self, row, estimate)

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
        return Splits(self, refused_rows(self))

    def pareto(self, *columns: str) -> Splits:
        """The Pareto front of two or three columns, in rank order.

        ``columns``: by default time per token or step against throughput per device.

        Raises:
            InputError: for a column that there is not, or another number of them.
        """
        return Splits(self, self.order[front_of_columns(self, *columns)[self.order]])

    def changes(self) -> list[Change]:
        """Return where nothing is feasible.

        A few changes to the request after which something is, each really planned.
        """
        from recipe_core.plans.remedies import helpful_changes

        return helpful_changes(self)

    def sensitivity(self) -> list[Flip]:
        """Return what would flip the decision.

        The request planned again with price, lengths and load moved.
        """
        from recipe_core.plans.flips import find_flips

        return find_flips(self)

    @cached_property
    def own_runs_effect(self) -> OwnRunsEffect | None:
        """Return how own runs changed the best split; None where they did not."""
        from recipe_core.plans.own_runs import find_own_runs_effect

        return find_own_runs_effect(self)

    def label(self, row: int) -> str:
        """The degrees of a row, and what else it is where the plan has several."""
        from recipe_core.plans.plan_json import split_label

        return split_label(self, row)

    def to_frame(self) -> pd.DataFrame:
        """All rows: split, ``columns``, ``state``, ``rank``, ``pareto``, ``reasons``.

        ``state``: ``holds``, ``queues``, ``uncertain`` or ``cannot run``; ``rank`` is empty where
        it cannot run.
        """
        import pandas as pd

        rank = pd.array([None] * len(self), dtype="Int64")
        rank[self.order] = np.arange(1, len(self.order) + 1)
        split = self.spec.split_columns(self)
        rest = {name: column for name, column in self.columns.items() if name not in split}
        return pd.DataFrame({**split, **rest}).assign(
            state=np.select(
                [self.holds, self.feasible & self.uncertain, self.feasible],
                ["holds", "uncertain", "queues"],
                "cannot run",
            ),
            rank=rank,
            pareto=front_of_columns(self),
            reasons=list(map("; ".join, refusal_reasons(self, np.arange(len(self))))),
        )

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
        from recipe_core.plans.plan_json import plan_document

        return plan_document(self, LISTED if top is None else top, refused)

    # other plans

    def replan(self, request: PlanRequest) -> Plan:
        """The plan of another request of the same kind."""
        return Plan.of_search(self.spec, self._resolve_again(request))

    def replan_best(self, fields: Mapping[str, Any]) -> tuple[Plan, int] | None:
        """The plan after edits to its request (dotted fields and values), with its best row.

        None where the request is then refused, or nothing is feasible.
        """
        try:
            after = self.replan(change(self.request, fields))
            return None if after.best_row is None else (after, after.best_row)
        except RecipeError:
            return None

    def replan_stated(self, request: PlanRequest) -> Plan | None:
        """The plan of the one split that another request states in full; None where it does not."""
        problem = self._resolve_again(request)
        return Plan.of_stated(self.spec, problem, problem.candidate)

    def _resolve_again(self, request: PlanRequest) -> Problem[Any]:
        with without_corrections():
            return resolve_problem(request, corrections=self.problem.corrections)
