"""Which split is best: enumerate, estimate, judge, rank."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from recipe_core.base import progress
from recipe_core.base.arrays import Bool, Float, Int, add
from recipe_core.base.errors import InputError, RecipeError
from recipe_core.base.units import rounded
from recipe_core.physics.serving.simulate import MOST, requests_each
from recipe_core.request.schema import LOADS, CandidateRequest, Goal, PlanRequest
from recipe_core.search.evaluated import QUANTITIES, SPLIT_COLUMNS, EvaluatedCases, judge
from recipe_core.search.limits import LIMITS, limited, mean_excess, time_bounds, unsimulated
from recipe_core.search.serving_candidates import (
    Resolved,
    described,
    every_case,
    every_pair_of_pools,
    one_split,
    resolve,
    settings,
    spread_of,
)
from recipe_core.space.serving import Cases, Setting

if TYPE_CHECKING:
    import pandas as pd

Answer = TypeVar("Answer")

COLUMNS = (*SPLIT_COLUMNS, *QUANTITIES, "feasible")
"""The columns of a plan, each with its unit in its name. Memory is per device, throughput of the deployment."""

NAMES = ("device", "engine", "weight_dtype", "kv_dtype")
"""Columns of a plan's frame that all rows of a setting share."""

SIMULATED = 64
"""Candidates of a plan that are simulated where its limits name a percentile: the first by their means."""
REQUESTS = 300_000
"""Requests that are simulated for a plan at most, over all candidates but the first few: some ten seconds."""
NEAREST = 8
"""Candidates that are simulated at least: where fewer keep the limits by their means, those that miss them by least."""
QUICK = 5000
"""Requests of a replica that are simulated without being asked for, in the estimate of one candidate."""
TAILS = (50.0, 95.0, 99.0)

TIE_DIGITS = 4
"""Splits whose goal agrees to so many significant digits are equally good."""

_BEST: dict[Goal, tuple[str, int]] = {
    "throughput": ("output_tokens_per_s", -1),
    "latency": ("request_latency_s", 1),
    "ttft": ("ttft_s", 1),
    "tpot": ("tpot_s", 1),
    "cost": ("usd_per_million_output_tokens", 1),
    "gpus": ("gpus", 1),
    "energy": ("joules_per_token", 1),
}


MORE_IS_BETTER = frozenset(
    {
        "output_tokens_per_s",
        "output_tokens_per_s_per_gpu",
        "kv_cache_tokens",
        "max_concurrency",
        "load",
    }
)
"""Columns of which a front wants the largest values."""


