"""How fast a replica serves with so many requests in flight, in the long run.

The replica of the request-by-request simulation in a closed loop: whoever ends is followed by the
next request, lengths as the load has them. Both simulators tell policies their latencies from it,
and the one by flows moves along it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.scaling.fleet import Service
from recipe_core.scaling.replica import Records, Replica, Steps
from recipe_core.scaling.traces.load import Lengths

POINTS = 14
# Requests of a point: fewest, and for each one in flight.
_EACH = (300, 3)
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
        _curves[key] = _measure_curve(service, lengths)
        if len(_curves) > _KEPT:
            _curves.popitem(last=False)
    _curves.move_to_end(key)
    return _curves[key]


def share_alone(service: Service, lengths: Lengths, limits_s: Mapping[str, float]) -> float:
    """Share of the requests that keep limits on a replica that nobody else uses.

    The time of a prompt is that of its tokens in full steps, so that no shorter one is slower.
    """
    tokens = service.computed(lengths.input_tokens)
    lanes = service.stages * service.ranks
    chunk = max(service.chunk_tokens, float(tokens.max()) if not service.chunked else 1.0)
    token_s = (float(service.step_s[0]) + Steps(service).prompt_s(chunk / lanes, 1)) / chunk
    ttft_s = service.request_s + np.maximum(tokens * token_s, float(service.step_s[0]))
    tpot_s = float(service.step_s[min(1, len(service.step_s) - 1)]) / service.tokens_per_step
    times = {
        "ttft_s": ttft_s,
        "tpot_s": np.full_like(ttft_s, tpot_s),
        "request_latency_s": ttft_s + (lengths.output_tokens - 1) * tpot_s,
    }
    keeps_limits = np.all([times[name] <= limit for name, limit in limits_s.items()], axis=0)
    return float((keeps_limits * lengths.weight).sum() / lengths.weight.sum())


def sample_lengths(lengths: Lengths, count: int, rng: np.random.Generator) -> tuple[Float, Float]:
    """Input and output tokens of so many requests, in a random order.

    Each length comes as often as its weight says (a systematic sample), so that no chance of the
    draw is in their means.
    """
    reached = np.cumsum(lengths.weight) / lengths.weight.sum()
    places = (np.arange(count) + rng.random()) / max(count, 1)
    indices = np.minimum(np.searchsorted(reached, places), len(reached) - 1)
    indices = rng.permutation(indices)
    return lengths.input_tokens[indices], lengths.output_tokens[indices]


def sample_begun_requests(
    lengths: Lengths, begun: int, count: int, rng: np.random.Generator
) -> tuple[Float, Float]:
    """So many requests, the first of which have a part of their answer behind them.

    Those that are met inside are the longer the more of them there is to do.
    """
    inputs, outputs = sample_lengths(lengths, count - begun, rng)
    longer = Lengths(
        lengths.input_tokens, lengths.output_tokens, lengths.weight * lengths.output_tokens
    )
    first_in, first_out = sample_lengths(longer, begun, rng)
    first_out = np.maximum(np.ceil(first_out * rng.random(begun)), 1.0)
    return np.concatenate([first_in, inputs]), np.concatenate([first_out, outputs])


def max_requests_inside(service: Service, lengths: Lengths) -> float:
    """Requests of the mean lengths that a replica holds at once."""
    cache_tokens = service.cache_tokens(lengths.input_tokens, lengths.output_tokens)
    mean = float(np.average(cache_tokens, weights=lengths.weight))
    return max(min(float(service.slots), service.pool_tokens / mean), 1.0)


def _measure_curve(service: Service, lengths: Lengths) -> Curve:
    most_in_flight = int(max_requests_inside(service, lengths))
    counts = np.unique(np.round(np.geomspace(1, most_in_flight, POINTS)).astype(np.int64))
    steps = Steps(service)
    rate, ttft_s, tpot_s = (
        np.array(figures)
        for figures in zip(
            *(measure_closed_loop(steps, lengths, int(n)) for n in counts), strict=True
        )
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


def measure_closed_loop(
    steps: Steps, lengths: Lengths, in_flight: int
) -> tuple[float, float, float]:
    """Ends per second, mean seconds to first token from entering, and between tokens."""
    more = max(_EACH[0], _EACH[1] * in_flight)
    # those that come last keep the replica full until the counted ones have ended
    records, outputs = run_closed_loop(steps, lengths, in_flight, more + 2 * in_flight)
    first, entered, done = (np.array(t) for t in (records.first, records.entered, records.done))
    start_s, end_s = (np.sort(entered)[in_flight + k] for k in (more // 4, more - 1))
    inside_s = np.clip(done, start_s, end_s) - np.clip(entered, start_s, end_s)
    begun = np.arange(len(outputs)) < in_flight
    # each counts by how much of its stay is within; the first have no whole stay
    parts = np.where(begun, 0.0, inside_s / np.maximum(done - entered, 1e-12))
    whole_s = max(float(inside_s[~begun].sum()), 1e-12)
    rate = float(parts.sum()) / whole_s * float(inside_s.sum()) / max(end_s - start_s, 1e-12)
    counted = ~begun & (entered >= start_s) & (entered <= end_s)
    tokens = np.maximum(outputs - 1, 0.0)[counted].sum()
    tpot_s = float((done - first)[counted].sum() / tokens) if tokens else 0.0
    return rate, float((first - entered)[counted].mean()), tpot_s


def run_closed_loop(
    steps: Steps, lengths: Lengths, in_flight: int, count: int
) -> tuple[Records, Float]:
    """A replica with always so many requests in flight, until so many more have come.

    Returns its records and the output tokens of each request.
    """
    rng = np.random.default_rng(7)
    inputs, outputs = sample_begun_requests(lengths, in_flight, in_flight + count, rng)
    records = Records.of(steps.service, inputs, outputs)
    records.prompt[:in_flight] = [1.0] * in_flight
    replica = Replica(0, steps, records)
    for request in range(in_flight):
        replica.add(0.0, request)
    coming = in_flight
    while replica.in_flight:
        now = replica.next_at
        for _ in replica.step():
            if coming < in_flight + count:
                replica.add(now, coming)
                coming += 1
    return records, outputs
