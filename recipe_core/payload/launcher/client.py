"""One request to an OpenAI-compatible server, timed: streamed, or one text to vectors or scores."""

from __future__ import annotations

import http.client
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .errors import InputError, RequestError
from .redact import HIDDEN
from .sections import Api


class EventParser:
    """A parser fed with bytes as they arrive.

    It takes only complete lines, so that text cut within a character is intact.
    """

    def __init__(self) -> None:
        self._pending = b""
        self._data: list[str] = []

    def feed(self, piece: bytes) -> Iterator[str]:
        """Take the next bytes; yields the events they complete."""
        *lines, self._pending = (self._pending + piece).split(b"\n")
        for line in lines:
            yield from self._line(line)

    def close(self) -> Iterator[str]:
        """Yield what is left when the connection ends without the last blank line."""
        rest, self._pending = self._pending, b""
        yield from self._line(rest)
        yield from self._line(b"")

    def _line(self, line: bytes) -> Iterator[str]:
        text = line.rstrip(b"\r").decode("utf-8", errors="replace")
        if not text:
            if self._data:
                yield "\n".join(self._data)
            self._data = []
            return
        field, _, value = text.partition(":")
        if field == "data":  # comments start with a colon; event, id and retry do not matter here
            self._data.append(value.removeprefix(" "))


_KEY = re.compile(r"[!-~]+")  # what a header can carry
_REFUSED = (401, 403)


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


