"""The faults: each does harm, says what must have been noticed, and undoes it.

Most harm something that serves, and a keeper has to answer. Others harm a command.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from .trial import Trial, full_disk

Harm = Callable[[Trial], Iterator[None]]
DEATHS = frozenset({"died", "killed", "device_lost", "hung"})
HANGS = frozenset({"hung", "died", "killed"})


@dataclass(frozen=True, slots=True)
class Fault:
    """``harm`` does it up to its `yield`, and undoes it after.

    ``shows``: kinds of events of which one must follow; empty where there need be none.
    ``needs``: features of a deployment. ``ends``: the outcomes that are right.
    ``heals_itself``: what a keeper cannot outlast is undone before an end is awaited.
    ``up``: the next `up` is a part of the recovery (nobody supervises until then).
    """

    name: str
    harm: Harm
    shows: frozenset[str] = frozenset()
    needs: frozenset[str] = frozenset()
    ends: frozenset[str] = frozenset({"recovered"})
    heals_itself: bool = False
    up: bool = False


FAULTS: dict[str, Fault] = {}


def _fault(name: str, **settings: object) -> Callable[[Harm], Harm]:
    def register(harm: Harm) -> Harm:
        FAULTS[name] = Fault(name, harm, **settings)  # type: ignore[arg-type]
        return harm

    return register


def _needs(*features: str) -> frozenset[str]:
    return frozenset(features)


def _some(trial: Trial, pids: list[int] | dict[str, int]) -> int | None:
    choices = sorted(pids.values()) if isinstance(pids, dict) else sorted(pids)
    return trial.chance.choice(choices) if choices else None


# Processes that die


@_fault("kill a server", shows=DEATHS)
def kill_server(trial: Trial) -> Iterator[None]:
    trial.send(_some(trial, trial.leaders()), signal.SIGKILL)
    yield


@_fault("kill a rank", shows=DEATHS, needs=_needs("ranks"))
def kill_rank(trial: Trial) -> Iterator[None]:
    trial.send(_some(trial, trial.ranks()), signal.SIGKILL)
    yield


@_fault("kill the router", shows=DEATHS, needs=_needs("router"))
def kill_router(trial: Trial) -> Iterator[None]:
    trial.send(_some(trial, trial.leaders("router")), signal.SIGKILL)
    yield


@_fault("kill all that serves", shows=DEATHS)
def kill_all(trial: Trial) -> Iterator[None]:
    for pid in trial.servers():
        trial.send(pid, signal.SIGKILL)
    yield


@_fault("end a server with SIGTERM", shows=DEATHS)
def term_server(trial: Trial) -> Iterator[None]:
    trial.send(_some(trial, trial.leaders()), signal.SIGTERM)
    yield


@_fault("kill the keeper", up=True)
def kill_keeper(trial: Trial) -> Iterator[None]:
    trial.send(trial.keeper(), signal.SIGKILL)
    yield


@_fault("kill the keeper and a server", up=True)
def kill_keeper_and_server(trial: Trial) -> Iterator[None]:
    pids = [trial.keeper(), _some(trial, trial.leaders())]
    trial.chance.shuffle(pids)
    for pid in pids:
        trial.send(pid, signal.SIGKILL)
        time.sleep(trial.chance.uniform(0, 0.4))
    yield


@_fault("kill the keeper while it restarts", up=True)
def kill_keeper_at_work(trial: Trial) -> Iterator[None]:
    keeper = trial.keeper()
    trial.send(_some(trial, trial.leaders()), signal.SIGKILL)
    time.sleep(trial.chance.uniform(0, 1.5))
    trial.send(keeper, signal.SIGKILL)
    yield


# Processes that stand still


@_fault("stop a server (SIGSTOP)", shows=HANGS)
def stop_server(trial: Trial) -> Iterator[None]:
    trial.send(_some(trial, trial.leaders()), signal.SIGSTOP)
    yield


@_fault("stop a rank (SIGSTOP)", shows=HANGS, needs=_needs("ranks", "fake"))
def stop_rank(trial: Trial) -> Iterator[None]:
    trial.send(_some(trial, trial.ranks()), signal.SIGSTOP)
    yield


@_fault("stop the router (SIGSTOP)", shows=HANGS, needs=_needs("router"))
def stop_router(trial: Trial) -> Iterator[None]:
    trial.send(_some(trial, trial.leaders("router")), signal.SIGSTOP)
    yield


@_fault("stop the keeper (SIGSTOP)")
def stop_keeper(trial: Trial) -> Iterator[None]:
    keeper = trial.keeper()
    trial.send(keeper, signal.SIGSTOP)
    time.sleep(trial.chance.uniform(0, 2))
    yield
    if trial.keeper() == keeper:
        trial.send(keeper, signal.SIGCONT)


@_fault("no new tokens", shows=HANGS, needs=_needs("fake"), heals_itself=True)
def stuck(trial: Trial) -> Iterator[None]:
    before = len(trial.events())
    trial.condition("stuck")
    trial.wait("a hang is noticed", lambda: HANGS & set(trial.kinds(before)))
    yield
    trial.no_condition("stuck")


@_fault(
    "slow death",
    shows=frozenset({"slow"}),
    needs=_needs("fake"),
    ends=frozenset({"recovered", "fell back", "stopped", "degraded"}),
    heals_itself=True,
)
def slow(trial: Trial) -> Iterator[None]:
    before = len(trial.events())
    trial.condition("slow")
    trial.wait("slowness is noticed", lambda: "slow" in trial.kinds(before))
    yield
    trial.no_condition("slow")


# Engines that end


@_fault("out of device memory", shows=DEATHS, needs=_needs("fake"))
def out_of_memory(trial: Trial) -> Iterator[None]:
    trial.condition("out-of-memory")
    yield


@_fault("device error", shows=DEATHS, needs=_needs("fake"))
def device_error(trial: Trial) -> Iterator[None]:
    trial.condition("device-error")
    yield


@_fault("the engine ends by itself", shows=DEATHS, needs=_needs("fake"))
def ends(trial: Trial) -> Iterator[None]:
    trial.condition("end")
    yield


@_fault("slow start", shows=DEATHS, needs=_needs("fake"))
def slow_start(trial: Trial) -> Iterator[None]:
    trial.condition("slow-start", f"{trial.chance.uniform(0.5, 4):.2f}")
    trial.send(_some(trial, trial.leaders()), signal.SIGKILL)
    yield
    trial.no_condition("slow-start")


# What is around them


@_fault("port taken for a while", shows=DEATHS, ends=frozenset({"recovered"}), heals_itself=True)
def port_taken(trial: Trial) -> Iterator[None]:
    before = len(trial.events())
    with _taken(trial):
        trial.wait("a restart on it", lambda: trial.kinds(before).count("died") > 1)
        yield


@_fault("port taken for good", shows=DEATHS, ends=frozenset({"stopped", "degraded", "recovered"}))
def port_lost(trial: Trial) -> Iterator[None]:
    with _taken(trial):
        yield


def _taken(trial: Trial) -> ExitStack:
    """Kill a server and listen on its port before it is back."""
    leaders = trial.leaders()
    name = trial.chance.choice(sorted(leaders))
    current = trial.state()
    assert current is not None
    port = next(server.port for server in current.servers if server.name == name)
    holding = ExitStack()
    taken = holding.enter_context(socket.socket())
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    trial.send(leaders[name], signal.SIGKILL)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with suppress(OSError):
            taken.bind(("127.0.0.1", port))
            taken.listen(1)
            return holding
        time.sleep(0.005)  # it was quicker: its next start will not be
        trial.send(trial.leaders().get(name), signal.SIGKILL)
    return holding


@_fault("disk full", shows=frozenset({*DEATHS, "keeper_start"}), heals_itself=True)
def disk_full(trial: Trial) -> Iterator[None]:
    with full_disk(trial.pids()):
        trial.send(_some(trial, trial.leaders()), signal.SIGKILL)
        time.sleep(trial.chance.uniform(0.5, 3))
        harmed = trial.pids()
    with full_disk(harmed):  # what was started meanwhile may write again afterwards, too
        pass
    yield


def _garble(path: Path) -> None:
    """Turn the first bits of a file around; twice is as it was. Its length stays: it is mapped."""
    with path.open("r+b") as file:
        start = file.read(4096)
        file.seek(0)
        file.write(bytes(byte ^ 0xFF for byte in start))


_WEIGHTS_LOST = frozenset({"stopped", "degraded", "recovered"})


@_fault("weights damaged", shows=DEATHS, ends=_WEIGHTS_LOST)
def weights(trial: Trial) -> Iterator[None]:
    path = trial.deployment.model / "model.safetensors"
    _garble(path)
    trial.send(_some(trial, trial.leaders()), signal.SIGKILL)
    yield
    _garble(path)


@_fault("another version installed", shows=DEATHS, needs=_needs("fake"), ends=_WEIGHTS_LOST)
def version(trial: Trial) -> Iterator[None]:
    trial.condition("version", "engine 2.0\n")
    trial.send(_some(trial, trial.leaders()), signal.SIGKILL)
    yield
    trial.condition("version", "engine 1.0\n")


_SMALLER = frozenset({"fell back", "recovered"})


@_fault("a device is lost", shows=DEATHS, needs=_needs("devices"), ends=_SMALLER)
def device_lost(trial: Trial) -> Iterator[None]:
    trial.condition("devices", "GPU\n")
    if trial.chance.random() < 0.7:  # what computes on it notices; an idle server may not
        trial.condition("device-error")
    yield
    trial.condition("devices", "GPU\nGPU\n")


@_fault(
    "a device is lost and found",
    shows=DEATHS,
    needs=_needs("devices"),
    ends=_SMALLER,
    heals_itself=True,
)
def device_flaps(trial: Trial) -> Iterator[None]:
    trial.condition("devices", "GPU\n")
    trial.condition("device-error")
    time.sleep(trial.chance.uniform(0, 4))
    yield
    trial.condition("devices", "GPU\nGPU\n")


@_fault("all devices are lost", shows=DEATHS, needs=_needs("devices"), ends=_WEIGHTS_LOST)
def all_devices_lost(trial: Trial) -> Iterator[None]:
    trial.condition("devices", "")
    trial.condition("device-error")
    yield
    trial.condition("devices", "GPU\nGPU\n")


# Commands that are cut short


@_fault("kill up while it starts", up=True)
def kill_up(trial: Trial) -> Iterator[None]:
    trial.require("down")
    starting = trial.spawn("up")
    time.sleep(trial.chance.uniform(0, 2))
    starting.kill()
    starting.communicate()
    yield


@_fault("interrupt up while it starts", up=True)
def interrupt_up(trial: Trial) -> Iterator[None]:
    trial.require("down")
    starting = trial.spawn("up")
    time.sleep(trial.chance.uniform(0, 2))
    starting.send_signal(trial.chance.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP]))
    starting.communicate(timeout=120)
    yield


@_fault("kill down while it stops", up=True)
def kill_down(trial: Trial) -> Iterator[None]:
    stopping = trial.spawn("down")
    time.sleep(trial.chance.uniform(0, 1))
    stopping.kill()
    stopping.communicate()
    yield


@_fault("end the keeper with SIGTERM", shows=frozenset({"drain", "stop"}), up=True)
def term_keeper(trial: Trial) -> Iterator[None]:
    before = len(trial.events())
    keeper = trial.keeper()
    trial.send(keeper, signal.SIGTERM)
    trial.wait("the keeper ends", lambda: keeper is None or not _lives(keeper))
    assert "drained" in trial.kinds(before) or keeper is None
    yield


def _lives(pid: int) -> bool:
    with suppress(OSError):
        os.kill(pid, 0)
        return True
    return False


@_fault("up on a taken port", ends=frozenset({"refused"}))
def up_on_taken_port(trial: Trial) -> Iterator[None]:
    trial.require("down")
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", trial.deployment.bundle.port))
        taken.listen(1)
        yield


@_fault("up on a full disk", ends=frozenset({"refused"}))
def up_on_full_disk(trial: Trial) -> Iterator[None]:
    trial.require("down")
    yield


@_fault("up with damaged weights", ends=frozenset({"refused"}))
def up_with_damaged_weights(trial: Trial) -> Iterator[None]:
    trial.require("down")
    path = trial.deployment.model / "model.safetensors"
    _garble(path)
    yield
    _garble(path)


@_fault("up without devices", needs=_needs("devices"), ends=frozenset({"refused"}))
def up_without_devices(trial: Trial) -> Iterator[None]:
    trial.require("down")
    trial.condition("devices", "")
    yield
    trial.condition("devices", "GPU\nGPU\n")


@_fault("up on fewer devices", needs=_needs("devices"), ends=frozenset({"fell back"}), up=True)
def up_on_fewer_devices(trial: Trial) -> Iterator[None]:
    trial.require("down")
    trial.condition("devices", "GPU\n")
    yield
    trial.condition("devices", "GPU\nGPU\n")
