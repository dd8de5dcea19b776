"""Starts, stops and restarts in a fake world, and what commands refuse before that."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest

from recipe_core.payload.launcher import (
    commands,
    keeper_process,
    procs,
    rolling,
    state,
    supervisor,
)
from recipe_core.payload.launcher.errors import InputError, LateError, LauncherError, StartError
from recipe_core.payload.launcher.logs import open_log
from recipe_core.payload.launcher.request import Request
from recipe_core.payload.launcher.signals import interruptible, uninterrupted
from tests.fixtures.fake_world import FakeClock, Said, dies, serves, silent
from tests.fixtures.patience import comes
from tests.fixtures.refusals import refusal

HUP, TERM = signal.SIGHUP, signal.SIGTERM


def test_a_server_that_dies_shows_its_log(world, deployed):
    up = deployed()
    world.scripts["server-0"] = [dies(text="fatal: no weights on this shelf")]
    error = refusal(up.start, kind=StartError)
    assert error.message == "server-0 ended before it was ready."
    assert error.detail == "fatal: no weights on this shelf"
    assert not up.recorded
    up = deployed(2)  # what cannot be started stops the others
    world.missing.add("server-1")
    world.scripts["server-0"] = [serves()]
    assert refusal(up.start, kind=StartError).hint == "Install it: pip install fake==1"
    assert (world["server-0"].code, up.recorded) == (-TERM, False)


@pytest.mark.parametrize("how", [silent(), serves(sick=True)], ids=["silent", "sick"])
def test_a_server_that_never_answers_is_stopped(world, deployed, how):
    up = deployed()
    world.scripts["server-0"] = [how]
    world.after(1, lambda: world["server-0"].writes("loading"))
    error = refusal(up.start, kind=LateError)
    assert error.message == "server-0 was not ready after 120 s."
    assert error.detail == "loading"
    assert "waiting for server-0: 3 s of 120; loading" in up.said.lines
    assert up.said.lines[-1] == "stopped server-0"
    assert (world.living(), up.recorded) == ([], False)


@pytest.fixture
def hangup_ends():
    """Whoever runs the tests may ignore it, as nohup does."""
    before = signal.signal(HUP, signal.SIG_DFL)
    yield
    signal.signal(HUP, before)


@pytest.mark.usefixtures("hangup_ends", "writes_are_steps")
def test_a_signal_at_any_step_of_a_start_leaves_nothing(world, deployed):
    up = deployed(2)
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
    assert nth > 7
    assert len(world.living()) == 2


@pytest.mark.usefixtures("hangup_ends")
def test_a_second_signal_at_once_is_the_same_end_and_some_parts_are_finished():
    clock, ends, done = FakeClock(), [], []
    with interruptible(clock):
        for passed in (2, 0.5, 2):
            clock.at += passed
            try:
                os.kill(os.getpid(), HUP)
            except KeyboardInterrupt:
                ends.append(passed)
    assert ends == [2, 2]

    def stop_in_the_middle():
        with interruptible():
            with uninterrupted():
                os.kill(os.getpid(), TERM)
                done.append("stopped")
            done.append("never")

    with pytest.raises(KeyboardInterrupt):
        stop_in_the_middle()
    assert done == ["stopped"]


def test_a_recycled_pid_is_not_signalled(world, deployed):
    up = deployed()
    current = up.start()
    (server,) = current.servers
    for changes in (
        {"servers": (replace(server, started=server.started - 100),), "mark": "another"},
        {"boot": "another"},
    ):
        other = replace(current, logs=(), **changes)
        gone = {"log": "/none", "output": None}
        other = replace(other, servers=tuple(replace(s, **gone) for s in other.servers))
        assert supervisor.stop(up.own, other, progress=Said(), world=world) == []
        assert world["server-0"].code is None


def test_workers_of_a_dead_parent_are_found(world, tmp_path):
    log = tmp_path / "server-0.log"
    log.touch()
    outputs = procs.places_of([log])
    marked = world.add("marked", [], {procs.MARK: "mark-1"}, tmp_path / "other.log")
    writer = world.add("writer", [], {}, log)
    other = world.add("other", [], {procs.MARK: "mark-2"}, tmp_path / "another.log")
    leader = [(2**22 + 1, 5)]
    here = world.processes
    assert here.family(leader, "mark-1") == {(marked.pid, marked.started)}
    assert here.left_behind(leader, "mark-1", outputs=outputs) == [marked.pid, writer.pid]
    ended, left = here.terminate(leader, "mark-1", grace_s=5, outputs=outputs)
    assert (len(ended), left, other.code) == (2, set(), None)
    assert {marked.code, writer.code} == {-TERM}
    assert here.terminate(leader, "mark-1", grace_s=1) == (set(), set())
    # A group that was given away again has another start tick, and is left alone.
    leaders = [(other.pid, 1)]
    assert here.family(leaders, "mark", outputs=outputs) == set()
    assert here.left_behind(leaders, "mark", outputs=outputs) == []


def test_who_ignores_sigterm_is_killed_and_who_outlives_that_is_told(world, deployed):
    up = deployed()
    up.start()
    server = world["server-0"]
    server.stubborn = server.held = True
    assert str(server.pid) in refusal(up.stop, kind=LauncherError).message
    assert up.recorded
    server.held, began = False, world.clock.at
    assert up.stop() == ["server-0"]
    assert (server.code, up.recorded) == (-signal.SIGKILL, False)
    assert world.clock.at - began >= supervisor.GRACE_S


def test_strays_are_found_by_their_logs(world, deployed):
    up, said = deployed(), Said()
    up.start()
    state.forget_state(up.own)
    assert len(supervisor.strays(up.plan, world=world)) == 1
    assert supervisor.stop_strays(up.plan, said, world=world) == [f"pid {world['server-0'].pid}"]
    assert (world.living(), supervisor.stop_strays(up.plan, said, world=world)) == ([], [])


def test_the_kernel_shows_who_writes_a_log_and_who_ignores_a_signal(tmp_path):
    """Real processes: a writer that shows no variable, and others that share its log or a name."""
    log, link, second = (tmp_path / name for name in ("server-0.log", "central.log", "second"))
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print('x', flush=True); time.sleep(600)"
    )
    here = procs.Processes()
    with open_log(log) as output:
        place = procs.plain_file_place(log)
        words = [sys.executable, "-c", code]
        writer, started = here.start(words, cwd=tmp_path, env={}, output=output)
    link.symlink_to(os.devnull)
    with log.open() as reads, log.open("ab") as appends, link.open("ab") as nowhere:
        shared = ({"stdin": reads}, {"stdout": appends, "stderr": appends}, {"stdout": nowhere})
        sleep = partial(subprocess.Popen, ["sleep", "600"], start_new_session=True)
        others = [sleep(**files) for files in shared]
    try:
        assert comes(lambda: b"x" in log.read_bytes())
        ours = {(writer, started)}
        assert here.family([], "mark", outputs=procs.places_of([log, link, tmp_path])) == ours
        second.hardlink_to(log)  # as some backups do: it may be somebody else's
        assert procs.places_of([log, second]) == frozenset()
        assert here.family([], "mark", outputs=[place]) == set()
        second.unlink()
        log.unlink()  # as a clean-up does
        assert here.family([], "mark", outputs=[place]) == ours
        assert here.terminate([], "none", grace_s=0.2, outputs=[place]) == (ours, set())
        assert (here.reap(writer), here.alive(writer, started)) == (-signal.SIGKILL, False)
        assert [other.poll() for other in others] == [None] * 3
    finally:
        for other in others:
            other.kill()
            other.wait()


def test_a_copy_of_a_running_bundle_controls_nothing(bundle, tmp_path, capsys):
    bundle.run("up")
    (before,) = state.load_state(bundle.root / "run").servers
    copy = replace(bundle, root=tmp_path / "copy")
    shutil.copytree(bundle.root, copy.root)
    capsys.readouterr()
    assert copy.run("status") == 1
    seen = json.loads(capsys.readouterr().out)
    assert (seen["state"], seen["copy_of"]) == ("down", str(bundle.root / "run"))
    assert copy.run("down") == 0
    assert f"this is a copy of {bundle.root / 'run'}" in capsys.readouterr().err
    assert copy.run("up") == 1  # its port is the original's
    assert state.load_state(bundle.root / "run").servers == (before,)
    assert before.alive
    assert bundle.run("--json", "up", "--port", str(bundle.port + 1), "--hang", "5") == 0
    (port, hang) = json.loads(capsys.readouterr().out)["not_applied"]
    assert f"--port {bundle.port + 1} (it runs with {bundle.port})" in port
    assert "--hang (it is set at a start)" in hang
    moved = replace(bundle, root=tmp_path / "moved")
    bundle.root.rename(moved.root)
    (there,) = state.load_state(moved.root / "run").servers
    assert (there.pid, there.log) == (before.pid, str(moved.root / "run" / "server-0.log"))
    (moved.root / "launch.json").write_text("{")  # what is recorded is enough to stop it
    assert (moved.run("down"), before.alive) == (0, False)
    assert moved.run("down") == 2  # nothing is recorded any more


def test_damaged_state_kills_nothing_and_one_launcher_is_at_work_at_a_time(bundle):
    own = bundle.root / "run"
    own.mkdir()
    (own / "state.json").write_text('{"servers": [{"pid": 1}]}')
    assert "damaged" in bundle.says(1, "down")
    (own / "state.json").unlink()
    with state.exclusive(own):
        assert "another launcher" in bundle.says(1, "up")
        assert bundle.run("status") == 1
    assert bundle.run("down") == 0


@pytest.fixture
def routed(world, deployed):
    """Two replicas behind a router, whose interface for its workers may be ``blind``."""

    def make(*, blind=False):
        workers = None if blind else [f"http://127.0.0.1:{20_001 + n}" for n in (0, 1)]
        world.scripts["router"] = [serves(workers=workers)]
        return deployed(2, routed=True).up()

    return make


def restart(up, *names):
    request = Request(up.bundle.root, "restart", names=list(names), metrics_port=0)
    return commands.run_restart(request, world=up.world)


def told(up):
    return [f"{event['event']} {event['name']}" for event in up.events if "name" in event]


ROLLED = ["drain", "drained", "restart", "start", "ready"]


def test_replicas_are_restarted_one_after_the_other(world, routed, capsys):
    up, seen = routed(), []
    before, busy = world.pids(), world["server-0"]
    busy.running = 1
    world.after(20, lambda: setattr(busy, "running", 0))
    world.after(10, lambda: seen.append(list(world["router"].workers)))
    assert restart(up) == 0
    assert "restarted server-0, server-1" in capsys.readouterr().out
    assert told(up) == [f"{kind} server-{n}" for n in (0, 1) for kind in ROLLED]
    assert [event["finished"] for event in up.happened("drained")] == [True, True]
    assert world.changed(before) == {"server-0", "server-1"}
    workers = [f"http://127.0.0.1:{port}" for port in (20001, 20002)]
    assert seen == [workers[1:]]  # nothing new for the one that drains
    assert sorted(world["router"].workers) == workers


def test_one_replica_by_name(world, routed):
    up = routed()
    before = world.pids()
    assert restart(up, "server-1") == 0
    assert world.changed(before) == {"server-1"}
    error = refusal(restart, up, "server-7", kind=InputError)
    assert (error.field, "'server-7'" in error.message) == ("NAME", True)
    before = world.pids()
    up.adopt().outlives("router")  # it alone is restarted when it dies
    assert world.changed(before) == {"router"}


def test_a_keeper_restarts_what_it_is_asked_for(world, routed):
    up = routed()
    world["server-1"].running = 1  # a request that does not end is waited for up to a limit
    keeper_process.ask_keeper(
        up.own,
        keeper_process.this_keeper(up.limits),
        keeper_process.READ,
        world=world,
        restart=["server-1"],
    )
    up.keeper.asked.append(keeper_process.READ)
    up.rounds(1)
    up.until(lambda: not up.keeper.rolling.groups)
    assert told(up) == [f"{kind} server-1" for kind in ROLLED]
    assert up.happened("restart")[0]["cause"] == "requested"
    assert up.happened("drain")[0]["limit_s"] == 30
    assert up.happened("drained")[0]["finished"] is False


def test_a_single_replica_says_that_it_interrupts(world, deployed, capsys):
    up = deployed()
    assert "nothing is running" in refusal(restart, up, kind=LauncherError).message
    before = up.up().world.pids()
    assert restart(up) == 0
    assert "restarting it interrupts the service" in capsys.readouterr().err
    assert world.changed(before) == {"server-0"}


def test_a_replica_that_does_not_come_back_ends_it(world, routed):
    up = routed()
    world.scripts["server-0"] = [dies(), serves()]
    refusal(restart, up, kind=StartError)
    last = up.happened("restart")[-1]
    assert (last["finished"], last["cause"]) == (False, "requested")
    assert "drain server-1" not in told(up)
    assert up.state.ready  # later it did, and the other was left alone


def test_a_parked_replica_is_started_on_request(world, deployed):
    world.scripts["server-1"] = [dies(5), dies(5), dies(5), serves()]
    up = deployed(2, crash_budget=0, window_s=3000).up()
    up.until(lambda: up.state.parked)
    up.keeper.rolling.ask(["server-1"])
    world.scripts["server-1"] = [serves()]
    up.until(lambda: up.state.ready and not up.keeper.rolling.groups)
    assert up.happened("restart")[-1]["cause"] == "requested"
    assert up.state.parked == ()  # else `status` says degraded, and `up` drains it again


def test_a_router_without_an_interface_gets_time_to_find_a_replica(world, routed):
    up, times = routed(blind=True), []
    assert rolling.withdraw(up.plan, 0, world=world) == ()
    world.when(lambda: up.happened("ready"), lambda: times.append(world.clock.at))
    world.when(lambda: len(up.happened("drain")) == 2, lambda: times.append(world.clock.at))
    restart(up)
    first, following = times
    assert 10 <= following - first < 15


def test_a_worker_is_taken_out_and_put_back(world, routed):
    plan = routed().plan
    taken = rolling.withdraw(plan, 0, world=world)
    assert [worker.path for worker in taken] == ["/workers"]
    assert rolling.withdraw(plan, 0, world=world) == ()  # it is out
    assert not rolling.admit(plan, taken, world=world)  # it was put back just now
    assert rolling.admit(plan, taken, world=world)
    assert rolling.withdraw(plan, 0, world=world) == taken
