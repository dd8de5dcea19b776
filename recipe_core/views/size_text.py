"""A sizing as text: what comes after it, and all of it (``templates/size.j2``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from recipe_core.plans.rank import TIED
from recipe_core.sizing.answer import Answer
from recipe_core.sizing.market import left_out_devices
from recipe_core.sizing.size import Sizing
from recipe_core.views import size_view as view
from recipe_core.views.columns import terminal
from recipe_core.views.decision import left_out_sentence
from recipe_core.views.size_view import PHRASES, Row


def growth_text(row: Row) -> str:
    """Months that the size of a device lasts, the month of the next unit, and the cost."""
    return PHRASES.sentence("growth", row)


def cheapest_sentence(growth: Row, rows: Sequence[Row]) -> str:
    """The device that is the cheapest over all months, and the month in which that changes."""
    names = {view.key(row): f"{view.short(row)}{view.price_doubt_mark(row)}" for row in rows}
    changes = [change for change in growth["changes"] if change["cheapest"]]
    return PHRASES.sentence("cheapest", growth, names, changes)


def availability_facts(row: Row) -> dict[str, str]:
    """Spare replicas, what they cost, and what a lost machine does."""
    spares = row.get("availability")
    return PHRASES.facts("availability", row, spares) if spares else {}


def purchase_text(row: Row) -> str:
    """Up to which price buying pays, when it does at the one that is stated, and the mixture."""
    return PHRASES.sentence("purchase", row)


def size_text(answer: Answer, top: int | None = None, ladder: str | None = None) -> str:
    """The devices as a table, those without a price, refused ones, and one device's ladder."""
    sizing = answer.sizing
    rows = [answer.device(device, ladder=False) for device in sizing.devices[:top]]
    parts = _partial_json(answer, rows)
    good, sentence = view.size_verdict(parts)
    corrections, own_runs = sizing.corrections, ""
    if corrections is not None and corrections.teach:
        own_runs = view.own_runs_sentence(corrections.to_json())
    headline = view.split_sentence(rows[0]) if good else sentence
    tables = _size_tables(answer, rows, parts["unpriced"], ladder)
    tables["left_out"] = left_out_sentence(parts)
    text = PHRASES.text("whole", headline, parts, tables, rows, _later(answer, rows), own_runs)
    return f"{text}\n{view.DOUBT_MEANS}" if view.DOUBT in text else text


def _size_tables(
    answer: Answer, rows: Sequence[Row], unpriced: Sequence[Row], ladder: str | None
) -> dict[str, Any]:
    sizing, objective = answer.sizing, answer.sizing.request.objective
    limits = objective.limits
    energy = limits.watts is not None or limits.joules_per_token is not None
    columns = view.size_columns(rows, energy=energy or "energy" in objective.goals)
    asked_devices = [device for device in sizing.sized if device.profile.name == ladder]
    rungs = [(device.profile.title, answer.ladder(device)) for device in asked_devices]
    return {
        "devices": terminal(rows, [column for column in columns if column.key != "device"])
        if rows
        else "",
        "tied": TIED,
        "unpriced": terminal(unpriced, view.UNPRICED) if unpriced else "",
        "ladders": [(t, terminal(r, view.size_columns(r, ladder=True))) for t, r in rungs],
        "not_sized": "" if ladder is None or rungs else ladder,
        "sized": [device.profile.name for device in sizing.sized],
    }


def _later(answer: Answer, rows: Sequence[Row]) -> Mapping[str, Any]:
    if not rows:
        return {"growth": "", "availability": {}, "purchase": ""}
    grown, growth = answer.growth, growth_text(rows[0])
    if grown is not None:
        growth = f"{growth} {cheapest_sentence(grown.to_json(), rows)}".strip()
    facts, purchase = availability_facts(rows[0]), purchase_text(rows[0])
    return {"growth": growth, "availability": facts, "purchase": purchase}


def _partial_json(answer: Answer, rows: Sequence[Row]) -> dict[str, Any]:
    """The answer's JSON without ladders, which take as long as everything else."""
    sizing = answer.sizing
    unpriced = [
        {
            **answer.rows(device, [device.best])[0],
            "usd_per_device_hour_to_win": sizing.price_to_win(device),
        }
        for device in sizing.unpriced
        if device.best is not None
    ]
    refused = [(device.profile, device.reason()) for device in sizing.refused]
    refused += [(choice.profile, choice.why) for choice in sizing.barred]
    return {
        "best": rows[0] if rows else None,
        "price_warning": answer.price_warning,
        "unpriced": unpriced,
        "left_out": [
            {"device": profile.name, "switch": switch}
            for profile, switch in left_out_devices(sizing.request)
        ],
        "refused": [
            {"device": profile.name, "title": profile.title, "reasons": [reason]}
            for profile, reason in refused
        ],
    }


def choice_text(sizing: Sizing) -> str:
    """The hardware that open hardware became, as one line."""
    best = sizing.best
    assert best is not None and best.best is not None  # noqa: S101, PT018 - there is a choice
    return f"hardware: any → {view.split_sentence(Answer(sizing).rows(best, [best.best])[0])}"
