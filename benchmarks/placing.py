"""Speed of placing a fleet: ``python -m benchmarks.placing [MODELS]``.

50 models of the catalog on 20 pools of 800 devices: processor time of the columns of each model,
time until a gap of 1 %, and what placing every model alone, or on one kind of device, would cost.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from recipe_core.fleets.place import solve_problem
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
        workload["request_rate"] = float(np.exp(rng.uniform(np.log(0.5), np.log(20.0))))
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
    return FleetRequest.parse({"models": out, "pools": pools})


def main(models: int) -> None:
    """Print times and costs."""
    request = make_fleet(models)
    started, used = time.monotonic(), time.process_time()
    problem = pose_fleet(request)
    columns, used = time.monotonic() - started, time.process_time() - used
    answer = solve_problem(problem, GAP, 60.0, None, explain=False)
    whole = time.monotonic() - started
    devices = sum(pool.devices for pool in answer.pools)
    print(f"{models} models × {len(POOLS)} pools, {devices} devices")
    print(f"columns {columns:.1f} s, {used / models:.2f} s of processor time a model")
    print(f"options {len(problem.choices)}; solver {answer.seconds:.1f} s, gap {answer.gap:.2%}")
    print(f"whole {whole:.1f} s; {answer.status}; ${answer.usd_per_hour:,.2f} an hour")
    print(f"all limits hold together with {answer.probability:.1%}")
    for model in answer.models:
        if model.reason:
            print(f"{model.name} {model.unmet:.0%} unmet: {model.reason[:120]}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
