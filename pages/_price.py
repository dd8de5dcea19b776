"""The part of the hardware page that asks what an hour of a device costs."""

from __future__ import annotations

from typing import get_args

import _common as common
import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.base.units import usd
from recipe_core.hardware.cluster import cluster, device
from recipe_core.hardware.offers import Offer
from recipe_core.hardware.ownership import OwnershipCost
from recipe_core.hardware.prices import default_offer, offers_of
from recipe_core.hardware.profile import Commitment
from recipe_core.request.schema import describe_field

PRICES = {"offer": "Cloud offer", "stated": "Custom price", "owned": "Own hardware"}
CHEAPEST = ""
OWNED = {
    "capex_usd": (
        "Price per device ($)",
        1000.0,
        "Including its share of server, network and building",
    ),
    "years": ("Depreciation period (years)", 0.5, None),
    "watts": ("Mean power (W)", 50.0, "Per device, including its share of the server"),
    "usd_per_kwh": ("Electricity price ($/kWh)", 0.01, None),
    "pue": ("PUE", 0.05, "Power usage effectiveness: power of the building over that of the IT"),
    "upkeep": ("Yearly upkeep (share of price)", 0.01, "Repairs, space and staff"),
    "use": ("Utilisation (share of hours)", 0.05, "Idle hours are paid for too"),
}
"""Fields of ``OwnershipCost``: label, step and help of each."""


def price_changes(mode: str) -> dict[str, object]:
    """Change how the price is stated; a custom one starts at the current price."""
    st.session_state["price_mode"] = mode
    if mode == "offer":
        return {"hardware.usd_per_device_hour": None, "hardware.commitment": None}
    if mode == "owned":
        return {"hardware.usd_per_device_hour": owned_price(), "hardware.commitment": None}
    current = cluster(common.request().hardware)
    return {
        "hardware.usd_per_device_hour": current.usd_per_device_hour or 1.0,
        "hardware.commitment": stored_commitment(current.commitment),
    }


def owning() -> OwnershipCost:
    """The cost of own hardware, as entered."""
    watts = device(common.request().hardware.device).tdp_watts.value
    return OwnershipCost.of(**{"watts": watts, **st.session_state.get("owning", {})})


def owned_price() -> float:
    """Dollars per device-hour of own hardware, rounded to what a person would write."""
    return round(owning().usd_per_device_hour, 4) or 1e-4


def set_owned(name: str) -> None:
    """Apply a changed figure of own hardware; an impossible one is refused."""
    value = st.session_state[f"_own_{name}"]
    if value is None:
        return
    figures = st.session_state.get("owning", {}) | {name: value}
    try:
        OwnershipCost.of(**figures)
    except RecipeError as error:
        st.session_state["refused"] = str(error)
        return
    st.session_state["owning"] = figures
    common.apply({"hardware.usd_per_device_hour": owned_price()})


def draw() -> None:
    """The price of a device-hour: an offer, a custom price, or capital and power."""
    mode = "offer"
    if common.request().hardware.usd_per_device_hour is not None:
        mode = "owned" if st.session_state.get("price_mode") == "owned" else "stated"
    common.choose(
        st.segmented_control,
        "Price",
        "_price_mode",
        mode,
        price_changes,
        options=list(PRICES),
        format_func=PRICES.get,
        required=True,
    )
    if mode == "offer":
        offer_list()
    elif mode == "stated":
        stated_price()
    else:
        own_hardware()
    if note := cluster(common.request().hardware).price_note:
        st.caption(f":material/info: {common.escape(note)}")


def stated_price() -> None:
    """A custom price and its commitment."""
    price, kind, term = st.columns([2, 3, 2], vertical_alignment="bottom")
    with price:
        common.edit(
            st.number_input,
            "Price ($ per device-hour)",
            "hardware.usd_per_device_hour",
            min_value=0.001,
            step=0.1,
            format="%.3f",
        )
    with kind:
        common.edit(
            st.segmented_control,
            "Commitment",
            "hardware.commitment",
            options=list(get_args(Commitment)),
            optional=True,
        )
    if common.request().hardware.commitment == "reserved":
        with term:
            common.edit(
                st.number_input,
                "Term (months)",
                "hardware.term_months",
                min_value=1,
                max_value=120,
                step=1,
                optional=True,
            )


def offer_list() -> None:
    """Offers for the device, cheapest first, by commitment."""
    hardware = common.request().hardware
    offers = offers_of(device(hardware.device))
    selected = next((offer for offer in offers if offer.name == hardware.offer), None)
    kind = selected.commitment if selected else hardware.commitment or "on-demand"
    offered = {offer.commitment for offer in offers} | {"on-demand", kind}
    common.choose(
        st.segmented_control,
        "Commitment",
        "_commitment",
        kind,
        lambda kind: {"hardware.commitment": stored_commitment(kind)},
        options=[kind for kind in get_args(Commitment) if kind in offered],
        required=True,
        help=describe_field("hardware.commitment"),
    )
    prices = {offer.name: offer for offer in offers if offer.commitment == kind}
    cheapest = default_offer(hardware.model_copy(update={"commitment": kind}), offers)

    def label(name: str) -> str:
        if name != CHEAPEST:
            offer = prices[name]
            return " · ".join([*said(offer), offer.terms, offer.date, *offer.marks()])
        if cheapest is None:
            return f"No {kind} offer is known for this device, so cost is not estimated"
        price, cheapest_name = said(cheapest)
        return " · ".join([f"Cheapest {kind}: {price}", cheapest_name, *cheapest.marks()])

    def changes(name: str) -> dict[str, object]:
        if name:
            return {"hardware.offer": name}
        return {"hardware.commitment": stored_commitment(kind)}

    common.choose(
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
        st.caption(common.escape(caption(offer)))


def said(offer: Offer) -> tuple[str, str]:
    """Price and name of an offer."""
    return f"{usd(offer.usd_per_device_hour)} per hour", offer.name


def caption(offer: Offer) -> str:
    """What is rented, where and since when it is known, its note and what to doubt."""
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
    """The commitment as the request states it: on-demand is its default."""
    return None if kind == "on-demand" else kind


def own_hardware() -> None:
    """Capital, upkeep and power, and the hourly price they make."""
    cost = owning()
    with st.grid(4, min_column_width=150):
        for name, (label, step, text) in OWNED.items():
            st.session_state[f"_own_{name}"] = getattr(cost, name)
            st.number_input(
                label,
                key=f"_own_{name}",
                step=step,
                min_value=0.0,
                on_change=set_owned,
                args=(name,),
                help=text,
                format="%.6g",
            )
    parts = {
        "depreciation": cost.capital_usd_per_hour,
        "upkeep": cost.upkeep_usd_per_hour,
        "power": cost.power_usd_per_hour,
    }
    total = " + ".join(f"{usd(value)} {name}" for name, value in parts.items())
    st.caption(common.escape(f"{usd(cost.usd_per_device_hour)} per device-hour = {total}"))
