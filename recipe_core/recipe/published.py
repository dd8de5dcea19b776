"""Recipes as others publish them, read into a command.

Forms: vLLM's recipe JSON, SGLang's cookbook, an engine's own YAML of options. Nothing is fetched
and nothing executed; what a document says beyond one server on one kind of device is named, not
read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from recipe_core.base.documents import to_json
from recipe_core.base.errors import HardwareError, InputError
from recipe_core.base.texts import check_name
from recipe_core.commands.launches import Launch
from recipe_core.hardware.cluster import device_profile

# Where a document keeps its rendered command, besides at its top.
_RENDERED = ("recommended_command", "recommended", "rendering")
_LISTS = ("argv", "head_argv", "vllm_argv", "args")
_WORDS = (*_LISTS, "command", "head_command", "vllm_command", "cmd")
_IMAGES = ("docker_image", "image", "container", "container_image")
_ENVIRONMENT = ("env", "environment", "env_vars")
_POOLS = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class Published:
    """A server as words and variables; ``hardware`` as its document names it, ``unread`` the rest.

    ``model``: what stands in for the folder that the words name.
    """

    command: str | list[str] | Launch
    env: dict[str, str] = field(default_factory=dict)
    image: str | None = None
    hardware: str | None = None
    nodes: int | None = None
    unread: tuple[str, ...] = ()
    model: str | None = None


def read_published(
    document: Any, device_name: str | None = None, choice: str | None = None
) -> Published:
    """The server of a document.

    Args:
        document: plain values.
        device_name: the device to take it for, where it holds several.
        choice: which of several configurations.

    Raises:
        InputError: when it is of no known form, or has no configuration of that name or device.
    """
    if not isinstance(document, Mapping):
        message = f"a published recipe is an object, not {type(document).__name__}."
        raise InputError(message, field="convert")
    if isinstance(document.get("families"), Sequence):
        return _cookbook_server(document, device_name, choice)
    mappings = (document[name] for name in _RENDERED if isinstance(document.get(name), Mapping))
    rendered = next(mappings, document)
    for name in _WORDS:
        if isinstance(rendered.get(name), str | list) and rendered.get(name):
            return _published_command(rendered, document, name)
    if any(isinstance(rendered.get(name), Mapping) for name in _POOLS):
        message = "has separate pools for prompts, so it is not one command."
        raise InputError(message, field="convert", hint="Convert each pool's command.")
    for field_name in _PROGRAMS:
        if isinstance(document.get(field_name), str):
            return _published_options(field_name, document)
    forms = ", ".join((*_WORDS, "families", *_PROGRAMS))
    hint = f"A published recipe has one of {forms}."
    raise InputError("is not in a known form.", field="convert", hint=hint)


def _published_command(
    rendered: Mapping[str, Any], document: Mapping[str, Any], name: str
) -> Published:
    """A document that holds a command (in its field ``name``), variables and an image."""
    words = rendered[name]
    command = words if isinstance(words, str) else [str(word) for word in words]
    env: Any = next((rendered[key] for key in _ENVIRONMENT if key in rendered), {})
    image = next((str(rendered[key]) for key in _IMAGES if rendered.get(key)), None)
    hardware = rendered.get("hardware")
    nodes = rendered.get("node_count")
    beside = ("companions", "router", "router_config", "worker_argv", "master", "store")
    return Published(
        command=command,
        env=_published_variables(env),
        image=image,
        hardware=hardware if isinstance(hardware, str) else None,
        nodes=nodes if isinstance(nodes, int) and nodes > 1 else None,
        unread=tuple(
            f"{key}: not read" for key in beside if rendered.get(key) or document.get(key)
        ),
    )


def _published_variables(value: Any) -> dict[str, str]:
    """Variables from a mapping, or from a list of ``NAME=value`` or of ``{name, value}``."""
    if isinstance(value, Mapping):
        return {str(name): str(item) for name, item in value.items()}
    pairs: list[tuple[str, str]] = []
    for entry in value if isinstance(value, list) else []:
        if isinstance(entry, str) and "=" in entry:
            name, _, item = entry.partition("=")
            pairs.append((name, item))
        elif isinstance(entry, Mapping) and "name" in entry and "value" in entry:
            pairs.append((str(entry["name"]), str(entry["value"])))
    return dict(pairs)


_SGLANG = ("python3", "-m", "sglang.launch_server")
# Programs by the option that names their model, and whether it is a word of their command instead.
_PROGRAMS = {"model_path": (_SGLANG, False), "model": (("vllm", "serve"), True)}


def _published_options(field_name: str, document: Mapping[str, Any]) -> Published:
    """A file of an engine's options (``tensor_parallel_size: 8``)."""
    rest, (program, is_word) = dict(document), _PROGRAMS[field_name]
    words = [check_name(str(rest.pop(field_name)), "convert.model")] if is_word else []
    return Published(command=[*program, *words, *_option_words(rest)])


