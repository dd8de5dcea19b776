#!/bin/bash
# The processes of one node. Arguments: the addresses of all nodes, in order.
set -euo pipefail
nodes=("$@")
root=$PWD
run=${RECIPE_RUN:-$root/run}
mkdir -p "$run"
command -v vllm >/dev/null || { echo 'vllm is not installed on this node' >&2; exit 127; }
case "$SLURM_NODEID" in
0)
    exec env VLLM_NO_USAGE_STATS=1 vllm serve meta-llama/Llama-3.1-70B-Instruct --host 127.0.0.1 --port 8000 \
        --served-model-name llama --tensor-parallel-size 8 --pipeline-parallel-size 1 --data-parallel-size 1 \
        --max-num-seqs 256
    ;;
esac
