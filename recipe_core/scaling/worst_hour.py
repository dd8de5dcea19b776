"""The worst time of a policy once more, request by request.

The simulation by flows knows no single request; where most is at stake, the one by requests is
asked: the hour around the worst interval, after a time in which the policy and the queues come to
where they were. The window is shorter where an hour has too many requests, longer where it has too
few to tell a share.
"""

from __future__ import annotations

import math

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.request.over_time import DAY_S, HOUR_S
from recipe_core.request.scaling import Scaling
from recipe_core.scaling.outcome import Outcome
from recipe_core.scaling.requests import simulate_requests
from recipe_core.scaling.result import Checked
from recipe_core.scaling.simulated import Simulation, load_part
from recipe_core.scaling.traces.loads import Load, draw_requests

# Requests of a window and of the time before it at most: some two seconds.
MOST_REQUESTS = 40_000
# Requests of a window, where the load has so many in a day.
FEWEST_REQUESTS = 500
SEED = 11
INTERVAL_S = 60.0


def check_worst_hour(simulation: Simulation, scaling: Scaling, outcome: Outcome) -> Checked | None:
    """The worst hour of a policy, request by request; None where nothing comes in it.

    Args:
        simulation: of the fleet and its load.
        scaling: the policy.
        outcome: of the policy by flows.
    """
    worst_s, _ = outcome.worst_interval
    warm_s, from_s, to_s = choose_worst_window(simulation.load, worst_s)
    part = load_part(simulation.load, warm_s, to_s)
    trace = draw_requests(part, SEED)
    if not len(trace):
        return None
    series = outcome.series
    at = min(int(warm_s // series.interval_s), len(series.ready) - 1)
    begin = round(float(series.ready[at] + series.starting[at]))
    by_requests = simulate_requests(
        simulation.fleet,
        trace,
        simulation.batch([scaling], part.start_hour, before_s=warm_s),
        begin=begin,
        seed=SEED,
        interval_s=INTERVAL_S,
        start_hour=part.start_hour,
        span_s=part.span_s,
    )
    inside = by_requests.series
    share, requests = _kept_share_between(
        inside.arrived, inside.kept_requests, INTERVAL_S, from_s - warm_s, to_s - warm_s
    )
    flow, _ = _kept_share_between(
        series.arrived, series.kept_requests, series.interval_s, from_s, to_s
    )
    if not requests:
        return None
    return Checked(attainment=share, flow=flow, requests=round(requests), window=(from_s, to_s))


def choose_worst_window(load: Load, worst_s: float) -> tuple[float, float, float]:
    """Second at which to begin, and the window around the worst moment, all in whole intervals.

    Windows begin at a full hour of the load, so that policies find their hour of the week.
    """
    last_s = load.span_s
    length = HOUR_S
    while length < min(DAY_S, last_s) and _requests_around(load, worst_s, length) < FEWEST_REQUESTS:
        length *= 2
    while length > 600.0 and _requests_around(load, worst_s, 2 * length) > MOST_REQUESTS:
        length /= 2
    from_s = max(min(worst_s - length / 2, last_s - length), 0.0)
    from_s = math.floor(from_s / load.interval_s) * load.interval_s
    to_s = min(max(from_s + length, worst_s + INTERVAL_S), last_s)
    warm_s = math.floor(max(from_s - min(length, HOUR_S), 0.0) / HOUR_S) * HOUR_S
    if _requests_around(load, (warm_s + to_s) / 2, to_s - warm_s) > 2 * MOST_REQUESTS:
        warm_s = from_s
    return warm_s, from_s, to_s


def _requests_around(load: Load, middle_s: float, length_s: float) -> float:
    return load_part(
        load, max(middle_s - length_s / 2, 0.0), min(middle_s + length_s / 2, load.span_s)
    ).requests


def _kept_share_between(
    arrived: Float, kept_requests: Float, interval_s: float, from_s: float, to_s: float
) -> tuple[float, float]:
    """The share that was kept of what arrived between two moments, and how many arrived."""
    first = int(from_s // interval_s)
    last = max(math.ceil(to_s / interval_s - 1e-9), first + 1)
    requests = float(np.nansum(arrived[first:last]))
    if not requests:
        return 1.0, 0.0
    return float(min(max(np.nansum(kept_requests[first:last]) / requests, 0.0), 1.0)), requests
