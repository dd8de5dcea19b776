"""``compress`` makes a checkpoint whole or not at all, keeps it, and checks it."""

import json
import signal
import subprocess
from functools import partial
from unittest.mock import Mock

import pytest

from recipe_core.payload.launcher import procs
from recipe_core.payload.launcher.compress_run import _wait
from tests.fixtures.paths import FIXTURES
from tests.fixtures.patience import PATIENCE, comes
from tests.fixtures.rows import table

ROWS = partial(table, "launcher_compress")


@pytest.fixture
def compressing(bundle):
    """The bundle with a job of the fake tool in a mode."""

    def make(mode="fast", least=0.95, **changes):
        job = bundle.root / "compress" / "job.json"
        job.parent.mkdir(exist_ok=True)
        known = {"TOOL": str(FIXTURES / "fake_tool.py"), "MODE": mode}
        compression = ROWS("compression") | {"source": str(bundle.root.parent / "model")} | changes
        for name in ("argv", "verify"):
            compression[name] = [known.get(word, word) for word in compression[name]]
        verify = {"least_retained": least, "text": None}
        text = json.dumps({"tool": "fake", "calibration": {"text": None}, "verify": verify})
        job.write_text(text)

        def edit(data):
            data["compression"] = compression
            data["parameters"]["model"] = "./run/compressed/small"

        bundle.edit(edit)
        return bundle

    return make


@pytest.fixture
def output(bundle):
    return bundle.root / "run" / "compressed" / "small"


def test_it_makes_checks_and_keeps(compressing, output):
    bundle = compressing()
    assert bundle.run("compress") == 0
    record = json.loads((output / "recipe-compression.json").read_text())
    assert set(record["files"]) == {"config.json", "a.safetensors", "b.safetensors"}
    figures = {"tool": "fake", "perplexity": {"retained": 0.97}, "passed": True}
    assert bundle.read("compression.json")["verification"] == figures
    written = (output / "b.safetensors").stat().st_mtime_ns
    assert bundle.run("compress") == 0
    assert (output / "b.safetensors").stat().st_mtime_ns == written
    compressing(least=0.5)  # another job is not passed off as this one
    assert "--again" in bundle.says(1, "compress")
    assert bundle.run("compress", "--again") == 0
    compressing(least=0.99)  # what lost too much is kept, and said
    assert bundle.run("compress", "--again") == 1
    assert output.is_dir()
    assert bundle.read("compression.json")["verification"]["passed"] is False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killed_half_way_nothing_is_taken_for_a_result(compressing, output, number):
    """What a killed launcher leaves runs on, and is ended before the next one writes."""
    bundle, half = compressing("slow"), output.parent / ".small.part" / "a.safetensors"
    words = [*bundle.stand_alone(), "compress"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as launcher:
        assert comes(half.exists)
        running = json.loads((output.parent / ".small.running.json").read_text())
        launcher.send_signal(number)
        launcher.wait(PATIENCE)
    assert procs.alive(running["pid"], running["started"]) == (number == signal.SIGKILL)
    assert not output.exists()
    assert bundle.run("preflight") == 1
    compressing("fast")
    assert bundle.run("compress") == 0
    assert not procs.alive(running["pid"], running["started"])
    assert not half.exists()
    assert (output / "b.safetensors").read_bytes() == b"b" * 100


def test_a_tool_that_works_for_long_is_told_of(tmp_path):
    process, progress = Mock(), Mock()
    late = subprocess.TimeoutExpired("tool", 0.2)
    process.wait.side_effect = [late, late, late, 7]
    (tmp_path / "log").write_text("layer 1\nlayer 2\n")
    clock = iter([0.0, 14.0, 16.0, 17.0]).__next__
    assert _wait(process, tmp_path / "log", progress, clock=clock) == 7
    progress.say.assert_called_once_with("16 s; layer 2")


@pytest.mark.parametrize(("changes", "message"), ROWS("failures"))
def test_a_tool_that_fails_or_lacks_something_leaves_nothing_and_says_why(
    compressing, output, capsys, changes, message
):
    bundle = compressing(**changes)
    assert bundle.run("compress") != 0
    assert message in capsys.readouterr().err
    assert not output.exists()
    if "host_bytes" in changes.get("needs", {}):
        assert bundle.run("compress", "--anyway") == 0


def test_up_says_that_it_has_to_be_made_or_makes_it(compressing, bundle):
    assert "makes no checkpoint" in bundle.says(2, "compress")  # nothing is to be made
    compressing()
    assert "python launch.py compress" in bundle.says(1, "up", "--no-keep")
    assert bundle.run("up", "--no-keep", "--compress") == 0
    assert bundle.up
