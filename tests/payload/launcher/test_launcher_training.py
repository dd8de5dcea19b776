"""Training runs in a fake world: what is followed, kept, given up and refused."""

import json
import shutil
import signal
from dataclasses import replace
from functools import partial

import pytest

from recipe_core.payload.launcher import commands, events, heartbeat, state, supervisor
from recipe_core.payload.launcher.errors import (
    BusyError,
    LateError,
    LauncherError,
    PreflightError,
    StartError,
)
from recipe_core.payload.launcher.request import Request
from recipe_core.payload.launcher.run_record import read_steps
from recipe_core.payload.launcher.runs import Run
from tests.fixtures.bundles import training_bundle
from tests.fixtures.fake_world import H100, Killed, gpus, serves
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import table

ROWS = partial(table, "launcher_training")


def fault(step, kind, times=1, **more):
    return {"step": step, "kind": kind, "times": times, **more}


def gives_up(run, **options):
    run.up(**options)
    error = refusal(run.keeper.run, kind=StartError)
    assert (run.world.living(), run.recorded) == ([], False)
    assert run.happened("keeper_stop")[0]["reason"] == "failed"
    return error


def wait_first_step(run, current, **options):
    request = Request(run.bundle.root, "up", **options)
    Run(request, run.plan, run.said, run.world).wait_first_step(current)


def test_up_waits_for_the_first_step_or_as_long_as_was_said(world, trained):
    run = trained(12, fault(3, "hang", 9), every=0)
    current = run.start()
    wait_first_step(run, current, no_keep=True)
    assert (run.own / "metrics.csv").read_text().count("\n") == 2  # its head and a step
    world.scripts["trainer-0"] = [serves()]  # runs, and never makes a step
    run.stop()
    (run.own / "metrics.csv").unlink()
    current, began = run.start(), world.clock.at
    wait_first_step(run, current, no_keep=True, timeout=50)
    assert 50 < world.clock.at - began < 51
    assert run.said.text.count("waiting for the first step: ") == 50 // supervisor.PROGRESS_S


def test_up_says_why_a_run_ended_before_its_first_step(world, trained):
    run = trained(8, fault(1, "crash", 99))
    error = refusal(wait_first_step, run, run.start(), no_keep=True, kind=StartError)
    assert error.detail == "RuntimeError: the loss is not a number"
    assert (world.living(), run.recorded) == ([], False)

    def keeper_gives_up():
        events.append(run.own, "gave_up", reason="no device is left", fix="See the machine.")
        state.forget_state(run.own)

    for end, kind, text in (
        (keeper_gives_up, StartError, "no device is left"),
        (lambda: state.forget_state(run.own), LateError, "stopped before its first step"),
    ):
        world.scripts["trainer-0"] = [serves()]
        current = run.start()
        events.append(run.own, "start")
        world.after(3, end)
        assert text in str(refusal(wait_first_step, run, current, kind=kind))


def test_a_run_that_is_ended_after_a_checkpoint_has_minutes_for_it(world, trained):
    run = trained(1000, every=0)
    current = run.start()
    deployed = Run(Request(run.bundle.root, "down"), run.plan, run.said, world)
    world.after(4.5, lambda: deployed.save_checkpoint(current))
    deployed.wait_steps(current, 1000)
    assert (run.shown["step"], run.shown["checkpoint"]) == (5, f"{run.own}/checkpoints/step-5")
    world.scripts["trainer-0"] = [serves()]  # heeds nothing
    current, began = run.start(), world.clock.at
    deployed.save_checkpoint(current)
    assert 600 <= world.clock.at - began < 601
    assert world.living()  # `down` ends it next


def test_what_is_missing_is_one_error(tmp_path):
    bundle = training_bundle(tmp_path / "bundle", tmp_path, 20_000, 5, record=False)
    assert "fake writes no record that this launcher can read" in bundle.says(1, "bench")
    bundle = training_bundle(tmp_path / "several", tmp_path, 20_000, nodes=2)
    for words, code, said in ROWS("missing"):
        printed = bundle.says(code, *words.split())
        assert said in printed
        assert "Traceback" not in printed


@pytest.mark.parametrize(("kind", "event", "field", "end"), ROWS("breaks"))
def test_a_run_that_breaks_goes_on_from_its_checkpoint(world, trained, kind, event, field, end):
    faults = [] if kind == "stop" else [fault(6, kind)]
    run = trained(12, *faults, crash_budget=1).up(shown=0)
    if event == "killed":
        world.after(5.5, lambda: world.oom.update(machine=1))
    if kind == "stop":
        world.after(5.5, lambda: world.kill("trainer-0", signal.SIGSTOP))
    run.keep()
    assert run.kinds == ["keeper_start", event, "restart", "finished", "keeper_stop"]
    assert str(run.happened(event)[0][field]).endswith(end)
    assert run.happened("restart")[0]["step"] == 4
    for n in range(1, 13):  # the foreground follows every step
        times = 2 if n == 5 else 1
        assert run.said.text.count(f"step {n} of 12: loss {5 / n:.4f}, 1,000.0/s") == times
    assert (run.shown["state"], run.recorded) == ("finished", False)
    assert run.shown.get("rollbacks", 0) == (kind == "rollback")


