"""What is wrong with the files of a checkpoint, found before any of them is used."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader

# What a checkpoint contains and where; it is written last, so whatever has it was complete.
METADATA = ".metadata"


def damage(folder: Path, rank: int, ranks: int) -> str | None:
    """The first fault in this rank's share of the stored tensors; None where there is none.

    Reading a checkpoint checks no sums: a bit that flipped on a disk would be trained on.
    """
    try:
        stored: dict[Any, Any] = FileSystemReader(folder).read_metadata().storage_data
    except Exception as error:  # whatever unpickling a damaged file raises
        return f"{METADATA}: {in_words(error)}"
    items = sorted((item.relative_path, item.offset, item.length) for item in stored.values())
    for name, offset, length in items[rank::ranks]:
        try:
            with (folder / name).open("rb") as file:
                file.seek(offset)
                data = file.read(length)
        except OSError as error:
            return f"{name}: {error.strerror}"
        if len(data) < length:
            return f"{name} is cut short"
        if not _intact(data):
            return f"{name} differs from its check sums"
    return None


def _intact(data: bytes) -> bool:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return archive.testzip() is None
    except Exception:  # zipfile raises several kinds for damaged archives
        return False


def in_words(error: BaseException) -> str:
    """An error in one line, for a collective one that of the first rank where something failed."""
    if isinstance(error, CheckpointException) and error.failures:
        error = error.failures[min(error.failures)][0]
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = str(error).splitlines()
    return lines[0][:300] if lines else type(error).__name__
