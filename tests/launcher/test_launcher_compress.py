"""``compress`` makes a checkpoint whole or not at all, keeps it, and checks it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from recipe_core.launcher import procs
from recipe_core.launcher.compress_run import _wait
from tests.fixtures.bundles import Bundle
from tests.fixtures.paths import FIXTURES
from tests.fixtures.patience import PATIENCE, comes

TOOL = FIXTURES / "fake_tool.py"
LAUNCH = """
import sys
from pathlib import Path
from recipe_core.launcher.main import main
raise SystemExit(main(sys.argv[2:], root=Path(sys.argv[1])))
"""


@pytest.fixture
def compressing(bundle: Bundle) -> Callable[..., Bundle]:
    """The bundle with a job of the fake tool in a mode."""

    def make(mode: str = "fast", least: float = 0.95, **changes: Any) -> Bundle:
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
        verify = {"least_retained": least, "text": None}
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


def verification(bundle: Bundle) -> dict[str, Any]:
    return dict(json.loads((bundle.root / "run" / "compression.json").read_text())["verification"])


def half_written(bundle: Bundle) -> bool:
    return (output(bundle).parent / ".small.part" / "a.safetensors").exists()


def test_it_makes_checks_and_keeps(compressing, capsys):
    bundle = compressing()
    assert bundle.run("compress") == 0
    record = json.loads((output(bundle) / "recipe-compression.json").read_text())
    assert set(record["files"]) == {"config.json", "a.safetensors", "b.safetensors"}
    figures = {"tool": "fake", "perplexity": {"retained": 0.97}, "passed": True}
    assert verification(bundle) == figures
    written = (output(bundle) / "b.safetensors").stat().st_mtime_ns
    assert bundle.run("compress") == 0
    assert (output(bundle) / "b.safetensors").stat().st_mtime_ns == written
    capsys.readouterr()
    compressing(least=0.5)  # another job is not passed off as this one
    assert bundle.run("compress") == 1
    assert "--again" in capsys.readouterr().err
    assert bundle.run("compress", "--again") == 0
    compressing(least=0.99)  # what lost too much is kept, and said
    assert bundle.run("compress", "--again") == 1
    assert output(bundle).is_dir()
    assert verification(bundle)["passed"] is False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killed_half_way_nothing_is_taken_for_a_result(compressing, number):
    """What a killed launcher leaves runs on, and is ended before the next one writes."""
    bundle = compressing("slow")
    words = [sys.executable, "-c", LAUNCH, str(bundle.root), "compress"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as launcher:
        assert comes(lambda: half_written(bundle))
        running = json.loads((output(bundle).parent / ".small.running.json").read_text())
        launcher.send_signal(number)
        launcher.wait(PATIENCE)
    assert procs.alive(running["pid"], running["started"]) == (number == signal.SIGKILL)
    assert not output(bundle).exists()
    assert bundle.run("preflight") == 1
    compressing("fast")
    assert bundle.run("compress") == 0
    assert not procs.alive(running["pid"], running["started"])
    assert not half_written(bundle)
    assert (output(bundle) / "b.safetensors").read_bytes() == b"b" * 100


def test_a_tool_that_works_for_long_is_told_of(tmp_path):
    process, progress = Mock(), Mock()
    late = subprocess.TimeoutExpired("tool", 0.2)
    process.wait.side_effect = [late, late, late, 7]
    (tmp_path / "log").write_text("layer 1\nlayer 2\n")
    clock = iter([0.0, 14.0, 16.0, 17.0]).__next__
    assert _wait(process, tmp_path / "log", progress, clock=clock) == 7
    progress.say.assert_called_once_with("16 s; layer 2")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "fail"}, "no such layer"),
        ({"module": "no_such_module"}, "Fake 1.0 is not installed"),
        ({"needs": {"host_bytes": 1 << 60}}, "of the host are free"),
        ({"needs": {"disk_bytes": 1 << 60}}, "are free; this takes about"),
        ({"source": "/no/such/folder"}, "config.json"),
    ],
)
def test_a_tool_that_fails_or_lacks_something_leaves_nothing_and_says_why(
    compressing, capsys, changes, message
):
    bundle = compressing(**changes)
    assert bundle.run("compress") != 0
    assert message in capsys.readouterr().err
    assert not output(bundle).exists()
    if "host_bytes" in changes.get("needs", {}):
        assert bundle.run("compress", "--anyway") == 0


def test_up_says_that_it_has_to_be_made_or_makes_it(compressing, bundle, capsys):
    assert bundle.run("compress") == 2  # nothing is to be made
    assert "makes no checkpoint" in capsys.readouterr().err
    compressing()
    assert bundle.run("up", "--no-keep") == 1
    assert "python launch.py compress" in capsys.readouterr().err
    assert bundle.run("up", "--no-keep", "--compress") == 0
    assert bundle.up
