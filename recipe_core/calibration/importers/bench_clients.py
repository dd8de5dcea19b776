"""What the result files of vLLM's and SGLang's benchmark clients have in common.

Both write one object a run with means in milliseconds, ``vllm bench serve`` as a JSON document,
``sglang.bench_serving`` as a line of a file that grows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from recipe_core.base.errors import InputError
from recipe_core.calibration.importers.measurement import Fields

PERCENTILES = (50, 90, 95, 99)
# Share of the limit on requests in flight from which a run with a rate too was at that limit.
FULL = 0.9
# Share of the sent rate below which a server did not keep up, and no state was steady.
KEPT_UP = 0.75
MS = 1e-3
# Why a run with drafts is not to be learned from.
DRAFTED = "speculative decoding, whose acceptance a table does not state"


def client_figures(fields: Fields, latency: str) -> dict[str, float]:
    """Means and percentiles of a run in SI units; ``latency`` is what the client calls a request's.

    Raises:
        InputError: for a figure that is no finite number.
    """
    times = {"ttft": "ttft_s", "tpot": "tpot_s", latency: "request_latency_s"}
    out: dict[str, float | None] = {}
    for name, figure in times.items():
        out[figure] = fields.number(f"mean_{name}_ms", MS)
        for percentile in PERCENTILES:
            seconds = fields.number(f"p{percentile}_{name}_ms", MS)
            if percentile == 50 and seconds is None:
                seconds = fields.number(f"median_{name}_ms", MS)
            out[f"{figure.removesuffix('_s')}_p{percentile}_s"] = seconds
    out["output_tokens_per_s"] = fields.number("output_throughput")
    out["total_tokens_per_s"] = fields.number("total_token_throughput") or fields.number(
        "total_throughput"
    )
    out["requests_per_s"] = fields.number("request_throughput")
    return {name: value for name, value in out.items() if value is not None}


def sent_rate(fields: Fields) -> float | None:
    """The rate at which requests were sent, per second; None where all were sent at once."""
    rate = fields.values.get("request_rate")
    if rate is None or (isinstance(rate, str) and rate.casefold() in ("inf", "infinity")):
        return None
    if isinstance(rate, float) and math.isinf(rate) and rate > 0:
        return None
    return fields.number("request_rate")


def client_load(
    fields: Fields, figures: Mapping[str, float], requests: int
) -> tuple[dict[str, Any], tuple[str, ...], str]:
    """The load of a run as a workload's fields, notes on it, and why it is not to be learned from.

    Args:
        fields: the run; ``max_concurrency`` and ``request_rate`` say how requests were sent.
        figures: the run's figures, for the requests that were really in flight (Little's law).
        requests: how many were completed.
    """
    lengths = mean_lengths(fields, requests)
    limit, rate = fields.count("max_concurrency"), sent_rate(fields)
    done = figures.get("requests_per_s")
    latency = figures.get("request_latency_s")
    if rate is None and limit is None:
        return {"mode": "offline", "requests": requests, **lengths}, (), ""
    if rate is None and limit is not None:
        return closed_loop_load(min(limit, requests), requests, lengths)
    in_flight = done * latency if done and latency else None
    if limit is not None and in_flight is not None and in_flight >= FULL * limit:
        load, notes, excluded = closed_loop_load(limit, requests, lengths)
        note = f"sent at {rate:g} requests/s, but held back at {limit} in flight"
        return load, (note, *notes), excluded
    load = {"mode": "open", "request_rate": rate, **lengths}
    if rate is not None and done is not None and done < KEPT_UP * rate:
        return load, (), f"only {done:.3g} of {rate:g} requests/s were served"
    return load, (), ""


def closed_loop_load(
    concurrency: int, requests: int, lengths: Mapping[str, int]
) -> tuple[dict[str, Any], tuple[str, ...], str]:
    """A closed loop; with fewer than two rounds of requests most of it was no steady state."""
    load = {"mode": "closed", "concurrency": concurrency, **lengths}
    if requests >= 2 * concurrency:
        return load, (), ""
    note = f"{requests} requests at {concurrency} in flight: start and end weigh much"
    return load, (note,), ""


def mean_lengths(fields: Fields, requests: int) -> dict[str, int]:
    """Mean tokens of a prompt and of an answer, where totals are stated."""
    totals = {
        "input_tokens": fields.number("total_input_tokens"),
        "output_tokens": fields.number("total_output_tokens"),
    }
    return {name: max(round(v / requests), 1) for name, v in totals.items() if v is not None}


def completed_requests(fields: Fields) -> int:
    """Requests that were completed.

    Raises:
        InputError: for a run without any.
    """
    count = fields.count("completed")
    if count is None:
        raise InputError(
            f"{fields.place}: completed no request.",
            field="completed",
            hint="Look at the errors of the run; nothing was measured.",
        )
    return count


def failed_requests_reason(fields: Fields, requests: int) -> str:
    """Why a run with failed requests is not to be learned from; empty where few failed."""
    failed = fields.count("failed") or 0
    return "" if failed <= 0.01 * requests else f"{failed} of {failed + requests} requests failed"


def day_of_timestamp(text: str) -> str:
    """The day of ``20261123-200543`` or of an ISO time, as ``2026-11-23``; empty for others."""
    digits = text[:10].replace("-", "")[:8]
    return (
        f"{digits[:4]}-{digits[4:6]}-{digits[6:]}"
        if len(digits) == 8 and digits.isdecimal()
        else ""
    )
