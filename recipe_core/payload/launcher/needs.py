"""The machine that a recipe needs, what its engine claims at the start, and what counts as free.

Some engines refuse to start unless a share of the whole memory is free, however little of it they
will use: vLLM's ``gpu_memory_utilization`` counts all that a device has, and on a CPU all of the
memory node that its threads run on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from .machine import Machine, Memory

RUNTIMES = ("cuda", "rocm", "xpu", "metal", "cpu")
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

    def claimed_bytes(self, total_bytes: int) -> int:
        """Bytes claimed of a memory."""
        return self.size_bytes or math.ceil(self.share * total_bytes)

    def within(self, environment: Mapping[str, str]) -> Claim:
        """The same where the variable is set, which then states the size."""
        text = environment.get(self.size_gib_variable, "") if self.size_gib_variable else ""
        if not text.strip().isdigit():
            return self
        return replace(self, size_bytes=int(text) * GIB)


@dataclass(frozen=True, slots=True)
class Needs:
    """The machine that a choice is for; memory is per device (of the machine for runtime cpu).

    ``count`` devices or more, but not more than ``at_most``; ``per_node`` of them on a node.
    ``claim``: what of it must be free when the engine starts, where that is more than it uses.
    """

    runtime: str = field(metadata={"allowed": RUNTIMES})
    device: str
    title: str
    names: tuple[str, ...]
    count: int = field(metadata={"low": 1})
    memory_bytes: int | None
    used_bytes: int | None
    claim: Claim | None = None
    per_node: int | None = None
    at_most: int | None = None

    def lists(self, name: str) -> bool:
        """Return whether a device of this name is the recipe's; a recipe may list none."""
        names = {listed.casefold() for listed in self.names}
        return not names or name.casefold() in names

    def holds(self, total_bytes: int) -> int:
        """Return what the engine may hold of a memory: what it uses, or all that it has claimed."""
        return max(self.used_bytes or 0, self.claim.claimed_bytes(total_bytes) if self.claim else 0)


def refuse_claim(
    claim: Claim, memory: Memory, used_bytes: int, *, exact: bool
) -> tuple[str, str] | None:
    """Say why an engine with this claim would not start, and what to do; None where it would.

    ``used_bytes``: what the recipe uses. ``exact``: the engine reads the same figures.
    """
    claimed = claim.claimed_bytes(memory.total_bytes)
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
    return detail, _advise_claim_fix(claim, memory, used_bytes)


def _advise_claim_fix(claim: Claim, memory: Memory, used_bytes: int) -> str:
    room_bytes = _ROOM * memory.free_bytes - claim.programs_bytes
    missing = show_gib(
        claim.claimed_bytes(memory.total_bytes) + claim.programs_bytes - memory.free_bytes
    )
    if claim.size_bytes is not None:
        setting = claim.size_gib_variable or "the option that states it"
        size = max(0, math.floor(room_bytes / GIB))
        return f"Lower the cache's size ({setting}) to {size} GiB, or free {missing}."
    share = math.floor(100 * room_bytes / memory.total_bytes) / 100
    if share * memory.total_bytes < used_bytes or share <= 0:
        return f"Free {missing}: the recipe needs more than what is free."
    return f"Lower memory_fraction of the candidate to {share:g} and build again, or free memory."


def as_if_stopped(machine: Machine, needs: Needs) -> Machine:
    """A machine with the memory that a plan uses counted as free, as the recipe estimates it."""

    def free(free_bytes: int, total_bytes: int | None) -> int:
        freed_bytes = free_bytes + needs.holds(total_bytes or 0)
        return min(freed_bytes, total_bytes or freed_bytes)

    if needs.runtime != "cpu":
        devices = tuple(
            device
            if device.free_bytes is None
            else replace(device, free_bytes=free(device.free_bytes, device.memory_bytes))
            for device in machine.devices
        )
        return replace(machine, devices=devices)
    if machine.available_bytes is None:
        return machine
    memories = tuple(
        replace(memory, free_bytes=free(memory.free_bytes, memory.total_bytes))
        for memory in machine.memories
    )
    available = free(machine.available_bytes, machine.memory_bytes)
    return replace(machine, available_bytes=available, memories=memories)


def show_gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"
