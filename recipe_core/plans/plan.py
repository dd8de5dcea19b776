"""A plan, as users of the library take it: every split of a request, judged and ranked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from recipe_core.plans.rank import front_of_columns, refused_rows
from recipe_core.plans.splits import refusal_reasons, row_key, row_reasons, row_request
from recipe_core.plans.table import PlanTable
from recipe_core.request.schema import PlanRequest

if TYPE_CHECKING:
    import pandas as pd

    from recipe_core.estimates.results import Estimate
    from recipe_core.plans.flips import Flip
    from recipe_core.plans.remedies import Change

# Candidates that an answer lists unless more are asked for, and refused ones; ``counts`` says how
# many there are.
LISTED, REFUSED_LISTED = 1000, 5000


class Plan(PlanTable):
    """Every split of a request, judged and ranked.

    ``best``, ``ranked`` and ``refused`` are splits; columns over all rows are in ``columns``.
    """

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


@dataclass(frozen=True, slots=True)
class Split:
    """One row of a plan: how a model is cut over devices, and what that would do."""

    plan: Plan
    row: int

    @property
    def candidate(self) -> dict[str, Any]:
        return self.plan.candidate(self.row)

    @property
    def estimate(self) -> Estimate:
        """Memory, time, throughput and cost; ``estimate.tpot_s`` is a figure with its band."""
        estimate: Estimate = self.plan.completed(self.row)
        return estimate

    @property
    def reasons(self) -> list[str]:
        """Say why it cannot run; empty when it can."""
        return row_reasons(self.plan, self.row)

    @property
    def feasible(self) -> bool:
        return bool(self.plan.feasible[self.row])

    @property
    def rank(self) -> int | None:
        """1 for the best; None when it is refused."""
        places = np.flatnonzero(self.plan.order == self.row)
        return int(places[0]) + 1 if len(places) else None

    @property
    def request(self) -> PlanRequest:
        return row_request(self.plan, self.row)

    @property
    def key(self) -> str:
        return row_key(self.plan, self.row)

    def __str__(self) -> str:
        from recipe_core.plans.plan_json import split_label

        return split_label(self.plan, self.row)


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
