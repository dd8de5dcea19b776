"""``events.jsonl``: what the launcher saw and did, one JSON object a line, for people and tools."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from .errors import LauncherError
from .files import make_run, open_plain, read_file_end

NAME = "events.jsonl"
OLDER = f"{NAME}.1"
# From this size on the file is moved aside, once: the two hold thousands of events.
LIMIT_BYTES = 1 << 20
_READ_BYTES = 4 * LIMIT_BYTES
_MOST_WAITING = 200
# Lines that could not be written yet, by the folder.
_WAITING: dict[Path, deque[bytes]] = {}
_OPEN = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def append(node_folder: Path, kind: str, /, **fields: object) -> None:
    """Note an event with its time (UTC).

    One write for each line, so that lines of several processes do not mix. A disk that is full, or
    may not be written to, stops nothing: the event is written with the next one that can be.
    """
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    waiting = _WAITING.setdefault(node_folder, deque(maxlen=_MOST_WAITING))
    waiting.append(_encode_event({"time": now, "event": kind, **fields}))
    with suppress(OSError, LauncherError):
        make_run(node_folder)
        _rotate(node_folder)
        while waiting and _append_event_line(node_folder / NAME, waiting[0]):
            waiting.popleft()


def _encode_event(event: dict[str, object]) -> bytes:
    """JSON of anything: what JSON lacks becomes text, and numbers without end null."""
    text = json.dumps(event, default=str)
    strict = json.loads(text, parse_constant=lambda _: None)
    return json.dumps(strict).encode() + b"\n"


def _append_event_line(path: Path, line: bytes) -> bool:
    descriptor = os.open(path, _OPEN, 0o644)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return True  # never: it is no file of ours
        # A line that a full disk cut short must not take this one with it.
        torn = status.st_size and os.pread(descriptor, 1, status.st_size - 1) != b"\n"
        content = b"\n" + line if torn else line
        return os.write(descriptor, content) == len(content)
    finally:
        os.close(descriptor)


def _rotate(node_folder: Path) -> None:
    """Move a long file aside; whoever else writes does not do so a second time."""
    path = node_folder / NAME
    descriptor = open_plain(path)
    if descriptor is None:
        return
    try:
        status = os.fstat(descriptor)
        if status.st_size < LIMIT_BYTES:
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(status, path.stat()):
            path.replace(node_folder / OLDER)
    finally:
        os.close(descriptor)


def read_events(node_folder: Path) -> list[dict[str, Any]]:
    """The events, oldest first; lines that are cut short or no events are left out."""
    texts = (read_file_end(node_folder / name, _READ_BYTES) for name in (OLDER, NAME))
    return [event for text in texts for event in parse_lines(text or b"")]


def parse_lines(text: bytes) -> Iterator[dict[str, Any]]:
    for line in text.split(b"\n"):
        with suppress(ValueError, RecursionError):
            event = json.loads(line)
            if isinstance(event, dict) and isinstance(event.get("event"), str):
                yield event
