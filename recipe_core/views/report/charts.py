"""The charts of a report that are about the whole plan; those of its split are registered views."""

from __future__ import annotations

from collections.abc import Sequence

from recipe_core.plans.plan import Plan
from recipe_core.views import charts
from recipe_core.views.charts.views import Chart


def tradeoffs(plan: Plan, pins: Sequence[str]) -> list[Chart]:
    """What all splits trade, in the plan's first two measures; empty where one is unknown."""
    x, y = plan.axes
    if not (plan.known(x) and plan.known(y)):
        return []
    title = f"{plan.measures[x].title} and {plan.measures[y].title}"
    note = (
        "Diamonds are best tradeoffs: no split of their colour is better in both. Lines at them: "
        "eight of ten measured runs are expected within. Larger markers use more devices; rings "
        "are pinned splits."
    )
    if plan.queues.any():
        note += " Hourglasses start, but do not hold the whole load at once."
    if plan.uncertain.any():
        note += " Of open triangles memory is too close to tell whether they start."
    figure = charts.tradeoff(plan, x, y, pins=pins)
    return [Chart("frontier", title, figure, f"{title} of {len(plan)} splits", note)]
