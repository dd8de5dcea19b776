"""Logs of a run folder: opened for one start, set aside, cut at a size.

An engine keeps its log open for as long as it runs, so a log is cut in place: what it holds is
copied aside, then the file is emptied. As it is written by appending, what comes next begins at its
start. Only a keeper cuts; what runs without one logs without a limit.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import IO

from .errors import LauncherError
from .plain import is_plain, open_own, sync_plain_folder

# From this size on a log is cut; as much of it is kept in ``NAME.log.1``.
LIMIT_BYTES = 64 << 20
_PIECE_BYTES = 1 << 20


def open_log(path: Path, *, anew: bool = True) -> IO[bytes]:
    """Open a log to append to; ``anew`` sets that of the start before aside: it says why it ended.

    A link in its place is removed: whoever wanted silence has the limit now.

    Raises:
        LauncherError: for a pipe, a device or a folder in its place, and where it cannot be opened.
    """
    if anew or _count_hard_links(path) > 1:
        _set_aside(path)
    return open(path, "ab", opener=lambda _, flags: open_own(path, flags))


def _count_hard_links(path: Path) -> int:
    """How many names a file has: one with two may be a backup's, or another bundle's, too."""
    with suppress(OSError):
        return path.lstat().st_nlink if is_plain(path) else 0
    return 0


def _set_aside(path: Path) -> None:
    with suppress(OSError):
        if path.is_symlink():
            path.unlink()
        elif is_plain(path) and (path.stat().st_size or _count_hard_links(path) > 1):
            path.replace(older(path))


def older(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")


def cut_logs(node_folder: Path, *, limit_bytes: int = LIMIT_BYTES) -> list[Path]:
    """Cut every log of a run folder that has grown to the limit; returns those."""
    return [path for path in sorted(node_folder.glob("*.log")) if _cut_log(path, limit_bytes)]


def _cut_log(path: Path, limit_bytes: int) -> bool:
    try:
        if not is_plain(path) or path.stat().st_size < limit_bytes:
            return False
        descriptor = open_own(path, os.O_RDWR)
    except (OSError, LauncherError):
        return False
    try:
        with suppress(OSError):  # a full disk: what is cut is lost then, as it filled the disk
            _keep_end(descriptor, older(path), limit_bytes)
        os.ftruncate(descriptor, 0)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _keep_end(descriptor: int, target: Path, limit_bytes: int) -> None:
    """Copy the last bytes of an open file, replacing what was kept before."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    size = os.fstat(descriptor).st_size  # it may grow as fast as it is read
    at = max(0, size - limit_bytes)
    try:
        with temporary.open("wb") as file:
            while piece := os.pread(descriptor, min(_PIECE_BYTES, size - at), at):
                file.write(piece)
                at += len(piece)
        temporary.replace(target)
        sync_plain_folder(target.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
