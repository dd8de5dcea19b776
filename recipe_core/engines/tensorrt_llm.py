"""TensorRT-LLM: ``trtllm-serve`` with a YAML file of what its command line does not take; MPI ranks over several nodes."""

from __future__ import annotations

from typing import Any

from recipe_core.documents import to_yaml
from recipe_core.engines import rules
from recipe_core.engines.deployment import Deployment, Draft, Launch, Split
from recipe_core.engines.passed import check_options
from recipe_core.engines.placement import Group, groups
from recipe_core.engines.processes import processes
from recipe_core.engines.spec import engine
from recipe_core.engines.table import option_table
from recipe_core.errors import NoAnswer

STARTUP_TIMEOUT_S = 1800
CONFIG = "engine/tensorrt-llm.yaml"
SSH_PORT = "2222"
LARGEST_GRAPH = 512
"""Sequences of the largest captured step; larger steps take long enough to be launched kernel by kernel."""
_DECODING = {"mtp": "MTP", "eagle": "Eagle", "ngram": "NGram"}


def launch(deployment: Deployment) -> Launch:
    """Servers for the split; replicas are servers of their own. Raises NoAnswer for pools and for what attention cannot be cut into."""
    setting, candidate = deployment.setting, deployment.candidate
    if candidate.prefill is not None:
        raise NoAnswer(
            "pools of TensorRT-LLM find each other by a file of addresses, which are not known before the launch.",
            field="candidate.prefill",
            hint="Use vllm, sglang or dynamo for pools of their own.",
        )
    placed = groups(deployment)
    options, config = stated(deployment, placed[0].split), config_of(deployment, placed[0].split)
    own = check_options(deployment.engine_options, setting.engine, setting.engine.options, options)
    argv = setting.engine.argv(options | own)
    env = rules.environment(deployment) | ({"OMPI_MCA_plm_rsh_args": f"-p {SSH_PORT}"} if placed[0].nodes > 1 else {})
    started = processes(placed, lambda group, rank: _words(argv, group, rank), lambda group, rank: dict(env))
    return Launch(
        processes=tuple(started),
        options=options | config | own,
        health="/health",
        startup_timeout_s=STARTUP_TIMEOUT_S,
        api_path="/v1/completions",
        api_model="${model}",
        api_body={"ignore_eos": True, "temperature": 0},
        requires=("mpirun", "sshd") if placed[0].nodes > 1 else (),
        files={CONFIG: to_yaml(config)},
    )


def _words(argv: list[str], group: Group, rank: int) -> tuple[str, ...]:
    """One process in a node; over nodes the first starts every rank by MPI, and the others wait for it as an SSH server."""
    serve = ("trtllm-serve", "${model}", *argv)
    if group.nodes == 1:
        return serve
    if rank:
        return ("/usr/sbin/sshd", "-D", "-p", SSH_PORT)
    slots = len(group.places[0].devices)
    hosts = ",".join(f"${{node{place.node}}}:{slots}" for place in group.places)
    return ("mpirun", "-np", str(group.split.devices), "-H", hosts, "--allow-run-as-root", "trtllm-llmapi-launch", *serve)


def stated(deployment: Deployment, split: Split) -> dict[str, Any]:
    """Options of the command line. Limits are those of a rank of data-parallel attention."""
    candidate = deployment.candidate
    options: dict[str, Any] = {
        "host": "${host}",
        "port": "${port}",
        "backend": "pytorch",
        "tensor_parallel_size": split.tp * (split.dp if split.ep > 1 else 1),
        "pipeline_parallel_size": split.pp,
        "moe_expert_parallel_size": split.ep,
        "max_batch_size": candidate.max_num_seqs,
        "max_num_tokens": candidate.max_batched_tokens,
        "max_seq_len": deployment.max_context,
        "free_gpu_memory_fraction": candidate.memory_fraction,
        "enable_chunked_prefill": True,
        "config": f"${{root}}/{CONFIG}",
    }
    return options if deployment.setting.model.is_moe else {k: v for k, v in options.items() if k != "moe_expert_parallel_size"}


def config_of(deployment: Deployment, split: Split) -> dict[str, Any]:
    """The file of further options: what is kept how, which attention ranks there are, drafts, graphs, metrics.

    Raises:
        NoAnswer: for ranks of attention that share heads while others share requests: here every rank is one or the other.
    """
    candidate = deployment.candidate
    attention_dp = split.ep > 1 and split.dp > 1
    if attention_dp and split.tp > 1:
        raise NoAnswer(
            f"TensorRT-LLM cuts attention over all ranks or none; tp {split.tp} × dp {split.dp} is neither.",
            field="candidate.tp",
            hint=f"Use tp 1 with dp {split.devices // split.pp}, or dp 1.",
        )
    config: dict[str, Any] = {
        "dtype": deployment.activation_word,
        "enable_attention_dp": attention_dp,
        "kv_cache_config": {
            "dtype": "fp8" if candidate.kv_dtype == "fp8" else "auto",
            "free_gpu_memory_fraction": candidate.memory_fraction,
            "tokens_per_block": candidate.block_size,
            "enable_block_reuse": True,
        },
        "scheduler_config": {"capacity_scheduler_policy": "GUARANTEED_NO_EVICT"},
        "cuda_graph_config": {"max_batch_size": min(candidate.max_num_seqs, LARGEST_GRAPH), "enable_padding": True},
        "return_perf_metrics": True,
    }
    if candidate.speculative is not None:
        config["speculative_config"] = _draft(candidate.speculative)
    option_table("tensorrt-llm-config", engine("tensorrt-llm").version).argv(config)
    return config


def _draft(draft: Draft) -> dict[str, Any]:
    out: dict[str, Any] = {"decoding_type": _DECODING[draft.method]}
    if draft.method == "mtp":
        return out | {"num_nextn_predict_layers": draft.tokens}
    out["max_draft_len"] = draft.tokens
    return out | ({"speculative_model_dir": draft.checkpoint} if draft.method == "eagle" else {"max_matching_ngram_size": 2})
