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

The ends of a band become ``end^w`` with ``w = 1 + log(g(f)/f)/log(u)`` at ``f = SLOWER`` and
``1/SLOWER``, where ``u`` (``USUAL``) is about the end of the 80 % band of the figure in a closed
loop: there the queue multiplies the end by ``g(f)/f``.
"""

from __future__ import annotations

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.base.intervals import Ends
from recipe_core.estimates.bands import Stretch
from recipe_core.estimates.columns.serving import Cases
from recipe_core.estimates.serving.corrections import STEP_PARTS
from recipe_core.estimates.serving.rates import Serving

# How far off the time of a step is, and times are: about the ends of 80 % bands of closed loops.
SLOWER = 1.2
USUAL = {"ttft_s": 1.7, "tpot_s": 1.2, "request_latency_s": 1.2}
# Times the estimate that a time to first token comes to where a server may be overloaded: assumed;
# published runs that close to what a server serves have up to three times the estimate.
MOST = 5.0
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
    sides: dict[str, list[Float]] = {name: [] for name in USUAL}
    for factor in (1 / SLOWER, SLOWER):
        ttft, tpot = slowed_first_tokens(served, cases, factor), slowed_steps(served, factor)
        latency = first * ttft + (1 - first) * tpot
        for (name, usual), grown in zip(USUAL.items(), (ttft, tpot, latency), strict=True):
            beyond = np.log(grown / factor) * np.sign(factor - 1)
            sides[name].append(1 + np.maximum(beyond, 0.0) / np.log(usual))
    share = np.ones(len(cases))
    return {name: Stretch(share, below, above) for name, (below, above) in sides.items()}


def rate_stretch(served: Serving, rate: Ends) -> Stretch:
    """The same of the throughput, whose 80 % band is ``rate``: a server too slow for what arrives.

    Such a one serves what it can.
    """
    share = np.ones_like(served.load_factor)
    lost = np.log(np.minimum(1 / SLOWER / np.maximum(served.load_factor, 1e-9), 1.0))
    return Stretch(share, 1 + lost / np.log(rate[0]), share)
