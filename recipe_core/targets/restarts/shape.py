"""The shape of an answer to an event: who acts, how, and by which settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from recipe_core.base.units import seconds_text
from recipe_core.targets import supervise
from recipe_core.targets.context import Context
from recipe_core.targets.monitoring.rules import engine_metrics

Event = Literal["dies", "hangs", "memory", "lost", "drained", "slow", "wrong"]
# What can happen, in words for people.
EVENTS: Mapping[Event, str] = {
    "dies": "process dies",
    "hangs": "process hangs",
    "memory": "out of memory",
    "lost": "device or node is lost",
    "drained": "node is drained",
    "slow": "slow death",
    "wrong": "configuration is wrong",
}
# The bundle's own launcher, beside the targets.
LAUNCHER = "launcher"
RULES = "monitoring/rules.yaml"


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting as its file has it: a name (dotted where it is nested) and a value.

    ``value`` is None for one that is only there or not. ``file``: the end of the path of a file
    that is not in the target's own folder.
    """

    name: str
    value: str | float | tuple[str, ...] | None = None
    file: str = ""

    def __str__(self) -> str:
        shown = " ".join(self.value) if isinstance(self.value, tuple) else self.value
        return self.name if shown is None else f"{self.name}: {shown}"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to an event: ``who`` acts, what it ``does``, and what tells it how."""

    who: str
    does: str
    settings: tuple[Setting, ...] = ()


Answers = Mapping[Event, Answer]


def nobody_answer(does: str) -> Answer:
    return Answer("nobody", does)


def unsaved_text(context: Context, *ways: str) -> str:
    """Say what a run that is told to stop in one of the ``ways`` does, or what it loses."""
    if set(ways) & set(supervise.saves_on(context)):
        return "lets the trainer write a checkpoint"
    interval_s = context.estimate.get("run", {}).get("checkpoint_interval_s")
    loss_text = f": {seconds_text(interval_s)} of work at most" if interval_s else ""
    return f"ends the trainer, which loses what came after its newest checkpoint{loss_text}"


def slow_answer(context: Context) -> Answer:
    """Only the launcher restarts what is slow; elsewhere an alert tells people."""
    metrics = engine_metrics(context.engine)
    if metrics is None or not (metrics.tpot or metrics.itl):
        return nobody_answer("nothing is seen: the engine tells no time per token")
    wait = supervise.prometheus_duration(context.supervision.slow_s)
    rule = (Setting("alert", "RecipeTpotHigh", RULES), Setting("for", wait, RULES))
    return Answer("nobody", "Prometheus tells you, if the monitoring pack is installed", rule)
