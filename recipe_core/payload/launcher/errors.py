"""Errors a user can cause or meet.

LauncherError           base: message = what and the value, hint = the remedy (exit code 1)
├── InputError          a wrong command line, launch.json or parameter (exit code 2)
├── BusyError           another command starts or stops the bundle right now
├── PreflightError      a check before the start failed
├── StartError          a server could not be started, or died
│   └── LateError       it was not ready in time
└── RequestError        one request to the server failed
"""

from __future__ import annotations

import errno
from pathlib import Path

_ELSEWHERE = "Use a copy of the bundle in a folder that you may write to."
_IN_THE_WAY = "Remove it: the launcher keeps its own file or folder there."
_FULL = "Free space on that disk."
_REMEDIES = {
    errno.EACCES: _ELSEWHERE,
    errno.EPERM: _ELSEWHERE,
    errno.EROFS: _ELSEWHERE,
    errno.EEXIST: _IN_THE_WAY,
    errno.EISDIR: _IN_THE_WAY,
    errno.ENOTDIR: _IN_THE_WAY,
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: _FULL,
}


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


class BusyError(LauncherError):
    """Another command, or the keeper, is starting or stopping the bundle right now."""

    code = "busy"


class PreflightError(LauncherError):
    """A ``check`` before the start failed."""

    code = "preflight"

    def __init__(self, check: str, detail: str, hint: str) -> None:
        super().__init__(f"preflight: {check}: {detail}.", hint=hint)
        self.check = check


class StartError(LauncherError):
    """A server could not be started, or died."""

    code = "start"


class LateError(StartError):
    """A server was not ready in time: it may still have been loading."""


class RequestError(LauncherError):
    """One request failed; the message is the server's own where it gave one."""

    code = "request"


def file_error(error: OSError, path: Path | None = None) -> LauncherError:
    """The sentence for a file that cannot be read or written; writes do not say which it was."""
    name = path or error.filename
    reason = error.strerror or str(error) or type(error).__name__
    remedy = _REMEDIES.get(error.errno) if error.errno else None
    return LauncherError(f"{name}: {reason}." if name else f"{reason}.", hint=remedy)
