"""Worker processes: what they answer, when they end, whose turn it is; and the jobs they run."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from recipe_core.base import budget
from recipe_core.base.budget import Budget, Cancelled
from recipe_core.base.errors import BusyError, LimitError, NoAnswer
from recipe_core.compression.required import detail_row_estimate
from recipe_core.doors import jobs, public
from recipe_core.doors.jobs import Job, Jobs
from recipe_core.doors.pool import LONG_S, LostError, Pool, Worker
from recipe_core.doors.settings import ServerSettings, variable
from recipe_core.doors.worker import (
    Answer,
    Call,
    Progress,
    Turn,
    Turns,
    answer_call,
    pickle_message,
)
from tests.conftest import request_values
from tests.fixtures.patience import PATIENCE, comes
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over


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
    """A pool whose workers' clock stands still; one is there while nobody waits."""
    TICKS.step_s = 0.0
    return limited(workers)


def limited(pool: Pool, **settings: Any) -> Pool:
    """The pool with other limits; the workers are the same."""
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
    with budget.track_task(steps):
        budget.count_step()
        while on:
            budget.spend()
    budget.report_stage("at the end")
    return "done"


def test_a_plan_comes_back_whole(pool: Pool) -> None:
    request = request_values(options={"engines": ["vllm", "sglang"]})
    here, there = public.plan(request), pool.run(public.plan, request)
    assert (there.to_json(), there.changes()) == (here.to_json(), here.changes())
    assert detail_row_estimate(there, there.best_row) == detail_row_estimate(here, here.best_row)


def test_a_process_goes_on_after_answers_errors_and_calls_that_were_ended(pool: Pool) -> None:
    first = pool.run(who)
    assert first != os.getpid()
    unknown = {"model": "nothing/such", "hardware": {"device": "h100-sxm"}}
    assert refusal(pool.run, public.plan, unknown).field
    for kind in (NoAnswer, ValueError, KeyError, ConnectionError):  # which the socket raises, too
        with pytest.raises(kind):
            pool.run(fail, kind)
    with pytest.raises(LimitError, match=r"0\.2 s"):
        limited(pool, seconds=0.2).run(busy_for_ever)
    looks = iter([False, False])
    with pytest.raises(Cancelled):
        limited(pool).run(busy_for_ever, abandoned=lambda: next(looks, True))
    steps: list[tuple[int, int, str]] = []
    with budget.watched(lambda *step: steps.append(step)):
        assert pool.run(step, 3) == "done"
    assert (steps[0], steps[-1][1:]) == ((0, 3, ""), (3, "at the end"))
    assert {count for _, count, _ in steps} == {3}

    class Stopped(BaseException):
        pass

    def stop(*_: object) -> None:
        raise Stopped

    with budget.watched(stop), pytest.raises(Stopped):
        pool.run(step, 3, on=True)
    assert pool.run(who) == first


def test_a_process_that_does_not_end_its_call_or_dies_is_replaced(pool: Pool) -> None:
    seen = {pool.run(who)}
    os.kill(*seen, signal.SIGKILL)  # which nobody has asked anything meanwhile
    seen.add(pool.run(who))
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
    assert len(seen | {pool.run(who)}) == 4


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
        with budget.track_task(4):
            for number in range(4):
                clock.now_s = 0.06 * number
                budget.count_step()
        return 4

    connection: Any = type("Wire", (), {"send_bytes": sent.append})
    call = Call(stepping, Budget(), 1 << 30)
    assert answer_call(call, connection, lambda: False, clock=clock) == Answer(4)
    assert sent == [pickle_message(Progress(done, 4)) for done in (0, 3)]


# Whose turn it is


@over(
    "waiting, served",
    [
        ("a-long a-long a-long a-long b", "a-long b a-long a-long a-long"),  # one place is left
        ("a-long a-long a", "a-long a a-long"),  # also to the same caller
        ("a a a b c", "a b c a a"),  # one of each, however many wait of one
        ("a a b-long", "b-long a a"),
    ],
)
def test_two_workers_take_both_classes_and_each_caller_in_turn(waiting: str, served: str) -> None:
    turns, held, order = Turns(2), list[Turn](), list[str]()
    for word in waiting.split():
        turns.wait(Turn(word[0], word.endswith("-long")))
    while turns.next or held:
        if (turn := turns.next) and turns.free:
            turns.hold(turn)
            held.append(turn)
            order.append(turn.client + "-long" * turn.long)
        else:
            turns.release(held.pop(0))
    assert " ".join(order) == served


class Clerk:
    """A worker without a process: ``quick`` is answered at once, all else when the door is open."""

    door = threading.Event()
    usable = True

    def start(self) -> None:
        """At once."""

    def call(self, call: Call, abandoned: Callable[[], bool]) -> Any:
        question: Any = call.question
        while question.func is not quick and not self.door.wait(0.01):
            assert not abandoned()
        return question()

    def end(self) -> None:
        """Nothing runs."""


