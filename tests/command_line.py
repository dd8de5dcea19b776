"""The command line without a process of its own: its entry point, with words, streams and a folder.

A start of ``python -m recipe_core`` takes more than a second; tests that only read an answer call
``recipe`` here. What a process alone shows (that it starts, its exit code, pipes, signals) is
tested with real ones in ``test_cli.py`` and ``tests/e2e``.
"""

from __future__ import annotations

import io
import sys
from contextlib import ExitStack, chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from recipe_core.doors.cli import main

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Done:
    """What a finished command left, named as in ``subprocess.CompletedProcess``."""

    returncode: int
    stdout: str
    stderr: str


def recipe(*words: str, stdin: str = "", cwd: Path = ROOT, columns: int = 80) -> Done:
    """Run ``recipe`` with these words; an error that it does not turn into an answer is raised."""
    stdout, stderr = _stream(), _stream()
    with ExitStack() as stack:
        stack.enter_context(chdir(cwd))
        stack.enter_context(patch.object(sys, "argv", ["recipe", *words]))
        stack.enter_context(patch.object(sys, "stdin", _stream(stdin)))
        stack.enter_context(patch.dict("os.environ", COLUMNS=str(columns)))
        stack.enter_context(redirect_stdout(stdout))
        stack.enter_context(redirect_stderr(stderr))
        code = _exit_code()
    return Done(code, _text(stdout), _text(stderr))


def _exit_code() -> int:
    try:
        main()
    except SystemExit as left:
        if isinstance(
            left.code, str
        ):  # a text would be printed, with code 1; the command line has none
            raise
        return left.code or 0
    return 0


def _stream(text: str = "") -> io.TextIOWrapper:
    """Text over bytes, as the streams of a process are: some commands write bytes."""
    return io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8", write_through=True)


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    written = stream.buffer
    assert isinstance(written, io.BytesIO)
    return written.getvalue().decode()
