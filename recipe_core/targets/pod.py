"""A pod for processes of a launch: containers, devices, volumes, probes, least privilege."""

from __future__ import annotations

import ast
import hashlib
import json
import math
from pathlib import Path
from typing import Any

from recipe_core.base.errors import NoAnswer
from recipe_core.launch.process import Launch, Process
from recipe_core.launcher.api import Api
from recipe_core.launcher.exposition import PATHS
from recipe_core.launcher.probe import question
from recipe_core.targets import rdma, supervise
from recipe_core.targets.context import Context
from recipe_core.targets.fill import IN_KUBERNETES, PLAIN, Values, Variable, fill
from recipe_core.targets.layout import Pod
from recipe_core.targets.names import names, node_affinity

ROOT, RUN, CACHE, HOME = "/recipe", "/run/recipe", "/models", "/home/recipe"
USER = 1000
API_KEY = "api-key"  # the key of the Secret that holds it
NAME_LENGTH = 40  # controllers append up to 23 characters to a name, and 63 is the limit of a label
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
COUNTING = ("vllm", "sglang", "tensorrt-llm")
"""Engines that publish counts of tokens, in images that have Python."""
_GENERATES = Path(__file__).with_name("generates.py")
_AROUND_S = 5  # of a probe's time, what reading figures and starting Python take
GIB = 1 << 30
# Assumed, per device: what an engine needs on the host besides weights being loaded.
CPUS_PER_DEVICE, MEMORY_GIB_PER_DEVICE = 4, 16
# Assumed, per pod or container, in GiB: caches of compiled kernels and modules, logs and the like,
# the image's own writable layer with the log that the node keeps; and what is asked for of them.
HOME_GIB, RUN_GIB, LAYER_GIB, ASKED_GIB = 32, 16, 16, 8
CONFIG_MAP_BYTES = 1_000_000  # of the 1 MiB that an object may have


def object_name(context: Context, suffix: str = "") -> str:
    """The name of an object: the recipe's, cut to length with a digest, and ``suffix``."""
    name = context.name
    if len(name) > NAME_LENGTH:
        digest = hashlib.sha256(name.encode()).hexdigest()[:6]
        name = f"{name[: NAME_LENGTH - 7].rstrip('-')}-{digest}"
    return name + suffix


def labels(context: Context) -> dict[str, str]:
    """Labels that select the pods of a recipe."""
    return {"app.kubernetes.io/name": object_name(context)}


def metadata(context: Context, suffix: str = "", **more: Any) -> dict[str, Any]:
    """Metadata of an object of the recipe."""
    return {
        "name": object_name(context, suffix),
        "namespace": context.parameters.namespace,
        "labels": labels(context),
        **more,
    }


def kustomization(resources: list[str]) -> dict[str, Any]:
    """The list of files that ``kubectl apply -k`` reads."""
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": resources,
    }


def values(
    context: Context, head: str | Variable, **more: str | Variable
) -> dict[str, str | Variable]:
    """Values of a launch's placeholders in a pod, without ``port``, which each process has."""
    return {
        "model": mounted_model(context),
        "host": "0.0.0.0",  # noqa: S104 - inside its pod
        "head": head,
        "root": ROOT,
        "run": RUN,
        "self": Variable("POD_IP"),
        **port_values(context.launch, context.parameters.port),
        **more,
    }


def mounted_model(context: Context) -> str:
    """A hub id, or a folder on the nodes, which containers mount at the same path.

    Raises:
        NoAnswer: for a folder whose path is not absolute, or has a colon, which no mount may have.
    """
    if context.model_is_folder and not context.model_source.startswith("/"):
        raise NoAnswer(
            f"the model folder {context.model_source} is not an absolute path on the nodes.",
            field="parameters.model",
            hint="Set its absolute path.",
        )
    if context.model_is_folder and ":" in context.model_source:
        raise NoAnswer(
            f"the model folder {context.model_source} has a colon, so it cannot be mounted.",
            field="parameters.model",
            hint="Rename it, or use Slurm.",
        )
    return context.model_source


def port_values(launch: Launch, port: int) -> dict[str, str]:
    """Ports by their offsets from the first: ``port0`` and so on."""
    last = max(process.port_offset for process in launch.processes)
    return {f"port{n}": str(port + n) for n in range(last + 1)}


def port_of(context: Context, process: Process) -> int:
    """The port a process listens on."""
    return context.parameters.port + process.port_offset


