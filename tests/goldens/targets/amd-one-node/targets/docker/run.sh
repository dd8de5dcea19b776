#!/bin/bash
# Argument: docker (the default) or podman.
set -euo pipefail
cd "$(dirname "$0")/../.."
engine="${1:-docker}"
if [ "$engine" = docker ]; then
    logs=(--log-driver json-file --log-opt max-size=100m --log-opt max-file=3)
else  # podman keeps one file, of the size of docker's together
    logs=(--log-driver k8s-file --log-opt max-size=300m)
fi
: "${VLLM_API_KEY:?set VLLM_API_KEY to the key that callers send}"
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
    --volume qwen3-30b-a3b-mi300x-tp2-dp4-vllm-models:/models \
    --volume qwen3-30b-a3b-mi300x-tp2-dp4-vllm-run:/run/recipe \
    --volume qwen3-30b-a3b-mi300x-tp2-dp4-vllm-home:/home/recipe \
    --entrypoint chown vllm/vllm-openai-rocm:v0.32.0 \
    -R "$user" /models /run/recipe /home/recipe
"$engine" run --detach \
    --name qwen3-30b-a3b-mi300x-tp2-dp4-vllm-server-0 \
    --restart unless-stopped \
    --stop-timeout 60 \
    --init \
    --user "$user" \
    --cap-drop=ALL \
    --security-opt=no-new-privileges \
    --security-opt=seccomp=unconfined \
    "${logs[@]}" \
    --memory 512g \
    --publish 127.0.0.1:8000:8000 \
    --device=/dev/kfd \
    --device=/dev/dri \
    --group-add 44 \
    --group-add 109 \
    --shm-size 8g \
    --volume qwen3-30b-a3b-mi300x-tp2-dp4-vllm-models:/models \
    --volume qwen3-30b-a3b-mi300x-tp2-dp4-vllm-run:/run/recipe \
    --volume qwen3-30b-a3b-mi300x-tp2-dp4-vllm-home:/home/recipe \
    --volume "$PWD":/recipe:ro \
    --env HF_HOME=/models \
    --env HOME=/home/recipe \
    --env USER=recipe \
    --env HF_TOKEN \
    --env VLLM_API_KEY \
    --env HIP_VISIBLE_DEVICES=0,1 \
    --entrypoint python3 vllm/vllm-openai-rocm:v0.32.0 /recipe/engine/keyed.py VLLM_API_KEY \
    -- vllm serve Qwen/Qwen3-30B-A3B \
    --host 0.0.0.0 \
    --port 8000 \
    --served-model-name llama \
    --tensor-parallel-size 2 \
    --pipeline-parallel-size 1 \
    --data-parallel-size 1 \
    --middleware keyed.Guard
"$engine" run --detach \
    --name qwen3-30b-a3b-mi300x-tp2-dp4-vllm-server-1 \
    --restart unless-stopped \
    --stop-timeout 60 \
    --init \
    --user "$user" \
    --cap-drop=ALL \
    --security-opt=no-new-privileges \
    --security-opt=seccomp=unconfined \
    "${logs[@]}" \
    --memory 512g \
    --publish 127.0.0.1:8001:8001 \
    --device=/dev/kfd \
    --device=/dev/dri \
    --group-add 44 \
    --group-add 109 \
    --shm-size 8g \
    --volume qwen3-30b-a3b-mi300x-tp2-dp4-vllm-models:/models \
    --volume qwen3-30b-a3b-mi300x-tp2-dp4-vllm-run:/run/recipe \
    --volume qwen3-30b-a3b-mi300x-tp2-dp4-vllm-home:/home/recipe \
    --volume "$PWD":/recipe:ro \
    --env HF_HOME=/models \
    --env HOME=/home/recipe \
    --env USER=recipe \
    --env HF_TOKEN \
    --env VLLM_API_KEY \
    --env HIP_VISIBLE_DEVICES=2,3 \
    --entrypoint python3 vllm/vllm-openai-rocm:v0.32.0 /recipe/engine/keyed.py VLLM_API_KEY \
    -- vllm serve Qwen/Qwen3-30B-A3B \
    --host 0.0.0.0 \
    --port 8001 \
    --served-model-name llama \
    --tensor-parallel-size 2 \
    --pipeline-parallel-size 1 \
    --data-parallel-size 1 \
    --middleware keyed.Guard
"$engine" run --detach \
    --name qwen3-30b-a3b-mi300x-tp2-dp4-vllm-server-2 \
    --restart unless-stopped \
    --stop-timeout 60 \
    --init \
    --user "$user" \
    --cap-drop=ALL \
    --security-opt=no-new-privileges \
    --security-opt=seccomp=unconfined \
    "${logs[@]}" \
    --memory 512g \
    --publish 127.0.0.1:8002:8002 \
    --device=/dev/kfd \
    --device=/dev/dri \
    --group-add 44 \
    --group-add 109 \
    --shm-size 8g \
    --volume qwen3-30b-a3b-mi300x-tp2-dp4-vllm-models:/models \
    --volume qwen3-30b-a3b-mi300x-tp2-dp4-vllm-run:/run/recipe \
    --volume qwen3-30b-a3b-mi300x-tp2-dp4-vllm-home:/home/recipe \
    --volume "$PWD":/recipe:ro \
    --env HF_HOME=/models \
    --env HOME=/home/recipe \
    --env USER=recipe \
    --env HF_TOKEN \
    --env VLLM_API_KEY \
    --env HIP_VISIBLE_DEVICES=4,5 \
    --entrypoint python3 vllm/vllm-openai-rocm:v0.32.0 /recipe/engine/keyed.py VLLM_API_KEY \
    -- vllm serve Qwen/Qwen3-30B-A3B \
    --host 0.0.0.0 \
    --port 8002 \
    --served-model-name llama \
    --tensor-parallel-size 2 \
    --pipeline-parallel-size 1 \
    --data-parallel-size 1 \
    --middleware keyed.Guard
"$engine" run --detach \
    --name qwen3-30b-a3b-mi300x-tp2-dp4-vllm-server-3 \
    --restart unless-stopped \
    --stop-timeout 60 \
    --init \
    --user "$user" \
    --cap-drop=ALL \
    --security-opt=no-new-privileges \
    --security-opt=seccomp=unconfined \
    "${logs[@]}" \
    --memory 512g \
    --publish 127.0.0.1:8003:8003 \
    --device=/dev/kfd \
    --device=/dev/dri \
    --group-add 44 \
    --group-add 109 \
    --shm-size 8g \
    --volume qwen3-30b-a3b-mi300x-tp2-dp4-vllm-models:/models \
    --volume qwen3-30b-a3b-mi300x-tp2-dp4-vllm-run:/run/recipe \
    --volume qwen3-30b-a3b-mi300x-tp2-dp4-vllm-home:/home/recipe \
    --volume "$PWD":/recipe:ro \
    --env HF_HOME=/models \
    --env HOME=/home/recipe \
    --env USER=recipe \
    --env HF_TOKEN \
    --env VLLM_API_KEY \
    --env HIP_VISIBLE_DEVICES=6,7 \
    --entrypoint python3 vllm/vllm-openai-rocm:v0.32.0 /recipe/engine/keyed.py VLLM_API_KEY \
    -- vllm serve Qwen/Qwen3-30B-A3B \
    --host 0.0.0.0 \
    --port 8003 \
    --served-model-name llama \
    --tensor-parallel-size 2 \
    --pipeline-parallel-size 1 \
    --data-parallel-size 1 \
    --middleware keyed.Guard
