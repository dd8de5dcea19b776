"""Verdicts on commands as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from recipe_core.base.labels import split_name
from recipe_core.base.units import chance_text, gib, rate
from recipe_core.hardware.request import HardwareRequest
from recipe_core.views.terminal import change_lines, estimate_text, serving_speed


def verdict_text(answer: dict[str, Any]) -> str:
    """A verdict with its reasons, what is wasted, and the better command."""
    engine, model = answer["engine"], answer["model"] or "an unnamed model"
    head = f"{answer['verdict']}: {model} with {engine['name']} {engine['version']}"
    if (table := answer["judged_with"]["table"]) != engine["version"]:
        head += f" (options of {table})"
    if "estimate" not in answer:
        return "\n".join([head, *_findings(answer)])
    hardware = HardwareRequest.model_validate(answer["hardware"])
    lines = [f"{head} on {hardware.devices} × {hardware.device_name}"]
    lines += [f"  why: {reason}" for reason in answer["reasons"]]
    lines += _findings(answer, errors=False)
    if answer["estimate"]["feasible"]:
        estimate = answer["estimate"]
        notes = [note for note in estimate["notes"] if note.rstrip(".") not in answer["reasons"]]
        lines.append(estimate_text(answer["candidate"], estimate | {"notes": notes}))
    lines += _changed_words(answer["changes"])
    lines += _waste(answer["waste"]) + _better(answer["better"])
    others = [change for change in answer["changes"] if "options" not in change]
    return "\n".join(lines + change_lines(others))


def words_text(change: Mapping[str, Any]) -> str:
    """What a change does to the words of a command: ``with --max-model-len 191520``."""
    return " and ".join(
        _word_text(flag, value) for flag, value in change.get("options", {}).items()
    )


def _word_text(flag: str, value: Any) -> str:
    if value is None:
        return f"without {flag}"
    if isinstance(value, str) and value.startswith("--"):
        return f"with {value} instead of {flag}"
    return f"with {flag}" if value is True else f"with {flag} {value}"


def _changed_words(changes: Sequence[Mapping[str, Any]]) -> list[str]:
    """The command itself with the fewest words changed, for each change that lets it start."""
    lines = []
    for change in changes:
        if "options" in change:
            chance = chance_text(change["start_probability"])
            lines.append(f"starts {words_text(change)} ({change['verdict']}, {chance}):")
            lines += [f"  {change['command']}"] if "command" in change else []
    return lines


def memory_meant(answer: dict[str, Any]) -> str:
    """Which of a command's two memory figures is which, in words: the load's and the start's."""
    workload, memory = answer["workload"], answer["estimate"]["memory"]
    tokens = workload["input_tokens"] + workload["output_tokens"]
    requests = f"{workload['concurrency']:,} requests of {tokens:,} tokens"
    usable = gib(memory["usable_bytes"])
    starts = answer["start_bytes"] <= memory["usable_bytes"]
    outcome = "within" if starts else "more than"
    text = (
        f"{gib(memory['total_bytes'])} would hold the load, {requests}, at once. "
        f"{gib(answer['start_bytes'])} is what the engine needs to start: room for one request of "
        f"{workload['max_context']:,} tokens, the longest that the command accepts. "
        f"That is {outcome} the {usable} that are usable."
    )
    if starts and memory["total_bytes"] > memory["usable_bytes"]:
        text += f" Of the load it holds {memory['max_concurrency']:,} requests; the others wait."
    return text


def _findings(answer: dict[str, Any], errors: bool = True) -> list[str]:
    """One line per finding; next to a verdict, errors are among its reasons already."""
    return [
        f"  {finding['level']}: {' '.join(filter(None, (finding['message'], finding.get('hint'))))}"
        for finding in answer["findings"]
        if errors or finding["level"] != "error"
    ]


def _waste(waste: dict[str, Any]) -> list[str]:
    if not waste["idle"]:
        return []
    replicas = ""
    if "replicas" in waste:
        gain = f" ({waste['gain']:+.0%})" if waste["gain"] is not None else ""
        replicas = (
            f"; {waste['replicas']} replicas would give {rate(waste['output_tokens_per_s'])}{gain}"
        )
    return [f"wasted: {waste['idle']} of {waste['devices']} devices are idle{replicas}"]


def _better(better: dict[str, Any] | None) -> list[str]:
    if better is None:
        return []
    gain = f" ({better['gain']:+.0%})" if "gain" in better else ""
    speed = serving_speed(better["estimate"])
    lines = [f"better{gain}: {split_name(better['candidate'])}: {speed}"]
    several = len({start["node"] for start in better["commands"]}) > 1
    for start in better["commands"]:
        comment = f"   # on node {start['node']}" if several else ""
        lines.append(f"  {start['command']}{comment}")
    if "why_no_command" in better:
        lines.append(f"  no command for it: {better['why_no_command']}")
    return lines
