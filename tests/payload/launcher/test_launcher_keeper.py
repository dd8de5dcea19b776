"""A keeper in a fake world: what fails is restarted, left for a fallback, or explained."""

import os
import shutil
import signal
import socket
from dataclasses import replace

import pytest

from recipe_core.payload.launcher import events, heartbeat, keeper_process, state
from recipe_core.payload.launcher.errors import BusyError, LateError, LauncherError, StartError
from recipe_core.payload.launcher.keeper import Log
from recipe_core.payload.launcher.limits import Supervision
from recipe_core.payload.launcher.request import Request
from recipe_core.payload.launcher.servers import Servers
from tests.fixtures.fake_world import FakeClock, Killed, dies, serves, silent
from tests.fixtures.ports import free_port
from tests.fixtures.refusals import refusal


def met(up, **words):
    """The bundle as a command with these options meets it."""
    return Servers(Request(up.bundle.root, "up", **words), up.plan, up.said, up.world)


def gives_up(up):
    """Why the keeper ends."""
    return refusal(up.keeper.run, kind=StartError)


def test_a_server_that_is_killed_is_restarted(world, deployed):
    up = deployed().up()
    before = world["server-0"]
    before.ends(-9, "fatal: the oven exploded")
    up.settled(1)
    assert (up.state.choice, up.keeper.serves()) == ("first", True)
    assert world.pids() != {"server-0": before.pid}
    assert up.kinds == ["died", "restart", "start", "ready"]
    assert up.happened("restart")[0]["attempt"] == 1
    assert "fatal: the oven exploded" in (up.own / "server-0.log.1").read_text()
    up.outlives("server-0")  # the first was another process's child, this one is the keeper's
    reasons = [event["reason"] for event in up.happened("died")]
    assert reasons == ["server-0 ended", "server-0 was ended by signal 9"]


def test_what_hangs_is_ended_and_restarted(world, deployed):
    up = deployed(hang_s=10, crash_budget=9).up()
    server = world["server-0"]
    up.outlives("server-0", signal.SIGSTOP)
    (event,) = up.happened("hung")
    assert (event["cause"], server.code) == ("hang", -signal.SIGTERM)
    assert 10 <= float(event["reason"].removeprefix("no answer for ").removesuffix(" s")) < 20
    world["server-0"].sick = True  # 503 is no answer
    up.settled(2)
    assert len(up.happened("hung")) == 2
    server = world["server-0"]
    server.sick = server.stubborn = server.held = True  # by a driver
    up.until(lambda: "do not end" in up.said.text)
    assert world.living() == [server]
    server.held = False
    up.settled(3)
    assert server.code == -signal.SIGKILL
    world.scripts["server-0"] = [silent(), serves()]
    world.kill("server-0")
    up.settled(5)  # a start that never answers is late
    assert up.kinds[-7:-2] == ["died", "restart", "start", "hung", "restart"]
    assert up.happened("hung")[-1]["reason"] == "not ready after 120 s"


def test_requests_without_new_tokens_are_a_hang(world, deployed):
    up = deployed().up()
    server = world["server-0"]
    server.figures, server.running = True, 1
    up.rounds(100)
    assert not up.kinds
    server.count()
    server.tpot_s = float("inf")
    up.settled(1)
    (event,) = up.happened("hung")
    assert event["reason"].startswith("1 request, no new token for ")


@pytest.mark.parametrize("figures", [True, False])
def test_an_idle_server_that_generates_nothing_is_a_hang(world, deployed, figures):
    """Its health is well; a request that it lets wait is seen in time, and never a busy server."""
    up = deployed(hang_s=20).up()
    server = world["server-0"]
    server.figures = figures
    up.rounds(100)
    assert (up.kinds, server.asked) == ([], 12)
    server.running, before = 1, server.asked
    up.rounds(100)
    assert (up.kinds, server.asked) == ([], before)
    server.running, server.hangs, began = 0, True, world.clock.at
    up.until(lambda: "hung" in up.kinds)
    assert world.clock.at - began <= 20
    assert up.happened("hung")[0]["reason"].startswith("idle, and no token for ")
    up.settled(1)


