"""A pod for processes of a launch: containers, devices, volumes, probes, least privilege."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from recipe_core.base.errors import NoAnswer
from recipe_core.launch.process import Process
from recipe_core.targets import rdma, supervise
from recipe_core.targets.context import Context
from recipe_core.targets.layout import Pod, port_name, port_of, port_values
from recipe_core.targets.names import cluster_names, node_affinity
from recipe_core.targets.node_script import IN_KUBERNETES, Values, Variable, fill_placeholders
from recipe_core.targets.resources import HOME_GIB, TMP_GIB, container_resources, run_gib
from recipe_core.targets.supervise import container_probes

ROOT, RUN, CACHE, HOME = "/recipe", "/run/recipe", "/models", "/home/recipe"
USER = 1000
API_KEY = "api-key"  # the key of the Secret that holds it
STOPPED_EXIT, UNFINISHED = "RECIPE_STOPPED_EXIT", 75  # as sysexits.h has it: try again
NAME_LENGTH = 40  # controllers append up to 23 characters to a name, and 63 is the limit of a label
CONFIG_MAP_BYTES = 1_000_000  # of the 1 MiB that an object may have


def object_name(context: Context, suffix: str = "") -> str:
    """The name of an object: the recipe's, cut to length with a digest, and ``suffix``."""
    name = context.name
    if len(name) > NAME_LENGTH:
        digest = hashlib.sha256(name.encode()).hexdigest()[:6]
        name = f"{name[: NAME_LENGTH - 7].rstrip('-')}-{digest}"
    return name + suffix


def pod_labels(context: Context) -> dict[str, str]:
    return {"app.kubernetes.io/name": object_name(context)}


def object_metadata(context: Context, suffix: str = "", **more: Any) -> dict[str, Any]:
    return {
        "name": object_name(context, suffix),
        "namespace": context.parameters.namespace,
        "labels": pod_labels(context),
        **more,
    }


def kustomization(resources: list[str]) -> dict[str, Any]:
    """The list of files that ``kubectl apply -k`` reads."""
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": resources,
    }


def pod_values(
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


def pod_spec(context: Context, pod: Pod, values: Values, **more: Any) -> dict[str, Any]:
    """The specification of a pod; ``more`` is added to it (a restart policy)."""
    # a router alone needs no node with devices
    computes = context.vendor == "cpu" or any(process.devices for process in pod)
    affinity = node_affinity(context.device, context.vendor, context.runtime) if computes else None
    spot = cluster_names().spot.get(context.spot or "") if computes else None
    spot_selector = {spot.label: spot.value} if spot else {}
    selector = {**spot_selector, **context.parameters.node_selector}
    priority = context.parameters.priority_class
    return {
        "automountServiceAccountToken": False,
        **rdma.pod_fields(context),
        "securityContext": pod_security(context, root=bool(rdma.rdma_resources(context, pod))),
        **({"affinity": affinity} if affinity else {}),
        **({"nodeSelector": selector} if selector else {}),
        **(pod_tolerations(context) if computes else {}),
        **({"priorityClassName": priority} if priority else {}),
        "containers": [process_container(context, process, values) for process in pod],
        "volumes": pod_volumes(context, pod),
        "terminationGracePeriodSeconds": supervise.grace_s(context),
        **more,
    }


def process_container(
    context: Context,
    process: Process,
    values: Values,
    name: str | None = None,
    *,
    asks: bool = True,
) -> dict[str, Any]:
    """One process as a container; ``asks``: whether its probes may ask it for tokens."""
    port = port_of(context, process)
    filled = {**values, "port": str(port)}
    answers: dict[str, Any] = {}
    if process.answers:
        answers["ports"] = [{"name": port_name(process), "containerPort": port}]
    return {
        "name": name or label_name(process.name),
        "image": container_image(context),
        "command": [fill_placeholders(word, filled, IN_KUBERNETES) for word in process.argv],
        "workingDir": ROOT if context.mounted else RUN,
        "env": environment_entries(context, process, filled),
        **answers,
        "resources": container_resources(context, process),
        "securityContext": _container_privileges(context, process),
        **(container_probes(context, process, filled, asks=asks) if process.answers else {}),
        # workers too: a server drains only with all of its ranks
        **({"lifecycle": supervise.drain_hook(context)} if context.kind == "serving" else {}),
        "volumeMounts": volume_mounts(context),
    }


def _container_privileges(context: Context, process: Process) -> dict[str, Any]:
    """No capability, but that to lock memory for devices that read it over the network.

    What is written goes to volumes of a limited size, unless the place says otherwise.
    """
    locks = {"add": [rdma.LOCKS_MEMORY]} if rdma.rdma_resources(context, (process,)) else {}
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], **locks},
        "readOnlyRootFilesystem": not context.parameters.writable_root,
    }


