"""The simulation by requests against queueing theory, and what must hold whatever comes."""

from __future__ import annotations

from math import factorial

import numpy as np
import pytest

from recipe_core.fleet.fleet import Events, Fleet, Service, StartTime
from recipe_core.fleet.requests import simulate_requests
from recipe_core.traffic.trace import Trace

START = StartTime(120.0, 60.0, 240.0)


class Constant:
    interval_s = 60.0

    def __init__(self, count):
        self.count = count

    def decide(self, seen):
        return np.full(len(seen.ready), float(self.count))


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


def mean_in_system(out, skip=0.05):
    first = int(len(out.series.arrived) * skip)
    return (out.series.waiting + out.series.running)[first:-2].mean()


def erlang_wait(servers, rate, serve_s):
    """Mean wait of M/M/c by Erlang's C formula."""
    load = rate * serve_s
    tail = load**servers / factorial(servers) * servers / (servers - load)
    waits = tail / (sum(load**k / factorial(k) for k in range(servers)) + tail)
    return waits * serve_s / (servers - load)


@pytest.mark.parametrize(("servers", "busy"), [(1, 0.6), (4, 0.8)])
def test_a_central_queue_of_exponential_services_is_m_m_c(servers, busy):
    count, tokens = 250_000, 1000
    rng = np.random.default_rng(3)
    outputs = np.maximum(rng.exponential(tokens, count).round(), 1)
    rate = busy * servers  # a service takes a second
    trace = poisson(rate, count, outputs, seed=4)
    run = fleet(service(1, 1 / tokens))
    out = simulate_requests(run, trace, Constant(servers), begin=servers, central_queue=True)
    served = outputs.mean() / tokens
    expected = erlang_wait(servers, count / trace.span_s, served)
    waited = out.series.waiting.mean() * out.span_s / count
    assert waited == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("spread", ["constant", "two lengths"])
def test_shared_processing_depends_on_the_mean_only(spread):
    count, tokens, busy = 120_000, 300, 0.6
    rng = np.random.default_rng(5)
    outputs = np.full(count, tokens)
    if spread == "two lengths":
        outputs = np.where(rng.random(count) < 0.8, tokens // 3, tokens * 11 // 3)
    each_s = 1 / outputs.mean()
    trace = poisson(busy, count, outputs, seed=6)
    shared = service(64, each_s, shared=True)
    out = simulate_requests(fleet(shared), trace, Constant(1), begin=1, interval_s=1000)
    arrived, rate = mean_in_system(out), count / trace.span_s
    assert arrived / rate == pytest.approx(1 / (1 - rate), rel=0.02)


def test_prompts_of_one_length_are_m_d_1():
    count, busy = 250_000, 0.75
    prompts = np.full(count, 1000)
    trace = poisson(busy, count, np.ones(count), prompts, seed=8)
    one_by_one = service(1, 1.0, token_s=1e-3, chunk_tokens=1000, chunked=False)
    out = simulate_requests(fleet(one_by_one), trace, Constant(1), begin=1)
    rate = count / trace.span_s
    assert out.series.waiting.mean() * out.span_s / count == pytest.approx(
        rate / (2 * (1 - rate)), rel=0.02
    )


def busy_fleet(seed=0, trace_seed=9, **more):
    n = np.arange(65.0)
    serves = Service(64, 0.01 + 2e-4 * n, 5e-5, 4096, 60_000)
    rng = np.random.default_rng(trace_seed)
    count = 20_000
    trace = poisson(12.0, count, rng.integers(1, 300, count), rng.integers(1, 2000, count))
    run = fleet(serves, {"ttft_s": 1.0, "tpot_s": 0.05}, **more)
    return trace, simulate_requests(run, trace, UpAndDown(), begin=2, seed=seed)


def test_as_many_requests_are_inside_as_come_in_the_time_that_they_stay():
    trace, out = busy_fleet()
    inside = (out.series.waiting + out.series.running).mean()
    events = Events(failures_per_hour=3.0, reclaims_per_hour=3.0, notice_s=20.0)
    _, lossy = busy_fleet(events=events)
    assert inside > 0
    assert lossy.lost > 0
    assert lossy.kept < out.kept <= out.requests == len(trace) == out.series.arrived.sum()
    assert out.series.kept.sum() == out.kept


def test_what_is_paid_is_what_is_ready_starting_and_draining():
    _, out = busy_fleet()
    there = (out.series.ready + out.series.starting).sum() * 60
    assert there <= out.replica_s <= there * 1.1
    assert out.starts > 0
    assert out.delayed > 0
    assert out.series.wanted.max() == 3
    assert out.most_replicas >= 3


def test_the_same_seed_gives_the_same_bits_and_another_one_others():
    (_, one), (_, same), (_, other) = busy_fleet(), busy_fleet(), busy_fleet(seed=1)
    assert one.replica_s == same.replica_s
    assert one.kept == same.kept
    assert (one.series.ttft_s == same.series.ttft_s).all()
    assert one.replica_s != other.replica_s
