"""Jobs: begun, looked at, cancelled, fetched by their owner alone, and forgotten."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from recipe_core.base import budget, progress
from recipe_core.base.errors import BusyError, InputError
from recipe_core.doors import jobs as module
from recipe_core.doors.jobs import Job, Jobs
from recipe_core.doors.pool import Pool
from recipe_core.doors.settings import ServerSettings
from tests.fixtures.patience import comes


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


def refused() -> bytes:
    raise InputError("is wrong.", field="request")


def broken() -> bytes:
    raise ValueError("secret")


def test_a_job_waits_runs_and_ends_with_its_result(later: Later) -> None:
    states: list[tuple[str, int, int]] = []

    def stepping() -> bytes:
        with progress.task(2):
            progress.step()
            states.append((job.status, job.done, job.steps))
            progress.step()
        return b"2"

    job = later.jobs.begin("me", "me", stepping)
    assert job.status == "queued"
    later.begun[0]()
    assert states == [("running", 1, 2)]
    assert (job.status, job.done, job.result, job.error) == ("done", 2, b"2", None)
    assert later.jobs.find(job.id, "me") is job


def test_to_cancel_ends_the_calculation_or_lets_it_not_begin(later: Later) -> None:
    def cancelling() -> bytes:
        assert later.jobs.cancel(job.id, "me") is job
        budget.spend()
        raise AssertionError("it went on")

    job = later.jobs.begin("me", "me", cancelling)
    later.begun.pop()()
    assert (job.status, job.result) == ("cancelled", None)


def test_a_job_runs_beside_its_caller() -> None:
    jobs = Jobs(Pool(ServerSettings(workers=0)))
    job = jobs.begin("me", "me", quick, "1")
    assert comes(lambda: job.finished)
    assert (job.status, job.result) == ("done", b"1")


def test_only_the_owner_sees_a_job(later: Later) -> None:
    job = later.jobs.begin("me", "me", quick, "1")
    assert later.jobs.find(job.id, "you") is None
    assert later.jobs.cancel(job.id, "you") is None
    assert not job.left.is_set()
    assert len(job.id) >= 20


def test_errors_are_told_as_the_api_tells_them_and_faults_of_ours_in_the_log(
    later: Later, caplog: pytest.LogCaptureFixture
) -> None:
    error = later.ended(refused).error
    assert error is not None
    assert (error["field"], error["message"]) == ("request", "is wrong.")
    fault = later.ended(broken)
    assert fault.status == "failed"
    assert "secret" not in str(fault.error)
    assert "secret" in caplog.text


def test_one_owner_has_so_many_and_no_more(later: Later) -> None:
    own = [later.jobs.begin("me", "me", quick, "1") for _ in range(module.MOST_UNFINISHED)]
    with pytest.raises(BusyError) as refusal:
        later.jobs.begin("me", "me", quick, "1")
    assert refusal.value.yours
    later.jobs.begin("you", "you", quick, "1")
    later.jobs.cancel(own[0].id, "me")
    assert later.jobs.begin("me", "me", quick, "1").id


def test_finished_jobs_are_forgotten_in_time_and_for_newer_ones(later: Later) -> None:
    first = later.ended(quick, "1")
    later.now_s = module.KEPT_S / 2
    assert later.jobs.find(first.id, "me") is first
    later.now_s = module.KEPT_S + 1
    assert later.jobs.find(first.id, "me") is None
    ids = [later.ended(quick, str(number)).id for number in range(module.MOST_KEPT + 1)]
    assert later.jobs.find(ids[0], "me") is None
    assert later.jobs.find(ids[1], "me") is not None
