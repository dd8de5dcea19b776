"""Devices that get lost and are found again, in a fake world."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from recipe_core.launcher.choices import choices
from recipe_core.launcher.errors import StartError
from recipe_core.launcher.machine import Device, Machine
from recipe_core.launcher.machine_watch import MachineWatch, freed
from recipe_core.launcher.plan import load_plan
from recipe_core.launcher.supervision import Supervision
from tests.fixtures.fake_world import GIB, MACHINE, Deployment, FakeWorld

NAME = "NVIDIA H100 80GB HBM3"
LOST = f"1 x {NAME}; the recipe needs 2 x H100"


def gpus(*free_bytes: int | None) -> Machine:
    """A machine with these devices."""
    devices = tuple(Device(n, NAME, 80 * GIB, free) for n, free in enumerate(free_bytes))
    return Machine("cuda", devices, "CPU", 2, 64 * GIB, 32 * GIB)


ONE, TWO = gpus(None), gpus(None, None)


def on_devices(count: int) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        size = {"memory_bytes": 79 * GIB, "used_bytes": 60 * GIB}
        kind = {"runtime": "cuda", "device": "h100-sxm", "title": "H100", "names": [NAME]}
        data["needs"] = {**kind, "count": count, **size}

    return change


@pytest.fixture
def on_two(world: FakeWorld, deployed: Callable[..., Deployment]) -> Deployment:
    """Two devices, or one with the fallback."""
    up, world.machine = deployed(), TWO
    up.bundle.edit(on_devices(2))
    return up


def fails_on_one(up: Deployment) -> None:
    up.world.machine = ONE
    up.world.kill("server-0")


def test_a_lost_device_takes_the_fallback_until_it_is_found(world, on_two):
    on_two.bundle.add_fallback("1-fewer-gpus", on_devices(1))
    up = on_two.up()
    fails_on_one(up)
    up.until(lambda: up.state.choice == "1-fewer-gpus" and up.state.ready)
    (fallback,) = up.happened("fallback")
    assert fallback["reason"] == LOST
    assert up.kinds[:5] == ["died", "device_lost", "fallback", "start", "ready"]
    world.machine = TWO
    world["server-0"].running = 1
    world.after(400, lambda: setattr(world["server-0"], "running", 0))
    up.until(lambda: up.state.choice == "first" and up.state.ready)
    found = ["device_found", "drain", "drained", "first_choice", "start", "ready"]
    assert up.kinds[-6:] == found
    (event,) = up.happened("first_choice")
    assert (event["from"], event["to"]) == ("1-fewer-gpus", "first")
    assert up.happened("drain")[0]["reason"] == "the first choice fits again"
    assert up.keeper.refusing == ""


@pytest.mark.parametrize("strict", [False, True])
def test_without_a_fallback_it_stops_and_says_which_device_is_missing(on_two, strict):
    if strict:
        on_two.bundle.add_fallback("1-fewer-gpus", on_devices(1))
    up = on_two.up(strict=strict)
    fails_on_one(up)
    with pytest.raises(StartError):
        up.keeper.run()
    assert up.happened("gave_up")[0]["reason"] == LOST
    assert not {"restart", "fallback"} & set(up.kinds)
    assert not up.recorded


def test_a_device_that_is_lost_while_all_serves_is_only_noted(world, on_two):
    up = on_two.up()
    before = world.pids()
    world.machine = ONE
    up.until(lambda: up.happened("device_lost"))
    world.machine = TWO
    up.until(lambda: up.happened("device_found"))
    assert (world.pids(), up.kinds) == (before, ["device_lost", "device_found"])


def test_memory_of_what_runs_counts_as_free(on_two):
    needs = load_plan(on_two.bundle.root).needs
    assert freed(gpus(15 * GIB), needs).devices[0].free_bytes == 75 * GIB
    assert freed(gpus(50 * GIB), needs).devices[0].free_bytes == 80 * GIB


def test_a_tool_that_fails_once_is_asked_again(world, on_two):
    plan = load_plan(on_two.bundle.root)
    watch = MachineWatch(choices(plan), Supervision(), world=world)
    world.machine = MACHINE
    world.after(0.5, lambda: setattr(world, "machine", TWO))
    assert watch.misfit_now(plan, choices(plan)) is None
    world.machine = ONE
    assert watch.misfit_now(plan, choices(plan)) == LOST
