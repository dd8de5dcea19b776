"""Autoscaling on Kubernetes: by the request's policy, else by queue length and KV cache use.

KEDA, or a HorizontalPodAutoscaler behind prometheus-adapter. Both are overlays of the Kubernetes
target; a workload takes one of them, never both.
"""

from __future__ import annotations

from typing import Any

from recipe_core.base.documents import to_yaml
from recipe_core.base.errors import NoAnswer
from recipe_core.engines.release import Metrics
from recipe_core.targets import kubernetes
from recipe_core.targets.context import Context
from recipe_core.targets.layout import Unit, launch_units
from recipe_core.targets.monitoring import (
    KV_SCALE,
    alert_thresholds,
    engine_metrics,
    warm_up_s,
)
from recipe_core.targets.pod import kustomization, object_metadata, object_name
from recipe_core.targets.scale import hpa as scale_hpa
from recipe_core.targets.scale import keda as scale_keda
from recipe_core.targets.scale.policy import fewest_copies, most_copies

KEDA, HPA = "targets/kubernetes-keda", "targets/kubernetes-hpa"
SCALED_OBJECT = ("keda.sh/v1alpha1", "ScaledObject")
AUTOSCALER = ("autoscaling/v2", "HorizontalPodAutoscaler")
LONGEST_PERIOD_S = 1800  # the API refuses a longer periodSeconds in a scaling policy


def keda_files(context: Context) -> dict[str, str]:
    """A ScaledObject.

    Raises:
        NoAnswer: where there is nothing to scale, no metric to scale by, or the request's policy
            is another.
    """
    scaling = context.scaling
    if scaling is None:
        spec = _scaled_object_spec(context, _require_scaling_metrics(context))
    else:
        _refuse_apart(context)
        spec = scale_keda.keda_spec(context, _single_unit(context), scaling)
    return _overlay_files(
        KEDA, {"scaledobject.yaml": _scaler_object(context, *SCALED_OBJECT, spec)}
    )


def hpa_files(context: Context) -> dict[str, str]:
    """A HorizontalPodAutoscaler, and the rules that prometheus-adapter needs for it.

    Raises:
        NoAnswer: as ``keda_files``.
    """
    scaling = context.scaling
    if scaling is None:
        engine = _require_scaling_metrics(context)
        _refuse_zero(context)
        spec, rules = _autoscaler_spec(context, engine), _adapter_rules(engine)
    else:
        _refuse_apart(context)
        spec = scale_hpa.hpa_spec(context, _single_unit(context), scaling)
        rules = scale_hpa.adapter_values(context, scaling)
    files = _overlay_files(HPA, {"hpa.yaml": _scaler_object(context, *AUTOSCALER, spec)})
    return {**files, f"{HPA}/prometheus-adapter-values.yaml": to_yaml(rules)}


def _require_scaling_metrics(context: Context) -> Metrics:
    """The engine's metrics, where replicas are scaled by what the estimate gives."""
    p, engine = context.parameters, engine_metrics(context.engine)
    if p.max_replicas == p.min_replicas:
        raise NoAnswer(
            f"min_replicas and max_replicas are both {p.max_replicas}: nothing to scale.",
            field="parameters.max_replicas",
            hint="Raise max_replicas.",
        )
    if engine is None or not (engine.waiting or engine.kv_usage):
        raise NoAnswer(
            f"{context.engine} reports neither queue length nor KV cache use.",
            field="candidate.engine",
        )
    if p.gateway_metric is None:
        _refuse_zero(context)
    _refuse_apart(context)
    return engine


def _refuse_zero(context: Context) -> None:
    if context.parameters.min_replicas == 0:
        raise NoAnswer(
            "min_replicas is 0, and with no replica running no request can queue.",
            field="parameters.min_replicas",
            hint="Set min_replicas: 1, or set gateway_metric and use kubernetes-keda.",
        )


def _refuse_apart(context: Context) -> None:
    if len(launch_units(context.launch)) > 1:
        raise NoAnswer(
            "pools over several nodes are separate workloads; "
            "keeping them in proportion takes a new plan."
        )
    kubernetes.kubernetes_objects(context)  # raises what the workload itself lacks


