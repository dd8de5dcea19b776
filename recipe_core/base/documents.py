"""Reading untrusted YAML and JSON documents, and writing files atomically."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import IO, Any

import yaml

from recipe_core.base.errors import InputError

# Far above any real document, far below what would exhaust memory.
MAX_DOCUMENT_BYTES = 4 << 20
MAX_NODES = 200_000
MAX_DEPTH = 64
# Digits of a number: more than any double holds, few enough that every sum of them is quick.
MAX_DIGITS = 300

_BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Loader(_BASE):  # type: ignore[misc]  # the C loader when PyYAML was built with it
    """Safe YAML without repeated keys; ``15e9`` is a number, as in YAML 1.2, not a text."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys: set[Any] = set()
        for key_node, _ in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == "tag:yaml.org,2002:merge":
                raise yaml.YAMLError(f"a merge key (<<) in line {line}; write the fields out")
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, list | dict | set):
                raise yaml.YAMLError(f"a key in line {line} is a list or a mapping, not a text")
            if key in keys:
                raise yaml.YAMLError(f"duplicate key {key!r:.80} in line {line}")
            keys.add(key)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return mapping

    def construct_number(self, node: Any) -> Any:
        """A number; ``1:30:00`` counts in sixties, which takes ever longer the longer it is."""
        if len(node.value) > MAX_DIGITS:
            line = node.start_mark.line + 1
            raise yaml.YAMLError(f"a number in line {line} has more than {MAX_DIGITS} digits")
        is_float = node.tag == "tag:yaml.org,2002:float"
        return self.construct_yaml_float(node) if is_float else self.construct_yaml_int(node)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*)(\.[\d_]*)?[eE][-+]?\d+$"),
    list("-+0123456789"),
)
for _tag in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _Loader.construct_number)
# A lone `=`, which PyYAML finds a tag for and no value.
_Loader.add_constructor("tag:yaml.org,2002:value", _Loader.construct_yaml_str)


def _check_yaml_events(text: str, name: str) -> None:
    """Refuse aliases ("billion laughs"), tags, depth and size bombs before anything is built."""
    depth = nodes = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent):
            hint = "Write the value out instead."
            raise InputError(f"{name} uses a YAML alias (*name).", hint=hint)
        if (tag := getattr(event, "tag", None)) is not None:
            hint = "Leave it out; put a text in quotes."
            raise InputError(f"{name} uses a YAML tag ({tag:.80}).", hint=hint)
        nodes += isinstance(event, yaml.NodeEvent)
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH or nodes > MAX_NODES:
            raise _document_size_error(name)


def _document_size_error(name: str) -> InputError:
    return InputError(f"{name} has more than {MAX_DEPTH} levels or {MAX_NODES:,} values.")


def _check_length(text: str, name: str, limit: int = MAX_DOCUMENT_BYTES) -> None:
    if len(text) > limit:
        raise InputError(f"{name} has {len(text):,} characters; the limit is {limit:,}.")


def check_plain(value: Any, name: str = "the document") -> None:
    """Refuse plain values that no later step could walk, compute with or write out.

    Whatever parsed them. It goes level by level, so that depth costs nothing.

    Raises:
        InputError: for more than ``MAX_DEPTH`` levels or ``MAX_NODES`` values, half a character (a
            lone surrogate) in a key or text, and numbers that are not finite or too long.
    """
    level, depth, nodes = [value], 0, 0
    while level:
        collections = [item for item in level if isinstance(item, dict | list | tuple | set)]
        nodes += len(level)
        depth += bool(collections)
        if depth > MAX_DEPTH or nodes > MAX_NODES:
            raise _document_size_error(name)
        for item in level:
            if isinstance(item, str):
                _check_text(item, name)
            elif isinstance(item, int | float):
                _check_number(item, name)
        level = [inner for collection in collections for inner in _collection_items(collection)]


def _collection_items(collection: Any) -> Iterable[Any]:
    """Return what a collection holds, keys included."""
    if isinstance(collection, dict):
        return chain(collection, collection.values())
    return list(collection)


def _check_text(text: str, name: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{name} holds half a character: {text[error.start]!r:.12} without its other half.",
            hint="Write the whole character, or leave it out.",
        ) from None


def _check_number(number: float, name: str) -> None:
    if isinstance(number, float) and not math.isfinite(number):
        raise InputError(f"{name} holds {number}, which is not a number.", hint="Leave it out.")
    if isinstance(number, int) and abs(number) >= 10**MAX_DIGITS:
        raise InputError(f"{name} holds a number of more than {MAX_DIGITS} digits.")


