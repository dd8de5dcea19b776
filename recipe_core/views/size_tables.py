"""A sizing's answer as tables for a page. Rows are those of ``Answer.to_json``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from recipe_core.base.labels import split_name
from recipe_core.base.units import duration, rate, significant, usd
from recipe_core.hardware.offers import terms
from recipe_core.plans.limits import LimitRule
from recipe_core.views import size_view as view
from recipe_core.views.size_view import Row


def devices_frame(answer: Row) -> pd.DataFrame:
    """A row for each device that holds the limits, best first; ``key`` tells them apart."""
    rows: Sequence[Row] = answer["devices"]
    training = view.is_training(answer)
    tokens = "usd_per_million_tokens" if training else view.MONEY["tokens"]
    columns: dict[str, list[Any]] = {
        "key": [view.key(row) for row in rows],
        "device": [view.short(row) for row in rows],
        "rented": [view.rented(row) for row in rows],
        "split": [split_name(row["split"]) for row in rows],
        "engine": [view.engine_title(row["engine"]) for row in rows],
        "hour": [row["usd_per_hour"] for row in rows],
        "month": [row["usd_per_month"] for row in rows],
        "tokens": [row.get(tokens) for row in rows],
    }
    if training and any(row.get("usd") is not None for row in rows):
        columns["run"] = [row.get("usd") for row in rows]
    if any(row["confidence"] is not None for row in rows):
        columns["confidence"] = [percent(row["confidence"]) for row in rows]
    columns["price"] = [view.price_text(row) for row in rows]
    if any(row.get("wins_at") for row in rows):
        columns["wins"] = [view.to_win(row, n == 0) for n, row in enumerate(rows)]
    return pd.DataFrame(columns)


def percent(share: float | None) -> float | None:
    """A share for a column in percent."""
    return None if share is None else 100.0 * share


def offer_rows(row: Row) -> dict[str, str]:
    """What is known of a row's price."""
    offer = row.get("offer")
    if offer is None:
        return {"Price": view.price_text(row)}
    out = {
        "Offer": f"{offer['provider']} ({offer['name']})",
        "Price": f"{usd(offer['usd_per_device_hour'])}{view.doubt(row)} per device-hour",
        "Region": offer["region"] or "not stated",
        "Commitment": terms(offer["commitment"], offer["term_months"]),
        "Date and status": ", ".join([offer["date"], offer["status"]]),
    }
    if offer["marks"]:
        out["Caution"] = f"{view.DOUBT} {', '.join(offer['marks'])}: ask for a quote"
    if offer["note"]:
        out["Note"] = offer["note"]
    return out


def fact_rows(row: Row) -> dict[str, str]:
    """What runs, and what it does."""
    figures = row["figures"]
    out = {"Split": split_name(row["split"]), "Engine": view.engine_title(row["engine"])}
    shown = {
        "ttft_s": ("First token", duration),
        "tpot_s": ("Per token", duration),
        "request_latency_s": ("Request latency", duration),
        "output_tokens_per_s": ("Output", rate),
        "step_s": ("Step", duration),
        "tokens_per_s": ("Trained", rate),
    }
    for name, (title, show) in shown.items():
        if figures.get(name) is not None:
            out[title] = show(figures[name])
    out["Power"] = f"{significant(row['watts'] / 1e3)} kW"
    out["Energy"] = f"{significant(row['kwh_per_month'])} kWh a month"
    return out


def headroom_rows(row: Row) -> list[dict[str, str]]:
    """Each stated limit with the estimate, its band and what is left."""
    out = []
    for name, room in row["headroom"].items():
        rule = view.RULES[name]

        def show(value: float | None, rule: LimitRule = rule) -> str:
            mark = view.doubt(row) if rule.money else ""
            return "–" if value is None else f"{rule.show(value / rule.factor)}{mark}"

        left = room["share_left"]
        limit = rule.show(room["limit"] / rule.factor)
        out.append(
            {
                "Limit": f"{rule.label[:1].upper()}{rule.label[1:]}",
                "Asked": f"{'at least' if rule.at_least else 'at most'} {limit}",
                "Estimated": show(room["value"]),
                "80 % range": f"{show(room['low'])} – {show(room['high'])}",
                "Left": "–" if left is None else f"{left:.0%}",
            }
        )
    return out


def ladder_frame(row: Row) -> pd.DataFrame:
    """More and more devices: what each number costs and how sure it is."""
    rungs: Sequence[Row] = row["ladder"]
    return pd.DataFrame(
        {
            "rented": [view.rented(rung) for rung in rungs],
            "split": [split_name(rung["split"]) for rung in rungs],
            "engine": [view.engine_title(rung["engine"]) for rung in rungs],
            "hour": [rung["usd_per_hour"] for rung in rungs],
            "month": [rung["usd_per_month"] for rung in rungs],
            "confidence": [percent(rung["confidence"]) for rung in rungs],
            "holds": ["yes" if rung["holds"] else "" for rung in rungs],
            "pays": ["" if rung.get("dominated") else "yes" for rung in rungs],
        }
    )


def unpriced_rows(answer: Row) -> list[dict[str, str]]:
    """Devices that hold the limits and have no price, with the price at which each would win."""
    return [
        {
            "Device": view.short(row),
            "Devices": view.rented(row),
            "Split": split_name(row["split"]),
            "Cheapest below": (
                f"{usd(row['usd_per_device_hour_to_win'])} per device-hour"
                if row.get("usd_per_device_hour_to_win")
                else "–"
            ),
        }
        for row in answer.get("unpriced") or []
    ]


def refused_rows(answer: Row) -> list[dict[str, str]]:
    """Devices on which nothing holds, the likeliest first."""
    return [
        {"Device": row["title"], "Why": view.reasons(row)} for row in answer.get("refused") or []
    ]
