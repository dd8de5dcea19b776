"""The server's worker processes: a heavy request delays no other, and ends where it may.

Other libraries' process pools start their processes with Python's ``multiprocessing``, which
imports ``__main__`` again in each; under Streamlit that is the page that runs. These are plain
programs (module ``worker``). One that does not end a call in time, or died, is replaced.
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
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from multiprocessing.connection import Connection
from typing import Any, TypeVar, cast

from anyio import CapacityLimiter, to_thread

from recipe_core.base import budget, progress
from recipe_core.base.budget import Account, Cancelled
from recipe_core.base.errors import BusyError, LimitError
from recipe_core.base.resources import PACKAGE
from recipe_core.doors.settings import ServerSettings, variable
from recipe_core.doors.worker import Answer, Call, Progress, calibrated, pickled

PROGRAM = "import sys; from recipe_core.doors.worker import main; main(int(sys.argv[1]))"
GRACE_S = 3.0
"""Seconds that a call which must end has to reach the end of its chunk; then its process ends."""
LOOK_EVERY_S = 0.1
"""Seconds between looks whether anybody still waits."""
THREADS = 8
"""Threads of their own in which requests wait for workers, at least."""
START_S = 120.0
"""Seconds in which a worker must have started, on the busiest machine."""

Value = TypeVar("Value")


def waited_for() -> bool:
    """Nobody gives up waiting."""
    return False


def nobody_told() -> None:
    """Nobody wants to know that a worker has taken a question up."""


class Worker:
    """One process, and the socket to it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        here, there = socket.socketpair()
        with there:
            self._process = subprocess.Popen(
                # imported, not run as __main__: what is pickled names the module
                [sys.executable, "-P", "-c", PROGRAM, str(there.fileno())],
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                env=_environment(),
            )
        self._connection = Connection(here.detach())
        self.usable = False

    def start(self) -> None:
        """Wait until the process has loaded what it needs."""
        if not self._connection.poll(START_S):
            raise RuntimeError(f"a worker did not start within {START_S:g} s")
        self._receive()
        self.usable = True

    def call(self, call: Call, abandoned: Callable[[], bool]) -> Any:
        """The value of a call.

        Raises what the call raised; LimitError where it took too long or its process died;
        Cancelled where nobody waits any longer, or what ``abandoned`` or the watcher of progress
        raised.
        """
        self.usable = False
        return self._ended(self._answer(call, abandoned))

    def _answer(self, call: Call, abandoned: Callable[[], bool]) -> Answer:
        """How a call ended; one that nobody waits for any longer is interrupted."""
        seconds = call.budget.seconds or float("inf")
        deadline = self._clock() + seconds + GRACE_S
        try:
            self._connection.send_bytes(pickled(call))
            while True:
                if self._connection.poll(LOOK_EVERY_S):
                    message = self._receive()
                    if isinstance(message, Answer):
                        return message
                    progress.tell(message.done, message.steps)
                elif abandoned():
                    raise Cancelled
                elif self._clock() > deadline:
                    raise budget.over_time(Account(call.budget))
        except (EOFError, ConnectionError):
            raise self._died() from None
        except BaseException:  # also of the page that waits, which Streamlit ends by raising
            self._interrupt()
            raise

    def _ended(self, reply: Answer) -> Any:
        self.usable = not reply.over
        if reply.error is not None:
            raise reply.error
        return reply.value

    def _receive(self) -> Answer | Progress:
        return cast("Answer | Progress", pickle.loads(self._connection.recv_bytes()))  # noqa: S301 - of our own process

    def _died(self) -> LimitError:
        code = self._process.wait()
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return LimitError(
            f"ended the process that calculated it ({how}), most likely for want of memory.",
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


def _environment() -> dict[str, str]:
    """The server's environment, without its token; the package is found wherever it lies."""
    paths = [str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    out = {**os.environ, **threads, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    out.pop(variable("token"), None)
    return out


class Pool:
    """Workers, and the callers that wait for one in the order in which they came.

    Args:
        settings: how many workers, how many callers may wait, what a call may cost.
        hire: makes a worker.
    """

    def __init__(self, settings: ServerSettings, hire: Callable[[], Worker] = Worker) -> None:
        self.settings, self._hire = settings, hire
        self._change = threading.Condition()
        self._idle: list[Worker] = []
        self._started = 0
        self._waiting: list[object] = []
        self._clients: Counter[str] = Counter()
        self._closed = False
        self._threads: CapacityLimiter | None = None

    @property
    def waiting(self) -> int:
        """Callers that wait for a worker."""
        return len(self._waiting)

    def admit(self, client: str) -> None:
        """Raise BusyError where the queue is full, or half of it is this client's."""
        settings = self.settings
        with self._change:
            free = settings.workers - self._started + len(self._idle)
            if not settings.workers or len(self._waiting) < free:
                return
            if self._clients[client] >= max(settings.queue // 2, 1) + settings.workers:
                raise BusyError(
                    f"{self._clients[client]} of your requests are being answered or wait.",
                    yours=True,
                )
            if len(self._waiting) - free >= settings.queue:
                raise BusyError(f"{len(self._waiting)} requests wait, the most that may.")

    def run(
        self,
        function: Callable[..., Value],
        *arguments: Any,
        client: str = "",
        abandoned: Callable[[], bool] = waited_for,
        began: Callable[[], None] = nobody_told,
        **options: Any,
    ) -> Value:
        """The value of a function of this package, calculated by a worker; blocks this thread.

        ``client``: who asks, for a fair share of the queue. ``abandoned`` is asked again and again
        whether the caller has left; it may raise. ``began`` is called when a worker takes it up.
        Progress goes to this thread's watcher.

        Raises:
            BusyError: when too many wait.
            LimitError: when the request takes more time or memory than it may.
            Cancelled: when the caller has left.
        """
        settings = self.settings
        if not settings.workers:
            began()
            with budget.limited(settings.budget, abandoned):
                return cast(Value, calibrated(partial(function, *arguments, **options)))
        self.admit(client)
        call = Call(
            partial(function, *arguments, **options), settings.budget, settings.memory_bytes
        )
        with self._change:
            self._clients[client] += 1
        try:
            worker = self._take(abandoned)
            try:
                began()
                return cast(Value, worker.call(call, abandoned))
            finally:
                self._give_back(worker)
        finally:
            with self._change:
                self._clients[client] -= 1
                if not self._clients[client]:
                    del self._clients[client]

    async def ask(self, function: Callable[..., Value], *arguments: Any, **options: Any) -> Value:
        """``run`` for a coroutine; to cancel it is to leave.

        Raises:
            BusyError, LimitError: as ``run``.
        """
        self.admit(options.get("client", ""))  # before a thread is taken
        if self._threads is None:
            places = self.settings.workers + self.settings.queue
            self._threads = CapacityLimiter(max(places, THREADS))
        left = threading.Event()
        question = partial(self.run, function, *arguments, abandoned=left.is_set, **options)
        try:
            return await to_thread.run_sync(question, limiter=self._threads, abandon_on_cancel=True)
        finally:
            left.set()

    def start(self) -> None:
        """Start a worker before anybody asks."""
        if self.settings.workers:
            self._give_back(self._take(waited_for))

    def close(self) -> None:
        """End the workers that are idle; the others end with their calls."""
        with self._change:
            self._closed = True
            idle, self._idle = self._idle, []
            self._change.notify_all()
        for worker in idle:
            worker.end()

    def _take(self, abandoned: Callable[[], bool]) -> Worker:
        """An idle worker, or a new one, when it is this caller's turn."""
        ticket = object()
        with self._change:
            self._waiting.append(ticket)
            try:
                while self._waiting[0] is not ticket or not self._free():
                    self._change.wait(LOOK_EVERY_S)
                    if abandoned():
                        raise Cancelled
                    if self._closed:
                        raise BusyError("the server is being stopped.")
            finally:
                self._waiting.remove(ticket)
                self._change.notify_all()
            if self._idle:
                return self._idle.pop()
            self._started += 1
        try:
            worker = self._hire()
        except BaseException:
            self._forget()
            raise
        try:
            worker.start()
        except BaseException:
            self._give_back(worker)
            raise
        return worker

    def _free(self) -> bool:
        return bool(self._idle) or self._started < self.settings.workers

    def _give_back(self, worker: Worker) -> None:
        if worker.usable and not self._closed:
            with self._change:
                self._idle.append(worker)
                self._change.notify_all()
            return
        worker.end()
        self._forget()

    def _forget(self) -> None:
        with self._change:
            self._started -= 1
            self._change.notify_all()


def own_process() -> Pool:
    """A pool without workers: callers calculate themselves, under the limits of the environment."""
    return Pool(ServerSettings.of_environment().model_copy(update={"workers": 0}))


@cache
def server_pool() -> Pool:
    """The pool of this process, under the settings of its environment."""
    return Pool(ServerSettings.of_environment())
