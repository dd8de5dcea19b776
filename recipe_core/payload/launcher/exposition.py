"""Prometheus' text format, and the figures that engines publish in it under their own names."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# Text beyond this is not read: the largest engines write a tenth of it.
MAX_CHARS = 8 << 20
# Where an engine publishes, if not at ``/metrics`` (TensorRT-LLM has JSON there).
PATHS = {"tensorrt-llm": "/prometheus/metrics"}
_SAMPLE = re.compile(
    r"""(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)
        (?:\{(?P<labels>(?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?
        [ \t]+(?P<value>[^ \t]+)""",
    re.VERBOSE,
)
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True)
class Sample:
    """One line: a metric with its labels and value."""

    name: str
    labels: dict[str, str] = field(default_factory=dict)
    value: float = 0.0


def parse_exposition(text: str) -> dict[str, list[Sample]]:
    """The samples by their names, in their order.

    Of the format's versions 0.0.4 and OpenMetrics 1.0; comments, timestamps and exemplars are left
    out, and so are lines that are no samples: the text comes from a program that may be dying.
    """
    samples: dict[str, list[Sample]] = {}
    for line in text[:MAX_CHARS].splitlines():
        match = _SAMPLE.match(line.strip())
        value = _parse_sample_value(match["value"]) if match else None
        if match and value is not None:
            labels = {
                key: _unescape_label(label) for key, label in _LABEL.findall(match["labels"] or "")
            }
            sample = Sample(match["name"], labels, value)
            samples.setdefault(sample.name, []).append(sample)
    return samples


def _parse_sample_value(text: str) -> float | None:
    try:
        return float(text)  # Go's and Python's spellings of infinity and NaN agree
    except ValueError:
        return None


def _unescape_label(label: str) -> str:
    """A label's value without its escapes."""
    return _ESCAPE.sub(lambda match: "\n" if match[1] == "n" else match[1], label)


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures that an engine publishes; None where it has no such metric.

    Tokens and sums count from the engine's start. ``running`` and ``waiting`` are requests now,
    ``cache_usage`` the share of the cache in use (of the fullest replica). Times in seconds.
    """

    generation_tokens: float | None = None
    prompt_tokens: float | None = None
    running: float | None = None
    waiting: float | None = None
    cache_usage: float | None = None
    tpot_sum_s: float | None = None
    tpot_count: float | None = None


# Names of metrics by what they tell; of each the first that is there counts.
_NAMES: dict[str, list[str]] = json.loads(
    Path(__file__).with_name("engine_metrics.json").read_text(encoding="utf-8")
)
_RANKS = ("pp_rank", "tp_rank", "moe_ep_rank")


def engine_figures(text: str) -> Figures:
    samples = parse_exposition(text)
    tpot_sum, tpot_count = _sum_token_times(samples)
    return Figures(
        generation_tokens=_sum_first_metric(samples, _NAMES["generation"]),
        prompt_tokens=_sum_first_metric(samples, _NAMES["prompt"]),
        running=_sum_first_metric(samples, _NAMES["running"]),
        waiting=_sum_first_metric(samples, _NAMES["waiting"]),
        cache_usage=_max_first_metric(samples, _NAMES["cache"]),
        tpot_sum_s=tpot_sum,
        tpot_count=tpot_count,
    )


def _sum_token_times(samples: dict[str, list[Sample]]) -> tuple[float | None, float | None]:
    """Sum and count of the times between tokens, else of requests' mean times per token.

    The former counts every token as it comes; the latter knows of a request only at its end. With
    speculative decoding vLLM counts the former by step, which has several tokens.
    """
    names = (*_NAMES["itl"], *_NAMES["tpot"])
    if any(name in samples for name in _NAMES["speculation"]):
        names = (*_NAMES["tpot"], *_NAMES["itl"])
    total = _sum_first_metric(samples, _add_name_suffix(names, "sum"))
    if total is not None:
        return total, _sum_first_metric(samples, _add_name_suffix(names, "count"))
    # llama.cpp has no histograms, but the time it spent and the tokens that it made in it.
    spent = _sum_first_metric(samples, ("llamacpp:tokens_predicted_seconds_total",))
    tokens = _sum_first_metric(samples, ("llamacpp:tokens_predicted_total",))
    return (None, None) if spent is None else (spent, tokens)


def _add_name_suffix(names: Sequence[str], part: str) -> tuple[str, ...]:
    return tuple(f"{name}_{part}" for name in names)


def _sum_first_metric(samples: dict[str, list[Sample]], names: Sequence[str]) -> float | None:
    """The sum over replicas of the first metric that is there."""
    values = _first_metric_values(samples, names)
    return sum(values) if values else None


def _max_first_metric(samples: dict[str, list[Sample]], names: Sequence[str]) -> float | None:
    return max(_first_metric_values(samples, names), default=None)


def _first_metric_values(samples: dict[str, list[Sample]], names: Sequence[str]) -> list[float]:
    for name in names:
        if name in samples:
            finite = [sample for sample in samples[name] if math.isfinite(sample.value)]
            return [sample.value for sample in _counted_once(finite)]
    return []


def _counted_once(samples: list[Sample]) -> Iterator[Sample]:
    """Without what ranks of one replica, or priorities of one queue, state a second time.

    SGLang labels samples with the scheduler's ranks, and requests by priority beside their total,
    whose priority is empty.
    """
    groups: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
    for sample in samples:
        labels = {**sample.labels, "priority": ""}
        key = tuple(sorted(item for item in labels.items() if item[0] not in _RANKS))
        groups.setdefault(key, []).append(sample)
    for group in groups.values():
        totals = [sample for sample in group if not sample.labels.get("priority")] or group
        first = min(map(_sample_rank, totals))
        yield from (sample for sample in totals if _sample_rank(sample) == first)


def _sample_rank(sample: Sample) -> tuple[int, ...]:
    texts = [sample.labels.get(name, "") for name in _RANKS]
    return tuple(int(text) if text.isdigit() else 0 for text in texts)
