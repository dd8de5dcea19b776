"""What is planted in a bundle's folder is seen by every reader, and nothing of it is run."""

import importlib._bootstrap_external as bootstrap
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from recipe_core.base.errors import BundleError
from recipe_core.bundle.replace import replace_folder
from recipe_core.bundle.signing import MANIFEST, new_key
from recipe_core.bundle.verify import read_bundle
from recipe_core.bundle.write import write_bundle
from recipe_core.payload.launcher import state
from recipe_core.payload.launcher.state import State
from tests.fixtures.command_line import recipe as run
from tests.fixtures.patience import PATIENCE
from tests.fixtures.rows import table
from tests.nightly.attack.hostile_bundles import pack, seal

COMPILED = table("bundle", "compiled")


def plant(folder, name, data=b"x"):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def refused(path, match):
    with pytest.raises(BundleError, match=match):
        read_bundle(path)


@pytest.mark.parametrize("name", [*COMPILED, "json.py", "sitecustomize.py", "notes.txt"])
def test_a_planted_file_is_refused_by_name(folder, name):
    plant(folder, name)
    refused(folder, name)


def test_compiled_code_and_runs_have_no_place_in_a_bundle_though_listed(files, folder, tmp_path):
    runs = ("run/state.json", "run/checkpoints/step-1/x", "RUN/x")
    for name, says in {
        **dict.fromkeys(COMPILED, " compiled code"),
        **dict.fromkeys(runs, r" would lie in run/"),
    }.items():
        listed = seal({**files, name: b"{}"})
        refused(pack(listed, tmp_path / "b.zip"), f"{name}.*{says}")
        if name in (*COMPILED, runs[0]):
            manifest = plant(folder, MANIFEST, listed[MANIFEST])
            path = plant(folder, name, b"{}")
            refused(folder, f"{name}.*{says}" if name in COMPILED else name)
            path.unlink()
            if path.parent.name == "__pycache__":
                path.parent.rmdir()
            manifest.write_bytes(files[MANIFEST])


def test_a_folder_that_cannot_be_listed_is_refused(folder, monkeypatch):
    """Python imports from it all the same: it knows the names it looks for."""
    hidden = plant(folder, "json/__init__.py").parent
    scandir = os.scandir

    def refusing(path):
        if Path(path) == hidden:
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    refused(folder, "cannot be read: Permission denied")


@pytest.mark.parametrize("name", ["fifo", "launcher/fifo", "launch.py", "run", MANIFEST])
def test_a_pipe_is_not_waited_for(folder, name):
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    refused(folder, f"{name} is not a plain file")


def test_links_are_not_followed_where_the_launcher_writes(folder):
    outside = plant(folder.parent, "outside", b"precious")
    (folder / "run").mkdir()
    for name in ("run/lock", "run/state.json", "run/server-0.log", "run.log"):
        (folder / name).symlink_to(outside)
        refused(folder, f"{name} is not a plain file")
        assert run("up", str(folder)).returncode == 1
        assert outside.read_text() == "precious"
        (folder / name).unlink()
    # a linked folder of checkpoints is its user's choice
    (folder.parent / "disk").mkdir()
    (folder / "run" / "checkpoints").symlink_to(folder.parent / "disk")
    assert read_bundle(folder)


@pytest.mark.parametrize("name", ["run/state.json", "run/node-0/state.json"])
def test_a_state_that_would_fill_the_memory_is_not_read(folder, name):
    os.truncate(plant(folder, name), 1 << 40)
    refused(folder, f"{name} is too large")
    with pytest.raises(BundleError, match=f"{name} is too large"):
        replace_folder(folder, {})


