"""The flow against the simulation by requests; capacities and bounds of the same model."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from recipe_core.fleet.bounds import always_peak, clairvoyant
from recipe_core.fleet.capacity import capacity_per_s, replicas_for
from recipe_core.fleet.fleet import Events, Fleet, Service, StartTime
from recipe_core.fleet.flow import simulate_flow
from recipe_core.fleet.requests import simulate_requests
from recipe_core.fleet.shares import gaps
from recipe_core.traffic.load import Lengths, Load
from recipe_core.traffic.trace import Trace

LENGTHS = Lengths(
    np.array([100.0, 600.0, 2500.0]), np.array([50.0, 150.0, 300.0]), np.array([0.3, 0.5, 0.2])
)
SMALL = Service(32, 0.03 + 0.0005 * np.arange(33.0), 2e-4, 2048, 60_000)
LARGE = Service(256, 0.02 + 0.0001 * np.arange(257.0), 1e-4, 4096, 300_000)
LIMITS = {
    "small": {"ttft_s": 3.0, "request_latency_s": 25.0},
    "large": {"ttft_s": 2.0, "tpot_s": 0.06},
}
START = StartTime(90.0, 50.0, 160.0)
HOUR = np.arange(0.0, 2400.0, 60.0)
SHAPES = {
    "waves": 1 - 0.8 * np.cos(2 * np.pi * HOUR / 1200),
    "steps": np.where((HOUR // 400) % 2, 1.6, 0.5),
}


class Constant:
    interval_s = 60.0

    def __init__(self, count):
        self.count = count

    def decide(self, seen):
        return np.broadcast_to(np.asarray(self.count, float), seen.ready.shape)


class InFlight:
    """So many replicas that each has so many requests; the most of the last five minutes."""

    interval_s = 15.0

    def __init__(self, target, least=1):
        self.target, self.least, self.said = target, least, []

    def decide(self, seen):
        now = np.ceil((seen.running + seen.waiting) / self.target)
        self.said.append(np.clip(now, self.least, 30))
        return np.max(self.said[-20:], axis=0)


def fleet(kind, **more):
    service = {"small": SMALL, "large": LARGE}[kind]
    return Fleet(service, START, 1, 2.0, LIMITS[kind], **more)


@cache
def load(kind, shape, scale, burstiness=1.0):
    flat = Load(np.ones(1), 60.0, LENGTHS)
    rates = capacity_per_s(fleet(kind), flat) * scale * SHAPES[shape]
    return Load(rates, 60.0, LENGTHS, burstiness)


def arrivals(load, seed=5):
    """Gaps of the load's burstiness, bent to its rates."""
    rng = np.random.default_rng(seed)
    reached = np.concatenate([[0.0], np.cumsum(load.rates * load.interval_s)])
    places = np.cumsum(gaps(rng, load.burstiness, int(reached[-1] * 1.2) + 300))
    edges = np.arange(len(reached)) * load.interval_s
    at = np.interp(places[places < reached[-1]], reached, edges)
    chosen = rng.choice(3, len(at), p=LENGTHS.weight)
    inputs, outputs = LENGTHS.input_tokens[chosen], LENGTHS.output_tokens[chosen]
    return Trace(at, inputs.astype(np.int64), outputs.astype(np.int64))


@pytest.mark.parametrize("policy", ["enough", "scarce", "in flight"])
@pytest.mark.parametrize(
    ("kind", "shape", "scale", "burstiness"),
    [("small", "waves", 4.0, 1.0), ("large", "steps", 1.5, 1.0), ("small", "steps", 5.0, 2.0)],
)
def test_the_flow_agrees_with_requests_within_five_points(kind, shape, scale, burstiness, policy):
    offered = load(kind, shape, scale, burstiness)
    count = int(np.ceil(scale * {"enough": 1.7, "scarce": 1.4, "in flight": 1.0}[policy]))
    made = (
        (lambda: InFlight(6.0 if kind == "small" else 30.0))
        if policy == "in flight"
        else (lambda: Constant(count))
    )
    by_requests = simulate_requests(
        fleet(kind), arrivals(offered), made(), begin=count, span_s=offered.span_s
    )
    [flow] = simulate_flow(fleet(kind), offered, made(), columns=1, begin=np.array([count]))
    assert flow.attainment == pytest.approx(by_requests.attainment, abs=0.05)
    assert flow.replica_s == pytest.approx(by_requests.replica_s, rel=0.3)


