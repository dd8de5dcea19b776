"""Objects of targets by name (``objects.yaml``) and texts of scripts (``scripts.yaml``), filled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recipe_core.launch.templates import Facts, fill_template, read_templates

FILE = Path(__file__).with_name("objects.yaml")
SCRIPTS = Path(__file__).with_name("scripts.yaml")


def make_object(kind: str, /, **values: Any) -> Any:
    """An object, or a part of one; what a value of None is in is left out.

    Raises:
        KeyError: for an unknown object, and for a value that it needs.
    """
    return fill_template(read_templates(FILE)[kind], values)


def make_script(kind: str, /, **values: Any) -> str:
    """A text of a script, with the texts that it names.

    Raises:
        KeyError: for an unknown text, and for a value that it needs.
    """
    return str(Facts(None, {}, values, read_templates(SCRIPTS))[kind])
