"""Slurm: one script to submit, one that every node runs."""

from __future__ import annotations

import math
from typing import Any

from recipe_core.base import texts
from recipe_core.payload.launcher.sections import is_loopback
from recipe_core.targets import supervise
from recipe_core.targets.context import Context
from recipe_core.targets.names import cluster_names
from recipe_core.targets.node_script import NOT_FOUND, listening_host, node_script
from recipe_core.targets.pod import object_name
from recipe_core.targets.resources import host_gib

FOLDER = "targets/slurm"
ANY = "any"  # the type that asks for none
FLAG = object()  # marks an option without a value
CPUS_PER_DEVICE, MEMORY_GIB_PER_DEVICE = 8, 64  # assumed, where a node is shared

_HEAD = """set -euo pipefail
cd "$SLURM_SUBMIT_DIR"
# NodeAddr is what Slurm itself connects to; a node's name need not resolve.
nodes=()
for name in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
    nodes+=("$(scontrol show node "$name" | sed -n 's/.*NodeAddr=\\([^ ]*\\).*/\\1/p')")
done
"""
# A job goes back to the queue after a failure, but for those that another start would meet again.
# Slurm counts all its starts; those after an end of the time limit are kept apart, as no failures.
_AGAIN = """mkdir -p run
planned_file=run/slurm-$SLURM_JOB_ID.planned
planned=$(cat "$planned_file" 2>/dev/null || echo 0)
failures=$((${{SLURM_RESTART_COUNT:-0}} - planned))
most={most}
if ((failures > most)); then
    echo "gave up: $failures starts failed, and supervision allows $most" >&2
    exit 1
fi
again() {{  # its argument: how the step ended
    if (($1 == 0 || $1 == {wrong} || $1 == {missing} || failures >= most)); then
        exit "$1"
    fi
    # a job that is cancelled ends its step too, and must not come back
    case "$(scontrol show job --oneliner "$SLURM_JOB_ID")" in
        *JobState=RUNNING*) ;;
        *) exit "$1" ;;
    esac
    echo "the step ended with $1; back to the queue" >&2
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
}}
"""
# A step of its own, so that no node is killed before it has told what it has.
_CHECK = """srun bash targets/slurm/device.sh || again "$?"
"""
_STEP = """srun --kill-on-bad-exit=1 bash targets/slurm/node.sh "${nodes[@]}" &
step=$!
status=0
wait "$step" || status=$?
again "$status"
"""
_ANSWERS = """echo "$SLURM_JOB_NAME will answer on http://${{nodes[0]}}:{port}"
"""
# Where callers need no key, other machines get in by the account of the job's owner alone.
_TUNNEL = """echo "$SLURM_JOB_NAME will answer on port {port} of ${{nodes[0]}}, to that node alone"
echo "from elsewhere: ssh -N -L {port}:localhost:{port} ${{nodes[0]}}, then http://localhost:{port}"
"""
_SERVE = """# Slurm signals this shell before the time limit, and when the job is cancelled:
# servers are told to stop, finish what runs as far as their engine does, and the job ends.
trap 'trap "" TERM; scancel --signal=TERM "$SLURM_JOB_ID"; wait || true; exit 0' TERM
"""
_TRAIN = """# Slurm signals this shell before the limit; the job is requeued and resumes from its
# last checkpoint. Not SIGTERM, which a job that is cancelled gets too.
at_limit() {{
    trap '' USR1
    echo $((planned + 1)) > "$planned_file"
{stop}    scontrol requeue "$SLURM_JOB_ID"
    exit 0
}}
trap at_limit USR1
"""
# A limit that is too short for a checkpoint may be the partition's, or of who submits.
_LONG_ENOUGH = """seconds() {{  # of D-HH:MM:SS, HH:MM:SS or MM:SS
    local days=0 rest=$1 total=0 part
    if [[ $rest == *-* ]]; then days=${{rest%%-*}} rest=${{rest#*-}}; fi
    for part in ${{rest//:/ }}; do total=$((total * 60 + 10#$part)); done
    echo $((10#$days * 86400 + total))
}}
left=$(squeue --noheader --job "$SLURM_JOB_ID" --format %L || true)
if [[ $left =~ ^[0-9:-]+$ ]] && (($(seconds "$left") < {needed})); then
    echo "the job ends in $left, before it writes a checkpoint, {needed} s after its start:" >&2
    echo "submit it with --time={minutes} or more, or set time_limit_minutes and build again" >&2
    exit 2
fi
"""
_STOPPED = """    for ((waited = 0; waited < {wait_s}; waited++)); do
        kill -0 "${{step:-}}" 2>/dev/null || break
        sleep 1
    done
"""
_STOP = {
    # The trainer looks for this file after every step, and writes a checkpoint.
    "stop-file": f"    touch run/stop\n{_STOPPED}    rm -f run/stop\n",
    # All ranks get it, write a checkpoint and end.
    "signal": f'    scancel --signal=TERM "$SLURM_JOB_ID"\n{_STOPPED}',
}

