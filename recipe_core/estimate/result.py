"""One call: cases in, every quantity out, with reasons, bands and basis."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from recipe_core.documents import read_document
from recipe_core.estimate.cases import Bool, Cases, Float, Setting
from recipe_core.estimate.cost import Cost, cost
from recipe_core.estimate.memory import Memory, memory, stage_columns
from recipe_core.estimate.serving import Serving, active_replicas, resident_limit, serving
from recipe_core.hardware.catalog import roofline
from recipe_core.split import Refusal, refusals
from recipe_core.units import gib, significant

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
        return [*self.setting.model.notes, *_notes(self, i)]

    def row(self, i: int) -> dict[str, Any]:
        """Case ``i`` as JSON values. Infeasible cases keep their memory and have no serving figures."""
        feasible = bool(self.feasible[i])
        out: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "feasible": feasible, "reasons": self.reasons(i), "notes": self.notes(i)}
        out["memory"] = _memory_row(self.memory, i) | self._stages(i)
        if feasible:
            out |= self._figures(i)
        return out

    def _stages(self, i: int) -> dict[str, Any]:
        """Memory of each pipeline stage, where there are several."""
        stages = int(self.cases.pp[i])
        if stages == 1:
            return {}
        held = self.memory.kv_needed_bytes[i] / max(self.memory.sequence_bytes[i], 1.0)
        columns = stage_columns(self.setting, self.cases.take([i]), stages, np.array([held]))
        return {"stages": [{name: float(column[name][0]) for name in (*PARTS, "total_bytes")} for column in columns]}

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
        factors = bands().bands[grade(self.setting)]
        basis = dict.fromkeys(figures, "computed")
        return {
            "serving": figures,
            "cost": {
                "usd_per_hour": _known(c.usd_per_hour[i]),
                "usd_per_million_output_tokens": _known(c.usd_per_million_output_tokens[i]),
            },
            "energy": {"watts": float(c.watts[i]), "joules_per_token": float(c.joules_per_token[i])},
            "bands": {name: [value * factors[name].low, value * factors[name].high] for name, value in figures.items()},
            "basis": basis | {"usd_per_hour": self.setting.cluster.price_basis or "unknown"},
            "breakdown_s": {"decode": _parts(s.decode, i), "prefill": _parts(s.prefill, i)},
        }


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
        "largest_part": max(PARTS, key=lambda name: float(getattr(m, name)[i])).removesuffix("_bytes"),
    }


def _notes(e: Estimates, i: int) -> list[str]:
    notes = []
    if e.setting.needs_other_checkpoint:
        notes.append(f"Needs a checkpoint that stores {e.setting.weight_dtype}; this model's stores {e.setting.model.weight_dtype}.")
    limit = resident_limit(e.cases, e.memory)[i] * e.cases.replicas[i]
    if e.setting.mode == "closed" and e.cases.load[i] > limit:
        notes.append(f"{limit:,.0f} of {e.cases.load[i]:,.0f} requests run at once; the others wait in the engine's queue.")
    cached = [a for layer, _ in e.setting.model.kinds if (a := layer.attention) is not None and a.kv_values_per_head]
    heads = max((a.kv_heads for a in cached), default=0)
    if heads and e.cases.tp[i] > heads:
        what = "1 KV head" if heads == 1 else f"{heads} KV heads"
        notes.append(f"Each cached token is held {e.cases.tp[i] // heads} times: {what} over tp {e.cases.tp[i]}.")
    return notes


def estimate(setting: Setting, cases: Cases) -> Estimates:
    """Memory, latency, throughput and cost of every case, and why some cannot run.

    Quantities of infeasible cases are computed too (a chart draws what does not fit); their serving figures mean nothing.
    """
    asked = np.ones(len(cases))
    if setting.mode in ("closed", "static"):
        asked = np.maximum(np.minimum(cases.load / active_replicas(cases), cases.max_num_seqs), 1.0)
    mem = memory(setting, cases, asked)
    served = serving(setting, cases, mem)
    if setting.mode in ("open", "offline"):  # the load itself says how many are held at once
        mem = memory(setting, cases, np.maximum(served.resident, 1.0))
    price = cost(setting, cases, served.output_tokens_per_s)
    rules = [*refusals(setting, cases), *_fit_rules(setting, cases, mem, served)]
    return Estimates(setting, cases, mem, served, price, tuple(rules))


def _fit_rules(setting: Setting, cases: Cases, mem: Memory, served: Serving) -> list[Refusal]:
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

    batch = served.resident
    return [
        Refusal("memory", mem.shortfall_bytes > 0, too_big),
        Refusal(
            "batch",
            (mem.shortfall_bytes <= 0) & (setting.mode == "static") & (batch > np.maximum(resident_limit(cases, mem), 1)),
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