def test_a_server_may_load_at_its_first_request_or_refuse_it(world, deployed):
    up = deployed(hang_s=20).up()
    world["server-0"].hangs = True  # without figures, and it has not generated yet
    up.rounds(100)
    assert not up.kinds
    up.until(lambda: "hung" in up.kinds)
    up.settled(1)
    world["server-0"].answer = 401
    up.rounds(200)
    assert world["server-0"].asked == 1
    assert "server-0 is not asked for tokens when idle: HTTP 401" in up.said.text
    world["server-0"].ends()
    up.settled(2)
    world["server-0"].answer = 500  # nothing runs, and still it fails
    up.settled(3)


def test_a_slow_server_is_restarted_once(world, deployed):
    world.scripts["server-0"] = [serves(figures=True, running=1, tpot_s=0.02)]  # the band ends at 4
    up = deployed().up()
    up.until(lambda: len(up.happened("slow")) == 2)
    up.rounds(400)
    assert len(up.happened("slow")) == 2
    assert [e["cause"] for e in up.happened("restart")] == ["slow"]
    assert up.keeper.serves()  # no choice is left: slow is better than stopped
    assert "no other choice fits: slow is better than stopped" in up.said.lines


def test_kills_for_want_of_memory_and_taken_ports_are_named(world, deployed):
    up = deployed().up()
    up.rounds(1)
    world.oom["machine"] = 1
    up.outlives("server-0")
    assert [event["cause"] for event in up.happened("killed")] == ["host-memory-killed"]
    taken = "OSError: [Errno 98] error while attempting to bind: address already in use"
    world.scripts["server-0"] = [dies(text=taken), serves()]
    world.kill("server-0")
    up.settled(3)
    assert up.happened("died")[-1]["cause"] == "port"


def test_restarts_rest_longer_each_time_and_by_chance(world, deployed):
    up = deployed(crash_budget=9, backoff_s=2, backoff_most_s=16).up()
    for _ in range(6):
        up.outlives("server-0")
    rests = [event["in_s"] for event in up.happened("restart")]
    for rest, most in zip(rests, (2, 4, 8, 16, 16, 16), strict=True):
        assert most / 2 <= rest <= most
    assert len(set(rests)) == 6
    up.until(lambda: up.keeper.tracks[0].attempt == 0)  # it served for long enough
    up.outlives("server-0")
    assert up.happened("restart")[-1]["in_s"] <= 2


def test_a_budget_that_is_spent_takes_the_first_fallback_that_fits(world, deployed):
    up = deployed()
    up.bundle.add_fallback("1-other-device", lambda data: data["needs"].update(runtime="cuda"))
    up.bundle.add_fallback("2-lower-context", lambda data: None)
    world.scripts["server-0"] = [*[dies(5)] * 4, serves()]
    up.up().until(lambda: up.state.choice == "2-lower-context" and up.state.ready)
    (event,) = up.happened("fallback")
    assert (event["from"], event["to"]) == ("first", "2-lower-context")
    assert len(up.happened("restart")) == 3
    assert up.keeper.tried == {"first"}
    up.until(lambda: not up.keeper.tried)  # stable service forgives
    assert up.kinds[-3:] == ["fallback", "start", "ready"]


@pytest.mark.parametrize("strict", [False, True])
def test_without_a_fallback_it_stops_with_a_diagnosis(world, deployed, strict):
    up = deployed(crash_budget=1)
    if strict:
        up.bundle.add_fallback("1-lower-context", lambda data: None)
    world.scripts["server-0"] = [dies(5)]
    assert "the oven went out" in str(gives_up(up.up(strict=strict)).detail)
    (event,) = up.happened("gave_up")
    assert any("the oven went out" in line for line in event["lines"])
    assert event["fix"]
    assert (world.living(), up.recorded) == ([], False)
    assert keeper_process.describe_supervision(up.plan, None)["last_failure"]["event"] == "gave_up"
    assert up.kinds[-3:] == ["died", "gave_up", "keeper_stop"]
    assert up.happened("keeper_stop")[0]["reason"] == "failed"


