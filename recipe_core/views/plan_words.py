"""Words of a plan for people: rows against each other and against the limits, figures, prices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from recipe_core.base.units import band_ends_text, chance_text, plain_range_text
from recipe_core.hardware.cluster import chip_title, short_title
from recipe_core.plans.alternatives import share_change_text
from recipe_core.plans.confidence_prices import ConfidencePrice
from recipe_core.plans.evaluation import band_ends
from recipe_core.plans.limits import limits_phrase, rule_title, stated_limits
from recipe_core.plans.plan import Plan
from recipe_core.plans.plan_json import (
    doubt_text,
    queue_text,
    row_load_text,
    split_label,
)
from recipe_core.plans.rank import beats, counts_cost, is_tie
from recipe_core.request.metrics import limits_by_name
from recipe_core.request.split_key import split_name


def used_devices_text(plan: Plan, row: int) -> str:
    """Devices that a row uses of those there: ``4 of 8 × H100 SXM``; all of them: ``8 × …``."""
    place, used = plan.setting(row).cluster, int(plan.columns["gpus"][row])
    count = f"{used:,}" if used == place.devices else f"{used:,} of {place.devices:,}"
    return f"{count} × {chip_title(place.device)}"


def unpriced_note(plan: Plan) -> str | None:
    """Say how splits rank whose price is unknown, as sentences; None where none lacks a price."""
    places = plan.problem.clusters
    lacking = [place for place in places if place.usd_per_device_hour is None]
    if not lacking or not counts_cost(plan):
        return None
    titles = list(dict.fromkeys(short_title(place.device) for place in lacking))
    listed, its = " and ".join(titles), "its" if len(titles) == 1 else "their"
    some = len(lacking) < len(places)
    order = f"{its} layouts come last" if some else "layouts rank by output per device"
    return f"No price of {listed} is known: {order}."


def against_best(plan: Plan, row: int) -> str:
    """With what probability the best split beats a feasible row, as a sentence.

    Of one that queues, or may not start, beside a best that does not: that it does. Empty for the
    best one itself, and for one whose price is unknown beside a known one.
    """
    best = plan.best_row
    if best is None or row == best:
        return ""
    if plan.uncertain[row] and not plan.uncertain[best]:
        return f"It {doubt_text(plan, row)}"
    if plan.queues[row] and not plan.queues[best]:
        return f"Starts and queues: {queue_text(plan, row)}"
    chance = beats(plan, [row], best)[0]
    if chance is None:
        return ""
    label = split_label(plan, best)
    if is_tie(chance):
        return f"No measurable difference from {label}: it is better with {chance_text(chance)}"
    return f"Probability that {label} measures better: {chance_text(1 - chance)}"


def confidence_text(plan: Plan, row: int) -> str:
    """Say how surely a row keeps the limits, as a sentence; empty without limits."""
    text = limits_text(plan, row)
    return f"{text[0].upper()}{text[1:]}" if text else ""


def limits_text(plan: Plan, row: int) -> str:
    """Say how surely a row keeps the limits: ``holds 40 ms per token with 83 %``.

    With what is asked for where it is less. Empty without limits, and for a row that cannot run.
    """
    if not stated_limits(plan) or not plan.runs[row]:
        return ""
    chance, objective = float(plan.chances[row]), plan.request.objective
    if chance == 1:  # what is counted is certain
        return f"holds {limits_phrase(plan)}"
    text = f"holds {limits_phrase(plan)} with {chance_text(chance)}"
    if objective.judges_by_estimate or chance >= objective.required_confidence:
        return text
    return f"{text}, short of {chance_text(objective.required_confidence)}"


def confidence_prices_text(prices: Sequence[ConfidencePrice], confidence: float) -> str:
    """Say what each confidence costs, in a line: ``50 %: $1.47 (−6 %) · 80 %: $1.57 · …``.

    ``confidence``: the one asked for, to which the others are compared. A split is named where
    it is another one than that one's. Empty without prices.
    """
    now = next((price for price in prices if price.confidence == confidence), None)
    if now is None:
        return ""
    return " · ".join(_price_text(price, now) for price in prices)


def _price_text(price: ConfidencePrice, now: ConfidencePrice) -> str:
    text = chance_text(price.confidence)
    if price.candidate is None:
        return f"{text}: none"
    changed = price is not now and price.change is not None
    change = f" ({share_change_text(price.change or 0.0)})" if changed else ""
    other = price.key != now.key
    split = f" with {split_name(price.candidate)}" if other else ""
    return f"{text}: {price.figure}{change}{split}"


def rule_titles(codes: Iterable[str]) -> str:
    return "; ".join(sorted(rule_title(code) for code in codes))


def objective_measures(plan: Plan) -> tuple[str, ...]:
    """The measures that the objective is about, with those that it limits.

    Power belongs to a goal of energy too.
    """
    objective = plan.request.objective
    columns = {plan.spec.goals[goal][0] for goal in objective.goals}
    if "energy" in objective.goals:
        columns.add("watts")
    limited = objective.limits.model_dump(exclude_none=True)
    return tuple(
        name
        for name, measure in plan.measures.items()
        if measure.column in columns or measure.limit in limited
    )


# figures


def figures_phrase(plan: Plan, row: int) -> str:
    """A row's main figures in one phrase, without unknown ones; a load that was found first."""
    names = [name for name in plan.shown.phrased if np.isfinite(plan.raw(name)[row])]
    figures = [plan.measures[name].phrase(float(plan.raw(name)[row])) for name in names]
    load = [row_load_text(plan, row)] if plan.request.load_searched else []
    return ", ".join([*load, *figures])


def plan_band_text(plan: Plan, name: str, row: int) -> str | None:
    """The band in which eight of ten measured runs are expected; None where that is unknown."""
    ends = _band_of(plan, name, row)
    return band_ends_text(ends, plan.measures[name].show) if ends else None


def likely_text(plan: Plan, name: str, row: int) -> str:
    """The same without a unit, ``24.7 to 68.5 likely``; empty where that is unknown."""
    ends = _band_of(plan, name, row)
    return f"{plain_range_text(ends, plan.measures[name].show, unit=False)} likely" if ends else ""


def _band_of(plan: Plan, name: str, row: int) -> tuple[float, float] | None:
    low, high = (float(end[0]) for end in band_ends(plan, name, [row]))
    return (low, high) if np.isfinite(low) and np.isfinite(high) else None


def shown_limit(plan: Plan, name: str) -> float | None:
    """The objective's limit on a measure, in the unit it is shown in."""
    measure = plan.measures[name]
    if measure.limit is None:
        return None
    bound = limits_by_name()[measure.limit].bound(plan.request.objective.limits)
    return None if bound is None else bound * measure.factor


# memory of one device


def row_usable_bytes(plan: Plan, row: int) -> float:
    """Bytes that the engine or the run may use of a device."""
    usable = float(plan.columns["usable_bytes"][row])
    return usable if np.isfinite(usable) else capacity_bytes(plan, row)


def capacity_bytes(plan: Plan, row: int) -> float:
    return float(plan.setting(row).cluster.device.usable_memory_bytes)
