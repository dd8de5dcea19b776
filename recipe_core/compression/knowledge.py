"""The knowledge base of compression: what runs where, and what techniques do together.

Everything that other rooms ask of it, in one place.
"""

from __future__ import annotations

from recipe_core.compression.combinations import Combination, combination
from recipe_core.compression.families import Family, families, family_of, groups
from recipe_core.compression.lookup import matrix, rows, support_of
from recipe_core.compression.runners import Runner, runners

__all__ = [
    "Combination",
    "Family",
    "Runner",
    "combination",
    "families",
    "family_of",
    "groups",
    "matrix",
    "rows",
    "runners",
    "support_of",
]
