"""The answers that doors share: plain JSON in, plain JSON out, also to strangers.

Each raises RecipeError, with the field and the fix, for what it cannot read or answer. ``folders``:
whether a request may name a model by a path on this machine; only where strangers cannot ask.
A command imports what it needs when it runs, a worker all of it before (``worker.PRELOADED``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from recipe_core.base.errors import InputError
from recipe_core.base.numbers import bounded_float
from recipe_core.compression.required import detail_row_estimate
from recipe_core.doors import public
from recipe_core.doors.catalog import Json, clean
from recipe_core.request.schema import PlanRequest, asks_for_any

if TYPE_CHECKING:
    from recipe_core.calibration.validation.reconcile import Reconciled
    from recipe_core.doors.fleets import FleetQuestion
    from recipe_core.estimates.columns.corrections import Corrections
    from recipe_core.estimates.measured.runs import Run
    from recipe_core.plans.plan import Plan
    from recipe_core.recipe import Recipe
    from recipe_core.scaling.traces.trace import Rates, Trace

Body = Mapping[str, Any]

# Devices in ``for``: each costs a search, and strangers may send the request.
MAX_FOR = 16
# Own runs in ``measured``: each is estimated, and strangers may send the request.
MAX_OWN = 200
# Files in ``texts``.
MAX_TEXTS = 16


# Plans


def answer_plan(
    body: Body, folders: bool = False, *, top: int | None = None, refused: int | None = None
) -> Json:
    """Every layout, ranked: the first ``top`` that can run, the first ``refused`` that cannot.

    With the counts of both.
    """
    request, corrections = _with_own_runs(body, folders)
    answer = priced_plan_json(
        public.plan(request, folders=folders, measured=corrections), top, refused
    )
    return clean(answer)


def priced_plan_json(plan: Plan, top: int | None, refused: int | None = None) -> Json:
    """A plan as JSON, with the prices of its hardware, and with limits those of more certainty."""
    from recipe_core.plans.confidence_prices import price_confidences
    from recipe_core.plans.plan import REFUSED_LISTED
    from recipe_core.views.catalog import price_view

    answer = plan.to_json(top, REFUSED_LISTED if refused is None else refused)
    answer["prices"] = [price_view(cluster) for cluster in plan.problem.clusters]
    if prices := price_confidences(plan):
        answer["confidence_prices"] = [price.to_json() for price in prices]
    return answer


def answer_estimate(body: Body, folders: bool = False) -> Json:
    """One layout: the request's candidate, or the best that matches it."""
    from recipe_core.plans.plans import plan_estimated

    request, corrections = _with_own_runs(body, folders)
    matching, row = plan_estimated(request, folders=folders, corrections=corrections)
    return clean(priced_estimate_json(matching, row, detail_row_estimate(matching, row).to_json()))


def priced_estimate_json(plan: Plan, row: int, answer: Json) -> Json:
    """The estimate of a row with its layout, its price, and what runs of one's own corrected."""
    from recipe_core.views.catalog import price_view

    added: Json = {"price": price_view(plan.setting(row).cluster)}
    if (corrections := plan.problem.corrections) is not None:
        added["own_runs"] = corrections.to_json()
    return {"candidate": plan.candidate(row), **answer, **added}


def answer_size(body: Body, folders: bool = False, *, ladders: bool = True) -> Json:
    """Return which hardware, how many of it, at what cost, with which confidence.

    ``ladders``: with every count of each device.
    """
    from recipe_core.sizing.answer import Answer

    request, corrections = _split_measured_body(body, folders)
    answer = Answer(public.size(request, folders=folders, measured=corrections)).to_json()
    if not ladders:
        rows = [*answer["devices"], *answer["unpriced"], *filter(None, [answer["best"]])]
        for row in rows:
            row.pop("ladder", None)
    return clean(answer)


def answer_compress(
    body: Body,
    folders: bool = False,
    *,
    techniques: str | None = None,
    refused: bool = True,
    matrix: bool = True,
) -> Json:
    """Compression of a served model: the effects of techniques; of all without ``techniques``.

    ``techniques``: their names with commas between them. ``refused``: with those that do not run
    here; ``matrix``: with who runs what.
    """
    request, corrections = _with_own_runs(body, folders)
    names = [name.strip() for name in techniques.split(",")] if techniques else None
    answer = public.compress(request, names, folders=folders, measured=corrections).to_json()
    if not refused and not names:
        answer["formats"] = [row for row in answer["formats"] if row["same_split"]]
    if not matrix:
        del answer["matrix"]
    return clean(answer)