def test_a_cause_that_lasts_is_not_tried_again(world, deployed):
    flag = "api_server.py: error: unrecognized arguments: --no-such-flag"
    world.scripts["server-0"] = [serves(), dies(text=flag)]
    up = deployed().up()
    world.kill("server-0")
    gives_up(up)
    (event,) = up.happened("gave_up")
    assert any("unrecognized arguments" in line for line in event["lines"])
    assert len(up.happened("start")) == 1
    world.scripts["server-0"] = [serves()]
    up.up()  # a program that is gone is named
    world.missing.add("server-0")
    world.kill("server-0")
    gives_up(up)
    assert up.happened("died")[-1]["cause"] == "program"
    assert up.happened("gave_up")[-1]["fix"] == "Install it: pip install fake==1"


def test_only_the_group_that_failed_is_restarted_with_its_workers(world, deployed):
    up = deployed(2).up()
    before, worker = world.pids(), world["server-1"].forks()
    world.processes.known[before["server-1"]].ends(-9)
    assert up.state.left_behind(world.processes) == [worker.pid]
    up.settled(1)
    assert worker.code == -signal.SIGTERM  # which outlived its server
    assert world.changed(before) == {"server-1"}
    assert {s.name: s.pid for s in up.state.servers} == world.pids()
    assert up.happened("died")[0]["name"] == "server-1"


def test_a_group_that_cannot_be_kept_leaves_the_others(world, deployed):
    world.scripts["server-1"] = [*[dies(5)] * 4, serves()]
    up = deployed(2, crash_budget=1).up()
    before = world.pids()["server-0"]
    (event,) = up.until(lambda: up.happened("gave_up"))
    assert (event["name"], up.state.parked) == ("server-1", (1,))
    assert world.pids() == {"server-0": before}
    assert up.keeper.teller.snapshot().up
    # `up` waits for nothing that is parked, and asks for it once more.
    state.save_state(up.own, replace(up.state, keeper=keeper_process.this_keeper(Supervision())))
    assert met(up, timeout=1).wait_kept().parked == (1,)
    up.until(lambda: not up.state.parked and up.state.ready)  # its failures are old by then
    assert world.pids()["server-0"] == before


@pytest.mark.parametrize(
    ("number", "reason", "runs"),
    [
        (keeper_process.LEAVE, "dismissed", True),
        (keeper_process.DRAIN, "drained", False),
        (signal.SIGINT, "stopped", False),
        (None, "another launcher stopped the servers", False),
    ],
)
def test_a_signal_or_another_launcher_ends_it(world, deployed, number, reason, runs):
    up = deployed().up()
    before = world.pids()
    with heartbeat.only_keeper(up.plan, Supervision(), world.clock):
        assert "another keeper" in refusal(up.keeper.run, kind=LauncherError).message
    assert not up.kinds
    world.after(20, lambda: up.keeper.asked.append(number) if number else up.stop())
    assert up.keeper.run() == 0
    assert up.happened("keeper_stop")[0]["reason"] == reason
    assert (world.pids(), up.recorded) == (before if runs else {}, runs)


def test_a_keeper_follows_its_folder(world, deployed, tmp_path):
    up = deployed().up()
    before = world.pids()

    lock = up.own / heartbeat.NAME

    def clean():
        lock.unlink()
        os.mkfifo(lock)  # no reason to leave its servers alone
        world.after(9, removed)

    def removed():
        assert up.kinds == ["keeper_start"]
        shutil.rmtree(up.own)  # by who wants the room of old logs
        world.after(9, lambda: up.bundle.root.rename(tmp_path / "moved"))

    world.after(9, clean)
    assert up.keeper.run() == 0
    assert "was removed: made it anew" in up.said.text
    moved = tmp_path / "moved" / "run"
    assert events.read_events(moved)[-1]["reason"] == "the bundle was moved"
    assert (state.load_state(moved).ready, world.pids()) == (True, before)
    assert not up.bundle.root.exists()  # nothing is written where the bundle was
    up.own, up.bundle = moved, replace(up.bundle, root=moved.parent)
    world.after(9, lambda: shutil.rmtree(moved.parent))
    assert up.adopt().keeper.run() == 0
    assert (world.pids(), moved.parent.exists()) == ({}, False)


