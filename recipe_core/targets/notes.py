"""What to know of a recipe's files for clusters, where they ask for what a cluster may not have."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from recipe_core.targets import gke, rdma
from recipe_core.targets.context import Context
from recipe_core.targets.names import cluster_names
from recipe_core.targets.storage import shares_a_claim

KUBERNETES = frozenset(
    {
        "kubernetes",
        "knative",
        "kserve",
        "kserve-llm",
        "llm-d",
        "kubeflow-trainjob",
        "kubeflow-pytorchjob",
        "jobset",
        "volcano",
    }
)
# Which scale the pods of another target.
OVERLAYS = frozenset({"kubernetes-keda", "kubernetes-hpa"})
START_NOTHING = frozenset({"monitoring", "dynamo-planner"})
TCP = "ethernet-100"  # the network whose figures are those of TCP


def cluster_notes(context: Context, targets: Collection[str]) -> list[str]:
    """Sentences for the README of a bundle that has these targets, by name."""
    if not KUBERNETES & set(targets):
        return []
    if context.nodes > 1:
        return [*_network_notes(context, "Kubernetes"), *_storage_notes(context)]
    pools = any(process.role == "prefill" for process in context.launch.processes)
    apart = replace(context, apart=pools and "kserve-llm" in targets)
    return [*_network_notes(apart, "KServe"), *_storage_notes(context)]


def spot_note(context: Context, targets: Collection[str]) -> str:
    """Which targets ask for the spot devices that the price is of; empty for other prices."""
    if context.spot is None:
        return ""
    provider = cluster_names().spot.get(context.spot)
    asking, silent = list[str](), ["`launch.py`"]
    for name in targets:
        by_label = provider is not None and name in KUBERNETES | OVERLAYS
        if name == "skypilot" or by_label:
            asking.append(f"`{name}`")
        elif name not in START_NOTHING:
            silent.append(f"`{name}`")
    asks = f" Spot devices are asked for by {', '.join(asking)}." if asking else ""
    return (
        f"The price is a spot price: the devices may be taken back at any time.{asks} These cannot "
        f"ask for them, and run on machines that are rented as spot: {', '.join(silent)}."
    )


def _network_notes(context: Context, where: str) -> list[str]:
    """What carries the traffic between pods, against what the estimate assumes."""
    if (gke_text := gke.gke_note(context)) is not None:
        return [gke_text]
    usual = cluster_names().networks.get(context.network or "")
    if not rdma.crosses_nodes(context) or usual is None:
        return []
    resources = rdma.rdma_resources(context, context.launch.processes)
    assumed = context.network_title or context.network
    if not resources:
        return [
            f"On {where} the pods ask for no RDMA device, so nodes talk over TCP. The estimate "
            f"assumes {assumed}: it is slower than that. Set `rdma_resource`, or plan with "
            f"`hardware.network: {TCP}`."
        ]
    name, count = next(iter(resources.items()))
    notes = [
        f"On {where} each pod asks for {count} `{name}`{_rented_note(context)}, since the estimate "
        f"assumes {assumed}, and runs as root with no capability but {rdma.LOCKS_MEMORY}, to lock "
        "memory. Pods stay pending where the cluster calls it otherwise (`kubectl describe node` "
        "lists resources): set `rdma_resource`. `none` asks for none; nodes then talk over TCP, "
        "slower than estimated."
    ]
    if context.rack_scale:
        notes.append(
            "Nodes of a rack reach each other by NVLink only in one IMEX domain: give the pods a "
            "ComputeDomain of NVIDIA's DRA driver, or NCCL takes the network."
        )
    return notes


def _rented_note(context: Context) -> str:
    """Whose interfaces are counted, and what to set on machines that have more or fewer."""
    machine = rdma.rented_machine(context)
    if machine is None:
        return ""
    alternatives = [
        f"{alternative.interfaces} on {alternative.type}"
        for alternative in cluster_names().machines
        if (alternative.provider, alternative.device) == (machine.provider, machine.device)
        and alternative != machine
    ]
    alternatives_text = f"; set `rdma_count` to {', '.join(alternatives)}" if alternatives else ""
    pages = f", and {machine.huge_mib} MiB of huge pages a machine" if machine.huge_mib else ""
    return f" (a {machine.type} has {machine.interfaces}{pages}{alternatives_text})"


def _storage_notes(context: Context) -> list[str]:
    if not shares_a_claim(context) or context.parameters.shared_class:
        return []
    return [
        "Pods on several nodes share a volume (ReadWriteMany), of the cluster's default storage "
        "class. Where that is block storage the volume stays pending, and so do the pods: set "
        "`shared_storage_class` to a class of files (NFS, CephFS, EFS, Filestore, Lustre …)."
    ]
