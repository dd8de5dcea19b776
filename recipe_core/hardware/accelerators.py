"""What price tables call accelerators, as devices of ``hw_profiles/``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from recipe_core.hardware.cluster import device, device_names

_WHOLE = {"h100": "h100-{}", "h10080gb": "h100-{}", "a10080gb": "a100-{}-80gb", "h200": "h200-{}"}
_WHOLE |= {"a100": "a100-{}-40gb", "a10040gb": "a100-{}-40gb"}
_WHOLE |= {"v100": "v100-{}-16gb", "v10016gb": "v100-{}-16gb", "v10032gb": "v100-{}-32gb"}
_WHOLE |= {"a800": "a800-{}-80gb", "a80080gb": "a800-{}-80gb"}
"""Names that several profiles share, and those profiles by their form."""
_FORMS = (
    (
        "sxm",
        re.compile(r"sxm|hgx|hbm3\b|\bp3(dn)?\.|\bp4de?\.|\bp5\w*\.|\ba2-|\ba3-|\bstandard_nd"),
    ),
    ("pcie", re.compile(r"pcie|\bstandard_nc\d+ads_a100")),
    ("nvl", re.compile(r"nvl(?!ink)|\bstandard_nc\w*_h100")),
)
"""What an instance or a description says of the form."""


def accelerator(name: str, said: str, own: Mapping[str, str]) -> tuple[str | None, str]:
    """The device that a table calls ``name``, by what it says of it beside; and what is assumed.

    None where it is unknown, or where SXM and PCIe share the name and nothing says which. ``own``:
    devices by names of the caller, before all others.
    """
    if name in own:
        return device(own[name]).name, ""
    if name in device_names():
        return name, ""
    word = _word(name)
    pattern = _WHOLE.get(word)
    if pattern is None:
        return _by_word().get(word), ""
    text = said.casefold()
    if word == "a100" and "81920" in text:
        pattern = _WHOLE["a10080gb"]
    forms = [form for form, shown in _FORMS if shown.search(text)]
    if not forms and word == "h200":
        return "h200-sxm", "form unstated, SXM assumed"
    named = pattern.format(forms[0]) if len(forms) == 1 else ""
    return (named, "") if named in device_names() else (None, " of an unknown form")


@cache
def _by_word() -> dict[str, str]:
    """Devices by their names and aliases in letters and digits."""
    found: dict[str, str] = {}
    for name in device_names():
        for alias in (name, *device(name).aliases):
            found.setdefault(_word(alias), name)
    return found


def _word(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.casefold())
