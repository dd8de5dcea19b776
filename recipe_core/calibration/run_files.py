"""Measured runs of one's own, as they lie in files: tables, and what bundles measured."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from recipe_core.accuracy.checkpoints import NAME as COMPRESSION
from recipe_core.accuracy.checkpoints import MeasuredCompression, read_compression
from recipe_core.base.documents import parse_json, read_document, read_text
from recipe_core.base.errors import InputError, RecipeError
from recipe_core.calibration.importers.formats import recognise_format
from recipe_core.calibration.importers.measurement import Content
from recipe_core.calibration.importers.rows import build_imported_table
from recipe_core.calibration.place import NONE, VARIABLE
from recipe_core.calibration.residuals import Measured, learn_corrections, measured_of_rows
from recipe_core.calibration.store import Incoming, Overlay, machine_corrections
from recipe_core.estimates.columns.corrections import Corrections
from recipe_core.estimates.measured.runs import (
    MAX_TABLE_BYTES,
    Run,
    column_problem,
    parse_rows,
)
from recipe_core.hardware.request import with_profiles
from recipe_core.recipe.figures import Claim, claim_of
from recipe_core.recipe.schema import Recipe
from recipe_core.request.serving_workload import LOADS, SIDES

# Own runs: what they taught already; a file, or several; or rows of a table; ``"none"``.
MeasuredSource = Corrections | Path | str | Iterable[Run | str | Path]

# Where a bundle keeps what it measured.
MEASUREMENT = Path("run") / "measurement.json"

# Columns by which a table of training runs is known.
TRAINING_ONLY = {"step_s", "tokens_per_s_per_gpu", "global_batch", "sequence_length"}

_HINT = (
    "Give a CSV of serving runs (its columns: recipe_core/estimates/measured/published/README.md), "
    "a run/measurement.json inside its bundle, a run/compression.json, or the bundle's folder."
)


def corrections_from_sources(
    measured: MeasuredSource | None, *, folders: bool = True
) -> Corrections | None:
    """Return what own runs teach, with those in the calibration of this machine; None without any.

    Raises:
        InputError: for files that cannot be read, are of training, or are too many runs.
    """
    if isinstance(measured, Corrections):
        return measured
    sources = [measured] if isinstance(measured, str | Path) else list(measured or ())
    used_sources = [source for source in sources if str(source) != NONE]
    if len(used_sources) < len(sources):
        if used_sources:
            raise InputError(
                f"{NONE} goes with no other runs.",
                field="measured",
                hint=f"Switch the calibration off instead: {VARIABLE}= .",
            )
        return None
    if not sources:
        return machine_corrections()
    measurements: list[Measured | MeasuredCompression] = []
    for source in sources:
        if isinstance(source, Run):
            measurements += measured_of_rows([source])
        else:
            measurements += read_own_measurements(Path(source))
    stored = Overlay.open()
    if stored is None:
        return learn_corrections(measurements, folders=folders)
    return stored.corrections(measurements, folders=folders)


def measured_checkpoints(measured: Iterable[Path] | None) -> tuple[MeasuredCompression, ...]:
    """The measured checkpoints alone of the calibration and of files, without learning from runs.

    Raises:
        InputError: for a calibration or files that cannot be read.
    """
    paths = list(measured or ())
    if any(str(path) == NONE for path in paths):
        return ()
    stored = Overlay.open()
    measurements = [*(stored.compressed if stored else ())]
    for path in paths:
        read = read_own_measurements(path)
        measurements += [entry for entry in read if isinstance(entry, MeasuredCompression)]
    return tuple(dict.fromkeys(measurements))


def read_incoming(path: Path) -> list[Incoming]:
    """Return what a file or a bundle measured, with where it comes from, for a calibration.

    Raises:
        InputError: as ``read_own_measurements``.
    """
    kind = "table" if path.suffix == ".csv" else "bundle"
    return [Incoming(run, path.name, kind) for run in read_own_measurements(path)]


def read_own_measurements(path: Path) -> list[Measured | MeasuredCompression]:
    """Return what lies in a file or a bundle's folder: runs, a measured checkpoint, or both.

    Raises:
        InputError: for a folder that measured nothing, and as ``read_measured``.
    """
    if path.name == COMPRESSION or path.is_dir():
        checkpoint = read_compression(path)
        if checkpoint is not None:
            served = path.is_dir() and (path / MEASUREMENT).is_file()
            return [*(read_measured(path) if served else ()), checkpoint]
    return list(read_measured(path))


def read_measured(path: Path) -> list[Measured]:
    """The runs of a table, of a ``measurement.json`` or of a bundle's folder.

    Raises:
        InputError: for a file that is none of these, or wrong; the message names what and where.
    """
    if path.is_dir():
        path = path / MEASUREMENT
    foreign = path.name != MEASUREMENT.name and path.is_file()
    if foreign and recognise_format(Content.of_file(path)) is not None:
        return _rows_as_own_runs(_runs_of_foreign_file(path))
    if path.suffix == ".json":
        return [_read_bundle_measurement(path)]
    if path.suffix != ".csv":
        raise InputError(f"{path} has an unknown suffix.", field="measured", hint=_HINT)
    text = read_text(path, field="measured", limit=MAX_TABLE_BYTES)
    return _rows_as_own_runs(serving_rows(text, str(path)))


def serving_rows(text: str, path: str) -> list[Run]:
    """The rows of a CSV of serving runs; ``path`` names it in errors.

    Raises:
        InputError: for a table of training runs, and as ``read_table``.
    """
    columns = {
        name.strip() for name in next(csv.reader(text.removeprefix("\ufeff").splitlines()[:1]), [])
    }
    if TRAINING_ONLY & columns:
        raise InputError(
            f"{path} is a table of training runs; own runs correct estimates of serving.",
            field="measured",
            hint="Compare it with estimates: recipe validate --training TABLE.",
        )
    return parse_rows(text, path, Run)


def _runs_of_foreign_file(path: Path) -> list[Run]:
    """The runs of a file of another program that states everything a row needs.

    Raises:
        InputError: for one of training, or that leaves something open.
    """
    try:
        rows = [row.row for row in build_imported_table([Content.of_file(path)], None, {}).rows]
    except RecipeError as error:
        hint = "Name the rest: recipe import FILE --request REQUEST -o runs.csv."
        raise InputError(error.message, field="measured", hint=hint) from None
    runs = [row for row in rows if isinstance(row, Run)]
    if not runs:
        raise InputError(
            f"{path} has no measured run of serving.",
            field="measured",
            hint="Compare it with the estimate: recipe reconcile FILE --request REQUEST.",
        )
    return runs


def _rows_as_own_runs(runs: Sequence[Run]) -> list[Measured]:
    """Rows as own runs; a device may be the path of its profile."""
    rows = measured_of_rows(runs)
    return [replace(run, request=with_profiles(run.request)) for run in rows]


def _read_bundle_measurement(path: Path) -> Measured:
    return bundle_run(read_text(path, field="measured"), str(path), lambda: _recipe_beside(path))


def bundle_run(text: str, path: str, find_recipe: Callable[[], Recipe]) -> Measured:
    """The run that a bundle's ``measurement.json`` states; ``path`` names it in errors.

    Raises:
        InputError: for another text, a run of training, or one of another recipe.
    """
    measurement = parse_json(text, path)
    if not isinstance(measurement, Mapping):
        raise InputError(f"{path} is not a measurement.", field="measured", hint=_HINT)
    recipe = find_recipe()
    if recipe.kind == "training":
        raise InputError(
            f"{path} was measured in training; own runs correct estimates of serving.",
            field="measured",
            hint="Leave it out.",
        )
    run = measured_from_claim(path, recipe, claim_of(recipe, measurement))
    return replace(run, **_measurement_circumstances(measurement))


def _measurement_circumstances(measurement: Mapping[str, Any]) -> dict[str, Any]:
    """Return how many requests a measurement rests on, and on what it ran, as far as stated.

    A failed request is in no mean, but says that the server was not in the state one estimates.
    """
    figures, machine = measurement["metrics"], measurement["machine"]
    counts = {name: figures.get(name) for name in ("requests", "failed")}
    hostname = machine.get("hostname")
    place = hostname if isinstance(hostname, str) else machine.get("cpu_name")
    texts = {"driver": machine.get("driver"), "machine": str(place or "")}
    return {
        **{name: value for name, value in counts.items() if isinstance(value, int) and value >= 0},
        **{name: text[:256] for name, text in texts.items() if isinstance(text, str)},
    }


def _recipe_beside(path: Path) -> Recipe:
    for folder in list(path.resolve().parents)[:3]:
        if (folder / "recipe.yaml").is_file():
            return Recipe.parse(read_document(folder / "recipe.yaml", field="measured"))
    raise InputError(
        f"{path} does not lie in its bundle: no recipe.yaml says what was measured.",
        field="measured",
        hint=_HINT,
    )


def measured_from_claim(name: str, recipe: Recipe, claim: Claim) -> Measured:
    """Return a recipe's measurement as an own run. Its prompts are never cached."""
    request = {
        "model": recipe.request["model"],
        "hardware": recipe.request["hardware"],
        "workload": _measured_workload(recipe, claim),
        "candidate": claim.candidate,
    }
    names = ("ttft_s", "tpot_s", "request_latency_s", "output_tokens_per_s")
    figures: dict[str, Any] = {figure: claim.metrics.get(figure) for figure in names}
    return Measured(name=name, request=request, version=claim.version, date=claim.date, **figures)


