"""From a measurement of another program to a row of the table of measured runs.

A row takes what the user states, else what the file states, else what the request says; every
value keeps where it is from. What nobody states is named.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from recipe_core.base.errors import InputError, RecipeError, unknown
from recipe_core.base.units import GIB
from recipe_core.calibration.importers.measurement import Imported
from recipe_core.estimates.measured.runs import DIMENSIONS, LOADS, Run, TrainingRun
from recipe_core.hardware.cluster import device_profile
from recipe_core.models.catalog import catalog_entry, catalog_model, in_catalog

FILE, REQUEST, STATED = "the file", "the request", "an option"
SERVING_FIGURES = {
    "ttft_s": ("ttft_ms", 1e3),
    "tpot_s": ("tpot_ms", 1e3),
    "request_latency_s": ("request_latency_ms", 1e3),
    "output_tokens_per_s": ("output_tokens_per_s", 1.0),
    "total_tokens_per_s": ("total_tokens_per_s", 1.0),
}
TRAINING_FIGURES = {
    "step_s": ("step_s", 1.0),
    "tokens_per_s_per_gpu": ("tokens_per_s_per_gpu", 1.0),
    "peak_memory_bytes": ("peak_memory_gib", 1 / GIB),
}
LIMITS = ("max_num_seqs", "memory_fraction")
SPLIT = ("tp", "pp", "dp", "ep", "weight_dtype", "kv_dtype")
MOST_PER_NODE = 8
Row = Run | TrainingRun


@dataclass(frozen=True)
class ImportedRow:
    """A row, and by column where its value is from."""

    row: Row
    origins: Mapping[str, str]

    @property
    def sources(self) -> dict[str, list[str]]:
        """The columns by where they are from."""
        out: dict[str, list[str]] = {}
        for column, origin in self.origins.items():
            out.setdefault(origin, []).append(column)
        return out


def build_imported_row(
    measurement: Imported, name: str, request: Mapping[str, Any], user_columns: Mapping[str, str]
) -> ImportedRow:
    """The row of a measurement.

    Args:
        measurement: what a file states.
        name: the row's id.
        request: columns that a request gives (`columns_of_request`); empty without one.
        user_columns: columns that the user states, as text.

    Raises:
        InputError: naming the column that is missing or wrong, and who must state it.
    """
    training = measurement.kind == "training"
    kind: type[BaseModel] = TrainingRun if training else Run
    _check_stated(user_columns, kind)
    file_columns = _training_columns(measurement) if training else _serving_columns(measurement)
    values: dict[str, Any] = {"id": name}
    origins: dict[str, str] = {}
    for source, origin in ((request, REQUEST), (file_columns, FILE), (user_columns, STATED)):
        columns = {column: value for column, value in source.items() if column in kind.model_fields}
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
        first = error.errors(include_url=False)[0]
        column = ".".join(map(str, first["loc"])) or "row"
        message = first["msg"].removeprefix("Value error, ")
        raise InputError(
            f"{name}: {message[0].lower()}{message[1:]} (from {origins.get(column, FILE)}).",
            field=column,
        ) from None
    return ImportedRow(row, origins)


def _check_stated(user_columns: Mapping[str, str], kind: type[BaseModel]) -> None:
    for column in user_columns:
        if column not in kind.model_fields or column == "id":
            message, hint = unknown("column", column, [c for c in kind.model_fields if c != "id"])
            raise InputError(message, field="set", hint=hint)


def _usual_node_layout(values: Mapping[str, Any]) -> dict[str, int]:
    """Devices in as few nodes as they are usually in, where nobody says how they were."""
    try:
        ranks = int(values["tp"]) * int(values.get("pp", 1)) * int(values.get("dp", 1))
        ranks *= int(values.get("cp", 1))
    except (TypeError, ValueError):
        return {}  # the row's own check names the degree
    per_node = max(min(ranks, MOST_PER_NODE), 1)
    return {"per_node": per_node, "nodes": max(ranks // per_node, 1)}


def _common_run_columns(measurement: Imported) -> dict[str, Any]:
    """What both tables have, as far as names are known here."""
    columns: dict[str, Any] = {}
    if measurement.model and in_catalog(measurement.model):
        columns["model"] = measurement.model
    if name := device_name(measurement.device):
        columns["device"] = name
    if measurement.engine:
        columns["engine"] = measurement.engine
    if measurement.version:
        columns["version"] = measurement.version
    return columns


def device_name(text: str) -> str:
    """The profile's name of a device, by its name or an alias; empty for an unknown one."""
    try:
        return device_profile(text).name if text else ""
    except RecipeError:
        return ""


