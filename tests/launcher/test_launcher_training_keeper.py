"""Training runs that break, kept by their launcher: real processes, a trainer that pretends."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from recipe_core.launcher import procs, supervisor
from recipe_core.launcher.events import read
from tests.fixtures.bundles import FAKE_TRAINER, TRAINING, Bundle, training_bundle, with_variable
from tests.fixtures.ports import free_port

QUICK = {"backoff_s": 0.05, "backoff_most_s": 0.1, "poll_s": 0.1, "crash_budget": 3}
PATIENCE_S = 120.0
Make = Callable[..., Bundle]


def until(holds: Callable[[], Any]) -> Any:
    """Wait for a state, however slow the machine is."""
    deadline = time.monotonic() + PATIENCE_S
    while not (value := holds()):
        assert time.monotonic() < deadline, "the state did not come"
        time.sleep(0.05)
    return value


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    made: list[Bundle] = []
    monkeypatch.setattr(supervisor, "GRACE_S", 5.0)

    def bundle(
        steps: int, faults: list[dict[str, Any]], limits: dict[str, Any] = QUICK, **scenario: Any
    ) -> Bundle:
        found = training_bundle(tmp_path / "bundle", tmp_path, free_port(), steps)
        found.edit(lambda data: data.update(supervision=limits))
        (found.root / "run").mkdir()
        values = {"every": 2, "faults": faults} | scenario
        (found.root / "run" / "fake.json").write_text(json.dumps(values))
        made.append(found)
        return found

    yield bundle
    for each in made:
        each.run("down")


def fault(step: int, kind: str, times: int = 1, **more: Any) -> dict[str, Any]:
    return {"step": step, "kind": kind, "times": times, **more}


def kinds(bundle: Bundle) -> list[str]:
    return [event["event"] for event in read(bundle.root / "run")]


def event(bundle: Bundle, kind: str) -> dict[str, Any]:
    return next(each for each in reversed(read(bundle.root / "run")) if each["event"] == kind)


def status(bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    bundle.run("status")
    return dict(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize("kind", ["crash", "kill"])
def test_a_run_that_crashed_goes_on_from_its_checkpoint(
    make: Make, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    bundle = make(12, [fault(6, kind)])
    assert bundle.run("up", "--foreground") == 0
    assert kinds(bundle) == ["start", "keeper_start", "died", "restart", "finished", "keeper_stop"]
    assert event(bundle, "restart")["step"] == 4
    told = capsys.readouterr().err
    assert told.count("step 5 of 12: loss") == 2
    assert "step 12 of 12" in told
    assert status(bundle, capsys)["state"] == "finished"
    assert not bundle.up


def test_a_hang_is_ended_and_the_run_goes_on(make: Make) -> None:
    bundle = make(12, [fault(6, "hang")], QUICK | {"hang_s": 1.0})
    assert bundle.run("up", "--foreground") == 0
    assert kinds(bundle)[2:5] == ["hung", "restart", "finished"]
    assert "a step takes 0.02 s" in event(bundle, "hung")["reason"]


def test_a_stopped_process_is_a_hang_too(make: Make) -> None:
    bundle = make(40, [], QUICK | {"hang_s": 2.0}, step_s=0.1)
    assert bundle.run("up") == 0
    os.kill(bundle.state()["servers"][0]["pid"], signal.SIGSTOP)
    until(lambda: "finished" in kinds(bundle))
    assert "hung" in kinds(bundle)


def test_a_rollback_is_no_failure(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = make(8, [fault(5, "rollback")], QUICK | {"crash_budget": 1})
    assert bundle.run("up", "--foreground") == 0
    assert kinds(bundle)[2:5] == ["rollback", "restart", "finished"]
    assert event(bundle, "rollback")["skipped"] == [4, 5]
    assert status(bundle, capsys)["rollbacks"] == 1


def test_what_a_person_must_change_is_not_tried_again(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = make(8, [fault(3, "refuse", 9)])
    assert bundle.run("up", "--foreground") == 1
    said = "trainer-0 ended before its last step: train.json.steps is '4', not int."
    assert said in capsys.readouterr().err
    assert kinds(bundle) == ["start", "keeper_start", "died", "gave_up", "keeper_stop"]
    assert not bundle.up


def test_a_run_that_always_fails_is_given_up_with_a_diagnosis(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    log = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    bundle = make(12, [fault(6, "crash", 99, log=log)])
    assert bundle.run("up", "--foreground") == 1
    told = capsys.readouterr().err
    assert "ended with exit code 1; it is not started again. Diagnosis: " in told
    assert kinds(bundle).count("restart") == 3
    last = event(bundle, "gave_up")
    assert (last["cause"], last["lines"], last["restarts"]) == ("device-memory", [log], 3)


def test_up_leaves_a_keeper_that_ends_with_the_run(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = make(100_000, [], step_s=0.05)
    assert bundle.run("up") == 0
    shown = status(bundle, capsys)
    assert (shown["state"], shown["supervision"], shown["world_size"]) == ("up", "supervised", 2)
    keeper = bundle.state()["keeper"]
    os.kill(bundle.state()["servers"][0]["pid"], signal.SIGKILL)
    until(lambda: "restart" in kinds(bundle))
    (bundle.root / "run" / "stop").touch()
    until(lambda: not procs.alive(keeper["pid"], keeper["started"]))
    assert kinds(bundle)[-3:] == ["restart", "stopped", "keeper_stop"]
    assert status(bundle, capsys)["state"] == "down"
    assert not bundle.up


def test_a_run_that_ended_unseen_is_finished_all_the_same(make: Make) -> None:
    """Its exit code is known to nobody: the launcher that started it is gone."""
    bundle = make(3, [])
    assert bundle.run("up", "--no-keep") == 0
    until(lambda: not any(procs.alive(s["pid"], s["started"]) for s in bundle.state()["servers"]))
    assert bundle.run("up", "--foreground") == 0
    assert "restart" not in kinds(bundle)


def test_up_says_why_a_run_never_made_a_step(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = make(8, [fault(1, "crash", 99)])
    assert bundle.run("up") == 1
    told = capsys.readouterr().err
    assert "trainer-0 ended before its first step: ended" in told
    assert "RuntimeError: the loss is not a number" in told
    assert "restart" not in kinds(bundle)


def test_a_keeper_that_was_killed_leaves_the_run_and_the_next_up_keeps_it(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = make(600, [], step_s=0.1)
    bundle.run("up")
    before = bundle.state()
    os.kill(before["keeper"]["pid"], signal.SIGKILL)
    until(lambda: not procs.alive(before["keeper"]["pid"], before["keeper"]["started"]))
    shown = status(bundle, capsys)
    assert (shown["state"], shown["supervision"]) == ("up", "unsupervised")
    assert bundle.run("up") == 0
    assert bundle.state()["servers"] == before["servers"]
    os.kill(before["servers"][0]["pid"], signal.SIGKILL)
    until(lambda: "restart" in kinds(bundle))


def test_down_while_the_keeper_rests_ends_everything(make: Make) -> None:
    limits = QUICK | {"backoff_s": 600.0, "backoff_most_s": 600.0}
    bundle = make(600, [fault(6, "crash")], limits, step_s=0.05)
    bundle.run("up")
    keeper = bundle.state()["keeper"]
    until(lambda: "died" in kinds(bundle))
    until(lambda: bundle.up and bundle.state()["servers"] == [])
    assert bundle.run("down") == 0
    assert not procs.alive(keeper["pid"], keeper["started"])
    assert not bundle.up


def test_down_with_a_checkpoint_is_not_answered_with_a_restart(make: Make) -> None:
    bundle = make(600, [], step_s=0.05)
    bundle.run("up")
    mark = bundle.state()["mark"]
    assert bundle.run("down", "--checkpoint") == 0
    assert "restart" not in kinds(bundle)
    assert with_variable(procs.MARK, mark) == []


SMI = """#!{python} -I
for device in range(int(open({count!r}).read())):
    print("Pretend GPU, 81559, 81000")
