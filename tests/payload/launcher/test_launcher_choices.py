"""What is started where the machine is not the one that was planned for, or loses a device."""

import json
import socket
from dataclasses import replace

import pytest

from recipe_core.payload.launcher import choices, preflight
from recipe_core.payload.launcher.errors import InputError, StartError
from recipe_core.payload.launcher.limits import Supervision
from recipe_core.payload.launcher.machine_watch import MachineWatch
from recipe_core.payload.launcher.needs import as_if_stopped
from recipe_core.payload.launcher.plan import load_plan
from tests.fixtures.fake_world import GIB, H100, MACHINE, gpus
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over

LOST = f"1 x {H100}; the recipe needs 2 x H100"


ONE, TWO, THREE, FOUR = (gpus(*[None] * count) for count in (1, 2, 3, 4))


def needs(count, used_gib):
    """A change of launch.json: so many devices, so much of each."""
    of_device = {"runtime": "cuda", "device": "h100-sxm", "title": "H100", "names": [H100]}
    amounts = {"count": count, "memory_bytes": 80 * GIB, "used_bytes": used_gib * GIB}
    return lambda data: data.update(needs={**of_device, **amounts})


@pytest.fixture
def chosen(bundle):
    bundle.edit(needs(4, 60))
    bundle.add_fallback("1-fewer-gpus", needs(2, 70))
    bundle.add_fallback("2-other-precision", needs(4, 30))
    return bundle


@pytest.fixture
def on(monkeypatch):
    def put(here):
        for module in (choices, preflight):
            monkeypatch.setattr(module, "detect_machine", lambda: here)

    return put


@over(
    "here choice",
    [(FOUR, "first"), (THREE, "1-fewer-gpus"), (gpus(*[40 * GIB] * 4), "2-other-precision")],
)
def test_up_starts_the_first_choice_that_the_machine_holds(chosen, on, here, choice):
    on(here)
    try:
        assert chosen.answers("up", "--json", "--no-keep")["choice"] == choice
        assert chosen.state()["choice"] == choice
        assert chosen.answers("status")["choice"] == choice
        # Again: the same, and not the first.
        assert chosen.answers("up", "--json", "--no-keep")["already"] is True
    finally:
        chosen.run("down")


def test_a_variant_for_just_these_devices_goes_before_the_first_choice(chosen, on):
    """The first one would only be warned of another device of its vendor."""
    chosen.add_fallback("1-variant", lambda data: data["needs"].update(names=["NVIDIA L40S"]))

    def put_first(data):
        advised = {"name": "2-variant", "kind": "variant", "title": "b", "advised": True}
        data["choices"] = [data["choices"].pop(), *data["choices"], advised]

    chosen.edit(put_first)
    l40s = replace(FOUR, devices=tuple(replace(d, name="NVIDIA L40S") for d in FOUR.devices))
    for here, words, choice in (
        (l40s, [], "1-variant"),
        (l40s, ["--strict"], "first"),
        (FOUR, [], "first"),
        (THREE, [], "1-fewer-gpus"),
    ):
        on(here)
        answer = chosen.answers("up", "--json", "--no-keep", *words)
        assert (answer["choice"], chosen.state()["choice"]) == (choice, choice)
        chosen.run("down")
    printed = chosen.says(2, "up", "--choice", "2-variant")  # which is only advised
    assert printed.endswith("first, 1-fewer-gpus, 2-other-precision.\n")


def test_fallbacks_are_read_as_bundles_listed_them_before(chosen, on):
    """Beside ``variants``, which nothing started; each with its needs in its own file."""

    def as_before(data):
        _, *listed = data.pop("choices")
        for entry in listed:
            path = chosen.root / "fallbacks" / entry["name"] / "launch.json"
            (needs,) = entry.pop("needs")
            path.write_text(json.dumps({**json.loads(path.read_text()), "needs": needs}))
        kinds = [{"profile": "h100-sxm", "runtime": "cuda", "names": [H100]}]
        variants = [{"name": "small", "kinds": kinds, "at_most": 1}]
        data.update(fallbacks=listed, variants=variants)

    chosen.edit(as_before)
    plan = load_plan(chosen.root)
    names = ["first", "1-fewer-gpus", "2-other-precision"]
    assert [choice.name for choice in choices.list_launch_choices(plan)] == names
    (small,) = plan.choices[3:]
    assert (small.title, small.advised, small.needs[0].at_most) == ("small", True, 1)
    on(THREE)
    assert chosen.answers("up", "--json", "--no-keep")["choice"] == "1-fewer-gpus"
    chosen.run("down")


