"""Keeps a bundle up: looks at its groups, has what failed recover, heeds signals.

It changes what runs only while it holds the bundle's lock, and writes ``state.json`` before it
starts anything, so that it can be killed at any moment.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from . import events, keeper_process, state, supervisor, tracks
from .errors import BusyError, LauncherError, StartError
from .exporter import Teller
from .groups import Gone
from .heartbeat import notify_ready, notify_stopping, only_keeper, watchdog_period
from .limits import Supervision
from .logs import cut_logs
from .plan import FIRST, LaunchPlan
from .procs import CLOCK, Clock
from .recovery import Recovery
from .signals import takes_over
from .state import State
from .supervisor import Progress
from .tracks import Phase

# How soon a signal is heeded between two looks.
_NAP_S = 0.1
_NOTED_S = 60.0


@dataclass(frozen=True, slots=True)
class Log(Progress):
    """Progress in a log: every line has its time."""

    clock: Clock = CLOCK

    def say(self, text: str) -> None:
        """One line, and when it was."""
        now = self.clock.now().isoformat(timespec="seconds")
        Progress.say(self, f"{now} {text}")


class Keeper(Recovery):
    """Supervises what ``current`` records of ``plan`` until it is stopped, dismissed, or gives up.

    ``metrics_port``: of its own metrics; None for none. ``options`` are those of `Recovery`.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        current: State,
        limits: Supervision,
        progress: Progress,
        *,
        metrics_port: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(plan, current, limits, progress, **options)
        self._complaint = ""
        self.teller = Teller(self, metrics_port)
        self.me = keeper_process.this_keeper(limits, metrics_port)

    # The loop

    def run(self, *, done: Callable[[Keeper], bool] | None = None) -> int:
        """Keep until there is nothing to keep (0), or ``done`` says so after a round.

        Raises:
            StartError: with the diagnosis, when it cannot be kept up.
            LauncherError: while another keeper lives.
        """
        with only_keeper(self.plan, self.limits, self.clock) as heartbeat, self._signals():
            try:
                self._when_free(self._note_keeper)
            except (BusyError, StartError):
                raise
            except LauncherError as error:  # a full disk must not leave the servers alone
                self.progress.say(f"status will not know of this keeper: {error}")
            events.append(self.own, "keeper_start", choice=self.plan.choice, pid=self.me.pid)
            self.progress.say(f"keeping {self.plan.name}: {self.summary()}")
            if self.current.ready:
                notify_ready(self.summary())
            reason = "failed"
            try:
                while True:
                    heartbeat.beat()
                    if why := heartbeat.follow(
                        lambda: self.save(self.current), self._stop, self.progress.say
                    ):
                        raise Gone(why)
                    if (ended := self.step()) or (done is not None and done(self)):
                        reason = ended or "done"
                        return 0
                    self.rest()
            except Gone as why:
                reason = str(why)
                return 0
            finally:
                notify_stopping()
                events.append(heartbeat.moved_to() or self.own, "keeper_stop", reason=reason)
                self.close()

    def close(self) -> None:
        """End the threads that look and answer."""
        self.teller.close()
        self.machine.close()
        self.probe.close()

    def step(self) -> str:
        """One look and what follows from it; why this keeper is to end, else nothing."""
        if self.asked and (reason := self._heed()):
            return reason
        self.check_ours()
        self.teller.export()
        cut_logs(self.own)
        groups = self.probe.looked(asks=bool(self.rolling.groups))
        self.teller.count()
        try:
            plan = self.plan
            for group in groups:
                if self.plan is plan and (ended := self.judge(group)):
                    return ended
            # Where its choice was left, these groups are gone.
            for group, track in list(self.tracks.items()):
                if self.plan is plan and tracks.is_due(track, self.clock.monotonic()):
                    self.start_again(group)
            self._watch_machine()
            self.rolling.step()
            self._forget()
            self._complaint = ""
        except BusyError:
            pass  # another command is at it: look again
        except StartError:
            raise
        except LauncherError as error:  # a full disk, a process that a driver holds
            if self._complaint != error.message:
                self._complaint = error.message
                self.progress.say(str(error))
        self.teller.tell()
        return ""

    def rest(self) -> None:
        """Until the next look is due, or a signal is to be heeded."""
        pause = self.limits.poll_s
        if (period := watchdog_period()) is not None:
            pause = min(pause, period)
        end = self.clock.monotonic() + pause
        while not self.asked and (remaining_s := end - self.clock.monotonic()) > 0:
            self.clock.sleep(min(remaining_s, _NAP_S))

    def _when_free(self, act: Callable[[], None]) -> None:
        """Act once no other command holds the lock.

        Raises:
            BusyError: while one holds it for too long.
        """
        end = self.clock.monotonic() + _NOTED_S
        while True:
            try:
                return act()
            except BusyError:
                if self.clock.monotonic() > end:
                    raise
            self.clock.sleep(_NAP_S)

    def _note_keeper(self) -> None:
        """Write who keeps, for ``status`` and ``down``."""
        with state.exclusive(self.own):
            saved = state.load_state(self.own)
            if saved is None or saved.mark != self.current.mark:
                hint = "Start it with `up`."
                raise StartError("nothing runs that could be kept.", hint=hint)
            self.save(replace(saved, keeper=self.me))

    # Signals

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Note signals instead of being interrupted by them; only the main thread gets any."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (keeper_process.LEAVE, keeper_process.READ, *takes_over())
        before = {number: signal.getsignal(number) for number in numbers}
        for number in numbers:
            signal.signal(number, lambda number, _frame: self.asked.append(number))
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _heed(self) -> str:
        """Do what signals ask for; why this keeper ends, where it does."""
        while self.asked:
            number = self.asked.pop(0)
            if number == keeper_process.LEAVE:
                return "dismissed"
            if number == keeper_process.READ:
                names = keeper_process.take_request(self.own).get("restart")
                if not self.trains:
                    self.rolling.ask(names)
            elif number == keeper_process.DRAIN and not self.trains:
                seconds = keeper_process.take_request(self.own).get("drain_s")
                limit = seconds if isinstance(seconds, (int, float)) else self.limits.drain_s
                self.drain(float(limit))
                return "drained"
            else:
                self._when_free(self._stop_all)
                return "stopped"
        return ""

    def drain(self, limit_s: float) -> None:
        """Welcome no requests, let those that run finish, then stop everything."""
        self.probe.quiesce(limit_s, "draining")
        self._when_free(self._stop_all)

    # The machine, and time

    def _watch_machine(self) -> None:
        """Note lost and found devices; return to an earlier choice once it fits again."""
        misses_devices = bool(self.current.parked) or self.plan.choice != FIRST
        for kind, reason in self.machine.look(self.plan, always=misses_devices):
            events.append(self.own, kind, reason=reason)
            self.progress.say(f"{kind.replace('_', ' ')}: {reason}")
            if kind == "device_found":
                now = self.clock.monotonic()
                for group, track in self.tracks.items():
                    if track.phase is Phase.PARKED:
                        self.tracks[group] = replace(track, until=now)
        choice = self.machine.returning
        if choice is None or not self.active() or not self.probe.may_return():
            return
        with self.acting():
            words = "the first choice" if choice.name == FIRST else choice.name
            self.probe.quiesce(self.limits.drain_s, f"{words} fits again")
            if not self.asked:
                supervisor.end_processes(self.current, self.progress, world=self.world)
                self.progress.say(f"returning to {words} from {self.plan.choice}")
                self.machine.leave_choice(self.plan.choice, for_misfit=True)
                self.reasons = dict.fromkeys(self.tracks, "device-found")
                self.begin(choice, reason="it fits again")
        self.refusing = ""

    def _forget(self) -> None:
        """After enough time of service, choices that failed may be tried again."""
        now = self.clock.monotonic()
        stable = all(
            track.phase is Phase.SERVING and now - track.since >= self.limits.stable_s
            for track in self.tracks.values()
        )
        if stable and self.tried:
            self.tried.clear()

    # Stops

    def _stop_all(self) -> None:
        """Stop everything, unless another launcher does so."""
        with self.acting():
            events.append(self.own, "stop", **self.probe.facts())
            self._stop()
