"""Reading and writing small files: JSON, digests, the tail of a log."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from .errors import InputError, file_error
from .plain import make_durable_folder, read_file_end, sync_plain_folder


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; a pipe or a device in its place is not waited for.

    Raises:
        InputError: for anything else.
    """
    try:
        if path.exists() and not path.is_file():
            raise ValueError("it is not a plain file")
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            f"{path} does not exist.",
            hint="Run this in the folder of a bundle from `recipe build`.",
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"{path} cannot be read as JSON: {error}.",
            hint="Build the bundle again with `recipe build`.",
        ) from None
    if not isinstance(data, dict):
        raise InputError(
            f"{path} holds {type(data).__name__}, not an object.",
            hint="Build the bundle again with `recipe build`.",
        )
    return data


def json_text(data: object, encoding: str = "utf-8") -> str:
    """JSON in letters that ``encoding`` has, and escapes where it lacks one."""
    text = json.dumps(data, indent=2, ensure_ascii=False)
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return json.dumps(data, indent=2)
    return text


def write_json(path: Path, data: object) -> None:
    """Write a file atomically, through a temporary file in the same folder.

    Once it returns, the file outlasts a loss of power: the disk has its bytes and its name.

    Raises:
        LauncherError: where it cannot be written; what was there before stays.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if not path.parent.is_dir():
            make_durable_folder(path.parent, parents=True)
        with temporary.open("w", encoding="utf-8") as file:
            file.write(json_text(data) + "\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_plain_folder(path.parent)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise file_error(error, path) from None
        raise


def sha256(path: Path) -> str:
    """Digest of a file's bytes, as hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def tail(path: Path, lines: int = 20, *, limit: int = 16_384) -> str:
    """The last lines of a log; progress bars' carriage returns count as line ends."""
    text = (read_file_end(path, limit) or b"").decode("utf-8", errors="replace")
    recent = [line.rstrip() for line in text.replace("\r", "\n").split("\n") if line.strip()]
    return "\n".join(recent[-lines:])
