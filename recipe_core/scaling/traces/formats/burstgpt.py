"""BurstGPT: ``Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type``.

Timestamps are seconds from the start of the log; later releases have a session too. An answer
without tokens is a request that failed. Source: HPMLL/BurstGPT.
"""

from __future__ import annotations

from recipe_core.scaling.traces.formats.columns import (
    read_csv_columns,
    read_label_column,
    read_time_column,
    read_token_column,
)
from recipe_core.scaling.traces.formats.content import Content
from recipe_core.scaling.traces.formats.requests import Requests

TITLE = "BurstGPT trace"
COLUMNS = ("Timestamp", "Request tokens", "Response tokens")
SESSION = "Session ID"


def is_burstgpt_trace(content: Content) -> bool:
    return set(COLUMNS) <= set(content.head)


def read_burstgpt_trace(content: Content, unit: str | None = None) -> Requests:
    """The requests of such a file."""
    table = read_csv_columns(content, COLUMNS, optional=(SESSION,))
    arrival, origin, _ = read_time_column(table, COLUMNS[0], unit=unit or "s")
    output = read_token_column(table, COLUMNS[2])
    return Requests(
        arrival_s=arrival,
        input_tokens=read_token_column(table, COLUMNS[1]),
        output_tokens=output,
        sessions=read_label_column(table, SESSION) if SESSION in table.column_names else None,
        failed=output == 0,
        origin_s=origin or None,
    )
