"""Measure the running servers with real requests, next to the prediction."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from statistics import fmean, pstdev
from typing import Any

from .client import Endpoint, Sample, send_prompt
from .errors import LauncherError, RequestError
from .load import (
    MOST_IN_FLIGHT,
    Calibration,
    Outcome,
    Prompts,
    Traffic,
    calibrate_prompt_words,
    draw_lengths,
    drive,
)
from .measurement import record_measurement
from .plan import LaunchPlan, Workload
from .preflight import Preflight
from .supervisor import Progress

_WARM_UP_TOKENS = 16  # enough for caches and kernels that are built lazily, and quick
_MOST_BY_DEFAULT = 256  # requests, so that a slow server is measured in minutes
_COUNTED = 3  # prompts of the same number of words differ by a few tokens
_SHOWN_PROMPT = "A good recipe"
_SHOWN_TOKENS = 64
_LOGS = "See the logs in run/."


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a measurement that the command line may change."""

    requests: int | None = None
    concurrency: int | None = None
    limit_s: float | None = None
    seed: int = 1


def measure_serving(
    plan: LaunchPlan,
    checked: Preflight,
    options: Options,
    progress: Progress,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """Calibrate the prompt, warm up, send the workload: the content of ``measurement.json``.

    ``clock`` counts the options' limit of time.
    """
    traffic = plan_traffic(plan.workload, options)
    endpoints = [Endpoint(plan.client_host, process.port, plan.api) for process in plan.entrances]
    length = _calibrate(plan, endpoints, progress)
    inputs, outputs = draw_sent_lengths(plan.workload, traffic)
    longer = (tokens - plan.workload.input_tokens for tokens in inputs)
    prompts = Prompts(length.words, options.seed, tuple(map(length.words_for, longer)))
    output_tokens = plan.workload.output_tokens
    _warm_up(endpoints, prompts, traffic, min(output_tokens, _WARM_UP_TOKENS), progress)
    tokens = length.tokens or plan.workload.input_tokens
    pace = f"{traffic.in_flight} at once"
    if traffic.mode == "open":
        pace = f"{traffic.rate:g} per second"
    sent = f"{tokens:.0f} tokens in{_range_text(inputs)}, {output_tokens} out{_range_text(outputs)}"
    progress.say(f"bench: {traffic.requests} requests, {pace}, about {sent}")
    send = _sender(endpoints, prompts, outputs)
    outcome = drive(traffic, send, limit_s=options.limit_s, tell=progress.say, clock=clock)
    if not outcome.samples:
        failed = f"all {len(outcome.errors)} requests failed"
        raise LauncherError(f"{failed}; {_name_common_error(outcome)}", hint=_LOGS)
    notes = _list_bench_caveats(plan, traffic, outcome, length)
    measurement = record_measurement(
        plan, checked, request_figures(outcome.samples), datetime.now(timezone.utc)
    )
    counts = {"failed": len(outcome.errors), "skipped": outcome.skipped}
    measurement["metrics"] |= {"requests": len(outcome.samples), **counts}
    return measurement | {
        "workload": _describe_sent_traffic(plan, traffic, outcome, (inputs, outputs)),
        "planned_workload": asdict(plan.workload),
        "notes": notes,
        "completion": _complete(endpoints[0], min(output_tokens, _SHOWN_TOKENS), outcome),
    }


def _complete(endpoint: Endpoint, tokens: int, outcome: Outcome) -> dict[str, str]:
    """Complete a sentence that a person can judge: the measured prompts are random words."""
    try:
        return {"prompt": _SHOWN_PROMPT, "text": send_prompt(endpoint, _SHOWN_PROMPT, tokens).text}
    except RequestError:
        return {"prompt": "(random words)", "text": outcome.samples[0].text}


def plan_traffic(workload: Workload, options: Options) -> Traffic:
    """Return how many requests, and how many at once: a few waves, to see a steady state."""
    at_once = (
        options.concurrency
        or (workload.batch if workload.mode == "static" else None)
        or workload.concurrency
        or workload.batch
        or 1
    )
    if workload.mode == "open":
        rate = workload.request_rate or 1.0
        requests = options.requests or min(max(8, math.ceil(20 * rate)), _MOST_BY_DEFAULT)
        return Traffic("open", requests, requests, rate, options.seed)
    if workload.mode == "offline":
        queued = workload.requests or max(8, 3 * at_once)
        requests = options.requests or min(queued, 2 * _MOST_BY_DEFAULT)
        in_flight = min(options.concurrency or requests, MOST_IN_FLIGHT)
        return Traffic("offline", requests, in_flight, None, options.seed)
    at_once = min(at_once, MOST_IN_FLIGHT)
    requests = options.requests or max(8, min(3 * at_once, max(_MOST_BY_DEFAULT, 2 * at_once)))
    if workload.mode == "static" and options.requests is None:
        # A last wave that is not full would look faster.
        requests = math.ceil(requests / at_once) * at_once
    return Traffic(workload.mode, requests, at_once, None, options.seed)


def draw_sent_lengths(work: Workload, traffic: Traffic) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Draw how long each prompt and answer is, in tokens: as the recipe's request states it."""
    inputs, outputs = (
        draw_lengths(mean, spread, shares, traffic.requests, f"{traffic.seed} {side}")
        for side, mean, spread, shares in work.sides
    )
    if work.max_context is None:
        return inputs, outputs
    inputs = tuple(min(tokens, work.max_context - 1) for tokens in inputs)
    return inputs, tuple(map(min, outputs, (work.max_context - tokens for tokens in inputs)))


def _range_text(lengths: Sequence[int]) -> str:
    low, high = min(lengths), max(lengths)
    return "" if low == high else f" ({low} to {high})"


def _sender(
    endpoints: list[Endpoint], prompts: Prompts, tokens: Sequence[int]
) -> Callable[[int], Sample]:
    return lambda index: send_prompt(
        endpoints[index % len(endpoints)], prompts.text(index), tokens[index]
    )


def _calibrate(plan: LaunchPlan, endpoints: list[Endpoint], progress: Progress) -> Calibration:
    progress.say("bench: finding a prompt of the planned length (the first request may take long)")

    def count(words: int) -> float | None:
        # A seed of its own, so that no measured prompt is in a prefix cache.
        prompts = Prompts(words, seed=-1)
        samples = [send_prompt(endpoints[0], prompts.text(i), 1) for i in range(_COUNTED)]
        counts = [s.prompt_tokens for s in samples if s.prompt_tokens is not None]
        return fmean(counts) if counts else None

    try:
        return calibrate_prompt_words(count, plan.workload.input_tokens)
    except RequestError as error:
        raise LauncherError(
            f"the server refused the first requests: {error.message}", hint=error.hint or _LOGS
        ) from None


def _warm_up(
    endpoints: list[Endpoint], prompts: Prompts, traffic: Traffic, tokens: int, progress: Progress
) -> None:
    """Warm up every server with as many requests at once as are measured, up to 32.

    Failures here show again in the measurement.
    """
    warm = Prompts(prompts.words, seed=-2)
    at_once = max(len(endpoints), min(traffic.in_flight, 32))
    drive(
        Traffic("static", at_once, at_once),
        _sender(endpoints, warm, [tokens] * at_once),
        limit_s=None,
        tell=progress.say,
    )


def _name_common_error(outcome: Outcome) -> str:
    message, times = "the time limit passed before the first answer", 0
    if outcome.errors:
        message, times = Counter(outcome.errors).most_common(1)[0]
    return f"{times} of them with: {message}"


def _list_bench_caveats(
    plan: LaunchPlan, traffic: Traffic, outcome: Outcome, length: Calibration
) -> list[str]:
    """Caveats of the comparison."""
    notes = []
    planned = plan_traffic(plan.workload, Options())
    inputs, outputs = plan.workload.input_tokens, plan.workload.output_tokens
    if traffic.mode in ("closed", "static") and traffic.in_flight != planned.in_flight:
        notes.append(
            f"the prediction is for {planned.in_flight} requests at once, "
            f"the measurement for {traffic.in_flight}"
        )
    if outcome.errors:
        failed = f"{len(outcome.errors)} of {traffic.requests} requests failed"
        notes.append(f"{failed}; {_name_common_error(outcome)}")
    if outcome.skipped:
        notes.append(f"{outcome.skipped} requests were not sent: the time limit was reached")
    if length.tokens is None:
        notes.append(
            "the server does not count tokens: prompt length assumed, output counted by chunks"
        )
    elif abs(length.tokens - inputs) > max(2, 0.05 * inputs):
        notes.append(f"prompts have {length.tokens:.0f} tokens instead of {inputs}")
    produced = fmean(sample.output_tokens for sample in outcome.samples)
    if abs(produced - outputs) > 0.02 * outputs:
        notes.append(f"answers had {produced:.1f} tokens instead of {outputs}")
    return notes


def quantile(values: Sequence[float], share: float) -> float | None:
    """A quantile, interpolated linearly between the two nearest ranks; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low, high = math.floor(position), math.ceil(position)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def request_figures(samples: Sequence[Sample]) -> dict[str, float | None]:
    """Means and percentiles; throughput is from the first request to the last token."""
    first_tokens = [sample.ttft_s for sample in samples]
    per_token = [sample.tpot_s for sample in samples if sample.tpot_s is not None]
    span = max(sample.last for sample in samples) - min(sample.started for sample in samples)
    return {
        "ttft_s": fmean(first_tokens),
        "ttft_p50_s": quantile(first_tokens, 0.50),
        "ttft_p95_s": quantile(first_tokens, 0.95),
        "tpot_s": fmean(per_token) if per_token else None,
        "tpot_p95_s": quantile(per_token, 0.95),
        "request_latency_s": fmean(sample.latency_s for sample in samples),
        "output_tokens_per_s": sum(sample.output_tokens for sample in samples) / span
        if span > 0
        else None,
    }


def _describe_sent_traffic(
    plan: LaunchPlan, traffic: Traffic, outcome: Outcome, lengths: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """The traffic as it was; mean tokens are what the server counted.

    ``lengths`` of prompts and of answers varied by a share of the mean (``spread``), or by a shape,
    of which it says the coefficient of variation (``cv``).
    """
    varied: dict[str, float] = {}
    for (side, _, spread, shares), drawn in zip(plan.workload.sides, lengths, strict=True):
        cv = round(pstdev(drawn) / fmean(drawn), 4)
        varied |= {f"{side}_cv": cv} if shares else {f"{side}_spread": spread}
    prompts = [sample.prompt_tokens for sample in outcome.samples if sample.prompt_tokens]
    return {
        "mode": traffic.mode,
        "input_tokens": round(fmean(prompts), 2) if prompts else plan.workload.input_tokens,
        "output_tokens": round(fmean(sample.output_tokens for sample in outcome.samples), 2),
        "concurrency": None if traffic.mode == "open" else traffic.in_flight,
        "request_rate": traffic.rate,
        "batch": traffic.in_flight if traffic.mode == "static" else None,
        "requests": len(outcome.samples),
        "wall_s": round(outcome.wall_s, 4),
        **varied,
    }
