"""The answers that the JSON API and MCP share: plain JSON in, plain JSON out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recipe_core.base.bounded import number
from recipe_core.base.documents import MAX_DOCUMENT_BYTES, finite, parse_json, to_json
from recipe_core.base.errors import InputError
from recipe_core.bundle.write import zip_bytes
from recipe_core.calibration.run_files import corrections_of, rows_of
from recipe_core.commands.ground import Ground
from recipe_core.commands.judge import check_command
from recipe_core.doors import public
from recipe_core.engines.spec import engine, engine_names
from recipe_core.estimates.columns.corrections import Corrections
from recipe_core.hardware.cluster import device, device_names
from recipe_core.hardware.offer_search import offered_devices, select_offers
from recipe_core.models.catalog import catalog_entry, catalog_ids, in_catalog, load_model
from recipe_core.plans.plan import REFUSED_LISTED
from recipe_core.plans.plans import plan_candidate
from recipe_core.recipe import Additions, Recipe, passing_on, recipe_request, with_variants
from recipe_core.recipe.build import rebuilt
from recipe_core.recipe.convert import convert
from recipe_core.recipe.diff import diff
from recipe_core.recipe.parameters import read_parameters, read_variants
from recipe_core.recipe.published import read_published
from recipe_core.recipe.resolve import hardware_named, machine_of, resolve
from recipe_core.request.scaling import policies_named
from recipe_core.request.schema import PlanRequest, asks_for_any, json_schema
from recipe_core.request.size import SizeRequest
from recipe_core.targets.deployments.judge import check_deployment
from recipe_core.targets.deployments.read import read_deployment
from recipe_core.views import schemas
from recipe_core.views.views import engine_view, hardware_view, model_view, offer_view, price_view

if TYPE_CHECKING:
    from recipe_core.scaling.traces.rates import Rates
    from recipe_core.scaling.traces.trace import Trace

RECIPE_LIKE = (
    "A PlanRequest, a recipe, or "
    "{request, parameters, options, environment, variants, for: [device:count]}."
)
Body = Mapping[str, Any]
Json = dict[str, Any]

MAX_FOR = 16
"""Devices in ``for``: each costs a search, and strangers may send the request."""
MAX_OWN = 200
"""Own runs in ``measured``: each is estimated, and strangers may send the request."""
MAX_TRACE_BYTES = 32 << 20
"""Of a body that may hold a trace."""
WITH_TRACES = ("trace", "readable_simulation", "simulate")
"""Methods whose bodies may hold one."""
MAX_TEXTS = 16
"""Files in ``texts``."""
_SEND = "Send a JSON object, such as a PlanRequest, as application/json."
_ADDED = ("parameters", "options", "environment", "variants", "for")


class Answers:
    """Answers to requests that may come from strangers.

    Every method raises RecipeError, with the field and the fix, for what it cannot read or answer.

    Args:
        folders: whether a request may name a model by a path on this machine; only for a server
            that strangers cannot reach.
    """

    def __init__(self, *, folders: bool) -> None:
        self.folders = folders

    def plan(self, body: Body, top: int | None = None, refused: int = REFUSED_LISTED) -> Json:
        """Every split, ranked: the first ``top`` that can run, the first ``refused`` that cannot.

        With the counts of both.
        """
        request, own = self._with_own_runs(body)
        made = public.plan(request, folders=self.folders, measured=own)
        prices = [price_view(cluster) for cluster in made.problem.clusters]
        return _clean({**made.to_json(top, refused), "prices": prices})

    def estimate(self, body: Body) -> Json:
        """One split: the request's candidate, or the best that matches it."""
        request, own = self._with_own_runs(body)
        matching, row = plan_candidate(request, folders=self.folders, corrections=own)
        added: Json = {"price": price_view(matching.setting(row).cluster)}
        used = matching.problem.corrections
        added |= {} if used is None else {"own_runs": used.to_json()}
        answer = matching.detailed(row).to_json()
        return _clean({"candidate": matching.candidate(row), **answer, **added})

    def _with_own_runs(self, body: Body) -> tuple[PlanRequest, Corrections | None]:
        """The request, and what the runs in ``measured`` teach beside it: ``{request, measured}``.

        Without ``measured`` a body is the request itself.
        """
        values, own = self._parts(body)
        return self._request(values, own), own

    def _parts(self, body: Body) -> tuple[Any, Corrections | None]:
        """The values of the request, and what the runs beside it teach."""
        if "measured" not in body:
            return body, None
        if unknown := sorted(set(body) - {"request", "measured"}):
            raise InputError(
                "is not a known field.", field=unknown[0], hint="Available: request, measured."
            )
        own = corrections_of(rows_of(body["measured"], MAX_OWN), folders=self.folders)
        return _part(body, "request"), own

    def _request(self, values: Any, own: Corrections | None = None) -> PlanRequest:
        return public.as_request(values, folders=self.folders, corrections=own)

    def size(self, body: Body) -> Json:
        """Which hardware, how many of it, at what cost, with which confidence."""
        from recipe_core.sizing.answer import Answer

        request, own = self._parts(body)
        return _clean(Answer(public.size(request, folders=self.folders, measured=own)).to_json())

    def compress(self, body: Body, techniques: str | None = None) -> Json:
        """What techniques of compression would do to a served model; all without ``techniques``.

        ``techniques``: their names with commas between them.
        """
        request, own = self._with_own_runs(body)
        names = [name.strip() for name in techniques.split(",")] if techniques else None
        advice = public.compress(request, names, folders=self.folders, measured=own)
        return _clean(advice.to_json())

    def trace(self, body: Body) -> Json:
        """What a trace shows, which is ``text`` of a file by the ``name``."""
        from recipe_core.scaling.traces.describe import describe, describe_rates
        from recipe_core.scaling.traces.trace import Trace

        trace = _trace(body)
        return _clean(describe(trace) if isinstance(trace, Trace) else describe_rates(trace))

    def readable_simulation(self, body: Body) -> Json:
        """Nothing, after what ``simulate`` is asked has been read as far as takes no time.

        So that who begins a job learns at once what is wrong with it.
        """
        _simulation(body)
        return {}

    def simulate(self, body: Body) -> Json:
        """Policies of scaling over time: ``{request, trace, policies, days}``."""
        simulation = _simulation(body)
        trace = None if simulation.trace is None else _trace(simulation.trace)
        answer = public.simulate(
            _part(body, "request"),
            trace=trace,
            policies=simulation.policies,
            days=simulation.days,
            folders=self.folders,
        )
        return answer.to_json()

    def check(self, body: Body) -> Json:
        """Whether a request's split, a ``command`` or the engines of a ``file`` can run.

        An ``error`` in the answer means that the command could not be read.
        """
        if "file" in body:
            return _clean(self._check_file(body))
        if "command" not in body:
            return _clean(public.check(self._request(body), folders=self.folders))
        ground = Ground.of(**{name: value for name, value in body.items() if name != "command"})
        return _clean(check_command(body["command"], ground, folders=self.folders))

    def _check_file(self, body: Body) -> Json:
        name = body.get("name", "file.yaml")
        if not isinstance(name, str):
            raise InputError("is not text.", field="name", hint="Give the file's name.")
        stated = {key: value for key, value in body.items() if key not in ("file", "name")}
        file = read_deployment(_text(body, "file"), name)
        return check_deployment(file, stated, folders=self.folders)

    def recipe(self, body: Body) -> Json:
        """The recipe that a body is or leads to: a recipe, a request, a request with additions."""
        return _clean(self._recipe(body).model_dump(mode="json"))

    def _recipe(self, body: Body) -> Recipe:
        if "lock" in body:
            recipe = Recipe.parse(body)
            # raises for a path where none may be read
            load_model(recipe_request(recipe).model, folders=self.folders)
            return recipe
        if "request" not in body:
            return public.build(self._request(body), folders=self.folders)
        return self._with_additions(body)

    def _with_additions(self, body: Body) -> Recipe:
        if unknown := sorted(set(body) - {"request", *_ADDED}):
            fields = ", ".join(("request", *_ADDED))
            raise InputError(
                "is not a known field.", field=unknown[0], hint=f"Available: {fields}."
            )
        variables = {
            str(name): str(value) for name, value in _part(body, "environment", {}).items()
        }
        request = passing_on(
            self._request(_part(body, "request")), _part(body, "options", {}), variables
        )
        additions = Additions(
            parameters=read_parameters(_part(body, "parameters", {})),
            variants=read_variants(body.get("variants", [])),
        )
        recipe = public.build(request, additions, folders=self.folders)
        devices = body.get("for", [])
        if not isinstance(devices, list) or len(devices) > MAX_FOR:
            raise InputError(f"must be a list of at most {MAX_FOR} devices.", field="for")
        if not devices:
            return recipe
        machines = [hardware_named(str(name), "for") for name in devices]
        return with_variants(recipe, request, additions, machines, folders=self.folders)

    def build(self, body: Body) -> tuple[str, bytes]:
        """The bundle's name, and its zip."""
        recipe = self._recipe(body)
        if "request" in body and "lock" in body:
            # A stranger's recipe: decide again, so that its text cannot reach the bundle's files.
            recipe = rebuilt(recipe, folders=self.folders)
        return recipe.name, zip_bytes(recipe)

    def resolve(self, body: Body) -> Json:
        """Which variants of a ``recipe`` apply to other ``hardware``, and what they set."""
        recipe = self._recipe(_part(body, "recipe"))
        machine = machine_of(hardware_named(_text(body, "hardware")), recipe)
        return _clean(resolve(recipe, machine).to_json())

    def diff(self, body: Body) -> Json:
        """The differences of the recipes ``before`` and ``after``, and of their estimates."""
        before, after = (self._recipe(_part(body, name)) for name in ("before", "after"))
        return _clean(diff(before, after))

    def reconcile(self, body: Body) -> Json:
        """Measured figures in ``texts`` (logs, results, metrics) beside a request's estimate.

        Each a match, explained by what the texts state differently, or not explained. No address
        is read.
        """
        from recipe_core.calibration.importers.content import Content
        from recipe_core.calibration.importers.registry import read_imported
        from recipe_core.calibration.validation.reconcile import reconcile

        if unknown := sorted(set(body) - {"request", "texts"}):
            raise InputError(
                "is not a known field.", field=unknown[0], hint="Available: request, texts."
            )
        texts = body.get("texts")
        if not isinstance(texts, list) or not 0 < len(texts) <= MAX_TEXTS:
            raise InputError(f"must be a list of 1 to {MAX_TEXTS} texts.", field="texts")
        if not all(isinstance(text, str) for text in texts):
            raise InputError("is not text.", field="texts", hint="Send each file's content.")
        request = self._request(_part(body, "request"))
        contents = [Content(f"texts[{n}]", text) for n, text in enumerate(texts)]
        pairs = [(content.name, one) for content in contents for one in read_imported(content)]
        if len(pairs) > MAX_OWN:
            raise InputError(
                f"hold {len(pairs):,} measurements; the limit is {MAX_OWN}.", field="texts"
            )
        answers = reconcile(pairs, request.to_json(), folders=self.folders)
        ok = all(answer.ok for answer in answers)
        return _clean({"ok": ok, "measurements": [answer.to_json() for answer in answers]})

    def convert(self, body: Body) -> Json:
        """An engine's ``command``, or a published recipe (``document``), as a recipe."""
        ground = dict(body)
        source, document, choice = (
            ground.pop(name, None) for name in ("command", "document", "choice")
        )
        if "document" in body:
            hardware = ground.get("hardware")
            device_name = hardware.partition(":")[0] if isinstance(hardware, str) else None
            source = read_published(document, device_name or None, choice)
            ground.setdefault("hardware", source.hardware)
        if source is None:
            raise InputError("is missing: give a command or a document.", field="command")
        return _clean(convert(source, Ground.of(**ground), folders=self.folders).to_json())


