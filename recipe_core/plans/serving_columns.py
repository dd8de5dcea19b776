"""Columns of a serving candidate, and the way back: one list of fields that both directions read.

What a candidate leaves open is as the engine does by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
from pydantic import BaseModel

from recipe_core.base.arrays import Bool, Int
from recipe_core.engines.grammar import option_meanings
from recipe_core.engines.memory import captured_batch
from recipe_core.engines.options import OPTIONS, STATED, USUAL
from recipe_core.engines.release import BatchLimits
from recipe_core.engines.spec import Engine, Interval
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.serving.starts import fullest_share, start_errors
from recipe_core.hardware.cluster import Cluster
from recipe_core.hardware.profile import Device
from recipe_core.models.spec import ModelSpec
from recipe_core.plans.kind import DEGREES
from recipe_core.plans.problem import ServingProblem, refuse_field
from recipe_core.plans.serving_settings import (
    admits_by_limits,
    length_variances,
    load_context,
    mode_load,
    offload_of,
    served_context,
)
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.objective import Objective
from recipe_core.request.serving_workload import Speculative

INTERVALS: tuple[str, ...] = get_args(Interval)
POOL_DEGREES = ("tp", "pp", "dp", "ep")
# Fields of engines that wait to fill a batch.
BATCHING = ("batch_window_ms", "instances")


@dataclass(frozen=True, slots=True)
class CandidateColumn:
    """A field of a request's candidate, and the column of the cases that holds it.

    ``part``: the object of the candidate that has the field; empty for the candidate itself.
    ``read`` makes the column's number of a value, and ``value`` a value of the number; without
    these they are the same number, mostly an ``integral`` one. The field is said where the column
    ``beside`` is not zero, if one is named, and where the number is not the ``usual`` one.
    """

    field: str
    column: str
    part: str = ""
    beside: str = ""
    usual: float | None = None
    integral: bool = True
    read: Callable[[Any, ModelSpec], float] | None = None
    value: Callable[[float, ModelSpec], Any] | None = None

    def number(self, value: Any, model: ModelSpec) -> Any:
        """The column's number of a value."""
        return value if self.read is None else self.read(value, model)

    def stated_values(
        self, model: ModelSpec, columns: Any, rows: Int, usual: float | list[float] | None
    ) -> Iterator[tuple[int, Any]]:
        """The rows that say the field, by their places, and the value of each.

        ``usual``: the number at which it is left out, of all rows or of each.
        """
        # Lists, not arrays: tables and links describe one row at a time, thousands of times a page.
        numbers = getattr(columns, self.column)[rows].tolist()
        beside = getattr(columns, self.beside)[rows].tolist() if self.beside else numbers
        for place, number in enumerate(numbers):
            left_out = usual[place] if isinstance(usual, list) else usual
            if (self.beside and not beside[place]) or number == left_out:
                continue
            if self.value is None:
                yield place, int(number) if self.integral else number
            else:
                yield place, self.value(number, model)


def _draft_layers(model: ModelSpec) -> dict[str, int]:
    """Layers that draft, by method; of equal numbers the last method is meant."""
    return {"eagle": 1, "mtp": model.draft_layers, "ngram": 0}


def _draft_method(layers: float, model: ModelSpec) -> str:
    methods = {number: method for method, number in _draft_layers(model).items()}
    return methods[int(layers)]


CANDIDATE_COLUMNS = (
    *(CandidateColumn(name, name) for name in DEGREES),
    *(
        CandidateColumn(option.name, option.column, usual=option.usual, integral=option.integral)
        for option in OPTIONS
    ),
    CandidateColumn(
        "batch_window_ms",
        "window_s",
        read=lambda ms, _: ms / 1000,
        value=lambda seconds, _: round(seconds * 1000, 6),
    ),
    CandidateColumn("instances", "instances"),
    CandidateColumn("tokens", "draft_tokens", "speculative", "draft_tokens"),
    CandidateColumn("acceptance", "acceptance", "speculative", "draft_tokens", integral=False),
    CandidateColumn(
        "method",
        "draft_layers",
        "speculative",
        "draft_tokens",
        read=lambda method, model: _draft_layers(model)[method],
        value=_draft_method,
    ),
    CandidateColumn("replicas", "copies", beside="prefill_tp"),
    *(CandidateColumn(name, f"prefill_{name}", "prefill", "prefill_tp") for name in POOL_DEGREES),
    CandidateColumn("replicas", "prefill_copies", "prefill", "prefill_tp"),
)


def read_columns(
    candidate: BaseModel, usual: Mapping[str, Any], model: ModelSpec, part: str = ""
) -> dict[str, float]:
    """Columns of some fields of a candidate, or of a part of it: as stated, else the ``usual``."""
    out: dict[str, float] = {}
    for entry in CANDIDATE_COLUMNS:
        if entry.part == part and entry.field in usual:
            value = getattr(candidate, entry.field)
            value = usual[entry.field] if value is None else value
            out[entry.column] = entry.number(value, model)
    return out


