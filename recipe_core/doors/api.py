"""The JSON API: the same answers as the command line, over HTTP. Handlers compute nothing.

What calculates goes to the worker processes as it was sent; this process does not even parse it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any

from fastapi import APIRouter, Body, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match, Route

from recipe_core import __version__
from recipe_core.base.budget import Cancelled
from recipe_core.base.described import DESCRIBED, SchemaOf
from recipe_core.base.documents import MAX_DOCUMENT_BYTES
from recipe_core.base.errors import BusyError, InputError, NoAnswer, RecipeError
from recipe_core.doors import answers, bodies
from recipe_core.doors.answers import MAX_TRACE_BYTES
from recipe_core.doors.faults import FaultsTold
from recipe_core.doors.job_routes import job_routes
from recipe_core.doors.jobs import Jobs
from recipe_core.doors.pool import Pool, own_process

MOST_LISTED = 10_000
"""Candidates that one answer lists at most."""
WITH_TRACES = ("/trace", "/simulate")
"""Routes whose bodies hold traces, and may be larger than others."""
CLIENT_GONE = 499
"""The status that a log shows of a request whose sender has left; nobody reads the answer."""

Sent = dict[str, Any]
"""A body, which a worker reads; its schema is that of what it should be."""
RequestBody = Annotated[Sent, SchemaOf(bodies.PlanBody), Body()]
SizeBody = Annotated[Sent, SchemaOf(bodies.SizeBody), Body()]
CheckBody = Annotated[Sent, SchemaOf(bodies.CheckBody), Body()]
RecipeBody = Annotated[Sent, SchemaOf(bodies.RecipeBody), Body()]
ResolveBody = Annotated[Sent, SchemaOf(bodies.ResolveBody), Body()]
DiffBody = Annotated[Sent, SchemaOf(bodies.DiffBody), Body()]
ConvertBody = Annotated[Sent, SchemaOf(bodies.ConvertBody), Body()]
ReconcileBody = Annotated[Sent, SchemaOf(bodies.ReconcileBody), Body()]
TraceBody = Annotated[Sent, SchemaOf(bodies.TraceBody), Body()]


class Problem(BaseModel):
    """What is wrong, and the fix."""

    model_config = DESCRIBED

    code: str
    """The kind of error."""

    field: str | None
    """Where in the request it is, with dots."""

    message: str
    """What is wrong with which value."""

    hint: str | None
    """What to do."""


class ErrorAnswer(BaseModel):
    """The body of every answer that is an error."""

    model_config = DESCRIBED

    error: Problem
    """The error."""


def _described(**statuses: str) -> dict[int | str, dict[str, Any]]:
    """Answers that are errors, for the OpenAPI document."""
    return {
        int(status.removeprefix("s")): {"model": ErrorAnswer, "description": text}
        for status, text in statuses.items()
    }


CALLER_ERRORS = _described(
    s401="The server asks for a token, and the request has none that is right.",
    s404="There is no such path.",
    s405="The path takes other methods, which Allow names.",
    s421="The request was sent under a host name that is not this server's.",
    s422="A name or value is not known, or the request would take more than it may.",
    s429="Too much of this caller; Retry-After says when to try again.",
    s500="The server failed at it; its log says why.",
)
QUESTION_ERRORS = CALLER_ERRORS | _described(
    s400="The request has no split at all, or the recipe in it is damaged.",
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
        most = MAX_TRACE_BYTES if self.path in WITH_TRACES else MAX_DOCUMENT_BYTES

        async def handle(request: Request) -> Response:
            length = request.headers.get("content-length", "")
            if not (length.isdecimal() and int(length[:20]) <= most):
                problem = InputError(
                    f"the body needs a Content-Length of at most {most:,} bytes.",
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
    asked = _Asked(folders, pool)
    _questions(questions, asked)
    _recipes(questions, asked)
    _catalog(plain)
    job_routes(questions, plain, jobs, pool, folders=folders)
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
            {"Allow": _allowed(routes, request)} if error.status_code == 405 else error.headers
        )
        return JSONResponse({"error": problem}, error.status_code, headers=headers)


def _allowed(routes: Sequence[BaseRoute], request: Request) -> str:
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


class _Asked:
    """Questions on their way to a worker."""

    def __init__(self, folders: bool, pool: Pool) -> None:
        self._folders, self._pool = folders, pool

    async def json(self, request: Request, method: str, body: Any, **options: Any) -> Response:
        """The answer of a method of ``Answers``, or nothing when the caller has left."""
        data = await self._answered(
            request, answers.reply, method, self._folders, body["sent"], **options
        )
        return _gone() if data is None else Response(data, media_type="application/json")

    async def verdict(self, request: Request, body: Any) -> Response:
        """A verdict; of a command that could not be read, with the status of bad input."""
        given = await self._answered(request, answers.verdict, self._folders, body["sent"])
        if given is None:
            return _gone()
        readable, data = given
        return Response(data, 200 if readable else 422, media_type="application/json")

    async def zip(self, request: Request, body: Any) -> Response:
        """A bundle, as a download."""
        built = await self._answered(request, answers.bundle, self._folders, body["sent"])
        if built is None:
            return _gone()
        name, data = built
        return Response(
            data,
            media_type="application/zip",
            headers={"Content-Disposition": f'attachment; filename="{name}.zip"'},
        )

    async def _answered(
        self, request: Request, function: Callable[..., Any], *arguments: Any, **options: Any
    ) -> Any:
        client = request.client.host if request.client else ""
        question = asyncio.ensure_future(
            self._pool.ask(function, *arguments, client=client, **options)
        )
        departure = asyncio.ensure_future(_left(request))
        try:
            await asyncio.wait({question, departure}, return_when=asyncio.FIRST_COMPLETED)
            return question.result() if question.done() else None
        except Cancelled:
            return None
        finally:
            for task in (question, departure):
                task.cancel()
                with suppress(asyncio.CancelledError, Exception, Cancelled):
                    await task


async def _left(request: Request) -> None:
    """Return when the sender of a request, whose body was read, closes the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _gone() -> Response:
    return Response(status_code=CLIENT_GONE)


