"""The faults: each does harm, says what must have been noticed, and undoes it; then it is judged.

Most harm something that serves, and a keeper has to answer. Others harm a command.
"""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.nightly.attack.launcher.trial import Trial, full_disk

Harm = Callable[[Trial], Iterator[None]]
DEATHS = frozenset({"died", "killed", "device_lost", "hung"})
HANGS = frozenset({"hung", "died", "killed"})
SLOW = frozenset({"slow"})
GIVES_UP = frozenset({"stopped", "degraded", "recovered"})
EITHER = frozenset({"refused", "recovered"})
SMALLER = frozenset({"fell back", "recovered"})
REFUSED = frozenset({"refused"})


@dataclass(frozen=True, slots=True)
class Fault:
    """``harm`` does it up to its `yield`, and undoes it after.

    ``shows``: kinds of events of which one must follow; empty where there need be none.
    ``needs``: features of a deployment. ``ends``: the outcomes that are right.
    ``heals_itself``: what a keeper cannot outlast is undone before an end is awaited.
    ``down``: everything is stopped first. ``up``: the next `up` is a part of the recovery.
    ``alone``: a launcher that is wrong would end processes of others; only where there are none.
    """

    name: str
    harm: Harm
    needs: frozenset[str] = frozenset()
    shows: frozenset[str] = frozenset()
    ends: frozenset[str] = frozenset({"recovered"})
    heals_itself: bool = False
    down: bool = False
    up: bool = False
    alone: bool = False


FAULTS: dict[str, Fault] = {}


def fault(name: str, *needs: str, **settings: Any) -> Callable[[Harm], Harm]:
    """Register a harm for deployments that have what it ``needs``; servers, unless it says so."""
    wanted = {*needs} if {"any", "training"} & {*needs} else {"serving", *needs}

    def register(harm: Harm) -> Harm:
        FAULTS[name] = Fault(name, harm, frozenset(wanted - {"any"}), **settings)
        return harm

    return register


def _some(trial: Trial, pids: list[int]) -> list[int]:
    return [trial.chance.choice(sorted(pids))] if pids else []


def _server(trial: Trial) -> list[int]:
    return _some(trial, [*trial.leaders().values()])


def _rank(trial: Trial) -> list[int]:
    return _some(trial, trial.ranks())


def _router(trial: Trial) -> list[int]:
    return _some(trial, [*trial.leaders(routers=True).values()])


def _keeper(trial: Trial) -> list[int]:
    return [pid for pid in [trial.keeper()] if pid]


def kill_server(trial: Trial) -> None:
    for pid in _server(trial):
        trial.send(pid, signal.SIGKILL)


def pause(trial: Trial, least: float, most: float) -> None:
    """A random moment for what follows; whatever it meets must be outlasted."""
    time.sleep(trial.chance.uniform(least, most * trial.deployment.slowness))


# Processes die or stand still, one after the other.


def _signals(
    name: str,
    number: signal.Signals,
    *whom: Callable[[Trial], list[int]],
    needs: tuple[str, ...] = (),
    pause_s: float = 0.0,
    busy: bool = False,
    **settings: Any,
) -> None:
    """Signals one after the other; ``busy``: requests run meanwhile, and before."""

    @fault(name, *needs, **settings)
    def harm(trial: Trial) -> Iterator[None]:
        with trial.requests() if busy else nullcontext():
            pause(trial, 0.5 * busy, 3 * busy)
            for pid in [pid for pids in whom for pid in pids(trial)]:
                trial.send(pid, number)
                pause(trial, 0, pause_s)
            yield


