"""What compressed models retain, as text."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from recipe_core.base.columns import aligned

NAMES = ("model", "technique", "method", "benchmark", "retained", "80 % band", "nearest published")


def lines_text(questions: Sequence[Any], answers: Sequence[Mapping[str, Any]]) -> str:
    """A row a question: what is retained in percent, and the nearest published figure."""
    pairs = zip(questions, answers, strict=True)
    rows = [_row(asked, answer) for asked, answer in pairs]
    width = shutil.get_terminal_size((160, 24)).columns
    return aligned(NAMES, rows, left=set(NAMES[:4]) | {NAMES[-1]}, width=max(width, 100))


def _row(asked: Any, answer: Mapping[str, Any]) -> list[str]:
    asked = asked if isinstance(asked, Mapping) else {}
    names = [str(asked.get(name) or "") for name in NAMES[:4]]
    if "error" in answer:
        return [*names, "", "", f"error: {answer['error']['message']}"]
    if answer["retained"] is None:
        return [*names, "unknown", "", answer["basis"]]
    retained = answer["retained"]
    band = f"{100 * retained['low']:.1f} to {100 * retained['high']:.1f}"
    return [*names, f"{100 * retained['value']:.1f} %", band, _nearest(answer["nearest"])]


def _nearest(figures: Sequence[Mapping[str, Any]]) -> str:
    if not figures:
        return ""
    first = figures[0]
    model = first["model"].rpartition("/")[2]
    technique = " ".join(filter(None, (first["technique"], first["method"])))
    return f"{100 * first['retained']:.1f} % {model} {technique} {first['benchmark']}"