def label_name(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def container_image(context: Context) -> str:
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


def environment_entries(context: Context, process: Process, values: Values) -> list[dict[str, Any]]:
    """Variables of a container: the process's, writable caches, token and key from Secrets."""
    # USER: torch looks it up, and no entry of passwd has this user's number
    variables = {"HOME": HOME, "USER": "recipe", "HF_HOME": CACHE}
    if context.kind == "training":
        # it would take the end of a run that was told to stop for that of the whole run
        variables[STOPPED_EXIT] = str(UNFINISHED)
        # Kubeflow's TrainJob cannot set a working folder, where Python would find the modules
        variables["PYTHONPATH"] = ROOT
    for key, value in process.env.items():
        variables[key] = fill_placeholders(value, values, IN_KUBERNETES)
    entries: list[dict[str, Any]] = []
    if any("${self}" in text for text in (*process.argv, *process.env.values())):
        address = {"fieldRef": {"fieldPath": "status.podIP"}}
        entries.append({"name": "POD_IP", "valueFrom": address})
    entries += [{"name": key, "value": value} for key, value in variables.items()]
    if secret := context.parameters.token_secret:
        token = {"secretKeyRef": {"name": secret, "key": "token"}}
        entries.append({"name": "HF_TOKEN", "valueFrom": token})
    if context.key_variable and process.answers:
        key_source = {"secretKeyRef": {"name": context.parameters.api_key_secret, "key": API_KEY}}
        entries.append({"name": context.key_variable, "valueFrom": key_source})
    return entries


def pod_security(context: Context, *, root: bool) -> dict[str, Any]:
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


def pod_tolerations(context: Context) -> dict[str, Any]:
    """Tolerations of what keeps other pods off nodes: taints named as the resource, and as spot."""
    resource = cluster_names().of(context.vendor, context.runtime).resource
    spot = cluster_names().spot.get(context.spot or "")
    keys = [key for key in (resource, spot.label if spot else None) if key is not None]
    tolerated = [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in keys]
    return {"tolerations": tolerated} if tolerated else {}


def pod_volumes(context: Context, pod: Pod) -> list[dict[str, Any]]:
    """The weights' cache (or the model's folder), shared memory, writable folders, bundle files."""
    shared = max(8, 4 * sum(len(process.devices) for process in pod))
    entries: list[dict[str, Any]] = [_pod_volume("cache", claim_name(context), HOME_GIB)]
    if context.model_is_folder:
        folder = {"path": context.model_source, "type": "Directory"}
        entries.append({"name": "model", "hostPath": folder})
    entries += [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{shared}Gi"}},
        _pod_volume("home", None, HOME_GIB),
        _pod_volume("tmp", None, TMP_GIB),
        _pod_volume(
            "run", run_claim(context) if context.kind == "training" else None, run_gib(context)
        ),
    ]
    if context.mounted:
        files = {"name": object_name(context, "-files"), "items": _config_map_items(context)}
        entries.append({"name": "files", "configMap": files})
    return entries


def _pod_volume(name: str, claim: str | None, most_gib: int) -> dict[str, Any]:
    """A volume in a claim, or of the pod's own life and at most so large."""
    if claim is None:
        return {"name": name, "emptyDir": {"sizeLimit": f"{most_gib}Gi"}}
    return {"name": name, "persistentVolumeClaim": {"claimName": claim}}


def volume_mounts(context: Context) -> list[dict[str, Any]]:
    """Return where containers mount the volumes."""
    model = {"name": "model", "mountPath": context.model_source, "readOnly": True}
    return [
        {"name": "cache", "mountPath": CACHE},
        *([model] if context.model_is_folder else []),
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - the kernel's, no temporary file
        {"name": "home", "mountPath": HOME},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the container's own
        {"name": "run", "mountPath": RUN},
        *([{"name": "files", "mountPath": ROOT, "readOnly": True}] if context.mounted else []),
    ]


def claim_name(context: Context) -> str | None:
    """The claim for the weights, the user's or the recipe's; None if a node's folder has them."""
    if context.parameters.model_cache:
        return context.parameters.model_cache
    return None if context.model_is_folder else object_name(context, "-models")


def run_claim(context: Context) -> str:
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
    data = {_config_map_key(path): text for path, text in context.mounted.items()}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": object_metadata(context, "-files"),
        "data": data,
    }


