"""Texts for a person; units for people (ms, GiB) appear only here and in reasons."""

from __future__ import annotations

import json
import os
import shlex
import sys
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from .api import pooled_request_body
from .files import json_text
from .measurement import FIGURES
from .plan import LaunchPlan
from .preflight import Preflight
from .run_record import Step
from .state import State


def print_any_letter() -> None:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def print_json(data: Any) -> None:
    print(json_text(data, getattr(sys.stdout, "encoding", None) or "utf-8"), flush=True)


def complain(text: str) -> None:
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def flushed() -> bool:
    """Return whether standard output took everything; else drop the rest without a complaint."""
    if sys.stdout is None:  # closed from the start
        return True
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True


_HEAD = ("", "predicted", "band", "measured", "measured/predicted", "in band")


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Columns as wide as their widest cell; the first row is the heading."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def preflight_text(result: Preflight) -> str:
    """The table of checks."""
    rows = [
        (check.name, check.status, check.detail + (f". {check.hint}" if check.hint else ""))
        for check in result.checks
    ]
    return table([("check", "result", "reason"), *rows])


def up_text(plan: LaunchPlan, current: State | None) -> str:
    """The addresses of the servers, and how to try and stop them."""
    entrances = plan.entrances
    stop = "Stop it: python launch.py down" + ("" if plan.node is None else f" --node {plan.node}")
    if not entrances:
        servers = current.servers if current else ()
        lines = [f"started: {server.name}, log {server.log}" for server in servers]
        return "\n".join([*lines, stop])
    lines = [f"ready: {plan.address(process.port)}{plan.api.path}" for process in entrances]
    return "\n".join(
        [*lines, "", "Try it:", f"  {curl_example(plan, entrances[0].port)}", "", stop]
    )


def curl_example(plan: LaunchPlan, port: int) -> str:
    """A request to copy into a shell."""
    path, text = plan.api.path, "A good recipe"
    question: dict[str, Any] = {"model": plan.api.model, "prompt": text, "max_tokens": 32}
    if path.endswith("/chat/completions"):
        messages = [{"role": "user", "content": "What is a good recipe?"}]
        question = {"model": plan.api.model, "messages": messages, "max_tokens": 32}
    body = json.dumps(pooled_request_body(plan.api, text) or question)
    url = f"{plan.address(port)}{plan.api.path}"
    return f"curl -s {url} -H 'Content-Type: application/json' -d {shlex.quote(body)}"


def measurement_text(data: dict[str, Any]) -> str:
    """Predicted next to measured; of servers also what was sent, caveats, and one completion."""
    titles = FIGURES[data.get("kind", "serving")]
    rows = [
        _measured_row(key, title, data)
        for key, title in titles.items()
        if data["metrics"].get(key) is not None
    ]
    lines = ["", table([_HEAD, *rows])]
    if (steps := data.get("steps")) is not None:
        return "\n".join([f"steps {steps['first']} to {steps['last']}", *lines])
    notes, shown = [f"note: {note}" for note in data["notes"]], data["completion"]
    answer = textwrap.wrap(
        shown["text"].strip()[:600], 100, initial_indent="  ", subsequent_indent="  "
    )
    title = f"completion of {shown['prompt']!r}:"
    return "\n".join([_describe_traffic(data), *lines, "", *notes, title, *answer])


def _describe_traffic(data: dict[str, Any]) -> str:
    work, counts = data["workload"], data["metrics"]
    pace = f"{work['concurrency']} at once"
    if work["mode"] == "open":
        pace = f"{work['request_rate']:g} per second"
    sent = f"{counts['requests']} requests ({work['mode']}, {pace})"
    tokens = f"{work['input_tokens']:g} tokens in, {work['output_tokens']:g} out"
    return f"{sent}, {tokens}; {counts['failed']} failed"


def step_line(step: Step, planned: int | None) -> str:
    """One training step as a line."""
    loss, rate = step.get("loss"), step.get("tokens_per_s")
    of = f" of {planned}" if planned else ""
    shown = "-" if loss is None else f"{loss:.4f}"
    return f"step {step.number}{of}: loss {shown}, {amount('tokens_per_s', rate)}"


def run_text(plan: LaunchPlan, data: dict[str, Any]) -> str:
    """The progress of a training run, and what to do next."""
    node = "" if plan.node is None else f" --node {plan.node}"
    loss = "-" if data["loss"] is None else f"{data['loss']:.4f}"
    rate = amount("tokens_per_s", data["tokens_per_s"])
    step = f"step {data['step']} of {data['steps'] or '?'}"
    lines = [f"{data['state']}: {step}, loss {loss}, {rate}"]
    lines += [f"log: {process['log']}" for process in data["processes"]]
    if data["state"] == "finished" and data["model"]:
        lines.append(f"model: {data['model']}")
    lines.append(f"Look: python launch.py status{node}")
    lines.append(f"Stop: python launch.py down --checkpoint{node}")
    return "\n".join(lines)


def _measured_row(key: str, title: str, data: dict[str, Any]) -> tuple[str, ...]:
    measured, predicted = data["metrics"][key], data["predicted"].get(key)
    band, ratio = data["bands"].get(key), data["ratio"].get(key)
    shown, inside = "-", "-"
    if band:
        shown = f"{amount(key, band[0])} to {amount(key, band[1])}"
        inside = "yes" if band[0] <= measured <= band[1] else "no"
    return (
        title,
        amount(key, predicted),
        shown,
        amount(key, measured),
        f"{ratio:.2f}" if ratio is not None else "-",
        inside,
    )


def amount(key: str, value: float | None) -> str:
    """Seconds as ms below ten seconds, rates as they are."""
    if value is None:
        return "-"
    if "per_s" in key:
        return f"{value:,.1f}/s"
    if key == "mfu":
        return f"{100 * value:.1f} %"
    if key.endswith("bytes"):
        return f"{value / (1 << 30):,.2f} GiB"
    return f"{value * 1e3:,.2f} ms" if value < 10 else f"{value:,.1f} s"
