"""Uploaded profiles, and the template that they start from."""

from __future__ import annotations

from typing import Any

from recipe_core.base.documents import to_yaml
from recipe_core.base.errors import HardwareError
from recipe_core.base.texts import read_upload_text
from recipe_core.hardware.cluster import device_profile, device_values, is_own
from recipe_core.hardware.profile import Device
from recipe_core.hardware.request import BASE, FIELD, MAX_BYTES, plain_profile

_HEAD = """\
# A template with every number of {name}: replace those that differ, and remove the others, which
# stay {name}'s. Units are in the keys. A number has a value, a source (a name under sources: choose
# new names for yours) and a status: measured, fitted, published, datasheet or assumed. Efficiencies
# are shares of the peak rate and of the memory bandwidth.
"""


def uploaded_profile(data: bytes, name: str) -> dict[str, Any]:
    """The profile of a file as checked plain values, which a request takes as its device.

    Raises:
        InputError: when it is too large, not text, not YAML or not a device profile.
    """
    text = read_upload_text(
        data,
        name,
        MAX_BYTES,
        "a hardware profile in YAML; start from the template",
        HardwareError,
        FIELD,
    )
    profile = plain_profile(text, name)
    device_profile(profile)
    return profile


def profile_template(profile: Device) -> str:
    """A file to start from: a shipped device under a new name, or a custom profile as it is."""
    if is_own(profile):
        return to_yaml(device_values(profile))
    values = {name: value for name, value in device_values(profile).items() if value}
    first = {
        "schema_version": 1,
        "name": f"my-{profile.name}",
        "title": f"{profile.title}, ours",
        BASE: profile.name,
    }
    rest = {name: value for name, value in values.items() if name not in (*first, "sources")}
    body = to_yaml({**first, **rest, "sources": values["sources"]})
    return _HEAD.format(name=profile.name) + body
