"""Estimated times multiplied by scales that runs of one's own taught.

With ``m`` the scale of decode steps and ``a`` that of prompts
(``estimates/columns/corrections.py``),

    TPOT' = m·TPOT
    TTFT' = a·(own prompt + prompts ahead + overheads) + m·(waits for steps) + queue'
    T'    = TTFT' + (n - 1)·TPOT'           r = (T' - queue') / (T - queue)

where waits for steps are ``STEP_PARTS``. The ``queue`` before the engine's slots and the rates
follow by Little's law: both change with the time ``r`` that a request spends in the engine, in a
closed loop, a batch and a full queue. Times that all grow ``r``-fold at an arrival rate are those
of the estimate at ``r`` times the rate, r-fold: open loops are solved there, so that waits grow as
they fill.

Left out: another balance of steps and prompts in a loop, and power, which follows the rate only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.estimates.columns.scales import Scales
from recipe_core.estimates.columns.serving import Cases
from recipe_core.estimates.serving.pools import Pools
from recipe_core.estimates.serving.rates import Serving
from recipe_core.estimates.serving.simulate import TimeScales

STEPS, PROMPTS, EITHER = range(3)

# Parts of the time to first token that last so many decode steps.
STEP_PARTS = ("schedule", "receive", "ranks", "stream")

# Which runs tell of a figure.
_SHOWN_BY = {
    "tpot_s": STEPS,
    "ttft_s": PROMPTS,
    "request_latency_s": EITHER,
    "output_tokens_per_s": EITHER,
}


@dataclass(frozen=True, slots=True)
class TimeShares:
    """The share of decode steps in each time; the rest is prompts. One number per case.

    ``engine_s``: seconds that a request spends in the engine, without its queue.
    """

    tpot: Float
    ttft: Float
    latency: Float
    engine_s: Float

    def of(self, figure: str) -> tuple[Float, Float]:
        """Shares of steps and of prompts in a figure; a rate counts as the time it goes with."""
        names = {"tpot_s": self.tpot, "ttft_s": self.ttft}
        steps = names.get(figure, self.latency)
        return steps, 1 - steps


def request_time_shares(
    prefill: Mapping[str, Any], ttft_s: Any, tpot_s: Any, tokens: Any
) -> TimeShares:
    """The shares by the parts of a time to first token, for cases or for one of them."""
    ttft, tpot = np.asarray(ttft_s, dtype=np.float64), np.asarray(tpot_s, dtype=np.float64)
    queue = np.asarray(prefill.get("engine_queue", 0.0))
    waits = np.asarray(sum(prefill.get(name, 0.0) for name in STEP_PARTS))
    steps_s = waits + np.maximum(np.asarray(tokens) - 1, 0.0) * tpot
    engine_s = ttft - queue + np.maximum(np.asarray(tokens) - 1, 0.0) * tpot
    latency = steps_s / np.maximum(engine_s, 1e-30)
    ttft_steps = (waits + queue * latency) / np.maximum(ttft, 1e-30)
    return TimeShares(np.ones_like(tpot), ttft_steps, latency, engine_s)


def time_factor(shares: TimeShares, scales: Scales) -> Float:
    """Return how much longer a request is in the engine: ``r`` of the module."""
    return shares.latency * scales.steps + (1 - shares.latency) * scales.prompts


@dataclass(frozen=True, slots=True)
class Corrected(TimeScales):
    """An estimate under scales: factors on its figures, and what they rest on.

    ``latency``: on that of a request.
    ``width_shares``: what runs leave of the half-width of a figure's band on a log scale.
    """

    scales: Scales
    latency: Float
    width_shares: dict[str, Float]

    def basis(self, figure: str, case: int) -> str | None:
        """Say which runs a figure of a case rests on, and their effect; None without any.

        What is not a time or a rate (cost and energy of a token) goes with the time.
        """
        runs = self.scales.basis(_SHOWN_BY.get(figure, EITHER), case)
        if runs is None:
            return None
        factors = {
            "ttft_s": self.ttft,
            "tpot_s": self.tpot,
            "request_latency_s": self.latency,
            "output_tokens_per_s": self.rate,
        }
        factor = float(factors[figure][case] if figure in factors else 1 / self.rate[case])
        return f"{runs}, × {factor:.3g}"


def correct_serving(
    cases: Cases, served: Serving, scales: Scales, stretch: Float | None
) -> tuple[Serving, Corrected]:
    """The serving of cases with its times multiplied by ``scales``.

    ``stretch``: the factor on the arrival rate at which an open loop was solved; None elsewhere.
    """
    shares = request_time_shares(served.prefill, served.ttft_s, served.tpot_s, cases.output_tokens)
    longer = time_factor(shares, scales)
    factors = dict.fromkeys(STEP_PARTS, scales.steps) | {
        "engine_queue": longer,
        "window": np.ones(len(cases)),
    }
    prefill = {
        name: seconds * factors.get(name, scales.prompts)
        for name, seconds in served.prefill.items()
    }
    ttft_s = sum(prefill.values(), np.zeros(len(cases)))
    tpot_s = served.tpot_s * scales.steps
    rate = 1 / (longer if stretch is None else stretch)
    latency_s = ttft_s + (cases.output_tokens - 1) * tpot_s
    scaled = replace(
        served,
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        request_latency_s=latency_s,
        output_tokens_per_s=served.output_tokens_per_s * rate,
        resident=served.resident * rate * longer,
        decode={name: seconds * scales.steps for name, seconds in served.decode.items()},
        prefill=prefill,
        decoding=served.decoding * rate * scales.steps,
        step_s=served.step_s * scales.steps,
        prompt_s=served.prompt_s * scales.prompts,
    )
    after = request_time_shares(prefill, ttft_s, tpot_s, cases.output_tokens)
    width_shares = {figure: scales.left(*after.of(figure)) for figure in _SHOWN_BY}
    width_shares["output_tokens_per_s_per_gpu"] = width_shares["output_tokens_per_s"]
    with np.errstate(invalid="ignore"):
        ttft, latency = ttft_s / served.ttft_s, latency_s / served.request_latency_s
    return scaled, Corrected(ttft, scales.steps, rate, scales, latency, width_shares)


def correct_pools(pools: Pools, corrected: Corrected) -> Pools:
    """The rates of two pools with scaled times."""
    return replace(
        pools,
        prefill_per_s=pools.prefill_per_s / corrected.scales.prompts,
        decode_per_s=pools.decode_per_s / corrected.scales.steps,
        requests_per_s=pools.requests_per_s * corrected.rate,
    )
