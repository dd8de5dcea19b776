"""Processor time from an edit to the answer and its charts, lens by lens, without a browser.

python benchmarks/edits.py [ROUNDS]      default 20

Each round moves a limit (nothing is estimated again) and the load (every layout is). A round's
values are new ones, so no plan comes from the cache. Prints one JSON object; the time is that of
the script run, by a process that calculates itself, with what it sends made but not sent. Runners-
up are planned once all else is on the screen: ``later_median_s`` is theirs, and part of the rest.
It exits with 1 when the 95th percentile of any lens is over its kind's LIMIT_S.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from streamlit.testing.v1 import AppTest

from recipe_core.base.resources import shipped_path

LIMIT_S = {"serving": 0.25, "training": 0.4}
"""By the kind of request: training has fifty times the splits."""
LLAMA = {
    "model": "meta-llama/Llama-3.1-70B-Instruct",
    "hardware.nodes": "2",
    "workload.concurrency": "64",
    "objective.limits.ttft_ms": "2000",
    "objective.limits.tpot_ms": "40",
    "pins": "vllm.bf16.bf16.tp8.pp1.dp1.ep1",
}
TRAINING = {
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "workload.kind": "training",
    "workload.tokens": "1e10",
    "hardware.nodes": "2",
}


def opened(lens: str, query: dict[str, str]) -> AppTest:
    app = AppTest.from_file(str(shipped_path("pages") / "_entry.py"), default_timeout=60)
    app.query_params.update(query | {"lens": lens})
    app.run()
    return app.switch_page("plan.py").run()


def edit(app: AppTest, field: str, value: object) -> Callable[[], object]:
    """The next run takes this value of a field, as a slider on the last page would set it."""
    from recipe_core.request.edit import change

    app.session_state["request"] = change(app.session_state["request"], {field: value})
    app.session_state["edited"] = True
    return app.run


LATER: list[float] = []
"""Seconds of what each run left for later."""


def timed(run: Callable[[], object]) -> float:
    """Seconds of processor time of a run."""
    start = time.process_time()
    run()
    return time.process_time() - start


def watch_later() -> None:
    """Take the time of what pages draw after themselves, from the first opened page on."""
    work: Any = sys.modules["_work"]
    draw = work.draw_later
    if draw.__name__ == "watched":
        return

    def watched() -> None:
        start = time.process_time()
        draw()
        LATER.append(time.process_time() - start)

    work.draw_later = watched


def rounds(
    lens: str, query: dict[str, str], moves: list[tuple[str, itertools.count[float]]], n: int
) -> list[float]:
    app = opened(lens, query)
    watch_later()
    seconds = []
    for _, (field, values) in itertools.product(range(n), moves):
        value = next(values)
        seconds.append(timed(edit(app, field, int(value) if float(value).is_integer() else value)))
        if app.exception:
            raise SystemExit(f"{lens}: {app.exception[0].message}")
    return seconds


def serving_moves() -> list[tuple[str, itertools.count[float]]]:
    return [
        ("objective.limits.tpot_ms", itertools.count(30.5, 1.0)),
        ("workload.concurrency", itertools.count(48, 3)),
    ]


def training_moves() -> list[tuple[str, itertools.count[float]]]:
    return [
        ("objective.limits.usd_per_hour", itertools.count(40.5, 1.0)),
        ("workload.global_batch", itertools.count(256, 16)),
    ]


def main() -> None:
    logging.disable(logging.WARNING)
    os.environ["RECIPE_BUILDER_WORKERS"] = "0"
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    moves = serving_moves()  # one lens goes on where the other ended: plans are cached
    cases = {
        "layouts": ("layouts", LLAMA, moves),
        "why": ("why", LLAMA, moves),
        "training, layouts": ("layouts", TRAINING, training_moves()),
    }
    answer, slow = {}, False
    for name, case in cases.items():
        LATER.clear()
        seconds = sorted(rounds(*case, n))
        p95 = seconds[int(0.95 * (len(seconds) - 1))]
        slow |= p95 > LIMIT_S["training" if "training" in name else "serving"]
        answer[name] = {
            "runs": len(seconds),
            "median_s": round(statistics.median(seconds), 3),
            "p95_s": round(p95, 3),
            "later_median_s": round(statistics.median(LATER), 3),
        }
    print(json.dumps(answer, indent=1))
    raise SystemExit(slow)


if __name__ == "__main__":
    main()
