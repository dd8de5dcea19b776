"""Readers' sessions and the files that they upload: how many, how large, and when they end.

Streamlit keeps both, and keeps those of a closed page until another closes. Here a session with
files ends soon after its socket, and an upload takes its room before its first byte is read.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

# Files that a session may keep on the server at a time; a page has two places for one file.
MOST_UPLOADS = 16
# And megabytes: three traces of the size that one file may have.
MOST_UPLOADED_MB = 48
# Megabytes of all sessions; half of them from one address.
MOST_UPLOADED_IN_ALL_MB = 256
# Seconds in which a page whose connection broke comes back before its session with files ends.
GONE_S = 10.0


@dataclass(eq=False, frozen=True, slots=True)
class Upload:
    """A file on its way: the session and the name that it goes to, its bytes."""

    session: str
    name: str
    size: int


class Sessions:
    """The sessions of one server.

    Args:
        limit: pages that may be open at a time.
        clock: seconds that only grow.
        later: has something done after some seconds.
    """

    def __init__(
        self,
        limit: int,
        clock: Callable[[], float] = time.monotonic,
        later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        self._limit, self._clock, self._later = limit, clock, later or _call_later
        self._open: Counter[str] = Counter()
        self._coming: list[Upload] = []
        self._senders: dict[str, str] = {}
        self._gone: dict[str, float] = {}

    def full(self, address: str) -> bool:
        """True where no further page may be opened, or none from this address."""
        return self._open.total() >= self._limit or self._open[address] >= max(self._limit // 2, 1)

    @contextmanager
    def opened(self, address: str) -> Iterator[None]:
        """A block for as long as a page is connected."""
        self._open[address] += 1
        try:
            yield
        finally:
            self._open[address] -= 1
            self._open += Counter()  # forgets who has none
            self._settle()

    @contextmanager
    def uploading(self, upload: Upload, address: str) -> Iterator[str | None]:
        """A block in which an upload comes and has its room; why it must not, where it must not."""
        self.sweep()
        if refusal := self._refusal(upload, address):
            yield refusal
            return
        self._coming.append(upload)
        self._senders.setdefault(upload.session, address)
        try:
            yield None
        finally:
            self._coming.remove(upload)
            self._settle()

    def sweep(self) -> None:
        """End sessions with files whose page has been gone for some time."""
        if (runtime := _runtime()) is None:
            return
        now, files = self._clock(), runtime.uploaded_file_mgr
        holding = {upload.session for upload in _stored_uploads()}
        for session in holding:
            if runtime.is_active_session(session):
                self._gone.pop(session, None)
            elif now - self._gone.setdefault(session, now) >= GONE_S:
                runtime.close_session(session)
                files.remove_session_files(session)  # also of one that had ended before they came
        present = {upload.session for upload in (*_stored_uploads(), *self._coming)}
        self._gone = {name: at for name, at in self._gone.items() if name in present}
        self._senders = {name: whose for name, whose in self._senders.items() if name in present}

    def _settle(self) -> None:
        self.sweep()
        self._later(GONE_S + 1, self.sweep)

    def _refusal(self, upload: Upload, address: str) -> str | None:
        """Why there is no room for an upload; the file that it replaces makes some."""
        place = upload.session, upload.name
        files = [
            *(file for file in _stored_uploads() if (file.session, file.name) != place),
            *self._coming,
        ]
        of_session = [file for file in files if file.session == upload.session]
        of_address = [file for file in files if self._senders.get(file.session) == address]
        if len(of_session) >= MOST_UPLOADS or _over(of_session, upload, MOST_UPLOADED_MB):
            return f"a session keeps {MOST_UPLOADS} files and {MOST_UPLOADED_MB} MB at most."
        limit = MOST_UPLOADED_IN_ALL_MB
        if _over(files, upload, limit) or _over(of_address, upload, limit // 2):
            return f"this server keeps {limit} MB of files at most, half of them of one address."
        return None


def _over(files: list[Upload], upload: Upload, limit_mb: int) -> bool:
    return sum(file.size for file in files) + upload.size > limit_mb << 20


def _runtime() -> Any:
    """The pages' runtime; None where no page is served."""
    from streamlit import runtime

    return runtime.get_instance() if runtime.exists() else None


def _stored_uploads() -> list[Upload]:
    """The files that are there."""
    manager = getattr(_runtime(), "uploaded_file_mgr", None)
    sessions = list(getattr(manager, "file_storage", {}).items())
    return [
        Upload(session, name, len(file.data))
        for session, files in sessions
        for name, file in list(files.items())
    ]


def _call_later(seconds: float, do: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(seconds, do)
