"""``logs``: the ends of the logs of a bundle's processes, and what follows."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from . import events
from .errors import InputError, LauncherError
from .files import (
    is_plain,
    open_own,
    open_plain,
    plain_lines,
    read_file_end,
    sync_plain_folder,
)
from .report import print_json
from .request import Request

# From this size on a log is cut; as much of it is kept in ``NAME.log.1``.
LIMIT_BYTES = 64 << 20
_ROTATED_PIECE_BYTES = 1 << 20


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
    """Count the names of a file: one with two may be a backup's, or another bundle's, too."""
    with suppress(OSError):
        return path.lstat().st_nlink if is_plain(path) else 0
    return 0


def _set_aside(path: Path) -> None:
    with suppress(OSError):
        if path.is_symlink():
            path.unlink()
        elif is_plain(path) and (path.stat().st_size or _count_hard_links(path) > 1):
            path.replace(older_log(path))


def older_log(path: Path) -> Path:
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
            _keep_end(descriptor, older_log(path), limit_bytes)
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
            while piece := os.pread(descriptor, min(_ROTATED_PIECE_BYTES, size - at), at):
                file.write(piece)
                at += len(piece)
        temporary.replace(target)
        sync_plain_folder(target.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


# Lines of each log by default.
LINES = 20
# The name by which the events are shown like a log.
EVENTS = "events"
_TAIL_BYTES = 4 << 20
_PIECE_BYTES = 1 << 16
_POLL_S = 0.3


def run_logs(request: Request, *, sleep: Callable[[float], object] = time.sleep) -> int:
    """Show the end of each log, or of the one that is named; with ``--follow`` what comes, too."""
    node_folder = request.plan().own
    names = [request.name] if request.name else sorted(log_files(node_folder))
    if request.name and request.name not in (*log_files(node_folder), EVENTS):
        log_names = ", ".join(sorted(log_files(node_folder))) or "none yet"
        raise InputError(
            f"there is no log of {request.name!r}.",
            field="NAME",
            hint=f"There are: {log_names}, and {EVENTS}.",
        )
    count = LINES if request.lines is None else request.lines
    ends = {name: last_lines(node_folder, name, count) for name in names}
    if request.as_json and not request.follow:
        print_json({"logs": ends})
        return 0
    followers: dict[str, Follower] = {}
    if request.follow:
        followers = {name: Follower(named_log_path(node_folder, name)) for name in names}
    for name, lines in ends.items():
        _show_lines(request, name, lines)
    with suppress(KeyboardInterrupt):
        while request.follow:
            for name in () if request.name else log_files(node_folder):  # of what starts later
                if name not in followers:
                    path = named_log_path(node_folder, name)
                    followers[name] = Follower(path, from_start=True)
            for name, follower in followers.items():
                lines = follower.lines()
                if name == EVENTS:
                    parsed = events.parse_lines("\n".join(lines).encode())
                    lines = [event_line(event) for event in parsed]
                _show_lines(request, name, lines)
            sleep(_POLL_S)
    return 0


def _show_lines(request: Request, name: str, lines: list[str]) -> None:
    """Print lines, with their process's name before them where there are several."""
    for line in lines:
        if request.as_json:  # many lines make one document each
            print(json.dumps({"name": name, "line": line}), flush=True)
        else:
            print(line if request.name else f"{name} | {line}", flush=True)


def log_files(node_folder: Path) -> dict[str, Path]:
    """The logs by the names of their processes, ``keeper`` among them."""
    paths = node_folder.glob("*.log")
    return {path.stem: path for path in paths if path.is_file() and not path.is_symlink()}


def named_log_path(node_folder: Path, name: str) -> Path:
    return node_folder / (events.NAME if name == EVENTS else f"{name}.log")


def last_lines(node_folder: Path, name: str, count: int) -> list[str]:
    """The last lines of a log, or of the events; without colours and control characters."""
    if not count:
        return []
    if name == EVENTS:
        return [event_line(event) for event in events.read_events(node_folder)[-count:]]
    end = read_file_end(named_log_path(node_folder, name), _TAIL_BYTES) or b""
    return plain_lines(end.decode("utf-8", errors="replace"))[-count:]


def event_line(event: dict[str, object]) -> str:
    """An event for people: time, kind, and its fields."""
    fields = (
        f"{name}={value}"
        for name, value in event.items()
        if name not in ("time", "event") and value not in (None, "", [], {})
    )
    words = (str(event.get("time", "")), str(event["event"]), *fields)
    return " ".join(plain_lines(" ".join(words).replace("\n", " ")))


class Follower:
    """Lines of a file as they come: also once it is cut short by a restart, or replaced."""

    def __init__(self, path: Path, *, from_start: bool = False) -> None:
        self._path = path
        self._place: tuple[int, int] | None = None
        self._offset, self._rest = 0, b""
        if not from_start and (descriptor := open_plain(path)) is not None:
            try:
                status = os.fstat(descriptor)
                self._place = (status.st_dev, status.st_ino)
                self._offset = status.st_size
            finally:
                os.close(descriptor)

    def lines(self) -> list[str]:
        """The complete lines since the last call."""
        *complete_lines, self._rest = (self._rest + b"".join(self._pieces())).split(b"\n")
        if len(self._rest) > _PIECE_BYTES:  # a progress bar without line ends
            complete_lines, self._rest = [*complete_lines, self._rest], b""
        return plain_lines(b"\n".join(complete_lines).decode("utf-8", errors="replace"))

    def _pieces(self) -> Iterator[bytes]:
        descriptor = open_plain(self._path)
        if descriptor is None:
            return
        try:
            status = os.fstat(descriptor)
            place = (status.st_dev, status.st_ino)
            if place != self._place or status.st_size < self._offset:
                self._place, self._offset, self._rest = place, 0, b""
            while piece := os.pread(descriptor, _PIECE_BYTES, self._offset):
                self._offset += len(piece)
                yield piece
        finally:
            os.close(descriptor)
