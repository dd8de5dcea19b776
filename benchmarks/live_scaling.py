"""Real servers behind a real proxy, scaled by the rule that a bundle was written with.

    python benchmarks/live_scaling.py --model DIR [--most 3] [--starts 10] [--json FILE]

Builds a bundle of the embedded engine with `options.scaling`, reads the rule back from its
ScaledObject, and lets it order and end replicas (each started by the bundle's own launcher, behind
HAProxy) while requests of a compressed working day come. Then simulates the same arrivals under the
same rule, with the service and start times that the run itself showed, and prints both. DIR is a
model for two cores, as `scripts/demo_model.py DIR` makes one. Times follow what the machine can do:
a slow one takes longer, and is asked for less.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from live_fleet import SLOTS, Answer, LiveFleet, Sample, send  # noqa: E402

from recipe_core.base.documents import read_document  # noqa: E402
from recipe_core.bundle.write import write_bundle  # noqa: E402
from recipe_core.recipe import make_recipe  # noqa: E402
from recipe_core.recipe.build import Additions  # noqa: E402
from recipe_core.recipe.place import read_parameters  # noqa: E402
from recipe_core.request.scaling import Scaling  # noqa: E402
from recipe_core.request.schema import PlanRequest  # noqa: E402
from recipe_core.scaling.fleet import Controller, Fleet, Service, Signals, StartTime  # noqa: E402
from recipe_core.scaling.outcome import Outcome  # noqa: E402
from recipe_core.scaling.policies import controller_of  # noqa: E402
from recipe_core.scaling.requests import simulate_requests  # noqa: E402
from recipe_core.scaling.traces.loads import Lengths, Load, draw_requests, shape_rates  # noqa: E402
from recipe_core.scaling.traces.trace import Trace  # noqa: E402
from recipe_core.targets.autoscale import KEDA  # noqa: E402
from tests.fixtures.read_scaling import read_scaling  # noqa: E402
from tests.fixtures.services import constant_service  # noqa: E402

OUTPUT_TOKENS = 96
PEAK = 1.25
"""The busiest hour, as a share of what one replica serves."""
DAY = slice(6, 22)
"""Hours of the day that are compressed into the run: it begins and ends quietly."""
BUSY = 0.45
"""Share of a replica's capacity above which the rule orders another one."""
COUNTER = 'haproxy_backend_sessions_total{proxy="replicas"}'
LIMIT = 5.0
"""Longest a request may take, in service times of one alone."""
SHORTEST_S, LONGEST_S = 60.0, 900.0
PATIENCE_S = 300.0
"""Longest wait for the rule to end what it ordered, after the last answer."""
PROBES = 12


def rule(max_replicas: int, target_per_s: float) -> dict[str, Any]:
    """The policy: requests per second of a replica, quick enough for a day of some minutes."""
    return {
        "policy": "keda",
        "min_replicas": 1,
        "max_replicas": max_replicas,
        "triggers": [{"metric": "request-rate", "target": round(target_per_s, 3)}],
        "interval_s": 2,
        "window_s": 10,
        "up_delay_s": 0,
        "down_delay_s": 12,
    }


def written(model: Path, bundle: Path, scaling: dict[str, Any] | None = None) -> None:
    """Write the bundle of the embedded engine, with a policy or without."""
    request = {
        "model": str(model),
        "hardware": {"device": "cpu", "per_node": 1},
        "workload": {"input_tokens": 32, "output_tokens": OUTPUT_TOKENS, "concurrency": SLOTS},
        "options": {"scaling": scaling} if scaling else {},
    }
    place = read_parameters({"image": "registry.example/engine:1", "gateway_metric": COUNTER})
    additions = Additions(parameters=place)
    write_bundle(make_recipe(PlanRequest.parse(request), additions), bundle)


def emitted(bundle: Path) -> Scaling:
    """The rule, read back from the bundle's ScaledObject."""
    return read_scaling([read_document(bundle / KEDA / "scaledobject.yaml", field="bundle")])


def day_of(rate_per_s: float, span_s: float) -> Load:
    """A working day of a code assistant, compressed; its busiest hour has ``rate_per_s``."""
    hours = shape_rates("azure-code")[DAY]
    lengths = Lengths(np.array([32.0]), np.array([float(OUTPUT_TOKENS)]), np.array([1.0]))
    rates = hours / hours.max() * rate_per_s
    return Load(rates, span_s / len(rates), lengths, 1.5, source="azure-code, compressed")


def live(fleet: LiveFleet, trace: Trace, controller: Controller, look_s: float) -> list[Sample]:
    """Send the requests while the rule orders and ends replicas, until it has ended them."""
    samples: list[Sample] = []
    with send(fleet, trace.arrival_s, OUTPUT_TOKENS) as clients:
        next_look_s, last_s = 0.0, float("inf")
        while not clients.done or (paid_replicas(samples[-1]) > 1 and clients.seconds < last_s):
            now_s = clients.seconds
            if clients.done and np.isinf(last_s):
                last_s = now_s + PATIENCE_S
            fleet.settle()
            sample = fleet.sample(now_s)
            if now_s >= next_look_s:
                next_look_s = now_s + look_s
                fleet.want(int(controller.decide(signals(sample))[0]))
            samples.append(sample)
            time.sleep(0.25)
    fleet.answers.extend(clients.answers)
    return samples


def paid_replicas(sample: Sample) -> int:
    """Replicas that are paid: ready, starting or finishing their last requests."""
    return sample.ready + sample.starting + sample.draining


