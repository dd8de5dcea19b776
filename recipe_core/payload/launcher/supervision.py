"""The commands' part in supervision: leave a keeper, be one, wait for one, ask one."""

from __future__ import annotations

from pathlib import Path

from . import keeper_process, state, supervisor
from .errors import InputError, LateError, LauncherError, StartError
from .groups import groups_of
from .keeper import Keeper
from .limits import OPTIONS, Supervision, option_of
from .plan import LaunchPlan
from .request import Request
from .rolling import rolled_groups
from .starts import load_started_plan
from .state import State
from .supervisor import Progress
from .tracks import Phase
from .world import HERE, World

_LOOK_S = 0.2
# How long a keeper may take to stop everything, beside the time to drain.
_DRAINED_S = 60.0


def supervision_limits(request: Request, plan: LaunchPlan) -> Supervision:
    return plan.supervision.with_options(request.limits)


def dismiss_silent(node_folder: Path, progress: Progress, *, world: World = HERE) -> None:
    """End a keeper that hangs, so that another can take its place; what it kept runs on."""
    current = state.load_state(node_folder)
    if current is not None and keeper_process.has_silent_keeper(node_folder, current, world=world):
        pid = current.keeper.pid if current.keeper else 0
        progress.say(f"the keeper (pid {pid}) gives no sign of life: another takes its place")
        keeper_process.dismiss(current.keeper, world=world)


def left_alone(current: State | None) -> bool:
    """Return whether servers serve whose keeper is dead: they are adopted, not started again."""
    if current is None or not current.here or current.keeper is None or current.keeper.alive:
        return False
    return any(server.alive for server in current.servers)


def leave_keeper(request: Request, plan: LaunchPlan) -> None:
    """Leave a keeper in the background for what runs, with the options of this command line.

    Raises:
        StartError: where it does not start; the servers run on.
    """
    options: list[str] = []
    for name in OPTIONS:
        if (value := request.limits.get(name)) is not None:
            options += [option_of(name), str(value)]
    if request.strict or request.choice is not None:
        options.append("--strict")
    if request.metrics_port is not None:
        options += ["--metrics-port", str(request.metrics_port)]
    if plan.parameters.data is not None:
        options += ["--data", plan.parameters.data]
    keeper_process.spawn(plan, options)


def stay(
    request: Request,
    plan: LaunchPlan,
    current: State,
    progress: Progress,
    *,
    shown: int | None = None,
    world: World = HERE,
) -> int:
    """Be the keeper until everything is stopped, or done (0).

    Of a run, steps after ``shown`` are told.

    Raises:
        StartError: with the diagnosis, when it cannot be kept up.
    """
    return _build_keeper(request, plan, current, progress, world, shown).run()


def _build_keeper(
    request: Request,
    plan: LaunchPlan,
    current: State,
    progress: Progress,
    world: World,
    shown: int | None = None,
) -> Keeper:
    port = request.metrics_port
    if plan.kind == "training":
        port = 0  # it publishes none
    return Keeper(
        plan,
        current,
        supervision_limits(request, plan),
        progress,
        strict=request.strict or request.choice is not None,
        metrics_port=keeper_process.metrics_port(plan) if port is None else port or None,
        shown=shown,
        world=world,
    )


def wait_kept(
    plan: LaunchPlan, *, timeout_s: float, progress: Progress, world: World = HERE
) -> State:
    """Wait until the groups that a living keeper has not parked serve.

    Raises:
        LateError: when the time is over.
        StartError: when the keeper gives up, or dies.
    """
    began = reported_at = world.clock.monotonic()
    while True:
        current = state.load_state(plan.own)
        if current is None or not keeper_process.is_kept(plan.own, current, world=world):
            raise _keeper_ended_error(plan)
        if _serve(load_started_plan(plan, current), current, world):
            return current
        now = world.clock.monotonic()
        if now - began >= timeout_s:
            hint = f"See {plan.own / keeper_process.LOG}."
            raise LateError(f"the servers were not ready after {timeout_s:.0f} s.", hint=hint)
        if now - reported_at >= supervisor.PROGRESS_S:
            reported_at = now
            progress.say(f"waiting for the keeper: {now - began:.0f} s of {timeout_s:.0f}")
        world.clock.sleep(_LOOK_S)


def _keeper_ended_error(plan: LaunchPlan) -> StartError:
    last = keeper_process.last_event(plan.own) or {}
    reason = str(last.get("reason") or last.get("event") or "no event was noted")
    hint = str(last.get("fix") or f"See {plan.own / keeper_process.LOG}.")
    return StartError(f"the keeper has ended: {reason.rstrip('.')}.", hint=hint)


def _serve(plan: LaunchPlan, current: State, world: World) -> bool:
    """Return whether every process of the groups that are not parked runs and answers."""
    by_name = {server.name: server for server in current.servers}
    for process in plan.processes:
        if process.group in current.parked:
            continue
        server = by_name.get(process.name)
        if server is None or not world.processes.alive(*server.identity):
            return False
        if process.answers and not supervisor.healthy(plan, process.port, world=world):
            return False
    return current.ready or bool(current.parked)


