"""Packages of training frameworks, fetched for tests that hold launches against their parsers."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest


@cache
def package_folder(*packages: str) -> Path:
    """A folder with packages at their versions, without what they depend on; else skips."""
    folder = Path(mkdtemp(prefix="packages-"))
    words = ("install", "--quiet", "--no-deps", "--target", str(folder), *packages)
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"{', '.join(packages)} cannot be fetched: {done.stderr.strip()[-200:]}")
    return folder
