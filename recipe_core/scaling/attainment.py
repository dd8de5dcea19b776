"""The share of requests within limits, by how full replicas are and how long requests wait.

Replicas that have had the same rate for a while: the simulation by requests with Poisson or bursty
arrivals and the lengths of the load, at several rates, for one replica and for several among which
the fleet's router chooses. Up to ``OPEN`` of what a replica can serve it is such a steady state,
which holds the chance of queues; beyond it as many requests in flight as there are. A wait in line,
which a fluid knows, comes on top: of every request the slack within its limits is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from recipe_core.base.arrays import Float, Int
from recipe_core.estimates.serving.scheduler import Replica, Requests
from recipe_core.request.over_time import Dispatch
from recipe_core.scaling.fleet import Fleet, Service
from recipe_core.scaling.outcome import latencies
from recipe_core.scaling.service import (
    Curve,
    curve_of,
    requests_of,
    run_closed_loop,
    sample_begun_requests,
)
from recipe_core.scaling.traces.loads import Lengths, Load
from recipe_core.scaling.traces.trace import Trace

# Rates of the steady states, over the fastest.
OPEN = (0.05, 0.25, 0.45, 0.6, 0.7, 0.8, 0.87, 0.92, 0.96, 0.99)
# Numbers in flight beyond the last of them, as a share of the way until a replica is full.
CROWDED = (0.03, 0.1, 0.25, 0.5, 1.0)
# Replicas of the steady states.
GROUPS = (1, 4, 16)
# Requests that are counted in each, at least.
_COUNTED = (4000, 3000, 3000)
WAITS = 48
_KEPT = 32
_tables: OrderedDict[tuple[object, ...], Shares] = OrderedDict()


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of requests within limits, and means, on a grid.

    in_flight: of one replica, as a fluid has it; waits_s: in line. share: shape (groups, in_flight,
    waits). ttft_s, waiting: seconds to the first token, and requests of a replica that have not
    entered, shape (groups, in_flight). met: requests in flight in one, which chance makes more.
    """

    curve: Curve
    in_flight: Float
    waits_s: Float
    share: Float
    ttft_s: Float
    waiting: Float
    met: Float

    def by_rate(self, per_replica: Float, replicas: Float) -> Float:
        """Share within limits at a rate of each replica in the long run; 0 beyond the fastest."""
        curve = self.curve
        flight = np.interp(per_replica, curve.rate, curve.in_flight)
        share_kept = self.kept_share(flight, np.zeros(np.shape(flight)), replicas)
        return np.where(per_replica > curve.fastest, 0.0, share_kept)

    def kept_share(self, in_flight: Float, wait_s: Float, replicas: Float) -> Float:
        """Share within limits; arrays of one shape."""
        x, u = _locate_cells(self.in_flight, in_flight)
        w, v = _locate_cells(self.waits_s, wait_s)
        g, t = _locate_groups(replicas)
        low = self._plane(g, x, u, w, v)
        return np.asarray(
            low + t * (self._plane(np.minimum(g + 1, len(GROUPS) - 1), x, u, w, v) - low)
        )

    def _plane(self, g: Int, x: Int, u: Float, w: Int, v: Float) -> Float:
        share = self.share
        lower = share[g, x, w] * (1 - v) + share[g, x, w + 1] * v
        upper = share[g, x + 1, w] * (1 - v) + share[g, x + 1, w + 1] * v
        return np.asarray(lower * (1 - u) + upper * u)

    def mean(self, figure: Float, in_flight: Float, replicas: Float) -> Float:
        """``ttft_s`` or ``waiting`` at numbers in flight and of replicas."""
        x, u = _locate_cells(self.in_flight, in_flight)
        g, t = _locate_groups(replicas)
        more = np.minimum(g + 1, len(GROUPS) - 1)
        low = figure[g, x] * (1 - u) + figure[g, x + 1] * u
        high = figure[more, x] * (1 - u) + figure[more, x + 1] * u
        return np.asarray(low + t * (high - low))


def _locate_cells(nodes: Float, at: Float) -> tuple[Int, Float]:
    """The cell of each point, and where in it; points outside are moved to the ends."""
    at = np.clip(at, nodes[0], nodes[-1])
    cell = np.clip(np.searchsorted(nodes, at, side="right") - 1, 0, len(nodes) - 2)
    return cell, (at - nodes[cell]) / (nodes[cell + 1] - nodes[cell])


def _locate_groups(replicas: Float) -> tuple[Int, Float]:
    """Between which of ``GROUPS`` a number is; what is random falls with its inverse."""
    inverse = 1.0 / np.clip(replicas, 1.0, GROUPS[-1])
    nodes = 1.0 / np.array(GROUPS)
    cell = np.clip(np.searchsorted(-nodes, -inverse, side="right") - 1, 0, len(GROUPS) - 2)
    return cell, (nodes[cell] - inverse) / (nodes[cell] - nodes[cell + 1])


