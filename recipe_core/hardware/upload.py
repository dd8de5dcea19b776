"""Profiles that people upload, and the file that they start from."""

from __future__ import annotations

from typing import Any

from recipe_core.base.documents import to_yaml
from recipe_core.base.errors import HardwareError
from recipe_core.base.uploads import text_of
from recipe_core.hardware.cluster import device, is_own, plain
from recipe_core.hardware.custom import BASE, FIELD, MAX_BYTES, plain_profile
from recipe_core.hardware.profile import Device

_HEAD = """\
# A profile to start from: every figure of {name}, which yours replace. What you leave out is {name}'s.
# Units stand in the keys. A figure has a value, a source (a name under sources: give yours new names) and a status:
# measured, fitted, published, datasheet or assumed. Efficiencies are shares of the peak rate and of the memory's bandwidth.
"""


def uploaded_profile(data: bytes, name: str) -> dict[str, Any]:
    """The profile of a file as plain values, which hold: a request takes them as its device.

    Raises:
        InputError: when it is too large, not text, not YAML or no profile of a device; says which.
    """
    text = text_of(
        data,
        name,
        MAX_BYTES,
        "a hardware profile in YAML; start from the template",
        HardwareError,
        FIELD,
    )
    profile = plain_profile(text, name)
    device(profile)
    return profile


def template(profile: Device) -> str:
    """A file to start from: a shipped device's figures under a new name, or the user's own profile as it is."""
    if is_own(profile):
        return to_yaml(plain(profile))
    values = {name: value for name, value in plain(profile).items() if value}
    first = {
        "schema_version": 1,
        "name": f"my-{profile.name}",
        "title": f"{profile.title}, ours",
        BASE: profile.name,
    }
    last = {"sources": values.pop("sources")}
    return _HEAD.format(name=profile.name) + to_yaml(
        first | {name: values[name] for name in values if name not in first} | last
    )
