"""vLLM: ``vllm serve``, over nodes by multiprocessing or Ray, with pools behind ``vllm-router``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from recipe_core.base.errors import InputError, NoAnswer
from recipe_core.engines.options import option_table
from recipe_core.engines.spec import engine
from recipe_core.launch.process import EXACT_LENGTH, Deployment, Launch
from recipe_core.launch.serving import rules
from recipe_core.launch.serving.groups import (
    HEAD,
    Group,
    by_rank,
    engine_groups,
    group_processes,
    group_url,
    node_options,
    ranks_of_node,
    router_process,
)
from recipe_core.launch.serving.kv_offload import offload_launch
from recipe_core.launch.serving.option_words import make_options
from recipe_core.launch.user_options import FIELD, check_options
from recipe_core.models.config.encoder import encoder_task

EXTERNAL, HYBRID = "data_parallel_external_lb", "data_parallel_hybrid_lb"
EXECUTOR = "distributed_executor_backend"
WAYS = (EXTERNAL, HYBRID, EXECUTOR)
RAY, NODE = "engine/ray_node.py", Path(__file__).with_name("ray_node.py")
RAY_PORT, RPC_PORT = 6379, 29550  # Ray's and vLLM's own defaults
STARTUP_TIMEOUT_S = 1800
ROUTER = ("vllm-router", "0.1.17")
_CONVERTED = {"embed": "embed", "score": "classify"}
# Where clients ask, by task.
_PATHS = {"generate": "/v1/completions", "embed": "/v1/embeddings", "score": "/score"}
SIDE_CHANNEL_PORT, RANKS_A_GROUP = 5600, 64


@dataclass(frozen=True, slots=True)
class Way:
    """The layout of a launch: who balances, and whether Ray joins engines over several nodes."""

    balancer: Literal["internal", "external", "hybrid"] = "internal"
    ray: bool = False

    def cut(self, placed: list[Group]) -> list[Group]:
        """The servers: with an external balancer every data-parallel rank."""
        return by_rank(placed) if self.balancer == "external" else placed

    def answers(self, group: Group) -> bool:
        return self.balancer == "hybrid" and group.nodes > 1 and group.split.dp > 1

    def joined(self, group: Group) -> bool:
        return self.ray and group.nodes > 1

    def options(self, group: Group, rank: int) -> dict[str, Any]:
        """Return what one node of a group is told about the others, besides the degrees."""
        options: dict[str, Any] = {EXECUTOR: "ray"} if self.ray else {}
        if group.part is not None:
            address = {
                "data_parallel_address": f"${{node{group.part.head}}}",
                "data_parallel_rpc_port": RPC_PORT + group.part.of,
            }
            rank = group.part.rank
            return {**options, EXTERNAL: True, "data_parallel_rank": rank, **address}
        if group.nodes == 1:
            return options
        if self.ray:
            return {**options, **_ray_replicas(group)} if group.split.dp > 1 else options
        options |= node_options(group, rank)
        if self.answers(group):  # the rank that a node begins with is inferred from its number
            local = ranks_of_node(group, HYBRID)
            return {**options, HYBRID: True, "data_parallel_size_local": local}
        return {**options, "headless": True} if rank else options

    def words(self, group: Group, rank: int, engine: list[str]) -> list[str]:
        """The words of a node: the engine's; in a Ray cluster those that start or join it."""
        if not self.joined(group):
            return engine
        place = group.places[rank]
        address, devices = f"${{node{place.node}}}", str(len(place.devices))
        program, port = ["python3", f"${{root}}/{RAY}"], str(RAY_PORT)
        if rank:
            return [*program, "join", HEAD, port, address, devices]
        return [*program, "head", str(group.nodes), address, port, devices, "--", *engine]

    def environment(self, group: Group, rank: int) -> dict[str, str]:
        """The address by which other nodes find this one, and whether Ray may spread replicas."""
        if not self.joined(group):
            return {}
        variables = {"VLLM_HOST_IP": f"${{node{group.places[rank].node}}}"}
        size = group.split.tp * group.split.pp
        if group.split.dp > 1 and len(group.places[0].devices) < size:
            variables["VLLM_RAY_DP_PACK_STRATEGY"] = "span"
        return variables

    def files(self, placed: list[Group]) -> dict[str, str]:
        return {RAY: NODE.read_text(encoding="utf-8")} if any(map(self.joined, placed)) else {}


