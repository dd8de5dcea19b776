"""Diagnosis of an end: log, exit code and the kernel's words against known causes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from re import Match, Pattern
from typing import Any

from .files import plain_lines, tail


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause of ``causes.json``; ``patterns`` are searched for in every line of a log.

    ``transient``: a start without any change may succeed. ``device``: an accelerator is lost or at
    fault. ``exact``: the fix where a pattern's named groups matched, with their texts in it.
    ``benign``: lines that look like it but are not. ``signals``: ends that mean it by themselves.
    ``kernel``: the kernel's words, which count in the kernel's log too.
    """

    id: str
    title: str
    fix: str
    patterns: tuple[Pattern[str], ...] = ()
    transient: bool = False
    device: bool = False
    exact: str = ""
    benign: tuple[Pattern[str], ...] = ()
    signals: tuple[int, ...] = ()
    kernel: tuple[Pattern[str], ...] = ()


def _compile_all(patterns: Iterable[str]) -> tuple[Pattern[str], ...]:
    return tuple(map(re.compile, patterns))


def _parse_cause(data: dict[str, Any]) -> Cause:
    compiled: dict[str, Any] = {
        name: _compile_all(value) if name in ("patterns", "benign", "kernel") else value
        for name, value in data.items()
        if name != "benign_because"
    }
    return Cause(**compiled)


_DATA = json.loads(Path(__file__).with_name("causes.json").read_text(encoding="utf-8"))
# All that logs show, the deepest causes first.
KNOWN = tuple(map(_parse_cause, _DATA["known"]))
# What an end means where no log shows a cause.
_ENDS = {cause.id: cause for cause in map(_parse_cause, _DATA["ends"])}
# What says that a part of an engine ended, without saying why.
_SYMPTOMS = _compile_all(_DATA["symptoms"])
# Ends by signal, for people.
_SIGNALS: dict[int, str] = {int(number): words for number, words in _DATA["signals"].items()}

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


