"""What an engine module is given, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from recipe_core.estimate.cases import Setting

DTYPE_WORDS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A chosen split with the engine's limits; nothing is left to choose."""

    engine: str
    tp: int
    pp: int
    dp: int
    ep: int
    weight_dtype: str
    kv_dtype: str
    max_batched_tokens: int
    max_num_seqs: int
    memory_fraction: float
    block_size: int
    cp: int = 1

    @property
    def devices(self) -> int:
        """Devices used."""
        return self.tp * self.pp * self.dp


@dataclass(frozen=True, slots=True)
class Deployment:
    """A candidate on its setting.

    ``max_context`` is the longest request the engine is told to accept; ``cache_tokens`` what a replica's cache must hold for the
    load that was estimated (for engines that are told a size rather than a share of the device).
    """

    setting: Setting
    candidate: Candidate
    max_context: int
    cache_tokens: int
    served_name: str

    @property
    def activation_word(self) -> str:
        """The 16- or 32-bit format that activations have, as torch names it."""
        weights = self.setting.weight_dtype
        return DTYPE_WORDS[weights if weights in DTYPE_WORDS else self.setting.model.dtype]


Role = Literal["server", "worker", "prefill", "decode", "router", "trainer"]
"""``server``: answers requests; ``worker``: belongs to a server on another node; ``prefill`` and ``decode``: pools behind a ``router``."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process: argv words, environment, device indices within its ``node``.

    Words and environment may hold ``${model}``, ``${host}``, ``${port}``, ``${head}`` (the address of node 0), ``${root}`` (the bundle) and
    ``${run}`` (its run folder), filled at launch. ``group``: processes of one group are one engine spread over nodes (all but the first
    are workers); groups are replicas or pools.
    """

    name: str
    argv: tuple[str, ...]
    env: dict[str, str]
    port_offset: int
    devices: tuple[int, ...]
    node: int = 0
    role: Role = "server"
    group: int = 0

    @property
    def answers(self) -> bool:
        """Whether it answers requests of its own (and has a health path)."""
        return self.role not in ("worker", "trainer")


@dataclass(frozen=True, slots=True)
class Launch:
    """All processes of a deployment and how to ask them. ``options`` are the engine's own, by name, as the recipe records them.

    ``files``: what the engine reads from the bundle, by path below ``${root}`` (a file of options, a model repository). A training run
    has no ``health`` path and no API.
    """

    processes: tuple[Process, ...]
    options: dict[str, Any]
    health: str
    startup_timeout_s: int
    api_path: str
    api_model: str
    api_body: dict[str, Any] = field(default_factory=dict)
    requires: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    kind: Literal["serving", "training"] = "serving"

    @property
    def nodes(self) -> int:
        """Nodes that processes run on."""
        return 1 + max(process.node for process in self.processes)


def device_groups(candidate: Candidate, processes: int) -> list[tuple[int, ...]]:
    """Device indices of each process: consecutive, equally many."""
    each = candidate.devices // processes
    return [tuple(range(n * each, (n + 1) * each)) for n in range(processes)]
