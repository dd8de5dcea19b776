"""Placeholders in the words of a launch: ``${model}``, ``${host}``, ``${port1}`` and so on.

Only this program writes them; the bundle's launcher or a target fills them in. What a user writes
is refused where it enters if it looks like one (``base/texts.py``), so that no value of a user's is
ever filled in, and any other ``${…}`` is text.
"""

from __future__ import annotations

import re

# All that is filled: the launcher's (``launcher/plan.py``), and those of targets for pods.
PLACEHOLDER = re.compile(r"\$\{(model|host|port|head|root|run|self|index|node\d+|port\d+|at\d+)\}")


def pieces(template: str) -> list[tuple[bool, str]]:
    """The template cut into (whether a placeholder's name, text), without empty texts."""
    parts = PLACEHOLDER.split(template)
    return [(bool(n % 2), part) for n, part in enumerate(parts) if part]
