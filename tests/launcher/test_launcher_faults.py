"""Disks, folders, terminals and Pythons that are not as they should be: one sentence each."""

from __future__ import annotations

import ast
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from recipe_core.launch.entry import LAUNCH_PY, train_py
from tests.fixtures.bundles import Bundle, run

COMMANDS = (["preflight"], ["up"], ["bench", "--requests", "3"], ["status"], ["down"])
WRITING = ("up", "bench", "down")


def is_one_sentence(text: str) -> bool:
    """The last line is the refusal; before it only progress."""
    lines = text.strip().splitlines()
    return "Traceback" not in text and "Exception" not in text and lines[-1].startswith("launch: ")


@pytest.fixture
def standing(bundle: Bundle) -> Bundle:
    bundle.stand_alone()
    return bundle


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_a_file_where_the_run_folder_belongs(standing: Bundle, words: list[str]) -> None:
    (standing.root / "run").write_text("mine")
    done = run(standing, *words)
    if words[0] in WRITING:
        assert done.returncode == 1
        assert is_one_sentence(done.stderr)
        assert f"{standing.root / 'run'}: " in done.stderr
    else:
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_a_folder_where_the_lock_belongs(standing: Bundle, words: list[str]) -> None:
    (standing.root / "run" / "lock").mkdir(parents=True)
    done = run(standing, *words)
    assert "Traceback" not in done.stderr
    if words[0] in WRITING:
        assert done.returncode == 1
        assert is_one_sentence(done.stderr)
        assert f"{standing.root / 'run' / 'lock'}: Is a directory. Remove it" in done.stderr


def may_mount() -> bool:
    """Whether a private mount is allowed here."""
    if shutil.which("unshare") is None:
        return False
    probe = "mount -t tmpfs none /mnt"
    done = subprocess.run(["unshare", "-rm", "sh", "-c", probe], capture_output=True, check=False)
    return done.returncode == 0


needs_mounts = pytest.mark.skipif(not may_mount(), reason="no private mounts here")


def mounted(bundle: Bundle, mount: str, *words: str) -> subprocess.CompletedProcess[str]:
    """The launcher where ``mount`` was run before, for it alone."""
    program = [sys.executable, str(bundle.root / "launch.py"), *words]
    script = f'{mount} && exec "$@"'
    return subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, "sh", *program],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=bundle.root,
    )


@needs_mounts
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_a_bundle_on_a_disk_that_may_not_be_written_to(standing: Bundle, words: list[str]) -> None:
    mount = f"mount --bind {standing.root} {standing.root}"
    done = mounted(standing, f"{mount} && mount -o remount,ro,bind {standing.root}", *words)
    assert "Traceback" not in done.stderr
    if words[0] in WRITING:
        assert done.returncode == 1
        assert is_one_sentence(done.stderr)
        assert "Read-only file system. Use a copy of the bundle" in done.stderr
    else:
        assert "launch: " not in done.stderr


@needs_mounts
def test_what_runs_is_stopped_where_the_disk_became_read_only(standing: Bundle) -> None:
    assert run(standing, "up").returncode == 0
    pid = standing.state()["servers"][0]["pid"]
    mount = f"mount --bind {standing.root} {standing.root}"
    done = mounted(standing, f"{mount} && mount -o remount,ro,bind {standing.root}", "down")
    assert done.returncode == 1
    assert is_one_sentence(done.stderr)
    assert "stopped server-0" in done.stderr
    assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text()
    assert run(standing, "down").returncode == 0


@needs_mounts
@pytest.mark.parametrize("words", [["up"], ["bench", "--requests", "3"]], ids=["up", "bench"])
def test_a_full_disk(standing: Bundle, words: list[str]) -> None:
    run_folder = standing.root / "run"
    run_folder.mkdir()
    fill = f"(cat /dev/zero > {run_folder}/filling || true) 2> /dev/null"
    mount = f"mount -t tmpfs -o size=64k none {run_folder} && {fill}"
    done = mounted(standing, mount, *words)
    assert done.returncode == 1
    assert is_one_sentence(done.stderr)
    assert "state.json: No space left on device. Free space on that disk." in done.stderr


