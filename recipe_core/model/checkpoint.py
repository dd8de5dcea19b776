"""What a checkpoint on disk really holds: bytes of its tensors, from the index or the headers of its safetensors files."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

MAX_HEADER_BYTES = 64 << 20


def checkpoint_bytes(folder: Path) -> int | None:
    """Bytes of all tensors in a model folder, or None when it holds no readable safetensors files.

    The index's ``total_size`` when there is one, else the offsets in each file's header; no tensor is read.
    """
    index = folder / "model.safetensors.index.json"
    try:
        if index.is_file() and index.stat().st_size <= MAX_HEADER_BYTES:
            total = json.loads(index.read_text(encoding="utf-8")).get("metadata", {}).get("total_size")
            if isinstance(total, int | float) and total > 0:
                return int(total)
        files = sorted(folder.glob("*.safetensors"))
        return sum(map(_tensor_bytes, files)) if files else None
    except (OSError, ValueError, AttributeError, KeyError, TypeError, struct.error):
        return None  # a damaged checkpoint is the engine's business; the architecture is known without it


def _tensor_bytes(file: Path) -> int:
    """Bytes of the tensors of one file: the last offset in its header (format: 8-byte length, JSON, data)."""
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        if length > MAX_HEADER_BYTES:
            raise ValueError("header too long")
        header: dict[str, Any] = json.loads(stream.read(length))
    return max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
