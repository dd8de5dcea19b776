"""The JSON API: the same answers as the command line, over HTTP. Handlers compute nothing.

What calculates goes to the worker processes as it was sent; this process does not even parse it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from inspect import Parameter, Signature
from typing import Annotated, Any

from fastapi import APIRouter, Body, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match, Route

from recipe_core import __version__
from recipe_core.base.budget import Cancelled
from recipe_core.base.documented import SchemaOf
from recipe_core.base.documents import to_json
from recipe_core.base.errors import BusyError, InputError, NoAnswer, RecipeError
from recipe_core.doors import answers, catalog, operations
from recipe_core.doors.bodies import ErrorAnswer, JobAnswer
from recipe_core.doors.guard import FaultsTold
from recipe_core.doors.jobs import Job, Jobs
from recipe_core.doors.operations import OPERATIONS, Operation, Reply
from recipe_core.doors.pool import Pool, own_process

# The status that a log shows of a request whose sender has left; nobody reads the answer.
CLIENT_GONE = 499


def _error_responses(**statuses: str) -> dict[int | str, dict[str, Any]]:
    """Answers that are errors, for the OpenAPI document."""
    return {
        int(status.removeprefix("s")): {"model": ErrorAnswer, "description": text}
        for status, text in statuses.items()
    }


CALLER_ERRORS = _error_responses(
    s401="The server asks for a token, and the request has none that is right.",
    s404="There is no such path.",
    s405="The path takes other methods, which Allow names.",
    s421="The request was sent under a host name that is not this server's.",
    s422="A name or value is not known, or the request would take more than it may.",
    s429="Too much of this caller; Retry-After says when to try again.",
    s500="The server failed at it; its log says why.",
)
QUESTION_ERRORS = CALLER_ERRORS | _error_responses(
    s400="The request has no layout at all, or the recipe in it is damaged.",
    s409="The request is understood, and the answer is no.",
    s413="The body has no Content-Length, or is too large.",
    s503="Too many requests wait; Retry-After says when to try again.",
)


class _AsSent(Request):
    """A request whose JSON is not parsed here: the value is its bytes, under one name."""

    async def json(self) -> Any:
        return {"sent": await self.body()}


class _Forwarded(APIRoute):
    """A route that hands the body on as it was sent; one that is too large it does not read."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        handler = super().get_route_handler()
        limit = OPERATIONS[self.path.removeprefix("/")].most_bytes

        async def handle(request: Request) -> Response:
            length = request.headers.get("content-length", "")
            if not (length.isdecimal() and int(length[:20]) <= limit):
                problem = InputError(
                    f"the body needs a Content-Length of at most {limit:,} bytes.",
                    hint="Send a smaller request.",
                )
                return JSONResponse(problem.to_json(), 413)
            answer: Response = await handler(_AsSent(request.scope, request.receive))
            return answer

        return handle


