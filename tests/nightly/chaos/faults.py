"""The faults: each does harm, says what must have been noticed, and undoes it; then it is judged.

Most harm something that serves, and a keeper has to answer. Others harm a command.
"""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from .deployments import LIMITS
from .trial import PATIENCE_S, LateError, Trial, full_disk

Harm = Callable[[Trial], Iterator[None]]
DEATHS = frozenset({"died", "killed", "device_lost", "hung"})
HANGS = frozenset({"hung", "died", "killed"})
SLOW = frozenset({"slow"})
GIVES_UP = frozenset({"stopped", "degraded", "recovered"})
SMALLER = frozenset({"fell back", "recovered"})
REFUSED = frozenset({"refused"})


@dataclass(frozen=True, slots=True)
class Fault:
    """``harm`` does it up to its `yield`, and undoes it after.

    ``shows``: kinds of events of which one must follow; empty where there need be none.
    ``needs``: features of a deployment. ``ends``: the outcomes that are right.
    ``heals_itself``: what a keeper cannot outlast is undone before an end is awaited.
    ``down``: everything is stopped first. ``up``: the next `up` is a part of the recovery.
    """

    name: str
    harm: Harm
    needs: frozenset[str] = frozenset()
    shows: frozenset[str] = frozenset()
    ends: frozenset[str] = frozenset({"recovered"})
    heals_itself: bool = False
    down: bool = False
    up: bool = False


FAULTS: dict[str, Fault] = {}


def fault(name: str, *needs: str, **settings: Any) -> Callable[[Harm], Harm]:
    def register(harm: Harm) -> Harm:
        FAULTS[name] = Fault(name, harm, frozenset(needs), **settings)
        return harm

    return register


def _some(trial: Trial, pids: list[int]) -> list[int]:
    return [trial.chance.choice(sorted(pids))] if pids else []


def _server(trial: Trial) -> list[int]:
    return _some(trial, [*trial.leaders().values()])


def _rank(trial: Trial) -> list[int]:
    return _some(trial, trial.ranks())


def _router(trial: Trial) -> list[int]:
    return _some(trial, [*trial.leaders("router").values()])


def _keeper(trial: Trial) -> list[int]:
    return [pid for pid in [trial.keeper()] if pid]


def _kill_server(trial: Trial) -> None:
    for pid in _server(trial):
        trial.send(pid, signal.SIGKILL)


def _pause(trial: Trial, least: float, most: float) -> None:
    """A random moment for what follows; whatever it meets must be outlasted."""
    time.sleep(trial.chance.uniform(least, most))


# Processes die or stand still, one after the other.


def _signals(
    name: str,
    number: signal.Signals,
    *whom: Callable[[Trial], list[int]],
    needs: tuple[str, ...] = (),
    pause_s: float = 0.0,
    **settings: Any,
) -> None:
    @fault(name, *needs, **settings)
    def harm(trial: Trial) -> Iterator[None]:
        for pid in [pid for pids in whom for pid in pids(trial)]:
            trial.send(pid, number)
            _pause(trial, 0, pause_s)
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
_signals("kill the keeper", KILL, _keeper, up=True)
_signals("kill the keeper and a server", KILL, _keeper, _server, pause_s=0.4, up=True)
_signals("kill the keeper while it restarts", KILL, _server, _keeper, pause_s=1.5, up=True)


@fault("stop the keeper (SIGSTOP)")
def stop_keeper(trial: Trial) -> Iterator[None]:
    keeper = trial.keeper()
    trial.send(keeper, STOP)
    _pause(trial, 0, 2)
    yield
    if trial.keeper() == keeper:
        trial.send(keeper, signal.SIGCONT)


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
            _kill_server(trial)
        if settings.get("heals_itself"):
            trial.wait(f"{condition} is noticed", lambda: shows & set(trial.kinds(before)))
        yield
        trial.condition(condition, usual)


_told("no new tokens", "stuck", shows=HANGS, heals_itself=True)
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
        _kill_server(trial)
        _pause(trial, 0.5, 3)
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
    _kill_server(trial)
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
        _pause(trial, 0, most_s)
        yield
        trial.condition("devices", "GPU\nGPU\n")


LOST = {"shows": DEATHS, "ends": SMALLER}
_devices("a device is lost", 1, 0.7, **LOST)
_devices("a device is lost and found", 1, 1, 4, heals_itself=True, **LOST)
_devices("all devices are lost", 0, 1, shows=DEATHS, ends=GIVES_UP)
_devices("up without devices", 0, 0, ends=REFUSED, down=True)
_devices("up on fewer devices", 1, 0, ends=frozenset({"fell back"}), down=True, up=True)


# Commands that are cut short.


def _cut(name: str, command: str, most_s: float, *numbers: signal.Signals) -> None:
    @fault(name, down=command == "up", up=True)
    def harm(trial: Trial) -> Iterator[None]:
        process = trial.spawn(command)
        _pause(trial, 0, most_s)
        process.send_signal(trial.chance.choice(numbers))
        process.communicate(timeout=PATIENCE_S)
        yield


