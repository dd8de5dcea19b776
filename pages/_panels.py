"""Questions of the walk, screen by screen; the plan's chips ask the same in small."""

from __future__ import annotations

from typing import Any

import _common as common
import _device_browser as browser
import _numbers as numbers
import _session as session
import _workload as asking
import streamlit as st
from _size_filters import VENDORS

from recipe_core.base.units import per_second
from recipe_core.hardware.cluster import device_names, device_profile, short_title
from recipe_core.hardware.prices import HOURS_PER_MONTH
from recipe_core.hardware.profile import Device
from recipe_core.plans.confidence import SURE
from recipe_core.request.describe import training_steps_text
from recipe_core.request.edit import range_of
from recipe_core.request.metrics import limits_by_name
from recipe_core.request.presets import aims, preset_changes, preset_of, presets, request_aim
from recipe_core.request.serving_workload import LOADS

OWN_LENGTHS, OWN_AIM = "", ""
CHANCES = (0.5, 0.8, 0.9, 0.95)
"""How sure the limits can be asked to hold."""
FIND, CHOOSE = "find", "choose"
HARDWARE_CHOICES = {FIND: "Find it for me", CHOOSE: "I choose"}
UNLIMITED = "no limit"


# --- traffic -------------------------------------------------------------------------------------


def draw_traffic() -> None:
    """Ask what comes: its kind, how much at once, how long requests are; or what is trained."""
    draw_load()
    draw_lengths()


def draw_load() -> None:
    """Ask for the kind of traffic and how much comes, or for the method and how much is trained."""
    draw_preset()
    if session.asks_for_training():
        draw_run()
    else:
        draw_serving_load()


def draw_lengths() -> None:
    """Ask how long requests are, or what a step of training holds."""
    with numbers.group_boxes("lengths"), st.grid(2, min_column_width=150):
        if not session.asks_for_training():
            draw_request_lengths()
        elif session.asked().workload.rollout is not None:
            draw_rollout()
        else:
            numbers.draw_number("Sequence length (tokens)", "workload.sequence_length", help=None)
            numbers.draw_number("Sequences a step", "workload.global_batch", help=None)


def draw_preset() -> None:
    """Ask for the kind of traffic or of run, which fills in typical figures."""
    request = session.asked()
    presets_by_name = presets(request)
    now = preset_of(request) or OWN_LENGTHS
    titles = {name: preset.title for name, preset in presets_by_name.items()}

    def take(name: str) -> None:
        if name:
            changes = preset_changes(request, name)
            session.apply_changes(changes, undo=f"typical figures of {titles[name]}")

    common.draw_choice(
        st.selectbox,
        "Kind of run" if request.is_training else "Kind of traffic",
        "_preset",
        now,
        take,
        options={OWN_LENGTHS: "Your own figures", **titles},
    )
    if now:
        st.caption(common.escape(presets_by_name[now].help))


def draw_serving_load() -> None:
    """Ask how requests come and how many."""
    request = session.asked()
    mode = request.workload.mode
    searchable = mode == "closed" and asking.searchable(request)
    with numbers.group_boxes("load"), st.grid(2, min_column_width=150):
        common.edit(st.selectbox, "Load", "workload.mode", options=asking.MODES, help=None)
        numbers.draw_number(
            asking.LOAD_TITLES[mode],
            f"workload.{LOADS[mode]}",
            optional=searchable,
            placeholder="as many as limits allow" if searchable else "",
            help=None,
        )
    st.caption(asking.load_sentence(request))


def draw_request_lengths() -> None:
    """Ask for the typical request and the longest one."""
    numbers.draw_number("Typical input (tokens)", "workload.input_tokens", help=None)
    numbers.draw_number("Typical output (tokens)", "workload.output_tokens", help=None)
    numbers.draw_number(
        "Longest request (tokens)",
        "workload.max_context",
        optional=True,
        placeholder=f"{session.asked().workload.usual_longest:,}",
        help=None,
    )


def draw_run() -> None:
    """Ask what is trained, and on how much."""
    with numbers.group_boxes("run"), st.grid(2, min_column_width=150):
        common.edit(
            st.selectbox,
            "Method",
            "workload.method",
            options=list(asking.METHODS),
            format_func=lambda name: asking.launch_choice_text(
                asking.METHODS[name], "methods", name
            ),
            help=None,
        )
        numbers.draw_number(
            "Tokens in all",
            "workload.tokens",
            optional=True,
            placeholder="one step only",
            help=None,
        )
    if session.asked().workload.tokens:
        st.caption(training_steps_text(session.asked().workload))


def draw_rollout() -> None:
    """Ask for the answers that a step samples."""
    rollout = session.asked().workload.rollout
    field = "workload.rollout"
    numbers.draw_number("Prompts a step", f"{field}.prompts", help=None)
    numbers.draw_number("Answers a prompt", f"{field}.samples", help=None)
    numbers.draw_number("Typical answer (tokens)", f"{field}.response_tokens", help=None)
    numbers.draw_number(
        "Longest answer (tokens)",
        f"{field}.max_response_tokens",
        optional=True,
        placeholder=f"{rollout.longest_response:,}",
        help=None,
    )