def _measured_workload(recipe: Recipe, claim: Claim) -> dict[str, Any]:
    """The load under which it was measured, as a request states it: whole tokens."""
    planned, measured = recipe.request["workload"], claim.workload
    mode = str(measured.get("mode") or planned["mode"])
    lengths = {
        name: max(round(float(measured.get(name) or planned[name])), 1)
        for name in ("input_tokens", "output_tokens")
    }
    load = LOADS.get(mode, "concurrency")
    varied = _measured_variation(planned, measured) if mode != "static" else {}
    longest = sum(
        round(tokens * (1 + varied.get(name.replace("tokens", "spread"), 0.0)))
        for name, tokens in lengths.items()
    )
    context = max(claim.max_context or 0, longest)
    return {"mode": mode, **lengths, **varied, load: measured.get(load), "max_context": context}


def _measured_variation(planned: Mapping[str, Any], measured: Mapping[str, Any]) -> dict[str, Any]:
    """State how lengths varied as a request does; empty of runs that do not say.

    Shapes that have means of their own (quantiles, traces) count as lognormal ones of the variation
    that was sent.
    """
    out: dict[str, Any] = {}
    for side in SIDES:
        spread, cv = measured.get(f"{side}_spread"), measured.get(f"{side}_cv")
        shape = planned.get(f"{side}_lengths") or {}
        if spread is not None:
            out[f"{side}_spread"] = float(spread)
        elif cv:
            alike = shape.get("shape") in ("exponential", "lognormal")
            sent = {"shape": "lognormal", "cv": float(cv)}
            out[f"{side}_lengths"] = shape if alike else sent
    return out