def answer_reconcile(body: Body, folders: bool = False) -> Json:
    """Measured figures in ``texts`` (logs, results, metrics) beside a request's estimate.

    Each a match, explained by what the texts state differently, or not explained. No address is
    read.
    """
    from recipe_core.calibration.importers.formats import read_imported
    from recipe_core.calibration.importers.measurement import Content
    from recipe_core.calibration.validation.reconcile import reconcile_measurements

    _check_body_fields(body, "request", "texts")
    texts = body.get("texts")
    if not isinstance(texts, list) or not 0 < len(texts) <= MAX_TEXTS:
        raise InputError(f"must be a list of 1 to {MAX_TEXTS} texts.", field="texts")
    if not all(isinstance(text, str) for text in texts):
        raise InputError("is not text.", field="texts", hint="Send each file's content.")
    request = _read_body_request(_body_object(body, "request"), folders)
    contents = [Content(f"texts[{n}]", text) for n, text in enumerate(texts)]
    pairs = [(content.name, run) for content in contents for run in read_imported(content)]
    if len(pairs) > MAX_OWN:
        message = f"hold {len(pairs):,} measurements; the limit is {MAX_OWN}."
        raise InputError(message, field="texts")
    return clean(reconciled_json(reconcile_measurements(pairs, request.to_json(), folders=folders)))


def reconciled_json(measurements: Sequence[Reconciled]) -> Json:
    """Measurements beside their estimates as JSON; ``ok`` where nothing is unexplained."""
    ok = all(measurement.ok for measurement in measurements)
    return {"ok": ok, "measurements": [measurement.to_json() for measurement in measurements]}


def answer_check(body: Body, folders: bool = False) -> Json:
    """Judge a request's layout, a ``command`` or the engines of a ``file``.

    An ``error`` in the answer means that the command could not be read.
    """
    from recipe_core.commands.context import CommandContext
    from recipe_core.commands.judge import judge_command
    from recipe_core.targets.deployments.judge import check_deployment
    from recipe_core.targets.deployments.read import read_deployment

    if "file" in body:
        name = body.get("name", "file.yaml")
        if not isinstance(name, str):
            raise InputError("is not text.", field="name", hint="Give the file's name.")
        place = {key: value for key, value in body.items() if key not in ("file", "name")}
        file = read_deployment(_body_text(body, "file"), name)
        return clean(check_deployment(file, place, folders=folders))
    if "command" not in body:
        return clean(public.check(_read_body_request(body, folders), folders=folders))
    context = CommandContext.of(
        **{name: value for name, value in body.items() if name != "command"}
    )
    return clean(judge_command(body["command"], context, folders=folders))


# Loads over time


def answer_trace(body: Body, folders: bool = False) -> Json:  # noqa: ARG001 - as every answer
    """The description of a trace, which is ``text`` of a file by the ``name``."""
    from recipe_core.scaling.traces.describe import describe_traffic

    return clean(describe_traffic(_read_body_trace(body)))


def check_simulation(body: Body, folders: bool = False) -> Json:  # noqa: ARG001 - as every answer
    """Nothing, after what ``answer_simulate`` is asked has been read as far as takes no time.

    So that who begins a job learns at once what is wrong with it.
    """
    _simulation(body)
    return {}


def answer_simulate(body: Body, folders: bool = False, *, series: bool = True) -> Json:
    """Policies of scaling over time: ``{request, trace, policies, days}``.

    ``series``: with what happened interval by interval.
    """
    simulation = _simulation(body)
    answer = public.simulate(
        simulation.request,
        trace=None if simulation.trace is None else _read_body_trace(simulation.trace),
        policies=simulation.policies,
        days=simulation.days,
        folders=folders,
    ).to_json()
    if not series:
        for policy in (*answer["policies"], *answer["bounds"].values()):
            del policy["series"]
        del answer["load"]["rates_per_s"]
    return answer


class _Simulation(NamedTuple):
    request: Body
    trace: Body | None
    policies: tuple[str, ...] | None
    days: float | None


def _simulation(body: Body) -> _Simulation:
    """The parts of the body of a simulation, all of them held to their types."""
    from recipe_core.request.scaling import policies_named
    from recipe_core.request.size import SizeRequest
    from recipe_core.scaling.scenario import check_simulation_request

    _check_body_fields(body, "request", "trace", "policies", "days")
    request = _body_object(body, "request")
    trace = None if body.get("trace") is None else _body_object(body, "trace")
    if trace is not None:
        _named_text(trace)
    if asks_for_any(request):
        SizeRequest.parse(request)
    else:
        check_simulation_request(PlanRequest.parse(request), traced=trace is not None)
    policies, days = policies_named(body.get("policies")), body.get("days")
    bounded = None if days is None else bounded_float("days", days, above=0, maximum=366)
    return _Simulation(request, trace, policies, bounded)