def pod_spec(context: Context, pod: Pod, known: Values, **more: Any) -> dict[str, Any]:
    """The specification of a pod; ``more`` is added to it (a restart policy)."""
    # a router alone needs no node with devices
    computes = context.vendor == "cpu" or any(process.devices for process in pod)
    affinity = node_affinity(context.device, context.vendor, context.runtime) if computes else None
    spot = names().spot.get(context.spot or "") if computes else None
    chosen = {spot.label: spot.value} if spot else {}
    selector = {**chosen, **context.parameters.node_selector}
    return {
        "automountServiceAccountToken": False,
        **rdma.pod_fields(context),
        "securityContext": security(context, root=bool(rdma.resource(context, pod))),
        **({"affinity": affinity} if affinity else {}),
        **({"nodeSelector": selector} if selector else {}),
        **(tolerations(context) if computes else {}),
        "containers": [container(context, process, known) for process in pod],
        "volumes": volumes(context, pod),
        "terminationGracePeriodSeconds": supervise.grace_s(context),
        **more,
    }


def container(
    context: Context,
    process: Process,
    known: Values,
    name: str | None = None,
    *,
    asks: bool = True,
) -> dict[str, Any]:
    """One process as a container; ``asks``: whether its probes may ask it for tokens."""
    port = port_of(context, process)
    filled = {**known, "port": str(port)}
    answers: dict[str, Any] = {}
    if process.answers:
        answers["ports"] = [{"name": port_name(process), "containerPort": port}]
    return {
        "name": name or label_name(process.name),
        "image": image(context),
        "command": [fill(word, filled, IN_KUBERNETES) for word in process.argv],
        "workingDir": ROOT if context.mounted else RUN,
        "env": environment(context, process, filled),
        **answers,
        "resources": resources(context, process),
        "securityContext": _privileges(context, process),
        **(probes(context, process, filled, asks=asks) if process.answers else {}),
        # workers too: a server drains only with all of its ranks
        **({"lifecycle": supervise.drain_hook(context)} if context.kind == "serving" else {}),
        "volumeMounts": mounts(context),
    }


def _privileges(context: Context, process: Process) -> dict[str, Any]:
    """No capability, but that to lock memory for devices that read it over the network."""
    locks = {"add": [rdma.LOCKS_MEMORY]} if rdma.resource(context, (process,)) else {}
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"], **locks}}


def label_name(name: str) -> str:
    """A process's name as a DNS label."""
    return name.lower().replace("_", "-").replace(".", "-")


def port_name(process: Process) -> str:
    """The name of a port, at most 15 characters."""
    return f"http-{process.port_offset}" if process.port_offset else "http"


def image(context: Context) -> str:
    """The container image.

    Raises:
        NoAnswer: where none is known.
    """
    if context.parameters.image:
        return context.parameters.image
    if context.image is None:
        raise NoAnswer(
            f"no container image is known for {context.engine} {context.engine_version} "
            f"on {context.vendor}.",
            field="parameters.image",
            hint=context.no_image,
        )
    return context.image.pinned


def environment(context: Context, process: Process, known: Values) -> list[dict[str, Any]]:
    """Variables of a container: the process's, writable caches, token and key from Secrets."""
    # USER: torch looks it up, and no entry of passwd has this user's number
    variables = {"HOME": HOME, "USER": "recipe", "HF_HOME": CACHE}
    if context.kind == "training":
        # Kubeflow's TrainJob cannot set a working folder, where Python would find the modules
        variables["PYTHONPATH"] = ROOT
    for key, value in process.env.items():
        variables[key] = fill(value, known, IN_KUBERNETES)
    entries: list[dict[str, Any]] = []
    if any("${self}" in text for text in (*process.argv, *process.env.values())):
        address = {"fieldRef": {"fieldPath": "status.podIP"}}
        entries.append({"name": "POD_IP", "valueFrom": address})
    entries += [{"name": key, "value": value} for key, value in variables.items()]
    if secret := context.parameters.token_secret:
        token = {"secretKeyRef": {"name": secret, "key": "token"}}
        entries.append({"name": "HF_TOKEN", "valueFrom": token})
    if context.key_variable and process.answers:
        held = {"secretKeyRef": {"name": context.parameters.api_key_secret, "key": API_KEY}}
        entries.append({"name": context.key_variable, "valueFrom": held})
    return entries


