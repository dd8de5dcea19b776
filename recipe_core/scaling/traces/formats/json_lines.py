"""Objects of a JSON file: one a line, or a list of them; flat ones as a table."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.json

from recipe_core.scaling.traces.formats.content import LONGEST_LINE, Content, quote_value, wrong

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
            expected = "a list of whole numbers" if listed else ("a text" if text else "a number")
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
