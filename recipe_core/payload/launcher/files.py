"""Reading and writing small files: JSON, digests, the tail of a log."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from .errors import InputError, LauncherError, file_error
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


NAME = "MANIFEST.json"
SIGNATURE = "SIGNATURE"  # of the list; `recipe check` verifies it


@dataclass(frozen=True, slots=True)
class Findings:
    """Differences, as paths in the bundle."""

    missing: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()

    @property
    def sound(self) -> bool:
        return not (self.missing or self.changed or self.added)


def verify_manifest(root: Path) -> tuple[int, Findings]:
    """The number of files listed, and how the folder differs from the list."""
    files = read_object(root / NAME).get("files")
    if not isinstance(files, dict) or not files:
        raise LauncherError(
            f"{NAME} lists no files.", hint="Build the bundle again with `recipe build`."
        )
    outside = [name for name in files if not _is_inside_bundle(name)]
    if outside:
        raise LauncherError(
            f"{NAME} lists a path outside the bundle: {outside[0]!r}.",
            hint="Do not use this bundle; build it again.",
        )
    present = set(list_bundle_files(root))
    return len(files), Findings(
        missing=tuple(sorted(set(files) - present)),
        changed=tuple(
            sorted(name for name in present & set(files) if not _same(root / name, files[name]))
        ),
        added=tuple(sorted(present - set(files))),
    )


def digest(root: Path) -> str | None:
    """The digest of the manifest itself, which identifies the bundle."""
    path = root / NAME
    return sha256(path) if path.is_file() else None


def list_bundle_files(root: Path) -> list[str]:
    """All files but the manifest, its signature and the folder ``run/``."""
    paths = []
    for parent, folders, names in os.walk(root):
        folder = Path(parent)
        folders[:] = [name for name in folders if folder != root or name != "run"]
        # A linked folder is one entry; os.walk does not follow it.
        links = [name for name in folders if (folder / name).is_symlink()]
        paths += [(folder / name).relative_to(root).as_posix() for name in (*names, *links)]
    return [path for path in paths if path not in (NAME, SIGNATURE)]


def _is_inside_bundle(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and name == path.as_posix()


def _same(path: Path, expected: object) -> bool:
    return path.is_file() and not path.is_symlink() and sha256(path) == expected
