"""Reading files of a run folder, which may hold links, pipes and text for nobody's terminal."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
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


def read_end(path: Path, limit: int) -> bytes | None:
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