@dataclass(frozen=True)
class PlanTable:
    """Every candidate of a request, judged. ``blocks`` hold one setting each; rows are numbered through all blocks."""

    found: Resolved
    blocks: tuple[EvaluatedCases, ...]

    @property
    def request(self) -> PlanRequest:
        """What was asked."""
        return self.found.request

    def __len__(self) -> int:
        return sum(len(block) for block in self.blocks)

    @cached_property
    def _ends(self) -> Int:
        """Past the last row of each block."""
        return np.cumsum([len(block) for block in self.blocks])

    def at(self, row: int) -> tuple[EvaluatedCases, int]:
        """The block of a row, and the row's place in it."""
        k = int(np.searchsorted(self._ends, row, side="right"))
        return self.blocks[k], row - int(self._ends[k]) + len(self.blocks[k])

    @cached_property
    def columns(self) -> dict[str, Any]:
        """Each of ``COLUMNS`` over all rows."""
        return {
            name: np.concatenate([np.asarray(block.columns[name]) for block in self.blocks])
            for name in COLUMNS
        }

    @cached_property
    def score(self) -> Float:
        """What rows are ranked by, less is better: the goals' quantities, multiplied by their weights as powers."""
        goals = self.request.objective.goals
        columns = [
            (sign * weight, self._quantity(name))
            for goal, weight in goals.items()
            for name, sign in [_BEST[goal]]
        ]
        if len(columns) == 1:  # as it is, so that ties are those of the quantity
            return np.asarray(np.sign(columns[0][0]) * columns[0][1])
        with np.errstate(divide="ignore"):
            return add(weight * np.log(np.maximum(column, 0)) for weight, column in columns)

    def _quantity(self, name: str) -> Float:
        """A column; where the price of some device is not known, cost is counted in devices."""
        column: Float = np.asarray(self.columns[name], dtype=float)
        if (
            name == "usd_per_million_output_tokens"
            and np.isnan(column[self.columns["feasible"]]).any()
        ):
            return np.asarray(1 / np.maximum(self.columns["output_tokens_per_s_per_gpu"], 1e-12))
        return column

    @cached_property
    def ranked(self) -> Int:
        """Feasible rows, best first; equal ones by simplicity: fewer devices, no pipeline, smaller tp, unshared experts and caches."""
        c = self.columns
        simple = (
            c["max_batched_tokens"],
            c["cp"],
            c["ep"],
            c["tp"],
            c["pp"],
            -c["output_tokens_per_s"],
            c["gpus"],
        )
        rows = np.flatnonzero(c["feasible"])
        order = np.lexsort((*(key[rows] for key in simple), rounded(self.score[rows], TIE_DIGITS)))
        return np.asarray(rows[order], dtype=np.int64)

    @property
    def tied(self) -> int:
        """How many rows the best one ties with by the goal; the simplest of them ranks first."""
        best = rounded(self.score[self.ranked[:1]], TIE_DIGITS)
        return (
            int((rounded(self.score[self.ranked], TIE_DIGITS) == best).sum()) - 1
            if len(self.ranked)
            else 0
        )

    @cached_property
    def front(self) -> Bool:
        """Rows on the Pareto front of time per output token (less) against tokens/s per device (more)."""
        return self.front_of("tpot_s", "output_tokens_per_s_per_gpu")

    def front_of(self, *names: str) -> Bool:
        """Rows that no other beats in one of two or three columns without losing in another; of rates and capacities more is better.

        Raises:
            InputError: for a column that there is not, or another number of them.
        """
        unknown_names = [
            name for name in names if name not in QUANTITIES and name not in ("gpus", "load")
        ]
        if unknown_names or len(names) not in (2, 3):
            raise InputError(
                f"a Pareto front is of two or three columns, not {', '.join(names)}.",
                hint=f"Columns: {', '.join(['gpus', 'load', *QUANTITIES])}.",
            )
        columns = [
            np.asarray(self.columns[name], dtype=float) * (-1 if name in MORE_IS_BETTER else 1)
            for name in names
        ]
        return pareto_front(*columns, among=self.columns["feasible"])

    def setting(self, row: int) -> Setting:
        """What the split of a row shares with its block: model, cluster, engine, dtypes."""
        return self.at(row)[0].setting

    def candidate(self, row: int) -> dict[str, Any]:
        """The split of a row, as the contract writes it."""
        return self.candidates([row])[0]

    def candidates(self, rows: Sequence[int] | Int) -> list[dict[str, Any]]:
        """The splits of some rows. Many at once cost little more than one."""
        out = self._of_blocks(
            rows, lambda block, places: described(block.setting, block.cases.take(places))
        )
        for candidate in out:
            if draft := candidate.get("speculative"):
                draft |= self._as_stated(draft)
        return out

    def _as_stated(self, draft: dict[str, Any]) -> dict[str, Any]:
        """The method and the checkpoint that the request names for a draft, on which no estimate depends: a layer is a layer."""
        candidate = self.request.candidate
        stated = (
            candidate.speculative if candidate else None,
            self.found.workload.speculative,
            *self.request.options.speculative,
        )
        alike = (
            each
            for each in stated
            if each and (each.tokens, each.acceptance) == (draft["tokens"], draft["acceptance"])
        )
        same = (
            each
            for each in alike
            if each.method is None or (each.method == "ngram") == (draft["method"] == "ngram")
        )
        named = next(same, None)
        return named.model_dump(include={"method", "model"}, exclude_none=True) if named else {}

    def asked(self, row: int) -> PlanRequest:
        """The request of a row alone: on its hardware, under its load, with its split as the candidate."""
        block, i = self.at(row)
        request, workload = self.request, self.found.workload
        load = float(block.cases.load[i])
        named = {LOADS[workload.mode]: load if workload.mode == "open" else int(load)}
        options = request.options.model_copy(
            update={"hardware": (), "loads": (), "max_batched_tokens": (), "speculative": ()}
        )
        parts = {
            "workload": workload.model_copy(update=named),
            "options": options,
            "hardware": block.setting.cluster.asked,
        }
        return request.model_copy(
            update=parts | {"candidate": CandidateRequest.model_validate(self.candidate(row))}
        )

    def cache_tokens(self, row: int) -> int:
        """Tokens of cache a replica needs for the load of a row, each request at its full length."""
        block, i = self.at(row)
        (m, k), tokens = block.memory(i), block.cases.block_tokens[i]
        sequences = max(1.0, m.kv_needed_bytes[k] / m.sequence_bytes[k])
        return int(
            min(
                np.ceil(sequences) * np.ceil(block.cases.max_context[i] / tokens) * tokens,
                max(m.pool_tokens[k], tokens),
            )
        )

    def estimate(self, row: int) -> dict[str, Any]:
        """The estimate of a row, as the contract writes it."""
        return self.estimates([row])[0]

    def estimates(self, rows: Sequence[int] | Int) -> list[dict[str, Any]]:
        """The estimates of some rows. Many at once cost little more than one."""
        return self._of_blocks(rows, EvaluatedCases.rows)

    def detailed(self, row: int) -> dict[str, Any]:
        """The estimate of a row with times by cause, and percentiles unless simulating them takes long and the limits name none."""
        block, i = self.at(row)
        limits = self.request.objective.limits
        asked, percentiles = limits.percentile, sorted({*TAILS, limits.percentile or TAILS[0]})
        if block.feasible[i] and requests_each(block.setting, block.cases.take([i]))[0] <= (
            MOST if asked else QUICK
        ):
            block = block.simulated(
                np.array([i]), spread_of(self.found.workload), percentiles, time_bounds(limits)
            )
        return block.row(i, explained=True)

    def bounded(self, code: str) -> Float:
        """What a limit bounds in every row: a mean, or the percentile that the limits name."""
        percentile = self.request.objective.limits.percentile
        return np.concatenate([LIMITS[code].value(block, percentile) for block in self.blocks])

    def reasons(self, row: int) -> list[str]:
        """Why a row is refused; empty when it is not."""
        block, i = self.at(row)
        return block.reasons(i)

    def sentences(self, rows: Sequence[int] | Int) -> list[list[str]]:
        """Why some rows are refused."""
        return self._of_blocks(rows, EvaluatedCases.sentences)

    def _of_blocks(
        self, rows: Sequence[int] | Int, answers: Callable[[EvaluatedCases, Int], Iterable[Answer]]
    ) -> list[Answer]:
        """What blocks answer about their rows, in the order of ``rows``."""
        index, blocks = (
            np.asarray(rows, dtype=np.int64),
            np.searchsorted(self._ends, rows, side="right"),
        )
        out: dict[int, Answer] = {}
        for k in np.unique(blocks).tolist():
            block, places = self.blocks[k], np.flatnonzero(blocks == k)
            within = index[places] - self._ends[k] + len(block)
            out |= zip(places.tolist(), answers(block, within), strict=True)
        return [out[place] for place in range(len(index))]

    def frame(self) -> pd.DataFrame:
        """All rows as a DataFrame: engine and dtypes, ``COLUMNS``, rank (empty when refused), pareto, reasons."""
        import pandas as pd

        settings = [block.setting for block in self.blocks]
        shared = [
            (s.cluster.device.name, s.engine.name, s.weight_dtype, s.kv_dtype) for s in settings
        ]
        sizes = [len(block) for block in self.blocks]
        names = {
            name: np.repeat(list(each), sizes)
            for name, each in zip(NAMES, zip(*shared, strict=True), strict=True)
        }
        rank = pd.array([None] * len(self), dtype="Int64")
        rank[self.ranked] = np.arange(1, len(self.ranked) + 1)
        reasons = ["; ".join(said) for block in self.blocks for said in block.sentences()]
        return pd.DataFrame(
            names | self.columns | {"rank": rank, "pareto": self.front, "reasons": reasons}
        )


