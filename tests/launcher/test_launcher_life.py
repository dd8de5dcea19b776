"""Starts and stops in a fake world, and what commands refuse before they start anything."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace

import pytest

from recipe_core.launcher import procs, state, supervisor
from recipe_core.launcher.errors import LateError, LauncherError, StartError
from recipe_core.launcher.interrupts import interruptible
from recipe_core.launcher.plan import load_plan
from tests.fixtures.fake_world import Said, dies, serves, silent
from tests.fixtures.patience import PATIENCE, comes


def test_a_server_that_dies_shows_its_log(world, deployed):
    up = deployed()
    world.scripts["server-0"] = [dies(text="fatal: no weights on this shelf")]
    with pytest.raises(StartError) as caught:
        up.start()
    assert caught.value.message == "server-0 ended before it was ready."
    assert caught.value.detail == "fatal: no weights on this shelf"
    assert not up.recorded


@pytest.mark.parametrize("how", [silent(), serves(sick=True)], ids=["silent", "sick"])
def test_a_server_that_never_answers_is_stopped(world, deployed, how):
    up = deployed()
    world.scripts["server-0"] = [how]
    world.after(1, lambda: world["server-0"].writes("loading"))
    with pytest.raises(LateError) as caught:
        up.start()
    assert caught.value.message == "server-0 was not ready after 120 s."
    assert caught.value.detail == "loading"
    assert "waiting for server-0: 3 s of 120; loading" in up.said.lines
    assert up.said.lines[-1] == "stopped server-0"
    assert (world.living(), up.recorded) == ([], False)


def test_what_cannot_be_started_stops_the_others(world, deployed):
    up = deployed(2)
    world.missing.add("server-1")
    with pytest.raises(StartError) as caught:
        up.start()
    assert caught.value.hint == "Install it: pip install fake==1"
    assert (world["server-0"].code, up.recorded) == (-signal.SIGTERM, False)


@pytest.mark.usefixtures("writes_are_steps")
def test_a_signal_at_any_step_of_a_start_leaves_nothing(world, deployed):
    up = deployed(2)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs this may ignore it
    try:
        for nth in range(1, 30):
            world.steps, world.signalled_at = 0, nth
            try:
                with interruptible(world.clock):
                    up.start()
            except KeyboardInterrupt:
                assert (nth, world.living(), up.recorded) == (nth, [], False)
                world.clock.sleep(2)  # the next signal is another one
            else:
                break
    finally:
        signal.signal(signal.SIGHUP, before)
    assert nth > 7
    assert len(world.living()) == 2


# Whose processes they are


def test_a_recycled_pid_is_not_signalled(world, deployed):
    up = deployed()
    current = up.start()
    (server,) = current.servers
    for changes in (
        {"servers": (replace(server, started=server.started - 100),), "mark": "another"},
        {"boot": "another"},
    ):
        other = replace(current, logs=(), **changes)
        other = replace(other, servers=tuple(replace(s, log="/none") for s in other.servers))
        assert supervisor.stop(up.own, other, progress=Said(), world=world) == []
        assert world["server-0"].code is None


def test_workers_of_a_dead_parent_are_found(world, tmp_path):
    log = tmp_path / "server-0.log"
    marked = world.add("marked", [], {procs.MARK: "mark-1"}, tmp_path / "other.log")
    writer = world.add("writer", [], {}, log)
    other = world.add("other", [], {procs.MARK: "mark-2"}, tmp_path / "another.log")
    leader = [(2**22 + 1, 5)]
    here = world.processes
    assert here.family(leader, "mark-1") == {(marked.pid, marked.started)}
    assert here.left_behind(leader, "mark-1", logs=[str(log)]) == [marked.pid, writer.pid]
    ended, left = here.terminate(leader, "mark-1", grace_s=5, logs=[str(log)])
    assert (len(ended), left, other.code) == (2, set(), None)
    assert {marked.code, writer.code} == {-signal.SIGTERM}
    assert here.terminate(leader, "mark-1", grace_s=1) == (set(), set())


def test_a_group_that_was_given_away_again_is_left_alone(world, tmp_path):
    bystander = world.add("bystander", [], {}, tmp_path / "bystander.log")
    leaders = [(bystander.pid, 1)]  # another start tick: not the one we knew
    assert world.processes.family(leaders, "mark", logs=["server-0.log"]) == set()
    assert world.processes.left_behind(leaders, "mark", logs=["server-0.log"]) == []


def test_who_ignores_sigterm_is_killed_and_who_outlives_that_is_told(world, deployed):
    up = deployed()
    server, current = world, up.start()
    server = world["server-0"]
    server.stubborn = server.held = True
    with pytest.raises(LauncherError) as caught:
        supervisor.stop(up.own, current, progress=Said(), world=world)
    assert str(server.pid) in caught.value.message
    assert up.recorded
    server.held, began = False, world.clock.at
    assert supervisor.stop(up.own, current, progress=Said(), world=world) == ["server-0"]
    assert (server.code, up.recorded) == (-signal.SIGKILL, False)
    assert world.clock.at - began >= supervisor.GRACE_S


def test_strays_are_found_by_their_logs(world, deployed):
    up = deployed()
    up.start()
    state.remove(up.own)
    plan, said = load_plan(up.bundle.root), Said()
    assert len(supervisor.strays(plan, world=world)) == 1
    assert supervisor.stop_strays(plan, said, world=world) == [f"pid {world['server-0'].pid}"]
    assert (world.living(), supervisor.stop_strays(plan, said, world=world)) == ([], [])


def test_the_kernel_shows_who_writes_a_log_and_who_ignores_a_signal(tmp_path):
    """Real processes: a reader of the log, and a writer that shows no variable."""
    log = tmp_path / "server-0.log"
    log.write_text("line\n")
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print('x', flush=True); time.sleep(600)"
    )
    with log.open() as lines, log.open("ab") as output:
        reader = subprocess.Popen(["sleep", "600"], stdin=lines, start_new_session=True)
        here = procs.Processes()
        writer, started = here.start(
            [sys.executable, "-c", code], cwd=tmp_path, env={}, output=output
        )
    try:
        assert comes(lambda: b"x" in log.read_bytes())
        assert here.family([], "mark", logs=[str(log)]) == {(writer, started)}
        log.unlink()  # as a clean-up does
        assert here.family([], "mark", logs=[str(log)]) == {(writer, started)}
        ended, left = here.terminate([(writer, started)], "none", grace_s=0.2, logs=[str(log)])
        assert (ended, left) == ({(writer, started)}, set())
        assert (here.reap(writer), here.alive(writer, started)) == (-signal.SIGKILL, False)
        marked = {**os.environ, procs.MARK: "mark-1"}
        with (tmp_path / "other.log").open("wb") as output:
            worker = here.start(["sleep", "600"], cwd=tmp_path, env=marked, output=output)
        assert comes(lambda: here.marked(worker[0], "mark-1"))  # once its program is loaded
        assert here.terminate([(2**22 + 1, 5)], "mark-1", grace_s=PATIENCE)[0] == {worker}
        assert here.reap(worker[0]) == -signal.SIGTERM
    finally:
        reader.kill()
        reader.wait()


# Commands


def test_busy_port(bundle, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", bundle.port))
        taken.listen()
        assert bundle.run("up") == 1
    error = capsys.readouterr().err
    assert f"port {bundle.port} on 127.0.0.1 is in use" in error
    assert "--port" in error
    assert not bundle.up


def test_damaged_state_kills_nothing(bundle, capsys):
    (bundle.root / "run").mkdir()
    (bundle.root / "run" / "state.json").write_text('{"servers": [{"pid": 1}]}')
    assert bundle.run("down") == 1
    assert "damaged" in capsys.readouterr().err
    (bundle.root / "run" / "state.json").unlink()


def test_one_launcher_at_a_time(bundle, capsys):
    with state.exclusive(bundle.root / "run"):
        assert bundle.run("up") == 1
        assert "another launcher" in capsys.readouterr().err
        assert bundle.run("status") == 1
    assert bundle.run("down") == 0
