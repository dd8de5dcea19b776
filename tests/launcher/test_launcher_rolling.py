"""``restart`` in a fake world: replicas behind a router, one after the other."""

from __future__ import annotations

import pytest

from recipe_core.launcher import balancer, keep, keeping
from recipe_core.launcher.errors import InputError, LauncherError, StartError
from recipe_core.launcher.request import Request
from tests.fixtures.fake_world import dies, serves
from tests.fixtures.refusals import refusal


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
    return keep.run_restart(request, world=up.world)


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
    keeping.ask(up.own, keeping.me(), keeping.READ, world=world, restart=["server-1"])
    up.keeper.asked.append(keeping.READ)
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


def test_a_router_without_an_interface_gets_time_to_find_a_replica(world, routed):
    up, times = routed(blind=True), []
    assert balancer.withdraw(up.plan, 0, world=world) == ()
    world.when(lambda: up.happened("ready"), lambda: times.append(world.clock.at))
    world.when(lambda: len(up.happened("drain")) == 2, lambda: times.append(world.clock.at))
    restart(up)
    first, following = times
    assert 10 <= following - first < 15


def test_a_worker_is_taken_out_and_put_back(world, routed):
    plan = routed().plan
    taken = balancer.withdraw(plan, 0, world=world)
    assert [worker.path for worker in taken] == ["/workers"]
    assert balancer.withdraw(plan, 0, world=world) == ()  # it is out
    assert not balancer.admit(plan, taken, world=world)  # it was put back just now
    assert balancer.admit(plan, taken, world=world)
    assert balancer.withdraw(plan, 0, world=world) == taken
