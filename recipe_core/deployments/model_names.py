"""Folders of models in files: the model of the catalog that one is called like."""

from __future__ import annotations

from recipe_core.model.catalog import in_catalog

_HOLDERS = "models--"


def model_hint(name: str) -> str | None:
    """Which model to state for a folder that ends like the id of one; None for no such folder."""
    parts = [part for part in name.split("/") if part]
    for part in parts:
        if part.startswith(_HOLDERS):  # a folder of the hub's cache: models--owner--name
            parts = part.removeprefix(_HOLDERS).split("--", 1)
    model = "/".join(parts[-2:])
    if len(parts) < 2 or model == name or not in_catalog(model):
        return None
    return f"The folder is called like {model}: state it with --model {model}."
