"""What is planted in a bundle's folder is seen by every reader, and nothing of it is run."""

from __future__ import annotations

import importlib._bootstrap_external as bootstrap
import importlib.util
import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from recipe_core.base.errors import BundleError
from recipe_core.bundle.manifest import MANIFEST, Manifest
from recipe_core.bundle.replace import replace_folder
from recipe_core.bundle.signing import new_key
from recipe_core.bundle.verify import read_bundle
from recipe_core.bundle.write import bundle_files, write_bundle
from recipe_core.launcher import procs, state
from recipe_core.launcher.state import Server, State
from recipe_core.recipe import Recipe
from tests.fixtures.command_line import recipe as run
from tests.fixtures.recipes import recipe_of

PLANTED = [
    "launcher/__pycache__/main.cpython-311.pyc",
    "__pycache__/launch.cpython-311.pyc",
    "json.pyc",
    "json.py",
    "launcher/errors.cpython-311-x86_64-linux-gnu.so",
    "launcher/machine.pyd",
    "sitecustomize.py",
    "evil.pth",
    "notes.txt",
]
COMMANDS = ("preflight", "up", "bench")


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return recipe_of(candidate={"tp": 8, "pp": 1, "dp": 1})


@pytest.fixture
def folder(recipe: Recipe, tmp_path: Path) -> Path:
    return write_bundle(recipe, tmp_path / "b")


def plant(folder: Path, name: str, data: bytes = b"x") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def compiled(source: str) -> bytes:
    """A compiled module that Python takes whatever its source says ("unchecked hash")."""
    code = compile(source, "planted", "exec")
    pyc = bootstrap._code_to_hash_pyc(code, importlib.util.source_hash(b""), False)
    return bytes(pyc)


def sealed(files: dict[str, bytes]) -> dict[str, bytes]:
    """Files with a manifest made anew, as anybody can."""
    old = json.loads(files[MANIFEST])
    listed = {name: data for name, data in files.items() if name != MANIFEST}
    manifest = Manifest.of(old["recipe"], old["recipe_digest"], listed)
    return {**listed, MANIFEST: manifest.model_dump_json().encode()}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_file_is_refused_by_name(folder: Path, name: str) -> None:
    plant(folder, name)
    with pytest.raises(BundleError, match=name):
        read_bundle(folder)


@pytest.mark.parametrize("name", [n for n in PLANTED if not n.endswith((".py", ".txt"))])
@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_compiled_code_has_no_place_in_a_bundle_though_listed(
    recipe: Recipe, tmp_path: Path, name: str, kind: str
) -> None:
    files = sealed(bundle_files(recipe) | {name: b"x"})
    with pytest.raises(BundleError, match=f"{name}.* compiled code"):
        read_bundle(laid(files, tmp_path, kind))


@pytest.mark.parametrize("name", ["run/state.json", "run/checkpoints/step-1/x", "RUN/x"])
def test_runs_have_no_place_in_an_archive(recipe: Recipe, tmp_path: Path, name: str) -> None:
    files = sealed(bundle_files(recipe) | {name: b"{}"})
    with pytest.raises(BundleError, match=f"{name}.* would lie in run/"):
        read_bundle(laid(files, tmp_path, "zip"))


def test_a_manifest_lists_no_runs(recipe: Recipe, tmp_path: Path) -> None:
    files = sealed(bundle_files(recipe) | {"run/state.json": b"{}"})
    with pytest.raises(BundleError, match=r"run/state\.json"):
        read_bundle(laid(files, tmp_path, "folder"))


def laid(files: dict[str, bytes], place: Path, kind: str) -> Path:
    if kind == "zip":
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, data in files.items():
                archive.writestr(name, data)
        (place / "b.zip").write_bytes(buffer.getvalue())
        return place / "b.zip"
    for name, data in files.items():
        plant(place / "b", name, data)
    return place / "b"


