"""One text to a server of vectors or scores, timed: it answers at once, without a stream."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from typing import Any

from .api import Api
from .client import Endpoint, Sample, api_headers, refusal, said_by
from .errors import RequestError

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
    body = json.dumps(asks(endpoint.api, text)).encode()
    connection = http.client.HTTPConnection(
        endpoint.host, endpoint.port, timeout=endpoint.timeout_s
    )
    started = clock()
    try:
        headers = {"Content-Type": "application/json", **api_headers(endpoint.api)}
        connection.request("POST", endpoint.api.path, body, headers)
        response = connection.getresponse()
        content = response.read()
        done = clock()
        if response.status != 200:
            raise refusal(endpoint.api, response.status, said_by(content[:4096]))
        tokens = response.getheader("x-compute-tokens")
    except (OSError, http.client.HTTPException) as error:
        raise RequestError(f"{type(error).__name__}: {error}") from None
    finally:
        connection.close()
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
