"""One call: cases in, every quantity out, with reasons, bands and basis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.base.documents import read_document
from recipe_core.base.units import gib, significant
from recipe_core.hardware.cluster import roofline
from recipe_core.physics.serving.bottlenecks import causes
from recipe_core.physics.serving.cost import ENERGY, MONEY, Cost, cost, watts_basis
from recipe_core.physics.serving.memory import Memory, memory, stage_columns
from recipe_core.physics.serving.pools import Pools, disaggregated
from recipe_core.physics.serving.rates import Serving, active_replicas, resident_limit, serving
from recipe_core.physics.serving.simulate import (
    NO_LIMITS,
    PERCENTILES,
    TYPICAL,
    Simulation,
    Spread,
    simulate,
)
from recipe_core.space.refusal import Refusal
from recipe_core.space.rules import refusals
from recipe_core.space.serving import Cases, Setting

SCHEMA_VERSION = 1
PARTS = ("weights_bytes", "kv_needed_bytes", "activations_bytes", "runtime_bytes")


class Band(BaseModel):
    """Factors around an estimate that held 80 % of measured runs (p10 and p90 of measured / estimated)."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    low: Annotated[float, Field(gt=0)]
    high: Annotated[float, Field(gt=0)]


class BandFile(BaseModel):
    """``bands.yaml``: bands by what the device's figures rest on, then by quantity."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    schema_version: int
    source: str
    bands: dict[str, dict[str, Band]]


@cache
def bands() -> BandFile:
    """The bands this version ships."""
    return BandFile.model_validate(read_document(Path(__file__).with_name("bands.yaml")))


def grade(setting: Setting) -> str:
    """What a device's roofline rests on: "fitted" to measurements of it, or "prior" figures of its kind."""
    own = roofline(setting.cluster.device, "gemm", setting.model.dtype).status
    return "fitted" if own in ("fitted", "measured") else "prior"


