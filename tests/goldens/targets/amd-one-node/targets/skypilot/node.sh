#!/bin/bash
# The processes of one node. Arguments: the addresses of all nodes, in order.
set -euo pipefail
nodes=("$@")
root=$PWD
run=${RECIPE_RUN:-$root/run}
mkdir -p "$run"
[ -n "${VLLM_API_KEY:-}" ] || { echo 'VLLM_API_KEY is not set: export the key that callers send' >&2; exit 2; }
command -v python3 >/dev/null || { echo 'python3 is not installed on this node' >&2; exit 127; }
command -v vllm >/dev/null || { echo 'vllm is not installed on this node' >&2; exit 127; }
case "$SKYPILOT_NODE_RANK" in
0)
    exec env python3 "$root"/engine/keyed.py VLLM_API_KEY -- vllm serve Qwen/Qwen3-30B-A3B --host 0.0.0.0 --port 8000 \
        --served-model-name llama --tensor-parallel-size 2 --pipeline-parallel-size 1 --data-parallel-size 1 \
        --middleware keyed.Guard
    ;;
esac
