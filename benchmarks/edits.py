"""Time from a moved slider to the charts that follow, page by page, without a browser.

python benchmarks/edits.py [ROUNDS]      default 20

Each round moves a limit (nothing is estimated again: the plan is cached but judged against the
limit), the load (every split is estimated again) and the axes of the tradeoff. A round's values are
new ones, so no plan comes from the cache. Prints one JSON object; the time is that of the script
run up to what a page leaves for later, as the server would do it, with what it sends made but not
sent. Alternatives are planned once all else is on the screen: ``later_median_s`` is theirs. It
exits with 1 when the 95th percentile of any page is over its kind's LIMIT_S.
"""

from __future__ import annotations

import itertools
import json
import logging
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
    "pins": "vllm.bf16.bf16.tp8.pp1.dp1.ep1",
}
TRAINING = {
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "workload.kind": "training",
    "workload.tokens": "1e10",
    "hardware.nodes": "2",
}


def opened(page: str, query: dict[str, str]) -> AppTest:
    app = AppTest.from_file(str(shipped_path("pages") / "_entry.py"), default_timeout=60)
    app.query_params.update(query)
    app.run()
    return app.switch_page(page).run()


def edit(app: AppTest, field: str, value: object) -> Callable[[], object]:
    """The next run takes this value of a field, as a slider on the last page would set it."""
    from recipe_core.request.edit import change

    app.session_state["request"] = change(app.session_state["request"], {field: value})
    app.session_state["edited"] = True
    return app.run


LATER: list[float] = []
"""Seconds of what each run left for later."""


def timed(run: Callable[[], object]) -> float:
    """Seconds of a run, without what it leaves for later."""
    start, later_before = time.perf_counter(), len(LATER)
    run()
    return time.perf_counter() - start - sum(LATER[later_before:])


def watch_later() -> None:
    """Take the time of what pages draw after themselves, from the first opened page on."""
    common: Any = sys.modules["_common"]
    draw = common.draw_later
    if draw.__name__ == "watched":
        return

    def watched() -> None:
        start = time.perf_counter()
        draw()
        LATER.append(time.perf_counter() - start)

    common.draw_later = watched


def rounds(
    page: str,
    query: dict[str, str],
    view: str | None,
    moves: list[tuple[str, itertools.count[float]]],
    n: int,
) -> list[float]:
    app = opened(page, query)
    watch_later()
    if view:
        app.session_state["views"] = view
        app.run()
    seconds = []
    for _, (field, values) in itertools.product(range(n), moves):
        value = next(values)
        seconds.append(timed(edit(app, field, int(value) if float(value).is_integer() else value)))
        if app.exception:
            raise SystemExit(f"{page}: {app.exception[0].message}")
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
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    cases = {
        "objective": ("objective.py", LLAMA, None, serving_moves()),
        **{
            f"compare, {view}": ("compare.py", LLAMA, view, serving_moves())
            for view in ("Memory", "Time", "Load", "Sensitivity")
        },
        "compare training, Memory": ("compare.py", TRAINING, "Memory", training_moves()),
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
