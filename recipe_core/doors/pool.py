"""The server's worker processes: a heavy request delays no other, and ends where it may.

Other libraries' process pools start their processes with Python's ``multiprocessing``, which
imports ``__main__`` again in each; under Streamlit that is the page that runs. These are plain
programs (module ``worker``). One that does not end a call in time, or died, is replaced. Short
questions and long ones have places of their own (module ``turns``).
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from multiprocessing.connection import Connection
from typing import Any, TypeVar, cast

from anyio import CapacityLimiter, to_thread

from recipe_core.base import budget
from recipe_core.base.budget import Account, Cancelled
from recipe_core.base.errors import BusyError, LimitError
from recipe_core.base.resources import PACKAGE
from recipe_core.doors.settings import ServerSettings, variable
from recipe_core.doors.worker import (
    Answer,
    Call,
    Progress,
    Taken,
    Turn,
    Turns,
    answer_calibrated,
    pickle_message,
)

PROGRAM = (
    "import sys; from recipe_core.doors.worker import serve_calls; serve_calls(int(sys.argv[1]))"
)
# Seconds that a call which must end has to reach the end of its chunk; then its process ends.
GRACE_S = 3.0
# Seconds between looks whether anybody still waits.
LOOK_EVERY_S = 0.1
# Threads of their own in which requests wait for workers, at least.
THREADS = 8
# Seconds in which a worker must have started, on the busiest machine.
START_S = 120.0
# Workers that start before anybody asks: the next question need not wait behind the first.
STARTED = 2
# Seconds after which a question counts as long: the second time it may take a long one's place.
LONG_S = 3.0

Value = TypeVar("Value")


class OutstaysError(Exception):
    """A question has turned out to be long in a place that a short one waits for."""


class LostError(Exception):
    """A worker had ended before it took up a call: another may."""


class Worker:
    """One process, and the socket to it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        server_end, worker_end = socket.socketpair()
        with worker_end:
            self._process = subprocess.Popen(
                # imported, not run as __main__: what is pickled names the module
                [sys.executable, "-P", "-c", PROGRAM, str(worker_end.fileno())],
                pass_fds=[worker_end.fileno()],
                stdin=subprocess.DEVNULL,
                env=_worker_environment(),
            )
        self._connection = Connection(server_end.detach())
        self.usable = False

    def start(self) -> None:
        """Wait until the process has loaded what it needs."""
        if not self._connection.poll(START_S):
            raise RuntimeError(f"a worker did not start within {START_S:g} s")
        try:
            self._receive()
        except (EOFError, ConnectionError):
            raise LostError from None
        self.usable = True

    def call(self, call: Call, abandoned: Callable[[], bool]) -> Any:
        """The value of a call.

        Raises what the call raised; LimitError where it took too long or its process died;
        LostError where that was dead before; Cancelled where nobody waits any longer, or what
        ``abandoned`` or the watcher of progress raised.
        """
        self.usable = False
        return self._ended(self._answer(call, abandoned))

    def _answer(self, call: Call, abandoned: Callable[[], bool]) -> Answer:
        """Return how a call ended; one that nobody waits for any longer is interrupted."""
        seconds = call.budget.seconds or float("inf")
        deadline, accepted = self._clock() + seconds + GRACE_S, False
        try:
            self._connection.send_bytes(pickle_message(call))
            while True:
                if self._connection.poll(LOOK_EVERY_S):
                    message = self._receive()
                    if isinstance(message, Answer):
                        return message
                    accepted = True
                    if isinstance(message, Progress):
                        budget.report_steps(message.done, message.steps, message.stage)
                if abandoned():
                    raise Cancelled
                if self._clock() > deadline:
                    raise budget.out_of_time_error(Account(call.budget))
        except (EOFError, ConnectionError):
            raise (self._died() if accepted else LostError) from None
        except BaseException:  # also of the page that waits, which Streamlit ends by raising
            self._interrupt()
            raise

    def _ended(self, reply: Answer) -> Any:
        self.usable = not reply.over
        if reply.error is not None:
            raise reply.error
        return reply.value

    def _receive(self) -> Answer | Progress | Taken:
        message = pickle.loads(self._connection.recv_bytes())  # noqa: S301 - of our own process
        return cast("Answer | Progress | Taken", message)

    def _died(self) -> LimitError:
        code = self._process.wait()
        cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return LimitError(
            f"ended the process that calculated it ({cause}), most likely for want of memory.",
            field="request",
            hint="Ask for fewer devices, loads or formats.",
        )

    def _interrupt(self) -> None:
        """End the call that runs, or where it reaches no end of a chunk, the process."""
        deadline = self._clock() + GRACE_S
        with suppress(EOFError, OSError):
            self._process.send_signal(signal.SIGUSR1)
            while self._clock() < deadline:
                if self._connection.poll(LOOK_EVERY_S):
                    message = self._receive()
                    if isinstance(message, Answer):
                        self.usable = not message.over
                        return

    def end(self) -> None:
        """End the process."""
        self.usable = False
        self._connection.close()
        self._process.kill()
        self._process.wait()