def _read_body_trace(body: Body) -> Trace | Rates:
    from recipe_core.scaling.traces.read import read_load

    name, text = _named_text(body)
    return read_load(text.encode(), name)


def _named_text(body: Body) -> tuple[str, str]:
    _check_body_fields(body, "name", "text")
    return _body_text({"name": "", **body}, "name"), _body_text(body, "text")


# Fleets


def check_fleet(body: Body, folders: bool = False) -> Json:
    """Nothing, after what ``answer_fleet`` is asked has been read as far as takes no time."""
    _read_fleet(body, folders)
    return {}


def answer_fleet(body: Body, folders: bool = False) -> Json | WithFiles:
    """Place a fleet: ``{fleet, inventories, what_if, month, seconds, measured, files}``.

    With ``what_if`` the answer of today has that of the changed fleet beside it, and what differs;
    with ``today`` in the fleet, the steps that lead from there to the answer; with ``files`` the
    folder of its bundles and of what joins them.
    """
    from recipe_core.bundle.write import zip_bundle
    from recipe_core.calibration.run_files import corrections_from_sources
    from recipe_core.fleets.columns import Sources
    from recipe_core.fleets.exports.folder import fleet_folder

    question, options, runs = _read_fleet(body, folders)
    corrections = corrections_from_sources(runs, folders=folders) if runs else None
    answered = question.answer(sources=Sources(folders, corrections), **options)
    out = clean(answered.to_json())
    if not body.get("files"):
        return out
    data = zip_bundle(fleet_folder(answered.answer))
    return WithFiles(out, Archive(question.request.name, data))


def _read_fleet(body: Body, folders: bool) -> tuple[FleetQuestion, Json, list[Run]]:
    """The parts of the body of a fleet, all of them held to their types."""
    from recipe_core.calibration.run_files import parse_run_rows
    from recipe_core.doors.fleets import read_fleet_question

    _check_body_fields(
        body, "fleet", "inventories", "what_if", "month", "seconds", "measured", "files"
    )
    if not isinstance(body.get("files", False), bool):
        raise InputError("is neither true nor false.", field="files")
    files = body.get("inventories", [])
    if not isinstance(files, list) or len(files) > MAX_TEXTS:
        raise InputError(f"must be a list of at most {MAX_TEXTS} files.", field="inventories")
    texts = [_named_text(_body_object({"inventories": file}, "inventories")) for file in files]
    what_if = None if body.get("what_if") is None else _body_object(body, "what_if")
    question = read_fleet_question(_body_object(body, "fleet"), what_if, texts, folders=folders)
    options: Json = {
        "month": bounded_float("month", body.get("month", 0.0), minimum=0, maximum=600),
        "seconds": bounded_float("seconds", body.get("seconds", 60.0), above=0, maximum=600),
    }
    return question, options, parse_run_rows(body.get("measured", []), MAX_OWN)


# Recipes and bundles


class Archive(NamedTuple):
    """A bundle: its name, and its zip."""

    name: str
    data: bytes


class WithFiles(NamedTuple):
    """The answer of a job, and the files that it has beside it."""

    answer: Json
    archive: Archive


def answer_build(body: Body, folders: bool = False) -> Archive:
    """The bundle of a recipe, a request, or a request with additions."""
    from recipe_core.bundle.write import zip_bytes
    from recipe_core.recipe.build import rebuild_recipe

    recipe = _read_body_recipe(body, folders)
    if "request" in body and "lock" in body:
        # A stranger's recipe: decide again, so that its text cannot reach the bundle's files.
        recipe = rebuild_recipe(recipe, folders=folders)
    return Archive(recipe.name, zip_bytes(recipe))


def answer_recipe(body: Body, folders: bool = False) -> Json:
    """The recipe that a body is or leads to: a recipe, a request, a request with additions."""
    return clean(_read_body_recipe(body, folders).model_dump(mode="json"))


def answer_resolve(body: Body, folders: bool = False) -> Json:
    """Return which variants of a ``recipe`` apply to other ``hardware``, and what they set."""
    from recipe_core.recipe.resolve import hardware_named, machine_of, resolve_recipe

    recipe = _read_body_recipe(_body_object(body, "recipe"), folders)
    machine = machine_of(hardware_named(_body_text(body, "hardware")), recipe)
    return clean(resolve_recipe(recipe, machine).to_json())


