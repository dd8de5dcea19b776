"""Slurm: one script to submit, one that every node runs."""

from __future__ import annotations

import math
from typing import Any

from recipe_core.base import texts
from recipe_core.launch.templates import read_templates
from recipe_core.payload.launcher.api import is_loopback
from recipe_core.targets import supervise
from recipe_core.targets.context import Context
from recipe_core.targets.names import cluster_names
from recipe_core.targets.node_script import NOT_FOUND, listening_host, node_script
from recipe_core.targets.objects import SCRIPTS, make_script
from recipe_core.targets.pod import object_name
from recipe_core.targets.resources import host_gib

FOLDER = "targets/slurm"
ANY = "any"  # the type that asks for none
FLAG = object()  # marks an option without a value
CPUS_PER_DEVICE, MEMORY_GIB_PER_DEVICE = 8, 64  # assumed, where a node is shared

WRONG = 2  # its exit code, after which another start would meet the same devices
ANYWAY = "RECIPE_ANY_DEVICE"  # set to 1 by those who start on other devices on purpose


def slurm_files(context: Context) -> dict[str, str]:
    """``job.sbatch``, submitted from the bundle's folder, ``node.sh``, and ``device.sh``.

    Raises:
        NoAnswer: for a parameter that a line of #SBATCH cannot carry.
    """
    options = "".join(
        f"#SBATCH --{name}{'' if value is FLAG else f'={texts.quote_sbatch(value)}'}\n"
        for name, value in sbatch_directives(context).items()
    )
    check = device_check(context)
    return {
        f"{FOLDER}/job.sbatch": _job_script(context, options, checked=check is not None),
        **({f"{FOLDER}/device.sh": check} if check else {}),
        f"{FOLDER}/node.sh": node_script(context, "SLURM_NODEID", visible_given=True),
    }


def _job_script(context: Context, options: str, *, checked: bool) -> str:
    """The steps, what happens before the time limit, and what after a failure."""
    training = context.kind == "training"
    checkpoint_save = supervise.saves_on(context)[:1] if training else ()
    needed_s = supervise.first_checkpoint_s(context) if training else 0
    return make_script(
        "job",
        options=options,
        engine=context.engine,
        training=training,
        checked=checked,
        most_failures=supervise.most_failures(context),
        missing=NOT_FOUND,
        wrong=WRONG,
        tunnel=is_loopback(listening_host(context)),
        port=_entry_port(context),
        by_file=checkpoint_save == ("stop-file",),
        by_signal=checkpoint_save == ("signal",),
        stop_s=supervise.trainer_stop_s(context) if training else 0,
        needed_s=needed_s,
        needed_minutes=math.ceil(needed_s / 60) + 1,
    )


def _entry_port(context: Context) -> int:
    """The port that clients call: the router's, else the first server's."""
    processes = context.launch.processes
    entry = next((p for p in processes if p.role == "router"), processes[0])
    return context.parameters.port + entry.port_offset


def sbatch_directives(context: Context) -> dict[str, Any]:
    """Options of sbatch by name; FLAG marks one without a value."""
    p = context.parameters
    training = context.kind == "training"
    options: dict[str, Any] = {
        "job-name": object_name(context),
        "nodes": context.nodes,
        "ntasks-per-node": 1,
        **_node_options(context),
        "time": context.time_limit_minutes,
        "partition": p.partition,
        "constraint": p.constraint,
        "account": p.account,
        "qos": p.queue,
        "output": "%x-%j.out",
        "open-mode": "append",
        "requeue": FLAG,
        "signal": f"B:{'USR1' if training else 'TERM'}@{supervise.before_limit_s(context)}",
    }
    return {name: value for name, value in options.items() if value is not None}


def _node_options(context: Context) -> dict[str, Any]:
    """A node and all its memory if the recipe uses all its devices, else a share per device."""
    node = {"exclusive": FLAG, "mem": 0}
    if context.vendor == "cpu":
        return node
    devices, kind = context.devices_per_node, gres_type(context)
    gpus = {"gpus-per-node": f"{kind}:{devices}" if kind else str(devices)}
    if context.nodes > 1 or context.devices_per_node >= context.devices_of_node:
        return {**gpus, **node}
    memory = max(MEMORY_GIB_PER_DEVICE, math.ceil(host_gib(context, devices) / devices))
    return {**gpus, "cpus-per-gpu": CPUS_PER_DEVICE, "mem-per-gpu": f"{memory}G"}


def gres_type(context: Context) -> str | None:
    """Return Slurm's name of the device: the user's word, else its usual name; None for any."""
    part, usual = context.slice_of, cluster_names().slurm.names.get(context.device)
    usual = part.name if part and part.kind == "mig" else usual
    kind = context.parameters.gpu_type or usual
    return None if kind == ANY else kind


def device_check(context: Context) -> str | None:
    """The script; None for a device whose driver's name is not known, or that has no driver."""
    names = driver_names(context)
    driver = read_templates(SCRIPTS)["drivers"].get(context.runtime)
    if driver is None or not names or context.slice_of:  # drivers tell of the whole device
        return None
    text = make_script("device_text", device=context.device, title=names[0], anyway=ANYWAY)
    return make_script(
        "device",
        wrong=WRONG,
        anyway=ANYWAY,
        planned=" ".join(texts.quote_shell(name.casefold()) for name in names),
        text=texts.quote_shell(text),
        **driver,
    )


def driver_names(context: Context) -> tuple[str, ...]:
    """Names that drivers report for the device; those without a space are this package's own."""
    return tuple(name for name in context.device_names if " " in name)
