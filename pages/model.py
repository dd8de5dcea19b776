from collections.abc import Mapping
from typing import Any

import _common as common
import _gallery as gallery
import _layers as layers
import _names as names
import _tour as tour
import _upload as upload
import _widgets as widgets
import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.base.units import count_text
from recipe_core.doors.serve import folders_allowed
from recipe_core.hardware.cluster import device_profile
from recipe_core.models.catalog import catalog_ids
from recipe_core.models.spec import ModelSpec
from recipe_core.models.variants import model_variants
from recipe_core.views.glossary import field_help, term_help


def model_option_text(model: object) -> str:
    """The model as an option of the list; a config by its name."""
    return model if isinstance(model, str) else upload.config_label()


def option_change(option: str) -> Mapping[str, Any]:
    """The change that an option of the list makes; none for a name without a model."""
    is_uploaded = upload.config_of_request() is not None and option == upload.config_label()
    return {} if is_uploaded else names.model_change(option.strip())


def pick_model() -> None:
    """The model: of the catalog, by hub id or folder, or a config by upload or paste."""
    options = catalog_ids()
    current = model_option_text(common.request().model)
    listed = options if current in options else [current, *options]
    common.draw_choice(
        st.selectbox,
        "Model",
        "_model",
        current,
        option_change,
        options=listed,
        accept_new_options=True,
        help=field_help("model"),
    )
    names.draw_unmatched_name()
    more = (
        ", a Hugging Face Hub id, or the path of a folder with a config.json"
        if folders_allowed()
        else ""
    )
    st.caption(
        f"{len(options)} models in the catalog. Type any part of a name, such as llama70b{more}."
    )
    upload.draw_config_upload()


def pick_formats(spec: ModelSpec) -> None:
    model = common.request().model
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
    chip = device_profile(common.request().hardware.device)
    if common.asks_for_training():
        common.edit(
            st.segmented_control,
            "Compute precision",
            "candidate.precision",
            read=lambda value: value or "bf16",
            options=["bf16", "fp16", "fp8"],
            required=True,
        )
        return
    now = common.request().options.weight_dtypes
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


widgets.draw_page_head("What do you want to run?")
tour.draw_tour_offer()
common.draw_kind()
pick_model()
widgets.hardware_unknown()
try:
    spec = common.model()
except RecipeError as error:
    spec = None
    st.error(common.escape(error), icon=":material/error:")
    with st.container(horizontal=True):
        names.draw_model_ways_out(error, "page")

if spec is not None:
    pick_formats(spec)
    with st.grid(4, min_column_width=150):
        st.metric(
            "Parameters", count_text(spec.parameters), border=True, help=f"{spec.parameters:,}"
        )
        st.metric(
            "Active per token",
            count_text(spec.active_parameters),
            border=True,
            help=f"{spec.active_parameters:,}. {term_help('active-parameters')}",
        )
        st.metric(
            "Stored as",
            spec.weight_dtype,
            border=True,
            help="Number format of the checkpoint's weight matrices",
        )
        st.metric("Longest context", f"{spec.max_context:,}", border=True, help="Tokens")
    with st.expander(
        "Architecture, and parameters by part",
        key="architecture",
        icon=":material/account_tree:",
        on_change="rerun",
    ) as inside:
        if inside.open:  # tables and charts load much: not before somebody looks
            layers.draw_layers(spec)
    for note in spec.notes:
        st.info(common.escape(note), icon=":material/info:")
gallery.draw_gallery()
