"""Questions of two pages about the workload: a start, traffic, a training run."""

from __future__ import annotations

from typing import Any

import _common as common
import _numbers as numbers
import _session as session
import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.engines.spec import engine, engine_names
from recipe_core.plans import launch_rules
from recipe_core.request.edit import change
from recipe_core.request.schema import PlanRequest
from recipe_core.request.serving_workload import MEDIA, MediaItems
from recipe_core.request.variation import (
    offered_variations,
    variation_changes,
    variation_name,
)
from recipe_core.views.glossary import field_help

MODES = {
    "closed": "Users at once",
    "open": "Requests a second",
    "offline": "A queue, worked off",
    "static": "A fixed batch, as in benchmarks",
}
LOAD_TITLES = {
    "closed": "Users at once",
    "open": "Requests a second",
    "offline": "Requests in the queue",
    "static": "Requests in the batch",
}
MODES_MEAN = {
    "closed": "So many people wait for an answer at any time: each answer triggers a next request.",
    "open": "Requests arrive at a given rate, whether or not earlier ones are done.",
    "static": "One batch of fixed lengths from start to end, as in benchmarks.",
    "offline": "All requests are queued at once; only total time matters.",
}
SEARCHED_MEANS = "Every layout gets as many users at once as it does best with inside the limits."
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
SAMPLERS = {
    name: engine(name).title
    for name in engine_names()
    if name in launch_rules.launchable_names("rollout_engines")
}
"""Engines that sample answers for a framework."""
PLACEMENTS = {"colocated": "The devices that train", "apart": "Devices of their own"}
REWARDS = {"rule": "A rule", "model": "A model of its size"}
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


def draw_workload_number(label: str, field: str, **options: Any) -> None:
    numbers.draw_number(label, f"workload.{field}", **options)


def draw_optional_number(label: str, field: str, empty: str, **options: Any) -> None:
    """A number of the workload that may be left out; ``empty`` is its placeholder."""
    numbers.draw_number(label, f"workload.{field}", optional=True, placeholder=empty, **options)


def load_sentence(request: PlanRequest) -> str:
    """Say what the load means, and what lengths of one token do."""
    workload = request.workload
    searched = workload.mode == "closed" and workload.concurrency is None
    sentences = [SEARCHED_MEANS if searched else MODES_MEAN[workload.mode]]
    if workload.output_tokens == 1:
        sentences.append(
            "One output token: prompts are computed and nothing is decoded after them, as in "
            "scoring or a prefill pool."
        )
    return " ".join(sentences)


def media() -> None:
    """Images and sound in every prompt, for models that read them; else only what is stated."""
    workload = session.request().workload
    try:
        read = {tower.modality for tower in session.model().towers}
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
    now = getattr(session.request().workload, field)
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


def searchable(request: PlanRequest) -> bool:
    """Return whether the request may leave its load open."""
    try:
        return change(request, {"workload.concurrency": None}).workload.concurrency is None
    except RecipeError:
        return False


def draw_variation() -> None:
    """Ask how lengths vary around the typical request, where they may and texts are generated."""
    workload = session.request().workload
    if workload.mode == "static" or workload.output_tokens == 1:
        return
    common.draw_choice(
        st.selectbox,
        "Lengths vary",
        "_variation",
        variation_name(workload),
        lambda name: variation_changes(name) if name else None,
        options=offered_variations(workload),
        help=VARIATION_HELP,
        width=320,
    )


VARIATION_HELP = (
    "Few very long answers hold a queue up and take more of the cache. Equal lengths let users at "
    "once start and end in waves. A trace that you upload under Over time brings its own lengths."
)


def several_loads() -> None:
    """Other loads, each judged with every split."""
    unit = {"open": "a second", "static": "in a batch", "offline": "queued"}
    counted = unit.get(session.request().workload.mode, "at once")
    numbers.draw_number_list(
        "Other loads",
        "options.loads",
        placeholder=f"none, or some such as 16, 64, 256 requests {counted}",
    )
