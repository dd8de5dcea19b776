#!/bin/bash
# Ends with 2 on a node whose devices are others than the recipe was planned for.
set -euo pipefail
if [ "${RECIPE_ANY_DEVICE:-}" = 1 ]; then
    exit 0
fi
node=${SLURMD_NODENAME:-$(hostname)}
planned=('nvidia h100 80gb hbm3')  # as drivers name them
names() {
    nvidia-smi --query-gpu=name --format=csv,noheader ${CUDA_VISIBLE_DEVICES:+"--id=$CUDA_VISIBLE_DEVICES"}
}
if ! listed=$(names 2>/dev/null | sort -u) || [ -z "$listed" ]; then
    echo "$node: nvidia-smi lists no devices, so they are not checked" >&2
    exit 0
fi
while IFS= read -r name; do
    for known in "${planned[@]}"; do
        if [ "${name,,}" = "$known" ]; then
            continue 2
        fi
    done
    echo "$node has $name;" 'the recipe is for h100-sxm (NVIDIA H100 80GB HBM3). Set gpu_type, constraint or partition so that the job gets those, plan again for this device, or set RECIPE_ANY_DEVICE=1.' >&2
    exit 2
done <<< "$listed"
