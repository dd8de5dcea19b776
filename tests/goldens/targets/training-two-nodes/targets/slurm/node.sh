#!/bin/bash
# The processes of one node. Arguments: the addresses of all nodes, in order.
set -euo pipefail
nodes=("$@")
root=$PWD
run=${RECIPE_RUN:-$root/run}
mkdir -p "$run"
command -v torchrun >/dev/null || { echo 'torchrun is not installed on this node' >&2; exit 127; }
case "$SLURM_NODEID" in
0)
    exec env OMP_NUM_THREADS=1 torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-id recipe --rdzv-endpoint \
        "${nodes[0]}":29500 "$root"/trainer/train.py --config "$root"/training.yaml --folder "$run"
    ;;
1)
    exec env OMP_NUM_THREADS=1 torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-id recipe --rdzv-endpoint \
        "${nodes[0]}":29500 "$root"/trainer/train.py --config "$root"/training.yaml --folder "$run"
    ;;
esac
