"""Which split is best: enumerate, estimate, judge, rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from recipe_core.candidates import Resolved, describe, every_split, one_split, resolve, settings
from recipe_core.errors import RecipeError
from recipe_core.estimate import Cases, Estimates, Setting, estimate
from recipe_core.estimate.cases import Bool, Float, Int
from recipe_core.request import CandidateRequest, Goal, Limits, PlanRequest
from recipe_core.split import Refusal
from recipe_core.units import duration, rounded, usd

if TYPE_CHECKING:
    import pandas as pd

COLUMNS: dict[str, Callable[[Estimates], Any]] = {
    "tp": lambda e: e.cases.tp,
    "pp": lambda e: e.cases.pp,
    "dp": lambda e: e.cases.dp,
    "ep": lambda e: e.cases.ep,
    "gpus": lambda e: e.cases.devices,
    "weights_bytes": lambda e: e.memory.weights_bytes,
    "kv_needed_bytes": lambda e: e.memory.kv_needed_bytes,
    "activations_bytes": lambda e: e.memory.activations_bytes,
    "runtime_bytes": lambda e: e.memory.runtime_bytes,
    "total_bytes": lambda e: e.memory.total_bytes,
    "usable_bytes": lambda e: e.memory.usable_bytes,
    "capacity_bytes": lambda e: e.memory.capacity_bytes,
    "shortfall_bytes": lambda e: e.memory.shortfall_bytes,
    "kv_cache_tokens": lambda e: e.memory.pool_tokens,
    "max_concurrency": lambda e: e.memory.max_concurrency,
    "ttft_s": lambda e: e.serving.ttft_s,
    "tpot_s": lambda e: e.serving.tpot_s,
    "request_latency_s": lambda e: e.serving.request_latency_s,
    "output_tokens_per_s": lambda e: e.serving.output_tokens_per_s,
    "output_tokens_per_s_per_gpu": lambda e: e.serving.output_tokens_per_s / e.cases.devices,
    "usd_per_hour": lambda e: e.cost.usd_per_hour,
    "usd_per_million_output_tokens": lambda e: e.cost.usd_per_million_output_tokens,
    "watts": lambda e: e.cost.watts,
    "joules_per_token": lambda e: e.cost.joules_per_token,
    "feasible": lambda e: e.feasible,
}
"""The columns of a plan: name (with its unit) and where it comes from. Memory is per device, throughput of the deployment."""

TIE_DIGITS = 4
"""Splits whose goal agrees to so many significant digits are equally good."""

_BEST: dict[Goal, tuple[str, int]] = {
    "throughput": ("output_tokens_per_s", -1),
    "latency": ("request_latency_s", 1),
    "ttft": ("ttft_s", 1),
    "tpot": ("tpot_s", 1),
    "cost": ("output_tokens_per_s_per_gpu", -1),  # the price per device is the same for all: most tokens per device is cheapest
    "gpus": ("gpus", 1),
    "energy": ("joules_per_token", 1),
}


@dataclass(frozen=True)
class PlanTable:
    """Every candidate of a request, judged. ``blocks`` hold one setting each; rows are numbered through all blocks."""

    found: Resolved
    blocks: tuple[Estimates, ...]

    @property
    def request(self) -> PlanRequest:
        """What was asked."""
        return self.found.request

    def __len__(self) -> int:
        return sum(len(block.cases) for block in self.blocks)

    @cached_property
    def _at(self) -> list[tuple[Estimates, int]]:
        return [(block, i) for block in self.blocks for i in range(len(block.cases))]

    @cached_property
    def columns(self) -> dict[str, Any]:
        """Each of ``COLUMNS`` over all rows."""
        return {name: np.concatenate([np.asarray(get(block)) for block in self.blocks]) for name, get in COLUMNS.items()}

    @cached_property
    def ranked(self) -> Int:
        """Feasible rows, best first; equal ones by simplicity: fewer devices, no pipeline, smaller tp, unshared experts."""
        c = self.columns
        name, sign = _BEST[self.request.objective.optimize]
        value = sign * np.asarray(c[name], dtype=float)
        keys = (c["ep"], c["tp"], c["pp"], -c["output_tokens_per_s"], c["gpus"], rounded(value, TIE_DIGITS))
        order = np.lexsort(keys)
        return np.asarray(order[c["feasible"][order]], dtype=np.int64)

    @cached_property
    def front(self) -> Bool:
        """Rows on the Pareto front of time per output token (less) against tokens/s per device (more)."""
        c = self.columns
        return pareto_front(c["tpot_s"], -c["output_tokens_per_s_per_gpu"], c["feasible"])

    def setting(self, row: int) -> Setting:
        """What the split of a row shares with its block: model, cluster, engine, dtypes."""
        return self._at[row][0].setting

    def candidate(self, row: int) -> dict[str, Any]:
        """The split of a row, as the contract writes it."""
        block, i = self._at[row]
        return describe(block.setting, block.cases, i)

    def cache_tokens(self, row: int) -> int:
        """Tokens of cache a replica needs for the load of a row, each request at its full length."""
        block, i = self._at[row]
        m, tokens = block.memory, block.cases.block_tokens[i]
        sequences = max(1.0, m.kv_needed_bytes[i] / m.sequence_bytes[i])
        return int(min(np.ceil(sequences) * np.ceil(block.cases.max_context[i] / tokens) * tokens, max(m.pool_tokens[i], tokens)))

    def estimate(self, row: int) -> dict[str, Any]:
        """The estimate of a row, as the contract writes it."""
        block, i = self._at[row]
        return block.row(i)

    def reasons(self, row: int) -> list[str]:
        """Why a row is refused; empty when it is not."""
        block, i = self._at[row]
        return block.reasons(i)

    def frame(self) -> pd.DataFrame:
        """All rows as a DataFrame: engine and dtypes, ``COLUMNS``, rank (empty when refused), pareto, reasons."""
        import pandas as pd

        names = {"engine": [], "weight_dtype": [], "kv_dtype": []}  # type: dict[str, list[str]]
        for block, _ in self._at:
            for name, value in zip(names, (block.setting.engine.name, block.setting.weight_dtype, block.setting.kv_dtype), strict=True):
                names[name].append(value)
        rank = pd.array([None] * len(self), dtype="Int64")
        rank[self.ranked] = np.arange(1, len(self.ranked) + 1)
        reasons = ["; ".join(self.reasons(row)) for row in range(len(self))]
        return pd.DataFrame(names | self.columns | {"rank": rank, "pareto": self.front, "reasons": reasons})


def pareto_front(first: Float, second: Float, among: Bool) -> Bool:
    """Rows of ``among`` that no other row beats in one of two quantities (both: less is better) without losing in the other."""
    on = np.zeros(len(first), dtype=bool)
    rows = np.flatnonzero(among)
    order = rows[np.lexsort((second[rows], first[rows]))]
    if len(order):
        before = np.r_[np.inf, np.minimum.accumulate(second[order])[:-1]]
        on[order[second[order] < before]] = True
    return on


@dataclass(frozen=True, slots=True)
class LimitRule:
    """A limit of the objective: its name there, the column it bounds, the limit's units in one of the column's, and how to say it."""

    name: str
    column: str
    factor: float
    label: str
    show: Callable[[float], str]


LIMITS = {
    "limit-ttft": LimitRule("ttft_ms", "ttft_s", 1e3, "time to first token", duration),
    "limit-tpot": LimitRule("tpot_ms", "tpot_s", 1e3, "time per output token", duration),
    "limit-latency": LimitRule("request_latency_ms", "request_latency_s", 1e3, "request latency", duration),
    "limit-usd": LimitRule("usd_per_hour", "usd_per_hour", 1.0, "cost per hour", usd),
    "limit-gpus": LimitRule("gpus", "gpus", 1.0, "device count", lambda n: f"{n:,.0f}"),
}


def limit_rules(limits: Limits, block: Estimates) -> list[Refusal]:
    """One rule a stated limit, for cases that can run at all."""
    stated = [(code, rule, getattr(limits, rule.name)) for code, rule in LIMITS.items()]
    return [_limit_rule(code, rule, float(limit), block) for code, rule, limit in stated if limit is not None]


def _limit_rule(code: str, rule: LimitRule, limit: float, block: Estimates) -> Refusal:
    value = np.asarray(COLUMNS[rule.column](block), dtype=np.float64)
    bound = limit / rule.factor
    shown = rule.show(bound)
    return Refusal(code, block.feasible & (value > bound), lambda i: f"{rule.label} {rule.show(value[i])} exceeds the limit of {shown}")


def judged(found: Resolved, chosen: Setting, columns: Cases) -> Estimates:
    """Estimates of the columns, with the request's limits among the rules."""
    block = estimate(chosen, columns)
    return replace(block, refusals=(*block.refusals, *limit_rules(found.request.objective.limits, block)))


