"""Objects of targets by name: ``objects.yaml``, filled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recipe_core.launch.templates import fill_template, read_templates

FILE = Path(__file__).with_name("objects.yaml")


def make_object(kind: str, /, **values: Any) -> Any:
    """An object, or a part of one; what a value of None is in is left out.

    Raises:
        KeyError: for an unknown object, and for a value that it needs.
    """
    return fill_template(read_templates(FILE)[kind], values)
