"""Verdicts on the engines of deployment files as text for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from recipe_core.request.describe import short_name
from recipe_core.views.command_text import verdict_text

_WIDEST = 60
"""Characters of a column of the table."""


def deployment_text(answer: Mapping[str, Any]) -> str:
    """One block for each engine of a file, then what was not read."""
    blocks = [_block(each) for each in answer["engines"]]
    blocks += [_left(each) for each in answer["left"]]
    return "\n\n".join(blocks) or f"No engine in this {answer['kind']} file."


def _block(answer: Mapping[str, Any]) -> str:
    line = f", line {answer['line']}" if answer.get("line") else ""
    head = f"{answer['where']}{line}"
    if "judged_with" in answer:
        body = verdict_text(dict(answer))
        if error := answer.get("error"):
            body += f"\n  why: {_sentence(error)}"
    else:
        error = answer.get("error", {})
        body = f"unknown: {answer['engine']['name']}\n  why: {_sentence(error)}"
    notes = [f"  note: {note}" for note in answer.get("file_notes", [])]
    if unset := answer.get("unset"):
        notes.append(f"  note: without a value in the file: {', '.join(unset)}.")
    return "\n".join([head, body, *notes])


def _sentence(error: Mapping[str, Any]) -> str:
    words = [error.get("field"), error.get("message"), error.get("hint")]
    return " ".join(str(word) for word in words if word)


def _left(left: Mapping[str, Any]) -> str:
    line = f", line {left['line']}" if left.get("line") else ""
    return f"{left['where']}{line}\n  not read: {left['why']}"


def folder_text(answers: Sequence[Mapping[str, Any]]) -> str:
    """A table of every engine of a folder, and how many have each verdict."""
    rows = [("file", "kind", "engine", "model", "hardware", "verdict"), *map(_row, answers)]
    widths = [min(max(len(row[n]) for row in rows), _WIDEST) for n in range(6)]
    lines = [
        "  ".join(text[:_WIDEST].ljust(width) for text, width in zip(row, widths, strict=True))
        for row in rows
    ]
    counts = Counter(row[5].partition(":")[0] for row in rows[1:])
    summary = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    return "\n".join([*(line.rstrip() for line in lines), "", summary or "No engine was found."])


def _row(answer: Mapping[str, Any]) -> tuple[str, str, str, str, str, str]:
    engine, hardware = answer.get("engine") or {}, answer.get("hardware")
    place = ""
    if isinstance(hardware, Mapping):
        device = hardware.get("device")
        name = device if isinstance(device, str) else mapping_name(device)
        place = f"{hardware.get('per_node', 1) * hardware.get('nodes', 1)} x {name}"
    verdict = str(answer.get("verdict") or "not read")
    if error := answer.get("error"):
        verdict = f"{verdict}: {_sentence(error)}"
    return (
        str(answer["source"])[-_WIDEST:],
        str(answer.get("kind") or ""),
        str(engine.get("name") or ""),
        short_name(str(answer["model"])) if answer.get("model") else "",
        place,
        verdict,
    )


def mapping_name(device: Any) -> str:
    """The name of a profile of the user's own."""
    return str(device.get("name")) if isinstance(device, Mapping) else ""
