"""That own runs changed figures, and by how much, in words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from recipe_core.estimates.columns.scales import CALIBRATED
from recipe_core.request.metrics import column_metric

if TYPE_CHECKING:  # importing these would triple the time until a plan is printed
    from recipe_core.estimates.columns.corrections import Corrections
    from recipe_core.plans.plan import Plan

# How the basis of an accuracy begins that a measured checkpoint moved (``accuracy/own.py``).
_MEASURED = re.compile(r"measured here on [0-9-]+")

FIGURES = ("ttft_s", "tpot_s", "output_tokens_per_s", "step_s")


def calibrated_lines(corrections: Corrections | None) -> list[str]:
    """That own runs changed the figures, and where to see how; nothing where none did."""
    if corrections is None or not corrections.teach:
        return []
    return [
        f"calibrated by {corrections.title}; "
        "`recipe estimate` says what they did to each figure of a split"
    ]


def calibrated_sentence(plan: Plan, row: int) -> str | None:
    """What own runs did to the figures of a split; None where they changed none."""
    corrections = plan.problem.corrections
    if corrections is None or not corrections.teach:
        return None
    changed = changed_figures(plan.estimate(row).to_json())
    if not changed:
        return None
    return f"Calibrated by {corrections.title}. {changed}."


def changed_figures(estimate: Mapping[str, Any]) -> str:
    """The figures of an estimate that own runs changed, with factors; empty where none."""
    basis = estimate.get("basis") or {}
    accuracy_basis = str((estimate.get("accuracy") or {}).get("basis", ""))
    accuracy = _MEASURED.search(accuracy_basis)
    texts = {name: str(basis.get(name, "")).partition(": ") for name in FIGURES}
    changed = [
        f"{column_metric(name).label}: {rest}"
        for name, (kind, _, rest) in texts.items()
        if kind == CALIBRATED
    ]
    if accuracy:
        changed.append(f"accuracy: {accuracy.group()}")
    return "; ".join(changed)
