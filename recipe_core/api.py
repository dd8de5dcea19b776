"""The JSON door: the same answers as the command line, over HTTP. Handlers only parse, ask and dump."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Body, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from recipe_core import __version__, schemas
from recipe_core.bundle import zip_bytes
from recipe_core.check import check_request
from recipe_core.commands.ground import Ground
from recipe_core.commands.judge import check_command
from recipe_core.documents import MAX_DOCUMENT_BYTES, finite
from recipe_core.engines.spec import engine, engine_names
from recipe_core.errors import InputError, NoAnswer, RecipeError
from recipe_core.hardware.catalog import device, device_names
from recipe_core.model.catalog import catalog_entry, catalog_ids, catalog_model, load_model
from recipe_core.plan import chosen_plan, plan
from recipe_core.recipe import Additions, Recipe, make_recipe, passing_on, recipe_request, with_variants
from recipe_core.recipe.build import rebuilt
from recipe_core.recipe.convert import convert
from recipe_core.recipe.diff import diff
from recipe_core.recipe.parameters import read_parameters, read_variants
from recipe_core.recipe.published import read_published
from recipe_core.recipe.resolve import hardware_named, machine_of, resolve
from recipe_core.request import PlanRequest, json_schema
from recipe_core.training.plan import chosen_training, is_training, training_plan
from recipe_core.views import engine_view, hardware_view, model_view, plan_view

RequestBody = Annotated[dict[str, Any], Body(description="A PlanRequest; see /api/v1/schema.")]
RecipeBody = Annotated[
    dict[str, Any],
    Body(description="A PlanRequest, a recipe, or {request, parameters, options, environment, variants, for: [device:count]}."),
]
MAX_ELSEWHERE = 16
"""Other hardware that one recipe is computed for at a stranger's wish."""


def create_api(*, folders: bool) -> FastAPI:
    """The API.

    Args:
        folders: whether a request may name a model by a path on this machine; only where strangers cannot reach the server.
    """
    api = FastAPI(title="Recipe Builder", version=__version__, docs_url=None, redoc_url=None)
    _errors(api)
    _questions(api, folders)
    _recipes(api, folders)
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
    def build_route(body: RecipeBody) -> Response:
        recipe = asked_recipe(body, folders=folders)
        if "request" in body and "lock" in body:  # somebody else's: files are made from what this version knows itself
            recipe = rebuilt(recipe, folders=folders)
        headers = {"Content-Disposition": f'attachment; filename="{recipe.name}.zip"'}
        return Response(zip_bytes(recipe), media_type="application/zip", headers=headers)


def _recipes(api: FastAPI, folders: bool) -> None:
    """What is asked of recipes; wherever one is taken, a request is too."""

    @api.post("/recipe", summary="The recipe of a request, without its files")
    def recipe_route(body: RecipeBody) -> dict[str, Any]:
        return _clean(asked_recipe(body, folders=folders).model_dump(mode="json"))

    @api.post("/resolve", summary="Which variants of a recipe apply to other hardware, and what they set")
    def resolve_route(body: Annotated[dict[str, Any], Body(description='{"recipe": …, "hardware": "mi300x:8"}')]) -> dict[str, Any]:
        recipe = asked_recipe(_part(body, "recipe"), folders=folders)
        return _clean(resolve(recipe, machine_of(hardware_named(_text(body, "hardware")), recipe)).to_json())

    @api.post("/diff", summary="What differs between two recipes, and what that does to the estimate")
    def diff_route(body: Annotated[dict[str, Any], Body(description='{"before": …, "after": …}')]) -> dict[str, Any]:
        before, after = (asked_recipe(_part(body, name), folders=folders) for name in ("before", "after"))
        return _clean(diff(before, after))

    @api.post("/convert", summary="An engine's command, or a published recipe, as a recipe")
    def convert_route(body: Annotated[dict[str, Any], Body(description='{"command" or "document": …, "hardware": …}')]) -> dict[str, Any]:
        ground = {name: value for name, value in body.items() if name not in ("command", "document", "choice")}
        source: Any = body.get("command")
        if "document" in body:
            named = ground.get("hardware")
            wanted = named.partition(":")[0] if isinstance(named, str) else None
            source = read_published(body["document"], wanted or None, body.get("choice"))
            ground.setdefault("hardware", source.hardware)
        if source is None:
            raise InputError("is missing: a command, or a document.", field="command")
        return _clean(convert(source, Ground.of(**ground), folders=folders).to_json())


def asked_recipe(body: Mapping[str, Any], *, folders: bool) -> Recipe:
    """The recipe that a body holds or leads to: a recipe, a request, or a request with what is added to it.

    Raises:
        InputError: for what is none of these; BundleError for a recipe that is not one.
    """
    if "lock" in body:
        recipe = Recipe.parse(body)
        load_model(recipe_request(recipe).model, folders=folders)  # refuses a path where none may be read
        return recipe
    if "request" not in body:
        return make_recipe(PlanRequest.parse(body), folders=folders)
    unread = sorted(set(body) - {"request", *_ADDED})
    if unread:
        raise InputError("is not a known field.", field=unread[0], hint=f"Known here: request, {', '.join(_ADDED)}.")
    environment = {str(name): str(value) for name, value in _part(body, "environment", {}).items()}
    asked = passing_on(PlanRequest.parse(body["request"]), _part(body, "options", {}), environment)
    additions = Additions(
        parameters=read_parameters(_part(body, "parameters", {})),
        variants=read_variants(body.get("variants", [])),
    )
    recipe = make_recipe(asked, additions, folders=folders)
    elsewhere = body.get("for", [])
    if not isinstance(elsewhere, list) or len(elsewhere) > MAX_ELSEWHERE:
        raise InputError(f"is a list of at most {MAX_ELSEWHERE} devices.", field="for")
    places = [hardware_named(str(each), "for") for each in elsewhere]
    return with_variants(recipe, asked, additions, places, folders=folders) if places else recipe


_ADDED = ("parameters", "options", "environment", "variants", "for")


def _part(body: Mapping[str, Any], name: str, default: Any = None) -> Mapping[str, Any]:
    value = body.get(name, default)
    if not isinstance(value, Mapping):
        raise InputError("is missing." if value is None else "is not an object.", field=name, hint="Give an object.")
    return value


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise InputError("is missing." if value is None else "is not text.", field=name, hint="Give text.")
    return value


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
        return _clean(hardware_view(device(name)))

    @api.get("/engines", summary="The engines and their versions")
    def engines() -> dict[str, Any]:
        return {"engines": [engine_view(engine(name)) for name in engine_names()]}

    @api.get("/schema", summary="JSON Schema of a request")
    def schema() -> dict[str, Any]:
        return json_schema()

    @api.get("/schema/{name}", summary="JSON Schema of a request, an estimate, a recipe or a bundle's manifest")
    def one_schema(name: str) -> dict[str, Any]:
        return schemas.schema(name)


def _clean(value: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity: unknown figures are null."""
    cleaned: dict[str, Any] = finite(value)
    return cleaned