def shares_of(fleet: Fleet, load: Load) -> Shares:
    """The shares of a fleet's service and limits under a load; the same ones are computed once."""
    service, lengths = fleet.service, load.lengths
    arrays = (lengths.input_tokens, lengths.output_tokens, lengths.weight)
    key = (
        service,
        *(a.tobytes() for a in arrays),
        load.burstiness,
        tuple(sorted(fleet.limits_s.items())),
        fleet.dispatch,
    )
    if key not in _tables:
        _tables[key] = _measure_shares(fleet, lengths, load.burstiness)
        if len(_tables) > _KEPT:
            _tables.popitem(last=False)
    _tables.move_to_end(key)
    return _tables[key]


@dataclass(frozen=True, slots=True)
class _Sample:
    """Of counted requests: slack within their limits, first tokens, and those not yet inside."""

    slack_s: Float
    ttft_s: float
    waiting: float
    met: float


def _measure_shares(fleet: Fleet, lengths: Lengths, burstiness: float) -> Shares:
    service, limits_s = fleet.service, fleet.limits_s
    curve = curve_of(service, lengths)
    rates = np.array(OPEN) * curve.fastest
    steady = np.interp(rates, curve.rate, curve.in_flight)
    crowded = steady[-1] + (curve.full - steady[-1]) * np.array(CROWDED)
    samples = []
    for group, counted in zip(GROUPS, _COUNTED, strict=True):
        column = []
        for rate, flight in zip(rates, steady, strict=True):
            trace, begun = _draw_arrivals(
                lengths, rate * group, flight * group, counted, burstiness
            )
            column.append(_sample_steady_state(fleet, trace, begun, group))
        samples.append(column)
    full = [
        _sample_crowded_replica(service, lengths, float(flight), limits_s) for flight in crowded
    ]
    longest = max(float(s.slack_s[np.isfinite(s.slack_s)].max(initial=0.0)) for s in samples[0])
    waits_s = np.concatenate([[0.0], np.geomspace(0.01, 1.0, WAITS - 2), [1.001]])
    waits_s = waits_s * (longest if longest > 0 else 1.0)
    columns = [
        [
            *column,
            *(
                replace(crowd, waiting=column[-1].waiting, met=max(at, column[-1].met))
                for crowd, at in zip(full, crowded.tolist(), strict=True)
            ),
        ]
        for column in samples
    ]
    share = np.array([[_share_at_least(s.slack_s, waits_s) for s in column] for column in columns])
    return Shares(
        curve,
        np.concatenate([[0.0], steady, crowded]),
        waits_s,
        np.array([_enforce_falling(np.concatenate([group[:1], group])) for group in share]),
        _prepend_first([[s.ttft_s for s in column] for column in columns]),
        _prepend_first([[s.waiting for s in column] for column in columns], empty=True),
        _prepend_first([[s.met for s in column] for column in columns], empty=True),
    )


def _prepend_first(rows: list[list[float]], *, empty: bool = False) -> Float:
    return np.array([[0.0 if empty else row[0], *row] for row in rows])


def _share_at_least(slack_s: Float, waits_s: Float) -> Float:
    """Share of requests whose slack is at least each wait."""
    ordered = np.sort(slack_s)
    return np.asarray(1 - np.searchsorted(ordered, waits_s, side="left") / len(ordered))


def _enforce_falling(share: Float) -> Float:
    """The nearest shares that do not grow with what is in flight (pooled neighbours), by column."""
    return np.stack([_pool_violators(column) for column in share.T], axis=1)


def _pool_violators(values: Float) -> Float:
    blocks: list[tuple[float, int]] = []
    for value in values.tolist():
        mean, size = value, 1
        while blocks and blocks[-1][0] < mean:
            before, count = blocks.pop()
            mean, size = (mean * size + before * count) / (size + count), size + count
        blocks.append((mean, size))
    return np.repeat([mean for mean, _ in blocks], [size for _, size in blocks])


def draw_arrival_gaps(rng: np.random.Generator, burstiness: float, count: int) -> Float:
    """Gaps between arrivals with a mean of 1 and a coefficient of variation: gamma distributed."""
    if burstiness == 1.0:
        return rng.exponential(1.0, count)
    shape = 1.0 / burstiness**2
    return rng.gamma(shape, 1.0 / shape, count)


def _draw_arrivals(
    lengths: Lengths, rate: float, flight: float, counted: int, burstiness: float
) -> tuple[Trace, int]:
    """Requests at a rate, after those that are there at the beginning, and how many these are."""
    rng = np.random.default_rng(11)
    begun = int(flight)
    count = begun + max(counted, begun) * 5 // 4
    inputs, outputs = sample_begun_requests(lengths, begun, count, rng)
    between = draw_arrival_gaps(rng, burstiness, count - begun)
    arrival_s = np.cumsum(between) / between.mean() / rate
    arrival_s = np.concatenate([np.zeros(begun), arrival_s])
    return Trace(arrival_s, inputs.astype(np.int64), outputs.astype(np.int64)), begun


