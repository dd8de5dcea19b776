"""Ports of processes, and what they are called."""

from __future__ import annotations

from recipe_core.launch.process import Launch, Process
from recipe_core.targets.context import Context


def port_values(launch: Launch, port: int) -> dict[str, str]:
    """Ports by their offsets from the first: ``port0`` and so on."""
    last = max(process.port_offset for process in launch.processes)
    return {f"port{n}": str(port + n) for n in range(last + 1)}


def port_of(context: Context, process: Process) -> int:
    return context.parameters.port + process.port_offset


def port_name(process: Process) -> str:
    """The name of a port, at most 15 characters."""
    return f"http-{process.port_offset}" if process.port_offset else "http"
