"""Values of Helm charts: vLLM's production stack, and charts that state an image and a command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from recipe_core.commands.launches import Container
from recipe_core.targets.deployments.containers import engines_in, pod_environment
from recipe_core.targets.deployments.deployed import DeployedEngine, Left, Place
from recipe_core.targets.deployments.devices import chosen
from recipe_core.targets.deployments.documents import (
    Mapped,
    count,
    line_of,
    mapping,
    mappings,
    texts,
)
from recipe_core.targets.deployments.kubernetes import node_names, term_names

STACK = "servingEngineSpec"
"""The key that values of the production stack begin with."""

# helm/templates/deployment-vllm-multi.yaml of https://github.com/vllm-project/production-stack
_OPTIONS = {
    "maxModelLen": "--max-model-len",
    "dtype": "--dtype",
    "tensorParallelSize": "--tensor-parallel-size",
    "pipelineParallelSize": "--pipeline-parallel-size",
    "maxNumSeqs": "--max-num-seqs",
    "gpuMemoryUtilization": "--gpu-memory-utilization",
    "maxLoras": "--max-loras",
    "runner": "--runner",
    "convert": "--convert",
}
_SWITCHES = {
    "enableChunkedPrefill": ("--enable-chunked-prefill", "--no-enable-chunked-prefill"),
    "enablePrefixCaching": ("--enable-prefix-caching", "--no-enable-prefix-caching"),
}


def read_stack(values: Mapped) -> Iterator[DeployedEngine | Left]:
    """The engines of the production stack: one for each model."""
    stack = mapping(values.get(STACK))
    for model in mappings(stack.get("modelSpec")):
        yield from _read_model(model, stack)


def _read_model(model: Mapped, stack: Mapped) -> Iterator[DeployedEngine | Left]:
    where, line = f"model {model.get('name') or 'unnamed'}", line_of(model)
    name = model.get("modelURL")
    if not isinstance(name, str):
        yield Left(where, line, "modelURL is missing.")
        return
    image = f"{model.get('repository') or 'vllm/vllm-openai'}:{model.get('tag') or 'latest'}"
    container = Container(
        image=image,
        entrypoint=("vllm",),
        args=("serve", name, *_words(model)),
        env=pod_environment(stack) | pod_environment(model),
        shares_memory=True,
    )
    yield from engines_in(
        container, where, line, _place(model), replicas=count(model.get("replicaCount")) or 1
    )


def _words(model: Mapped) -> Iterator[str]:
    config = mapping(model.get("vllmConfig"))
    for key, (on, off) in _SWITCHES.items():
        if key in config:
            yield on if config[key] == "true" else off
    for key, flag in _OPTIONS.items():
        if isinstance(value := config.get(key), str):
            yield from (flag, value)
    yield from texts(config.get("extraArgs"))
    if model.get("enableLoRA") == "true":
        yield "--enable-lora"
    if isinstance(revision := model.get("modelRevision"), str):
        yield from ("--revision", revision)


def _place(model: Mapped) -> Place:
    devices = count(model.get("requestGPU"))
    kind = model.get("requestGPUType")
    terms = list(term_names(mappings(model.get("nodeSelectorTerms"))))
    named = terms or list(node_names(model)) or [""]
    place = chosen([(name, devices) for name in named], nodes=_ray_nodes(model))
    if isinstance(kind, str) and "mig" in kind:
        message = f"{kind} is a part of a device; judged on a whole one."
        return Place(place.device, 1, place.nodes, (*place.notes, message))
    return place


def _ray_nodes(model: Mapped) -> int | None:
    """Nodes of a model that runs over several by Ray: its head and its workers."""
    workers = (
        count(mapping(model.get("raySpec")).get("replicaCount")) if "raySpec" in model else None
    )
    head = mapping(mapping(model.get("raySpec")).get("headNode"))
    copies = count(model.get("replicaCount"))
    return (workers or copies or 0) + 1 if head else None


def read_values(values: Mapped) -> Iterator[DeployedEngine | Left]:
    """The engine of a chart whose values state an image and its command (vLLM's own chart)."""
    image = mapping(values.get("image"))
    name, words = image.get("repository"), texts(image.get("command"))
    if isinstance(name, str):
        container = Container(
            image=f"{name}:{image.get('tag') or 'latest'}",
            entrypoint=words,
            args=texts(image.get("args")),
            env=_environment(values),
            shares_memory=None,
        )
        yield from engines_in(container, "image", line_of(image), Place())


def _environment(values: Mapping[str, object]) -> dict[str, str]:
    return {
        name: text for name, text in mapping(values.get("env")).items() if isinstance(text, str)
    }
