"""Time of `recipe plan` as a whole process, against a plain loop on the same machine.

The loop stands for the machine: seconds mean little where others use it too, what runs in turn with
the loop is slowed as much.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOOP = "sum(i * i for i in range(10_000_000))"
RATIOS = {"plan_ratio": 0.6, "plan_json_ratio": 1.0}
"""What a plan as text, and as JSON, may take at most of the time of the loop."""
REQUEST = {
    "model": "meta-llama/Llama-3.1-70B-Instruct",
    "hardware": {"device": "h100-sxm", "per_node": 8, "nodes": 1},
    "workload": {
        "kind": "serving",
        "mode": "closed",
        "input_tokens": 1024,
        "output_tokens": 1024,
        "concurrency": 64,
    },
    "objective": {"optimize": "throughput"},
}

Seconds = tuple[float, float]
"""By the clock, and of the processor."""


def ratios(pairs: int = 7) -> dict[str, float | dict[str, float]]:
    """Medians over alternating runs: processor seconds and seconds of both, and their ratio."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as request:
        json.dump(REQUEST, request)
        request.flush()
        plan = ("-m", "recipe_core", "plan", request.name)
        words = {"loop": ("-c", LOOP), "plan": plan, "plan_json": (*plan, "--json")}
        for command in words.values():  # Python compiles everything at the first start
            _taken(command)
        runs = [{name: _taken(command) for name, command in words.items()} for _ in range(pairs)]
    out: dict[str, float | dict[str, float]] = {}
    for name in RATIOS:
        shares = [
            [run[name.removesuffix("_ratio")][k] / run["loop"][k] for run in runs] for k in (0, 1)
        ]
        out |= {
            name: round(statistics.median(shares[1]), 2),
            f"{name}_by_clock": round(statistics.median(shares[0]), 2),
        }
    for k, kind in enumerate(("seconds", "processor_s")):
        out[kind] = {
            name: round(statistics.median(run[name][k] for run in runs), 3) for name in words
        }
    return out


def too_slow(measured: dict[str, float | dict[str, float]]) -> bool:
    """Return whether a ratio of processor time is over its limit."""
    return any(
        share > RATIOS[name]
        for name, share in measured.items()
        if name in RATIOS and isinstance(share, float)
    )


def _taken(words: Sequence[str]) -> Seconds:
    """Return what a process of Python takes from its start to its end."""
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *words], check=True, stdout=subprocess.DEVNULL, cwd=ROOT, env=environment
    )
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
