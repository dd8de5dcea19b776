"""Azure's traces of language models, 2023 (Splitwise) and 2024 (DynamoLLM).

Columns ``TIMESTAMP,ContextTokens,GeneratedTokens``; stamps in UTC with up to seven digits after the
second, in 2024 followed by a zone. Source: Azure/AzurePublicDataset.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from recipe_core.base.arrays import Int
from recipe_core.scaling.traces.formats.columns import (
    blocks_of,
    read_csv_columns,
    read_label_column,
    read_time_column,
    read_token_column,
)
from recipe_core.scaling.traces.formats.content import Content, read_json_table
from recipe_core.scaling.traces.formats.requests import Requests

MOONCAKE_TITLE = "Mooncake trace"
MOONCAKE_COLUMNS = ("timestamp", "input_length", "output_length")
_LONGEST_CHAIN = 64


def is_mooncake_trace(content: Content) -> bool:
    """Whether the first line has Mooncake's fields."""
    return set(MOONCAKE_COLUMNS) <= set(content.first_object or ())


def read_mooncake_trace(content: Content, unit: str | None = None) -> Requests:
    """The requests of such a file."""
    first = content.first_object or {}
    bailian = "chat_id" in first
    types: dict[str, Any] = dict.fromkeys(MOONCAKE_COLUMNS, pa.float64())
    if "hash_ids" in first:
        types["hash_ids"] = pa.list_(pa.int64())
    if "session_id" in first:
        text = isinstance(first["session_id"], str)
        types["session_id"] = pa.string() if text else pa.int64()
    if bailian:
        types |= {"chat_id": pa.int64(), "parent_chat_id": pa.int64()}
    table = read_json_table(content, types)
    arrival, origin, _ = read_time_column(
        table, "timestamp", unit=unit or ("s" if bailian else "ms"), first_line=1
    )
    input_tokens = read_token_column(table, "input_length", first_line=1)
    hashed = "hash_ids" in types
    return Requests(
        arrival_s=arrival,
        input_tokens=input_tokens,
        output_tokens=read_token_column(table, "output_length", first_line=1),
        blocks=blocks_of(table["hash_ids"], input_tokens) if hashed else None,
        sessions=_session_numbers(table),
        origin_s=origin or None,
    )


def _session_numbers(table: Any) -> Int | None:
    if "session_id" in table.column_names:
        return read_label_column(table, "session_id")
    if "chat_id" not in table.column_names:
        return None
    chats = table["chat_id"].fill_null(-1).to_numpy().astype(np.int64)
    parents = table["parent_chat_id"].fill_null(-1).to_numpy().astype(np.int64)
    return chain_roots(chats, parents)


def chain_roots(chats: Int, parents: Int) -> Int:
    """The first chat of each chain of chats; a chain of more links is cut into several."""
    order = np.argsort(chats, kind="stable")
    place = np.minimum(np.searchsorted(chats[order], parents), len(chats) - 1)
    parent = order[place]
    rows = np.arange(len(chats))
    root = np.where((parents >= 0) & (chats[parent] == parents), parent, rows)
    for _ in range(_LONGEST_CHAIN.bit_length()):  # each pass doubles the links that are followed
        root = root[root]
    return root


BURSTGPT_TITLE = "BurstGPT trace"
BURSTGPT_COLUMNS = ("Timestamp", "Request tokens", "Response tokens")
SESSION = "Session ID"


def is_burstgpt_trace(content: Content) -> bool:
    return set(BURSTGPT_COLUMNS) <= set(content.head)


def read_burstgpt_trace(content: Content, unit: str | None = None) -> Requests:
    """The requests of such a file."""
    table = read_csv_columns(content, BURSTGPT_COLUMNS, optional=(SESSION,))
    arrival, origin, _ = read_time_column(table, BURSTGPT_COLUMNS[0], unit=unit or "s")
    output = read_token_column(table, BURSTGPT_COLUMNS[2])
    return Requests(
        arrival_s=arrival,
        input_tokens=read_token_column(table, BURSTGPT_COLUMNS[1]),
        output_tokens=output,
        sessions=read_label_column(table, SESSION) if SESSION in table.column_names else None,
        failed=output == 0,
        origin_s=origin or None,
    )


AZURE_TITLE = "Azure trace"
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def is_azure_trace(content: Content) -> bool:
    return set(AZURE_COLUMNS) <= set(content.head)


def read_azure_trace(content: Content, unit: str | None = None) -> Requests:
    """The requests of such a file."""
    table = read_csv_columns(content, AZURE_COLUMNS)
    arrival, origin, _ = read_time_column(table, AZURE_COLUMNS[0], unit=unit)
    return Requests(
        arrival_s=arrival,
        input_tokens=read_token_column(table, AZURE_COLUMNS[1]),
        output_tokens=read_token_column(table, AZURE_COLUMNS[2]),
        origin_s=origin or None,
    )
