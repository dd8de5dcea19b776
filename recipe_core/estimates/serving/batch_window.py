"""A server that waits to fill a batch: dynamic batching with a window, as a queue.

Requests wait in one queue, in order. An instance that is free takes a batch as soon as
``preferred`` requests wait, or the oldest has waited ``window_s`` since it came, whichever is
first: all that wait, ``most`` of them at most. While instances are busy the queue grows and ages,
so that a window costs nothing under load. Source: ``DynamicBatchScheduler::GetDynamicBatch`` of
Triton (core, ``src/dynamic_batch_scheduler.cc``): a batch of a preferred size leaves at once, any
other when ``max_queue_delay_microseconds`` are over; a batch that was handed over and has not begun
still grows. Without preferred sizes the preferred one is the largest (``model_config_utils.cc``).

With service times that grow with the batch such a queue has no closed form (bulk-service queues,
Bailey 1954; with a threshold Neuts 1967), so it is run: all cases at once, a step a batch, with the
same random numbers for all, so that results are smooth and repeat. What is known of it holds:

* no window: a free server takes what is there, and one request alone waits for nothing;
* light load: a lone request waits ``window_s``, and a batch is ``1 + λ·window_s``;
* heavy load: full batches, whatever the window: ``most / t(most)`` requests a second;
* a closed loop of ``R < preferred`` waits the window out in every round.

Several instances take batches in turn: work of the host overlaps with the device, which runs one
batch at a time. Known error: 2 % of means and 5 % of a 99th percentile up to a load of 0.9
(``tests/estimates/test_encoders.py``, against a simulation event by event); beyond, runs are too
short for a queue that has no bounds. Left out: time-outs, priorities, queues of limited length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.estimates.columns.columns import Columns

# Independent runs of each case.
SERVERS = 32
# Batches of a run before and while it is measured.
WARM, STEPS = 60, 180
# Most requests of a run.
ARRIVALS = 16_384
CLOSED_WARM, CLOSED_STEPS = 48, 240
# Gaps over which the rate of all runs together is the stated one, so that none has more load.
EVEN = 8
SEED = 20_270
# Requests of a batch whose time is a sample for percentiles, evenly spread over it.
PICKS = 4


@dataclass(frozen=True, slots=True)
class Service(Columns):
    """The time of a batch: column ``b`` is for a batch of ``b`` requests, up to ``most``.

    ``host_s``: the work of an instance alone; ``device_s``: that of the device, one batch at a
    time. Both have a row a case.
    """

    host_s: Float
    device_s: Float

    @property
    def largest(self) -> int:
        """The largest batch of the table."""
        return int(self.host_s.shape[1]) - 1


@dataclass(frozen=True, slots=True)
class Window(Columns):
    """The forming of batches: longest wait, largest and preferred batch, instances."""

    window_s: Float
    largest: Int
    preferred: Int
    instances: Int

    @classmethod
    def of(
        cls, window_s: Float, largest: Int, instances: Int, preferred: Int | None = None
    ) -> Window:
        """A window with the largest batch preferred, unless another one is."""
        return cls(window_s, largest, largest if preferred is None else preferred, instances)


@dataclass(frozen=True, slots=True)
class Batches:
    """Means over requests, one number per case.

    ``wait_s``: from its arrival until its batch begins; ``idle_wait_s``: the part of it in which an
    instance was free; ``service_s``: from there to its end. ``mean``: requests of a batch;
    ``shared``: requests of the batch that a request is in, which is more. ``busy``: share of time
    in which the device runs a batch. ``rate``: requests per second.
    """

    wait_s: Float
    idle_wait_s: Float
    service_s: Float
    mean: Float
    shared: Float
    busy: Float
    rate: Float


def batch_capacity(service: Service, window: Window) -> Float:
    """Most requests per second of full batches of any size that is allowed."""
    sizes = np.arange(1, service.largest + 1)
    host, device = service.host_s[:, 1:], service.device_s[:, 1:]
    count = window.instances[:, None]
    a_batch = np.maximum(device, (host + device) / count)
    rates = np.where(sizes <= window.largest[:, None], sizes / a_batch, 0.0)
    out: Float = rates.max(axis=1)
    return out


def arriving_batches(rate: Float, service: Service, window: Window) -> Batches:
    """Batches under random (Poisson) arrivals of ``rate`` requests per second, below capacity."""
    sums = np.zeros((7, len(rate)))
    classes = _classes(window.largest)
    for number in np.unique(classes).tolist():
        rows = np.flatnonzero(classes == number)
        sums[:, rows] = _batch_sums(rate[rows], service.take(rows), window.take(rows), number)
    wait, idle, service_s, requests, squares, device, batches = sums
    return Batches(
        wait_s=wait / requests,
        idle_wait_s=idle / requests,
        service_s=service_s / requests,
        mean=requests / batches,
        shared=squares / requests,
        busy=np.minimum(device / requests * rate, 1.0),
        rate=rate,
    )


def _classes(largest: Int) -> Int:
    """Cases whose largest batches are alike run together: by the next power of two, as exponent.

    How long a run is depends on this class alone, so that a case is the same among any others.
    """
    return np.ceil(np.log2(np.maximum(largest, 1))).astype(np.int64)


def _run_factor(number: int) -> int:
    """Return how many times longer runs are where batches are small.

    Queues of single requests take the longest to become steady.
    """
    return max(8 >> number, 1)


def _batch_sums(rate: Float, service: Service, window: Window, number: int) -> Float:
    """Sums over measured batches, one column a case.

    Waits, idle waits, times in service, requests, their squares, seconds of the device, batches.
    """
    sums = np.zeros((7, len(rate), SERVERS))
    for step, batch in enumerate(_form_batches(rate, service, window, number)):
        if step >= WARM * _run_factor(number):
            size = batch.size * batch.counts
            sums[0] += size * batch.begin - batch.came(0, batch.size) * batch.counts
            sums[1] += _idle_wait(batch)
            sums[2] += size * (batch.end - batch.begin)
            sums[3] += size
            sums[4] += size * batch.size
            sums[5] += batch.device_s * batch.counts
            sums[6] += batch.counts
    out: Float = sums.sum(axis=2)
    return out


def latency_percentiles(
    rate: Float, service: Service, window: Window, percentiles: tuple[float, ...]
) -> Float:
    """Percentiles of a request's time from arrival to its end: (percentiles, cases), in seconds."""
    out = np.empty((len(percentiles), len(rate)))
    for row in range(len(rate)):
        case_rows = np.array([row])
        times, weights = [], []
        number = int(_classes(window.largest[case_rows])[0])
        inputs = rate[case_rows], service.take(case_rows), window.take(case_rows)
        for step, batch in enumerate(_form_batches(*inputs, number)):
            if step < WARM * _run_factor(number):
                continue
            for pick in range(PICKS):
                place = (batch.size * (2 * pick + 1)) // (2 * PICKS)
                times.append(np.where(batch.counts, batch.end - batch.arrival(place), 0.0).ravel())
                weights.append((batch.size * batch.counts).ravel())
        out[:, row] = _weighted_percentiles(
            np.concatenate(times), np.concatenate(weights), percentiles
        )
    return out


