"""Restarts: per target and event who acts, how, and by which settings.

A setting has the name and the value that it has in the target's files, which tests hold it against.
Controllers differ in what they can be told: where one does nothing about an event, or counts in
another way than the recipe, its answer says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from recipe_core.targets.context import Context
from recipe_core.targets.restarts import machines, pods
from recipe_core.targets.restarts.shape import EVENTS, LAUNCHER, Answer, Answers, Event, Setting


def restart_answers(target: str, context: Context) -> Answers:
    """One answer per event for a target of the recipe's kind, or for the ``LAUNCHER``.

    Raises:
        KeyError: for a target that starts nothing (monitoring, autoscaling).
    """
    return {**_TARGETS[context.kind], **_OF_POLICIES}[target](context)


def restarting_targets(kind: Literal["serving", "training"]) -> list[str]:
    return list(_TARGETS[kind])


_TARGETS: Mapping[str, Mapping[str, Callable[[Context], Answers]]] = {
    "serving": {
        LAUNCHER: machines.launcher_answers,
        "systemd": machines.systemd_answers,
        "docker": lambda context: machines.docker_answers(context, compose=False),
        "compose": lambda context: machines.docker_answers(context, compose=True),
        "kubernetes": pods.kubernetes_answers,
        "kserve": pods.kserve_answers,
        "kserve-llm": pods.kserve_llm_answers,
        "llm-d": pods.llm_d_answers,
        "slurm": machines.slurm_answers,
        "skypilot": machines.sky_service_answers,
        "ray-serve": machines.ray_serve_answers,
    },
    "training": {
        LAUNCHER: machines.launcher_run_answers,
        "slurm": machines.slurm_answers,
        "kubeflow-trainjob": pods.train_job_answers,
        "kubeflow-pytorchjob": pods.pytorch_job_answers,
        "jobset": pods.job_set_answers,
        "volcano": pods.volcano_answers,
        "skypilot": machines.sky_job_answers,
    },
}
# Targets that only recipes with a policy of scaling have.
_OF_POLICIES: Mapping[str, Callable[[Context], Answers]] = {"knative": pods.knative_answers}


@dataclass(frozen=True, slots=True)
class Row:
    """Events of a target that have the same answer."""

    target: str
    events: tuple[str, ...]
    answer: Answer


def restart_rows(context: Context, targets: Sequence[str]) -> list[Row]:
    """The answers of targets, by name, one row for events that are answered alike."""
    table = []
    starting = [*restarting_targets(context.kind), *_OF_POLICIES]
    for target in (name for name in starting if name in targets):
        groups: dict[Answer, list[str]] = {}
        for event, answer in restart_answers(target, context).items():
            groups.setdefault(answer, []).append(EVENTS[event])
        table += [Row(target, tuple(events), answer) for answer, events in groups.items()]
    return table


__all__ = [
    "EVENTS",
    "LAUNCHER",
    "Answer",
    "Answers",
    "Event",
    "Row",
    "Setting",
    "restart_answers",
    "restart_rows",
    "restarting_targets",
]