def test_a_disk_that_is_full_for_the_state(standing: Bundle) -> None:
    """Works without mounts: the size of any file is limited to nothing."""
    none = (0, 0)
    done = run(standing, "up", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, none))
    assert done.returncode == 1
    assert is_one_sentence(done.stderr)
    assert not standing.up


def test_a_measurement_that_cannot_be_written_is_shown(standing: Bundle) -> None:
    (standing.root / "run" / "measurement.json").mkdir(parents=True)
    done = run(standing, "--json", "bench", "--requests", "3")
    assert done.returncode == 1
    assert is_one_sentence(done.stderr)
    assert "measurement.json: Is a directory." in done.stderr
    assert json.loads(done.stdout)["metrics"]["requests"] == 3
    assert not standing.up


def test_a_log_that_cannot_be_opened_is_not_a_missing_engine(standing: Bundle) -> None:
    (standing.root / "run" / "server-0.log").mkdir(parents=True)
    done = run(standing, "up")
    assert done.returncode == 1
    assert is_one_sentence(done.stderr)
    assert "server-0.log: Is a directory. Remove it" in done.stderr
    assert "pip install" not in done.stderr.strip().splitlines()[-1]
    assert not standing.up


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_letters_that_the_terminal_lacks(
    bundle: Bundle, tmp_path: Path, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    bundle.stand_alone()
    odd = Bundle(tmp_path / "Bäckerei 麵包", bundle.port)
    bundle.root.rename(odd.root)
    try:
        for words in (["preflight"], ["up"], ["--json", "up"], ["status"]):
            done = run(odd, *words, encoding=encoding)
            assert done.returncode == 0, (words, done.stderr)
            assert "Traceback" not in done.stderr
            if words != ["preflight"] and words != ["up"]:
                log = json.loads(done.stdout)["servers"][0]["log"]
                assert log == str(odd.root / "run" / "server-0.log")
    finally:
        assert run(odd, "down").returncode == 0


def test_a_folder_whose_name_is_no_text(bundle: Bundle, tmp_path: Path) -> None:
    bundle.stand_alone()
    odd = Bundle(Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")), bundle.port)
    bundle.root.rename(odd.root)
    for words in (["preflight"], ["up"], ["--json", "status"], ["down"]):
        done = run(odd, *words)
        assert done.returncode == 0, (words, done.stderr)
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("size", [None, 0, 700])
def test_a_launcher_that_was_copied_in_part(standing: Bundle, size: int | None) -> None:
    module = standing.root / "launcher" / "engine.py"
    text = module.read_text()
    module.unlink()
    if size is not None:
        module.write_text(text[:size])
    done = run(standing, "up")
    assert done.returncode == 1
    assert done.stderr.startswith("launch: launcher/ is damaged: ")
    assert done.stderr.count("\n") == 1


def test_output_that_nobody_reads(standing: Bundle) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = run(standing, "status", capture_output=False, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("version", [(2, 7, 18), (3, 6, 15), (3, 9, 18)])
@pytest.mark.parametrize("script", ["launch.py", "train.py"])
def test_an_older_python_is_told_which_is_needed(
    standing: Bundle, version: tuple[int, ...], script: str
) -> None:
    text = LAUNCH_PY if script == "launch.py" else train_py("train.py", "main")
    ast.parse(text, feature_version=(3, 6))
    pretended = f"import sys; sys.version_info = {version}; exec(open(sys.argv[1]).read())"
    path = standing.root / "script.py"
    path.write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", pretended, str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    said = f"{script} needs Python 3.10 or newer; this is {version[0]}.{version[1]}.\n"
    assert done.stderr == said