def drain(
    request: Request,
    plan: LaunchPlan,
    current: State,
    progress: Progress,
    *,
    world: World = HERE,
) -> list[str]:
    """Let running requests finish, then stop everything; the names of what ran."""
    limits = supervision_limits(request, plan)
    seconds = request.drain or limits.drain_s
    processes = world.processes
    names = [s.name for s in reversed(current.servers) if processes.alive(*s.identity)]
    if current.keeper is None or not keeper_process.is_kept(plan.own, current, world=world):
        plan = load_started_plan(plan, current)
        keeper = Keeper(plan, current, limits, progress, strict=True, world=world)
        keeper.drain(seconds)
        keeper.close()
        return names
    keeper_process.ask_keeper(
        plan.own, current.keeper, keeper_process.DRAIN, world=world, drain_s=seconds
    )
    progress.say(f"draining: waiting up to {seconds:.0f} s for running requests")
    end = world.clock.monotonic() + seconds + _DRAINED_S
    while keeper_process.is_kept(plan.own, current, world=world) and world.clock.monotonic() < end:
        world.clock.sleep(_LOOK_S)
    return names


def revive(plan: LaunchPlan, current: State | None) -> None:
    """Have the keeper start groups that it has parked: whoever calls `up` has seen to the cause."""
    if current is not None and current.keeper is not None and current.parked:
        processes = load_started_plan(plan, current).processes
        names = [process.name for process in processes if process.group in current.parked]
        keeper_process.ask_keeper(plan.own, current.keeper, keeper_process.READ, restart=names)


def run_restart(request: Request, *, world: World = HERE) -> int:
    """Restart one group after the other, each healthy before the next, or those of named servers.

    Raises:
        InputError: for a name that the bundle lacks.
        StartError: when one does not come back; the rest is not restarted then.
    """
    plan = request.plan()
    if plan.kind == "training":
        raise InputError(
            "a training run is not restarted in turns.",
            field="restart",
            hint="Stop it with `down --checkpoint`, then start it with `up`.",
        )
    current = state.load_state(plan.own)
    if current is None or not current.here:
        raise LauncherError("nothing is running.", hint="Start it: python launch.py up")
    plan, progress = load_started_plan(plan, current), Progress(request.as_json)
    groups = _find_named_groups(plan, request.names)
    if len(set(groups)) == len([g for g in groups_of(plan) if _replica(plan, g)]) == 1:
        progress.say("there is one replica: restarting it interrupts the service")
    members = {process.name for process in plan.processes if process.group in groups}
    before = {s.name: s.identity for s in current.servers if s.name in members}
    if current.keeper is not None and keeper_process.is_kept(plan.own, current, world=world):
        keeper_process.ask_keeper(
            plan.own, current.keeper, keeper_process.READ, world=world, restart=sorted(members)
        )
        _wait_rolled(request, plan, before, progress, world)
    else:
        _roll_here(request, plan, current, sorted(members), progress, world)
    now = state.load_state(plan.own)
    renewed = {s.name for s in now.servers if before.get(s.name) != s.identity} if now else set()
    if not set(before) <= renewed:
        raise StartError(
            "not every server came back.", hint=f"See {plan.own / keeper_process.LOG}."
        )
    names = sorted(renewed & members)
    request.show({"state": "up", "restarted": names}, lambda: f"restarted {', '.join(names)}")
    return 0


def _find_named_groups(plan: LaunchPlan, names: list[str]) -> list[int]:
    process_names = [process.name for process in plan.processes]
    for name in names:
        if name not in process_names:
            hint = f"It has: {', '.join(process_names)}."
            raise InputError(f"the bundle has no process {name!r}.", field="NAME", hint=hint)
    return rolled_groups(plan, names)


def _replica(plan: LaunchPlan, group: int) -> bool:
    return any(p.group == group and p.role != "router" for p in plan.processes)


def _wait_rolled(
    request: Request,
    plan: LaunchPlan,
    before: dict[str, tuple[int, int]],
    progress: Progress,
    world: World,
) -> None:
    """Wait until the keeper has renewed every server, or has given one of them up."""
    limits = supervision_limits(request, plan)
    restart_s = plan.startup_timeout_s + limits.drain_s + _DRAINED_S
    end = world.clock.monotonic() + (request.timeout or restart_s * len(before))
    reported_names: set[str] = set()
    while world.clock.monotonic() < end:
        current = state.load_state(plan.own)
        if current is None or not keeper_process.is_kept(plan.own, current, world=world):
            raise _keeper_ended_error(plan)
        renewed = {s.name for s in current.servers if s.identity != before.get(s.name)}
        for name in sorted((renewed & set(before)) - reported_names):
            reported_names.add(name)
            progress.say(f"{name} is restarted")
        if set(before) <= renewed and _serve(load_started_plan(plan, current), current, world):
            return
        last = keeper_process.last_event(plan.own) or {}
        if last.get("cause") == "requested" and last.get("finished") is False:
            return
        world.clock.sleep(_LOOK_S)
    raise LateError("the restart was not done in time.", hint="See: python launch.py status")


def _roll_here(
    request: Request,
    plan: LaunchPlan,
    current: State,
    names: list[str],
    progress: Progress,
    world: World,
) -> None:
    """Be the keeper for as long as the restart takes."""
    keeper = _build_keeper(request, plan, current, progress, world)
    keeper.rolling.ask(names)
    keeper.run(done=_rolled)


def _rolled(keeper: Keeper) -> bool:
    settled = (Phase.SERVING, Phase.PARKED)
    return not keeper.rolling.groups and all(
        track.phase in settled for track in keeper.tracks.values()
    )
