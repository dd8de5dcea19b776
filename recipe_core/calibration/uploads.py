"""Measured runs in files that somebody drops on a page: what they hold, and what they would change.

Nothing is written here, no path in a file is followed unless the server may read folders, and no
archive is unpacked: of a bundle's two files are read, within limits.
"""

from __future__ import annotations

import datetime
import io
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from recipe_core.accuracy.checkpoints import parse_compression
from recipe_core.base.documents import MAX_DOCUMENT_BYTES, parse_yaml
from recipe_core.base.errors import InputError, RecipeError
from recipe_core.calibration.importers.formats import recognise_format
from recipe_core.calibration.importers.measurement import Content
from recipe_core.calibration.importers.rows import FILE, build_imported_table
from recipe_core.calibration.records import FIGURES, StoredRun
from recipe_core.calibration.residuals import Measured, learn_corrections
from recipe_core.calibration.run_files import MEASUREMENT, bundle_run, serving_rows
from recipe_core.calibration.store import Incoming, Overlay
from recipe_core.estimates.columns.corrections import Corrections
from recipe_core.estimates.columns.scopes import without_corrections
from recipe_core.estimates.measured.runs import Run
from recipe_core.hardware.request import with_profiles
from recipe_core.plans.own_runs import OwnRunsEffect, best_text, compare_best
from recipe_core.plans.plan import Plan
from recipe_core.plans.plans import plan_splits
from recipe_core.recipe.schema import Recipe
from recipe_core.request.schema import PlanRequest

MAX_UPLOAD_BYTES = 16 << 20
MAX_FILES = 8
# Values of a column that are shown.
SHOWN_VALUES = 4
RECIPE = "recipe.yaml"
BUNDLE_FILES = (RECIPE, MEASUREMENT.name)
_HINT = (
    "Drop a CSV of runs, results of vLLM's, SGLang's or another benchmark, or a bundle's "
    f"{MEASUREMENT} with its {RECIPE}."
)
_PLAN_FIRST = (
    "Plan what ran first (model, hardware, traffic, layout), or name the rest: "
    "recipe import FILE --set COLUMN=VALUE -o runs.csv."
)


class Upload(NamedTuple):
    """A file by its name on the sender's machine."""

    name: str
    data: bytes


class ColumnRead(NamedTuple):
    """A column that was understood: its name, from where, and some of its values."""

    column: str
    origin: str
    values: str


@dataclass(frozen=True, slots=True)
class RunsRead:
    """The runs of files, with the columns that were understood and what was left out, and why."""

    runs: tuple[Incoming, ...]
    columns: tuple[ColumnRead, ...]
    left_out: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class UploadPreview:
    """Runs in files and their effect on an answer.

    Attributes:
        columns: those that were understood.
        entries: the runs as a calibration would keep them, each with its gate.
        checkpoints: how many measured checkpoints are among them.
        repeated: how many it keeps already.
        left_out: runs that cannot be kept, each with the reason.
        before: the best split of the request and its figure; empty where there is none.
        after: the same with the runs.
        effect: what the runs change about it; None where nothing.
        incoming: what ``Overlay.add`` takes.
    """

    columns: tuple[ColumnRead, ...]
    entries: tuple[StoredRun, ...]
    checkpoints: int
    repeated: int
    left_out: Mapping[str, str]
    before: str
    after: str
    effect: OwnRunsEffect | None
    incoming: tuple[Incoming, ...]

    @property
    def counting(self) -> int:
        return sum(entry.counts for entry in self.entries)


