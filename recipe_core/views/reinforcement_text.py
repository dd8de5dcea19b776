"""A step of reinforcement learning as lines of text: phases, the engine, memory, price."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from recipe_core.base.units import duration, gib, rate, usd
from recipe_core.estimates.training.results import PHASE_TITLES


def reinforcement_lines(answer: Mapping[str, Any]) -> Iterator[str]:
    """Lines of an estimate that samples answers; none of another one."""
    loop = answer.get("reinforcement")
    if not loop:
        return
    updates = loop["updates"]
    yield f"phases of a step ({loop['answers']:,} answers, {_counted(updates, 'update')}):"
    for name, label in PHASE_TITLES.items():
        seconds = loop["phases_s"].get(name, 0.0)
        if seconds > 0:
            yield f"  {label:26} {duration(seconds):>14}{_more(name, loop)}"
    yield (
        f"rollout: {_counted(loop['rollout_copies'], loop['rollout_engine'])} with tp "
        f"{loop['rollout_tp']}, {loop['rollout_in_flight']:,.0f} answers in flight each, "
        f"{rate(loop['rollout_tokens_per_s'])} while full"
    )
    yield (
        f"memory per GPU: {gib(loop['training_bytes'])} while it trains, "
        f"{gib(loop['rollout_bytes'])} while it samples (memory share of the engine "
        f"{loop['rollout_memory_share']:.2f}){_waiting(loop)}"
    )
    if loop["usd_per_step"] is not None:
        yield f"a step costs {usd(loop['usd_per_step'])}"


def _more(name: str, loop: Mapping[str, Any]) -> str:
    """What to know of a phase behind its time."""
    if name == "rollout" and loop["rollout_tail_s"] > 0:
        return f"   {duration(loop['rollout_tail_s'])} of it for the longest answers alone"
    if name == "weight_sync":
        return f"   {gib(loop['weight_sync_bytes'])}"
    return ""


def _waiting(loop: Mapping[str, Any]) -> str:
    """States that are on the host meanwhile."""
    if not loop["offloaded_bytes"]:
        return ""
    return f"; {gib(loop['offloaded_bytes'])} of states wait in the host's memory"


def _counted(number: int, noun: str) -> str:
    """``1 update``, ``4 updates``; an engine's name has no plural."""
    if noun == "update":
        return f"{number:,} {noun}{'s' if number > 1 else ''}"
    return f"{number:,} × {noun}"
