"""A plain table of requests: CSV, TSV, Parquet or flat JSON lines, with names people use."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recipe_core.base.arrays import Bool, Int
from recipe_core.base.budget import limited_memory
from recipe_core.base.data_files import DataFile, DataRow
from recipe_core.base.resources import PACKAGE
from recipe_core.scaling.traces.formats.columns import (
    blocks_of,
    read_csv_columns,
    read_label_column,
    read_number_column,
    read_time_column,
    read_token_column,
    text_lists,
)
from recipe_core.scaling.traces.formats.content import (
    MOST_BYTES,
    MOST_GROWTH,
    MOST_REQUESTS,
    Content,
    read_json_table,
    wrong,
)
from recipe_core.scaling.traces.formats.requests import Requests
from recipe_core.scaling.traces.trace import Blocks

FILE = DataFile(PACKAGE / "scaling" / "traces" / "formats" / "names.yaml", "trace")


class Published(DataRow):
    """A published trace: the columns that tell it, and the unit of its times (None: dates)."""

    columns: tuple[str, ...]
    unit: str | None = None


class _Names(DataRow):
    names: Mapping[str, tuple[str, ...]]
    units: Mapping[str, tuple[str, ...]]
    published: Mapping[str, Published]


@cache
def column_names() -> _Names:
    """Return what columns are called."""
    return FILE.read_as(_Names)


def normalise_column_name(name: str) -> str:
    """A name in small letters, with one underscore for what is no letter or digit.

    Capitals inside a word begin a new one: ``promptTokens`` is ``prompt_tokens``.
    """
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z])", "_", name.strip())
    return re.sub(r"[^a-z0-9@]+", "_", words.lower()).strip("_")


def column_of(head: Iterable[str], meaning: str) -> str | None:
    """Return the column that bears the first name for a meaning; None where none does."""
    plain_names: dict[str, str] = {}
    for name in head:
        plain_names.setdefault(normalise_column_name(name), name)
    names = column_names().names[meaning]
    return next((plain_names[name] for name in names if name in plain_names), None)


def time_column(head: Iterable[str]) -> tuple[str, str | None] | None:
    """The column with times of arrival, and the unit that its name states; None without one."""
    candidates: Mapping[str, tuple[str, str | None]] = {
        base: (name, unit)
        for name in reversed(list(head))
        for base, unit in _name_readings(normalise_column_name(name))
    }
    times = column_names().names["times"]
    return next((candidates[name] for name in times if name in candidates), None)


def _name_readings(name: str) -> list[tuple[str, str | None]]:
    """A name as it is, and without a unit at its end."""
    base, _, last = name.rpartition("_")
    units = [unit for unit, words in column_names().units.items() if last in words]
    if not base or not units:
        return [(name, None)]
    return [(name, None), (base.removesuffix("_in"), units[0])]


TITLE = "table"
_LONGEST_CHAIN = 64
# Bytes that the columns of any table in Parquet may take, and those of the largest one.
LEAST_MEMORY, MOST_MEMORY = 192 << 20, 4 << 30
BAD = ("failed", "failure", "error", "false", "timeout", "cancelled", "canceled", "aborted")


def is_request_table(content: Content) -> bool:
    return has_request_columns(_request_column_names(content))


def has_request_columns(names: Sequence[str]) -> bool:
    return time_column(names) is not None and column_of(names, "inputs") is not None


def _request_column_names(content: Content) -> Sequence[str]:
    if content.is_parquet:
        return list(_open_parquet(content).schema_arrow.names)
    first = content.first_object
    if first is not None:
        return [
            name for name, value in first.items() if isinstance(value, str | int | float | list)
        ]
    return content.head


def published_title(content: Content) -> str | None:
    """Return the title of a published trace, by its columns; None for any other table."""
    names = {*(content.first_object or content.head)}
    published = column_names().published.items()
    return next((title for title, row in published if {*row.columns} <= names), None)


def read_request_table(content: Content, unit: str | None = None) -> Requests:
    """Return the requests of such a file.

    Raises:
        InputError: without a column of times or of lengths, and for the first wrong cell.
    """
    names = list(_request_column_names(content))
    stamp, title = time_column(names), published_title(content)
    prompt, answer, session, status, hashes, size, parent = (
        column_of(names, meaning)
        for meaning in ("inputs", "outputs", "sessions", "statuses", "hashes", "sizes", "parents")
    )
    if stamp is None or prompt is None:
        raise wrong(
            f"{content.title} has no column of times or of prompt lengths.",
            "Name them timestamp and input_tokens.",
        )
    if answer is None:
        raise wrong(
            f"{content.title} has no column of answer lengths; it has {', '.join(names[:12])}.",
            "Name it output_tokens; 0 where there are none.",
        )
    usual = stamp[1]
    if title is not None:  # of chats, the times of published traces are in seconds
        usual = "s" if parent else column_names().published[title].unit
    optional = [name for name in (session, status, hashes, size, parent) if name is not None]
    table, line = _read_request_columns(content, [stamp[0], prompt, answer], optional)
    arrival, origin, time_note = read_time_column(
        table, stamp[0], unit=unit or usual, first_line=line
    )
    inputs = read_token_column(table, prompt, first_line=line)
    return Requests(
        arrival_s=arrival,
        input_tokens=inputs,
        output_tokens=_read_answer_lengths(table, answer, line),
        blocks=_read_prompt_blocks(table, hashes, size, inputs) if hashes else None,
        sessions=_read_sessions(table, session, parent),
        failed=parse_failures(table[status]) if status else None,
        origin_s=origin or None,
        note="" if title else f"{stamp[0]} in {time_note}",
    )


def _read_sessions(table: Any, session: str | None, parent: str | None) -> Int | None:
    """Sessions as numbers; chats that name the one before belong to the first of their chain."""
    if session is None:
        return None
    if parent is None:
        return read_label_column(table, session)
    chats, parents = (
        pc.fill_null(table[name], -1).to_numpy().astype(np.int64) for name in (session, parent)
    )
    return chain_roots(chats, parents)


def chain_roots(chats: Int, parents: Int) -> Int:
    """Return the first chat of each chain of chats; one of more than 64 links is cut."""
    order = np.argsort(chats, kind="stable")
    place = np.minimum(np.searchsorted(chats[order], parents), len(chats) - 1)
    parent = order[place]
    rows = np.arange(len(chats))
    root = np.where((parents >= 0) & (chats[parent] == parents), parent, rows)
    for _ in range(_LONGEST_CHAIN.bit_length()):  # each pass doubles the links that are followed
        root = root[root]
    return root


def _read_answer_lengths(table: Any, column: str, line: int) -> Int:
    """Lengths of answers; an empty cell is a request without one."""
    cells = table[column]
    if cells.null_count:
        nothing = "0" if pa.types.is_string(cells.type) else 0
        names = table.column_names
        table = table.set_column(names.index(column), column, pc.fill_null(cells, nothing))
    return read_token_column(table, column, first_line=line)


def _read_request_columns(
    content: Content, needed: list[str], optional: list[str]
) -> tuple[Any, int]:
    """The columns, and the line of the first row."""
    if content.is_parquet:
        return _read_parquet_columns(content, [*needed, *optional]), 1
    first = content.first_object
    if first is None:
        return read_csv_columns(content, needed, optional=optional), 2
    types = {name: _arrow_type(first[name]) for name in (*needed, *optional)}
    if published_title(content) is not None:
        types |= dict.fromkeys(needed, pa.float64())
    return read_json_table(content, types), 1


def _arrow_type(value: Any) -> Any:
    if isinstance(value, list):
        return pa.list_(pa.string() if value and isinstance(value[0], str) else pa.int64())
    if isinstance(value, bool):
        return pa.bool_()
    return pa.string() if isinstance(value, str) else pa.float64()


def _open_parquet(content: Content) -> Any:
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(io.BytesIO(content.data))
    except (pa.ArrowInvalid, OSError) as error:
        text = " ".join(str(error).split())[:160].rstrip(".")
        raise wrong(f"{content.title} is no Parquet: {text}.", "Write it again.") from None
    rows = table.metadata.num_rows
    size = sum(
        table.metadata.row_group(n).total_byte_size for n in range(table.metadata.num_row_groups)
    )
    if rows > MOST_REQUESTS or size > MOST_BYTES:
        raise wrong(
            f"{content.title} has {rows:,} rows, {size / 2**20:,.0f} MiB unpacked; the limits are "
            f"{MOST_REQUESTS:,} and {MOST_BYTES >> 20:,}.",
            "Give a part of it.",
        )
    return table


def _read_parquet_columns(content: Content, names: list[str]) -> Any:
    """The columns of a table in Parquet, of which a kilobyte may say a value a billion times.

    Raises:
        InputError: where they take more memory than a trace of that size does, or are damaged.
    """
    table, packed = _open_parquet(content), len(content.data)
    memory_limit = min(max(LEAST_MEMORY, MOST_GROWTH * packed), MOST_MEMORY)
    usual = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())  # its own reserves memory, which no limit counts
    try:
        with limited_memory(memory_limit):
            return table.read(columns=names, use_threads=False)  # in a thread it would abort
    except MemoryError:
        raise wrong(
            f"{content.title} is {packed:,} bytes, and takes more than {memory_limit >> 20:,} MiB "
            "of memory unpacked.",
            "Give a part of it, or write it as CSV.",
        ) from None
    except (pa.ArrowException, OSError) as error:
        text = " ".join(str(error).split())[:160].rstrip(".")
        raise wrong(f"{content.title} is damaged: {text}.", "Write it again.") from None
    finally:
        pa.set_memory_pool(usual)


def _read_prompt_blocks(table: Any, hashes: str, size: str | None, inputs: Int) -> Blocks | None:
    cells = table[hashes]
    lists = cells if pa.types.is_list(cells.type) else text_lists(cells)
    tokens_each = None
    if size is not None:
        sizes = np.unique(read_number_column(table, size))
        if len(sizes) != 1 or sizes[0] < 1:
            raise wrong(f"{size} is not the same in all rows.", "Give one size of blocks.")
        tokens_each = int(sizes[0])
    return blocks_of(lists, inputs, tokens_each)


def parse_failures(cells: Any) -> Bool:
    """Return which rows failed, by a status, an HTTP code, a truth value or the text of an error.

    Codes from 400 on, and words such as ``failed`` are failures. A column with other words tells
    nothing.
    """
    if pa.types.is_list(cells.type):
        return np.zeros(len(cells), dtype=np.bool_)
    text = pc.utf8_lower(pc.fill_null(pc.cast(cells, pa.string()), ""))
    words = np.asarray(text.to_numpy(zero_copy_only=False), dtype=object)
    statuses, place = np.unique(words, return_inverse=True)
    return np.asarray([is_failure(str(word)) for word in statuses], dtype=np.bool_)[place]


def is_failure(word: str) -> bool:
    """Return whether a status in small letters says that a request failed."""
    word = word.strip()
    if word in BAD:
        return True
    try:
        return 400 <= float(word) < 600
    except ValueError:
        return False
