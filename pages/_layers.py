"""A model's architecture: its facts as a table, its parameters as bars."""

from __future__ import annotations

from typing import Any

import _common as common
import streamlit as st

from recipe_core.base.units import gib
from recipe_core.doors.serve import load_pages
from recipe_core.models.spec import ModelSpec

KINDS = {
    "mla": "latent (MLA)",
    "gqa": "grouped-query",
    "mha": "multi-head",
    "linear": "linear (fixed-size state, no cache)",
    "compressed": "compressed, sparse",
    "none": "none",
}


def architecture(facts: dict[str, Any]) -> dict[str, str]:
    """A model's architecture, one row per fact."""
    windows = "none"
    if facts["windows"]:
        sizes = ", ".join(map(str, facts["windows"]))
        windows = f"{sizes} tokens in {facts['windowed_layers']} layers"
    experts = "none (dense)"
    if facts["experts"]:
        experts = f"{facts['experts']}, {facts['experts_per_token']} per token"
    latent = facts["attention"] == "mla"
    rows = {
        "Layers": f"{facts['layers']}",
        "Hidden size": f"{facts['hidden_size']:,}",
        "Attention": KINDS[facts["attention"]],
        "Attention heads": f"{facts['heads']} of size {facts['head_dim']}",
        "KV heads": "1 latent, shared by all heads" if latent else f"{facts['kv_heads']}",
        "Sliding window": windows,
        "Experts": experts,
        "Vocabulary": f"{facts['vocabulary']:,}",
        "Embedding and head": "shared" if facts["tied_embeddings"] else "separate",
        "Checkpoint": f"{gib(facts['counted_bytes'])} in {facts['weight_dtype']}",
    }
    if facts["state_layers"]:
        rows["Layers with a state"] = f"{facts['state_layers']}"
    return rows


def draw_layers(spec: ModelSpec) -> None:
    load_pages()  # the first page can be drawn before these are there
    from recipe_core.views.catalog import model_view
    from recipe_core.views.charts.parts import parameter_bars

    facts_column, bars_column = st.columns(2, gap="large")
    with facts_column:
        st.header("Architecture", anchor=False)
        st.table(
            architecture(model_view(spec)), border="horizontal", alt="Architecture of the model"
        )
    with bars_column:
        st.header("Parameters by part", anchor=False)
        common.draw_chart(
            parameter_bars(spec.parameters_by_part, dark=common.dark()),
            "parts",
            "Parameters by part of the model",
        )
