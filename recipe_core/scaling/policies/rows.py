"""A row of ``policies.yaml`` for each policy; what a scaling states beyond its row is refused.

Fields of ``options.scaling`` that are left out have the defaults of the policy's own project.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated

import numpy as np
from pydantic import Field

from recipe_core.base.arrays import Float
from recipe_core.base.data_files import DataFile, DataRow
from recipe_core.base.errors import InputError
from recipe_core.base.provenance import Remark, Sourced, Status
from recipe_core.base.resources import PACKAGE
from recipe_core.base.types import Text
from recipe_core.engines.release import Metrics
from recipe_core.request.scaling import Metric, Policy, Scaling, Trigger

FIELD = "options.scaling"
FILE = DataFile(PACKAGE / "scaling" / "policies" / "policies.yaml", f"{FIELD}.policy")


class Default(DataRow):
    """A number that a project sets, 0 included; ``source`` is a key of the file's ``sources``."""

    value: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    source: str
    status: Status
    note: Remark | None = None


class PolicyRow(DataRow):
    """A policy: its metrics (none: it takes no triggers), the fields that it honours, its defaults.

    triggers: where none is stated, by metric the numbers whose product is the target. several:
    whether it takes several. fields: with what they are called in its project.
    targets: that write it; written: the same for people. own_machines: its replicas share none.
    lowest, highest: of fields. search: first values of what is searched. follows: the policy whose
    defaults hold where it has none of its own.
    """

    title: Text
    version: Text
    metrics: tuple[Metric, ...] = ()
    triggers: Mapping[Metric, tuple[str, ...]] = Field(default_factory=dict)
    several: bool = False
    fields: Mapping[str, Text] = Field(default_factory=dict)
    targets: tuple[Text, ...] = ()
    written: Text
    own_machines: bool = False
    lowest: Mapping[str, float] = Field(default_factory=dict)
    highest: Mapping[str, float] = Field(default_factory=dict)
    search: Mapping[str, tuple[float, ...]] = Field(default_factory=dict)
    follows: Policy | None = None
    defaults: Mapping[str, Default]


class _File(Sourced):
    policies: dict[Policy, PolicyRow]


@cache
def policy_rows() -> Mapping[Policy, PolicyRow]:
    """Return the rows by policy, in the order in which policies are shown."""
    return FILE.read_as(_File).policies


def policy_row(policy: Policy) -> PolicyRow:
    return policy_rows()[policy]


@cache
def defaults_of(policy: Policy) -> Mapping[str, float]:
    """Return the numbers of a policy's project by name, with those of the row that it follows."""
    row = policy_row(policy)
    inherited = {} if row.follows is None else defaults_of(row.follows)
    return {**inherited, **{name: number.value for name, number in row.defaults.items()}}


def default_of(policy: Policy, name: str) -> float:
    return defaults_of(policy)[name]


def parameters(scalings: Sequence[Scaling], name: str, neutral: float = 0.0) -> Float:
    """Return a field of every column: as stated, by its project, or ``neutral``."""
    return np.array([_parameter(scaling, name, neutral) for scaling in scalings], dtype=float)


def _parameter(scaling: Scaling, name: str, neutral: float) -> float:
    value = getattr(scaling, name, None)
    return defaults_of(scaling.policy).get(name, neutral) if value is None else float(value)


def same_parameter(scalings: Sequence[Scaling], name: str) -> float:
    """Return a field that all columns share.

    Raises:
        ValueError: they differ. Simulate such scalings one batch after the other.
    """
    values = np.unique(parameters(scalings, name))
    if len(values) > 1:
        raise ValueError(f"columns of one batch look at different intervals: {values.tolist()} s")
    return float(values[0])


# Fields of a scaling that every policy honours, or that rules of their own hold.
_COMMON = ("policy", "min_replicas", "max_replicas", "begin_replicas", "triggers")


def check_scaling(scaling: Scaling) -> None:
    """Refuse what a scaling states and its policy does not honour.

    Raises:
        InputError: naming the field, its value and the fix.
    """
    row = policy_row(scaling.policy)
    _check_policy_fields(scaling, row)
    _check_triggers(scaling, row)
    _check_together(scaling)
    _check_bounds(scaling, row)


