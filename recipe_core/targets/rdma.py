"""What pods on several nodes need so that their devices talk as the estimate assumes.

InfiniBand and RoCE are reached past the kernel: a pod asks for a device plugin's resource, and must
be allowed to lock memory. Without these, NCCL, RCCL and NIXL talk over TCP, and say nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from recipe_core.base.errors import NoAnswer
from recipe_core.launch.process import Process
from recipe_core.targets import gke
from recipe_core.targets.context import Context
from recipe_core.targets.names import MachineNames, cluster_names

NONE = "none"  # the resource that asks for none
LOCKS_MEMORY = "IPC_LOCK"
NETWORKS = "k8s.v1.cni.cncf.io/networks"  # Multus


def crosses_nodes(context: Context) -> bool:
    return context.nodes > 1 or context.apart


HUGE_PAGES = "hugepages-2Mi"


def rdma_resources(context: Context, processes: Sequence[Process]) -> dict[str, str]:
    """What a pod with these processes asks for to reach the network; nothing where it needs none.

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
    if gke.network_of(context) is not None:
        return gke.pod_annotations(context)
    machine = rented_machine(context) if crosses_nodes(context) and not networks else None
    if machine and machine.attach:
        count = context.parameters.rdma_count or machine.share(context.devices_per_node)
        networks = ",".join([machine.attach] * count)
    return {NETWORKS: networks} if networks and crosses_nodes(context) else {}


def attached_pod_template(
    context: Context, labels: dict[str, str], spec: dict[str, Any]
) -> dict[str, Any]:
    """A pod template with what attaches its pods to further networks."""
    wired = gke.wire_pod_spec(context, spec)
    annotations = network_attachments(context)
    metadata = {"labels": labels, **({"annotations": annotations} if annotations else {})}
    return {"metadata": metadata, "spec": wired}
