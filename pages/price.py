"""What an hour of a device costs: the part of the hardware page that asks for it."""

from __future__ import annotations

import common
import streamlit as st

from recipe_core.errors import RecipeError
from recipe_core.hardware.catalog import cluster, device, offers
from recipe_core.owning import Owning
from recipe_core.units import usd

PRICES = {"offer": "Cloud offer", "stated": "My own price", "owned": "Own hardware"}
CHEAPEST = ""
NO_OFFER = "No on-demand offer known for this device: cost is not estimated"
OWNED = {
    "capex_usd": ("Price of a device ($)", 1000.0, "With its share of server, network and building"),
    "years": ("Written off over (years)", 0.5, None),
    "watts": ("Power, on average (W)", 50.0, "Of a device with its share of the server"),
    "usd_per_kwh": ("Price of power ($/kWh)", 0.01, None),
    "pue": ("Power of the building (PUE)", 0.05, "Power of the building by power of the machines"),
    "upkeep": ("Upkeep (share of price a year)", 0.01, "Repair, space and people"),
    "use": ("Share of hours in use", 0.05, "The other hours are paid for all the same"),
}


def price_changes(mode: str) -> dict[str, object]:
    """From one way of saying the price to another; a price of one's own starts at the present one."""
    st.session_state["price_mode"] = mode
    if mode == "offer":
        return {"hardware.usd_per_device_hour": None}
    if mode == "owned":
        return {"hardware.usd_per_device_hour": owned_price()}
    return {"hardware.usd_per_device_hour": cluster(common.request().hardware).usd_per_device_hour or 1.0}


def owning() -> Owning:
    """What was said about hardware of one's own."""
    return Owning.of(**{"watts": device(common.request().hardware.device).tdp_watts.value} | st.session_state.get("owning", {}))


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
        Owning.of(**figures)
    except RecipeError as error:
        st.session_state["refused"] = str(error)
        return
    st.session_state["owning"] = figures
    common.apply({"hardware.usd_per_device_hour": owned_price()})


def draw() -> None:
    """What an hour of a device costs: an offer, a stated price, or capital and power."""
    stated = common.request().hardware.usd_per_device_hour
    mode = "offer" if stated is None else "owned" if st.session_state.get("price_mode") == "owned" else "stated"
    common.choose(
        st.segmented_control, "Price", "_price_mode", mode, price_changes, options=list(PRICES), format_func=PRICES.get, required=True
    )
    if mode == "offer":
        offer_list()
    elif mode == "stated":
        common.edit(
            st.number_input, "My price ($ per device and hour)", "hardware.usd_per_device_hour", min_value=0.001, step=0.1, format="%.3f"
        )
    else:
        own_hardware()


def offer_list() -> None:
    """Offers for the device, cheapest first, by what one commits to."""
    named = device(common.request().hardware.device).name
    prices = {offer.name: offer for offer in offers() if offer.device == named}
    kinds = list(dict.fromkeys(offer.commitment for offer in prices.values()))
    kept = list(prices)
    if len(kinds) > 1:
        kind = st.pills("Commitment", kinds, key="commitment", persist_state="session", help="None chosen: all")
        kept = [name for name, offer in prices.items() if kind in (None, offer.commitment) or name == common.request().hardware.offer]

    first = next((offer for offer in prices.values() if offer.commitment == "on-demand"), None)
    cheapest = f"Cheapest on demand: {usd(first.usd_per_device_hour)} per hour · {first.name}" if first else NO_OFFER

    def label(name: str) -> str:
        if name == CHEAPEST:
            return cheapest
        offer = prices[name]
        return f"{usd(offer.usd_per_device_hour)} per hour · {offer.name} · {offer.commitment} · {offer.date}"

    common.choose(
        st.selectbox,
        "Offer",
        "_price",
        common.request().hardware.offer or CHEAPEST,
        lambda name: {"hardware.offer": name or None},
        options=[CHEAPEST, *kept],
        format_func=label,
    )


def own_hardware() -> None:
    """Capital, power and upkeep, and the price of an hour that they make."""
    now = owning()
    with st.grid(4, min_column_width=150):
        for name, (label, step, said) in OWNED.items():
            st.session_state[f"_own_{name}"] = getattr(now, name)
            st.number_input(
                label, key=f"_own_{name}", step=step, min_value=0.0, on_change=set_owned, args=(name,), help=said, format="%.6g"
            )
    made = {
        "written off": now.capital_usd_per_hour,
        "upkeep": now.upkeep_usd_per_hour,
        "power": now.power_usd_per_hour,
    }
    said = " + ".join(f"{usd(value)} {name}" for name, value in made.items())
    st.caption(common.escape(f"{usd(now.usd_per_device_hour)} per device and hour = {said}"))
