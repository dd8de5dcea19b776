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
loop: there the queue multiplies the end by ``g(f)/f``. The throughput is what arrives, or what a
full server serves where that is less: its band is that server's, cut off at what arrives.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recipe_core.base.arrays import Bool, Float
from recipe_core.base.intervals import LEVELS, NORMAL, Intervals, quantile_score, scores_between
from recipe_core.estimates.bands import Stretch
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.serving.bands import bands_of
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
# Standard deviation of the logarithm of what arrives while a run is measured, by drawn lengths and
# the last requests: assumed; published runs with room serve 0.1 to 2.7 % less than their rate says.
ARRIVALS_SPREAD = 0.012
AHEAD = "prompts_ahead"


def slowed_steps(served: Serving, factor: float) -> Float:
    """Return how many times as long steps take at the rate if each takes ``factor`` times."""
    e, busy = np.minimum(served.slowing, FULL), served.load_factor
    emptier = 1 - np.divide(e, busy, out=np.ones_like(e), where=busy > e)
    fullest = np.where((busy < 1) & (emptier > 0), (1 - e) / np.maximum(emptier, 1 - FULL), 1.0)
    room = np.maximum(1 - factor * e * np.maximum(busy, 1.0), 1e-9)
    return np.asarray(np.minimum(factor * (1 - e) / room, factor * fullest))


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


@dataclass(frozen=True, slots=True)
class RateStretch(Stretch):
    """Intervals of an open loop's throughput beside those of a full server's.

    ``load_factor``: arrivals over what a full server is estimated to serve.
    """

    load_factor: Float

    def ends(self, factors: Intervals) -> tuple[Float, Float]:
        """As ``Stretch.ends``: a server of ``q`` times the estimate serves ``min(ρ, q)`` of it.

        What arrives in the time that is measured varies a little besides.
        """
        low, high = Stretch.ends(self, factors)
        served = np.clip(self.load_factor, 1e-9, 1.0)[:, None]
        arriving = np.maximum(self.load_factor, 1.0)[:, None]
        low, high = (np.log(np.minimum(end / served, arriving)) for end in (low, high))
        varied = np.array([quantile_score(level) for level in LEVELS]) * ARRIVALS_SPREAD
        return np.exp(-np.hypot(low, varied)), np.exp(np.hypot(high, varied))


def rate_stretch(served: Serving) -> RateStretch:
    """The same of the throughput, whose bands are those of a full server."""
    plain = np.ones_like(served.load_factor)
    busy = np.nan_to_num(served.load_factor, nan=1.0)
    return RateStretch(plain, plain, plain, busy)


# Normal score below which a server is sure not to keep up: outside the 95 % interval.
OVERLOADED = NORMAL.inv_cdf(0.025)


def keeping_up_scores(setting: Setting, load_factor: Float, share: Float | None = None) -> Float:
    """Normal scores of replicas serving what arrives, ``load_factor`` of what is estimated.

    That the throughput of a full server, by its band, is at least that. ``share``: of the band's
    standard deviation, what own runs leave.
    """
    plain = np.ones(len(load_factor))
    if setting.mode != "open":
        return np.full(len(load_factor), np.inf)
    capacity = bands_of(setting)["output_tokens_per_s"]
    ratio = np.clip(np.nan_to_num(load_factor, nan=np.inf), 1e-9, 1e9)
    stretch = Stretch(plain if share is None else share, plain, plain)
    return -scores_between(*stretch.ends(capacity.factors), ratio)


def surely_overloaded(setting: Setting, load_factor: Float) -> Bool:
    """Mark loads that a server does not keep up with, whatever the error of the estimate."""
    return np.asarray(keeping_up_scores(setting, load_factor) < OVERLOADED)