def _serving_columns(measurement: Imported) -> dict[str, Any]:
    load, split = measurement.load, measurement.split
    columns = _common_run_columns(measurement)
    columns |= {key: split[key] for key in (*SPLIT, *LIMITS, "nodes", "per_node") if key in split}
    if "tp" in split:
        # who states tp and not the others ran without them
        columns |= {key: 1 for key in ("pp", "dp", "ep") if key not in split}
    columns |= {key: load[key] for key in ("input_tokens", "output_tokens") if key in load}
    amount = LOADS.get(str(load.get("mode")), "")
    if amount in load:
        columns |= {"mode": load["mode"], "load": load[amount]}
    for figure, (column, scale) in SERVING_FIGURES.items():
        if figure in measurement.figures:
            columns[column] = measurement.figures[figure] * scale
    columns |= {"date": measurement.date} if measurement.date else {}
    return columns | ({"exclude": measurement.excluded} if measurement.excluded else {})


def _training_columns(measurement: Imported) -> dict[str, Any]:
    columns = _common_run_columns(measurement) | dict(measurement.split) | dict(measurement.load)
    columns |= dict(measurement.shape)
    for figure, (column, scale) in TRAINING_FIGURES.items():
        if figure in measurement.figures:
            columns[column] = measurement.figures[figure] * scale
    return columns


def columns_of_request(
    values: Mapping[str, Any], candidate: Mapping[str, Any], kind: str
) -> dict[str, Any]:
    """What a request and its settled candidate give of a row.

    Args:
        values: the request's plain values; a device may still be the path of its profile.
        candidate: the split that ran.
        kind: "serving" or "training".
    """
    hardware, workload = values.get("hardware"), values.get("workload")
    place = hardware if isinstance(hardware, Mapping) else {}
    work = workload if isinstance(workload, Mapping) else {}
    columns: dict[str, Any] = {}
    if isinstance(values.get("model"), str):
        columns["model"] = values["model"]
    if isinstance(place.get("device"), str):
        columns["device"] = place["device"]
    columns |= {key: place[key] for key in ("nodes", "per_node") if key in place}
    fields = TrainingRun.model_fields if kind == "training" else Run.model_fields
    columns |= {
        key: value for key, value in candidate.items() if key in fields and value is not None
    }
    if kind == "training":
        shape = _dense_model_shape(columns.get("model"))
        batch_columns = {
            key: work[key] for key in ("global_batch", "sequence_length") if key in work
        }
        return shape | columns | batch_columns
    lengths = {key: work[key] for key in ("input_tokens", "output_tokens") if key in work}
    mode = str(work.get("mode", "closed"))
    if LOADS.get(mode, "") in work:
        lengths |= {"mode": mode, "load": work[LOADS[mode]]}
    return columns | lengths


def _dense_model_shape(model: Any) -> dict[str, Any]:
    """The dimensions of a dense model of the catalog; empty for another."""
    if not isinstance(model, str) or not in_catalog(model):
        return {}
    config = dict(catalog_entry(model).config)
    names = {
        "layers": "num_hidden_layers",
        "hidden": "hidden_size",
        "heads": "num_attention_heads",
        "kv_heads": "num_key_value_heads",
        "ffn": "intermediate_size",
        "vocabulary": "vocab_size",
        "tied": "tie_word_embeddings",
    }
    shape = {ours: config[theirs] for ours, theirs in names.items() if theirs in config}
    if "heads" in shape:
        shape.setdefault("kv_heads", shape["heads"])
    dense = not any("expert" in key for key in config)
    return shape if dense and set(DIMENSIONS) <= set(shape) else {}


def name_imported_row(stem: str, measurement: Imported) -> str:
    """An id of a row: the file's name, and where in it."""
    place = re.sub(r"[^\w.]+", "-", measurement.place).strip("-")
    return f"{stem}-{place}" if place else stem


def make_names_unique(names: Iterable[str], reserved: Iterable[str]) -> list[str]:
    """The names, with a number where one is there already."""
    used = set(reserved)
    out = []
    for name in names:
        number, candidate = 2, name
        while candidate in used:
            candidate, number = f"{name}-{number}", number + 1
        used.add(candidate)
        out.append(candidate)
    return out


def table_text(rows: Sequence[Row]) -> str:
    """Rows of one kind as the CSV of their table, without columns that none fills."""
    kind = type(rows[0])
    plain = [row.model_dump(mode="json", exclude_none=True) for row in rows]
    filled = [name for name, field in kind.model_fields.items() if _is_filled(name, field, plain)]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, filled, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(plain)
    return buffer.getvalue()


def _is_filled(name: str, field: FieldInfo, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a column is needed: required, or not its default in some row."""
    return field.is_required() or any(row.get(name, field.default) != field.default for row in rows)


def same_model(name: str, other_name: str) -> bool:
    """Whether two names mean one model of the catalog; names that it lacks are alike as texts."""
    if name.casefold() == other_name.casefold():
        return True
    if not (in_catalog(name) and in_catalog(other_name)):
        return False
    return catalog_model(name).digest == catalog_model(other_name).digest
