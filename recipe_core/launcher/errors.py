"""Errors a user can cause or meet.

LauncherError           base: message = what and the value, hint = the remedy (exit code 1)
├── InputError          a wrong command line, launch.json or parameter (exit code 2)
├── StartError          a server died, or was not ready in time
└── RequestError        one request to the server failed
"""

from __future__ import annotations


class LauncherError(Exception):
    """Base of all errors the launcher raises on purpose; ``str()`` is one line for a person."""

    code = "launcher"
    exit_code = 1

    def __init__(
        self, message: str, *, hint: str | None = None, field: str | None = None, detail: str = ""
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.field = field
        self.detail = detail  # several lines, such as the tail of a log: printed after the one line

    def __str__(self) -> str:
        where = f"{self.field}: " if self.field else ""
        fix = f" {self.hint}" if self.hint else ""
        return f"{where}{self.message}{fix}"

    def to_json(self) -> dict[str, object]:
        """The error as every door of the project prints it."""
        error = {"code": self.code, "field": self.field, "message": self.message, "hint": self.hint}
        return {"error": {**error, "detail": self.detail} if self.detail else error}


class InputError(LauncherError):
    """The command line or launch.json cannot be used."""

    code = "input"
    exit_code = 2


class StartError(LauncherError):
    """A server could not be started, died, or was not ready in time."""

    code = "start"


class RequestError(LauncherError):
    """One request failed; the message is the server's own where it gave one."""

    code = "request"
