"""The folded part of the size page's form: filters on the market, and machines that one has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import _common as common
import streamlit as st

from recipe_core.base.described import description_of
from recipe_core.base.units import GIB
from recipe_core.hardware.cluster import device, device_names
from recipe_core.hardware.prices import offers
from recipe_core.request.size import Market


def choice(
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
    st.session_state[key] = read(getattr(common.market(), field))

    def commit() -> None:
        value = st.session_state[key]
        common.narrow({field: None if value is None else write(value)})

    if widget == st.number_input:
        options["value"] = None
    widget(
        label,
        key=key,
        on_change=commit,
        **{"help": description_of(Market, field), **options},
    )


def named(field: str, label: str, options: Sequence[str], placeholder: str, **rest: Any) -> None:
    """Names to choose from, or others that are typed."""
    now = [name for name in getattr(common.market(), field) if isinstance(name, str)]
    choice(
        st.multiselect,
        label,
        field,
        read=lambda _: now,
        options=list(dict.fromkeys([*options, *now])),
        placeholder=placeholder,
        **rest,
    )


def draw() -> None:
    """Devices, providers, regions, sizes, what is doubted, and machines that one has."""
    every = offers()
    providers = sorted({offer.provider for offer in every}, key=str.casefold)
    regions = sorted({offer.region for offer in every if offer.region}, key=str.casefold)
    names = st.columns(3)
    with names[0]:
        named("devices", "Devices", device_names(), "every device", format_func=device_title)
    with names[1]:
        named("providers", "Providers", providers, "every provider", accept_new_options=True)
    with names[2]:
        shown = ["us", "eu", *regions]
        named("regions", "Regions", shown, "every region", accept_new_options=True)
    with st.grid(4, min_column_width=150):
        any_number("Largest machine (devices)", "largest_node", min_value=1, step=1)
        any_number(
            "Least memory (GiB)",
            "memory_bytes_at_least",
            read=lambda size: None if size is None else size / GIB,
            write=lambda size: size * GIB,
            min_value=1.0,
            step=8.0,
            format="%.6g",
        )
        any_number(
            "Longest term (months)",
            "term_months",
            min_value=1,
            max_value=120,
            step=1,
            disabled="reserved" not in common.market().commitments,
        )
        common.edit(
            st.number_input,
            "Power limit (W)",
            "objective.limits.watts",
            optional=True,
            min_value=1.0,
            step=1000.0,
            format="%.6g",
            placeholder="no limit",
        )
    choice(st.toggle, "Use unverified prices where there are no others", "unverified")
    own_machines()


def any_number(label: str, field: str, **options: Any) -> None:
    """A number of the market that may be left out."""
    choice(st.number_input, label, field, placeholder="any", **options)


def device_title(name: str) -> str:
    """A device as people write it."""
    return device(name).title


def own_machines() -> None:
    """Machines that one has already: a device and how many of it."""
    owned = list(common.market().owned)
    for n, machines in enumerate(owned):
        name, remove = st.columns([3, 1], vertical_alignment="center")
        title = machines.device if isinstance(machines.device, str) else "your profile"
        name.markdown(f"Own: {machines.count:,} × {common.escape(title)}")
        rest = [one.model_dump(exclude_none=True) for k, one in enumerate(owned) if k != n]
        remove.button(
            "Remove",
            key=f"size-own-{n}",
            icon=":material/close:",
            on_click=common.narrow,
            args=({"owned": rest},),
        )
    device_name, count, add = st.columns([3, 1, 2], vertical_alignment="bottom")
    with device_name:
        own = st.selectbox(
            "Own machines",
            device_names(),
            index=None,
            key="size-own-device",
            format_func=device_title,
            placeholder="a device that you have",
        )
    with count:
        how_many = st.number_input(
            "How many", min_value=1, max_value=1 << 20, value=8, key="size-own-count"
        )
    now = [one.model_dump(exclude_none=True) for one in owned]
    add.button(
        "Add",
        key="size-own-add",
        icon=":material/add:",
        disabled=own is None or how_many is None,
        on_click=common.narrow,
        args=({"owned": [*now, {"device": own, "count": how_many}]},),
    )
