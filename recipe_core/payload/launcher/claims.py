"""Claims of engines on memory when they start, and whether so much of it is free now.

Some engines refuse to start unless a share of the whole memory is free, however little of it they
will use: vLLM's ``gpu_memory_utilization`` counts all that a device has, and on a CPU all of the
memory node that its threads run on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

GIB = 1 << 30
# Of what is free now, what a lower share may claim: others take some until the engine looks.
_ROOM = 0.98
# Of a device, what its driver may keep: tools count it to the whole, engines do not.
_RESERVED = 0.01


@dataclass(frozen=True, slots=True)
class Claim:
    """The memory to be free at the start: a ``share`` of the whole, else ``size_bytes``.

    ``size_gib_variable``: a variable whose whole number of GiB replaces the share.
    ``programs_bytes``: what the engine's own processes hold before it looks.
    """

    share: float = field(metadata={"high": 1.0})
    size_bytes: int | None = None
    size_gib_variable: str = ""
    programs_bytes: int = 0

    def of(self, total_bytes: int) -> int:
        """Bytes claimed of a memory."""
        return self.size_bytes or math.ceil(self.share * total_bytes)

    def within(self, environment: Mapping[str, str]) -> Claim:
        """The same where the variable is set, which then states the size."""
        text = environment.get(self.size_gib_variable, "") if self.size_gib_variable else ""
        if not text.strip().isdigit():
            return self
        return replace(self, size_bytes=int(text) * GIB)


@dataclass(frozen=True, slots=True)
class Memory:
    """One memory as it is now: a device's, or that of a memory node; ``name`` for people."""

    name: str
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """A claim that would be refused, in words: what is claimed of which memory, and the fix."""

    detail: str
    hint: str


def refused(claim: Claim, memory: Memory, used_bytes: int, *, exact: bool) -> Refusal | None:
    """Say why an engine with this claim would not start on a memory; None where it would.

    ``used_bytes``: what the recipe uses. ``exact``: the engine reads the same figures.
    """
    claimed = claim.of(memory.total_bytes)
    slack = 0 if exact else round(_RESERVED * memory.total_bytes)
    if claimed + claim.programs_bytes - slack <= memory.free_bytes:
        return None
    amounts = (
        f"{show_gib(memory.free_bytes)} of {show_gib(memory.total_bytes)} are free on {memory.name}"
    )
    words = f"{claim.share:g} of all" if claim.size_bytes is None else "the cache's stated size"
    detail = f"{amounts}; the engine claims {show_gib(claimed)} when it starts ({words})"
    if claim.programs_bytes:
        detail += f", beside {show_gib(claim.programs_bytes)} of its own processes"
    return Refusal(detail, _advise_claim_fix(claim, memory, used_bytes))


def _advise_claim_fix(claim: Claim, memory: Memory, used_bytes: int) -> str:
    room_bytes = _ROOM * memory.free_bytes - claim.programs_bytes
    missing = show_gib(claim.of(memory.total_bytes) + claim.programs_bytes - memory.free_bytes)
    if claim.size_bytes is not None:
        setting = claim.size_gib_variable or "the option that states it"
        size = max(0, math.floor(room_bytes / GIB))
        return f"Lower the cache's size ({setting}) to {size} GiB, or free {missing}."
    share = math.floor(100 * room_bytes / memory.total_bytes) / 100
    if share * memory.total_bytes < used_bytes or share <= 0:
        return f"Free {missing}: the recipe needs more than what is free."
    return f"Lower memory_fraction of the candidate to {share:g} and build again, or free memory."


def node_memories(
    cpus: frozenset[int],
    folder: Path = Path("/sys/devices/system/node"),
    *,
    limit_bytes: int | None = None,
    available_bytes: int | None = None,
) -> tuple[Memory, ...]:
    """The memory nodes that ``cpus`` are on, in the order of their first; none where none are read.

    Free is what the kernel can give without swapping, as vLLM counts it for a node: unused memory,
    caches of files, reclaimable kernel memory. A container's limit, ``limit_bytes``, counts where
    it is lower; ``available_bytes`` is what it leaves.
    """
    memories = []
    for node in sorted(folder.glob("node[0-9]*"), key=lambda path: int(path.name[4:])):
        first = min(_cpus(node) & cpus, default=None)
        figures = _meminfo(node / "meminfo")
        if first is None or "MemTotal" not in figures:
            continue
        free = sum(figures.get(name, 0) for name in _FREE)
        total = figures["MemTotal"]
        if limit_bytes is not None and limit_bytes < total:
            total, free = limit_bytes, min(free, available_bytes or 0)
        memories.append((first, Memory(f"memory node {node.name[4:]}", total, free)))
    return tuple(memory for _, memory in sorted(memories, key=lambda pair: pair[0]))


_FREE = ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable")


def _cpus(node: Path) -> set[int]:
    """Processors of a node, from a list like ``0-3,8``."""
    try:
        text = (node / "cpulist").read_text(encoding="utf-8").strip()
    except OSError:
        return set()
    numbers: set[int] = set()
    for part in filter(None, text.split(",")):
        low, _, high = part.partition("-")
        if low.isdigit() and (high or low).isdigit():
            numbers |= set(range(int(low), int(high or low) + 1))
    return numbers


def _meminfo(path: Path) -> dict[str, int]:
    """Bytes by name, from lines like ``Node 0 MemFree:  8453848 kB``."""
    try:
        rows = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return {}
    return {
        row[2].rstrip(":"): int(row[3]) << 10 for row in rows if len(row) > 3 and row[3].isdigit()
    }


def show_gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"
