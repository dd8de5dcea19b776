"""The catalogs as JSON: models, devices, prices, engines, schemas."""

from __future__ import annotations

from typing import Any, cast

from recipe_core.base.documents import finite

Json = dict[str, Any]


def clean(value: Json) -> Json:
    """The value with null for numbers that are not finite, which JSON cannot express."""
    return cast(Json, finite(value))


def models(name: str | None = None, *, folders: bool = False, search: str | None = None) -> Json:
    """The ids in the model catalog, or one model by its id or by its dimensions in short.

    With ``search`` those that a text means, the best first, each with a title and a description.
    """
    from recipe_core.models.catalog import catalog_entry, catalog_ids, in_catalog, load_model_spec
    from recipe_core.models.search import search_models
    from recipe_core.views.catalog import model_view

    if search is not None:
        fields = ("id", "title", "description")
        rows = [{field: getattr(row, field) for field in fields} for row in search_models(search)]
        return {"models": [row["id"] for row in rows], "found": rows}
    if name is None:
        return {"models": catalog_ids()}
    entry = catalog_entry(name) if in_catalog(name) else None
    return clean(model_view(load_model_spec(name, folders=folders), entry))


def hardware(name: str | None = None) -> Json:
    """The names of device profiles, or one device with sources and offers."""
    from recipe_core.hardware.cluster import device_names, device_profile
    from recipe_core.views.catalog import hardware_view

    if name is None:
        return {"hardware": device_names(announced=True)}
    return clean(hardware_view(device_profile(name)))


def answer_offers(
    device: str | None = None,
    provider: str | None = None,
    region: str | None = None,
    commitment: str | None = None,
) -> Json:
    """Price offers, cheapest first, of a device, a provider, a region or a commitment."""
    from recipe_core.hardware.offer_search import select_offers
    from recipe_core.views.catalog import offer_view

    selected = select_offers(device, provider, region, commitment)
    return clean({"offers": [offer_view(offer) for offer in selected]})


def offers_for(device: str | None = None) -> Json:
    """Return how many price offers each device has, or those for one."""
    from recipe_core.hardware.offer_search import offered_devices

    return {"devices": offered_devices()} if device is None else answer_offers(device)


def engines(name: str | None = None) -> Json:
    """The engines and their versions, or one of them."""
    from recipe_core.engines.spec import engine, engine_names
    from recipe_core.views.catalog import engine_view

    if name is not None:
        return clean(engine_view(engine(name)))
    return clean({"engines": [engine_view(engine(entry)) for entry in engine_names()]})


def answer_schema(name: str | None = None) -> Json:
    """The JSON Schema of a request, or by ``name`` of an estimate, a recipe or a manifest."""
    from recipe_core.request.schema import json_schema
    from recipe_core.views import catalog

    return json_schema() if name is None else catalog.document_schema(name)
