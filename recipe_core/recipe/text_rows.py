"""An estimate as rows of text, the same in the terminal, the bundle's README and the pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recipe_core.base.units import gib, per_second, seconds_text, token_rate_text, usd

SERVING = {
    "ttft_s": ("Time to first token", seconds_text),
    "tpot_s": ("Time per output token", seconds_text),
    "request_latency_s": ("Request latency", seconds_text),
    "output_tokens_per_s": ("Output tokens per second", token_rate_text),
}
# What requests have that end with their prompt: embeddings and scores.
POOLED = {
    "request_latency_s": ("Request latency", seconds_text),
    "requests_per_s": ("Requests per second", lambda value: per_second(value, "request")),
    "input_tokens_per_s": ("Input tokens per second", token_rate_text),
}
TRAINING = {
    "step_s": ("Step time", seconds_text),
    "tokens_per_s_per_gpu": ("Tokens per second per device", token_rate_text),
    "flops_per_s_per_gpu": (
        "Model FLOP/s per device",
        lambda value: per_second(value, "FLOP"),
    ),
    "peak_memory_bytes": ("Memory of the fullest device", gib),
}
FIGURES = {"serving": SERVING, "training": TRAINING}


@dataclass(frozen=True, slots=True)
class TextRow:
    """One quantity as text, with the ends of its band and its basis."""

    label: str
    value: str
    low: str
    high: str
    basis: str


def text_rows(kind: str, estimate: Mapping[str, Any]) -> list[TextRow]:
    """Figures of a feasible estimate with a band: latency and throughput, or step and rates."""
    values, bands, basis = estimate[kind], estimate["bands"], estimate["basis"]
    figures = POOLED if is_pooled_estimate(estimate) else FIGURES[kind]
    return [
        TextRow(label, show(values[key]), show(bands[key][0]), show(bands[key][1]), basis[key])
        for key, (label, show) in figures.items()
        if key in bands
    ]


def is_pooled_estimate(estimate: Mapping[str, Any]) -> bool:
    """Whether an estimate is of requests that end with their prompt."""
    serving = estimate.get("serving")
    return isinstance(serving, Mapping) and "requests_per_s" in serving


def cost_text(estimate: Mapping[str, Any]) -> str | None:
    """Cost per hour and per million output tokens with its basis; None without a price.

    Where there are none, per million input tokens.
    """
    cost = estimate["cost"]
    if cost["usd_per_hour"] is None:
        return None
    name, tokens = "usd_per_million_output_tokens", "output tokens"
    if is_pooled_estimate(estimate):
        name, tokens = "usd_per_million_input_tokens_alone", "input tokens"
    per_million = usd(cost[name])
    basis = estimate["basis"]["usd_per_hour"]
    per_hour = usd(cost["usd_per_hour"])
    return f"{per_hour} per hour, {per_million} per million {tokens} ({basis})"
