"""Triton Inference Server with the vLLM or the TensorRT-LLM backend, one node per server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipe_core.base.documents import to_json, to_yaml
from recipe_core.base.errors import NoAnswer
from recipe_core.launch.process import Deployment, Launch
from recipe_core.launch.serving import rules, tensorrt_llm, vllm
from recipe_core.launch.serving.groups import Group, engine_groups, group_processes
from recipe_core.launch.serving.vllm import refuse_ways
from recipe_core.launch.user_options import check_options, wrapped_engine

FOLDER = "engine/repository"
# The backend's model in the container, which reads its options from ``LLM_CONFIG_PATH``.
LLMAPI = "/app/all_models/llmapi"
LLMAPI_OPTIONS = "engine/model.yaml"
_INSTANCE = """backend: "vllm"
instance_group [ { count: 1, kind: KIND_MODEL } ]
"""
# The model that a server serves, where it finds it; options, files and variables of its engine.
_Repository = tuple[str, str, dict[str, Any], dict[str, str], dict[str, str]]


def launch_triton(deployment: Deployment) -> Launch:
    """One server per replica, each with ports of its own.

    The repository names the model, not the launcher.
    """
    engine, candidate = deployment.setting.engine, deployment.candidate
    if (candidate.split.ep > 1 and candidate.dp > 1) or candidate.prefill is not None:
        raise NoAnswer(
            f"{engine.title} runs one scheduler per server.",
            field="candidate.dp",
            hint="Use replicas (EP 1), or the engine without Triton.",
        )
    placed = engine_groups(deployment)
    extra = check_options(
        deployment.engine_options,
        engine,
        wrapped_engine(engine).options,
        vllm.vllm_options(deployment, placed[0]),
    )
    refuse_ways(extra, engine.title)
    fill = _REPOSITORIES[str(engine.wraps)]
    model, path, options, files, variables = fill(deployment, placed[0], extra)
    env = {**rules.rule_environment(deployment), **variables}
    started = group_processes(
        placed,
        lambda group, rank: ("tritonserver", *engine.argv(server_options(path, group))),
        lambda group, rank: dict(env),
    )
    return Launch(
        processes=tuple(started),
        options=options,
        health="/v2/health/ready",
        startup_timeout_s=vllm.STARTUP_TIMEOUT_S,
        api_path=f"/v2/models/{model}/generate",
        api_model=model,
        files=files,
    )


def server_options(repository: str, group: Group) -> dict[str, Any]:
    """Options of ``tritonserver``, with ports and shared memory of each server's own."""
    return {
        "model_repository": repository,
        "http_address": "${host}",
        "http_port": "${port}",
        "allow_grpc": "false",
        "metrics_port": 8002 + group.number,
        "backend_config": f"python,shm-region-prefix-name=server{group.number}",
    }


def _vllm_repository(deployment: Deployment, group: Group, extra: Mapping[str, Any]) -> _Repository:
    options = {
        "model": deployment.setting.model.source,
        "served_model_name": [deployment.served_name],
        **vllm.engine_arguments(deployment, group),
        "disable_log_stats": False,
        **extra,
    }
    folder = f"{FOLDER}/{deployment.served_name}"
    files = {f"{folder}/config.pbtxt": _INSTANCE, f"{folder}/1/model.json": to_json(options)}
    return deployment.served_name, f"${{root}}/{FOLDER}", options, files, {}


def _llmapi_repository(deployment: Deployment, group: Group, _: Mapping[str, Any]) -> _Repository:
    """The backend's own model, with a file that the backend hands to its engine.

    It holds the options of the command line and those of the engine's file, by one set of names.
    """
    options = tensorrt_llm.tensorrt_llm_options(deployment, group)
    server = ("host", "port", "config", "free_gpu_memory_fraction")
    settings = {
        "model": deployment.setting.model.source,
        **{name: value for name, value in options.items() if name not in server},
        **tensorrt_llm.config_of(deployment, group),
        "triton_config": {"decoupled": True, "max_batch_size": 0},
    }
    env = {"LLM_CONFIG_PATH": f"${{root}}/{LLMAPI_OPTIONS}"}
    return "tensorrt_llm", LLMAPI, settings, {LLMAPI_OPTIONS: to_yaml(settings)}, env


# By the engine that the backend wraps.
_REPOSITORIES = {"vllm": _vllm_repository, "tensorrt-llm": _llmapi_repository}
