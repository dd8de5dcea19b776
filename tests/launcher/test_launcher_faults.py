"""Disks, folders, terminals and Pythons that are not as they should be: one sentence each."""

from __future__ import annotations

import ast
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from recipe_core.launch.entry import LAUNCH_PY, train_py
from tests.fixtures.bundles import Bundle, run
from tests.fixtures.patience import PATIENCE

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


def refuses(code: int, errors: str, words: Sequence[str], says: str) -> None:
    """What writes was refused, with a word; what reads may answer."""
    assert "Traceback" not in errors
    if words[0] in WRITING:
        assert code == 1
        assert is_one_sentence(errors)
        assert says in errors


def test_what_lies_where_the_launcher_writes(bundle, capsys):
    own = bundle.root / "run"
    own.write_text("mine")
    for words in COMMANDS:
        refuses(bundle.run(*words), capsys.readouterr().err, words, f"{own}: ")
    own.unlink()
    for name, commands in {"lock": COMMANDS, "server-0.log": [["up"]]}.items():
        (own / name).mkdir(parents=True)
        for words in commands:
            code, errors = bundle.run(*words), capsys.readouterr().err
            refuses(code, errors, words, f"{own / name}: Is a directory. Remove it")
            assert "pip install" not in errors.strip().rpartition("\n")[2]  # no missing engine
        (own / name).rmdir()
    (own / "measurement.json").mkdir()  # a measurement that cannot be written is shown
    code, printed = bundle.run("--json", "bench", "--requests", "3"), capsys.readouterr()
    refuses(code, printed.err, ["bench"], "measurement.json: Is a directory.")
    assert json.loads(printed.out)["metrics"]["requests"] == 3
    bundle.stand_alone()
    # Works without mounts: the size of any file is limited to nothing.
    none = (0, 0)
    done = run(bundle, "up", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, none))
    refuses(done.returncode, done.stderr, ["up"], "")
    assert not bundle.up


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
    command = ["unshare", "-rm", "sh", "-c", script, "sh", *program]
    settings = {"capture_output": True, "text": True, "timeout": PATIENCE, "cwd": bundle.root}
    return subprocess.run(command, check=False, **settings)


@needs_mounts
def test_a_bundle_on_a_disk_that_may_not_be_written_to(standing):
    mount = f"mount --bind {standing.root} {standing.root}"
    read_only = f"{mount} && mount -o remount,ro,bind {standing.root}"
    for words in (["preflight"], ["up"], ["status"], ["down"]):
        done = mounted(standing, read_only, *words)
        refuses(
            done.returncode, done.stderr, words, "Read-only file system. Use a copy of the bundle"
        )
        assert words[0] in WRITING or "launch: " not in done.stderr
    assert run(standing, "up", "--no-keep").returncode == 0
    pid = standing.state()["servers"][0]["pid"]
    done = mounted(standing, read_only, "down")  # what runs is stopped all the same
    refuses(done.returncode, done.stderr, ["down"], "stopped server-0")
    assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text()
    assert run(standing, "down").returncode == 0


@needs_mounts
def test_a_full_disk(standing):
    run_folder = standing.root / "run"
    run_folder.mkdir()
    fill = f"(cat /dev/zero > {run_folder}/filling || true) 2> /dev/null"
    mount = f"mount -t tmpfs -o size=64k none {run_folder} && {fill}"
    for words in (["up"], ["bench", "--requests", "3"]):
        done = mounted(standing, mount, *words)
        refuses(
            done.returncode,
            done.stderr,
            words,
            "state.json: No space left on device. Free space on that disk.",
        )


BAKERY = "Bäckerei 麵包".encode()


@pytest.mark.parametrize(
    ("name", "encoding", "lines"),
    [
        (BAKERY, "ascii", "up --no-keep, status, down"),
        pytest.param(BAKERY, "latin-1", "preflight, up, status, down", marks=pytest.mark.nightly),
        (b"caf\xe9", "utf-8", "preflight, --json up --no-keep, down"),  # which is no text
    ],
)
def test_letters_that_the_terminal_lacks(standing, tmp_path, name, encoding, lines, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    odd = Bundle(Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)), standing.port)
    standing.root.rename(odd.root)
    try:
        for line in lines.split(", "):
            done = run(odd, *line.split(), encoding=encoding)
            assert done.returncode == 0, (line, done.stderr)
            assert "Traceback" not in done.stderr
            if line.startswith(("--json", "status")):
                log = json.loads(done.stdout)["servers"][0]["log"]
                assert log == str(odd.root / "run" / "server-0.log")
    finally:
        run(odd, "down")


def test_a_launcher_that_was_copied_in_part(standing):
    module = standing.root / "launcher" / "engine.py"
    text = module.read_text()
    for size in (None, 0, 700):
        module.unlink()
        if size is not None:
            module.write_text(text[:size])
        done = run(standing, "up")
        assert done.returncode == 1
        assert done.stderr.startswith("launch: launcher/ is damaged: ")
        assert done.stderr.count("\n") == 1
        module.touch()


def test_output_that_nobody_reads(standing):
    reading, writing = os.pipe()
    os.close(reading)
    done = run(standing, "status", capture_output=False, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("version", [(2, 7, 18), (3, 6, 15), (3, 9, 18)])
@pytest.mark.parametrize("script", ["launch.py", "train.py"])
def test_an_older_python_is_told_which_is_needed(tmp_path, version, script):
    text = LAUNCH_PY if script == "launch.py" else train_py("train.py", "main")
    ast.parse(text, feature_version=(3, 6))
    pretended = f"import sys; sys.version_info = {version}; exec(open(sys.argv[1]).read())"
    (tmp_path / script).write_text(text)
    command = [sys.executable, "-c", pretended, str(tmp_path / script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    said = f"{script} needs Python 3.10 or newer; this is {version[0]}.{version[1]}.\n"
    assert done.stderr == said
