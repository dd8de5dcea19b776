"""Names that people give to the columns of a table of requests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

UNIT_WORDS = {
    "ms": "ms",
    "msec": "ms",
    "millis": "ms",
    "milliseconds": "ms",
    "us": "us",
    "micros": "us",
    "microseconds": "us",
    "ns": "ns",
    "nanos": "ns",
    "nano": "ns",
    "nanoseconds": "ns",
    "unixnano": "ns",
    "s": "s",
    "sec": "s",
    "secs": "s",
    "seconds": "s",
}
TIMES = (
    "arrival",
    "arrival_time",
    "arrival_timestamp",
    "arrived_at",
    "timestamp",
    "request_timestamp",
    "start_time",
    "starttime",
    "start_timestamp",
    "timestamp_start_unix",
    "started_at",
    "request_time",
    "request_start_time",
    "received_at",
    "sent_at",
    "created_at",
    "created",
    "@timestamp",
    "datetime",
    "date",
    "time",
    "ts",
    "start",
    "t",
)
INPUTS = (
    "input_tokens",
    "prompt_tokens",
    "isl",
    "input_length",
    "input_len",
    "input_sequence_length",
    "prompt_length",
    "prompt_len",
    "context_tokens",
    "contexttokens",
    "request_tokens",
    "num_prompt_tokens",
    "num_prefill_tokens",
    "prefill_tokens",
    "input_token_count",
    "prompt_token_count",
    "tokens_in",
    "genai_tokens_input",
    "llm_input_token",
    "inputs",
)
OUTPUTS = (
    "output_tokens",
    "completion_tokens",
    "osl",
    "output_length",
    "output_len",
    "output_sequence_length",
    "response_length",
    "response_tokens",
    "generated_tokens",
    "generatedtokens",
    "generation_tokens",
    "num_generation_tokens",
    "num_decode_tokens",
    "decode_tokens",
    "output_token_count",
    "candidates_token_count",
    "completion_token_count",
    "tokens_out",
    "genai_tokens_output",
    "llm_output_token",
    "outputs",
)
SESSIONS = (
    "session",
    "session_id",
    "conversation",
    "conversation_id",
    "chat_id",
    "thread_id",
    "provided_session_id",
    "user_id",
    "user",
    "client_id",
    "client",
)
HASHES = ("hash_ids", "block_hashes", "prefix_hashes", "total_hashes", "blocks")
SIZES = ("block_size", "block_tokens")
STATUSES = (
    "status",
    "status_code",
    "http_status",
    "response_code",
    "code",
    "success",
    "ok",
    "error",
    "request_canceled",
)


def normalise_column_name(name: str) -> str:
    """A name in small letters, with one underscore for what is no letter or digit.

    Capitals inside a word begin a new one: ``promptTokens`` is ``prompt_tokens``.
    """
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z])", "_", name.strip())
    return re.sub(r"[^a-z0-9@]+", "_", words.lower()).strip("_")


def column_of(head: Iterable[str], names: tuple[str, ...]) -> str | None:
    """The column that bears the first of these names that any has; None where none does."""
    plain_names: dict[str, str] = {}
    for name in head:
        plain_names.setdefault(normalise_column_name(name), name)
    return next((plain_names[name] for name in names if name in plain_names), None)


def time_column(head: Iterable[str]) -> tuple[str, str | None] | None:
    """The column with times of arrival, and the unit that its name states; None without one."""
    candidates: Mapping[str, tuple[str, str | None]] = {
        base: (name, unit)
        for name in reversed(list(head))
        for base, unit in _name_readings(normalise_column_name(name))
    }
    return next((candidates[name] for name in TIMES if name in candidates), None)


def _name_readings(name: str) -> list[tuple[str, str | None]]:
    """A name as it is, and without a unit at its end."""
    base, _, last = name.rpartition("_")
    if base and last in UNIT_WORDS:
        base = base.removesuffix("_in")
        return [(name, None), (base, UNIT_WORDS[last])]
    return [(name, None)]
