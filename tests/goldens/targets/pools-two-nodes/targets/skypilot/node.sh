#!/bin/bash
# The processes of one node. Arguments: the addresses of all nodes, in order.
set -euo pipefail
nodes=("$@")
root=$PWD
run=${RECIPE_RUN:-$root/run}
mkdir -p "$run"
command -v vllm >/dev/null || { echo 'vllm is not installed on this node' >&2; exit 127; }
command -v vllm-router >/dev/null || { echo 'vllm-router is not installed on this node' >&2; exit 127; }
case "$SKYPILOT_NODE_RANK" in
0)
    env VLLM_NIXL_SIDE_CHANNEL_HOST="${nodes[0]}" VLLM_NIXL_SIDE_CHANNEL_PORT=5600 CUDA_VISIBLE_DEVICES=0,1,2,3 vllm \
        serve meta-llama/Llama-3.1-70B-Instruct --host 0.0.0.0 --port 8001 --served-model-name llama \
        --tensor-parallel-size 4 --pipeline-parallel-size 1 --data-parallel-size 1 &
    env vllm-router --host 127.0.0.1 --port 8000 --prefill http://"${nodes[0]}":8001 --decode \
        http://"${nodes[1]}":8002 &
    ;;
1)
    exec env VLLM_NIXL_SIDE_CHANNEL_HOST="${nodes[1]}" VLLM_NIXL_SIDE_CHANNEL_PORT=5700 vllm serve \
        meta-llama/Llama-3.1-70B-Instruct --host 0.0.0.0 --port 8002 --served-model-name llama --tensor-parallel-size \
        4 --pipeline-parallel-size 1 --data-parallel-size 1
    ;;
esac
# A node fails with the first of its processes, and stops the others.
# One that is told to stop waits for what its processes still do.
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
trap 'kill $(jobs -p) 2>/dev/null || true; wait; exit 0' TERM
wait -n
