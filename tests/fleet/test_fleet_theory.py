"""The simulation by requests against queueing theory, and what must hold whatever comes."""

from math import factorial

import numpy as np
import pytest

from recipe_core.fleet.fleet import Events, Fleet, Service, StartTime
from recipe_core.fleet.requests import simulate_requests
from recipe_core.traffic.trace import Trace
from tests.fixtures.fleets import Constant
from tests.fixtures.rows import over

START = StartTime(120.0, 60.0, 240.0)


class UpAndDown:
    """Two replicas and three, by turns; sometimes none."""

    interval_s = 30.0

    def decide(self, seen):
        return np.array([(2.0, 3.0, 3.0, 0.0)[int(seen.at_s // 300) % 4]])


def fleet(service, limits=None, **more):
    return Fleet(service, START, 1, 2.0, limits or {"ttft_s": 1e9}, **more)


def service(slots, each_s, shared=False, **more):
    n = np.arange(slots + 1.0)
    step_s = each_s * n if shared else np.full(slots + 1, each_s)
    step_s[0] = 0.0
    usual = {"token_s": 0.0, "chunk_tokens": 1e9, "pool_tokens": 1e12, "held": 0.0}
    return Service(slots=slots, step_s=step_s, **(usual | more))


def poisson(rate, count, outputs, inputs=None, seed=0):
    rng = np.random.default_rng(seed)
    arrival_s = np.cumsum(rng.exponential(1 / rate, count))
    inputs = np.ones(count) if inputs is None else inputs
    return Trace(arrival_s, inputs.astype(np.int64), np.asarray(outputs).astype(np.int64))


def erlang_wait(servers, rate, serve_s):
    """Mean wait of M/M/c by Erlang's C formula."""
    load = rate * serve_s
    tail = load**servers / factorial(servers) * servers / (servers - load)
    waits = tail / (sum(load**k / factorial(k) for k in range(servers)) + tail)
    return waits * serve_s / (servers - load)


def mean_wait(out, count):
    return out.series.waiting.mean() * out.span_s / count


@over("servers busy", [(1, 0.6), (4, 0.8)], share=2)
def test_a_central_queue_of_exponential_services_is_m_m_c(servers, busy):
    count, tokens = 250_000, 1000
    outputs = np.maximum(np.random.default_rng(3).exponential(tokens, count).round(), 1)
    trace = poisson(busy * servers, count, outputs, seed=4)  # a service takes a second
    run, most = fleet(service(1, 1 / tokens)), Constant(servers)
    out = simulate_requests(run, trace, most, begin=servers, central_queue=True)
    expected = erlang_wait(servers, count / trace.span_s, outputs.mean() / tokens)
    assert mean_wait(out, count) == pytest.approx(expected, rel=0.02)


@over("spread", ["two lengths", "constant"], share=2)
def test_shared_processing_depends_on_the_mean_only(spread):
    count, tokens, busy = 120_000, 300, 0.6
    outputs = np.full(count, tokens)
    if spread == "two lengths":
        short = np.random.default_rng(5).random(count) < 0.8
        outputs = np.where(short, tokens // 3, tokens * 11 // 3)
    trace = poisson(busy, count, outputs, seed=6)
    shared = fleet(service(64, 1 / outputs.mean(), shared=True))
    series = simulate_requests(shared, trace, Constant(1), begin=1, interval_s=1000).series
    first, rate = int(len(series.arrived) * 0.05), count / trace.span_s
    inside = (series.waiting + series.running)[first:-2].mean()
    assert inside / rate == pytest.approx(1 / (1 - rate), rel=0.02)


def test_prompts_of_one_length_are_m_d_1():
    count, busy = 250_000, 0.75
    trace = poisson(busy, count, np.ones(count), np.full(count, 1000), seed=8)
    one_by_one = service(1, 1.0, token_s=1e-3, chunk_tokens=1000, chunked=False)
    out = simulate_requests(fleet(one_by_one), trace, Constant(1), begin=1)
    rate = count / trace.span_s
    assert mean_wait(out, count) == pytest.approx(rate / (2 * (1 - rate)), rel=0.02)


def busy_fleet(seed=0, **more):
    serves = Service(64, 0.01 + 2e-4 * np.arange(65.0), 5e-5, 4096, 60_000)
    rng, count = np.random.default_rng(9), 20_000
    trace = poisson(12.0, count, rng.integers(1, 300, count), rng.integers(1, 2000, count))
    run = fleet(serves, {"ttft_s": 1.0, "tpot_s": 0.05}, **more)
    return trace, simulate_requests(run, trace, UpAndDown(), begin=2, seed=seed)


def test_requests_are_counted_replicas_paid_and_seeds_repeat():
    trace, out = busy_fleet()
    series = out.series
    assert (series.waiting + series.running).mean() > 0
    events = Events(failures_per_hour=3.0, reclaims_per_hour=3.0, notice_s=20.0)
    _, lossy = busy_fleet(events=events)
    assert lossy.lost > 0
    assert lossy.kept < out.kept <= out.requests == len(trace) == series.arrived.sum()
    assert series.kept.sum() == out.kept
    # what is paid is what is ready, starting and draining
    there = (series.ready + series.starting).sum() * 60
    assert there <= out.replica_s <= there * 1.1
    assert out.starts > 0
    assert out.delayed > 0
    assert series.wanted.max() == 3
    assert out.most_replicas >= 3
    (_, same), (_, other) = busy_fleet(), busy_fleet(seed=1)
    assert (out.replica_s, out.kept) == (same.replica_s, same.kept)
    assert (series.ttft_s == same.series.ttft_s).all()
    assert out.replica_s != other.replica_s
