#!/bin/bash
# Ends with 2 on a node whose devices are others than the recipe was planned for.
set -euo pipefail
if [ "${RECIPE_ANY_DEVICE:-}" = 1 ]; then
    exit 0
fi
node=${SLURMD_NODENAME:-$(hostname)}
planned=('amd instinct mi300x' 'amd instinct mi300x oam')  # as drivers name them
names() {
    { rocm-smi --showproductname || amd-smi static --asic; } |
        sed -nE 's/.*(card series|card model|market_name):[[:space:]]*//Ip' |
        grep -viE '^(0x|n/a|amd gpu)'
}
if ! listed=$(names 2>/dev/null | sort -u) || [ -z "$listed" ]; then
    echo "$node: rocm-smi or amd-smi lists no devices, so they are not checked" >&2
    exit 0
fi
while IFS= read -r name; do
    for known in "${planned[@]}"; do
        if [ "${name,,}" = "$known" ]; then
            continue 2
        fi
    done
    echo "$node has $name;" 'the recipe is for mi300x (AMD Instinct MI300X). Set gpu_type, constraint or partition so that the job gets those, plan again for this device, or set RECIPE_ANY_DEVICE=1.' >&2
    exit 2
done <<< "$listed"