def test_a_keeper_that_gives_no_sign_of_life_counts_as_dead(world, deployed):
    up = deployed().up()
    lock = up.own / heartbeat.NAME
    lock.touch()
    limit = heartbeat.silence_s(up.limits)

    def kept():
        seen = keeper_process.describe_supervision(up.plan, up.state, world=world)
        assert seen["keeper"]["silent"] is (seen["supervision"] == "unsupervised")
        return not seen["keeper"]["silent"]

    def touched(ago_s):
        at = world.clock.now().timestamp() - ago_s
        os.utime(lock, (at, at))

    keeper = kept_by(world, up, SIGUSR1=lambda: None)
    assert limit == 63
    for ago_s, lives in ((0, True), (limit - 5, True), (limit + 5, False), (-limit - 5, False)):
        touched(ago_s)
        assert kept() is lives, ago_s
    world.after(1, lambda: touched(0))  # the machine slept, or its clock was set
    assert kept()
    touched(limit + 5)
    met(up).dismiss_silent()
    assert (keeper.code, len(world.pids())) == (-signal.SIGKILL, 1)
    assert "gives no sign of life" in up.said.text
    stopped = kept_by(world, up, SIGUSR1=lambda: None)
    touched(0)
    assert kept()
    stopped.paused = True
    assert not kept()


def test_a_keeper_gives_signs_of_life_while_it_waits(world, deployed):
    up = deployed(poll_s=7).up()
    lock, times = up.own / heartbeat.NAME, []
    with heartbeat.only_keeper(up.plan, up.limits, world.clock):
        os.utime(lock, (0, 0))
        world.clock.watched = lambda: times.append(lock.stat().st_mtime > 0)
        for seconds in (1, 6, 1):
            world.clock.sleep(seconds)
    assert times == [False, False, True]


def test_a_keeper_is_noted_before_it_looks(world, deployed):
    up = deployed().up(metrics_port=free_port())
    world.after(5, lambda: up.keeper.asked.append(keeper_process.LEAVE))
    with state.exclusive(up.own):
        refusal(up.keeper.run, kind=BusyError)  # it waits for a minute
    assert up.state.keeper is None
    up.adopt()
    world.after(5, lambda: up.keeper.asked.append(keeper_process.LEAVE))
    up.keeper.run()
    assert up.state.keeper == keeper_process.this_keeper(up.keeper.limits)


def test_a_command_at_work_and_a_full_disk_are_outlived(world, deployed, monkeypatch):
    def full(_path, _data):
        raise LauncherError("state.json: No space left on device.")

    up = deployed().up()
    world.kill("server-0")
    with state.exclusive(up.own):
        up.rounds(30)
    assert not up.kinds
    up.settled(1)
    world.kill("server-0")
    with monkeypatch.context() as patched:
        patched.setattr(state, "write_json", full)
        up.rounds(60)
    assert 1 <= up.said.text.count("No space left on device") < 10  # with each try, not each look
    up.until(lambda: up.keeper.serves() and up.state.ready)
    assert len(world.living()) == 1


