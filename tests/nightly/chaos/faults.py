"""The faults: each does harm, says what must have been noticed, and undoes it.

Most harm something that serves, and a keeper has to answer. Others harm a command.
"""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .trial import PATIENCE_S, Trial, full_disk

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


def _fault(name: str, *needs: str, **settings: object) -> Callable[[Harm], Harm]:
    def register(harm: Harm) -> Harm:
        FAULTS[name] = Fault(name, harm, needs=frozenset(needs), **settings)
        return harm

    return register


def _some(trial: Trial, pids: list[int] | dict[str, int]) -> int | None:
    choices = sorted(pids.values()) if isinstance(pids, dict) else sorted(pids)
    return trial.chance.choice(choices) if choices else None


def _server(trial: Trial) -> int | None:
    return _some(trial, trial.leaders())


def _rank(trial: Trial) -> int | None:
    return _some(trial, trial.ranks())


def _router(trial: Trial) -> int | None:
    return _some(trial, trial.leaders("router"))


def _pause(trial: Trial, least: float, most: float) -> None:
    """A random moment for what follows; whatever it meets must be outlasted."""
    time.sleep(trial.chance.uniform(least, most))


# One process dies or stands still.


def _signals(
    name: str, number: signal.Signals, whom: Callable[[Trial], int | None], *needs: str
) -> None:
    shows = HANGS if number == signal.SIGSTOP else DEATHS

    @_fault(name, *needs, shows=shows)
    def harm(trial: Trial) -> Iterator[None]:
        trial.send(whom(trial), number)
        yield


_signals("kill a server", signal.SIGKILL, _server)
_signals("kill a rank", signal.SIGKILL, _rank, "ranks")
_signals("kill the router", signal.SIGKILL, _router, "router")
_signals("end a server with SIGTERM", signal.SIGTERM, _server)
_signals("stop a server (SIGSTOP)", signal.SIGSTOP, _server)
_signals("stop a rank (SIGSTOP)", signal.SIGSTOP, _rank, "ranks", "fake")
_signals("stop the router (SIGSTOP)", signal.SIGSTOP, _router, "router")


@_fault("kill all that serves", shows=DEATHS)
def kill_all(trial: Trial) -> Iterator[None]:
    for pid in trial.servers():
        trial.send(pid, signal.SIGKILL)
    yield


# The keeper.


@_fault("kill the keeper", up=True)
def kill_keeper(trial: Trial) -> Iterator[None]:
    trial.send(trial.keeper(), signal.SIGKILL)
    yield


@_fault("kill the keeper and a server", up=True)
def kill_keeper_and_server(trial: Trial) -> Iterator[None]:
    pids = [trial.keeper(), _server(trial)]
    trial.chance.shuffle(pids)
    for pid in pids:
        trial.send(pid, signal.SIGKILL)
        _pause(trial, 0, 0.4)
    yield


@_fault("kill the keeper while it restarts", up=True)
def kill_keeper_at_work(trial: Trial) -> Iterator[None]:
    keeper = trial.keeper()
    trial.send(_server(trial), signal.SIGKILL)
    _pause(trial, 0, 1.5)
    trial.send(keeper, signal.SIGKILL)
    yield


@_fault("stop the keeper (SIGSTOP)")
def stop_keeper(trial: Trial) -> Iterator[None]:
    keeper = trial.keeper()
    trial.send(keeper, signal.SIGSTOP)
    _pause(trial, 0, 2)
    yield
    if trial.keeper() == keeper:
        trial.send(keeper, signal.SIGCONT)


@_fault("end the keeper with SIGTERM", shows=frozenset({"drain", "stop"}), up=True)
def term_keeper(trial: Trial) -> Iterator[None]:
    before, keeper = len(trial.events()), trial.keeper()
    trial.send(keeper, signal.SIGTERM)
    trial.wait("the keeper ends", lambda: keeper is None or not Path(f"/proc/{keeper}").exists())
    assert "drained" in trial.kinds(before) or keeper is None
    yield


# The engine does not go on, or ends.


def _noticed(trial: Trial, condition: str, kinds: frozenset[str]) -> Iterator[None]:
    """A condition that is undone once the keeper has noticed it."""
    before = len(trial.events())
    trial.condition(condition)
    trial.wait(f"{condition} is noticed", lambda: kinds & set(trial.kinds(before)))
    yield
    trial.no_condition(condition)


@_fault("no new tokens", "fake", shows=HANGS, heals_itself=True)
def stuck(trial: Trial) -> Iterator[None]:
    yield from _noticed(trial, "stuck", HANGS)


SLOW = frozenset({"slow"})
_GIVES_UP = frozenset({"stopped", "degraded", "recovered"})


@_fault("slow death", "fake", shows=SLOW, ends=_GIVES_UP | {"fell back"}, heals_itself=True)
def slow(trial: Trial) -> Iterator[None]:
    yield from _noticed(trial, "slow", SLOW)


def _ends(name: str, condition: str) -> None:
    @_fault(name, "fake", shows=DEATHS)
    def harm(trial: Trial) -> Iterator[None]:
        trial.condition(condition)
        yield


_ends("out of device memory", "out-of-memory")
_ends("device error", "device-error")
_ends("the engine ends by itself", "end")


@_fault("slow start", "fake", shows=DEATHS)
def slow_start(trial: Trial) -> Iterator[None]:
    trial.condition("slow-start", f"{trial.chance.uniform(0.5, 4):.2f}")
    trial.send(_server(trial), signal.SIGKILL)
    yield
    trial.no_condition("slow-start")


