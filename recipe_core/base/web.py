"""A small answer of a server on the web that nobody trusts, within limits on bytes and time.

The image registry, the hub and the metrics of a server are asked this way. Time is limited as a
whole, so that a server which sends a byte now and then holds nobody up.
"""

from __future__ import annotations

import functools
import http.client
import importlib.util
import io
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus
from threading import Thread
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit

from recipe_core.base import budget

Result = TypeVar("Result")
AGENT = "recipe-builder"
# Seconds between looks whether the calculation that waits for an answer may go on.
LOOK_EVERY_S = 0.1
REDIRECTS = frozenset({301, 302, 303, 307, 308})


class FetchError(Exception):
    """No whole answer; the text says why, and stands after a colon."""


class UnreachableError(FetchError):
    """Nobody answers in time: the network, the name or its certificate is wrong, or it is slow."""


class Deadline:
    """The end of what may take ``seconds`` from now, however many requests it needs."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock, self._end = clock, clock() + seconds

    def left(self) -> float:
        """Seconds that are left; raises TimeoutError when there are none."""
        remaining_s = self._end - self._clock()
        if remaining_s <= 0:
            raise TimeoutError
        return remaining_s

    def run(self, work: Callable[[], Result]) -> Result:
        """Return what ``work`` returns; TimeoutError where the deadline comes first.

        It runs in a thread, as looking up a name cannot be ended; what it waits for then is left,
        also where the calculation that needs it ends before.
        """
        result: Future[Result] = Future()

        def finish() -> None:
            try:
                result.set_result(work())
            except BaseException as error:
                result.set_exception(error)

        Thread(target=finish, daemon=True).start()
        while not wait([result], timeout=min(self.left(), LOOK_EVERY_S)).done:
            budget.spend()
        return result.result()


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a server, whatever its status; ``body`` is empty where that is no success."""

    status: int
    headers: Message
    body: bytes


def fetch_url(
    url: str,
    *,
    deadline: Deadline,
    most_bytes: int,
    headers: Mapping[str, str] | None = None,
    method: str = "GET",
    redirects: int = 0,
    plain: bool = False,
    proxies: bool = True,
) -> Answer:
    """The answer of a server; one that redirects is followed ``redirects`` times.

    Over HTTPS; with ``plain`` also over HTTP, but no redirect leads from the first server to one
    without HTTPS. ``Authorization`` is sent to the first server alone. With 0 ``redirects`` a
    redirect is the answer. ``deadline``: when the last byte has to be there, names looked up and
    redirects followed. ``proxies``: whether the environment's are used.

    Raises:
        UnreachableError: when nobody answers before the deadline.
        FetchError: for an answer that is cut short, larger than it may be or no HTTP, and for a
            redirect that is not followed.
    """
    opener = _opener(deadline, proxies=proxies)
    request_headers = {"User-Agent": AGENT, **(headers or {})}

    def follow() -> Answer:
        place = url
        for _ in range(redirects + 1):
            _check_address(place, url if plain else None)
            same = _origin(place) == _origin(url)
            sent = {n: v for n, v in request_headers.items() if same or n != "Authorization"}
            answer = _open_url(opener, place, sent, method, deadline, most_bytes)
            if answer.status not in REDIRECTS or not redirects:
                return answer
            place = urljoin(place, answer.headers.get("Location") or "")
        raise FetchError(f"it redirects more than {redirects} times")

    with _fetch_failures(deadline):
        return deadline.run(follow)


@contextmanager
def _fetch_failures(deadline: Deadline) -> Iterator[None]:
    """Turn what the libraries raise into why there is no answer."""
    try:
        yield
    except urllib.error.URLError as error:
        late = isinstance(error.reason, TimeoutError)
        reason = f"no connection within {deadline.seconds:g} s" if late else error.reason
        raise UnreachableError(str(reason).rstrip(".")) from None
    except TimeoutError:
        raise UnreachableError(f"no whole answer within {deadline.seconds:g} s") from None
    except http.client.IncompleteRead:
        raise FetchError("its answer is cut short") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise FetchError(f"{text:.200}".rstrip(".")) from None


