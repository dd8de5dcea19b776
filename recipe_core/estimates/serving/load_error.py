"""Errors of open loops: that of a step's time, as the queue carries it on.

Arrivals do not wait for a server that is slower than estimated. Where every step takes ``f`` times
as long as estimated, more requests are there at once, and steps that grow with them take longer
still. With a step of ``a + b·D`` and ``D`` requests that decode, ``D = λ·o·step`` (Little's law) at
``λ`` arrivals of ``o`` steps each, so that a step is ``f·a/(1 - f·b·λ·o)``, and over its estimate

    g(f) = min(f·(1 - e)/(1 - f·e·max(ρ, 1)), f·m)        m = (1 - e)/(1 - e/ρ), 1 from ρ = 1 on

``e``: the share of the step that grows with D (``Serving.slowing``), ``ρ``: arrivals over what a
full replica serves, whose steps take ``m`` times as long. A time to first token has waits for steps
that go with ``g``, a prompt and what the server does that go with ``f``, and prompts before its own
as in a single queue, ``f²·(1 - v)/(1 - f·v)`` with ``v`` the share of the time that prompts take.
From ``f·ρ = 1`` on it grows as long as requests come: it counts as ``MOST`` times the estimate.

A band's ends become ``end^w`` with ``w = log g(f)/log f``, at the ends ``f`` of ``SLOWER``.
"""

from __future__ import annotations

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.base.intervals import Ends
from recipe_core.estimates.bands import Stretch
from recipe_core.estimates.columns.serving import Cases
from recipe_core.estimates.serving.corrections import STEP_PARTS
from recipe_core.estimates.serving.rates import Serving

# How far off the time of a step is: about the ends of the 80 % band of closed loops.
SLOWER: Ends = (1 / 1.2, 1.2)
# Times the estimate that the end of an interval is where a server may be overloaded.
MOST = 20.0
# What a share of the time comes to at most before a queue counts as endless.
FULL = 0.98
AHEAD = "prompts_ahead"


def slowed_steps(served: Serving, factor: float) -> Float:
    """Return how many times as long steps take at the rate if each takes ``factor`` times."""
    e, busy = np.minimum(served.slowing, FULL), served.load_factor
    emptier = 1 - np.divide(e, busy, out=np.ones_like(e), where=busy > e)
    fullest = np.where((busy < 1) & (emptier > 0), (1 - e) / np.maximum(emptier, 1 - FULL), 1.0)
    left = np.maximum(1 - factor * e * np.maximum(busy, 1.0), 1e-9)
    return np.asarray(np.minimum(factor * (1 - e) / left, factor * fullest))


def slowed_first_tokens(served: Serving, cases: Cases, factor: float) -> Float:
    """Return how many times as long a first token takes if each step takes ``factor`` times."""
    zero = np.zeros(len(cases))
    waits = sum((served.prefill.get(name, zero) for name in STEP_PARTS), zero)
    ahead = served.prefill.get(AHEAD, zero)
    alone = np.maximum(served.ttft_s - waits - ahead, 0.0)
    requests_per_s = served.output_tokens_per_s / cases.output_tokens / cases.replicas
    busy = np.clip(requests_per_s * served.prompt_s / cases.pp, 0.0, FULL)
    queue = factor**2 * (1 - busy) / np.maximum(1 - factor * busy, 1 - FULL)
    grown = factor * alone + slowed_steps(served, factor) * waits + queue * ahead
    grown = np.minimum(grown / served.ttft_s, MOST)
    return np.where((factor > 1) & (factor * served.load_factor >= 1), MOST, grown)


def load_stretches(served: Serving, cases: Cases) -> dict[str, Stretch]:
    """The exponents by which a queue widens the bands of times of an open loop, by figure."""
    first = served.ttft_s / served.request_latency_s
    sides: dict[str, list[Float]] = {"ttft_s": [], "tpot_s": [], "request_latency_s": []}
    for factor in SLOWER:
        ttft = slowed_first_tokens(served, cases, factor)
        tpot = slowed_steps(served, factor)
        times = {
            "ttft_s": ttft,
            "tpot_s": tpot,
            "request_latency_s": first * ttft + (1 - first) * tpot,
        }
        for name, grown in times.items():
            sides[name].append(np.maximum(np.log(grown) / np.log(factor), 1.0))
    share = np.ones(len(cases))
    return {name: Stretch(share, below, above) for name, (below, above) in sides.items()}


def rate_stretch(served: Serving, rate: Ends) -> Stretch:
    """The same of the throughput, whose 80 % band is ``rate``: a server too slow for what arrives.

    Such a one serves what it can.
    """
    whole = np.ones_like(served.load_factor)
    lost = np.log(np.minimum(SLOWER[0] / np.maximum(served.load_factor, 1e-9), 1.0))
    return Stretch(whole, np.maximum(1 + lost / np.log(rate[0]), 1.0), whole)
