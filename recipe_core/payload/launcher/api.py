"""The API of a server: who may ask it, what is asked, and what its answers say."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from .errors import InputError, RequestError
from .redact import HIDDEN
from .typed_json import Fields

_KEY = re.compile(r"[!-~]+")  # what a header can carry
_REFUSED = (401, 403)


@dataclass(frozen=True, slots=True)
class Api:
    """The API of a server: path, name of the model, and fields added to every body.

    ``key_variable``: the environment variable with the API key that servers ask for, None where
    they know none; ``key_needed``: whether nothing may be started without one.
    """

    path: str
    model: str
    body: dict[str, Any]
    key_variable: str | None = None
    key_needed: bool = False


def read_api(fields: Fields, fill: Callable[[Any], Any]) -> Api:
    """The API as ``launch.json`` states it; ``fill`` fills the placeholders of a JSON value.

    Raises:
        InputError: for a field that is not what it should be.
    """
    variable = fields.data.get("key_variable")
    name = {"form": r"[A-Za-z_][A-Za-z0-9_]*", "words": "the name of a variable"}
    return Api(
        fields.text("path", form="/.*", words="a path that starts with /"),
        fill(fields.text("model")),
        fill(fields.child("body", optional=True).data),
        None if variable is None else fields.text("key_variable", **name),
        fields.data.get("key_needed") is True,
    )


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


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


def error_text(body: bytes) -> str:
    """The server's own words: OpenAI's error object, FastAPI's detail, or the first characters."""
    try:
        data: Any = json.loads(body)
        for key in ("error", "detail", "message"):
            data = data.get(key, data) if isinstance(data, dict) else data
        return data if isinstance(data, str) else json.dumps(data)[:500]
    except ValueError:
        return body.decode("utf-8", errors="replace").strip()[:500] or "no message"


# How a text's vector or score is asked for, and read: its numbers, and the tokens of the text.
Ways = tuple[Callable[[Api, str], dict[str, Any]], Callable[[Any], tuple[int, int | None]]]
# What texts are scored against.
QUERY = "Which words are these?"


def pooled_ways(path: str) -> Ways | None:
    """Return how to ask this path for a vector or a score; None where it has neither."""
    return next((ways for end, ways in _BY_PATH.items() if path.endswith(end)), None)


def pooled_request_body(api: Api, text: str) -> dict[str, Any] | None:
    """The body that asks for a text's vector or score; None where the path has neither."""
    ways = pooled_ways(api.path)
    return None if ways is None else ways[0](api, text)


def _read_outputs(answer: Any) -> tuple[int, int | None]:
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


def _count_used(answer: Any) -> int | None:
    tokens: int | None = answer.get("usage", {}).get("prompt_tokens")
    return tokens


# By the end of the path: OpenAI's and vLLM's, TEI's, and the inference protocol of KServe (v2).
_BY_PATH: dict[str, Ways] = {
    "/embeddings": (
        lambda api, text: {"model": api.model, "input": text, **api.body},
        lambda answer: (len(answer["data"][0]["embedding"]), _count_used(answer)),
    ),
    "/score": (
        lambda api, text: {"model": api.model, "text_1": QUERY, "text_2": text, **api.body},
        lambda answer: (len([float(answer["data"][0]["score"])]), _count_used(answer)),
    ),
    "/embed": (
        lambda api, text: {"inputs": text, **api.body},
        lambda answer: (len(answer[0]), None),
    ),
    "/rerank": (
        lambda api, text: {"query": QUERY, "texts": [text], **api.body},
        lambda answer: (len([float(answer[0]["score"])]), None),
    ),
    "/infer": (_kserve_body, _read_outputs),
}
