"""From measurements of other programs to rows of the table of measured runs.

A row takes what the user states, else what the file states, else what the request says; every
value keeps where it is from. What nobody states is named.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from recipe_core.base.errors import InputError, RecipeError, unknown
from recipe_core.base.units import GIB
from recipe_core.calibration.importers.formats import read_imported
from recipe_core.calibration.importers.measurement import Content, Imported
from recipe_core.estimates.measured.runs import (
    DIMENSIONS,
    Run,
    TrainingRun,
    column_problem,
    read_table,
)
from recipe_core.hardware.cluster import device_profile
from recipe_core.models.catalog import catalog_entry, catalog_model, in_catalog
from recipe_core.plans.plans import plan_candidate
from recipe_core.request.schema import PlanRequest
from recipe_core.request.serving_workload import LOADS

FILE, REQUEST, STATED = "the file", "the request", "an option"
# Columns of figures, and their unit in SI units.
FIGURES = {
    "ttft_s": ("ttft_ms", 1e3),
    "tpot_s": ("tpot_ms", 1e3),
    "request_latency_s": ("request_latency_ms", 1e3),
    "output_tokens_per_s": ("output_tokens_per_s", 1.0),
    "total_tokens_per_s": ("total_tokens_per_s", 1.0),
    "step_s": ("step_s", 1.0),
    "tokens_per_s_per_gpu": ("tokens_per_s_per_gpu", 1.0),
    "peak_memory_bytes": ("peak_memory_gib", 1 / GIB),
}
SHAPE = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "ffn": "intermediate_size",
    "vocabulary": "vocab_size",
    "tied": "tie_word_embeddings",
}
MOST_PER_NODE = 8
Row = Run | TrainingRun


@dataclass(frozen=True)
class ImportedRow:
    """A row, and by column where its value is from."""

    row: Row
    origins: Mapping[str, str]

    @property
    def sources(self) -> dict[str, list[str]]:
        out: dict[str, list[str]] = {}
        for column, origin in self.origins.items():
            out.setdefault(origin, []).append(column)
        return out


@dataclass(frozen=True)
class ImportedTable:
    """Rows of one kind with their origins, and files that gave none, each with the reason."""

    rows: tuple[ImportedRow, ...]
    left_out: Mapping[str, str]
    notes: Mapping[str, Sequence[str]]

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": [row.row.model_dump(mode="json", exclude_none=True) for row in self.rows],
            "origins": {row.row.id: dict(row.origins) for row in self.rows},
            "left_out": dict(self.left_out),
            "notes": {name: list(notes) for name, notes in self.notes.items()},
        }


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
        ", ".join(
            filter(None, (content.name, run.place))
        ): "has no time and no throughput; compare it by recipe reconcile"
        for content, run in pairs
        if not run.teaches
    }
    columns = _request_columns(request, kinds.pop() if kinds else "serving", device_path)
    rows, notes, used = [], dict[str, Sequence[str]](), set(reserved_ids)
    for content, run in teaching:
        place = re.sub(r"[^\w.]+", "-", run.place).strip("-")
        name = _unused_name("-".join(filter(None, (Path(content.name).stem, place))), used)
        used.add(name)
        _check_model(run, columns, user_columns)
        rows.append(build_imported_row(run, name, columns, user_columns))
        if run.notes:
            notes[name] = run.notes
    return ImportedTable(tuple(rows), left_out, notes)


def _unused_name(name: str, used: set[str]) -> str:
    """The name, with a number where one is there already."""
    number, candidate = 2, name
    while candidate in used:
        candidate, number = f"{name}-{number}", number + 1
    return candidate


def _check_model(
    run: Imported, columns: Mapping[str, Any], user_columns: Mapping[str, str]
) -> None:
    """Raise where a file names another model of the catalog than the request."""
    requested = columns.get("model")
    if "model" in user_columns or not (in_catalog(run.model) and in_catalog(requested or "")):
        return
    if catalog_model(run.model).digest != catalog_model(str(requested)).digest:
        raise InputError(
            f"the file is of {run.model}, the request of {requested}.",
            field="request",
            hint="Give the request of what ran, or --set model=….",
        )


def build_imported_row(
    measurement: Imported, name: str, request: Mapping[str, Any], user_columns: Mapping[str, str]
) -> ImportedRow:
    """The row of a measurement.

    Args:
        measurement: what a file states.
        name: the row's id.
        request: columns that a request gives; empty without one.
        user_columns: columns that the user states, as text.

    Raises:
        InputError: naming the column that is missing or wrong, and who must state it.
    """
    kind: type[BaseModel] = TrainingRun if measurement.kind == "training" else Run
    known_columns = [column for column in kind.model_fields if column != "id"]
    for column in user_columns:
        if column not in known_columns:
            message, hint = unknown("column", column, known_columns)
            raise InputError(message, field="set", hint=hint)
    values: dict[str, Any] = {"id": name}
    origins: dict[str, str] = {}
    for source, origin in (
        (request, REQUEST),
        (_file_columns(measurement), FILE),
        (user_columns, STATED),
    ):
        columns = {column: value for column, value in source.items() if column in known_columns}
        values |= columns
        origins |= dict.fromkeys(columns, origin)
    if "per_node" not in values and "tp" in values:
        values |= _usual_node_layout(values)
    lacking = [
        column
        for column, field in kind.model_fields.items()
        if field.is_required() and values.get(column) in (None, "")
    ]
    if lacking:
        raise InputError(
            f"{name}: nobody states {', '.join(lacking)}.",
            field=lacking[0],
            hint=f"Give --request, or for example --set {lacking[0]}=….",
        )
    try:
        row: Any = kind.model_validate(values)
    except ValidationError as error:
        column, message = column_problem(error)
        origin = origins.get(column, FILE)
        raise InputError(f"{name}: {message} (from {origin}).", field=column or "row") from None
    return ImportedRow(row, origins)


def _usual_node_layout(values: Mapping[str, Any]) -> dict[str, int]:
    """Devices in as few nodes as they are usually in, where nobody says how they were."""
    ranks = 1
    try:
        for name in ("tp", "pp", "dp", "cp"):
            ranks *= int(values.get(name, 1))
    except (TypeError, ValueError):
        return {}  # the row's own check names the degree
    per_node = max(min(ranks, MOST_PER_NODE), 1)
    return {"per_node": per_node, "nodes": max(ranks // per_node, 1)}


def _file_columns(measurement: Imported) -> dict[str, Any]:
    """Return the columns of a file that either table knows by name."""
    load, split = dict(measurement.load), measurement.split
    mode = load.pop("mode", None)
    if (amount := LOADS.get(str(mode), "")) in load:
        load |= {"mode": mode, "load": load[amount]}
    texts = {
        "model": measurement.model if in_catalog(measurement.model) else "",
        "device": device_name(measurement.device),
        "engine": measurement.engine,
        "version": measurement.version,
        "date": measurement.date,
        "exclude": measurement.excluded,
    }
    # who states tp and not the others ran without them
    degrees = dict.fromkeys(("pp", "dp", "ep"), 1) if "tp" in split else {}
    if measurement.kind == "training":
        degrees = {}
    figures = {
        column: measurement.figures[figure] * scale
        for figure, (column, scale) in FIGURES.items()
        if figure in measurement.figures
    }
    texts = {column: text for column, text in texts.items() if text}
    return {**texts, **degrees, **split, **load, **measurement.shape, **figures}


def device_name(text: str) -> str:
    """The profile's name of a device, by its name or an alias; empty for an unknown one."""
    try:
        return device_profile(text).name if text else ""
    except RecipeError:
        return ""


