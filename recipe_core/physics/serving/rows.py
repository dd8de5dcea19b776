"""Cases of an estimate as the JSON values of the contract: columns become lists once, then rows are put together from these."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from recipe_core.base.arrays import Float, Int
from recipe_core.base.units import significant
from recipe_core.physics.serving.bands import bands, grade
from recipe_core.physics.serving.bottlenecks import causes
from recipe_core.physics.serving.cost import ENERGY, MONEY, watts_basis
from recipe_core.physics.serving.memory import Memory, stage_columns
from recipe_core.physics.serving.rates import resident_limit
from recipe_core.space.serving import Cases, Setting

if TYPE_CHECKING:
    from recipe_core.physics.serving.estimates import Estimates
    from recipe_core.physics.serving.pools import Pools

SCHEMA_VERSION = 1
PARTS = ("weights_bytes", "kv_needed_bytes", "activations_bytes", "runtime_bytes")

Row = dict[str, Any]


def estimate_rows(
    e: Estimates, rows: Int, limits: Sequence[Sequence[str]], *, explained: bool
) -> list[Row]:
    """The chosen cases, in that order; ``limits``: for each the limits of the request that it breaks."""
    cases, memory = e.cases.take(rows), taken(e.memory, rows)
    reasons = [[*rules, *more] for rules, more in zip(e.reasons_of(rows), limits, strict=True)]
    out: list[Row] = [
        {
            "schema_version": SCHEMA_VERSION,
            "feasible": not said,
            "reasons": said,
            "notes": notes,
            "memory": held,
        }
        for said, notes, held in zip(
            reasons, _notes(e, rows, cases, memory), _memory_rows(memory), strict=True
        )
    ]
    for place, stages in _stages(e.setting, cases, memory):
        out[place]["memory"]["stages"] = stages
    if e.pools is not None:
        for row, held in zip(out, _memory_rows(taken(e.pools.memory, rows)), strict=True):
            row["memory"]["prefill"] = held
    feasible = np.array([row["feasible"] for row in out], dtype=np.bool_)
    running = [row for row in out if row["feasible"]]
    for row, figures in zip(running, _figures(e, rows[feasible], explained=explained), strict=True):
        row |= figures
    return out


def taken(memory: Memory, rows: Int) -> Memory:
    """The chosen cases, in that order."""
    return Memory(**{field.name: getattr(memory, field.name)[rows] for field in fields(Memory)})


def _floats(column: Any) -> list[float]:
    values: list[float] = np.asarray(column, dtype=np.float64).tolist()
    return values


def _dicts(columns: dict[str, list[Any]], n: int) -> list[Row]:
    """Rows from columns."""
    return (
        [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        if columns
        else [{} for _ in range(n)]
    )


def _memory_rows(memory: Memory) -> list[Row]:
    names = (*PARTS, "total_bytes", "capacity_bytes", "usable_bytes")
    columns: dict[str, list[Any]] = {name: _floats(getattr(memory, name)) for name in names}
    parts = zip(*(columns[name] for name in PARTS), strict=True)
    columns |= {
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
    return _dicts(columns, len(memory.total_bytes))


def _stages(setting: Setting, cases: Cases, memory: Memory) -> Iterator[tuple[int, list[Row]]]:
    """Memory of each pipeline stage of the cases that have several."""
    held = memory.kv_needed_bytes / np.maximum(memory.sequence_bytes, 1.0)
    for stages in np.unique(cases.pp[cases.pp > 1]).tolist():
        rows = np.flatnonzero(cases.pp == stages)
        columns = stage_columns(setting, cases.take(rows), stages, held[rows])
        every = [
            _dicts({name: _floats(column[name]) for name in (*PARTS, "total_bytes")}, len(rows))
            for column in columns
        ]
        yield from zip(rows.tolist(), map(list, zip(*every, strict=True)), strict=True)


def _figures(e: Estimates, rows: Int, *, explained: bool) -> Iterator[Row]:
    """What cases that run have besides their memory."""
    s, factors = e.serving, bands().bands[grade(e.setting)]
    money = _dicts(
        {name: [_known(value) for value in _floats(getattr(e.cost, name)[rows])] for name in MONEY},
        len(rows),
    )
    energy = _dicts({name: _floats(getattr(e.cost, name)[rows]) for name in ENERGY}, len(rows))
    basis = {
        "usd_per_hour": e.setting.cluster.price_basis or "unknown",
        "watts": watts_basis(e.setting),
    }
    parts = [_parts(seconds, rows) for seconds in (s.decode, s.prefill)]
    pools = _pools(e.pools, e.cases, rows) if e.pools is not None else [{} for _ in rows]
    by_cause = (
        _causes(e, rows) if explained and e.pools is None else [{} for _ in rows]
    )  # the steps of two pools are of two kinds
    factor_of = {name: (band.low, band.high) for name, band in factors.items()}
    for i, figures in enumerate(_means(e, rows)):
        factor, tails = factor_of, _tails(e, int(rows[i]))
        for (
            name,
            figure,
            value,
        ) in tails:  # the band of a mean is that of its percentiles: nothing tells them apart
            figures[name], factor = value, factor | {name: factor_of[figure]}
        yield {
            "serving": figures,
            "cost": money[i],
            "energy": energy[i],
            "bands": {
                name: [value * factor[name][0], value * factor[name][1]]
                for name, value in figures.items()
            },
            "basis": dict.fromkeys(figures, "computed") | basis,
            "breakdown_s": {"decode": parts[0][i], "prefill": parts[1][i]},
            **pools[i],
            **by_cause[i],
        }


def _means(e: Estimates, rows: Int) -> list[Row]:
    s = e.serving
    columns = {
        name: getattr(s, name)[rows]
        for name in ("ttft_s", "tpot_s", "request_latency_s", "output_tokens_per_s")
    }
    columns["output_tokens_per_s_per_gpu"] = columns["output_tokens_per_s"] / e.cases.devices[rows]
    return _dicts({name: _floats(column) for name, column in columns.items()}, len(rows))


def _tails(e: Estimates, i: int) -> Iterator[tuple[str, str, float]]:
    """What was simulated of a case: name (``ttft_p95_s``), the figure whose band it has, value."""
    if e.simulation is None:
        return
    for figure, by in e.simulation.percentiles_s.items():
        for percentile, values in by.items():
            if np.isfinite(values[i]):
                yield f"{figure.removesuffix('_s')}_p{percentile:g}_s", figure, float(values[i])
    if np.isfinite(e.simulation.goodput_per_s[i]):
        yield "goodput_requests_per_s", "output_tokens_per_s", float(e.simulation.goodput_per_s[i])


def _pools(pools: Pools, cases: Cases, rows: Int) -> list[Row]:
    """What each pool serves at most, how busy it is, and what goes between them."""
    rate, prefill = pools.requests_per_s[rows], pools.prefill.devices[rows]
    each = {
        "prefill": (prefill, pools.prefill_per_s[rows]),
        "decode": (cases.devices[rows] - prefill, pools.decode_per_s[rows]),
    }
    columns: dict[str, list[Any]] = {
        name: _dicts(
            {"gpus": gpus.tolist(), "requests_per_s": _floats(most), "busy": _floats(rate / most)},
            len(rows),
        )
        for name, (gpus, most) in each.items()
    }
    columns |= {
        name: _floats(getattr(pools, name)[rows]) for name in ("transfer_bytes", "transfer_s")
    }
    return [
        {"pools": row} for row in _dicts(columns | {"requests_per_s": _floats(rate)}, len(rows))
    ]


def _causes(e: Estimates, rows: Int) -> list[Row]:
    """The times of the breakdown by cause."""
    s = e.serving
    chosen = replace(
        s,
        ttft_s=s.ttft_s[rows],
        tpot_s=s.tpot_s[rows],
        output_tokens_per_s=s.output_tokens_per_s[rows],
        resident=s.resident[rows],
        decoding=s.decoding[rows],
        decode={name: seconds[rows] for name, seconds in s.decode.items()},
        prefill={name: seconds[rows] for name, seconds in s.prefill.items()},
    )
    every = np.arange(len(rows))
    columns: dict[str, list[Any]] = {
        name: _parts(by, every)
        for name, by in causes(e.setting, e.cases.take(rows), chosen).items()
    }
    return [{"causes_s": row} for row in _dicts(columns, len(rows))]


def _parts(parts: dict[str, Float], rows: Int) -> list[dict[str, float]]:
    """The parts of a time that there are."""
    columns = {name: _floats(seconds[rows]) for name, seconds in parts.items()}
    return [
        {name: seconds for name, seconds in row.items() if seconds > 0}
        for row in _dicts(columns, len(rows))
    ]


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _notes(e: Estimates, rows: Int, cases: Cases, memory: Memory) -> Iterator[list[str]]:
    """What to know about each case that runs."""
    setting, price = e.setting, e.setting.cluster.price_note
    shared = list(setting.model.notes)
    if setting.needs_other_checkpoint:
        shared.append(
            f"Needs a checkpoint that stores {setting.weight_dtype}; this model's stores {setting.model.weight_dtype}."
        )
    waiting = _waiting(e.pools, rows) if e.pools is not None else _queued(setting, cases, memory)
    for load, heads in zip(waiting, _heads(setting, cases), strict=True):
        yield [*shared, *load, *heads, *([price] if price else [])]


def _waiting(pools: Pools, rows: Int) -> Iterator[list[str]]:
    """Which pool bounds the rate."""
    for prefill, decode in zip(
        _floats(pools.prefill_per_s[rows]), _floats(pools.decode_per_s[rows]), strict=True
    ):
        rates = f"prefill {significant(prefill)}, decode {significant(decode)} requests/s"
        yield [
            f"The {'prefill' if prefill < decode else 'decode'} pool bounds the rate: {rates} at most."
        ]


def _queued(setting: Setting, cases: Cases, memory: Memory) -> Iterator[list[str]]:
    """How many requests wait, where those in flight are a given number."""
    limits = _floats(resident_limit(setting, cases, memory) * cases.replicas)
    for limit, load in zip(limits, _floats(cases.load), strict=True):
        waits = setting.mode == "closed" and load > limit
        yield (
            [
                f"{limit:,.0f} of {load:,.0f} requests run at once; the others wait in the engine's queue."
            ]
            if waits
            else []
        )


def _heads(setting: Setting, cases: Cases) -> Iterator[list[str]]:
    """How often each token's cache is held, where tp is more than there are KV heads."""
    cached = [
        a
        for layer, _ in setting.model.kinds
        if (a := layer.attention) is not None and a.kv_values_per_head
    ]
    heads = max((a.kv_heads for a in cached), default=0)
    what = "1 KV head" if heads == 1 else f"{heads} KV heads"
    for tp in cases.tp.tolist():
        yield (
            [f"Each cached token is held {tp // heads} times: {what} over tp {tp}."]
            if heads and tp > heads
            else []
        )
