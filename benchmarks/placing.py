"""Placing a fleet: ``python -m benchmarks.placing [MODELS]``, or ``… TRACE`` for a back-test.

50 models of the catalog on 20 pools of 800 devices: processor time of the columns of each model,
and time until a gap of 1 %.

A back-test plans the models of a trace (CSV of ``model, t_s, rate_rps`` by windows, such as
ServeGen's) for four parts of a day by the first half of its days, and holds the plan to the second
half: its cost beside that of every model placed alone, and of one kind of device for all.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import pandas as pd

from recipe_core.fleets.answer import FleetAnswer
from recipe_core.fleets.place import place_fleet, solve_problem
from recipe_core.fleets.placing import pose_fleet
from recipe_core.fleets.request import FleetRequest
from recipe_core.models.catalog import catalog_ids, load_model_spec

GAP = 0.01
# Pools: device, nodes of eight, term, price of a device-hour.
POOLS = (
    *(("h100-sxm", 8, "owned", 1.3), ("h100-sxm", 6, "reserved", 1.7)),
    *(("h100-sxm", 6, "on-demand", 2.6), ("h100-sxm", 4, "spot", 1.5)),
    *(("h200-sxm", 6, "owned", 1.7), ("h200-sxm", 4, "on-demand", 3.6)),
    *(("a100-sxm-80gb", 8, "owned", 0.7), ("a100-sxm-80gb", 4, "on-demand", 1.5)),
    *(("l40s", 6, "owned", 0.4), ("l40s", 6, "on-demand", 0.9), ("l40s", 4, "spot", 0.5)),
    *(("b200-sxm", 4, "on-demand", 5.0), ("b200-sxm", 4, "reserved", 3.6)),
    *(("mi300x", 6, "owned", 1.0), ("mi300x", 6, "on-demand", 2.4), ("mi300x", 4, "spot", 1.2)),
    *(("mi325x", 4, "on-demand", 2.6), ("mi355x", 4, "on-demand", 4.0)),
    *(("a10g", 4, "on-demand", 0.8), ("l4", 2, "on-demand", 0.6)),
)


def make_fleet(models: int, seed: int = 1) -> FleetRequest:
    """Return a fleet of models of the catalog up to 130 billion parameters, drawn at random."""
    rng = np.random.default_rng(seed)
    names, out = list(catalog_ids()), []
    for name in rng.permutation(names).tolist():
        spec = load_model_spec(name)
        if spec.parameters > 130e9 or spec.task == "score":
            continue
        length = int(rng.choice([256, 512, 1024, 2048]))
        workload = {"mode": "open", "input_tokens": length, "request_rate": 1.0}
        limits = {"request_latency_ms": 500.0}
        if spec.task == "generate":
            workload["output_tokens"] = int(rng.choice([64, 128, 256]))
            limits = {"ttft_ms": 3000.0, "tpot_ms": 80.0}
        workload["request_rate"] = float(np.exp(rng.uniform(np.log(2.0), np.log(200.0))))
        out.append(
            {
                "name": f"model-{len(out)}",
                "model": name,
                "workload": workload,
                "objective": {"limits": limits, "confidence": 0.8},
                "team": f"team {len(out) % 7}",
            }
        )
        if len(out) == models:
            break
    pools = [
        {
            "name": f"pool-{k}",
            "device": device,
            "nodes": nodes,
            "per_node": 8,
            "term": term,
            "usd_per_device_hour": usd,
        }
        for k, (device, nodes, term, usd) in enumerate(POOLS)
    ]
    return FleetRequest.parse({"models": out, "pools": pools, "headroom": {"failures": 1}})


def main(models: int) -> None:
    """Print times and costs."""
    request = make_fleet(models)
    started, used = time.monotonic(), time.process_time()
    problem = pose_fleet(request)
    columns, used = time.monotonic() - started, time.process_time() - used
    answer = solve_problem(problem, GAP, 60.0, None, explain=False)
    total_s = time.monotonic() - started
    devices = sum(pool.devices for pool in answer.pools)
    print(f"{models} models × {len(POOLS)} pools, {devices} devices")
    print(f"columns {columns:.1f} s, {used / models:.2f} s of processor time a model")
    print(f"options {len(problem.choices)}; solver {answer.seconds:.1f} s, gap {answer.gap:.2%}")
    print(f"total {total_s:.1f} s; {answer.status}; ${answer.usd_per_hour:,.2f} an hour")
    print(f"all limits hold together with {answer.probability:.1%}")
    for model in answer.models:
        if model.reason:
            print(f"{model.name} {model.unmet:.0%} unmet: {model.reason[:120]}")


# Models that stand for those of ServeGen, whose names are not published, with mean lengths.
SERVED = {
    "m-large": ("Qwen/Qwen2.5-72B-Instruct", 1200, 300),
    "m-small": ("Qwen/Qwen2.5-7B-Instruct", 800, 200),
    "mm-image": ("Qwen/Qwen2.5-VL-7B-Instruct", 1500, 100),
}
# Machines that are rented together: device, nodes of eight, price of a device-hour.
RENTED = (("h100-sxm", 64, 2.6), ("mi300x", 64, 2.4), ("l40s", 64, 0.9), ("a100-sxm-80gb", 64, 1.5))
PERIODS = (("night", 0), ("morning", 6), ("afternoon", 12), ("evening", 18))
# Of the windows of a period, the share that a plan is made for.
QUANTILE, DAY_S, PERIOD_S = 0.95, 86_400, 21_600


def backtest_fleet(path: str) -> None:
    """Print costs of plans by the first half of a trace, and how the second half fares."""
    trace = pd.read_csv(path)
    trace = trace[trace.rate_rps > 0]
    trace["period"] = (trace.t_s % DAY_S) // PERIOD_S
    days = trace.groupby("model").t_s.max() // DAY_S + 1
    middle = trace.model.map(np.maximum(days // 2, 1)) * DAY_S
    past, future = trace[trace.t_s < middle], trace[trace.t_s >= middle]
    models = [_served_model(name, rows) for name, rows in past.groupby("model") if name in SERVED]
    together = _placed(models, RENTED)
    alone = [_placed([model], RENTED) for model in models]
    single = {offer[0]: _placed(models, [offer]) for offer in RENTED}
    print(
        f"together ${together.usd_per_hour:,.2f} an hour, {together.status}, gap {together.gap:.2%}"
    )
    print(f"every model alone ${sum(a.usd_per_hour for a in alone):,.2f}")
    for name, answer in single.items():
        served = "" if answer.complete else ", not all served"
        print(f"only {name} ${answer.usd_per_hour:,.2f}{served}")
    for model in together.models:
        rows = (future if (future.model == model.name).any() else past).query(
            "model == @model.name"
        )
        capacity = {
            name: sum(part.replicas[name] * part.capacity_each for part in model.placements)
            for name, _ in PERIODS
        }
        numbers = {k: capacity[name] for k, (name, _) in enumerate(PERIODS)}
        keeps = rows.rate_rps <= rows.period.map(numbers)
        print(f"{model.name}: {keeps.mean():.1%} of {len(rows)} later windows within capacity")


def _served_model(name: str, rows: pd.DataFrame) -> dict[str, object]:
    """A model of the trace with the rate of each part of a day that most windows keep."""
    by_period = rows.groupby("period").rate_rps.quantile(QUANTILE)
    peak = float(by_period.max())
    model, length, answer = SERVED[name]
    workload = {"input_tokens": length, "output_tokens": answer, "request_rate": peak}
    return {
        "name": name,
        "model": model,
        "workload": {"mode": "open", **workload},
        "objective": {"limits": {"ttft_ms": 2000, "tpot_ms": 60}, "confidence": 0.8},
        "load": {PERIODS[int(k)][0]: float(rate / peak) for k, rate in by_period.items()},
    }


def _placed(models: list[dict[str, object]], offers: object) -> FleetAnswer:
    pools = [
        {
            "name": device,
            "device": device,
            "nodes": nodes,
            "per_node": 8,
            "term": "on-demand",
            "rented_by": "node",
            "usd_per_device_hour": usd,
        }
        for device, nodes, usd in offers
    ]
    periods = [{"name": name, "hours": 6, "start": start} for name, start in PERIODS]
    return place_fleet(
        FleetRequest.parse({"models": models, "pools": pools, "periods": periods}),
        gap=GAP,
        seconds=30.0,
        explain=False,
    )


if __name__ == "__main__":
    argument = sys.argv[1] if len(sys.argv) > 1 else "50"
    main(int(argument)) if argument.isdecimal() else backtest_fleet(argument)
