"""Folded parts of the lens on hardware: growth, availability, buying or renting.

An open one adds its part to the request; its figures last as long as the browser's page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import _common as common
import _numbers as numbers
import _session as session
import streamlit as st

from recipe_core.request.edit import range_of
from recipe_core.request.first_error import validate_plain
from recipe_core.request.size import AvailabilityRequest, GrowthRequest, PurchaseRequest
from recipe_core.views import size_text
from recipe_core.views import size_view as view
from recipe_core.views.charts.size import growth_costs, owned_or_rented
from recipe_core.views.plain import describe_plainly

Json = Mapping[str, Any]
MODELS = {
    "growth": GrowthRequest,
    "availability": AvailabilityRequest,
    "purchase": PurchaseRequest,
}
START: Mapping[str, Mapping[str, Any]] = {
    "growth": {"per_month": 0.05},
    "availability": {},
    "purchase": {},
}
"""What a part asks when it is opened."""
FIELDS: Mapping[str, Mapping[str, tuple[str, float]]] = {
    "growth": {
        "per_month": ("Growth a month (%)", 100.0),
        "months": ("Months to look ahead", 1),
    },
    "availability": {
        "target": ("Enough replicas up (% of time)", 100.0),
        "node_mtbf_hours": ("Hours between failures of a machine", 1.0),
        "repair_hours": ("Hours until it serves again", 1.0),
    },
    "purchase": {
        "usd_per_device": ("Price of a device ($)", 1.0),
        "years": ("Written off over (years)", 1.0),
        "usd_per_kwh": ("Electricity ($/kWh)", 1.0),
        "pue": ("PUE", 1.0),
        "upkeep": ("Upkeep a year (% of price)", 100.0),
        "use": ("Hours in use (%)", 100.0),
        "busy_hours": ("Busy hours a day", 1),
        "quiet_share": ("Load in other hours (% of busy)", 100.0),
        "months": ("Should pay within (months)", 1),
    },
}
"""Fields that a page asks for: label, and units of the page in one of the field's."""
TITLES = {
    "growth": ("Growth", ":material/trending_up:"),
    "availability": ("Availability", ":material/health_and_safety:"),
    "purchase": ("Buy or rent", ":material/savings:"),
}
EMPTY = {
    "node_mtbf_hours": "as in published fleets",
    "repair_hours": "as rented machines",
    "usd_per_device": "unknown",
}


def part_names() -> list[str]:
    """Parts that the workload has: a training run does not grow, and restarts."""
    return ["purchase"] if session.asks_for_training() else list(MODELS)


def stated_part(part: str) -> dict[str, Any]:
    return {**START[part], **st.session_state.get(f"size-{part}", {})}


def stated_parts() -> dict[str, Any]:
    """Parts of the request whose expander is open."""
    return {
        name: stated_part(name)
        for name in part_names()
        if st.session_state.get(f"size-open-{name}")
    }


def draw_later_parts(answer: Json) -> None:
    say: dict[str, Callable[[Json, Json], None]] = {
        "growth": draw_growth,
        "availability": draw_availability,
        "purchase": draw_purchase,
    }
    for part in part_names():
        title, icon = TITLES[part]
        key = f"size-open-{part}"
        with st.expander(title, icon=icon, key=key, on_change="rerun") as opened:
            if opened.open:
                draw_part_figures(part)
                if answer["devices"]:
                    say[part](answer, selected_or_best_row(answer))


def selected_or_best_row(answer: Json) -> Json:
    rows = {view.key(row): row for row in answer["devices"]}
    selected: Json = rows.get(st.session_state.get("size-device"), answer["devices"][0])
    return selected


def draw_part_figures(part: str) -> None:
    with numbers.group_boxes(f"size-{part}-figures"), st.grid(4, min_column_width=150):
        for field, (label, factor) in FIELDS[part].items():
            draw_part_figure(part, field, label, factor)


def draw_part_figure(part: str, field: str, label: str, factor: float) -> None:
    model = MODELS[part]
    value = stated_part(part).get(field, model.model_fields[field].default)

    def take(entered: float | None) -> None:
        values = {name: value for name, value in stated_part(part).items() if name != field}
        if entered is not None:
            values[field] = numbers.scaled(entered, 1 / factor)
        validate_plain(values, model)
        st.session_state[f"size-{part}"] = values

    numbers.box(
        label,
        f"_size_{part}_{field}",
        None if value is None else numbers.scaled(value, factor),
        take,
        range_of(field, model).scaled(factor),
        optional=True,
        placeholder=EMPTY.get(field, "default"),
        help=describe_plainly(model, field),
    )


def draw_growth(answer: Json, row: Json) -> None:
    if not answer.get("growth"):
        st.info("No device has a largest load to grow to.", icon=":material/info:")
        return
    cheapest = size_text.cheapest_sentence(answer["growth"], answer["devices"])
    st.markdown(common.escape(f"{size_text.growth_text(row)} {cheapest}"))
    common.draw_chart(
        growth_costs(answer, view.key(row), dark=common.dark()),
        "size-growth-chart",
        "Cost of each month by device while the load grows",
    )
    st.caption("A mark is the month in which a device needs the next unit.")


def draw_availability(_: Json, row: Json) -> None:
    rows = size_text.availability_facts(row)
    st.markdown(f"**{common.escape(view.short(row))}**")
    common.draw_facts(rows, "Replicas, spares, and what a lost machine does")


def draw_purchase(_: Json, row: Json) -> None:
    purchase = size_text.purchase_text(row)
    if not purchase:
        st.info("These machines are yours already.", icon=":material/info:")
        return
    st.markdown(common.escape(purchase))
    if "rented" in row["purchase"]:
        common.draw_chart(
            owned_or_rented(row["purchase"], dark=common.dark()),
            "size-purchase-chart",
            "What owning and renting have cost until the end of each month",
        )
    else:
        st.caption("State the price of a device, and the curves of both are drawn.")
