"""Where the files that are not Python live, in a checkout and in an installed package alike."""

from __future__ import annotations

from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent


@cache
def root(name: str) -> Path:
    """The folder or file ``name`` (``hw_profiles``, ``app.py``, ``pages`` …).

    A wheel carries them under ``recipe_core/_share``; a checkout has them beside ``recipe_core``.
    """
    packaged = PACKAGE / "_share" / name
    return packaged if packaged.exists() else PACKAGE.parent / name
