"""The part of the hardware page that takes the profile of a custom device."""

from __future__ import annotations

import _upload as upload
import streamlit as st

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


def draw_profile_upload(chip: Device, name: str) -> None:
    """An upload for an unlisted or newly measured device; ``name``: of the current one."""
    with st.expander(
        "Device not listed, or measured by you? Upload its profile",
        icon=":material/upload_file:",
    ):
        column = upload.draw_upload(
            "Profile (YAML)",
            ["yaml", "yml"],
            ("profile", "paste-profile"),
            lambda data, name: {"hardware.device": uploaded_profile(data, name)},
            "the pasted profile",
            f"At most {MAX_BYTES >> 10} KiB. The profile travels in the link, the request and the "
            "bundle; the server keeps nothing.",
            height=190,
            placeholder=EXAMPLE,
        )
        column.download_button(
            "Download your profile" if is_own(chip) else f"Start from {name}",
            lambda: profile_template(chip).encode(),
            file_name=f"{chip.name}.yaml" if is_own(chip) else f"my-{chip.name}.yaml",
            mime="application/yaml",
            on_click="ignore",
            icon=":material/download:",
            key="template",
            help="All figures with units. Keep those you measured and state their source",
        )
