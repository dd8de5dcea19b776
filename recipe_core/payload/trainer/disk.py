"""Files and folders that outlast a loss of power."""

from __future__ import annotations

import os
from pathlib import Path


def put_in_place(part: Path, target: Path) -> None:
    """Give a finished file or folder its name; the disk has all of it before, and the name after.

    Raises:
        OSError: when the disk fails, or another folder has the name.
    """
    for path in (part, *part.rglob("*")) if part.is_dir() else (part,):
        sync_to_disk(path)
    part.replace(target)
    sync_to_disk(target.parent)


def sync_to_disk(path: Path) -> None:
    """Have the disk keep what is in a file, or the names in a folder, where that can be.

    Raises:
        OSError: when the disk fails.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not path.is_dir():  # of folders some network file systems cannot
            raise
    finally:
        os.close(descriptor)
