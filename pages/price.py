"""What an hour of a device costs: the part of the hardware page that asks for it."""

from __future__ import annotations

from typing import get_args

import common
import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.base.units import usd
from recipe_core.hardware.cluster import cluster, device
from recipe_core.hardware.ownership import OwnershipCost
from recipe_core.hardware.prices import offers_of
from recipe_core.hardware.profile import Commitment
from recipe_core.request.schema import describe_field

PRICES = {"offer": "Cloud offer", "stated": "My own price", "owned": "Own hardware"}
CHEAPEST = ""
NO_OFFER = "No on-demand offer known for this device: cost is not estimated"
OWNED = {
    "capex_usd": (
        "Price of a device ($)",
        1000.0,
        "With its share of server, network and building",
    ),
    "years": ("Written off over (years)", 0.5, None),
    "watts": ("Power, on average (W)", 50.0, "Of a device with its share of the server"),
    "usd_per_kwh": ("Price of power ($/kWh)", 0.01, None),
    "pue": ("Power of the building (PUE)", 0.05, "Power of the building by power of the machines"),
    "upkeep": ("Upkeep (share of price a year)", 0.01, "Repair, space and people"),
    "use": ("Share of hours in use", 0.05, "The other hours are paid for all the same"),
}


def price_changes(mode: str) -> dict[str, object]:
    """From one way of saying the price to another; a price of one's own starts at the present one, and keeps what it is for."""
    st.session_state["price_mode"] = mode
    if mode == "offer":
        return {"hardware.usd_per_device_hour": None, "hardware.commitment": None}
    if mode == "owned":
        return {"hardware.usd_per_device_hour": owned_price(), "hardware.commitment": None}
    now = cluster(common.request().hardware)
    kind = None if now.commitment == "on-demand" else now.commitment
    return {
        "hardware.usd_per_device_hour": now.usd_per_device_hour or 1.0,
        "hardware.commitment": kind,
    }


def owning() -> OwnershipCost:
    """What was said about hardware of one's own."""
    return OwnershipCost.of(
        **{"watts": device(common.request().hardware.device).tdp_watts.value}
        | st.session_state.get("owning", {})
    )


def owned_price() -> float:
    """Of one's own hardware, rounded to what a person would write."""
    return round(owning().usd_per_device_hour, 4) or 1e-4


def set_owned(name: str) -> None:
    """One figure of one's own hardware was changed."""
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
    """What an hour of a device costs: an offer, a stated price, or capital and power."""
    stated = common.request().hardware.usd_per_device_hour
    mode = (
        "offer"
        if stated is None
        else "owned"
        if st.session_state.get("price_mode") == "owned"
        else "stated"
    )
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
    """A price of one's own, and what it is for."""
    price, kind, term = st.columns([2, 3, 2], vertical_alignment="bottom")
    with price:
        common.edit(
            st.number_input,
            "My price ($ per device and hour)",
            "hardware.usd_per_device_hour",
            min_value=0.001,
            step=0.1,
            format="%.3f",
        )
    with kind:
        common.edit(
            st.segmented_control,
            "It is",
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
    """Offers for the device, cheapest first, by what one commits to."""
    asked = common.request().hardware
    every = offers_of(device(asked.device))
    kinds = [
        kind
        for kind in get_args(Commitment)
        if kind == "on-demand" or any(offer.commitment == kind for offer in every)
    ]
    named = next((offer for offer in every if offer.name == asked.offer), None)
    kind = named.commitment if named else asked.commitment or "on-demand"
    common.choose(
        st.segmented_control,
        "Commitment",
        "_commitment",
        kind,
        lambda chosen: {"hardware.commitment": None if chosen == "on-demand" else chosen},
        options=kinds,
        required=True,
        help=describe_field("hardware.commitment"),
    )
    prices = {offer.name: offer for offer in every if offer.commitment == kind}

    def label(name: str) -> str:
        if name == CHEAPEST:
            first = next(iter(prices.values()), None)
            return (
                f"Cheapest {kind}: {usd(first.usd_per_device_hour)} per hour · {first.name}"
                if first
                else NO_OFFER
            )
        offer = prices[name]
        return f"{usd(offer.usd_per_device_hour)} per hour · {offer.name} · {offer.terms} · {offer.date}"

    common.choose(
        st.selectbox,
        "Offer",
        "_price",
        asked.offer or CHEAPEST,
        lambda name: (
            {"hardware.offer": name}
            if name
            else {"hardware.commitment": None if kind == "on-demand" else kind}
        ),
        options=[CHEAPEST, *prices],
        format_func=label,
    )
    for offer in [named or next(iter(prices.values()), None)]:
        if offer is not None and offer.note:
            st.caption(common.escape(offer.note))


def own_hardware() -> None:
    """Capital, power and upkeep, and the price of an hour that they make."""
    now = owning()
    with st.grid(4, min_column_width=150):
        for name, (label, step, said) in OWNED.items():
            st.session_state[f"_own_{name}"] = getattr(now, name)
            st.number_input(
                label,
                key=f"_own_{name}",
                step=step,
                min_value=0.0,
                on_change=set_owned,
                args=(name,),
                help=said,
                format="%.6g",
            )
    made = {
        "written off": now.capital_usd_per_hour,
        "upkeep": now.upkeep_usd_per_hour,
        "power": now.power_usd_per_hour,
    }
    said = " + ".join(f"{usd(value)} {name}" for name, value in made.items())
    st.caption(common.escape(f"{usd(now.usd_per_device_hour)} per device and hour = {said}"))