KILL, STOP = signal.SIGKILL, signal.SIGSTOP
_signals("kill a server", KILL, _server, shows=DEATHS)
_signals("kill a rank", KILL, _rank, needs=("ranks",), shows=DEATHS)
_signals("kill the router", KILL, _router, needs=("router",), shows=DEATHS)
_signals("kill all that serves", KILL, Trial.servers, shows=DEATHS)
_signals("end a server with SIGTERM", signal.SIGTERM, _server, shows=DEATHS)
_signals("stop a server (SIGSTOP)", STOP, _server, shows=HANGS)
_signals("stop a rank (SIGSTOP)", STOP, _rank, needs=("ranks", "fake"), shows=HANGS)
_signals("stop the router (SIGSTOP)", STOP, _router, needs=("router",), shows=HANGS)
_signals("kill the keeper", KILL, _keeper, needs=("any",), up=True)
_signals("kill the keeper and a server", KILL, _keeper, _server, pause_s=0.4, up=True)
_signals("kill the keeper while it restarts", KILL, _server, _keeper, pause_s=1.5, up=True)


def _stop_keeper(name: str, *needs: str, kills: bool, **settings: Any) -> None:
    @fault(name, *needs, **settings)
    def harm(trial: Trial) -> Iterator[None]:
        keeper = trial.keeper()
        trial.send(keeper, STOP)
        if kills:
            kill_server(trial)
            words = "status sees that the keeper hangs"
            trial.wait(words, lambda: trial.status().get("supervision") != "supervised", poll_s=0.5)
        else:
            pause(trial, 0, 2)
        yield
        if trial.keeper() == keeper:
            trial.send(keeper, signal.SIGCONT)


_stop_keeper("stop the keeper (SIGSTOP)", "any", kills=False)
_stop_keeper("stop the keeper and kill a server", "any", kills=True, up=True)

# Engines that name their processes themselves, and hide their environment.
for part, whom in (
    ("API server", _server),
    ("engine core", lambda trial: _some(trial, trial.named("VLLM::EngineCore"))),
    ("worker", lambda trial: _some(trial, trial.named("VLLM::Worker"))),
):
    for verb, number, shown in (("kill", KILL, DEATHS), ("stop", STOP, HANGS)):
        for state in ("idle", "busy"):
            settings = {"needs": ("vllm",), "busy": state == "busy", "shows": shown}
            _signals(f"{verb} the {state} {part}", number, whom, **settings)
_signals("kill the busy keeper", KILL, _keeper, busy=True, up=True)


@fault("end the keeper with SIGTERM", shows=frozenset({"drain", "stop"}), up=True)
def term_keeper(trial: Trial) -> Iterator[None]:
    before, keeper = len(trial.events()), trial.keeper()
    trial.send(keeper, signal.SIGTERM)
    trial.wait("the keeper ends", lambda: keeper is None or not Path(f"/proc/{keeper}").exists())
    assert "drained" in trial.kinds(before) or keeper is None
    yield


# The engine is told to fail: it does not go on, ends, starts slowly, or is another version.


def _told(
    name: str,
    condition: str,
    text: str = "",
    usual: str | None = None,
    *,
    kills: bool = False,
    shows: frozenset[str] = DEATHS,
    **settings: Any,
) -> None:
    """Where it heals itself, the condition is undone once the keeper has noticed it."""

    @fault(name, "fake", shows=shows, **settings)
    def harm(trial: Trial) -> Iterator[None]:
        before = len(trial.events())
        trial.condition(condition, text)
        if kills:
            kill_server(trial)
        if settings.get("heals_itself"):
            trial.wait(f"{condition} is noticed", lambda: shows & set(trial.kinds(before)))
        yield
        trial.condition(condition, usual)


_told("no new tokens", "stuck", shows=HANGS, heals_itself=True)
_told("the engine hangs while it is idle", "deaf", shows=HANGS, heals_itself=True)
_told("slow death", "slow", shows=SLOW, ends=GIVES_UP | {"fell back"}, heals_itself=True)
_told("out of device memory", "out-of-memory")
_told("device error", "device-error")
_told("the engine ends by itself", "end")
_told("slow start", "slow-start", "4", kills=True)
NEWER = ("version", "engine 2.0\n", "engine 1.0\n")
_told("another version installed", *NEWER, kills=True, ends=GIVES_UP)


# What is around them: ports, disks, files, devices.


@fault("port taken for a while", shows=DEATHS, heals_itself=True)
def port_taken(trial: Trial) -> Iterator[None]:
    before = len(trial.events())
    with _taken(trial):
        trial.wait("a restart on it", lambda: trial.kinds(before).count("died") > 1)
        yield


