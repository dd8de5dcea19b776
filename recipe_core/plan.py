"""Which split is best: enumerate, estimate, judge, rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from recipe_core.units import duration, usd

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
        keys = (c["ep"], c["tp"], c["pp"], -c["output_tokens_per_s"], c["gpus"], _significant(value))
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

    @cached_property
    def nearest(self) -> int | None:
        """When nothing is feasible, the row with the fewest kinds of problem and the smallest lack of memory."""
        if len(self.ranked) or not len(self):
            return None
        problems = np.concatenate([np.sum([r.broken for r in block.refusals], axis=0) for block in self.blocks])
        c = self.columns
        return int(np.lexsort((c["gpus"], np.maximum(c["shortfall_bytes"], 0), problems))[0])

    def advice(self) -> str | None:
        """The smallest change that makes the request feasible, as a sentence."""
        change = smallest_change(self.found)
        return None if change is None else f"It works with {change['field']}: {change['value']}."

    def to_json(self, top: int | None = None) -> dict[str, Any]:
        """Ranked candidates (the first ``top``), every refused split with its reasons, and the nearest when none is feasible."""
        best = self.ranked if top is None else self.ranked[:top]
        ranked = [
            {"rank": n + 1, "candidate": self.candidate(r), "estimate": self.estimate(r), "pareto": bool(self.front[r])}
            for n, r in enumerate(map(int, best))
        ]
        refused = [
            {"candidate": self.candidate(r), "reasons": self.reasons(r)} for r in map(int, np.flatnonzero(~self.columns["feasible"]))
        ]
        row = self.nearest
        nearest = (
            None
            if row is None
            else {"candidate": self.candidate(row), "estimate": self.estimate(row), "change": smallest_change(self.found)}
        )
        return {"schema_version": 1, "candidates": ranked, "refused": refused, "nearest": nearest}

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


def _significant(value: Float, digits: int = 4) -> Float:
    """Rounded to ``digits`` significant digits, so that what differs by less ties."""
    safe = np.where((value == 0) | ~np.isfinite(value), 1.0, value)
    scale = 10.0 ** (digits - 1 - np.floor(np.log10(np.abs(safe))))
    return np.where(np.isfinite(value), np.round(value * scale) / scale, value)


def pareto_front(first: Float, second: Float, among: Bool) -> Bool:
    """Rows of ``among`` that no other row beats in one of two quantities (both: less is better) without losing in the other."""
    on = np.zeros(len(first), dtype=bool)
    rows = np.flatnonzero(among)
    order = rows[np.lexsort((second[rows], first[rows]))]
    if len(order):
        before = np.r_[np.inf, np.minimum.accumulate(second[order])[:-1]]
        on[order[second[order] < before]] = True
    return on


def limit_rules(limits: Limits, block: Estimates) -> list[Refusal]:
    """One rule a limit of the objective, for cases that can run at all."""
    s, c, runs = block.serving, block.cost, block.feasible

    def over(code: str, label: str, value: Float, limit: float | None, show: Callable[[float], str]) -> list[Refusal]:
        if limit is None:
            return []
        return [Refusal(code, runs & (value > limit), lambda i: f"{label} {show(float(value[i]))} exceeds the limit of {show(limit)}")]

    def seconds(milliseconds: float | None) -> float | None:
        return None if milliseconds is None else milliseconds / 1e3

    return [
        *over("limit-ttft", "time to first token", s.ttft_s, seconds(limits.ttft_ms), duration),
        *over("limit-tpot", "time per output token", s.tpot_s, seconds(limits.tpot_ms), duration),
        *over("limit-latency", "request latency", s.request_latency_s, seconds(limits.request_latency_ms), duration),
        *over("limit-usd", "cost per hour", c.usd_per_hour, limits.usd_per_hour, usd),
        *over("limit-gpus", "device count", block.cases.devices.astype(float), limits.gpus, lambda n: f"{n:,.0f}"),
    ]


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
    return table, int(table.ranked[0]) if len(table.ranked) else int(table.nearest or 0)


def smallest_change(found: Resolved) -> dict[str, Any] | None:
    """The first of a few changes with which something is feasible, each really planned: lighter weights, shorter context, more devices."""
    for field, value in _changes(found):
        part, name = field.split(".")
        request = found.request
        changed = request.model_copy(update={part: getattr(request, part).model_copy(update={name: value})})
        try:
            table = plan(changed)
        except RecipeError:
            continue
        if len(table.ranked):
            return {"field": field, "value": value, "candidate": table.candidate(int(table.ranked[0]))}
    return None


def _changes(found: Resolved) -> Iterator[tuple[str, Any]]:
    request, workload, device = found.request, found.workload, found.cluster.device
    for dtype in ("fp8", "mxfp4", "int4"):
        if dtype in device.weight_dtypes and dtype not in request.options.weight_dtypes:
            yield "options.weight_dtypes", (dtype,)
    shortest = workload.input_tokens + workload.output_tokens
    if workload.max_context is not None and workload.max_context > shortest:
        yield "workload.max_context", shortest
    for factor in (2, 4, 8):
        more = request.hardware.per_node * factor
        yield ("hardware.per_node", more) if more <= device.node.devices else ("hardware.nodes", request.hardware.nodes * factor)
