"""Speed and agreement of the simulators of fleets: ``python -m benchmarks.fleet [sweep]``.

Processor time of one core. Without a word: a million requests by requests, a week of 100 requests/s
as a flow. ``sweep``: the share of requests within limits by flow and by requests, over services,
shapes of load, bursts, sizes and policies.
"""

from __future__ import annotations

import sys
import time
from itertools import product

import numpy as np

from recipe_core.request.scaling import Scaling
from recipe_core.scaling.attainment import capacity_per_s, draw_arrival_gaps, shares_of
from recipe_core.scaling.fleet import Fleet, StartTime
from recipe_core.scaling.fluid import simulate_flow
from recipe_core.scaling.policies.controller import Fixed
from recipe_core.scaling.requests import simulate_requests
from recipe_core.scaling.traces.loads import Lengths, Load
from recipe_core.scaling.traces.trace import Trace
from tests.fixtures.services import constant_service

START = StartTime(90.0, 50.0, 160.0)
FLEETS = {
    "small": Fleet(
        constant_service(0.03 + 0.0005 * np.arange(33.0), 2e-4, 2048, 60_000),
        START,
        1,
        2.0,
        {"ttft_s": 3.0, "request_latency_s": 30.0},
    ),
    "middle": Fleet(
        constant_service(0.02 + 0.0002 * np.arange(257.0), 8e-5, 8192, 400_000),
        START,
        1,
        2.0,
        {"ttft_s": 1.0, "tpot_s": 0.03},
    ),
    "large": Fleet(
        constant_service(0.02 + 0.0001 * np.arange(257.0), 1e-4, 4096, 300_000),
        START,
        1,
        2.0,
        {"ttft_s": 2.0, "tpot_s": 0.06},
    ),
}


class InFlight:
    """So many replicas that each has so many requests; the most of the last five minutes."""

    interval_s = 15.0

    def __init__(self, target, floor=1.0):
        self.target, self.floor, self.recent, self.looks = target, floor, None, 0

    def decide(self, observation):
        now = np.ceil((observation.running + observation.waiting) / self.target)
        if self.recent is None:
            self.recent = np.zeros((20, *now.shape))
        self.recent[self.looks % 20] = np.clip(now, self.floor, 400)
        self.looks += 1
        return self.recent.max(axis=0)


def lengths(seed=0):
    rng = np.random.default_rng(seed)
    inputs = np.clip(rng.lognormal(np.log(600), 0.7, 400), 20, 6000).round()
    outputs = np.clip(rng.lognormal(np.log(180), 0.7, 400), 2, 1200).round()
    return Lengths(inputs, outputs, np.full(400, 1 / 400))


def arrivals(load, seed):
    rng = np.random.default_rng(seed)
    reached = np.concatenate([[0.0], np.cumsum(load.rates * load.interval_s)])
    places = np.cumsum(draw_arrival_gaps(rng, load.burstiness, int(reached[-1] * 1.2) + 300))
    edges = np.arange(len(reached)) * load.interval_s
    at = np.interp(places[places < reached[-1]], reached, edges)
    drawn = rng.choice(len(load.lengths.weight), len(at), p=load.lengths.weight)
    inputs, outputs = load.lengths.input_tokens[drawn], load.lengths.output_tokens[drawn]
    return Trace(at, inputs.astype(np.int64), outputs.astype(np.int64))


def fixed(count):
    return Fixed([Scaling(policy="fixed", min_replicas=count, max_replicas=count)])


def speed():
    fleet = FLEETS["large"]
    steady = Load(np.full(1000, 1000.0 / 60), 60.0, lengths())
    trace = arrivals(steady, 1)
    begun = time.process_time()
    out = simulate_requests(fleet, trace, fixed(5), begin=5)
    seconds = time.process_time() - begun
    print(f"{len(trace):,} requests: {seconds:.1f} s, {out.attainment:.4f} within limits")
    fleet = FLEETS["large"]
    hours = np.arange(168)
    week = Load(100 * (1 - 0.6 * np.cos(2 * np.pi * hours / 24)), 3600.0, lengths())
    begun = time.process_time()
    shares_of(fleet, week)
    print(f"tables: {time.process_time() - begun:.1f} s")
    for columns in (1, 100):
        targets, begin = np.geomspace(10, 40, columns), np.full(columns, 15.0)
        begun = time.process_time()
        out = simulate_flow(fleet, week, InFlight(targets), columns=columns, begin=begin)[0]
        seconds = time.process_time() - begun
        print(f"a week, {out.requests:,.0f} requests, {columns} columns: {seconds:.1f} s")


def sweep():
    hour = np.arange(0.0, 2400.0, 60.0)
    shapes = {
        "waves": 1 - 0.8 * np.cos(2 * np.pi * hour / 1200),
        "steps": np.where((hour // 400) % 2, 1.6, 0.5),
        "flat": np.ones(len(hour)),
    }
    policies, sizes = ("1x", "1.5x", "2x", "in flight", "in flight, tight"), (1.0, 3.0)
    differences = []
    for (name, fleet), (shape, form), bursts in product(FLEETS.items(), shapes.items(), (1.0, 2.5)):
        flat = Load(np.ones(1), 60.0, lengths(), bursts)
        replica_per_s = capacity_per_s(fleet, Load(np.ones(1), 60.0, lengths()))
        curve = shares_of(fleet, flat).curve
        target = float(np.interp(0.8 * capacity_per_s(fleet, flat), curve.rate, curve.in_flight))
        for size, policy in product(sizes, policies):
            load = Load(replica_per_s * size * form, 60.0, lengths(), bursts)
            times = {"1x": 1.0, "1.5x": 1.5, "2x": 2.0}.get(policy)
            count = float(np.ceil(size * (times or 1.0)))

            def made(times=times, count=count, policy=policy, target=target):
                if times:
                    return fixed(int(count))
                return InFlight(max(target * (1.4 if "tight" in policy else 1.0), 2.0))

            trace = arrivals(load, 5)
            exact = simulate_requests(fleet, trace, made(), begin=int(count), span_s=load.span_s)
            [flow] = simulate_flow(fleet, load, made(), columns=1, begin=np.array([count]))
            differences.append(flow.attainment - exact.attainment)
            print(
                f"{name:7} {shape:6} bursts {bursts} x{size:.0f} {policy:17}"
                f" requests {exact.attainment:.4f} flow {flow.attainment:.4f}"
                f" replica hours {exact.replica_s / 3600:.2f} {flow.replica_s / 3600:.2f}"
            )
    off = np.abs(differences)
    print(
        f"{len(off)} cases: mean {off.mean():.4f}, 90 % within {np.quantile(off, 0.9):.4f},"
        f" {np.mean(off <= 0.05):.0%} within 0.05, largest {off.max():.4f}"
    )


if __name__ == "__main__":
    sweep() if "sweep" in sys.argv[1:] else speed()
