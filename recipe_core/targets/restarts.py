"""Restarts: per target and event who acts, how, and by which settings; texts: ``restarts.yaml``.

A setting has the name and the value that it has in the target's files, which tests hold it against.
Controllers differ in what they can be told: where one does nothing about an event, or counts in
another way than the recipe, its answer says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from recipe_core.base.errors import NoAnswer
from recipe_core.base.units import seconds_text
from recipe_core.engines.training_programs import training_engine
from recipe_core.launch.templates import Facts, fill_template, first_met, read_templates
from recipe_core.targets import kubernetes, supervise
from recipe_core.targets.context import Context
from recipe_core.targets.layout import by_role, launch_units
from recipe_core.targets.monitoring import engine_metrics
from recipe_core.targets.scale.policy import fewest_copies
from recipe_core.targets.skypilot import probe_timeout_s

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
FILE = Path(__file__).with_name("restarts.yaml")


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


@dataclass(frozen=True, slots=True)
class Row:
    """Events of a target that have the same answer."""

    target: str
    events: tuple[str, ...]
    answer: Answer


def restart_answers(target: str, context: Context) -> Answers:
    """One answer per event for a target of the recipe's kind, or for the ``LAUNCHER``.

    Raises:
        KeyError: for a target that starts nothing (monitoring, autoscaling).
        NoAnswer: where servers differ, for a target that replicates a single one.
    """
    table = read_templates(FILE)
    row = {**table[context.kind], **table["policies"]}[target]
    supervision = context.supervision.model_dump()
    facts = Facts(context, _FACTS, {**supervision, "controller": row.get("controller")})
    if "like" in row and context.kind == "serving" and target in _POD_TARGETS:
        facts |= _pod_facts(target, context)
    answers = {**row.get("like", {}), **row}
    return {event: _answer(first_met(answers[event], facts), facts) for event in EVENTS}


def _answer(template: Sequence[Any], facts: Facts) -> Answer:
    who, does, *settings = fill_template(template, facts)
    return Answer(who, does, tuple(_setting(*pair) for part in settings for pair in part.items()))


def _setting(name: str, value: Any) -> Setting:
    file, _, field = name.rpartition("#")
    return Setting(field, tuple(value) if isinstance(value, list) else value, file)


def restarting_targets(kind: Literal["serving", "training"]) -> list[str]:
    return list(read_templates(FILE)[kind])


def restart_rows(context: Context, targets: Sequence[str]) -> list[Row]:
    """The answers of targets, by name, one row for events that are answered alike."""
    table = []
    starting = [*restarting_targets(context.kind), *read_templates(FILE)["policies"]]
    for target in (name for name in starting if name in targets):
        groups: dict[Answer, list[str]] = {}
        for event, answer in restart_answers(target, context).items():
            groups.setdefault(answer, []).append(EVENTS[event])
        table += [Row(target, tuple(events), answer) for answer, events in groups.items()]
    return table


def target_restarts(context: Context, target: str) -> list[Row]:
    """The answers of one target; of one that starts nothing those of what it scales."""
    return restart_rows(context, [target]) or restart_rows(context, [target.partition("-")[0]])


def _unsaved_text(context: Context, *ways: str) -> str:
    """Say what a run that is told to stop in one of the ``ways`` does, or what it loses."""
    if set(ways) & set(supervise.saves_on(context)):
        return "lets the trainer write a checkpoint"
    interval_s = context.estimate.get("run", {}).get("checkpoint_interval_s")
    loss_text = f": {seconds_text(interval_s)} of work at most" if interval_s else ""
    return f"ends the trainer, which loses what came after its newest checkpoint{loss_text}"


def _is_timed(context: Context) -> bool:
    """Return whether an alert sees a slow server; only the launcher restarts one."""
    metrics = engine_metrics(context.engine)
    return metrics is not None and bool(metrics.tpot or metrics.itl)


def _resumes(context: Context) -> str:
    if context.parameters.bucket is None:
        return "without `bucket` the run begins anew: nothing of run/ is left"
    return "the run goes on from the newest checkpoint in the bucket"


_FACTS: Mapping[str, Callable[[Context], Any]] = {
    "timed": _is_timed,
    "keyed": lambda context: context.key_variable,
    "knative": lambda context: context.scaling is not None and context.scaling.policy == "kpa",
    "several_nodes": lambda context: context.nodes > 1,
    "ends_with_0": lambda context: training_engine(context.engine).ends_with_0,
    "slow_text": lambda context: supervise.prometheus_duration(context.supervision.slow_s),
    "starts": lambda context: context.supervision.crash_budget + 1,
    "most_failures": supervise.most_failures,
    "lifetime_restarts": supervise.lifetime_restarts,
    "start_s": supervise.start_s,
    "grace_s": supervise.grace_s,
    "before_limit_s": supervise.before_limit_s,
    "hang_period_s": lambda context: supervise.hang_looks(context).period_s,
    "hang_failures": lambda context: supervise.hang_looks(context).failures,
    "unready_failures": lambda context: supervise.unready_looks(context).failures,
    "ray_timeout_s": supervise.ray_timeout_s,
    "sky_timeout_s": probe_timeout_s,
    "on_signal": lambda context: _unsaved_text(context, "signal"),
    "on_file": lambda context: _unsaved_text(context, "stop-file"),
    "on_either": lambda context: _unsaved_text(context, "stop-file", "signal"),
    "resumes": _resumes,
}
_POD_TARGETS = ("kubernetes", "kserve", "kserve-llm", "llm-d", "knative")


def _pod_facts(target: str, context: Context) -> dict[str, Any]:
    """Facts of the servers that a target keeps in pods; a LeaderWorkerSet before other workloads.

    Probes of KServe's presets ask for no tokens, and their pods and the chart's have no budget
    where none of the bundle's can select them.
    """
    units = launch_units(context.launch)
    unit, budgeted = units[0], target != "llm-d"
    if target == "kubernetes":
        unit = next((unit for unit in units if len(unit.pods) > 1), unit)
    if target == "kserve-llm":
        pools = by_role(context.launch)
        if pools is None:
            raise NoAnswer("its servers differ; this object replicates a single one.")
        unit = pools.get("server") or pools["decode"]
        units, budgeted = (unit,), "server" in pools and len(unit.pods) == 1
    role = unit.leader[0].role
    copies = sum(kubernetes.initial_copies(context, u) for u in units if u.leader[0].role == role)
    asks = target != "kserve-llm" and any(
        supervise.asks_for_tokens(context, process) for process in context.launch.processes
    )
    looks = supervise.generation_looks(context) if asks else supervise.hang_looks(context)
    groups = len(unit.pods) > 1
    counted = kubernetes.counted_pods(unit) if groups and target == "kubernetes" else 1
    return {
        "asks": asks,
        "budgeted": budgeted,
        "groups": groups,
        "replicas": kubernetes.initial_copies(context, unit),
        "fewest": fewest_copies(context, unit),
        "min_available": context.supervision.available_of(copies) * counted,
        "progress_s": None if groups else kubernetes.progress_s(context, unit),
        "probe_period_s": looks.period_s,
        "probe_failures": looks.failures,
    }
