"""The library's own door.

What ``import recipe_core`` offers, over the same functions as the other doors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipe_core.base.documents import read_document, read_text
from recipe_core.base.errors import InputError
from recipe_core.calibration.place import NONE, calibration_stamp
from recipe_core.compression.required import add_compression, detail_row_estimate
from recipe_core.estimates.columns import scopes
from recipe_core.estimates.columns.scopes import correct_by_default
from recipe_core.plans import plans
from recipe_core.plans.plan import Plan
from recipe_core.plans.splits import Split
from recipe_core.request.schema import PlanRequest, asks_for_any

if TYPE_CHECKING:
    from recipe_core.calibration.run_files import MeasuredSource
    from recipe_core.calibration.validation.comparison import Comparison
    from recipe_core.compression.advisor.result import CompressAnswer
    from recipe_core.estimates.columns.corrections import Corrections
    from recipe_core.estimates.measured.runs import Run
    from recipe_core.estimates.results import Estimate
    from recipe_core.fleets.answer import FleetAnswer
    from recipe_core.fleets.request import FleetRequest
    from recipe_core.fleets.solver import Watch
    from recipe_core.fleets.what_if import FleetChanges
    from recipe_core.recipe import Additions, Recipe
    from recipe_core.request.size import SizeRequest
    from recipe_core.scaling.result import OverTimeAnswer
    from recipe_core.scaling.traces.trace import Rates, Trace
    from recipe_core.sizing.size import Sizing

    TraceSource = Trace | Rates | str | Path

# A request: parsed, as plain values, or the path of a YAML or JSON file that holds one.
RequestSource = PlanRequest | Mapping[str, Any] | str | Path


def plan(
    request: RequestSource, *, folders: bool = True, measured: MeasuredSource | None = None
) -> Plan:
    """Evaluate every layout of the request's hardware and rank those that can run.

    Args:
        request: a `Request`, its plain values, or the path of a YAML or JSON file that holds one.
        folders: whether the model may be named by a path on this machine.
        measured: runs of your own that correct the estimates: the path of a table, of a bundle or
            of its ``measurement.json`` or ``compression.json``; several of them; rows of a table;
            or what ``recipe.own_runs.corrections_of`` learned from these, for several calls. Those
            in the calibration of this machine count too, unless it is ``"none"``.

    Returns:
        The plan: ``best``, ``ranked``, ``refused``, ``pareto()``, ``changes()``, ``to_frame()``,
        ``to_json()``. Its ``columns`` are SI, one value per layout, with the unit in the name:
        seconds, bytes per device, tokens per second of the whole deployment, US dollars.

    Raises:
        InputError: for a request or runs that cannot be read; the message names the field and the
            fix.
        RecipeError: when the hardware has no layout at all.
    """
    corrections = _learn_corrections(measured, folders)
    values = as_request(request, folders=folders, corrections=corrections)
    answer = plans.plan_splits(values, folders=folders, corrections=corrections)
    answer.complete = add_compression
    return answer


def size(
    request: SizeRequest | Mapping[str, Any] | str | Path,
    *,
    folders: bool = True,
    measured: MeasuredSource | None = None,
) -> Sizing:
    """Say which hardware, how many of it and at what cost: every device, engine, count and layout.

    Args:
        request: plain values (``hardware: any``), the path of a file that holds them, or a
            ``SizeRequest`` of ``recipe_core.request.size``.
        folders: whether the model may be named by a path on this machine.
        measured: runs of your own that correct the estimates, as for `plan`.

    Returns:
        The sizing: ``best``, ``devices`` (best first), ``unpriced``, ``refused``, and ``choice``,
        the plan's request for the best. ``recipe_core.sizing.answer.Answer`` says it as plain
        values, with the ladder of counts of each device.

    Raises:
        InputError: for a request or runs that cannot be read.
    """
    from recipe_core.request.size import SizeRequest
    from recipe_core.sizing import size as sizing

    parsed = (
        request
        if isinstance(request, SizeRequest)
        else SizeRequest.parse(_read_request_values(request))
    )
    return sizing.size_devices(
        parsed, folders=folders, corrections=_learn_corrections(measured, folders)
    )


def fleet(
    request: FleetRequest | Mapping[str, Any] | str | Path,
    *,
    what_if: FleetChanges | Mapping[str, Any] | None = None,
    inventories: Sequence[str | Path] = (),
    month: float = 0.0,
    gap: float = 0.001,
    seconds: float = 60.0,
    watch: Watch | None = None,
    folders: bool = True,
    measured: MeasuredSource | None = None,
) -> FleetAnswer:
    """Place many models on owned and rented machines: who runs where, and what it costs.

    Args:
        request: the fleet: plain values, the path of a `fleet.yaml`, or a ``FleetRequest``.
        what_if: changes that are tried: machines that are lost, prices, loads, models that come.
        inventories: files that list machines: of kubectl, sinfo, SkyPilot, Kueue, OpenCost, a CSV.
        month: months of growth ahead of today for which it is placed.
        gap: relative distance of the objective to its bound with which the search ends.
        seconds: after which the best so far is the answer.
        watch: is told of each better fleet: its objective, the bound, and seconds.
        folders: whether models may be named by a path on this machine.
        measured: runs of your own that correct the estimates, as for `plan`.

    Returns:
        The answer: ``models`` with their placements, ``pools``, ``charges``, ``probability`` that
        all limits hold together, and where not all can be served the ``conflict``.

    Raises:
        InputError: for a fleet, changes or runs that cannot be read.
    """
    from recipe_core.doors.fleets import read_fleet_question
    from recipe_core.fleets.columns import Sources
    from recipe_core.fleets.request import FleetRequest

    parsed = request if isinstance(request, FleetRequest) else _read_request_values(request)
    paths = [Path(path) for path in inventories]
    texts = [(path.name, read_text(path, field="inventory")) for path in paths]
    question = read_fleet_question(parsed, what_if, texts, folders=folders)
    sources = Sources(folders, _learn_corrections(measured, folders))
    options: dict[str, Any] = {"month": month, "gap": gap, "seconds": seconds, "watch": watch}
    return question.place(changed=True, sources=sources, **options)


def compress(
    request: RequestSource,
    techniques: Sequence[str] | None = None,
    *,
    folders: bool = True,
    measured: MeasuredSource | None = None,
) -> CompressAnswer:
    """Say what every technique of compression would do to a served model on this hardware.

    Args:
        request: a `Request`, its plain values, or the path of a file. Formats that it states don't
            count: the base is the model in its own. A layout that it states is kept.
        techniques: names of techniques to judge; all of them unless given.
        folders: whether the model may be named by a path on this machine.
        measured: runs of your own that correct the estimates, as for `plan`.

    Returns:
        The answer: ``base``, ``formats`` (best first by the objective), ``combinations``,
        ``matrix``, ``to_json()`` (docs/guide/compress.md).

    Raises:
        InputError: for a request or runs that cannot be read, for training, and for an unknown
            technique.
        RecipeError: when the hardware has no layout at all.
    """
    from recipe_core.compression.advisor.advise import advise

    corrections = _learn_corrections(measured, folders)
    values = as_request(request, folders=folders, corrections=corrections)
    return advise(values, names=techniques, folders=folders, corrections=corrections)


def simulate(
    request: RequestSource,
    *,
    trace: TraceSource | None = None,
    policies: Sequence[str] | None = None,
    days: float | None = None,
    folders: bool = True,
    measured: MeasuredSource | None = None,
) -> OverTimeAnswer:
    """Simulate policies of scaling over hours and weeks, and search their parameters.

    With ``options.scaling`` exactly that is simulated, unless ``policies`` names others.

    Args:
        request: a `Request`, its plain values, or the path of a file, with
            ``workload.over_time`` unless a trace is given.
        trace: the load in its place: the path of a trace, or one that was read.
        policies: names of policies to compare; all unless given.
        days: time that is simulated; that of the load unless given.
        folders: whether the model may be named by a path on this machine.
        measured: runs of your own that correct the estimates, as for `plan`.

    Returns:
        The answer: ``chosen`` (the cheapest policy that reaches the wanted share of requests within
        the limits, None where none does), ``policies`` (best first), ``bounds``, ``to_json()``.

    Raises:
        InputError: for a request or a trace that cannot be read, and where no limit bounds a time.
        RecipeError: when no layout can serve the model.
    """
    from recipe_core.scaling.answer import simulate_over_time

    corrections = _learn_corrections(measured, folders)
    values = as_request(request, folders=folders, corrections=corrections)
    load = read_trace_file(Path(trace)) if isinstance(trace, str | Path) else trace
    return simulate_over_time(
        values, trace=load, policies=policies, days=days, folders=folders, corrections=corrections
    )


def read_trace_file(path: Path) -> Trace | Rates:
    """The trace in a file, or its rates where it has no single requests.

    Raises:
        InputError: when it cannot be read.
    """
    from recipe_core.scaling.traces.read import read_load

    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"cannot read {path}: {reason}.", field="trace", hint="Check the path."
        ) from None
    return read_load(data, path.name)


def estimate(
    request: RequestSource, *, folders: bool = True, measured: MeasuredSource | None = None
) -> Estimate:
    """Estimate the layout in ``request.candidate``.

    Where that leaves something open, the best layout that agrees with it. ``measured``: runs of
    your own that correct it, as for `plan`; the ``basis`` of a figure says which tell of it.

    Returns:
        The estimate: ``feasible`` and ``reasons``; ``memory`` in bytes per device; times in
        seconds, throughput in tokens per second, cost in US dollars. ``estimate.tpot_s`` is a
        figure with its 80 % band (``value``, ``low``, ``high``, ``basis``), ``to_json()`` the plain
        values.

    Raises:
        InputError: for a request that cannot be read.
        RecipeError: when no layout agrees with the candidate.
    """
    corrections = _learn_corrections(measured, folders)
    values = as_request(request, folders=folders, corrections=corrections)
    narrowed, row = plans.plan_estimated(values, folders=folders, corrections=corrections)
    return detail_row_estimate(narrowed, row)


def check(
    question: RequestSource | Sequence[str],
    *,
    folders: bool = True,
    calibrated: bool = True,
    **ground: Any,
) -> dict[str, Any]:
    """Say whether a request's layout, or an engine's command, can run, why not, and what is better.

    Args:
        question: a request, or a command: ``"vllm serve …"`` or its words.
        folders: whether a model may be named by a path on this machine.
        calibrated: whether the calibration of this machine counts.
        **ground: for a command, what it runs on and under: ``hardware`` (``"h100-sxm:8"``),
            ``gpus``, ``nodes``, ``input_tokens``, ``output_tokens``, ``concurrency``, ``optimize``.

    Returns:
        The verdict as plain values, as ``recipe check --json`` prints it.

    Raises:
        InputError: for a request, a command or a ground that cannot be read.
    """
    from recipe_core.commands.context import CommandContext
    from recipe_core.commands.judge import judge_command
    from recipe_core.commands.verdict import judge_request

    with _calibration_context(calibrated):
        if isinstance(question, Mapping | PlanRequest | Path):
            return judge_request(as_request(question, folders=folders), folders=folders)
        return judge_command(question, CommandContext.of(**ground), folders=folders)


def build(
    decided: Split | RequestSource,
    additions: Additions | None = None,
    *,
    folders: bool = True,
    calibrated: bool = True,
) -> Recipe:
    """Make the recipe of a layout, which is not searched again, or of the best layout of a request.

    Args:
        decided: a layout of a plan (``plan.best``), or a request.
        additions: parameters of a deployment, variants for other hardware, measurements.
        folders: whether the model may be named by a path on this machine.
        calibrated: whether the calibration of this machine counts; for a layout of a plan, what
            counted there.

    Raises:
        InputError: for what cannot be read.
        NoAnswer: when the layout, or every layout of the request, is refused or cannot be started.
    """
    from recipe_core.recipe.build import make_recipe, recipe_of
    from recipe_core.recipe.decision import decide_split

    if isinstance(decided, Split):
        with correct_by_default(lambda: decided.plan.problem.corrections):
            decision = decide_split(decided)
            return recipe_of(decision, decided.plan.request, additions, folders=folders)
    with _calibration_context(calibrated):
        return make_recipe(as_request(decided, folders=folders), additions, folders=folders)


def write(recipe: Recipe, path: str | Path, *, sign: bytes | None = None) -> Path:
    """Write a recipe's bundle, a folder or (``….zip``) one file: whole, or not at all.

    Args:
        recipe: what `build` or `read` returned.
        path: the bundle; an older one in its place is replaced.
        sign: an ed25519 private key (PEM) to sign it with.

    Raises:
        InputError: for a path that cannot be written, a key that is none, or a file that would hold
            a secret of this machine.
    """
    from recipe_core.bundle.write import write_bundle

    return write_bundle(recipe, Path(path), sign)


def read(path: str | Path, *, public_key: bytes | None = None) -> Recipe:
    """Read the recipe in a bundle (zip or folder, every digest checked) or in a ``recipe.yaml``.

    Raises:
        BundleError: for a bundle that is damaged, changed or not signed by ``public_key``.
        InputError: when there is nothing at ``path``.
    """
    from recipe_core.bundle.verify import read_bundle
    from recipe_core.recipe import Recipe

    path = Path(path)
    if path.suffix in (".yaml", ".yml", ".json"):
        return Recipe.parse(read_document(path, field="recipe"))
    return read_bundle(path, public_key).recipe


def validate(runs: Iterable[Run] | None = None) -> Comparison:
    """Hold estimates against measured serving runs (those that ship with the library by default).

    Returns:
        ``figures`` (a frame with a row per measured figure: measured, estimated, low, high, error),
        ``refused`` and ``not_covered``.
    """
    from recipe_core.calibration.validation.comparison import compare_with_estimates
    from recipe_core.estimates.measured.runs import published_runs

    return compare_with_estimates(published_runs() if runs is None else list(runs))


def _learn_corrections(measured: MeasuredSource | None, folders: bool) -> Corrections | None:
    if measured is None and scopes.has_standing():
        return scopes.standing_corrections()
    if (isinstance(measured, str) and measured == NONE) or (
        measured is None and not calibration_stamp()
    ):
        return None  # without all of recipes, which reading runs needs
    from recipe_core.calibration.run_files import corrections_from_sources

    return corrections_from_sources(measured, folders=folders)


def _calibration_context(calibrated: bool) -> AbstractContextManager[None]:
    """A block with the calibration of this machine or without, unless one says so already."""
    if scopes.has_standing():
        return nullcontext()
    if not calibrated or not calibration_stamp():
        return scopes.without_corrections()
    from recipe_core.calibration.store import machine_corrections

    return correct_by_default(machine_corrections)


def as_request(
    value: RequestSource, *, folders: bool = True, corrections: Corrections | None = None
) -> PlanRequest:
    """The request in plain values or in a file; hardware that is open is chosen by sizing.

    Raises:
        InputError: naming the first wrong field.
        NoAnswer: where no hardware keeps the limits.
    """
    if isinstance(value, PlanRequest):
        return value
    values = _read_request_values(value)
    if not asks_for_any(values):
        return PlanRequest.parse(values)
    from recipe_core.sizing.size import settle_hardware

    return settle_hardware(values, folders=folders, corrections=corrections)


def _read_request_values(value: Any) -> Any:
    """The plain values of a request, or those in a file."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, str | Path):
        from recipe_core.hardware.request import with_profiles

        return with_profiles(read_document(Path(value), field="request"))
    raise InputError(
        f"a request is an object or the path of a file, not {type(value).__name__}.",
        field="request",
        hint="See docs/reference/request.md for an example.",
    )