def _ray_replicas(group: Group) -> dict[str, Any]:
    per_node = len(group.places[0].devices) // (group.split.tp * group.split.pp)
    options: dict[str, Any] = {"data_parallel_backend": "ray"}
    if per_node:
        options["data_parallel_size_local"] = per_node
    return options


def way_of(options: Mapping[str, Any]) -> tuple[Way, dict[str, Any]]:
    """The way that the user's options ask for, and the other options.

    Raises:
        InputError: for ways that exclude each other, and for unsupported executors.
    """
    external, hybrid = bool(options.get(EXTERNAL)), bool(options.get(HYBRID))
    executor = options.get(EXECUTOR, "mp")
    if executor not in ("mp", "ray"):
        message = f"{executor} is not supported here."
        raise InputError(message, field=f"{FIELD}.{EXECUTOR}", hint="Use mp or ray.")
    if external and hybrid:
        message, field = f"excludes {HYBRID}.", f"{FIELD}.{EXTERNAL}"
        raise InputError(message, field=field, hint="Choose one of them.")
    if executor == "ray" and (external or hybrid):
        raise InputError(
            "does not go with a balancer outside vLLM here.",
            field=f"{FIELD}.{EXECUTOR}",
            hint="Use mp, or its own balancer.",
        )
    rest = {name: value for name, value in options.items() if name not in WAYS}
    balancer: Literal["internal", "external", "hybrid"] = "internal"
    if external:
        balancer = "external"
    elif hybrid:
        balancer = "hybrid"
    return Way(balancer, ray=executor == "ray"), rest


def refuse_ways(options: Mapping[str, Any], title: str) -> None:
    """Raise for an engine around vLLM, which joins ranks and balances itself."""
    for name in WAYS:
        if options.get(name) not in (None, False, "mp"):
            hint = "Leave it out, or use the engine vllm."
            raise InputError(f"is left to {title}.", field=f"{FIELD}.{name}", hint=hint)


def launch_vllm(deployment: Deployment) -> Launch:
    """Servers for the split.

    Replicas of a dense model within a node, and data-parallel attention with shared experts, are
    vLLM's own data parallelism behind one address. Replicas of a mixture of experts are separate
    servers: under vLLM's data parallelism their experts would be cut over all replicas, which is
    another split than the one estimated. Replicas that fill a node each are separate servers too.

    The user's options may name another balancer or Ray (``vllm_ranks``).
    """
    setting = deployment.setting
    placed = engine_groups(deployment)
    options = vllm_options(deployment, placed[0])
    user_options = check_options(
        deployment.engine_options, setting.engine, engine("vllm").options, options
    )
    layout, extra = way_of(user_options)
    placed = layout.cut(placed)
    pools = deployment.candidate.prefill is not None
    started = group_processes(
        placed,
        lambda group, rank: layout.words(
            group, rank, _vllm_words(deployment, group, rank, layout, extra)
        ),
        lambda group, rank: (
            offload_launch(deployment).environment
            | rules.rule_environment(deployment)
            | layout.environment(group, rank)
            | (side_channel(group, rank) if pools else {})
        ),
        first_port=int(pools),
        everywhere=layout.answers,
    )
    if pools:
        started.insert(0, router_process(_vllm_router_words(placed), placed))
    return Launch(
        processes=tuple(started),
        options=vllm_options(deployment, placed[-1]) | user_options,
        startup_timeout_s=STARTUP_TIMEOUT_S,
        api_path=_PATHS[setting.model.task],
        api_model=deployment.served_name,
        api_body=EXACT_LENGTH if setting.model.generates else {},
        requires=(
            *(("vllm-router", "nixl") if pools else ()),
            *(("ray",) if layout.ray else ()),
            *offload_launch(deployment).modules,
        ),
        files=layout.files(placed) | offload_launch(deployment).files,
    )


