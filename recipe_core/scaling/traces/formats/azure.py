"""Azure's traces of language models, 2023 (Splitwise) and 2024 (DynamoLLM).

Columns ``TIMESTAMP,ContextTokens,GeneratedTokens``; stamps in UTC with up to seven digits after the
second, in 2024 followed by a zone. Source: Azure/AzurePublicDataset.
"""

from __future__ import annotations

from recipe_core.scaling.traces.formats.columns import (
    read_csv_columns,
    read_time_column,
    read_token_column,
)
from recipe_core.scaling.traces.formats.content import Content
from recipe_core.scaling.traces.formats.requests import Requests

TITLE = "Azure trace"
COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def is_azure_trace(content: Content) -> bool:
    return set(COLUMNS) <= set(content.head)


def read_azure_trace(content: Content, unit: str | None = None) -> Requests:
    """The requests of such a file."""
    table = read_csv_columns(content, COLUMNS)
    arrival, origin, _ = read_time_column(table, COLUMNS[0], unit=unit)
    return Requests(
        arrival_s=arrival,
        input_tokens=read_token_column(table, COLUMNS[1]),
        output_tokens=read_token_column(table, COLUMNS[2]),
        origin_s=origin or None,
    )
