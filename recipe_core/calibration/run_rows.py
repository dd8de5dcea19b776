"""Files of other programs as rows of the table of measured runs, beside the request that ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe_core.base.errors import InputError, RecipeError
from recipe_core.calibration.importers.content import Content
from recipe_core.calibration.importers.imported import Imported
from recipe_core.calibration.importers.registry import format_of, read_imported
from recipe_core.calibration.importers.rows import (
    ImportedRow,
    Row,
    columns_of_request,
    name_of,
    row_of,
    same_model,
    unique,
)
from recipe_core.estimates.measured.serving_runs import Run, read_runs
from recipe_core.estimates.measured.training_runs import TrainingRun, read_training_runs
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


def settled(values: Mapping[str, Any], *, folders: bool = True) -> dict[str, Any]:
    """The candidate of a request, complete: what it leaves out is chosen as its estimate does."""
    candidate = values.get("candidate")
    stated = dict(candidate) if isinstance(candidate, Mapping) else {}
    plan, row = plan_candidate(PlanRequest.parse(values), folders=folders)
    return {**plan.candidate(row), **stated}


def imported_table(
    contents: Sequence[Content],
    request: Mapping[str, Any] | None,
    stated: Mapping[str, str],
    *,
    device_path: str | None = None,
    taken: Sequence[str] = (),
) -> ImportedTable:
    """The rows of files.

    Args:
        contents: the files.
        request: the request that ran, with profiles read in; None without one.
        stated: columns that the user states for every row.
        device_path: the path of the request's own device profile, if it has one.
        taken: ids that rows may not have.

    Raises:
        InputError: for a file of no known format, a wrong or missing column, or rows of two kinds.
    """
    pairs = [(content, one) for content in contents for one in read_imported(content)]
    useful = [(content, one) for content, one in pairs if one.teaches]
    kinds = {one.kind for _, one in useful}
    if len(kinds) > 1:
        raise InputError(
            "the files are of serving and of training, which have a table each.",
            field="file",
            hint="Import them one kind at a time.",
        )
    left_out = {
        _label(content, one): "has no time and no throughput; compare it by recipe reconcile"
        for content, one in pairs
        if not one.teaches
    }
    columns = _columns(request, kinds.pop() if kinds else "serving", device_path)
    names = unique((name_of(Path(content.name).stem, one) for content, one in useful), taken)
    rows = []
    notes: dict[str, Sequence[str]] = {}
    for (_, one), name in zip(useful, names, strict=True):
        _check_model(one, columns, stated)
        rows.append(row_of(one, name, columns, stated))
        if one.notes:
            notes[name] = one.notes
    return ImportedTable(tuple(rows), left_out, notes)


def _label(content: Content, one: Imported) -> str:
    return f"{content.name}, {one.place}" if one.place else content.name


def _columns(
    request: Mapping[str, Any] | None, kind: str, device_path: str | None
) -> dict[str, Any]:
    if request is None:
        return {}
    parsed = PlanRequest.parse(request)
    if parsed.is_training != (kind == "training"):
        asked = "training" if parsed.is_training else "serving"
        raise InputError(
            f"the request is of {asked}, the files are of {kind}.",
            field="request",
            hint="Give the request of what ran.",
        )
    values = dict(request)
    if device_path is not None:
        values["hardware"] = {**values["hardware"], "device": device_path}
    return columns_of_request(values, settled(request), kind)


def _check_model(one: Imported, columns: Mapping[str, Any], stated: Mapping[str, str]) -> None:
    """Raise where a file names another model of the catalog than the request."""
    asked = columns.get("model")
    if not one.model or asked is None or "model" in stated:
        return
    if in_catalog(one.model) and in_catalog(asked) and not same_model(one.model, asked):
        raise InputError(
            f"the file is of {one.model}, the request of {asked}.",
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
    return path.is_file() and format_of(Content.of_file(path)) is not None


def runs_of_file(path: Path) -> list[Run]:
    """The runs of a file of another program that states everything a row needs.

    Raises:
        InputError: for a file of no known format, of training, or that leaves something open.
    """
    try:
        table = imported_table([Content.of_file(path)], None, {})
    except RecipeError as error:
        hint = "Name the rest: recipe import FILE --request REQUEST -o runs.csv."
        raise InputError(error.message, field="measured", hint=hint) from None
    rows = [one.row for one in table.rows]
    if not rows or any(isinstance(row, TrainingRun) for row in rows):
        raise InputError(
            f"{path} has no measured run of serving.",
            field="measured",
            hint="Compare it with the estimate: recipe reconcile FILE --request REQUEST.",
        )
    return [row for row in rows if isinstance(row, Run)]