def preview_uploads(
    files: Sequence[Upload], request: Mapping[str, Any] | None, *, folders: bool = False
) -> UploadPreview:
    """Read files and plan a request without their runs and with them; store nothing.

    Args:
        files: one or several; a bundle as a zip file, or its measurement with its recipe.
        request: the request whose answer is compared; it states what a benchmark does not.
        folders: whether files may name models and profiles by paths on this machine.

    Raises:
        InputError: for too many or too large files, and for a file that cannot be read; names it.
    """
    today = datetime.datetime.now(datetime.UTC).date()
    overlay = Overlay.open() or Overlay(Path("calibration"), (), today)
    before = _plan_or_none(request, overlay.corrections(folders=folders), folders)
    read = read_uploads(files, request if before is not None else None, folders=folders)
    runs = [entry.run for entry in read.runs]
    with without_corrections():  # also refuses paths, before anything looks at them
        learned = learn_corrections(runs, folders=folders)
    unknown = {run.name: run.reason for run in learned.left_out}
    incoming = tuple(entry for entry in read.runs if _name_of(entry) not in unknown)
    added = overlay.add(incoming, dry=True)
    count = sum(entry.counts for entry in (*added.entries, *added.compressions))
    after = before
    if count and before is not None:
        after = _plan_or_none(request, added.overlay.corrections(folders=folders), folders)
    subject = "This run" if count == 1 else f"These {count:,} runs"
    effect = None
    if before is not None and after is not None:
        effect = compare_best(before, after, subject, applied=False)
    return UploadPreview(
        columns=read.columns,
        entries=added.entries,
        checkpoints=len(added.compressions),
        repeated=len(added.repeated_ids),
        left_out={**read.left_out, **unknown},
        before=best_text(before) if before is not None else "",
        after=best_text(after) if after is not None else "",
        effect=effect,
        incoming=incoming,
    )


def _plan_or_none(
    request: Mapping[str, Any] | None, corrections: Corrections | None, folders: bool
) -> Plan | None:
    """The plan of a serving request; None for another, and where there is nothing to plan."""
    if request is None:
        return None
    with suppress(RecipeError), without_corrections():
        parsed = PlanRequest.parse(request)
        if not parsed.is_training:
            return plan_splits(parsed, folders=folders, corrections=corrections)
    return None


def _name_of(entry: Incoming) -> str:
    return entry.run.name if isinstance(entry.run, Measured) else ""


# Reading


def read_uploads(
    files: Sequence[Upload], request: Mapping[str, Any] | None, *, folders: bool = False
) -> RunsRead:
    """The runs of files; as ``preview_uploads``, which also plans."""
    if len(files) > MAX_FILES:
        message = f"{len(files)} files were dropped; at most {MAX_FILES} are read at a time."
        raise InputError(message, field="file", hint="Drop fewer.")
    texts = [text for file in files for text in _texts_of(file)]
    recipes = {_folder_of(text.name): text for text in texts if _is_recipe(text)}
    parts = [_read_text(text, recipes, request, folders) for text in texts if not _is_recipe(text)]
    if not parts:
        raise InputError("no file holds measured runs.", field="file", hint=_HINT)
    names: dict[str, int] = {}
    return RunsRead(
        tuple(_with_own_name(entry, names) for part in parts for entry in part.runs),
        tuple(dict.fromkeys(column for part in parts for column in part.columns)),
        {name: reason for part in parts for name, reason in part.left_out.items()},
    )


def _with_own_name(entry: Incoming, names: dict[str, int]) -> Incoming:
    """The entry, with a number behind a name that another has."""
    name = _name_of(entry)
    names[name] = names.get(name, 0) + 1
    if not name or names[name] == 1 or not isinstance(entry.run, Measured):
        return entry
    return entry._replace(run=replace(entry.run, name=f"{name} ({names[name]})"))


def _texts_of(file: Upload) -> Iterator[Content]:
    """The texts of a file: its own, or of an archive those of a bundle that matter here."""
    name = PurePosixPath(file.name.replace("\\", "/")).name[:120] or "the file"
    if len(file.data) > MAX_UPLOAD_BYTES:
        raise InputError(
            f"{name} has {len(file.data):,} bytes; the limit is {MAX_UPLOAD_BYTES:,}.",
            field="file",
            hint="Import it where it lies: recipe import FILE -o runs.csv.",
        )
    if not file.data.startswith(b"PK"):
        yield Content(name, _decode(file.data, name))
        return
    try:
        with zipfile.ZipFile(io.BytesIO(file.data)) as archive:
            entries = [e for e in archive.namelist() if PurePosixPath(e).name in BUNDLE_FILES]
            if len(entries) > 2 * MAX_FILES:
                message = f"{name} holds more than {MAX_FILES} bundles."
                raise InputError(message, field="file", hint="Drop fewer at a time.")
            for entry in entries:
                with archive.open(entry) as part:
                    data = part.read(MAX_DOCUMENT_BYTES + 1)
                yield Content(entry, _decode(data, f"{name}: {entry[:120]}"))
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, OSError, EOFError) as error:
        raise InputError(f"{name} is no readable zip file: {error}.", field="file") from None


