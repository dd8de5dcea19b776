"""Worker processes: what they answer, when they end, who waits."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from recipe_core.base import budget, progress
from recipe_core.base.budget import Budget, Cancelled
from recipe_core.base.errors import BusyError, InputError, LimitError, NoAnswer
from recipe_core.doors import public
from recipe_core.doors.pool import Pool, Worker
from recipe_core.doors.settings import ServerSettings, variable
from recipe_core.doors.worker import Answer, Call, Progress, answer, pickled
from tests.conftest import request_values
from tests.fixtures.patience import PATIENCE, comes


class Ticks:
    """The server's clock: it goes on by ``step_s`` at each look."""

    now_s, step_s = 0.0, 0.0

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


TICKS = Ticks()


@pytest.fixture(scope="module")
def workers() -> Iterator[Pool]:
    pool = Pool(ServerSettings(workers=1, queue=4), hire=partial(Worker, TICKS))
    yield pool
    pool.close()


@pytest.fixture
def pool(workers: Pool) -> Iterator[Pool]:
    """A pool of one worker, whose clock stands still."""
    TICKS.step_s = 0.0
    return limited(workers)


def limited(pool: Pool, **settings: Any) -> Pool:
    """The pool with other limits; the worker is the same."""
    pool.settings = ServerSettings(**{"workers": 1, "queue": 4} | settings)
    return pool


# Questions, of which each worker imports this module by its name


def who() -> int:
    return os.getpid()


def environment(name: str) -> str | None:
    return os.environ.get(name)


def busy_for_ever() -> None:
    while True:
        budget.spend()


def deaf_for_ever() -> None:
    """As a loop in a C library, which comes to no end of a chunk."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    while True:
        signal.sigtimedwait({signal.SIGUSR2}, 1)


def hungry(gib: float) -> int:
    return len(bytearray(int(gib * 2**30)))


def fall_over() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail(kind: type[Exception]) -> None:
    raise kind("no")


def step(steps: int, *, on: bool = False) -> str:
    with progress.task(steps):
        progress.step()
        while on:
            budget.spend()
    return "done"


def test_a_plan_comes_back_whole(pool: Pool) -> None:
    request = request_values(options={"engines": ["vllm", "sglang"]})
    here, there = public.plan(request), pool.run(public.plan, request)
    assert (there.to_json(), there.changes()) == (here.to_json(), here.changes())
    assert there.detailed(there.best_row) == here.detailed(here.best_row)


def test_a_process_goes_on_after_answers_errors_and_calls_that_were_ended(pool: Pool) -> None:
    first = pool.run(who)
    assert first != os.getpid()
    with pytest.raises(InputError) as refused:
        pool.run(public.plan, {"model": "nothing/such"} | {"hardware": {"device": "h100-sxm"}})
    assert refused.value.field
    for kind in (NoAnswer, ValueError, KeyError, ConnectionError):  # which the socket raises, too
        with pytest.raises(kind):
            pool.run(fail, kind)
    with pytest.raises(LimitError, match=r"0\.2 s"):
        limited(pool, seconds=0.2).run(busy_for_ever)
    looks = iter([False, False])
    with pytest.raises(Cancelled):
        limited(pool).run(busy_for_ever, abandoned=lambda: next(looks, True))
    told: list[tuple[int, int]] = []
    with progress.watched(lambda done, steps: told.append((done, steps))):
        assert pool.run(step, 3) == "done"
    assert told[0] == (0, 3)
    assert {steps for _, steps in told} == {3}

    class Stopped(BaseException):
        pass

    def stop(done: int, steps: int) -> None:
        raise Stopped

    with progress.watched(stop), pytest.raises(Stopped):
        pool.run(step, 3, on=True)
    assert pool.run(who) == first


def test_a_process_that_does_not_end_its_call_or_dies_is_replaced(pool: Pool) -> None:
    seen = {pool.run(who)}
    TICKS.step_s = 1.0
    with pytest.raises(LimitError, match=r"0\.2 s"):
        limited(pool, seconds=0.2).run(deaf_for_ever)
    TICKS.step_s = 0.0
    seen.add(limited(pool).run(who))
    TICKS.step_s = 1.0
    with pytest.raises(Cancelled):
        pool.run(deaf_for_ever, abandoned=lambda: True)
    TICKS.step_s = 0.0
    with pytest.raises(LimitError, match="SIGKILL"):
        pool.run(fall_over)
    assert len(seen | {pool.run(who)}) == 3


def test_memory_is_limited(pool: Pool) -> None:
    assert limited(pool, memory_gib=0.5).run(hungry, 0.1)
    with pytest.raises(LimitError, match=r"0\.5 GiB of memory"):
        pool.run(hungry, 0.8)
    assert limited(pool, memory_gib=2).run(hungry, 0.8)
    assert pool.run(who)


def test_workers_know_no_token_and_end_with_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable("token"), "a-token-of-twenty-chars")
    fresh = Pool(ServerSettings(workers=1))
    try:
        assert fresh.run(environment, variable("token")) is None
        assert fresh.run(environment, "OPENBLAS_NUM_THREADS") == "1"
        worker = fresh.run(who)
    finally:
        fresh.close()
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


def test_without_workers_the_same_limits_hold() -> None:
    alone = Pool(ServerSettings(workers=0, seconds=0.05))
    assert alone.run(who) == os.getpid()
    with pytest.raises(LimitError):
        alone.run(busy_for_ever)
    with pytest.raises(Cancelled):
        alone.run(busy_for_ever, abandoned=lambda: True)


def test_progress_is_told_at_its_pace() -> None:
    """The beginning, and of steps at 0, 60, 120 and 180 ms what is 100 ms after it."""
    clock, sent = Ticks(), list[bytes]()

    def stepping() -> int:
        with progress.task(4):
            for number in range(4):
                clock.now_s = 0.06 * number
                progress.step()
        return 4

    connection: Any = type("Wire", (), {"send_bytes": sent.append})
    call = Call(stepping, Budget(), 1 << 30)
    assert answer(call, connection, lambda: False, clock=clock) == Answer(4)
    assert sent == [pickled(Progress(done, 4)) for done in (0, 3)]


# Who waits


class Clerk:
    """A worker without a process, which answers when its door is open."""

    door = threading.Event()
    usable = True

    def start(self) -> None:
        """At once."""

    def call(self, call: Call, abandoned: Callable[[], bool]) -> Any:
        assert self.door.wait(PATIENCE)
        return call.question()

    def end(self) -> None:
        """Nothing runs."""


def test_who_waits_too_much_is_told_to_come_again() -> None:
    Clerk.door.clear()
    hire: Any = Clerk
    pool = Pool(ServerSettings(workers=1, queue=2), hire=hire)
    begun: list[str] = []

    def ask(client: str) -> threading.Thread:
        begin = partial(begun.append, client)
        options = {"client": client, "began": begin}
        thread = threading.Thread(target=pool.run, args=(who,), kwargs=options)
        thread.start()
        return thread

    threads = [ask("greedy")]
    assert comes(lambda: begun == ["greedy"])
    threads.append(ask("greedy"))
    assert comes(lambda: pool.waiting == 1)
    with pytest.raises(BusyError) as refused:
        pool.run(who, client="greedy")
    assert refused.value.yours
    threads.append(ask("modest"))
    assert comes(lambda: pool.waiting == 2)
    with pytest.raises(BusyError) as refused:
        pool.run(who, client="third")
    assert not refused.value.yours
    assert refused.value.retry_after_s > 0
    Clerk.door.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert begun == ["greedy", "greedy", "modest"]
    assert pool.run(who, client="greedy")
