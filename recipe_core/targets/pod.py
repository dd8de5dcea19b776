"""A pod that runs processes of a launch: containers, devices, volumes, probes, and no more rights than they need."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

from recipe_core.base.errors import NoAnswer
from recipe_core.launch.process import Launch, Process
from recipe_core.targets.context import Context
from recipe_core.targets.fill import fill, kubernetes_literal
from recipe_core.targets.layout import Pod
from recipe_core.targets.names import names, node_affinity

ROOT, RUN, CACHE, HOME = "/recipe", "/run/recipe", "/models", "/home/recipe"
USER = 1000
NAME_LENGTH = 40  # controllers append up to 23 characters to a name, and 63 is the limit of a label
DOWNLOAD_BYTES_PER_S = 100e6  # assumed, of a first start; a slower hub needs a filled cache
PROBE_S = 10
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
GIB = 1 << 30
CPUS_PER_DEVICE, MEMORY_GIB_PER_DEVICE = (
    4,
    16,
)  # assumed: what engines keep on the host besides the weights in flight
CONFIG_MAP_BYTES = 1_000_000  # of the 1 MiB that an object may have


def object_name(context: Context, suffix: str = "") -> str:
    """The name of an object: the recipe's, cut with a digest where controllers could not append to it."""
    name = context.name
    if len(name) > NAME_LENGTH:
        name = (
            f"{name[: NAME_LENGTH - 7].rstrip('-')}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
        )
    return name + suffix


def labels(context: Context) -> dict[str, str]:
    """What selects the pods of a recipe."""
    return {"app.kubernetes.io/name": object_name(context)}


def metadata(context: Context, suffix: str = "", **more: Any) -> dict[str, Any]:
    """Metadata of an object of the recipe."""
    return {
        "name": object_name(context, suffix),
        "namespace": context.parameters.namespace,
        "labels": labels(context),
        **more,
    }


def values(context: Context, head: str, **more: str) -> dict[str, str]:
    """What placeholders of a launch are in a pod; the port is each process's own."""
    known = {
        "model": mounted_model(context),
        "host": "0.0.0.0",  # noqa: S104 - inside its pod
        "head": head,
        "root": ROOT,
        "run": RUN,
    }
    return (
        known | {"self": "$(POD_IP)"} | port_values(context.launch, context.parameters.port) | more
    )


def mounted_model(context: Context) -> str:
    """A hub id, or the folder on the nodes that containers find at the same path; raises NoAnswer for one that is not absolute."""
    if context.model_is_folder and not context.model_source.startswith("/"):
        raise NoAnswer(
            f"the model is the folder {context.model_source}, and what that is on the nodes is not known.",
            field="parameters.model",
            hint="Name its absolute path there.",
        )
    return context.model_source


def port_values(launch: Launch, port: int) -> dict[str, str]:
    """Ports by their offsets from the first: ``port0`` and so on."""
    last = max(process.port_offset for process in launch.processes)
    return {f"port{n}": str(port + n) for n in range(last + 1)}


def port_of(context: Context, process: Process) -> int:
    """The port a process listens on."""
    return context.parameters.port + process.port_offset


def pod_spec(context: Context, pod: Pod, known: Mapping[str, str], **more: Any) -> dict[str, Any]:
    """The specification of a pod; ``more`` is added to it (a restart policy)."""
    computes = context.vendor == "cpu" or any(
        process.devices for process in pod
    )  # a router needs no node with devices
    affinity = node_affinity(context.device, context.vendor) if computes else None
    return {
        "automountServiceAccountToken": False,
        "securityContext": security(context),
        **({"affinity": affinity} if affinity else {}),
        **(
            {"nodeSelector": dict(context.parameters.node_selector)}
            if context.parameters.node_selector
            else {}
        ),
        **(tolerations(context) if computes else {}),
        "containers": [container(context, process, known) for process in pod],
        "volumes": volumes(context, pod),
        **more,
    }


def container(
    context: Context, process: Process, known: Mapping[str, str], name: str | None = None
) -> dict[str, Any]:
    """One process as a container."""
    here = {**known, "port": str(port_of(context, process))}
    return {
        "name": name or label_name(process.name),
        "image": image(context),
        "command": [fill(word, here, kubernetes_literal) for word in process.argv],
        "workingDir": ROOT if context.mounted else RUN,
        "env": environment(context, process, here),
        **(
            {"ports": [{"name": port_name(process), "containerPort": port_of(context, process)}]}
            if process.answers
            else {}
        ),
        "resources": resources(context, process),
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        **(probes(context, process) if process.answers else {}),
        "volumeMounts": mounts(context),
    }


def label_name(name: str) -> str:
    """A process's name as a DNS label."""
    return name.lower().replace("_", "-").replace(".", "-")


def port_name(process: Process) -> str:
    """The name of a port, at most 15 characters."""
    return f"http-{process.port_offset}" if process.port_offset else "http"


def image(context: Context) -> str:
    """The container image; raises NoAnswer where none is known."""
    if context.parameters.image:
        return context.parameters.image
    if context.image is None:
        raise NoAnswer(
            f"no container image is known for {context.engine} {context.engine_version} on {context.vendor}.",
            field="parameters.image",
            hint=context.no_image,
        )
    return context.image.pinned


