"""A trace file as bytes, unpacked within bounds, and what its first line shows."""

from __future__ import annotations

import csv
import io
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.json

from recipe_core.base.errors import InputError

FIELD = "trace"
# Bytes of a trace once it is unpacked.
MOST_BYTES = 1 << 30
MOST_REQUESTS = 20_000_000
# A request takes a line, and a few stand before the first.
MOST_LINES = MOST_REQUESTS + 100
# Bytes that any gzip file may unpack to, and how many times its own bytes a larger one may: traces
# pack to a tenth, and what packs to a hundredth is made to fill the memory.
LEAST_UNPACKED, MOST_GROWTH = 24 << 20, 16
MOST_MEMBERS = 100_000
# Bytes that are unpacked at once, and that come out at once.
_FED, _PIECE = 1 << 14, 1 << 20
# Bytes of one line: 16 MiB are a request with 2 million blocks.
LONGEST_LINE = 1 << 24
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
    return InputError(message, field=FIELD, hint=hint)


def quote_value(value: object) -> str:
    """A value of a file for a message: quoted and short."""
    return f"{str(value)[:_SHOWN]!r}"


def unpack_trace_file(data: bytes, limit: int = MOST_BYTES) -> bytes:
    """The bytes of a file, without gzip if it is packed (several members are one file).

    Raises:
        InputError: for what is damaged, packed otherwise, more than ``limit`` bytes or more lines
            than any trace has, and for what grows as only a bomb does.
    """
    for first, advice in _OTHER.items():
        if data.startswith(first):
            raise wrong("the file is packed.", f"It is {advice}.")
    if not data.startswith(_GZIP):
        _check_size(len(data), data.count(b"\n"), limit)
        return data
    size = lines = 0
    for piece in _gunzip_pieces(data):  # unpacked twice, so that what is refused takes no memory
        size += len(piece)
        lines += piece.count(b"\n")
        _check_size(size, lines, limit)
        if size > max(LEAST_UNPACKED, MOST_GROWTH * len(data)):
            raise wrong(
                f"the gzip file is {len(data):,} bytes and unpacks to more than {MOST_GROWTH} "
                "times as many.",
                "Give it unpacked if that is right.",
            )
    buffer = io.BytesIO()
    buffer.writelines(_gunzip_pieces(data))
    return buffer.getvalue()


def _gunzip_pieces(packed: bytes) -> Iterator[bytes]:
    """Yield what a gzip file unpacks to, member by member, in pieces of at most ``_PIECE`` bytes.

    Raises:
        InputError: where it is damaged, or has more members than any file that is not made to.
    """
    view, start, members = memoryview(packed), 0, 0
    while view[start : start + 2] == _GZIP:
        unpack = zlib.decompressobj(wbits=31)
        members += 1
        if members > MOST_MEMBERS:
            raise wrong(f"the gzip file has over {MOST_MEMBERS:,} members.", "Pack it as one.")
        while not unpack.eof:
            fed = unpack.unconsumed_tail or view[start : start + _FED]
            start += 0 if unpack.unconsumed_tail else len(fed)
            try:
                piece = unpack.decompress(fed, _PIECE)
            except zlib.error as error:
                raise wrong(
                    f"the gzip file is damaged: {error}.", "Download or pack it again."
                ) from None
            if not fed and not piece and not unpack.eof:
                raise wrong("the gzip file ends too early.", "Download or pack it again.")
            yield piece
        start -= len(unpack.unused_data)
        while (block := bytes(view[start : start + _FED])) and not block.strip(b"\x00"):
            start += len(block)  # some tools fill up with zeros
        start += len(block) - len(block.lstrip(b"\x00"))


def _check_size(size: int, lines: int, limit: int) -> None:
    if size > limit:
        raise wrong(
            f"the trace is larger than {limit / 2**20:,.0f} MiB.",
            "Give a part of it: a few days, or every tenth session.",
        )
    if lines > MOST_LINES:
        raise wrong(f"the trace has more than {MOST_LINES:,} lines.", "Give a part of it.")


