"""A process that calculates for the server, which starts ``serve_calls`` in it.

It speaks with the server alone, over a socket that it inherits: calls come in, progress and one
answer go out. A signal ends the call that runs; the process stays.
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
    """How far a call is."""

    done: int
    steps: int


@dataclass(frozen=True, slots=True)
class Answer:
    """How a call ended: with a value, or an error that is to be raised.

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

    def report(done: int, steps: int) -> None:
        nonlocal reported_s
        if clock() - reported_s >= SAID_EVERY_S:
            reported_s = clock()
            connection.send_bytes(pickle_message(Progress(done, steps)))

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
