"""A bundle as a command meets it: started, kept, waited for and stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from . import events, keeper_process, run_record, state, supervisor
from .choices import Attempts
from .errors import StartError
from .files import refuse_odd_run
from .keeper import Keeper
from .limits import OPTIONS, Supervision, option_of
from .plan import LaunchPlan
from .preflight import Preflight, preflight
from .request import Request
from .starts import load_running_state, load_started_plan, passed_preflight
from .state import State
from .supervisor import Progress
from .world import HERE, World


@dataclass
class Deployment:
    """A request, the plan that it means, and who is told; servers and runs do it differently.

    ``shows_first``: what runs is shown before a keeper stays in the foreground.
    """

    request: Request
    plan: LaunchPlan
    progress: Progress
    world: World = HERE

    shows_first = False

    @property
    def timeout_s(self) -> float:
        """Seconds that a start may take."""
        return self.request.timeout or self.plan.startup_timeout_s

    @property
    def limits(self) -> Supervision:
        """The limits of supervision: those of the bundle, and of the command line."""
        return self.plan.supervision.with_options(self.request.limits)

    @property
    def strict(self) -> bool:
        """Return whether no fallback is taken."""
        return self.request.strict or self.request.choice is not None

    # What differs

    def adopts(self, _leftover: State) -> bool:
        """Return whether what a dead keeper left is kept, not started again."""
        return False

    def wait_ready(self, _current: State) -> None:
        """Wait until what a killed launcher waited for answers; a run is ready at once."""

    def find_shown_step(self, *, already: bool) -> int | None:  # noqa: ARG002 - see `runs`
        """The step of a run after which a keeper in the foreground tells of steps."""
        return None

    def end(self, _current: State) -> dict[str, Any]:
        """Let what runs prepare its end; what the event of the stop says beside."""
        return {}

    # Starts and stops

    def tell_copy(self) -> None:
        """Say so where the state is another folder's: nothing of it is touched from here."""
        if (origin := state.find_copied_state(self.plan.own)) is not None:
            self.progress.say(f"this is a copy of {origin}: what runs there is left alone")

    def start(self) -> tuple[State, Preflight]:
        """Preflight, then start; a half-dead deployment is stopped first.

        Where the machine holds less than planned, or a start fails for want of it, the next
        fallback is taken, which is the plan then, unless the request is strict or names its choice.
        """
        plan, progress, world = self.plan, self.progress, self.world
        self.stop_started()
        supervisor.stop_strays(plan, progress, world=world)
        trains, began = plan.kind == "training", world.clock.monotonic()
        attempts = Attempts(plan, progress, strict=self.strict)
        for choice in attempts:
            self.plan = choice.plan
            about = {"world_size": run_record.world_size(choice.plan)} if trains else {}
            events.append(plan.own, "start", choice=choice.name, **about)
            with attempts.trying(choice):
                result = passed_preflight(choice.plan, progress)
                if trains:
                    run_record.note_start(choice.plan)
                current = supervisor.start_processes(
                    choice.plan, timeout_s=self.timeout_s, progress=progress, world=world
                )
                if not trains:  # a run is ready with its first step
                    spent = world.clock.monotonic() - began
                    events.append(plan.own, "ready", choice=choice.name, after_s=round(spent, 3))
                    progress.say(f"ready after {spent:.1f} s")
                return current, result
        raise attempts.failure

    def stop_started(self) -> None:
        """Stop what is recorded, however far it came."""
        current = state.load_state(self.plan.own)
        if current is not None:
            supervisor.stop(self.plan.own, current, progress=self.progress, world=self.world)

    @contextmanager
    def running(
        self, stop: Callable[[], object], *, needed: bool
    ) -> Iterator[tuple[State | None, Preflight]]:
        """Yield what runs, else what is started where ``needed``, and ended by ``stop``."""
        with ExitStack() as stack:
            stack.enter_context(state.exclusive(self.plan.own))
            current = load_running_state(self.plan)
            if current is None and needed:
                refuse_odd_run(self.plan.run)
                stack.callback(stop)
                self.plan = self.request.plan(starts=True)
                yield self.start()
                return
            stack.close()  # others may stop what they started
            if current is not None:
                self.plan = load_started_plan(self.plan, current)
            checked = preflight(self.plan, own_ports=current.ports if current else frozenset())
            checked.require(only=["bundle"])  # its processes run already
            yield current, checked

    # The keeper

    def is_kept(self, current: State | None) -> bool:
        """Return whether a keeper that gives signs of life keeps what runs."""
        return keeper_process.is_kept(self.plan.own, current, world=self.world)

    def dismiss_silent(self) -> None:
        """End a keeper that hangs, so that another can take its place; what it kept runs on."""
        current = state.load_state(self.plan.own)
        keeper = current.keeper if current is not None else None
        if keeper and keeper_process.has_silent_keeper(self.plan.own, current, world=self.world):
            words = f"the keeper (pid {keeper.pid}) gives no sign of life"
            self.progress.say(f"{words}: another takes its place")
            keeper_process.dismiss(keeper, world=self.world)

    def leave_keeper(self) -> None:
        """Leave a keeper in the background for what runs, with the options of this command line.

        Raises:
            StartError: where it does not start; what runs goes on.
        """
        options: list[str] = []
        for name in OPTIONS:
            if (value := self.request.limits.get(name)) is not None:
                options += [option_of(name), str(value)]
        if self.strict:
            options.append("--strict")
        if self.request.metrics_port is not None:
            options += ["--metrics-port", str(self.request.metrics_port)]
        if self.plan.parameters.data is not None:
            options += ["--data", self.plan.parameters.data]
        keeper_process.spawn(self.plan, options)

    def build_keeper(self, current: State, shown: int | None = None) -> Keeper:
        """Make a keeper of this process; of a run, it tells of steps after ``shown``."""
        port = self.request.metrics_port
        if self.plan.kind == "training":
            port = 0  # it publishes none
        return Keeper(
            self.plan,
            current,
            self.limits,
            self.progress,
            strict=self.strict,
            metrics_port=keeper_process.metrics_port(self.plan) if port is None else port or None,
            shown=shown,
            world=self.world,
        )

    def keeper_error(self) -> StartError:
        """The error that says why a keeper has ended."""
        last = keeper_process.last_event(self.plan.own) or {}
        reason = str(last.get("reason") or last.get("event") or "no event was noted")
        hint = str(last.get("fix") or f"See {self.plan.own / keeper_process.LOG}.")
        return StartError(f"the keeper has ended: {reason.rstrip('.')}.", hint=hint)

    def with_keeper(
        self, answer: dict[str, Any], current: State | None, survivors: list[int]
    ) -> dict[str, Any]:
        """An answer of `status` with who keeps the bundle, and what outlives its processes."""
        supervision = keeper_process.describe_supervision(self.plan, current, world=self.world)
        return {**answer, **supervision, **keeper_process.describe_survivors(survivors)}