@pytest.mark.usefixtures("writes_are_steps")
@pytest.mark.parametrize("story", ["restart", "fallback", "park", "roll"])
def test_a_launcher_may_be_killed_at_any_step(world, deployed, story):
    """Whatever was done: the next keeper brings all back, nothing twice, and `down` ends all."""
    replicas, budget = 2 if story in ("park", "roll") else 1, 2 if story == "restart" else 0
    up = deployed(replicas, routed=story == "roll", crash_budget=budget)
    if story == "fallback":
        up.bundle.add_fallback("1-lower-context", lambda data: None)
    ends = {
        "restart": lambda: up.state.restarts == 2,
        "fallback": lambda: up.state.choice == "1-lower-context",
        "park": lambda: up.state.parked,
        "roll": lambda: not up.keeper.rolling.groups,
    }

    def settled():
        return up.state.ready or up.state.parked

    usual, nth, kept, whole = up.limits, 0, False, False
    while not whole:
        nth += 1
        again = [dies(0.3), serves(0.2)] if story == "restart" else [serves(0.2)]
        world.scripts = {"server-0": [serves(0.2), *again], "router": [serves(0.2, workers=[])]}
        world.steps, world.dies_at = 0, nth
        try:
            kept, up.limits = False, usual
            up.start()
            kept, before = True, world.steps
            up.adopt()
            world.steps, world.dies_at = before, nth
            up.keeper.rolling.ask([]) if story == "roll" else world.kill("server-0")
            up.until(lambda: ends[story]() and settled())
            whole = True
        except Killed:
            pass
        world.next_launcher()
        if kept and not whole:
            up.limits = replace(usual, crash_budget=9)
            up.adopt().rounds(2)
            up.until(lambda: up.keeper.serves() and settled())
            parked = {f"server-{group}" for group in up.state.parked}
            names = {process.name for process in up.keeper.plan.processes} - parked
            assert (nth, sorted(p.name for p in world.living())) == (nth, sorted(names))
        if up.recorded:  # else it was killed before it began
            up.stop()
        assert (nth, world.living(), up.recorded) == (nth, [], False)
        world.processes.known.clear()
        world.clock.plans.clear()
    assert nth >= 10


def kept_by(world, up, **heeds):
    """A process that is recorded as the keeper."""
    process = world.add("keeper", [], {}, up.own / "keeper.log")
    process.heeds = {getattr(signal, name): action for name, action in heeds.items()}
    keeper = replace(
        keeper_process.this_keeper(up.limits), pid=process.pid, started=process.started
    )
    state.save_state(up.own, replace(up.state, keeper=keeper))
    return process


def test_a_keeper_is_dismissed_or_ended(world, deployed):
    up = deployed().up()

    def dismissed():
        """After how many seconds."""
        began = world.clock.at
        keeper_process.dismiss(up.state.keeper, world=world)
        return world.clock.at - began

    heeds = kept_by(world, up, SIGUSR1=lambda: heeds.ends(0))
    dismissed()
    assert heeds.code == 0
    deaf = kept_by(world, up, SIGUSR1=lambda: None)
    assert dismissed() > 39  # it may be ending a server
    assert deaf.code == -signal.SIGKILL
    stopped = kept_by(world, up, SIGUSR1=lambda: None)
    stopped.paused = True
    assert dismissed() < 1  # it cannot hear
    assert stopped.code == -signal.SIGKILL
    dismissed()
    keeper_process.dismiss(None, world=world)


def test_up_waits_for_what_the_keeper_brings_back(world, deployed):
    up = deployed().up()
    keeper = kept_by(world, up)
    world["server-0"].sick = True
    refusal(met(up, timeout=30).wait_kept, kind=LateError)
    assert "waiting for the keeper: 6 s of 30" in up.said.text
    world.after(30, lambda: setattr(world["server-0"], "sick", False))
    assert met(up, timeout=60).wait_kept().ready
    events.append(up.own, "gave_up", reason="weights", fix="Get them.")
    keeper.ends(1)
    error = refusal(met(up).wait_kept, kind=StartError)
    assert ("weights" in error.message, error.hint) == (True, "Get them.")


def test_a_keeper_that_does_not_start_is_told(world, deployed):
    up = deployed().up()
    world.scripts["keeper"] = [dies(text="it has no business")]
    error = refusal(keeper_process.spawn, up.plan, [], world=world, kind=StartError)
    assert "it ended" in error.message
    assert error.detail == "it has no business"
    world.scripts["keeper"] = [silent()]
    assert "60 s" in str(refusal(keeper_process.spawn, up.plan, [], world=world, kind=StartError))
    assert world["keeper"].code == -signal.SIGKILL

    def notes(process):
        me = state.Keeper(process.pid, process.started)
        world.after(3, lambda: state.save_state(up.own, replace(up.state, keeper=me)))

    world.scripts["keeper"] = [notes]
    assert keeper_process.spawn(up.plan, ["--strict"], world=world).pid == world["keeper"].pid
    words = list(world["keeper"].argv)
    assert words[words.index("keep") :] == ["keep", "--strict"]


