"""Models, devices and engines as the JSON that doors print."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any

from pydantic import TypeAdapter

from recipe_core.base.errors import look_up
from recipe_core.bundle.signing import Manifest
from recipe_core.compression.advisor.result import CompressAnswer
from recipe_core.engines.spec import Engine, engine, engine_names
from recipe_core.estimates.results import Estimate
from recipe_core.estimates.rules.kernels import reply_on_format
from recipe_core.fleets.request import FleetRequest
from recipe_core.hardware.cluster import Cluster, dtypes, fabric
from recipe_core.hardware.offer_tables import offer_sources
from recipe_core.hardware.offers import Offer
from recipe_core.hardware.prices import offers_of
from recipe_core.hardware.profile import Device, DtypeSupport
from recipe_core.models.catalog import CatalogEntry
from recipe_core.models.spec import (
    Attention,
    CompressedAttention,
    LatentAttention,
    LinearAttention,
    ModelSpec,
    MoeMlp,
)
from recipe_core.recipe import Recipe
from recipe_core.request.schema import PlanRequest
from recipe_core.request.size import SizeRequest
from recipe_core.scaling.result import OverTimeAnswer
from recipe_core.views.columns import Column, terminal

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_TYPES: dict[str, Any] = {
    "request": PlanRequest,
    "size": SizeRequest,
    "fleet": FleetRequest,
    "recipe": Recipe,
    "manifest": Manifest,
    "estimate": Estimate,
    "simulate": OverTimeAnswer,
    "compress": CompressAnswer,
}
NAMES = tuple(_TYPES)


def document_schema(name: str) -> dict[str, Any]:
    """The schema of a document by its name, one of ``NAMES``.

    Raises:
        InputError: for another name.
    """
    adapter = TypeAdapter(look_up("schema", name, _TYPES, "schema"))
    return {"$schema": DIALECT, **adapter.json_schema()}


def model_view(model: ModelSpec, entry: CatalogEntry | None = None) -> dict[str, Any]:
    """A model's architecture and parameter counts; sizes in bytes.

    With a catalog ``entry`` also what was published, and where. ``attention``, ``heads`` and the
    like are those of the last layer with a KV cache.
    """
    mixers = [layer.attention for layer in model.layers if layer.attention is not None]
    cached = [mixer for mixer in mixers if mixer.kv_values_per_head] or mixers
    attention = cached[-1] if cached else None
    moe = next((kind.mlp for kind, _ in model.kinds if isinstance(kind.mlp, MoeMlp)), None)
    view: dict[str, Any] = {
        "name": model.name,
        "parameters": model.parameters,
        "active_parameters": model.active_parameters,
        "parameters_by_part": model.parameters_by_part,
        "counted_bytes": model.counted_bytes,
        "checkpoint_bytes": model.checkpoint_bytes,
        "layers": len(model.layers),
        "hidden_size": model.hidden,
        "vocabulary": model.vocabulary,
        "attention": _attention_kind(attention),
        "heads": attention.heads if attention else 0,
        "kv_heads": attention.kv_heads if attention else 0,
        "head_dim": attention.head_dim if attention else 0,
        "windowed_layers": sum(mixer.window is not None for mixer in mixers),
        "windows": sorted({mixer.window for mixer in mixers if mixer.window is not None}),
        "state_layers": sum(mixer.state_values > 0 for mixer in mixers),
        "experts": moe.experts if moe else 0,
        "experts_per_token": moe.top_k if moe else 0,
        "tied_embeddings": model.tied_embeddings,
        "max_context": model.max_context,
        "weight_dtype": model.weight_dtype,
        "notes": list(model.notes),
    }
    if entry is not None:
        sources = entry.sources.items()
        view["published"] = entry.published.model_dump()
        view["sources"] = {key: source.model_dump(exclude_none=True) for key, source in sources}
    return view


def _attention_kind(attention: Attention | None) -> str:
    if attention is None:
        return "none"
    if isinstance(attention, LatentAttention):
        return "mla"
    if isinstance(attention, LinearAttention):
        return "linear"
    if isinstance(attention, CompressedAttention):
        return "compressed"
    return "mha" if attention.heads == attention.kv_heads else "gqa"


def hardware_view(device: Device) -> dict[str, Any]:
    """A device's profile with its links, support of each weight format, and price offers."""
    names = (device.node.fabric, *device.node.alternatives, device.node.network)
    return {
        **device.model_dump(exclude_none=True),
        "usable_memory_bytes": device.usable_memory_bytes,
        "dtype_support": _dtype_support(device),
        "links": {name: fabric(name).model_dump(exclude_none=True) for name in names},
        "offers": [offer_view(offer) for offer in offers_of(device)],
    }


