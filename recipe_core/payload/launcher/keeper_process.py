"""The keeper of a bundle as a process: started in the background, asked, dismissed, found dead.

A keeper supervises what its ``up`` started (module ``keeper``).
It is told what to do by signals: SIGUSR1 to leave what runs alone and end, SIGTERM to let requests
finish and stop everything, SIGUSR2 to read a request. Servers do not depend on it: one that is
killed leaves them serving, and the next ``up`` starts another for them.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import events, heartbeat, procs, state
from .errors import LauncherError, StartError
from .files import read_object, tail, write_json
from .limits import Supervision
from .logs import open_log
from .plan import LaunchPlan
from .signals import uninterrupted
from .state import Keeper, State
from .world import HERE, World

LOG = "keeper.log"
LEAVE = signal.SIGUSR1
DRAIN = signal.SIGTERM
READ = signal.SIGUSR2
# The keeper's own port lies so far above the bundle's, whose processes count up from it.
METRICS_OFFSET = 1000
_FAILURES = ("died", "killed", "hung", "slow", "device_lost", "gave_up", "refused")
_REQUEST = "keeper-request.json"
# How long a keeper may take to leave: it may be ending a server, which has its own grace.
_LEAVES_S = 40.0
_STARTS_S = 60.0


def this_keeper(limits: Supervision, metrics_port: int | None = None) -> Keeper:
    """The keeper that this process is."""
    stat, silence_s = procs.read_stat(os.getpid()), heartbeat.silence_s(limits)
    return Keeper(os.getpid(), stat.started if stat else 0, metrics_port, silence_s=silence_s)


def metrics_port(plan: LaunchPlan) -> int:
    """The port of the keeper's ``/healthz`` and ``/metrics``: one that no process here has."""
    base, used_ports = plan.parameters.port, {process.port for process in plan.processes}
    port = base + METRICS_OFFSET if base + METRICS_OFFSET <= 65535 else base - METRICS_OFFSET
    while port in used_ports:
        port -= 1
    return port


def spawn(plan: LaunchPlan, options: Sequence[str], *, world: World = HERE) -> Keeper:
    """Start a keeper in the background for what runs, and wait until it has noted itself.

    ``options`` are words of the command ``keep``. Nobody may hold the lock of the bundle.

    Raises:
        StartError: when it ends, or does not note itself in time; what it kept runs on.
    """
    log = plan.own / LOG
    output = open_log(log, anew=False)
    node = [] if plan.node is None else ["--node", str(plan.node), "--head", plan.parameters.head]
    words = [*_launcher_command(plan.root), "keep", *node, *options]
    # The service manager watches another process than it.
    environment = heartbeat.drop_notify_variables(dict(os.environ))
    with output, uninterrupted():  # whenever this launcher is ended, `down` finds the keeper
        pid, started = world.processes.start(words, cwd=plan.root, env=environment, output=output)
        _note(plan, Keeper(pid, started, watching=False))
    deadline = world.clock.monotonic() + _STARTS_S
    while world.clock.monotonic() < deadline:
        current = state.load_state(plan.own)
        if current is None:  # another launcher's `down` was quicker
            raise _not_started(log, "nothing runs that it could keep")
        keeper = current.keeper
        if keeper is not None and keeper.watching and _alive(world, keeper):
            return keeper
        if world.processes.reap(pid) is not None:
            raise _not_started(log, "it ended")
        world.clock.sleep(0.05)
    world.processes.kill(pid, signal.SIGKILL)
    raise _not_started(log, f"it did not answer for {_STARTS_S:.0f} s")


def _note(plan: LaunchPlan, keeper: Keeper) -> None:
    """Write down a keeper that cannot do so itself yet, unless another command is at the state."""
    with suppress(LauncherError), state.exclusive(plan.own):
        current = state.load_state(plan.own)
        if current is not None and keeper.started:
            state.save_state(plan.own, replace(current, keeper=keeper))


def _not_started(log: Path, reason: str) -> StartError:
    return StartError(
        f"no keeper supervises the servers: {reason}.",
        hint=f"The servers run on; try again with `up`. The end of {log} follows.",
        detail=tail(log, 5),
    )


def _launcher_command(root: Path) -> list[str]:
    """The command of this launcher on a bundle: its own script, or this package from where it is.

    Python writes no compiled copies into a bundle.
    """
    python = [sys.executable, "-B", "-X", f"pycache_prefix={os.devnull}"]
    package = __package__ or ""
    script = root / "launch.py"
    if package == "launcher" and script.is_file():
        return [*python, str(script)]
    code = (
        "import sys; from importlib import import_module; from pathlib import Path; "
        "sys.path.insert(0, sys.argv.pop(1)); root = Path(sys.argv.pop(1)); "
        f"sys.exit(import_module('{package}.main').main(root=root))"
    )
    place = Path(__file__).resolve().parents[len(package.split("."))]
    return (
        [*python, "-P", "-c", code, str(place), str(root)]
        if _SAFE_PATH
        else [*python, "-c", code, str(place), str(root)]
    )


