"""What outlives a killed server is seen and ended, also where it shows no mark of its start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from recipe_core.launcher import procs
from tests.fixtures.bundles import Bundle

PATIENCE = 60.0
"""Seconds until a state that must come counts as never coming; the machine may be busy."""


@pytest.fixture
def orphaned(make_bundle: Callable[..., Bundle]) -> Iterator[tuple[Bundle, int]]:
    """A bundle whose server was killed without a keeper, and its worker, which lives."""
    bundle = make_bundle("--worker")
    assert bundle.run("up", "--no-keep") == 0
    leader = bundle.state()["servers"][0]["pid"]
    (worker,) = members(leader) - {leader}
    kill(leader)
    yield bundle, worker
    if procs.read_stat(worker) is not None:
        os.kill(worker, signal.SIGKILL)


def members(group: int) -> set[int]:
    """Living processes of a group."""
    pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
    stats = (procs.read_stat(pid) for pid in pids)
    return {s.pid for s in stats if s is not None and s.group == group and s.state not in "ZX"}


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    until(lambda: pid not in members(pid))


def until(reached: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < end
        procs_collected()
        time.sleep(0.02)


def procs_collected() -> None:
    """Ended children of this test count as ended for the kernel only once they are collected."""
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and (stat := procs.read_stat(int(path.name))) and stat.state == "Z":
            procs.reap(stat.pid)


def test_status_tells_what_outlives_its_server(
    orphaned: tuple[Bundle, int], capsys: pytest.CaptureFixture[str]
) -> None:
    bundle, worker = orphaned
    capsys.readouterr()
    assert bundle.run("status") == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["state"] == "degraded"
    assert [left["pid"] for left in answer["left_behind"]] == [worker]
    assert "time.sleep" in answer["left_behind"][0]["name"]


def test_down_ends_and_names_what_outlives_its_server(
    orphaned: tuple[Bundle, int], capsys: pytest.CaptureFixture[str]
) -> None:
    bundle, worker = orphaned
    capsys.readouterr()
    assert bundle.run("--json", "down") == 0
    assert json.loads(capsys.readouterr().out)["stopped"] == [f"pid {worker}"]
    until(lambda: procs.read_stat(worker) is None)
    assert bundle.run("status") == 1
    assert "left_behind" not in json.loads(capsys.readouterr().out)


def test_without_a_state_the_logs_still_tell(
    orphaned: tuple[Bundle, int], capsys: pytest.CaptureFixture[str]
) -> None:
    bundle, worker = orphaned
    (bundle.root / "run" / "state.json").unlink()
    capsys.readouterr()
    assert bundle.run("status") == 1
    assert [o["pid"] for o in json.loads(capsys.readouterr().out)["left_behind"]] == [worker]
    assert bundle.run("down") == 0
    until(lambda: procs.read_stat(worker) is None)
    assert f"pid {worker}" in capsys.readouterr().out


def test_up_ends_what_an_earlier_start_left(orphaned: tuple[Bundle, int]) -> None:
    bundle, worker = orphaned
    assert bundle.run("up", "--no-keep") == 0
    until(lambda: procs.read_stat(worker) is None)
    assert bundle.run("down") == 0


def test_the_keeper_ends_the_workers_of_a_killed_server(
    make_bundle: Callable[..., Bundle],
) -> None:
    bundle = make_bundle("--worker")
    try:
        assert bundle.run("up") == 0
        leader = bundle.state()["servers"][0]["pid"]
        (worker,) = members(leader) - {leader}
        os.kill(leader, signal.SIGKILL)
        until(lambda: procs.read_stat(worker) is None)
    finally:
        assert bundle.run("down") == 0


def test_a_foreign_group_is_left_alone(tmp_path: Path) -> None:
    """A number that the kernel gave away again belongs to somebody else."""
    bystander = subprocess.Popen(["sleep", "600"], start_new_session=True)
    writer_log = tmp_path / "server-0.log"
    try:
        leaders = [(bystander.pid, 1)]  # another start tick: not the one we knew
        assert procs.family(leaders, "mark", logs=[str(writer_log)]) == set()
        assert procs.left_behind(leaders, "mark", logs=[str(writer_log)]) == []
    finally:
        bystander.kill()
        bystander.wait()


def test_who_reads_a_log_is_not_of_the_start(tmp_path: Path) -> None:
    log = tmp_path / "server-0.log"
    log.write_text("line\n")
    with log.open() as lines:
        reader = subprocess.Popen(["sleep", "600"], stdin=lines, start_new_session=True)
    with log.open("ab") as output:
        code = "import time; print('x', flush=True); time.sleep(600)"
        writer = subprocess.Popen(
            [sys.executable, "-c", code], stdout=output, env={}, start_new_session=True
        )
    try:
        until(lambda: b"x" in log.read_bytes())
        pids = {pid for pid, _ in procs.family([], "mark", logs=[str(log)])}
        assert pids == {writer.pid}
        log.unlink()  # as a clean-up does
        assert {pid for pid, _ in procs.family([], "mark", logs=[str(log)])} == {writer.pid}
    finally:
        for process in (reader, writer):
            process.kill()
            process.wait()