def answer_diff(body: Body, folders: bool = False) -> Json:
    """The differences of the recipes ``before`` and ``after``, and of their estimates."""
    from recipe_core.recipe.comparison import diff_recipes

    before, after = (
        _read_body_recipe(_body_object(body, name), folders) for name in ("before", "after")
    )
    return clean(diff_recipes(before, after))


def answer_convert(body: Body, folders: bool = False) -> Json:
    """An engine's ``command``, or a published recipe (``document``), as a recipe."""
    from recipe_core.commands.context import CommandContext
    from recipe_core.recipe.convert import convert_to_recipe
    from recipe_core.recipe.published import read_published

    context = dict(body)
    source, document, choice = (
        context.pop(name, None) for name in ("command", "document", "choice")
    )
    if "document" in body:
        hardware = context.get("hardware")
        device_name = hardware.partition(":")[0] if isinstance(hardware, str) else None
        source = read_published(document, device_name or None, choice)
        context.setdefault("hardware", source.hardware)
    if source is None:
        raise InputError("is missing: give a command or a document.", field="command")
    return clean(convert_to_recipe(source, CommandContext.of(**context), folders=folders).to_json())


def _read_body_recipe(body: Body, folders: bool) -> Recipe:
    from recipe_core.models.catalog import load_model_spec
    from recipe_core.recipe import Recipe, recipe_request

    if "lock" in body:
        recipe = Recipe.parse(body)
        # raises for a path where none may be read
        load_model_spec(recipe_request(recipe).model, folders=folders)
        return recipe
    if "request" not in body:
        return public.build(_read_body_request(body, folders), folders=folders)
    return _with_additions(body, folders)


def _with_additions(body: Body, folders: bool) -> Recipe:
    from recipe_core.recipe import Additions, passing_on, with_variants
    from recipe_core.recipe.place import parse_recipe_variants, read_parameters
    from recipe_core.recipe.resolve import hardware_named

    _check_body_fields(body, "request", "parameters", "options", "environment", "variants", "for")
    variables = {
        str(name): str(value) for name, value in _body_object(body, "environment", {}).items()
    }
    request = _read_body_request(_body_object(body, "request"), folders)
    request = passing_on(request, _body_object(body, "options", {}), variables)
    additions = Additions(
        parameters=read_parameters(_body_object(body, "parameters", {})),
        variants=parse_recipe_variants(body.get("variants", [])),
    )
    recipe = public.build(request, additions, folders=folders)
    devices = body.get("for", [])
    if not isinstance(devices, list) or len(devices) > MAX_FOR:
        raise InputError(f"must be a list of at most {MAX_FOR} devices.", field="for")
    if not devices:
        return recipe
    machines = [hardware_named(str(name), "for") for name in devices]
    return with_variants(recipe, request, additions, machines, folders=folders)


# Parts of bodies


def _with_own_runs(body: Body, folders: bool) -> tuple[PlanRequest, Corrections | None]:
    values, corrections = _split_measured_body(body, folders)
    return _read_body_request(values, folders, corrections), corrections


def _split_measured_body(body: Body, folders: bool) -> tuple[Body, Corrections | None]:
    """The values of a request, and what the runs in ``measured`` teach beside it.

    Without ``measured`` a body is the request itself.
    """
    if "measured" not in body:
        return body, None
    from recipe_core.calibration.run_files import corrections_from_sources, parse_run_rows

    _check_body_fields(body, "request", "measured")
    corrections = corrections_from_sources(
        parse_run_rows(body["measured"], MAX_OWN), folders=folders
    )
    return _body_object(body, "request"), corrections


def _read_body_request(
    values: Body, folders: bool, corrections: Corrections | None = None
) -> PlanRequest:
    return public.as_request(values, folders=folders, corrections=corrections)


def _check_body_fields(body: Body, *fields: str) -> None:
    if unknown := sorted(set(body) - set(fields)):
        hint = f"Available: {', '.join(fields)}."
        raise InputError("is not a known field.", field=unknown[0], hint=hint)


def _body_object(body: Body, name: str, default: Any = None) -> Body:
    value = body.get(name, default)
    if not isinstance(value, Mapping):
        problem = "is missing." if value is None else "is not an object."
        raise InputError(problem, field=name, hint="Give an object.")
    return value


def _body_text(body: Body, name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        problem = "is missing." if value is None else "is not text."
        raise InputError(problem, field=name, hint="Give text.")
    return value
