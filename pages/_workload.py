"""Questions of two pages about the workload: a start, traffic, a training run."""

from __future__ import annotations

from typing import Any

import _common as common
import _numbers as numbers
import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.plans import launch_rules
from recipe_core.request.describe import training_steps_text
from recipe_core.request.edit import change
from recipe_core.request.link import START_LOADS
from recipe_core.request.presets import preset_changes, preset_of, presets
from recipe_core.request.schema import PlanRequest
from recipe_core.request.serving_workload import LOADS, MEDIA, MediaItems
from recipe_core.views.glossary import field_help

MODES = {
    "closed": "Closed loop",
    "open": "Open loop",
    "static": "Static batch",
    "offline": "Offline queue",
}
MODES_MEAN = {
    "closed": "A fixed number of requests stays in flight: each answer triggers the next request.",
    "open": "Requests arrive at a given rate, whether or not earlier ones are done.",
    "static": "One batch of fixed lengths from start to end, as in benchmarks.",
    "offline": "All requests are queued at once; only total time matters.",
}
MOST, FIXED = "most", "fixed"
LOAD_CHOICES = {MOST: "Most within the limits", FIXED: "A fixed number"}
SEARCHED_MEANS = (
    "Each answer triggers the next request; every split gets as many in flight as it does best "
    "with inside the limits."
)
MEDIA_TITLES = {"images": "Images in every prompt", "audio": "Sound in every prompt"}
JUDGED_ON = {
    "mean": "All tasks",
    "knowledge": "Knowledge",
    "math": "Math",
    "code": "Code",
    "commonsense": "Common sense",
    "reasoning": "Reasoning",
    "instruction": "Instructions",
    "long-context": "Long context",
    "perplexity": "Perplexity",
}
"""Kinds of benchmark that accuracy is of."""
METHODS = {
    "pretrain": "Pre-train",
    "finetune": "Fine-tune",
    "lora": "LoRA",
    "qlora": "QLoRA",
    "dpo": "DPO",
    "grpo": "GRPO",
    "ppo": "PPO",
}
DATA = {"": "Usual for the method", "text": "Texts", "chat": "Chats", "preference": "Preferences"}
TARGETS = {"attention": "Attention", "mlp": "Feed-forward", "all": "All linear layers"}


def launch_choice_text(title: str, part: str, name: str) -> str:
    """A choice, which says so where it is only estimated: no framework launches it."""
    return title if name in launch_rules.launchable_names(part) else f"{title} (estimate only)"


def draw_percentile() -> None:
    """The percentile that limits on time are about; means where none is picked."""
    common.edit(
        st.segmented_control,
        "Time limits apply to",
        "objective.limits.percentile",
        options=[50.0, 90.0, 95.0, 99.0],
        format_func="p{:g}".format,
        optional=True,
        wrap=True,
    )


def draw_preset() -> None:
    request = common.request()
    presets_by_name = presets(request)
    common.draw_choice(
        st.pills,
        "Example runs" if request.is_training else "Start from",
        "_preset",
        preset_of(request),
        lambda name: preset_changes(request, name),
        options=list(presets_by_name),
        format_func=lambda name: presets_by_name[name].title,
        help="Fills in typical figures; change any of them. "
        + " ".join(f"{preset.title}: {preset.help}" for preset in presets_by_name.values()),
        wrap=True,
    )


def draw_workload_number(label: str, field: str, **options: Any) -> None:
    numbers.draw_number(label, f"workload.{field}", **options)


def draw_optional_number(label: str, field: str, empty: str, **options: Any) -> None:
    """A number of the workload that may be left out; ``empty`` is its placeholder."""
    numbers.draw_number(label, f"workload.{field}", optional=True, placeholder=empty, **options)


