"""What every door answers to a body: plain JSON in, plain JSON out. The JSON API and MCP print what these return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipe_core.base.documents import finite
from recipe_core.base.errors import InputError
from recipe_core.bundle.write import zip_bytes
from recipe_core.commands.ground import Ground
from recipe_core.commands.judge import check_command
from recipe_core.engines.spec import engine, engine_names
from recipe_core.hardware.cluster import device, device_names
from recipe_core.model.catalog import catalog_entry, catalog_ids, in_catalog, load_model
from recipe_core.present import schemas
from recipe_core.present.views import engine_view, hardware_view, model_view
from recipe_core.recipe import (
    Additions,
    Recipe,
    make_recipe,
    passing_on,
    recipe_request,
    with_variants,
)
from recipe_core.recipe.build import rebuilt
from recipe_core.recipe.convert import convert
from recipe_core.recipe.diff import diff
from recipe_core.recipe.parameters import read_parameters, read_variants
from recipe_core.recipe.published import read_published
from recipe_core.recipe.resolve import hardware_named, machine_of, resolve
from recipe_core.request.schema import PlanRequest, json_schema
from recipe_core.search.plan import REFUSED_LISTED
from recipe_core.search.plans import plan, plan_candidate
from recipe_core.search.verdict import check_request

Body = Mapping[str, Any]
Json = dict[str, Any]

MAX_ELSEWHERE = 16
"""Other hardware that one recipe is computed for at a stranger's wish."""
_ADDED = ("parameters", "options", "environment", "variants", "for")


class Answers:
    """The questions of the doors that strangers may use.

    Every method raises RecipeError, naming the field and the fix, for what it cannot read or answer.

    Args:
        folders: whether a request may name a model by a path on this machine; only where strangers cannot reach the server.
    """

    def __init__(self, *, folders: bool) -> None:
        self.folders = folders

    def plan(self, body: Body, top: int | None = None, refused: int = REFUSED_LISTED) -> Json:
        """Every split judged and ranked: the first ``top`` that can run, the first ``refused`` that cannot, and how many there are."""
        request = PlanRequest.parse(body)
        return _clean(plan(request, folders=self.folders).to_json(top, refused))

    def estimate(self, body: Body) -> Json:
        """One split: the request's candidate, or the best that agrees with it."""
        narrowed, row = plan_candidate(PlanRequest.parse(body), folders=self.folders)
        return _clean({"candidate": narrowed.candidate(row), **narrowed.detailed(row).to_json()})

    def check(self, body: Body) -> Json:
        """Whether a request's split can run, or a ``command`` on ``hardware``; an ``error`` in the answer says that a command is none."""
        if "command" not in body:
            return _clean(check_request(PlanRequest.parse(body), folders=self.folders))
        ground = Ground.of(**{name: value for name, value in body.items() if name != "command"})
        return _clean(check_command(body["command"], ground, folders=self.folders))

    def recipe(self, body: Body) -> Json:
        """The recipe that a body holds or leads to: a recipe, a request, or a request with what is added to it."""
        return _clean(self._recipe(body).model_dump(mode="json"))

    def _recipe(self, body: Body) -> Recipe:
        if "lock" in body:
            recipe = Recipe.parse(body)
            load_model(
                recipe_request(recipe).model, folders=self.folders
            )  # refuses a path where none may be read
            return recipe
        if "request" not in body:
            return make_recipe(PlanRequest.parse(body), folders=self.folders)
        unread = sorted(set(body) - {"request", *_ADDED})
        if unread:
            raise InputError(
                "is not a known field.",
                field=unread[0],
                hint=f"Known here: request, {', '.join(_ADDED)}.",
            )
        environment = {
            str(name): str(value) for name, value in _part(body, "environment", {}).items()
        }
        asked = passing_on(
            PlanRequest.parse(body["request"]), _part(body, "options", {}), environment
        )
        additions = Additions(
            parameters=read_parameters(_part(body, "parameters", {})),
            variants=read_variants(body.get("variants", [])),
        )
        recipe = make_recipe(asked, additions, folders=self.folders)
        elsewhere = body.get("for", [])
        if not isinstance(elsewhere, list) or len(elsewhere) > MAX_ELSEWHERE:
            raise InputError(f"is a list of at most {MAX_ELSEWHERE} devices.", field="for")
        places = [hardware_named(str(each), "for") for each in elsewhere]
        return (
            with_variants(recipe, asked, additions, places, folders=self.folders)
            if places
            else recipe
        )

    def build(self, body: Body) -> tuple[str, bytes]:
        """The bundle's name, and its zip."""
        recipe = self._recipe(body)
        if (
            "request" in body and "lock" in body
        ):  # somebody else's: files are made from what this version knows itself
            recipe = rebuilt(recipe, folders=self.folders)
        return recipe.name, zip_bytes(recipe)

    def resolve(self, body: Body) -> Json:
        """Which variants of a ``recipe`` apply to other ``hardware``, and what they set."""
        recipe = self._recipe(_part(body, "recipe"))
        return _clean(
            resolve(recipe, machine_of(hardware_named(_text(body, "hardware")), recipe)).to_json()
        )

    def diff(self, body: Body) -> Json:
        """What differs between the recipes ``before`` and ``after``, and what that does to the estimate."""
        before, after = (self._recipe(_part(body, name)) for name in ("before", "after"))
        return _clean(diff(before, after))

    def convert(self, body: Body) -> Json:
        """An engine's ``command``, or a published recipe (``document``), as a recipe."""
        ground = {
            name: value
            for name, value in body.items()
            if name not in ("command", "document", "choice")
        }
        source: Any = body.get("command")
        if "document" in body:
            named = ground.get("hardware")
            wanted = named.partition(":")[0] if isinstance(named, str) else None
            source = read_published(body["document"], wanted or None, body.get("choice"))
            ground.setdefault("hardware", source.hardware)
        if source is None:
            raise InputError("is missing: a command, or a document.", field="command")
        return _clean(convert(source, Ground.of(**ground), folders=self.folders).to_json())


def models(name: str | None = None) -> Json:
    """The model catalog, or one model by its id (also what a name says of one that is not in the catalog)."""
    if name is None:
        return {"models": catalog_ids()}
    return _clean(
        model_view(
            load_model(name, folders=False), catalog_entry(name) if in_catalog(name) else None
        )
    )


def hardware(name: str | None = None) -> Json:
    """The device profiles, or one device with sources and offers."""
    return {"hardware": device_names()} if name is None else _clean(hardware_view(device(name)))


def engines(name: str | None = None) -> Json:
    """The engines and their versions, or one of them."""
    return _clean(
        {"engines": [engine_view(engine(each)) for each in engine_names()]}
        if name is None
        else engine_view(engine(name))
    )


def schema(name: str | None = None) -> Json:
    """The JSON Schema of a request, or of what is named: an estimate, a recipe, a bundle's manifest."""
    return json_schema() if name is None else schemas.schema(name)


def _part(body: Body, name: str, default: Any = None) -> Mapping[str, Any]:
    value = body.get(name, default)
    if not isinstance(value, Mapping):
        raise InputError(
            "is missing." if value is None else "is not an object.",
            field=name,
            hint="Give an object.",
        )
    return value


def _text(body: Body, name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise InputError(
            "is missing." if value is None else "is not text.", field=name, hint="Give text."
        )
    return value


def _clean(value: Json) -> Json:
    """JSON has no infinity: unknown figures are null."""
    cleaned: Json = finite(value)
    return cleaned
