"""Worker processes: what they answer, when they end, who waits."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from recipe_core.base import budget, progress
from recipe_core.base.budget import Cancelled
from recipe_core.base.errors import BusyError, InputError, LimitError, NoAnswer
from recipe_core.doors import public
from recipe_core.doors.pool import Pool
from recipe_core.doors.settings import ServerSettings, variable
from tests.conftest import request_values
from tests.fixtures.patience import PATIENCE


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    one = Pool(ServerSettings(workers=1, queue=4))
    yield one
    one.close()


def limited(pool: Pool, **settings: Any) -> Pool:
    """A pool of one worker with other limits; the worker is the same."""
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
        pass


def hungry(gib: float) -> int:
    return len(bytearray(int(gib * 2**30)))


def fall_over() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail(kind: type[Exception]) -> None:
    raise kind("no")


def stepping(steps: int) -> str:
    with progress.task(steps):
        for _ in range(steps):
            time.sleep(0.15)  # slower than it may tell
            progress.step()
    return "done"


def wait_for(path: str) -> str:
    while not os.path.exists(path):  # noqa: PTH110 - it only looks
        budget.spend()
        time.sleep(0.01)
    return path


def test_a_plan_comes_back_whole(pool: Pool) -> None:
    request = request_values(options={"engines": ["vllm", "sglang"]})
    here, there = public.plan(request), limited(pool).run(public.plan, request)
    assert there.to_json() == here.to_json()
    assert there.changes() == here.changes()
    assert there.detailed(there.best_row) == here.detailed(here.best_row)


def test_the_same_process_goes_on(pool: Pool) -> None:
    first = limited(pool).run(who)
    assert first == pool.run(who) != os.getpid()


def test_errors_come_back_as_they_were(pool: Pool) -> None:
    first = limited(pool).run(who)
    with pytest.raises(InputError) as refused:
        pool.run(public.plan, {"model": "nothing/such"} | {"hardware": {"device": "h100-sxm"}})
    assert refused.value.field
    for kind in (NoAnswer, ValueError, KeyError):
        with pytest.raises(kind):
            pool.run(fail, kind)
    assert pool.run(who) == first


def test_time_is_limited(pool: Pool) -> None:
    first = limited(pool).run(who)
    with pytest.raises(LimitError, match=r"0\.2 s"):
        limited(pool, seconds=0.2).run(busy_for_ever)
    assert limited(pool).run(who) == first
    with pytest.raises(LimitError, match=r"0\.2 s"):
        limited(pool, seconds=0.2).run(deaf_for_ever)
    assert limited(pool).run(who) != first


def test_memory_is_limited(pool: Pool) -> None:
    assert limited(pool, memory_gib=0.5).run(hungry, 0.1)
    with pytest.raises(LimitError, match=r"0\.5 GiB of memory"):
        pool.run(hungry, 0.8)
    assert limited(pool, memory_gib=2).run(hungry, 0.8)
    assert pool.run(who)


def test_a_process_that_dies_is_replaced(pool: Pool) -> None:
    first = limited(pool).run(who)
    with pytest.raises(LimitError, match="SIGKILL"):
        pool.run(fall_over)
    assert pool.run(who) != first


def test_who_leaves_ends_the_work(pool: Pool) -> None:
    first = limited(pool).run(who)
    looks = iter([False, False])
    with pytest.raises(Cancelled):
        pool.run(busy_for_ever, abandoned=lambda: next(looks, True))
    assert pool.run(who) == first
    with pytest.raises(Cancelled):
        pool.run(deaf_for_ever, abandoned=lambda: True)
    assert pool.run(who) != first


def test_progress_comes_on_the_way_and_its_watcher_may_end_the_work(pool: Pool) -> None:
    told: list[tuple[int, int]] = []
    with progress.watched(lambda done, steps: told.append((done, steps))):
        assert limited(pool).run(stepping, 3) == "done"
    assert told
    assert {steps for _, steps in told} == {3}

    class Stopped(BaseException):
        pass

    def stop(done: int, steps: int) -> None:
        raise Stopped

    with progress.watched(stop), pytest.raises(Stopped):
        pool.run(stepping, 50)
    assert pool.run(who)


def in_thread(pool: Pool, path: str, client: str) -> threading.Thread:
    thread = threading.Thread(target=pool.run, args=(wait_for, path), kwargs={"client": client})
    thread.start()
    return thread


def until(condition: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_who_waits_too_much_is_told_to_come_again(pool: Pool, tmp_path: Any) -> None:
    limited(pool, queue=2).run(who)
    door = str(tmp_path / "door")
    threads = [in_thread(pool, door, "greedy")]
    until(lambda: not pool._idle and not pool.waiting)
    threads.append(in_thread(pool, door, "greedy"))
    until(lambda: pool.waiting == 1)
    with pytest.raises(BusyError) as refused:
        pool.run(who, client="greedy")
    assert refused.value.yours
    threads.append(in_thread(pool, door, "modest"))
    until(lambda: pool.waiting == 2)
    with pytest.raises(BusyError) as refused:
        pool.run(who, client="third")
    assert not refused.value.yours
    assert refused.value.retry_after_s > 0
    (tmp_path / "door").touch()
    for thread in threads:
        thread.join(PATIENCE)
    assert pool.run(who, client="greedy")


def test_workers_know_no_token(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable("token"), "a-token-of-twenty-chars")
    fresh = Pool(ServerSettings(workers=1))
    try:
        assert fresh.run(environment, variable("token")) is None
        assert fresh.run(environment, "OPENBLAS_NUM_THREADS") == "1"
    finally:
        fresh.close()


def test_workers_end_with_the_pool() -> None:
    one = Pool(ServerSettings(workers=1))
    worker = one.run(who)
    one.close()
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


def test_without_workers_the_same_limits_hold() -> None:
    alone = Pool(ServerSettings(workers=0, seconds=0.05))
    assert alone.run(who) == os.getpid()
    with pytest.raises(LimitError):
        alone.run(busy_for_ever)
    with pytest.raises(Cancelled):
        alone.run(busy_for_ever, abandoned=lambda: True)
