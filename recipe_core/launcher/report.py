"""What a person reads. Units for people (ms, GiB) appear only here and in reasons."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

from .bench import Bench
from .metrics import FIGURES
from .plan import LaunchPlan
from .preflight import Preflight
from .state import State

_TITLES = {
    "ttft_s": "time to first token, mean",
    "ttft_p50_s": "time to first token, median",
    "ttft_p95_s": "time to first token, p95",
    "tpot_s": "time per output token, mean",
    "tpot_p95_s": "time per output token, p95",
    "request_latency_s": "request latency, mean",
    "output_tokens_per_s": "output tokens per second",
}


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Columns as wide as their widest cell; the first row is the heading."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def preflight_text(result: Preflight) -> str:
    rows = [(check.name, check.status, check.detail + (f". {check.hint}" if check.hint else "")) for check in result.checks]
    return table([("check", "result", "reason"), *rows])


def up_text(plan: LaunchPlan, current: State) -> str:
    lines = [f"ready: {plan.address(server.port)}{plan.api.path}" for server in current.servers]
    return "\n".join([*lines, "", "Try it:", f"  {curl(plan, current.servers[0].port)}", "", "Stop it: python launch.py down"])


def curl(plan: LaunchPlan, port: int) -> str:
    chat = plan.api.path.endswith("/chat/completions")
    ask = "What is a good recipe?"
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": ask}]} if chat else {"prompt": "A good recipe"}
    body = json.dumps({"model": plan.api.model, **asked, "max_tokens": 32})
    return f"curl -s {plan.address(port)}{plan.api.path} -H 'Content-Type: application/json' -d {shlex.quote(body)}"


def bench_text(bench: Bench) -> str:
    data = bench.measurement
    rows: list[tuple[str, ...]] = [("", "predicted", "band", "measured", "measured/predicted", "in band")]
    rows += [_row(key, data) for key in FIGURES if data["metrics"].get(key) is not None]
    work, metrics = data["workload"], data["metrics"]
    pace = f"{work['request_rate']:g} per second" if work["mode"] == "open" else f"{work['concurrency']} at once"
    head = (
        f"{metrics['requests']} requests ({work['mode']}, {pace}), {work['input_tokens']:g} tokens in, {work['output_tokens']:g} out; "
        f"{metrics['failed']} failed"
    )
    notes = [f"note: {note}" for note in bench.notes]
    return "\n".join([head, "", table(rows), "", *notes, "first completion:", f"  {bench.completion.strip()[:600]!r}"])


def _row(key: str, data: dict[str, Any]) -> tuple[str, ...]:
    measured, predicted = data["metrics"][key], data["predicted"].get(key)
    band, ratio = data["bands"].get(key), data["ratio"].get(key)
    return (
        _TITLES[key],
        amount(key, predicted),
        f"{amount(key, band[0])} to {amount(key, band[1])}" if band else "-",
        amount(key, measured),
        f"{ratio:.2f}" if ratio is not None else "-",
        ("yes" if band[0] <= measured <= band[1] else "no") if band else "-",
    )


def amount(key: str, value: float | None) -> str:
    """Seconds as ms below ten seconds, rates as they are."""
    if value is None:
        return "-"
    if key.endswith("per_s"):
        return f"{value:,.1f}/s"
    return f"{value * 1e3:,.2f} ms" if value < 10 else f"{value:,.1f} s"
