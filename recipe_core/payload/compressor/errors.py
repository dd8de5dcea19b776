"""Errors that a person can act on."""

from __future__ import annotations


class CompressError(Exception):
    """An error of compression: the value, and what to do; printed without a traceback."""

    exit_code = 2

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(f"{message} {hint}" if hint else message)


class RetainedError(CompressError):
    """The result lost more than the job allows; it was kept, with its figures."""

    exit_code = 3
