"""Texts of options in the type that the option has."""

from __future__ import annotations

import re
from typing import Any

from recipe_core.base.documents import parse_json
from recipe_core.base.errors import InputError
from recipe_core.engines.options import Option

_SCALED = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_SCALES = {
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "K": 2**10,
    "M": 2**20,
    "G": 2**30,
    "T": 2**40,
}


def typed(option: Option, text: str) -> Any:
    """The text as the option's type; None when it is not one."""
    if option.choices and text not in option.choices:
        folded = text.lower().replace("-", "_")
        return folded if option.folded and folded in option.choices else None
    try:
        if option.type == "json":
            return parse_json(text)
        if option.type == "float":
            return float(text)
        if option.type == "int":
            scaled = _SCALED.fullmatch(text) if option.scaled else None
            return int(float(scaled[1]) * _SCALES[scaled[2]]) if scaled else int(text)
    except (ValueError, OverflowError, InputError):
        return None
    return text


def json_or_text(text: str) -> Any:
    """What JSON says, or the text itself where it is none."""
    try:
        return parse_json(text)
    except InputError:
        return text
