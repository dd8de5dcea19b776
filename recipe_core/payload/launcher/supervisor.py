"""Start the servers, wait until they answer, watch them, stop them."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass, replace
from pathlib import Path

from . import heartbeat, keeper_process, procs, state
from .diagnosis import VAGUE, diagnose, excerpt_log, failure_text
from .engine import resolve_program_words
from .errors import LateError, LauncherError, StartError
from .files import tail
from .logs import open_log
from .machine import VISIBLE
from .plan import LaunchPlan, Process
from .report import complain
from .signals import uninterrupted
from .state import Server, State
from .world import HERE, World

# The variable by which the trainer finds texts other than the bundle's.
DATA = "RECIPE_DATA"
GRACE_S = 20.0  # engines need seconds to finish requests and free their devices
SETTLE_S = 0.2
# How long a stop looks for processes whose launcher was killed while it started them.
UNRECORDED_S = 2.0
PROGRESS_S = 3.0
_SHOWN_LINES = 20


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress for a person, on standard error; results go to standard output."""

    quiet: bool = False

    def say(self, text: str) -> None:
        """One line on standard error; a terminal that has gone away stops nothing."""
        if not self.quiet:
            complain(text)


def start_processes(
    plan: LaunchPlan, *, timeout_s: float, progress: Progress, world: World = HERE
) -> State:
    """Start every process and wait until they are healthy; on any failure, stop them again."""
    parameters = plan.parameters
    current = State(
        uuid.uuid4().hex,
        state.boot_id(),
        parameters.model,
        parameters.host,
        parameters.port,
        False,
        (),
        plan.choice,
        logs=logs_of(plan),
    )
    try:
        # Before the first start: whenever this launcher is killed, `down` finds all by the mark.
        state.save_state(plan.own, current)
        for process in plan.processes:
            with uninterrupted():
                server = _spawn(world, plan, process, current.mark)
                current = replace(current, servers=(*current.servers, server))
            state.save_state(plan.own, current)
            place = f"pid {server.pid}, port {server.port}, log {server.log}"
            progress.say(f"started {server.name}: {place}")
        wait_healthy(plan, current, timeout_s=timeout_s, progress=progress, world=world)
        current = replace(current, ready=True)
        state.save_state(plan.own, current)
    except BaseException:
        stop(plan.own, current, progress=progress, recorded=True, world=world)
        raise
    return current


def start_group(plan: LaunchPlan, current: State, group: int, *, world: World = HERE) -> State:
    """Start the processes of one group, without waiting until they answer; the state with them.

    Raises:
        LauncherError: where one cannot be started, or the state cannot be written; the others of
            the group are recorded then, or found by their mark.
    """
    members = [process for process in plan.processes if process.group == group]
    names = {process.name for process in members}
    other_servers = tuple(server for server in current.servers if server.name not in names)
    current = replace(current, servers=other_servers, ready=False)
    state.save_state(plan.own, current)  # before the first start, as in ``start_processes``
    for process in members:
        with uninterrupted():
            server = _spawn(world, plan, process, current.mark)
            current = replace(current, servers=(*current.servers, server))
        state.save_state(plan.own, current)
    return current


def stop_group(
    plan: LaunchPlan,
    current: State,
    group: int,
    *,
    grace_s: float = GRACE_S,
    world: World = HERE,
) -> None:
    """End the processes of one group and their workers, in ``grace_s``; others run on.

    Raises:
        LauncherError: when a process runs on.
    """
    names = {process.name for process in plan.processes if process.group == group}
    members = tuple(server for server in current.servers if server.name in names)
    leaders = [server.identity for server in members]
    with uninterrupted():
        _, survivors = world.processes.terminate(
            leaders,
            part_mark(current.mark, group),
            grace_s=grace_s,
            settle_s=0.0 if current.ready or leaders else SETTLE_S,
            variable=procs.PART,
            outputs=replace(current, servers=members, logs=logs_of(plan, group)).outputs,
        )
    if survivors:
        raise _runs_on(survivors)


def logs_of(plan: LaunchPlan, group: int | None = None) -> tuple[str, ...]:
    """The logs of the processes here, or of one group of them."""
    members = [p for p in plan.processes if group is None or p.group == group]
    return tuple(str(process_log_path(plan, process)) for process in members)


def process_log_path(plan: LaunchPlan, process: Process) -> Path:
    return plan.own / f"{process.name}.log"


def part_mark(mark: str, group: int) -> str:
    return f"{mark}:{group}"


