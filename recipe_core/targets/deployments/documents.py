"""Untrusted YAML as people write it: many documents, anchors and tags; scalars keep their text.

Numbers stay as they are written (``0.90``, ``1e9``), since a command gets their text. Aliases are
expanded within the limits of ``base.documents``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from recipe_core.base.documents import MAX_DEPTH, MAX_NODES
from recipe_core.base.errors import InputError
from recipe_core.launch.templates import read_templates

# Characters that variables may add to one text.
MAX_ADDED = 64 << 10
_POD = re.compile(r"\$\$|\$\((\w[\w.-]{0,200})\)")
_COMPOSE = re.compile(r"\$\$|\$\{(\w{1,200})(?:(:?[-?+])([^{}]*))?\}|\$(\w{1,200})")
_OPEN = re.compile(r"\$\{(\w{1,200})[^{}]*\}|\$\((\w{1,200})\)|\$(\w{1,200})")


def filled_pod(text: str, env: Mapping[str, str]) -> str:
    """A word of a pod: ``$(NAME)`` from its variables, as Kubernetes fills them; others stay."""

    def value(match: re.Match[str]) -> str:
        if match[1] is None:
            return "$"
        return env.get(match[1], match[0])[:MAX_ADDED]

    return _POD.sub(value, text)[: len(text) + MAX_ADDED]


def filled_compose(text: str, env: Mapping[str, str]) -> str:
    """A text of a Compose file: variables of the file's own environment, else their defaults.

    Compose fills them from the user's environment, which is not known here. What has no value
    stays as it is written.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[4]
        if name is None:
            return "$"
        env_value, mark, default = env.get(name), match[2] or "", match[3] or ""
        if mark.endswith("+"):
            return default if env_value else ""
        if env_value is not None and env_value != match[0]:
            return env_value[:MAX_ADDED]
        return default if mark.endswith("-") else match[0]

    return _COMPOSE.sub(value, text)[: len(text) + MAX_ADDED]


def unset_in(words: Iterable[str]) -> tuple[str, ...]:
    """Names of variables that words still hold, in order."""
    matches = (match for word in words for match in _OPEN.finditer(word[:4096]))
    names = (match[1] or match[2] or match[3] for match in matches)
    return tuple(dict.fromkeys(names))[:32]


# The largest deployment file that is read.
MAX_BYTES = 1 << 20

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NULL = "tag:yaml.org,2002:null"
_MERGE = "<<"
_WORDS = Path(__file__).with_name("words.yaml")


class Mapped(dict[str, Any]):
    """A mapping, the ``line`` where it begins, and those where its texts do."""

    line: int = 0
    lines: Mapping[str, int] = {}


def read_documents(text: str) -> list[Any]:
    """The documents of a text as mappings, lists, texts and None.

    Raises:
        InputError: when it is not YAML, or too large or too deep.
    """
    if len(text) > MAX_BYTES:
        message = f"has {len(text):,} characters; at most {MAX_BYTES:,} are read."
        raise InputError(message, field="file")
    try:
        _check_depth(text)
        nodes = list(yaml.compose_all(text, Loader=_LOADER))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reason = " ".join(str(error).split())
        hint = None
        if "{{" in text:
            hint = "Templates of Helm are read after `helm template`."
        raise InputError(f"is not valid YAML: {reason:.300}.", field="file", hint=hint) from None
    reader = _Reader()
    return [reader.value(node, 0) for node in nodes if node is not None]


def _check_depth(text: str) -> None:
    depth = nodes = 0
    for event in yaml.parse(text, Loader=_LOADER):
        nodes += isinstance(event, yaml.NodeEvent)
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH or nodes > MAX_NODES:
            raise _document_too_large()


def _document_too_large() -> InputError:
    message = f"has more than {MAX_DEPTH} levels or {MAX_NODES:,} values."
    return InputError(message, field="file")


class _Reader:
    """From nodes to plain values; an alias counts as often as it is used."""

    def __init__(self) -> None:
        self.nodes = 0

    def value(self, node: Any, depth: int) -> Any:
        self.nodes += 1
        if depth > MAX_DEPTH or self.nodes > MAX_NODES:
            raise _document_too_large()
        if isinstance(node, yaml.ScalarNode):
            return None if node.tag == _NULL else node.value
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, depth + 1) for item in node.value]
        return self._mapping(node, depth)

    def _mapping(self, node: Any, depth: int) -> Mapped:
        merged, entries = Mapped(), Mapped()
        for key_node, value_node in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key == _MERGE:
                value = self.value(value_node, depth + 1)
                for part in value if isinstance(value, list) else [value]:
                    for name, item in part.items() if isinstance(part, dict) else ():
                        merged.setdefault(name, item)
            elif isinstance(key, str):
                entries[key] = self.value(value_node, depth + 1)
        mapping = Mapped({**merged, **entries})
        mapping.lines = {
            key.value: value.start_mark.line + 1 + (value.style in ("|", ">"))
            for key, value in node.value
            if isinstance(key, yaml.ScalarNode) and isinstance(value, yaml.ScalarNode)
        }
        mapping.line = node.start_mark.line + 1
        return mapping


def line_of(value: Any) -> int | None:
    """The line where a mapping begins; None for what is none."""
    return value.line if isinstance(value, Mapped) and value.line else None


def reader_words() -> Any:
    """Return the words of ``words.yaml``."""
    return read_templates(_WORDS)


def value_at(value: Any, *path: str) -> Any:
    """Return what a path of keys leads to; None where a part of it is missing or no mapping."""
    for key in path:
        value = value.get(key) if isinstance(value, Mapped) else None
    return value


def yaml_mapping(value: Any, *path: str) -> Mapped:
    """The mapping at a path of keys; an empty one where there is none."""
    value = value_at(value, *path)
    return value if isinstance(value, Mapped) else Mapped()


def yaml_mappings(value: Any, *path: str) -> list[Mapped]:
    """The mappings of a list at a path of keys."""
    value = value_at(value, *path)
    return (
        [entry for entry in value if isinstance(entry, Mapped)] if isinstance(value, list) else []
    )


def yaml_texts(value: Any, *path: str) -> tuple[str, ...]:
    """The texts of a list, or a text alone, at a path of keys."""
    value = value_at(value, *path)
    texts = value if isinstance(value, list) else [value]
    return tuple(text for text in texts if isinstance(text, str))


def text_values(value: Any, *path: str) -> dict[str, str]:
    """The entries of the mapping at a path of keys whose values are texts."""
    entries = yaml_mapping(value, *path).items()
    return {name: text for name, text in entries if isinstance(text, str)}


def walk_mappings(
    value: Any, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Mapped]]:
    """Every mapping within a value, outer ones first, with the keys that lead there."""
    if isinstance(value, Mapped):
        yield path, value
        for key, item in value.items():
            yield from walk_mappings(item, (*path, key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from walk_mappings(item, (*path, str(number)))


def parse_count(value: Any, *path: str) -> int | None:
    """A whole number from 1 to 9,999 in a text at a path of keys; None for anything else."""
    value = value_at(value, *path)
    text = value.strip().strip("'\"") if isinstance(value, str) else ""
    is_count = text.isascii() and text.isdecimal() and len(text) < 5
    return (int(text) or None) if is_count else None
