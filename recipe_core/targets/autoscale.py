"""Autoscaling on Kubernetes by what waits and how full the cache is: KEDA, or a HorizontalPodAutoscaler behind prometheus-adapter.

Both are overlays of the Kubernetes target; a workload takes one of them, never both.
"""

from __future__ import annotations

from typing import Any

from recipe_core.base.documents import to_yaml
from recipe_core.base.errors import NoAnswer
from recipe_core.engines.release import Metrics
from recipe_core.targets import kubernetes
from recipe_core.targets.context import Context
from recipe_core.targets.layout import Unit, layout
from recipe_core.targets.monitoring.metrics import engine_metrics
from recipe_core.targets.monitoring.thresholds import KV_SCALE, thresholds, warm_up_s
from recipe_core.targets.pod import metadata, object_name

KEDA, HPA = "targets/kubernetes-keda", "targets/kubernetes-hpa"
LONGEST_PERIOD_S = 1800  # that a scaling policy may count over


def keda(context: Context) -> dict[str, str]:
    """A ScaledObject; raises NoAnswer where there is nothing to scale or to scale by."""
    return _overlay(KEDA, {"scaledobject.yaml": _scaled_object(context, _checked(context))})


def hpa(context: Context) -> dict[str, str]:
    """A HorizontalPodAutoscaler and the rules that prometheus-adapter needs for it; raises NoAnswer as ``keda`` does."""
    engine = _checked(context)
    found = _overlay(HPA, {"hpa.yaml": _autoscaler(context, engine)})
    return found | {f"{HPA}/prometheus-adapter-values.yaml": to_yaml(_adapter(engine))}


def _checked(context: Context) -> Metrics:
    p, engine = context.parameters, engine_metrics(context.engine)
    if p.max_replicas == p.min_replicas:
        message = (
            f"min_replicas and max_replicas are both {p.max_replicas}; there is nothing to scale."
        )
        raise NoAnswer(message, field="parameters.max_replicas", hint="Raise max_replicas.")
    if engine is None or not (engine.waiting or engine.kv_usage):
        raise NoAnswer(
            f"{context.engine} tells neither its queue nor how full its cache is.",
            field="candidate.engine",
        )
    if p.min_replicas == 0:
        raise NoAnswer(
            "min_replicas is 0, and no request can wait at a copy that does not run.",
            field="parameters.min_replicas",
            hint="Use 1.",
        )
    if len(layout(context.launch)) > 1:
        raise NoAnswer(
            "pools over several nodes are workloads of their own, and grow in proportion only by another plan."
        )
    kubernetes.objects(context)  # says what the workload itself lacks
    return engine


def _overlay(folder: str, objects: dict[str, dict[str, Any]]) -> dict[str, str]:
    listed = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["../kubernetes", *objects],
    }
    return {
        f"{folder}/{name}": to_yaml(value)
        for name, value in (objects | {"kustomization.yaml": listed}).items()
    }


def _unit(context: Context) -> Unit:
    (unit,) = layout(context.launch)
    return unit


def _target(context: Context) -> dict[str, str]:
    workload = kubernetes.workload(context, _unit(context))
    return {
        "apiVersion": workload["apiVersion"],
        "kind": workload["kind"],
        "name": object_name(context),
    }


def _bounds(context: Context) -> tuple[int, int]:
    """Pods (or groups) that the recipe's own number of copies makes of the bounds."""
    copies = _unit(context).copies
    return copies * context.parameters.min_replicas, copies * context.parameters.max_replicas


def _waiting(context: Context) -> int:
    """Requests that may wait for each pod (or group)."""
    return max(1, round(thresholds(context).waiting / _unit(context).copies))


def _behavior(context: Context) -> dict[str, Any]:
    """Up: one copy in the time that a copy takes to warm up, since only then it shows in the metrics. Down: later and slowly."""
    warm, step = warm_up_s(context), _unit(context).copies
    up = {"type": "Pods", "value": step, "periodSeconds": min(LONGEST_PERIOD_S, warm)}
    down = {"type": "Pods", "value": step, "periodSeconds": 300}
    return {
        "scaleUp": {"stabilizationWindowSeconds": 60, "policies": [up]},
        "scaleDown": {
            "stabilizationWindowSeconds": min(3600, max(600, 2 * warm)),
            "policies": [down],
        },
    }


def _scaled_object(context: Context, engine: Metrics) -> dict[str, Any]:
    p = context.parameters
    low, high = _bounds(context)
    only = f'namespace="{p.namespace}",pod=~"{object_name(context)}-.*"'
    asked = [(engine.waiting, _waiting(context)), (engine.kv_usage, KV_SCALE)]
    triggers = [
        _trigger(p.prometheus, f"sum({metric}{{{only}}})", str(most))
        for metric, most in asked
        if metric
    ]
    spec = {
        "scaleTargetRef": _target(context),
        "minReplicaCount": low,
        "maxReplicaCount": high,
        "pollingInterval": 15,
        "cooldownPeriod": max(600, 2 * warm_up_s(context)),
        "fallback": {"failureThreshold": 4, "replicas": low},
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behavior(context)}},
        "triggers": triggers,
    }
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": metadata(context),
        "spec": spec,
    }


def _trigger(server: str, query: str, threshold: str) -> dict[str, Any]:
    return {
        "type": "prometheus",
        "metricType": "AverageValue",
        "metadata": {"serverAddress": server, "query": query, "threshold": threshold},
    }


_ADAPTED = {"waiting": "recipe_requests_waiting", "kv_usage": "recipe_kv_usage"}


def _autoscaler(context: Context, engine: Metrics) -> dict[str, Any]:
    low, high = _bounds(context)
    every = {"waiting": str(_waiting(context)), "kv_usage": f"{round(1000 * KV_SCALE)}m"}
    asked = {name: value for name, value in every.items() if getattr(engine, name)}
    metrics = [
        {
            "type": "Pods",
            "pods": {
                "metric": {"name": _ADAPTED[name]},
                "target": {"type": "AverageValue", "averageValue": value},
            },
        }
        for name, value in asked.items()
    ]
    spec = {
        "scaleTargetRef": _target(context),
        "minReplicas": low,
        "maxReplicas": high,
        "metrics": metrics,
        "behavior": _behavior(context),
    }
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": metadata(context),
        "spec": spec,
    }


def _adapter(m: Metrics) -> dict[str, Any]:
    """Helm values of prometheus-adapter: the engine's series by names that the metrics API can have (no colons)."""
    resources = {"overrides": {"namespace": {"resource": "namespace"}, "pod": {"resource": "pod"}}}
    query = "sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)"
    rules = [
        {
            "seriesQuery": f'{getattr(m, name)}{{namespace!="",pod!=""}}',
            "resources": resources,
            "name": {"as": known},
            "metricsQuery": query,
        }
        for name, known in _ADAPTED.items()
        if getattr(m, name)
    ]
    return {"rules": {"custom": rules}}