def plan(request: PlanRequest, *, folders: bool = True) -> PlanTable:
    """Every split of the request's cluster, judged and ranked. ``request.candidate`` plays no part.

    Raises:
        InputError: for unknown names or what this version does not model.
    """
    found = resolve(request, folders=folders)
    return PlanTable(found, tuple(judged(found, chosen, every_split(found, chosen)) for chosen in settings(found)))


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
            "weight_dtypes": (candidate.weight_dtype,) if candidate.weight_dtype else request.options.weight_dtypes,
            "kv_dtypes": (candidate.kv_dtype,) if candidate.kv_dtype else request.options.kv_dtypes,
        }
    )
    found = replace(found, request=request.model_copy(update={"options": options}))
    blocks = [(chosen, every_split(found, chosen, candidate)) for chosen in settings(found)]
    table = PlanTable(found, tuple(judged(found, chosen, columns) for chosen, columns in blocks if len(columns)))
    if not len(table):
        raise RecipeError(
            f"no split of {found.cluster.devices} devices agrees with the candidate.",
            field="candidate",
            hint="Leave tp, pp, dp or ep out, or add devices.",
        )
    return table, int(table.ranked[0]) if len(table.ranked) else _least_short(table)


def _least_short(table: PlanTable) -> int:
    """The row with the smallest lack of memory."""
    return int(np.lexsort((table.columns["gpus"], np.maximum(table.columns["shortfall_bytes"], 0)))[0])
