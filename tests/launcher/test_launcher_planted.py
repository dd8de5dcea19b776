"""Code that somebody put beside a bundle's own: it is refused, and never runs before that."""

from __future__ import annotations

import py_compile
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from recipe_core.base.resources import PACKAGE
from recipe_core.launch.entry import train_py
from tests.fixtures.bundles import Bundle, run


@pytest.fixture
def standing(bundle: Bundle) -> Bundle:
    bundle.stand_alone()
    return bundle


PLANTED = "import os\nopen(os.environ['MARKER'], 'w').close()\n"


def byte_code(source: Path, target: Path) -> None:
    """Byte code that Python would run without a look at the source (PEP 552)."""
    target.parent.mkdir(exist_ok=True)
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(source), str(target), invalidation_mode=mode)


def plant(root: Path, package: str, where: str, tmp_path: Path) -> None:
    source = tmp_path / "planted.py"
    source.write_text(PLANTED)
    tag = sys.implementation.cache_tag
    if where.endswith(".pyc"):
        byte_code(source, root / package / "__pycache__" / where.replace("TAG", str(tag)))
    elif where.endswith(".so"):
        (root / where).write_bytes(b"\x7fELF")  # loading it fails, so an attempt shows
    else:
        (root / where).parent.mkdir(exist_ok=True)
        (root / where).write_text(PLANTED)


PLACES = (
    "main.TAG.pyc",
    "__init__.TAG.pyc",
    "PACKAGE/main.abi3.so",
    "PACKAGE.so",
    "PACKAGE.py",
    "json.py",
    "signal.py",
    "argparse/__init__.py",
    "importlib.py",
    "sitecustomize.py",
)


EACH = [PLACES, *(pytest.param([where], marks=pytest.mark.nightly) for where in PLACES)]
"""All at once, and each alone in the nightly tier: any that runs leaves the marker."""


@pytest.mark.parametrize("places", EACH)
def test_nothing_planted_in_a_bundle_runs(standing, tmp_path, monkeypatch, places):
    marker = tmp_path / "marker"
    monkeypatch.setenv("MARKER", str(marker))
    for where in places:
        plant(standing.root, "launcher", where.replace("PACKAGE", "launcher"), tmp_path)
    for command in ("preflight", "up", "status"):
        done = run(standing, command, cwd=standing.root)
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        if command != "status":
            assert "added: " in done.stdout + done.stderr
        assert not marker.exists(), command
    assert not standing.up


@pytest.mark.parametrize("places", EACH)
def test_nothing_planted_beside_the_trainer_runs(tmp_path, monkeypatch, places):
    root, marker = tmp_path / "bundle", tmp_path / "marker"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE / "trainer", root / "trainer", ignore=ignored)
    (root / "train.py").write_text(train_py("train.py", "main"))
    for where in places:
        plant(root, "trainer", where.replace("PACKAGE", "trainer"), tmp_path)
    monkeypatch.setenv("MARKER", str(marker))
    program = [sys.executable, "train.py", "--help"]
    done = subprocess.run(program, capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 0, done.stderr
    assert "--config" in done.stdout
    assert not marker.exists()


def test_commands_leave_a_bundle_as_it_was_built_and_refuse_one_that_was_changed(standing):
    before = sorted(path for path in standing.root.rglob("*"))
    for words in ("preflight", "up", "bench --requests 3", "status"):
        assert run(standing, *words.split(), cwd=standing.root).returncode == 0
    after = [p for p in standing.root.rglob("*") if "run" not in p.relative_to(standing.root).parts]
    assert sorted(after) == before
    (standing.root / "notes.txt").write_text("mine")
    done = run(standing, "bench", "--requests", "3")
    assert done.returncode == 1
    assert "preflight: bundle: added: notes.txt" in done.stderr
    assert standing.up
    assert run(standing, "down").returncode == 0