def create_api(*, folders: bool, pool: Pool | None = None, jobs: Jobs | None = None) -> FastAPI:
    """The API as an ASGI app.

    Args:
        folders: whether a request may name a model by a path on this machine; only for a server
            that strangers cannot reach.
        pool: the worker processes; by default this process calculates.
        jobs: calculations that are begun and fetched; by default of the pool.
    """
    pool = pool or own_process()
    jobs = jobs or Jobs(pool)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            jobs.close()

    api = FastAPI(
        title="Recipe Builder",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    questions = APIRouter(route_class=_Forwarded, responses=QUESTION_ERRORS)
    plain = APIRouter(responses=CALLER_ERRORS)
    desk = _Desk(folders, pool, jobs)
    for operation in OPERATIONS.values():
        _add_route(questions, operation, desk)
    _add_catalog(plain)
    _add_jobs(plain, desk)
    _errors(api, [*api.routes, *questions.routes, *plain.routes])
    api.include_router(questions)
    api.include_router(plain)
    api.add_middleware(FaultsTold, where="the API")
    return api


def _errors(api: FastAPI, routes: Sequence[BaseRoute]) -> None:
    """Every error in one shape: ``{"error": {"code", "field", "message", "hint"}}``."""

    @api.exception_handler(RecipeError)
    async def recipe_error(_: Request, error: RecipeError) -> JSONResponse:
        return JSONResponse(error.to_json(), status_of(error), headers=_headers_of(error))

    @api.exception_handler(RequestValidationError)
    async def not_valid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = [str(part) for part in first["loc"]]
        problem = InputError(
            f"the body is not a JSON object: {first['msg']}."
            if where[0] == "body"
            else f"{first['msg']}.",
            field=None if where[0] == "body" else where[-1],
            hint="Send a PlanRequest as application/json." if where[0] == "body" else None,
        )
        return JSONResponse(problem.to_json(), 422)

    @api.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        hint = "See /api/v1/openapi.json."
        problem = {"code": "http", "field": None, "message": str(error.detail), "hint": hint}
        headers = (
            {"Allow": _allowed_methods(routes, request)}
            if error.status_code == 405
            else error.headers
        )
        return JSONResponse({"error": problem}, error.status_code, headers=headers)


def _allowed_methods(routes: Sequence[BaseRoute], request: Request) -> str:
    """The methods of a path: of all its routes, where Starlette names those of the first."""
    fitting = (route for route in routes if route.matches(request.scope)[0] is not Match.NONE)
    methods = {
        name for route in fitting if isinstance(route, Route) for name in route.methods or ()
    }
    return ", ".join(sorted(methods))


def status_of(error: RecipeError) -> int:
    """The HTTP status that tells of an error."""
    if isinstance(error, InputError):
        return 422
    if isinstance(error, BusyError):
        return 429 if error.yours else 503
    return 409 if isinstance(error, NoAnswer) else 400


def _headers_of(error: RecipeError) -> dict[str, str] | None:
    return {"Retry-After": str(error.retry_after_s)} if isinstance(error, BusyError) else None


class _Desk:
    """Questions on their way to a worker."""

    def __init__(self, folders: bool, pool: Pool, jobs: Jobs) -> None:
        self._folders, self._pool, self._jobs = folders, pool, jobs

    async def answer(
        self, operation: Operation, request: Request, body: bytes, options: dict[str, Any]
    ) -> Response:
        """The answer to a body, or nothing when the caller has left."""
        question = asyncio.ensure_future(
            self._pool.ask(
                operations.reply,
                operation.name,
                self._folders,
                body,
                options,
                client=_client(request),
            )
        )
        departure = asyncio.ensure_future(_left(request))
        try:
            await asyncio.wait({question, departure}, return_when=asyncio.FIRST_COMPLETED)
            return _response(question.result()) if question.done() else _client_gone_response()
        except Cancelled:
            return _client_gone_response()
        finally:
            for task in (question, departure):
                task.cancel()
                with suppress(asyncio.CancelledError, Exception, Cancelled):
                    await task

    async def begin(self, operation: Operation, request: Request, body: bytes) -> Response:
        """Begin a job, unless its body shows at once what is wrong with it."""
        client, question = _client(request), (operation.name, self._folders, body)
        self._pool.admit(client, long=True)
        await self._pool.ask(operations.check_job, *question, client=client)
        owner = self._owner(request)
        job = self._jobs.begin(owner, client, operations.reply, *question, {})
        return _job_answer(request, job, 202)

    def find(self, request: Request, job_id: str) -> Response:
        """Return how far a job of the caller is."""
        return _job_answer(request, self._jobs.find(job_id, self._owner(request)))

    def find_files(self, request: Request, job_id: str) -> Response:
        """Return the zip that the answer of a job of the caller has beside it."""
        job = self._jobs.find(job_id, self._owner(request))
        if job is None or job.result is None or job.result.files is None:
            raise HTTPException(404, "there is no such job of yours that is done and has files.")
        return _response(job.result._replace(data=job.result.files))

    def cancel(self, request: Request, job_id: str) -> Response:
        """End a job of the caller."""
        return _job_answer(request, self._jobs.cancel(job_id, self._owner(request)))

    def _owner(self, request: Request) -> str:
        """The owner of a caller's jobs: all who have the server's token are one, else each host."""
        return "token" if self._pool.settings.token else f"host {_client(request)}"


def _client(request: Request) -> str:
    return request.client.host if request.client else ""


async def _left(request: Request) -> None:
    """Wait until the sender of a request, whose body was read, closes the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _client_gone_response() -> Response:
    return Response(status_code=CLIENT_GONE)


def _response(reply: Reply) -> Response:
    if reply.bundle is None:
        status = 200 if reply.readable else 422
        return Response(reply.data, status, media_type="application/json")
    headers = {"Content-Disposition": f'attachment; filename="{reply.bundle}.zip"'}
    return Response(reply.data, media_type="application/zip", headers=headers)


def _job_answer(request: Request, job: Job | None, status: int = 200) -> Response:
    """The job as JSON; the result's bytes are passed on as they are."""
    if job is None:
        raise HTTPException(404, "there is no such job of yours; finished ones are kept an hour.")
    path = f"{request.scope.get('root_path', '')}/jobs/{job.id}"
    state = {
        "job": job.id,
        "status": job.status,
        "progress": {"done": job.done, "steps": job.steps, "stage": job.stage},
        "links": {"self": path},
        "error": job.error,
    }
    if job.result is not None and job.result.files is not None:
        state["links"] = {"self": path, "files": f"{path}/files"}
    text = to_json(state, indent=None).encode()
    if job.result is not None:
        text = text[:-1] + b', "result": ' + job.result.data + b"}"
    headers = {"Location": path} if status == 202 else None
    return Response(text, status, headers, media_type="application/json")


# Routes


def _add_route(api: APIRouter, operation: Operation, desk: _Desk) -> None:
    """Add the route of an operation; its parameters follow from its row."""

    async def route(request: Request, body: dict[str, Any], **options: Any) -> Response:
        if operation.job:
            return await desk.begin(operation, request, body["sent"])
        return await desk.answer(operation, request, body["sent"], options)

    sent = Annotated[dict[str, Any], SchemaOf(operation.body), Body()]
    kind = Parameter.POSITIONAL_OR_KEYWORD
    parameters = [Parameter("request", kind, annotation=Request)]
    parameters.append(Parameter("body", kind, annotation=sent))
    for name, annotation in operation.query.items():
        parameters.append(Parameter(name, kind, annotation=annotation, default=None))
    route.__name__ = f"{operation.name}_route"
    route.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # read by FastAPI
    settings: dict[str, Any] = {}
    if operation.job:
        settings = {"status_code": 202, "responses": {202: {"model": JobAnswer}}}
    elif operation.answer is answers.answer_build:
        settings = ZIPPED
    api.post(f"/{operation.name}", summary=operation.summary, response_model=None, **settings)(
        route
    )


# Of a route that answers a zip.
ZIPPED: dict[str, Any] = {
    "response_class": Response,
    "responses": {200: {"content": {"application/zip": {}}}},
}


def _add_jobs(api: APIRouter, desk: _Desk) -> None:
    answer: dict[int | str, dict[str, Any]] = {200: {"model": JobAnswer}}

    @api.get("/jobs/{job_id}", summary="How far a job is, and its result", responses=answer)
    def job_route(request: Request, job_id: str) -> Response:
        return desk.find(request, job_id)

    @api.get("/jobs/{job_id}/files", summary="The files of a job's answer as a zip", **ZIPPED)
    def job_files_route(request: Request, job_id: str) -> Response:
        return desk.find_files(request, job_id)

    @api.delete("/jobs/{job_id}", summary="End a job", responses=answer)
    def cancel_route(request: Request, job_id: str) -> Response:
        return desk.cancel(request, job_id)


_SEARCH = "Parts of a name, as people type them: the models that they mean, the best first."


def _add_catalog(api: APIRouter) -> None:
    @api.get("/models", summary="The model catalog")
    def models(
        search: Annotated[str | None, Query(max_length=256, description=_SEARCH)] = None,
    ) -> dict[str, Any]:
        return catalog.models(search=search)

    @api.get("/models/{name:path}", summary="One model")
    def model(name: str) -> dict[str, Any]:
        return catalog.models(name)

    @api.get("/hardware", summary="The device profiles")
    def hardware() -> dict[str, Any]:
        return catalog.hardware()

    @api.get("/hardware/{name}", summary="One device with sources and offers")
    def one_device(name: str) -> dict[str, Any]:
        return catalog.hardware(name)

    @api.get("/offers", summary="Prices of device-hours with source, date, age and what to doubt")
    def offers(
        device: str | None = None,
        provider: str | None = None,
        region: str | None = None,
        commitment: str | None = None,
    ) -> dict[str, Any]:
        return catalog.answer_offers(device, provider, region, commitment)

    @api.get("/engines", summary="The engines and their versions")
    def engines() -> dict[str, Any]:
        return catalog.engines()

    @api.get("/schema", summary="JSON Schema of a request")
    def schema() -> dict[str, Any]:
        return catalog.answer_schema()

    @api.get(
        "/schema/{name}",
        summary="JSON Schema of a request, or of an answer: a size, a simulation, a recipe …",
    )
    def one_schema(name: str) -> dict[str, Any]:
        return catalog.answer_schema(name)