def _spawn(world: World, plan: LaunchPlan, process: Process, mark: str) -> Server:
    log = process_log_path(plan, process)
    argv = resolve_program_words(process.argv)
    environment = process_environment(plan, process, mark)
    with open_log(log) as output:
        opened = procs.plain_file_place(log)
        try:
            pid, started = world.processes.start(
                argv, cwd=plan.root, env=environment, output=output
            )
        except OSError as error:
            raise StartError(
                f"{process.name}: {argv[0]} cannot be started: {error.strerror}.",
                hint=f"Install it: {plan.engine.install}",
            ) from None
    return Server(process.name, pid, started, process.port, str(log), opened)


def process_environment(plan: LaunchPlan, process: Process, mark: str) -> dict[str, str]:
    """The environment of a process, with its devices where several servers share the machine."""
    marks = {procs.MARK: mark, procs.PART: part_mark(mark, process.group)}
    environment = {**heartbeat.drop_notify_variables(dict(os.environ)), **process.env, **marks}
    if plan.parameters.data is not None:
        environment[DATA] = plan.parameters.data
    variable = VISIBLE.get(plan.needs.runtime)
    if variable and len(plan.processes) > 1 and process.devices:
        environment[variable] = ",".join(
            _outer_device_ids(process.devices, os.environ.get(variable))
        )
    for value in process.env.values():
        # A cache inside the run folder must exist before the engine looks for it.
        if value.startswith(f"{plan.run}{os.sep}"):
            Path(value).mkdir(parents=True, exist_ok=True)
    return environment


def _outer_device_ids(devices: tuple[int, ...], outer: str | None) -> list[str]:
    """The devices as the surrounding environment, which may hide some, numbers them."""
    visible = [part.strip() for part in outer.split(",")] if outer else []
    return [visible[index] if index < len(visible) else str(index) for index in devices]


def wait_healthy(
    plan: LaunchPlan,
    current: State,
    *,
    timeout_s: float,
    progress: Progress,
    world: World = HERE,
) -> None:
    """Wait until every server is healthy.

    Raises:
        StartError: with the end of the log when one dies, or when the time is over.
    """
    clock = world.clock
    began = reported_at = clock.monotonic()
    answering = {process.name for process in plan.answering}
    waiting = [server for server in current.servers if server.name in answering]
    _settle(world, current)
    while waiting:
        for server in current.servers:
            if not _is_server_running(world, server):
                raise _process_died_error(world, server, "ended before it was ready")
        waiting = [server for server in waiting if not healthy(plan, server.port, world=world)]
        passed = clock.monotonic() - began
        if waiting and passed >= timeout_s:
            raise _late(waiting[0], timeout_s)
        if waiting and clock.monotonic() - reported_at >= PROGRESS_S:
            reported_at = clock.monotonic()
            last = tail(Path(waiting[0].log), 1) or "nothing logged yet"
            names = ", ".join(server.name for server in waiting)
            spent = f"{passed:.0f} s of {timeout_s:.0f}"
            progress.say(f"waiting for {names}: {spent}; {last[:100]}")
        if waiting:
            clock.sleep(0.2)


def _settle(world: World, current: State) -> None:
    """Wait a moment, in which a wrong flag or a missing module shows."""
    clock = world.clock
    deadline = clock.monotonic() + SETTLE_S
    while clock.monotonic() < deadline and all(
        _is_server_running(world, server) for server in current.servers
    ):
        clock.sleep(0.05)


def _is_server_running(world: World, server: Server) -> bool:
    world.processes.reap(server.pid)
    return world.processes.alive(*server.identity)


def lives(current: State, *, world: World = HERE) -> bool:
    """True while any of the processes runs; collects those that ended."""
    # A list: each call collects a process that ended.
    return any([_is_server_running(world, server) for server in current.servers])  # noqa: C419


def exit_codes(current: State, *, world: World = HERE) -> list[int]:
    """Exit codes of ended children of this process."""
    codes = [world.processes.reap(server.pid) for server in current.servers]
    return [code for code in codes if code is not None]


def _process_died_error(world: World, server: Server, event: str) -> StartError:
    text, code = failure_text(Path(server.log), _SHOWN_LINES), world.processes.reap(server.pid)
    diagnosis, follows = diagnose(text, code, ready=False), f"The end of {server.log} follows."
    detail = excerpt_log(text.splitlines(), diagnosis.lines, _SHOWN_LINES)
    if diagnosis.cause in VAGUE:
        return StartError(f"{server.name} {event}.", hint=follows, detail=detail)
    hint = f"{diagnosis.fix} {follows}"
    return StartError(f"{server.name} {event}: {diagnosis.title}.", hint=hint, detail=detail)


