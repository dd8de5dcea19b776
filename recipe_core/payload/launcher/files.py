"""Small files, read and written: JSON, digests, logs, and whatever lies in a run folder."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from .errors import InputError, LauncherError, file_error

_SAFE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OPEN = os.O_RDONLY | _SAFE
_KINDS = (
    (stat.S_ISLNK, "a link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_NODE = re.compile(r"node-\d+")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


def open_plain(path: Path) -> int | None:
    """A descriptor to read a regular file by; None for anything else, which is not waited for."""
    try:
        descriptor = os.open(path, _OPEN)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return None


def open_own(path: Path, flags: int) -> int:
    """A descriptor to write a file of the launcher's own by, which is made where it is missing.

    Its flags keep ``O_NOFOLLOW``, which no shell sets: whoever has it was given it by the launcher.

    Raises:
        LauncherError: for a link, a pipe, a device or a folder in its place, none of which is
            followed or waited for, and where it cannot be opened.
    """
    try:
        descriptor = os.open(path, flags | os.O_CREAT | _SAFE, 0o644)
    except OSError as error:
        raise odd_error(path) or file_error(error, path) from None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.set_blocking(descriptor, True)
        return descriptor
    os.close(descriptor)
    raise odd_error(path) or file_error(OSError(0, "it is not a plain file"), path)


def refuse_odd_run(run: Path) -> None:
    """Refuse links and devices where the launcher writes: in ``run/`` and its ``node-N/``.

    Writing would follow them out of the bundle, or wait. Folders may be links, but those of nodes.

    Raises:
        LauncherError: for the first.
    """
    for path in own_entries(run):
        linked = path.is_symlink() and (is_node(path) or not path.is_dir())
        odd = linked or not (path.is_dir() or path.is_file())
        if odd and (error := odd_error(path)) is not None:
            raise error


def own_entries(run: Path) -> list[Path]:
    """Return what lies in ``run/`` and its ``node-N/``, none of it followed further."""
    try:
        entries = sorted(run.iterdir())
        nodes = [path for path in entries if is_node(path) and path.is_dir()]
        return [*entries, *(inner for node in nodes for inner in sorted(node.iterdir()))]
    except OSError:
        return []


def is_node(path: Path) -> bool:
    return _NODE.fullmatch(path.name) is not None


def odd_error(path: Path) -> LauncherError | None:
    """Return what is in the way of a plain file, as an error; None where nothing is."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return None
    kind = next((word for test, word in _KINDS if test(mode)), None)
    if kind is None:
        return None
    hint = f"Remove it: the launcher writes a file of its own there (rm {path})."
    return LauncherError(f"{path} is not a plain file but {kind}.", hint=hint)


def make_run(node_folder: Path) -> None:
    """Make the folder of state and logs in its bundle; where the bundle is gone none is made.

    Raises:
        LauncherError: where it cannot be made.
    """
    try:
        if node_folder.parent.name == "run":
            make_durable_folder(node_folder.parent)
        make_durable_folder(node_folder)
    except OSError as error:
        raise file_error(error) from None


def make_durable_folder(folder: Path, *, parents: bool = False) -> None:
    """Make a folder where there is none, whose name then outlasts a loss of power.

    Raises:
        OSError: where it cannot be made, or a file lies there.
    """
    if parents and not folder.parent.is_dir():
        make_durable_folder(folder.parent, parents=True)
    try:
        folder.mkdir()
    except FileExistsError:
        if not folder.is_dir():
            raise
    else:
        sync_plain_folder(folder.parent)


def sync_plain_file(path: Path) -> None:
    """Have the disk keep the bytes of a file.

    Raises:
        OSError: where the disk cannot.
    """
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_plain_folder(folder: Path) -> None:
    """Have the disk keep the names in a folder, where its file system can.

    Raises:
        OSError: when the disk fails.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # as some network file systems say
            raise
    finally:
        os.close(descriptor)


def is_plain(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def read_file_end(path: Path, limit: int) -> bytes | None:
    """The last bytes of a regular file; None where there is none to read."""
    descriptor = open_plain(path)
    if descriptor is None:
        return None
    try:
        size = os.fstat(descriptor).st_size
        return os.pread(descriptor, limit, max(0, size - limit))
    except OSError:
        return None
    finally:
        os.close(descriptor)


def plain_lines(text: str) -> list[str]:
    """Lines without colours and control characters.

    Carriage returns of progress bars count as line ends; empty lines are left out.
    """
    lines = text.replace("\r", "\n").split("\n")
    return [plain for line in lines if (plain := _CONTROL.sub("", line).rstrip())]


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
    text = json_text(data) + "\n"
    try:
        if not path.parent.is_dir():
            make_durable_folder(path.parent, parents=True)
        with file_anew(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise file_error(error, path) from None


@contextmanager
def file_anew(path: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """A file that takes its place once it is whole, through a temporary one in the same folder.

    Then it outlasts a loss of power: the disk has its bytes and its name. Where anything fails,
    nothing of it stays, and what was there before does.

    Raises:
        OSError: where it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _SAFE
    try:
        with os.fdopen(os.open(temporary, flags, mode), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_plain_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
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
