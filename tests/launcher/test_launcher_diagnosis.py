"""Ends of logs and what they mean; the logs are in ``tests/data/ends_of_logs.yaml``."""

from __future__ import annotations

import re
import signal

import pytest
import yaml

from recipe_core.launcher import causes
from recipe_core.launcher.diagnosis import LONGEST_LINE, MOST_LINES, diagnose, signal_of
from tests.fixtures.paths import DATA, ROOT

ENDS = yaml.safe_load((DATA / "ends_of_logs.yaml").read_text())
LOGS = ENDS["logs"]


def test_ends_of_logs():
    wrong = []
    for case in ENDS["cases"]:
        log, kernel = (LOGS.get(name, name) for name in (case["log"], case.get("kernel", "")))
        found = diagnose(log, case["code"], kernel=kernel)
        same = all(getattr(found, name) == case[name] for name in ("cause", "transient", "device"))
        shown = found.lines and all(line in (log + kernel) for line in found.lines)
        if not (same and shown and case["fix"] in found.fix and found.title in found.text()):
            wrong.append((case, found))
    assert wrong == []


def test_lines():
    wrong = []
    for cause, lines in ENDS["lines"].items():
        for line in lines:
            last = "RuntimeError: Engine core initialization failed."
            found = diagnose(f"INFO 10-02 03:11:40 loading\n{line}\n{last}", 1)
            if (found.cause, found.lines[0]) != (cause, line):
                wrong.append((cause, line, found))
    assert wrong == []


def test_causes_are_sound_and_have_examples_and_a_document():
    ids = [cause.id for cause in causes.KNOWN]
    assert len(set(ids)) == len(ids)
    assert set(ids) <= set(ENDS["lines"]) | {case["cause"] for case in ENDS["cases"]}
    text = (ROOT / "docs" / "operations.md").read_text()
    for cause in causes.KNOWN:
        answer = "restart" if cause.transient else "next choice, or stop"
        assert f"| `{cause.id}` | {cause.title} | {answer} |" in text
        assert cause.patterns or cause.kernel
        assert cause.title[0].islower() or cause.title.startswith("/")
        assert cause.fix.endswith(".")
        fields = set(re.findall(r"\{(\w+)\}", cause.exact))
        groups = [set(pattern.groupindex) for pattern in cause.patterns if pattern.groupindex]
        assert all(group <= fields for group in groups)
        assert bool(fields) == bool(groups)
        assert any(fields == group for group in groups) or not fields


def test_out_of_memory_before_the_first_answer_comes_again():
    assert diagnose(LOGS["trt memory"], 1).transient
    assert diagnose(LOGS["trt memory"], 1, ready=True).transient
    assert not diagnose(LOGS["trt memory"], 1, ready=False).transient
    assert diagnose(LOGS["transformers port"], 1, ready=False).transient


@pytest.mark.parametrize(
    ("log", "code", "cause"),
    [
        # Clients that went away, lines that are no errors, and a killed rank are no such cause.
        ("ConnectionResetError: [Errno 104] Connection reset by peer", -9, "killed"),
        ("BrokenPipeError: [Errno 32]", -9, "killed"),
        ("RuntimeError: Connection reset by peer [10.0.0.2]:29500", 1, "network"),
        (
            "node0:1180825 [4] misc/socket.cc:484 NCCL WARN Call to bind failed: Address already in"
            ' use\nINFO:     127.0.0.1:51000 - "POST /v1/completions HTTP/1.1" 200 OK\n',
            1,
            "unknown",
        ),
        ("INFO 10-02 03:11:40 torch.OutOfMemoryError is caught here", 1, "unknown"),
        ("RuntimeError: Connection closed by peer [127.0.0.1]:29500", 1, "network"),
        ("RuntimeError: Connection closed by peer [127.0.0.1]:29500", -9, "killed"),
    ],
)
def test_what_is_not_the_cause(log, code, cause):
    assert diagnose(log, code).cause == cause


@pytest.mark.parametrize(
    ("code", "cause", "title"),
    [
        (-signal.SIGKILL, "killed", "killed"),
        (137, "killed", "killed"),
        (-signal.SIGSEGV, "crashed", "SIGSEGV"),
        (139, "crashed", "SIGSEGV"),
        (-signal.SIGBUS, "shared-memory", "shm"),
        (-signal.SIGILL, "format-unsupported", "format"),
        (-signal.SIGXFSZ, "disk-full", "disk"),
        (-signal.SIGTERM, "terminated", "SIGTERM"),
        (-40, "crashed", "signal 40"),
        (0, "ended", "by itself"),
        (1, "unknown", "does not say"),
        (None, "unknown", "does not say"),
    ],
)
def test_an_end_without_words(code, cause, title):
    diagnosis = diagnose("loading\n\nserving", code)
    assert (diagnosis.cause, diagnosis.lines) == (cause, ("loading", "serving"))
    assert title in diagnosis.title


def test_an_error_that_nobody_knows_is_shown():
    log = "Traceback (most recent call last):\n  File 'x.py', line 1\nKeyError: 'rope_theta'\n"
    diagnosis = diagnose(log + "WorkerProc hit an exception.", 1)
    assert (diagnosis.cause, diagnosis.lines) == ("worker-died", ("KeyError: 'rope_theta'",))
    assert diagnose(log, 1).cause == "exception"


def test_lines_are_few_short_and_plain():
    line = "\x1b[31mtorch.OutOfMemoryError: CUDA out of memory.\x1b[0m " + "x" * 5000
    log = "\n".join(f"rank {n}: {line}" for n in range(50)) + "\rdone\x07"
    diagnosis = diagnose(log, 1)
    assert len(diagnosis.lines) == 1  # ranks differ by numbers only
    assert len(diagnosis.lines[0]) == LONGEST_LINE
    assert diagnosis.lines[0].isprintable()
    different = "\n".join(f"{'x' * n} CUDA out of memory" for n in range(50))
    assert len(diagnose(different, 1).lines) == MOST_LINES
    assert diagnose("", -9).lines == ()


def test_odd_text_takes_no_time():
    for piece in ("x", "{", "(", "Error ", "No space ", "memory mismatch for ", "a.b.", "\\"):
        diagnose(piece * 200_000, 1)


def test_signals():
    codes = (None, 0, 1, 128, 255, -9, 143)
    assert [signal_of(code) for code in codes] == [None, None, None, None, None, 9, 15]
