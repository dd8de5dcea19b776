import _common as common
import _layers as layers
import _model_pick as picker
import _names as names
import _session as session
import _widgets as widgets
import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.base.units import count_text
from recipe_core.hardware.cluster import device_profile
from recipe_core.models.spec import ModelSpec
from recipe_core.models.variants import model_variants
from recipe_core.views.glossary import field_help


def pick_formats(spec: ModelSpec) -> None:
    model = session.request().model
    same = model_variants(model) if isinstance(model, str) else {}
    if len(same) > 1:
        common.draw_choice(
            st.pills,
            "Checkpoint",
            "_variant",
            next((name for name in same if name.casefold() == str(model).casefold()), None),
            lambda name: {"model": name},
            options=list(same),
            format_func=lambda name: f"{name.split('/')[-1]} · {same[name]}",
            help="The same model in other number formats, from the catalog",
            wrap=True,
        )
    chip = device_profile(session.request().hardware.device)
    if session.asks_for_training():
        common.edit(
            st.segmented_control,
            "Compute precision",
            "candidate.precision",
            read=lambda value: value or "bf16",
            options=["bf16", "fp16", "fp8"],
            required=True,
        )
        return
    now = session.request().options.weight_dtypes
    common.edit(
        st.pills,
        "Weight formats to evaluate",
        "options.weight_dtypes",
        read=list,
        write=tuple,
        options=list(dict.fromkeys(["auto", *chip.weight_dtypes, *now])),
        format_func=lambda name: f"as stored ({spec.weight_dtype})" if name == "auto" else name,
        selection_mode="multi",
        wrap=True,
        # beyond the field's description: which formats this device offers
        help=f"{field_help('options.weight_dtypes')}\n\n"
        f"{common.escape(chip.title)} has kernels for these; "
        "engines convert 16-bit weights to some of them at load time.",
    )


widgets.draw_page_head("Model")
common.draw_kind()
picker.draw_model_search("model", with_list=True)
try:
    spec = session.model()
except RecipeError as error:
    spec = None
    st.error(common.escape(error), icon=":material/error:")
    with st.container(horizontal=True):
        names.draw_model_ways_out(error, "page")

if spec is not None:
    st.header(common.escape(names.current_model_name()), anchor=False)
    with st.grid(4, min_column_width=150):
        st.metric("Parameters", count_text(spec.parameters), border=True)
        st.metric("Active per token", count_text(spec.active_parameters), border=True)
        st.metric("Stored as", spec.weight_dtype, border=True)
        st.metric("Longest context", f"{spec.max_context:,}", border=True)
    for note in spec.notes:
        st.caption(common.escape(note))
if spec is not None:
    with st.expander("Number formats", key="formats", icon=":material/compress:"):
        pick_formats(spec)
    with st.expander(
        "Architecture, and parameters by part",
        key="architecture",
        icon=":material/account_tree:",
        on_change="rerun",
    ) as inside:
        if inside.open:  # tables and charts load much: not before somebody looks
            layers.draw_layers(spec)