"""


def with_fallback(bundle: Bundle, tools: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two devices and a fallback for one, as a tool lists them; the file with their number."""
    count = tools / "count"
    count.write_text("2")
    tool = tools / "nvidia-smi"
    tool.write_text(SMI.format(python=sys.executable, count=str(count)))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")

    def needs(data: dict[str, Any], devices: int) -> None:
        data["needs"] |= {"runtime": "cuda", "names": ["Pretend GPU"], "count": devices}
        data["processes"][0]["devices"] = list(range(devices))
        words = [*data["processes"][0]["argv"][:5], f"devices={devices}"]
        data["processes"][0]["argv"] = words

    def first(data: dict[str, Any]) -> None:
        needs(data, 2)
        title = "fewer gpus: 1 x Pretend GPU, one device"
        data["fallbacks"] = [{"name": "1-fewer-gpus", "kind": "fewer-gpus", "title": title}]

    data = json.loads((bundle.root / "launch.json").read_text())
    needs(data, 1)
    folder = bundle.root / "fallbacks" / "1-fewer-gpus"
    folder.mkdir(parents=True)
    (folder / "launch.json").write_text(json.dumps(data))
    steps = json.loads((bundle.root / "expected.json").read_text())["run"]["steps"]
    expected = {"schema_version": 1, "run": {"steps": steps}, "training": TRAINING, "bands": {}}
    (folder / "expected.json").write_text(json.dumps(expected))
    bundle.edit(first)
    return count


def test_a_lost_device_is_done_without_until_it_is_back(
    make: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert FAKE_TRAINER.is_file()
    tools = tmp_path / "tools"
    tools.mkdir()
    bundle = make(100_000, [], step_s=0.05)
    count = with_fallback(bundle, tools, monkeypatch)
    assert bundle.run("up") == 0
    assert status(bundle, capsys)["choice"] == "first"
    count.write_text("1")
    os.kill(bundle.state()["servers"][0]["pid"], signal.SIGKILL)
    until(lambda: "restart" in kinds(bundle))
    assert kinds(bundle)[2:] == ["died", "device_lost", "fallback", "restart"]
    shown = status(bundle, capsys)
    assert (shown["choice"], shown["world_size"], shown["restarts"]) == ("1-fewer-gpus", 1, 1)
    lost = event(bundle, "device_lost")["reason"]
    assert lost == "1 x Pretend GPU; the recipe needs 2 x CPU"
    log = bundle.root / "run" / "trainer-0.log"
    until(lambda: "devices=1" in log.read_text())
    count.write_text("2")
    until(lambda: kinds(bundle).count("restart") == 2)
    assert kinds(bundle)[6:] == ["device_found", "first_choice", "restart"]
    until(lambda: "devices=2" in log.read_text())
    shown = status(bundle, capsys)
    assert (shown["choice"], shown["world_size"]) == ("first", 2)
    assert event(bundle, "restart")["step"] > 0


def test_strict_waits_for_a_lost_device_and_gives_up_at_last(
    make: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    bundle = make(100_000, [], step_s=0.05)
    count = with_fallback(bundle, tools, monkeypatch)
    assert bundle.run("up", "--strict") == 0
    count.write_text("1")
    os.kill(bundle.state()["servers"][0]["pid"], signal.SIGKILL)
    until(lambda: "keeper_stop" in kinds(bundle))
    assert "fallback" not in kinds(bundle)
    assert "gave_up" in kinds(bundle)
    assert status(bundle, capsys)["state"] == "down"