def test_what_is_refused_starts_nothing(chosen, on):
    for here, words, code, says in (
        (ONE, [], 1, "1 x NVIDIA H100 80GB HBM3; the recipe needs 4 x H100"),
        (THREE, ["--strict"], 1, "the recipe needs 4 x H100"),
        (FOUR, ["--choice", "../../other"], 2, "first, 1-fewer-gpus, 2-other-precision"),
    ):
        on(here)
        assert says in chosen.says(code, "up", *words)
        assert not chosen.up
    with socket.create_server(("127.0.0.1", chosen.port)):  # no reason for a fallback
        printed = chosen.says(1, "up")
    assert "is in use by another program" in printed
    assert "fallback" not in printed
    chosen.edit(lambda data: data["choices"][1].update(name="../../elsewhere"))
    with pytest.raises(InputError, match="lower-case letters, digits and dashes"):
        load_plan(chosen.root)


def test_a_choice_can_be_named_and_what_the_machine_refused_is_remembered(chosen, on):
    own = chosen.root / "run"
    assert choices.refused_by_machine(own) is None
    on(FOUR)
    assert chosen.run("up", "--no-keep", "--choice", "1-fewer-gpus") == 0
    assert chosen.state()["choice"] == "1-fewer-gpus"
    chosen.run("down")
    on(THREE)
    assert chosen.run("up", "--no-keep") == 0
    on(FOUR)  # the device is back before a keeper looks
    assert choices.refused_by_machine(own) is True
    chosen.run("down")
    assert chosen.run("up", "--no-keep") == 0
    assert chosen.state()["choice"] == "first"


def test_an_engine_that_dies_at_its_start_makes_way_for_the_next_choice(make_bundle, capsys):
    bundle = make_bundle("--behave", "die")
    bundle.add_fallback("1-other-split", lambda data: None)
    error = bundle.says(1, "up")
    assert "server-0 ended before it was ready." in error  # the first choice's own
    assert "Others failed too: 1-other-split." in error
    assert not bundle.up

    def behaving(data):
        data["processes"][0]["argv"][-1] = "ok"

    bundle.add_fallback("2-other-split", behaving)
    capsys.readouterr()
    assert bundle.run("up", "--json") == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["choice"] == "2-other-split"
    assert "taking 1-other-split (fallback 1-other-split)" in printed.err
    assert "taking 2-other-split" in printed.err


# Devices that get lost and are found again, in a fake world


@pytest.fixture
def on_two(world, deployed):
    up, world.machine = deployed(), TWO
    up.bundle.edit(needs(2, 60))
    return up


def test_a_lost_device_takes_the_fallback_until_it_is_found(world, on_two):
    on_two.bundle.add_fallback("1-fewer-gpus", needs(1, 60))
    on_two.bundle.add_fallback("1-variant", lambda data: data["needs"].update(names=["L40S"]))
    on_two.bundle.edit(lambda data: data["choices"].insert(0, data["choices"].pop()))
    up, world.machine = on_two.up(), ONE
    world.kill("server-0")
    up.until(lambda: up.state.choice == "1-fewer-gpus" and up.state.ready)
    (fallback,) = up.happened("fallback")
    assert (fallback["reason"], fallback["cause"]) == (LOST, "device-lost")
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
def test_without_a_fallback_it_stops_and_says_which_device_is_missing(world, on_two, strict):
    if strict:
        on_two.bundle.add_fallback("1-fewer-gpus", needs(1, 60))
    up, world.machine = on_two.up(strict=strict), ONE
    world.kill("server-0")
    refusal(up.keeper.run, kind=StartError)
    assert up.happened("gave_up")[0]["reason"] == LOST
    assert not {"restart", "fallback"} & set(up.kinds)
    assert not up.recorded


def test_a_device_that_is_lost_while_all_serves_is_only_noted(world, on_two):
    up = on_two.up()
    before = world.pids()
    for machine, kind in ((ONE, "device_lost"), (TWO, "device_found")):
        world.machine = machine
        up.until(lambda kind=kind: up.happened(kind))
    assert (world.pids(), up.kinds) == (before, ["device_lost", "device_found"])
    # Memory of what runs counts as free, and a tool that fails is asked again.
    plan = on_two.plan
    assert as_if_stopped(gpus(15 * GIB), plan.needs).devices[0].free_bytes == 75 * GIB
    assert as_if_stopped(gpus(50 * GIB), plan.needs).devices[0].free_bytes == 80 * GIB
    watch = MachineWatch(plan, choices.list_launch_choices(plan), Supervision(), world=world)
    world.machine = MACHINE
    world.after(0.5, lambda: setattr(world, "machine", TWO))
    assert watch.misfit_now(plan) is None
    world.machine = ONE
    assert watch.misfit_now(plan) == LOST