def pareto_front(*columns: Float, among: Bool) -> Bool:
    """Rows of ``among`` that no other row beats in one of two or three quantities (less is better) without losing in another.

    Rows are walked from the best in the first quantity on. With two quantities one is on the front when it is better in the second than all
    before; with three when it is not beaten in both others by one before (kept as a staircase). Of equal rows the first counts.
    """
    on = np.zeros(len(among), dtype=bool)
    rows = np.flatnonzero(among)
    order = rows[np.lexsort(tuple(column[rows] for column in reversed(columns)))]
    if not len(order):
        return on
    if len(columns) == 2:
        second = columns[1][order]
        on[order[second < np.r_[np.inf, np.minimum.accumulate(second)[:-1]]]] = True
        return on
    stairs: list[tuple[float, float]] = []  # second rising, third falling
    for row, second, third in zip(order, columns[1][order], columns[2][order], strict=True):
        k = bisect_right(stairs, (second, np.inf))
        if k and stairs[k - 1][1] <= third:
            continue
        on[row] = True
        end = k
        while end < len(stairs) and stairs[end][1] >= third:
            end += 1
        start = k - 1 if k and stairs[k - 1][0] == second else k
        stairs[start:end] = [(float(second), float(third))]
    return on


def judged(found: Resolved, chosen: Setting, columns: Cases) -> EvaluatedCases:
    """The columns judged, with the request's limits among the rules; where these name a percentile, all that can run is simulated."""
    return _judged(found, [(chosen, columns)], at_most=None)[0]


