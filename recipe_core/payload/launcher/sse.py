"""Server-sent events: bytes in any pieces in, the data of every event out."""

from __future__ import annotations

from collections.abc import Iterator


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