_cut("kill up while it starts", "up", 2, KILL)
_cut("interrupt up while it starts", "up", 2, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_cut("kill down while it stops", "down", 1, KILL)


@dataclass
class Result:
    """What became of one fault; ``seconds`` from the harm to serving again."""

    fault: str
    deployment: str
    outcome: str = "?"
    cause: str = ""
    seconds: float | None = None
    findings: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)


def play(trial: Trial, fault: Fault) -> Result:
    """One fault, to a deployment that serves; afterwards it serves again, undisturbed."""
    result = Result(fault.name, trial.deployment.kind)
    before, began = len(trial.events()), time.monotonic()
    harm = fault.harm(trial)
    try:
        if fault.down:
            trial.require("down")
        next(harm)
        if fault.heals_itself:
            next(harm, None)
        result.outcome = _outcome(trial, fault, before, result)
        if result.outcome in ("recovered", "fell back"):
            result.seconds = round(time.monotonic() - began, 3)
        result.findings += trial.lies()
        next(harm, None)
        _again(trial, fault, result)
    except LateError as error:
        result.outcome = "late"
        result.findings.append(str(error))
    finally:
        with suppress(Exception):
            next(harm, None)
    happened = trial.events(before)
    result.events = [str(event["event"]) for event in happened]
    result.cause = result.cause or _cause(happened)
    result.findings += _unexplained(fault, result, budget_spent=_spent(trial))
    return result


def _outcome(trial: Trial, fault: Fault, before: int, result: Result) -> str:
    """Wait for an end: serving, stopped, or refused."""
    if fault.ends == {"refused"}:
        full = 0 if fault.name == "up on a full disk" else None
        code, text = trial.run("up", file_bytes=full)
        lines = [line for line in text.splitlines() if line.startswith("launch: ")]
        result.cause = lines[-1] if lines else ""
        return "refused" if code == 1 and lines else f"up gave {code}"
    if fault.shows:
        # An event may be lost on a full disk: that all serve again is enough there.
        trial.wait(f"one of {sorted(fault.shows)}", lambda: fault.shows & set(trial.kinds(before)))
    if fault.up:
        trial.require("up")
    trial.wait("an end", lambda: _ended(trial, before))
    current = trial.state()
    if current is None or current.parked:
        return "degraded" if current else "stopped"
    return "recovered" if current.choice == "first" else "fell back"


def _ended(trial: Trial, before: int) -> bool:
    """Whether it serves again, after what happened was noticed, or was given up."""
    kinds = trial.kinds(before)
    if "gave_up" in kinds:
        current = trial.state()
        if current is None or current.parked:  # everything is stopped, or one of several replicas
            return current is not None or trial.keeper() is None
    if not trial.serves():
        return False
    # A device that is lost is noted; what still serves is not stopped for it.
    troubles = [n for n, kind in enumerate(kinds) if kind in (DEATHS | SLOW) - {"device_lost"}]
    calm = [n for n, kind in enumerate(kinds) if kind in ("ready", "keeper_start", "device_found")]
    return not troubles or bool(calm and calm[-1] > troubles[0])


def _again(trial: Trial, fault: Fault, result: Result) -> None:
    """With the fault undone `up` works, and brings the first choice."""
    trial.require("up")
    trial.wait("it serves again", trial.serves)
    if not _first(trial):
        # The keeper returns by itself once the device has been there for a while; not where the
        # choice was left for another reason.
        if "devices" in trial.deployment.features and "device" in fault.name:
            trial.wait("the first choice again", lambda: _first(trial) and trial.serves())
        else:
            trial.require("down")
            trial.require("up")
    if trial.keeper() is None:
        result.findings.append("nobody supervises after up")
    result.findings += trial.lies()


def _first(trial: Trial) -> bool:
    current = trial.state()
    return current is not None and current.choice == "first"


def _cause(happened: list[dict[str, Any]]) -> str:
    """The last cause that events name."""
    kinds = DEATHS | SLOW | {"gave_up", "fallback"}
    named = [event for event in reversed(happened) if event["event"] in kinds]
    causes = (event.get("cause") or event.get("reason") for event in named)
    return next((str(cause) for cause in causes if cause), "")


def _spent(trial: Trial) -> bool:
    """Whether faults before this one, too, have used up the budget of crashes."""
    newest = datetime.now(UTC) - timedelta(seconds=LIMITS["window_s"] + PATIENCE_S)
    failures = [event["time"] for event in trial.events() if event["event"] in DEATHS | SLOW]
    late = [time for time in failures if datetime.fromisoformat(time) > newest]
    return len(late) > LIMITS["crash_budget"]


def _unexplained(fault: Fault, result: Result, *, budget_spent: bool) -> list[str]:
    """What neither events nor the command's own words explain."""
    found = []
    ends = fault.ends | ({"stopped", "degraded", "fell back"} if budget_spent else set())
    if result.outcome not in ends and result.outcome != "late":
        found.append(f"unexpected outcome: {result.outcome}")
    if fault.shows and not fault.shows & set(result.events):
        found.append("unexplained: no event shows it")
    if result.outcome not in ("recovered", "late") and result.cause in ("unknown", ""):
        found.append(f"unexplained: {result.outcome} without a cause")
    return found
