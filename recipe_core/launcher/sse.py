"""Server-sent events: bytes in any pieces in, the data of each event out."""

from __future__ import annotations

from collections.abc import Iterator


class EventParser:
    """Feed it what arrives; a line is taken only when it is complete, so text cut in mid-character is whole again."""

    def __init__(self) -> None:
        self._pending = b""
        self._data: list[str] = []

    def feed(self, piece: bytes) -> Iterator[str]:
        """Take the next bytes; the events they complete."""
        *lines, self._pending = (self._pending + piece).split(b"\n")
        for line in lines:
            yield from self._line(line)

    def close(self) -> Iterator[str]:
        """What is left when the connection ends without the last blank line."""
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
