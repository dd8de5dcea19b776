"""The needs of pods on several nodes so that devices talk as the estimate assumes.

InfiniBand and RoCE are reached past the kernel: a pod asks for a device plugin's resource, and must
be allowed to lock memory. Without these, NCCL, RCCL and NIXL talk over TCP, and say nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from recipe_core.base.data_files import DataRow
from recipe_core.base.documents import read_shipped
from recipe_core.base.errors import NoAnswer
from recipe_core.base.provenance import Sourced
from recipe_core.launch.process import Process
from recipe_core.targets.context import Context
from recipe_core.targets.names import MachineNames, cluster_names
from recipe_core.targets.objects import make_object

# Devices of each of these machines, all of which a pod takes.
DEVICES = 8
ACCELERATOR = "cloud.google.com/gke-accelerator"
MAIN = "networking.gke.io/default-interface"
INTERFACES = "networking.gke.io/interfaces"
FIELD = "parameters.gke_network"


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
    """The needs of a pod for one of the networks.

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
    return dict(
        make_object(
            "gke-daemon",
            name=daemon.name,
            image=daemon.image,
            command=list(daemon.command),
            env=[{"name": name, "value": value} for name, value in daemon.env.items()],
            capabilities=list(daemon.capabilities),
            mounts=[{"name": name, "mountPath": path} for name, path in daemon.mounts.items()],
            ready_file=daemon.ready_file,
        )
    )


def gke_note(context: Context) -> str | None:
    """Say what the README says of it; None without such a network."""
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


NONE = "none"  # the resource that asks for none
LOCKS_MEMORY = "IPC_LOCK"
NETWORKS = "k8s.v1.cni.cncf.io/networks"  # Multus


def crosses_nodes(context: Context) -> bool:
    return context.nodes > 1 or context.apart


HUGE_PAGES = "hugepages-2Mi"


def rdma_resources(context: Context, processes: Sequence[Process]) -> dict[str, str]:
    """Return what a pod with these processes asks for to reach the network; empty without needs.

    Raises:
        NoAnswer: where a machine's number of interfaces counts and is not known.
    """
    devices = sum(len(process.devices) for process in processes)
    parameters, usual = context.parameters, cluster_names().networks.get(context.network or "")
    computes = cluster_names().of(context.vendor, context.runtime).resource is not None and devices
    if parameters.gke_network is not None:
        return {}
    if (
        not crosses_nodes(context)
        or not computes
        or parameters.rdma_resource == NONE
        or usual is None
    ):
        return _stated_resource(context) if computes and crosses_nodes(context) else {}
    rented, shared = rented_machine(context), cluster_names().shared.get(context.provider or "")
    if usual.provider and rented is None and parameters.rdma_count is None:
        raise NoAnswer(
            f"how many EFA interfaces a machine with {context.device} has is not known.",
            field="parameters.rdma_count",
            hint="Set rdma_count to the number that a pod asks for, or another network.",
        )
    name = parameters.rdma_resource or (rented and rented.resource) or usual.resource
    if shared and not parameters.rdma_resource:
        name = shared.resource
    count = parameters.rdma_count or (rented.share(devices) if rented else 1)
    huge = math.ceil(rented.huge_mib * devices / rented.devices) if rented else 0
    return {str(name): str(count), **({HUGE_PAGES: f"{huge}Mi"} if huge else {})}


def _stated_resource(context: Context) -> dict[str, str]:
    """The resource that only the deployment settings name."""
    name = context.parameters.rdma_resource
    if name in (None, NONE):
        return {}
    return {str(name): str(context.parameters.rdma_count or 1)}


def rented_machine(context: Context) -> MachineNames | None:
    """The type of machine whose interfaces count: the network's provider's, else the offer's.

    None where the network is not the one that the machine's interfaces are of.
    """
    if context.parameters.rdma_resource or cluster_names().shared.get(context.provider or ""):
        return None
    usual = cluster_names().networks.get(context.network or "")
    owner = usual.provider if usual else None
    provider = owner or context.provider
    if provider is None:
        return None
    machine = cluster_names().machine(context.device, context.instance, provider)
    return machine if machine and (owner or machine.resource) else None


def pod_fields(context: Context) -> dict[str, Any]:
    """Fields of a pod's specification for the host's network, where that is asked for."""
    if not (context.parameters.host_network and crosses_nodes(context)):
        return {}
    # names of the cluster, which the host's own resolver does not know
    return {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}


def network_attachments(context: Context) -> dict[str, str]:
    """Annotations of a pod that attach it to further networks."""
    networks = context.parameters.networks
    if network_of(context) is not None:
        return pod_annotations(context)
    machine = rented_machine(context) if crosses_nodes(context) and not networks else None
    if machine and machine.attach:
        count = context.parameters.rdma_count or machine.share(context.devices_per_node)
        networks = ",".join([machine.attach] * count)
    return {NETWORKS: networks} if networks and crosses_nodes(context) else {}


def attached_pod_template(
    context: Context, labels: dict[str, str], spec: dict[str, Any]
) -> dict[str, Any]:
    """A pod template with what attaches its pods to further networks."""
    wired = wire_pod_spec(context, spec)
    annotations = network_attachments(context)
    metadata = {"labels": labels, **({"annotations": annotations} if annotations else {})}
    return {"metadata": metadata, "spec": wired}
