"""A trace file as bytes, unpacked within bounds, and what its first line shows."""

from __future__ import annotations

import csv
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from recipe_core.base.errors import InputError

FIELD = "trace"
MOST_BYTES = 1 << 30
"""Bytes of a trace once it is unpacked."""
MOST_REQUESTS = 20_000_000
LONGEST_LINE = 1 << 24
"""Bytes of one line: 16 MiB are a request with 2 million blocks."""
_HEAD = 1 << 20
_SHOWN = 60
_GZIP = b"\x1f\x8b"
_OTHER = {
    b"PK": "a zip archive; unpack it",
    b"\x28\xb5\x2f\xfd": "packed with zstd; unpack it, or pack it with gzip",
    b"BZh": "packed with bzip2; unpack it, or pack it with gzip",
    b"\xfd7zXZ": "packed with xz; unpack it, or pack it with gzip",
}


def wrong(message: str, hint: str) -> InputError:
    """The error about a trace file."""
    return InputError(message, field=FIELD, hint=hint)


def shown(value: object) -> str:
    """A value of a file for a message: quoted and short."""
    return f"{str(value)[:_SHOWN]!r}"


def unpacked(data: bytes, limit: int = MOST_BYTES) -> bytes:
    """The bytes of a file, without gzip if it is packed (several members are one file).

    Raises:
        InputError: for what is damaged, packed otherwise, or more than ``limit`` bytes.
    """
    for first, what in _OTHER.items():
        if data.startswith(first):
            raise wrong("the file is packed.", f"It is {what}.")
    if not data.startswith(_GZIP):
        return _bounded(data, limit)
    parts: list[bytes] = []
    size = 0
    while data.startswith(_GZIP):
        unpack = zlib.decompressobj(wbits=31)
        try:
            parts.append(unpack.decompress(data, limit - size + 1))
        except zlib.error as error:
            raise wrong(
                f"the gzip file is damaged: {error}.", "Download or pack it again."
            ) from None
        size += len(parts[-1])
        if size > limit:
            break
        if not unpack.eof:
            raise wrong("the gzip file ends too early.", "Download or pack it again.")
        data = unpack.unused_data.lstrip(b"\x00")
    return _bounded(b"".join(parts), limit)


def _bounded(data: bytes, limit: int) -> bytes:
    if len(data) > limit:
        raise wrong(
            f"the trace is larger than {limit / 2**20:,.0f} MiB.",
            "Give a part of it: a few days, or every tenth session.",
        )
    return data


@dataclass(frozen=True)
class Content:
    """An unpacked trace file."""

    data: bytes
    name: str

    @property
    def title(self) -> str:
        """Its name for a message."""
        return self.name or "the trace"

    @property
    def is_parquet(self) -> bool:
        """Whether it is a table in Parquet."""
        return self.data[:4] == b"PAR1"

    @cached_property
    def first_line(self) -> str:
        """The first line that is not empty, as text; empty for binary files."""
        head = self.data[:_HEAD]
        if b"\x00" in head[:4096]:
            return ""
        lines = (line.strip() for line in head.splitlines())
        return next(filter(None, lines), b"").decode("utf-8-sig", errors="replace")

    @cached_property
    def first_object(self) -> Mapping[str, Any] | None:
        """The object in its first line; None where it holds none."""
        if not self.first_line.startswith("{"):
            return None
        try:
            value = json.loads(self.first_line)
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None

    @property
    def is_json(self) -> bool:
        """Whether it begins as JSON does."""
        return self.first_line.startswith(("{", "["))

    @cached_property
    def delimiter(self) -> str:
        """What divides the columns of its head."""
        counts = {mark: self.first_line.count(mark) for mark in (",", "\t", ";", "|")}
        return max(counts, key=lambda mark: counts[mark]) if any(counts.values()) else ","

    @cached_property
    def head(self) -> tuple[str, ...]:
        """Names of the columns in its first line, as they stand there."""
        if self.is_json or not self.first_line:
            return ()
        row = next(csv.reader([self.first_line], delimiter=self.delimiter), [])
        return tuple(name.strip() for name in row)
