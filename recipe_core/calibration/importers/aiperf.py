"""Exports of aiperf and of genai-perf, its predecessor: JSON and CSV.

Both write one summary a run, statistics by metric with their unit: ``profile_export_aiperf.json``
and ``.csv``, ``profile_export_genai_perf.json`` and ``.csv``. Their inter-token latency is a
request's time after the first token by the tokens after it, the TPOT of ours. A CSV does not state
the load; the JSON does in ``input_config``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipe_core.base.errors import InputError
from recipe_core.calibration.importers.bench_clients import closed_loop_load, day_of_timestamp
from recipe_core.calibration.importers.measurement import (
    Content,
    Fields,
    Format,
    Imported,
    parse_number,
)

TIMES = {
    "time_to_first_token": "ttft_s",
    "inter_token_latency": "tpot_s",
    "request_latency": "request_latency_s",
}
RATES = {
    "output_token_throughput": "output_tokens_per_s",
    "total_token_throughput": "total_tokens_per_s",
    "request_throughput": "requests_per_s",
}
LENGTHS = {"input_sequence_length": "input_tokens", "output_sequence_length": "output_tokens"}
PERCENTILES = ("p50", "p90", "p95", "p99")
SECONDS = {"s": 1.0, "sec": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def _is_aiperf_json(content: Content) -> bool:
    values = content.document
    if values is None:
        return False
    latency = values.get("request_latency")
    return isinstance(latency, dict) and "avg" in latency and "unit" in latency


def _read_aiperf_json(content: Content) -> list[Imported]:
    fields = content.fields(content.document or {})
    ours = "aiperf_version" in fields.values or "schema_version" in fields.values
    return [_parse_aiperf_run(fields, "aiperf" if ours else "genai-perf")]


def _parse_aiperf_run(fields: Fields, name: str) -> Imported:
    figures: dict[str, float | None] = {}
    for key, figure in TIMES.items():
        metric = fields.inside(key)
        scale = _seconds_per_unit(metric)
        figures[figure] = metric.number("avg", scale)
        for percentile in PERCENTILES:
            figures[f"{figure.removesuffix('_s')}_{percentile}_s"] = metric.number(
                percentile, scale
            )
    figures |= {figure: fields.inside(key).number("avg") for key, figure in RATES.items()}
    lengths = {ours: fields.inside(key).number("avg") for key, ours in LENGTHS.items()}
    requests = fields.inside("request_count").count("avg")
    failed = fields.inside("error_request_count").count("avg") or 0
    config = fields.inside("input_config")
    load, notes = _aiperf_load(config, requests or 0, _round_lengths(lengths))
    few = requests is not None and failed <= 0.01 * requests
    return Imported(
        format=name,
        model=_aiperf_model(config),
        date=day_of_timestamp(fields.text("start_time")),
        figures={figure: value for figure, value in figures.items() if value is not None},
        load=load,
        settings={"requests": requests} if requests else {},
        notes=notes,
        excluded="" if few or not failed else f"{failed} requests failed",
    )


def _seconds_per_unit(metric: Fields) -> float:
    """Seconds in a metric's unit; raises InputError for a unit that is no time."""
    unit = metric.text("unit") or "ms"
    if unit not in SECONDS:
        hint = f"Known: {', '.join(SECONDS)}."
        raise InputError(f"{metric.place}: {unit!r} is no unit of time.", field="unit", hint=hint)
    return SECONDS[unit]


def _round_lengths(lengths: Mapping[str, float | None]) -> dict[str, int]:
    return {name: max(round(value), 1) for name, value in lengths.items() if value is not None}


def _aiperf_model(config: Fields) -> str:
    """The first model of a configuration, which lists them or the objects that name them."""
    for place in (config, config.inside("endpoint"), config.inside("models")):
        for key in ("model_names", "model", "items"):
            names = place.values.get(key)
            first = names[0] if isinstance(names, list) and names else names
            if isinstance(first, Mapping):
                first = first.get("name")
            if isinstance(first, str):
                return Fields({"model": first}, place.place).text("model")
    return ""


def _aiperf_load(
    config: Fields, requests: int, lengths: dict[str, int]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The load of a configuration: of aiperf's loadgen or phases, or of genai-perf's stimulus."""
    places = [config.inside("loadgen"), config.inside("perf_analyzer", "stimulus"), config]
    places += [phase for phase in config.list("phases") if phase.text("name") != "warmup"]
    for place in places:
        rate = place.number("request_rate") or place.number("rate")
        concurrency = place.count("concurrency")
        if rate is not None:
            return {"mode": "open", "request_rate": rate, **lengths}, ()
        if concurrency is not None:
            return closed_loop_load(concurrency, requests, lengths)[:2]
    return lengths, ("the load is not stated",)


JSON = Format("aiperf", "aiperf and genai-perf, JSON", _is_aiperf_json, _read_aiperf_json)


def _is_aiperf_csv(content: Content) -> bool:
    if content.text.lstrip("\ufeff")[:7] != "Metric,":
        return False
    names = {_metric_title(row[0]) for row in content.rows}
    return "request latency" in names or "time to first token" in names


def _metric_title(title: str) -> str:
    """A metric's title without its unit, in one case: genai-perf and aiperf differ in it."""
    return title.partition("(")[0].strip().casefold()


def _read_aiperf_csv(content: Content) -> list[Imported]:
    figures: dict[str, float] = {}
    lengths: dict[str, float | None] = {}
    head: list[str] = []
    for number, row in enumerate(content.rows, 1):
        title = _metric_title(row[0])
        key = title.replace(" ", "_")
        if title == "metric":
            head = [name.strip().casefold() for name in row]
            continue
        cells = dict(zip(head, row, strict=False))
        mean = cells.get("avg", cells.get("value", ""))
        place = f"{content.name}, row {number}"
        if key in TIMES:
            scale = SECONDS.get(row[0].partition("(")[2].rstrip(") ").strip(), 1e-3)
            name = TIMES[key]
            figures[name] = _parse_csv_cell(mean, place) * scale
            for percentile in PERCENTILES:
                if cells.get(percentile):
                    figure_name = f"{name.removesuffix('_s')}_{percentile}_s"
                    figures[figure_name] = _parse_csv_cell(cells[percentile], place) * scale
        elif key in RATES:
            figures[RATES[key]] = _parse_csv_cell(mean, place)
        elif key in LENGTHS:
            lengths[LENGTHS[key]] = _parse_csv_cell(mean, place)
    positive = {name: value for name, value in figures.items() if value > 0}
    note = "a CSV states neither load nor model"
    return [
        Imported(format="aiperf", figures=positive, load=_round_lengths(lengths), notes=(note,))
    ]


def _parse_csv_cell(text: str, place: str) -> float:
    """A cell's number; raises InputError naming the row for what is none."""
    try:
        return parse_number(text)
    except ValueError as error:
        raise InputError(f"{place}: {error}.", field="file") from None


TABLE = Format("aiperf-csv", "aiperf and genai-perf, CSV", _is_aiperf_csv, _read_aiperf_csv)
