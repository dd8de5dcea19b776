"""The part of the hardware page that takes the profile of a custom device."""

from __future__ import annotations

import _common as common
import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.hardware.cluster import is_own
from recipe_core.hardware.profile import Device
from recipe_core.hardware.request import MAX_BYTES
from recipe_core.hardware.upload import profile_template, uploaded_profile

EXAMPLE = """schema_version: 1
name: my-h100
based_on: h100-sxm
tdp_watts: {value: 500, source: ours, status: measured}
sources:
  ours: {title: Our cluster at 500 W, date: 2026-11-20}"""


def take_profile(data: bytes, name: str) -> None:
    """Make a profile the request's device, or say why not."""
    try:
        common.apply_changes({"hardware.device": uploaded_profile(data, name)})
    except RecipeError as error:
        st.session_state["refused"] = str(error)


def take_uploaded_profile() -> None:
    """A file was chosen."""
    file = st.session_state["profile"]
    if file is not None:
        take_profile(file.getvalue(), file.name)


def take_pasted_profile() -> None:
    """A profile was pasted."""
    text = st.session_state["paste-profile"]
    if text and text.strip():
        take_profile(text.encode(), "the pasted profile")


def draw_profile_upload(chip: Device, name: str) -> None:
    """An upload for an unlisted or newly measured device; ``name``: of the current one."""
    with st.expander(
        "Device not listed, or measured by you? Upload its profile",
        icon=":material/upload_file:",
    ):
        left, right = st.columns(2)
        with left:
            st.file_uploader(
                "Profile (YAML)",
                type=["yaml", "yml"],
                key="profile",
                on_change=take_uploaded_profile,
                max_upload_size=1,
            )
            st.caption(
                f"At most {MAX_BYTES >> 10} KiB. The profile travels in the link, the request and "
                "the bundle; the server keeps nothing."
            )
            st.download_button(
                "Download your profile" if is_own(chip) else f"Start from {name}",
                lambda: profile_template(chip).encode(),
                file_name=f"{chip.name}.yaml" if is_own(chip) else f"my-{chip.name}.yaml",
                mime="application/yaml",
                on_click="ignore",
                icon=":material/download:",
                key="template",
                help="All figures with units. Keep those you measured and state their source",
            )
        with right:
            st.text_area(
                "Or paste it",
                key="paste-profile",
                on_change=take_pasted_profile,
                height=190,
                placeholder=EXAMPLE,
            )