def test_columns_do_not_see_each_other_and_seeds_repeat():
    offered = load("small", "waves", 4.0)
    targets = np.array([4.0, 8.0, 16.0])
    begin = np.full(3, 4.0)
    together = simulate_flow(fleet("small"), offered, InFlight(targets), columns=3, begin=begin)
    [alone] = simulate_flow(
        fleet("small"), offered, InFlight(targets[1:2]), columns=1, begin=begin[:1]
    )
    assert together[1].replica_s == alone.replica_s
    assert together[1].kept == pytest.approx(alone.kept, rel=1e-12)
    assert together[0].replica_s > together[1].replica_s > together[2].replica_s


def test_requests_wait_at_the_gateway_while_nothing_is_ready():
    offered = load("small", "steps", 2.0)
    made = lambda: InFlight(6.0)  # noqa: E731
    [flow] = simulate_flow(fleet("small"), offered, made(), columns=1, begin=np.zeros(1))
    exact = simulate_requests(
        fleet("small"), arrivals(offered), made(), begin=0, span_s=offered.span_s
    )
    assert flow.series.kept[0] == exact.series.kept[0] == 0.0
    assert flow.delayed > 0
    assert flow.attainment == pytest.approx(exact.attainment, abs=0.05)


def test_lost_replicas_cost_requests():
    offered = load("small", "waves", 4.0)
    events = Events(failures_per_hour=4.0)
    calm, lossy = (
        simulate_flow(run, offered, Constant(7.0), columns=1, begin=np.array([7.0]))[0]
        for run in (fleet("small"), fleet("small", events=events))
    )
    assert lossy.lost > 0
    assert lossy.kept < calm.kept


def test_capacity_is_the_rate_at_which_requests_just_keep_the_limits():
    run, flat = fleet("small"), Load(np.ones(1), 60.0, LENGTHS)
    rate = capacity_per_s(run, flat, 0.95)
    for share, keeps in ((0.85, True), (1.15, False)):
        steady = Load(np.full(120, rate * share), 60.0, LENGTHS)
        out = simulate_requests(run, arrivals(steady), Constant(1), begin=1)
        assert (out.attainment >= 0.95) == keeps


def test_more_replicas_carry_more_each():
    run, flat = fleet("small"), Load(np.ones(1), 60.0, LENGTHS)
    one = capacity_per_s(run, flat)
    rates = np.linspace(0, 40 * one, 50)
    needed = replicas_for(run, flat, rates)
    assert needed[0] == 0
    assert (np.diff(needed) >= 0).all()
    assert (needed <= np.ceil(rates / one)).all()
    assert needed[-1] < 40


@pytest.mark.parametrize("kind", ["small", "large"])
def test_no_policy_is_cheaper_than_the_clairvoyant_nor_a_constant_than_the_peak(kind):
    offered = load(kind, "waves", 3.0)
    peak = always_peak(fleet(kind), offered, 0.97)
    count = int(peak.most_replicas)
    assert peak.attainment >= 0.97
    targets = np.geomspace(2, 60, 12)
    begin = np.full(12, 3.0)
    outcomes = simulate_flow(fleet(kind), offered, InFlight(targets), columns=12, begin=begin)
    [fewer] = simulate_flow(
        fleet(kind), offered, Constant(count - 1.0), columns=1, begin=np.array([count - 1])
    )
    assert fewer.attainment < 0.97
    for out in (*outcomes, peak, fewer):
        least = clairvoyant(fleet(kind), offered, out.attainment)
        assert least.attainment >= out.attainment - 1e-9
        assert least.replica_s <= out.replica_s
