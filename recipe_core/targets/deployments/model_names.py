"""Folders of models in files: the model of the catalog that one is called like."""

from __future__ import annotations

from recipe_core.models.catalog import catalog_ids, in_catalog

_HOLDERS = "models--"


def model_hint(name: str) -> str | None:
    """Which model to state for a folder that is called like one; None for no such folder."""
    if not name.startswith(("/", ".", "~")):
        return None
    parts = [part for part in name.split("/") if part]
    for part in parts:
        if part.startswith(_HOLDERS):  # a folder of the hub's cache: models--owner--name
            parts = part.removeprefix(_HOLDERS).split("--", 1)
    model = "/".join(parts[-2:])
    if len(parts) < 2 or not in_catalog(model):
        alike = [each for each in catalog_ids() if parts and each.endswith(f"/{parts[-1]}")]
        if len(alike) != 1:
            return None
        model = alike[0]
    return f"The folder is called like {model}: state it with --model {model}."
