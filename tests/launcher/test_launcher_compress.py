"""``compress`` makes a checkpoint whole or not at all, keeps it, and checks it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recipe_core.launcher import procs
from recipe_core.launcher.main import main
from tests.fixtures.bundles import Bundle
from tests.fixtures.paths import FIXTURES

TOOL = FIXTURES / "fake_tool.py"
PATIENCE_S = 20


@pytest.fixture
def compressing(bundle: Bundle) -> Callable[..., Bundle]:
    """The bundle with a job of the fake tool in a mode."""

    def make(mode: str = "fast", **changes: Any) -> Bundle:
        job = bundle.root / "compress" / "job.json"
        job.parent.mkdir(exist_ok=True)
        compression = {
            "tool": "fake",
            "title": "Fake 1.0",
            "technique": "int4_weight_only",
            "method": "RTN",
            "module": "json",
            "programs": [],
            "install": "pip install fake",
            "argv": ["python3", str(TOOL), mode, "${job}"],
            "verify": ["python3", str(TOOL), "check", "${job}"],
            "env": {},
            "source": str(bundle.root.parent / "model"),
            "output": "./run/compressed/small",
            "loaded": None,
            "job": "compress/job.json",
            "needs": {"device_bytes": 0, "host_bytes": 1, "disk_bytes": 1, "seconds": 5.0},
            **changes,
        }
        verify = {"least_retained": 0.95, "text": None}
        job.write_text(
            json.dumps({"tool": "fake", "calibration": {"text": None}, "verify": verify})
        )

        def edit(data: dict[str, Any]) -> None:
            data["compression"] = compression
            data["parameters"]["model"] = "./run/compressed/small"

        bundle.edit(edit)
        return bundle

    return make


def output(bundle: Bundle) -> Path:
    return bundle.root / "run" / "compressed" / "small"


def start(bundle: Bundle) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", _LAUNCH, str(bundle.root), "compress"]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True)


_LAUNCH = """
import sys
from pathlib import Path
from recipe_core.launcher.main import main
raise SystemExit(main(sys.argv[2:], root=Path(sys.argv[1])))
"""


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


def half_written(bundle: Bundle) -> bool:
    return (output(bundle).parent / ".small.part" / "a.safetensors").exists()


def test_it_makes_checks_and_keeps(compressing: Callable[..., Bundle]) -> None:
    bundle = compressing()
    assert bundle.run("compress") == 0
    record = json.loads((output(bundle) / "recipe-compression.json").read_text())
    assert set(record["files"]) == {"config.json", "a.safetensors", "b.safetensors"}
    figures = json.loads((bundle.root / "run" / "compression.json").read_text())
    assert figures["verification"] == {
        "tool": "fake",
        "perplexity": {"retained": 0.97},
        "passed": True,
    }
    written = (output(bundle) / "b.safetensors").stat().st_mtime_ns
    assert bundle.run("compress") == 0
    assert (output(bundle) / "b.safetensors").stat().st_mtime_ns == written


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killed_half_way_nothing_is_taken_for_a_result(
    compressing: Callable[..., Bundle], number: signal.Signals
) -> None:
    bundle = compressing("slow")
    launcher = start(bundle)
    wait_for(lambda: half_written(bundle))
    running = json.loads((output(bundle).parent / ".small.running.json").read_text())
    launcher.send_signal(number)
    launcher.wait(PATIENCE_S)
    assert not output(bundle).exists()
    assert bundle.run("preflight") == 1
    (output(bundle).parent / "go").touch()
    assert bundle.run("compress") == 0
    assert not procs.alive(running["pid"], running["started"])
    assert not half_written(bundle)
    assert (output(bundle) / "b.safetensors").read_bytes() == b"b" * 100


def test_what_a_killed_launcher_left_is_ended_before_the_next_writes(
    compressing: Callable[..., Bundle],
) -> None:
    bundle = compressing("slow")
    launcher = start(bundle)
    wait_for(lambda: half_written(bundle))
    running = json.loads((output(bundle).parent / ".small.running.json").read_text())
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.wait(PATIENCE_S)
    assert procs.alive(running["pid"], running["started"])
    compressing("fast")
    assert bundle.run("compress") == 0
    assert not procs.alive(running["pid"], running["started"])


def test_a_tool_that_fails_leaves_nothing_and_says_why(
    compressing: Callable[..., Bundle], capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = compressing("fail")
    assert bundle.run("compress") == 1
    assert "no such layer" in capsys.readouterr().err
    assert not output(bundle).exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"module": "no_such_module"}, "Fake 1.0 is not installed"),
        ({"needs": {"host_bytes": 1 << 60}}, "of the host are free"),
        ({"needs": {"disk_bytes": 1 << 60}}, "are free; this takes about"),
        ({"source": "/no/such/folder"}, "has no config.json"),
    ],
)
def test_it_starts_nothing_without_what_it_needs(
    compressing: Callable[..., Bundle],
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    message: str,
) -> None:
    bundle = compressing(**changes)
    assert bundle.run("compress") != 0
    assert message in capsys.readouterr().err
    assert not output(bundle).exists()


def test_more_memory_than_there_is_can_be_tried(compressing: Callable[..., Bundle]) -> None:
    bundle = compressing(needs={"host_bytes": 1 << 60})
    assert bundle.run("compress", "--anyway") == 0


def test_a_result_that_lost_too_much_is_kept_and_said(compressing: Callable[..., Bundle]) -> None:
    bundle = compressing()
    job = bundle.root / "compress" / "job.json"
    job.write_text(job.read_text().replace("0.95", "0.99"))
    bundle.seal()
    assert bundle.run("compress") == 1
    assert output(bundle).is_dir()
    figures = json.loads((bundle.root / "run" / "compression.json").read_text())
    assert figures["verification"]["passed"] is False


def test_another_job_is_not_passed_off_as_this_one(
    compressing: Callable[..., Bundle], capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = compressing()
    assert bundle.run("compress") == 0
    job = bundle.root / "compress" / "job.json"
    job.write_text(job.read_text().replace("0.95", "0.5"))
    bundle.seal()
    assert bundle.run("compress") == 1
    assert "--again" in capsys.readouterr().err
    assert bundle.run("compress", "--again") == 0


def test_up_says_that_it_has_to_be_made_or_makes_it(
    compressing: Callable[..., Bundle], capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = compressing()
    assert bundle.run("up", "--no-keep") == 1
    assert "python launch.py compress" in capsys.readouterr().err
    assert bundle.run("up", "--no-keep", "--compress") == 0
    assert bundle.up


def test_a_bundle_that_makes_nothing_says_so(
    bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compress"], root=bundle.root) == 2
    assert "makes no checkpoint" in capsys.readouterr().err
