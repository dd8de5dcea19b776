"""Findings about a command: one list, from its words to its verdict."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to say about a command.

    ``error``: the engine refuses to start; ``warning``: it starts, but not as meant. ``key``: the
    one of a JSON option that it is about.
    """

    level: Level
    code: str
    option: str | None
    message: str
    hint: str | None = None
    key: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values; what is not known is left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        return f"{self.message} {self.hint}" if self.hint else self.message


class Findings(list[Finding]):
    """The findings about one command, in the order in which they were made."""

    def say(
        self,
        level: Level,
        code: str,
        message: str,
        hint: str | None = None,
        *,
        option: str | None = None,
        key: str | None = None,
    ) -> None:
        self.append(Finding(level, code, option, message, hint, key))

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self if finding.level == "error"]

    def to_json(self) -> list[dict[str, Any]]:
        """One object a finding."""
        return [finding.to_json() for finding in self]
