"""One measurement of another program: what its file states, in SI units."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from recipe_core.calibration.importers.content import Content
from recipe_core.request.serving_workload import LOADS

# Means over requests, in seconds; percentiles are named like ``ttft_p95_s``.
TIMES = ("ttft_s", "tpot_s", "request_latency_s")
# Of the whole deployment.
RATES = ("output_tokens_per_s", "total_tokens_per_s", "requests_per_s")
# Of the fullest device; tokens and requests of a replica's cache.
MEMORY = (
    "weights_bytes",
    "kv_cache_bytes",
    "kv_cache_tokens",
    "max_concurrency",
    "graph_bytes",
    "peak_memory_bytes",
    "activations_bytes",
    "runtime_bytes",
)
# Of a training run: a step, tokens per second and device, a share of the peak.
STEPS = ("step_s", "tokens_per_s_per_gpu", "mfu")
FIGURES = (*TIMES, *RATES, *MEMORY, *STEPS)

_EMPTY: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What a file of another program states; what it does not state is left out.

    ``figures`` are named as in `FIGURES`, or percentiles of `TIMES`. ``load`` has fields of a
    request's workload (``mode`` and its load, lengths in tokens; of training ``global_batch`` and
    ``sequence_length``). ``split`` has fields of a candidate and ``nodes`` and ``per_node``,
    ``settings`` other facts of how the engine ran, ``shape`` the dimensions of a trained model.
    ``place`` says where in the file it stands, ``excluded`` why it is not to be learned from.
    """

    format: str
    place: str = ""
    kind: str = "serving"
    engine: str = ""
    version: str = ""
    model: str = ""
    device: str = ""
    date: str = ""
    figures: Mapping[str, float] = field(default_factory=lambda: _EMPTY)
    load: Mapping[str, Any] = field(default_factory=lambda: _EMPTY)
    split: Mapping[str, Any] = field(default_factory=lambda: _EMPTY)
    settings: Mapping[str, Any] = field(default_factory=lambda: _EMPTY)
    shape: Mapping[str, Any] = field(default_factory=lambda: _EMPTY)
    notes: tuple[str, ...] = ()
    excluded: str = ""

    @property
    def teaches(self) -> bool:
        """Whether it measured what a table of runs can hold."""
        if self.kind == "training":
            return any(name in self.figures for name in (*STEPS[:2], "peak_memory_bytes"))
        return any(name in self.figures for name in (*TIMES, *RATES[:2]))

    @property
    def missing(self) -> tuple[str, ...]:
        """What the user must state before it is a run of a table."""
        required = {"model": self.model, "device": self.device, "engine": self.engine}
        lacking = [name for name, value in required.items() if not value]
        if "tp" not in self.split:
            lacking.append("split")
        if self.kind == "training":
            needed: tuple[str, ...] = ("global_batch", "sequence_length")
            return (*lacking, *(name for name in needed if name not in self.load))
        needed = ("input_tokens", "output_tokens")
        lacking += [name for name in needed if name not in self.load]
        load = LOADS.get(str(self.load.get("mode")), "")
        return (*lacking, *(() if load in self.load else ("load",)))

    def to_json(self) -> dict[str, Any]:
        """Plain values; empty parts are left out."""
        names = ("format", "kind", "place", "engine", "version", "model", "device", "date")
        out: dict[str, Any] = {name: getattr(self, name) for name in names if getattr(self, name)}
        for name in ("figures", "load", "split", "settings", "shape"):
            if values := getattr(self, name):
                out[name] = dict(values)
        out |= {"missing": list(self.missing)}
        out |= {"notes": list(self.notes)} if self.notes else {}
        return out | ({"excluded": self.excluded} if self.excluded else {})


def drop_unstated(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None and value != ""}


@dataclass(frozen=True)
class Format:
    """One format: whether a content is of it, and what such a content states."""

    name: str
    title: str
    recognises: Callable[[Content], bool]
    read: Callable[[Content], list[Imported]]
