"""What pods on several nodes need so that their devices talk as the estimate assumes.

InfiniBand and RoCE are reached past the kernel: a pod asks for a device plugin's resource, and must
be allowed to lock memory. Without these, NCCL, RCCL and NIXL talk over TCP, and say nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from recipe_core.launch.process import Process
from recipe_core.targets import gke
from recipe_core.targets.context import Context
from recipe_core.targets.names import names

NONE = "none"  # the resource that asks for none
LOCKS_MEMORY = "IPC_LOCK"
NETWORKS = "k8s.v1.cni.cncf.io/networks"  # Multus


def crosses(context: Context) -> bool:
    """Whether devices of several pods talk to each other."""
    return context.nodes > 1 or context.apart


def resource(context: Context, processes: Sequence[Process]) -> dict[str, str]:
    """The resource that a pod with these processes asks for; none where it needs none."""
    devices = sum(len(process.devices) for process in processes)
    known = names()
    usual = known.networks.get(context.network or "")
    name = context.parameters.rdma_resource or (usual and usual.resource)
    computes = known.of(context.vendor, context.runtime).resource is not None and devices
    on_gke = context.parameters.gke_network is not None
    if not crosses(context) or not computes or name in (None, NONE) or on_gke:
        return {}
    per_pod = devices if usual and usual.each_device else 1
    return {str(name): str(context.parameters.rdma_count or per_pod)}


def pod_fields(context: Context) -> dict[str, Any]:
    """Fields of a pod's specification for the host's network, where that is asked for."""
    if not (context.parameters.host_network and crosses(context)):
        return {}
    # names of the cluster, which the host's own resolver does not know
    return {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}


def attachments(context: Context) -> dict[str, str]:
    """Annotations of a pod that attach it to further networks."""
    attached = context.parameters.networks
    if gke.network_of(context) is not None:
        return gke.pod_annotations(context)
    return {NETWORKS: attached} if attached and crosses(context) else {}


def template(context: Context, labels: dict[str, str], spec: dict[str, Any]) -> dict[str, Any]:
    """A pod template with what attaches its pods to further networks."""
    wired = gke.wired(context, spec)
    attached = attachments(context)
    about = {"labels": labels, **({"annotations": attached} if attached else {})}
    return {"metadata": about, "spec": wired}
