"""The metrics of a running server, read over HTTP from the address that the user states."""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import urlsplit, urlunsplit

from recipe_core.base.errors import InputError
from recipe_core.base.web import Deadline, FetchError, fetch

MOST_BYTES = 8 << 20
"""Bytes of metrics: the largest engines write a tenth of it."""
SECONDS = 10.0
"""Time until the last of them is there."""
METRICS = "/metrics"


def is_url(source: str) -> bool:
    """Whether a source is the address of a server rather than a file."""
    return source.casefold().startswith(("http://", "https://"))


def scraped(url: str) -> str:
    """The text at an address; ``/metrics`` where it has no path.

    No proxy, no redirect, no credentials, a limit on time and size.

    Raises:
        InputError: for an address that is none, does not answer, or answers something else.
    """
    parts = urlsplit(url)
    try:
        wrong = not parts.hostname or parts.username is not None or parts.port == 0
    except ValueError:  # a port that is no number
        wrong = True
    if wrong:
        raise InputError(
            "is not the address of a server.",
            field="url",
            hint="For example http://127.0.0.1:8000/metrics, without user and password.",
        )
    path = parts.path.rstrip("/") or METRICS
    target = urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))
    deadline = Deadline(SECONDS)
    try:
        answer = fetch(target, deadline=deadline, most_bytes=MOST_BYTES, plain=True, proxies=False)
    except FetchError as error:
        raise InputError(
            f"{target} does not answer: {error}.", field="url", hint="Is the server up?"
        ) from None
    if answer.status != HTTPStatus.OK:
        raise InputError(
            f"{target} answers with status {answer.status}.",
            field="url",
            hint="Give the path of its metrics; TensorRT-LLM has /prometheus/metrics.",
        )
    try:
        return answer.body.decode()
    except UnicodeDecodeError:
        raise InputError(f"{target} is not UTF-8 text.", field="url") from None
