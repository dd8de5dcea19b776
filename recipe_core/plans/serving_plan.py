"""A plan of serving: splits of every engine and format under the request's load."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Self, cast

import numpy as np

from recipe_core.base import progress
from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.base.text_rows import MEMORY, memory_parts
from recipe_core.base.units import HOUR_S, duration, significant
from recipe_core.compression.required import compression_estimate, compression_of
from recipe_core.estimates.bands import Uncertain
from recipe_core.estimates.columns.serving import Cases, Setting, stack
from recipe_core.estimates.rules.refusal import Refusal
from recipe_core.estimates.rules.rules import (
    load_rules,
    place_rules,
    refusals,
    search_rules,
    start_rules,
)
from recipe_core.estimates.serving.accuracy import COLUMN as ACCURACY
from recipe_core.estimates.serving.accuracy import accuracy_of, uncertain_accuracy
from recipe_core.estimates.serving.bands import FOLLOWING, METRICS, bands, errors, uncertain
from recipe_core.estimates.serving.estimates import Estimates, estimate
from recipe_core.estimates.serving.results import ServingEstimate
from recipe_core.estimates.serving.simulate import MOST, requests_each
from recipe_core.estimates.serving.starts import is_uncertain, longest_context, start_errors
from recipe_core.plans.accuracy import checkpoint_of, lost, wider_formats
from recipe_core.plans.confidence import confident
from recipe_core.plans.evaluated import EvaluatedCases, Physics, evaluate
from recipe_core.plans.limits import (
    LIMITS,
    limited,
    mean_excess,
    time_bounds,
    unsimulated,
    without_percentile,
)
from recipe_core.plans.load import STEPS, best_loads, bisected, least_loads
from recipe_core.plans.plan import LENGTH, LIMIT, LOAD, Plan
from recipe_core.plans.problem import ServingProblem
from recipe_core.plans.serving_candidates import (
    INTERVALS,
    cached_as,
    describe,
    engine_of,
    every_case,
    load_of,
    one_case,
    spread_of,
    with_intervals,
)
from recipe_core.plans.size import check_loads
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.metrics import Goal, goals_of, metrics_of, timed_limits
from recipe_core.request.objective import Limits
from recipe_core.request.schema import PlanRequest
from recipe_core.request.serving_workload import LOADS
from recipe_core.request.split_key import SPLIT_FIELDS, cluster_of, load_text, split_key, split_of
from recipe_core.request.split_key import load_of as load_of_key

Block = EvaluatedCases[Setting, Cases, Estimates]

SIMULATED = 64
"""Candidates of a plan that are simulated where its limits name a percentile: the first by their
means."""
REQUESTS = 300_000
"""Requests that are simulated for a plan at most, over all candidates but the first few: some ten
seconds."""
NEAREST = 8
"""Candidates that are simulated at least: where fewer keep the limits by their means, those that
miss them by least."""
LOADED = 12
"""Candidates whose loads are searched by simulation where limits name a percentile: the first by
their means."""
QUICK = 5000
"""Requests of a replica that are simulated without being asked for, in the estimate of one
candidate."""
TAILS = (50.0, 95.0, 99.0)


def _every_search_rule(setting: Setting, cases: Cases) -> list[Any]:
    rules = (search_rules, start_rules, load_rules)
    return [refusal for rule in rules for refusal in rule(setting, cases)]


def _uncertain(setting: Setting, column: str) -> Uncertain | None:
    """What the error of a column follows: for accuracy that of published figures."""
    if column in JOB:
        return uncertain(setting, "usd_per_million_output_tokens")
    return uncertain_accuracy(setting) if column == ACCURACY else uncertain(setting, column)


PHYSICS: Physics[Setting, Cases, Estimates] = Physics(
    estimate=estimate,
    rules=refusals,
    search_rules=_every_search_rule,
    place_rules=place_rules,
    uncertain=_uncertain,
    correlations=lambda: bands().correlation,
    left=lambda e, metric: None if e.corrected is None else e.corrected.left.get(metric),
    case_columns={
        "tp": lambda c: c.tp,
        "pp": lambda c: c.pp,
        "dp": lambda c: c.dp,
        "ep": lambda c: c.ep,
        "cp": lambda c: c.cp,
        "gpus": lambda c: c.devices,
        "load": lambda c: c.load,
        "max_batched_tokens": lambda c: c.max_batched_tokens,
    },
    quantities={
        "weights_bytes": lambda e: e.memory.weights_bytes,
        "encoder_bytes": lambda e: e.memory.encoder_bytes,
        "kv_needed_bytes": lambda e: e.memory.kv_needed_bytes,
        "activations_bytes": lambda e: e.memory.activations_bytes,
        "runtime_bytes": lambda e: e.memory.runtime_bytes,
        "total_bytes": lambda e: e.memory.total_bytes,
        "usable_bytes": lambda e: e.memory.usable_bytes,
        "capacity_bytes": lambda e: e.memory.capacity_bytes,
        "shortfall_bytes": lambda e: e.memory.shortfall_bytes,
        "start_probability": lambda e: e.start_probability,
        "pool_bytes": lambda e: e.memory.pool_bytes,
        "kv_cache_tokens": lambda e: e.memory.pool_tokens,
        "max_concurrency": lambda e: e.memory.max_concurrency,
        "held_requests": lambda e: np.minimum(
            e.memory.max_concurrency, e.cases.max_num_seqs * e.cases.replicas
        ),
        "queue_s": lambda e: e.serving.prefill.get("engine_queue", np.zeros(len(e.cases))),
        "ttft_s": lambda e: e.serving.ttft_s,
        "tpot_s": lambda e: e.serving.tpot_s,
        "request_latency_s": lambda e: e.serving.request_latency_s,
        "output_tokens_per_s": lambda e: e.serving.output_tokens_per_s,
        "output_tokens_per_s_per_gpu": lambda e: e.serving.output_tokens_per_s / e.cases.devices,
        "gpus_rented": lambda e: e.cost.devices_rented,
        "usd_per_hour": lambda e: e.cost.usd_per_hour,
        "usd_per_million_output_tokens": lambda e: e.cost.usd_per_million_output_tokens,
        "watts": lambda e: e.cost.watts,
        "joules_per_token": lambda e: e.cost.joules_per_token,
        "accuracy": lambda e: np.full(len(e.cases), accuracy_of(e.setting).value),
        "accuracy_low": lambda e: np.full(len(e.cases), accuracy_of(e.setting).low),
        "accuracy_high": lambda e: np.full(len(e.cases), accuracy_of(e.setting).high),
    },
)

JOB = ("wall_s", "usd")
"""Columns of a queue that is worked off: how long that takes, and what it costs."""


def _wall_s(e: Estimates) -> Float:
    rate = e.serving.output_tokens_per_s / e.cases.output_tokens
    return np.asarray(e.cases.load / rate)


WORKED_OFF = replace(
    PHYSICS,
    quantities={
        **PHYSICS.quantities,
        "wall_s": _wall_s,
        "usd": lambda e: e.cost.usd_per_hour * _wall_s(e) / HOUR_S,
    },
)
"""The same where requests are queued at once, and end."""


class ServingPlan(Plan):
    """Serving splits of a request, judged and ranked."""

    problem: ServingProblem
    kind: Literal["serving", "training"] = "serving"
    measures = metrics_of("closed")
    axes = ("tpot", "per_gpu")
    listed: tuple[str, ...] = (
        "gpus",
        "output",
        "per_gpu",
        "tpot",
        "ttft",
        "memory",
        "used",
        "concurrency",
        "usd",
    )
    tabled: tuple[str, ...] = ("gpus", "ttft", "tpot", "output", "per_gpu", "memory", "usd")
    headline = ("output", "interactivity", "tpot", "ttft", "usd", "usd_hour")
    phrased = ("output", "tpot", "usd")
    parts = MEMORY
    frontier_columns = ("tpot_s", "output_tokens_per_s_per_gpu")
    settled = ("hardware", "loads", "max_batched_tokens", "speculative")
    goals: ClassVar[Mapping[Goal, tuple[str, int]]] = goals_of("closed")
    unpriced: ClassVar[Mapping[str, str]] = {
        "usd_per_million_output_tokens": "output_tokens_per_s_per_gpu"
    }
    shown_as: ClassVar[Mapping[str, str]] = {"accuracy_lost": ACCURACY}

    def __init__(self, problem: ServingProblem, blocks: Sequence[Block]) -> None:
        super().__init__(problem, blocks)
        self.measures = metrics_of(problem.workload.mode)
        if self.loads_differ:
            self.listed = ("load", *type(self).listed)
        if problem.workload.mode == "offline":
            self.listed, self.tabled = (
                (*names, "wall", "usd_run") for names in (self.listed, type(self).tabled)
            )
        if self._tells_accuracy:
            self.listed, self.tabled = (*self.listed, ACCURACY), (*self.tabled, ACCURACY)
        if len(problem.clusters) > 1:  # the chart that devices are usually compared by
            self.axes = ("interactivity", "per_gpu")

    @property
    def _tells_accuracy(self) -> bool:
        """Whether rows are of several number formats, or the objective is about accuracy."""
        objective = self.problem.request.objective
        formats = {(b.setting.weight_dtype, b.setting.kv_dtype) for b in self.blocks}
        stated = objective.limits.accuracy_recovery is not None or "accuracy" in objective.goals
        return stated or len(formats) > 1

    # planning

    @classmethod
    def search(cls, problem: ServingProblem, candidate: CandidateRequest | None = None) -> Self:
        """The plan over every case of a problem that agrees with what ``candidate`` states."""
        if candidate is not None:
            problem = _narrowed(problem, candidate)
        return cls(problem, cls._searched(problem, candidate))

    @classmethod
    def _searched(cls, problem: ServingProblem, candidate: CandidateRequest | None) -> list[Block]:
        pairs = every_case(problem, candidate)
        if not problem.request.load_searched:
            return _judged(cls, problem, pairs, at_most=SIMULATED)
        with _simulations(problem, LOADED):
            pairs, rows = _loaded(cls, problem, candidate or CandidateRequest(), pairs, SIMULATED)
            return _judged(cls, problem, pairs, at_most=SIMULATED, rows=rows)

    @classmethod
    def one_case(
        cls, problem: ServingProblem, candidate: CandidateRequest
    ) -> tuple[Setting, Cases] | None:
        """Setting and case of a candidate that states its split in full, else None.

        Under its best load where that is searched.
        """
        pair = one_case(problem, candidate)
        if pair is None or not problem.request.load_searched:
            return pair
        with _simulations(problem, 1):
            [loaded], _ = _loaded(cls, problem, candidate, [pair], None)
        return loaded

    stack = staticmethod(stack)
    is_uncertain = staticmethod(is_uncertain)

    @classmethod
    def of(cls, problem: ServingProblem, setting: Setting, cases: Cases) -> Self:
        """The plan of given cases.

        Where limits name a percentile, all that can run are simulated.
        """
        return cls(problem, _judged(cls, problem, [(setting, cases)], at_most=None))

    @property
    def load_searched(self) -> bool:
        """Whether every row is under the best load that it holds within the limits."""
        return self.request.load_searched

    @property
    def loads_differ(self) -> bool:
        """Whether rows may be under different loads: each has to say its own."""
        return self.load_searched or bool(self.request.options.loads)

    def phrase(self, row: int) -> str:
        """A row's main figures in one phrase, after the load that was found for it."""
        figures = super().phrase(row)
        if not self.load_searched:
            return figures
        return f"{self.load_text(row)}, {figures}"

    def least_loaded(self) -> Self:
        """The plan with every split at its smallest load where loads are searched, else itself.

        By means. Limits that more load helps to keep do not count there.
        """
        if not self.load_searched:
            return self
        objective = self.request.objective
        times = {name: getattr(objective.limits, name) for name in timed_limits()}
        timed = objective.model_copy(update={"limits": Limits(**times), "confidence": None})
        request = self.request.model_copy(update={"objective": timed})
        pairs = [
            (block.setting, replace(block.cases, load=least_loads(block.cases)))
            for block in self.blocks
        ]
        problem = replace(self.problem, request=request)
        return type(self)(problem, _judged(type(self), problem, pairs, at_most=SIMULATED))

    # columns

    @cached_property
    def columns(self) -> Mapping[str, Any]:
        """Those of the blocks, with tokens/s that one user sees and the share of usable memory."""
        columns = dict(super().columns)
        if not self.blocks:
            return columns
        with np.errstate(divide="ignore", invalid="ignore"):
            columns["tokens_per_s_per_user"] = 1 / columns["tpot_s"]
            columns["memory_share"] = columns["total_bytes"] / columns["usable_bytes"]
        columns["accuracy_lost"] = lost(columns[ACCURACY])
        return columns

    def band_ends(self, name: str, rows: Sequence[int] | Int) -> tuple[Float, Float]:
        """Ends of the 80 % band around a measure of some rows, SI.

        Those of accuracy rest on published figures. NaN where unknown, or certain.
        """
        if self.measures[name].column != ACCURACY:
            return super().band_ends(name, rows)
        index = np.asarray(rows, dtype=np.int64)
        low, high = (
            np.asarray(self.columns[end][index], dtype=float)
            for end in ("accuracy_low", "accuracy_high")
        )
        certain = low == high
        return np.where(certain, np.nan, low), np.where(certain, np.nan, high)

    @cached_property
    def accuracy_front(self) -> Bool | None:
        """Rows that no other beats in cost, time per output token or accuracy without losing one.

        Of devices without a price output per device stands for cost. None where rows do not differ
        in accuracy.
        """
        known = self.columns[ACCURACY][self.holds] if self.blocks else np.zeros(0)
        if len(np.unique(known[np.isfinite(known)])) < 2:
            return None
        cost = "usd_per_million_output_tokens"
        if not all(block.setting.cluster.usd_per_device_hour for block in self.blocks):
            cost = self.unpriced[cost]
        return self.front_of(cost, "tpot_s", ACCURACY)

    def _moves_with_errors(self, rows: Int) -> Float:
        moves = np.zeros((len(rows), len(METRICS)))
        first = self.columns["ttft_s"][rows] / self.columns["request_latency_s"][rows]
        for goal, weight in self.request.objective.goals.items():
            column, sign = self.goals[goal]
            if column == "request_latency_s":  # the first token, and the rest
                moves[:, METRICS.index("ttft_s")] += weight * first
                moves[:, METRICS.index("tpot_s")] += weight * (1 - first)
            elif column in METRICS:
                moves[:, METRICS.index(column)] += sign * weight
            elif column in FOLLOWING:
                moves[:, METRICS.index("output_tokens_per_s")] -= weight
        return moves

    def _errors(self, setting: Setting) -> tuple[Float, Float]:
        return errors(setting)

    def _software(self, setting: Setting) -> tuple[str, ...]:
        return setting.cluster.device.name, setting.engine.name, setting.engine.version

    def _simplicity(self) -> tuple[Any, ...]:
        """Fewer devices, more output, no pipeline, smaller tp, unshared experts and caches."""
        c = self.columns
        output = -c["output_tokens_per_s"]
        return (c["max_batched_tokens"], c["cp"], c["ep"], c["tp"], c["pp"], output, c["gpus"])

    @cached_property
    def overloaded(self) -> Bool:
        """Rows of a closed loop whose cache, or whose engine's limit, holds less than the load."""
        if self.problem.workload.mode != "closed" or not self.blocks:
            return super().overloaded
        return np.asarray(self.columns["held_requests"] < self.columns["load"])

    def queue_text(self, row: int) -> str:
        """``holds 9 of 64 at once, 46 s of the time to first token is waiting``."""
        if not self.queues[row]:
            return ""
        waiting_s = float(self.columns["queue_s"][row])
        phrase = f"holds {self.held_text(row)} at once"
        if waiting_s <= 0:
            return phrase
        return f"{phrase}, {duration(waiting_s)} of the time to first token is waiting"

    def held_text(self, row: int) -> str:
        """How much of its load a queueing row holds: ``9 of 64``; empty for any other row."""
        if not self.queues[row]:
            return ""
        held, load = (float(self.columns[name][row]) for name in ("held_requests", "load"))
        return f"{held:,.0f} of {load:,.0f}"

    def _precedence(self) -> tuple[Any, ...]:
        """Rows that hold their load, those that queue, then those that may not start.

        Of the last those first that more likely start than not.
        """
        unlikely = np.nan_to_num(self.columns["start_probability"]) < 0.5
        return (np.where(self.uncertain, 2 + unlikely, self.queues),)

    @cached_property
    def pooled(self) -> Bool:
        """Rows with a prefill pool of their own."""
        pooled = [block.cases.disaggregated for block in self.blocks]
        return np.concatenate(pooled) if pooled else super().pooled

    @staticmethod
    def names_of(setting: Setting) -> Mapping[str, str]:
        """Engine, weight format and cache format."""
        return {
            "engine": setting.engine.name,
            "weight_dtype": setting.weight_dtype,
            "kv_dtype": setting.kv_dtype,
        }

    @staticmethod
    def titles_of(setting: Setting) -> Mapping[str, str]:
        """Engine, weight format and cache format, as people call them."""
        return {
            "engine": setting.engine.title,
            "weight_dtype": f"{setting.weight_dtype} weights",
            "kv_dtype": f"{setting.kv_dtype} cache",
        }

    @property
    def several_loads(self) -> bool:
        """Whether the request lists loads, so that one split has a row for each."""
        return bool(self.request.options.loads) and len(np.unique(self.columns["load"])) > 1

    def load_text(self, row: int) -> str:
        """The load of a row with what it counts: ``64 in flight``."""
        return load_text(LOADS[self.problem.workload.mode], float(self.columns["load"][row]))

    def split_columns(self) -> Mapping[str, Any]:
        """Device, engine and formats, one value per row."""
        sizes = [len(block) for block in self.blocks]
        shared = [block.setting for block in self.blocks]
        rows = [{"device": s.cluster.device.name, **self.names_of(s)} for s in shared]
        names = ("device", "engine", "weight_dtype", "kv_dtype")
        return {name: np.repeat([row[name] for row in rows], sizes) for name in names}

    # one row

    def _describe(self, block: Block, cases: Int) -> list[dict[str, Any]]:
        """The splits of some cases of a block, drafts as the request names them."""
        out = describe(block.setting, block.cases, cases)
        for candidate in out:
            if draft := candidate.get("speculative"):
                draft |= self._requested_draft(draft)
        return out

    def _requested_draft(self, draft: Mapping[str, Any]) -> dict[str, Any]:
        """Method and checkpoint that the request names for a draft.

        No estimate depends on them: a layer is a layer.
        """
        requested = (
            self.problem.candidate.speculative,
            self.problem.workload.speculative,
            *self.request.options.speculative,
        )
        lookup = draft["method"] == "ngram"
        for one in requested:
            if one is None or (one.tokens, one.acceptance) != (
                draft["tokens"],
                draft["acceptance"],
            ):
                continue
            if one.method is None or (one.method == "ngram") == lookup:
                return one.model_dump(include={"method", "model"}, exclude_none=True)
        return {}

    def request_of(self, row: int) -> PlanRequest:
        """The request of a row alone.

        On its hardware, under its load, with its split as the candidate.
        """
        block, i = self.at(row)
        workload = self.problem.workload
        load = float(block.cases.load[i])
        loaded = {LOADS[workload.mode]: load if workload.mode == "open" else int(load)}
        update = {"workload": workload.model_copy(update=loaded)}
        return super().request_of(row).model_copy(update=update)

    def estimate(self, row: int) -> ServingEstimate:
        """The estimate of a row."""
        return self._made(row, cast(ServingEstimate, super().estimate(row)))

    def _made(self, row: int, estimate: ServingEstimate) -> ServingEstimate:
        """The estimate with what it takes to make a checkpoint that the row needs."""
        if self.request.options.compression is None:
            return estimate
        chosen = compression_of(self.request, self.setting(row))
        if chosen is None:
            return estimate
        devices = int(self.columns["gpus"][row])
        return replace(
            estimate, compression=compression_estimate(chosen, self.setting(row), devices)
        )

    def detailed(self, row: int) -> ServingEstimate:
        """The estimate with times by cause, and percentiles.

        Without percentiles where simulating them takes long and no limit names one.
        """
        block, i = self.at(row)
        limits = self.request.objective.limits
        percentiles = sorted({*TAILS, limits.percentile or TAILS[0]})
        affordable = MOST if limits.percentile else QUICK
        requests = requests_each(block.setting, block.cases.take([i]))[0]
        if block.feasible[i] and requests <= affordable:
            block = _simulated(self.problem, block, np.array([i]), percentiles)
        return self._made(row, cast(ServingEstimate, block.row(i, explained=True)))

    def explained(self, row: int) -> ServingEstimate:
        """The estimate of a row with its times by cause, without simulating percentiles."""
        block, i = self.at(row)
        return self._made(row, cast(ServingEstimate, block.row(i, explained=True)))

    def cache_tokens(self, row: int) -> int:
        """Tokens of cache that a replica needs for a row's load, each request at full length."""
        block, i = self.at(row)
        (estimates, k), tokens = block.detail(i), block.cases.block_tokens[i]
        memory = estimates.memory
        sequences = max(1.0, memory.kv_needed_bytes[k] / max(memory.sequence_bytes[k], 1.0))
        full = np.ceil(sequences) * np.ceil(block.cases.max_context[i] / tokens) * tokens
        return int(min(full, max(memory.pool_tokens[k], tokens)))

    def key(self, row: int) -> str:
        """The name of a row in links and charts, with its load where a split has several."""
        load = float(self.columns["load"][row]) if self.request.options.loads else None
        return split_key(self.candidate(row), self.cluster_number(row), load)

    def find(self, key: str) -> int | None:
        """The row that a key names; without a load in it the one under the request's."""
        split = split_of(key)
        if split is None or "kv_dtype" not in split:
            return None
        agree = [self.degree(name) == split.get(name, 1) for name in ("tp", "pp", "dp", "ep", "cp")]
        agree.append(self.pooled == ("prefill" in split))
        if self.request.options.loads:
            load = load_of_key(key)
            wanted = load_of(self.problem.workload) if load is None else load
            agree.append(np.isclose(self.columns["load"], wanted, rtol=1e-9))
        cluster = cluster_of(key)
        for row in map(int, np.flatnonzero(np.all(agree, axis=0))):
            candidate = self.candidate(row)
            pools = all(candidate.get(name) == split.get(name) for name in ("replicas", "prefill"))
            same = all(candidate[name] == split[name] for name in SPLIT_FIELDS)
            if pools and same and self.cluster_number(row) == cluster:
                return row
        return None

    def memory(self, rows: Sequence[int]) -> dict[str, Float]:
        """Bytes of each part on the fullest device, one per row; weights without the encoders."""
        index = list(rows)
        whole = {name: np.asarray(self.columns[name], dtype=float)[index] for name in self.parts}
        return {**whole, **memory_parts(whole)}

    def held_memory(self, rows: Sequence[int]) -> dict[str, Float]:
        """The same with the cache as the engine will hold it: at most its pool.

        Nothing beside the cache depends on the load, so it is also at most what the device has
        left.
        """
        parts, index = self.memory(rows), list(rows)
        needed = parts["kv_needed_bytes"]
        rest = sum(values for name, values in parts.items() if name != "kv_needed_bytes")
        capacity, pool, lacking = (
            np.asarray(self.columns[name], dtype=float)[index]
            for name in ("capacity_bytes", "pool_bytes", "shortfall_bytes")
        )
        held = np.minimum(needed, np.maximum(np.minimum(pool, capacity - rest), 0.0))
        return parts | {"kv_needed_bytes": np.where(lacking > 0, needed, held)}

    def _cases_json(self, rows: Int) -> list[dict[str, Any]]:
        """The candidates, with their hardware and load where the plan has several."""
        out = super()._cases_json(rows)
        if self.loads_differ:
            for case, load in zip(out, self.columns["load"][rows].tolist(), strict=True):
                case["load"] = load
        for case, row in zip(out, rows.tolist(), strict=True):
            if (setting := self.setting(row)).needs_other_checkpoint:
                case["checkpoint"] = checkpoint_of(setting)
        return out

    def _state_json(self, row: int) -> dict[str, Any]:
        """Whether a feasible row holds its load at once, and is on the front of three axes."""
        state = super()._state_json(row)
        if self.problem.workload.mode == "offline":
            figures = {name: float(self.columns[name][row]) for name in JOB}
            state |= {k: value if math.isfinite(value) else None for k, value in figures.items()}
        if self.accuracy_front is not None:
            state["pareto_accuracy"] = bool(self.accuracy_front[row])
        return state

    # changes that may help

    def remedies(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Changes by topic, the least intrusive first.

        Weights that the engine converts itself, a shorter context, more devices.
        """
        request, workload, model = self.request, self.problem.workload, self.problem.model
        device = self.problem.cluster.device
        options = request.options
        if model.quantization is None:
            engines = [engine_of(name, self.problem.cluster) for name in options.engines or (None,)]
            online = {dtype for spec in engines for dtype in spec.online_weight_dtypes}
            for dtype in sorted(online & set(device.weight_dtypes) - set(options.weight_dtypes)):
                yield "weights", {"options.weight_dtypes": (dtype,)}
        shortest = workload.prompt_tokens + workload.output_tokens
        if workload.max_context is not None and workload.max_context > shortest:
            longest = self._longest_sure_context(shortest)
            yield "context", {"workload.max_context": longest or shortest}
        per_node, nodes, full = (
            request.hardware.per_node,
            request.hardware.nodes,
            device.node.devices,
        )
        while per_node * 2 <= full:
            per_node *= 2
            yield "devices", {"hardware.per_node": per_node}
        fuller = {"hardware.per_node": per_node} if per_node != request.hardware.per_node else {}
        for factor in (2, 4, 8, 16):
            yield "devices", {**fuller, "hardware.nodes": nodes * factor}

    def _longest_sure_context(self, shortest: int) -> int | None:
        """The longest context, in tokens, with which the first uncertain row surely starts."""
        if not len(self.order) or not self.uncertain[self.order[0]]:
            return None
        block, i = self.at(int(self.order[0]))
        case = block.cases.take(np.array([i]))
        return longest_context(block.setting, case, shortest, start_errors().sure)

    def cures(self, row: int, codes: frozenset[str]) -> Iterator[dict[str, Any]]:
        """Changes that may let a refused row run, by the rules that it breaks."""
        for code, suggest in _CURES.items():
            if code in codes:
                yield from suggest(self, row)

    def reliefs(self, row: int, codes: frozenset[str]) -> Iterator[dict[str, Any]]:
        """Formats that keep the accuracy; intervals of one step, where a row waits too long."""
        if "limit-accuracy" in codes:
            yield from self._kept_better(row)
        if codes & {"limit-ttft", "limit-latency"}:
            stated = self.candidate(row)
            long = [name for name in INTERVALS if stated.get(name, 1) > 1]
            if long:
                yield {f"candidate.{name}": 1 for name in long}

    def _kept_better(self, row: int) -> Iterator[dict[str, Any]]:
        """Number formats that keep the accuracy asked for, the smallest first.

        Weights that the engine makes or the catalog has, then the cache as activations are.
        """
        least = self.request.objective.limits.accuracy_recovery
        setting = self.setting(row)
        if least is None:
            return
        for cache in dict.fromkeys((setting.kv_dtype, "auto")):
            kept = replace(setting, kv_dtype=cached_as(cache, setting))
            narrower = {} if cache == setting.kv_dtype else {"options.kv_dtypes": (cache,)}
            if narrower and accuracy_of(kept).value >= least:
                yield narrower
            for dtype, checkpoint in wider_formats(kept, least):
                loaded: dict[str, Any] = {"options.weight_dtypes": (dtype,)}
                if checkpoint is not None:
                    loaded = {"model": checkpoint, "options.weight_dtypes": ("auto",)}
                yield loaded | narrower

    def finer_formats(self) -> Iterator[dict[str, Any]]:
        """Changes of number formats that keep a limit on accuracy, where the nearest row breaks it.

        The smallest formats first.
        """
        row = self.nearest_row()
        if row is not None and "limit-accuracy" in self.codes(row):
            yield from self._kept_better(row)

    def carried(self, _row: int, _fields: Mapping[str, Any]) -> dict[str, Any]:
        """What of the row's own split has to change with ``fields``."""
        names = {"weight_dtypes": "weight_dtype", "kv_dtypes": "kv_dtype"}
        return {
            f"candidate.{of_split}": _fields[f"options.{option}"][0]
            for option, of_split in names.items()
            if f"options.{option}" in _fields
        }

    # what may flip the decision

    def moves(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Price, lengths and load, each moved down and up."""
        yield from super().moves()
        workload = self.problem.workload
        for name in ("input_tokens", "output_tokens"):
            for sign in (-1, 1):
                tokens = max(round(getattr(workload, name) * (1 + sign * LENGTH)), 1)
                yield f"{name.replace('_', ' ')} {sign * LENGTH:+.0%}", {f"workload.{name}": tokens}
        yield from self._moved_limits() if self.load_searched else self._moved_loads()

    def _moved_limits(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Limits on times, each tightened and loosened: they set the load that is searched."""
        limits = self.request.objective.limits
        for rule in LIMITS.values():
            if not rule.timed or (stated := getattr(limits, rule.name)) is None:
                continue
            for sign in (-1, 1):
                moved = float(f"{stated * (1 + sign * LIMIT):.6g}")
                field = f"objective.limits.{rule.name}"
                yield f"limit on {rule.label} {sign * LIMIT:+.0%}", {field: moved}

    def _moved_loads(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The load, halved and doubled."""
        workload = self.problem.workload
        load = LOADS[workload.mode]
        for factor in (1 / LOAD, LOAD):
            now = getattr(workload, load)
            moved = now * factor if workload.mode == "open" else max(round(now * factor), 1)
            if moved != now:
                yield f"{load.replace('_', ' ')} × {factor:g}", {f"workload.{load}": moved}

    def identity(self, row: int) -> tuple[Any, ...]:
        """What makes a row another choice: the split and the device it is on."""
        candidate, place = self.candidate(row), self.setting(row).cluster
        names = ("engine", "tp", "pp", "dp", "ep", "cp", "weight_dtype", "kv_dtype")
        return (place.device.digest, *(candidate[name] for name in names))


def _narrowed(problem: ServingProblem, candidate: CandidateRequest) -> ServingProblem:
    """The problem with the engine and the formats that a candidate states."""
    options, fields = problem.request.options, {}
    for name, field in (
        ("engine", "engines"),
        ("weight_dtype", "weight_dtypes"),
        ("kv_dtype", "kv_dtypes"),
    ):
        if (value := getattr(candidate, name)) is not None:
            fields[field] = (value,)
    request = problem.request.model_copy(update={"options": options.model_copy(update=fields)})
    return replace(problem, request=request)


# Judging


def _judged(
    plan: type[ServingPlan],
    problem: ServingProblem,
    pairs: Sequence[tuple[Setting, Cases]],
    at_most: int | None,
    rows: Int | None = None,
) -> list[Block]:
    """All cases judged, the request's limits among the rules.

    A search (``at_most`` is given) leaves out what is wasteful, and simulates so many candidates
    where limits name a percentile, or those of ``rows``. Where the load is searched, reasons say
    under which load a limit is broken.
    """
    blocks = _held_to_limits(plan, problem, pairs, at_most, rows, alone=rows is None)
    return [_at_its_load(block) for block in blocks] if problem.request.load_searched else blocks


def _at_its_load(block: Block) -> Block:
    """The block, its limits broken under a load that their sentences name."""

    def said(rule: Refusal) -> Callable[[int], str]:
        return lambda i: f"at {_in_flight(block.cases.load[i])}: {rule.say(i)}"

    limits = (replace(rule, say=said(rule)) for rule in block.limits)
    return replace(block, limits=tuple(limits))


def _in_flight(load: float) -> str:
    return "one request in flight" if load == 1 else f"{load:,.0f} requests in flight"


def _loaded(
    plan: type[ServingPlan],
    problem: ServingProblem,
    candidate: CandidateRequest,
    pairs: Sequence[tuple[Setting, Cases]],
    at_most: int | None,
) -> tuple[list[tuple[Setting, Cases]], Int | None]:
    """All cases under their best loads, and which are simulated where limits name a percentile.

    Loads are chosen by means; where limits name a percentile, those of the best few rows are then
    lowered until their percentiles keep it.
    """
    means = replace(problem, request=without_percentile(problem.request))
    total = sum(len(columns) for _, columns in pairs)

    def count(loads: int) -> None:
        nonlocal total
        total += loads
        check_loads(total)

    out: list[tuple[Setting, Cases]] = []
    for shared, columns in pairs:

        def at(cases: Cases, shared: Setting = shared) -> tuple[Setting, Cases]:
            return shared, with_intervals(problem, shared, candidate, cases)

        def judge(cases: Cases, at: Any = at) -> ServingPlan:
            return plan(means, _held_to_limits(plan, means, [at(cases)], at_most))

        out.append(at(replace(columns, load=best_loads(judge, columns, count))))
    if problem.request.objective.limits.percentile is None:
        return out, None
    first = plan(means, _held_to_limits(plan, means, out, at_most))
    rows = np.sort(first.order[:LOADED])
    starts = np.cumsum([0, *(len(columns) for _, columns in out)])
    for k, (shared, columns) in enumerate(out):
        inside = rows[(rows >= starts[k]) & (rows < starts[k + 1])] - starts[k]
        if not len(inside):
            continue
        some = columns.take(inside)

        def keeps(places: Int, loads: Float, shared: Setting = shared, some: Cases = some) -> Bool:
            cases = replace(some.take(places), load=loads)
            pair = shared, with_intervals(problem, shared, candidate, cases)
            judged = plan(problem, _held_to_limits(plan, problem, [pair], None, alone=False))
            return judged.holds_once_started

        kept, load = bisected(keeps, some.load, whole=True), np.array(columns.load)
        load[inside] = np.where(np.isnan(kept), least_loads(some), kept)
        load[inside] = np.maximum(load[inside], least_loads(some))
        out[k] = shared, with_intervals(problem, shared, candidate, replace(columns, load=load))
    return out, rows


def _simulations(problem: ServingProblem, splits: int) -> AbstractContextManager[object]:
    """One task of all simulations in a search of loads; their number is known only at its end."""
    if problem.request.objective.limits.percentile is None:
        return nullcontext()
    return progress.task(splits * (STEPS + 2))


def _held_to_limits(
    plan: type[ServingPlan],
    problem: ServingProblem,
    pairs: Sequence[tuple[Setting, Cases]],
    at_most: int | None,
    rows: Int | None = None,
    *,
    alone: bool = True,
) -> list[Block]:
    """All cases judged; ``alone``: whether their simulations are a task of their own."""
    limits, searching = problem.request.objective.limits, at_most is not None
    physics = WORKED_OFF if problem.workload.mode == "offline" else PHYSICS
    blocks = [evaluate(physics, *pair, searching=searching) for pair in pairs]
    objective = problem.request.objective
    if limits.percentile is None:
        return [confident(limited(block, limits), objective) for block in blocks]
    blocks = [limited(block, limits, timed=False) for block in blocks]
    if rows is None:
        rows = _worth_simulating(plan(problem, blocks), at_most)
    out, start = [], 0
    with progress.task(len(rows)) if alone else nullcontext():
        for block in blocks:
            inside = rows[(rows >= start) & (rows < start + len(block))] - start
            start += len(block)
            if len(inside):
                block = _simulated(problem, block, inside, (limits.percentile,))
            block = limited(unsimulated(block, limits), limits, timed=True)
            out.append(confident(block, objective))
    return out


def _worth_simulating(plan: ServingPlan, at_most: int | None) -> Int:
    """Rows to simulate: all that can run, or the first whose means keep the limits.

    And a few that miss them by least.
    """
    if at_most is None:
        return plan.order
    limits = plan.request.objective.limits
    excess = np.concatenate([mean_excess(block, limits) for block in plan.blocks])[plan.order]
    keeping, missing = plan.order[excess <= 1][:at_most], plan.order[excess > 1]
    near = missing[np.argsort(excess[excess > 1], kind="stable")]
    rows = np.concatenate([keeping, near[: max(NEAREST - len(keeping), 0)]])
    requests = [
        np.minimum(requests_each(block.setting, block.cases), MOST) for block in plan.blocks
    ]
    total = np.cumsum(np.concatenate(requests)[rows])
    return np.asarray(rows[(total <= REQUESTS) | (np.arange(len(rows)) < NEAREST)])


def _simulated(
    problem: ServingProblem, block: Block, rows: Int, percentiles: Sequence[float]
) -> Block:
    """The block with percentiles of some feasible rows, and their goodput within the limits."""
    alone = estimate(block.setting, block.cases.take(rows)).simulated(
        np.arange(len(rows)),
        spread_of(problem.workload),
        percentiles,
        time_bounds(problem.request.objective.limits),
    )
    if alone.simulation is None:
        return block
    return replace(block, simulation=alone.simulation.scattered(rows, len(block)))


# What may cure a broken rule


def _for_memory(plan: ServingPlan, row: int) -> Iterator[dict[str, Any]]:
    """A shorter context, or weights that the engine converts itself."""
    block, i = plan.at(row)
    workload, setting = plan.problem.workload, block.setting
    case, shortest = block.cases.take([i]), workload.prompt_tokens + workload.output_tokens
    longest = longest_context(setting, case, shortest, start_errors().sure)
    if longest is not None:
        yield {"workload.max_context": longest}
    if setting.model.quantization is None:
        for dtype in setting.engine.online_weight_dtypes:
            if dtype in setting.cluster.device.weight_dtypes and dtype != setting.weight_dtype:
                yield {"options.weight_dtypes": (dtype,)}


def _for_context(plan: ServingPlan, _: int) -> Iterator[dict[str, Any]]:
    workload, most = plan.problem.workload, plan.problem.model.max_context
    if workload.output_tokens < most:
        prompt = most - workload.output_tokens
        yield {"workload.input_tokens": prompt, "workload.max_context": None}


def _for_batch(plan: ServingPlan, row: int) -> Iterator[dict[str, Any]]:
    batch = int(plan.columns["max_concurrency"][row])
    if batch >= 1:
        yield {"workload.batch": batch}


def _for_rate(plan: ServingPlan, row: int) -> Iterator[dict[str, Any]]:
    served = float(plan.raw("output")[row]) / plan.problem.workload.output_tokens
    if math.isfinite(served) and served > 0:
        rate = float(significant(served * 0.95, 2).replace(",", ""))
        yield {"workload.request_rate": rate}


def _for_idle(plan: ServingPlan, row: int) -> Iterator[dict[str, Any]]:
    mode = plan.problem.workload.mode
    if mode in ("closed", "static"):
        yield {f"workload.{LOADS[mode]}": int(plan.candidate(row)["dp"])}


def _for_format(plan: ServingPlan, row: int) -> Iterator[dict[str, Any]]:
    for dtype in plan.setting(row).cluster.device.weight_dtypes:
        yield {"options.weight_dtypes": (dtype,)}


_CURES: dict[str, Callable[[ServingPlan, int], Iterator[dict[str, Any]]]] = {
    "memory": _for_memory,
    "context": _for_context,
    "batch": _for_batch,
    "rate": _for_rate,
    "idle-replicas": _for_idle,
    "weight-dtype": _for_format,
}
"""What helps against a rule, by its code; against rules of divisibility only another split does."""
