"""The simulation by requests against queueing theory and the plan's own scheduler, and the flow
against that simulation; its capacities, bounds and what happens to replicas.
"""

from functools import cache
from itertools import product
from math import factorial

import numpy as np
import pytest

from recipe_core.base.errors import InputError, NoAnswer
from recipe_core.estimates.serving.simulate import Spread, simulate_serving
from recipe_core.plans.plans import plan_candidate
from recipe_core.plans.splits import row_estimates
from recipe_core.scaling.attainment import capacity_per_s, draw_arrival_gaps, replicas_for
from recipe_core.scaling.bounds import always_peak, clairvoyant
from recipe_core.scaling.fleet import Events, Fleet, StartTime
from recipe_core.scaling.fluid import simulate_flow
from recipe_core.scaling.groups import Groups
from recipe_core.scaling.policies.controller import Fixed
from recipe_core.scaling.requests import simulate_requests
from recipe_core.scaling.scenario import events_of
from recipe_core.scaling.service import curve_of, service_of
from recipe_core.scaling.traces.loads import Lengths, Load
from recipe_core.scaling.traces.trace import Trace
from tests.conftest import make_request
from tests.fixtures.rows import over, table
from tests.fixtures.services import constant_service

START = StartTime(120.0, 60.0, 240.0)


class Constant:
    """So many replicas, whatever comes."""

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
    usual = {"token_s": 0.0, "step_tokens": 1e9, "pool_tokens": 1e12}
    return constant_service(step_s, **(usual | more))


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
    count = 250_000
    trace = poisson(0.75, count, np.ones(count), np.full(count, 1000), seed=8)
    one_by_one = service(1, 1.0, token_s=1e-3, step_tokens=1000, chunked=False)
    out = simulate_requests(fleet(one_by_one), trace, Constant(1), begin=1)
    rate = count / trace.span_s
    assert mean_wait(out, count) == pytest.approx(rate / (2 * (1 - rate)), rel=0.02)


def busy_fleet(seed=0, **more):
    serves = constant_service(0.01 + 2e-4 * np.arange(65.0), 5e-5, 4096, 60_000)
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
    assert (
        lossy.kept_requests
        < out.kept_requests
        <= out.requests
        == len(trace)
        == series.arrived.sum()
    )
    assert series.kept_requests.sum() == out.kept_requests
    # what is paid is what is ready, starting and draining
    there = (series.ready + series.starting).sum() * 60
    assert there <= out.replica_s <= there * 1.1
    assert min(out.starts, out.delayed) > 0
    assert out.most_replicas >= series.desired.max() == 3
    (_, same), (_, other) = busy_fleet(), busy_fleet(seed=1)
    assert (out.replica_s, out.kept_requests) == (same.replica_s, same.kept_requests)
    assert (series.ttft_s == same.series.ttft_s).all()
    assert out.replica_s != other.replica_s


