"""The knowledge base of compression: what runs where, and what techniques do together.

Everything that other rooms ask of it, in one place.
"""

from __future__ import annotations

from recipe_core.accuracy.combinations import Combination, combination
from recipe_core.accuracy.families import Family, families, family_of, groups
from recipe_core.accuracy.lookup import matrix, rows, support_of
from recipe_core.accuracy.runners import Runner, runners

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
