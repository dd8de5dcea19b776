"""``restart``: replicas behind a router, one after the other, without a request that fails."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from recipe_core.launcher import balancer
from recipe_core.launcher.plan import load_plan
from tests.fixtures.bundles import Bundle
from tests.fixtures.kept import Client, happened, keeper, kept, kill, runs, servers, until
from tests.fixtures.paths import FIXTURES

FAKE_ROUTER = FIXTURES / "fake_router.py"


@pytest.fixture
def routed(make_bundle: Callable[..., Bundle]) -> Callable[..., Bundle]:
    """Two replicas behind a router, whose options are ``words``."""

    def make(*words: str) -> Bundle:
        bundle = make_bundle("--metrics", "--delay", "0.01")

        def change(data: dict[str, Any]) -> None:
            (first,) = data["processes"]
            data["processes"] = [
                {
                    "name": "router",
                    "argv": [
                        *(sys.executable, str(FAKE_ROUTER), "--port", "${port}", *words),
                        *(f"http://127.0.0.1:${{port{n}}}" for n in (1, 2)),
                    ],
                    "env": {},
                    "port_offset": 0,
                    "devices": [],
                    "role": "router",
                    "group": 2,
                },
                *(
                    first | {"name": f"server-{n}", "port_offset": n + 1, "group": n}
                    for n in (0, 1)
                ),
            ]

        bundle.edit(change)
        return kept(bundle)

    return make


@pytest.mark.parametrize("how", ["kept", "unkept"])
def test_replicas_are_restarted_without_a_failed_request(
    routed: Callable[..., Bundle], capsys: pytest.CaptureFixture[str], how: str
) -> None:
    bundle = routed()
    assert bundle.run("up", *(["--no-keep"] if how == "unkept" else [])) == 0
    before = servers(bundle)
    clients = [Client(bundle.port, tokens=10) for _ in range(3)]
    for client in clients:
        client.start()
    until(lambda: all(client.answers for client in clients))
    capsys.readouterr()
    assert bundle.run("restart") == 0
    assert "restarted server-0, server-1" in capsys.readouterr().out
    after = servers(bundle)
    served = [client.answers for client in clients]
    until(
        lambda: all(client.answers > count for client, count in zip(clients, served, strict=True))
    )
    for client in clients:
        client.stop()
    assert [client.errors for client in clients] == [[], [], []]
    assert after["router"] == before["router"]
    assert {name for name in before if before[name] != after[name]} == {"server-0", "server-1"}
    assert not any(runs(before[name]) for name in ("server-0", "server-1"))
    drained = happened(bundle, "drained")
    assert [(event["name"], event["finished"]) for event in drained] == [
        ("server-0", True),
        ("server-1", True),
    ]
    # The second was drained only after the first was back.
    order = [e["name"] + e["event"] for e in (*happened(bundle, "drain"),)]
    assert order == ["server-0drain", "server-1drain"]


def test_one_replica_by_name(
    routed: Callable[..., Bundle], capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = routed()
    bundle.run("up")
    before = servers(bundle)
    assert bundle.run("restart", "server-1") == 0
    after = servers(bundle)
    assert {name for name in before if before[name] != after[name]} == {"server-1"}
    assert bundle.run("restart", "server-7") == 2
    assert "the bundle has no process 'server-7'" in capsys.readouterr().err


def test_a_single_replica_says_that_it_interrupts(
    bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    kept(bundle).run("up")
    before = servers(bundle)
    assert bundle.run("restart") == 0
    assert "restarting it interrupts the service" in capsys.readouterr().err
    assert servers(bundle) != before
    assert runs(keeper(bundle))


def test_nothing_to_restart(bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    assert bundle.run("restart") == 1
    assert "nothing is running" in capsys.readouterr().err


def test_the_router_alone_is_restarted_when_it_dies(routed: Callable[..., Bundle]) -> None:
    bundle = routed()
    bundle.run("up")
    before = servers(bundle)
    kill(before["router"])
    until(lambda: bundle.state()["ready"] and bundle.state()["restarts"] == 1)
    after = servers(bundle)
    assert {name for name in before if before[name] != after[name]} == {"router"}


def test_a_router_without_an_interface_is_left_alone(routed: Callable[..., Bundle]) -> None:
    bundle = routed("--blind")
    bundle.run("up", "--no-keep")
    assert balancer.withdraw(load_plan(bundle.root), 0) == ()


def test_a_worker_is_taken_out_and_put_back(routed: Callable[..., Bundle]) -> None:
    bundle = routed()
    bundle.run("up", "--no-keep")
    plan = load_plan(bundle.root)
    taken = balancer.withdraw(plan, 0)
    assert [worker.path for worker in taken] == ["/workers"]
    assert balancer.withdraw(plan, 0) == ()  # it is out
    assert not balancer.admit(plan, taken)  # it was put back just now
    assert balancer.admit(plan, taken)
    assert balancer.withdraw(plan, 0) == taken