LENGTHS = Lengths(*map(np.array, ([100.0, 600.0, 2500.0], [50.0, 150.0, 300.0], [0.3, 0.5, 0.2])))
FLAT = Load(np.ones(1), 60.0, LENGTHS)
SMALL = constant_service(0.03 + 0.0005 * np.arange(33.0), 2e-4, 2048, 60_000)
LARGE = constant_service(0.02 + 0.0001 * np.arange(257.0), 1e-4, 4096, 300_000)
LIMITS = {"small": {"ttft_s": 3.0, "request_latency_s": 25.0}}
LIMITS["large"] = {"ttft_s": 2.0, "tpot_s": 0.06}
HOUR = np.arange(0.0, 2400.0, 60.0)
SHAPES = {"waves": 1 - 0.8 * np.cos(2 * np.pi * HOUR / 1200)}
SHAPES["steps"] = np.where((HOUR // 400) % 2, 1.6, 0.5)


class InFlight:
    """So many replicas that each has so many requests; the most of the last five minutes."""

    interval_s = 15.0

    def __init__(self, target, least=1):
        self.target, self.least, self.said = target, least, []

    def decide(self, seen):
        now = np.ceil((seen.running + seen.waiting) / self.target)
        self.said.append(np.clip(now, self.least, 30))
        return np.max(self.said[-20:], axis=0)


def standing(kind, **more):
    service = {"small": SMALL, "large": LARGE}[kind]
    return Fleet(service, StartTime(90.0, 50.0, 160.0), 1, 2.0, LIMITS[kind], **more)


@cache
def load(kind, shape, scale, burstiness=1.0):
    rates = capacity_per_s(standing(kind), FLAT) * scale * SHAPES[shape]
    return Load(rates, 60.0, LENGTHS, burstiness)


def flowed(run, offered, made, *begin):
    return simulate_flow(run, offered, made, columns=len(begin), begin=np.array(begin))


def arrivals(load, seed=5):
    """Gaps of the load's burstiness, bent to its rates."""
    rng = np.random.default_rng(seed)
    reached = np.concatenate([[0.0], np.cumsum(load.rates * load.interval_s)])
    places = np.cumsum(draw_arrival_gaps(rng, load.burstiness, int(reached[-1] * 1.2) + 300))
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

    def made():
        target = 6.0 if kind == "small" else 30.0
        return InFlight(target) if policy == "in flight" else Constant(count)

    trace, span_s = arrivals(offered), offered.span_s
    exact = simulate_requests(standing(kind), trace, made(), begin=count, span_s=span_s)
    [flow] = flowed(standing(kind), offered, made(), count)
    assert flow.attainment == pytest.approx(exact.attainment, abs=0.05)
    assert flow.replica_s == pytest.approx(exact.replica_s, rel=0.3)


@over("count", [2, 4], share=2)
def test_turns_make_every_queue_one_of_its_own(count):
    """Poisson arrivals dealt to c servers in turn: E_c/M/1, whose wait has a root to be found."""
    number, tokens, busy = 250_000, 1000, 0.8
    outputs = np.maximum(np.random.default_rng(3).exponential(tokens, number).round(), 1)
    trace = poisson(busy * count, number, outputs, seed=4)
    run = fleet(service(1, 1 / tokens), dispatch="round-robin")
    out = simulate_requests(run, trace, Constant(count), begin=count)
    serve_s, rate = outputs.mean() / tokens, number / trace.span_s
    # sigma = A*(mu (1 - sigma)), with A* the transform of c exponential gaps (Kleinrock, G/M/1)
    sigma = 0.5
    for _ in range(200):
        sigma = (rate / (rate + (1 - sigma) / serve_s)) ** count
    assert mean_wait(out, number) == pytest.approx(serve_s * sigma / (1 - sigma), rel=0.03)
    shared = simulate_requests(fleet(service(1, 1 / tokens)), trace, Constant(count), begin=count)
    assert mean_wait(shared, number) < 0.75 * mean_wait(out, number)


@over("dispatch", ["least-loaded", "round-robin"])
def test_a_scale_out_from_a_minimum_is_the_same_in_both_simulators(dispatch):
    """One replica meets the load of four while others start; it costs what a right number keeps."""
    offered = load("small", "steps", 4.0)
    trace, span_s = arrivals(offered), offered.span_s
    run = standing("small", dispatch=dispatch)
    kept = []
    for begin in (1, 4):
        exact = simulate_requests(run, trace, InFlight(6.0), begin=begin, span_s=span_s)
        [flow] = flowed(run, offered, InFlight(6.0), begin)
        assert flow.attainment == pytest.approx(exact.attainment, abs=0.05)
        kept.append((exact.attainment, flow.attainment))
    assert all(minimum < needed for minimum, needed in zip(*kept, strict=True))


def test_what_arrives_in_turn_reaches_crowded_replicas_too():
    curve = curve_of(SMALL, LENGTHS)
    reached = {}
    for dispatch in ("least-loaded", "round-robin"):
        groups = Groups(curve, np.array([2.0]), dispatch)
        groups.in_flight[:, 0] = 8.0
        groups.add(np.array([2.0]))
        reached[dispatch] = groups.arrive(np.full((2, 1), 4.0))[0, :, 0]
    assert reached["least-loaded"].tolist() == [0.0, 2.0]
    assert reached["round-robin"].tolist() == [1.0, 1.0]


def test_columns_do_not_see_each_other_and_seeds_repeat():
    offered, targets = load("small", "waves", 4.0), np.array([4.0, 8.0, 16.0])
    together = flowed(standing("small"), offered, InFlight(targets), 4.0, 4.0, 4.0)
    [alone] = flowed(standing("small"), offered, InFlight(targets[1:2]), 4.0)
    assert together[1].replica_s == alone.replica_s
    assert together[1].kept_requests == pytest.approx(alone.kept_requests, rel=1e-12)
    assert together[0].replica_s > together[1].replica_s > together[2].replica_s


def test_requests_wait_at_the_gateway_and_lost_replicas_cost_some():
    offered, run = load("small", "steps", 2.0), standing("small")
    [flow] = flowed(run, offered, InFlight(6.0), 0.0)
    trace, span_s = arrivals(offered), offered.span_s
    exact = simulate_requests(run, trace, InFlight(6.0), begin=0, span_s=span_s)
    assert flow.series.kept_requests[0] == exact.series.kept_requests[0] == 0.0
    assert flow.delayed > 0
    assert flow.attainment == pytest.approx(exact.attainment, abs=0.05)
    offered, events = load("small", "waves", 4.0), Events(failures_per_hour=4.0)
    calm, lossy = (
        flowed(run, offered, Constant(7.0), 7.0)[0]
        for run in (standing("small"), standing("small", events=events))
    )
    assert lossy.lost > 0
    assert lossy.kept_requests < calm.kept_requests


def test_capacity_is_the_rate_at_which_requests_just_keep_the_limits():
    run = standing("small")
    rate = capacity_per_s(run, FLAT, 0.95)
    for share, keeps in ((0.85, True), (1.15, False)):
        steady = Load(np.full(120, rate * share), 60.0, LENGTHS)
        out = simulate_requests(run, arrivals(steady), Constant(1), begin=1)
        assert (out.attainment >= 0.95) == keeps
    # more replicas carry more each
    single = capacity_per_s(run, FLAT)
    rates = np.linspace(0, 40 * single, 50)
    needed = replicas_for(run, FLAT, rates)
    assert needed[0] == 0
    assert (np.diff(needed) >= 0).all()
    assert (needed <= np.ceil(rates / single)).all()
    assert needed[-1] < 40


@pytest.mark.parametrize("kind", ["small", "large"])
def test_no_policy_is_cheaper_than_the_clairvoyant_nor_a_constant_than_the_peak(kind):
    offered, run = load(kind, "waves", 3.0), standing(kind)

    def fixed(scalings):
        counts = [float(scaling.max_replicas) for scaling in scalings]
        return flowed(run, offered, Fixed(scalings), *counts)

    always, peak = always_peak(run, offered, fixed, 0.97)
    count = always.max_replicas - 1
    assert peak.attainment >= 0.97
    outcomes = flowed(run, offered, InFlight(np.geomspace(2, 60, 12)), *[3.0] * 12)
    [fewer] = flowed(run, offered, Constant(count), count)
    assert fewer.attainment < 0.97
    for out in (*outcomes, peak, fewer):
        least = clairvoyant(run, offered, out.attainment)
        assert least.attainment >= out.attainment - 1e-9
        assert least.replica_s <= out.replica_s


LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"


def planned(model, device, rate, inputs, outputs, **candidate):
    load = {"mode": "open", "request_rate": rate, "concurrency": None}
    load |= {"input_tokens": inputs, "output_tokens": outputs}
    split = {"engine": "vllm", "tp": 1, "pp": 1, "dp": 1, "ep": 1} | candidate
    return plan_candidate(make_request(model, device, workload=load, candidate=split))


def served(plan, row, trace, limits, **more):
    run = Fleet(service_of(plan, row), StartTime(1.0, 1.0, 1.0), 1, None, limits)
    return simulate_requests(run, trace, Constant(1), begin=1, **more)


@over("model device rate inputs outputs candidate", table("fleet", "served"))
def test_a_server_serves_as_the_plans_own_scheduler(
    model, device, rate, inputs, outputs, candidate
):
    plan, row = planned(model, device, rate, inputs, outputs, **candidate)
    (block, i), (estimates, place) = plan.at(row), row_estimates(plan, row)
    split = block.setting, block.cases.take([i]), estimates.memory.take(np.array([place]))
    exact = simulate_serving(*split, spread=Spread(0.5, 0.5), requests=2000)
    rng, count = np.random.default_rng(0), 2750  # the same draws
    lengths = [rng.integers(n // 2, n * 3 // 2 + 1, count) for n in (inputs, outputs)]
    trace = Trace(np.cumsum(rng.exponential(1 / rate, count)), *lengths)
    series = served(plan, row, trace, {}, interval_s=trace.span_s / 11).series
    arrived = series.arrived[2:10]
    ttft_s = np.average(series.ttft_s[2:10], weights=arrived)
    assert ttft_s == pytest.approx(exact.means_s["ttft_s"][0], rel=0.01)
    latency_s = (series.running + series.waiting)[2:10].sum() * series.interval_s / arrived.sum()
    assert latency_s == pytest.approx(exact.means_s["request_latency_s"][0], rel=0.01)


def test_two_pools_have_no_service_and_an_embedding_ends_with_its_prompt():
    pools = {"prefill": {"tp": 1, "replicas": 1}}
    with pytest.raises(NoAnswer, match="prefill pool"):
        service_of(*planned(LLAMA_8B, "h100-sxm", 2, 1024, 256, **pools))
    plan, row = planned("BAAI/bge-large-en-v1.5", "l40s", 20, 256, 1)
    count = 2000
    trace = Trace(np.arange(count) / 20, np.full(count, 256), np.ones(count, dtype=np.int64))
    out = served(plan, row, trace, {"ttft_s": 1.0})
    estimates, place = row_estimates(plan, row)
    assert out.kept_requests == count
    assert np.nanmean(out.series.ttft_s) == pytest.approx(estimates.serving.ttft_s[place], rel=0.25)


def test_replicas_on_eight_h100_fail_as_published_fleets_do():
    def failures(**place):
        return events_of("sm_90", **place).failures_per_hour

    # Llama 3 3.79, FT-HSDP 2.3 and Imbue 4.29 failures per 1,000 node-days: the median is 3.79
    assert failures() * 24 * 1000 == pytest.approx(3.79)
    assert 150 <= 1 / failures() / 24 <= 430  # days, the range of seven fleets
    assert failures(nodes=8) == pytest.approx(8 * failures())
    assert 19 <= 1 / failures(nodes=8) / 24 <= 54  # days, 64 GPUs
    # smaller nodes fail less often but not in proportion
    lone, eight = (failures(devices_per_node=n) for n in (1, 8))
    assert eight / 8 < lone < eight
    with pytest.raises(InputError, match="nodes"):
        failures(nodes=0)


def test_only_spot_instances_are_reclaimed():
    rented, spot = events_of("sm_80"), events_of("sm_80", spot=True)
    assert (rented.reclaims_per_hour, rented.available, rented.notice_s) == (0, 1, 0)
    assert spot.reclaims_per_hour == pytest.approx(11 / 96)
    assert spot.available < 1
    assert spot.notice_s == 30  # the shortest of three clouds, where none is named
    assert events_of("sm_80", spot=True, provider="Another cloud") == spot
    assert events_of("sm_70", spot=True, provider="Amazon Web Services").notice_s == 120
    assert events_of("sm_90").repair_s == pytest.approx(300, rel=0.01)  # replaced in 5 minutes
    assert events_of("sm_90", ownership="own").repair_s > 8 * 3600


def test_reclaims_of_a100_are_those_of_the_spothedge_traces():
    # 1/31, 3/127, 25/67, 11/96 and 36/20 losses per instance-hour, by zone
    assert events_of("sm_80", spot=True).reclaims_per_hour == pytest.approx(11 / 96)
    # a device without traces takes those of all GPUs
    of_any = events_of("sm_90", spot=True).reclaims_per_hour
    assert of_any == events_of(None, spot=True).reclaims_per_hour