def _option_words(options: Mapping[str, Any]) -> Iterator[str]:
    """Options by name as words; true is the flag alone, false and nothing are left out."""
    for name, value in options.items():
        flag = f"--{str(name).replace('_', '-')}"
        if value is None or value is False:
            continue
        words = (
            []
            if value is True
            else map(_option_word, value if isinstance(value, list) else [value])
        )
        yield from _flag_words(flag, list(words))


def _flag_words(flag: str, words: list[str]) -> Iterator[str]:
    """A flag and its values, of which none is read as another flag.

    Raises:
        InputError: for one that would be.
    """
    if len(words) == 1 and words[0].startswith("-"):
        yield f"{flag}={words[0]}"
        return
    if dashed := next((word for word in words if word.startswith("-")), None):
        message = f"a value of {flag} begins with a dash ({dashed[:80]!r})."
        raise InputError(message, field="convert", hint="Leave it out, or give the command.")
    yield flag
    yield from words


def _option_word(value: Any) -> str:
    return to_json(value, indent=None).strip() if isinstance(value, Mapping) else str(value)


def _cookbook_server(
    document: Mapping[str, Any], device_name: str | None, choice: str | None
) -> Published:
    """SGLang's cookbook of models, hardware and configurations: the first that fits."""
    rows = list(_configurations(document))
    called = _device_spellings(device_name) if device_name is not None else frozenset()
    fitting = [
        (model, hardware, configuration)
        for model, hardware, configuration in rows
        if (device_name is None or hardware.casefold() in called)
        and (choice is None or choice in (configuration.get("name"), model))
    ]
    if not fitting:
        names = sorted({f"{hardware}/{row.get('name')}" for _, hardware, row in rows})
        message = f"has no configuration {choice or ''} for {device_name or 'any device'}."
        hint = f"Available: {', '.join(names[:12])}."
        raise InputError(message, field="convert", hint=hint)
    model, hardware, configuration = fitting[0]
    engine = configuration.get("engine")
    if not isinstance(engine, Mapping):
        message = "the configuration has separate pools for prompts, so it is not one command."
        raise InputError(message, field="convert", hint="Choose another.")
    flags = {
        "tp": engine.get("tp"),
        "dp": engine.get("dp"),
        "ep": engine.get("ep"),
        "enable_dp_attention": engine.get("enable_dp_attention"),
    }
    path = str(configuration.get("quantized_model_path") or model)
    extra = engine.get("extra_args")
    words = [
        *_SGLANG,
        *_flag_words("--model-path", [path]),
        *_option_words(flags),
        *map(str, extra if isinstance(extra, list) else []),
    ]
    skipped = tuple(
        f"{m} on {h}, {row.get('name')}: another configuration"
        for m, h, row in rows
        if row is not configuration
    )
    env = _published_variables(engine.get("env_vars"))
    return Published(command=words, env=env, hardware=hardware, unread=skipped)


def _configurations(document: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for family in _mappings(document.get("families")):
        for model in _mappings(family.get("models")):
            hardware = model.get("hardware")
            for name, entry in hardware.items() if isinstance(hardware, Mapping) else ():
                configurations = entry.get("configurations") if isinstance(entry, Mapping) else None
                for configuration in _mappings(configurations):
                    yield str(model.get("model_path")), str(name), configuration


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _device_spellings(device_name: str) -> frozenset[str]:
    """Return names of a device in documents (H100, MI300X), casefolded; none if unknown."""
    try:
        profile = device_profile(device_name)
    except HardwareError:
        return frozenset()
    return frozenset(name.casefold() for name in (profile.name, *profile.aliases))