def _worker_environment() -> dict[str, str]:
    """The server's environment, without its token; the package is found wherever it lies."""
    paths = [str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    out = {**os.environ, **threads, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    out.pop(variable("token"), None)
    return out


class Pool:
    """Workers, and the callers that wait for one.

    Args:
        settings: how many workers, how many callers may wait and how long, what a call may cost.
        hire: makes a worker.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        settings: ServerSettings,
        hire: Callable[[], Worker] = Worker,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings, self._hire, self._clock = settings, hire, clock
        self._change = threading.Condition()
        self._idle: list[Worker] = []
        self._turns = Turns(settings.processes)
        self._closed = False
        self._threads: CapacityLimiter | None = None

    @property
    def waiting(self) -> int:
        """Callers that wait for a worker."""
        return self._turns.count_waiting()

    def admit(self, client: str, *, long: bool = False) -> None:
        """Raise BusyError where the queue of a class is full, or half of it is this client's."""
        settings, turns = self.settings, self._turns
        with self._change:
            room, waiting = turns.count_room(long=long), turns.count_waiting(long)
            if not settings.workers or waiting < room:
                return
            pending = turns.count_of(client, long=long)
            if pending >= max(settings.queue // 2, 1) + turns.places - long:
                message = f"{pending} of your requests are being answered or wait."
                raise BusyError(message, yours=True)
            if waiting - room >= settings.queue:
                raise BusyError(f"{waiting} requests wait, the most that may.")

    def run(
        self,
        function: Callable[..., Value],
        *arguments: Any,
        client: str = "",
        abandoned: Callable[[], bool] = lambda: False,
        began: Callable[[], None] = lambda: None,
        long: bool = False,
        wait_s: float | None = None,
        **options: Any,
    ) -> Value:
        """The value of a function of this package, calculated by a worker; blocks this thread.

        ``client``: who asks, for a fair share of the queue. ``abandoned`` is asked again and again
        whether the caller has left; it may raise. ``began`` is called when a worker takes it up.
        ``long``: whether it takes long, as a job does. ``wait_s``: seconds to wait for a worker, in
        place of those of the settings. Progress goes to this thread's watcher.

        A question that takes longer than ``LONG_S`` counts as long: where it holds the place of
        short ones and one waits, it ends there and begins anew in a place of long ones.

        Raises:
            BusyError: when too many wait, or it has waited too long.
            LimitError: when the request takes more time or memory than it may.
            Cancelled: when the caller has left.
        """
        settings = self.settings
        if not settings.workers:
            began()
            with budget.apply_budget(settings.budget, abandoned):
                return cast(Value, answer_calibrated(partial(function, *arguments, **options)))
        self.admit(client, long=long)
        call = Call(
            partial(function, *arguments, **options), settings.budget, settings.memory_bytes
        )
        turn, lost = Turn(client, long), 0
        while lost <= settings.processes:  # more than those that were idle
            worker = None
            try:
                worker = self._take(turn, abandoned, wait_s or settings.wait_seconds)
                began()
                return cast(Value, worker.call(call, partial(self._must_end, turn, abandoned)))
            except OutstaysError:
                turn.long = True
            except LostError:
                lost += 1
            finally:
                if worker:
                    self._give_back(worker, turn)
        raise BusyError("workers end before they calculate.")

    async def ask(self, function: Callable[..., Value], *arguments: Any, **options: Any) -> Value:
        """``run`` for a coroutine; to cancel it is to leave.

        Raises:
            BusyError, LimitError: as ``run``.
        """
        self.admit(options.get("client", ""), long=options.get("long", False))
        if self._threads is None:  # of both classes
            places = self.settings.processes + 2 * self.settings.queue
            self._threads = CapacityLimiter(max(places, THREADS))
        departed = threading.Event()
        question = partial(self.run, function, *arguments, abandoned=departed.is_set, **options)
        try:
            return await to_thread.run_sync(question, limiter=self._threads, abandon_on_cancel=True)
        finally:
            departed.set()

    def start(self) -> None:
        """Start workers before anybody asks."""
        for _ in range(min(STARTED, self.settings.processes)):
            turn = Turn("")
            with self._change:
                if len(self._idle) >= self._turns.free:
                    return
                self._turns.hold(turn)
            self._give_back(self._hire_worker(turn), turn)

    def close(self) -> None:
        """End the workers that are idle; the others end with their calls."""
        with self._change:
            self._closed = True
            idle, self._idle = self._idle, []
            self._change.notify_all()
        for worker in idle:
            worker.end()

    def _take(self, turn: Turn, abandoned: Callable[[], bool], wait_s: float) -> Worker:
        """An idle worker, or a new one, when it is this caller's turn."""
        with self._change:
            turn.since_s = self._clock()
            self._turns.wait(turn)
            try:
                while self._turns.next is not turn or not self._turns.free:
                    self._change.wait(LOOK_EVERY_S)
                    self._look(turn, abandoned, wait_s)
            except BaseException:
                self._turns.leave(turn)
                self._change.notify_all()
                raise
            turn.since_s = self._clock()
            self._turns.hold(turn)
            self._change.notify_all()
            if self._idle:
                return self._idle.pop()
        return self._hire_worker(turn)

    def _look(self, turn: Turn, abandoned: Callable[[], bool], wait_s: float) -> None:
        """Raise where a caller must not wait any longer."""
        if abandoned():
            raise Cancelled
        if self._closed:
            raise BusyError("the server is being stopped.")
        if self._clock() - turn.since_s > wait_s:
            yours = self._turns.has_most(turn.client, long=turn.long)
            whose = ": most that wait are yours" if yours else ""
            message = f"no worker was free for {wait_s:g} s, the most that a request waits{whose}."
            raise BusyError(message, yours=yours)

    def _must_end(self, turn: Turn, abandoned: Callable[[], bool]) -> bool:
        """True for a question that must end while it is calculated; raises where it begins anew."""
        if abandoned():
            return True
        if self._clock() - turn.since_s > LONG_S:
            with self._change:
                if self._turns.outstays(turn):
                    raise OutstaysError
        return False

    def _hire_worker(self, turn: Turn) -> Worker:
        """A new worker for a place that is held."""
        try:
            worker = self._hire()
        except BaseException:
            self._release(turn)
            raise
        try:
            worker.start()
        except BaseException:
            self._give_back(worker, turn)
            raise
        return worker

    def _give_back(self, worker: Worker, turn: Turn) -> None:
        if worker.usable and not self._closed:
            self._release(turn, worker)
            return
        worker.end()
        self._release(turn)

    def _release(self, turn: Turn, *usable: Worker) -> None:
        with self._change:
            self._idle.extend(usable)
            self._turns.release(turn)
            self._change.notify_all()


def own_process() -> Pool:
    """A pool without workers: callers calculate themselves, under the limits of the environment."""
    return Pool(ServerSettings.of_environment().model_copy(update={"workers": 0}))


@cache
def server_pool() -> Pool:
    """The pool of this process, under the settings of its environment."""
    return Pool(ServerSettings.of_environment())