def resources(context: Context, process: Process) -> dict[str, Any]:
    """Devices as limits; CPU as a request only, so that a burst is not slowed.

    Memory is limited to the devices' share of their node, which nothing else has a claim on: a leak
    takes no other pod's. What is written to the node's disk is limited too.
    """
    found = _computing(context, process)
    if (scratch := scratch_gib(context)) is not None:
        found["requests"]["ephemeral-storage"] = f"{ASKED_GIB}Gi"
        found.setdefault("limits", {})["ephemeral-storage"] = f"{scratch}Gi"
    return found


def scratch_gib(context: Context) -> int | None:
    """The most that a container writes to its node, in GiB; None where cached blocks go there."""
    return None if context.spills else HOME_GIB + run_gib(context) + LAYER_GIB


def run_gib(context: Context) -> int:
    """Size of the folder of a pod's own files; some engines put a copy of the model there."""
    texts = (t for p in context.launch.processes for t in (*p.argv, *p.env.values()))
    copies = any("${run}" in text for text in texts)
    return RUN_GIB + (math.ceil(context.weights_bytes / GIB) if copies else 0)


def _computing(context: Context, process: Process) -> dict[str, dict[str, str]]:
    count, resource = len(process.devices), names().of(context.vendor, context.runtime).resource
    if resource is None:
        needed = math.ceil(context.estimate.get("memory", {}).get("total_bytes", 0) / GIB)
        return {"requests": {"cpu": str(CPUS_PER_DEVICE), "memory": f"{max(needed, 1)}Gi"}}
    if not count:  # a router
        return {"requests": {"cpu": "1", "memory": "2Gi"}}
    asked = host_gib(context, count)
    requests = {"cpu": str(CPUS_PER_DEVICE * count), "memory": f"{asked}Gi"}
    devices = {resource: str(count), **rdma.resource(context, (process,))}
    share = context.host_share_bytes(count)
    memory = {"memory": f"{max(share // GIB, asked)}Gi"} if share else {}
    return {"requests": requests | devices, "limits": {**memory, **devices}}


def host_gib(context: Context, devices: int) -> int:
    """Host memory that processes on so many devices of a node need, in GiB.

    What an engine needs beside weights that are loaded, cached blocks and sleeping states that wait
    there, and copies of the model that a trainer loads or saves.
    """
    kept = context.offloaded_bytes_per_device * devices
    kept += context.launch.host_bytes * devices / context.devices_per_node
    return MEMORY_GIB_PER_DEVICE * devices + math.ceil(kept / GIB)


def asks_for_tokens(context: Context, process: Process) -> bool:
    """Whether a probe can ask a server for a token, and see that a full one goes on.

    A pool alone answers nothing, and of an engine that publishes no counts a full server cannot be
    told from one that hangs.
    """
    return process.role == "server" and context.engine in COUNTING


def set_probe_port(container: dict[str, Any], port: int) -> None:
    """Have probes of health ask a port by its number, where its name is another's."""
    for name in PROBES:
        if "httpGet" in container[name]:
            container[name]["httpGet"]["port"] = port


def _asking(context: Context, process: Process, known: Values, timeout_s: int) -> dict[str, Any]:
    """Run the text of `generates` in a container, which has to answer in time."""
    tree = ast.parse(_GENERATES.read_text(encoding="utf-8"))
    text = ast.unparse(ast.Module(tree.body[1:], []))  # without its docstring
    launch, variable = context.launch, context.key_variable
    body = {key: _filled(value, known) for key, value in launch.api_body.items()}
    api = Api(launch.api_path, fill(launch.api_model, known, PLAIN), body)
    words = [
        str(timeout_s - _AROUND_S),
        str(port_of(context, process)),
        PATHS.get(context.engine, "/metrics"),
        api.path,
        json.dumps(question(api)),
        *([variable] if variable else []),
    ]
    return {"exec": {"command": ["python3", "-c", text, *words]}}


def _filled(value: Any, known: Values) -> Any:
    return fill(value, known, PLAIN) if isinstance(value, str) else value


