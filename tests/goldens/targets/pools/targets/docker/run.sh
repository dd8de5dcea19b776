#!/bin/bash
# Argument: docker (the default) or podman.
set -euo pipefail
cd "$(dirname "$0")/../.."
engine="${1:-docker}"
gpus() {  # docker wants the list in quotes of its own, podman CDI device names
    if [ "$engine" = docker ]; then
        printf -- '--gpus "device=%s"' "$1"
    else
        printf -- '--device nvidia.com/gpu=%s ' ${1//,/ }
    fi
}
"$engine" run --detach \
    --name llama-3-1-70b-h100-sxm-tp4-pools-vllm-prefill-0 \
    --restart unless-stopped \
    --stop-timeout 60 \
    --publish 127.0.0.1:8001:8001 \
    --publish 127.0.0.1:8002:8002 \
    --publish 127.0.0.1:8000:8000 \
    $(gpus 0,1,2,3) \
    --shm-size 16g \
    --volume llama-3-1-70b-h100-sxm-tp4-pools-vllm-models:/models \
    --volume llama-3-1-70b-h100-sxm-tp4-pools-vllm-run:/run/recipe \
    --env HF_HOME=/models \
    --env VLLM_NIXL_SIDE_CHANNEL_HOST=127.0.0.1 \
    --env VLLM_NIXL_SIDE_CHANNEL_PORT=5600 \
    --env HF_TOKEN \
    --entrypoint vllm vllm/vllm-openai:v0.32.0@sha256:5b8511ec5b8511ec5b8511ec5b8511ec5b8511ec5b8511ec5b8511ec5b8511ec serve meta-llama/Llama-3.1-70B-Instruct \
    --host 0.0.0.0 \
    --port 8001 \
    --served-model-name llama \
    --tensor-parallel-size 4 \
    --pipeline-parallel-size 1 \
    --data-parallel-size 1
"$engine" run --detach \
    --name llama-3-1-70b-h100-sxm-tp4-pools-vllm-decode-0 \
    --restart unless-stopped \
    --stop-timeout 60 \
    --network container:llama-3-1-70b-h100-sxm-tp4-pools-vllm-prefill-0 \
    $(gpus 4,5,6,7) \
    --shm-size 16g \
    --volume llama-3-1-70b-h100-sxm-tp4-pools-vllm-models:/models \
    --volume llama-3-1-70b-h100-sxm-tp4-pools-vllm-run:/run/recipe \
    --env HF_HOME=/models \
    --env VLLM_NIXL_SIDE_CHANNEL_HOST=127.0.0.1 \
    --env VLLM_NIXL_SIDE_CHANNEL_PORT=5700 \
    --env HF_TOKEN \
    --entrypoint vllm vllm/vllm-openai:v0.32.0@sha256:5b8511ec5b8511ec5b8511ec5b8511ec5b8511ec5b8511ec5b8511ec5b8511ec serve meta-llama/Llama-3.1-70B-Instruct \
    --host 0.0.0.0 \
    --port 8002 \
    --served-model-name llama \
    --tensor-parallel-size 4 \
    --pipeline-parallel-size 1 \
    --data-parallel-size 1
"$engine" run --detach \
    --name llama-3-1-70b-h100-sxm-tp4-pools-vllm-router \
    --restart unless-stopped \
    --stop-timeout 60 \
    --network container:llama-3-1-70b-h100-sxm-tp4-pools-vllm-prefill-0 \
    --shm-size 8g \
    --volume llama-3-1-70b-h100-sxm-tp4-pools-vllm-models:/models \
    --volume llama-3-1-70b-h100-sxm-tp4-pools-vllm-run:/run/recipe \
    --env HF_HOME=/models \
    --env HF_TOKEN \
    --entrypoint vllm-router vllm/vllm-openai:v0.32.0@sha256:5b8511ec5b8511ec5b8511ec5b8511ec5b8511ec5b8511ec5b8511ec5b8511ec \
    --host 0.0.0.0 \
    --port 8000 \
    --prefill http://127.0.0.1:8001 \
    --decode http://127.0.0.1:8002
