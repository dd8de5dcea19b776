"""The part of the hardware page that asks what an hour of a device costs."""

from __future__ import annotations

from functools import partial
from typing import get_args

import _common as common
import _numbers as numbers
import _session as session
import streamlit as st

from recipe_core.base.units import usd
from recipe_core.hardware.cluster import cluster, device_profile
from recipe_core.hardware.offers import Offer
from recipe_core.hardware.prices import OwnershipCost, default_offer, offers_of
from recipe_core.hardware.profile import Commitment
from recipe_core.request.edit import range_of
from recipe_core.views.glossary import field_help

PRICES = {"offer": "Cloud offer", "stated": "Custom price", "owned": "Own hardware"}
CHEAPEST = ""
OWNED = {
    "capex_usd": (
        "Price per device ($)",
        "Including its share of server, network and building",
    ),
    "years": ("Depreciation period (years)", None),
    "watts": ("Mean power (W)", "Per device, including its share of the server"),
    "usd_per_kwh": ("Electricity price ($/kWh)", None),
    "pue": ("PUE", "Power usage effectiveness: power of the building over that of the IT"),
    "upkeep": ("Yearly upkeep (share of price)", "Repairs, space and staff"),
    "use": ("Utilisation (share of hours)", "Idle hours are paid for too"),
}
"""Fields of ``OwnershipCost``: label and help of each."""


def price_changes(mode: str) -> dict[str, object]:
    """Change how the price is stated; a custom one starts at the current price."""
    st.session_state["price_mode"] = mode
    if mode == "offer":
        return {"hardware.usd_per_device_hour": None, "hardware.commitment": None}
    if mode == "owned":
        return {"hardware.usd_per_device_hour": owned_price(), "hardware.commitment": None}
    current = cluster(session.request().hardware)
    return {
        "hardware.usd_per_device_hour": current.usd_per_device_hour or 1.0,
        "hardware.commitment": stored_commitment(current.commitment),
    }


def ownership_of_request() -> OwnershipCost:
    """The cost of own hardware, as entered."""
    watts = device_profile(session.request().hardware.device).tdp_watts.value
    return OwnershipCost.of(**{"watts": watts, **st.session_state.get("owning", {})})


def owned_price() -> float:
    """Dollars per device-hour of own hardware, rounded to what a person would write."""
    return round(ownership_of_request().usd_per_device_hour, 4) or 1e-4


def set_owned(name: str, value: float) -> None:
    """Apply a changed figure of own hardware.

    Raises:
        RecipeError: for an impossible one.
    """
    figures = st.session_state.get("owning", {}) | {name: value}
    OwnershipCost.of(**figures)
    st.session_state["owning"] = figures
    session.change_to({"hardware.usd_per_device_hour": owned_price()})


def draw_price() -> None:
    """The price of a device-hour: an offer, a custom price, or capital and power."""
    mode = "offer"
    if session.request().hardware.usd_per_device_hour is not None:
        mode = "owned" if st.session_state.get("price_mode") == "owned" else "stated"
    common.draw_choice(
        st.segmented_control,
        "Price",
        "_price_mode",
        mode,
        price_changes,
        options=PRICES,
        required=True,
    )
    if mode == "offer":
        offer_list()
    elif mode == "stated":
        stated_price()
    else:
        own_hardware()
    if note := cluster(session.request().hardware).price_note:
        st.caption(f":material/info: {common.escape(note)}")


def stated_price() -> None:
    with numbers.group_boxes("price"), st.grid(3, min_column_width=150):
        numbers.draw_number(
            "Price ($ per device-hour)", "hardware.usd_per_device_hour", unit="$/hour"
        )
        common.edit(
            st.segmented_control,
            "Commitment",
            "hardware.commitment",
            options=list(get_args(Commitment)),
            optional=True,
            wrap=True,
        )
        if session.request().hardware.commitment == "reserved":
            numbers.draw_number("Term (months)", "hardware.term_months", optional=True)


def offer_list() -> None:
    """Offers for the device, cheapest first, by commitment."""
    hardware = session.request().hardware
    offers = offers_of(device_profile(hardware.device))
    selected = next((offer for offer in offers if offer.name == hardware.offer), None)
    kind = selected.commitment if selected else hardware.commitment or "on-demand"
    offered = {offer.commitment for offer in offers} | {"on-demand", kind}
    common.draw_choice(
        st.segmented_control,
        "Commitment",
        "_commitment",
        kind,
        lambda kind: {"hardware.commitment": stored_commitment(kind)},
        options=[kind for kind in get_args(Commitment) if kind in offered],
        required=True,
        help=field_help("hardware.commitment"),
    )
    prices = {offer.name: offer for offer in offers if offer.commitment == kind}
    cheapest = default_offer(hardware.model_copy(update={"commitment": kind}), offers)

    def label(name: str) -> str:
        if name != CHEAPEST:
            offer = prices[name]
            return " · ".join([*offer_texts(offer), offer.terms, offer.date, *offer.marks()])
        return "The cheapest"

    def changes(name: str) -> dict[str, object]:
        if name:
            return {"hardware.offer": name}
        return {"hardware.commitment": stored_commitment(kind)}

    common.draw_choice(
        st.selectbox,
        "Offer",
        "_price",
        hardware.offer or CHEAPEST,
        changes,
        options=[CHEAPEST, *prices],
        format_func=label,
    )
    offer = selected or cheapest
    if offer is not None:
        price, name = offer_texts(offer)
        st.caption(common.escape(f"{price}, {name} · {offer_caption(offer)}"))
    else:
        st.caption(f"No {kind} offer is known for this device, so cost is not estimated.")


def offer_texts(offer: Offer) -> tuple[str, str]:
    return f"{usd(offer.usd_per_device_hour)} per hour", offer.name


def offer_caption(offer: Offer) -> str:
    """Say what is rented, where and since when it is known, its note and what to doubt."""
    several = f" to {offer.most_per_node}" if offer.most_per_node else ""
    parts = [
        f"{offer.provider}: {usd(offer.usd_per_machine_hour)} per hour of a machine with "
        f"{offer.devices_per_node}{several} devices",
        offer.region or "region not stated",
        f"{offer.status} {offer.date}",
        *(mark for mark in offer.marks() if mark != offer.status),
        offer.note,
    ]
    return " · ".join(filter(None, parts))


def stored_commitment(kind: str) -> str | None:
    return None if kind == "on-demand" else kind


def own_hardware() -> None:
    """Capital, upkeep and power, and the hourly price they make."""
    cost = ownership_of_request()
    with numbers.group_boxes("owned"), st.grid(4, min_column_width=150):
        for name, (label, text) in OWNED.items():
            numbers.box(
                label,
                f"_own_{name}",
                getattr(cost, name),
                partial(set_owned, name),
                range_of(name, OwnershipCost),
                unit="$" if "$" in label else "",
                help=text,
            )
    parts = {
        "depreciation": cost.capital_usd_per_hour,
        "upkeep": cost.upkeep_usd_per_hour,
        "power": cost.power_usd_per_hour,
    }
    total = " + ".join(f"{usd(value)} {name}" for name, value in parts.items())
    st.caption(common.escape(f"{usd(cost.usd_per_device_hour)} per device-hour = {total}"))
