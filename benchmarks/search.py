"""Speed of the search: candidates a second on one core, memory, growth, a slider's request.

    python benchmarks/search.py [--write docs/reference/performance.md]

Run it on an idle machine: times are those of the processor in one thread, the best of five, but who
shares its caches slows it too.
"""

from __future__ import annotations

import argparse
import os

os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from recipe_core.plans.evaluation import evaluate_cases
from recipe_core.plans.plans import plan_splits
from recipe_core.plans.problem import resolve_problem
from recipe_core.plans.serving_candidates import every_serving_case
from recipe_core.plans.serving_search import PHYSICS
from recipe_core.request.schema import PlanRequest

SIZES = (1_000, 10_000, 100_000, 1_000_000)
MODELS = (
    "meta-llama/Llama-3.1-70B-Instruct",
    "deepseek-ai/DeepSeek-V3",
    "openai/gpt-oss-120b",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
)
TRAINED = ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-70B")
LOADS = (
    1,
    2,
    4,
    8,
    12,
    16,
    24,
    32,
    48,
    64,
    96,
    128,
    160,
    192,
    224,
    256,
    320,
    384,
    448,
    512,
    640,
    768,
    896,
    1024,
)


def request(model: str = MODELS[0], nodes: int = 8, **options: Any) -> PlanRequest:
    hardware = {"device": "h100-sxm", "per_node": 8, "nodes": nodes}
    workload = {"mode": "closed", "input_tokens": 1024, "output_tokens": 256, "concurrency": 64}
    return PlanRequest.parse(
        {"model": model, "hardware": hardware, "workload": workload, "options": options}
    )


def training(model: str) -> str:
    """A row: pretraining planned on the same cluster, ranked."""
    workload = {"kind": "training", "sequence_length": 8192, "global_batch": 512, "tokens": 15e9}
    values = PlanRequest.parse(
        {
            "model": model,
            "hardware": {"device": "h100-sxm", "per_node": 8, "nodes": 8},
            "workload": workload,
        }
    )
    name = f"training of {model.split('/')[-1]}, 64 × H100, every stage of every pipeline"
    count, seconds = len(plan_splits(values)), best(lambda: plan_splits(values).ranked)
    return f"| {name}: {count:,} candidates | {seconds * 1e3:,.0f} ms |"


def best(
    run: Callable[[], Any], times: int = 5, clock: Callable[[], float] = time.process_time
) -> float:
    """Seconds of the quickest of some runs, after one that warms caches."""
    run()
    seconds = []
    for _ in range(times):
        start = clock()
        run()
        seconds.append(clock() - start)
    return min(seconds)


def legal(model: str, count: int) -> tuple[Any, Any]:
    """``count`` candidates that no rule refuses: every split and load of the model, repeated."""
    problem = resolve_problem(request(model, loads=LOADS))
    setting, cases = every_serving_case(problem)[0]
    rows = evaluate_cases(PHYSICS, setting, cases).legal
    return setting, cases.take(np.resize(rows, count))


def growth(model: str) -> list[tuple[int, float]]:
    """Candidates and microseconds for each of them."""
    out = []
    for count in SIZES:
        case = legal(model, count)
        seconds = best(
            lambda case=case: evaluate_cases(PHYSICS, *case),  # type: ignore[misc]
            1 if count > 100_000 else 5,
        )
        out.append((count, seconds / count * 1e6))
    return out


def process_s(*words: str) -> float:
    """Seconds of a whole process."""

    def children_s() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    return best(
        lambda: subprocess.run([sys.executable, *words], check=True, capture_output=True),
        clock=children_s,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", type=Path, help="put the tables into this Markdown file")
    arguments = parser.parse_args()
    typical = {
        "engines": ["vllm", "sglang"],
        "weight_dtypes": ["bf16", "fp8", "int4"],
        "loads": LOADS,
    }
    values, plain = request(**typical), request(**typical | {"loads": ()})
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(values.model_dump_json(exclude_none=True))
        file.flush()
        process = process_s("-m", "recipe_core", "plan", file.name, "--top", "5")
    importing = "import recipe_core.plans.serving_search"
    sizes = " | ".join(f"{count:,} candidates" for count in SIZES)
    lines = [
        f"CPU: {platform.processor() or platform.machine()}, one thread, "
        f"Python {platform.python_version()}, NumPy {np.__version__}.",
        "",
        "| what | measured |",
        "|---|---|",
        "| request of one model, 64 × H100, 3 weight formats, 2 engines, 24 loads: "
        f"{len(plan_splits(values)):,} candidates | {best(lambda: plan_splits(values)) * 1e3:,.0f} "
        "ms |",
        f"| the same without the loads: {len(plan_splits(plain)):,} candidates | "
        f"{best(lambda: plan_splits(plain)) * 1e3:,.0f} ms |",
        *map(training, TRAINED),
        f"| `recipe plan` of the first, as a whole process | {process:.2f} s |",
        f"| `{importing}` in a fresh process | {process_s('-c', importing) * 1e3:,.0f} ms |",
        f"| Python alone | {process_s('-c', 'pass') * 1e3:,.0f} ms |",
        "",
        f"| model | {sizes} | candidates per second |",
        f"|---|{'---|' * (len(SIZES) + 1)}",
    ]
    for model in MODELS:
        curve = growth(model)
        print(model, curve, flush=True)
        times = " | ".join(f"{micro:.1f} µs" for _, micro in curve)
        lines.append(f"| {model} | {times} | {1e6 / curve[-1][1]:,.0f} |")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    lines += ["", f"Peak memory of the process, with a million candidates at once: {peak:.2f} GiB."]
    print("\n".join(lines))
    if arguments.write:
        text = arguments.write.read_text(encoding="utf-8")
        start, end = "<!-- measured -->\n", "<!-- end of measured -->"
        before, after = text.split(start)[0], text.split(end)[1]
        arguments.write.write_text(
            f"{before}{start}\n" + "\n".join(lines) + f"\n\n{end}{after}", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
