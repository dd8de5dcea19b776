"""The metrics of a running server, read over HTTP from the address that the user states."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from recipe_core.base.errors import InputError

MOST_BYTES = 8 << 20
"""Bytes of metrics: the largest engines write a tenth of it."""
SECONDS = 10.0
"""Time to connect, and to wait for the next bytes."""
METRICS = "/metrics"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Nobody is followed to another address than the stated one."""

    def redirect_request(self, *_: Any) -> None:
        return None


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
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)
    try:
        with opener.open(target, timeout=SECONDS) as answer:
            data: bytes = answer.read(MOST_BYTES + 1)
    except urllib.error.HTTPError as error:
        error.close()  # it holds the connection
        raise InputError(
            f"{target} answers with status {error.code}.",
            field="url",
            hint="Give the path of its metrics; TensorRT-LLM has /prometheus/metrics.",
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise InputError(
            f"{target} does not answer: {reason}.", field="url", hint="Is the server up?"
        ) from None
    if len(data) > MOST_BYTES:
        raise InputError(f"{target} has more than {MOST_BYTES:,} bytes.", field="url")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InputError(f"{target} is not UTF-8 text.", field="url") from None
