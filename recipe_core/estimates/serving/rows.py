"""Estimates of some cases: columns become lists once, then rows are put together from these."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.base.intervals import BAND, Ends, Level
from recipe_core.estimates.bands import narrow_interval
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.prediction import SCHEMA_VERSION, AnyPart
from recipe_core.estimates.serving.accuracy import accuracy_part
from recipe_core.estimates.serving.bands import FOLLOWING, bands_of
from recipe_core.estimates.serving.bottlenecks import causes_of_times
from recipe_core.estimates.serving.corrections import Corrected
from recipe_core.estimates.serving.cost import watts_basis
from recipe_core.estimates.serving.kv_verdict import prefix_caches
from recipe_core.estimates.serving.memory import Memory, stage_columns
from recipe_core.estimates.serving.notes import estimate_notes
from recipe_core.estimates.serving.results import (
    Causes,
    Pool,
    PoolFigures,
    PoolMemory,
    ServingCost,
    ServingEnergy,
    ServingEstimate,
    ServingFigures,
    ServingMemory,
    ServingParts,
    StageMemory,
)
from recipe_core.estimates.serving.simulate import FIGURES, Simulation
from recipe_core.estimates.serving.starts import serving_start_probability

if TYPE_CHECKING:
    from recipe_core.estimates.serving.estimates import Estimates
    from recipe_core.estimates.serving.pools import Pools

# Figures whose intervals are those of the throughput.
_LIKE_OUTPUT = (
    "goodput_requests_per_s",
    "output_tokens_per_s_per_gpu",
    "requests_per_s",
    "input_tokens_per_s",
)
PARTS = ("weights_bytes", "kv_needed_bytes", "activations_bytes", "runtime_bytes")
# Columns of a stage: the parts that make its total, and the towers within its weights.
STAGE_PARTS = (*PARTS, "encoder_bytes", "total_bytes")


def estimate_rows(
    e: Estimates, rows: Int, limits: Sequence[Sequence[str]], *, explained: bool
) -> list[ServingEstimate]:
    """The chosen cases, in that order.

    ``limits``: for each the limits of the request that it breaks.
    """
    cases, memory = e.cases.take(rows), e.memory.take(rows)
    reasons = [[*rules, *more] for rules, more in zip(e.reasons_of(rows), limits, strict=True)]
    feasible = np.array([not sentences for sentences in reasons], dtype=np.bool_)
    figures = _running_case_parts(e, rows[feasible], explained=explained)
    return [
        ServingEstimate(
            schema_version=SCHEMA_VERSION,
            feasible=not sentences,
            reasons=sentences,
            notes=of_notes,
            memory=of_memory,
            **({} if sentences else next(figures)),
        )
        for sentences, of_notes, of_memory in zip(
            reasons,
            estimate_notes(e, rows, memory, feasible),
            _memory_rows(e, rows, cases, memory),
            strict=True,
        )
    ]


def _floats(column: Any) -> list[float]:
    values: list[float] = np.asarray(column, dtype=np.float64).tolist()
    return values


def _build_parts(kind: type[AnyPart], columns: Mapping[str, Iterable[Any]]) -> list[AnyPart]:
    """One part a row, from a column a field; fields that have a default may be left out."""
    part: Any = kind  # every part is a dataclass
    ordered = (columns[field.name] for field in fields(part) if field.name in columns)
    return [kind(*values) for values in zip(*ordered, strict=True)]


def _memory_rows(e: Estimates, rows: Int, cases: Cases, memory: Memory) -> list[ServingMemory]:
    columns: dict[str, Iterable[Any]] = dict(_memory_columns(memory))
    columns["start_probability"] = _floats(e.start_probability[rows])
    columns["stages"] = _memory_by_stage(e.setting, cases, memory)
    if e.pools is not None:
        columns["prefill"] = _build_parts(PoolMemory, _prefill_columns(e.setting, e.pools, rows))
    return _build_parts(ServingMemory, columns)


def _prefill_columns(setting: Setting, pools: Pools, rows: Int) -> dict[str, list[Any]]:
    memory = pools.memory.take(rows)
    chances = serving_start_probability(setting, pools.prefill.take(rows), memory)
    return _memory_columns(memory) | {"start_probability": _floats(chances)}


def _memory_columns(memory: Memory) -> dict[str, list[Any]]:
    names = (*PARTS, "encoder_bytes", "total_bytes", "capacity_bytes", "usable_bytes")
    columns: dict[str, list[Any]] = {name: _floats(getattr(memory, name)) for name in names}
    parts = zip(*(columns[name] for name in PARTS), strict=True)
    return columns | {
        "start_bytes": _floats(memory.start_bytes),
        "kv_cache_bytes": _floats(memory.pool_bytes),
        "kv_cache_tokens": [int(tokens) for tokens in _floats(memory.pool_tokens)],
        "max_concurrency": [int(requests) for requests in _floats(memory.max_concurrency)],
        "max_context": [int(max(tokens, 0)) for tokens in _floats(memory.context_limit)],
        "max_context_at_load": [int(max(tokens, 0)) for tokens in _floats(memory.context_at_load)],
        "largest_part": [
            PARTS[max(range(len(PARTS)), key=row.__getitem__)].removesuffix("_bytes")
            for row in parts
        ],
    }


def _memory_by_stage(
    setting: Setting, cases: Cases, memory: Memory
) -> list[list[StageMemory] | None]:
    out: list[list[StageMemory] | None] = [None] * len(cases)
    sequences = memory.kv_needed_bytes / np.maximum(memory.sequence_bytes, 1.0)
    for count in np.unique(cases.pp[cases.pp > 1]).tolist():
        rows = np.flatnonzero(cases.pp == count)
        stages = [
            _build_parts(StageMemory, {name: _floats(column[name]) for name in STAGE_PARTS})
            for column in stage_columns(setting, cases.take(rows), count, sequences[rows])
        ]
        for row, of_row in zip(rows.tolist(), zip(*stages, strict=True), strict=True):
            out[row] = [*of_row]
    return out


def _running_case_parts(e: Estimates, rows: Int, *, explained: bool) -> Iterator[dict[str, Any]]:
    """What cases that run have besides their memory, by the fields of an estimate."""
    figures = _latency_and_throughput(e, rows)
    corrected = None if e.corrected is None else e.corrected.take(rows)
    fixed = {
        "usd_per_hour": e.setting.cluster.price_basis or "unknown",
        "watts": watts_basis(e.setting),
    }
    accuracy = accuracy_part(e.setting, explained=explained)
    costs = {f.name: _floats(getattr(e.cost, f.name)[rows]) for f in fields(ServingCost)}
    energy = {f.name: _floats(getattr(e.cost, f.name)[rows]) for f in fields(ServingEnergy)}
    alone = e.cases.load[rows] == 1
    intervals = list(_serving_intervals(e.setting, figures, costs, energy, corrected, alone))
    columns: dict[str, Iterable[Any]] = {
        "serving": figures,
        "cost": _build_parts(
            ServingCost, {name: map(_known_figure, costs[name]) for name in costs}
        ),
        "energy": _build_parts(ServingEnergy, energy),
        "bands": [{name: of[BAND] for name, of in of_row.items()} for of_row in intervals],
        "intervals": intervals,
        "accuracy": [accuracy] * len(rows),
        "basis": [
            _figure_basis(e.setting, of_row, corrected, row) | fixed
            for row, of_row in enumerate(intervals)
        ],
        "breakdown_s": _time_parts(ServingParts, e.serving.decode, e.serving.prefill, rows),
    }
    if e.cached is not None:
        columns["prefix_cache"] = prefix_caches(e, rows)
        columns["kv_tiers"] = e.kv_tiers(rows)
    if e.pools is not None:
        columns["pools"] = _pool_figures(e.pools, e.cases, rows)
    elif explained:  # the steps of two pools are of two kinds
        columns["causes_s"] = _cause_rows(e, rows)
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def _serving_intervals(
    setting: Setting,
    figures: Iterable[ServingFigures],
    costs: Mapping[str, Sequence[float]],
    energy: Mapping[str, Sequence[float]],
    corrected: Corrected | None,
    alone: Bool,
) -> Iterator[dict[str, dict[Level, Ends]]]:
    """The intervals of every figure, narrower where own runs tell of it.

    Cost and energy per token follow the throughput's. Of a request ``alone`` the time per token is
    the throughput inverted, so that its intervals hold those of the throughput.
    """
    follow = [(name, {**costs, **energy}[name]) for name in FOLLOWING]
    by_metric = bands_of(setting)
    inverse = by_metric["output_tokens_per_s"].inverse()

    @cache
    def factors(name: str) -> tuple[tuple[Level, Ends], ...]:
        of = inverse if name in FOLLOWING else by_metric[_banded_metric(name)].factors
        return tuple(of.items())

    def of_row(name: str, row: int) -> Iterator[tuple[Level, Ends]]:
        if corrected is None:
            yield from factors(name)
            return
        banded = "output_tokens_per_s" if name in FOLLOWING else _banded_metric(name)
        for level, ends in factors(name):
            yield level, narrow_interval(ends, float(corrected.width_shares[banded][row]))

    for row, of_figures in enumerate(figures):
        values = of_figures.to_json()
        for name, column in follow:
            if math.isfinite(column[row]):
                values[name] = column[row]
        if of_figures.requests_per_s is not None:  # there is no token after the first
            del values["tpot_s"]
        ends_of = {
            name: {level: (value * low, value * high) for level, (low, high) in of_row(name, row)}
            for name, value in values.items()
        }
        if alone[row] and "tpot_s" in ends_of:
            rates = ends_of["output_tokens_per_s"]
            ends_of["tpot_s"] = {
                level: (min(low, 1 / rates[level][1]), max(high, 1 / rates[level][0]))
                for level, (low, high) in ends_of["tpot_s"].items()
            }
        yield ends_of


def _figure_basis(
    setting: Setting, names: Iterable[str], corrected: Corrected | None, row: int
) -> dict[str, str]:
    """What each figure rests on: the formulas, or own runs as well."""
    without = setting.correction.without if setting.correction else "computed"
    if corrected is None:
        return dict.fromkeys(names, without)
    return {name: corrected.basis(_banded_metric(name), row) or without for name in names}


def _banded_metric(name: str) -> str:
    """The metric whose intervals a figure has.

    Measurements do not tell a mean and its percentiles apart.
    """
    if name in _LIKE_OUTPUT:
        return "output_tokens_per_s"
    mean = f"{name.rpartition('_p')[0]}_s"
    return mean if mean in FIGURES else name


def _latency_and_throughput(e: Estimates, rows: Int) -> list[ServingFigures]:
    """Means, and what was simulated."""
    columns: dict[str, Iterable[Any]] = {
        name: _floats(getattr(e.serving, name)[rows])
        for name in ("ttft_s", "tpot_s", "request_latency_s", "output_tokens_per_s")
    }
    per_gpu = e.serving.output_tokens_per_s[rows] / e.cases.devices[rows]
    columns["output_tokens_per_s_per_gpu"] = _floats(per_gpu)
    if not e.setting.model.generates:
        columns |= {
            "percentiles_s": [{} for _ in rows],
            "goodput_requests_per_s": [None] * len(rows),
        }
        requests = e.serving.output_tokens_per_s[rows] / e.cases.output_tokens[rows]
        columns["requests_per_s"] = _floats(requests)
        columns["input_tokens_per_s"] = _floats(requests * e.cases.input_tokens[rows])
    if e.simulation is not None:
        columns["percentiles_s"] = _percentile_columns(e.simulation, rows)
        columns["goodput_requests_per_s"] = map(
            _known_figure, _floats(e.simulation.goodput_per_s[rows])
        )
    return _build_parts(ServingFigures, columns)


def _percentile_columns(simulation: Simulation, rows: Int) -> list[dict[str, float]]:
    columns = {
        f"{figure.removesuffix('_s')}_p{percentile:g}_s": _floats(values[rows])
        for figure, by in simulation.percentiles_s.items()
        for percentile, values in by.items()
    }
    return [
        {name: value for name, value in row.items() if math.isfinite(value)}
        for row in _rows_of_columns(columns, len(rows))
    ]


def _pool_figures(pools: Pools, cases: Cases, rows: Int) -> list[PoolFigures]:
    """What each pool serves at most, how busy it is, and what goes between them."""
    rate, prefill = pools.requests_per_s[rows], pools.prefill.devices[rows]

    def pool(gpus: Int, capacity: Float) -> list[Pool]:
        rates = {"requests_per_s": _floats(capacity), "busy": _floats(rate / capacity)}
        return _build_parts(Pool, {"gpus": gpus.tolist(), **rates})

    columns: dict[str, Iterable[Any]] = {
        "prefill": pool(prefill, pools.prefill_per_s[rows]),
        "decode": pool(cases.devices[rows] - prefill, pools.decode_per_s[rows]),
        "transfer_bytes": _floats(pools.transfer_bytes[rows]),
        "transfer_s": _floats(pools.transfer_s[rows]),
        "requests_per_s": _floats(rate),
    }
    return _build_parts(PoolFigures, columns)


def _cause_rows(e: Estimates, rows: Int) -> list[Causes]:
    """The times of the breakdown by cause."""
    by = causes_of_times(e.setting, e.cases.take(rows), e.serving.take(rows))
    return _time_parts(Causes, by["decode"], by["prefill"], np.arange(len(rows)))


def _time_parts(
    kind: type[AnyPart], decode: Mapping[str, Float], prefill: Mapping[str, Float], rows: Int
) -> list[AnyPart]:
    """The parts that there are of the time per output token and of the time to the first."""
    return _build_parts(
        kind, {"decode": _seconds_by_part(decode, rows), "prefill": _seconds_by_part(prefill, rows)}
    )


def _seconds_by_part(parts: Mapping[str, Float], rows: Int) -> list[dict[str, float]]:
    columns = {name: _floats(seconds[rows]) for name, seconds in parts.items()}
    return [
        {name: seconds for name, seconds in row.items() if seconds > 0}
        for row in _rows_of_columns(columns, len(rows))
    ]


def _rows_of_columns(columns: Mapping[str, list[float]], n: int) -> list[dict[str, float]]:
    if not columns:
        return [{} for _ in range(n)]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _known_figure(value: float) -> float | None:
    return value if math.isfinite(value) else None
