"""Calculations that take longer than a caller should wait: begun, looked at, cancelled, fetched.

A job runs as any other question does, in a worker of the pool; here it waits in a thread of its
own. Its id cannot be guessed, and only its owner sees it. Results are kept for some time and then
forgotten.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from recipe_core.base import budget
from recipe_core.base.budget import Cancelled
from recipe_core.base.errors import BusyError, RecipeError
from recipe_core.doors.guard import tell_fault
from recipe_core.doors.pool import Pool

Status = Literal["queued", "running", "done", "failed", "cancelled"]

# Jobs of one owner that wait or run at a time.
MOST_UNFINISHED = 4
# Jobs of one owner that are remembered; the oldest finished one makes place for a new one.
MOST_KEPT = 16
# Jobs of all owners that are remembered; unfinished ones hold what was sent.
MOST_IN_ALL = 64
# Seconds for which a finished job is remembered.
KEPT_S = 3600.0
RETRY_AFTER_S = 10
ID_BYTES = 16


@dataclass(slots=True)
class Job:
    """A calculation, and how far it is.

    Attributes:
        id: its name, which cannot be guessed.
        owner: who began it.
        result: what its function gave, when it is done.
        error: why it failed, as the API says errors.
        ended_s: when it ended, by the clock of ``Jobs``.
    """

    id: str
    owner: str
    status: Status = "queued"
    done: int = 0
    steps: int = 0
    stage: str = ""
    result: Any = None
    error: dict[str, Any] | None = None
    ended_s: float | None = None
    departed: threading.Event = field(default_factory=threading.Event)

    @property
    def finished(self) -> bool:
        """True for one that will not change any more."""
        return self.ended_s is not None


def _in_a_thread(run: Callable[[], None]) -> None:
    threading.Thread(target=run, name="job", daemon=True).start()


class Jobs:
    """The jobs of one server.

    Args:
        pool: where they are calculated.
        clock: seconds that only grow.
        start: runs a job beside its caller.
    """

    def __init__(
        self,
        pool: Pool,
        clock: Callable[[], float] = time.monotonic,
        start: Callable[[Callable[[], None]], None] = _in_a_thread,
    ) -> None:
        self._pool, self._clock, self._start = pool, clock, start
        self._jobs: dict[str, Job] = {}
        self._change = threading.Lock()

    def begin(self, owner: str, client: str, function: Callable[..., Any], *args: Any) -> Job:
        """Begin a job: ``function(*args)`` in a worker gives its result.

        ``client``: for a fair share of the pool's queue.

        Raises:
            BusyError: when the owner, or everybody, has too many.
        """
        self._pool.admit(client, long=True)
        with self._change:
            self._forget_old()
            self._admit(owner)
            job = Job(secrets.token_urlsafe(ID_BYTES), owner)
            self._jobs[job.id] = job
        self._start(partial(self._run, job, client, function, args))
        return job

    def find(self, job_id: str, owner: str) -> Job | None:
        """A job of this owner; None where there is none (any more)."""
        with self._change:
            self._forget_old()
            job = self._jobs.get(job_id)
        return job if job is not None and job.owner == owner else None

    def cancel(self, job_id: str, owner: str) -> Job | None:
        """End a job of this owner: what waits does not begin, what runs ends. None without it."""
        job = self.find(job_id, owner)
        if job is not None:
            job.departed.set()
            self._end(job, "cancelled")
        return job

    def close(self) -> None:
        """End all jobs."""
        with self._change:
            jobs = list(self._jobs.values())
        for job in jobs:
            job.departed.set()
            self._end(job, "cancelled")

    def _run(
        self, job: Job, client: str, function: Callable[..., Any], args: tuple[Any, ...]
    ) -> None:
        def report(done: int, steps: int, stage: str) -> None:
            job.done, job.steps, job.stage = done, steps, stage

        def began() -> None:
            if not job.finished:
                job.status = "running"

        try:
            with budget.watched(report):
                result = self._pool.run(
                    function,
                    *args,
                    client=client,
                    abandoned=job.departed.is_set,
                    began=began,
                    long=True,
                    wait_s=KEPT_S,  # nobody holds a connection for it
                )
            self._end(job, "done", result=result)
        except Cancelled:
            self._end(job, "cancelled")
        except RecipeError as error:
            self._end(job, "failed", error=error.to_json()["error"])
        except Exception as error:
            self._end(job, "failed", error=tell_fault(error, "a job").to_json()["error"])

    def _end(
        self,
        job: Job,
        status: Status,
        *,
        result: Any = None,
        error: dict[str, Any] | None = None,
    ) -> None:
        """Note how a job ended; the first end counts."""
        with self._change:
            if job.finished:
                return
            job.result, job.error = result, error
            job.status, job.ended_s = status, self._clock()

    def _admit(self, owner: str) -> None:
        jobs = [job for job in self._jobs.values() if job.owner == owner]
        unfinished = sum(not job.finished for job in jobs)
        if unfinished >= MOST_UNFINISHED:
            raise BusyError(
                f"{unfinished} of your jobs wait or run, the most that may.",
                retry_after_s=RETRY_AFTER_S,
                yours=True,
            )
        if len(jobs) >= MOST_KEPT:
            self._drop_oldest(jobs)
        if len(self._jobs) >= MOST_IN_ALL:
            self._drop_oldest(list(self._jobs.values()))
        if len(self._jobs) >= MOST_IN_ALL:
            raise BusyError(
                f"{len(self._jobs)} jobs wait or run, the most that may.",
                retry_after_s=RETRY_AFTER_S,
            )

    def _drop_oldest(self, jobs: list[Job]) -> None:
        ended = [(job.ended_s, job.id) for job in jobs if job.ended_s is not None]
        if ended:
            del self._jobs[min(ended)[1]]

    def _forget_old(self) -> None:
        now = self._clock()
        for job in list(self._jobs.values()):
            if job.ended_s is not None and now - job.ended_s > KEPT_S:
                del self._jobs[job.id]
