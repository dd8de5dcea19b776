"""Two policies that no one has: always enough for the peak, and one that knows the future.

What others cost lies between them. Both are of the same model as the flow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.request.scaling import MOST_REPLICAS, Scaling
from recipe_core.scaling.attainment import ATTAINMENT, GROUPS, replicas_for, shares_of
from recipe_core.scaling.fleet import Fleet
from recipe_core.scaling.fluid import arrivals_of
from recipe_core.scaling.outcome import Outcome, Series
from recipe_core.scaling.traces.loads import Load

# The outcomes of policies, one a column.
Simulate = Callable[[Sequence[Scaling]], Sequence[Outcome]]

_TRIED = 12
_RATES = 400


def find_fewest_replicas(
    simulate: Simulate, first_replicas: int, attainment: float, *, reachable: bool = True
) -> tuple[Scaling, Outcome]:
    """Return the smallest fixed number of replicas that reaches the attainment, and its outcome.

    Exact, as a share grows with the replicas: several numbers side by side, then those between the
    last that is too small and the first that is enough. A sampler would promise no number.

    Args:
        simulate: simulates policies, one a column.
        first_replicas: to begin with; where even these are too few (events), more are tried.
        attainment: share of requests that must keep the limits.
        reachable: whether any number reaches it; else ``first_replicas`` are simulated.
    """
    low, high = 0, min(first_replicas, MOST_REPLICAS)
    best: tuple[Scaling, Outcome] | None = None
    while best is None or high - low > 1:
        counts = np.unique(np.linspace(low + 1, high, _TRIED).round()).astype(int).tolist()
        scalings = [Scaling(policy="fixed", min_replicas=n, max_replicas=n) for n in counts]
        tried = list(zip(scalings, simulate(scalings), strict=True))
        enough = [k for k, (_, outcome) in enumerate(tried) if outcome.attainment >= attainment]
        if not enough:
            if best is not None or not reachable or high == MOST_REPLICAS:
                return best or tried[-1]
            low, high = high, min(2 * high, MOST_REPLICAS)
            continue
        k = enough[0]
        best = tried[k]
        low, high = counts[k - 1] if k else low, counts[k]
    return best


def always_peak(
    fleet: Fleet, load: Load, simulate: Simulate, attainment: float = ATTAINMENT
) -> tuple[Scaling, Outcome]:
    """Return the smallest fixed number of replicas that reaches the attainment, and its outcome.

    It is the policy ``fixed`` with the best of its parameters. With a lone request beyond the
    limits no number reaches it: then what the highest rate needs is simulated.
    """
    peak = max(int(replicas_for(fleet, load, load.rates, attainment).max()), 1)
    reachable = float(shares_of(fleet, load).share[-1, 0, 0]) >= attainment
    return find_fewest_replicas(simulate, peak, attainment, reachable=reachable)


def clairvoyant(
    fleet: Fleet,
    load: Load,
    attainment: float = ATTAINMENT,
    *,
    seed: int = 0,
    interval_s: float = 60.0,
) -> Outcome:
    """Fewest replica-seconds that could reach the attainment with the future known.

    A lower bound for every policy whose numbers stay as they are over intervals of ``interval_s``
    on this grid, in the model of the flow where each interval is in its long run. Let ``h(u)`` be
    the most requests per second that one replica keeps within limits at up to ``u`` requests per
    second, among as many replicas as help it, and ``ĥ`` its least concave majorant. In interval i,
    of length T and rate ``λ_i``, ``r`` replicas keep at most ``K_i(r) = T·r·ĥ(λ_i/r)`` requests: no
    policy keeps more, since it chooses numbers only. ``K_i`` is the perspective of a concave
    function, so concave in r, and the replicas of an interval keep less and less, each beyond those
    before. To take single replicas by how much they keep, the best first, until the wanted number
    is kept, is then the cheapest way to keep it: any other choice of as many replicas keeps no more
    (an exchange of a replica for one not taken loses). Starts take no time, and nothing is paid
    beyond an interval, which is less than any policy pays.

    Devices are paid by the piece, as no machine costs less than those of its devices that are used.
    Left out, so that a policy may be cheaper by as much: requests that are still served after the
    interval that they came in, at its edges.
    """
    shares = shares_of(fleet, load)
    intervals = max(int(np.ceil(load.span_s / interval_s - 1e-9)), 1)
    _, arrived = arrivals_of(load, intervals, interval_s, seed)
    rates = arrived / interval_s
    most_replicas = int(np.ceil(_most_useful_replicas(shares.curve.fastest, rates))) + 1
    count = np.arange(most_replicas + 1.0)
    u, kept_per_replica = _concave_hull(fleet, load)
    with np.errstate(divide="ignore", invalid="ignore"):
        per_replica = np.where(count > 0, rates[:, None] / count, 0.0)
    kept_requests = interval_s * count * np.interp(per_replica, u, kept_per_replica)
    gains = np.maximum(np.diff(kept_requests, axis=1), 0.0)
    order = np.argsort(-gains, axis=None, kind="stable")
    reached = np.cumsum(gains.reshape(-1)[order])
    needed_requests = attainment * float(arrived.sum())
    replica_intervals = min(
        int(np.searchsorted(reached, needed_requests * (1 - 1e-12))) + 1, len(order)
    )
    if needed_requests <= 0:
        replica_intervals = 0
    replicas = np.bincount(order[:replica_intervals] // most_replicas, minlength=intervals).astype(
        float
    )
    kept_now = np.take_along_axis(kept_requests, replicas.astype(np.int64)[:, None], axis=1)[:, 0]
    return _bound_outcome(
        arrived, np.minimum(kept_now, arrived), replicas, interval_s, fleet.devices
    )


def _most_useful_replicas(fastest: float, rates: Float) -> float:
    """Replicas beyond which more of them keep hardly more: loads of a twentieth."""
    return float(rates.max(initial=0.0)) / (0.05 * fastest)


def _concave_hull(fleet: Fleet, load: Load) -> tuple[Float, Float]:
    """Rates of a replica, and the concave majorant of what it keeps at up to each of them."""
    shares = shares_of(fleet, load)
    rates = np.linspace(0.0, shares.curve.fastest, _RATES)
    kept_per_s = np.maximum.reduce(
        [rates * shares.by_rate(rates, np.full(_RATES, float(g))) for g in GROUPS]
    )
    kept_per_s = np.maximum.accumulate(kept_per_s)
    corners = [0]
    for k in range(1, _RATES):
        while len(corners) > 1:
            a, b = corners[-2], corners[-1]
            if (kept_per_s[b] - kept_per_s[a]) * (k - a) > (kept_per_s[k] - kept_per_s[a]) * (
                b - a
            ):
                break
            corners.pop()
        corners.append(k)
    return rates, np.interp(rates, rates[corners], kept_per_s[corners])


def _bound_outcome(
    arrived: Float, kept_requests: Float, replicas: Float, interval_s: float, devices: int
) -> Outcome:
    none = np.zeros(len(arrived))
    series = Series(
        interval_s,
        arrived,
        kept_requests,
        replicas,
        none,
        replicas,
        none,
        none,
        np.full(len(none), np.nan),
    )
    return Outcome(
        span_s=len(arrived) * interval_s,
        requests=float(arrived.sum()),
        kept_requests=float(kept_requests.sum()),
        replica_s=float(replicas.sum()) * interval_s,
        rented_s=float(replicas.sum()) * devices * interval_s,
        starts=float(np.maximum(np.diff(replicas), 0.0).sum()),
        delayed=0.0,
        lost=0.0,
        most_replicas=float(replicas.max(initial=0.0)),
        series=series,
    )
