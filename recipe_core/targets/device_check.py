"""A script that ends where a node has other devices than those that the recipe was planned for."""

from __future__ import annotations

from recipe_core.base import quoting
from recipe_core.targets.context import Context

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
        planned=" ".join(quoting.shell(name.casefold()) for name in names),
        names=command,
        tool=tool,
        text=quoting.shell(text),
    )


def driver_names(context: Context) -> tuple[str, ...]:
    """Names that drivers report for the device; those without a space are this package's own."""
    return tuple(name for name in context.device_names if " " in name)