@dataclass(frozen=True, slots=True)
class Estimates:
    """All quantities of all cases; ``row`` gives one as the JSON of the contract."""

    setting: Setting
    cases: Cases
    memory: Memory
    serving: Serving
    cost: Cost
    refusals: tuple[Refusal, ...]
    simulation: Simulation | None = None
    pools: Pools | None = None

    def simulated(
        self,
        rows: Int,
        spread: Spread = TYPICAL,
        percentiles: Sequence[float] = PERCENTILES,
        limits: Mapping[str, float] = NO_LIMITS,
    ) -> Estimates:
        """With percentiles of the chosen cases, which should be feasible; those of pools and of drafts are not simulated."""
        rows = rows[~(self.cases.disaggregated | (self.cases.draft_tokens > 0))[rows]]
        if not len(rows):
            return self
        columns = {field.name: getattr(self.memory, field.name)[rows] for field in fields(Memory)}
        ran = simulate(
            self.setting,
            self.cases.take(rows),
            Memory(**columns),
            spread=spread,
            percentiles=percentiles,
            limits=limits,
        )
        return replace(self, simulation=ran.scattered(rows, len(self.cases)))

    @property
    def feasible(self) -> Bool:
        """Where no rule is broken."""
        broken = np.zeros(len(self.cases), dtype=np.bool_)
        for refusal in self.refusals:
            broken |= refusal.broken
        return ~broken

    def reasons(self, i: int) -> list[str]:
        """Every reason why case ``i`` cannot run; empty when it can."""
        return [refusal.say(i) for refusal in self.refusals if refusal.broken[i]]

    def notes(self, i: int) -> list[str]:
        """What to know about a case that runs."""
        price = self.setting.cluster.price_note
        return [*self.setting.model.notes, *_notes(self, i), *([price] if price else [])]

    def row(self, i: int, limits: Sequence[str] = (), *, explained: bool = False) -> dict[str, Any]:
        """Case ``i`` as JSON values, ``explained`` with its times by cause too.

        Infeasible cases (also by broken ``limits``) keep their memory and have no serving figures.
        """
        reasons = [*self.reasons(i), *limits]
        feasible = not reasons
        out: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "feasible": feasible,
            "reasons": reasons,
            "notes": self.notes(i),
        }
        out["memory"] = _memory_row(self.memory, i) | self._stages(i)
        if self.pools is not None:
            out["memory"]["prefill"] = _memory_row(self.pools.memory, i)
        if feasible:
            out |= self._figures(i) | self._pools(i)
            if explained and self.pools is None:  # the steps of two pools are of two kinds
                out["causes_s"] = self._causes(i)
        return out

    def _pools(self, i: int) -> dict[str, Any]:
        """What each pool serves at most, how busy it is, and what goes between them."""
        if self.pools is None:
            return {}
        rate, gpus = self.pools.requests_per_s[i], int(self.pools.prefill.devices[i])
        pools = {
            "prefill": (gpus, self.pools.prefill_per_s[i]),
            "decode": (int(self.cases.devices[i]) - gpus, self.pools.decode_per_s[i]),
        }
        rows = {
            name: {"gpus": n, "requests_per_s": float(most), "busy": float(rate / most)}
            for name, (n, most) in pools.items()
        }
        sent = {
            "transfer_bytes": float(self.pools.transfer_bytes[i]),
            "transfer_s": float(self.pools.transfer_s[i]),
        }
        return {"pools": rows | sent | {"requests_per_s": float(rate)}}

    def _stages(self, i: int) -> dict[str, Any]:
        """Memory of each pipeline stage, where there are several."""
        stages = int(self.cases.pp[i])
        if stages == 1:
            return {}
        held = self.memory.kv_needed_bytes[i] / max(self.memory.sequence_bytes[i], 1.0)
        columns = stage_columns(self.setting, self.cases.take([i]), stages, np.array([held]))
        return {
            "stages": [
                {name: float(column[name][0]) for name in (*PARTS, "total_bytes")}
                for column in columns
            ]
        }

    def _figures(self, i: int) -> dict[str, Any]:
        s, c = self.serving, self.cost
        total = float(s.output_tokens_per_s[i])
        figures = {
            "ttft_s": float(s.ttft_s[i]),
            "tpot_s": float(s.tpot_s[i]),
            "request_latency_s": float(s.request_latency_s[i]),
            "output_tokens_per_s": total,
            "output_tokens_per_s_per_gpu": total / float(self.cases.devices[i]),
        }
        factors = dict(bands().bands[grade(self.setting)])
        for name, figure, value in self._tails(
            i
        ):  # the band of a mean is that of its percentiles: nothing tells them apart
            figures[name], factors[name] = value, factors[figure]
        if self.simulation is not None and np.isfinite(self.simulation.goodput_per_s[i]):
            figures["goodput_requests_per_s"] = float(self.simulation.goodput_per_s[i])
            factors["goodput_requests_per_s"] = factors["output_tokens_per_s"]
        basis = dict.fromkeys(figures, "computed")
        return {
            "serving": figures,
            "cost": {name: _known(getattr(c, name)[i]) for name in MONEY},
            "energy": {name: float(getattr(c, name)[i]) for name in ENERGY},
            "bands": {
                name: [value * factors[name].low, value * factors[name].high]
                for name, value in figures.items()
            },
            "basis": basis
            | {
                "usd_per_hour": self.setting.cluster.price_basis or "unknown",
                "watts": watts_basis(self.setting),
            },
            "breakdown_s": {"decode": _parts(s.decode, i), "prefill": _parts(s.prefill, i)},
        }

    def _causes(self, i: int) -> dict[str, dict[str, float]]:
        """The times of the breakdown by cause."""
        one, s = self.cases.take([i]), self.serving
        alone = replace(
            s,
            ttft_s=s.ttft_s[[i]],
            tpot_s=s.tpot_s[[i]],
            output_tokens_per_s=s.output_tokens_per_s[[i]],
            resident=s.resident[[i]],
            decoding=s.decoding[[i]],
            decode={name: seconds[[i]] for name, seconds in s.decode.items()},
            prefill={name: seconds[[i]] for name, seconds in s.prefill.items()},
        )
        return {name: _parts(by, 0) for name, by in causes(self.setting, one, alone).items()}

    def _tails(self, i: int) -> Iterator[tuple[str, str, float]]:
        """The simulated percentiles of a case: name (``ttft_p95_s``), figure, value."""
        for figure, by in self.simulation.percentiles_s.items() if self.simulation else ():
            for percentile, values in by.items():
                if np.isfinite(values[i]):
                    yield f"{figure.removesuffix('_s')}_p{percentile:g}_s", figure, float(values[i])


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _parts(parts: dict[str, Float], i: int) -> dict[str, float]:
    return {name: float(seconds[i]) for name, seconds in parts.items() if seconds[i] > 0}


def _memory_row(m: Memory, i: int) -> dict[str, Any]:
    names = (*PARTS, "total_bytes", "capacity_bytes", "usable_bytes")
    out: dict[str, Any] = {name: float(getattr(m, name)[i]) for name in names}
    return out | {
        "kv_cache_bytes": float(m.pool_bytes[i]),
        "kv_cache_tokens": int(m.pool_tokens[i]),
        "max_concurrency": int(m.max_concurrency[i]),
        "max_context": int(max(m.context_limit[i], 0)),
        "max_context_at_load": int(max(m.context_at_load[i], 0)),
        "largest_part": max(PARTS, key=lambda name: float(getattr(m, name)[i])).removesuffix(
            "_bytes"
        ),
    }


def _notes(e: Estimates, i: int) -> list[str]:
    notes = []
    if e.setting.needs_other_checkpoint:
        notes.append(
            f"Needs a checkpoint that stores {e.setting.weight_dtype}; this model's stores {e.setting.model.weight_dtype}."
        )
    limit = resident_limit(e.setting, e.cases, e.memory)[i] * e.cases.replicas[i]
    if e.pools is not None:
        slower = "prefill" if e.pools.prefill_per_s[i] < e.pools.decode_per_s[i] else "decode"
        rates = f"prefill {significant(float(e.pools.prefill_per_s[i]))}, decode {significant(float(e.pools.decode_per_s[i]))} requests/s"
        notes.append(f"The {slower} pool bounds the rate: {rates} at most.")
    elif e.setting.mode == "closed" and e.cases.load[i] > limit:
        notes.append(
            f"{limit:,.0f} of {e.cases.load[i]:,.0f} requests run at once; the others wait in the engine's queue."
        )
    cached = [
        a
        for layer, _ in e.setting.model.kinds
        if (a := layer.attention) is not None and a.kv_values_per_head
    ]
    heads = max((a.kv_heads for a in cached), default=0)
    if heads and e.cases.tp[i] > heads:
        what = "1 KV head" if heads == 1 else f"{heads} KV heads"
        notes.append(
            f"Each cached token is held {e.cases.tp[i] // heads} times: {what} over tp {e.cases.tp[i]}."
        )
    return notes


