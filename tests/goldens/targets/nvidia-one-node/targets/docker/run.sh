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
logs() {  # podman keeps one file, of the size of docker's together
    if [ "$engine" = docker ]; then
        echo "--log-driver json-file --log-opt max-size=100m --log-opt max-file=3"
    else
        echo "--log-driver k8s-file --log-opt max-size=300m"
    fi
}
"$engine" run --detach \
    --name llama-3-1-70b-h100-sxm-tp8-vllm-server-0 \
    --restart unless-stopped \
    --stop-timeout 60 \
    --init \
    --cap-drop=ALL \
    --security-opt=no-new-privileges \
    $(logs) \
    --publish 127.0.0.1:8000:8000 \
    $(gpus 0,1,2,3,4,5,6,7) \
    --shm-size 32g \
    --volume llama-3-1-70b-h100-sxm-tp8-vllm-models:/models \
    --volume llama-3-1-70b-h100-sxm-tp8-vllm-run:/run/recipe \
    --env HF_HOME=/models \
    --env VLLM_NO_USAGE_STATS=1 \
    --env HF_TOKEN \
    --entrypoint vllm vllm/vllm-openai:v0.32.0@sha256:5b8511ec5b8511ec5b8511ec5b8511ec5b8511ec5b8511ec5b8511ec5b8511ec serve meta-llama/Llama-3.1-70B-Instruct \
    --host 0.0.0.0 \
    --port 8000 \
    --served-model-name llama \
    --tensor-parallel-size 8 \
    --pipeline-parallel-size 1 \
    --data-parallel-size 1 \
    --max-num-seqs 256
