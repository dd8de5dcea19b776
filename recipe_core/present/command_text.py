"""Verdicts on commands for a terminal."""

from __future__ import annotations

from typing import Any

from recipe_core.base.labels import split_name
from recipe_core.base.units import duration, rate
from recipe_core.hardware.request import HardwareRequest
from recipe_core.present.terminal import estimate_text


def verdict_text(answer: dict[str, Any]) -> str:
    """A verdict with its reasons, what is wasted, and the better command."""
    engine = answer["engine"]
    head = f"{answer['verdict']}: {answer['model'] or 'a model that is not named'} with {engine['name']} {engine['version']}"
    if answer["ok"] is None:
        return "\n".join([head, *_findings(answer)])
    hardware = HardwareRequest.model_validate(answer["hardware"])
    there = f"{hardware.devices} × {hardware.device_name}"
    parts = [
        f"{head} on {there}",
        *(f"  why: {reason}" for reason in answer["reasons"]),
        *_findings(answer, refused=False),
    ]
    if answer["estimate"]["feasible"]:
        parts.append(estimate_text(answer["candidate"], answer["estimate"]))
    return "\n".join(
        [*parts, *_waste(answer["waste"]), *_better(answer["better"]), *_changes(answer["changes"])]
    )


def _findings(answer: dict[str, Any], refused: bool = True) -> list[str]:
    """One line a finding; those that refuse are among the reasons already unless there is no verdict."""
    found = [f for f in answer["findings"] if refused or f["level"] != "error"]
    return [
        f"  {f['level']}: {f['message']}{' ' + f['hint'] if 'hint' in f else ''}" for f in found
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
    serving = better["estimate"]["serving"]
    gain = f" ({better['gain']:+.0%})" if better["gain"] is not None else ""
    figures = (
        f"{rate(serving['output_tokens_per_s'])}, {duration(serving['tpot_s'])} per output token"
    )
    lines = [f"better{gain}: {split_name(better['candidate'])}: {figures}"]
    for each in better["commands"]:
        node = (
            f"   # on node{each['node']}"
            if len({other["node"] for other in better["commands"]}) > 1
            else ""
        )
        lines.append(f"  {each['command']}{node}")
    return (
        [*lines, f"  no command for it: {better['why_no_command']}"]
        if "why_no_command" in better
        else lines
    )


def _changes(changes: list[dict[str, Any]]) -> list[str]:
    return [
        f"it works with {field}: {value}"
        for change in changes
        for field, value in change["set"].items()
    ]
