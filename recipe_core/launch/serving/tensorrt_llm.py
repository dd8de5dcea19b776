"""TensorRT-LLM: ``trtllm-serve`` with a YAML file beside its options; MPI over several nodes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from recipe_core.base.documents import to_json, to_yaml
from recipe_core.base.errors import NoAnswer
from recipe_core.engines.options import option_table
from recipe_core.engines.spec import engine
from recipe_core.launch.process import EXACT_LENGTH, Deployment, Draft, Launch
from recipe_core.launch.serving import rules
from recipe_core.launch.serving.groups import (
    Group,
    engine_groups,
    group_processes,
    group_url,
    router_process,
)
from recipe_core.launch.serving.option_words import make_options
from recipe_core.launch.start import weights_s
from recipe_core.launch.user_options import check_options

STARTUP_TIMEOUT_S = 1800
CONFIG = "engine/tensorrt-llm.yaml"
POOLS, FILLED, FILLED_POOLS = "engine/pools.json", "engine/render_template.py", "${run}/pools.yaml"
FILLER = Path(__file__).with_name("render_template.py")
SSH_PORT = "2222"
# Until the server before the pools gives a request up; its default, 180, cuts long answers off.
REQUEST_TIMEOUT_S = 3600
# Sequences of the largest captured step; larger ones run long enough to hide kernel launches.
LARGEST_GRAPH = 512
_DECODING = {"mtp": "MTP", "eagle": "Eagle", "ngram": "NGram"}


def launch_tensorrt_llm(deployment: Deployment) -> Launch:
    """Servers for the split.

    Replicas are servers of their own; pools stand behind ``trtllm-serve disaggregated``.
    """
    setting, candidate = deployment.setting, deployment.candidate
    placed = engine_groups(deployment)
    options, config = (
        tensorrt_llm_options(deployment, placed[-1]),
        config_of(deployment, placed[-1]),
    )
    extra = check_options(
        deployment.engine_options, setting.engine, setting.engine.options, options
    )
    pools = candidate.prefill is not None
    several = any(group.nodes > 1 for group in placed)
    env = rules.rule_environment(deployment)
    if several:
        env["OMPI_MCA_plm_rsh_args"] = f"-p {SSH_PORT}"
    started = group_processes(
        placed,
        lambda group, rank: _trtllm_words(
            setting.engine.argv(tensorrt_llm_options(deployment, group) | extra), group, rank
        ),
        lambda group, rank: dict(env),
        first_port=int(pools),
    )
    files = {_config_path(group): to_yaml(config_of(deployment, group)) for group in placed}
    if pools:
        weights = setting.model.checkpoint_bytes or setting.model.counted_bytes
        wait_s = math.ceil(STARTUP_TIMEOUT_S + weights_s(int(weights), setting.model.source, None))
        started.insert(0, router_process(_pool_server_words(placed, wait_s), placed))
        files |= {
            FILLED: FILLER.read_text(encoding="utf-8"),
            POOLS: to_json(_pool_server_config(placed)),
        }
    return Launch(
        processes=tuple(started),
        options=options | config | extra,
        startup_timeout_s=STARTUP_TIMEOUT_S,
        api_model="${model}",
        api_body=EXACT_LENGTH,
        requires=("mpirun", "sshd") if several else (),
        files=files,
    )


def _config_path(group: Group) -> str:
    """The file of options of a server; pools differ in theirs."""
    return CONFIG if group.role == "server" else f"engine/tensorrt-llm-{group.role}.yaml"


def _pool_server_config(placed: list[Group]) -> dict[str, Any]:
    """Return the file of the server before the pools, once filled: its address and theirs."""
    out: dict[str, Any] = {"hostname": "$host", "port": "$port", "backend": "pytorch"}
    for part, role in (("context_servers", "prefill"), ("generation_servers", "decode")):
        urls = [f"${_pool_variable(group)}" for group in placed if group.role == role]
        out[part] = {"num_instances": len(urls), "urls": urls}
    return out


def _pool_variable(group: Group) -> str:
    return f"{group.role}{group.number}"


def _pool_server_words(placed: list[Group], wait_s: int) -> list[str]:
    """The server before the pools: its file is filled with addresses when it starts.

    It waits ``wait_s`` seconds for them.
    """
    addresses = {"host": "${host}", "port": "${port}"}
    for group in placed:
        addresses[_pool_variable(group)] = group_url(group).removeprefix("http://")
    pairs = [f"{name}={value}" for name, value in addresses.items()]
    table = option_table("tensorrt-llm-disaggregated", engine("tensorrt-llm").version)
    words = table.argv({"c": FILLED_POOLS, "t": wait_s, "r": REQUEST_TIMEOUT_S})
    served = ["trtllm-serve", "disaggregated", *words]
    return [
        "python3",
        f"${{root}}/{FILLED}",
        f"${{root}}/{POOLS}",
        FILLED_POOLS,
        *pairs,
        "--",
        *served,
    ]


def _trtllm_words(argv: list[str], group: Group, rank: int) -> tuple[str, ...]:
    """One process per node; the first of several starts all ranks by MPI, the others serve SSH."""
    serve = ("trtllm-serve", "${model}", *argv)
    if group.nodes == 1:
        return serve
    if rank:
        return ("/usr/sbin/sshd", "-D", "-p", SSH_PORT)
    slots = len(group.places[0].devices)
    hosts = ",".join(f"${{node{place.node}}}:{slots}" for place in group.places)
    return (
        "mpirun",
        "-np",
        str(group.split.devices),
        "-H",
        hosts,
        "--allow-run-as-root",
        "trtllm-llmapi-launch",
        *serve,
    )


def tensorrt_llm_options(deployment: Deployment, group: Group) -> dict[str, Any]:
    """Options of the command line."""
    options = make_options(
        "tensorrt-llm",
        deployment,
        group.split,
        group.role,
        moe_ep=group.split.ep if deployment.setting.model.is_moe else None,
        config=_config_path(group),
    )
    return options | rules.told_options(deployment)


def config_of(deployment: Deployment, group: Group) -> dict[str, Any]:
    """The file of further options: cache, attention ranks, drafts, graphs, metrics.

    Raises:
        NoAnswer: for attention that is cut by heads and by requests: here it is one or the other.
    """
    candidate, split = deployment.candidate, group.split
    attention_dp = split.ep > 1 and split.dp > 1
    if attention_dp and split.tp > 1:
        degrees = f"TP {split.tp} × DP {split.dp} is neither"
        message = f"TensorRT-LLM cuts attention over all ranks or none; {degrees}."
        hint = f"Use TP 1 with DP {split.devices // split.pp}, or DP 1."
        raise NoAnswer(message, field="candidate.tp", hint=hint)
    draft, prefill = candidate.speculative, group.role == "prefill"
    table = option_table("tensorrt-llm-config", engine("tensorrt-llm").version)
    config = make_options(
        "tensorrt-llm-config",
        deployment,
        split,
        group.role,
        attention_dp=attention_dp,
        cache="fp8" if candidate.kv_dtype == "fp8" else "auto",
        largest_graph=min(candidate.max_num_seqs, LARGEST_GRAPH),
        told=rules.told_options(deployment, table),
        draft=None if draft is None else _trtllm_draft_config(draft),
        prompts_only=True if prefill else None,
    )
    table.argv(config)
    return config


def _trtllm_draft_config(draft: Draft) -> dict[str, Any]:
    out: dict[str, Any] = {"decoding_type": _DECODING[draft.method]}
    if draft.method == "mtp":
        return {**out, "num_nextn_predict_layers": draft.tokens}
    out["max_draft_len"] = draft.tokens
    if draft.method == "eagle":
        return {**out, "speculative_model_dir": draft.checkpoint}
    return {**out, "max_matching_ngram_size": 2}
