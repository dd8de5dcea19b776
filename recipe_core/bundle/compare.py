"""A bundle that nobody vouches for, held against the one that its recipe gives in this version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from recipe_core import __version__
from recipe_core.base.errors import RecipeError
from recipe_core.bundle.manifest import MANIFEST
from recipe_core.bundle.signing import SIGNATURE
from recipe_core.bundle.write import bundle_of
from recipe_core.recipe import Recipe

_LISTED = 8
"""Differing files that a sentence names."""


@dataclass(frozen=True, slots=True)
class Differences:
    """Files that differ from what the recipe gives, that are missing, and additional ones.

    ``refusal``: why this version builds no bundle of the recipe; then nothing was compared.
    """

    changed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    refusal: str | None = None

    def to_json(self) -> dict[str, list[str] | str | None]:
        """The differences as `recipe check` prints them."""
        return {
            "changed": list(self.changed),
            "missing": list(self.missing),
            "added": list(self.added),
            "refusal": self.refusal,
        }


def differences(recipe: Recipe, files: Mapping[str, bytes]) -> Differences:
    """How a bundle's files differ from those that this version writes for its recipe."""
    try:
        expected = bundle_of(recipe).files
    except RecipeError as error:
        return Differences(refusal=str(error))
    given = set(files) - {MANIFEST, SIGNATURE}
    planned = set(expected) - {MANIFEST}
    return Differences(
        changed=tuple(sorted(name for name in given & planned if files[name] != expected[name])),
        missing=tuple(sorted(planned - given)),
        added=tuple(sorted(given - planned)),
    )


def difference_texts(recipe: Recipe, difference: Differences) -> list[str]:
    """The differences as sentences; empty where there are none."""
    this = f"recipe-builder {__version__}"
    if difference.refusal:
        return [
            f"Its files could not be compared: {this} cannot build its recipe: {difference.refusal}"
        ]
    parts = {
        "changed": difference.changed,
        "missing": difference.missing,
        "added": difference.added,
    }
    listed = [f"{kind}: {_names(names)}" for kind, names in parts.items() if names]
    if not listed:
        return []
    text = f"It differs from what {this} builds from its recipe ({'; '.join(listed)})."
    if recipe.built_by != this:
        text += f" Its recipe names {recipe.built_by}, and versions write different files."
    return [text]


def _names(names: tuple[str, ...]) -> str:
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")
