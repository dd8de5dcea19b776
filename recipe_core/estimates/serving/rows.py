"""Estimates of some cases: columns become lists once, then rows are put together from these."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from recipe_core.base.arrays import Float, Int
from recipe_core.base.intervals import BAND, LEVELS, Ends, Level
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.prediction import (
    FOLLOWING,
    AnyPart,
    all_figures,
    build_estimates,
    build_parts,
    named_rows,
    number_rows,
    positive_rows,
)
from recipe_core.estimates.serving.accuracy import accuracy_part
from recipe_core.estimates.serving.bands import bands_of
from recipe_core.estimates.serving.bottlenecks import causes_of_times
from recipe_core.estimates.serving.corrections import Corrected
from recipe_core.estimates.serving.cost import watts_basis
from recipe_core.estimates.serving.kv_verdict import kv_tiers, prefix_caches
from recipe_core.estimates.serving.memory import Memory, stage_columns
from recipe_core.estimates.serving.notes import estimate_notes
from recipe_core.estimates.serving.results import (
    Arrivals,
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


def estimate_rows(
    e: Estimates,
    limits: Sequence[Sequence[str]],
    estimate: Callable[[Setting, Cases], Estimates],
    *,
    explained: bool,
) -> list[ServingEstimate]:
    """Every case, in order; ``limits``: for each the limits of the request that it breaks.

    ``estimate``: of the same cases without some tier below the devices' cache.
    """
    rules = e.reasons_of(np.arange(len(e)))
    reasons = [[*of_case, *more] for of_case, more in zip(rules, limits, strict=True)]
    feasible = np.array([not sentences for sentences in reasons], dtype=np.bool_)
    running = e.take(np.flatnonzero(feasible))
    notes = estimate_notes(e, running, feasible)
    parts = _running_case_parts(running, estimate, explained=explained)
    return build_estimates(ServingEstimate, reasons, notes, _memory_rows(e), parts)


def _memory_rows(e: Estimates) -> list[ServingMemory]:
    stages, prefill = _memory_by_stage(e.setting, e.cases, e.memory), None
    if e.pools is not None:
        pool, memory = e.pools.prefill, e.pools.memory
        chances = serving_start_probability(e.setting, pool, memory)
        prefill = _memory_parts(PoolMemory, memory, chances)
    return _memory_parts(
        ServingMemory, e.memory, e.start_probability, stages=stages, prefill=prefill
    )


def _memory_parts(
    kind: type[AnyPart], memory: Memory, chances: Float, **columns: Any
) -> list[AnyPart]:
    largest = np.argmax(np.stack([getattr(memory, name) for name in PARTS]), axis=0)
    return build_parts(
        kind,
        memory,
        start_probability=chances,
        largest_part=[PARTS[k].removesuffix("_bytes") for k in largest.tolist()],
        **columns,
    )


def _memory_by_stage(
    setting: Setting, cases: Cases, memory: Memory
) -> list[list[StageMemory] | None]:
    out: list[list[StageMemory] | None] = [None] * len(cases)
    sequences = memory.kv_needed_bytes / np.maximum(memory.sequence_bytes, 1.0)
    for count in np.unique(cases.pp[cases.pp > 1]).tolist():
        rows = np.flatnonzero(cases.pp == count)
        columns = stage_columns(setting, cases.take(rows), count, sequences[rows])
        stages = [build_parts(StageMemory, **column) for column in columns]
        for row, of_row in zip(rows.tolist(), zip(*stages, strict=True), strict=True):
            out[row] = [*of_row]
    return out


def _running_case_parts(
    e: Estimates, estimate: Callable[[Setting, Cases], Estimates], *, explained: bool
) -> Iterator[dict[str, Any]]:
    """Yield what cases that run have besides their memory, by the fields of an estimate."""
    figures = _latency_and_throughput(e)
    costs, energies = build_parts(ServingCost, e.cost), build_parts(ServingEnergy, e.cost)
    fixed = {
        "usd_per_hour": e.setting.cluster.price_basis or "unknown",
        "watts": watts_basis(e.setting),
    }
    intervals = list(_serving_intervals(e, list(map(all_figures, figures, costs, energies))))
    columns: dict[str, Iterable[Any]] = {
        "serving": figures,
        "cost": costs,
        "energy": energies,
        "bands": [{name: of[BAND] for name, of in of_row.items()} for of_row in intervals],
        "intervals": intervals,
        "accuracy": [accuracy_part(e.setting, explained=explained)] * len(e),
        "basis": [
            _figure_basis(e.setting, of_row, e.corrected, row) | fixed
            for row, of_row in enumerate(intervals)
        ],
        "breakdown_s": _time_parts(ServingParts, e.serving.decode, e.serving.prefill, len(e)),
    }
    if e.setting.mode == "open":
        load_factor, keeps_up = e.serving.load_factor, e.keeps_up
        columns["arrivals"] = build_parts(
            Arrivals, load_factor=load_factor, keeps_up_probability=keeps_up
        )
    if e.cached is not None:
        columns["prefix_cache"] = prefix_caches(e)
        columns["kv_tiers"] = kv_tiers(e, estimate)
    if e.pools is not None:
        columns["pools"] = _pool_figures(e.pools, e.cases)
    elif explained:  # the steps of two pools are of two kinds
        causes = causes_of_times(e.setting, e.cases, e.serving)
        columns["causes_s"] = _time_parts(Causes, causes["decode"], causes["prefill"], len(e))
    yield from named_rows(columns)


def _serving_intervals(
    e: Estimates, figures: Iterable[dict[str, Any]]
) -> Iterator[dict[str, dict[Level, Ends]]]:
    """The intervals of every figure: narrower by own runs, wider by the queue of an open loop.

    Cost and energy per token follow the throughput's. Of a request alone the time per token is the
    throughput inverted, so that its intervals hold those of the throughput.
    """
    by_metric, stretches = bands_of(e.setting), e.stretches()
    same = {name: list(band.factors.items()) for name, band in by_metric.items()}
    of_cases = {
        name: [stretch.ends(by_metric[name].factors)[side].tolist() for side in (0, 1)]
        for name, stretch in stretches.items()
        if name in by_metric
    }

    def of_row(name: str, row: int) -> Iterator[tuple[Level, Ends]]:
        banded = "output_tokens_per_s" if name in FOLLOWING else _banded_metric(name)
        ends = same[banded]
        if banded in of_cases:
            low, high = of_cases[banded]
            ends = list(zip(LEVELS, zip(low[row], high[row], strict=True), strict=True))
        for level, (low_end, high_end) in ends:
            yield level, (1 / high_end, 1 / low_end) if name in FOLLOWING else (low_end, high_end)

    for row, (values, alone) in enumerate(zip(figures, (e.cases.load == 1).tolist(), strict=True)):
        if values.get("requests_per_s") is not None:  # there is no token after the first
            del values["tpot_s"]
        ends_of = {
            name: {level: (value * low, value * high) for level, (low, high) in of_row(name, row)}
            for name, value in values.items()
            if value is not None
        }
        if alone and "tpot_s" in ends_of:
            rates = ends_of["output_tokens_per_s"]
            ends_of["tpot_s"] = {
                level: (min(low, 1 / rates[level][1]), max(high, 1 / rates[level][0]))
                for level, (low, high) in ends_of["tpot_s"].items()
            }
        yield ends_of


def _figure_basis(
    setting: Setting, names: Iterable[str], corrected: Corrected | None, row: int
) -> dict[str, str]:
    """Return what each figure rests on: the formulas, or own runs as well."""
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


def _latency_and_throughput(e: Estimates) -> list[ServingFigures]:
    """Means, and what was simulated."""
    rate, columns = e.serving.output_tokens_per_s, dict[str, Any]()
    if not e.setting.model.generates:
        requests = rate / e.cases.output_tokens
        columns = {
            "requests_per_s": requests,
            "input_tokens_per_s": requests * e.cases.input_tokens,
        }
    if e.simulation is not None:
        columns["goodput_requests_per_s"] = e.simulation.goodput_per_s
        columns["percentiles_s"] = _percentile_rows(e.simulation)
    per_gpu = rate / e.cases.devices
    return build_parts(ServingFigures, e.serving, output_tokens_per_s_per_gpu=per_gpu, **columns)


def _percentile_rows(simulation: Simulation) -> list[dict[str, float]]:
    columns = {
        f"{figure.removesuffix('_s')}_p{percentile:g}_s": values
        for figure, by in simulation.percentiles_s.items()
        for percentile, values in by.items()
    }
    return [
        {name: value for name, value in row.items() if math.isfinite(value)}
        for row in number_rows(columns, len(simulation.output_tokens_per_s))
    ]


def _pool_figures(pools: Pools, cases: Cases) -> list[PoolFigures]:
    """Return what each pool serves at most, how busy it is, and what goes between them."""

    def pool(gpus: Int, capacity: Float) -> list[Pool]:
        busy = pools.requests_per_s / capacity
        return build_parts(Pool, gpus=gpus, requests_per_s=capacity, busy=busy)

    prefill = pools.prefill.devices
    return build_parts(
        PoolFigures,
        pools,
        prefill=pool(prefill, pools.prefill_per_s),
        decode=pool(cases.devices - prefill, pools.decode_per_s),
    )


def _time_parts(
    kind: type[AnyPart], decode: Mapping[str, Float], prefill: Mapping[str, Float], count: int
) -> list[AnyPart]:
    """The parts that there are of the time per output token and of the time to the first."""
    decode_s, prefill_s = (positive_rows(parts, count) for parts in (decode, prefill))
    return build_parts(kind, decode=decode_s, prefill=prefill_s)
