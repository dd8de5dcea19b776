"""Prometheus exposition text of an engine's server: what it counted since its start.

Names of times and tokens are those of ``engines/serving/*.yaml``; those of the cache are below.
Counts have no window, so that means are over the server's whole life, and the load is what an
engine step held on average: a server that ran one load, and no other, is best read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from recipe_core.calibration.importers.measurement import (
    Content,
    Format,
    Imported,
    drop_unstated,
    one_line,
)
from recipe_core.engines.release import Metrics
from recipe_core.engines.spec import engine, engine_names
from recipe_core.payload.launcher.exposition import Sample, engine_figures, parse_exposition

NAME = "prometheus"
# How each engine's metrics begin.
PREFIXES = {"vllm:": "vllm", "sglang:": "sglang", "trtllm_": "tensorrt-llm"}
_SIGN = re.compile(r"^(?:vllm:|sglang:|trtllm_)\w{2,80}(?:\{| [0-9])", re.MULTILINE)
PERCENTILES = (50, 95, 99)
STEPS = "vllm:iteration_tokens_total_count"
HITS = ("vllm:prefix_cache_hits_total", "sglang:cached_tokens_total")
QUERIES = ("vllm:prefix_cache_queries_total", "sglang:prompt_tokens_total")
TOKENS = ("sglang:max_total_num_tokens",)
LENGTHS = {
    "input_tokens": ("vllm:request_prompt_tokens", "sglang:prompt_tokens_histogram"),
    "output_tokens": ("vllm:request_generation_tokens", "sglang:generation_tokens_histogram"),
}
CONFIGURATION = "vllm:cache_config_info"
Samples = dict[str, list[Sample]]


def _is_engine_exposition(content: Content) -> bool:
    return _SIGN.search(content.head) is not None


def _read_engine_exposition(content: Content) -> list[Imported]:
    samples = parse_exposition(content.text)
    name = next((of for start, of in PREFIXES.items() if _has_metric_prefix(samples, start)), "")
    metrics = engine(name).metrics if name in engine_names() else None
    if metrics is None:
        return []
    figures = _histogram_times(samples, metrics) | _exposed_cache_figures(samples)
    load, notes = _mean_exposed_load(samples, content.text)
    settings: dict[str, Any] = _exposed_configuration(samples)
    if hit := _prefix_hit(samples):
        settings["prefix_hit"] = hit
    if requests := _sum_metric(samples, _metric_series(metrics.ttft, "count")):
        settings["requests"] = round(requests)
    return [
        Imported(
            format=NAME,
            engine=name,
            model=_exposed_model_name(samples),
            figures=figures,
            load=load,
            split=drop_unstated(memory_fraction=settings.pop("memory_fraction", None)),
            settings=settings,
            notes=notes,
            excluded=_cached_prompts_reason(hit),
        )
    ]


def _cached_prompts_reason(hit: float | None) -> str:
    """Why prompts that were partly cached teach nothing: a row of a table does not state it."""
    return "" if hit is None or hit < 0.01 else f"{hit:.0%} of prompts' tokens came from the cache"


def _has_metric_prefix(samples: Samples, start: str) -> bool:
    return any(name.startswith(start) for name in samples)


def _histogram_times(samples: Samples, metrics: Metrics) -> dict[str, float]:
    """Means and percentiles of the histograms that the engine has."""
    names = {
        "ttft_s": metrics.ttft,
        "tpot_s": metrics.tpot or metrics.itl,
        "request_latency_s": metrics.latency,
    }
    out = {}
    for figure, name in names.items():
        total, count = (
            _sum_metric(samples, _metric_series(name, "sum")),
            _sum_metric(samples, _metric_series(name, "count")),
        )
        if name is None or not total or not count:
            continue
        out[figure] = total / count * metrics.unit_s
        for percentile in PERCENTILES:
            at = _percentile(samples.get(f"{name}_bucket", []), percentile / 100)
            if at is not None:
                out[f"{figure.removesuffix('_s')}_p{percentile}_s"] = at * metrics.unit_s
    return out


def _metric_series(name: str | None, part: str) -> str:
    return f"{name}_{part}" if name else ""


def _sum_metric(samples: Samples, name: str) -> float | None:
    """A metric summed over engines; None where it is not there."""
    values = [sample.value for sample in samples.get(name, []) if math.isfinite(sample.value)]
    return sum(values) if values else None


def _percentile(buckets: Sequence[Sample], share: float) -> float | None:
    """A percentile of a histogram by linear interpolation in its bucket, as PromQL does.

    None where it is in the last bucket, which has no end.
    """
    counts: dict[float, float] = {}
    for sample in buckets:
        try:
            end = float(sample.labels.get("le", ""))
        except ValueError:
            continue
        counts[end] = counts.get(end, 0.0) + sample.value
    ends = sorted(counts)
    if not ends or not counts[ends[-1]] > 0:
        return None
    rank, start, below = share * counts[ends[-1]], 0.0, 0.0
    for end in ends:
        if counts[end] >= rank:
            if math.isinf(end):
                return None
            inside = counts[end] - below
            value = start + (end - start) * ((rank - below) / inside if inside else 1.0)
            return value if value > 0 else None
        start, below = end, counts[end]
    return None


def _exposed_cache_figures(samples: Samples) -> dict[str, float]:
    """Tokens and bytes of the cache, of the smallest engine."""
    labels = [sample.labels for sample in samples.get(CONFIGURATION, [])]
    blocks = [
        number * size
        for label_set in labels
        if (number := _label_number(label_set, "num_gpu_blocks"))
        and (size := _label_number(label_set, "block_size"))
    ]
    tokens = [
        value for label_set in labels if (value := _label_number(label_set, "kv_cache_size_tokens"))
    ] or blocks
    for name in TOKENS:
        tokens += [sample.value for sample in samples.get(name, []) if sample.value > 0]
    sizes = [
        value
        for label_set in labels
        if (value := _label_number(label_set, "kv_cache_memory_bytes"))
    ]
    concurrencies = [
        value
        for label_set in labels
        if (value := _label_number(label_set, "kv_cache_max_concurrency"))
    ]
    figures = {"kv_cache_tokens": tokens, "kv_cache_bytes": sizes, "max_concurrency": concurrencies}
    return {name: min(values) for name, values in figures.items() if values}


def _label_number(labels: dict[str, str], name: str) -> float | None:
    """A number in a label; None for ``None``, NaN and texts."""
    try:
        value = float(labels.get(name, ""))
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


def _exposed_configuration(samples: Samples) -> dict[str, Any]:
    for sample in samples.get(CONFIGURATION, []):
        caching = sample.labels.get("enable_prefix_caching")
        block = _label_number(sample.labels, "block_size")
        return drop_unstated(
            memory_fraction=_label_number(sample.labels, "gpu_memory_utilization"),
            cache_set=True if _label_number(sample.labels, "kv_cache_memory_bytes") else None,
            kv_cache_dtype=one_line(sample.labels.get("cache_dtype", "")),
            block_size=None if block is None else round(block),
            prefix_caching=None if caching is None else caching == "True",
        )
    return {}


def _prefix_hit(samples: Samples) -> float | None:
    """Share of prompts' tokens that were in the prefix cache; None where it is not counted."""
    for hits, queries in zip(HITS, QUERIES, strict=True):
        hit_tokens, queried_tokens = _sum_metric(samples, hits), _sum_metric(samples, queries)
        if hit_tokens is not None and queried_tokens:
            return min(hit_tokens / queried_tokens, 1.0)
    return None


def _mean_exposed_load(samples: Samples, text: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Mean lengths, and requests in flight by the tokens of an engine step."""
    load: dict[str, Any] = {}
    for field, names in LENGTHS.items():
        for name in names:
            total, count = (
                _sum_metric(samples, f"{name}_sum"),
                _sum_metric(samples, f"{name}_count"),
            )
            if total and count:
                load[field] = max(round(total / count), 1)
    steps, generated_tokens = _sum_metric(samples, STEPS), engine_figures(text).generation_tokens
    if not steps or not generated_tokens:
        return load, ("requests in flight are not counted: state the load",)
    load |= {"mode": "closed", "concurrency": max(round(generated_tokens / steps), 1)}
    return load, ("requests in flight are the tokens that an engine step made on average",)


def _exposed_model_name(samples: Samples) -> str:
    for values in samples.values():
        for sample in values:
            if name := sample.labels.get("model_name"):
                return one_line(name)
    return ""


FORMAT = Format(
    NAME, "Prometheus text of an engine", _is_engine_exposition, _read_engine_exposition
)
