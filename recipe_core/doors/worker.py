"""A process that calculates for the server, and turns at such processes, fair by caller.

A process speaks with the server alone, over a socket that it inherits: calls come in, progress and
one answer go out. A signal ends the call that runs; the process stays.

Long calls hold all places but one, so that a short question never waits for a long one. Within a
class the next is whoever holds the fewest places, then whoever was served longest ago. State alone:
module ``pool`` has the lock, the threads and the processes.
"""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import cloudpickle

from recipe_core.base import budget
from recipe_core.base.budget import (
    Account,
    Budget,
    Cancelled,
    limited_memory,
    process_resident_bytes,
)
from recipe_core.base.errors import InputError, LimitError, RecipeError
from recipe_core.calibration.place import calibration_stamp

if TYPE_CHECKING:
    from recipe_core.estimates.columns.corrections import Corrections


@dataclass(eq=False, slots=True)
class Turn:
    """A caller's question on its way: it waits, then holds a place.

    ``long``: of the class of jobs. ``since_s``: when it began to wait, then to hold its place.
    """

    client: str
    long: bool = False
    since_s: float = 0.0


class Turns:
    """The callers that wait, and those that hold a place.

    Args:
        places: worker processes; two at least.
    """

    def __init__(self, places: int) -> None:
        self.places = places
        self.next: Turn | None = None
        """The next to get a place that is free."""
        self._waiting: list[Turn] = []
        self._held: list[Turn] = []
        self._served: dict[str, int] = {}
        self._count = 0

    @property
    def free(self) -> int:
        """Places that nobody holds."""
        return self.places - len(self._held)

    def count_waiting(self, *classes: bool) -> int:
        """Return how many wait; of one class where it is given."""
        return sum(turn.long in (classes or (True, False)) for turn in self._waiting)

    def count_room(self, *, long: bool) -> int:
        """Return how many of a class could begin now."""
        return min(self.free, self._long_left()) if long else self.free

    def count_of(self, client: str, *, long: bool) -> int:
        """Return how many questions of a class a caller has, waiting or at a worker."""
        return self._of_class(long).count(client)

    def has_most(self, client: str, *, long: bool) -> bool:
        """True where no caller has more in a class, and this one more than one."""
        clients = self._of_class(long)
        count = clients.count(client)
        return count > 1 and all(clients.count(rival) <= count for rival in set(clients))

    def wait(self, turn: Turn) -> None:
        """Let a caller wait."""
        self._waiting.append(turn)
        self._choose()

    def leave(self, turn: Turn) -> None:
        """Let a caller go that waits no longer."""
        self._waiting.remove(turn)
        self._choose()

    def hold(self, turn: Turn) -> None:
        """Give a caller a place, whether it waited or not."""
        if turn in self._waiting:
            self._waiting.remove(turn)
        self._held.append(turn)
        self._count += 1
        self._served[turn.client] = self._count
        self._choose()

    def release(self, turn: Turn) -> None:
        """Take a caller's place back."""
        self._held.remove(turn)
        self._choose()

    def outstays(self, turn: Turn) -> bool:
        """True where a question that has turned out to be long must make place for who waits.

        It counts as long from now on if one more may; else it holds the place of short ones, and
        ends where one waits for that.
        """
        if turn.long:
            return False
        if self._long_left() > 0:
            turn.long = True
            self._choose()
            return False
        return self.free <= 0 and self.count_waiting(False) > 0

    def _long_left(self) -> int:
        return self.places - 1 - sum(turn.long for turn in self._held)

    def _of_class(self, long: bool) -> list[str]:
        return [turn.client for turn in (*self._waiting, *self._held) if turn.long == long]

    def _choose(self) -> None:
        holding = [turn.client for turn in self._held]
        present = {*holding, *(turn.client for turn in self._waiting)}
        self._served = {name: at for name, at in self._served.items() if name in present}
        classes = (True, False) if self._long_left() > 0 else (False,)

        def order(turn: Turn) -> tuple[int, int]:
            return holding.count(turn.client), self._served.get(turn.client, 0)

        lines = ([turn for turn in self._waiting if turn.long == long] for long in classes)
        self.next = next((min(line, key=order) for line in lines if line), None)