def _late(server: Server, timeout_s: float) -> LateError:
    hint = f"Allow more with --timeout, or read {server.log}, whose end follows."
    return LateError(
        f"{server.name} was not ready after {timeout_s:.0f} s.",
        hint=hint,
        detail=tail(Path(server.log)),
    )


def healthy(plan: LaunchPlan, port: int, *, timeout_s: float = 2.0, world: World = HERE) -> bool:
    """True when the server answers its health path with 200."""
    return world.ask(plan.client_host, port, plan.health, timeout_s=timeout_s)[0] == 200


def stop(
    run: Path,
    current: State,
    *,
    progress: Progress,
    recorded: bool = False,
    world: World = HERE,
) -> list[str]:
    """Stop every server and what else has their mark, and forget them.

    ``recorded``: ``current`` has every process, though it is not ready. Signals wait until it is
    done. Returns the names of running servers, and other processes by pid.

    Raises:
        LauncherError: when a process runs on; the state stays then.
    """
    keeper_process.dismiss(current.keeper if current.here else None, world=world)
    with uninterrupted():
        complete = recorded or current.ready
        stopped = _stop(world, current, progress, complete) if current.here else []
        state.forget_state(run)
    return stopped


def stop_all_recorded(run: Path, progress: Progress, *, world: World = HERE) -> list[str]:
    """Stop all that a bundle's ``run/`` records of this machine, whatever else of it is damaged.

    Raises:
        LauncherError: while another launcher is at it, and for a damaged state.
    """
    stopped: list[str] = []
    for node_folder in state.list_state_folders(run):
        current = state.load_state(node_folder)
        keeper_process.dismiss(current.keeper if current and current.here else None, world=world)
        with state.exclusive(node_folder):
            current = state.load_state(node_folder)
            if current is not None and current.here:
                stopped += stop(node_folder, current, progress=progress, world=world)
    return stopped


def end_processes(current: State, progress: Progress, *, world: World = HERE) -> list[str]:
    """Stop every process of a start whose keeper goes on: its state stays. As ``stop``."""
    with uninterrupted():
        return _stop(world, current, progress, complete=False) if current.here else []


def _stop(world: World, current: State, progress: Progress, complete: bool) -> list[str]:
    processes = world.processes
    names = [s.name for s in reversed(current.servers) if processes.alive(*s.identity)]
    orphans = {
        *current.left_behind(processes),
        *([] if complete else current.unrecorded(processes)),
    }
    names += [f"pid {pid}" for pid in sorted(orphans)]
    ended, survivors = processes.terminate(
        current.identities,
        current.mark,
        grace_s=GRACE_S,
        settle_s=0.0 if complete else UNRECORDED_S,
        outputs=current.outputs,
    )
    if survivors:
        raise _runs_on(survivors)
    names = names or [f"pid {pid}" for pid, _ in sorted(ended)]  # what showed itself meanwhile
    for name in names:
        progress.say(f"stopped {name}")
    return names


def strays(plan: LaunchPlan, *, world: World = HERE) -> set[procs.Identity]:
    """Processes that inherited this bundle's logs, though no state records them."""
    outputs = procs.places_of(logs_of(plan))
    return world.processes.family((), uuid.uuid4().hex, outputs=outputs)


def stop_strays(plan: LaunchPlan, progress: Progress, *, world: World = HERE) -> list[str]:
    """End what no state records: of a start whose ``state.json`` was removed by hand.

    Raises:
        LauncherError: when a process runs on.
    """
    if not strays(plan, world=world):
        return []
    with uninterrupted():
        ended, survivors = world.processes.terminate(
            (), uuid.uuid4().hex, grace_s=GRACE_S, outputs=procs.places_of(logs_of(plan))
        )
    if survivors:
        raise _runs_on(survivors)
    names = [f"pid {pid}" for pid, _ in sorted(ended)]
    for name in names:
        progress.say(f"stopped {name}")
    return names


def _runs_on(survivors: set[procs.Identity]) -> LauncherError:
    return LauncherError(
        f"processes {', '.join(str(pid) for pid, _ in sorted(survivors))} do not end.",
        hint="Run down as the user who started them; if a driver holds them, restart.",
    )