def describe_serving_cases(shared: Setting, columns: Cases, rows: Int) -> list[dict[str, Any]]:
    """Some cases as candidates of the contract: what a recipe pins and a launch repeats."""
    engine = shared.engine
    fields = {
        "engine": engine.name,
        **dict.fromkeys(DEGREES),
        "weight_dtype": shared.weight_dtype,
        "kv_dtype": shared.kv_dtype,
        **dict.fromkeys(option.name for option in STATED),
    }
    if engine.as_of is not None:
        fields["engine_version"] = engine.as_of
    out: list[dict[str, Any]] = [dict(fields) for _ in rows]
    intervals, architecture = engine.intervals, shared.cluster.device.architecture
    always = intervals.options if intervals and intervals.chosen_on(architecture) else ()
    for entry in CANDIDATE_COLUMNS:
        if entry.field in BATCHING and engine.batcher is None:
            continue
        usual = None if entry.field in always else entry.usual
        for place, value in entry.stated_values(shared.model, columns, rows, usual):
            part = out[place].setdefault(entry.part, {}) if entry.part else out[place]
            part[entry.field] = value
    return out


# What a candidate leaves open


def setting_columns(
    problem: ServingProblem, spec: Engine, candidate: CandidateRequest, place: Cluster
) -> dict[str, Any]:
    """Columns that do not depend on the split.

    Raises:
        InputError: for an option that the engine does not have, or more than it takes.
    """
    workload, model, load = problem.workload, problem.model, mode_load(problem.workload)
    _check_batcher(spec, candidate)
    _refuse_foreign_options(spec, candidate)
    usual = {
        **_usual_options(problem, spec, place),
        **_usual_intervals(problem, spec, place, load),
    }
    if spec.batcher is not None:
        usual |= {"batch_window_ms": spec.batcher.window_ms, "instances": spec.batcher.instances}
    pool = candidate.prefill
    if pool is not None:
        usual["replicas"] = 1
    return {
        "per_node": place.per_node,
        "nodes": place.nodes,
        "input_tokens": workload.prompt_tokens,
        "output_tokens": workload.output_tokens,
        "max_context": load_context(workload, model),
        "told_context": served_context(workload, model),
        "load": load,
        "prefix_hit": workload.prefix_hit,
        "length_spread": workload.input_spread or 0.0,
        **length_variances(workload),
        **read_columns(candidate, usual, model),
        **draft_columns(candidate.speculative or workload.speculative, model),
        **(read_columns(pool, pool.model_dump(), model, "prefill") if pool else {}),
    }


def draft_columns(draft: Speculative | None, model: ModelSpec) -> dict[str, float]:
    """Return how many tokens are drafted a step, and by how many layers."""
    if draft is None:
        return {}
    usual = {**draft.model_dump(), "method": "mtp" if model.draft_layers else "eagle"}
    return read_columns(draft, usual, model, "speculative")


def interval_columns(
    problem: ServingProblem, spec: Engine, candidate: CandidateRequest, place: Cluster, load: float
) -> dict[str, float]:
    """Steps between what the engine does not do in every step, under a load."""
    usual = _usual_intervals(problem, spec, place, load)
    return read_columns(candidate, usual, problem.model)


def with_intervals(
    problem: ServingProblem, shared: Setting, candidate: CandidateRequest, columns: Cases
) -> Cases:
    """The cases with the intervals that go with the load of each."""
    spec, place = shared.engine, shared.cluster
    if spec.intervals is None:
        return columns
    floors = np.array(sorted({usual.requests_at_least for usual in spec.intervals.throughput}))
    numbers = np.searchsorted(floors, columns.load, side="right")
    out: dict[str, Any] = {}
    for number in np.unique(numbers).tolist():
        load = float(floors[number - 1]) if number else 0.0
        steps = interval_columns(problem, spec, candidate, place, load)
        for name, value in steps.items():
            column = out.setdefault(name, np.array(getattr(columns, name)))
            column[numbers == number] = value
    return replace(columns, **out)


def admit_requests(cases: Cases, keeping: Bool) -> Cases:
    """The cases whose engines admit what the limits hold for, in whole captured batches.

    At most the engine's own number, which stays where no load keeps the limits.
    """
    batch = captured_batch(np.ceil(cases.load / cases.replicas))
    fewer = np.where(keeping, np.minimum(batch, cases.max_num_seqs), cases.max_num_seqs)
    return replace(cases, max_num_seqs=fewer)


def admit_any(problem: ServingProblem, setting: Setting, cases: Cases) -> Cases:
    """The cases whose engines admit their own number again, where limits narrowed it."""
    if not admits_by_limits(problem.request, problem.request.candidate):
        return cases
    usual = _usual_limits(setting.engine, setting.cluster.device).max_num_seqs
    return replace(cases, max_num_seqs=np.full_like(cases.max_num_seqs, usual))