def vllm_options(deployment: Deployment, group: Group) -> dict[str, Any]:
    """Every option that the estimate depends on, stated even where it is the default.

    The default block size is not stated: attention backends demand different ones (some refuse 16),
    and vLLM finds the one that fits when it is left to choose. The estimate depends on it by less
    than a block per request.
    """
    return {
        "host": "${host}",
        "port": "${port}",
        "served_model_name": deployment.served_name,
        **engine_arguments(deployment, group),
    }


def engine_arguments(deployment: Deployment, group: Group) -> dict[str, Any]:
    """The options of the engine itself, without those of its server."""
    model, split = deployment.setting.model, group.split
    converts = not model.generates and not model.is_encoder
    options = make_options(
        "vllm",
        deployment,
        split,
        group.role,
        expert_parallel=split.ep > 1,
        cache=_vllm_cache_word(deployment),
        # what the estimate counts
        exchange="allgather_reducescatter" if split.ep > 1 and split.dp > 1 else None,
        runner=None if model.generates else "pooling",
        # a decoder is turned into what an encoder is already
        convert=_CONVERTED[model.task] if converts else None,
        draft=_vllm_draft_config(deployment),
    )
    if converts:
        _check_scorer(deployment)
    return (
        options
        | offload_launch(deployment).options
        | rules.told_options(deployment)
        | rules.rule_options(deployment)
        | rules.tower_options(deployment)
    )


def _check_scorer(deployment: Deployment) -> None:
    """Raise NoAnswer where a decoder has no class for scores, and nothing says which rows score.

    vLLM makes the score of such a checkpoint of rows of its head, which ``hf_overrides`` name
    (``model_executor/models/config.py``); a recipe cannot carry these.
    """
    model = deployment.setting.model
    decoder_scores = model.task == "score" and encoder_task(model.config) != "score"
    if decoder_scores and "hf_overrides" not in deployment.engine_options:
        raise NoAnswer(
            f"vLLM scores with {model.name} only by hf_overrides, which name the tokens of its "
            "answer; a bundle has none.",
            field="workload.task",
            hint="Start it by the command of its model card, or use embed.",
        )


def _vllm_words(
    deployment: Deployment, group: Group, rank: int, layout: Way, extra: dict[str, Any]
) -> list[str]:
    """The engine on a node of a group: the first answers, the others where the way says so."""
    options = vllm_options(deployment, group) | layout.options(group, rank)
    if options.get("headless"):
        options = {name: value for name, value in options.items() if name not in ("host", "port")}
    return ["vllm", "serve", "${model}", *engine("vllm").argv(options | extra)]


def _vllm_draft_config(deployment: Deployment) -> dict[str, Any] | None:
    draft = deployment.candidate.speculative
    if draft is None:
        return None
    out: dict[str, Any] = {"method": draft.method, "num_speculative_tokens": draft.tokens}
    if draft.method == "ngram":
        out |= {"prompt_lookup_max": max(draft.tokens, 2), "prompt_lookup_min": 2}
    if draft.method == "eagle":
        out |= {"model": draft.checkpoint, "method": draft.eagle}
    return out


def _vllm_cache_word(deployment: Deployment) -> str:
    """VLLM's name for the cache format: "auto" follows the activations."""
    kv_dtype = deployment.candidate.kv_dtype
    return kv_dtype if kv_dtype in ("fp8", "nvfp4") else "auto"


def side_channel(group: Group, rank: int) -> dict[str, str]:
    """Return where the other pool fetches cached blocks: an address, a port per engine and rank."""
    port = SIDE_CHANNEL_PORT + group.number * RANKS_A_GROUP
    return {
        "VLLM_NIXL_SIDE_CHANNEL_HOST": f"${{node{group.places[rank].node}}}",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(port),
    }


def _vllm_router_words(placed: list[Group]) -> list[str]:
    """The router's words: every prefill and decode server by address."""
    table = option_table(*ROUTER)
    decode = [group for group in placed if group.role == "decode"]
    options = {
        "host": "${host}",
        "port": "${port}",
        "policy": "round_robin",
        "vllm_pd_disaggregation": True,
    }
    words = ["vllm-router", *table.argv(options)]
    for group in placed:
        words += table.argv({group.role: group_url(group)})
    ranks = 1 if decode[0].part else decode[0].split.dp
    return [*words, *table.argv({"kv_connector": "nixl", "intra_node_data_parallel_size": ranks})]
