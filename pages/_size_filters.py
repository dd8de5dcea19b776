"""The folded form of the lens on hardware: filters on the market, and machines that one has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, get_args

import _common as common
import _numbers as numbers
import _session as session
import streamlit as st

from recipe_core.base.units import GIB
from recipe_core.hardware.cluster import device_names, device_profile
from recipe_core.hardware.prices import all_offers
from recipe_core.hardware.profile import Commitment
from recipe_core.request.edit import range_of
from recipe_core.request.size import Market, Owned
from recipe_core.views.plain import describe_plainly

VENDORS = {
    "nvidia": "NVIDIA",
    "amd": "AMD",
    "intel": "Intel",
    "apple": "Apple",
    "google": "Google",
    "aws": "AWS",
    "cpu": "CPU",
}
FIRST_OWNED = 8
"""Devices of one's own that are added where nothing else is typed."""


def draw_filter(
    widget: Callable[..., Any],
    label: str,
    field: str,
    *,
    read: Callable[[Any], Any] = lambda value: value,
    write: Callable[[Any], Any] = lambda value: value,
    **options: Any,
) -> None:
    """Draw a widget on one field of the market; an emptied one is the field's default."""
    key = f"_any_{field}"
    common.seed(key, read(getattr(session.current_market(), field)))

    def commit() -> None:
        value = st.session_state[key]
        session.narrow_market({field: None if value is None else write(value)})

    widget(
        label,
        key=key,
        on_change=commit,
        **{"help": describe_plainly(Market, field), **common.titled(options)},
    )


def draw_name_filter(
    field: str, label: str, options: Sequence[str], placeholder: str, **rest: Any
) -> None:
    now = [name for name in getattr(session.current_market(), field) if isinstance(name, str)]
    draw_filter(
        st.multiselect,
        label,
        field,
        read=lambda _: now,
        options=list(dict.fromkeys([*options, *now])),
        placeholder=placeholder,
        **rest,
    )


def draw_size_filters() -> None:
    """Devices, providers, regions, sizes, what is doubted, and machines that one has."""
    offers = all_offers()
    providers = sorted({offer.provider for offer in offers}, key=str.casefold)
    regions = sorted({offer.region for offer in offers if offer.region}, key=str.casefold)
    names = st.columns(3)
    with names[0]:
        draw_name_filter(
            "devices", "Devices", sorted(device_names()), "every device", format_func=device_title
        )
    with names[1]:
        draw_name_filter(
            "providers", "Providers", providers, "every provider", accept_new_options=True
        )
    with names[2]:
        shown = ["us", "eu", *regions]
        draw_name_filter("regions", "Regions", shown, "every region", accept_new_options=True)
    kinds = st.columns(2)
    with kinds[0]:
        draw_filter(
            st.multiselect,
            "Vendors",
            "vendors",
            read=list,
            options=VENDORS,
            placeholder="every maker of accelerators",
        )
    with kinds[1]:
        draw_filter(
            st.multiselect,
            "Commitment",
            "commitments",
            read=list,
            options=list(get_args(Commitment)),
            placeholder="on-demand",
        )
    with numbers.group_boxes("filters"), st.grid(4, min_column_width=150):
        market_number("Largest machine (devices)", "largest_node")
        market_number("Least memory (GiB)", "memory_bytes_at_least", scale=1 / GIB, unit="GiB")
        market_number(
            "Longest term (months)",
            "term_months",
            disabled="reserved" not in session.current_market().commitments,
        )
        numbers.draw_number(
            "Power limit (W)",
            "objective.limits.watts",
            optional=True,
            unit="W",
            placeholder="no limit",
        )
    draw_filter(st.toggle, "Use unverified prices where there are no others", "unverified")
    own_machines()


def market_number(
    label: str, field: str, *, scale: float = 1.0, placeholder: str = "any", **options: Any
) -> None:
    """A number of the market that may be left out; ``scale``: units of the page in the field's."""
    market_value = getattr(session.current_market(), field)

    def take(value: float | None) -> None:
        session.narrow_to({field: None if value is None else numbers.scaled(value, 1 / scale)})

    numbers.box(
        label,
        f"_any_{field}",
        None if market_value is None else numbers.scaled(market_value, scale),
        take,
        range_of(field, Market).scaled(scale),
        optional=True,
        placeholder=placeholder,
        help=describe_plainly(Market, field),
        **options,
    )


def device_title(name: str) -> str:
    return device_profile(name).title


def keep_count(count: int) -> None:
    """Remember how many machines are added next."""
    st.session_state["size-own-count"] = count


def own_machines() -> None:
    """Machines that one has already: a device and how many of it."""
    owned = list(session.current_market().owned)
    for n, machines in enumerate(owned):
        name, remove = st.columns([3, 1], vertical_alignment="center")
        title = machines.device if isinstance(machines.device, str) else "your profile"
        name.markdown(f"Own: {machines.count:,} × {common.escape(title)}")
        rest = [machine.model_dump(exclude_none=True) for k, machine in enumerate(owned) if k != n]
        remove.button(
            "Remove",
            key=f"size-own-{n}",
            icon=":material/close:",
            on_click=session.narrow_market,
            args=({"owned": rest},),
        )
    with numbers.group_boxes("size-own"):
        device_name, count, add = st.columns([3, 1, 2], vertical_alignment="bottom")
    with device_name:
        new_device = st.selectbox(
            "Own machines",
            sorted(device_names()),
            index=None,
            key="size-own-device",
            format_func=device_title,
            placeholder="a device that you have",
        )
    how_many = st.session_state.get("size-own-count", FIRST_OWNED)
    with count:
        numbers.box("How many", "_size-own-count", how_many, keep_count, range_of("count", Owned))
    now = [machine.model_dump(exclude_none=True) for machine in owned]
    add.button(
        "Add",
        key="size-own-add",
        icon=":material/add:",
        disabled=new_device is None,
        on_click=session.narrow_market,
        args=({"owned": [*now, {"device": new_device, "count": how_many}]},),
    )
