"""A sizing as a decision: the cheapest, safest and smallest hardware, and what may break each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recipe_core.base.units import chance_text
from recipe_core.request.metrics import limits_by_name
from recipe_core.request.split_key import split_name
from recipe_core.views import size_view as view
from recipe_core.views.by_device import factor_sentence, size_by_device
from recipe_core.views.texts import Phrases

Row = Mapping[str, Any]
TITLES = {"cheapest": "Cheapest", "safest": "Safest", "smallest": "Fewest devices"}
# Share that is left to a limit below which the limit may break a choice.
CLOSE = 0.2
_say = Phrases("decision", device=view.short, dollars=view.dollars, mark=view.price_doubt_mark)


@dataclass(frozen=True, slots=True)
class Card:
    """One choice: what to rent, and what it is.

    ``name`` is ``cheapest``, ``safest`` or ``smallest``; one row may be several. ``row``: the
    answer's, to be taken. ``layout``: ``TP 4 × DP 2, vLLM``. ``money``: of a month, or of the job.
    ``sure``: the probability of keeping the limits, a dash without any. ``risks``: what may break
    it, as sentences. ``dearer``: by how much it costs more than the cheapest; empty for that.
    """

    name: str
    title: str
    row: Row
    devices: str
    layout: str
    money: str
    sure: str
    risks: tuple[str, ...]
    dearer: str


def decision_cards(answer: Row) -> list[Card]:
    """The choices of an answer, the cheapest first; one that is the same as it is not repeated."""
    decisions = answer.get("decision") or {}
    cards, row_keys = [], set()
    for name, title in TITLES.items():
        row = decisions.get(name)
        if row is None:
            continue
        key = (view.key(row), row["devices_rented"], row["label"], row["engine"])
        if key not in row_keys:
            row_keys.add(key)
            cards.append(_card(name, title, row, decisions["cheapest"]))
    return cards


def _card(name: str, title: str, row: Row, cheapest: Row) -> Card:
    return Card(
        name=name,
        title=title,
        row=row,
        devices=_say.sentence("devices", row),
        layout=f"{split_name(row['split'])}, {view.engine_title(row['engine'])}",
        money=_say.sentence("money", row),
        sure="–" if row["confidence"] is None else chance_text(row["confidence"]),
        risks=tuple(choice_risks(row)),
        dearer="" if row is cheapest else _difference(row, cheapest),
    )


def choice_risks(row: Row) -> list[str]:
    """Say in sentences what may break a choice: price, nearest limit, a device not timed."""
    rooms = {
        name: room["share_left"]
        for name, room in row["headroom"].items()
        if room["share_left"] is not None
    }
    nearest = min(rooms, key=lambda name: rooms[name], default=None)
    limit = limits_by_name()[nearest].label if nearest else ""
    left = rooms[nearest] if nearest else 1.0
    return list(_say.lines("risks", row, limit if left < CLOSE else "", left))


def _difference(row: Row, other: Row) -> str:
    measure = "usd" if row.get("usd") is not None else "usd_per_month"
    more = row[measure] - other[measure]
    return _say.sentence("difference", more, more / other[measure], measure)


def runner_up(answer: Row) -> dict[str, Any] | None:
    """The second device beside the first: names, the difference in dollars and as a share.

    ``sentence`` says it, and whether the price makes it; None where there is no second device.
    """
    if len(answer["devices"]) < 2:
        return None
    first, second = answer["devices"][:2]
    measure = "usd" if first.get("usd") is not None else "usd_per_month"
    more = second[measure] - first[measure]
    row, next_row, *_ = size_by_device(answer)
    next_device = _say.sentence("runner_up", second, _difference(second, first), more)
    return {
        "device": view.key(second),
        "difference_usd": more,
        "difference_share": more / first[measure],
        "sentence": f"{next_device} {factor_sentence(row, next_row, measure)}".strip(),
    }


def left_out_sentence(answer: Row) -> str:
    """Count what only a switch would let in, in a sentence; empty where there is nothing."""
    switches = [row["switch"] for row in answer.get("left_out") or []]
    return _say.sentence("left_out", switches.count("consumer_cards"), switches.count("unpriced"))
