"""The decision: what to run on what, at which price, how sure, what would change it, what is next.

Of a plan about one layout; and of a sizing, whose next device and left out devices it names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from recipe_core.base.errors import NoAnswer
from recipe_core.base.units import share_text
from recipe_core.hardware.prices import price_month
from recipe_core.plans.limits import LIMITS, bounded_figures, limit_excess, stated_limits
from recipe_core.plans.plan import Plan
from recipe_core.plans.plan_json import doubt_text, queue_text
from recipe_core.plans.rank import NO_DIFFERENCE, is_tie
from recipe_core.plans.splits import row_state
from recipe_core.request.split_key import split_short_name
from recipe_core.views import size_view as view
from recipe_core.views.by_device import factor_sentence, size_by_device
from recipe_core.views.plan_words import limits_text, unpriced_note, used_devices_text
from recipe_core.views.texts import Phrases
from recipe_core.views.verdict import (
    calibrated_sentence,
    figure_text,
    goals_text,
    main_figures,
    may_miss,
    split_formats_text,
    starts_text,
)

Row = Mapping[str, Any]
# Share of a limit that an estimate must reach for the limit to be called near.
NEAR = 0.8
_say = Phrases("decision", device=view.short, dollars=view.dollars, mark=view.price_doubt_mark)


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision of a plan about one layout.

    Attributes:
        layout: the degrees in a few characters.
        engine: the engine or framework by its title.
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
        engine=view.engine_title(candidate["engine"]),
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
    runs = f"{split_short_name(candidate)}, {view.engine_title(candidate['engine'])}"
    return f"{figure_text(plan, figure, row)} on {used_devices_text(plan, row)}: {runs}"


def _month_text(plan: Plan, row: int) -> str:
    """`` · $15,126 a month``, marked where the price is to be doubted; empty without a price."""
    hour = float(plan.raw("usd_hour")[row])
    if not np.isfinite(hour):
        return ""
    offer = plan.setting(row).cluster.offer
    mark = view.DOUBT if offer is not None and offer.marks() else ""
    return f" · {view.dollars(price_month(hour))} a month{mark}"


def _caveats(plan: Plan, row: int, sized: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield what would change the decision, the price first."""
    offer = plan.setting(row).cluster.offer
    if offer is not None and (marks := offer.marks()):
        yield f"{view.DOUBT} The price is {' and '.join(marks)} ({offer.name}): ask for a quote."
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
    limits = plan.request.objective.limits
    shares = {
        code: float(limit_excess(LIMITS[code], bounded_figures(plan, code)[[row]], limits)[0])
        for code in stated_limits(plan)
    }
    near_shares = {code: share for code, share in shares.items() if NEAR <= share < np.inf}
    if not near_shares:
        return ""
    code, share = max(near_shares.items(), key=lambda item: item[1])
    return f"Nearest limit: {LIMITS[code].label}, of which {share_text(share)} is used."


def runner_up(answer: Row) -> dict[str, Any] | None:
    """The second device beside the first: names, the difference in dollars and as a share.

    ``sentence`` says it, and whether the price makes it; None where there is no second device.
    """
    if len(answer["devices"]) < 2:
        return None
    first, second = answer["devices"][:2]
    measure = "usd" if first.get("usd") is not None else "usd_per_month"
    difference = second[measure] - first[measure]
    share = difference / first[measure]
    row, next_row, *_ = size_by_device(answer)
    chance = second.get("beats_best")
    tie = NO_DIFFERENCE if chance is not None and is_tie(chance) else ""
    next_device = _say.sentence("runner_up", second, difference, share, measure, tie)
    return {
        "device": view.key(second),
        "difference_usd": difference,
        "difference_share": share,
        "sentence": f"{next_device} {factor_sentence(row, next_row, measure)}".strip(),
    }


def left_out_sentence(answer: Row) -> str:
    """Count what only a switch would let in, in a sentence; empty where there is nothing."""
    switches = [row["switch"] for row in answer.get("left_out") or []]
    return _say.sentence("left_out", switches.count("consumer_cards"), switches.count("unpriced"))
