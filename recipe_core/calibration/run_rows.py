"""Files of other programs as rows of the table of measured runs, beside the request that ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe_core.base.errors import InputError, RecipeError
from recipe_core.calibration.importers.formats import read_imported, recognise_format
from recipe_core.calibration.importers.measurement import Content, Imported
from recipe_core.calibration.importers.rows import (
    ImportedRow,
    Row,
    build_imported_row,
    columns_of_request,
    make_names_unique,
    name_imported_row,
    same_model,
)
from recipe_core.estimates.measured.runs import Run, TrainingRun, read_runs, read_training_runs
from recipe_core.models.catalog import in_catalog
from recipe_core.plans.plans import plan_candidate
from recipe_core.request.schema import PlanRequest


@dataclass(frozen=True)
class ImportedTable:
    """Rows of one kind with their origins, and files that gave none, each with the reason."""

    rows: tuple[ImportedRow, ...]
    left_out: Mapping[str, str]
    notes: Mapping[str, Sequence[str]]

    def to_json(self) -> dict[str, Any]:
        """Plain values: rows, where each column is from, what was left out and why."""
        return {
            "rows": [row.row.model_dump(mode="json", exclude_none=True) for row in self.rows],
            "origins": {row.row.id: dict(row.origins) for row in self.rows},
            "left_out": dict(self.left_out),
            "notes": {name: list(notes) for name, notes in self.notes.items()},
        }


def complete_candidate(values: Mapping[str, Any], *, folders: bool = True) -> dict[str, Any]:
    """The candidate of a request, complete: what it leaves out is chosen as its estimate does."""
    candidate = values.get("candidate")
    stated_candidate = dict(candidate) if isinstance(candidate, Mapping) else {}
    plan, row = plan_candidate(PlanRequest.parse(values), folders=folders)
    return {**plan.candidate(row), **stated_candidate}


def build_imported_table(
    contents: Sequence[Content],
    request: Mapping[str, Any] | None,
    user_columns: Mapping[str, str],
    *,
    device_path: str | None = None,
    reserved_ids: Sequence[str] = (),
) -> ImportedTable:
    """The rows of files.

    Args:
        contents: the files.
        request: the request that ran, with profiles read in; None without one.
        user_columns: columns that the user states for every row.
        device_path: the path of the request's own device profile, if it has one.
        reserved_ids: ids that rows may not have.

    Raises:
        InputError: for a file of no known format, a wrong or missing column, or rows of two kinds.
    """
    pairs = [(content, run) for content in contents for run in read_imported(content)]
    teaching = [(content, run) for content, run in pairs if run.teaches]
    kinds = {run.kind for _, run in teaching}
    if len(kinds) > 1:
        raise InputError(
            "the files are of serving and of training, which have a table each.",
            field="file",
            hint="Import them one kind at a time.",
        )
    left_out = {
        _imported_label(
            content, run
        ): "has no time and no throughput; compare it by recipe reconcile"
        for content, run in pairs
        if not run.teaches
    }
    columns = _request_columns(request, kinds.pop() if kinds else "serving", device_path)
    names = make_names_unique(
        (name_imported_row(Path(content.name).stem, run) for content, run in teaching), reserved_ids
    )
    rows = []
    notes: dict[str, Sequence[str]] = {}
    for (_, run), name in zip(teaching, names, strict=True):
        _check_model(run, columns, user_columns)
        rows.append(build_imported_row(run, name, columns, user_columns))
        if run.notes:
            notes[name] = run.notes
    return ImportedTable(tuple(rows), left_out, notes)


def _imported_label(content: Content, run: Imported) -> str:
    return f"{content.name}, {run.place}" if run.place else content.name


def _request_columns(
    request: Mapping[str, Any] | None, kind: str, device_path: str | None
) -> dict[str, Any]:
    if request is None:
        return {}
    parsed = PlanRequest.parse(request)
    if parsed.is_training != (kind == "training"):
        request_kind = "training" if parsed.is_training else "serving"
        raise InputError(
            f"the request is of {request_kind}, the files are of {kind}.",
            field="request",
            hint="Give the request of what ran.",
        )
    values = dict(request)
    if device_path is not None:
        values["hardware"] = {**values["hardware"], "device": device_path}
    return columns_of_request(values, complete_candidate(request), kind)


def _check_model(
    run: Imported, columns: Mapping[str, Any], user_columns: Mapping[str, str]
) -> None:
    """Raise where a file names another model of the catalog than the request."""
    requested_model = columns.get("model")
    if not run.model or requested_model is None or "model" in user_columns:
        return
    if (
        in_catalog(run.model)
        and in_catalog(requested_model)
        and not same_model(run.model, requested_model)
    ):
        raise InputError(
            f"the file is of {run.model}, the request of {requested_model}.",
            field="request",
            hint="Give the request of what ran, or --set model=….",
        )


def rows_there(path: Path, training: bool) -> list[Row]:
    """The rows of a table that is to grow; none where there is no file.

    Raises:
        InputError: when the file is not a table of this kind.
    """
    if not path.exists():
        return []
    rows: list[Row] = list(read_training_runs(path) if training else read_runs(path))
    return rows


def is_foreign(path: Path) -> bool:
    return path.is_file() and recognise_format(Content.of_file(path)) is not None


def runs_of_file(path: Path) -> list[Run]:
    """The runs of a file of another program that states everything a row needs.

    Raises:
        InputError: for a file of no known format, of training, or that leaves something open.
    """
    try:
        table = build_imported_table([Content.of_file(path)], None, {})
    except RecipeError as error:
        hint = "Name the rest: recipe import FILE --request REQUEST -o runs.csv."
        raise InputError(error.message, field="measured", hint=hint) from None
    rows = [imported_row.row for imported_row in table.rows]
    if not rows or any(isinstance(row, TrainingRun) for row in rows):
        raise InputError(
            f"{path} has no measured run of serving.",
            field="measured",
            hint="Compare it with the estimate: recipe reconcile FILE --request REQUEST.",
        )
    return [row for row in rows if isinstance(row, Run)]
