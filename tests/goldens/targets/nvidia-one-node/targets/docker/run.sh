#!/bin/bash
# Argument: docker (the default) or podman.
set -euo pipefail
cd "$(dirname "$0")/../.."
engine="${1:-docker}"
gpus() {  # docker wants the list in quotes of its own, podman CDI device names
    if [ "$engine" = docker ]; then
        devices=(--gpus "\"device=$1\"")
    else
        IFS=, read -r -a numbers <<< "$1"
        devices=("${numbers[@]/#/--device=nvidia.com/gpu=}")
    fi
}
if [ "$engine" = docker ]; then
    logs=(--log-driver json-file --log-opt max-size=100m --log-opt max-file=3)
else  # podman keeps one file, of the size of docker's together
    logs=(--log-driver k8s-file --log-opt max-size=300m)
fi
# Who reads this bundle; not root, whose rights no engine needs.
user="$(id -u):$(id -g)"
[ "$user" != 0:0 ] || user=1000:1000
user="${RECIPE_USER:-$user}"
"$engine" run --rm \
    --user root \
    --network=none \
    --cap-drop=ALL \
    --cap-add=CHOWN \
    --cap-add=DAC_OVERRIDE \
    --cap-add=FOWNER \
    --security-opt=no-new-privileges \
    --volume llama-3-1-70b-h100-sxm-tp8-vllm-models:/models \
    --volume llama-3-1-70b-h100-sxm-tp8-vllm-run:/run/recipe \
    --volume llama-3-1-70b-h100-sxm-tp8-vllm-home:/home/recipe \
    --entrypoint chown vllm/vllm-openai:v0.32.0@sha256:5b8511ec5b8511ec5b8511ec5b8511ec5b8511ec5b8511ec5b8511ec5b8511ec \
    -R "$user" /models /run/recipe /home/recipe
gpus 0,1,2,3,4,5,6,7
"$engine" run --detach \
    --name llama-3-1-70b-h100-sxm-tp8-vllm-server-0 \
    --restart unless-stopped \
    --stop-timeout 60 \
    --init \
    --user "$user" \
    --cap-drop=ALL \
    --security-opt=no-new-privileges \
    "${logs[@]}" \
    --memory 1946g \
    --publish 127.0.0.1:8000:8000 \
    "${devices[@]}" \
    --shm-size 32g \
    --volume llama-3-1-70b-h100-sxm-tp8-vllm-models:/models \
    --volume llama-3-1-70b-h100-sxm-tp8-vllm-run:/run/recipe \
    --volume llama-3-1-70b-h100-sxm-tp8-vllm-home:/home/recipe \
    --env HF_HOME=/models \
    --env HOME=/home/recipe \
    --env USER=recipe \
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
