"""SGLang: ``sglang serve`` on CUDA and ROCm, over nodes by ranks, with pools behind its router."""

from __future__ import annotations

from typing import Any

from recipe_core.engines.options import OptionTable, option_table
from recipe_core.estimates.columns.splits import dispatches, exchange_dispatch
from recipe_core.launch.process import EXACT_LENGTH, Deployment, Launch
from recipe_core.launch.serving import rules
from recipe_core.launch.serving.groups import (
    HEAD,
    MASTER_PORT,
    Group,
    engine_groups,
    group_processes,
    group_url,
    router_process,
)
from recipe_core.launch.serving.kv_offload import offload_launch
from recipe_core.launch.serving.option_words import make_options
from recipe_core.launch.user_options import check_options

STARTUP_TIMEOUT_S = 1800
ROUTER = ("sglang-router", "0.3.2")
BOOTSTRAP_PORT = 8998
# By the format in which tokens leave: its word, and the kernels that take experts' rows so.
_DISPATCHED = {"fp8-block": ("fp8", "deep_gemm"), "nvfp4": ("nvfp4", "flashinfer_cutedsl")}
_CACHE_WORDS = {"fp8": "fp8_e4m3", "bf16": "bf16"}


def launch_sglang(deployment: Deployment) -> Launch:
    """Servers for the split.

    Replicas within a node are SGLang's own data parallelism behind one address; further replicas
    are servers of their own, because that does not span nodes. Data-parallel attention (shared
    experts) is one server, whose tp counts all of its ranks.
    """
    setting = deployment.setting
    placed = engine_groups(deployment)
    options = sglang_options(deployment, placed[-1])
    extra = check_options(
        deployment.engine_options, setting.engine, setting.engine.options, options
    )
    pools = deployment.candidate.prefill is not None
    started = group_processes(
        placed,
        lambda group, rank: (
            "sglang",
            "serve",
            *setting.engine.argv(_of_node(deployment, group, rank) | extra),
        ),
        lambda group, rank: _sglang_environment(deployment, group),
        first_port=int(pools),
    )
    if pools:
        started.insert(0, router_process(_sglang_router_words(placed), placed))
    return Launch(
        processes=tuple(started),
        options=options | extra,
        startup_timeout_s=STARTUP_TIMEOUT_S,
        api_model=deployment.served_name,
        api_body=EXACT_LENGTH,
        requires=("sglang_router", "nixl", *_dispatcher_modules(deployment, placed))
        if pools
        else (),
    )


def sglang_options(deployment: Deployment, group: Group) -> dict[str, Any]:
    """Every option that the estimate depends on; limits count all ranks of attention together."""
    candidate, split, engine = deployment.candidate, group.split, deployment.setting.engine
    within = split.dp if split.ep > 1 else 1
    prefill = group.role == "prefill"
    options = make_options(
        "sglang",
        deployment,
        split,
        group.role,
        data_parallel=_data_parallel_options(engine.options, split.dp, within),
        cache=_sglang_cache_word(deployment),
        running=candidate.max_num_seqs * within,
        chunk=candidate.max_batched_tokens * within,
        exchange=_exchange_options(deployment, group) if split.ep > 1 else None,
        transfer="nixl" if group.role in ("prefill", "decode") else None,
        bootstrap_port=BOOTSTRAP_PORT + group.number if prefill else None,
    )
    return (
        options
        | offload_launch(deployment).options
        | rules.told_options(deployment)
        | _sglang_draft_options(deployment)
        | rules.rule_options(deployment)
        | rules.tower_options(deployment)
    )


def _dispatch_format(deployment: Deployment, group: Group) -> str | None:
    """The format in which a decode pool dispatches tokens; None where it gathers them."""
    setting, candidate, split = deployment.setting, deployment.candidate, group.split
    if group.role != "decode" or candidate.speculative is not None:
        return None
    degrees = (split.tp, split.pp, split.dp, split.ep)
    if not dispatches(setting, degrees, setting.cluster.per_node, candidate.max_num_seqs):
        return None
    between = exchange_dispatch(setting)
    return between.sent[setting.stored_dtype("experts")] if between else None