WRONG = 2  # its exit code, after which another start would meet the same devices
ANYWAY = "RECIPE_ANY_DEVICE"  # set to 1 by those who start on other devices on purpose

# Commands that print the name of each device, as drivers report it.
_NAMES = {
    # a number or a UUID of each device of the job; all where there is none
    "cuda": (
        "nvidia-smi",
        "nvidia-smi --query-gpu=name --format=csv,noheader "
        '${CUDA_VISIBLE_DEVICES:+"--id=$CUDA_VISIBLE_DEVICES"}',
    ),
    # its releases put the name in one of several lines, some a number like 0x74a1
    "rocm": (
        "rocm-smi or amd-smi",
        "{ rocm-smi --showproductname || amd-smi static --asic; } |\n"
        "        sed -nE 's/.*(card series|card model|market_name):[[:space:]]*//Ip' |\n"
        "        grep -viE '^(0x|n/a|amd gpu)'",
    ),
}

_SCRIPT = """#!/bin/bash
# Ends with {wrong} on a node whose devices are others than the recipe was planned for.
set -euo pipefail
if [ "${{{anyway}:-}}" = 1 ]; then
    exit 0
fi
node=${{SLURMD_NODENAME:-$(hostname)}}
planned=({planned})  # as drivers name them
names() {{
    {names}
}}
if ! listed=$(names 2>/dev/null | sort -u) || [ -z "$listed" ]; then
    echo "$node: {tool} lists no devices, so they are not checked" >&2
    exit 0
fi
while IFS= read -r name; do
    for known in "${{planned[@]}}"; do
        if [ "${{name,,}}" = "$known" ]; then
            continue 2
        fi
    done
    echo "$node has $name;" {text} >&2
    exit {wrong}
done <<< "$listed"
"""


def slurm_files(context: Context) -> dict[str, str]:
    """``job.sbatch``, submitted from the bundle's folder, ``node.sh``, and ``device.sh``.

    Raises:
        NoAnswer: for a parameter that a line of #SBATCH cannot carry.
    """
    options = "".join(
        f"#SBATCH --{name}{'' if value is FLAG else f'={texts.quote_sbatch(value)}'}\n"
        for name, value in sbatch_directives(context).items()
    )
    usage = (
        f"# Submit from the bundle's folder, with {context.engine} on PATH:\n"
        f"# sbatch {FOLDER}/job.sbatch\n"
    )
    check = device_check(context)
    job = f"#!/bin/bash\n{options}{usage}{_HEAD}{_job_steps(context, checked=check is not None)}"
    return {
        f"{FOLDER}/job.sbatch": job,
        **({f"{FOLDER}/device.sh": check} if check else {}),
        f"{FOLDER}/node.sh": node_script(context, "SLURM_NODEID", visible_given=True),
    }


def _job_steps(context: Context, *, checked: bool) -> str:
    """The steps, what happens before the time limit, and what after a failure."""
    max_failures = supervise.most_failures(context)
    requeue_script = _AGAIN.format(most=max_failures, missing=NOT_FOUND, wrong=WRONG)
    requeue_script += _CHECK if checked else ""
    if context.kind == "serving":
        answers = _TUNNEL if is_loopback(listening_host(context)) else _ANSWERS
        return requeue_script + answers.format(port=_entry_port(context)) + _SERVE + _STEP
    saves_on, needed = supervise.saves_on(context), supervise.first_checkpoint_s(context)
    stop = _STOP[saves_on[0]].format(wait_s=supervise.trainer_stop_s(context)) if saves_on else ""
    check = _LONG_ENOUGH.format(needed=needed, minutes=math.ceil(needed / 60) + 1)
    return check + requeue_script + _TRAIN.format(stop=stop) + _STEP


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
    usual = cluster_names().slurm.names.get(context.device)
    kind = context.parameters.gpu_type or usual
    return None if kind == ANY else kind


def device_check(context: Context) -> str | None:
    """The script; None for a device whose driver's name is not known, or that has no driver."""
    names = driver_names(context)
    if context.runtime not in _NAMES or not names:
        return None
    tool, command = _NAMES[context.runtime]
    text = (
        f"the recipe is for {context.device} ({names[0]}). Set gpu_type, constraint or partition "
        f"so that the job gets those, plan again for this device, or set {ANYWAY}=1."
    )
    return _SCRIPT.format(
        wrong=WRONG,
        anyway=ANYWAY,
        planned=" ".join(texts.quote_shell(name.casefold()) for name in names),
        names=command,
        tool=tool,
        text=texts.quote_shell(text),
    )


def driver_names(context: Context) -> tuple[str, ...]:
    """Names that drivers report for the device; those without a space are this package's own."""
    return tuple(name for name in context.device_names if " " in name)
