"""Catalog entries as the doors print them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from recipe_core.advice import nearest, remedies
from recipe_core.engines.spec import Engine
from recipe_core.hardware.profile import Device, Offer
from recipe_core.model.catalog import CatalogEntry
from recipe_core.model.spec import LatentAttention, ModelSpec, MoeMlp
from recipe_core.plan import PlanTable


def model_view(model: ModelSpec, entry: CatalogEntry | None = None) -> dict[str, Any]:
    """A model's architecture and parameter counts."""
    layer = model.layers[-1]
    attention = layer.attention
    moe = next((kind.mlp for kind, _ in model.kinds if isinstance(kind.mlp, MoeMlp)), None)
    out: dict[str, Any] = {
        "name": model.name,
        "parameters": model.parameters,
        "active_parameters": model.active_parameters,
        "parameters_by_part": model.parameters_by_part,
        "layers": len(model.layers),
        "hidden_size": model.hidden,
        "vocabulary": model.vocabulary,
        "attention": "mla" if isinstance(attention, LatentAttention) else "mha" if attention.heads == attention.kv_heads else "gqa",
        "heads": attention.heads,
        "kv_heads": attention.kv_heads,
        "head_dim": attention.head_dim,
        "windowed_layers": sum(item.attention.window is not None for item in model.layers),
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


def hardware_view(device: Device, offers: Iterable[Offer]) -> dict[str, Any]:
    """A device's profile with the price offers for it."""
    mine = [offer.model_dump(exclude_none=True) for offer in offers if offer.device == device.name]
    return device.model_dump(exclude_none=True) | {"usable_memory_bytes": device.usable_memory_bytes, "offers": mine}


def engine_view(engine: Engine) -> dict[str, Any]:
    """An engine's version and abilities."""
    return engine.model_dump(include={"name", "title", "version", "buildable", "runtimes", "split", "install"})


def plan_view(table: PlanTable, top: int | None = None) -> dict[str, Any]:
    """Ranked candidates (the first ``top``), every refused split with its reasons, and the nearest when none is feasible."""
    ranked = [_ranked(table, rank, row) for rank, row in enumerate(map(int, table.ranked[:top]), 1)]
    rest = map(int, np.flatnonzero(~table.columns["feasible"]))
    refused = [{"candidate": table.candidate(row), "reasons": table.reasons(row)} for row in rest]
    return {"schema_version": 1, "candidates": ranked, "refused": refused, "nearest": nearest_view(table)}


def _ranked(table: PlanTable, rank: int, row: int) -> dict[str, Any]:
    return {"rank": rank, "candidate": table.candidate(row), "estimate": table.estimate(row), "pareto": bool(table.front[row])}


def nearest_view(table: PlanTable) -> dict[str, Any] | None:
    """When nothing is feasible: the nearest split, why it is refused, and changes after which something fits."""
    row = nearest(table)
    if row is None:
        return None
    changes = [remedy.to_json() for remedy in remedies(table)]
    return {"candidate": table.candidate(row), "estimate": table.estimate(row), "reasons": table.reasons(row), "changes": changes}
