"""Training bundles: what is followed, refused and read; and bundles for several nodes."""

from __future__ import annotations

import pytest

from recipe_core.launcher import events, runs, state, supervisor
from recipe_core.launcher.errors import LateError, StartError
from recipe_core.launcher.plan import load_plan
from recipe_core.launcher.request import Request
from recipe_core.launcher.steps import read_steps
from tests.fixtures.bundles import training_bundle
from tests.fixtures.fake_world import serves


def test_the_foreground_follows_every_step(trained):
    run = trained(5).up(shown=0)
    run.keep()
    for n in range(1, 6):
        assert f"step {n} of 5: loss {5 / n:.4f}, 1,000.0/s" in run.said.text
    assert not run.recorded


def test_a_run_that_dies_shows_the_end_of_its_log(world, trained):
    run = trained(20, {"step": 3, "kind": "crash", "times": 99}, every=0, crash_budget=0)
    run.up()
    with pytest.raises(StartError) as caught:
        run.runner.keep()
    assert caught.value.message.startswith("trainer-0 ended before its last step: ended")
    assert caught.value.detail == "RuntimeError: the loss is not a number"


def test_bench_of_a_framework_without_a_record_says_so(tmp_path, capsys):
    bundle = training_bundle(tmp_path / "bundle", tmp_path, 20_000, 5, record=False)
    assert bundle.run("bench") == 1
    assert "fake writes no record that this launcher can read" in capsys.readouterr().err


def test_what_is_missing_on_several_nodes_is_one_error(tmp_path, capsys):
    bundle = training_bundle(tmp_path / "bundle", tmp_path, 20_000, nodes=2)
    for words, code, said in (
        (["up"], 2, "this bundle runs on 2 nodes; --node is missing"),
        (["up", "--node", "1"], 2, "node 1 of 2 does not know the address of node 0"),
        (["up", "--node", "2", "--head", "10.0.0.1"], 2, "node 2 is not between 0 and 1"),
        (["status"], 2, "--node is missing"),
        (
            ["preflight", "--node", "1", "--head", "no-such-host.invalid"],
            1,
            "'no-such-host.invalid' does not resolve",
        ),
    ):
        assert bundle.run(*words) == code
        printed = capsys.readouterr()
        assert said in printed.out + printed.err
        assert "Traceback" not in printed.err


def test_users_ask_the_router_and_not_the_pools_behind_it(bundle):
    def pools(data):
        (first,) = data["processes"]
        named = [("prefill", "prefill", 1), ("decode", "decode", 2), ("router", "router", 0)]
        data["processes"] = [
            first | {"name": name, "role": role, "port_offset": offset}
            for name, role, offset in named
        ]

    bundle.edit(pools)
    plan = load_plan(bundle.root)
    assert [process.name for process in plan.answering] == ["prefill", "decode", "router"]
    assert [process.name for process in plan.entrances] == ["router"]


def test_a_row_cut_short_is_left_out(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("step,loss,mfu\n1,5.0,\n2,4.0\n3,nan,0.5\n")
    assert [(step.number, step.get("loss"), step.get("mfu")) for step in read_steps(path)] == [
        (1, 5.0, None),
        (3, None, 0.5),
    ]


def request_of(run, **options):
    return Request(run.bundle.root, "up", **options)


def wait_first_step(run, current, **options):
    runs.wait_first_step(
        request_of(run, **options), load_plan(run.bundle.root), current, run.said, world=run.world
    )


def test_up_waits_for_the_first_step_or_as_long_as_was_said(world, trained):
    run = trained(12, {"step": 3, "kind": "hang", "times": 9}, every=0)
    current = run.start()
    wait_first_step(run, current, no_keep=True)
    assert (run.own / "metrics.csv").read_text().count("\n") == 2  # its head and a step
    world.scripts["trainer-0"] = [serves()]  # runs, and never makes a step
    supervisor.stop(run.own, current, progress=run.said, world=world)
    (run.own / "metrics.csv").unlink()
    current, began = run.start(), world.clock.at
    wait_first_step(run, current, no_keep=True, timeout=50)
    assert 50 < world.clock.at - began < 51
    assert run.said.text.count("waiting for the first step: ") == 50 // supervisor.PROGRESS_S


def test_up_says_why_a_run_ended_before_its_first_step(world, trained):
    run = trained(8, {"step": 1, "kind": "crash", "times": 99})
    with pytest.raises(StartError) as caught:
        wait_first_step(run, run.start(), no_keep=True)
    assert caught.value.detail == "RuntimeError: the loss is not a number"
    assert (world.living(), run.recorded) == ([], False)

    def keeper_gives_up():
        events.append(run.own, "gave_up", reason="no device is left", fix="See the machine.")
        state.remove(run.own)

    for end, error, field in (
        (keeper_gives_up, StartError, "no device is left"),
        (lambda: state.remove(run.own), LateError, "stopped before its first step"),
    ):
        world.scripts["trainer-0"] = [serves()]
        current = run.start()
        events.append(run.own, "start")
        world.after(3, end)
        with pytest.raises(error, match=field):
            wait_first_step(run, current)


def test_a_run_that_is_ended_after_a_checkpoint_has_minutes_for_it(world, trained):
    run = trained(1000, every=0)
    current = run.start()
    plan = load_plan(run.bundle.root)
    world.after(4.5, lambda: runs.end_with_checkpoint(plan, current, run.said, world=world))
    runs.wait_steps(plan, current, 1000, run.said, world=world)
    assert (run.shown["step"], run.shown["checkpoint"]) == (5, f"{run.own}/checkpoints/step-5")
    world.scripts["trainer-0"] = [serves()]  # heeds nothing
    current, began = run.start(), world.clock.at
    runs.end_with_checkpoint(plan, current, run.said, world=world)
    assert 600 <= world.clock.at - began < 601
    assert world.living()  # `down` ends it next
