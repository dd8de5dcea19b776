"""How fast replicas follow a metric: the ``behavior`` of a HorizontalPodAutoscaler, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipe_core.base.errors import NoAnswer
from recipe_core.request.scaling import Scaling
from recipe_core.scaling.policies.defaults import default_of
from recipe_core.scaling.policies.table import LONGEST_WINDOW_S
from recipe_core.targets.scale.bounds import shortest_number, whole_seconds

# Of the policies that apply where none is stated.
PERIOD_S = int(default_of("hpa", "period_s"))
# What a behavior holds of a policy.
FIELDS = (
    "tolerance",
    "up_delay_s",
    "down_delay_s",
    "up_step",
    "up_period_s",
    "down_step",
    "down_period_s",
)
_SIDES = {"scaleUp": "up", "scaleDown": "down"}


def scaling_behavior(scaling: Scaling) -> dict[str, Any]:
    """The stated windows, steps and tolerance; what is left out is Kubernetes' own default.

    Raises:
        NoAnswer: for a window that the API refuses, and a period without a step.
    """
    sides = {}
    for side, direction in _SIDES.items():
        rules: dict[str, Any] = {}
        window_s = whole_seconds(scaling, f"{direction}_delay_s", most_s=int(LONGEST_WINDOW_S))
        if window_s is not None:
            rules["stabilizationWindowSeconds"] = window_s
        if policies := _step_policies(scaling, direction):
            rules["policies"] = policies
        if scaling.tolerance is not None:
            rules["tolerance"] = shortest_number(scaling.tolerance)
        if rules:
            sides[side] = rules
    return sides


def _step_policies(scaling: Scaling, direction: str) -> list[dict[str, Any]]:
    step = getattr(scaling, f"{direction}_step")
    period_s = getattr(scaling, f"{direction}_period_s")
    if step is None and period_s is not None:
        raise NoAnswer(
            f"{direction}_period_s is the time for {direction}_step, which is not stated.",
            field=f"options.scaling.{direction}_step",
            hint=f"Set {direction}_step.",
        )
    if step is None:
        return []
    return [{"type": "Pods", "value": step, "periodSeconds": period_s or PERIOD_S}]


def read_behavior(sides: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the policy that a behavior was written from."""
    fields: dict[str, Any] = {}
    for side, direction in _SIDES.items():
        rules = sides.get(side, {})
        if "stabilizationWindowSeconds" in rules:
            fields[f"{direction}_delay_s"] = rules["stabilizationWindowSeconds"]
        if "tolerance" in rules:
            fields["tolerance"] = float(rules["tolerance"])
        for policy in rules.get("policies", []):
            fields[f"{direction}_step"] = policy["value"]
            fields[f"{direction}_period_s"] = policy["periodSeconds"]
    return fields