# How far behind the server, which answers everybody else, workers stand in line for processors.
NICE = 10
# With what they import, the modules that questions need.
PRELOADED = (
    "recipe_core.doors.operations",
    "recipe_core.bundle.write",
    "recipe_core.commands.judge",
    "recipe_core.targets.deployments.judge",
    "recipe_core.targets.deployments.read",
    "recipe_core.views.catalog",
    "recipe_core.recipe.convert",
    "recipe_core.recipe.comparison",
    "recipe_core.calibration.run_files",
    "recipe_core.recipe.published",
    "recipe_core.recipe.resolve",
)
# Seconds between reports of progress at least.
SAID_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class Call:
    """A question, a function of this package with its arguments, and what it may cost."""

    question: Callable[[], Any]
    budget: Budget
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Taken:
    """A call has come; who ends before has not calculated anything of it."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a call."""

    done: int
    steps: int
    stage: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of a call: a value, or an error that is to be raised.

    ``over``: the process has used so much memory that another should take its place.
    """

    value: Any = None
    error: BaseException | None = None
    over: bool = False


def pickle_message(message: Call | Taken | Answer | Progress) -> bytes:
    """A message as bytes: plans hold functions, which only cloudpickle takes along."""
    data: bytes = cloudpickle.dumps(message)
    return data


class _Interrupt:
    """True once the server has asked to end the call, or is gone."""

    def __init__(self) -> None:
        self.asked, self._server = False, os.getppid()
        signal.signal(signal.SIGUSR1, self._ask)

    def _ask(self, *_: object) -> None:
        self.asked = True

    def __call__(self) -> bool:
        return self.asked or os.getppid() != self._server


def answer_call(
    call: Call,
    connection: Connection,
    interrupt: Callable[[], bool],
    *,
    clock: Callable[[], float] = time.monotonic,
) -> Answer:
    """Make a call, and say how it ended; progress goes to the server on the way."""
    before, reported_s = process_resident_bytes(), float("-inf")

    def report(done: int, steps: int, stage: str) -> None:
        nonlocal reported_s
        if stage or clock() - reported_s >= SAID_EVERY_S:  # of stages few are told
            reported_s = clock()
            connection.send_bytes(pickle_message(Progress(done, steps, stage)))

    account = Account(call.budget)
    try:
        with (
            limited_memory(call.memory_bytes),
            budget.apply_budget(call.budget, interrupt) as account,
            budget.watched(report),
        ):
            value = answer_calibrated(call.question)
        return Answer(value, over=_grown(before, call.memory_bytes))
    except MemoryError:
        return Answer(error=budget.out_of_memory_error(account, call.memory_bytes), over=True)
    except (RecipeError, Cancelled) as error:
        heavy = isinstance(error, LimitError) and _grown(before, call.memory_bytes)
        return Answer(error=error.with_traceback(None), over=heavy)
    except Exception as error:
        error.add_note("in a worker: " + traceback.format_exc())
        return Answer(error=error)


def answer_calibrated(question: Callable[[], Any]) -> Any:
    """The answer to a question with what the calibration of this server teaches.

    Raises:
        InputError: also where the calibration cannot be read; its path goes to the log only.
    """
    from recipe_core.estimates.columns.scopes import correct_by_default

    def readable() -> Corrections | None:
        if not calibration_stamp():
            return None
        from recipe_core.calibration.store import machine_corrections

        try:
            return machine_corrections()
        except InputError as error:
            sys.stderr.write(f"error: {error}\n")
            raise InputError(
                "the calibration of this server cannot be read.",
                field="calibration",
                hint="Its operator sees why: recipe calibrate --list.",
            ) from None

    with correct_by_default(readable):
        return question()


def _grown(before: int, memory_bytes: int) -> bool:
    return process_resident_bytes() - before > memory_bytes // 4


def _pickle_answer(reply: Answer) -> bytes:
    """The bytes of an answer; an error of another package that cannot travel says its text."""
    try:
        return pickle_message(reply)
    except Exception as error:
        about = reply.error if reply.error is not None else error
        return pickle_message(Answer(error=RuntimeError(f"{type(about).__name__}: {about}")))


def serve_calls(socket: int) -> None:
    """Answer calls until the server closes the socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal goes to the server
    interrupt = _Interrupt()
    with suppress(OSError):
        os.nice(NICE)
    for name in PRELOADED:
        importlib.import_module(name)
    gc.freeze()
    with Connection(socket) as connection, suppress(EOFError, ConnectionError):
        connection.send_bytes(pickle_message(Answer()))
        while True:
            frame = connection.recv_bytes()
            interrupt.asked = False
            connection.send_bytes(pickle_message(Taken()))
            call: Call = pickle.loads(frame)  # noqa: S301 - of the server
            connection.send_bytes(_pickle_answer(answer_call(call, connection, interrupt)))
