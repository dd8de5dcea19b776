"""Which training split is best: enumerate, estimate, judge, rank."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from recipe_core.documents import parse_json, to_json
from recipe_core.errors import InputError, RecipeError
from recipe_core.estimate.cases import Float, Int
from recipe_core.hardware.catalog import Cluster, cluster
from recipe_core.model.catalog import load_model
from recipe_core.model.spec import ModelSpec, MoeMlp
from recipe_core.request import CandidateRequest, HardwareRequest, PlanRequest, TrainingWorkload
from recipe_core.training.cases import RECOMPUTE, SCHEDULES, Precision, TrainingCases, TrainingSetting, figures, stack_cases, training_cases
from recipe_core.training.frameworks import framework, training_data
from recipe_core.training.result import TrainingEstimates, training_estimate
from recipe_core.training.rules import rules
from recipe_core.training.run import SECONDS_PER_HOUR, Failures
from recipe_core.units import rounded

if TYPE_CHECKING:
    import pandas as pd

MAX_DEVICES = 65_536
MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
"""Micro-batches that a search tries; more fill no device better."""
VIRTUAL_STAGES = (1, 2, 4)
TIE_DIGITS = 4
MAX_CASES = 400_000
LISTED, REFUSED_LISTED = 1000, 5000
SERVING_FIELDS = (
    "weight_dtype",
    "kv_dtype",
    "max_batched_tokens",
    "max_num_seqs",
    "memory_fraction",
    "block_size",
    "eager",
    "speculative",
    "prefill",
    "replicas",
)


@dataclass(frozen=True, slots=True)
class Asked:
    """A training request with its names looked up."""

    request: PlanRequest
    workload: TrainingWorkload
    model: ModelSpec
    cluster: Cluster

    @property
    def failures(self) -> Failures:
        """As stated, or the defaults."""
        w, usual = self.workload, training_data().run
        mtbf_s = w.device_mtbf_hours * SECONDS_PER_HOUR if w.device_mtbf_hours else usual.device_mtbf_s.value
        return Failures(mtbf_s, w.storage_bytes_per_s, w.restart_s or usual.restart_s.value)


def is_training(request: PlanRequest) -> bool:
    """Whether a request is about training."""
    return isinstance(request.workload, TrainingWorkload)


@lru_cache(maxsize=1024)
def _inline_model(text: str) -> ModelSpec:
    """A model given as a config; lines of a file repeat few."""
    return load_model(parse_json(text, "model"))


def resolve_training(request: PlanRequest, *, folders: bool = True) -> Asked:
    """Look up model, device and links.

    Raises:
        InputError: for unknown names, fields that are serving's, and sequences longer than the model's positions.
    """
    workload = request.workload
    if not isinstance(workload, TrainingWorkload):
        raise InputError("is not training.", field="workload.kind", hint="Use kind: training.")
    if request.hardware.devices > MAX_DEVICES:
        said = f"per_node × nodes = {request.hardware.devices:,}; at most {MAX_DEVICES:,} devices are planned."
        raise InputError(said, field="hardware.nodes")
    candidate = request.candidate or CandidateRequest()
    given = [name for name in SERVING_FIELDS if getattr(candidate, name) is not None]
    if given:
        raise InputError("belongs to serving, not to training.", field=f"candidate.{given[0]}", hint="Leave it out.")
    if request.options.hardware:
        raise InputError("training is planned on one cluster at a time.", field="options.hardware", hint="Leave it out.")
    model = (
        load_model(request.model, folders=folders) if isinstance(request.model, str) else _inline_model(to_json(request.model, indent=None))
    )
    if workload.sequence_length > model.max_context:
        raise InputError(
            f"{workload.sequence_length:,} tokens are more than the {model.max_context:,} positions of {model.name}.",
            field="workload.sequence_length",
            hint="Shorten sequences, or give a config with rope scaling.",
        )
    return Asked(request, workload, model, _cluster(request.hardware.model_dump_json()))


@lru_cache(maxsize=1024)
def _cluster(text: str) -> Cluster:
    return cluster(HardwareRequest.model_validate_json(text))


def training_setting(asked: Asked, engine: str | None = None, precision: Precision | None = None) -> TrainingSetting:
    """What all splits of a request share, with one framework and precision; raises InputError for an unknown framework."""
    w, candidate = asked.workload, asked.request.candidate or CandidateRequest()
    name = engine or candidate.engine or (asked.request.options.engines[0] if asked.request.options.engines else "torchtitan")
    return TrainingSetting(
        model=asked.model,
        cluster=asked.cluster,
        engine=name,
        framework=framework(name),
        precision=precision or candidate.precision or "bf16",
        method=w.method,
        optimizer_name=w.optimizer,
        optimizer=training_data().optimizers[w.optimizer],
        flash=w.attention == "flash",
        fused_loss=w.fused_loss,
        lora_rank=w.lora_rank,
        figures=figures(),
    )


def setting_key(asked: Asked, setting: TrainingSetting) -> str:
    """What requests must share to be columns of one estimate."""
    c, f = setting.cluster, asked.failures
    hardware = [c.device.name, c.fabric.name, c.network.name, c.usd_per_device_hour, c.price_basis]
    names = [setting.model.name, setting.model.digest, setting.engine, setting.precision, setting.method, setting.optimizer_name]
    flags = [setting.flash, setting.fused_loss, setting.lora_rank, f.device_mtbf_s, f.storage_bytes_per_s, f.restart_s]
    return str([*hardware, *names, *flags])


def one_case(asked: Asked) -> TrainingCases | None:
    """The candidate as a case, when it states tp, pp and dp; what it leaves out is plain: no recomputation, a micro-batch of one."""
    c = asked.request.candidate
    if c is None or c.tp is None or c.pp is None or c.dp is None or c.micro_batch is None:
        return None
    virtual, cp = c.virtual_stages or 1, c.cp or 1
    columns: dict[str, Any] = {"tp": c.tp, "pp": c.pp, "virtual_stages": virtual, "cp": cp, "ep": c.ep or 1, "dp": c.dp}
    columns |= {"zero_stage": c.zero_stage or 0, "micro_batch": c.micro_batch, "recompute": RECOMPUTE.index(c.recompute or "none")}
    columns |= {"shard": c.shard or c.dp * cp, "sequence_parallel": 0 if c.sequence_parallel is False else 1}
    columns |= {"schedule": SCHEDULES.index(c.schedule)} if c.schedule else {}
    return training_cases(1, **columns, **_shared(asked))


def _shared(asked: Asked) -> dict[str, int]:
    w, c = asked.workload, asked.cluster
    return {"sequence_length": w.sequence_length, "global_batch": w.global_batch, "per_node": c.per_node, "nodes": c.nodes}


def budget(asked: Asked, n: int) -> Float:
    """The token budget as a column."""
    return np.full(n, np.nan if asked.workload.tokens is None else asked.workload.tokens)


def _divisors(n: int) -> list[int]:
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def _worlds(asked: Asked) -> list[int]:
    """Numbers of devices to look at: all; also doubling from one device on where fewer nodes may be used."""
    c = asked.cluster
    every = c.per_node * c.nodes
    if asked.request.options.nodes == "all":
        return [every]
    inside = [d for d in _divisors(c.per_node) if c.per_node % d == 0]
    return sorted({*inside, *(c.per_node * 2**k for k in range(c.nodes.bit_length()) if 2**k <= c.nodes), every})


def _degrees(asked: Asked, limits: CandidateRequest) -> list[tuple[int, int, int, int, int]]:
    """tp, pp, cp, dp and ep of every split: tp within a fast island, pp within the layers."""
    model, c = asked.model, asked.cluster
    island = (c.fabric.domain or 1) if c.rack_scale else c.per_node
    moe = next((m for layer, _ in model.kinds if isinstance(m := layer.mlp, MoeMlp)), None)
    out: list[tuple[int, int, int, int, int]] = []
    for world in _worlds(asked):
        for tp in (d for d in _divisors(world) if d <= island):
            for pp in (d for d in _divisors(world // tp) if d <= len(model.layers)):
                for cp in (d for d in _divisors(world // (tp * pp)) if d == 1 or asked.workload.sequence_length // d >= 1024):
                    dp = world // (tp * pp * cp)
                    shared = [e for e in _divisors(tp * cp * dp) if moe.experts % e == 0] if moe else [1]
                    out.extend((tp, pp, cp, dp, ep) for ep in shared)
    stated = (limits.tp, limits.pp, limits.cp, limits.dp, limits.ep)
    return [row for row in out if all(want is None or want == has for want, has in zip(stated, row, strict=True))]


def every_case(asked: Asked, setting: TrainingSetting, limits: CandidateRequest | None = None) -> TrainingCases:
    """Every split of the request's devices with every ZeRO stage, micro-batch, number of chunks and recomputation.

    Splits that break a rule with a micro-batch of one and a chunk a stage are listed once.
    """
    limits = limits or CandidateRequest()
    degrees = np.array(_degrees(asked, limits), dtype=np.int64).reshape(-1, 5)
    base = training_cases(len(degrees), **dict(zip(("tp", "pp", "cp", "dp", "ep"), degrees.T, strict=True)), **_shared(asked))
    legal = np.ones(len(base), dtype=np.bool_)
    for rule in rules(setting, base):
        legal &= ~rule.broken
    micro = np.array([limits.micro_batch] if limits.micro_batch else MICRO_BATCHES)
    zero = np.array([limits.zero_stage] if limits.zero_stage is not None else range(4))
    virtual = np.array([limits.virtual_stages] if limits.virtual_stages else VIRTUAL_STAGES)
    again = np.array([RECOMPUTE.index(limits.recompute)] if limits.recompute else range(3))
    rows, *grid = (axis.ravel() for axis in np.meshgrid(np.flatnonzero(legal), micro, zero, virtual, again, indexing="ij"))
    chosen = {name: getattr(base, name)[rows] for name in ("tp", "pp", "cp", "dp", "ep")}
    columns = chosen | dict(zip(("micro_batch", "zero_stage", "virtual_stages", "recompute"), grid, strict=True))
    given: dict[str, Any] = {}
    if limits.schedule:
        given["schedule"] = SCHEDULES.index(limits.schedule)
    if limits.sequence_parallel is not None:
        given["sequence_parallel"] = int(limits.sequence_parallel)
    if limits.shard:
        given["shard"] = limits.shard
    found = training_cases(len(rows), **columns, **given, **_shared(asked))
    found = found.take(_worthwhile(asked, setting, found, limits))
    both = stack_cases([found, base.take(np.flatnonzero(~legal))])
    if len(both) > MAX_CASES:
        raise InputError(
            f"{len(both):,} splits are too many to judge at once.",
            field="candidate",
            hint="State some of tp, pp, cp, ep, or options.nodes: all.",
        )
    return both


def _worthwhile(asked: Asked, setting: TrainingSetting, cases: TrainingCases, limits: CandidateRequest) -> Int:
    """Rows that differ from another in something, and whose batch and chunks come out even."""
    drops = not setting.flash or setting.framework.selective_keeps.value < 1
    again = (cases.recompute != RECOMPUTE.index("selective")) | drops
    even = cases.global_batch % (cases.dp * cases.micro_batch) == 0
    chunks = cases.virtual_stages == 1
    layers = len(asked.model.layers)
    chunks |= (cases.pp > 1) & (layers % (cases.pp * cases.virtual_stages) == 0) & (cases.micro_batches % cases.pp == 0)
    states = (cases.zero_stage == 0) | (cases.replicas > 1)
    stated = [(limits.micro_batch, even), (limits.virtual_stages, chunks), (limits.zero_stage, states), (limits.recompute, again)]
    keep = np.ones(len(cases), dtype=np.bool_)
    for want, fine in stated:
        if want is None:
            keep &= fine
    return np.flatnonzero(keep)


@dataclass(frozen=True)
class TrainingTable:
    """Every split of a request, judged: legal ones that fit first estimated, then ranked."""

    asked: Asked
    estimates: TrainingEstimates

    def __len__(self) -> int:
        return len(self.estimates)

    @cached_property
    def columns(self) -> dict[str, Any]:
        """What rows are compared by."""
        e, ran = self.estimates, self.estimates.run
        return {
            "gpus": e.cases.devices,
            "step_s": e.step_s,
            "tokens_per_s": ran.tokens_per_s * ran.goodput,
            "tokens_per_s_per_gpu": ran.tokens_per_s / e.cases.devices,
            "usd_per_million_tokens": ran.usd_per_million_tokens,
            "joules_per_token": ran.joules_per_token,
            "peak_memory_bytes": e.memory.peak_bytes,
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
        """Feasible rows, best first; equal ones by throughput, then by simplicity."""
        c, cases = self.columns, self.estimates.cases
        rows = np.flatnonzero(c["feasible"])
        keys = (
            cases.zero_stage,
            cases.recompute,
            cases.virtual_stages,
            cases.cp,
            cases.ep,
            cases.tp,
            cases.pp,
            -c["tokens_per_s"],
            c["gpus"],
        )
        return np.asarray(rows[np.lexsort((*(key[rows] for key in keys), rounded(self.score[rows], TIE_DIGITS)))], dtype=np.int64)

    @property
    def nearest(self) -> int | None:
        """When nothing can run: the legal row that lacks least memory."""
        if len(self.ranked) or not len(self):
            return None
        return int(np.argmin(self.columns["peak_memory_bytes"]))

    def reasons(self, i: int) -> list[str]:
        """Why a row is refused."""
        limited = [] if self._within[i] else ["a limit of the objective is not kept"]
        return self.estimates.reasons(i) + limited

    def frame(self) -> pd.DataFrame:
        """All rows as a DataFrame: the split, figures, rank (empty when refused), reasons."""
        import pandas as pd

        splits = pd.DataFrame([self.estimates.candidate(i) for i in range(len(self))])
        rank = pd.array([None] * len(self), dtype="Int64")
        rank[self.ranked] = np.arange(1, len(self.ranked) + 1)
        reasons = ["; ".join(self.reasons(i)) for i in range(len(self))]
        return splits.assign(**self.columns, rank=rank, reasons=reasons)

    def view(self, top: int | None = None) -> dict[str, Any]:
        """The plan as the contract writes it."""
        e = self.estimates
        ranked = [
            {"rank": rank, "candidate": e.candidate(i), "estimate": e.row(i)}
            for rank, i in enumerate(map(int, self.ranked[: LISTED if top is None else top]), 1)
        ]
        rows = np.flatnonzero(~self.columns["feasible"])
        refused = [{"candidate": e.candidate(i), "reasons": self.reasons(i)} for i in map(int, rows[:REFUSED_LISTED])]
        near = self.nearest
        nearest = None if near is None else {"candidate": e.candidate(near), "estimate": e.row(near), "reasons": self.reasons(near)}
        counts = {"candidates": len(self), "feasible": len(self.ranked), "refused": len(rows)}
        return {"schema_version": 1, "candidates": ranked, "refused": refused, "nearest": nearest, "counts": counts}


def training_plan(request: PlanRequest, *, folders: bool = True, limits: CandidateRequest | None = None) -> TrainingTable:
    """Every training split of the request's cluster, judged and ranked; ``limits`` keeps those that agree with what it states.

    Raises:
        InputError: for unknown names, and when no split agrees.
    """
    asked = resolve_training(request if limits is not None else request.model_copy(update={"candidate": None}), folders=folders)
    setting = training_setting(asked)
    cases = every_case(asked, setting, limits)
    if not len(cases):
        raise RecipeError(
            f"no split of {asked.cluster.devices} devices agrees with the candidate.",
            field="candidate",
            hint="Leave tp, pp, cp, ep or dp out.",
        )
    return TrainingTable(asked, judge(asked, setting, cases))


def judge(asked: Asked, setting: TrainingSetting, cases: TrainingCases) -> TrainingEstimates:
    """All rows estimated."""
    return training_estimate(setting, cases, budget(asked, len(cases)), asked.failures, asked.model.notes)


def chosen_training(request: PlanRequest, *, folders: bool = True) -> tuple[TrainingEstimates, int]:
    """The candidate's split, or the best that agrees with what it states (the nearest when none is feasible)."""
    asked = resolve_training(request, folders=folders)
    exact = one_case(asked)
    if exact is not None:
        return judge(asked, training_setting(asked), exact), 0
    table = training_plan(request, folders=folders, limits=request.candidate or CandidateRequest())
    near = table.nearest
    return table.estimates, int(table.ranked[0]) if near is None else near


def estimate_training_many(requests: Iterable[tuple[int, PlanRequest]]) -> dict[int, dict[str, Any]]:
    """Answers by number; requests that share a setting are columns of one estimate, a bad one answers its error."""
    answers: dict[int, dict[str, Any]] = {}
    groups: dict[str, list[tuple[int, Asked, TrainingSetting, TrainingCases]]] = {}
    for n, request in requests:
        try:
            asked = resolve_training(request)
            exact = one_case(asked)
            if exact is None:
                estimates, row = chosen_training(request)
                answers[n] = estimates.row(row)
                continue
            setting = training_setting(asked)
            groups.setdefault(setting_key(asked, setting), []).append((n, asked, setting, exact))
        except RecipeError as error:
            answers[n] = error.to_json()
    for members in groups.values():
        _, asked, setting, _ = members[0]
        tokens = np.concatenate([budget(each, 1) for _, each, _, _ in members])
        cases = stack_cases([each for _, _, _, each in members])
        estimates = training_estimate(setting, cases, tokens, asked.failures, asked.model.notes)
        answers |= {n: estimates.row(i) for i, (n, _, _, _) in enumerate(members)}
    return answers