def probes(
    context: Context, process: Process, known: Values, *, asks: bool = True
) -> dict[str, Any]:
    """Startup, readiness and liveness probes: health, and for liveness a token where that shows.

    A server that hangs loses its requests first, and is started again after the recipe's time.
    """
    get = {"path": context.launch.health, "port": port_name(process)}
    hang, unready = supervise.hang(context), supervise.unready(context)

    def probe(timeout_s: int, period_s: int, failures: int) -> dict[str, Any]:
        return {
            "httpGet": dict(get),
            "periodSeconds": period_s,
            "timeoutSeconds": timeout_s,
            "failureThreshold": failures,
        }

    looks = math.ceil(supervise.start_s(context) / supervise.PROBE_S)
    short_s = min(5, unready.period_s)
    liveness = probe(hang.period_s, hang.period_s, hang.failures)
    if asks and asks_for_tokens(context, process):
        hang = supervise.generation(context)
        liveness = probe(hang.period_s, hang.period_s, hang.failures)
        liveness = _asking(context, process, known, hang.period_s) | liveness
        del liveness["httpGet"]
    return {
        "startupProbe": probe(5, supervise.PROBE_S, looks),
        "readinessProbe": probe(short_s, unready.period_s, unready.failures),
        "livenessProbe": liveness,
    }


def security(context: Context, *, root: bool) -> dict[str, Any]:
    """Not root, but for pods that lock memory: a capability is of no use to other users.

    AMD's runtime needs system calls that the default seccomp profile blocks, and the groups that
    own its devices.
    """
    amd, user = context.vendor == "amd", 0 if root else USER
    return {
        "runAsNonRoot": not root,
        "runAsUser": user,
        "runAsGroup": user,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "Unconfined" if amd else "RuntimeDefault"},
        **({"supplementalGroups": list(context.parameters.device_groups)} if amd else {}),
    }


def tolerations(context: Context) -> dict[str, Any]:
    """Tolerations of what keeps other pods off nodes: taints named as the resource, and as spot."""
    resource = names().of(context.vendor, context.runtime).resource
    spot = names().spot.get(context.spot or "")
    keys = [key for key in (resource, spot.label if spot else None) if key is not None]
    tolerated = [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in keys]
    return {"tolerations": tolerated} if tolerated else {}


def volumes(context: Context, pod: Pod) -> list[dict[str, Any]]:
    """The weights' cache (or the model's folder), shared memory, writable folders, bundle files."""
    shared = max(8, 4 * sum(len(process.devices) for process in pod))
    entries: list[dict[str, Any]] = [_volume("cache", claim_name(context), HOME_GIB)]
    if context.model_is_folder:
        folder = {"path": context.model_source, "type": "Directory"}
        entries.append({"name": "model", "hostPath": folder})
    entries += [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{shared}Gi"}},
        _volume("home", None, HOME_GIB),
        _volume(
            "run", run_claim(context) if context.kind == "training" else None, run_gib(context)
        ),
    ]
    if context.mounted:
        files = {"name": object_name(context, "-files"), "items": _items(context)}
        entries.append({"name": "files", "configMap": files})
    return entries


def _volume(name: str, claim: str | None, most_gib: int) -> dict[str, Any]:
    """A volume in a claim, or of the pod's own life and at most so large."""
    if claim is None:
        return {"name": name, "emptyDir": {"sizeLimit": f"{most_gib}Gi"}}
    return {"name": name, "persistentVolumeClaim": {"claimName": claim}}


def mounts(context: Context) -> list[dict[str, Any]]:
    """Where containers mount the volumes."""
    model = {"name": "model", "mountPath": context.model_source, "readOnly": True}
    return [
        {"name": "cache", "mountPath": CACHE},
        *([model] if context.model_is_folder else []),
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - the kernel's, no temporary file
        {"name": "home", "mountPath": HOME},
        {"name": "run", "mountPath": RUN},
        *([{"name": "files", "mountPath": ROOT, "readOnly": True}] if context.mounted else []),
    ]


def claim_name(context: Context) -> str | None:
    """The claim for the weights, the user's or the recipe's; None if a node's folder has them."""
    if context.parameters.model_cache:
        return context.parameters.model_cache
    return None if context.model_is_folder else object_name(context, "-models")


def run_claim(context: Context) -> str:
    """The claim for the checkpoints of a training run."""
    return object_name(context, "-run")


def files_map(context: Context) -> dict[str, Any]:
    """The bundle's files that processes read, as a ConfigMap.

    Raises:
        NoAnswer: when they are larger than a ConfigMap may be.
    """
    total = sum(len(text.encode()) for text in context.mounted.values())
    if total > CONFIG_MAP_BYTES:
        raise NoAnswer(
            f"the files that processes read have {total:,} bytes; "
            f"a ConfigMap holds {CONFIG_MAP_BYTES:,}.",
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
