"""Checkpoints of one model in several formats, as the catalog has them."""

from __future__ import annotations

from functools import lru_cache

from recipe_core.models.catalog import catalog_entry, catalog_ids, catalog_model, in_catalog
from recipe_core.models.derived import meanings


def variants(model_id: str) -> dict[str, str]:
    """Ids of the catalog that hold the same model, with the format of their weights.

    The unquantised one first; empty for models outside the catalog.

    The same model: the same architecture (``same_as``) and context, and a name that contains the
    shortest such name in it: an FP8 copy does, a model distilled into the same architecture or made
    for longer texts does not.
    """
    if not in_catalog(model_id):
        return {}
    tail, root = _tail(catalog_entry(model_id).id), _root(model_id)
    context = catalog_model(model_id).max_context

    def alike(other: str) -> bool:
        return _root(other) == root and catalog_model(other).max_context == context

    # Names first: what they rule out is not read.
    base = min(
        (_tail(other) for other in catalog_ids() if _tail(other) in tail and alike(other)), key=len
    )
    same = [other for other in catalog_ids() if base in _tail(other) and alike(other)]
    return {
        other: catalog_model(other).weight_dtype
        for other in sorted(same, key=lambda other: (_tail(other) != base, _tail(other)))
    }


@lru_cache(256)  # bounded: anybody may ask for any name
def base_of(model_id: str) -> str | None:
    """The checkpoint that another was quantised from; None for one that is no copy.

    The catalog's, unquantised or as it was published first; where the catalog has none, what the
    ending of the name leaves of it.
    """
    first = next(iter(variants(model_id)), None)
    if first is not None and first.casefold() != catalog_entry(model_id).id.casefold():
        return first
    for name, convention in meanings(model_id):
        if convention is not None:
            known = (other for other in catalog_ids() if _tail(other) == name.casefold())
            return next(known, name)
    return None


@lru_cache(256)
def stored_as(model_id: str, dtype: str) -> str | None:
    """The first checkpoint of the catalog that holds the same model in a format; None without."""
    return next((name for name, stored in variants(model_id).items() if stored == dtype), None)


def _tail(model_id: str) -> str:
    return model_id.split("/")[-1].casefold()


def _root(model_id: str) -> str:
    entry = catalog_entry(model_id)
    return (entry.same_as or entry.id).casefold()
