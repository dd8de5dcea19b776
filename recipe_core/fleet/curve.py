"""How fast a replica serves with so many requests in flight, in the long run.

The replica of the request-by-request simulation in a closed loop: whoever ends is followed by the
next request, lengths as the load has them. Both simulators tell policies their latencies from it,
and the one by flows moves along it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from recipe_core.base.arrays import Float, Int
from recipe_core.fleet.fleet import Service
from recipe_core.fleet.replica import Records, Replica, Steps
from recipe_core.traffic.load import Lengths

POINTS = 14
_EACH = (250, 3)
"""Requests of a point: fewest, and for each one in flight."""
_KEPT = 32
_curves: OrderedDict[tuple[bytes, ...], Curve] = OrderedDict()


@dataclass(frozen=True, slots=True)
class Curve:
    """By requests in flight in one replica, increasing from 0: ends per second, and mean times.

    ttft_s counts from the moment at which a request enters. full: requests in flight beyond which
    more of them only wait; fastest: ends per second there.
    """

    in_flight: Float
    rate: Float
    ttft_s: Float
    tpot_s: Float
    full: float
    fastest: float

    def now(self, running: Float, waiting: Float) -> tuple[Float, Float]:
        """Times to first token and between tokens of a request now, by numbers of one replica."""
        inside = np.minimum(running, self.full)
        wait_s = np.maximum(running + waiting - self.full, 0.0) / self.fastest
        ttft_s = np.interp(inside, self.in_flight, self.ttft_s)
        return ttft_s + wait_s, np.interp(inside, self.in_flight, self.tpot_s)


def curve_of(service: Service, lengths: Lengths) -> Curve:
    """The curve of a service and lengths; the same ones are computed once."""
    arrays = (lengths.input_tokens, lengths.output_tokens, lengths.weight)
    numbers = [getattr(service, name) for name in service.__dataclass_fields__]
    key = (*(np.asarray(n, dtype=float).tobytes() for n in numbers), *(a.tobytes() for a in arrays))
    if key not in _curves:
        _curves[key] = _computed(service, lengths)
        if len(_curves) > _KEPT:
            _curves.popitem(last=False)
    _curves.move_to_end(key)
    return _curves[key]


def sampled(lengths: Lengths, count: int, rng: np.random.Generator) -> tuple[Float, Float]:
    """Input and output tokens of so many requests."""
    weight = lengths.weight / lengths.weight.sum()
    chosen = rng.choice(len(weight), size=count, p=weight)
    return lengths.input_tokens[chosen], lengths.output_tokens[chosen]


def most_inside(service: Service, lengths: Lengths) -> float:
    """Requests of the mean lengths that a replica holds at once."""
    held = service.cache_tokens(lengths.input_tokens, lengths.output_tokens)
    mean = float(np.average(held, weights=lengths.weight))
    return max(min(float(service.slots), service.pool_tokens / mean), 1.0)


def _computed(service: Service, lengths: Lengths) -> Curve:
    most = int(most_inside(service, lengths))
    counts = np.unique(np.round(np.geomspace(1, most, POINTS)).astype(np.int64))
    steps = Steps(service)
    rate, ttft_s, tpot_s = (
        np.array(figures)
        for figures in zip(*(closed_loop(steps, lengths, int(n)) for n in counts), strict=True)
    )
    rate = np.maximum.accumulate(rate)
    fastest = float(rate[-1])
    full = float(np.interp(0.995 * fastest, rate, counts))
    nodes = np.append(np.append(0.0, counts[counts < full]), full)
    inside = nodes[1:]
    return Curve(
        nodes,
        np.append(0.0, np.append(np.interp(inside[:-1], counts, rate), fastest)),
        np.append(ttft_s[0], np.interp(inside, counts, ttft_s)),
        np.append(tpot_s[0], np.interp(inside, counts, tpot_s)),
        full,
        fastest,
    )


def closed_loop(steps: Steps, lengths: Lengths, in_flight: int) -> tuple[float, float, float]:
    """Ends per second, mean seconds to first token from entering, and between tokens."""
    count = in_flight + max(_EACH[0], _EACH[1] * in_flight)
    rng = np.random.default_rng(7)
    inputs, outputs = sampled(lengths, count, rng)
    # those that are there first have a part of their answer behind them, so that none are in step
    begun = np.ceil(outputs[:in_flight] * rng.random(in_flight))
    outputs = np.concatenate([np.maximum(begun, 1.0), outputs[in_flight:]])
    records = Records.of(steps.service, inputs, outputs)
    replica = Replica(0, steps, records)
    order: list[int] = []
    for request in range(in_flight):
        replica.add(0.0, request)
    coming = in_flight
    while len(order) < count - in_flight:
        now = replica.next_at
        for request in replica.step():
            order.append(request)
            if coming < count:
                replica.add(now, coming)
                coming += 1
    return _figures(records, np.array(order), outputs)


def _figures(records: Records, order: Int, outputs: Float) -> tuple[float, float, float]:
    """Figures of the later two thirds of those that ended."""
    first = len(order) // 3
    counted = order[first:]
    done = np.array(records.done)[counted]
    span_s = max(float(done[-1]) - records.done[int(order[first - 1])], 1e-12)
    firsts, entered = np.array(records.first)[counted], np.array(records.entered)[counted]
    more = np.maximum(outputs[counted] - 1, 0.0).sum()
    tpot_s = float((done - firsts).sum() / more) if more else 0.0
    return len(counted) / span_s, float((firsts - entered).mean()), tpot_s