def complete_candidate(values: Mapping[str, Any], *, folders: bool = True) -> dict[str, Any]:
    """The candidate of a request, complete: what it leaves out is chosen as its estimate does."""
    plan, row = plan_candidate(PlanRequest.parse(values), folders=folders)
    return {**plan.candidate(row), **(values.get("candidate") or {})}


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
    place, work = dict(request["hardware"]), dict(request["workload"])
    place["device"] = device_path or place["device"]
    columns = {"model": request["model"], "device": place["device"]}
    columns = {name: value for name, value in columns.items() if isinstance(value, str)}
    columns |= {key: place[key] for key in ("nodes", "per_node") if key in place}
    candidate = complete_candidate(request)
    columns |= {key: value for key, value in candidate.items() if value is not None}
    if parsed.is_training:
        columns = _dense_model_shape(columns.get("model")) | columns
        return columns | {
            key: work[key] for key in ("global_batch", "sequence_length") if key in work
        }
    columns |= {key: work[key] for key in ("input_tokens", "output_tokens") if key in work}
    mode = str(work.get("mode", "closed"))
    if LOADS.get(mode, "") in work:
        columns |= {"mode": mode, "load": work[LOADS[mode]]}
    return columns


def _dense_model_shape(model: Any) -> dict[str, Any]:
    """The dimensions of a dense model of the catalog; empty for another."""
    if not isinstance(model, str) or not in_catalog(model):
        return {}
    config = dict(catalog_entry(model).config)
    shape = {ours: config[theirs] for ours, theirs in SHAPE.items() if theirs in config}
    if "heads" in shape:
        shape.setdefault("kv_heads", shape["heads"])
    dense = not any("expert" in key for key in config)
    return shape if dense and set(DIMENSIONS) <= set(shape) else {}


def table_text(rows: Sequence[Row]) -> str:
    """Rows of one kind as the CSV of their table, without columns that none fills."""
    plain = [row.model_dump(mode="json", exclude_none=True) for row in rows]
    filled = [
        name
        for name, field in type(rows[0]).model_fields.items()
        if field.is_required() or {row.get(name, field.default) for row in plain} != {field.default}
    ]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, filled, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(plain)
    return buffer.getvalue()


def rows_there(path: Path, training: bool) -> Sequence[Row]:
    """The rows of a table that is to grow; none where there is no file.

    Raises:
        InputError: when the file is not a table of this kind.
    """
    if not path.exists():
        return []
    return read_table(path, TrainingRun) if training else read_table(path, Run)