def _judged(
    found: Resolved, pairs: Sequence[tuple[Setting, Cases]], at_most: int | None
) -> tuple[EvaluatedCases, ...]:
    """All columns judged, with the request's limits among the rules; a search (``at_most`` is given) leaves out what is wasteful."""
    limits = found.request.objective.limits
    blocks = [judge(chosen, columns, searching=at_most is not None) for chosen, columns in pairs]
    if limits.percentile is None:
        return tuple(limited(block, limits) for block in blocks)
    blocks = [limited(block, limits, timed=False) for block in blocks]
    rows = _worth_simulating(PlanTable(found, tuple(blocks)), at_most)
    out, start = [], 0
    with progress.task(len(rows)):
        for block in blocks:
            mine = rows[(rows >= start) & (rows < start + len(block))] - start
            start += len(block)
            if len(mine):
                block = block.simulated(
                    mine, spread_of(found.workload), (limits.percentile,), time_bounds(limits)
                )
            out.append(limited(unsimulated(block, limits), limits, timed=True))
    return tuple(out)


def _worth_simulating(table: PlanTable, at_most: int | None) -> Int:
    """Rows that can run: all, or the first ``at_most`` of those whose means keep the limits, and a few that miss them by least."""
    if at_most is None:
        return table.ranked
    excess = np.concatenate(
        [mean_excess(block, table.request.objective.limits) for block in table.blocks]
    )[table.ranked]
    keeping, missing = table.ranked[excess <= 1][:at_most], table.ranked[excess > 1]
    near = missing[np.argsort(excess[excess > 1], kind="stable")]
    rows = np.concatenate([keeping, near[: max(NEAREST - len(keeping), 0)]])
    requests = np.concatenate(
        [np.minimum(requests_each(block.setting, block.cases), MOST) for block in table.blocks]
    )[rows]
    return rows[(np.cumsum(requests) <= REQUESTS) | (np.arange(len(rows)) < NEAREST)]


def plan(request: PlanRequest, *, folders: bool = True) -> PlanTable:
    """Every split of the request's cluster, judged and ranked. ``request.candidate`` plays no part.

    Raises:
        InputError: for unknown names or what this version does not model.
    """
    found = resolve(request, folders=folders)
    pairs = [(chosen, every_case(found, chosen)) for chosen in settings(found)]
    if request.options.disaggregated:
        pairs += [
            (chosen, pools)
            for chosen in settings(found)
            if len(pools := every_pair_of_pools(found, chosen))
        ]
    return PlanTable(found, _judged(found, pairs, SIMULATED))


def chosen_plan(request: PlanRequest, *, folders: bool = True) -> tuple[PlanTable, int]:
    """The plan narrowed to what ``request.candidate`` states, and its best row (the nearest when none is feasible).

    Raises:
        InputError: also when no split agrees with the candidate.
    """
    found = resolve(request, folders=folders)
    candidate = request.candidate or CandidateRequest()
    exact = one_split(found, candidate)
    if exact is not None:
        return PlanTable(found, (judged(found, *exact),)), 0
    options = request.options.model_copy(
        update={
            "engines": (candidate.engine,) if candidate.engine else request.options.engines,
            "weight_dtypes": (candidate.weight_dtype,)
            if candidate.weight_dtype
            else request.options.weight_dtypes,
            "kv_dtypes": (candidate.kv_dtype,) if candidate.kv_dtype else request.options.kv_dtypes,
        }
    )
    found = replace(found, request=request.model_copy(update={"options": options}))
    pairs = [
        (chosen, columns)
        for chosen in settings(found)
        if len(columns := every_case(found, chosen, candidate))
    ]
    table = PlanTable(found, _judged(found, pairs, SIMULATED) if pairs else ())
    if not len(table):
        raise RecipeError(
            f"no split of {found.cluster.devices} devices agrees with the candidate.",
            field="candidate",
            hint="Leave tp, pp, dp or ep out, or add devices.",
        )
    return table, int(table.ranked[0]) if len(table.ranked) else _least_short(table)


def _least_short(table: PlanTable) -> int:
    """The row with the smallest lack of memory."""
    return int(
        np.lexsort(
            (
                table.columns["gpus"],
                np.nan_to_num(np.maximum(table.columns["shortfall_bytes"], 0), nan=np.inf),
            )
        )[0]
    )
