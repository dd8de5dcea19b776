"""The load of a closed loop, searched: for every split the best one that it holds in the limits.

More load never shortens a time to first token or per token, and never raises what a token costs, so
that for throughput, cost and energy the best load is the largest that a split holds within the
limits; goals that weigh time against these have their best load before that. Either is found on a
geometric grid of loads, from the smallest that leaves no replica idle to what the split holds at
once, and on finer ones around the best point, until it is exact or within ``CLOSE``. All splits of
a setting are columns of one estimate in every round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.base.units import round_significant
from recipe_core.estimates.columns.serving import Cases
from recipe_core.plans.limits import LIMITS, bounded_codes, bounded_figures, limit_excess
from recipe_core.plans.plan import Plan
from recipe_core.plans.rank import TIE_DIGITS
from recipe_core.request.objective import GAIN_FROM_LOAD

# Splits × loads of one round, as a rule: few splits are looked at closely, many in more rounds.
COLUMNS = 2048
# Loads of a split in one round at most.
POINTS = 32
# Loads of a split in one round at least, where its best one may lie below the largest.
LEAST_POINTS = 4
# Rounds at most.
ROUNDS = 32
# Loads of a split that count as looked at.
LOOKED_AT = 32
# Splits × loads that are judged together, so that memory stays flat however many there are.
AT_ONCE = 32_768
# Share of a load within which the best one is known; loads below a hundred are exact.
CLOSE = 0.01
# Probabilities below it count as equal.
LEAST_CHANCE = 1e-3

# Bisections of a percentile: the load is known within a few percent.
STEPS = 9
# How many times smaller than by means a load within a percentile may be.
FARTHEST = 64.0

# Cases under the loads that they state, judged by means.
Judge = Callable[[Cases], Plan]


def best_loads(judge: Judge, cases: Cases, count: Callable[[int], None]) -> tuple[Float, Bool]:
    """For each case the load at which it holds, keeps every limit and scores best.

    Of equally good loads the smallest; where none keeps the limits, the one that misses them by
    least, which for limits on times is the smallest.

    Args:
        judge: judges cases of one setting.
        cases: of that setting; their loads do not count.
        count: is told how many loads are about to be judged.

    Returns:
        Whole requests in flight, and whether no rule refuses a case under them.
    """
    best = least_loads(cases)
    first = judge(replace(cases, load=best))
    rows, feasible = np.flatnonzero(first.runs), first.feasible.copy()
    if not len(rows):
        return best, feasible
    count(len(rows) * LOOKED_AT)
    brackets = _Brackets.around(first, rows, best[rows])
    wide = np.flatnonzero(brackets.high > brackets.best)
    for number in range(ROUNDS):
        if not len(wide):
            break
        points = int(np.clip(COLUMNS // len(wide), brackets.least_points(wide), POINTS))
        for some in np.array_split(wide, -(-len(wide) * points // AT_ONCE)):
            loads = brackets.between(some, points, with_high=number == 0)
            places = np.repeat(rows[some], points)
            brackets.narrow(some, loads, judge(replace(cases.take(places), load=loads.ravel())))
        wide = np.flatnonzero(brackets.wide)
    best[rows], feasible[rows] = brackets.best, brackets.feasible
    return best, feasible


@dataclass(slots=True)
class _Brackets:
    """For each split the best load so far, and those on both sides of it that are worse.

    ``missed``, ``score`` and ``feasible`` are those of the best load. ``rising``: whether of the
    loads that hold within the limits the largest is the best.
    """

    low: Float
    best: Float
    high: Float
    missed: Float
    score: Float
    feasible: Bool
    rising: bool

    @classmethod
    def around(cls, first: Plan, rows: Int, lowest: Float) -> _Brackets:
        """From the smallest load, as it was judged, to what is held at once."""
        at_once = np.floor(np.asarray(first.columns["held_requests"], dtype=float)[rows])
        rising = set(first.request.objective.goals) <= GAIN_FROM_LOAD
        missed, score = missed_by(first)[rows], _load_scores(first)[rows]
        low, best, high = lowest.copy(), lowest.copy(), np.maximum(at_once, lowest)
        return cls(low, best, high, missed, score, first.feasible[rows], rising)

    def least_points(self, some: Int) -> int:
        """Loads that narrow some brackets in one round: one where only one side is left."""
        return 1 if (self.low[some] == self.best[some]).all() else LEAST_POINTS

    @property
    def wide(self) -> Bool:
        """Mark where loads between the ends and the best one may yet be better."""
        below = (self.best - self.low > 1) & (self.best > self.low * (1 + CLOSE))
        above = (self.high - self.best > 1) & (self.high > self.best * (1 + CLOSE))
        return np.asarray(below | above)

    def between(self, some: Int, points: int, *, with_high: bool) -> Float:
        """Whole loads inside some brackets, in geometric steps; the upper end too if wanted."""
        share = np.arange(1, points + 1) / (points if with_high else points + 1)
        low, high = self.low[some, None], self.high[some, None]
        return np.asarray(np.round(low * (high / low) ** share))

    def narrow(self, some: Int, loads: Float, judged: Plan) -> None:
        """Take the best of more loads of some splits, and its neighbours as the ends."""
        missed, score = (
            missed_by(judged).reshape(loads.shape),
            _load_scores(judged).reshape(loads.shape),
        )
        loads_known = np.column_stack([self.best[some], loads])
        sort = np.argsort(loads_known, axis=1, kind="stable")
        loads, missed, score, feasible = (
            np.take_along_axis(values, sort, axis=1)
            for values in (
                loads_known,
                np.column_stack([self.missed[some], missed]),
                np.column_stack([self.score[some], score]),
                np.column_stack([self.feasible[some], judged.feasible.reshape(missed.shape)]),
            )
        )
        place, index, last = _best_place(missed, score), np.arange(len(some)), loads.shape[1] - 1
        after = np.minimum(place + 1, last)
        low = np.where(place > 0, loads[index, np.maximum(place - 1, 0)], self.low[some])
        high = np.where(place < last, loads[index, after], self.high[some])
        best = loads[index, place]
        if self.rising:  # what holds below the best is no better
            ends = (missed[index, place] == 0) & (missed[index, after] > 0)
            low = np.where(ends, best, low)
        # where the smallest load misses the limits by least, larger ones miss them by more
        high = np.where((missed[index, place] > 0) & (best == low), best, high)
        self.low[some], self.best[some], self.high[some] = low, best, high
        self.missed[some], self.score[some] = missed[index, place], score[index, place]
        self.feasible[some] = feasible[index, place]


def least_loads(cases: Cases) -> Float:
    """The smallest load of each case that leaves none of its replicas idle."""
    together = cases.shares_experts | cases.disaggregated
    return np.where(together, 1.0, cases.replicas).astype(float)


def missed_by(plan: Plan) -> Float:
    """Return how many times a limit, or what it holds, each row exceeds at worst.

    0 where it holds within the limits, infinite where it cannot run. Whether a row starts is not
    for its load to say: one that may not start has the best load that it holds if it does.
    """
    objective, limits = plan.request.objective, plan.request.objective.limits
    missed = np.asarray(plan.columns["load"] / np.maximum(plan.columns["held_requests"], 1e-9))
    with np.errstate(invalid="ignore", divide="ignore"):
        for code, rule in LIMITS.items():
            if rule.bound(limits) is not None:
                missed = np.maximum(missed, limit_excess(rule, bounded_figures(plan, code), limits))
        if not objective.judges_by_estimate and bounded_codes(limits):
            chance = np.maximum(plan.chances, LEAST_CHANCE)
            missed = np.maximum(missed, objective.required_confidence / chance)
    missed = np.where(plan.runs & np.isfinite(missed), missed, np.inf)
    return np.where(plan.feasible & ~plan.spec.overloaded(plan), 0.0, missed)


def _load_scores(plan: Plan) -> Float:
    """Return the scores that rank rows, as far as ties tell them apart; infinite where unknown."""
    score = np.nan_to_num(plan.score, nan=np.inf)
    if len(plan.request.objective.goals) > 1:  # a logarithm
        return np.round(score, TIE_DIGITS)
    return np.asarray(round_significant(score, TIE_DIGITS), dtype=float)


def _best_place(missed: Float, score: Float) -> Int:
    """Return which of the loads of each row is the best, the smallest of equal ones."""
    smallest = missed.min(axis=1, keepdims=True)
    score = np.where(smallest > 0, 0.0, score)
    return np.asarray(np.where(missed <= smallest, score, np.inf).argmin(axis=1), dtype=np.int64)


def bisect_loads(
    keeps: Callable[[Int, Float], Bool], largest: Float, *, whole_requests: bool
) -> Float:
    """The largest load up to ``largest`` that keeps percentiles, which loads up to some one do.

    Args:
        keeps: of some places in ``largest`` and a load for each whether it keeps them; simulates.
        largest: the largest load that is looked at, one per split: what holds by means.
        whole_requests: whether loads are whole requests.

    Returns:
        Loads, within a few percent; NaN where none down to a 64th of ``largest`` keeps them.
    """
    low, high = np.zeros(len(largest)), np.array(largest, dtype=float)
    keeping = keeps(np.arange(len(largest)), high)
    low[keeping] = high[keeping]
    for _ in range(STEPS):
        middle = np.sqrt(np.maximum(low, high / FARTHEST) * high)
        middle = np.round(middle) if whole_requests else middle
        open_yet = (low < middle) & (middle < high) & (high > low * (1 + CLOSE))
        places = np.flatnonzero(open_yet)
        if not len(places):
            break
        keeping = keeps(places, middle[places])
        low[places] = np.where(keeping, middle[places], low[places])
        high[places] = np.where(keeping, high[places], middle[places])
    return np.where(low > 0, low, np.nan)