def test_planted_code_of_a_signed_bundle_is_not_run(recipe, tmp_path, monkeypatch):
    private, public = new_key()
    folder = write_bundle(recipe, tmp_path / "b", private)
    other = plant(tmp_path, "other.pub.pem", new_key()[1])
    for command in ("up", "tune"):
        done = run(command, str(folder), "--public-key", str(other))
        assert (done.returncode, "not by the one given" in done.stderr) == (1, True), command
    trace = tmp_path / "foreign-code-ran"
    source = f"open({str(trace)!r}, 'w')\ndef main(*a, **k): return 0\n"
    name = f"launcher/__pycache__/main.{sys.implementation.cache_tag}.pyc"
    # compiled as Python takes it whatever its source says ("unchecked hash")
    code, no_hash = compile(source, "planted", "exec"), importlib.util.source_hash(b"")
    plant(folder, name, bytes(bootstrap._code_to_hash_pyc(code, no_hash, False)))
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)  # where byte code would be elsewhere
    subprocess.run([sys.executable, "-B", "-c", "import launcher.main"], cwd=folder, check=True)
    assert trace.exists()  # the plant works
    trace.unlink()
    key = plant(tmp_path, "key.pub.pem", public)
    for command in ("check", "preflight", "up", "bench", "status", "down"):
        done = run(command, str(folder), "--public-key", str(key))
        assert done.returncode == 1, command
        assert name in done.stderr, command
        assert not trace.exists(), command
    # Compiled copies are not even looked at: one may appear after the bundle was verified.
    monkeypatch.setattr("recipe_core.bundle.verify.unpack_bundle", lambda path, **_: path)
    assert run("preflight", str(folder)).returncode == 1
    assert not trace.exists()


def test_the_command_line_adds_nothing_to_a_bundle(folder, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    for name in ("preflight", "status", "down"):
        assert "Traceback" not in run(name, str(folder)).stderr
    assert read_bundle(folder)


@pytest.fixture
def running(folder, marked):
    process, server, mark = marked
    (folder / "run").mkdir()
    values = (mark, state.boot_id(), "m", "127.0.0.1", 8000, True, (server,))
    state.save_state(folder / "run", State(*values))
    return process


def test_a_changed_bundle_tells_its_status_and_can_be_stopped(folder, running):
    plant(folder, "notes.txt")
    done = run("status", str(folder))
    assert json.loads(done.stdout)["servers"][0]["alive"] is True
    assert "notes.txt is not in the manifest" in done.stderr
    plant(folder, "launcher/__pycache__/main.cpython-311.pyc")
    (folder / "launch.json").write_text("changed, and no JSON any more")
    (folder / "launch.py").write_text("raise SystemExit('foreign code')")
    assert run("up", str(folder)).returncode == 1
    done = run("down", str(folder))
    assert done.returncode == 0
    assert "stopped server-0" in done.stdout
    assert "Nothing of the bundle is run" in done.stderr
    running.wait(PATIENCE)
    assert not (folder / "run" / "state.json").exists()
    assert run("down", str(folder)).stdout == "nothing was running\n"


def test_stopping_neither_writes_elsewhere_nor_waits(folder, running):
    outside = plant(folder.parent, "outside", b"precious")
    plant(folder, "notes.txt")

    def link(path):
        path.symlink_to(outside)

    def replaced(name, make, command, code):
        (folder / name).unlink(missing_ok=True)
        make(folder / name)
        done = run(command, str(folder))
        assert done.returncode == code, (name, make, command)
        assert f"{name} is not a plain file" in done.stderr
        assert outside.read_text() == "precious"

    for make in (link, os.mkfifo):
        replaced("run/lock", make, "status", 1)
        replaced("run/lock", make, "down", 1)
    (folder / "run" / "lock").unlink()
    for make in (os.mkfifo, link):
        replaced("launch.json", make, "status", 1)
    assert running.poll() is None
    replaced("launch.json", link, "down", 0)  # stopping does without it
    running.wait(PATIENCE)
    replaced("launch.json", os.mkfifo, "down", 0)


def test_what_an_archive_started_is_stopped_though_the_archive_changed(files, folder, running):
    archive = pack(seal({**files, "README.md": b"another"}), folder.with_name("b.zip"))
    assert "is running" in run("up", str(archive)).stderr
    done = run("down", str(archive), "--json")
    assert done.returncode == 0
    running.wait(PATIENCE)
    again = run("preflight", str(archive))
    assert f"replaced {folder}" in again.stderr
    assert read_bundle(folder).files == read_bundle(archive).files
