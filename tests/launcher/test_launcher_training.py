"""Training bundles: start, follow, look, measure, end; and bundles for several nodes."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from recipe_core.launcher.plan import load_plan
from recipe_core.launcher.steps import read_steps
from tests.fixtures.bundles import Bundle, training_bundle
from tests.fixtures.ports import free_port

Make = Callable[..., Bundle]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Bundle] = []

    def bundle(
        steps: int = 12, fails_at: int = 0, nodes: int = 1, *, record: bool = True
    ) -> Bundle:
        root, port = tmp_path / "bundle", free_port()
        found = training_bundle(root, tmp_path, port, steps, fails_at, nodes, record=record)
        made.append(found)
        return found

    yield bundle
    for each in made:
        each.run(
            "down", *(["--node", "0"] if "node-0" in str(list(each.root.glob("run/*"))) else [])
        )


def status(bundle: Bundle, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    bundle.run("status", *words)
    return dict(json.loads(capsys.readouterr().out))


def test_up_returns_after_the_first_step_and_the_run_ends_by_itself(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = make(40)
    assert bundle.run("up") == 0
    assert re.search("^(up|finished): step ", capsys.readouterr().out)
    deadline = time.monotonic() + 60
    while (found := status(bundle, capsys))["state"] == "up" and time.monotonic() < deadline:
        time.sleep(0.1)
    assert (found["state"], found["step"], found["steps"]) == ("finished", 40, 40)
    assert found["model"] == str(bundle.root / "run" / "model")
    assert found["loss"] == pytest.approx(5 / 40)


def test_foreground_follows_every_step(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = make(5)
    assert bundle.run("up", "--foreground") == 0
    told = capsys.readouterr().err
    assert [f"step {n} of 5: loss {5 / n:.4f}, 1,000.0/s" in told for n in range(1, 6)] == [
        True
    ] * 5
    assert not bundle.up


def test_a_run_that_dies_shows_the_end_of_its_log(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = make(20, fails_at=3)
    assert bundle.run("up", "--foreground") == 1
    told = capsys.readouterr().err
    assert "trainer-0 ended before its last step" in told
    assert "the loss is not a number" in told


def test_down_with_a_checkpoint_and_up_again_goes_on(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = make(200)
    bundle.run("up")
    assert bundle.run("down", "--checkpoint") == 0
    stopped = status(bundle, capsys)
    assert stopped["state"] == "down"
    assert stopped["checkpoint"] == str(
        bundle.root / "run" / "checkpoints" / f"step-{stopped['step']}"
    )
    assert bundle.run("up") == 0
    assert status(bundle, capsys)["step"] > stopped["step"]


def test_bench_compares_steps_with_the_prediction(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = make(500)
    assert bundle.run("bench", "--steps", "6") == 0
    data = json.loads((bundle.root / "run" / "measurement.json").read_text())
    assert data["metrics"]["step_s"] == 0.02
    assert data["ratio"] == {
        "step_s": 0.5,
        "tokens_per_s": 2.0,
        "tokens_per_s_per_gpu": 2.0,
        "mfu": None,
        "peak_memory_bytes": data["ratio"]["peak_memory_bytes"],
    }
    assert data["steps"]["first"] > 2
    assert data["steps"]["count"] == 6
    assert "step time, median" in capsys.readouterr().out
    assert not bundle.up
    assert list((bundle.root / "run" / "checkpoints").iterdir())


def test_bench_of_a_framework_without_a_record_says_so(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make(5, record=False).run("bench") == 1
    assert "fake writes no record that this launcher can read" in capsys.readouterr().err


def test_another_text_reaches_the_trainer(make: Make, tmp_path: Path) -> None:
    bundle = make(5)
    assert bundle.run("up", "--data", str(tmp_path / "mine.txt")) == 0
    assert f"data: {tmp_path / 'mine.txt'}" in (bundle.root / "run" / "trainer-0.log").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["up"], "this bundle runs on 2 nodes; --node is missing"),
        (["up", "--node", "1"], "node 1 of 2 does not know the address of node 0"),
        (["up", "--node", "2", "--head", "10.0.0.1"], "node 2 is not between 0 and 1"),
        (["status"], "--node is missing"),
    ],
)
def test_what_is_missing_on_several_nodes_is_one_error(
    make: Make, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert make(nodes=2).run(*words) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "Traceback" not in told


def test_each_node_starts_its_own_processes_and_knows_the_first(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = make(300, nodes=2)
    assert bundle.run("up", "--node", "1", "--head", "127.0.0.1") == 0
    found = status(bundle, capsys, "--node", "1")
    assert [each["name"] for each in found["processes"]] == ["trainer-1"]
    command = Path(f"/proc/{found['processes'][0]['pid']}/cmdline").read_text().split("\0")
    assert command[command.index("--master-addr") + 1] == "127.0.0.1"
    assert status(bundle, capsys, "--node", "0")["processes"] == []
    assert bundle.run("down", "--node", "1") == 0
    assert not (bundle.root / "run" / "node-1" / "state.json").exists()


def test_a_worker_of_a_server_is_started_without_being_asked(
    tmp_path: Path, make_bundle: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = make_bundle()
    sleeper = {
        "argv": [sys.executable, "-c", "import time; time.sleep(60)"],
        "env": {},
        "port_offset": 0,
        "devices": [0],
    }

    def spread(data: dict[str, Any]) -> None:
        data["processes"] += [{"name": "worker-1", "node": 1, "role": "worker", **sleeper}]

    bundle.edit(spread)
    assert bundle.run("up", "--node", "1", "--head", "127.0.0.1") == 0
    assert "started: worker-1" in capsys.readouterr().out
    assert bundle.run("bench", "--node", "1") == 2
    assert "no server answers on node 1" in capsys.readouterr().err
    assert bundle.run("down", "--node", "1") == 0


def test_users_ask_the_router_and_not_the_pools_behind_it(make_bundle: Make) -> None:
    bundle = make_bundle()

    def pools(data: dict[str, Any]) -> None:
        first = data["processes"][0]
        named = [("prefill", "prefill", 1), ("decode", "decode", 2), ("router", "router", 0)]
        data["processes"] = [
            first | {"name": name, "role": role, "port_offset": offset}
            for name, role, offset in named
        ]

    bundle.edit(pools)
    plan = load_plan(bundle.root)
    assert [process.name for process in plan.answering] == ["prefill", "decode", "router"]
    assert [process.name for process in plan.entrances] == ["router"]


def test_a_node_that_does_not_know_the_first_fails_preflight(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make(nodes=2).run("preflight", "--node", "1", "--head", "no-such-host.invalid") == 1
    assert "'no-such-host.invalid' does not resolve" in capsys.readouterr().out


def test_a_row_cut_short_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,loss,mfu\n1,5.0,\n2,4.0\n3,nan,0.5\n")
    assert [(step.number, step.get("loss"), step.get("mfu")) for step in read_steps(path)] == [
        (1, 5.0, None),
        (3, None, 0.5),
    ]
