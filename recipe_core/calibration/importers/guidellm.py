"""Reports of guidellm: a JSON document with a list of benchmarks, one a load.

Keys as in guidellm 0.8 (report version 2, with ``config``) and before (``args``; in
the first releases a benchmark's ``args`` hold its strategy, ``run_stats`` its counts). Its
``inter_token_latency_ms`` is a request's time after the first token by the tokens after it, the
TPOT of ours; its ``time_per_output_token_ms`` has the first token in it.
"""

from __future__ import annotations

import datetime
from typing import Any

from recipe_core.calibration.importers.bench_clients import closed_loop_load
from recipe_core.calibration.importers.measurement import Content, Fields, Format, Imported

NAME = "guidellm"
TIMES = {
    "time_to_first_token_ms": ("ttft_s", 1e-3),
    "inter_token_latency_ms": ("tpot_s", 1e-3),
    "request_latency": ("request_latency_s", 1.0),
}
RATES = {
    "output_tokens_per_second": "output_tokens_per_s",
    "tokens_per_second": "total_tokens_per_s",
    "requests_per_second": "requests_per_s",
}
PERCENTILES = ("p50", "p90", "p95", "p99")


def _is_guidellm_report(content: Content) -> bool:
    values = content.document
    runs = values.get("benchmarks") if values is not None else None
    if not isinstance(runs, list) or not runs or not isinstance(runs[0], dict):
        return False
    metrics = runs[0].get("metrics")
    return isinstance(metrics, dict) and "time_to_first_token_ms" in metrics


def _read_guidellm_report(content: Content) -> list[Imported]:
    report = content.fields(content.document or {})
    models = [
        report.inside("config", "spec", "backend").text("model"),
        report.inside("args", "backend_kwargs").text("model"),
        report.inside("args").text("model"),
    ]
    model = next(filter(None, models), "")
    return [
        _parse_guidellm_benchmark(run, n, model) for n, run in enumerate(report.list("benchmarks"))
    ]


def _parse_guidellm_benchmark(run: Fields, number: int, model: str) -> Imported:
    metrics = run.inside("metrics")
    figures = _guidellm_figures(metrics)
    requests = _count_guidellm_requests(run)
    lengths = {
        name: max(round(value), 1)
        for name, key in (
            ("input_tokens", "prompt_token_count"),
            ("output_tokens", "output_token_count"),
        )
        if (value := metrics.inside(key, "successful").number("mean")) is not None
    }
    load, notes = _guidellm_load(run, requests["successful"], lengths)
    failed = requests["errored"]
    excluded = ""
    if not requests["successful"]:
        excluded = "no request was successful"
    elif failed > 0.01 * requests["successful"]:
        excluded = f"{failed} of {failed + requests['successful']} requests failed"
    return Imported(
        format=NAME,
        place=f"benchmarks[{number}]",
        model=model or run.inside("config", "backend").text("model"),
        date=_date_of_timestamp(run.number("start_time")),
        figures=figures,
        load=load,
        settings={"requests": requests["successful"]},
        notes=notes,
        excluded=excluded,
    )


def _guidellm_figures(metrics: Fields) -> dict[str, float]:
    out: dict[str, float | None] = {}
    for key, (figure, scale) in TIMES.items():
        summary = metrics.inside(key, "successful")
        percentiles = summary.inside("percentiles")
        out[figure] = summary.number("mean", scale)
        for percentile in PERCENTILES:
            name = f"{figure.removesuffix('_s')}_{percentile}_s"
            out[name] = percentiles.number(percentile, scale)
    out |= {
        figure: metrics.inside(key, "successful").number("mean") for key, figure in RATES.items()
    }
    return {name: value for name, value in out.items() if value is not None}


def _count_guidellm_requests(run: Fields) -> dict[str, int]:
    """Requests by how they ended, as newer and older reports count them."""
    places = (
        run.inside("metrics", "request_totals"),
        run.inside("scheduler_metrics", "requests_made"),
        run.inside("run_stats", "requests_made"),
    )
    counts = next((fields for fields in places if fields.values), places[0])
    return {name: counts.count(name) or 0 for name in ("successful", "errored")}


def _guidellm_load(
    run: Fields, requests: int, lengths: dict[str, int]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The load of a benchmark's strategy."""
    strategy = run.inside("config", "strategy")
    if not strategy.values:
        strategy = run.inside("args", "strategy")
    kind = strategy.text("type_") or strategy.text("kind")
    if kind == "synchronous":
        return closed_loop_load(1, requests, lengths)[:2]
    if kind == "concurrent":
        streams = strategy.count("streams") or strategy.count("max_concurrency")
        if streams is not None:
            return closed_loop_load(streams, requests, lengths)[:2]
    if kind == "throughput" and requests:
        limit = strategy.count("max_concurrency")
        if limit is not None and limit < requests:
            return closed_loop_load(limit, requests, lengths)[:2]
        return {"mode": "offline", "requests": requests, **lengths}, ()
    rate = strategy.number("rate")
    if kind in ("constant", "poisson", "async") and rate is not None:
        return {"mode": "open", "request_rate": rate, **lengths}, ()
    return lengths, (f"its strategy {kind or 'is unstated and'} is no load of ours",)


def _date_of_timestamp(seconds: float | None) -> str:
    if seconds is None or not 0 < seconds < 1e11:
        return ""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).date().isoformat()


FORMAT = Format(NAME, "guidellm", _is_guidellm_report, _read_guidellm_report)
