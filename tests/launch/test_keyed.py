"""Servers that ask for a key: the script that starts them, and each engine's own way."""

import os
import subprocess
import sys
from contextlib import suppress
from functools import partial

import pytest

from recipe_core.base.errors import NoAnswer
from recipe_core.engines.spec import engine, engine_names
from recipe_core.launch.process import SCRIPT, with_key
from recipe_core.launch.serving import keyed
from recipe_core.launch.start import launch_deployment
from tests.fixtures.agents import finished
from tests.fixtures.deployments import deployments
from tests.fixtures.rows import over, table

KEY = "k3y-of-the-callers"
ROWS = partial(table, "keys")


@pytest.fixture
def start(tmp_path):
    """Runs the script with an engine that its packages install, and that is a program too."""
    (tmp_path / "made.py").write_text(ROWS("engine"))
    about = tmp_path / "made-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Name: made\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[console_scripts]\nmade = made:main\n")
    program = tmp_path / "made"
    other = tmp_path / "python3"  # the Python that has it
    other.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}:$PYTHONPATH exec {sys.executable} "$@"\n')
    program.write_text(f"#!{other}\nfrom made import main\nmain()\n")
    for file in (other, program):
        file.chmod(0o755)

    def run(*words, key=KEY, path=tmp_path):
        env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(path)}
        words = [sys.executable, keyed.__file__, "A_KEY", *words]
        return subprocess.run(words, capture_output=True, text=True, env=env | {"A_KEY": key})

    return run


@over("words", ROWS("started"))
def test_an_engine_gets_the_key_and_shows_it_nowhere(words, start):
    done = start(*words)
    assert done.returncode == 0, done.stderr
    logged, command, *guard = done.stdout.splitlines()
    if words[0] == "--":  # it reads the variable itself, and finds what guards its paths
        assert ("--x" in logged, guard) == (True, [str(KEY.encode())])
    else:
        assert f"['--api-key', '{keyed.HIDDEN}']" in logged
        assert KEY not in done.stdout
        assert start(*words, path="/nowhere").stdout.splitlines()[0] == logged
    assert KEY not in command
    assert start(*words, key="").returncode == 2
    missing = start(*words[: words.index("made")], "none-such")
    assert missing.returncode == 127 or "none-such" in missing.stderr


@over("path, key, more, answered", ROWS("guarded"))
def test_the_guard_lets_in_probes_and_who_has_the_key(path, key, more, answered, monkeypatch):
    monkeypatch.setenv("A_KEY", KEY)
    monkeypatch.setenv(keyed.REMEMBERED, "A_KEY")
    sent = (b"authorization", key.replace("K", KEY).encode())
    asked = {"type": "http", "path": path, "headers": [sent], **more}
    said = []

    async def app(*_):
        said.append({"status": "passed"})

    async def send(message):
        said.append(message)

    finished(keyed.Guard(app)(asked, None, send))
    assert (said[0].get("status") or said[0]["code"]) == answered


@over("name", engine_names(), share=2)
def test_each_engine_asks_in_its_way_or_says_that_it_cannot(name):
    spec, way = engine(name), ROWS("ways").get(name)
    assert (spec.api_key is None) == (way is None)
    for deployment in deployments(name, 4):
        with suppress(NoAnswer):
            plain = launch_deployment(deployment)
            if way is None or (name == "vllm" and plain.processes[0].role == "router"):
                with pytest.raises(NoAnswer, match="asks no caller for a key"):
                    with_key(plain, spec)
                continue
            locked = with_key(plain, spec)
            assert (SCRIPT in locked.files) == bool(way)
            for before, after in zip(plain.processes, locked.processes, strict=True):
                script = ["python3", f"${{root}}/{SCRIPT}", *way] if way and before.answers else []
                guard = ["--middleware", "keyed.Guard"] if script and name == "vllm" else []
                assert [*after.argv] == [*script, *before.argv, *guard]
