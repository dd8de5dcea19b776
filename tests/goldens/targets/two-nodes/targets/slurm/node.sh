#!/bin/bash
# The processes of one node. Arguments: the addresses of all nodes, in order.
set -euo pipefail
nodes=("$@")
root=$PWD
run=$root/run
mkdir -p "$run"
command -v vllm >/dev/null || { echo 'vllm is not installed on this node' >&2; exit 127; }
case "$SLURM_NODEID" in
0)
    exec env vllm serve meta-llama/Llama-3.1-405B-Instruct --host 0.0.0.0 --port 8000 --served-model-name llama \
        --tensor-parallel-size 8 --pipeline-parallel-size 2 --data-parallel-size 1 --nnodes 2 --node-rank 0 \
        --master-addr "${nodes[0]}"
    ;;
1)
    exec env vllm serve meta-llama/Llama-3.1-405B-Instruct --host 0.0.0.0 --port 8000 --served-model-name llama \
        --tensor-parallel-size 8 --pipeline-parallel-size 2 --data-parallel-size 1 --nnodes 2 --node-rank 1 \
        --master-addr "${nodes[0]}" --headless
    ;;
esac
