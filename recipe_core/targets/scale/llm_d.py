"""The policy ``llm-d`` as the scaling of an LLMInferenceService and its thresholds.

KServe makes a VariantAutoscaling and a HorizontalPodAutoscaler of it. The autoscaler's thresholds
are not in these but in a ConfigMap, which it reads from the service's namespace too.
"""

from __future__ import annotations

from typing import Any

from recipe_core.base.documents import to_yaml
from recipe_core.base.errors import NoAnswer
from recipe_core.request.scaling import Metric, Scaling
from recipe_core.scaling.policies.rows import default_of, defaults_of
from recipe_core.targets.context import Context
from recipe_core.targets.layout import has_independent_servers
from recipe_core.targets.scale.hpa import scaling_behavior
from recipe_core.targets.scale.policy import refuse_fields

WHERE = "llm-d's autoscaler"
# The name under which the autoscaler looks for thresholds in a namespace.
CONFIG = "wva-saturation-scaling-config"
# Above which a replica counts as full, by metric.
THRESHOLDS: dict[Metric, str] = {
    "kv-usage": "kvCacheThreshold",
    "waiting": "queueLengthThreshold",
}
# Of the autoscaler: spare room below which another replica starts.
SPARE = {
    "kvSpareTrigger": default_of("llm-d", "kv_spare"),
    "queueSpareTrigger": int(default_of("llm-d", "queue_spare")),
}
DEFAULTS = {
    "kvCacheThreshold": default_of("llm-d", "kv_threshold"),
    "queueLengthThreshold": int(default_of("llm-d", "queue_threshold")),
}
# Of its HPA, from the autoscaler's chart; KServe's own object would have Kubernetes' defaults.
CHART = (
    "up_delay_s",
    "down_delay_s",
    "up_step",
    "down_step",
    "up_period_s",
    "down_period_s",
)
# Between two looks of the autoscaler, for all services of a cluster.
INTERVAL_S = default_of("llm-d", "interval_s")


def scaling_of(context: Context, scaling: Scaling) -> dict[str, Any]:
    """The field ``scaling`` of an LLMInferenceService.

    Raises:
        NoAnswer: for what the autoscaler cannot be told.
    """
    refuse_fields(scaling, WHERE, ("window_s", "idle_s"))
    if not has_independent_servers(context.launch):
        raise NoAnswer(
            "llm-d's autoscaler scales each pool by itself; what was simulated keeps them together."
        )
    if scaling.interval_s not in (None, INTERVAL_S):
        raise NoAnswer(
            f"interval_s is {scaling.interval_s:g} s; llm-d's autoscaler looks every "
            f"{INTERVAL_S:g} s.",
            field="options.scaling.interval_s",
            hint="Leave it out.",
        )
    if scaling.min_replicas == 0:
        raise NoAnswer(
            "min_replicas is 0; an LLMInferenceService keeps a replica.",
            field="options.scaling.min_replicas",
            hint="Set 1.",
        )
    full = scaling.model_copy(
        update={
            name: int(value)
            for name, value in defaults_of("llm-d").items()
            if name in CHART and getattr(scaling, name) is None
        }
    )
    return {
        "minReplicas": scaling.min_replicas,
        "maxReplicas": scaling.max_replicas,
        "wva": {"hpa": {"behavior": scaling_behavior(full)}},
    }


def saturation_thresholds(context: Context, scaling: Scaling) -> dict[str, Any]:
    """The ConfigMap with the policy's thresholds.

    Raises:
        NoAnswer: for a metric that the autoscaler does not read.
    """
    values: dict[str, float] = {**DEFAULTS, **SPARE}
    for index, trigger in enumerate(scaling.triggers):
        if trigger.metric not in THRESHOLDS:
            raise NoAnswer(
                f"{WHERE} scales by {' and '.join(THRESHOLDS)}, not by {trigger.metric}.",
                field=f"options.scaling.triggers.{index}.metric",
            )
        values[THRESHOLDS[trigger.metric]] = trigger.target
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": CONFIG, "namespace": context.parameters.namespace},
        "data": {"default": to_yaml(values)},
    }