def _config_map_items(context: Context) -> list[dict[str, str]]:
    return [{"key": _config_map_key(path), "path": path} for path in context.mounted]


def _config_map_key(path: str) -> str:
    return path.replace("/", "..")


DNS, HTTPS, API_SERVER = 53, 443, 6443
KNATIVE = (
    "knative-serving"  # whose activator passes requests on, and whose autoscaler asks for counts
)


def served_ports(context: Context) -> list[int]:
    """The ports at which processes answer, and the first one."""
    answering = {port_of(context, p) for p in context.launch.processes if p.answers}
    return sorted(answering | {context.parameters.port})


def network_policy(
    context: Context,
    pods: dict[str, str],
    ports: Sequence[int],
    *,
    knative: bool = False,
    asks_cluster: bool = False,
) -> dict[str, Any]:
    """Lets in the namespace, monitoring and the gateway; lets out to itself, DNS and a hub.

    A training run lets in its own pods alone.

    Args:
        context: the recipe.
        pods: labels of its pods.
        ports: at which they answer.
        knative: whether requests arrive through Knative's proxy, at ports of its own.
        asks_cluster: whether a container beside the engine asks the cluster for other pods.
    """
    parameters = context.parameters
    callers = [{"podSelector": {}}, _namespace_selector(parameters.monitoring_namespace)]
    if parameters.gateway_namespace:
        callers.append(_namespace_selector(parameters.gateway_namespace))
    peers = {"podSelector": {"matchLabels": pods}}
    entry: dict[str, Any] = {"from": callers}
    if not knative:
        entry["ports"] = _tcp_ports(ports)
    outside = [] if context.model_is_folder else [HTTPS]
    if asks_cluster:
        outside = [HTTPS, API_SERVER]
    dns = {"ports": [{"protocol": protocol, "port": DNS} for protocol in ("UDP", "TCP")]}
    spec = {
        "podSelector": {"matchLabels": pods},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [
            *([entry] if context.kind == "serving" else []),
            {"from": [peers]},
            *([{"from": [_namespace_selector(KNATIVE)]}] if knative else []),
        ],
        "egress": [{"to": [peers]}, dns, *([{"ports": _tcp_ports(outside)}] if outside else [])],
    }
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": object_metadata(context),
        "spec": spec,
    }


def _namespace_selector(name: str) -> dict[str, Any]:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}


def _tcp_ports(ports: Iterable[int]) -> list[dict[str, Any]]:
    return [{"protocol": "TCP", "port": port} for port in ports]
