"""Packages of training tools at their pinned versions, unpacked without what they depend on.

They are fetched once by pip into the user's cache; a test skips where that fails, with pip's word.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "recipe-builder"
WAIT_S = 120


@cache
def package(name: str, version: str) -> Path:
    """The folder with a package's files as its wheel has them."""
    folder = CACHE / "packages" / f"{name}-{version}"
    if not folder.is_dir():
        _fetch(f"{name}=={version}", folder)
    return folder


@cache
def package_folder(*requirements: str) -> Path:
    """A folder with packages, without what they depend on, as pip builds and installs them."""
    folder = Path(tempfile.mkdtemp(prefix="packages-"))
    words = ("install", "--quiet", "--no-deps", "--target", str(folder), *requirements)
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"NOT TESTED: {', '.join(requirements)}: {done.stderr.strip()[-200:]}")
    return folder


def _fetch(requirement: str, folder: Path) -> None:
    """Fetch beside the folder, then rename: another test process may do the same."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as near:
        options = ("--no-deps", "--only-binary=:all:", "--disable-pip-version-check")
        words = (sys.executable, "-m", "pip", "download", *options, "--dest", near, requirement)
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, timeout=WAIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            pytest.skip(f"NOT TESTED: {requirement} was not fetched within {WAIT_S} s")
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
            pytest.skip(f"NOT TESTED: {requirement} cannot be fetched: {last}")
        (wheel,) = Path(near).glob("*.whl")
        shutil.unpack_archive(wheel, Path(near) / "all", "zip")
        if not folder.is_dir():
            (Path(near) / "all").rename(folder)
