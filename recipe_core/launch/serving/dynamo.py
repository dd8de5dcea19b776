"""NVIDIA Dynamo: a frontend before vLLM workers, as processes and as a graph for Kubernetes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recipe_core.base import texts
from recipe_core.base.documents import to_yaml
from recipe_core.base.errors import NoAnswer
from recipe_core.base.texts import pieces
from recipe_core.engines.spec import engine
from recipe_core.launch.process import EXACT_LENGTH, Deployment, Launch, Role
from recipe_core.launch.serving import rules, vllm
from recipe_core.launch.serving.groups import (
    Group,
    engine_groups,
    group_processes,
    node_options,
    router_process,
)
from recipe_core.launch.serving.vllm import refuse_ways
from recipe_core.launch.templates import fill_template, read_templates
from recipe_core.launch.user_options import check_options

FILE = Path(__file__).with_name("dynamo.yaml")
GRAPH = "engine/dynamo-graph.yaml"
FRONTEND, WORKER = ("python3", "-m", "dynamo.frontend"), ("python3", "-m", "dynamo.vllm")
_TYPES = {"server": "worker", "prefill": "prefill", "decode": "decode"}


def launch_dynamo(deployment: Deployment) -> Launch:
    """A frontend, and a worker for each engine.

    Workers on one node find each other by files, on several by etcd (``ETCD_ENDPOINTS``).
    """
    setting = deployment.setting
    placed = engine_groups(deployment)
    extra = check_options(
        deployment.engine_options,
        setting.engine,
        engine("vllm").options,
        vllm.vllm_options(deployment, placed[0]),
    )
    refuse_ways(extra, setting.engine.title)
    one_node = len({place.node for group in placed for place in group.places}) == 1
    discovery = {"discovery_backend": "file" if one_node else "etcd"}
    env = {"DYN_FILE_KV": "${run}/discovery"} if one_node else {}
    front = setting.engine.argv({"http_host": "${host}", "http_port": "${port}", **discovery})
    workers = group_processes(
        placed,
        lambda group, rank: _dynamo_worker_words(deployment, group, rank, extra, discovery),
        lambda group, rank: rules.rule_environment(deployment) | env | _dynamo_ports(group, rank),
        first_port=1,
    )
    return Launch(
        processes=(router_process((*FRONTEND, *front), placed, env), *workers),
        options=vllm.vllm_options(deployment, placed[-1]) | extra,
        startup_timeout_s=vllm.STARTUP_TIMEOUT_S,
        api_model=deployment.served_name,
        api_body=EXACT_LENGTH,
        requires=() if one_node else ("etcd",),
        files={GRAPH: to_yaml(dynamo_graph(deployment, placed, extra))},
    )


def _dynamo_ports(group: Group, rank: int) -> dict[str, str]:
    """The port of a worker's health checks, and in a pool that of its cached blocks."""
    ports = {"DYN_SYSTEM_PORT": "${port}"}
    return ports if group.role == "server" else {**ports, **vllm.side_channel(group, rank)}


def _dynamo_worker_words(
    deployment: Deployment,
    group: Group,
    rank: int,
    extra: dict[str, Any],
    discovery: dict[str, str],
) -> tuple[str, ...]:
    return (
        *WORKER,
        *_dynamo_worker_arguments(deployment, group, rank, extra),
        *deployment.setting.engine.argv(discovery),
    )


def _dynamo_worker_arguments(
    deployment: Deployment, group: Group, rank: int, extra: dict[str, Any]
) -> list[str]:
    """Words of a worker on one of its nodes, without where it finds the others."""
    options = {
        "model": "${model}",
        "served_model_name": deployment.served_name,
        **vllm.engine_arguments(deployment, group),
        **extra,
    }
    if group.nodes > 1:
        options |= node_options(group, rank)
    worker: dict[str, Any] = {}
    if group.role != "server":
        worker["disaggregation_mode"] = group.role
    if rank:
        worker["headless"] = True
    return [*engine("vllm").argv(options), *deployment.setting.engine.argv(worker)]


def dynamo_graph(
    deployment: Deployment, placed: list[Group], extra: dict[str, Any]
) -> dict[str, Any]:
    """The ``DynamoGraphDeployment``: a frontend and a component for each kind of worker.

    Dynamo's operator adds ranks and addresses.

    Raises:
        NoAnswer: where no container is known.
    """
    device = deployment.setting.cluster.device
    image = deployment.setting.engine.image(device.runtime, device.architecture)
    if image is None:
        message = f"no container of Dynamo is known for {device.name}."
        raise NoAnswer(message, field="candidate.engine", hint="Use vllm.")
    kinds: dict[Role, list[Group]] = {}
    for group in placed:
        kinds.setdefault(group.role, []).append(group)
    templates = read_templates(FILE)
    workers = [
        fill_template(
            templates["worker"], _worker_values(deployment, members, extra, image.reference)
        )
        for members in kinds.values()
    ]
    name = deployment.served_name.lower().replace(".", "-").replace("_", "-")
    values = {"name": name, "image": image.reference, "workers": workers}
    graph: dict[str, Any] = fill_template(templates["graph"], values)
    return graph


def _worker_values(
    deployment: Deployment, members: list[Group], extra: dict[str, Any], image: str
) -> dict[str, Any]:
    first = members[0]
    # The operator numbers the nodes itself, so that the words are those of one node.
    alone = Group(first.number, first.role, first.split, first.places[:1])
    words = _dynamo_worker_arguments(deployment, alone, 0, extra)
    return {
        "role": first.role.capitalize(),
        "type": _TYPES[first.role],
        "replicas": len(members),
        "image": image,
        "words": [_kubernetes_word(word, deployment.setting.model.source) for word in words],
        "env": [
            {"name": key, "value": texts.quote_kubernetes(value)}
            for key, value in rules.rule_environment(deployment).items()
        ],
        "devices": len(first.places[0].devices),
        "nodes": first.nodes if first.nodes > 1 else None,
    }


def _kubernetes_word(word: str, model: str) -> str:
    """A word of a container's command; the model is the only placeholder of a worker's."""
    return "".join(
        texts.quote_kubernetes(model if is_name else text) for is_name, text in pieces(word)
    )
