"""Recipes as others publish them, read into a command: vLLM's recipe JSON, SGLang's cookbook, an engine's own YAML of options.

Nothing is fetched and nothing executed; what such a document says beyond one server on one kind of device is named, not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from recipe_core.base.documents import to_json
from recipe_core.base.errors import HardwareError, InputError
from recipe_core.hardware.cluster import device

_RENDERED = ("recommended_command", "recommended", "rendering")
"""Where a document keeps its rendered command, besides at its top."""
_WORDS = (
    "argv",
    "head_argv",
    "vllm_argv",
    "args",
    "command",
    "head_command",
    "vllm_command",
    "cmd",
)
_IMAGES = ("docker_image", "image", "container", "container_image")
_ENVIRONMENT = ("env", "environment", "env_vars")
_POOLS = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class Published:
    """A server as words and variables; ``hardware`` as the document names it, ``left`` what else it says."""

    command: str | list[str]
    env: dict[str, str] = field(default_factory=dict)
    image: str | None = None
    hardware: str | None = None
    nodes: int | None = None
    left: tuple[str, ...] = ()


def read_published(
    document: Any, wanted: str | None = None, choice: str | None = None
) -> Published:
    """The server of a document.

    Args:
        document: plain values.
        wanted: the device to take it for, where it holds several.
        choice: which of several configurations.

    Raises:
        InputError: when it is of no known form, or has no configuration of that name or for that device.
    """
    if not isinstance(document, Mapping):
        raise InputError(
            f"a published recipe is an object, not {type(document).__name__}.", field="convert"
        )
    if isinstance(document.get("families"), Sequence):
        return _cookbook(document, wanted, choice)
    rendered = next(
        (document[name] for name in _RENDERED if isinstance(document.get(name), Mapping)), document
    )
    if any(isinstance(rendered.get(name), str | list) and rendered.get(name) for name in _WORDS):
        return _rendered(rendered, document)
    if any(isinstance(rendered.get(name), Mapping) for name in _POOLS):
        raise InputError(
            "has pools of its own for prompts; it is no one command.",
            field="convert",
            hint="Convert each pool's command.",
        )
    if isinstance(document.get("model_path"), str):
        return _options("sglang", document)
    if isinstance(document.get("model"), str):
        return _options("vllm", document)
    known = ", ".join((*_WORDS, "families", "model_path", "model"))
    raise InputError(
        "is of no form that is known.",
        field="convert",
        hint=f"A published recipe has one of {known}.",
    )


def _rendered(rendered: Mapping[str, Any], document: Mapping[str, Any]) -> Published:
    """A document that holds the words of a command, variables and an image."""
    name = next(
        name for name in _WORDS if isinstance(rendered.get(name), str | list) and rendered.get(name)
    )
    words = rendered[name]
    command = words if isinstance(words, str) else [str(word) for word in words]
    env: Any = next((rendered[each] for each in _ENVIRONMENT if each in rendered), {})
    image = next((str(rendered[each]) for each in _IMAGES if rendered.get(each)), None)
    read = {name, *_IMAGES, *_ENVIRONMENT, "hardware", "node_count"}
    hardware = rendered.get("hardware")
    nodes = rendered.get("node_count")
    said = ("companions", "router", "router_config", "worker_argv", "master", "store")
    return Published(
        command=command,
        env=_environment(env),
        image=image,
        hardware=hardware if isinstance(hardware, str) else None,
        nodes=nodes if isinstance(nodes, int) and nodes > 1 else None,
        left=tuple(
            f"{each}: not read"
            for each in said
            if (rendered.get(each) or document.get(each)) and each not in read
        ),
    )


def _environment(value: Any) -> dict[str, str]:
    """Variables from a mapping, or from a list of ``NAME=value`` or of ``{name, value}``."""
    if isinstance(value, Mapping):
        return {str(name): str(item) for name, item in value.items()}
    pairs: list[tuple[str, str]] = []
    for each in value if isinstance(value, list) else []:
        if isinstance(each, str) and "=" in each:
            name, _, item = each.partition("=")
            pairs.append((name, item))
        elif isinstance(each, Mapping) and "name" in each and "value" in each:
            pairs.append((str(each["name"]), str(each["value"])))
    return dict(pairs)


_PROGRAMS = {"vllm": ["vllm", "serve"], "sglang": ["python3", "-m", "sglang.launch_server"]}


def _options(engine: str, document: Mapping[str, Any]) -> Published:
    """A file of an engine's options: ``tensor_parallel_size: 8``; the model is the first word of vLLM's command."""
    rest = dict(document)
    words = list(_PROGRAMS[engine])
    if engine == "vllm":
        words.append(str(rest.pop("model")))
    return Published(command=[*words, *_words(rest)])


def _words(options: Mapping[str, Any]) -> Iterator[str]:
    """Options by name as words; true is the flag alone, false and nothing are left out."""
    for name, value in options.items():
        flag = f"--{str(name).replace('_', '-')}"
        if value is None or value is False:
            continue
        yield flag
        if value is not True:
            yield from map(_word, value if isinstance(value, list) else [value])


def _word(value: Any) -> str:
    return to_json(value, indent=None).strip() if isinstance(value, Mapping) else str(value)


def _cookbook(document: Mapping[str, Any], wanted: str | None, choice: str | None) -> Published:
    """SGLang's cookbook: families of models, hardware, configurations; the one for the device, by name or the first."""
    found = list(_configurations(document))
    fitting = [each for each in found if wanted is None or _is_device(each[1], wanted)]
    named = [each for each in fitting if choice is None or choice in (each[2].get("name"), each[0])]
    if not named:
        known = ", ".join(
            sorted({f"{hardware}/{each.get('name')}" for _, hardware, each in found})[:12]
        )
        raise InputError(
            f"has no configuration {choice or ''} for {wanted or 'any device'}.",
            field="convert",
            hint=f"It has: {known}.",
        )
    model, hardware, chosen = named[0]
    engine = chosen.get("engine")
    if not isinstance(engine, Mapping):
        raise InputError(
            "the configuration has pools of its own for prompts; it is no one command.",
            field="convert",
            hint="Choose another.",
        )
    flags = {
        "tp": engine.get("tp"),
        "dp": engine.get("dp"),
        "ep": engine.get("ep"),
        "enable_dp_attention": engine.get("enable_dp_attention"),
    }
    path = str(chosen.get("quantized_model_path") or model)
    extra = engine.get("extra_args")
    words = [
        *_PROGRAMS["sglang"],
        "--model-path",
        path,
        *_words(flags),
        *map(str, extra if isinstance(extra, list) else []),
    ]
    others = tuple(
        f"{m} on {h}, {each.get('name')}: another configuration"
        for m, h, each in found
        if each is not chosen
    )
    return Published(
        command=words, env=_environment(engine.get("env_vars")), hardware=hardware, left=others
    )


def _configurations(document: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Model, hardware and configuration, for each there is."""
    for family in _mappings(document.get("families")):
        for model in _mappings(family.get("models")):
            hardware = model.get("hardware")
            for name, each in hardware.items() if isinstance(hardware, Mapping) else ():
                for configuration in _mappings(
                    each.get("configurations") if isinstance(each, Mapping) else None
                ):
                    yield str(model.get("model_path")), str(name), configuration


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def _is_device(name: str, wanted: str) -> bool:
    """Whether a document's name for hardware (H100, MI300X) is a device."""
    try:
        return device(name).name == device(wanted).name
    except HardwareError:
        return False
