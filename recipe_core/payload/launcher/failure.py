"""The part of a log that tells why a process ended: the usual tail, or all of the last failure.

An engine of several processes logs an error where it happens and again in every process that waits
for that one: the last of these tracebacks only says that the reason stands above it.
"""

from __future__ import annotations

import re
from pathlib import Path

from .files import tail

# Of a log, what is searched for the beginning of a failure.
LOG_BYTES = 1 << 20
# What says that the reason was logged before.
_ABOVE = re.compile(
    r"root cause above|See (stack trace|error log|logs?) (for|above)|the above exception was"
    r"|above exception, another exception|initialization failed|EngineDeadError"
    r"|died unexpectedly|ChildFailedError|failed with exit code|Failed to initialize executor"
)
_BEGINS = re.compile(
    r"\b(ERROR|CRITICAL|FATAL)\b|^(\([^)]*\) )?Traceback \(most recent call last\)"
)
_INSIDE = re.compile(r"^\s|^\([^)]*\)\s{2,}|Traceback|^\S*(Error|Exception)\b|^$")
# What a program says when it ends; not the text of an HTTP status.
_LAST_WORD = r"((?<!internal server )error|exception|fatal|killed)"
# Lines without an error after which an earlier error counts as another failure's.
_QUIET_LINES = 40


def failure_text(path: Path, lines: int) -> str:
    """The last ``lines`` of a log; where they refer back, from the last failure's first error."""
    return "\n".join(last_failure(tail(path, LOG_BYTES, limit=LOG_BYTES).splitlines(), lines))


def last_failure(log: list[str], lines: int) -> list[str]:
    """As ``failure_text``, of lines."""
    usual = log[-lines:]
    if not any(_ABOVE.search(line) for line in usual):
        return usual
    first, quiet = len(log), 0
    for index in range(len(log) - 1, -1, -1):
        if _BEGINS.search(log[index]):
            first, quiet = index, 0
        elif not _INSIDE.search(log[index]):
            quiet += 1
        if quiet > _QUIET_LINES:
            break
    return log[min(first, len(log) - len(usual)) :]


def without_questions(log: list[str], paths: tuple[str, ...]) -> list[str]:
    """A log without its lines about requests for these paths.

    A line that a last word shares with a request stays, on whichever side it stands: a server
    writes from several threads, and the word may be the reason.
    """
    request = re.compile(rf"(?!.*{_LAST_WORD}).*GET ({'|'.join(map(re.escape, paths))}) ", re.I)
    return [line for line in log if not request.match(line)]


def excerpt_log(log: list[str], evidence: tuple[str, ...], lines: int) -> str:
    """The end of a log for people, with the evidence before it where the end does not have it."""
    usual = log[-lines:]
    missing = [line for line in evidence if line not in usual]
    return "\n".join([*missing, *(["..."] if missing else []), *usual])