def _weighted_percentiles(values: Float, weights: Float, percentiles: tuple[float, ...]) -> Float:
    order = np.argsort(values)
    share = np.cumsum(weights[order])
    places = np.searchsorted(share, np.array(percentiles) / 100 * share[-1])
    out: Float = values[order][np.minimum(places, len(order) - 1)]
    return out


@dataclass(frozen=True, slots=True)
class _Arrivals:
    """Arrivals at rate 1 of every run: (runs, requests), their running sums, and all in a row."""

    times: Float
    sums: Float
    row: Float
    apart: float

    @property
    def length(self) -> int:
        return int(self.times.shape[1])


@lru_cache(4)
def _poisson_arrivals(length: int) -> _Arrivals:
    # block by block, so that a longer row begins as a shorter one does
    gaps = np.random.default_rng(SEED).exponential(size=(-(-length // EVEN), SERVERS, EVEN))
    gaps /= gaps.mean(axis=(1, 2), keepdims=True)
    times = np.cumsum(gaps.swapaxes(0, 1).reshape(SERVERS, -1)[:, :length], axis=1)
    sums = np.concatenate([np.zeros((SERVERS, 1)), np.cumsum(times, axis=1)], axis=1)
    apart = 4.0 * length
    row = (times + apart * np.arange(SERVERS)[:, None]).ravel()
    return _Arrivals(times, sums, row, apart)


@dataclass(frozen=True, slots=True)
class _Batch:
    """The next batch of every run: (cases, runs). ``counts``: 0 where its run has ended."""

    arrivals: _Arrivals
    rate: Float
    first: Int
    size: Int
    free: Float
    begin: Float
    end: Float
    device_s: Float
    counts: Bool

    def arrival(self, place: Int) -> Float:
        """Return when its request number ``place`` came."""
        runs = np.arange(SERVERS)
        at = np.minimum(self.first + place, self.arrivals.length - 1)
        out: Float = self.arrivals.times[runs, at] / self.rate
        return out

    def came(self, start: Int | int, stop: Int) -> Float:
        """The sum of the arrival times of its requests from ``start`` to before ``stop``."""
        runs, sums = np.arange(SERVERS), self.arrivals.sums
        length = self.arrivals.length
        low = np.minimum(self.first + start, length)
        high = np.minimum(self.first + stop, length)
        out: Float = (sums[runs, high] - sums[runs, low]) / self.rate
        return out


def _idle_wait(batch: _Batch) -> Float:
    """Seconds that its requests wait, together, while an instance is free."""
    early_count = _arrived_requests(batch.arrivals, batch.rate, batch.first, batch.free)
    early_count = np.clip(early_count, 0, batch.size)
    before = early_count * np.maximum(batch.begin - batch.free, 0.0)
    after = (batch.size - early_count) * batch.begin - batch.came(early_count, batch.size)
    return np.where(batch.counts, before + np.maximum(after, 0.0), 0.0)


def _arrived_requests(arrivals: _Arrivals, rate: Float, first: Int, time_s: Float) -> Int:
    """Requests from ``first`` on that have come by a time."""
    runs = np.arange(SERVERS)
    # a request that comes in this moment is there, whatever the rounding
    last = arrivals.times[:, -1]
    units = np.minimum(time_s * rate * (1 + 1e-12) + 1e-9, last)
    places = np.searchsorted(arrivals.row, units + runs * arrivals.apart, side="right")
    out: Int = places - runs * arrivals.length - first
    return out


def _form_batches(rate: Float, service: Service, window: Window, number: int) -> Iterator[_Batch]:
    """The batches of every run, one after the other, of cases of one class."""
    n, steps = len(rate), (WARM + STEPS) * _run_factor(number)
    arrivals = _poisson_arrivals(min(steps << number, ARRIVALS) + (1 << number) + 1)
    rows, runs = np.arange(n)[:, None], np.arange(SERVERS)
    per_s, waits_s = rate[:, None], window.window_s[:, None]
    enough, largest = window.preferred[:, None] - 1, window.largest[:, None]
    free = np.zeros((n, SERVERS, int(window.instances.max())))
    free[np.arange(free.shape[2]) >= window.instances[:, None, None] + 0 * free] = np.inf
    first = np.zeros((n, SERVERS), dtype=np.int64)
    device = np.zeros((n, SERVERS))
    for _ in range(steps):
        counts = first + largest < arrivals.length
        head = np.minimum(first, arrivals.length - 1)
        instance = free.argmin(axis=2)
        ready = np.take_along_axis(free, instance[..., None], 2)[..., 0]
        oldest = arrivals.times[runs, head] / per_s
        full = arrivals.times[runs, np.minimum(head + enough, arrivals.length - 1)] / per_s
        begin = np.maximum(ready, np.minimum(oldest + waits_s, full))
        size = np.clip(_arrived_requests(arrivals, per_s, first, begin), 1, largest)
        device_s = service.device_s[rows, size]
        end = np.maximum(begin + service.host_s[rows, size], device) + device_s
        yield _Batch(arrivals, per_s, first, size, ready, begin, end, device_s, counts)
        device = end
        np.put_along_axis(free, instance[..., None], end[..., None], 2)
        first = first + np.where(counts, size, 0)


# A closed loop


def circulating_batches(
    clients: Float, outside_s: Float, service: Service, window: Window
) -> Batches:
    """Batches of ``clients`` that each send again ``outside_s`` after their answer, on average.

    Times outside are exponential. Clients beyond those that fill every batch only wait: the others
    are simulated, and Little's law (clients = rate · time of a round) has the rest.
    """
    sent = np.minimum(clients, _enough_clients(outside_s, service, window)).astype(np.int64)
    n, widest = len(sent), int(sent.max())
    rows = np.arange(n)
    draws = _outside_times(widest)
    came = np.where(np.arange(widest) < sent[:, None], draws[0] * outside_s[:, None], np.inf)
    free = np.zeros((n, int(window.instances.max())))
    free[np.arange(free.shape[1]) >= window.instances[:, None] + 0 * free] = np.inf
    device, began = np.zeros(n), np.zeros(n)
    sums = np.zeros((5, n))
    places = np.arange(widest)
    preferred = np.minimum(window.preferred, widest) - 1
    alone = window.preferred > sent  # they can never fill a batch
    for step in range(CLOSED_WARM + CLOSED_STEPS):
        came.sort(axis=1)
        instance = free.argmin(axis=1)
        ready = free[rows, instance]
        full = np.where(alone, np.inf, came[rows, preferred])
        begin = np.maximum(ready, np.minimum(came[:, 0] + window.window_s, full))
        size = np.minimum(
            (came <= begin[:, None] * (1 + 1e-12) + 1e-12).sum(axis=1), window.largest
        )
        device_s = service.device_s[rows, size]
        end = np.maximum(begin + service.host_s[rows, size], device) + device_s
        in_batch = places < size[:, None]
        if step == CLOSED_WARM - 1:
            began = end
        if step >= CLOSED_WARM:
            since = np.maximum(came, ready[:, None])
            waited = np.where(in_batch, begin[:, None] - since, 0.0)
            sums[0] += np.maximum(waited, 0.0).sum(axis=1)
            sums[1] += size * (end - begin)
            sums[2] += size
            sums[3] += size * size
            sums[4] += device_s
        again = end[:, None] + outside_s[:, None] * draws[1 + step]
        came = np.where(in_batch, again, came)
        device = end
        free[rows, instance] = end
    idle, taken_s, requests, squares, device_s = sums
    rate = requests / (device - began)
    service_s = taken_s / requests
    return Batches(
        wait_s=np.maximum(clients / rate - outside_s - service_s, 0.0),
        idle_wait_s=idle / requests,
        service_s=service_s,
        mean=requests / CLOSED_STEPS,
        shared=squares / requests,
        busy=np.minimum(device_s / (device - began), 1.0),
        rate=rate,
    )


def _enough_clients(outside_s: Float, service: Service, window: Window) -> Float:
    """Clients with which every batch is full: one waits while others run, and some are outside."""
    full = service.host_s, service.device_s
    rows = np.arange(len(outside_s))
    batch_s = full[0][rows, window.largest] + full[1][rows, window.largest]
    outside = 2 * outside_s / batch_s * window.largest
    beside = outside + 4 * np.sqrt(outside) + 4
    return np.asarray(np.ceil((1 + window.instances) * window.largest + beside))


@lru_cache(8)
def _outside_times(clients: int) -> Float:
    """Times outside, as multiples of their mean: (batches, clients), the same for every case."""
    shape = (1 + CLOSED_WARM + CLOSED_STEPS, clients)
    return np.asarray(np.random.default_rng(20_262).exponential(size=shape))
