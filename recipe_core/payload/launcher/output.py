"""What goes to the terminal, which may lack letters, or be gone."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any

from .files import json_text


def print_any_letter() -> None:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def print_json(data: Any) -> None:
    print(json_text(data, getattr(sys.stdout, "encoding", None) or "utf-8"), flush=True)


def complain(text: str) -> None:
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def flushed() -> bool:
    """Whether standard output took everything; else drop the rest, or Python would complain."""
    if sys.stdout is None:  # closed from the start
        return True
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True