def parse_yaml(text: str, name: str = "the document") -> Any:
    """Parse YAML (and so nearly all JSON) safely; ``name`` stands for the document in errors.

    Raises:
        InputError: when it is not YAML, uses aliases, tags or merge keys, repeats a key, is too
            large, or for what ``check_plain`` refuses.
    """
    _check_length(text, name)
    try:
        _check_yaml_events(text, name)
        value = yaml.load(text, Loader=_Loader)  # noqa: S506 - _Loader derives from the safe loader
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{name} is not valid YAML: {reason:.300}.") from None
    except (RecursionError, ValueError) as error:
        raise InputError(f"{name} cannot be read: {error}.") from None
    check_plain(value, name)
    return value


def read_shipped(path: Path) -> Any:
    """A YAML file of this package as plain Python values.

    Nobody hides bombs in it, and looking for them takes as long as reading.
    """
    return yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)  # noqa: S506 - _Loader derives from the safe loader


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number that JSON knows")


def _unique_json_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs; raises ValueError for a repeated key."""
    values = dict(pairs)
    if len(values) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise ValueError(f"duplicate key {max(counts, key=lambda key: counts[key])!r:.80}")
    return values


def _short_json_integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS + 1:  # and a sign
        raise ValueError(f"a number has more than {MAX_DIGITS} digits")
    return int(digits)


def parse_json(
    text: str,
    name: str = "the document",
    *,
    constants: bool = False,
    limit: int = MAX_DOCUMENT_BYTES,
) -> Any:
    """Parse strict JSON (no NaN or Infinity, no key twice); raises InputError as ``parse_yaml``.

    With ``constants`` these two, which Python's own writer puts into configs of models, are null.
    ``limit``: characters that it may have.
    """
    _check_length(text, name, limit)
    unknown = (lambda _: None) if constants else _no_constant
    try:
        value = json.loads(
            text,
            parse_constant=unknown,
            parse_int=_short_json_integer,
            object_pairs_hook=_unique_json_object,
        )
    except RecursionError:
        raise _document_size_error(name) from None
    except ValueError as error:
        raise InputError(f"{name} is not valid JSON: {error}.") from None
    check_plain(value, name)
    return value


def read_text(
    path: Path, *, field: str | None = None, limit: int | None = MAX_DOCUMENT_BYTES
) -> str:
    """The text of a file.

    Raises:
        InputError: when it is missing, not a file, longer than ``limit`` bytes or not UTF-8.
    """
    try:
        size = path.stat().st_size
        if limit is not None and size > limit:
            raise InputError(f"{path} has {size:,} bytes; the limit is {limit:,}.", field=field)
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text.", field=field) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"cannot read {path}: {reason}.", field=field, hint="Check the path."
        ) from None


def read_document(path: Path, *, field: str | None = None) -> Any:
    """A JSON (by its suffix) or YAML file as plain Python values."""
    text = read_text(path, field=field)
    return parse_json(text, str(path)) if path.suffix == ".json" else parse_yaml(text, str(path))


class _Dumper(_DUMPER):  # type: ignore[misc]  # libyaml's when PyYAML was built with it
    """Writes no aliases, which the reader above refuses: a value used twice is written twice."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the library's signature
        return True


# Ends of lines of YAML 1.1 which are none in 1.2: as escapes they are the same to both.
_BREAKS = re.compile(r"[\x85\u2028\u2029\ufeff]")


def _represent_text(dumper: Any, text: str) -> Any:
    style = "|" if "\n" in text else None
    style = '"' if _BREAKS.search(text) else style
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)
# What YAML 1.2 readers (Go's among them) take for numbers or booleans although PyYAML does not:
# with these resolvers, such texts are quoted.
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
    return json.dumps(finite(value), indent=indent, ensure_ascii=False, allow_nan=False)


def finite(value: Any) -> Any:
    """``value`` with NaN and infinities replaced by None at any depth: JSON has only null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def write_whole(path: Path, data: bytes, *, private: bool = False) -> None:
    """Write a file atomically: a reader sees the old content or the new, never a part.

    Once it returns, the new content outlasts a loss of power. Only its owner may read a ``private``
    file.

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
            flush_to_disk(file)
        temporary.replace(path)
        flush_folder_names(path.parent)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise InputError(
            f"cannot write {path}: {error.strerror}.", hint="Choose another folder."
        ) from None


def flush_to_disk(file: IO[bytes]) -> None:
    """Have the disk keep what was written to a file; raises OSError where it cannot."""
    file.flush()
    os.fsync(file.fileno())


def flush_folder_names(folder: Path) -> None:
    """Have the disk keep the names in a folder, where its file system can.

    Raises:
        OSError: when the disk fails.
    """
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # as some network file systems say
            raise
    finally:
        os.close(descriptor)


def make_lasting_folder(folder: Path) -> None:
    """Make a folder and those above it that are missing, and have the disk keep their names.

    Raises:
        OSError: when one cannot be made.
    """
    missing = [ancestor for ancestor in (folder, *folder.parents) if not ancestor.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for ancestor in missing:
        flush_folder_names(ancestor.parent)
