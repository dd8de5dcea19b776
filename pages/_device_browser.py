"""All devices as a table to choose from, and usual numbers of the chosen one."""

from __future__ import annotations

import _columns as columns_of
import _common as common
import _session as session
import streamlit as st

from recipe_core.hardware.cluster import device_names, device_profile
from recipe_core.views.devices import DeviceRow, device_rows, profile_columns, usual_counts

KEY = "devices"


def draw_device_browser() -> None:
    """A fold with every device, its figures and price; a click on a row takes the device."""
    with st.expander(
        "Browse devices", icon=":material/table:", key="browse-devices", on_change="rerun"
    ) as browser:
        if browser.open:
            draw_counts()
            draw_devices(device_rows(device_names(announced=True)))


def draw_counts() -> None:
    """Usual numbers of the device; the one that the request has is on."""
    hardware = session.request().hardware
    counts = usual_counts(device_profile(hardware.device))
    placed = {"hardware.per_node": hardware.per_node, "hardware.nodes": hardware.nodes}
    common.draw_choice(
        st.segmented_control,
        "Devices",
        "_device-count",
        next((count for count, changes in counts.items() if changes == placed), None),
        counts.__getitem__,
        options=list(counts),
    )


def draw_devices(rows: list[DeviceRow]) -> None:
    current = device_profile(session.request().hardware.device).name

    def take_row() -> None:
        """Take the device of the row; a click on the row that is taken changes nothing."""
        for place in st.session_state[KEY]["selection"]["rows"]:
            if rows[place].name != current:
                session.apply_changes({"hardware.device": rows[place].name})

    shown = [place for place, row in enumerate(rows) if row.name == current]
    st.session_state[KEY] = {"selection": {"rows": shown, "columns": [], "cells": []}}
    columns_of.draw_sorted(
        rows,
        profile_columns(),
        f"{len(rows)} devices with memory, speed and price; the one that is taken is ticked",
        key=KEY,
        on_select=take_row,
        selection_mode="single-row",
        column_config={"Device": st.column_config.TextColumn("Device", pinned=True)},
    )
