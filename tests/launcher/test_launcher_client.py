"""Server-sent events and one streamed request."""

from __future__ import annotations

import io
import json
from itertools import count
from typing import Any

import pytest

from recipe_core.launcher.client import Sample, _Stream, request_body
from recipe_core.launcher.errors import RequestError
from recipe_core.launcher.plan import Api
from recipe_core.launcher.sse import EventParser


def events(stream: bytes, size: int) -> list[str]:
    parser = EventParser()
    pieces = (stream[start : start + size] for start in range(0, len(stream), size))
    return [*(event for piece in pieces for event in parser.feed(piece)), *parser.close()]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_any_chunking_gives_the_same_events(size):
    stream = (
        ': hello\n\ndata: {"a": "é€"}\r\n\r\nevent: x\ndata: one\ndata:two\n\n\n'
        "id: 3\n\ndata: [DONE]\n\n"
    ).encode()
    assert events(stream, size) == ['{"a": "é€"}', "one\ntwo", "[DONE]"]
    assert events(b"data: a\n\ndata: b", size) == ["a", "b"]  # the last without a blank line


class Body(io.BytesIO):
    """Gives what ``http.client`` would."""

    def read1(self, size: int | None = -1) -> bytes:
        return super().read1(min(size or 11, 11))


def read(*data: object) -> tuple[_Stream, Sample]:
    """A stream of events, and its sample: each read of 11 bytes takes a second."""
    texts = (item if isinstance(item, str) else json.dumps(item) for item in data)
    stream = _Stream(0.0, clock=count(1.0).__next__)
    body: Any = Body("".join(f"data: {text}\n\n" for text in texts).encode())
    return stream, stream.read(body)


def piece(text: str, **extra: object) -> dict[str, object]:
    return {"choices": [{"text": text, **extra}]}


def delta(**fields: str) -> dict[str, object]:
    return {"choices": [{"delta": fields}]}


def usage(tokens: int) -> dict[str, object]:
    return {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": tokens}}


LAST = piece("", finish_reason="length")
OPENING = delta(role="assistant", content="")


def test_tokens_are_those_of_the_server_or_else_pieces():
    _, sample = read(piece("ab"), piece("c"), usage(5), "[DONE]")
    assert (sample.text, sample.prompt_tokens, sample.output_tokens) == ("abc", 4, 5)
    assert (sample.ttft_s, sample.latency_s, sample.tpot_s) == (4.0, 7.0, 0.75)
    end = {"choices": [{"delta": {"reasoning_content": "hm"}, "finish_reason": "stop"}]}
    _, sample = read(delta(role="assistant"), delta(content="hi"), end)
    assert (sample.text, sample.prompt_tokens, sample.output_tokens) == ("hihm", None, 2)


def test_tokens_without_text_are_tokens():
    """Special tokens, and parts of a character that takes several, have no text."""
    stream, sample = read(piece(""), piece(""), LAST, usage(3), "[DONE]")
    assert (sample.text, sample.output_tokens, stream.chunks) == ("", 3, 2)
    assert sample.tpot_s is not None
    assert sample.last == stream.ended  # the last token came with the reason of the end
    _, sample = read(LAST, usage(1))
    assert (sample.output_tokens, sample.first) == (1, sample.last)


def test_what_opens_a_chat_is_no_token():
    empty = delta(content="")
    assert read(OPENING, empty, empty, usage(2))[0].chunks == 2
    stream, sample = read(OPENING, empty, {"choices": [{"delta": {}, "finish_reason": "stop"}]})
    assert (stream.chunks, sample.output_tokens) == (1, 1)
    # Some servers name the role in every chunk.
    assert read(OPENING, OPENING, OPENING, usage(3))[0].chunks == 2


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([piece("a"), {"error": {"message": "out of memory", "code": 500}}], "out of memory"),
        ([{"error": "worker died"}], "worker died"),
        ([{"object": "error", "message": "bad model"}], "bad model"),
        (['{"error": "it said "no""}'], "it said"),
        ([piece("", finish_reason="stop")], "without a single token"),
        ([piece("")], "broke off after 1"),
        ([], "without a single token"),
        ([piece("a"), piece("b")], "broke off after 2"),
    ],
)
def test_bad_streams(data, message):
    with pytest.raises(RequestError, match=message):
        read(*data)


def test_body_fields_of_the_recipe_win_and_null_removes():
    fields = {"ignore_eos": True, "stream_options": None, "temperature": 1.0}
    assert request_body(Api("/v1/completions", "m", fields), "hello", 7) == {
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
