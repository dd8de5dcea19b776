"""Processor time of `simulate`: a week of all ten policies, and its phases.

    python benchmarks/over_time.py [ROUNDS]      default 3

Each round is a fresh process with one thread of linear algebra, imports included; of the rounds the
quickest is printed. Who shares the processor's caches slows it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

WEEK = {
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "hardware": {"device": "h100-sxm", "per_node": 8},
    "workload": {
        "mode": "open",
        "request_rate": 40,
        "input_tokens": 1024,
        "output_tokens": 256,
        "over_time": {"shape": "azure-conversation", "mean_rate": 40, "days": 7},
    },
    "objective": {"limits": {"ttft_ms": 2000}},
}
PHASES = {
    "prepare_deployment": "plan, split and load",
    "shares_of": "what one replica keeps (of it)",
    "_search_finalists": "search of parameters over a day",
    "_replay_finalists": "the best over the whole time, and their ranges",
    "_simulate_bounds": "bounds of any policy",
    "_build_over_time_answer": "worst hour by requests, answer",
}


def week() -> dict[str, float]:
    """Processor seconds of this process by phase, in which a week was simulated."""
    start_s = time.process_time()
    import recipe_core
    from recipe_core.scaling import answer, attainment

    seconds = {"imports": time.process_time() - start_s}

    def timed(module: Any, name: str) -> None:
        function: Callable[..., Any] = getattr(module, name)

        def call(*values: Any, **options: Any) -> Any:
            begun = time.process_time()
            try:
                return function(*values, **options)
            finally:
                seconds[name] = seconds.get(name, 0.0) + time.process_time() - begun

        setattr(module, name, call)

    for name in PHASES:
        timed(answer if hasattr(answer, name) else attainment, name)
    simulated = recipe_core.simulate(WEEK)
    assert len(simulated.policies) == 10, "a week of ten policies"
    return seconds | {"all": time.process_time()}


def main() -> None:
    """Run the rounds, each as a process of its own, and print the quickest."""
    if sys.argv[1:] == ["--once"]:
        print(json.dumps(week()))
        return
    words = [sys.executable, __file__, "--once"]
    rounds = [
        json.loads(subprocess.run(words, check=True, capture_output=True, cwd=ROOT).stdout)
        for _ in range(int(sys.argv[1]) if sys.argv[1:] else 3)
    ]
    best = min(rounds, key=lambda seconds: seconds["all"])
    for name, seconds in best.items():
        print(f"{PHASES.get(name, name):48} {seconds:6.2f} s")


if __name__ == "__main__":
    main()
