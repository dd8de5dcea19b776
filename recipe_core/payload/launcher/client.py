"""One request to a server, timed: streamed, or one text to a vector or a score."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .api import Api, api_headers, error_text, pooled_ways, refusal, request_body
from .errors import RequestError

_PIECE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address and the API of a server."""

    host: str
    port: int
    api: Api
    timeout_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One request; times are those of one clock.

    Tokens are the server's count, else one for each chunk.
    """

    started: float
    first: float
    last: float
    prompt_tokens: int | None
    output_tokens: int
    text: str

    @property
    def ttft_s(self) -> float:
        """Time to the first token."""
        return self.first - self.started

    @property
    def tpot_s(self) -> float | None:
        """Time for each token after the first; None when there was only one."""
        if self.output_tokens <= 1:
            return None
        return (self.last - self.first) / (self.output_tokens - 1)

    @property
    def latency_s(self) -> float:
        """Time to the last token."""
        return self.last - self.started


def read_stream(pieces: Iterable[bytes]) -> Iterator[str]:
    """Yield the data of each event of a stream, as soon as a piece completes it.

    Only complete lines are read, so that text cut within a character is intact.
    """
    pending, data = b"", list[str]()
    for piece in pieces:
        *lines, pending = (pending + piece).split(b"\n")
        for line in lines:
            text = line.rstrip(b"\r").decode("utf-8", errors="replace")
            field, _, value = text.partition(":")
            if field == "data":  # comments start with a colon; event, id and retry do not matter
                data.append(value.removeprefix(" "))
            elif not text and data:
                yield "\n".join(data)
                data = []


def send_prompt(
    endpoint: Endpoint,
    prompt: str,
    max_tokens: int,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> Sample:
    """Send one request as the server's API takes it: for a completion, a vector or a score.

    Raises:
        RequestError: with the server's message, or where the answer is not what was asked for.
    """
    ways = pooled_ways(endpoint.api.path)
    if ways is None:
        body, started = request_body(endpoint.api, prompt, max_tokens), clock()
        with _answering(endpoint, body, {"Accept": "text/event-stream"}) as response:
            return _Stream(started, clock).read(response)
    write_body, read_answer = ways
    body, started = write_body(endpoint.api, prompt), clock()
    with _answering(endpoint, body, {}) as response:
        content, tokens = response.read(), response.getheader("x-compute-tokens")
    done = clock()
    try:
        count, counted = read_answer(json.loads(content))
    except (ValueError, LookupError, TypeError, AttributeError):
        raise RequestError(f"the server sent {content[:300]!r}") from None
    input_tokens = int(tokens) if tokens and tokens.isdecimal() else counted
    shown = f"a vector of {count:,} numbers" if count > 1 else "a score"
    # One token, which is the first and the last.
    return Sample(started, done, done, input_tokens, 1, shown)


@contextmanager
def _answering(
    endpoint: Endpoint, body: dict[str, Any], headers: Mapping[str, str]
) -> Iterator[http.client.HTTPResponse]:
    """Ask a server, and hold the connection while its answer is read.

    Raises:
        RequestError: with the server's message, or why there is no answer.
    """
    connection = http.client.HTTPConnection(
        endpoint.host, endpoint.port, timeout=endpoint.timeout_s
    )
    sent = {"Content-Type": "application/json", **headers, **api_headers(endpoint.api)}
    try:
        connection.request("POST", endpoint.api.path, json.dumps(body).encode(), sent)
        response = connection.getresponse()
        if response.status != 200:
            raise refusal(endpoint.api, response.status, error_text(response.read(4096)))
        yield response
    except (OSError, http.client.HTTPException) as error:
        raise RequestError(f"{type(error).__name__}: {error}") from None
    finally:
        connection.close()


class _Stream:
    """Collects one answer as it arrives.

    A token may have no text: one that ends a sequence, or part of a character that takes several.
    So every chunk with a choice counts but the one that only opens a chat or only says why the
    answer ends; the latter counts where the server has counted more tokens than came before it.
    """

    def __init__(self, started: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self.started = self.last = self.now = started
        self.clock = clock
        self.first: float | None = None
        self.ended: float | None = None
        self.chunks = 0
        self.pieces: list[str] = []
        self.usage: dict[str, Any] = {}
        self.finished = False
        self.opened = False

    def read(self, response: http.client.HTTPResponse) -> Sample:
        for data in read_stream(self._pieces(response)):
            self._event(data)
        return self._sample()

    def _pieces(self, response: http.client.HTTPResponse) -> Iterator[bytes]:
        """Pieces as they arrive; the last event may lack its blank line."""
        piece = b" "
        while piece:
            piece = response.read1(_PIECE_BYTES)
            self.now = self.clock()
            yield piece or b"\n\n"

    def _event(self, data: str) -> None:
        if data.strip() == "[DONE]":
            self.finished = True
            return
        try:
            event = json.loads(data)
        except ValueError:  # transformers writes an error's text into JSON without escaping it
            raise RequestError(f"the server sent {data[:300]!r}") from None
        if not isinstance(event, dict) or event.get("error") or event.get("object") == "error":
            raise RequestError(error_text(data.encode()))
        self.usage = event.get("usage") or self.usage
        for choice in event.get("choices") or []:
            self._choice(choice)

    def _choice(self, choice: dict[str, Any]) -> None:
        text, ends = _completion_text(choice), choice.get("finish_reason") is not None
        opens = not self.opened and not text and "role" in (choice.get("delta") or {})
        self.opened = True
        self.finished = self.finished or ends
        if text or not (opens or ends):
            self.first = self.first or self.now
            self.last = self.now
            self.chunks += 1
            self.pieces.append(text)
        elif ends:
            self.ended = self.now

    def _sample(self) -> Sample:
        counted = int(self.usage.get("completion_tokens") or 0)
        if self.ended is not None and counted > self.chunks:
            self.first, self.last = self.first or self.ended, self.ended
        if self.first is None:
            raise RequestError("the stream ended without a single token")
        if not (self.finished or self.usage):
            raise RequestError(f"the stream broke off after {self.chunks} pieces")
        tokens = counted or self.chunks
        return Sample(
            self.started,
            self.first,
            self.last,
            self.usage.get("prompt_tokens"),
            int(tokens),
            "".join(self.pieces),
        )


def _completion_text(choice: dict[str, Any]) -> str:
    """Text of a completion or of a chat; thinking counts, it costs the same."""
    delta = choice.get("delta") or {}
    return str(
        choice.get("text")
        or delta.get("content")
        or delta.get("reasoning_content")
        or delta.get("reasoning")
        or ""
    )
