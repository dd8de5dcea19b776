"""Resources that the container of a process asks for: devices, memory, disk; sizes of claims."""

from __future__ import annotations

import math
from typing import Any

from recipe_core.hardware.slices import pod_resource
from recipe_core.launch.process import Process
from recipe_core.targets import rdma
from recipe_core.targets.context import Context
from recipe_core.targets.names import cluster_names

GIB = 1 << 30
# Assumed, per device: what an engine needs on the host besides weights being loaded.
CPUS_PER_DEVICE, MEMORY_GIB_PER_DEVICE = 4, 16
ROUTER_GIB = 2  # assumed, of a router
# Assumed, per pod or container, in GiB: caches of compiled kernels and modules, logs and the like,
# /tmp with the log that the node keeps; and what is asked for of them.
HOME_GIB, RUN_GIB, TMP_GIB, ASKED_GIB = 32, 16, 16, 8
CHECKPOINTS_KEPT = 4  # that the place of a run has room for
# Of a checkpoint with fp32 weights and Adam's moments, where the estimate does not say.
BYTES_PER_PARAMETER = 16
SPARE_CACHE = 1.2  # times the weights: a partial download lies beside the finished files


def container_resources(context: Context, process: Process) -> dict[str, Any]:
    """Devices as limits; CPU as a request only, so that a burst is not slowed.

    Memory is limited to the devices' share of their node, which nothing else has a claim on: a leak
    takes no other pod's, and not the node's own. What is written to its disk is limited too.
    """
    resources = _compute_resources(context, process)
    if (scratch := scratch_gib(context)) is not None:
        resources["requests"]["ephemeral-storage"] = f"{ASKED_GIB}Gi"
        resources.setdefault("limits", {})["ephemeral-storage"] = f"{scratch}Gi"
    return resources


def scratch_gib(context: Context) -> int | None:
    """The most that a container writes to its node, in GiB; None where cached blocks go there."""
    return None if context.spills else HOME_GIB + run_gib(context) + TMP_GIB


def run_gib(context: Context) -> int:
    """Size of the folder of a pod's own files; some engines put a copy of the model there."""
    texts = (t for p in context.launch.processes for t in (*p.argv, *p.env.values()))
    copies = any("${run}" in text for text in texts)
    return RUN_GIB + (math.ceil(context.weights_bytes / GIB) if copies else 0)


def _compute_resources(context: Context, process: Process) -> dict[str, dict[str, str]]:
    count, resource = (
        len(process.devices),
        cluster_names().of(context.vendor, context.runtime).resource,
    )
    if resource is None:
        needed = math.ceil(context.estimate.get("memory", {}).get("total_bytes", 0) / GIB)
        needed = max(needed, 1) + math.ceil(context.launch.host_bytes / GIB)
        return {
            "requests": {"cpu": str(CPUS_PER_DEVICE), "memory": f"{needed}Gi"},
            "limits": {"memory": f"{2 * needed + ROUTER_GIB}Gi"},
        }
    if not count:  # a router
        memory = {"memory": f"{ROUTER_GIB}Gi"}
        return {"requests": {"cpu": "1", **memory}, "limits": {"memory": f"{2 * ROUTER_GIB}Gi"}}
    needed_gib = host_gib(context, count)
    requests = {"cpu": str(CPUS_PER_DEVICE * count), "memory": f"{needed_gib}Gi"}
    resource = pod_resource(context.slice_of) if context.slice_of else resource
    devices = {resource: str(count), **rdma.rdma_resources(context, (process,))}
    share = context.host_share_bytes(count)
    # without a word on the node's memory, twice what is needed
    limit_gib = max(share // GIB, needed_gib) if share else 2 * needed_gib
    return {"requests": requests | devices, "limits": {"memory": f"{limit_gib}Gi", **devices}}


def host_gib(context: Context, devices: int) -> int:
    """Host memory that processes on so many devices of a node need, in GiB.

    What an engine needs beside weights that are loaded, cached blocks and sleeping states that wait
    there, and copies of the model that a trainer loads or saves.
    """
    host_bytes = context.offloaded_bytes_per_device * devices
    host_bytes += context.launch.host_bytes * devices / context.devices_per_node
    return MEMORY_GIB_PER_DEVICE * devices + math.ceil(host_bytes / GIB)


def cache_gib(context: Context) -> int:
    """Size of the claim for the weights, in GiB."""
    return context.parameters.cache_gib or math.ceil(SPARE_CACHE * context.weights_bytes / GIB) + 1


def checkpoints_gib(context: Context) -> int:
    """Size of what a run keeps of its checkpoints, with one that is being written, in GiB."""
    estimated = context.estimate.get("run", {}).get("checkpoint_bytes")
    # without an estimate: the weights' file has 2 bytes per parameter
    size = estimated or BYTES_PER_PARAMETER / 2 * context.weights_bytes
    return math.ceil(CHECKPOINTS_KEPT * size / GIB) + 1
