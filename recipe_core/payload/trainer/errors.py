"""Errors that a person can act on."""

from __future__ import annotations


class TrainError(Exception):
    """An error of training: the value, and what to do; printed without a traceback."""

    exit_code = 2

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(f"{message} {hint}" if hint else message)


class RolledBackError(TrainError):
    """The loss broke; the next start goes on from a checkpoint before that."""

    exit_code = 3
