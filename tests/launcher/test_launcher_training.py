"""Training bundles: what is followed, refused and read; and bundles for several nodes."""

from __future__ import annotations

import pytest

from recipe_core.launcher.errors import StartError
from recipe_core.launcher.plan import load_plan
from recipe_core.launcher.steps import read_steps
from tests.fixtures.bundles import training_bundle


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
