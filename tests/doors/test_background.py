"""A calculation beside a page: its value, its errors and our faults, and when it ends unasked."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from recipe_core.base import budget
from recipe_core.base.errors import InputError
from recipe_core.doors.background import LEFT_S, Background
from recipe_core.doors.pool import Pool
from recipe_core.doors.settings import ServerSettings
from tests.fixtures.patience import PATIENCE
from tests.fixtures.rows import over


class Gate:
    """A calculation that goes on when it is let, and then asks whether anybody waits for it."""

    def __init__(self) -> None:
        self.opened, self.ended = threading.Event(), threading.Event()

    def calculate(self) -> str:
        try:
            self.opened.wait(PATIENCE)
            with budget.track_task(4):
                budget.count_step()
            return "done"
        finally:
            self.ended.set()


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def begin(function: Any, *arguments: Any, clock: Any = None) -> Background:
    return Background(Pool(ServerSettings(workers=0)), function, *arguments, clock=clock or Clock())


def fail(error: Exception) -> None:
    raise error


def ended(task: Background) -> Background:
    task.wait()
    assert task.is_over
    return task


def test_a_value_comes_with_its_progress() -> None:
    gate = Gate()
    task = begin(gate.calculate)
    assert (task.is_over, task.share) == (False, 0.0)
    gate.opened.set()
    assert (ended(task).value, task.error, task.share) == ("done", None, 0.25)


def test_what_is_wrong_with_a_question_is_its_error() -> None:
    error = InputError("no such policy.")
    assert ended(begin(fail, error)).error is error


@pytest.mark.parametrize("error", [ValueError("secret"), KeyError("secret"), MemoryError("secret")])
def test_a_fault_of_ours_is_noted_and_told_without_its_words(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    told = ended(begin(fail, error)).error
    assert told is not None
    assert told.code == "server"
    assert "not your fault" in str(told)
    assert "secret" not in str(told)
    assert "secret" in caplog.text
    assert str(told.hint).removesuffix(".").split()[-1] in caplog.text


def test_what_is_cancelled_ends_without_value_and_error() -> None:
    gate = Gate()
    task = begin(gate.calculate)
    task.cancel()
    gate.opened.set()
    assert (ended(task).value, task.error) == (None, None)


@over(
    "looks_s, end_s, finishes",
    [
        ((), LEFT_S, True),
        ((), LEFT_S + 1, False),
        ((20.0,), LEFT_S + 1, True),
        ((20.0,), LEFT_S + 21, False),
    ],
)
def test_a_page_that_does_not_look_for_some_time_is_left(
    looks_s: tuple[float, ...], end_s: float, finishes: bool
) -> None:
    gate, clock = Gate(), Clock()
    task = begin(gate.calculate, clock=clock)
    for clock.now_s in looks_s:
        assert not task.is_over
    clock.now_s = end_s
    gate.opened.set()
    assert gate.ended.wait(PATIENCE)  # to wait for the task would be to look
    assert ended(task).value == ("done" if finishes else None)
    if not finishes:
        assert "page was away" in str(task.error)