def offer_view(offer: Offer, today: date | None = None) -> dict[str, Any]:
    """A price offer in dollars, with its source, and on a day its age and doubts."""
    source = offer_sources().get(offer.source)
    return {
        **offer.model_dump(),
        "usd_per_machine_hour": offer.usd_per_machine_hour,
        "source_title": source.title if source else None,
        "source_url": source.url if source else None,
        "age_days": offer.age_days(today),
        "stale": offer.is_stale(today),
        "marks": list(offer.marks(today)),
    }


def price_view(cluster: Cluster, today: date | None = None) -> dict[str, Any]:
    """The price of a device-hour of a cluster in dollars, and on a day its age and doubts."""
    offer = cluster.offer
    return {
        "device": cluster.device.name,
        "usd_per_device_hour": cluster.usd_per_device_hour,
        "basis": cluster.price_basis,
        "note": cluster.price_note,
        "offer": offer.name if offer else None,
        "age_days": offer.age_days(today) if offer else None,
        "marks": list(offer.marks(today)) if offer else [],
    }


# Characters of a line: one an offer, however narrow the terminal, as lists are grepped.
LINE_WIDTH = 1000


def offers_text(offers: Sequence[Offer]) -> str:
    return terminal(offers, offer_columns(), width=LINE_WIDTH)


def offer_columns(today: date | None = None) -> list[Column[Offer]]:
    """Price offers: dollars, devices, terms and the doubts about them on a day."""
    return [
        Column("$/device-hour", "usd_per_device_hour", "{:.4g}".format),
        Column("$/machine-hour", "usd_per_machine_hour", "{:.4g}".format),
        Column("devices", _devices_text),
        Column("device", "device", align="left"),
        Column("commitment", "terms", align="left"),
        Column("region", lambda offer: offer.region or "not stated", align="left"),
        Column("date", "date", align="left"),
        Column("name", "name", align="left"),
        Column("marks", lambda offer: ", ".join(offer.marks(today)), align="left"),
    ]


def _devices_text(offer: Offer) -> str:
    maximum = f"–{offer.most_per_node}" if offer.most_per_node else ""
    return f"{offer.devices_per_node}{maximum}"


def _dtype_support(device: Device) -> dict[str, dict[str, Any]]:
    """By weight format: what the silicon and engines support, with the source.

    Engines whose releases were asked answer yes, no, emulated or unknown, others as documented:
    native, weight-only, converted or none.
    """
    table = dtypes()
    formats: dict[str, dict[str, Any]] = {}
    for row in table.support:
        if device.architecture not in row.architectures:
            continue
        key = f"{row.dtype} ({row.encoding})" if row.encoding else str(row.dtype)
        if key in formats:  # a second row on the same format adds engines
            formats[key]["engines"] |= row.engines
            continue
        formats[key] = row.model_dump(include={"silicon", "status", "note"}, exclude_none=True)
        formats[key]["source"] = table.sources[row.source].model_dump(exclude_none=True)
        formats[key]["engines"] = _format_verdicts(device, row) | row.engines
    return formats


def _format_verdicts(device: Device, row: DtypeSupport) -> dict[str, str]:
    writer = {"bitsandbytes nf4": "bitsandbytes", "GGUF": "gguf"}.get(row.encoding or "", "")
    verdicts: dict[str, str] = {}
    for name in engine_names():
        spec = engine(name)
        if device.runtime in spec.runtimes and not spec.wraps:
            answer = reply_on_format(spec, device.architecture, row.dtype, writer)
            if answer is not None:
                verdicts[name] = "emulated" if answer.emulates else answer.verdict
    return verdicts


def engine_view(engine: Engine) -> dict[str, Any]:
    """An engine's version, the splits it supports, and how to install it."""
    names = {"name", "title", "version", "buildable", "wraps", "wrapped_version", "runtimes"}
    return engine.model_dump(include=names | {"split", "install", "images", "floors"})