def reply(method: str, folders: bool, body: bytes, **options: Any) -> bytes:
    """The answer of a method of ``Answers`` to a body as it was sent, as the bytes of JSON.

    Raises:
        RecipeError: as the method does, and for a body that is not a JSON object.
    """
    return to_json(answered(method, folders, body, **options), indent=None).encode()


def verdict(folders: bool, body: bytes) -> tuple[bool, bytes]:
    """Whether what is to be checked could be read, and the verdict as the bytes of JSON.

    Raises:
        RecipeError: as ``reply``.
    """
    answer = answered("check", folders, body)
    return "error" not in answer, to_json(answer, indent=None).encode()


def bundle(folders: bool, body: bytes) -> tuple[str, bytes]:
    """The name and the zip of the bundle that a body as it was sent leads to.

    Raises:
        RecipeError: as ``reply``.
    """
    built: tuple[str, bytes] = answered("build", folders, body)
    return built


def answered(method: str, folders: bool, body: bytes, **options: Any) -> Any:
    """The answer of a method of ``Answers`` to a body as it was sent, as plain values.

    Raises:
        RecipeError: as ``reply``.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise InputError("the body is not UTF-8 text.", hint=_SEND) from None
    limit = MAX_TRACE_BYTES if method in WITH_TRACES else MAX_DOCUMENT_BYTES
    values = parse_json(text, "the body", limit=limit)
    if not isinstance(values, dict):
        raise InputError("the body is not a JSON object.", hint=_SEND)
    return getattr(Answers(folders=folders), method)(values, **options)


def models(name: str | None = None) -> Json:
    """The ids in the model catalog, or one model by its id or by its dimensions in short."""
    if name is None:
        return {"models": catalog_ids()}
    entry = catalog_entry(name) if in_catalog(name) else None
    return _clean(model_view(load_model(name, folders=False), entry))


def hardware(name: str | None = None) -> Json:
    """The names of device profiles, or one device with sources and offers."""
    return (
        {"hardware": device_names(announced=True)}
        if name is None
        else _clean(hardware_view(device(name)))
    )


def offers(
    device: str | None = None,
    provider: str | None = None,
    region: str | None = None,
    commitment: str | None = None,
) -> Json:
    """Price offers, cheapest first, of a device, a provider, a region or a commitment."""
    found = select_offers(device, provider, region, commitment)
    return _clean({"offers": [offer_view(offer) for offer in found]})


def offers_for(device: str | None = None) -> Json:
    """How many price offers each device has, or those for one."""
    return {"devices": offered_devices()} if device is None else offers(device)


def engines(name: str | None = None) -> Json:
    """The engines and their versions, or one of them."""
    if name is not None:
        return _clean(engine_view(engine(name)))
    return _clean({"engines": [engine_view(engine(known)) for known in engine_names()]})


def schema(name: str | None = None) -> Json:
    """The JSON Schema of a request, or by ``name`` of an estimate, a recipe or a manifest."""
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


@dataclass(frozen=True, slots=True)
class _Simulation:
    """What a simulation is asked beside its request."""

    trace: Mapping[str, Any] | None
    policies: tuple[str, ...] | None
    days: float | None


def _simulation(body: Body) -> _Simulation:
    """The parts of the body of a simulation beside its request, all of them held to their types.

    Raises:
        InputError: naming the first wrong field.
    """
    known = ("request", "trace", "policies", "days")
    if unknown := sorted(set(body) - set(known)):
        raise InputError(
            "is not a known field.", field=unknown[0], hint=f"Available: {', '.join(known)}."
        )
    from recipe_core.scaling.setup import check_request

    request = _part(body, "request")
    trace = None if body.get("trace") is None else _part(body, "trace")
    if trace is not None:
        _named_text(trace)
    if asks_for_any(request):
        SizeRequest.parse(request)
    else:
        check_request(PlanRequest.parse(request), traced=trace is not None)
    days = body.get("days")
    return _Simulation(
        trace,
        policies_named(body.get("policies")),
        None if days is None else number("days", days, above=0, most=366),
    )


def _trace(body: Body) -> Trace | Rates:
    from recipe_core.scaling.traces.read import read_load

    name, text = _named_text(body)
    return read_load(text.encode(), name)


def _named_text(body: Body) -> tuple[str, str]:
    """The name and the text of a trace."""
    if unknown := sorted(set(body) - {"name", "text"}):
        raise InputError("is not a known field.", field=unknown[0], hint="Available: name, text.")
    return _text({"name": "", **body}, "name"), _text(body, "text")


def _text(body: Body, name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise InputError(
            "is missing." if value is None else "is not text.", field=name, hint="Give text."
        )
    return value


def _clean(value: Json) -> Json:
    """The value with null for numbers that are not finite, which JSON cannot express."""
    cleaned: Json = finite(value)
    return cleaned
