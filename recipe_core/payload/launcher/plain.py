"""Files of a run folder, which may hold links, pipes and text for nobody's terminal."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path

from .errors import LauncherError, file_error

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
    """What lies in ``run/`` and its ``node-N/``, none of it followed further."""
    try:
        entries = sorted(run.iterdir())
        nodes = [path for path in entries if is_node(path) and path.is_dir()]
        return [*entries, *(inner for node in nodes for inner in sorted(node.iterdir()))]
    except OSError:
        return []


def is_node(path: Path) -> bool:
    return _NODE.fullmatch(path.name) is not None


def odd_error(path: Path) -> LauncherError | None:
    """What is in the way of a plain file, as an error; None where nothing is."""
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
