"""What two pages ask about the workload: where to start from, traffic, a training run."""

from __future__ import annotations

import _common as common
import streamlit as st

from recipe_core.request.describe import steps_of
from recipe_core.request.presets import preset_changes, preset_of, presets
from recipe_core.request.schema import LOADS

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
METHODS = {"pretrain": "Pre-train", "finetune": "Fine-tune", "lora": "LoRA", "qlora": "QLoRA"}


def preset() -> None:
    """Typical lengths and loads by name."""
    request = common.request()
    known = presets(request)
    common.choose(
        st.pills,
        "Example runs" if request.is_training else "Start from",
        "_preset",
        preset_of(request),
        lambda name: preset_changes(request, name),
        options=list(known),
        format_func=lambda name: known[name].title,
        help="Fills in typical figures; change any of them. "
        + " ".join(f"{preset.title}: {preset.help}" for preset in known.values()),
        wrap=True,
    )


def whole(label: str, field: str, step: int) -> None:
    """A field that counts something."""
    common.edit(
        st.number_input,
        label,
        f"workload.{field}",
        min_value=1,
        max_value=1 << 30,
        step=step,
    )


def optional(label: str, field: str, step: float, empty: str, minimum: float) -> None:
    """A number that may be left out; ``empty`` is its placeholder."""
    common.edit(
        st.number_input,
        label,
        f"workload.{field}",
        read=lambda value: None if value is None else float(value),
        optional=True,
        min_value=minimum,
        step=step,
        format="%.3g",
        placeholder=empty,
    )


def serving_load() -> None:
    """How requests arrive, how many and how long they are."""
    mode = common.request().workload.mode
    common.edit(
        st.segmented_control,
        "Traffic",
        "workload.mode",
        options=list(MODES),
        format_func=MODES.get,
        required=True,
    )
    st.caption(MODES_MEAN[mode])
    load, prompt, answer = st.columns(3)
    with load:
        if mode == "open":
            rate = {"read": float, "min_value": 0.001, "step": 0.5, "format": "%.3f"}
            common.edit(st.number_input, "Requests per second", "workload.request_rate", **rate)
        else:
            names = {"closed": "Requests in flight", "static": "Batch size", "offline": "Requests"}
            whole(names[mode], LOADS[mode], 1)
    with prompt:
        whole("Input tokens", "input_tokens", 256)
    with answer:
        whole("Output tokens", "output_tokens", 64)


def training_run() -> None:
    """What is trained, on how much, in which steps."""
    common.edit(
        st.segmented_control,
        "Method",
        "workload.method",
        options=list(METHODS),
        format_func=METHODS.get,
        required=True,
    )
    # budgets have eleven digits and more
    length, batch, tokens = st.columns([2, 2, 3])
    with length:
        whole("Sequence length", "sequence_length", 1024)
    with batch:
        whole("Global batch", "global_batch", 8)
    with tokens:
        optional("Token budget", "tokens", 1e9, "one step only", minimum=1.0)
    workload = common.request().workload
    if workload.tokens:
        st.caption(steps_of(workload))
