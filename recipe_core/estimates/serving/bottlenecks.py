"""Attribution of a time to compute, memory, network, overhead and waiting.

Shares of an operator are determined by taking its limits away: the step is estimated again on links
that cost nothing, and on devices whose arithmetic, memory or both are 10¹² times as fast. What
remains is overhead; what a part loses is split between compute and memory in proportion to what
each takes alone.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.serving.continuous_batching import decode_step, prompt_chunks
from recipe_core.estimates.serving.cost import change_quantity, without_links
from recipe_core.estimates.serving.kernels import Parts, Step
from recipe_core.estimates.serving.rates import Serving
from recipe_core.estimates.serving.speculative import engine_step

# What every part of a time is attributed to, as a person calls it.
BOTTLENECKS = {
    "compute": "Compute",
    "memory": "Memory traffic",
    "network": "Network",
    "overhead": "Overhead",
    "queue": "Waiting",
}
CAUSES = tuple(BOTTLENECKS)
# parts that have one cause
_CAUSE = {"engine": "overhead", "launch": "overhead", "request": "overhead", "transfer": "network"}
_CAUSE |= {"kv_copies": "network", "kv_load": "network"}
_QUEUE = (
    "schedule",
    "prompts_ahead",
    "engine_queue",
    "window",
    "prefill_interference",
    "receive",
    "ranks",
    "stream",
)
_FAST = 1e12  # so much faster that rounding hides what is left


def causes_of_times(setting: Setting, cases: Cases, served: Serving) -> dict[str, dict[str, Float]]:
    """Seconds of ``tpot_s`` (decode) and ``ttft_s`` (prefill) by cause, one number per case.

    The causes of each add up to the time itself, to rounding.
    """
    tokens, chunks, context = prompt_chunks(cases, setting.engine.chunked_prefill)
    zero = np.zeros(len(cases))
    steps = {
        "decode": decode_step(cases, served.decoding),
        "prefill": Step(tokens / chunks, context, zero, zero, 1 / chunks),
    }
    return {name: _by_cause(setting, cases, steps[name], getattr(served, name)) for name in steps}


def _by_cause(setting: Setting, cases: Cases, step: Step, parts: Parts) -> dict[str, Float]:
    shares = _cause_shares(setting, cases, step)
    out = {cause: np.zeros(len(cases)) for cause in CAUSES}
    for name, seconds in parts.items():
        if name in _QUEUE:
            out["queue"] = out["queue"] + seconds
        elif name in _CAUSE or name not in shares:
            cause = _CAUSE.get(name, "overhead")
            out[cause] = out[cause] + seconds
        else:
            for cause, share in shares[name].items():
                out[cause] = out[cause] + share * seconds
    return out


def _cause_shares(setting: Setting, cases: Cases, step: Step) -> dict[str, dict[str, Float]]:
    """Share of each cause in the time of every operator of a step."""
    full = engine_step(setting, cases, step)
    local = replace(setting, cluster=without_links(setting.cluster))
    linkless = engine_step(local, cases, step)
    no_arithmetic, no_memory, neither = (
        engine_step(_faster_device(local, *fast), cases, step) for fast in ((1, 0), (0, 1), (1, 1))
    )
    out = {}
    for name, seconds in full.items():
        if name in _CAUSE:
            continue
        compute, memory = no_memory[name] - neither[name], no_arithmetic[name] - neither[name]
        busy = (linkless[name] - neither[name]) / np.maximum(compute + memory, 1e-300)
        parts = {
            "network": seconds - linkless[name],
            "overhead": neither[name],
            "compute": busy * compute,
            "memory": busy * memory,
        }
        out[name] = {
            cause: np.where(seconds > 0, value / np.maximum(seconds, 1e-300), 0.0)
            for cause, value in parts.items()
        }
    return out


def _faster_device(setting: Setting, arithmetic: int, memory: int) -> Setting:
    """The setting on a device whose products, whose memory, or both take no time to speak of."""
    device = setting.cluster.device
    peaks = {
        dtype: change_quantity(peak, lambda value: value * _FAST**arithmetic)
        for dtype, peak in device.peak_flops_per_s.items()
    }
    bandwidth = change_quantity(
        device.memory_bandwidth_bytes_per_s, lambda value: value * _FAST**memory
    )
    quick = device.model_copy(
        update={"peak_flops_per_s": peaks, "memory_bandwidth_bytes_per_s": bandwidth}
    )
    return replace(setting, cluster=replace(setting.cluster, device=quick))
