"""What a reader of a bundle is told of its policy: the numbers, where they are, their needs."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from recipe_core.request.scaling import Scaling
from recipe_core.targets.context import Context
from recipe_core.targets.layout import launch_units
from recipe_core.targets.scale import keda
from recipe_core.targets.scale.bounds import (
    fewest_replicas,
    in_copies,
    shortest_number,
    stated_fields,
)

# Targets that a policy is written into, if they are available.
WRITERS = {
    "fixed": ("kubernetes", "kserve", "kserve-llm", "llm-d", "skypilot", "ray-serve"),
    "schedule": ("kubernetes-keda",),
    "hpa": ("kubernetes-hpa",),
    "keda": ("kubernetes-keda", "kserve"),
    "kpa": ("knative", "kserve"),
    "skyserve": ("skypilot",),
    "ray-serve": ("ray-serve",),
    "llm-d": ("kserve-llm",),
    "dynamo": ("dynamo-planner",),
}
# Targets that start nothing of their own, or that others scale.
_NOT_STARTED = ("monitoring", "kubernetes")
_KNATIVE = (
    "Knative takes these pods only if its features `kubernetes.podspec-affinity`, "
    "`-nodeselector`, `-tolerations`, `-securitycontext`, `-volumes-emptydir` and "
    "`-persistent-volume-claim` are enabled (ConfigMap `config-features`)."
)


def scaling_notes(context: Context, targets: Collection[str]) -> list[str]:
    """Sentences for the README of a bundle that has these targets, by name."""
    scaling = context.scaling
    if scaling is None:
        return []
    writers = [name for name in WRITERS.get(scaling.policy, ()) if name in targets]
    lines = [_policy_note(context, scaling, writers)]
    scalers = {name for names in WRITERS.values() for name in names}
    unscaled = [name for name in targets if name not in {*writers, *scalers, *_NOT_STARTED}]
    if "llm-d" in targets and "llm-d" not in writers:
        lines.append("`llm-d` starts the fewest of them, at least one, and keeps their number.")
    if unscaled:
        lines.append(
            f"{_code_names(unscaled)} start the recipe's own servers and keep their number."
        )
    return [*lines, *_policy_needs(context, scaling, writers)]


def _policy_note(context: Context, scaling: Scaling, writers: Collection[str]) -> str:
    basis = (
        "They are the numbers that were simulated over the request's load."
        if context.simulated
        else "They were not simulated over a load (`recipe simulate`), or changed since."
    )
    where = (
        f"is written into {_code_names(writers)}" if writers else "is in no target of this bundle"
    )
    return f"How many servers run {where}: {policy_summary(scaling)}. {basis}"


def _code_names(targets: Collection[str]) -> str:
    return ", ".join(f"`{name}`" for name in targets)


def policy_summary(scaling: Scaling) -> str:
    """A policy and its stated numbers on one line."""
    low, high = fewest_replicas(scaling), scaling.max_replicas
    bounds = f"{high}" if low == high else f"{low} to {high}"
    parts = [f"policy {scaling.policy}", f"{bounds} server{'s' if high > 1 else ''}"]
    parts += [f"{trigger.metric} {shortest_number(trigger.target)}" for trigger in scaling.triggers]
    if scaling.periods:
        parts.append(f"{len(scaling.periods)} periods of the week in UTC")
    parts += [
        f"{name} {shortest_number(getattr(scaling, name))}"
        for name in stated_fields(scaling)
        if name not in ("triggers", "periods")
    ]
    return ", ".join(parts)


def _policy_needs(context: Context, scaling: Scaling, writers: Collection[str]) -> Iterator[str]:
    if "kubernetes-keda" in writers and scaling.policy == "keda" and scaling.min_replicas == 0:
        yield (
            "With no server running, the gateway has to hold requests until the first one answers, "
            "as the interceptor of KEDA's HTTP add-on does; one that refuses them makes clients "
            "try again."
        )
    if _has_tolerance(context, scaling) and writers:
        yield (
            "A tolerance of its own needs Kubernetes 1.33 or later with the feature "
            "HPAConfigurableTolerance; without it changes within 10 % are ignored."
        )
    if scaling.policy == "kpa" and writers:
        yield _KNATIVE


def _has_tolerance(context: Context, scaling: Scaling) -> bool:
    if scaling.policy != "schedule":
        return scaling.tolerance is not None and scaling.policy != "dynamo"
    unit = launch_units(context.launch)[0]
    counts = [in_copies(context, unit, count) for count in keda.replicas_by_hour(scaling)]
    return keda.changes_within_tolerance(counts, keda.TOLERANCE)