def _check_address(url: str, first: str | None) -> None:
    """Refuse what is no address of a server, or one without HTTPS but for the ``first``'s."""
    parts = urlsplit(url)
    if not parts.hostname or parts.scheme not in ("https", "http"):
        raise FetchError(f"{url!r:.100} is no address of a server on the web")
    if parts.scheme != "https" and (first is None or _origin(url) != _origin(first)):
        raise FetchError(f"{parts.scheme}://{parts.netloc} is an address that is not https")


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    usual = {"https": 443, "http": 80}.get(parts.scheme)
    return parts.scheme, parts.hostname, parts.port or usual


def _open_url(
    opener: urllib.request.OpenerDirector,
    url: str,
    headers: Mapping[str, str],
    method: str,
    deadline: Deadline,
    most_bytes: int,
) -> Answer:
    request = urllib.request.Request(url, headers=dict(headers), method=method)  # noqa: S310 - checked
    with opener.open(request, timeout=deadline.left()) as answer:
        body = _body(answer, most_bytes) if answer.status == HTTPStatus.OK else b""
        return Answer(answer.status, answer.headers, body)


def _body(answer: http.client.HTTPResponse, most_bytes: int) -> bytes:
    stated_length = answer.length or 0
    data = answer.read(most_bytes + 1) if stated_length <= most_bytes else b""
    if max(len(data), stated_length) > most_bytes:
        raise FetchError(f"its answer has more than {most_bytes:,} bytes")
    if answer.length:  # what is left of the stated length
        raise FetchError(f"its answer is cut short by {answer.length:,} bytes")
    return data


def _opener(deadline: Deadline, *, proxies: bool) -> urllib.request.OpenerDirector:
    """Asks over HTTP and HTTPS alone, and gives every status as an answer."""
    context = _context()

    class Plain(urllib.request.HTTPHandler):
        def http_open(self, request: urllib.request.Request) -> Any:
            return self.do_open(_connecting(http.client.HTTPConnection, deadline), request)

    class Secure(urllib.request.HTTPSHandler):
        def https_open(self, request: urllib.request.Request) -> Any:
            connect = _connecting(http.client.HTTPSConnection, deadline)
            return self.do_open(connect, request, context=context)

    opener = urllib.request.OpenerDirector()
    opener.addheaders = []
    proxy_handler = urllib.request.ProxyHandler(None if proxies else {})
    for handler in (proxy_handler, Plain(), Secure(context=context)):
        opener.add_handler(handler)
    return opener


def _connecting(kind: Any, deadline: Deadline) -> Any:
    """A connection whose answer is read until the deadline, its headers too."""

    def connect(host: str, **options: Any) -> Any:
        connection = kind(host, **options)
        connection.response_class = functools.partial(_Response, deadline=deadline)
        return connection

    return connect


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: Any, *args: Any, deadline: Deadline, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp: Any = io.BufferedReader(_Timed(self.fp.detach(), sock, deadline))


class _Timed(io.RawIOBase):
    """Reads from a socket; each wait ends with the deadline."""

    def __init__(self, raw: Any, sock: Any, deadline: Deadline) -> None:
        self._raw, self._socket, self._deadline = raw, sock, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._socket.settimeout(self._deadline.left())
        count: int | None = self._raw.readinto(buffer)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


def _context() -> ssl.SSLContext:
    """Certificates of this system; where it has none, those of certifi, if that is installed."""
    paths = ssl.get_default_verify_paths()
    has_certificates = paths.cafile or (paths.capath and any(os.scandir(paths.capath)))
    if has_certificates or importlib.util.find_spec("certifi") is None:
        return ssl.create_default_context()
    import certifi

    return ssl.create_default_context(cafile=certifi.where())
