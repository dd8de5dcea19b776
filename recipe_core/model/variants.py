"""Checkpoints of one model in several formats, as the catalog has them."""

from __future__ import annotations

from recipe_core.model.catalog import catalog_entry, catalog_ids, catalog_model, in_catalog


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


def _tail(model_id: str) -> str:
    return model_id.split("/")[-1].casefold()


def _root(model_id: str) -> str:
    entry = catalog_entry(model_id)
    return (entry.same_as or entry.id).casefold()