@dataclass(frozen=True)
class Content:
    """An unpacked trace file."""

    data: bytes
    name: str

    @property
    def title(self) -> str:
        return self.name or "the trace"

    @property
    def is_parquet(self) -> bool:
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
        """Return whether it begins as JSON does."""
        return self.first_line.startswith(("{", "["))

    @cached_property
    def delimiter(self) -> str:
        """Say what divides the columns of its head."""
        counts = {mark: self.first_line.count(mark) for mark in (",", "\t", ";", "|")}
        return max(counts, key=lambda mark: counts[mark]) if any(counts.values()) else ","

    @cached_property
    def head(self) -> tuple[str, ...]:
        """Names of the columns in its first line, as they stand there."""
        if self.is_json or not self.first_line:
            return ()
        row = next(csv.reader([self.first_line], delimiter=self.delimiter), [])
        return tuple(name.strip() for name in row)


_BLOCK = LONGEST_LINE
# Bytes of a JSON document that is not in lines: it becomes Python objects at once.
_LARGEST_DOCUMENT = 1 << 28


def read_json_table(content: Content, types: Mapping[str, Any]) -> Any:
    """These fields of JSON lines as a pyarrow table; a missing field is null.

    Raises:
        InputError: for the first line that is not JSON, or where a field has another type.
    """
    try:
        return pyarrow.json.read_json(
            io.BytesIO(content.data.removeprefix(b"\xef\xbb\xbf")),
            read_options=pyarrow.json.ReadOptions(block_size=_BLOCK),
            parse_options=pyarrow.json.ParseOptions(
                explicit_schema=pa.schema(list(types.items())),
                unexpected_field_behavior="ignore",
            ),
        )
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        for number, value in read_json_objects(content):
            for name, kind in types.items():
                _check_field_type(value.get(name), kind, name, number)
        text = " ".join(str(error).split())[:160].rstrip(".")
        raise wrong(
            f"{content.title} is not JSON lines: {text}.", "Write one object a line."
        ) from None


def _check_field_type(value: Any, kind: Any, name: str, number: int) -> None:
    if value is None:
        return
    listed = pa.types.is_list(kind)
    for item in value if listed and isinstance(value, list) else [value]:
        text = pa.types.is_string(kind)
        fits = isinstance(item, str) if text else isinstance(item, int | float)
        if not fits or isinstance(item, bool):
            single = "a text" if text else "a number"
            expected = "a list of whole numbers" if listed else single
            raise wrong(
                f"line {number:,}: {name} is {quote_value(value)}, not {expected}.",
                "Correct the line.",
            )


def read_json_objects(content: Content) -> Iterator[tuple[int, dict[str, Any]]]:
    """Every object with the line it is in, or its place in a list.

    A document that is one list, or one object over several lines, is read whole.

    Raises:
        InputError: for the first line that is not an object in JSON.
    """
    if content.first_line.startswith("[") or content.first_line == "{":
        yield from _read_json_document(content)
        return
    start = 3 if content.data.startswith(b"\xef\xbb\xbf") else 0
    for number, line in enumerate(io.BytesIO(content.data[start:]), 1):
        if line.isspace():
            continue
        value = _parse_json_value(line, f"line {number:,}")
        if not isinstance(value, dict):
            raise wrong(
                f"line {number:,} is {quote_value(value)}, not an object.", "Correct the line."
            )
        yield number, value


def _read_json_document(content: Content) -> Iterator[tuple[int, dict[str, Any]]]:
    if len(content.data) > _LARGEST_DOCUMENT:
        raise wrong(
            f"{content.title} is one JSON document of {len(content.data) / 2**20:,.0f} MiB; "
            f"the limit is {_LARGEST_DOCUMENT >> 20}.",
            "Write one object a line: jq -c '.[]'.",
        )
    document = _parse_json_value(content.data, content.title)
    items = document if isinstance(document, list) else [document]
    for number, value in enumerate(items, 1):
        if not isinstance(value, dict):
            raise wrong(f"entry {number:,} is {quote_value(value)}, not an object.", "Correct it.")
        yield number, value


def _parse_json_value(text: bytes, where: str) -> Any:
    if len(text) > _LARGEST_DOCUMENT:
        raise wrong(f"{where} is too long.", "Write one object a line.")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise wrong(f"{where} is not JSON: {reason}.", "Correct or remove it.") from None