def _decode(data: bytes, name: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InputError(f"{name} is not UTF-8 text.", field="file", hint=_HINT) from None


def _is_recipe(text: Content) -> bool:
    return PurePosixPath(text.name).name == RECIPE


def _folder_of(name: str) -> PurePosixPath:
    """The folder of a bundle in which a recipe, or ``run/measurement.json``, lies."""
    folder = PurePosixPath(name).parent
    return folder.parent if folder.name == MEASUREMENT.parent.name else folder


def _read_text(
    text: Content,
    recipes: Mapping[PurePosixPath, Content],
    request: Mapping[str, Any] | None,
    folders: bool,
) -> RunsRead:
    format_ = recognise_format(text)
    if format_ is not None:
        return _read_benchmark(text, format_.title, request)
    value = text.document
    if value is not None:
        return _read_measurement(text, value, recipes)
    if "," not in text.text[:1000]:
        raise InputError(f"{text.name} is of no known format.", field="file", hint=_HINT)
    rows = serving_rows(text.text, text.name)
    runs = [Measured.of(row) for row in rows]
    if folders:
        runs = [replace(run, request=with_profiles(run.request)) for run in runs]
    origins = {column: FILE for row in rows for column in row.model_fields_set}
    incoming = tuple(Incoming(run, text.name, "table") for run in runs)
    return RunsRead(incoming, _columns_read(rows, origins), {})


def _read_benchmark(text: Content, title: str, request: Mapping[str, Any] | None) -> RunsRead:
    """The runs of another program's file; the request states what it does not."""
    try:
        table = build_imported_table([text], None, {})
    except RecipeError:
        if request is None:
            raise
        try:
            table = build_imported_table([text], request, {})
        except RecipeError as error:
            raise InputError(error.message, field="file", hint=_PLAN_FIRST) from None
    rows = [row.row for row in table.rows if isinstance(row.row, Run)]
    if not rows:
        raise InputError(
            f"{text.name} is a {title} without a measured run of serving.",
            field="file",
            hint="Compare it with the estimate: recipe reconcile FILE --request REQUEST.",
        )
    origins = {column: origin for row in table.rows for column, origin in row.origins.items()}
    incoming = tuple(Incoming(Measured.of(row), text.name, "table") for row in rows)
    return RunsRead(incoming, _columns_read(rows, origins), table.left_out)


def _read_measurement(
    text: Content, value: Mapping[str, Any], recipes: Mapping[PurePosixPath, Content]
) -> RunsRead:
    """The measurement of a bundle: of its server, by the recipe beside it, or of its checkpoint."""
    if "verification" in value:
        checkpoint = parse_compression(value, text.name)
        return RunsRead((Incoming(checkpoint, text.name, "bundle"),), (), {})

    def find_recipe() -> Recipe:
        beside = recipes.get(_folder_of(text.name))
        if beside is None:
            raise InputError(
                f"{text.name} is a measurement without the {RECIPE} of its bundle.",
                field="file",
                hint=f"Drop both, or the bundle as a zip file. {_HINT}",
            )
        return Recipe.parse(parse_yaml(beside.text, beside.name))

    run = bundle_run(text.text, text.name, find_recipe)
    name = _folder_of(text.name).name or str(value.get("recipe", ""))[:120] or text.name
    figures = {column: FILE for column in FIGURES if getattr(run, column) is not None}
    columns = tuple(ColumnRead(column, FILE, "") for column in figures)
    return RunsRead((Incoming(replace(run, name=name), text.name, "bundle"),), columns, {})


def _columns_read(rows: Sequence[Run], origins: Mapping[str, str]) -> tuple[ColumnRead, ...]:
    """The columns of rows, in the order of the table, with where they are from."""
    columns = []
    for column in Run.model_fields:
        if column not in origins or column == "id":
            continue
        values = list(dict.fromkeys(str(getattr(row, column)) for row in rows))
        uncounted = f" and {len(values) - SHOWN_VALUES} more" if len(values) > SHOWN_VALUES else ""
        shown = ", ".join(value[:60] for value in values[:SHOWN_VALUES])
        columns.append(ColumnRead(column, origins[column], f"{shown}{uncounted}"))
    return tuple(columns)