# What is around them: ports, disks, files, versions, devices.


@_fault("port taken for a while", shows=DEATHS, heals_itself=True)
def port_taken(trial: Trial) -> Iterator[None]:
    before = len(trial.events())
    with _taken(trial):
        trial.wait("a restart on it", lambda: trial.kinds(before).count("died") > 1)
        yield


@_fault("port taken for good", shows=DEATHS, ends=_GIVES_UP)
def port_lost(trial: Trial) -> Iterator[None]:
    with _taken(trial):
        yield


def _taken(trial: Trial) -> socket.socket:
    """Kill a server and listen on its port before it is back."""
    name = trial.chance.choice(sorted(trial.leaders()))
    current = trial.state()
    assert current is not None
    port = next(server.port for server in current.servers if server.name == name)
    taken = _listener()

    def bound() -> bool:
        # Where the keeper was quicker, its next start will not be.
        trial.send(trial.leaders().get(name), signal.SIGKILL)
        with suppress(OSError):
            taken.bind(("127.0.0.1", port))
            taken.listen(1)
            return True
        return False

    trial.wait("the port is taken", bound, poll_s=0.005)
    return taken


def _listener() -> socket.socket:
    taken = socket.socket()
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return taken


@_fault("disk full", shows=frozenset({*DEATHS, "keeper_start"}), heals_itself=True)
def disk_full(trial: Trial) -> Iterator[None]:
    with full_disk(trial.pids()):
        trial.send(_server(trial), signal.SIGKILL)
        _pause(trial, 0.5, 3)
        harmed = trial.pids()
    with full_disk(harmed):  # what was started meanwhile may write again afterwards, too
        pass
    yield


def _garble(trial: Trial) -> None:
    """Turn the first bits of the weights around; twice is as before. They are mapped, so stay."""
    with (trial.deployment.model / "model.safetensors").open("r+b") as file:
        start = file.read(4096)
        file.seek(0)
        file.write(bytes(byte ^ 0xFF for byte in start))


@_fault("weights damaged", shows=DEATHS, ends=_GIVES_UP)
def weights(trial: Trial) -> Iterator[None]:
    _garble(trial)
    trial.send(_server(trial), signal.SIGKILL)
    yield
    _garble(trial)


@_fault("another version installed", "fake", shows=DEATHS, ends=_GIVES_UP)
def version(trial: Trial) -> Iterator[None]:
    trial.condition("version", "engine 2.0\n")
    trial.send(_server(trial), signal.SIGKILL)
    yield
    trial.condition("version", "engine 1.0\n")


def _devices(trial: Trial, count: int, error_share: float, most_s: float = 0.0) -> Iterator[None]:
    """There are fewer; what computes on a lost one notices, an idle server may not."""
    trial.condition("devices", "GPU\n" * count)
    if trial.chance.random() < error_share:
        trial.condition("device-error")
    _pause(trial, 0, most_s)
    yield
    trial.condition("devices", "GPU\nGPU\n")


_SMALLER = frozenset({"fell back", "recovered"})


@_fault("a device is lost", "devices", shows=DEATHS, ends=_SMALLER)
def device_lost(trial: Trial) -> Iterator[None]:
    yield from _devices(trial, 1, 0.7)


@_fault("a device is lost and found", "devices", shows=DEATHS, ends=_SMALLER, heals_itself=True)
def device_flaps(trial: Trial) -> Iterator[None]:
    yield from _devices(trial, 1, 1, most_s=4)


@_fault("all devices are lost", "devices", shows=DEATHS, ends=_GIVES_UP)
def all_devices_lost(trial: Trial) -> Iterator[None]:
    yield from _devices(trial, 0, 1)


# Commands that are cut short.


def _cut(command: str, number: signal.Signals | None, most_s: float) -> Harm:
    def harm(trial: Trial) -> Iterator[None]:
        if command == "up":
            trial.require("down")
        process = trial.spawn(command)
        _pause(trial, 0, most_s)
        process.send_signal(number or trial.chance.choice(list(ENDS)))
        process.communicate(timeout=PATIENCE_S)
        yield

    return harm


ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_fault("kill up while it starts", up=True)(_cut("up", signal.SIGKILL, 2))
_fault("interrupt up while it starts", up=True)(_cut("up", None, 2))
_fault("kill down while it stops", up=True)(_cut("down", signal.SIGKILL, 1))


# `up` where it cannot be done.

_REFUSED = frozenset({"refused"})


@_fault("up on a taken port", ends=_REFUSED)
def up_on_taken_port(trial: Trial) -> Iterator[None]:
    trial.require("down")
    with _listener() as taken:
        taken.bind(("127.0.0.1", trial.deployment.bundle.port))
        taken.listen(1)
        yield


@_fault("up on a full disk", ends=_REFUSED)
def up_on_full_disk(trial: Trial) -> Iterator[None]:
    trial.require("down")
    yield


@_fault("up with damaged weights", ends=_REFUSED)
def up_with_damaged_weights(trial: Trial) -> Iterator[None]:
    trial.require("down")
    _garble(trial)
    yield
    _garble(trial)


@_fault("up without devices", "devices", ends=_REFUSED)
def up_without_devices(trial: Trial) -> Iterator[None]:
    trial.require("down")
    yield from _devices(trial, 0, 0)


@_fault("up on fewer devices", "devices", ends=frozenset({"fell back"}), up=True)
def up_on_fewer_devices(trial: Trial) -> Iterator[None]:
    trial.require("down")
    yield from _devices(trial, 1, 0)
