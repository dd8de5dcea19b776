"""Prometheus exposition text of an engine's server: what it counted since its start.

Names of times and tokens are those of ``engines/serving/*.yaml``; those of the cache are below.
Counts have no window, so that means are over the server's whole life, and the load is what an
engine step held on average: a server that ran one load, and no other, is best read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from recipe_core.base.units import share_text
from recipe_core.calibration.importers.measurement import Content, Draft, Fields, one_line
from recipe_core.engines.release import Metrics
from recipe_core.engines.spec import engine, engine_names
from recipe_core.payload.launcher.exposition import Sample, engine_figures, parse_exposition

# How each engine's metrics begin.
PREFIXES = {"vllm:": "vllm", "sglang:": "sglang", "trtllm_": "tensorrt-llm"}
PERCENTILES = (50, 95, 99)
STEPS = "vllm:iteration_tokens_total_count"
HITS = ("vllm:prefix_cache_hits_total", "sglang:cached_tokens_total")
QUERIES = ("vllm:prefix_cache_queries_total", "sglang:prompt_tokens_total")
TOKENS = "sglang:max_total_num_tokens"
LENGTHS = {
    "input_tokens": ("vllm:request_prompt_tokens", "sglang:prompt_tokens_histogram"),
    "output_tokens": ("vllm:request_generation_tokens", "sglang:generation_tokens_histogram"),
}
CONFIGURATION = "vllm:cache_config_info"
Samples = Mapping[str, list[Sample]]


def read_engine_exposition(content: Content) -> list[tuple[str, Mapping[str, Any]]]:
    """The samples of an engine of ours; no row for those of another program."""
    samples = parse_exposition(content.text)
    name = next(
        (of for start, of in PREFIXES.items() if any(key.startswith(start) for key in samples)), ""
    )
    if name not in engine_names() or engine(name).metrics is None:
        return []
    generated = engine_figures(content.text).generation_tokens
    return [("", {"engine": name, "samples": samples, "generated": generated})]


def finish_exposition(fields: Fields, draft: Draft) -> None:
    samples, name = fields.values["samples"], fields.values["engine"]
    metrics = engine(name).metrics
    if metrics is None:
        return
    draft.facts["engine"] = name
    draft.facts["model"] = next(
        (
            one_line(sample.labels["model_name"])
            for sample in _all_samples(samples)
            if sample.labels.get("model_name")
        ),
        "",
    )
    _put_histograms(samples, metrics, draft)
    _put_cache(samples, draft)
    _put_load(samples, fields.values["generated"], draft)
    if hit := _prefix_hit(samples):
        draft.settings["prefix_hit"] = hit
        if hit >= 0.01:  # a row of a table does not state it
            draft.exclude(f"{share_text(hit)} of prompts' tokens came from the cache")
    if requests := _sum_metric(samples, f"{metrics.ttft}_count"):
        draft.settings["requests"] = round(requests)


def _all_samples(samples: Samples) -> Iterator[Sample]:
    return (sample for values in samples.values() for sample in values)


def _put_histograms(samples: Samples, metrics: Metrics, draft: Draft) -> None:
    names = {"ttft": metrics.ttft, "tpot": metrics.tpot or metrics.itl}
    for figure, name in (names | {"request_latency": metrics.latency}).items():
        mean = _mean_metric(samples, str(name))
        if not mean:
            continue
        draft.figures[f"{figure}_s"] = mean * metrics.unit_s
        for percentile in PERCENTILES:
            at = _percentile(samples.get(f"{name}_bucket", []), percentile / 100)
            draft.put(
                f"figures.{figure}_p{percentile}_s", None if at is None else at * metrics.unit_s
            )


def _sum_metric(samples: Samples, name: str) -> float | None:
    """A metric summed over engines; None where it is not there."""
    values = [sample.value for sample in samples.get(name, []) if math.isfinite(sample.value)]
    return sum(values) if values else None


def _mean_metric(samples: Samples, name: str) -> float | None:
    total, count = (_sum_metric(samples, f"{name}_{part}") for part in ("sum", "count"))
    return total / count if total and count else None


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
            return start + (end - start) * ((rank - below) / inside if inside else 1.0)
        start, below = end, counts[end]
    return None


def _put_cache(samples: Samples, draft: Draft) -> None:
    labels = [sample.labels for sample in samples.get(CONFIGURATION, [])]
    tokens = _label_numbers(labels, "kv_cache_size_tokens")
    if not tokens:
        blocks = [_label_number(row, "num_gpu_blocks") for row in labels]
        sizes = [_label_number(row, "block_size") for row in labels]
        tokens = [n * size for n, size in zip(blocks, sizes, strict=True) if n and size]
    tokens += [sample.value for sample in samples.get(TOKENS, []) if sample.value > 0]
    draft.put("figures.kv_cache_tokens", min(tokens, default=None))
    for figure, name in (
        ("kv_cache_bytes", "kv_cache_memory_bytes"),
        ("max_concurrency", "kv_cache_max_concurrency"),
    ):
        draft.put(f"figures.{figure}", min(_label_numbers(labels, name), default=None))
    for row in labels[:1]:
        caching, block = row.get("enable_prefix_caching"), _label_number(row, "block_size")
        draft.put("split.memory_fraction", _label_number(row, "gpu_memory_utilization"))
        draft.put(
            "settings.cache_set", True if _label_number(row, "kv_cache_memory_bytes") else None
        )
        draft.put("settings.kv_cache_dtype", one_line(row.get("cache_dtype", "")))
        draft.put("settings.block_size", None if block is None else round(block))
        draft.put("settings.prefix_caching", None if caching is None else caching == "True")


def _label_numbers(labels: Sequence[Mapping[str, str]], name: str) -> list[float]:
    return [value for row in labels if (value := _label_number(row, name))]


def _label_number(labels: Mapping[str, str], name: str) -> float | None:
    """A number in a label; None for ``None``, NaN and texts."""
    try:
        value = float(labels.get(name, ""))
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


def _prefix_hit(samples: Samples) -> float | None:
    """Share of prompts' tokens that were in the prefix cache; None where it is not counted."""
    for hits, queries in zip(HITS, QUERIES, strict=True):
        hit_tokens, queried_tokens = _sum_metric(samples, hits), _sum_metric(samples, queries)
        if hit_tokens is not None and queried_tokens:
            return min(hit_tokens / queried_tokens, 1.0)
    return None


def _put_load(samples: Samples, generated_tokens: float | None, draft: Draft) -> None:
    """Mean lengths, and requests in flight by the tokens of an engine step."""
    for length, names in LENGTHS.items():
        for mean in filter(None, (_mean_metric(samples, name) for name in names)):
            draft.load[length] = max(round(mean), 1)
    steps = _sum_metric(samples, STEPS)
    if not steps or not generated_tokens:
        draft.notes.append("requests running are not counted: state the load")
        return
    draft.load |= {"mode": "closed", "concurrency": max(round(generated_tokens / steps), 1)}
    draft.notes.append("requests running are the tokens that an engine step made on average")
