"""What is read of the machine and the bundle to judge servers, and the limits that judge them."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from recipe_core.launcher import keeping, observe
from recipe_core.launcher.errors import InputError
from recipe_core.launcher.fields import Fields
from recipe_core.launcher.observe import Observer
from recipe_core.launcher.plan import load_plan
from recipe_core.launcher.supervision import OPTIONS, USUAL, option_of, read_supervision
from recipe_core.launcher.world import HERE
from tests.fixtures.bundles import Bundle


def test_connections_to_a_port_are_counted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert HERE.connections([port]) == 0
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _ = server.accept()
            assert HERE.connections([port]) == 1
            accepted.close()


def test_a_kill_for_want_of_memory_counts_once(bundle, world):
    observer, plan = Observer(world), load_plan(bundle.root)

    def killed() -> bool:
        return observer.look(plan, (), [0]).seen[0].out_of_memory

    assert not killed()
    world.oom["machine"] += 1
    assert killed()
    assert not killed()
    world.oom["/a.slice"] = 9  # seen for the first time: nobody knows since when
    assert not killed()
    assert all(count >= 0 for count in HERE.oom_kills([os.getpid()]).values())


def workload(**changes: object) -> Callable[[dict[str, Any]], None]:
    return lambda data: data["workload"].update(changes)


@pytest.mark.parametrize(
    ("changes", "most", "load"),
    [
        ({}, 0.004, 3),
        ({"mode": "static", "concurrency": None, "batch": 8}, 0.004, 8),
        ({"mode": "offline", "concurrency": None}, 0.004, None),
        # Which load is more than planned is not known.
        ({"mode": "open", "concurrency": None, "request_rate": 5.0}, None, None),
    ],
)
def test_the_target_is_the_recipes(
    bundle: Bundle, changes: dict[str, object], most: float | None, load: float | None
) -> None:
    bundle.edit(workload(**changes))
    expected = observe.target(load_plan(bundle.root), bundle.root / "expected.json")
    assert (expected.tpot_most_s, expected.load_most) == (most, load)
    assert (expected.tpot_s, expected.first_token_s) == (0.002, 0.01)


def test_an_open_load_is_that_of_the_slowest_expected_requests(bundle: Bundle) -> None:
    path = bundle.root / "expected.json"
    data = json.loads(path.read_text())
    data["bands"]["request_latency_s"] = [1.0, 2.0]
    path.write_text(json.dumps(data))
    bundle.edit(workload(mode="open", concurrency=None, request_rate=5.0))
    assert observe.target(load_plan(bundle.root), path).load_most == 10


def test_a_damaged_estimate_expects_nothing(bundle: Bundle) -> None:
    path = bundle.root / "expected.json"
    path.write_text("[")
    assert observe.target(load_plan(bundle.root), path).tpot_most_s is None


def test_limits_of_a_bundle_are_its_own_or_the_usual() -> None:
    assert read_supervision(Fields({}, "launch.json")) == USUAL
    stated = Fields({"supervision": {"hang_s": 7, "crash_budget": 0}}, "launch.json")
    assert read_supervision(stated) == replace(USUAL, hang_s=7.0, crash_budget=0)
    assert USUAL.with_options({"hang_s": None, "poll_s": 2.0}) == replace(USUAL, poll_s=2.0)


@pytest.mark.parametrize(
    ("field", "value"), [("hang_s", -1), ("slow_s", "x"), ("crash_budget", 1.5)]
)
def test_a_limit_that_is_none_is_named(field: str, value: object) -> None:
    with pytest.raises(InputError) as caught:
        read_supervision(Fields({"supervision": {field: value}}, "launch.json"))
    assert str(caught.value).startswith(f"launch.json.supervision.{field}: ")
    assert repr(value) in str(caught.value)


def test_every_limit_is_an_option_of_up(bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bundle.run("up", "--help")
    text = capsys.readouterr().out
    for name in OPTIONS:
        assert f"{option_of(name)} " in text
        assert f"(usually {getattr(USUAL, name):g})" in " ".join(text.split())
    assert " keep " not in text


def test_the_keepers_port_is_none_of_the_bundles(bundle: Bundle) -> None:
    plan = load_plan(bundle.root)
    assert keeping.metrics_port(plan) == plan.parameters.port + 1000
    high = load_plan(bundle.root, port=65000)
    assert keeping.metrics_port(high) == 64000
