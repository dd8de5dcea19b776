"""The JSON door: the same answers as the command line, over HTTP. Handlers only parse, ask and dump."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from recipe_core import __version__
from recipe_core.bundle import zip_bytes
from recipe_core.check import check_request
from recipe_core.commands.ground import Ground
from recipe_core.commands.judge import check_command
from recipe_core.documents import MAX_DOCUMENT_BYTES, finite
from recipe_core.engines.spec import engine, engine_names
from recipe_core.errors import InputError, NoAnswer, RecipeError
from recipe_core.hardware.catalog import device, device_names, offers
from recipe_core.model.catalog import catalog_entry, catalog_ids, catalog_model
from recipe_core.plan import chosen_plan, plan
from recipe_core.recipe import make_recipe
from recipe_core.request import PlanRequest, json_schema
from recipe_core.training.plan import chosen_training, is_training, training_plan
from recipe_core.views import engine_view, hardware_view, model_view, plan_view

RequestBody = Annotated[dict[str, Any], Body(description="A PlanRequest; see /api/v1/schema.")]


def create_api(*, folders: bool) -> FastAPI:
    """The API.

    Args:
        folders: whether a request may name a model by a path on this machine; only where strangers cannot reach the server.
    """
    api = FastAPI(title="Recipe Builder", version=__version__, docs_url=None, redoc_url=None)
    _errors(api)
    _questions(api, folders)
    _catalog(api)
    return api


def _errors(api: FastAPI) -> None:
    """Every error in one shape: ``{"error": {"code", "field", "message", "hint"}}``."""

    @api.exception_handler(RecipeError)
    def recipe_error(_: Request, error: RecipeError) -> JSONResponse:
        status = 422 if isinstance(error, InputError) else 409 if isinstance(error, NoAnswer) else 400
        return JSONResponse(error.to_json(), status)

    @api.exception_handler(RequestValidationError)
    def not_json(_: Request, error: RequestValidationError) -> JSONResponse:
        problem = InputError(f"the body is not a JSON object: {error.errors()[0]['msg']}.", hint="Send a PlanRequest as application/json.")
        return JSONResponse(problem.to_json(), 422)

    @api.exception_handler(HTTPException)
    def http_error(_: Request, error: HTTPException) -> JSONResponse:
        body = {"error": {"code": "http", "field": None, "message": str(error.detail), "hint": "See /api/v1/openapi.json."}}
        return JSONResponse(body, error.status_code)

    @api.middleware("http")
    async def bounded(request: Request, call_next: Any) -> Response:
        length = request.headers.get("content-length")
        if request.method == "POST" and (length is None or not length.isdecimal() or int(length) > MAX_DOCUMENT_BYTES):
            problem = InputError(
                f"the body needs a Content-Length of at most {MAX_DOCUMENT_BYTES:,} bytes.", hint="Send a smaller request."
            )
            return JSONResponse(problem.to_json(), 413)
        answer: Response = await call_next(request)
        return answer


def _questions(api: FastAPI, folders: bool) -> None:
    """What is computed from a request. Plain functions: they run in a thread and do not hold up the server."""

    @api.post("/plan", summary="Every split judged and ranked")
    def plan_route(body: RequestBody, top: Annotated[int | None, Query(ge=0)] = None) -> dict[str, Any]:
        request = PlanRequest.parse(body)
        if is_training(request):
            return _clean(training_plan(request, folders=folders).view(top))
        return _clean(plan_view(plan(request, folders=folders), top))

    @api.post("/estimate", summary="One split: the request's candidate, or the best that agrees with it")
    def estimate_route(body: RequestBody) -> dict[str, Any]:
        request = PlanRequest.parse(body)
        if is_training(request):
            estimates, place = chosen_training(request, folders=folders)
            return _clean({"candidate": estimates.candidate(place)} | estimates.row(place))
        table, row = chosen_plan(request, folders=folders)
        return _clean({"candidate": table.candidate(row)} | table.detailed(row))

    @api.post("/check", summary="Whether a split, or an engine's command, can run, why not, and the best one", response_model=None)
    def check_route(body: RequestBody) -> dict[str, Any] | JSONResponse:
        if "command" not in body:
            return _clean(check_request(PlanRequest.parse(body), folders=folders))
        ground = Ground.of(**{name: value for name, value in body.items() if name != "command"})
        answer = _clean(check_command(body["command"], ground, folders=folders))
        return JSONResponse(answer, 422) if "error" in answer else answer

    @api.post("/build", summary="The bundle as a zip", response_class=Response, responses={200: {"content": {"application/zip": {}}}})
    def build_route(body: RequestBody) -> Response:
        recipe = make_recipe(PlanRequest.parse(body), folders=folders)
        headers = {"Content-Disposition": f'attachment; filename="{recipe.name}.zip"'}
        return Response(zip_bytes(recipe), media_type="application/zip", headers=headers)


def _catalog(api: FastAPI) -> None:
    """What is known."""

    @api.get("/models", summary="The model catalog")
    def models() -> dict[str, Any]:
        return {"models": catalog_ids()}

    @api.get("/models/{name:path}", summary="One model")
    def model(name: str) -> dict[str, Any]:
        return _clean(model_view(catalog_model(name), catalog_entry(name)))

    @api.get("/hardware", summary="The device profiles")
    def hardware() -> dict[str, Any]:
        return {"hardware": device_names()}

    @api.get("/hardware/{name}", summary="One device with sources and offers")
    def one_device(name: str) -> dict[str, Any]:
        return _clean(hardware_view(device(name), offers()))

    @api.get("/engines", summary="The engines and their versions")
    def engines() -> dict[str, Any]:
        return {"engines": [engine_view(engine(name)) for name in engine_names()]}

    @api.get("/schema", summary="JSON Schema of a request")
    def schema() -> dict[str, Any]:
        return json_schema()


def _clean(value: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity: unknown figures are null."""
    cleaned: dict[str, Any] = finite(value)
    return cleaned
