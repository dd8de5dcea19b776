"""Routes of calculations that are begun and fetched: ``/simulate`` and ``/jobs``."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Request
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from recipe_core.base.described import DESCRIBED, SchemaOf
from recipe_core.base.documents import to_json
from recipe_core.doors import answers, bodies
from recipe_core.doors.jobs import Job, Jobs, Status
from recipe_core.doors.pool import Pool

SimulateBody = Annotated[dict[str, Any], SchemaOf(bodies.SimulateBody), Body()]


class JobProgress(BaseModel):
    """How far a calculation is; no steps before it has begun."""

    model_config = DESCRIBED

    done: int
    """Steps that are done."""

    steps: int
    """Steps in all."""


class JobProblem(BaseModel):
    """Why a calculation failed, and the fix."""

    model_config = DESCRIBED

    code: str
    """The kind of error."""

    field: str | None
    """Where in the request it is, with dots."""

    message: str
    """What is wrong with which value."""

    hint: str | None
    """What to do."""


class JobLinks(BaseModel):
    """Where to go from here."""

    model_config = DESCRIBED

    self: str
    """Path of the job, for GET and DELETE."""


class JobAnswer(BaseModel):
    """A calculation: how far it is, and what came of it."""

    model_config = DESCRIBED

    job: str
    """Its id, which only its owner knows."""

    status: Status
    """Whether it waits (``queued``), runs, or has ended: ``done``, ``failed``, ``cancelled``."""

    progress: JobProgress
    """How far it is."""

    links: JobLinks
    """Where to go from here."""

    error: JobProblem | None
    """Why it failed; null where it did not."""

    result: dict[str, Any] | None = None
    """The document of schema ``simulate``, when it is done."""


def job_routes(
    questions: APIRouter, plain: APIRouter, jobs: Jobs, pool: Pool, *, folders: bool
) -> None:
    """Add the routes: those with a body to ``questions``, which hands it on as it was sent."""

    @questions.post(
        "/simulate",
        status_code=202,
        summary="Policies of scaling over time, as a job: begins it and says where to look",
        responses={202: {"model": JobAnswer}},
    )
    async def simulate_route(request: Request, body: SimulateBody) -> Response:
        sent, client = body["sent"], _client(request)
        pool.admit(client, long=True)
        await pool.ask(answers.answered, "readable_simulation", folders, sent, client=client)
        job = jobs.begin(_owner(request, pool), client, answers.reply, "simulate", folders, sent)
        return _answer(request, job, 202)

    @plain.get(
        "/jobs/{job_id}",
        summary="How far a job is, and its result",
        responses={200: {"model": JobAnswer}},
    )
    def job_route(request: Request, job_id: str) -> Response:
        return _answer(request, _known(jobs.find(job_id, _owner(request, pool))))

    @plain.delete("/jobs/{job_id}", summary="End a job", responses={200: {"model": JobAnswer}})
    def cancel_route(request: Request, job_id: str) -> Response:
        return _answer(request, _known(jobs.cancel(job_id, _owner(request, pool))))


def _client(request: Request) -> str:
    return request.client.host if request.client else ""


def _owner(request: Request, pool: Pool) -> str:
    """Whose jobs a caller may see: all who have the server's token are one, else each host is."""
    return "token" if pool.settings.token else f"host {_client(request)}"


def _known(job: Job | None) -> Job:
    if job is None:
        raise HTTPException(404, "there is no such job of yours; finished ones are kept an hour.")
    return job


def _answer(request: Request, job: Job, status: int = 200) -> Response:
    """The job as JSON; the result's bytes are passed on as they are."""
    path = f"{request.scope.get('root_path', '')}/jobs/{job.id}"
    about = {
        "job": job.id,
        "status": job.status,
        "progress": {"done": job.done, "steps": job.steps},
        "links": {"self": path},
        "error": job.error,
    }
    text = to_json(about, indent=None).encode()
    if job.result is not None:
        text = text[:-1] + b', "result": ' + job.result + b"}"
    headers = {"Location": path} if status == 202 else None
    return Response(text, status, headers, media_type="application/json")
