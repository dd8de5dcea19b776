"""Pods on several nodes of Google Kubernetes Engine: its networks past the kernel.

``gke_network`` names one: GPUDirect-TCPX and -TCPXO need a daemon beside the program, RDMA only its
networks and libraries. What each takes is data (``gke.yaml``); installers of the plugins and the
objects of the networks are the cluster's.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from recipe_core.base.data_files import DataRow
from recipe_core.base.documents import read_shipped
from recipe_core.base.errors import NoAnswer
from recipe_core.base.provenance import Sourced
from recipe_core.targets.context import Context

# Devices of each of these machines, all of which a pod takes.
DEVICES = 8
ACCELERATOR = "cloud.google.com/gke-accelerator"
MAIN = "networking.gke.io/default-interface"
INTERFACES = "networking.gke.io/interfaces"
FIELD = "parameters.gke_network"
# Seconds that a daemon may take until it is ready, and between two looks.
START_S, LOOK_S = 300, 5


class Daemon(DataRow):
    """The side container; ``ready_file`` exists once it works, ``devices`` are given to it."""

    name: str
    image: str
    command: tuple[str, ...]
    capabilities: tuple[str, ...]
    env: dict[str, str]
    mounts: dict[str, str]
    devices: tuple[str, ...]
    ready_file: str | None = None


class GkeNetwork(DataRow):
    """What a pod needs for one of the networks.

    ``accelerators``: the label of nodes by device; ``interfaces``: of a pod, one for each of
    ``networks``; ``volumes``: folders of the node, which ``mounts`` puts into the program's
    container; ``profile``: a script that sets NCCL's variables.
    """

    title: str
    machines: str
    source: str
    accelerators: dict[str, str]
    interfaces: tuple[str, ...]
    networks: tuple[str, ...]
    volumes: dict[str, str]
    mounts: dict[str, str]
    env: dict[str, str]
    capabilities: tuple[str, ...] = ()
    profile: str | None = None
    daemon: Daemon | None = None


class GkeNetworks(Sourced):
    """The content of ``gke.yaml``."""

    networks: dict[str, GkeNetwork]


@cache
def gke_networks() -> GkeNetworks:
    """The shipped ``gke.yaml``, parsed once."""
    return GkeNetworks.model_validate(read_shipped(Path(__file__).with_name("gke.yaml")))


def network_of(context: Context) -> GkeNetwork | None:
    """The network that pods of several nodes are asked to use; None without one."""
    name, spans_nodes = context.parameters.gke_network, context.nodes > 1 or context.apart
    return gke_networks().networks[name] if name and spans_nodes else None


def refuse_gke_network(context: Context, object_kind: str) -> None:
    """Refuse a target that cannot have the network's side container or annotations.

    Raises:
        NoAnswer: where such a network is asked for.
    """
    if network_of(context) is not None:
        raise NoAnswer(
            f"{object_kind} cannot attach pods to GKE's {context.parameters.gke_network} networks.",
            field=FIELD,
            hint="Use the JobSet, PyTorchJob, Volcano or Kubernetes target.",
        )


def pod_annotations(context: Context) -> dict[str, str]:
    """Annotations that attach a pod to the networks, and give the daemon its devices.

    Raises:
        NoAnswer: where ``networks`` names more or fewer than the machine has interfaces.
    """
    network = network_of(context)
    if network is None:
        return {}
    network_names = context.parameters.networks
    names = network_names.split(",") if network_names else list(network.networks)
    if len(names) != len(network.interfaces):
        raise NoAnswer(
            f"networks names {len(names)}, but {network.machines} has "
            f"{len(network.interfaces)} interfaces for devices.",
            field="parameters.networks",
            hint="Name one network for each.",
        )
    pairs = [("eth0", "default"), *zip(network.interfaces, names, strict=True)]
    interfaces = [{"interfaceName": interface, "network": name} for interface, name in pairs]
    annotations = {MAIN: "eth0", INTERFACES: json.dumps(interfaces)}
    if (daemon := network.daemon) is not None:
        paths = "".join(f"- path: {path}\n" for path in daemon.devices)
        annotations[f"devices.gke.io/container.{daemon.name}"] = paths
    return annotations


def wire_pod_spec(context: Context, spec: dict[str, Any]) -> dict[str, Any]:
    """A pod's specification with what the network needs; the same where it has no devices.

    Raises:
        NoAnswer: for devices that these machines do not have, and pods without all of a machine's.
    """
    network = network_of(context)
    resource = "nvidia.com/gpu"
    limits = [container["resources"].get("limits", {}) for container in spec["containers"]]
    devices = sum(int(limit.get(resource, 0)) for limit in limits)
    if network is None or not devices:
        return spec
    label = network.accelerators.get(context.device)
    if label is None or devices != DEVICES:
        requested = context.device if label is None else f"pods of {devices} devices"
        profiles = " or ".join(network.accelerators)
        raise NoAnswer(
            f"{network.title} is of {network.machines}, whose pods have {DEVICES} {profiles}, not "
            f"{requested}.",
            field=FIELD,
            hint="Leave it out, or plan for that machine.",
        )
    containers = [
        _wire_container(network, container) if limit.get(resource) else container
        for container, limit in zip(spec["containers"], limits, strict=True)
    ]
    folders = [{"name": name, "hostPath": {"path": path}} for name, path in network.volumes.items()]
    wired_spec = {
        **{key: value for key, value in spec.items() if key != "affinity"},  # labels of no GKE node
        "nodeSelector": {**spec.get("nodeSelector", {}), ACCELERATOR: label},
        "securityContext": {**spec["securityContext"], **_ROOT},
        "containers": containers,
        "volumes": [*spec["volumes"], *folders],
    }
    if network.daemon is not None:
        wired_spec["initContainers"] = [
            _daemon_container(network.daemon),
            *spec.get("initContainers", []),
        ]
    return wired_spec


_ROOT = {"runAsNonRoot": False, "runAsUser": 0, "runAsGroup": 0}


def _wire_container(network: GkeNetwork, container: dict[str, Any]) -> dict[str, Any]:
    """The program's container, with the plugin's libraries and variables; its own come first."""
    variable_names = {entry["name"] for entry in container["env"]}
    added_variables = [
        {"name": name, "value": value}
        for name, value in network.env.items()
        if name not in variable_names
    ]
    mounts = [{"name": name, "mountPath": path} for name, path in network.mounts.items()]
    wired_container = {
        **container,
        "env": [*container["env"], *added_variables],
        "volumeMounts": [*container["volumeMounts"], *mounts],
    }
    if network.capabilities:
        security = container["securityContext"]
        added_to = {*security["capabilities"].get("add", ()), *network.capabilities}
        capabilities = {**security["capabilities"], "add": sorted(added_to)}
        wired_container["securityContext"] = {**security, "capabilities": capabilities}
    if network.profile is not None:
        script = f'source {network.profile} && exec "$@"'
        wired_container["command"] = ["/bin/bash", "-c", script, "bash", *container["command"]]
    return wired_container


def _daemon_container(daemon: Daemon) -> dict[str, Any]:
    """The side container, which starts before the program and ends with it."""
    container: dict[str, Any] = {
        "name": daemon.name,
        "image": daemon.image,
        "restartPolicy": "Always",
        "command": list(daemon.command),
        "env": [{"name": name, "value": value} for name, value in daemon.env.items()],
        "securityContext": {
            **_ROOT,
            "capabilities": {"add": list(daemon.capabilities)},
            "seccompProfile": {"type": "Unconfined"},
        },
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in daemon.mounts.items()],
    }
    if daemon.ready_file is not None:
        container["startupProbe"] = {
            "exec": {"command": ["cat", daemon.ready_file]},
            "periodSeconds": LOOK_S,
            "failureThreshold": START_S // LOOK_S,
        }
    return container


def gke_note(context: Context) -> str | None:
    """What the README says of it; None without such a network."""
    network = network_of(context)
    if network is None:
        return None
    names = context.parameters.networks or ",".join(network.networks)
    daemon = f" Beside each program runs `{network.daemon.image}`." if network.daemon else ""
    return (
        f"Pods attach to GKE's networks {names} for {network.title} ({network.machines}) and run "
        f"as root.{daemon} The cluster needs these Network objects (`networks` names others), and "
        f"the plugin's installer: {gke_networks().sources[network.source].url}"
    )
