"""Columns of a table as numbers and times; what does not fit is named with line and column."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from recipe_core.base.arrays import Float, Int
from recipe_core.base.errors import InputError
from recipe_core.scaling.traces.formats.content import Content, quote_value, wrong
from recipe_core.scaling.traces.trace import Blocks

MOST_BLOCKS = 100_000_000
# Tokens of a block that are tried: 1 to 8,192.
SIZES = tuple(1 << power for power in range(0, 14))


def blocks_of(lists: Any, input_tokens: Int, tokens: int | None = None) -> Blocks | None:
    """Blocks from a pyarrow column of lists of whole numbers or text; None where all are empty.

    tokens: of a block; left out, the size at which most prompts have as many blocks as listed.
    """
    lists = lists.combine_chunks() if isinstance(lists, pa.ChunkedArray) else lists
    counts = np.asarray(
        pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False), dtype=np.int64
    )
    total = int(counts.sum())
    if not total:
        return None
    if total > MOST_BLOCKS:
        raise wrong(
            f"the trace has {total:,} block hashes; the limit is {MOST_BLOCKS:,}.",
            "Give a part of it.",
        )
    values = lists.flatten()
    if values.null_count:
        raise wrong("a list of block hashes holds an empty value.", "Remove it.")
    if pa.types.is_integer(values.type):
        ids = values.to_numpy(zero_copy_only=False).astype(np.int64)
    else:
        encoded = pc.dictionary_encode(values)
        ids = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    starts = np.concatenate(([0], np.cumsum(counts)))
    return Blocks(ids, starts, tokens or block_tokens(counts, input_tokens))


def text_lists(cells: Any) -> Any:
    bare = pc.replace_substring_regex(pc.fill_null(cells, ""), r"[\[\](){}\"',;|]+", " ")
    words = pc.split_pattern_regex(pc.utf8_trim_whitespace(bare), r"\s+")
    words = words.combine_chunks() if isinstance(words, pa.ChunkedArray) else words
    empty = pc.equal(pc.utf8_trim_whitespace(bare), "")
    empty = empty.combine_chunks() if isinstance(empty, pa.ChunkedArray) else empty
    return pc.if_else(empty, pa.scalar([], words.type), words)


def block_tokens(counts: Int, input_tokens: Int) -> int:
    """Tokens of a block: the size at which most prompts have as many blocks as they list.

    Whole blocks only, or the last one begun: both ways of counting are tried.

    Raises:
        InputError: when no size fits half of the prompts.
    """
    some = counts > 0
    listed, lengths = counts[some], input_tokens[some]
    fits = {
        size: max(
            float(np.mean(listed == -(-lengths // size))), float(np.mean(listed == lengths // size))
        )
        for size in SIZES
    }
    best = max(SIZES, key=lambda size: (fits[size], size))
    if fits[best] < 0.5:
        row = int(np.argmax(some))
        raise wrong(
            f"the size of a block is not clear: a prompt of {quote_value(input_tokens[row])} "
            f"tokens lists {counts[row]:,} blocks.",
            "Add a column block_size with the tokens of a block.",
        )
    return best


LARGEST_TOKENS = 1 << 30
_BLOCK = 1 << 24
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
# Seconds that no trace lasts: numbers above count from 1970.
SINCE_1970_S = 1e8


def read_csv_columns(
    content: Content, names: Sequence[str], *, optional: Sequence[str] = ()
) -> Any:
    """These columns of a table with a head, as a pyarrow table of text.

    Raises:
        InputError: where a column is missing, a row has another number of cells, or text is not
            UTF-8.
    """
    head = list(content.head)
    missing = [name for name in names if name not in head]
    if missing:
        raise wrong(
            f"{content.title} has no column {missing[0]!r}.", f"It has {', '.join(head[:12])}."
        )
    columns = [name for name in (*names, *optional) if name in head]
    if len(set(head)) < len(head):
        twice = next(name for name in head if head.count(name) > 1)
        raise wrong(f"{content.title} has two columns {twice!r}.", "Rename or remove one.")
    try:
        return pyarrow.csv.read_csv(
            io.BytesIO(content.data.lstrip()),
            read_options=pyarrow.csv.ReadOptions(
                column_names=head, skip_rows=1, block_size=_BLOCK, use_threads=True
            ),
            parse_options=pyarrow.csv.ParseOptions(
                delimiter=content.delimiter, ignore_empty_lines=True
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                include_columns=columns,
                column_types=dict.fromkeys(columns, pa.string()),
                strings_can_be_null=True,
                null_values=[""],
            ),
        )
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise wrong(
            f"{content.title} is not a table: {_first_sentence(error)}.",
            "Give every row the columns of the head, in UTF-8.",
        ) from None


def _first_sentence(error: Exception) -> str:
    text = " ".join(str(error).split()).removeprefix("CSV parse error: ")
    return text[:160].rstrip(".")


def read_number_column(table: Any, column: str, *, first_line: int = 2) -> Float:
    """A column as finite numbers of at least 0.

    Raises:
        InputError: for the first cell that is none, with its line.
    """
    cells = table[column]
    if not _is_numeric(cells):
        cells = _trim_text(cells)
    values = _parse_cells(cells, _as_floats, "a number", column, first_line)
    floats: Float = values.to_numpy(zero_copy_only=False).astype(np.float64)
    bad = ~(floats >= 0) | (floats == np.inf)
    if bad.any():
        row = int(np.argmax(bad))
        raise _wrong_cell(column, cells[row].as_py(), row + first_line, "a number from 0 up")
    return floats


def _as_floats(cells: Any) -> Any:
    return pc.cast(cells, pa.float64(), safe=False)


def _is_numeric(cells: Any) -> bool:
    return bool(pa.types.is_integer(cells.type) or pa.types.is_floating(cells.type))


def read_token_column(table: Any, column: str, *, first_line: int = 2) -> Int:
    """A column as whole numbers of tokens, at most 2^30.

    Raises:
        InputError: for the first cell that is none, with its line.
    """
    floats = read_number_column(table, column, first_line=first_line)
    bad = (floats > LARGEST_TOKENS) | (floats != np.floor(floats))
    if bad.any():
        row = int(np.argmax(bad))
        expected = f"a whole number of tokens up to {LARGEST_TOKENS:,}"
        raise _wrong_cell(column, floats[row], row + first_line, expected)
    return floats.astype(np.int64)


def read_label_column(table: Any, column: str) -> Int:
    """A column of names as numbers, one a name; -1 where a cell is empty."""
    codes = pc.dictionary_encode(
        _cast_to_text(table[column]).combine_chunks(), null_encoding="mask"
    )
    indices = codes.combine_chunks() if isinstance(codes, pa.ChunkedArray) else codes
    return np.asarray(
        pc.fill_null(indices.indices, -1).to_numpy(zero_copy_only=False), dtype=np.int64
    )


def read_time_column(
    table: Any, column: str, *, unit: str | None = None, first_line: int = 2
) -> tuple[Float, float, str]:
    """A column as seconds since ``origin``, the origin, and how it was read.

    Dates (ISO 8601, with a space or T, up to nanoseconds, UTC unless they have a zone) and numbers
    in ``unit``. Without one, numbers so large that they must be seconds, ms, us or ns since 1970
    are that, others are seconds. The origin is 0 for times that only count from a start.

    Raises:
        InputError: for the first cell that is no time, with its line.
    """
    cells = table[column]
    if not _is_numeric(cells):
        if not pa.types.is_timestamp(cells.type):
            cells = _trim_text(cells)
        if pa.types.is_timestamp(cells.type) or not _holds_numbers(cells):
            return (*_parse_dates(cells, column, first_line), "dates")
    values = read_number_column(table, column, first_line=first_line)
    unit = unit or guess_time_unit(values)
    factor = UNITS[unit]
    origin = float(np.floor(values.min() * factor)) if len(values) else 0.0
    if origin < SINCE_1970_S:
        return values * factor, 0.0, unit
    return (values - origin / factor) * factor, origin, f"{unit} since 1970"


def guess_time_unit(values: Float) -> str:
    """The unit that numbers so large must have; seconds where they do not tell."""
    typical = float(np.median(values)) if len(values) else 0.0
    for threshold, unit in ((1e17, "ns"), (1e14, "us"), (1e11, "ms")):
        if typical >= threshold:
            return unit
    return "s"


def _holds_numbers(cells: Any) -> bool:
    sample = next((cell.as_py() for cell in cells[:100] if cell.is_valid), "")
    try:
        float(sample)
    except ValueError:
        return False
    return True


def _parse_dates(cells: Any, column: str, first_line: int) -> tuple[Float, float]:
    def parse(part: Any) -> Any:
        try:
            return pc.cast(part, pa.timestamp("ns", "UTC"))
        except pa.ArrowInvalid:
            return pc.cast(part, pa.timestamp("ns"))

    stamps = _parse_cells(cells, parse, "a date or a number", column, first_line)
    nanoseconds = pc.cast(stamps, pa.int64()).to_numpy(zero_copy_only=False)
    first = int(nanoseconds.min()) if len(nanoseconds) else 0
    origin_s = first // 10**9
    return (nanoseconds - origin_s * 10**9).astype(np.float64) * 1e-9, float(origin_s)


def _cast_to_text(cells: Any) -> Any:
    return cells if pa.types.is_string(cells.type) else pc.cast(cells, pa.string())


def _trim_text(cells: Any) -> Any:
    return pc.utf8_trim_whitespace(_cast_to_text(cells))


def _parse_cells(
    cells: Any, parse: Callable[[Any], Any], expected: str, column: str, first_line: int
) -> Any:
    """Cells through ``parse``; the first one that is empty or fails is named."""
    if cells.null_count:
        row = int(np.argmax(pc.is_null(cells).to_numpy(zero_copy_only=False)))
        raise _wrong_cell(column, "", row + first_line, expected)
    try:
        return parse(cells)
    except pa.ArrowInvalid:
        row = _first_bad_row(cells, parse)
        raise _wrong_cell(column, cells[row].as_py(), row + first_line, expected) from None


def _first_bad_row(cells: Any, parse: Callable[[Any], Any]) -> int:
    """The first row that ``parse`` refuses, by halving."""
    low, high = 0, len(cells)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            parse(cells[low:middle])
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return low


def _wrong_cell(column: str, value: object, line: int, expected: str) -> InputError:
    text = "is empty" if value in ("", None) else f"is {quote_value(value)}"
    return wrong(f"line {line:,}: {column} {text}, not {expected}.", "Correct or remove the line.")