# Whether Python can be told not to look for modules in the current folder.
_SAFE_PATH = sys.version_info >= (3, 11)


def dismiss(keeper: Keeper | None, *, world: World = HERE) -> None:
    """Have a keeper leave what it keeps alone, and wait until it has ended; ends it otherwise.

    Nothing happens where the keeper is this process, or dead.
    """
    if keeper is None or keeper.pid == os.getpid() or not _alive(world, keeper):
        return
    deadline = world.clock.monotonic() + _LEAVES_S
    _signal(world, keeper, LEAVE)
    while _alive(world, keeper) and world.clock.monotonic() < deadline:
        stat = world.processes.read_stat(keeper.pid)
        if stat is not None and stat.state in "Tt":  # stopped: it cannot hear
            break
        world.clock.sleep(0.05)
        world.processes.reap(keeper.pid)
    while _alive(world, keeper):
        _signal(world, keeper, signal.SIGKILL)
        world.clock.sleep(0.05)
        world.processes.reap(keeper.pid)


def _alive(world: World, keeper: Keeper) -> bool:
    return world.processes.alive(keeper.pid, keeper.started)


def _signal(world: World, keeper: Keeper, number: signal.Signals) -> None:
    world.processes.send([(keeper.pid, keeper.started)], number)


def ask_keeper(
    node_folder: Path,
    keeper: Keeper,
    number: signal.Signals,
    *,
    world: World = HERE,
    **request: Any,
) -> None:
    """Leave a request for a keeper, and signal it.

    Raises:
        LauncherError: where the request cannot be written.
    """
    write_json(node_folder / _REQUEST, request)
    _signal(world, keeper, number)


def take_request(node_folder: Path) -> dict[str, Any]:
    """The request that was left, which is then gone; empty where there is none."""
    path = node_folder / _REQUEST
    try:
        return read_object(path) if path.is_file() else {}
    except LauncherError:
        return {}
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def last_event(node_folder: Path) -> dict[str, Any] | None:
    """The newest event of a bundle."""
    records = events.read_events(node_folder)
    return records[-1] if records else None


def _pick_last_fields(records: list[dict[str, Any]], names: Sequence[str]) -> dict[str, Any] | None:
    return {name: records[-1].get(name) for name in names} if records else None


def describe_survivors(pids: Sequence[int]) -> dict[str, Any]:
    """Return the processes that outlive their server, as ``status`` shows them."""
    if not pids:
        return {}
    survivors = [{"pid": pid, "name": procs.read_process_name(pid)} for pid in pids]
    return {"left_behind": survivors, "fix": "`down` ends them."}


def is_kept(node_folder: Path, current: State | None, *, world: World = HERE) -> bool:
    return running_keeper(current, world) is not None and not has_silent_keeper(
        node_folder, current, world=world
    )


def has_silent_keeper(node_folder: Path, current: State | None, *, world: World = HERE) -> bool:
    """Return whether a keeper runs that gives no sign of life."""
    keeper = running_keeper(current, world)
    return keeper is not None and heartbeat.is_keeper_silent(node_folder, keeper, world=world)


def running_keeper(current: State | None, world: World = HERE) -> Keeper | None:
    """The recorded keeper, where its process runs."""
    keeper = current.keeper if current is not None and current.here else None
    return keeper if keeper is not None and _alive(world, keeper) else None


def describe_supervision(
    plan: LaunchPlan, current: State | None, *, world: World = HERE
) -> dict[str, Any]:
    """Return what ``status`` says about supervision."""
    records = events.read_events(plan.own)
    failures = [event for event in records if event["event"] in _FAILURES]
    keeper = current.keeper if current is not None else None
    alive = running_keeper(current, world) is not None
    supervised = is_kept(plan.own, current, world=world)
    shown: dict[str, Any] | None = None
    if keeper is not None:
        port = keeper.metrics_port
        shown = {
            "pid": keeper.pid,
            "alive": alive,
            "silent": alive and not supervised,
            "log": str(plan.own / LOG),
            "metrics": f"http://127.0.0.1:{port}/metrics" if alive and port else None,
        }
    return {
        "supervision": "supervised" if supervised else "unsupervised",
        "keeper": shown,
        "restarts": current.restarts if current is not None else 0,
        "last_event": _pick_last_fields(records, ("event", "name", "time")),
        "last_failure": _pick_last_fields(
            failures, ("event", "name", "time", "cause", "reason", "fix")
        ),
    }
