"""Servers that ask for a key: the script that starts them, and each engine's own way."""

import asyncio
import os
import subprocess
import sys
from contextlib import suppress

import pytest

from recipe_core.base.errors import NoAnswer
from recipe_core.engines.spec import engine, engine_names
from recipe_core.launch.access import SCRIPT, engine_words, with_key
from recipe_core.launch.serving import keyed
from recipe_core.launch.serving.start import launch
from tests.fixtures.deployments import deployments
from tests.fixtures.rows import over

KEY = "k3y-of-the-callers"
SOURCE = """
import logging, os, sys
def main():
    logging.basicConfig(level="INFO", format="%(message)s", stream=sys.stdout)
    logging.getLogger("engine").info("options %r of %s", sys.argv[1:], {"key": os.environ["A_KEY"]})
    print(open("/proc/self/cmdline").read().replace(chr(0), " "))
    if "--x" in sys.argv:
        from keyed import Guard
        print(Guard(None).expected)
"""


@pytest.fixture
def start(tmp_path):
    """Runs the script with an engine that its packages install, and that is a program too."""
    (tmp_path / "made.py").write_text(SOURCE + "if __name__ == '__main__':\n    main()\n")
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
        env = {
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "PYTHONPATH": str(path),
            "A_KEY": key,
        }
        command = [sys.executable, keyed.__file__, "A_KEY", *words]
        return subprocess.run(command, capture_output=True, text=True, env=env)

    return run


@over(
    "words",
    [
        ("--", "made", "--x"),
        ("--api-key", "--", "made"),
        ("--api-key", "--", *keyed.MODULE, "made"),
    ],
)
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


@over(
    "path, key, more, answered",
    [
        ("/v1/completions", "", {}, 401),
        ("/v1/completions", "Bearer wrong", {}, 401),
        ("/v1/completions", f"Basic {KEY}", {}, 401),
        ("/v1/completions", f"bearer {KEY}", {}, "passed"),
        ("/invocations", "", {}, 401),
        ("/health/../invocations", "", {}, 401),
        ("/healthy", "", {}, 401),
        ("/p/health", "", {"root_path": "/p"}, "passed"),
        ("/metrics/", "", {}, "passed"),
        ("/v1/models", "", {"method": "OPTIONS"}, "passed"),
        ("/v1/realtime", "", {"type": "websocket"}, 1008),
        ("/v1/realtime", f"Bearer {KEY}", {"type": "websocket"}, "passed"),
        ("", "", {"type": "lifespan"}, "passed"),
    ],
)
def test_the_guard_lets_in_probes_and_who_has_the_key(path, key, more, answered, monkeypatch):
    monkeypatch.setenv("A_KEY", KEY)
    monkeypatch.setenv(keyed.REMEMBERED, "A_KEY")
    asked = {"type": "http", "path": path, "headers": [(b"authorization", key.encode())], **more}
    said = []

    async def app(*_):
        said.append({"status": "passed"})

    async def send(message):
        said.append(message)

    asyncio.run(keyed.Guard(app)(asked, None, send))
    assert (said[0].get("status") or said[0]["code"]) == answered


@over("name", engine_names(), share=2)
def test_each_engine_asks_in_its_way_or_says_that_it_cannot(name):
    spec = engine(name)
    assert spec.api_key is None or spec.api_key.source in spec.sources
    for option in filter(None, (spec.api_key.option, spec.api_key.guard) if spec.api_key else ()):
        assert option.lstrip("-").replace("-", "_") in spec.options.by_name
    for deployment in deployments(name, 4):
        with suppress(NoAnswer):
            plain = launch(deployment)
            routed = any(process.role == "router" for process in plain.processes)
            if spec.api_key is None or (routed and spec.api_key.router_option is None):
                with pytest.raises(NoAnswer, match="asks no caller for a key"):
                    with_key(plain, spec)
                continue
            locked = with_key(plain, spec)
            script = bool(spec.api_key.option or spec.api_key.guard)
            assert (SCRIPT in locked.files) == script
            for before, after in zip(plain.processes, locked.processes, strict=True):
                words = engine_words(after.argv)
                assert (words != after.argv) == (script and before.answers)
                guard = words[len(before.argv) :] if script else ()
                assert words[: len(before.argv)] == before.argv
                assert guard in ((), ("--middleware", "keyed.Guard"))
                wanted = (
                    spec.api_key.router_option if before.role == "router" else spec.api_key.option
                )
                assert (
                    not wanted
                    or not before.answers
                    or after.argv[2:4] == (spec.api_key.variable, wanted)
                )
