"""Slurm: one script to submit, one that every node runs."""

from __future__ import annotations

import math
from typing import Any

from recipe_core.base import quoting
from recipe_core.base.errors import HardwareError
from recipe_core.hardware.cluster import device
from recipe_core.targets.context import Context
from recipe_core.targets.node_script import node_script
from recipe_core.targets.pod import object_name

FOLDER = "targets/slurm"
SERVING_MINUTES, TRAINING_MINUTES = 24 * 60, 48 * 60  # requested where the user sets no limit
SIGNAL_S = 300  # so long before its limit a training job is requeued, to resume from a checkpoint
FLAG = object()  # marks an option without a value
CPUS_PER_DEVICE, MEMORY_PER_DEVICE = 8, "64G"  # assumed, where a node is shared

_HEAD = """set -euo pipefail
cd "$SLURM_SUBMIT_DIR"
# NodeAddr is what Slurm itself connects to; a node's name need not resolve.
nodes=()
for name in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
    nodes+=("$(scontrol show node "$name" | sed -n 's/.*NodeAddr=\\([^ ]*\\).*/\\1/p')")
done
"""
_SERVE = """echo "$SLURM_JOB_NAME will answer on http://${{nodes[0]}}:{port}"
srun --kill-on-bad-exit=1 bash targets/slurm/node.sh "${{nodes[@]}}"
"""
_TRAIN = """# Slurm signals this shell before the limit; the job is requeued and resumes from its
# last checkpoint.
trap 'scontrol requeue "$SLURM_JOB_ID"; exit 0' USR1
srun --kill-on-bad-exit=1 bash targets/slurm/node.sh "${nodes[@]}" &
wait $!
"""


def files(context: Context) -> dict[str, str]:
    """``job.sbatch``, submitted from the bundle's folder, and ``node.sh``.

    Raises:
        NoAnswer: for a parameter that a line of #SBATCH cannot carry.
    """
    options = "".join(
        f"#SBATCH --{name}{'' if value is FLAG else f'={quoting.sbatch(value)}'}\n"
        for name, value in directives(context).items()
    )
    usage = (
        f"# Submit from the bundle's folder, with {context.engine} on PATH:\n"
        f"# sbatch {FOLDER}/job.sbatch\n"
    )
    run = _TRAIN if context.kind == "training" else _SERVE.format(port=_entry_port(context))
    script = node_script(context, "SLURM_NODEID", visible_given=True)
    return {
        f"{FOLDER}/job.sbatch": f"#!/bin/bash\n{options}{usage}{_HEAD}{run}",
        f"{FOLDER}/node.sh": script,
    }


def _entry_port(context: Context) -> int:
    """The port that clients call: the router's, else the first server's."""
    processes = context.launch.processes
    entry = next((p for p in processes if p.role == "router"), processes[0])
    return context.parameters.port + entry.port_offset


def directives(context: Context) -> dict[str, Any]:
    """Options of sbatch by name; FLAG marks one without a value."""
    p = context.parameters
    training = context.kind == "training"
    options: dict[str, Any] = {
        "job-name": object_name(context),
        "nodes": context.nodes,
        "ntasks-per-node": 1,
        **_node(context),
        "time": p.time_limit_minutes or (TRAINING_MINUTES if training else SERVING_MINUTES),
        "partition": p.partition,
        "account": p.account,
        "qos": p.queue,
        "output": "%x-%j.out",
    }
    if training:
        options |= {"open-mode": "append", "requeue": FLAG, "signal": f"B:USR1@{SIGNAL_S}"}
    return {name: value for name, value in options.items() if value is not None}


def _node(context: Context) -> dict[str, Any]:
    """A node and all its memory if the recipe uses all its devices, else a share per device."""
    node = {"exclusive": FLAG, "mem": 0}
    if context.vendor == "cpu":
        return node
    gpus = {"gpus-per-node": context.devices_per_node}
    if context.nodes > 1 or context.devices_per_node >= _devices_of_node(context):
        return {**gpus, **node}
    return {**gpus, "cpus-per-gpu": CPUS_PER_DEVICE, "mem-per-gpu": MEMORY_PER_DEVICE}


def _devices_of_node(context: Context) -> float:
    try:
        return device(context.device).node.devices
    except HardwareError:
        return math.inf  # a profile that is not shipped: the size of a node is not known here
