"""Catalog entries as the doors print them."""

from __future__ import annotations

from typing import Any

from recipe_core.engines.spec import Engine
from recipe_core.hardware.cluster import dtypes, fabric
from recipe_core.hardware.prices import offers_of
from recipe_core.hardware.profile import Device
from recipe_core.model.catalog import CatalogEntry
from recipe_core.model.spec import (
    Attention,
    CompressedAttention,
    LatentAttention,
    LinearAttention,
    ModelSpec,
    MoeMlp,
)


def model_view(model: ModelSpec, entry: CatalogEntry | None = None) -> dict[str, Any]:
    """A model's architecture and parameter counts."""
    mixers = [layer.attention for layer in model.layers if layer.attention is not None]
    cached = [mixer for mixer in mixers if mixer.kv_values_per_head] or mixers
    attention = cached[-1] if cached else None
    moe = next((kind.mlp for kind, _ in model.kinds if isinstance(kind.mlp, MoeMlp)), None)
    out: dict[str, Any] = {
        "name": model.name,
        "parameters": model.parameters,
        "active_parameters": model.active_parameters,
        "parameters_by_part": model.parameters_by_part,
        "counted_bytes": model.counted_bytes,
        "checkpoint_bytes": model.checkpoint_bytes,
        "layers": len(model.layers),
        "hidden_size": model.hidden,
        "vocabulary": model.vocabulary,
        "attention": _kind(attention),
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
        out |= {
            "published": entry.published.model_dump(),
            "sources": {key: s.model_dump(exclude_none=True) for key, s in entry.sources.items()},
        }
    return out


def _kind(attention: Attention | None) -> str:
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
    """A device's profile with its links, what each weight format means on it, and the price offers for it."""
    mine = [offer.model_dump(exclude_none=True) for offer in offers_of(device)]
    links = {
        name: fabric(name).model_dump(exclude_none=True)
        for name in (device.node.fabric, *device.node.alternatives, device.node.network)
    }
    return device.model_dump(exclude_none=True) | {
        "usable_memory_bytes": device.usable_memory_bytes,
        "dtype_support": _dtype_support(device),
        "links": links,
        "offers": mine,
    }


def _dtype_support(device: Device) -> dict[str, dict[str, Any]]:
    """What silicon and engines make of each weight format, each with its source; rows about one format are shown together."""
    table = dtypes()
    out: dict[str, dict[str, Any]] = {}
    for row in table.support:
        if device.architecture not in row.architectures:
            continue
        key = f"{row.dtype} ({row.encoding})" if row.encoding else str(row.dtype)
        if key in out:
            out[key]["engines"] |= row.engines
            continue
        shown = row.model_dump(include={"silicon", "engines", "status", "note"}, exclude_none=True)
        out[key] = shown | {"source": table.sources[row.source].model_dump(exclude_none=True)}
    return out


def engine_view(engine: Engine) -> dict[str, Any]:
    """An engine's version and abilities."""
    return engine.model_dump(
        include={
            "name",
            "title",
            "version",
            "buildable",
            "wraps",
            "wrapped_version",
            "runtimes",
            "split",
            "install",
            "images",
            "floors",
        }
    )