def test_a_folder_that_cannot_be_listed_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python imports from it all the same: it knows the names it looks for."""
    hidden = plant(folder, "json/__init__.py").parent
    scandir = os.scandir

    def refusing(path: str) -> object:
        if Path(path) == hidden:
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(BundleError, match="cannot be read: Permission denied"):
        read_bundle(folder)


@pytest.mark.parametrize("name", ["fifo", "launcher/fifo", "launch.py", "run", MANIFEST])
def test_a_pipe_is_not_waited_for(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(BundleError, match=f"{name} is not a plain file"):
        read_bundle(folder)


@pytest.mark.parametrize("name", ["run/lock", "run/state.json", "run/server-0.log"])
def test_links_are_not_followed_where_the_launcher_writes(folder: Path, name: str) -> None:
    outside = folder.with_name("outside")
    outside.write_text("precious")
    (folder / "run").mkdir()
    (folder / name).symlink_to(outside)
    with pytest.raises(BundleError, match=f"{name} is not a plain file"):
        read_bundle(folder)
    assert run("up", str(folder)).returncode == 1
    assert outside.read_text() == "precious"


@pytest.mark.parametrize("name", ["run/state.json", "run/node-0/state.json"])
def test_a_state_that_would_fill_the_memory_is_not_read(folder: Path, name: str) -> None:
    with plant(folder, name).open("wb") as file:
        file.truncate(1 << 40)
    for read in (read_bundle, lambda folder: replace_folder(folder, {})):
        with pytest.raises(BundleError, match=f"{name} is too large"):
            read(folder)


def test_a_linked_folder_of_checkpoints_is_its_users_choice(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (folder / "run").mkdir()
    (folder / "run" / "checkpoints").symlink_to(tmp_path / "disk")
    assert read_bundle(folder)


def test_planted_code_of_a_signed_bundle_is_not_run(recipe: Recipe, tmp_path: Path) -> None:
    private, public = new_key()
    folder = write_bundle(recipe, tmp_path / "b", private)
    trace = tmp_path / "foreign-code-ran"
    source = f"open({str(trace)!r}, 'w')\ndef main(*a, **k): return 0\n"
    tag = sys.implementation.cache_tag
    plant(folder, f"launcher/__pycache__/main.{tag}.pyc", compiled(source))
    subprocess.run([sys.executable, "-B", "-c", "import launcher.main"], cwd=folder, check=True)
    assert trace.exists()  # the plant works
    trace.unlink()
    key = tmp_path / "key.pub.pem"
    key.write_bytes(public)
    done = run("check", str(folder), "--public-key", str(key))
    assert done.returncode == 1
    assert f"main.{tag}.pyc" in done.stderr
    for command in (*COMMANDS, "status", "down"):
        done = run(command, str(folder))
        assert done.returncode == 1, command
        assert f"main.{tag}.pyc" in done.stderr, command
        assert not trace.exists(), command


def test_compiled_copies_are_not_even_looked_at(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that appears after the bundle was verified."""
    trace = folder.with_name("foreign-code-ran")
    cache = f"launcher/__pycache__/main.{sys.implementation.cache_tag}.pyc"
    plant(folder, cache, compiled(f"open({str(trace)!r}, 'w')\ndef main(): return 0\n"))
    monkeypatch.setattr("recipe_core.bundle.verify.unpack", lambda path, replaced: path)
    assert run("preflight", str(folder)).returncode == 1
    assert not trace.exists()


def test_the_command_line_adds_nothing_to_a_bundle(folder: Path) -> None:
    for command in ("preflight", "status", "down"):
        done = subprocess.run(
            [sys.executable, "-m", "recipe_core", command, str(folder)],
            capture_output=True,
            text=True,
            env={k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"},
        )
        assert "Traceback" not in done.stderr
    assert read_bundle(folder)


@pytest.fixture
def running(folder: Path) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """A bundle with a recorded process that runs."""
    mark = f"mark-of-{os.getpid()}"
    with subprocess.Popen(
        ["sleep", "600"], env={**os.environ, procs.MARK: mark}, start_new_session=True
    ) as process:
        stat = procs.read_stat(process.pid)
        assert stat is not None
        server = Server("server-0", process.pid, stat.started, 8000, str(folder / "run/log"))
        run_folder = folder / "run"
        run_folder.mkdir()
        values = (mark, state.boot_id(), "m", "127.0.0.1", 8000, True, (server,))
        state.save(run_folder, State(*values))
        yield folder, process
        process.kill()


def test_a_changed_bundle_can_be_stopped(running: tuple[Path, subprocess.Popen[bytes]]) -> None:
    folder, process = running
    plant(folder, "launcher/__pycache__/main.cpython-311.pyc")
    (folder / "launch.json").write_text("changed, and no JSON any more")
    (folder / "launch.py").write_text("raise SystemExit('foreign code')")
    assert run("up", str(folder)).returncode == 1
    done = run("down", str(folder))
    assert done.returncode == 0
    assert "stopped server-0" in done.stdout
    assert "Nothing of the bundle is run" in done.stderr
    process.wait(timeout=60)
    assert not (folder / "run" / "state.json").exists()
    assert run("down", str(folder)).stdout == "nothing was running\n"


def test_a_changed_bundle_tells_its_status(running: tuple[Path, subprocess.Popen[bytes]]) -> None:
    folder, _ = running
    plant(folder, "notes.txt")
    done = run("status", str(folder))
    assert json.loads(done.stdout)["servers"][0]["alive"] is True
    assert "notes.txt is not in the manifest" in done.stderr


@pytest.mark.parametrize("command", ["status", "down"])
@pytest.mark.parametrize("name", ["run/lock", "launch.json"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_stopping_neither_writes_elsewhere_nor_waits(
    running: tuple[Path, subprocess.Popen[bytes]], command: str, name: str, kind: str
) -> None:
    folder, process = running
    outside = folder.with_name("outside")
    outside.write_text("precious")
    plant(folder, "notes.txt")
    (folder / name).unlink(missing_ok=True)
    if kind == "link":
        (folder / name).symlink_to(outside)
    else:
        os.mkfifo(folder / name)
    done = run(command, str(folder))
    stops = command == "down" and name == "launch.json"  # which stopping does without
    assert done.returncode == (0 if stops else 1)
    assert f"{name} is not a plain file" in done.stderr
    assert outside.read_text() == "precious"
    if stops:
        process.wait(timeout=60)


def test_what_an_archive_started_is_stopped_though_the_archive_changed(
    running: tuple[Path, subprocess.Popen[bytes]],
) -> None:
    folder, process = running
    archive = folder.with_name("b.zip")
    write_bundle(recipe_of(candidate={"tp": 4, "pp": 1, "dp": 1}), archive)
    assert "is running" in run("up", str(archive)).stderr
    done = run("down", str(archive), "--json")
    assert done.returncode == 0
    process.wait(timeout=60)
    again = run("preflight", str(archive))
    assert f"replaced {folder}" in again.stderr
    assert read_bundle(folder).recipe == read_bundle(archive).recipe
