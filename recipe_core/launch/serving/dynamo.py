"""NVIDIA Dynamo: a frontend before workers that run vLLM, as processes and as a graph deployment for Kubernetes."""

from __future__ import annotations

from typing import Any

from recipe_core.base.documents import to_yaml
from recipe_core.base.errors import NoAnswer
from recipe_core.engines.spec import engine
from recipe_core.launch.process import Deployment, Launch
from recipe_core.launch.serving import rules, vllm
from recipe_core.launch.serving.groups import Group, groups
from recipe_core.launch.serving.processes import HEAD, MASTER_PORT, processes, router
from recipe_core.launch.serving.vllm_ranks import refuse_ways
from recipe_core.launch.user_options import check_options

GRAPH = "engine/dynamo-graph.yaml"
FRONTEND, WORKER = ("python3", "-m", "dynamo.frontend"), ("python3", "-m", "dynamo.vllm")
_TYPES = {"server": "worker", "prefill": "prefill", "decode": "decode"}


def launch(deployment: Deployment) -> Launch:
    """A frontend, and a worker for each engine; those of a node find each other by files, others by etcd (``ETCD_ENDPOINTS``)."""
    setting = deployment.setting
    placed = groups(deployment)
    own = check_options(
        deployment.engine_options,
        setting.engine,
        engine("vllm").options,
        vllm.stated(deployment, placed[0]),
    )
    refuse_ways(own, setting.engine.title)
    one = len({place.node for group in placed for place in group.places}) == 1
    discovery = {"discovery_backend": "file" if one else "etcd"}
    env = {"DYN_FILE_KV": "${run}/discovery"} if one else {}
    front = setting.engine.argv({"http_host": "${host}", "http_port": "${port}", **discovery})
    workers = processes(
        placed,
        lambda group, rank: _words(deployment, group, rank, own, discovery),
        lambda group, rank: rules.environment(deployment) | env | _ports(group, rank),
        first_port=1,
    )
    return Launch(
        processes=(router((*FRONTEND, *front), placed, env), *workers),
        options=vllm.stated(deployment, placed[-1]) | own,
        health="/health",
        startup_timeout_s=vllm.STARTUP_TIMEOUT_S,
        api_path="/v1/completions",
        api_model=deployment.served_name,
        api_body={"ignore_eos": True, "temperature": 0},
        requires=() if one else ("etcd",),
        files={GRAPH: to_yaml(graph(deployment, placed, own))},
    )


def _ports(group: Group, rank: int) -> dict[str, str]:
    """A worker answers health checks on its port; a pool's also the other pool's questions for cached blocks, on one of its own."""
    return {"DYN_SYSTEM_PORT": "${port}"} | (
        vllm.side_channel(group, rank) if group.role != "server" else {}
    )


def _words(
    deployment: Deployment, group: Group, rank: int, own: dict[str, Any], discovery: dict[str, str]
) -> tuple[str, ...]:
    return (
        *WORKER,
        *_arguments(deployment, group, rank, own),
        *deployment.setting.engine.argv(discovery),
    )


def _arguments(deployment: Deployment, group: Group, rank: int, own: dict[str, Any]) -> list[str]:
    """Words of a worker on one of its nodes, without where it finds the others."""
    options = {
        "model": "${model}",
        "served_model_name": deployment.served_name,
        **vllm.engine_arguments(deployment, group),
        **own,
    }
    if group.nodes > 1:
        options |= {
            "nnodes": group.nodes,
            "node_rank": rank,
            "master_addr": HEAD,
            "master_port": MASTER_PORT,
        }
    mine: dict[str, Any] = {"disaggregation_mode": group.role} if group.role != "server" else {}
    return [
        *engine("vllm").argv(options),
        *deployment.setting.engine.argv(mine | ({"headless": True} if rank else {})),
    ]


def graph(deployment: Deployment, placed: list[Group], own: dict[str, Any]) -> dict[str, Any]:
    """The ``DynamoGraphDeployment``: a frontend and a component for each kind of worker; Dynamo's operator adds ranks and addresses.

    Raises:
        NoAnswer: where no container is known.
    """
    device = deployment.setting.cluster.device
    image = deployment.setting.engine.image(device.runtime, device.architecture)
    if image is None:
        raise NoAnswer(
            f"no container of Dynamo is known for {device.name}.",
            field="candidate.engine",
            hint="Use vllm.",
        )
    kinds = {
        group.role: [other for other in placed if other.role == group.role] for group in placed
    }
    components = [
        _component(deployment, members, own, image.reference) for members in kinds.values()
    ]
    frontend = {
        "name": "Frontend",
        "type": "frontend",
        "replicas": 1,
        "podTemplate": _pod({"image": image.reference}),
    }
    name = deployment.served_name.lower().replace(".", "-").replace("_", "-")
    return {
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": name},
        "spec": {"backendFramework": "vllm", "components": [frontend, *components]},
    }


def _component(
    deployment: Deployment, members: list[Group], own: dict[str, Any], image: str
) -> dict[str, Any]:
    first = members[0]
    # The operator numbers the nodes itself, so that the words are those of one node.
    alone = Group(first.number, first.role, first.split, first.places[:1])
    words = [
        word.replace("${model}", deployment.setting.model.name)
        for word in _arguments(deployment, alone, 0, own)
    ]
    env = [{"name": key, "value": value} for key, value in rules.environment(deployment).items()]
    container = {
        "image": image,
        "command": list(WORKER),
        "args": words,
        "env": env,
        "resources": {"limits": {"nvidia.com/gpu": str(len(first.places[0].devices))}},
    }
    out = {
        "name": f"{first.role.capitalize()}Worker",
        "type": _TYPES[first.role],
        "replicas": len(members),
        "podTemplate": _pod(container),
    }
    return out | ({"multinode": {"nodeCount": first.nodes}} if first.nodes > 1 else {})


def _pod(container: dict[str, Any]) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "main", **container}]}}
