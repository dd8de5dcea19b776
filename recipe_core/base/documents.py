"""Reading YAML and JSON documents that anybody may have written, and writing files whole or not at all."""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
from functools import lru_cache
from json.encoder import encode_basestring
from pathlib import Path
from typing import Any

import yaml

from recipe_core.base.errors import InputError

MAX_DOCUMENT_BYTES = 4 << 20
MAX_NODES = 200_000
MAX_DEPTH = 64

_BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_BASE):  # type: ignore[misc]  # the C loader when PyYAML was built with it
    """Safe YAML that refuses repeated keys and reads ``15e9`` as a number (YAML 1.2), not as text (YAML 1.1)."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.YAMLError(
                    f"the key {key!r} is given twice in line {node.start_mark.line + 1}"
                )
        mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return mapping


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*)(\.[\d_]*)?[eE][-+]?\d+$"),
    list("-+0123456789"),
)


def _scan(text: str, what: str) -> None:
    """Refuse aliases ("billion laughs"), depth and size bombs before anything is built."""
    depth = nodes = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent):
            raise InputError(
                f"{what} uses a YAML alias (*name).", hint="Write the value out instead."
            )
        nodes += isinstance(event, yaml.NodeEvent)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(
            event, yaml.CollectionEndEvent
        )
        if depth > MAX_DEPTH or nodes > MAX_NODES:
            raise InputError(
                f"{what} is nested deeper than {MAX_DEPTH} levels or has over {MAX_NODES:,} values."
            )


def parse_yaml(text: str, what: str = "the document") -> Any:
    """Parse YAML (of which JSON is nearly a part) safely.

    Raises:
        InputError: naming ``what`` and the line when it is not YAML, uses aliases, repeats a key or is too large.
    """
    if len(text) > MAX_DOCUMENT_BYTES:
        raise InputError(
            f"{what} has {len(text):,} characters; at most {MAX_DOCUMENT_BYTES:,} are read."
        )
    try:
        _scan(text, what)
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - _Loader derives from the safe loader
    except yaml.YAMLError as error:
        raise InputError(f"{what} is not valid YAML: {' '.join(str(error).split())}.") from None
    except (RecursionError, ValueError) as error:
        raise InputError(f"{what} cannot be read: {error}.") from None


def read_shipped(path: Path) -> Any:
    """A YAML file of this package as plain Python values: nobody hides bombs in it, and looking for them takes as long as reading."""
    return yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)  # noqa: S506 - _Loader derives from the safe loader


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number that JSON knows")


def parse_json(text: str, what: str = "the document") -> Any:
    """Parse strict JSON (no NaN or Infinity); raises InputError as ``parse_yaml`` does."""
    if len(text) > MAX_DOCUMENT_BYTES:
        raise InputError(
            f"{what} has {len(text):,} characters; at most {MAX_DOCUMENT_BYTES:,} are read."
        )
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{what} is not valid JSON: {error}.") from None


def read_text(
    path: Path, *, field: str | None = None, limit: int | None = MAX_DOCUMENT_BYTES
) -> str:
    """The text of a file; raises InputError when it is missing, not a file, longer than ``limit`` bytes or not UTF-8."""
    try:
        if limit is not None and path.stat().st_size > limit:
            raise InputError(
                f"{path} is {path.stat().st_size:,} bytes; at most {limit:,} are read.", field=field
            )
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text.", field=field) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"cannot read {path}: {reason}.", field=field, hint="Check the path."
        ) from None


def read_document(path: Path, *, field: str | None = None) -> Any:
    """A YAML or JSON file as plain Python values; JSON by its suffix."""
    text = read_text(path, field=field)
    return parse_json(text, str(path)) if path.suffix == ".json" else parse_yaml(text, str(path))


class _Dumper(yaml.SafeDumper):
    """Writes a value that stands in two places twice: the reader above, like some others, takes no aliases."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the library's signature
        return True


# Words that other readers (YAML 1.2, Go's) take for numbers or truth values, and this library writes without quotes.
_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.\d+|\d+(\.\d*)?)([eE][-+]?\d+)?$"),
    list("-+.0123456789"),
)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?0o[0-7]+$"), list("-+0"))
_Dumper.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^[yYnN]$"), list("yYnN"))


def to_yaml(value: Any) -> str:
    """Block-style YAML in the given key order, without aliases."""
    return yaml.dump(
        value,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=False,
        width=120,
    )


def to_json(value: Any, *, indent: int | None = 1) -> str:
    """Strict JSON (NaN and infinity become null) in the given key order."""
    if indent == 1:
        return _indented(value, "\n")
    return json.dumps(finite(value), indent=indent, ensure_ascii=False, allow_nan=False)


def _indented(value: Any, line: str) -> str:
    """``json.dumps`` with an indent of 1, of which the library's own takes twice as long; ``line`` starts a line at this depth."""
    if isinstance(value, dict) and value:
        inner = f"{line} "
        return f"{{{inner}{f',{inner}'.join([f'{_key(key)}: {_plain(item, inner)}' for key, item in value.items()])}{line}}}"
    if isinstance(value, list | tuple) and value:
        inner = f"{line} "
        return f"[{inner}{f',{inner}'.join([_plain(item, inner) for item in value])}{line}]"
    return json.dumps(finite(value), ensure_ascii=False, allow_nan=False)


def _plain(value: Any, line: str) -> str:
    """A value by its type, most frequent first."""
    kind = type(value)
    if kind is float:
        return repr(value) if math.isfinite(value) else "null"
    if kind is int:
        return repr(value)
    if kind is str:
        return encode_basestring(value)
    return _indented(value, line)


@lru_cache(4096, typed=True)
def _key(key: Any) -> str:
    """A key as JSON writes it; what is no text is as it is in an object."""
    return encode_basestring(key) if isinstance(key, str) else json.dumps({key: 0})[1:-4]


def finite(value: Any) -> Any:
    """``value`` with every NaN and infinity, at any depth, replaced by None: JSON has no other word for "unknown"."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def write_whole(path: Path, data: bytes, *, private: bool = False) -> None:
    """Write a file so that a reader sees the old content or all of the new, never a part; a ``private`` one only its owner may read.

    Raises:
        InputError: when the folder is missing or not writable.
    """
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=f".{path.name}.", delete=False
        ) as file:
            temporary = Path(file.name)
            file.write(data)
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o600 if private else 0o666 & ~umask)
        temporary.replace(path)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise InputError(
            f"cannot write {path}: {error.strerror}.", hint="Choose another place."
        ) from None
