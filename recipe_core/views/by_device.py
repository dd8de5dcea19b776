"""The best of each device side by side: of a sizing, and of a plan over several clusters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from recipe_core.base.units import chance_text, usd
from recipe_core.hardware.prices import price_month
from recipe_core.plans.limits import stated_limits
from recipe_core.plans.plan import Plan
from recipe_core.plans.splits import row_keys
from recipe_core.request.metrics import column_metric
from recipe_core.request.split_key import split_name
from recipe_core.sizing.answer import offer_json
from recipe_core.views import size_view as view
from recipe_core.views.columns import Column, known_columns

Row = Mapping[str, Any]
# Factors of cost below which nothing is said of their cause.
WORTH_SAYING = 1.2
# Share of a factor (of its logarithm) that its cause explains.
EXPLAINED = 0.7
_FIGURES = ("tpot_s", "ttft_s")


def size_by_device(answer: Row) -> list[dict[str, Any]]:
    """The best row of each device of a sizing's answer, in the order of the answer."""
    return [
        {
            **{name: row[name] for name in ("device", "title", "owned", "engine", "confidence")},
            **{name: row["figures"].get(name) for name in _FIGURES},
            "key": view.key(row),
            "layout": split_name(row["split"]),
            "count": row["count"],
            "devices_rented": row["devices_rented"],
            "usd_per_million_tokens": row.get(
                "usd_per_million_tokens", row["usd_per_million_output_tokens"]
            ),
            "usd_per_month": row["usd_per_month"],
            "usd": row.get("usd"),
            "usd_per_device_hour": _device_hour(row["usd_per_hour"], row["devices_rented"]),
            "offer": row["offer"],
        }
        for row in answer["devices"]
    ]


def plan_by_device(plan: Plan) -> list[dict[str, Any]]:
    """The best row of each cluster of a plan, in the order of the plan; those with none left out.

    ``split``: its key in the plan. Beside what a sizing has.
    """
    best: dict[int, int] = {}
    clusters = plan.clusters_of_rows
    for row in plan.order.tolist():
        best.setdefault(int(clusters[row]), row)
    return [_plan_row(plan, row) for row in best.values()]


def _plan_row(plan: Plan, row: int) -> dict[str, Any]:
    place, columns, candidate = plan.setting(row).cluster, plan.columns, plan.candidate(row)
    hour, rented = _finite(columns["usd_per_hour"][row]), int(columns["gpus_rented"][row])
    cost = plan.spec.goals["cost"][0]
    return {
        "device": place.device.name,
        "title": place.device.title,
        "owned": False,
        "key": place.device.name,
        "split": row_keys(plan, [row])[0],
        "engine": candidate["engine"],
        "layout": split_name(candidate),
        "count": int(columns["gpus"][row]),
        "devices_rented": rented,
        "confidence": float(plan.chances[row]) if stated_limits(plan) else None,
        **{name: _finite(columns[name][row]) if name in columns else None for name in _FIGURES},
        "usd_per_million_tokens": _finite(columns[cost][row]),
        "usd_per_month": None if hour is None else price_month(hour),
        "usd": _finite(columns["usd"][row]) if "usd" in columns else None,
        "usd_per_device_hour": place.usd_per_device_hour,
        "offer": offer_json(place.offer),
    }


def _device_hour(hour: float | None, rented: int) -> float | None:
    return hour / rented if hour is not None and rented else None


def _finite(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


def device_columns(rows: Sequence[Row]) -> list[Column[Row]]:
    """Columns of the best of each device; those that no row has a value for are left out."""
    return known_columns(rows, _COLUMNS)


_COLUMNS: list[Column[Row]] = [
    Column("Device", view.short, align="left", name="device"),
    Column("Devices", "count", name="count"),
    Column("Layout", "layout", align="left", name="layout"),
    Column("Engine", lambda row: view.engine_title(row["engine"]), align="left", name="engine"),
    Column(
        "$ per M tokens", "usd_per_million_tokens", usd, mark=view.price_doubt_mark, name="tokens"
    ),
    Column("$ a month", "usd_per_month", view.dollars, mark=view.price_doubt_mark, name="month"),
    *(
        Column(column_metric(name).head, name, column_metric(name).show, name=name)
        for name in _FIGURES
    ),
    Column("Sure", "confidence", chance_text, name="confidence"),
    Column("Price from", view.price_text, align="left", name="price"),
]


def factor_sentence(first: Row, second: Row, measure: str = "usd_per_million_tokens") -> str:
    """Say what makes the factor of cost between two devices: the price, or how many it takes.

    Empty below a factor of 1.2, without a price, or where both make it.

    Args:
        first: a row of ``size_by_device`` or ``plan_by_device``.
        second: another one.
        measure: the cost that is compared: ``usd_per_month``, ``usd_per_million_tokens``, ``usd``.
    """
    cheap, dear = sorted((first, second), key=lambda row: row[measure] or 0.0)
    costs, prices = ((cheap[name], dear[name]) for name in (measure, "usd_per_device_hour"))
    if not all(costs) or not all(prices):
        return ""
    factor, by_price = costs[1] / costs[0], prices[1] / prices[0]
    if factor < WORTH_SAYING:
        return ""
    names, share = (view.short(cheap), view.short(dear)), math.log(by_price) / math.log(factor)
    between = f"The factor of {factor:.2g} between {names[0]} and {names[1]} is"
    if share >= EXPLAINED:
        low, high = (
            f"{usd(row['usd_per_device_hour'])}{view.price_doubt_mark(row)}"
            for row in (cheap, dear)
        )
        return f"{between} the price: {low} against {high} per device-hour."
    if share <= 1 - EXPLAINED:
        return f"{between} what the devices do; their hours cost 1 to {by_price:.2g}."
    return ""
