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
from recipe_core.targets.objects import make_object
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


def recipe_object(
    context: Context, kind: str, suffix: str = "", /, **values: Any
) -> dict[str, Any]:
    """An object of the recipe, by its name in ``objects.yaml``; ``suffix`` ends its own name."""
    common = {
        "name": object_name(context),
        "metadata": object_metadata(context, suffix),
        "labels": pod_labels(context),
    }
    filled: dict[str, Any] = make_object(kind, **{**common, **values})
    return filled


def kustomization(resources: list[str]) -> dict[str, Any]:
    """The list of files that ``kubectl apply -k`` reads."""
    return dict(make_object("kustomization", resources=resources))


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


def pod_spec(context: Context, pod: Pod, values: Values, **fields: Any) -> dict[str, Any]:
    """The specification of a pod; ``fields`` are added to it (a restart policy)."""
    # a router alone needs no node with devices
    computes = context.vendor == "cpu" or any(process.devices for process in pod)
    names = cluster_names()
    spot = names.spot.get(context.spot or "") if computes else None
    selector = {spot.label: spot.value} if spot else {}
    # nodes are tainted by names of the resource, and as spot
    taints = (names.of(context.vendor, context.runtime).resource, spot.label if spot else None)
    return dict(
        make_object(
            "pod",
            host_network=rdma.pod_fields(context),
            security=pod_security(context, root=bool(rdma.rdma_resources(context, pod))),
            affinity=node_affinity(context.device, context.vendor, context.runtime)
            if computes
            else None,
            selector={**selector, **context.parameters.node_selector} or None,
            tolerations=[
                {"key": key, "operator": "Exists", "effect": "NoSchedule"}
                for key in taints
                if key is not None and computes
            ]
            or None,
            priority=context.parameters.priority_class,
            containers=[process_container(context, process, values) for process in pod],
            volumes=pod_volumes(context, pod),
            grace_s=supervise.grace_s(context),
            fields=fields,
        )
    )


def process_container(
    context: Context,
    process: Process,
    values: Values,
    name: str | None = None,
    *,
    asks: bool = True,
) -> dict[str, Any]:
    """One process as a container; ``asks``: whether its probes may ask it for tokens.

    It has no capability, but that to lock memory for devices that read it over the network. What
    is written goes to volumes of a limited size, unless the place says otherwise.
    """
    port = port_of(context, process)
    filled = {**values, "port": str(port)}
    ports = [{"name": port_name(process), "containerPort": port}] if process.answers else None
    serving = context.kind == "serving"
    return dict(
        make_object(
            "container",
            name=name or label_name(process.name),
            image=container_image(context),
            command=[fill_placeholders(word, filled, IN_KUBERNETES) for word in process.argv],
            folder=ROOT if context.mounted else RUN,
            env=environment_entries(context, process, filled),
            ports=ports,
            resources=container_resources(context, process),
            capabilities=[rdma.LOCKS_MEMORY] if rdma.rdma_resources(context, (process,)) else None,
            read_only=not context.parameters.writable_root,
            probes=container_probes(context, process, filled, asks=asks)
            if process.answers
            else None,
            drain_s=str(context.supervision.drain_s) if serving else None,
            mounts=make_object("mounts", **_mounted(context)),
        )
    )


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
    texts = (*process.argv, *process.env.values())
    return list(
        make_object(
            "env",
            own_address=any("${self}" in text for text in texts),
            variables=[{"name": key, "value": value} for key, value in variables.items()],
            token_secret=context.parameters.token_secret,
            key_variable=context.key_variable if process.answers else None,
            key_secret=context.parameters.api_key_secret,
        )
    )


def pod_security(context: Context, *, root: bool) -> dict[str, Any]:
    """Not root, but for pods that lock memory: a capability is of no use to other users.

    AMD's runtime needs system calls that the default seccomp profile blocks, and the groups that
    own its devices.
    """
    amd = context.vendor == "amd"
    return dict(
        make_object(
            "pod-security",
            plain=not root,
            user=0 if root else USER,
            seccomp="Unconfined" if amd else "RuntimeDefault",
            groups=list(context.parameters.device_groups) if amd else None,
        )
    )


def pod_volumes(context: Context, pod: Pod) -> list[dict[str, Any]]:
    """The weights' cache (or the model's folder), shared memory, writable folders, bundle files."""
    cache, run = claim_name(context), run_claim(context) if context.kind == "training" else None
    return list(
        make_object(
            "volumes",
            **_mounted(context),
            cache_size=None if cache else f"{HOME_GIB}Gi",
            cache_claim=cache,
            shared_gib=max(8, 4 * sum(len(process.devices) for process in pod)),
            home_gib=HOME_GIB,
            tmp_gib=TMP_GIB,
            run_size=None if run else f"{run_gib(context)}Gi",
            run_claim=run,
            files_name=object_name(context, "-files"),
        )
    )


def _mounted(context: Context) -> dict[str, Any]:
    """Return what pods mount besides their own folders: the model's, and files of the bundle.

    Raises:
        NoAnswer: for data and rewards that are files of a node, where any node may run a pod.
    """
    if context.node_files:
        raise NoAnswer(
            f"{context.node_files[0]} is a file of a node, which pods do not see.",
            field="workload.data",
            hint="Use Slurm or SkyPilot, or leave it out and start with the sample.",
        )
    files = [{"key": _config_map_key(path), "path": path} for path in context.mounted]
    folder = context.model_source if context.model_is_folder else None
    return {"model_folder": folder, "files": files or None}


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
    files = {_config_map_key(path): text for path, text in context.mounted.items()}
    return recipe_object(context, "files", "-files", files=files)


def _config_map_key(path: str) -> str:
    return path.replace("/", "..")


HTTPS, API_SERVER = 443, 6443


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
    outside = [] if context.model_is_folder else [HTTPS]
    if asks_cluster:
        outside = [HTTPS, API_SERVER]
    return recipe_object(
        context,
        "network-policy",
        pods=pods,
        ports=None if knative else _tcp_ports(ports),
        outside=_tcp_ports(outside) or None,
        serving=context.kind == "serving",
        monitoring=context.parameters.monitoring_namespace,
        gateway=context.parameters.gateway_namespace,
        knative=knative,
    )


def _tcp_ports(ports: Iterable[int]) -> list[dict[str, Any]]:
    return [{"protocol": "TCP", "port": port} for port in ports]