def api_headers(api: Api, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The header that proves who asks, for servers with an API key; none where no key is set.

    The key is read from the variable that the servers read it from, and kept nowhere.

    Raises:
        InputError: for a key that no header can carry; it names the variable, not the value.
    """
    key = environment.get(api.key_variable or "")
    if not key:
        return {}
    if not _KEY.fullmatch(key):
        raise InputError(
            "holds an API key with spaces, line ends or letters that no header can carry.",
            field=api.key_variable,
            hint="Make one of letters and digits, for example with `openssl rand -hex 32`.",
        )
    return {"Authorization": f"Bearer {key}"}


def refusal(
    api: Api, status: int, message: str, environment: Mapping[str, str] = os.environ
) -> RequestError:
    """The error for an answer that is not 200: what the server said, and which key is amiss."""
    hint, key = None, environment.get(api.key_variable or "")
    message = message.replace(key, HIDDEN) if key else message
    if status in _REFUSED and api.key_variable is None:
        hint = "Something in front of the servers asks for a key, which this bundle does not know."
    elif status in _REFUSED and key:
        hint = f"The servers were started with another key than {api.key_variable} holds here."
    elif status in _REFUSED:
        hint = f"Set {api.key_variable} to the API key that the servers were started with."
    return RequestError(f"HTTP {status}: {message}", hint=hint)


def stream_completion(
    endpoint: Endpoint,
    prompt: str,
    max_tokens: int,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> Sample:
    """Stream one completion.

    Raises:
        RequestError: with the server's message.
    """
    body = request_body(endpoint.api, prompt, max_tokens)
    started = clock()
    with _answering(endpoint, body, {"Accept": "text/event-stream"}) as response:
        return _Stream(started, clock).read(response)


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
            raise refusal(endpoint.api, response.status, said_by(response.read(4096)))
        yield response
    except (OSError, http.client.HTTPException) as error:
        raise RequestError(f"{type(error).__name__}: {error}") from None
    finally:
        connection.close()


def request_body(api: Api, prompt: str, max_tokens: int) -> dict[str, Any]:
    """The plain request, then the recipe's own fields over it; a field set to null is left out."""
    question: dict[str, Any] = {"prompt": prompt}
    if api.path.endswith("/chat/completions"):
        question = {"messages": [{"role": "user", "content": prompt}]}
    plain = {
        "max_tokens": max_tokens,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    body = {"model": api.model, **question, **plain, **api.body}
    return {key: value for key, value in body.items() if value is not None}


class _Stream:
    """Collects one answer as it arrives.

    A token may have no text: one that ends a sequence, or part of a character that takes several.
    So every chunk with a choice counts but the one that only opens a chat or only says why the
    answer ends; the latter counts where the server has counted more tokens than came before it.
    """

    def __init__(self, started: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self.started, self.clock = started, clock
        self.first: float | None = None
        self.last = started
        self.ended: float | None = None
        self.chunks = 0
        self.pieces: list[str] = []
        self.usage: dict[str, Any] = {}
        self.finished = False
        self.opened = False

    def read(self, response: http.client.HTTPResponse) -> Sample:
        parser = EventParser()
        while piece := response.read1(65536):
            now = self.clock()
            for data in parser.feed(piece):
                self._event(data, now)
        for data in parser.close():
            self._event(data, self.clock())
        return self._sample()

    def _event(self, data: str, now: float) -> None:
        if data.strip() == "[DONE]":
            self.finished = True
            return
        try:
            event = json.loads(data)
        except ValueError:  # transformers writes an error's text into JSON without escaping it
            raise RequestError(f"the server sent {data[:300]!r}") from None
        if not isinstance(event, dict) or event.get("error") or event.get("object") == "error":
            raise RequestError(said_by(data.encode()))
        self.usage = event.get("usage") or self.usage
        for choice in event.get("choices") or []:
            self._choice(choice, now)

    def _choice(self, choice: dict[str, Any], now: float) -> None:
        text, ends = _completion_text(choice), choice.get("finish_reason") is not None
        opens = not self.opened and not text and "role" in (choice.get("delta") or {})
        self.opened = True
        self.finished = self.finished or ends
        if text or not (opens or ends):
            self.first = self.first or now
            self.last = now
            self.chunks += 1
            self.pieces.append(text)
        elif ends:
            self.ended = now

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


def said_by(body: bytes) -> str:
    """The server's own words: OpenAI's error object, FastAPI's detail, or the first characters."""
    try:
        data: Any = json.loads(body)
        for key in ("error", "detail", "message"):
            data = data.get(key, data) if isinstance(data, dict) else data
        return data if isinstance(data, str) else json.dumps(data)[:500]
    except ValueError:
        return body.decode("utf-8", errors="replace").strip()[:500] or "no message"


# What texts are scored against.
QUERY = "Which words are these?"


def is_pooled_path(path: str) -> bool:
    return _ways(path) is not None


def pooled_request_body(api: Api, text: str) -> dict[str, Any] | None:
    """The body that asks for a text's vector or score; None where the path has neither."""
    ways = _ways(api.path)
    return None if ways is None else ways[0](api, text)


def send_pooled_request(
    endpoint: Endpoint, text: str, *, clock: Callable[[], float] = time.perf_counter
) -> Sample:
    """One vector or score; it counts as one token, which is the first and the last.

    Raises:
        RequestError: with the server's message, or where the answer holds no numbers.
    """
    ways = _ways(endpoint.api.path)
    if ways is None:
        raise RequestError(f"{endpoint.api.path} answers no vectors and no scores")
    asks, reads = ways
    started = clock()
    with _answering(endpoint, asks(endpoint.api, text), {}) as response:
        content, tokens = response.read(), response.getheader("x-compute-tokens")
    done = clock()
    try:
        count, counted = reads(json.loads(content))
    except (ValueError, LookupError, TypeError, AttributeError):
        raise RequestError(f"the server sent {content[:300]!r}") from None
    input_tokens = int(tokens) if tokens and tokens.isdecimal() else counted
    shown = f"a vector of {count:,} numbers" if count > 1 else "a score"
    return Sample(started, done, done, input_tokens, 1, shown)


Ways = tuple[Callable[[Api, str], dict[str, Any]], Callable[[Any], tuple[int, int | None]]]


def _ways(path: str) -> Ways | None:
    return next((ways for end, ways in _BY_PATH.items() if path.endswith(end)), None)


def _openai(answer: Any) -> tuple[int, int | None]:
    return len(answer["data"][0]["embedding"]), answer.get("usage", {}).get("prompt_tokens")


def _vllm_score(answer: Any) -> tuple[int, int | None]:
    float(answer["data"][0]["score"])
    return 1, answer.get("usage", {}).get("prompt_tokens")


def _tei(answer: Any) -> tuple[int, int | None]:
    return len(answer[0]), None


def _tei_rank(answer: Any) -> tuple[int, int | None]:
    float(answer[0]["score"])
    return 1, None


def _kserve(answer: Any) -> tuple[int, int | None]:
    outputs = {output["name"]: output["data"] for output in answer["outputs"]}
    tokens = outputs.pop("tokens", [None])[0]
    (values,) = outputs.values()
    return len(values), tokens


def _kserve_input(name: str, text: str) -> dict[str, Any]:
    return {"name": name, "datatype": "BYTES", "shape": [1, 1], "data": [text]}


def _kserve_body(api: Api, text: str) -> dict[str, Any]:
    """A text, and the recipe's own inputs beside it (what it is scored against)."""
    recipe_inputs = [_kserve_input(name, str(value)) for name, value in api.body.items()]
    return {"inputs": [*recipe_inputs, _kserve_input("text", text)]}


# By the end of the path: OpenAI's and vLLM's, TEI's, and the inference protocol of KServe (v2).
_BY_PATH: dict[str, Ways] = {
    "/embeddings": (lambda api, text: {"model": api.model, "input": text, **api.body}, _openai),
    "/score": (
        lambda api, text: {"model": api.model, "text_1": QUERY, "text_2": text, **api.body},
        _vllm_score,
    ),
    "/embed": (lambda api, text: {"inputs": text, **api.body}, _tei),
    "/rerank": (lambda api, text: {"query": QUERY, "texts": [text], **api.body}, _tei_rank),
    "/infer": (_kserve_body, _kserve),
}