def _check_policy_fields(scaling: Scaling, row: PolicyRow) -> None:
    for name in Scaling.model_fields:
        value = getattr(scaling, name)
        if name in _COMMON or value in (None, ()) or name in row.fields:
            continue
        able = ", ".join(policy for policy, other in policy_rows().items() if name in other.fields)
        shown = "" if name == "periods" else f" {value:g}"
        raise InputError(
            f"policy {scaling.policy} knows no {name}{shown}.",
            field=f"{FIELD}.{name}",
            hint=f"Leave it out, or take a policy that honours it: {able}.",
        )


def _check_triggers(scaling: Scaling, row: PolicyRow) -> None:
    for number, trigger in enumerate(scaling.triggers):
        if trigger.metric not in row.metrics:
            metrics = ", ".join(row.metrics)
            raise InputError(
                f"policy {scaling.policy} cannot scale by {trigger.metric}.",
                field=f"{FIELD}.triggers.{number}.metric",
                hint=f"It scales by {metrics}." if metrics else "Leave triggers out.",
            )
    if len(scaling.triggers) > 1 and not row.several:
        raise InputError(
            f"policy {scaling.policy} takes one trigger, not {len(scaling.triggers)}.",
            field=f"{FIELD}.triggers",
            hint="Leave one of them.",
        )


def _check_together(scaling: Scaling) -> None:
    for direction in ("up", "down"):
        period = getattr(scaling, f"{direction}_period_s")
        if period is not None and getattr(scaling, f"{direction}_step") is None:
            raise InputError(
                f"{direction}_period_s {period} is stated without {direction}_step.",
                field=f"{FIELD}.{direction}_period_s",
                hint=f"State {direction}_step, the replicas that the period is for, or leave it "
                "out.",
            )
    if scaling.idle_s is not None and scaling.min_replicas > 0:
        raise InputError(
            f"idle_s {scaling.idle_s:g} has no effect while min_replicas is "
            f"{scaling.min_replicas}.",
            field=f"{FIELD}.idle_s",
            hint="Set min_replicas: 0, or leave idle_s out.",
        )
    states_both = "min_replicas" in scaling.model_fields_set
    if scaling.policy == "fixed" and states_both and scaling.min_replicas < scaling.max_replicas:
        raise InputError(
            f"a fixed number is both min_replicas ({scaling.min_replicas}) and max_replicas "
            f"({scaling.max_replicas}).",
            field=f"{FIELD}.min_replicas",
            hint=f"Set both to {scaling.max_replicas}.",
        )


def _check_bounds(scaling: Scaling, row: PolicyRow) -> None:
    for bounds, word, sign in ((row.highest, "more", 1), (row.lowest, "less", -1)):
        for name, bound in bounds.items():
            value = getattr(scaling, name)
            if value is not None and (value - bound) * sign > 0:
                raise InputError(
                    f"{name} {value:g} is {word} than {bound:g}, which policy {scaling.policy} "
                    f"takes at {'most' if sign > 0 else 'least'}.",
                    field=f"{FIELD}.{name}",
                    hint=f"Set {name}: {bound:g} or {'less' if sign > 0 else 'more'}.",
                )


def default_triggers(
    policy: Policy, *, slots: int | None, capacity_per_s: float
) -> tuple[Trigger, ...]:
    """Return what a policy scales by where a scaling states no triggers.

    Each trigger of its row, with a target that is the product of the numbers named there: those of
    the project, ``slots`` (requests in a replica at once) and ``capacity_per_s`` (requests per
    second that it serves). Empty for policies without triggers, and where ``slots`` is not known.
    """
    numbers = {**defaults_of(policy), "slots": slots or 0, "capacity_per_s": capacity_per_s}
    targets = {
        metric: math.prod(numbers[name] for name in names)
        for metric, names in policy_row(policy).triggers.items()
    }
    return tuple(Trigger(metric=metric, target=of) for metric, of in targets.items() if of > 0)


def replica_bounds_of(scaling: Scaling) -> tuple[int, int]:
    """Return fewest and most replicas; all of them where their number is fixed."""
    low = scaling.max_replicas if scaling.policy == "fixed" else scaling.min_replicas
    return low, scaling.max_replicas


# Gauges of an engine that make up a metric.
GAUGE_PARTS: dict[Metric, tuple[str, ...]] = {
    "waiting": ("waiting",),
    "running": ("running",),
    "in-flight": ("waiting", "running"),
    "kv-usage": ("kv_usage",),
}


def reported_metrics(gauges: Metrics | None) -> list[Metric]:
    """Return the metrics that an engine's gauges give."""
    return [
        metric
        for metric, parts in GAUGE_PARTS.items()
        if all(getattr(gauges, part, None) for part in parts)
    ]
