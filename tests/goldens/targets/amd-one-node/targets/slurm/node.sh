#!/bin/bash
# The processes of one node. Arguments: the addresses of all nodes, in order.
set -euo pipefail
nodes=("$@")
root=$PWD
run=${RECIPE_RUN:-$root/run}
mkdir -p "$run"
# HIP counts within ROCR_VISIBLE_DEVICES. Slurm also sets CUDA_VISIBLE_DEVICES, which
# would filter once more.
unset CUDA_VISIBLE_DEVICES
[ -n "${VLLM_API_KEY:-}" ] || { echo 'VLLM_API_KEY is not set: export the key that callers send' >&2; exit 2; }
command -v python3 >/dev/null || { echo 'python3 is not installed on this node' >&2; exit 127; }
command -v vllm >/dev/null || { echo 'vllm is not installed on this node' >&2; exit 127; }
case "$SLURM_NODEID" in
0)
    env HIP_VISIBLE_DEVICES=0,1 python3 "$root"/engine/keyed.py VLLM_API_KEY -- vllm serve Qwen/Qwen3-30B-A3B --host \
        0.0.0.0 --port 8000 --served-model-name llama --tensor-parallel-size 2 --pipeline-parallel-size 1 \
        --data-parallel-size 1 --middleware keyed.Guard &
    env HIP_VISIBLE_DEVICES=2,3 python3 "$root"/engine/keyed.py VLLM_API_KEY -- vllm serve Qwen/Qwen3-30B-A3B --host \
        0.0.0.0 --port 8001 --served-model-name llama --tensor-parallel-size 2 --pipeline-parallel-size 1 \
        --data-parallel-size 1 --middleware keyed.Guard &
    env HIP_VISIBLE_DEVICES=4,5 python3 "$root"/engine/keyed.py VLLM_API_KEY -- vllm serve Qwen/Qwen3-30B-A3B --host \
        0.0.0.0 --port 8002 --served-model-name llama --tensor-parallel-size 2 --pipeline-parallel-size 1 \
        --data-parallel-size 1 --middleware keyed.Guard &
    env HIP_VISIBLE_DEVICES=6,7 python3 "$root"/engine/keyed.py VLLM_API_KEY -- vllm serve Qwen/Qwen3-30B-A3B --host \
        0.0.0.0 --port 8003 --served-model-name llama --tensor-parallel-size 2 --pipeline-parallel-size 1 \
        --data-parallel-size 1 --middleware keyed.Guard &
    ;;
esac
# A node fails with the first of its processes, and stops the others.
# One that is told to stop waits for what its processes still do.
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
trap 'kill $(jobs -p) 2>/dev/null || true; wait; exit 0' TERM
wait -n