def environment(
    context: Context, process: Process, known: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Variables of a container: the process's own, caches where they can be written, the hub's token from its Secret."""
    writable = {
        "HOME": HOME,
        "USER": "recipe",
        "HF_HOME": CACHE,
    }  # USER: torch asks for it, and no entry of passwd has this number
    writable |= (
        {"PYTHONPATH": ROOT} if context.kind == "training" else {}
    )  # modules of the bundle, where no working folder can be named
    own = {key: fill(value, known, kubernetes_literal) for key, value in process.env.items()}
    address = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    asked = any("${self}" in text for text in (*process.argv, *process.env.values()))
    plain: list[dict[str, Any]] = [
        {"name": key, "value": value} for key, value in (writable | own).items()
    ]
    secret = context.parameters.token_secret
    token = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": secret, "key": "token"}}}
    return [*([address] if asked else []), *plain, *([token] if secret else [])]


def resources(context: Context, process: Process) -> dict[str, Any]:
    """Devices as limits; processor and memory as requests only, so that a burst is not killed."""
    count, resource = len(process.devices), names().vendors[context.vendor].resource
    if resource is None:
        needed = math.ceil(context.estimate.get("memory", {}).get("total_bytes", 0) / GIB)
        return {"requests": {"cpu": str(CPUS_PER_DEVICE), "memory": f"{max(needed, 1)}Gi"}}
    if not count:  # a router
        return {"requests": {"cpu": "1", "memory": "2Gi"}}
    requests = {
        "cpu": str(CPUS_PER_DEVICE * count),
        "memory": f"{MEMORY_GIB_PER_DEVICE * count}Gi",
        resource: str(count),
    }
    return {"requests": requests, "limits": {resource: str(count)}}


def probes(context: Context, process: Process) -> dict[str, Any]:
    """Startup (with the engine's time-out and that of a first download), readiness and liveness on the health path."""
    probe = {"httpGet": {"path": context.launch.health, "port": port_name(process)}}
    wait = context.launch.startup_timeout_s + (
        0 if context.model_is_folder else context.weights_bytes / DOWNLOAD_BYTES_PER_S
    )
    return {
        "startupProbe": probe
        | {
            "periodSeconds": PROBE_S,
            "timeoutSeconds": 5,
            "failureThreshold": math.ceil(wait / PROBE_S),
        },
        "readinessProbe": probe
        | {"periodSeconds": PROBE_S, "timeoutSeconds": 5, "failureThreshold": 3},
        "livenessProbe": probe
        | {"periodSeconds": PROBE_S, "timeoutSeconds": 10, "failureThreshold": 6},
    }


def security(context: Context) -> dict[str, Any]:
    """Not root. AMD's runtime needs system calls that the default profile refuses, and the groups that own its devices."""
    amd = context.vendor == "amd"
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "Unconfined" if amd else "RuntimeDefault"},
        **({"supplementalGroups": list(context.parameters.device_groups)} if amd else {}),
    }


def tolerations(context: Context) -> dict[str, Any]:
    """Nodes with devices are usually kept free of other pods by a taint of the resource's name."""
    resource = names().vendors[context.vendor].resource
    return (
        {"tolerations": [{"key": resource, "operator": "Exists", "effect": "NoSchedule"}]}
        if resource
        else {}
    )


def volumes(context: Context, pod: Pod) -> list[dict[str, Any]]:
    """The model's cache (or folder), shared memory, and what may be written."""
    shared = max(8, 4 * sum(len(process.devices) for process in pod))
    model = context.model_source
    folder = {"name": "model", "hostPath": {"path": model, "type": "Directory"}}
    return [
        {"name": "cache", "persistentVolumeClaim": {"claimName": claim}}
        if (claim := claim_name(context))
        else {"name": "cache", "emptyDir": {}},
        *([folder] if context.model_is_folder else []),
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{shared}Gi"}},
        {"name": "home", "emptyDir": {}},
        {"name": "run", "emptyDir": {}}
        if context.kind == "serving"
        else {"name": "run", "persistentVolumeClaim": {"claimName": run_claim(context)}},
        *(
            [
                {
                    "name": "files",
                    "configMap": {"name": object_name(context, "-files"), "items": _items(context)},
                }
            ]
            if context.mounted
            else []
        ),
    ]


def mounts(context: Context) -> list[dict[str, Any]]:
    """Where containers find the volumes."""
    return [
        {"name": "cache", "mountPath": CACHE},
        *(
            [{"name": "model", "mountPath": context.model_source, "readOnly": True}]
            if context.model_is_folder
            else []
        ),
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - the kernel's own, not a temporary file
        {"name": "home", "mountPath": HOME},
        {"name": "run", "mountPath": RUN},
        *([{"name": "files", "mountPath": ROOT, "readOnly": True}] if context.mounted else []),
    ]


def claim_name(context: Context) -> str | None:
    """The claim that holds the weights: the user's or the recipe's own; None where they are in a folder of the nodes."""
    own = None if context.model_is_folder else object_name(context, "-models")
    return context.parameters.model_cache or own


def run_claim(context: Context) -> str:
    """The claim that holds checkpoints of a training run."""
    return object_name(context, "-run")


def files_map(context: Context) -> dict[str, Any]:
    """The bundle's files that processes read, as a ConfigMap.

    Raises:
        NoAnswer: when they are larger than an object may be.
    """
    total = sum(len(text.encode()) for text in context.mounted.values())
    if total > CONFIG_MAP_BYTES:
        raise NoAnswer(
            f"the files that processes read have {total:,} bytes; a ConfigMap holds {CONFIG_MAP_BYTES:,}.",
            field="launch.files",
        )
    data = {_key(path): text for path, text in context.mounted.items()}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(context, "-files"),
        "data": data,
    }


def _items(context: Context) -> list[dict[str, str]]:
    return [{"key": _key(path), "path": path} for path in context.mounted]


def _key(path: str) -> str:
    """A path as a key of a ConfigMap, which has no slashes."""
    return path.replace("/", "..")