def _exchange_options(deployment: Deployment, group: Group) -> dict[str, Any]:
    """The exchange of tokens that the estimate counts."""
    sent = _dispatch_format(deployment, group)
    if sent is None:
        return {"moe_a2a_backend": "none"}
    word, runner = _DISPATCHED[sent]
    # the head and dense layers take a rank's own tokens too; else they are cut over all ranks
    dense = {"moe_dense_tp_size": 1} if group.split.tp == 1 else {}
    return {
        **dense,
        "enable_dp_lm_head": True,
        "moe_a2a_backend": "deepep",
        "deepep_mode": "low_latency",
        "deepep_dispatcher_output_dtype": word,
        "moe_runner_backend": runner,
    }


def _dispatcher_modules(deployment: Deployment, placed: list[Group]) -> tuple[str, ...]:
    return ("deep_ep",) if any(_dispatch_format(deployment, group) for group in placed) else ()


def _sglang_environment(deployment: Deployment, group: Group) -> dict[str, str]:
    """Variables by the rules and the user's, and the slots of a dispatch; its default is 128."""
    variables, sent = {}, _dispatch_format(deployment, group)
    if sent is not None:
        max_sequences = deployment.candidate.max_num_seqs
        variables["SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"] = str(max_sequences)
    if sent == "nvfp4":  # scales that the dispatch needs are prepared only so
        variables["SGLANG_MOE_NVFP4_DISPATCH"] = "1"
    return variables | offload_launch(deployment).environment | rules.rule_environment(deployment)


def _of_node(deployment: Deployment, group: Group, rank: int) -> dict[str, Any]:
    options = sglang_options(deployment, group)
    if group.nodes == 1:
        return options
    return options | {
        "dist_init_addr": f"{HEAD}:{MASTER_PORT}",
        "nnodes": group.nodes,
        "node_rank": rank,
    }


def _sglang_draft_options(deployment: Deployment) -> dict[str, Any]:
    """Options of a draft: a chain (top-k 1), where a step verifies one token more than drafted."""
    draft = deployment.candidate.speculative
    if draft is None:
        return {}
    steps = {
        "speculative_num_steps": draft.tokens,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": draft.tokens + 1,
    }
    if draft.method == "ngram":  # a chain here too: it would look up a tree
        breadth = {"speculative_ngram_min_bfs_breadth": 1, "speculative_ngram_max_bfs_breadth": 1}
        return {"speculative_algorithm": "NGRAM", **steps, **breadth}
    if draft.method == "mtp":
        return {"speculative_algorithm": "NEXTN", **steps}
    return {
        "speculative_algorithm": draft.eagle.upper(),
        "speculative_draft_model_path": draft.checkpoint,
        **steps,
    }


def _sglang_cache_word(deployment: Deployment) -> str:
    """SGLang's name for the cache format: "auto" follows the activations."""
    return _CACHE_WORDS.get(deployment.candidate.kv_dtype, "auto")


def _sglang_router_words(placed: list[Group]) -> list[str]:
    """The router's words: prefill servers with the port for their caches, and decode servers."""
    table = option_table(*ROUTER)
    words = [
        "python3",
        "-m",
        "sglang_router.launch_router",
        *table.argv({"host": "${host}", "port": "${port}", "pd_disaggregation": True}),
    ]
    for group in placed:
        address: str | list[str] = group_url(group)
        if group.role == "prefill":
            address = [group_url(group), str(BOOTSTRAP_PORT + group.number)]
        words += table.argv({group.role: address})
    return words


def _data_parallel_options(table: OptionTable, dp: int, within: int) -> dict[str, Any]:
    """Data parallelism, of attention where ranks are within tp; before 0.5.22 with a switch."""
    if within == 1:
        return {"dp_size": dp}
    if "attn_dp_size" in table.by_name:
        return {"attn_dp_size": dp}
    return {"dp_size": dp, "enable_dp_attention": True}