@pytest.mark.parametrize(("failure", "cause", "restarts", "message", "detail"), ROWS("given_up"))
def test_a_run_is_given_up_with_a_diagnosis(trained, failure, cause, restarts, message, detail):
    run = trained(12, failure)
    error = gives_up(run)
    assert error.message == f"trainer-0 ended before its last step: {message}"
    assert (error.detail or "").endswith(detail)
    assert run.kinds.count("restart") == restarts
    assert run.kinds[-3:] == ["died", "gave_up", "keeper_stop"]
    (last,) = run.happened("gave_up")
    assert (last["cause"], last.get("restarts", 0)) == (cause, restarts)
    if cause == "device-memory":
        assert last["lines"] == [detail]
        assert error.hint.startswith("Diagnosis: ")


def test_a_rank_that_torchrun_names_is_diagnosed(world, trained):
    run = trained(12)
    run.start()
    world["trainer-0"].ends(1, "  exitcode  : -11 (pid: 77)")
    probe, track = run.adopt().keeper.probe, run.keeper.tracks[0]
    assert probe.diagnose(0, replace(track, proven=True), None).cause == "crashed"


@pytest.mark.parametrize(
    ("error", "restarts"),
    [
        (PreflightError("port", "port 20000 is in use", ""), 1),
        (PreflightError("bundle", "added: notes.txt", ""), 0),
        (LauncherError("No space left on device."), 1),
    ],
)
def test_a_check_before_a_restart_that_may_pass_is_waited_for(trained, error, restarts):
    run, errors = trained(12, fault(6, "crash")), [error]

    def checked(*_):
        if errors:
            raise errors.pop()

    if restarts:
        run.up(checked=checked).keep()
    else:
        assert error.message in gives_up(run, checked=checked).message
    assert run.kinds.count("restart") == restarts


def test_a_program_that_is_gone_is_named(world, trained):
    run = trained(12, fault(6, "crash"))
    world.when(lambda: "died" in run.kinds, lambda: world.missing.add("trainer-0"))
    assert "cannot be started" in gives_up(run).message


def test_a_run_stops_with_a_checkpoint_when_somebody_asks(world, trained):
    run = trained(1000).up()
    assert (run.shown["state"], run.shown["world_size"]) == ("up", 2)
    world["trainer-0"].child = True  # kept by who started it
    world.after(7.5, lambda: (run.own / "stop").touch())
    run.keep()
    assert run.kinds == ["keeper_start", "stopped", "keeper_stop"]
    assert run.shown["checkpoint"] == str(run.own / "checkpoints" / "step-8")
    assert not run.recorded


def test_a_run_that_ended_unseen_is_finished_all_the_same(world, trained):
    """Its exit code is known to nobody: the launcher that started it is gone."""
    run = trained(3)
    run.start()
    world.clock.sleep(60)
    run.adopt().keep()
    assert run.kinds == ["keeper_start", "finished", "keeper_stop"]


@pytest.mark.parametrize("damage", [b"7,\xff\n", b"\0" * 200_000, b"\0\xfe,,\n,\n\n7\n"])
def test_a_damaged_record_is_read_as_far_as_it_goes(world, trained, damage):
    run = trained(12).up()
    run.keep(lambda: run.shown["step"] == 5)
    path = run.own / "metrics.csv"
    path.write_bytes(path.read_bytes() + damage)
    assert run.shown["step"] == 5
    run.adopt().keep()
    assert run.happened("finished")[0]["step"] == 12
    assert {step.number for step in read_steps(path)} >= set(range(1, 13)) - {6}


def test_a_run_whose_launcher_was_killed_counts_as_started_for_the_next(
    world, trained, monkeypatch
):
    run = trained(600)
    monkeypatch.setattr(state.procs, "alive", world.processes.alive)
    state.save_state(run.own, replace(run.start(), ready=False))
    before = world.pids()
    commands.run_up(Request(run.bundle.root, "up", no_keep=True), world=world)
    assert (run.state.ready, world.pids()) == (True, before)


