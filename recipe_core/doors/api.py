"""The JSON API: the same answers as the command line, over HTTP. Handlers compute nothing."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from recipe_core import __version__
from recipe_core.base.described import SchemaOf
from recipe_core.base.documents import MAX_DOCUMENT_BYTES
from recipe_core.base.errors import InputError, NoAnswer, RecipeError
from recipe_core.doors import answers
from recipe_core.doors.answers import RECIPE_LIKE, Answers
from recipe_core.request.schema import PlanRequest

RequestBody = Annotated[dict[str, Any], SchemaOf(PlanRequest), Body(description="A PlanRequest.")]
CheckBody = Annotated[
    dict[str, Any],
    Body(description="A PlanRequest, or {command, hardware, gpus, nodes, input_tokens, …}."),
]
RecipeBody = Annotated[dict[str, Any], Body(description=RECIPE_LIKE)]


def create_api(*, folders: bool) -> FastAPI:
    """The API as an ASGI app.

    Args:
        folders: whether a request may name a model by a path on this machine; only for a server
            that strangers cannot reach.
    """
    api = FastAPI(title="Recipe Builder", version=__version__, docs_url=None, redoc_url=None)
    _errors(api)
    _questions(api, Answers(folders=folders))
    _recipes(api, Answers(folders=folders))
    _catalog(api)
    return api


def _errors(api: FastAPI) -> None:
    """Every error in one shape: ``{"error": {"code", "field", "message", "hint"}}``."""

    @api.exception_handler(RecipeError)
    def recipe_error(_: Request, error: RecipeError) -> JSONResponse:
        if isinstance(error, InputError):
            return JSONResponse(error.to_json(), 422)
        return JSONResponse(error.to_json(), 409 if isinstance(error, NoAnswer) else 400)

    @api.exception_handler(RequestValidationError)
    def not_json(_: Request, error: RequestValidationError) -> JSONResponse:
        problem = InputError(
            f"the body is not a JSON object: {error.errors()[0]['msg']}.",
            hint="Send a PlanRequest as application/json.",
        )
        return JSONResponse(problem.to_json(), 422)

    @api.exception_handler(HTTPException)
    def http_error(_: Request, error: HTTPException) -> JSONResponse:
        hint = "See /api/v1/openapi.json."
        problem = {"code": "http", "field": None, "message": str(error.detail), "hint": hint}
        return JSONResponse({"error": problem}, error.status_code)

    @api.middleware("http")
    async def bounded(request: Request, call_next: Any) -> Response:
        length = request.headers.get("content-length", "")
        fits = length.isdecimal() and int(length) <= MAX_DOCUMENT_BYTES
        if request.method == "POST" and not fits:
            problem = InputError(
                f"the body needs a Content-Length of at most {MAX_DOCUMENT_BYTES:,} bytes.",
                hint="Send a smaller request.",
            )
            return JSONResponse(problem.to_json(), 413)
        answer: Response = await call_next(request)
        return answer


def _questions(api: FastAPI, ask: Answers) -> None:
    """Routes that compute; plain functions run in a thread and do not block the server."""

    @api.post("/plan", summary="Every split, judged and ranked")
    def plan_route(
        body: RequestBody, top: Annotated[int | None, Query(ge=0)] = None
    ) -> dict[str, Any]:
        return ask.plan(body, top)

    @api.post(
        "/estimate", summary="One split: the request's candidate, or the best that matches it"
    )
    def estimate_route(body: RequestBody) -> dict[str, Any]:
        return ask.estimate(body)

    @api.post(
        "/check",
        summary="Whether a split or an engine's command can run, why not, and a better one",
        response_model=None,
    )
    def check_route(body: CheckBody) -> dict[str, Any] | JSONResponse:
        answer = ask.check(body)
        return JSONResponse(answer, 422) if "error" in answer else answer

    @api.post(
        "/build",
        summary="The bundle as a zip",
        response_class=Response,
        responses={200: {"content": {"application/zip": {}}}},
    )
    def build_route(body: RecipeBody) -> Response:
        name, data = ask.build(body)
        return Response(
            data,
            media_type="application/zip",
            headers={"Content-Disposition": f'attachment; filename="{name}.zip"'},
        )


def _recipes(api: FastAPI, ask: Answers) -> None:
    """Routes on recipes; a request may stand in for each."""

    @api.post("/recipe", summary="The recipe of a request, without its files")
    def recipe_route(body: RecipeBody) -> dict[str, Any]:
        return ask.recipe(body)

    @api.post(
        "/resolve", summary="Which variants of a recipe apply to other hardware, and what they set"
    )
    def resolve_route(
        body: Annotated[dict[str, Any], Body(description='{"recipe": …, "hardware": "mi300x:8"}')],
    ) -> dict[str, Any]:
        return ask.resolve(body)

    @api.post("/diff", summary="The differences between two recipes and between their estimates")
    def diff_route(
        body: Annotated[dict[str, Any], Body(description='{"before": …, "after": …}')],
    ) -> dict[str, Any]:
        return ask.diff(body)

    @api.post("/convert", summary="An engine's command, or a published recipe, as a recipe")
    def convert_route(
        body: Annotated[
            dict[str, Any], Body(description='{"command" or "document": …, "hardware": …}')
        ],
    ) -> dict[str, Any]:
        return ask.convert(body)


def _catalog(api: FastAPI) -> None:
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

    @api.get("/engines", summary="The engines and their versions")
    def engines() -> dict[str, Any]:
        return answers.engines()

    @api.get("/schema", summary="JSON Schema of a request")
    def schema() -> dict[str, Any]:
        return answers.schema()

    @api.get(
        "/schema/{name}",
        summary="JSON Schema of a request, an estimate, a recipe or a bundle's manifest",
    )
    def one_schema(name: str) -> dict[str, Any]:
        return answers.schema(name)