def signals(sample: Sample) -> Signals:
    """Return what the proxy and the launchers show, as a policy sees it."""

    def column(value: float) -> Any:
        return np.array([float(value)])

    return Signals(
        at_s=sample.at_s,
        hour=0.0,
        ready=column(sample.ready),
        starting=column(sample.starting),
        running=column(sample.running),
        waiting=column(sample.waiting),
        kv_usage=column(0.0),
        arrived=column(sample.arrived),
        times_s=lambda: (column(0.0), column(0.0)),
    )


def service_of(answers: list[Answer]) -> Service:
    """The service that the run showed: mean seconds of a step by requests in the server."""
    by_count = [[a.service_s for a in answers if a.beside == n] for n in range(1, SLOTS + 1)]
    means = [float(np.mean(times)) for times in by_count if times]
    filled = [float(np.mean(times)) if times else means[-1] for times in by_count]
    steps = np.array([filled[0], *filled]) / OUTPUT_TOKENS
    return constant_service(steps, token_s=0.0, step_tokens=2048.0, pool_tokens=1e9)


def compared(model: Path, max_replicas: int, starts: float, work: Path) -> dict[str, Any]:
    """Run it, simulate it, and both as plain values."""
    written(model, work / "plain")
    with LiveFleet(work / "plain", model, work, max_replicas) as fleet:
        fleet.want(1)
        fleet.wait_ready(1)
        alone_s = fleet.probe(1, PROBES, OUTPUT_TOKENS)
        full_s = fleet.probe(SLOTS, PROBES, OUTPUT_TOKENS)
        fleet.bundle = work / "scaled"
        written(model, fleet.bundle, rule(max_replicas, BUSY * SLOTS / full_s))
        scaling = emitted(fleet.bundle)
        span_s = float(np.clip(starts * fleet.start_times_s[0], SHORTEST_S, LONGEST_S))
        load = day_of(PEAK * SLOTS / full_s, span_s)
        trace = draw_requests(load, seed=1)
        fleet.begin()
        live_rule = controller_of([scaling], capacity_per_s=SLOTS / full_s, start_s=0.0)
        samples = live(fleet, trace, live_rule, live_rule.interval_s)
        answers, started_s = list(fleet.answers), fleet.start_times_s[1:] or fleet.start_times_s
    limit_s = LIMIT * alone_s
    simulated = again(scaling, trace, answers, started_s, limit_s, SLOTS / full_s)
    return summary(samples, answers, limit_s, simulated, span_s, started_s, scaling)


def again(
    scaling: Scaling,
    trace: Trace,
    answers: list[Answer],
    started_s: list[float],
    limit_s: float,
    capacity_per_s: float,
) -> Outcome:
    """The same arrivals under the same rule, simulated."""
    start = StartTime(float(np.mean(started_s)), min(started_s), max(started_s))
    limits = {"request_latency_s": limit_s}
    fleet = Fleet(service_of(answers), start, 1, None, limits)
    controller = controller_of([scaling], capacity_per_s=capacity_per_s, start_s=start.seconds)
    return simulate_requests(fleet, trace, controller, begin=1, interval_s=1.0)


def summary(
    samples: list[Sample],
    answers: list[Answer],
    limit_s: float,
    simulated: Outcome,
    span_s: float,
    started_s: list[float],
    scaling: Scaling,
) -> dict[str, Any]:
    """Measured beside simulated: attainment, replicas, what was paid."""
    at_s = np.array([sample.at_s for sample in samples])
    ordered = np.array([paid_replicas(sample) for sample in samples])
    attainment = float(np.mean([answer.latency_s <= limit_s for answer in answers]))
    series = simulated.series
    times = np.arange(len(series.ready)) * series.interval_s
    paid = np.interp(times, at_s, ordered)
    model = series.ready + series.starting
    return {
        "scaling": scaling.to_json(),
        "span_s": span_s,
        "limit_s": limit_s,
        "start_s": started_s,
        "requests": len(answers),
        "failed": sum(not answer.ok for answer in answers),
        "measured": {
            "attainment": attainment,
            "replica_s": float(np.trapezoid(paid, times)),
            "most": int(ordered.max()),
            "last": int(ordered[-1]),
            "timeline": [(round(s.at_s, 1), s.ready, s.starting, s.ordered) for s in samples[::8]],
        },
        "simulated": {
            "attainment": simulated.attainment,
            "replica_s": simulated.replica_s,
            "most": int(simulated.most_replicas),
            "timeline": [
                (float(t), round(float(r), 2), round(float(s), 2))
                for t, r, s in zip(times[::5], series.ready[::5], series.starting[::5], strict=True)
            ],
        },
        "replicas_apart": float(np.mean(np.abs(paid - model))),
    }


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--most", type=int, default=3)
    parser.add_argument("--starts", type=float, default=10.0, help="length of the run, in starts")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="live-") as work:
        result = compared(options.model.resolve(), options.most, options.starts, Path(work))
    if options.json:
        options.json.write_text(json.dumps(result))
    measured, simulated = result["measured"], result["simulated"]
    length = f"{result['requests']} requests in {result['span_s']:.0f} s"
    print(f"{length}, limit {result['limit_s']:.2f} s")
    print(f"{'':12} {'kept':>8} {'replica s':>10} {'most':>5}")
    for name, run in (("measured", measured), ("simulated", simulated)):
        print(f"{name:12} {run['attainment']:8.1%} {run['replica_s']:10.0f} {run['most']:5d}")
    print(f"replicas apart on average: {result['replicas_apart']:.2f}")


if __name__ == "__main__":
    main()
