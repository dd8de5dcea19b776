"""Checkpoints of one model in several formats, as the catalog has them."""

from __future__ import annotations

from functools import lru_cache

from recipe_core.models.catalog import (
    catalog_entry,
    catalog_ids,
    catalog_model,
    in_catalog,
    read_by_name,
)
from recipe_core.models.supplements import name_meanings


def model_variants(model_id: str) -> dict[str, str]:
    """Ids of the catalog that hold the same model, with the format of their weights.

    The unquantised one first; empty for models outside the catalog.

    The same model: the same architecture (``same_as``) and context, and a name that contains the
    shortest such name in it: an FP8 copy does, a model distilled into the same architecture or made
    for longer texts does not.
    """
    if not in_catalog(model_id):
        return {}
    tail, root = _name_tail(catalog_entry(model_id).id), _root_architecture(model_id)
    context = catalog_model(model_id).max_context

    def alike(candidate: str) -> bool:
        return (
            _root_architecture(candidate) == root
            and catalog_model(candidate).max_context == context
        )

    # Names first: what they rule out is not read.
    base = min(
        (
            _name_tail(candidate)
            for candidate in catalog_ids()
            if _name_tail(candidate) in tail and alike(candidate)
        ),
        key=len,
    )
    same = [
        candidate
        for candidate in catalog_ids()
        if base in _name_tail(candidate) and alike(candidate)
    ]
    return {
        candidate: catalog_model(candidate).weight_dtype
        for candidate in sorted(
            same, key=lambda candidate: (_name_tail(candidate) != base, _name_tail(candidate))
        )
    }


@lru_cache(256)  # bounded: anybody may ask for any name
def base_checkpoint(model_id: str) -> str | None:
    """The checkpoint that another was quantised from; None for one that is no copy.

    The catalog's, unquantised or as it was published first; where the catalog has none, what the
    ending of the name leaves of it.
    """
    first = next(iter(model_variants(model_id)), None)
    if first is not None and first.casefold() != catalog_entry(model_id).id.casefold():
        return first
    for name, convention in name_meanings(model_id):
        if convention is not None:
            catalog_bases = (
                candidate for candidate in catalog_ids() if _name_tail(candidate) == name.casefold()
            )
            by_alias = read_by_name(model_id, name, None)
            return next(catalog_bases, by_alias[1] if by_alias else name)
    return None


@lru_cache(256)
def stored_as(model_id: str, dtype: str) -> str | None:
    """The first checkpoint of the catalog that holds the same model in a format; None without."""
    return next(
        (name for name, stored in model_variants(model_id).items() if stored == dtype), None
    )


def _name_tail(model_id: str) -> str:
    return model_id.split("/")[-1].casefold()


def _root_architecture(model_id: str) -> str:
    entry = catalog_entry(model_id)
    return (entry.same_as or entry.id).casefold()