# --- limits --------------------------------------------------------------------------------------


FIRST_LIMITS = {
    False: ("ttft_ms", "tpot_ms", "usd_per_hour"),
    True: ("wall_hours", "usd", "usd_per_hour"),
}
"""Limits that are asked first, the budget last, by whether a model is trained."""


def draw_goals() -> None:
    """Ask for the limits, how surely they must hold, and what counts beside them."""
    draw_first_limits()
    draw_further_goals()


def draw_first_limits() -> None:
    """Ask for the limits that most requests have."""
    *names, _ = FIRST_LIMITS[session.asks_for_training()]
    with numbers.group_boxes("goals"), st.grid(2, min_column_width=150):
        for name in names:
            limit = limits_by_name()[name]
            unit = limit.field_symbol
            title = limit.metric.title
            numbers.draw_number(
                f"{title}, at most ({unit})",
                f"objective.limits.{name}",
                optional=True,
                unit=unit,
                placeholder=UNLIMITED,
                help=None,
            )


def draw_further_goals() -> None:
    """Ask for the budget, how surely limits must hold, and what counts beside them."""
    with numbers.group_boxes("budget"), st.grid(2, min_column_width=150):
        numbers.draw_number(
            "Budget ($ a month)",
            "objective.limits.usd_per_hour",
            scale=HOURS_PER_MONTH,
            optional=True,
            unit="$/month",
            placeholder=UNLIMITED,
            help=None,
        )
        draw_confidence()
    draw_aim()


def draw_confidence(key: str = "_confidence") -> None:
    """Ask how surely the limits must hold."""
    now = session.asked().objective.required_confidence
    common.draw_choice(
        st.selectbox,
        "How sure",
        key,
        now,
        lambda chance: {
            "objective.confidence": None if chance == SURE else chance,
            "candidate": session.shared_fields(),
        },
        options=sorted({*CHANCES, now}),
        format_func=lambda chance: f"{chance * 100:g} %",
    )


def draw_aim() -> None:
    """Ask what counts most among what keeps the limits."""
    request = session.asked()
    titles = {name: aim.title for name, aim in aims(request).items()}
    weights = [f"objective.weights.{goal}" for goal in request.objective.weights]
    now = request_aim(request) or OWN_AIM

    def changes(name: str) -> dict[str, Any]:
        return {**dict.fromkeys(weights), **aims(request)[name].changes} if name else {}

    unlisted = {} if now else {OWN_AIM: "As weighted in the link"}
    key = "_aim-of-run" if request.is_training else "_aim"  # they call the same goals otherwise
    options = {**unlisted, **titles}
    common.draw_choice(st.selectbox, "Optimise for", key, now, changes, options=options)


# --- hardware ------------------------------------------------------------------------------------


def draw_hardware_choice() -> None:
    """Ask whether the hardware is found or chosen, and which."""

    def turn(choice: str) -> None:
        (session.open_hardware if choice == FIND else session.choose_hardware)()

    common.draw_choice(
        st.segmented_control,
        "Hardware",
        "_hardware-choice",
        FIND if session.hardware_is_open() else CHOOSE,
        turn,
        options=HARDWARE_CHOICES,
        required=True,
        label_visibility="collapsed",
    )
    if session.hardware_is_open():
        draw_market()
    else:
        draw_device()


MARKET = {
    "consumer_cards": "Consumer cards",
    "market_places": "Market places",
    "several_machines": "A replica over several machines",
    "older_prices": "Older prices too",
}
"""What the search for hardware leaves out unless it is switched on."""


def draw_market() -> None:
    """Ask what may be rented beside data-centre devices at verified prices."""
    st.caption(
        "Data-centre devices that can be rented, the cheapest that holds the limits; one machine a "
        "replica, prices of the last 90 days first."
    )
    draw_market_switches()


def draw_market_switches() -> None:
    """Switches for what the search leaves out by default."""
    market = session.current_market()
    for field, title in MARKET.items():
        common.draw_choice(
            st.toggle,
            title,
            f"_market-{field}",
            getattr(market, field),
            lambda on, field=field: session.narrow_market({field: on}),
        )


def device_line(chip: Device) -> str:
    """A device in a list, which finds it by maker, name, memory and speed."""
    speed = per_second(chip.memory_bandwidth_bytes_per_s.value, "B")
    return f"{short_title(chip)} · {VENDORS[chip.vendor]} · {speed}"


def draw_device() -> None:
    """Ask for the device and how many of it."""
    common.pick_device(
        st.selectbox,
        "Device",
        device_names(announced=True),
        device_line,
        help=None,
    )
    browser.draw_device_browser()
    with numbers.group_boxes("counts"), st.grid(2, min_column_width=120):
        numbers.draw_number("Devices per node", "hardware.per_node", help=None)
        numbers.draw_number("Nodes", "hardware.nodes", help=None)
    usual = device_profile(session.request().hardware.device).node.devices
    limits = range_of("hardware.nodes").text
    st.caption(f"A usual node of these has {usual:,}. Both take {limits}.")
