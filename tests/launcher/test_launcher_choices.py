"""What `up` starts where the machine is not the one that was planned for."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recipe_core.launcher import choices, preflight
from recipe_core.launcher.errors import InputError
from recipe_core.launcher.machine import Device, Machine
from recipe_core.launcher.plan import load_plan
from tests.fixtures.bundles import Bundle

GIB = 1 << 30
H100 = "NVIDIA H100 80GB HBM3"


def machine(count: int, *, name: str = H100, free_bytes: int | None = None) -> Machine:
    devices = tuple(Device(n, name, 80 * GIB, free_bytes) for n in range(count))
    return Machine("cuda" if count else "cpu", devices, "CPU", 2, 64 * GIB, 32 * GIB)


def needs(count: int, used_bytes: int) -> Callable[[dict[str, Any]], None]:
    """A change of launch.json: so many devices, so much of each."""

    def change(data: dict[str, Any]) -> None:
        of_device = {"runtime": "cuda", "device": "h100-sxm", "title": "H100", "names": [H100]}
        amounts = {"count": count, "memory_bytes": 80 * GIB, "used_bytes": used_bytes}
        data["needs"] = {**of_device, **amounts}

    return change


@pytest.fixture
def bundle(make_bundle: Callable[..., Bundle]) -> Bundle:
    bundle = make_bundle()
    bundle.edit(needs(4, 60 * GIB))
    bundle.add_fallback("1-fewer-gpus", needs(2, 70 * GIB))
    bundle.add_fallback("2-other-precision", needs(4, 30 * GIB))
    return bundle


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[[Machine], None]:
    def put(here: Machine) -> None:
        for module in (choices, preflight):
            monkeypatch.setattr(module, "detect", lambda: here)

    return put


@pytest.mark.parametrize(
    ("here", "choice"),
    [
        (machine(4), "first"),
        (machine(3), "1-fewer-gpus"),
        (machine(4, free_bytes=40 * GIB), "2-other-precision"),
    ],
)
def test_up_starts_the_first_choice_that_the_machine_holds(bundle, on, capsys, here, choice):
    on(here)
    assert bundle.run("up", "--json", "--no-keep") == 0
    assert json.loads(capsys.readouterr().out)["choice"] == choice
    assert bundle.state()["choice"] == choice
    bundle.run("status")
    assert json.loads(capsys.readouterr().out)["choice"] == choice
    assert bundle.run("up", "--json", "--no-keep") == 0  # again: the same, and not the first
    assert json.loads(capsys.readouterr().out)["already"] is True


def test_what_is_refused_starts_nothing(bundle, on, capsys):
    for here, words, code, says in (
        (machine(1), [], 1, "1 x NVIDIA H100 80GB HBM3; the recipe needs 4 x H100"),
        (machine(3), ["--strict"], 1, "the recipe needs 4 x H100"),
        (machine(4), ["--choice", "../../other"], 2, "first, 1-fewer-gpus, 2-other-precision"),
    ):
        on(here)
        assert bundle.run("up", *words) == code
        assert says in capsys.readouterr().err
        assert not bundle.up
    with socket.create_server(("127.0.0.1", bundle.port)):  # no reason for a fallback
        assert bundle.run("up") == 1
    printed = capsys.readouterr().err
    assert "is in use by another program" in printed
    assert "fallback" not in printed
    bundle.edit(lambda data: data["fallbacks"][0].update(name="../../elsewhere"))
    with pytest.raises(InputError, match="lower-case letters, digits and dashes"):
        load_plan(Path(bundle.root))


def test_a_choice_can_be_named(bundle, on):
    on(machine(4))
    assert bundle.run("up", "--no-keep", "--choice", "1-fewer-gpus") == 0
    assert bundle.state()["choice"] == "1-fewer-gpus"


def behaving(data: dict[str, Any]) -> None:
    """Of a fake server that was told to die."""
    data["processes"][0]["argv"][-1] = "ok"


def test_an_engine_that_dies_at_its_start_makes_way_for_the_next_choice(make_bundle, capsys):
    bundle = make_bundle("--behave", "die")
    bundle.add_fallback("1-other-split", lambda data: None)
    assert bundle.run("up") == 1
    error = capsys.readouterr().err
    assert "server-0 ended before it was ready." in error  # the first choice's own
    assert "Fallbacks failed too: 1-other-split." in error
    assert not bundle.up
    bundle.add_fallback("2-other-split", behaving)
    assert bundle.run("up", "--json") == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["choice"] == "2-other-split"
    assert "taking the fallback 1-other-split (fallback 1-other-split)" in printed.err
    assert "taking the fallback 2-other-split" in printed.err


def test_what_the_machine_refused_is_remembered(bundle, on):
    own = bundle.root / "run"
    assert choices.refused_by_machine(own) is None
    on(machine(3))
    assert bundle.run("up", "--no-keep") == 0
    on(machine(4))  # the device is back before a keeper looks
    assert choices.refused_by_machine(own) is True
    bundle.run("down")
    assert bundle.run("up", "--no-keep") == 0
    assert bundle.state()["choice"] == "first"
