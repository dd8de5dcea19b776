from typing import Any

import common
import streamlit as st

from recipe_core.charts import parts_bars
from recipe_core.errors import RecipeError
from recipe_core.model.catalog import catalog_ids
from recipe_core.serve import folders_allowed
from recipe_core.units import count
from recipe_core.views import model_view

KINDS = {"mla": "latent (MLA)", "gqa": "grouped-query", "mha": "multi-head", "linear": "linear (a state, no cache)", "none": "none"}
INLINE = "config in the link"


def architecture(facts: dict[str, Any]) -> dict[str, str]:
    """Facts of a model as a small table."""
    some = f"{', '.join(map(str, facts['windows']))} tokens in {facts['windowed_layers']} layers" if facts["windows"] else "none"
    rows = {
        "Layers": f"{facts['layers']}",
        "Hidden size": f"{facts['hidden_size']:,}",
        "Attention": KINDS[facts["attention"]],
        "Attention heads": f"{facts['heads']}",
        "KV heads": "1 latent, shared by all heads" if facts["attention"] == "mla" else f"{facts['kv_heads']}",
        "Sliding window": some,
        "Experts": f"{facts['experts']}, {facts['experts_per_token']} per token" if facts["experts"] else "none (dense)",
        "Vocabulary": f"{facts['vocabulary']:,}",
        "Embedding and head": "shared" if facts["tied_embeddings"] else "separate",
    }
    state = {"Layers with a state": f"{facts['state_layers']}"} if facts["state_layers"] else {}
    return rows | state


def shown(model: object) -> str:
    """The model as an option of the list; a whole config has no name there."""
    return model if isinstance(model, str) else INLINE


def stored(option: str) -> object:
    """The option as the request's model."""
    return common.request().model if option == INLINE else option.strip()


common.head("What do you want to run?")
options = catalog_ids()
current = shown(common.request().model)
listed = options if current in options else [current, *options]
where = " or type the path of a folder that holds a config.json" if folders_allowed() else ""
common.edit(
    st.selectbox,
    "Model",
    "model",
    read=shown,
    write=stored,
    options=listed,
    accept_new_options=True,
)
st.caption(f"{len(options)} models in the catalog. Search by any part of the name, as in llama70b{where}.")

try:
    spec = common.model()
except RecipeError:
    spec = None  # the verdict above says what is wrong, and the fix

if spec is not None:
    with st.grid(4):
        st.metric("Parameters", count(spec.parameters), border=True, help=f"{spec.parameters:,}")
        st.metric("Active per token", count(spec.active_parameters), border=True, help=f"{spec.active_parameters:,}")
        st.metric("Stored as", spec.weight_dtype, border=True, help="Number format of the checkpoint's matrices")
        st.metric("Longest context", f"{spec.max_context:,}", border=True, help="Tokens")
    left, right = st.columns(2, gap="large")
    facts = architecture(model_view(spec))
    with left:
        st.subheader("Architecture", anchor=False)
        st.table(facts, border="horizontal", alt="Architecture facts of the model")
    with right:
        st.subheader("Parameters by part", anchor=False)
        st.plotly_chart(parts_bars(spec.parameters_by_part, dark=common.dark()), key="parts", alt="Parameters by part of the model")
    for note in spec.notes:
        st.info(common.escape(note), icon=":material/info:")