@pytest.mark.parametrize("figures", [False, True], ids=["connections", "figures"])
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "unkept"])
def test_a_drain_lets_requests_finish(world, deployed, figures, kept):
    up = deployed(hang_s=600).up()
    server, told = world["server-0"], []
    server.figures, server.running = figures, 1
    up.rounds(6)
    world.after(20, lambda: setattr(server, "running", 0))
    if kept:
        up.keeper.asked.append(keeper_process.DRAIN)
        world.after(10, lambda: told.append(up.keeper.teller.snapshot()))
        up.keeper.run()
        assert [(now.up, now.reason) for now in told] == [(False, "draining")]
    else:
        assert met(up, drain=90).drain(up.state) == ["server-0"]
    (event,) = up.happened("drained")
    assert event["finished"] is True
    assert 20 <= event["after_s"] < 25
    assert up.happened("drain")[0]["limit_s"] == (30 if kept else 90)
    assert (world.living(), up.recorded) == ([], False)


def test_a_drain_has_a_deadline_and_ends_at_a_second_signal(world, deployed):
    for limit in (5, 900):
        up = deployed().up()
        world["server-0"].running = 1
        keeper_process.ask_keeper(
            up.own,
            keeper_process.this_keeper(Supervision()),
            keeper_process.DRAIN,
            world=world,
            drain_s=limit,
        )
        up.keeper.asked.append(keeper_process.DRAIN)
        world.after(9, lambda up=up: up.keeper.asked.append(signal.SIGINT))
        up.keeper.run()
        assert up.happened("drain")[0]["limit_s"] == limit
        (event,) = up.happened("drained")
        assert (event["finished"], event["after_s"] < 20) == (False, True)
        assert not world.living()


def test_a_kept_bundle_is_drained_by_its_keeper(world, deployed):
    up, asked = deployed().up(), []

    def drains():
        asked.append(keeper_process.take_request(up.own))
        world.after(12, lambda: keeper.ends(0))

    keeper = kept_by(world, up, SIGTERM=drains)
    met(up, drain=25).drain(up.state)
    assert (asked, keeper.code) == ([{"drain_s": 25}], 0)


def test_its_own_figures(world, deployed):
    world.scripts["server-0"] = [serves(figures=True)]
    up = deployed().up()
    up.rounds(1)
    world["server-0"].running = 2
    up.rounds(400)
    before = up.keeper.teller.snapshot()
    assert (before.up, before.name, before.choice) == (True, "fake-cpu", "first")
    assert (before.servers, before.running) == ({"server-0": True}, 2)
    assert (before.predicted_tpot_s, before.tpot_s) == (0.002, pytest.approx(0.002))
    world.kill("server-0")
    up.until(lambda: up.happened("died"))
    down = up.keeper.teller.snapshot()
    assert (down.up, down.restarts) == (False, {"unknown": 1})
    assert down.reason == "not serving: 0 of 1 groups serve, choice first"
    up.settled(1)
    world["server-0"].running = 1
    up.rounds(10)
    after = up.keeper.teller.snapshot()
    assert after.up
    assert after.tokens > before.tokens > 0  # counters that began anew are added


def test_a_port_for_metrics_that_is_taken_stops_nothing(world, deployed, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        up = deployed().up(metrics_port=taken.getsockname()[1])
        up.outlives("server-0")
        up.rounds(100)
    assert sum("in use" in line for line in up.said.lines) == 1
    up.keeper.close()
    Log(clock=FakeClock()).say("keeping")  # every line of its log has its time
    assert capsys.readouterr().err == "2030-01-01T00:16:40+00:00 keeping\n"