@fault("port taken for good", shows=DEATHS, ends=GIVES_UP)
def port_lost(trial: Trial) -> Iterator[None]:
    with _taken(trial):
        yield


def _taken(trial: Trial) -> socket.socket:
    """Kill a server and listen on its port before it is back."""
    name = trial.chance.choice(sorted(trial.leaders()))
    port = next(server.port for server in trial.state().servers if server.name == name)
    taken: list[socket.socket] = []

    def bound() -> bool:
        # Where the keeper was quicker, its next start will not be.
        trial.send(trial.leaders().get(name), KILL)
        with suppress(OSError):
            taken.append(socket.create_server(("127.0.0.1", port)))
        return bool(taken)

    trial.wait("the port is taken", bound, poll_s=0.005)
    return taken[0]


@fault("up on a taken port", ends=REFUSED, down=True)
def up_on_taken_port(trial: Trial) -> Iterator[None]:
    with socket.create_server(("127.0.0.1", trial.deployment.bundle.port)):
        yield


@fault("disk full", shows=DEATHS | {"keeper_start"}, heals_itself=True)
def disk_full(trial: Trial) -> Iterator[None]:
    with full_disk(trial.pids()):
        kill_server(trial)
        pause(trial, 0.5, 3)
        harmed = trial.pids()
    with full_disk(harmed):  # what was started meanwhile may write again afterwards, too
        pass
    yield


@fault("up on a full disk", ends=REFUSED, down=True)
def up_on_full_disk(_: Trial) -> Iterator[None]:
    yield


def _garble(trial: Trial) -> None:
    """Turn the first bits of the weights around; twice is as before. They are mapped, so stay."""
    with (trial.deployment.model / "model.safetensors").open("r+b") as file:
        start = file.read(4096)
        file.seek(0)
        file.write(bytes(byte ^ 0xFF for byte in start))


@fault("weights damaged", shows=DEATHS, ends=GIVES_UP)
@fault("up with damaged weights", ends=REFUSED, down=True)
def damaged_weights(trial: Trial) -> Iterator[None]:
    _garble(trial)
    kill_server(trial)
    yield
    _garble(trial)


def _devices(
    name: str, count: int, error_share: float, most_s: float = 0.0, **settings: Any
) -> None:
    """There are fewer; what computes on a lost one notices, an idle server may not."""

    @fault(name, "devices", **settings)
    def harm(trial: Trial) -> Iterator[None]:
        trial.condition("devices", "GPU\n" * count)
        if trial.chance.random() < error_share:
            trial.condition("device-error")
        pause(trial, 0, most_s)
        yield
        trial.condition("devices", "GPU\nGPU\n")


LOST = {"shows": DEATHS, "ends": SMALLER}
_devices("a device is lost", 1, 0.7, **LOST)
_devices("a device is lost and found", 1, 1, 4, heals_itself=True, **LOST)
_devices("all devices are lost", 0, 1, shows=DEATHS, ends=GIVES_UP)
_devices("up without devices", 0, 0, ends=REFUSED, down=True)
_devices("up on fewer devices", 1, 0, ends=frozenset({"fell back"}), down=True, up=True)


# Commands that are cut short.


def _cut(
    name: str, command: str, most_s: float, *numbers: signal.Signals, busy: bool = False
) -> None:
    @fault(name, "serving" if busy else "any", down=command == "up", up=True)
    def harm(trial: Trial) -> Iterator[None]:
        with trial.requests() if busy else nullcontext():
            process = trial.spawn(*command.split())
            pause(trial, 0, most_s)
            process.send_signal(trial.chance.choice(numbers))
            process.communicate(timeout=trial.patience_s)
            yield


_cut("kill up while it starts", "up", 2, KILL)
_cut("interrupt up while it starts", "up", 2, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_cut("kill up in the foreground", "up --foreground", 2, KILL)
_cut("kill up in the foreground, busy", "up --foreground", 2, KILL, busy=True)
_cut("kill down while it stops", "down", 1, KILL)