def serving_load() -> None:
    """Ask how requests arrive, how many and how long they are."""
    workload = common.request().workload
    common.edit(
        st.segmented_control, "Traffic", "workload.mode", options=MODES, required=True, wrap=True
    )
    searched = workload.mode == "closed" and workload.concurrency is None
    st.caption(SEARCHED_MEANS if searched else MODES_MEAN[workload.mode])
    load_choice(searched=searched)
    with numbers.group_boxes("load"), st.grid(3, min_column_width=150):
        if workload.mode == "open":
            draw_workload_number("Requests per second", LOADS["open"])
        else:
            names = {"closed": "Requests in flight", "static": "Batch size", "offline": "Requests"}
            draw_workload_number(
                names[workload.mode],
                LOADS[workload.mode],
                disabled=searched,
                placeholder="as limits allow" if searched else "",
            )
        draw_workload_number("Input tokens", "input_tokens")
        draw_workload_number("Output tokens", "output_tokens")
    with st.container(key="lengths-note"):
        if workload.output_tokens == 1:
            st.caption(
                "One output token: prompts are computed and nothing is decoded after them, as in "
                "scoring or a prefill pool."
            )


def media() -> None:
    """Images and sound in every prompt, for models that read them; else only what is stated."""
    workload = common.request().workload
    try:
        read = {tower.modality for tower in common.model().towers}
    except RecipeError:
        read = set()  # the verdict says why the model cannot be read
    present = {field for field in MEDIA if getattr(workload, field) is not None}
    fields = [field for field, modality in MEDIA.items() if modality in read or field in present]
    if not fields:
        return
    with st.expander(
        "Images and sound in prompts" if "audio" in fields else "Images in prompts",
        icon=":material/image:",
        expanded=bool(present),
    ):
        st.caption(
            "Their tokens come on top of the input tokens; encoding them delays the first token."
        )
        for field in fields:
            _media_items(field)


def _media_items(field: str) -> None:
    """Ask whether prompts hold images, or sound, and how many of how many tokens."""
    now = getattr(common.request().workload, field)
    usual = MediaItems().model_dump()
    common.draw_choice(
        st.toggle,
        MEDIA_TITLES[field],
        f"_{field}",
        now is not None,
        lambda on: {f"workload.{field}": usual if on else None},
        help=field_help(f"workload.{field}"),
    )
    if now is not None:
        with numbers.group_boxes(field), st.grid(2, min_column_width=150):
            draw_workload_number("Per request", f"{field}.per_request")
            draw_workload_number("Tokens each", f"{field}.tokens")


def load_choice(*, searched: bool) -> None:
    """Ask whether the load is searched: a choice where a limit on time lets it be.

    The place is there in every state, so that what follows stays where it is.
    """
    request = common.request()
    with st.container(key="load-choice"):
        if request.workload.mode == "closed" and (searched or searchable(request)):
            common.draw_choice(
                st.segmented_control,
                "Load",
                "_load",
                MOST if searched else FIXED,
                lambda choice: {
                    "workload.concurrency": None if choice == MOST else START_LOADS["closed"]
                },
                options=LOAD_CHOICES,
                required=True,
                wrap=True,
                help="Within limits on time every split can carry a load of its own: the one at "
                "which it does best. A fixed number is the same for all.",
            )


def searchable(request: PlanRequest) -> bool:
    """Return whether the request may leave its load open."""
    try:
        return change(request, {"workload.concurrency": None}).workload.concurrency is None
    except RecipeError:
        return False


def several_loads() -> None:
    """Other loads, each judged with every split."""
    unit = {"open": "a second", "static": "in a batch", "offline": "queued"}
    counted = unit.get(common.request().workload.mode, "in flight")
    numbers.draw_number_list(
        "Other loads",
        "options.loads",
        placeholder=f"none, or some such as 16, 64, 256 requests {counted}",
    )


def training_run() -> None:
    """Ask what is trained, on how much, in which steps."""
    common.edit(
        st.segmented_control,
        "Method",
        "workload.method",
        options=list(METHODS),
        format_func=lambda name: launch_choice_text(METHODS[name], "methods", name),
        required=True,
        wrap=True,
    )
    with numbers.group_boxes("run"), st.grid(3, min_column_width=150):
        draw_workload_number("Sequence length", "sequence_length")
        draw_workload_number("Global batch", "global_batch")
        draw_optional_number("Token budget", "tokens", "one step only")
    workload = common.request().workload
    with st.container(key="run-note"):
        if workload.tokens:
            st.caption(training_steps_text(workload))