def parse_run_rows(values: Any, limit: int) -> list[Run]:
    """Rows of a table as they come in a document: a list of objects, at most so many.

    Raises:
        InputError: naming the first wrong row and field.
    """
    if not isinstance(values, list) or len(values) > limit:
        raise InputError(
            f"must be a list of at most {limit} runs.",
            field="measured",
            hint="See docs/method/own-runs.md.",
        )
    out = []
    for n, row in enumerate(values):
        try:
            out.append(Run.model_validate(row))
        except ValidationError as error:
            column, message = column_problem(error)
            where = ".".join(filter(None, ("measured", str(n), column)))
            raise InputError(f"{message}.", field=where) from None
    return out


def own_runs_text(corrections: Corrections, shown: int = 8) -> Sequence[str]:
    lines = [f"calibrated by {corrections.title}"]
    stored = corrections.stored
    if stored and (any(stored) or corrections.runs):
        waiting = [f"{stored.held:,} held"] if stored.held else []
        waiting += [f"{stored.expired:,} expired"] if stored.expired else []
        rest = f" ({', '.join(waiting)}: recipe calibrate --list)" if waiting else ""
        lines.append(f"of these in the calibration: {stored.used:,}{rest}")
    if left_out := corrections.left_out:
        lines.append(f"left out: {len(left_out):,}")
        lines += [f"  {run.name}: {run.reason}" for run in left_out[:shown]]
        if len(left_out) > shown:
            lines.append(f"  and {len(left_out) - shown:,} more")
    return lines
