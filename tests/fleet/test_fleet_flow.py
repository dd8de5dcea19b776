"""The flow against the simulation by requests; capacities and bounds of the same model."""

from functools import cache
from itertools import product

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
from tests.fixtures.fleets import Constant
from tests.fixtures.rows import over

LENGTHS = Lengths(*map(np.array, ([100.0, 600.0, 2500.0], [50.0, 150.0, 300.0], [0.3, 0.5, 0.2])))
FLAT = Load(np.ones(1), 60.0, LENGTHS)
SMALL = Service(32, 0.03 + 0.0005 * np.arange(33.0), 2e-4, 2048, 60_000)
LARGE = Service(256, 0.02 + 0.0001 * np.arange(257.0), 1e-4, 4096, 300_000)
LIMITS = {"small": {"ttft_s": 3.0, "request_latency_s": 25.0}}
LIMITS["large"] = {"ttft_s": 2.0, "tpot_s": 0.06}
START = StartTime(90.0, 50.0, 160.0)
HOUR = np.arange(0.0, 2400.0, 60.0)
SHAPES = {
    "waves": 1 - 0.8 * np.cos(2 * np.pi * HOUR / 1200),
    "steps": np.where((HOUR // 400) % 2, 1.6, 0.5),
}


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
    rates = capacity_per_s(fleet(kind), FLAT) * scale * SHAPES[shape]
    return Load(rates, 60.0, LENGTHS, burstiness)


def flowed(run, offered, made, *begin):
    return simulate_flow(run, offered, made, columns=len(begin), begin=np.array(begin))


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


CASES = [("small", "waves", 4.0, 1.0), ("large", "steps", 1.5, 1.0), ("small", "steps", 5.0, 2.0)]


# every load and every policy by day
@over("case policy", product(CASES, ["enough", "scarce", "in flight"]), share=4)
def test_the_flow_agrees_with_requests_within_five_points(case, policy):
    kind, shape, scale, burstiness = case
    offered = load(kind, shape, scale, burstiness)
    count = int(np.ceil(scale * {"enough": 1.7, "scarce": 1.4, "in flight": 1.0}[policy]))

    target = 6.0 if kind == "small" else 30.0

    def made():
        return InFlight(target) if policy == "in flight" else Constant(count)

    trace, span_s = arrivals(offered), offered.span_s
    exact = simulate_requests(fleet(kind), trace, made(), begin=count, span_s=span_s)
    [flow] = flowed(fleet(kind), offered, made(), count)
    assert flow.attainment == pytest.approx(exact.attainment, abs=0.05)
    assert flow.replica_s == pytest.approx(exact.replica_s, rel=0.3)


def test_columns_do_not_see_each_other_and_seeds_repeat():
    offered, targets = load("small", "waves", 4.0), np.array([4.0, 8.0, 16.0])
    together = flowed(fleet("small"), offered, InFlight(targets), 4.0, 4.0, 4.0)
    [alone] = flowed(fleet("small"), offered, InFlight(targets[1:2]), 4.0)
    assert together[1].replica_s == alone.replica_s
    assert together[1].kept == pytest.approx(alone.kept, rel=1e-12)
    assert together[0].replica_s > together[1].replica_s > together[2].replica_s


def test_requests_wait_at_the_gateway_and_lost_replicas_cost_some():
    offered, run = load("small", "steps", 2.0), fleet("small")
    [flow] = flowed(run, offered, InFlight(6.0), 0.0)
    trace, span_s = arrivals(offered), offered.span_s
    exact = simulate_requests(run, trace, InFlight(6.0), begin=0, span_s=span_s)
    assert flow.series.kept[0] == exact.series.kept[0] == 0.0
    assert flow.delayed > 0
    assert flow.attainment == pytest.approx(exact.attainment, abs=0.05)
    offered, events = load("small", "waves", 4.0), Events(failures_per_hour=4.0)
    calm, lossy = (
        flowed(run, offered, Constant(7.0), 7.0)[0]
        for run in (fleet("small"), fleet("small", events=events))
    )
    assert lossy.lost > 0
    assert lossy.kept < calm.kept


def test_capacity_is_the_rate_at_which_requests_just_keep_the_limits():
    run = fleet("small")
    rate = capacity_per_s(run, FLAT, 0.95)
    for share, keeps in ((0.85, True), (1.15, False)):
        steady = Load(np.full(120, rate * share), 60.0, LENGTHS)
        out = simulate_requests(run, arrivals(steady), Constant(1), begin=1)
        assert (out.attainment >= 0.95) == keeps
    # more replicas carry more each
    one = capacity_per_s(run, FLAT)
    rates = np.linspace(0, 40 * one, 50)
    needed = replicas_for(run, FLAT, rates)
    assert needed[0] == 0
    assert (np.diff(needed) >= 0).all()
    assert (needed <= np.ceil(rates / one)).all()
    assert needed[-1] < 40


@pytest.mark.parametrize("kind", ["small", "large"])
def test_no_policy_is_cheaper_than_the_clairvoyant_nor_a_constant_than_the_peak(kind):
    offered, run = load(kind, "waves", 3.0), fleet(kind)
    peak = always_peak(run, offered, 0.97)
    count = int(peak.most_replicas) - 1
    assert peak.attainment >= 0.97
    outcomes = flowed(run, offered, InFlight(np.geomspace(2, 60, 12)), *[3.0] * 12)
    [fewer] = flowed(run, offered, Constant(count), count)
    assert fewer.attainment < 0.97
    for out in (*outcomes, peak, fewer):
        least = clairvoyant(run, offered, out.attainment)
        assert least.attainment >= out.attainment - 1e-9
        assert least.replica_s <= out.replica_s