def _served(setting: Setting, cases: Cases, mem: Memory) -> Serving:
    """Serving of the cases that fit; NaN for the others, which saves most of their time."""
    rows = np.flatnonzero(mem.shortfall_bytes <= 0)
    if len(rows) == len(cases):
        return serving(setting, cases, mem)
    known = len(rows)
    rows = (
        rows if known else np.zeros(1, dtype=np.int64)
    )  # the names of the parts come from some case
    some = serving(
        setting,
        cases.take(rows),
        Memory(**{f.name: getattr(mem, f.name)[rows] for f in fields(Memory)}),
    )

    def placed(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: placed(seconds) for name, seconds in value.items()}
        out = (
            np.zeros(len(cases), dtype=bool) if value.dtype == bool else np.full(len(cases), np.nan)
        )
        out[rows[:known]] = value[:known]
        return out

    return Serving(**{f.name: placed(getattr(some, f.name)) for f in fields(Serving)})


def estimate(setting: Setting, cases: Cases) -> Estimates:
    """Memory, latency, throughput and cost of every case, and why some cannot run.

    Memory of infeasible cases is computed too (a chart draws what does not fit); serving figures of what does not fit are NaN. Either all
    cases have a prefill pool or none has.
    """
    asked = np.ones(len(cases))
    if setting.mode in ("closed", "static"):
        asked = np.maximum(np.minimum(cases.load / active_replicas(cases), cases.max_num_seqs), 1.0)
    mem = memory(setting, cases, asked)
    pools = None
    if cases.disaggregated.any():
        served, pools = disaggregated(setting, cases, mem)
    else:
        served = _served(setting, cases, mem)
    if (
        setting.mode in ("open", "offline") or pools is not None
    ):  # the load itself does not say how many are held at once
        mem = memory(setting, cases, np.fmax(served.resident, 1.0))
    price = cost(setting, cases, served, pools)
    rules = [
        *refusals(setting, cases),
        *_fit_rules(setting, cases, mem, served),
        *(_pool_rules(setting, pools) if pools else ()),
    ]
    return Estimates(setting, cases, mem, served, price, tuple(rules), pools=pools)


_OF_BOTH = ("devices", "runtime", "weight-dtype", "kv-dtype", "context", "no-pools", "no-drafts")
"""Rules that both pools keep or break together."""


def _pool_rules(setting: Setting, pools: Pools) -> Iterator[Refusal]:
    """What the prefill pool can break by itself."""
    own = [rule for rule in refusals(setting, pools.prefill) if rule.code not in _OF_BOTH]
    for rule in (*own, _memory_rule(pools.prefill, pools.memory)):
        yield replace(rule, say=lambda i, say=rule.say: f"prefill pool: {say(i)}")  # type: ignore[misc]


def _memory_rule(cases: Cases, mem: Memory) -> Refusal:
    share = cases.memory_fraction

    def too_big(i: int) -> str:
        device = f"{gib(mem.usable_bytes[i])} per device ({share[i]:.0%} of {gib(mem.capacity_bytes[i])})"
        request = f"one request of {cases.max_context[i]:,.0f} tokens"
        limit = mem.context_limit[i]
        longest = f"; the longest request that fits has {limit:,.0f} tokens" if limit >= 1 else ""
        return (
            f"needs {gib(mem.start_bytes[i])} of {device} to start with {request}: {gib(mem.shortfall_bytes[i])} too much, "
            f"weights alone are {gib(mem.weights_bytes[i])}{longest}"
        )

    return Refusal("memory", mem.shortfall_bytes > 0, too_big)


def _fit_rules(setting: Setting, cases: Cases, mem: Memory, served: Serving) -> list[Refusal]:
    batch = served.resident
    return [
        _memory_rule(cases, mem),
        Refusal(
            "batch",
            (mem.shortfall_bytes <= 0)
            & (setting.mode == "static")
            & (batch > np.maximum(resident_limit(setting, cases, mem), 1)),
            lambda i: (
                f"a batch of {batch[i]:,.0f} sequences per replica needs more than the {gib(mem.pool_bytes[i])} that are left for the cache"
            ),
        ),
        Refusal(
            "rate",
            (mem.shortfall_bytes <= 0) & served.unstable,
            lambda i: (
                f"{significant(float(cases.load[i]))} requests/s arrive; this split serves "
                f"{significant(float(served.output_tokens_per_s[i] / cases.output_tokens[i]))}"
            ),
        ),
    ]