def _overlay_files(folder: str, objects: dict[str, dict[str, Any]]) -> dict[str, str]:
    files = {**objects, "kustomization.yaml": kustomization(["../kubernetes", *objects])}
    return {f"{folder}/{name}": to_yaml(value) for name, value in files.items()}


def _single_unit(context: Context) -> Unit:
    (unit,) = launch_units(context.launch)
    return unit


def _scaler_object(
    context: Context, version: str, kind: str, spec: dict[str, Any]
) -> dict[str, Any]:
    """The object that scales the recipe's workload."""
    workload = kubernetes.unit_workload(context, _single_unit(context))
    target = {
        "apiVersion": workload["apiVersion"],
        "kind": workload["kind"],
        "name": object_name(context),
    }
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": object_metadata(context),
        "spec": {"scaleTargetRef": target, **spec},
    }


def _queue_limit_of_pod(context: Context) -> int:
    """Requests that may queue per pod (or group)."""
    return max(1, round(alert_thresholds(context).waiting / _single_unit(context).copies))


def _default_behavior(context: Context) -> dict[str, Any]:
    """Up by one copy per warm-up time, since only then the copy shows in the metrics.

    Down later and slowly.
    """
    warm, step = warm_up_s(context), _single_unit(context).copies
    up = {"type": "Pods", "value": step, "periodSeconds": min(LONGEST_PERIOD_S, warm)}
    down = {"type": "Pods", "value": step, "periodSeconds": 300}
    return {
        "scaleUp": {"stabilizationWindowSeconds": 60, "policies": [up]},
        "scaleDown": {
            "stabilizationWindowSeconds": min(3600, max(600, 2 * warm)),
            "policies": [down],
        },
    }


def _scaled_object_spec(context: Context, engine: Metrics) -> dict[str, Any]:
    p, unit = context.parameters, _single_unit(context)
    low = fewest_copies(context, unit)
    selector = f'namespace="{p.namespace}",pod=~"{object_name(context)}-.*"'
    targets = [(engine.waiting, _queue_limit_of_pod(context)), (engine.kv_usage, KV_SCALE)]
    triggers = [
        scale_keda.prometheus_trigger(p.prometheus, f"sum({metric}{{{selector}}})", str(threshold))
        for metric, threshold in targets
        if metric
    ]
    if low == 0:
        triggers.append(scale_keda.wake_trigger(context))
    return {
        "minReplicaCount": low,
        "maxReplicaCount": most_copies(context, unit),
        "pollingInterval": 15,
        "cooldownPeriod": max(600, 2 * warm_up_s(context)),
        "fallback": {"failureThreshold": 4, "replicas": max(1, low)},
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _default_behavior(context)}},
        "triggers": triggers,
    }


_ADAPTED = {"waiting": "recipe_requests_waiting", "kv_usage": "recipe_kv_usage"}


def _autoscaler_spec(context: Context, engine: Metrics) -> dict[str, Any]:
    unit = _single_unit(context)
    targets = {
        "waiting": str(_queue_limit_of_pod(context)),
        "kv_usage": f"{round(1000 * KV_SCALE)}m",
    }
    metrics = [
        {
            "type": "Pods",
            "pods": {
                "metric": {"name": _ADAPTED[name]},
                "target": {"type": "AverageValue", "averageValue": value},
            },
        }
        for name, value in targets.items()
        if getattr(engine, name)
    ]
    return {
        "minReplicas": fewest_copies(context, unit),
        "maxReplicas": most_copies(context, unit),
        "metrics": metrics,
        "behavior": _default_behavior(context),
    }


def _adapter_rules(m: Metrics) -> dict[str, Any]:
    """Helm values of prometheus-adapter: the engine's series under names without colons.

    The metrics API refuses a colon, and vLLM's names have one.
    """
    query = "sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)"
    rules = [
        {
            "seriesQuery": f'{getattr(m, name)}{{namespace!="",pod!=""}}',
            "resources": scale_hpa.RESOURCES,
            "name": {"as": alias},
            "metricsQuery": query,
        }
        for name, alias in _ADAPTED.items()
        if getattr(m, name)
    ]
    return {"rules": {"custom": rules}}