def _sample_steady_state(fleet: Fleet, trace: Trace, begun: int, group: int) -> _Sample:
    """A group of replicas under arrivals; the first fifth of them is not counted."""
    service = fleet.service
    requests = requests_of(service, trace.input_tokens, trace.output_tokens, begun)
    delay_s = service.request_s + service.request_token_s * trace.input_tokens
    reached = trace.arrival_s + delay_s
    reached[:begun] = 0.0
    run_group(service, requests, reached, group, fleet.dispatch)
    first = begun + (len(trace) - begun) // 5
    counted = np.arange(first, len(trace))
    sample = _sample_counted_requests(
        service, trace, requests, trace.arrival_s, reached, counted, fleet.limits_s
    )
    return replace(sample, waiting=sample.waiting / group, met=sample.met / group)


def run_group(
    service: Service, requests: Requests, reached: Float, group: int, dispatch: Dispatch
) -> None:
    """Replicas among which a router sends each request to the one with fewest, or in turn."""
    replicas = [Replica(service.rules, service.times, requests) for _ in range(group)]
    order = np.argsort(reached, kind="stable")
    for turn, (request, at) in enumerate(zip(order.tolist(), reached[order].tolist(), strict=True)):
        for replica in replicas:
            while replica.next_at < at:
                replica.step()
        taker = replicas[turn % group]
        if dispatch == "least-loaded":
            taker = min(replicas, key=lambda replica: replica.in_flight)
        taker.add(at, request)
    for replica in replicas:
        while replica.in_flight:
            replica.step()


def _sample_crowded_replica(
    service: Service, lengths: Lengths, flight: float, limits_s: Mapping[str, float]
) -> _Sample:
    """A replica with always so many requests inside; they have no wait but for a step."""
    in_flight = max(round(flight), 1)
    requests = run_closed_loop(service, lengths, in_flight, 2 * in_flight + _COUNTED[0])
    entered, tokens = np.array(requests.entered), np.array(requests.outputs)
    trace = Trace(entered, tokens, tokens)
    counted = np.arange(in_flight, len(tokens) - in_flight)
    return _sample_counted_requests(service, trace, requests, entered, entered, counted, limits_s)


def _sample_counted_requests(
    service: Service,
    trace: Trace,
    requests: Requests,
    sent: Float,
    reached: Float,
    counted: Int,
    limits_s: Mapping[str, float],
) -> _Sample:
    first, done = np.array(requests.first), np.array(requests.done)
    ttft_s, tpot_s, latency_s = (
        figure[counted] for figure in latencies(service, trace, first, done)
    )
    slack_s = np.full(len(counted), np.inf)
    for name, figure in (("ttft_s", ttft_s), ("request_latency_s", latency_s)):
        if name in limits_s:
            slack_s = np.minimum(slack_s, limits_s[name] - figure)
    slack_s = np.where(tpot_s <= limits_s.get("tpot_s", np.inf), slack_s, -np.inf)
    slack_s = np.where(slack_s >= 0, slack_s, -np.inf)
    waited_s = np.array(requests.entered)[counted] - reached[counted]
    span_s = max(float(sent[counted[-1]] - sent[counted[0]]), 1e-12)
    inside_s = float((done[counted] - reached[counted]).sum())
    return _Sample(slack_s, float(ttft_s.mean()), float(waited_s.sum()) / span_s, inside_s / span_s)


# Share of requests that must keep the limits, where nothing else is said.
ATTAINMENT = 0.99
_RATES = 400


def capacity_per_s(
    fleet: Fleet, load: Load, attainment: float = ATTAINMENT, replicas: float = 1.0
) -> float:
    """Largest rate of one replica, of so many, at which the share of requests keeps the limits.

    Requests per second; 0 where a lone request does not keep them.
    """
    return float(_replica_capacities(fleet, load, attainment, np.array([float(replicas)]))[0])


def replicas_for(fleet: Fleet, load: Load, rates: Float, attainment: float = ATTAINMENT) -> Int:
    """Fewest replicas for each rate (requests per second); 0 where nothing comes.

    Where no number is enough, since a lone request breaks the limits, as many as serve the rate.
    """
    shares = shares_of(fleet, load)
    counts = np.array(sorted({*range(1, 9), *GROUPS, *np.geomspace(8, GROUPS[-1], 9)}))
    capacities = _replica_capacities(fleet, load, attainment, counts)
    if not capacities[-1] > 0:
        capacities = np.full(len(counts), shares.curve.fastest)
    rates = np.asarray(rates, dtype=float)
    needed = np.maximum(np.ceil(rates / capacities[-1] - 1e-9), rates > 0)
    while True:  # fewer replicas carry less each; from the last of GROUPS on all carry the same
        short = (needed > 0) & (needed * np.interp(needed, counts, capacities) < rates * (1 - 1e-9))
        if not short.any():
            return np.asarray(needed, dtype=np.int64)
        needed = needed + short


def _replica_capacities(fleet: Fleet, load: Load, attainment: float, replicas: Float) -> Float:
    shares = shares_of(fleet, load)
    rates = np.linspace(0.0, shares.curve.fastest, _RATES)
    share_kept = shares.by_rate(rates[:, None], np.broadcast_to(replicas, (_RATES, len(replicas))))
    enough = share_kept >= attainment
    last = np.where(enough.any(axis=0), _RATES - 1 - np.argmax(enough[::-1], axis=0), 0)
    return np.asarray(np.maximum.accumulate(rates[last]))
