"""A plan's decision: what to run on what, at which price, how sure, and what would change it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from recipe_core.base.errors import NoAnswer
from recipe_core.base.units import share_text
from recipe_core.hardware.prices import HOURS_PER_MONTH
from recipe_core.plans.limits import stated_limits
from recipe_core.plans.plan import Plan
from recipe_core.plans.plan_json import doubt_text, queue_text
from recipe_core.plans.splits import row_state
from recipe_core.request.metrics import limits_by_name
from recipe_core.request.split_key import split_short_name
from recipe_core.views.plan_words import limits_text, unpriced_note, used_devices_text
from recipe_core.views.size_view import DOUBT, dollars, engine_title
from recipe_core.views.verdict import (
    calibrated_sentence,
    figure_text,
    goals_text,
    main_figures,
    may_miss,
    split_formats_text,
    starts_text,
)

# Share of a limit that an estimate must reach for the limit to be called near.
NEAR = 0.8


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision of a plan about one layout.

    Attributes:
        layout: the split in a few characters.
        engine: the engine or framework by its title, with its release where it has one.
        formats: number formats of weights and cache, or the precision of training.
        where: devices and the dollars of a month, marked where the price is to be doubted.
        state: ``holds``, ``queues`` or ``uncertain``.
        verdict: how it stands with load and limits, in one line.
        doubtful: whether that line warns.
        caveats: sentences that say what would change the decision.
    """

    layout: str
    engine: str
    formats: str
    where: str
    state: str
    verdict: str
    doubtful: bool
    caveats: tuple[str, ...]


def describe_decision(plan: Plan, row: int, sized: Mapping[str, Any] | None = None) -> Decision:
    """Return the decision for a row of a plan.

    Args:
        plan: the plan.
        row: the layout that is decided on.
        sized: the answer over devices that led to the plan's; None where the reader chose them.
    """
    candidate = plan.candidate(row)
    state = row_state(plan, row)
    texts = [starts_text(plan, row), queue_text(plan, row), limits_text(plan, row)]
    verdict = " · ".join(text for text in texts if text)
    return Decision(
        layout=split_short_name(candidate),
        engine=engine_title(candidate["engine"]),
        formats=split_formats_text(candidate),
        where=f"{used_devices_text(plan, row)}{_month_text(plan, row)}",
        state=state if state in ("queues", "uncertain") else "holds",
        verdict=verdict or f"No limit is stated; best for {goals_text(plan.request).lower()}.",
        doubtful=bool(plan.uncertain[row]) or bool(plan.queues[row]) or may_miss(plan, row),
        caveats=tuple(_caveats(plan, row, sized)),
    )


def case_answer(plan: Plan) -> str:
    """The best layout of a plan in one line, its main figure first: for a case of the start page.

    Raises:
        NoAnswer: where nothing runs.
    """
    row = plan.best_row
    if row is None:
        raise NoAnswer("nothing runs")
    candidate, figure = plan.candidate(row), main_figures(plan, row, 1)[0]
    runs = f"{split_short_name(candidate)}, {engine_title(candidate['engine'])}"
    return f"{figure_text(plan, figure, row)} on {used_devices_text(plan, row)}: {runs}"


def _month_text(plan: Plan, row: int) -> str:
    """`` · $15,126 a month``, marked where the price is to be doubted; empty without a price."""
    hour = float(plan.raw("usd_hour")[row])
    if not np.isfinite(hour):
        return ""
    offer = plan.setting(row).cluster.offer
    mark = DOUBT if offer is not None and offer.marks() else ""
    return f" · {dollars(hour * HOURS_PER_MONTH)} a month{mark}"


def _caveats(plan: Plan, row: int, sized: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield what would change the decision, the price first."""
    offer = plan.setting(row).cluster.offer
    if offer is not None and (marks := offer.marks()):
        yield f"{DOUBT} The price is {' and '.join(marks)} ({offer.name}): ask for a quote."
    if note := unpriced_note(plan):
        yield f"{note} State a price under Hardware."
    if doubt := doubt_text(plan, row):
        yield f"It {doubt}."
    if nearest := _nearest_limit(plan, row):
        yield nearest
    if effect := plan.own_runs_effect:
        yield f"{effect.text[:1].upper()}{effect.text[1:]}."
    elif calibrated := calibrated_sentence(plan, row):
        yield calibrated
    if sized and (warning := sized.get("price_warning")):
        yield str(warning)


def _nearest_limit(plan: Plan, row: int) -> str:
    """Say which limit is nearest, where the estimate comes close to it."""
    shares = {}
    for name, rule in limits_by_name().items():
        bound = rule.bound(plan.request.objective.limits)
        measure = next((m for m in plan.measures.values() if m.limit == name), None)
        if bound is None or measure is None or not stated_limits(plan):
            continue
        value = float(plan.columns[measure.column][row])
        if np.isfinite(value) and value > 0 and bound > 0:
            shares[name] = bound / value if rule.at_least else value / bound
    if not shares:
        return ""
    name, share = max(shares.items(), key=lambda item: item[1])
    if share < NEAR:
        return ""
    return f"Nearest limit: {limits_by_name()[name].label}, of which {share_text(share)} is used."
