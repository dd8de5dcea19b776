"""What each policy knows: a row a policy. What a scaling states beyond it is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from recipe_core.base.errors import InputError
from recipe_core.request.scaling import TO_ZERO, Metric, Policy, Scaling, Trigger
from recipe_core.scaling.policies.columns import all_defaults, default_of
from recipe_core.scaling.policies.kpa import default_target

FIELD = "options.scaling"
# Requests at once that a replica is scaled to where a trigger is left out, of those it takes.
SHARE_OF_SLOTS = 0.7
# Requests per second that a replica is scaled to, of those it serves within the limits.
SHARE_OF_CAPACITY = 0.8
# Longest window that Kubernetes' and Knative's objects take.
LONGEST_WINDOW_S = 3600.0
SHORTEST_KPA_WINDOW_S = 6.0


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """A policy: its metrics (none: it takes no triggers), and the fields that it honours.

    several: whether it takes several triggers. means: what the fields are called in its project.
    """

    policy: Policy
    title: str
    metrics: tuple[Metric, ...]
    several: bool
    means: Mapping[str, str]
    source: str

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(self.means)

    @property
    def to_zero(self) -> bool:
        """Whether it can end the last replica."""
        return self.policy in TO_ZERO

    @property
    def version(self) -> str:
        return all_defaults().policies[self.policy].version


ALL_METRICS: tuple[Metric, ...] = ("waiting", "running", "in-flight", "kv-usage", "request-rate")
_BEHAVIOR = {
    "tolerance": "behavior.scaleUp.tolerance and scaleDown.tolerance (from 1.33)",
    "window_s": "range of the query",
    "up_delay_s": "behavior.scaleUp.stabilizationWindowSeconds",
    "down_delay_s": "behavior.scaleDown.stabilizationWindowSeconds",
    "up_step": "behavior.scaleUp.policies, Pods",
    "up_period_s": "periodSeconds of that policy",
    "down_step": "behavior.scaleDown.policies, Pods",
    "down_period_s": "periodSeconds of that policy",
}
_ROWS = (
    PolicyRow("fixed", "Fixed", (), False, {}, "no project"),
    PolicyRow(
        "schedule",
        "Schedule",
        (),
        False,
        {"periods": "triggers of type cron", "interval_s": "pollingInterval"},
        "KEDA documentation, cron scaler",
    ),
    PolicyRow(
        "predictive",
        "Predictive",
        (),
        False,
        {
            "interval_s": "time between looks",
            "window_s": "interval of the series that is forecast",
            "lead_s": "how far ahead replicas are ordered",
            "headroom": "share beyond the forecast",
            "down_delay_s": "time for which the largest number is kept",
            "idle_s": "time without a request before the last replica ends",
        },
        "no project",
    ),
    PolicyRow(
        "hpa",
        "Kubernetes HPA",
        ALL_METRICS,
        True,
        _BEHAVIOR,
        "Kubernetes documentation, Horizontal Pod Autoscaling",
    ),
    PolicyRow(
        "keda",
        "KEDA",
        ALL_METRICS,
        True,
        {**_BEHAVIOR, "interval_s": "pollingInterval", "idle_s": "cooldownPeriod"},
        "KEDA documentation, ScaledObject specification",
    ),
    PolicyRow(
        "kpa",
        "Knative KPA",
        ("in-flight", "request-rate"),
        False,
        {
            "window_s": "autoscaling.knative.dev/window",
            "down_delay_s": "autoscaling.knative.dev/scale-down-delay",
            "idle_s": "autoscaling.knative.dev/scale-to-zero-pod-retention-period",
        },
        "knative/serving, pkg/autoscaler/scaling",
    ),
    PolicyRow(
        "skyserve",
        "SkyServe",
        ("request-rate",),
        False,
        {"up_delay_s": "upscale_delay_seconds", "down_delay_s": "downscale_delay_seconds"},
        "skypilot-org/skypilot, sky/serve/autoscalers.py",
    ),
    PolicyRow(
        "ray-serve",
        "Ray Serve",
        ("in-flight",),
        False,
        {
            "interval_s": "metrics_interval_s",
            "window_s": "look_back_period_s",
            "up_delay_s": "upscale_delay_s",
            "down_delay_s": "downscale_delay_s",
            "idle_s": "downscale_to_zero_delay_s",
        },
        "ray-project/ray, python/ray/serve/autoscaling_policy.py",
    ),
    PolicyRow(
        "dynamo",
        "Dynamo planner",
        (),
        False,
        {
            "interval_s": "load_adjustment_interval",
            "window_s": "throughput_adjustment_interval",
            "tolerance": "1 - load_scaling_down_sensitivity / 100",
            "headroom": "share beyond the forecast",
        },
        "ai-dynamo/dynamo, planner documentation",
    ),
    PolicyRow(
        "llm-d",
        "llm-d WVA",
        ("kv-usage", "waiting"),
        True,
        {
            **_BEHAVIOR,
            "interval_s": "GLOBAL_OPT_INTERVAL",
            "window_s": "window of the highest cache use and queue",
            "idle_s": "retention_period",
        },
        "llm-d-workload-variant-autoscaler, docs/saturation-analyzer.md",
    ),
)
# The policies in the order in which they are shown.
ROWS: Mapping[Policy, PolicyRow] = {row.policy: row for row in _ROWS}

# Fields of a scaling that not every policy honours, besides triggers.
_OPTIONAL = (
    "tolerance",
    "interval_s",
    "window_s",
    "up_delay_s",
    "down_delay_s",
    "up_step",
    "up_period_s",
    "down_step",
    "down_period_s",
    "idle_s",
    "periods",
    "lead_s",
    "headroom",
)


def check_scaling(scaling: Scaling) -> None:
    """Whether the policy honours all that a scaling states.

    Raises:
        InputError: naming the field, its value and the fix.
    """
    row = ROWS[scaling.policy]
    _check_policy_fields(scaling, row)
    _check_triggers(scaling, row)
    _check_together(scaling)
    _check_windows(scaling)


def _check_policy_fields(scaling: Scaling, row: PolicyRow) -> None:
    for name in _OPTIONAL:
        value = getattr(scaling, name)
        if value in (None, ()) or name in row.fields:
            continue
        able = ", ".join(
            candidate.policy for candidate in ROWS.values() if name in candidate.fields
        )
        shown = "" if name == "periods" else f" {value:g}"
        raise InputError(
            f"policy {row.policy} knows no {name}{shown}.",
            field=f"{FIELD}.{name}",
            hint=f"Leave it out, or take a policy that honours it: {able}.",
        )


def _check_triggers(scaling: Scaling, row: PolicyRow) -> None:
    for number, trigger in enumerate(scaling.triggers):
        if trigger.metric not in row.metrics:
            metrics = ", ".join(row.metrics)
            raise InputError(
                f"policy {row.policy} cannot scale by {trigger.metric}.",
                field=f"{FIELD}.triggers.{number}.metric",
                hint=f"It scales by {metrics}." if metrics else "Leave triggers out.",
            )
    if len(scaling.triggers) > 1 and not row.several:
        raise InputError(
            f"policy {row.policy} takes one trigger, not {len(scaling.triggers)}.",
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


def _check_windows(scaling: Scaling) -> None:
    limited = {
        "hpa": ("up_delay_s", "down_delay_s"),
        "keda": ("up_delay_s", "down_delay_s"),
        "llm-d": ("up_delay_s", "down_delay_s"),
        "kpa": ("window_s", "down_delay_s", "idle_s"),
    }
    for name in limited.get(scaling.policy, ()):
        value = getattr(scaling, name)
        if value is not None and value > LONGEST_WINDOW_S:
            raise InputError(
                f"{name} {value:g} is more than {LONGEST_WINDOW_S:g}, which policy "
                f"{scaling.policy} takes at most.",
                field=f"{FIELD}.{name}",
                hint=f"Set {name}: {LONGEST_WINDOW_S:g} or less.",
            )
    shortest = {"kpa": SHORTEST_KPA_WINDOW_S, "predictive": 1.0, "dynamo": 1.0}
    shortest_s = shortest.get(scaling.policy, 0.0)
    if scaling.window_s is not None and scaling.window_s < shortest_s:
        raise InputError(
            f"window_s {scaling.window_s:g} is less than {shortest_s:g}.",
            field=f"{FIELD}.window_s",
            hint=f"Set window_s: {shortest_s:g} or more.",
        )


def default_triggers(
    policy: Policy, *, slots: int | None, capacity_per_s: float
) -> tuple[Trigger, ...]:
    """What a policy scales by where a scaling states no triggers.

    The project's own targets where it has some (Knative, Ray Serve, llm-d), else a share of what a
    replica takes: requests at once (``slots``), or per second for SkyServe. Empty for policies
    without triggers, and where ``slots`` is not known.
    """
    if policy in ("hpa", "keda"):
        return (Trigger(metric="in-flight", target=SHARE_OF_SLOTS * slots),) if slots else ()
    if policy == "skyserve":
        return (Trigger(metric="request-rate", target=SHARE_OF_CAPACITY * capacity_per_s),)
    if policy == "kpa":
        return (Trigger(metric="in-flight", target=default_target()),)
    if policy == "ray-serve":
        target = default_of("ray-serve", "target_ongoing_requests")
        return (Trigger(metric="in-flight", target=target),)
    if policy == "llm-d":
        kv, queue = default_of("llm-d", "kv_threshold"), default_of("llm-d", "queue_threshold")
        return (Trigger(metric="kv-usage", target=kv), Trigger(metric="waiting", target=queue))
    return ()