def test_a_keeper_leaves_the_run_alone_when_it_is_dismissed(world, trained):
    run = trained(600).up()
    before = world.pids()
    run.keep(lambda: world.clock.at > 1020)
    assert (world.pids(), run.happened("keeper_stop")[0]["reason"]) == (before, "dismissed")
    run.adopt()
    world.kill("trainer-0")
    run.keep(lambda: "restart" in run.kinds)
    assert run.state.restarts == 1


def test_a_keeper_beside_another_says_so_and_notes_nothing(world, trained):
    run = trained(600).up()
    with heartbeat.only_keeper(run.plan, run.limits, world.clock):
        assert "another keeper" in refusal(run.keeper.run, kind=LauncherError).message
    assert run.kinds == []


def test_it_leaves_while_it_rests_and_where_another_is_at_work(world, trained):
    run = trained(600, fault(6, "crash"), backoff_s=600, backoff_most_s=600).up()
    run.keep(lambda: run.recorded and not run.state.servers and "died" in run.kinds)
    assert "restart" not in run.kinds
    assert run.stop() == []
    run.up()
    world.after(20, lambda: state.forget_state(run.own))  # another launcher stopped the run
    run.keep()
    assert not run.recorded
    before = len(run.up().kinds)
    with state.exclusive(run.own):  # a command that holds it for long is left to it
        refusal(run.keeper.run, kind=BusyError)
    assert run.kinds[before:] == []


@pytest.mark.usefixtures("writes_are_steps")
def test_a_keeper_may_be_killed_at_any_step(world, trained):
    """Wherever it is killed, the next one brings the run to its end, and never two at once."""
    run, whole, nth = trained(8), False, 0
    scenario = {"every": 2, "faults": [fault(5, "crash")]}
    while not whole:
        nth += 1
        (run.own / "fake.json").write_text(json.dumps(scenario))
        run.up()
        world.steps, world.dies_at = 0, nth
        try:
            run.keep()
            whole = True
        except Killed:
            assert len(world.living()) <= 1
            world.next_launcher()
            if run.recorded:
                run.adopt().keep()
        assert (nth, world.living(), run.shown["state"]) == (nth, [], "finished")
        for folder in ("checkpoints", "model"):
            shutil.rmtree(run.own / folder)
        (run.own / "metrics.csv").unlink()
    assert nth > 8


ONE, TWO = gpus(None), gpus(None, None)


@pytest.fixture
def on_two(world, trained):
    """A run on two devices, with a fallback for one."""
    run = trained(100_000)
    world.machine = TWO

    def needs(data, devices):
        data["needs"] |= {"runtime": "cuda", "names": [H100], "count": devices}
        data["processes"][0]["devices"] = list(range(devices))
        data["processes"][0]["argv"][4:] = [f"devices={devices}"]

    run.bundle.edit(lambda data: needs(data, 2))
    run.bundle.add_fallback("1-fewer-gpus", lambda data: needs(data, 1))
    return run


def lose_one(world):
    world.machine = ONE
    world.kill("trainer-0")


def test_a_lost_device_is_done_without_until_it_is_back(world, on_two):
    run = on_two.up()
    world.after(5, lambda: lose_one(world))
    run.keep(lambda: "restart" in run.kinds)
    assert run.kinds[1:-1] == ["died", "device_lost", "fallback", "restart"]
    shown = run.shown
    assert (shown["choice"], shown["world_size"], shown["restarts"]) == ("1-fewer-gpus", 1, 1)
    assert run.happened("device_lost")[0]["reason"] == f"1 x {H100}; the recipe needs 2 x CPU"
    assert world["trainer-0"].argv[-1] == "devices=1"
    run.adopt()
    world.after(60, lambda: setattr(world, "machine", TWO))
    run.keep(lambda: run.kinds.count("restart") == 2)
    assert run.kinds[-4:] == ["device_found", "first_choice", "restart", "keeper_stop"]
    assert world["trainer-0"].argv[-1] == "devices=2"
    assert (run.shown["choice"], run.shown["world_size"]) == ("first", 2)
    assert run.happened("restart")[-1]["step"] > 0


def test_strict_waits_for_a_lost_device_and_gives_up_at_last(world, on_two):
    world.after(5, lambda: lose_one(world))
    gives_up(on_two, strict=True)
    assert "fallback" not in on_two.kinds
    assert on_two.said.text.count("no choice fits what is left of the machine") == 2
    assert on_two.shown["state"] == "down"


def test_a_device_that_comes_back_in_time_is_waited_for(world, on_two):
    run = on_two.up(strict=True)
    world.after(5, lambda: lose_one(world))
    world.after(6.2, lambda: setattr(world, "machine", TWO))
    run.keep(lambda: "restart" in run.kinds)
    assert run.state.choice == "first"