def _questions(api: APIRouter, asked: _Asked) -> None:
    """Routes that calculate."""

    @api.post("/plan", summary="Every split, judged and ranked")
    async def plan_route(
        request: Request,
        body: RequestBody,
        top: Annotated[int | None, Query(ge=0, le=MOST_LISTED)] = None,
    ) -> Response:
        return await asked.json(request, "plan", body, top=top)

    @api.post(
        "/estimate", summary="One split: the request's candidate, or the best that matches it"
    )
    async def estimate_route(request: Request, body: RequestBody) -> Response:
        return await asked.json(request, "estimate", body)

    @api.post("/size", summary="Which hardware, how many, at what cost, how sure")
    async def size_route(request: Request, body: SizeBody) -> Response:
        return await asked.json(request, "size", body)

    @api.post("/compress", summary="What every technique of compression would do to a served model")
    async def compress_route(
        request: Request,
        body: RequestBody,
        techniques: Annotated[str | None, Query(max_length=2000)] = None,
    ) -> Response:
        return await asked.json(request, "compress", body, techniques=techniques)

    @api.post(
        "/check",
        summary="Whether a split or an engine's command can run, why not, and a better one",
    )
    async def check_route(request: Request, body: CheckBody) -> Response:
        return await asked.verdict(request, body)

    @api.post("/reconcile", summary="What other programs measured, beside the estimate")
    async def reconcile_route(request: Request, body: ReconcileBody) -> Response:
        return await asked.json(request, "reconcile", body)

    @api.post("/trace", summary="What a trace of requests shows: rates, lengths, reuse")
    async def trace_route(request: Request, body: TraceBody) -> Response:
        return await asked.json(request, "trace", body)

    @api.post(
        "/build",
        summary="The bundle as a zip",
        response_class=Response,
        responses={200: {"content": {"application/zip": {}}}},
    )
    async def build_route(request: Request, body: RecipeBody) -> Response:
        return await asked.zip(request, body)


def _recipes(api: APIRouter, asked: _Asked) -> None:
    """Routes on recipes; a request may stand in for each."""

    @api.post("/recipe", summary="The recipe of a request, without its files")
    async def recipe_route(request: Request, body: RecipeBody) -> Response:
        return await asked.json(request, "recipe", body)

    @api.post(
        "/resolve", summary="Which variants of a recipe apply to other hardware, and what they set"
    )
    async def resolve_route(request: Request, body: ResolveBody) -> Response:
        return await asked.json(request, "resolve", body)

    @api.post("/diff", summary="The differences between two recipes and between their estimates")
    async def diff_route(request: Request, body: DiffBody) -> Response:
        return await asked.json(request, "diff", body)

    @api.post("/convert", summary="An engine's command, or a published recipe, as a recipe")
    async def convert_route(request: Request, body: ConvertBody) -> Response:
        return await asked.json(request, "convert", body)


def _catalog(api: APIRouter) -> None:
    """Routes on models, devices, engines and schemas."""

    @api.get("/models", summary="The model catalog")
    def models() -> dict[str, Any]:
        return answers.models()

    @api.get("/models/{name:path}", summary="One model")
    def model(name: str) -> dict[str, Any]:
        return answers.models(name)

    @api.get("/hardware", summary="The device profiles")
    def hardware() -> dict[str, Any]:
        return answers.hardware()

    @api.get("/hardware/{name}", summary="One device with sources and offers")
    def one_device(name: str) -> dict[str, Any]:
        return answers.hardware(name)

    @api.get("/offers", summary="Prices of device-hours with source, date, age and what to doubt")
    def offers(
        device: str | None = None,
        provider: str | None = None,
        region: str | None = None,
        commitment: str | None = None,
    ) -> dict[str, Any]:
        return answers.offers(device, provider, region, commitment)

    @api.get("/engines", summary="The engines and their versions")
    def engines() -> dict[str, Any]:
        return answers.engines()

    @api.get("/schema", summary="JSON Schema of a request")
    def schema() -> dict[str, Any]:
        return answers.schema()

    @api.get(
        "/schema/{name}",
        summary="JSON Schema of a request, or of an answer: a size, a simulation, a recipe …",
    )
    def one_schema(name: str) -> dict[str, Any]:
        return answers.schema(name)