# Causes that say no more than the log itself.
VAGUE = frozenset({"unknown", "exception", "crashed", "ended"})
MOST_LINES = 8
LONGEST_LINE = 400
# Characters of a line that are searched; what engines say of an error begins before.
_SEARCHED = 2000
_EXCEPTION = re.compile(r"(?:^|[\s\])])(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)\b:? ")
_EXCEPTION_ALONE = re.compile(r"(?:^|[\s\])])(?:\w+\.)*\w+(?:Error|Exception)$")
_HARMLESS = re.compile(r"\b(INFO|DEBUG|NOTICE)\b")
_MEMORY = ("device-memory", "host-memory-killed")
_SIGNAL_BASE = 128  # a shell, and a container's runtime, report a signal's number above this


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A cause in words: ``lines`` of the log that show it, and the ``fix``.

    ``transient``: the same start may succeed now. ``device``: an accelerator is lost or at fault.
    """

    cause: str
    title: str
    lines: tuple[str, ...]
    fix: str
    transient: bool
    device: bool

    def text(self) -> str:
        """For people: the cause, the lines, the fix."""
        return "\n".join((f"{self.title}.", *(f"  {line}" for line in self.lines), self.fix))


def diagnose(
    log_tail: str, exit_code: int | None, *, kernel: str = "", ready: bool | None = None
) -> Diagnosis:
    """The deepest cause that the end of a log shows, else what the exit code means.

    Args:
        log_tail: the last lines of the process's log.
        exit_code: as `os.waitstatus_to_exitcode` has it (a signal is negative) or as shells do
            (128 + signal); None where it is not known, or the process still runs.
        kernel: the kernel's lines since the start, or ``oom_kill N`` where the counter of the
            cgroup's memory.events rose by N.
        ready: whether the process had answered before. One that had not, and was short of memory,
            will be so again, which is not transient.
    """
    log, kernels = plain_lines(log_tail), plain_lines(kernel)
    number = signal_of(exit_code)
    cause, matches = _match_known_cause(log, kernels)
    if cause is None or (cause.id == "network" and number == 9):
        # Ranks also lose each other because one of them was killed.
        cause, matches = _by_end(log, number, exit_code) or (cause or _ENDS["unknown"], matches)
    hopeless = ready is False and cause.id in _MEMORY
    return Diagnosis(
        cause=cause.id,
        title=_cause_title(cause, number),
        lines=_clip_matches(matches) or _last(log),
        fix=_cause_fix(cause, matches),
        transient=cause.transient and not hopeless,
        device=cause.device,
    )


def with_lost_device(diagnosis: Diagnosis) -> Diagnosis:
    """The same, where the machine is smaller than planned: that is why, if the log does not say."""
    if diagnosis.cause not in VAGUE:
        return diagnosis
    lost = next(cause for cause in KNOWN if cause.id == "device-lost")
    return replace(diagnosis, cause=lost.id, title=lost.title, fix=lost.fix, device=True)


def signal_of(exit_code: int | None) -> int | None:
    """The signal that ended a process; None where it ended by itself."""
    if exit_code is None or 0 <= exit_code <= _SIGNAL_BASE:
        return None
    number = -exit_code if exit_code < 0 else exit_code - _SIGNAL_BASE
    return number if number <= 64 else None


# Lines, and what was found in them.
_Matches = list[tuple[str, Match[str] | None]]


def _match_known_cause(log: Sequence[str], kernel: Sequence[str]) -> tuple[Cause | None, _Matches]:
    for cause in KNOWN:
        matches = list(_matching(log, (*cause.patterns, *cause.kernel), cause.benign))
        matches += _matching(kernel, cause.kernel)
        if matches:
            return cause, matches
    return None, []


def _matching(
    lines: Iterable[str], patterns: Sequence[Pattern[str]], benign: Sequence[Pattern[str]] = ()
) -> Iterator[tuple[str, Match[str] | None]]:
    for line in lines:
        text = line[:_SEARCHED]
        if _HARMLESS.search(text[:80]) or any(pattern.search(text) for pattern in benign):
            continue
        match = next((match for pattern in patterns if (match := pattern.search(text))), None)
        if match:
            yield line, match


def _by_end(
    log: Sequence[str], number: int | None, exit_code: int | None
) -> tuple[Cause, _Matches] | None:
    """Return what the end itself says; None where it says nothing."""
    for cause in KNOWN:
        if number in cause.signals:
            return cause, _pair_without_match(_last(log))
    symptoms: _Matches = list(_matching(log, _SYMPTOMS))
    errors = _pair_without_match(_exceptions(log))
    name, matches = "", _pair_without_match(_last(log))
    if number == 9:
        name = "killed"
    elif errors or symptoms:
        name, matches = "worker-died" if symptoms else "exception", errors or symptoms
    elif number is not None:
        name = "terminated" if number == 15 else "crashed"
    elif exit_code == 0:
        name = "ended"
    return (_ENDS[name], matches) if name else None


def _pair_without_match(lines: Iterable[str]) -> _Matches:
    return [(line, None) for line in lines]


def _exceptions(log: Sequence[str]) -> list[str]:
    """Lines that name an exception, without those that only pass one on."""
    exception_lines = [
        line
        for line in log
        if not _HARMLESS.search(line[:80])
        and (_EXCEPTION.search(line[:_SEARCHED]) or _EXCEPTION_ALONE.search(line[:_SEARCHED]))
    ]
    causes = [
        line for line in exception_lines if not any(symptom.search(line) for symptom in _SYMPTOMS)
    ]
    return causes or exception_lines


def _cause_title(cause: Cause, number: int | None) -> str:
    if cause is _ENDS["crashed"] and number is not None:
        return _SIGNALS.get(number, f"it ended by signal {number}")
    return cause.title


def _cause_fix(cause: Cause, matches: _Matches) -> str:
    for _, match in matches:
        groups = match.groupdict() if match and cause.exact else {}
        if groups and all(groups.values()):
            return cause.exact.format(**groups)
    return cause.fix


def _clip_matches(matches: _Matches) -> tuple[str, ...]:
    """The first lines, which are nearest to the cause; ranks repeat each other."""
    distinct: dict[str, str] = {}
    for line, _ in matches:
        clipped = line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 1]}…"
        distinct.setdefault(re.sub(r"\d+", "0", line[:_SEARCHED])[:LONGEST_LINE], clipped)
    return tuple(distinct.values())[:MOST_LINES]


def _last(log: Sequence[str]) -> tuple[str, ...]:
    return tuple(line[:LONGEST_LINE] for line in log[-MOST_LINES:])
