"""Kubernetes: a Deployment, or a LeaderWorkerSet over several nodes, with everything it needs; ``kubectl apply -k``."""

from __future__ import annotations

import math
from typing import Any

from recipe_core.documents import to_yaml
from recipe_core.engines.deployment import Process
from recipe_core.errors import NoAnswer
from recipe_core.targets import pod
from recipe_core.targets.context import Context
from recipe_core.targets.layout import Layout, Pod, layout, same_pod
from recipe_core.targets.pod import GIB, labels, metadata

FOLDER = "targets/kubernetes"
ROLE = "app.kubernetes.io/component"
QUEUE = "kueue.x-k8s.io/queue-name"
SPARE_CACHE = 1.2  # a download is kept beside the file it becomes


def files(context: Context) -> dict[str, str]:
    """One file an object, and the list of them for kustomize.

    Raises:
        NoAnswer: where no image is known, or workers differ in more than their number.
    """
    found = {f"{name}.yaml": to_yaml(value) for name, value in objects(context).items()}
    listed = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": list(found)}
    return {f"{FOLDER}/{name}": text for name, text in (found | {"kustomization.yaml": to_yaml(listed)}).items()}


def objects(context: Context) -> dict[str, dict[str, Any]]:
    """The objects by the names of their files."""
    shape = layout(context.launch)
    kind = "deployment" if len(shape.pods) == 1 else "leaderworkerset"
    found = {kind: workload(context, shape), "service": service(context, shape)}
    if pod.claim_name(context) and not context.parameters.model_cache:
        found["storage"] = storage(context, shape)
    if context.mounted:
        found["files"] = pod.files_map(context)
    return found | {"disruption": disruption(context, shape), "network": network(context)}


def workload(context: Context, shape: Layout) -> dict[str, Any]:
    """What starts the pods."""
    return _deployment(context, shape) if len(shape.pods) == 1 else _leader_worker_set(context, shape)


def copies(context: Context, shape: Layout) -> int:
    """Pods (or groups of pods) to begin with: those of the recipe, as often as the lower bound says."""
    return shape.copies * max(1, context.parameters.min_replicas)


def _deployment(context: Context, shape: Layout) -> dict[str, Any]:
    count = copies(context, shape)
    startup = max(_startup(context, process) for process in shape.leader if process.answers)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _queued(context, metadata(context)),
        "spec": {
            "replicas": count,
            "selector": {"matchLabels": labels(context)},
            # devices are scarce: an update takes a pod down before it starts the next
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "progressDeadlineSeconds": startup + 600,
            "template": _template(context, shape.leader, "leader", head="127.0.0.1", **_spread(context, count)),
        },
    }


def _leader_worker_set(context: Context, shape: Layout) -> dict[str, Any]:
    head = {"head": "$(LWS_LEADER_ADDRESS)", "index": "$(LWS_WORKER_INDEX)"}
    worker = same_pod(shape.pods[1:], first=1)
    if worker is None:
        raise NoAnswer("its nodes run different processes; a LeaderWorkerSet has one template for all workers.", hint="Use Slurm.")
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": _queued(context, metadata(context)),
        "spec": {
            "replicas": copies(context, shape),
            "startupPolicy": "LeaderCreated",
            "leaderWorkerTemplate": {
                "size": len(shape.pods),
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": _template(context, shape.leader, "leader", **head),
                "workerTemplate": _template(context, worker, "worker", **head),
            },
        },
    }


def _template(context: Context, processes: Pod, role: str, *, head: str, index: str = "0", **more: Any) -> dict[str, Any]:
    known = pod.values(context, head, index=index)
    grace = max(60, math.ceil(2 * context.estimate.get("serving", {}).get("request_latency_s", 0)))
    spec = pod.pod_spec(context, processes, known, terminationGracePeriodSeconds=grace, **more)
    return {"metadata": {"labels": labels(context) | {ROLE: role}}, "spec": spec}


def _spread(context: Context, count: int) -> dict[str, Any]:
    """Copies go to different nodes where there is room."""
    if count == 1:
        return {}
    rule = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels(context)},
    }
    return {"topologySpreadConstraints": [rule]}


def _queued(context: Context, value: dict[str, Any]) -> dict[str, Any]:
    """Metadata with Kueue's label where a queue is named."""
    queue = context.parameters.queue
    return value | {"labels": value["labels"] | {QUEUE: queue}} if queue else value


def _startup(context: Context, process: Process) -> int:
    probe = pod.probes(context, process)["startupProbe"]
    return int(probe["periodSeconds"] * probe["failureThreshold"])


def entries(shape: Layout) -> list[Process]:
    """Processes of the leader that clients ask: the router where there is one."""
    answering = [process for process in shape.leader if process.answers]
    return [process for process in answering if process.role == "router"] or answering


def service(context: Context, shape: Layout) -> dict[str, Any]:
    """One address inside the cluster for all copies."""
    ports = [{"name": pod.port_name(p), "port": pod.port_of(context, p), "targetPort": pod.port_name(p)} for p in entries(shape)]
    if len(ports) == 1:
        ports[0]["port"] = context.parameters.port
    spec = {"type": "ClusterIP", "selector": labels(context) | {ROLE: "leader"}, "ports": ports}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata(context), "spec": spec}


def storage(context: Context, shape: Layout) -> dict[str, Any]:
    """A claim for the weights, which pods on several nodes share."""
    alone = len(shape.pods) == 1 and shape.copies * context.parameters.max_replicas == 1
    return claim(context, pod.object_name(context, "-models"), cache_gib(context), shared=not alone)


def cache_gib(context: Context) -> int:
    """Room for the weights."""
    return context.parameters.cache_gib or math.ceil(SPARE_CACHE * context.weights_bytes / GIB) + 1


def claim(context: Context, name: str, size_gib: int, *, shared: bool) -> dict[str, Any]:
    """A PersistentVolumeClaim."""
    chosen = context.parameters.storage_class
    spec = {
        "accessModes": ["ReadWriteMany" if shared else "ReadWriteOnce"],
        **({"storageClassName": chosen} if chosen else {}),
        "resources": {"requests": {"storage": f"{size_gib}Gi"}},
    }
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata(context) | {"name": name}, "spec": spec}


def disruption(context: Context, shape: Layout) -> dict[str, Any]:
    """Maintenance takes one pod (or group) at a time."""
    chosen = labels(context) | ({ROLE: "leader"} if len(shape.pods) > 1 else {})
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": chosen}}
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata(context), "spec": spec}


def network(context: Context) -> dict[str, Any]:
    """Asked from its own namespace and by monitoring; asks only its own pods, DNS and, for a hub's model, HTTPS."""
    own = {"podSelector": {"matchLabels": labels(context)}}
    monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": context.parameters.monitoring_namespace}}}
    ports = sorted({pod.port_of(context, p) for p in context.launch.processes if p.answers} | {context.parameters.port})
    asked = [{"protocol": "TCP", "port": port} for port in ports]
    dns = {"ports": [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]}
    hub = [] if context.model_is_folder else [{"ports": [{"protocol": "TCP", "port": 443}]}]
    spec = {
        "podSelector": {"matchLabels": labels(context)},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [{"podSelector": {}}, monitoring], "ports": asked}, {"from": [own]}],
        "egress": [{"to": [own]}, dns, *hub],
    }
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata(context), "spec": spec}