# Goals for which nothing waits; limits on the first token or the whole answer are like them.
_WAITED_FOR = ("latency", "ttft", "tpot")


def counts_waiting(objective: Objective) -> bool:
    """Return whether an objective is about what intervals lengthen: by a goal or a limit."""
    limits = objective.limits.ttft_ms, objective.limits.request_latency_ms
    return any(goal in objective.goals for goal in _WAITED_FOR) or limits != (None, None)


def _usual_intervals(
    problem: ServingProblem, spec: Engine, place: Cluster, load: float
) -> dict[str, float]:
    """Intervals by the objective: published launches' where nothing counts that they lengthen.

    Else 1.
    """
    workload, intervals, usual = problem.workload, spec.intervals, None
    waits = counts_waiting(problem.request.objective)
    if intervals and workload.mode in ("closed", "open") and not waits:
        # a rate does not say how many are in flight
        requests = load if workload.mode == "closed" else 0.0
        usual = intervals.usual(place.device.architecture, workload.output_tokens, requests)
    return {name: getattr(usual, name) if usual else 1 for name in INTERVALS}


def _usual_options(problem: ServingProblem, spec: Engine, place: Cluster) -> dict[str, float]:
    """The engine's default of every option."""
    limits, workload = _usual_limits(spec, place.device), problem.workload
    tokens = limits.max_batched_tokens
    if workload.pooled and (problem.model.is_encoder or not spec.chunked_prefill):
        # a prompt runs whole, so engines make room for the longest
        tokens = max(tokens, served_context(workload, problem.model))
    return {
        **USUAL,
        "max_batched_tokens": tokens,
        "max_num_seqs": limits.max_num_seqs,
        "memory_fraction": _usual_share(problem, spec, place),
        "block_size": _usual_block(problem, spec),
    }


def _usual_limits(spec: Engine, device: Device) -> BatchLimits:
    """The engine's default limits of a step.

    Of memory that a processor shares, those of its newest release where these are lower: older ones
    take it for a large card's, and run out of it when they capture graphs.
    """
    usual = spec.batch_limits(device.usable_memory_bytes, device.architecture)
    newest = spec.history.newest if spec.history is not None else None
    if not device.unified or newest is None or spec.as_of is not None:
        return usual
    then = spec.at(newest, 1).batch_limits(device.usable_memory_bytes, device.architecture)
    return min(usual, then, key=lambda limits: limits.max_num_seqs)


def _usual_block(problem: ServingProblem, spec: Engine) -> int:
    """Tokens of a block: the engine's default, or what moving blocks off the devices needs."""
    offload = offload_of(problem.request.options.kv_offload, spec)
    connector = None if offload is None else offload.connector
    pages = None if connector is None else connector.page_tokens
    return pages or spec.memory.block_tokens


def _usual_share(problem: ServingProblem, spec: Engine, place: Cluster) -> float:
    """The engine's default share of a device, less what it leaves for encoding.

    Of memory that a processor shares, no more than is surely free.
    """
    share, encoder = spec.memory.fraction.value, spec.memory.encoder
    if place.device.unified:
        plain = Setting(problem.model, place, spec, "closed", problem.model.dtype, "bf16")
        share = min(share, fullest_share(plain, start_errors().sure))
    if encoder is None or not problem.model.towers:
        return share
    return share - encoder.reserved_bytes / place.device.usable_memory_bytes


def _check_batcher(spec: Engine, candidate: CandidateRequest) -> None:
    """Refuse a window and instances of an engine that does not wait, or more than it takes."""
    batcher = spec.batcher
    for name, usual, limit in (
        ("batch_window_ms", 0, batcher.most_window_ms if batcher else None),
        ("instances", 1, batcher.most_instances if batcher else None),
    ):
        value = getattr(candidate, name) or 0
        refuse_field(
            limit is None and value not in (0, usual),
            f"{spec.title} {spec.version} forms no batches by a window.",
            f"candidate.{name}",
            "Leave it out, or choose an engine that does (triton-onnxruntime).",
        )
        refuse_field(
            limit is not None and value > limit,
            f"{spec.title} takes {limit or 0:g} at most, not {value:g}.",
            f"candidate.{name}",
            f"Set {limit or 0:g} or less.",
        )


def _refuse_foreign_options(spec: Engine, candidate: CandidateRequest) -> None:
    """Refuse options that are usually left out and that the engine does not have."""
    # An engine may parse an interval's option and pass it on to none of its engines.
    offered = {*option_meanings(spec).values()} - {*INTERVALS}
    offered |= {*(spec.intervals.options if spec.intervals else ())}
    for name, usual in USUAL.items():
        missing = "such interval" if name in INTERVALS else f"option for {name}"
        refuse_field(
            getattr(candidate, name) not in (None, usual) and name not in offered,
            f"{spec.title} {spec.version} has no {missing}.",
            f"candidate.{name}",
            f"Leave it out, or set {usual:g}.",
        )
