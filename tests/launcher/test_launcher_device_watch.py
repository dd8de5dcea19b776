"""Devices that get lost and are found again, by a vendor's tool that lies on PATH."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recipe_core.launcher import machine_watch
from recipe_core.launcher.choices import choices
from recipe_core.launcher.machine import Device, Machine
from recipe_core.launcher.machine_watch import MachineWatch, freed
from recipe_core.launcher.plan import load_plan
from recipe_core.launcher.supervision import Supervision
from tests.fixtures.bundles import Bundle
from tests.fixtures.kept import happened, kept, kill, servers, serves, status, until

GIB = 1 << 30
NAME = "NVIDIA H100 80GB HBM3"
TOOL = """#!/bin/sh
n=$(cat {count})
while [ "$n" -gt 0 ]; do echo "{name}, 81559, 81000"; n=$((n - 1)); done
"""


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets how many devices the machine has."""
    tools, count = tmp_path / "tools", tmp_path / "count"
    tools.mkdir()
    (tools / "nvidia-smi").write_text(TOOL.format(count=count, name=NAME))
    (tools / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")

    def put(number: int) -> None:
        count.with_name("new").write_text(str(number))
        count.with_name("new").replace(count)

    put(2)
    return put


def on_devices(count: int) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        size = {"memory_bytes": 79 * GIB, "used_bytes": 60 * GIB}
        kind = {"runtime": "cuda", "device": "h100-sxm", "title": "H100", "names": [NAME]}
        data["needs"] = {**kind, "count": count, **size}

    return change


@pytest.fixture
def gpus(make_bundle: Callable[..., Bundle], devices: Callable[[int], None]) -> Bundle:
    """Two devices, or one with the fallback."""
    bundle = make_bundle()
    bundle.edit(on_devices(2))
    return bundle


def test_a_lost_device_takes_the_fallback_until_it_is_found(
    gpus: Bundle, devices: Callable[[int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    kept(gpus, stable_s=0.5, poll_s=0.05)
    gpus.add_fallback("1-fewer-gpus", on_devices(1))
    assert gpus.run("up") == 0
    devices(1)
    kill(servers(gpus)["server-0"])
    until(lambda: serves(gpus) and gpus.state()["choice"] == "1-fewer-gpus")
    (fallback,) = happened(gpus, "fallback")
    assert fallback["reason"] == f"1 x {NAME}; the recipe needs 2 x H100"
    assert happened(gpus, "device_lost")
    answer = status(gpus, capsys)
    assert (answer["state"], answer["choice"]) == ("up", "1-fewer-gpus")
    devices(2)
    until(lambda: serves(gpus) and gpus.state()["choice"] == "first")
    assert happened(gpus, "device_found")
    (event,) = happened(gpus, "first_choice")
    assert (event["from"], event["to"]) == ("1-fewer-gpus", "first")
    assert happened(gpus, "drained")


def test_without_a_fallback_it_stops_and_says_which_device_is_missing(
    gpus: Bundle, devices: Callable[[int], None]
) -> None:
    kept(gpus).run("up")
    devices(1)
    kill(servers(gpus)["server-0"])
    until(lambda: not gpus.up)
    (event,) = happened(gpus, "gave_up")
    assert event["reason"] == f"1 x {NAME}; the recipe needs 2 x H100"
    assert not happened(gpus, "restart")


def test_strict_takes_no_fallback(gpus: Bundle, devices: Callable[[int], None]) -> None:
    kept(gpus)
    gpus.add_fallback("1-fewer-gpus", on_devices(1))
    gpus.run("up", "--strict")
    devices(1)
    kill(servers(gpus)["server-0"])
    until(lambda: not gpus.up)
    assert not happened(gpus, "fallback")


def test_a_device_that_is_lost_while_all_serves_is_only_noted(
    gpus: Bundle, devices: Callable[[int], None]
) -> None:
    kept(gpus, poll_s=0.05).run("up")
    before = servers(gpus)
    devices(1)
    until(lambda: happened(gpus, "device_lost"))
    devices(2)
    until(lambda: happened(gpus, "device_found"))
    assert servers(gpus) == before


def test_memory_of_what_runs_counts_as_free(gpus: Bundle) -> None:
    needs = load_plan(gpus.root).needs
    device = Device(0, NAME, 80 * GIB, 15 * GIB)
    here = Machine("cuda", (device,), "CPU", 2, 64 * GIB, 32 * GIB)
    assert freed(here, needs).devices[0].free_bytes == 75 * GIB
    full = Machine("cuda", (Device(0, NAME, 80 * GIB, 50 * GIB),), "CPU", 2, 64 * GIB, 32 * GIB)
    assert freed(full, needs).devices[0].free_bytes == 80 * GIB


def test_a_tool_that_fails_once_is_asked_again(
    gpus: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = load_plan(gpus.root)
    whole = tuple(Device(n, NAME, 80 * GIB) for n in range(2))
    answers = [
        Machine("cpu", (), "CPU", 2, 64 * GIB, 32 * GIB, ("nvidia-smi: timed out",)),
        Machine("cuda", whole, "CPU", 2, 64 * GIB, 32 * GIB),
    ]
    monkeypatch.setattr(machine_watch, "detect", lambda: answers.pop(0))
    watch = MachineWatch(choices(plan), Supervision())
    assert watch.misfit_now(plan, choices(plan)) is None
    watch.close()
