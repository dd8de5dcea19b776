"""Server-sent events and one streamed request."""

from __future__ import annotations

import io
import json

import pytest

from recipe_core.launcher.client import _Stream, request_body
from recipe_core.launcher.errors import RequestError
from recipe_core.launcher.plan import Api
from recipe_core.launcher.sse import EventParser


def events(stream: bytes, size: int) -> list[str]:
    parser = EventParser()
    found = [
        event
        for start in range(0, len(stream), size)
        for event in parser.feed(stream[start : start + size])
    ]
    return [*found, *parser.close()]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_any_chunking_gives_the_same_events(size: int) -> None:
    stream = (
        ': hello\n\ndata: {"a": "é€"}\r\n\r\nevent: x\ndata: one\ndata:two\n\n\n'
        "id: 3\n\ndata: [DONE]\n\n"
    ).encode()
    assert events(stream, size) == ['{"a": "é€"}', "one\ntwo", "[DONE]"]


def test_last_event_without_blank_line() -> None:
    assert events(b"data: a\n\ndata: b", 4) == ["a", "b"]


class Body(io.BytesIO):
    """Gives what ``http.client`` would."""

    def read1(self, size: int | None = -1) -> bytes:
        return super().read1(min(size or 11, 11))


def stream(*data: object) -> _Stream:
    lines = "".join(
        f"data: {item if isinstance(item, str) else json.dumps(item)}\n\n" for item in data
    )
    found = _Stream(0.0)
    found.sample = found.read(Body(lines.encode()))  # type: ignore[attr-defined, arg-type]
    return found


def piece(text: str, **extra: object) -> dict[str, object]:
    return {"choices": [{"text": text, **extra}]}


def test_server_usage_counts_tokens() -> None:
    found = stream(
        piece("ab"),
        piece("c"),
        {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 5}},
        "[DONE]",
    )
    sample = found.sample  # type: ignore[attr-defined]
    assert (sample.text, sample.prompt_tokens, sample.output_tokens) == ("abc", 4, 5)


def test_without_usage_pieces_are_counted() -> None:
    chat = [
        {"choices": [{"delta": {"role": "assistant"}}]},
        {"choices": [{"delta": {"content": "hi"}}]},
    ]
    sample = stream(
        *chat, {"choices": [{"delta": {"reasoning_content": "hm"}, "finish_reason": "stop"}]}
    ).sample  # type: ignore[attr-defined]
    assert (sample.text, sample.prompt_tokens, sample.output_tokens) == ("hihm", None, 2)


USAGE = {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 3}}
OPENING = {"choices": [{"delta": {"role": "assistant", "content": ""}}]}


def test_tokens_without_text_are_tokens() -> None:
    """Special tokens, and parts of a character that takes several, have no text."""
    found = stream(piece(""), piece(""), piece("", finish_reason="length"), USAGE, "[DONE]")
    sample = found.sample  # type: ignore[attr-defined]
    assert (sample.text, sample.output_tokens, found.chunks) == ("", 3, 2)
    assert sample.tpot_s is not None
    assert sample.last == found.ended  # the last token came with the reason of the end


def test_a_single_token_without_text() -> None:
    one = {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 1}}
    sample = stream(piece("", finish_reason="length"), one).sample  # type: ignore[attr-defined]
    assert (sample.output_tokens, sample.first) == (1, sample.last)


def test_what_opens_a_chat_is_no_token() -> None:
    empty = {"choices": [{"delta": {"content": ""}}]}
    found = stream(OPENING, empty, empty, USAGE | {"usage": {"completion_tokens": 2}})
    assert found.chunks == 2
    found = stream(OPENING, empty, {"choices": [{"delta": {}, "finish_reason": "stop"}]})
    assert (found.chunks, found.sample.output_tokens) == (1, 1)  # type: ignore[attr-defined]


def test_a_server_that_names_the_role_in_every_chunk() -> None:
    silent = {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
    assert stream(OPENING, silent, silent, USAGE).chunks == 2


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([piece("a"), {"error": {"message": "out of memory", "code": 500}}], "out of memory"),
        ([{"error": "worker died"}], "worker died"),
        ([{"object": "error", "message": "bad model"}], "bad model"),
        (['{"error": "it said "no""}'], "it said"),
        ([piece("", finish_reason="stop")], "without a single token"),
        ([piece("")], "broke off after 1 pieces"),
        ([], "without a single token"),
        ([piece("a"), piece("b")], "broke off after 2 pieces"),
    ],
)
def test_bad_streams(data: list[object], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        stream(*data)


def test_body_fields_of_the_recipe_win_and_null_removes() -> None:
    body = request_body(
        Api(
            "/v1/completions", "m", {"ignore_eos": True, "stream_options": None, "temperature": 1.0}
        ),
        "hello",
        7,
    )
    assert body == {
        "model": "m",
        "prompt": "hello",
        "max_tokens": 7,
        "temperature": 1.0,
        "stream": True,
        "ignore_eos": True,
    }
    assert request_body(Api("/v1/chat/completions", "m", {}), "hello", 7)["messages"] == [
        {"role": "user", "content": "hello"}
    ]
