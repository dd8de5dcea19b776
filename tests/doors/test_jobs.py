"""Jobs: begun, looked at, cancelled, fetched by their owner alone, and forgotten."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from recipe_core.base import budget, progress
from recipe_core.base.errors import BusyError, InputError
from recipe_core.doors import jobs as module
from recipe_core.doors.jobs import Job, Jobs
from recipe_core.doors.pool import Pool
from recipe_core.doors.settings import ServerSettings
from tests.fixtures.patience import comes

GOES_ON = threading.Event()


def quick(text: str) -> bytes:
    return text.encode()


def slow() -> bytes:
    """Half of it at once, the rest when it may go on."""
    with progress.task(2):
        progress.step()
        while not GOES_ON.wait(0.01):
            budget.spend()
        progress.step()
    return b"2"


def refused() -> bytes:
    raise InputError("is wrong.", field="request")


def broken() -> bytes:
    raise ValueError("secret")


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    GOES_ON.clear()
    here = Jobs(Pool(ServerSettings(workers=0)))
    yield here
    GOES_ON.set()
    here.close()


def test_a_job_ends_with_its_result(jobs: Jobs) -> None:
    job = jobs.begin("me", "me", quick, "1")
    assert comes(lambda: job.finished)
    assert (job.status, job.result, job.error) == ("done", b"1", None)
    assert jobs.find(job.id, "me") is job


def test_progress_is_seen_while_it_runs(jobs: Jobs) -> None:
    job = jobs.begin("me", "me", slow)
    assert comes(lambda: (job.status, job.done, job.steps) == ("running", 1, 2))
    GOES_ON.set()
    assert comes(lambda: job.status == "done")
    assert (job.done, job.result) == (2, b"2")


def test_to_cancel_ends_the_calculation(jobs: Jobs) -> None:
    job = jobs.begin("me", "me", slow)
    assert comes(lambda: job.done == 1)
    threads = threading.active_count()
    assert jobs.cancel(job.id, "me") is job
    assert comes(lambda: threading.active_count() < threads)
    assert (job.status, job.result) == ("cancelled", None)


def test_only_the_owner_sees_a_job(jobs: Jobs) -> None:
    job = jobs.begin("me", "me", slow)
    assert jobs.find(job.id, "you") is None
    assert jobs.cancel(job.id, "you") is None
    assert not job.left.is_set()
    assert len(job.id) >= 20


def test_an_error_is_told_as_the_api_tells_it(jobs: Jobs) -> None:
    job = jobs.begin("me", "me", refused)
    assert comes(lambda: job.status == "failed")
    assert job.error is not None
    assert (job.error["field"], job.error["message"]) == ("request", "is wrong.")


def test_a_fault_of_ours_shows_its_detail_in_the_log_only(
    jobs: Jobs, caplog: pytest.LogCaptureFixture
) -> None:
    job = jobs.begin("me", "me", broken)
    assert comes(lambda: job.status == "failed")
    assert "secret" not in str(job.error)
    assert "secret" in caplog.text


def test_one_owner_has_so_many_and_no_more(jobs: Jobs) -> None:
    own: list[Job] = [jobs.begin("me", "me", slow) for _ in range(module.MOST_UNFINISHED)]
    with pytest.raises(BusyError) as refusal:
        jobs.begin("me", "me", slow)
    assert refusal.value.yours
    jobs.begin("you", "you", slow)
    jobs.cancel(own[0].id, "me")
    assert jobs.begin("me", "me", slow).id


def test_finished_jobs_are_forgotten_in_time() -> None:
    now = [0.0]
    jobs = Jobs(Pool(ServerSettings(workers=0)), clock=lambda: now[0])
    first = jobs.begin("me", "me", quick, "1")
    assert comes(lambda: first.finished)
    now[0] = module.KEPT_S / 2
    assert jobs.find(first.id, "me") is first
    now[0] = module.KEPT_S + 1
    assert jobs.find(first.id, "me") is None


def test_the_oldest_makes_place(jobs: Jobs) -> None:
    ids = []
    for number in range(module.MOST_KEPT + 1):
        job = jobs.begin("me", "me", quick, str(number))
        assert comes(lambda job=job: job.finished)  # type: ignore[misc]
        ids.append(job.id)
    assert jobs.find(ids[0], "me") is None
    assert jobs.find(ids[1], "me") is not None