class Counter:
    """Two clerks, a clock that is set, and who was served or sent away."""

    def __init__(self) -> None:
        Clerk.door.clear()
        self.now_s, self.begun, self.sent_away = 0.0, list[str](), list[tuple[str, bool]]()
        hire: Any = Clerk
        settings = ServerSettings(workers=1, queue=4, wait_seconds=2)
        self.pool = Pool(settings, hire=hire, clock=lambda: self.now_s)
        self.threads = list[threading.Thread]()

    def ask(self, client: str, function: Callable[..., Any] = who, *words: str) -> None:
        """Ask beside others, and come back when that is served or waits."""
        seen = self.pool.waiting + len(self.begun)

        def wait() -> None:
            began = partial(self.begun.append, client)
            try:
                self.pool.run(function, *words, client=client, began=began)
            except BusyError as error:
                self.sent_away.append((client, error.yours))

        self.threads.append(threading.Thread(target=wait))
        self.threads[-1].start()
        assert comes(lambda: self.pool.waiting + len(self.begun) == seen + 1)

    def end(self) -> None:
        Clerk.door.set()
        for thread in self.threads:
            thread.join(PATIENCE)


def test_who_waits_too_much_or_too_long_is_told_to_come_again() -> None:
    desk = Counter()
    for client in ("greedy", "greedy", "greedy", "greedy", "modest"):
        desk.ask(client)
    assert (desk.begun, desk.pool.waiting) == (["greedy"] * 2, 3)
    assert refusal(desk.pool.run, who, client="greedy", kind=BusyError).yours
    desk.ask("third")
    refused = refusal(desk.pool.run, who, client="fourth", kind=BusyError)
    assert not refused.yours
    assert refused.retry_after_s > 0
    desk.pool.admit("fourth", long=True)  # which has a queue of its own
    desk.now_s = 2.5
    assert comes(lambda: len(desk.sent_away) == 4)
    desk.end()
    away = [("greedy", True), ("greedy", True), ("modest", False), ("third", False)]
    assert sorted(desk.sent_away) == away
    assert desk.pool.run(who, client="greedy")


def test_a_question_that_turns_out_to_be_long_makes_place_for_a_short_one() -> None:
    desk = Counter()
    desk.ask("heavy")
    desk.ask("heavy")
    desk.now_s = LONG_S + 1  # one goes on as a long one; nobody waits for the other's place yet
    desk.ask("light", quick, "1")
    assert comes(lambda: "light" in desk.begun)
    assert not Clerk.door.is_set()
    desk.end()
    assert desk.begun == ["heavy", "heavy", "light", "heavy"]
    assert not desk.sent_away


def test_workers_that_end_before_they_begin_are_not_hired_for_ever() -> None:
    class Lost(Clerk):
        def call(self, call: Call, abandoned: Callable[[], bool]) -> Any:
            raise LostError

    hire: Any = Lost
    assert not refusal(Pool(ServerSettings(workers=1), hire=hire).run, who, kind=BusyError).yours


# Jobs: ``test_simulate_doors.py`` has how they begin, run, end and are cancelled


class Later:
    """Jobs that run when they are told to, by a clock that is set."""

    def __init__(self) -> None:
        self.begun: list[Callable[[], None]] = []
        self.now_s = 0.0
        pool = Pool(ServerSettings(workers=0))
        self.jobs = Jobs(pool, clock=lambda: self.now_s, start=self.begun.append)

    def ended(self, function: Callable[..., bytes], *args: str) -> Job:
        job = self.jobs.begin("me", "me", function, *args)
        self.begun.pop()()
        self.now_s += 1
        return job


@pytest.fixture
def later() -> Later:
    return Later()


def quick(text: str) -> bytes:
    return text.encode()


def test_a_job_runs_beside_its_caller_and_only_its_owner_cancels_it(later: Later) -> None:
    beside = Jobs(Pool(ServerSettings(workers=0))).begin("me", "me", quick, "1")
    assert comes(lambda: beside.finished)
    assert (beside.status, beside.result) == ("done", b"1")
    job = later.jobs.begin("me", "me", quick, "1")
    assert later.jobs.cancel(job.id, "you") is None
    assert not job.departed.is_set()
    assert len(job.id) >= 20


def test_faults_of_ours_are_told_in_the_log_alone(later: Later, caplog) -> None:
    def broken() -> bytes:
        raise ValueError("secret")

    fault = later.ended(broken)
    assert fault.status == "failed"
    assert "secret" not in str(fault.error)
    assert "secret" in caplog.text


def test_one_owner_has_so_many_and_no_more(later: Later) -> None:
    own = [later.jobs.begin("me", "me", quick, "1") for _ in range(jobs.MOST_UNFINISHED)]
    assert refusal(later.jobs.begin, "me", "me", quick, "1", kind=BusyError).yours
    later.jobs.begin("you", "you", quick, "1")
    later.jobs.cancel(own[0].id, "me")
    assert later.jobs.begin("me", "me", quick, "1").id


def test_finished_jobs_are_forgotten_in_time_and_for_newer_ones(later: Later) -> None:
    first = later.ended(quick, "1")
    later.now_s = jobs.KEPT_S / 2
    assert later.jobs.find(first.id, "me") is first
    later.now_s = jobs.KEPT_S + 1
    assert later.jobs.find(first.id, "me") is None
    ids = [later.ended(quick, str(number)).id for number in range(jobs.MOST_KEPT + 1)]
    assert later.jobs.find(ids[0], "me") is None
    assert later.jobs.find(ids[1], "me") is not None
