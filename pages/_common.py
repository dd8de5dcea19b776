"""The wizard's shared state, in the session and in the link: one PlanRequest, pins, what is kept.

Pages compute nothing: they edit the request by field name and draw what the core says about it.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import streamlit as st

from recipe_core.base import budget
from recipe_core.base.errors import RecipeError
from recipe_core.doors.pool import server_pool
from recipe_core.doors.serve import folders_allowed
from recipe_core.hardware.cluster import device_profile, is_own
from recipe_core.hardware.profile import Device
from recipe_core.models.catalog import load_model_spec
from recipe_core.models.spec import ModelSpec
from recipe_core.plans.plan import Plan
from recipe_core.request.edit import change, select_split, shared_candidate, value_of
from recipe_core.request.link import DEFAULT, from_query, link_query
from recipe_core.request.open_hardware import changed_market, market_of, market_query
from recipe_core.request.schema import PlanRequest
from recipe_core.request.shelf import Shelf, keep_choice, shelf_holds, shelf_of, shelf_query
from recipe_core.request.size import Market
from recipe_core.request.split_key import candidate_key, read_pins
from recipe_core.views.glossary import field_help
from recipe_core.views.verdict import calibrated_sentence

Value = TypeVar("Value")

MAX_PINS = 4
LOOK_EVERY_S = 0.5
"""Seconds between looks whether the reader still waits for what is being calculated."""
SHOWING_HARDWARE = ("hardware.py", "compare.py", "recipe.py", "over_time.py")
"""Pages that show which hardware splits are judged on."""
BY_MEANS = {"objective.limits.percentile": None}


def escape(text: object) -> str:
    """Text as it is, where Markdown is read: model names have underscores, prices dollar signs."""
    return re.sub(r"([\\`*_\[\]$<>~#|:])", r"\\\1", str(text))


def dark() -> bool:
    return st.context.theme.type == "dark"


def main_button() -> str:
    """The type of a page's main button.

    Filled, but not in dark: there the primary colour is too light for white text on it.
    """
    return "secondary" if dark() else "primary"


# --- state ---------------------------------------------------------------------------------------


def request() -> PlanRequest:
    current: PlanRequest = st.session_state["request"]
    return current


def asks_for_training() -> bool:
    return request().is_training


def pins() -> list[str]:
    keys: list[str] = st.session_state["pins"]
    return keys


def current_market() -> Market:
    """The hardware to choose from, where it is not decided yet."""
    current: Market = st.session_state.get("market", Market())
    return current


def shelf() -> Shelf:
    """The choices that are kept side by side; they survive a change of the request."""
    choices: Shelf = st.session_state.get("kept", ())
    return choices


@dataclass(frozen=True, slots=True)
class Outside:
    """The session's part that the plan does not hold: pins, and the split stated."""

    pins: frozenset[str] = frozenset()
    split: str = ""


def selected_key() -> str | None:
    """The key of the split that the request states, None while the ranking decides."""
    candidate = request().candidate
    return candidate_key(candidate.model_dump()) if candidate else None


def screen_link_query() -> dict[str, str]:
    """The query of a link to what is on the screen.

    Pins of other plans and a split that no longer fits mean nothing to whoever opens it, so they
    stay in the session alone.
    """
    outside = st.session_state.get("outside", Outside())
    current = request()
    if outside.split and outside.split == selected_key():
        current = current.model_copy(update={"candidate": shared_candidate(current)})
    inside = [pin for pin in pins() if pin not in outside.pins]
    return {**link_query(current, inside), **market_query(current_market()), **shelf_query(shelf())}


def read_url() -> None:
    """Take request, pins and what is kept from a link that says what this session did not write."""
    state, query = st.session_state, st.query_params.to_dict()
    state.pop("later", None)  # of a run that was cut short
    edited = state.pop("edited", False)
    if "request" in state and (edited or not query or query == state.get("written")):
        return  # ours, a click in the navigation, or an edit the address does not show yet
    state["request"], ignored = from_query(query)
    state["pins"], bad_pins = read_pins(query.get("pins", ""), MAX_PINS)
    state["market"], bad_market = market_of(query)
    state["kept"], bad_kept = shelf_of(query)
    state["ignored"] = [*ignored, *bad_pins, *bad_market, *bad_kept]
    for name in ("outside", "looked"):
        state.pop(name, None)
    if any(name.startswith(("hardware.", "options.hardware")) for name in query):
        state["hardware-chosen"] = True


def write_url() -> None:
    """Make the address a link to what is on the screen."""
    st.session_state["written"] = screen_link_query()
    if st.query_params.to_dict() != screen_link_query():
        st.query_params.from_dict(screen_link_query())


def change_to(changes: Mapping[str, Any]) -> None:
    """Change the request.

    Raises:
        RecipeError: where that makes it invalid; it stays as it was.
    """
    st.session_state["edited"] = True
    st.session_state["request"] = change(request(), changes)


def apply_changes(changes: Mapping[str, Any]) -> None:
    """Change the request; an edit that makes it invalid is refused, and the next run says why."""
    try:
        change_to(changes)
    except RecipeError as error:
        st.session_state["refused"] = str(error)


def seed(key: str, value: Any) -> None:
    """Make a widget show a value; to be called right before it is drawn, on every run.

    A widget that shows it already is left alone: setting it would send the value to the browser,
    where it overwrites what the reader has typed or moved to meanwhile. The browser keeps nothing
    of a widget from another page, even where it has the same key.
    """
    state, page = st.session_state, st.session_state.get("page")
    drawn: dict[str, Any] = state.setdefault("drawn", {})
    if key not in state or drawn.get(key) != page or state[key] != value:
        state[key] = value
    drawn[key] = page


def narrow_to(changes: Mapping[str, Any]) -> None:
    """Change the market to choose from.

    Raises:
        RecipeError: where that makes it invalid; it stays as it was.
    """
    st.session_state["edited"] = True
    st.session_state["market"] = changed_market(current_market(), changes)


def narrow_market(changes: Mapping[str, Any]) -> None:
    """Change the market to choose from; an edit that makes it invalid is refused."""
    try:
        narrow_to(changes)
    except RecipeError as error:
        st.session_state["refused"] = str(error)


def edit(
    widget: Callable[..., Any],
    label: str,
    field: str,
    *,
    read: Callable[[Any], Any] = lambda value: value,
    write: Callable[[Any], Any] = lambda value: value,
    optional: bool = False,
    **options: Any,
) -> None:
    """Draw a widget on one field of the request.

    Its help is the field's description, unless a page says more than the field does. ``optional``:
    an empty widget takes the field out, else it changes nothing.
    """
    key = f"_{field}"
    seed(key, read(value_of(request(), field)))  # the request is the only source of its value

    def commit() -> None:
        value = st.session_state[key]
        if optional or value not in (None, []):
            apply_changes({field: None if value is None else write(value)})

    widget(label, key=key, on_change=commit, **{"help": field_help(field), **titled(options)})


def draw_kind(**options: Any) -> None:
    kinds = {"serving": "Serve", "training": "Train"}
    settings = {"options": kinds, "required": True, **options}
    edit(st.segmented_control, "Serve or train", "workload.kind", **settings)


def pick_device(
    widget: Callable[..., Any],
    label: str,
    names: Sequence[str],
    title: Callable[[Device], str],
    **options: Any,
) -> None:
    """Draw a widget on the device: ``names``, and the request's where that is a custom profile."""
    value = request().hardware.device
    current = device_profile(value)
    edit(
        widget,
        label,
        "hardware.device",
        read=lambda _: current.name,
        write=lambda name: value if name == current.name else name,
        options=[*names, *([current.name] if is_own(current) else [])],
        format_func=lambda name: title(current if name == current.name else device_profile(name)),
        **options,
    )


def draw_choice(
    widget: Callable[..., Any],
    label: str,
    key: str,
    now: Any,
    changes: Callable[[Any], Mapping[str, Any] | None],
    *,
    optional: bool = False,
    **options: Any,
) -> None:
    """Draw a widget whose choice changes several fields: ``changes`` of the choice says which.

    It may also make the change itself, and give None. ``optional``: an empty widget is a choice
    too.
    """
    seed(key, now)

    def commit() -> None:
        value = st.session_state[key]
        if (optional or value is not None) and (fields := changes(value)) is not None:
            apply_changes(fields)

    widget(label, key=key, on_change=commit, **titled(options))


def toggle_pin(key: str) -> None:
    """Pin a split, or remove its pin; the oldest pin makes room."""
    rest = [pin for pin in pins() if pin != key]
    st.session_state["pins"] = rest if key in pins() else [*pins(), key][-MAX_PINS:]
    st.session_state["edited"] = True


def keep_split(split_request: PlanRequest) -> None:
    try:
        put_on_shelf(keep_choice(shelf(), split_request))
    except RecipeError as error:
        st.session_state["edited"] = True
        st.session_state["refused"] = str(error)


def put_on_shelf(choices: Shelf) -> None:
    st.session_state.update({"kept": choices, "edited": True})


def keep_button(split_request: PlanRequest, key: str, **options: Any) -> None:
    """A button that keeps the request of one split; it says so where that is kept already."""
    on_shelf = shelf_holds(shelf(), split_request)
    st.button(
        "Kept" if on_shelf else "Keep",
        key=key,
        icon=":material/bookmark_added:" if on_shelf else ":material/bookmark_add:",
        disabled=on_shelf,
        on_click=keep_split,
        args=(split_request,),
        help="Compare it side by side with splits of other models, devices, loads and formats",
        **options,
    )


def select(key: str) -> None:
    """Make a split the request's own; the recipe page shows it."""
    apply_changes(select_split(request(), key))


def hardware_chosen() -> bool:
    """Return whether somebody chose the hardware: by a link, an edit, or on a page that shows it.

    Before, pages judge no split on it.
    """
    state = st.session_state
    if request().hardware != DEFAULT.hardware or request().options.hardware:
        state["hardware-chosen"] = True
    if state.get("page") in SHOWING_HARDWARE:
        state["hardware-chosen"] = True
    return bool(state.get("hardware-chosen"))


def follow_edit() -> None:
    """Run the whole page anew after an edit in a fragment; to be called first in each."""
    if st.session_state.get("edited"):  # a whole run has taken the mark away before it comes here
        st.rerun()


def replace_request(new_request: PlanRequest) -> None:
    """Make another request the wizard's; pins are the other plan's."""
    st.session_state.update({"request": new_request, "edited": True, "hardware-chosen": True})


def start_over() -> None:
    """Back to the request of an empty link; what is kept stays."""
    st.session_state.update(
        {"request": DEFAULT, "pins": [], "market": Market(), "edited": True}
        | {"hardware-chosen": False}
    )


def shared_fields() -> dict[str, Any] | None:
    """The candidate that leaves the split to the ranking: what all training splits share."""
    shared = shared_candidate(request())
    return shared.model_dump(exclude_none=True) if shared else None


def split_fields(key: str) -> dict[str, Any]:
    return select_split(request(), key)


def later(draw: Callable[[], None]) -> None:
    """Draw something after the page and its address, in a place that the page keeps for it."""
    st.session_state.setdefault("later", []).append(draw)


def draw_later() -> None:
    for draw in st.session_state.pop("later", []):
        draw()


# --- what pages draw in one line -----------------------------------------------------------------


def edit_button(
    label: str, key: str, changes: Mapping[str, Any], icon: str | None = None, **options: Any
) -> bool:
    """Draw a button that changes the request."""
    more = {"on_click": apply_changes, "args": (changes,), **options}
    return bool(st.button(label, key=key, icon=icon, **more))


def page_link(page: str, label: str, icon: str) -> None:
    st.page_link(page, label=label, icon=icon, query_params=screen_link_query())


def draw_chart(figure: Any, key: str, alt: str) -> None:
    st.plotly_chart(figure, key=key, alt=alt)


def draw_facts(facts: Mapping[str, str], alt: str) -> None:
    texts = {name: escape(text) for name, text in facts.items()}
    st.table(texts, border="horizontal", alt=alt)


def draw_cells(cells: Any, alt: str) -> None:
    st.table(cells, border="horizontal", hide_index=True, alt=alt)


def pick_one(label: str, options: Any, key: str, default: Any = None, **settings: Any) -> Any:
    """Draw a row of options, titles by their names or names alone; return the one that is on."""
    titles = options if isinstance(options, Mapping) else {option: option for option in options}
    first = next(iter(titles)) if default is None else default
    fixed = {"default": first, "required": True, "persist_state": "session", "key": key}
    shown = {"format_func": titles.get, **fixed, **settings}
    picked = st.segmented_control(label, list(titles), **shown)
    return first if picked is None else picked


def titled(options: dict[str, Any]) -> dict[str, Any]:
    """Settings of a widget whose ``options`` may be titles by their values."""
    titles = options.get("options")
    if not isinstance(titles, Mapping):
        return options
    return {"format_func": titles.get, **options, "options": list(titles)}


# --- the plan ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WayOut:
    """A button beside a calculation that ends it."""

    label: str
    key: str
    on_click: Callable[..., None]
    args: tuple[Any, ...] = ()


def model() -> ModelSpec:
    """The model of the request.

    Raises:
        RecipeError: where it cannot be read.
    """
    model = load_model_spec(request().model, folders=folders_allowed())
    st.session_state["known_model"] = request().model  # where an unknown name may go back to
    return model


def inputs_digest() -> str:
    """Say what tells answers apart beside the request: the model's files, and the calibration's.

    Raises:
        RecipeError: where the model cannot be read.
    """
    from recipe_core.calibration.place import calibration_stamp

    return f"{model().digest}{calibration_stamp()}"


def calibration_note(plan: Plan, row: int) -> None:
    """Say what measured runs did to a split's figures, where they did something."""
    if text := calibrated_sentence(plan, row):
        st.caption(f":material/tune: {escape(text)}")


def calculated(
    task: str,
    function: Callable[..., Value],
    *arguments: Any,
    simulated_what: str = "splits",
    give_up: WayOut | None = None,
    clock: Callable[[], float] = time.monotonic,
    **options: Any,
) -> Value:
    """The value of a function of the core, calculated by the server's workers.

    Meanwhile the page says what is being done, and how far it is while requests are simulated for
    percentiles, with a way to do without. The button, any other edit, or to leave the page ends
    the work: there Streamlit stops a script, as soon as it draws something.
    ``simulated_what``: what is counted meanwhile; empty where steps are no simulations.
    ``give_up``: another way out.

    Raises:
        RecipeError: as the function, and where the server has too much to do.
    """
    pool, place = server_pool(), st.empty()
    client = st.session_state.setdefault("client", secrets.token_hex(8))
    way_out = give_up or WayOut("Use means instead", "no-percentile", apply_changes, (BY_MEANS,))
    counting = "Simulated" if give_up else "Simulating requests:"
    with place.container(), st.spinner(task):
        ahead, simulated = st.empty(), st.container()
        bars: list[Any] = []
        looked = clock()

        def begin() -> None:
            bars.append(simulated.progress(0.0))
            simulated.button(
                way_out.label,
                key=way_out.key,
                icon=":material/close:",
                on_click=way_out.on_click,
                args=way_out.args,
            )

        def show(done: int, steps: int) -> None:
            if not simulated_what:
                return
            if not bars:
                begin()
            text = f"{counting} {done} of {steps} {simulated_what}"
            bars[0].progress(min(done / steps, 1.0), text=text)

        def left() -> bool:
            nonlocal looked
            if clock() - looked > LOOK_EVERY_S:
                looked = clock()
                ahead.caption(f"{pool.waiting} requests wait") if pool.waiting else ahead.empty()
            return False

        if give_up:  # which there is from the start, before the first step is counted
            begin()
        with budget.watched(show):
            value = pool.run(function, *arguments, client=client, abandoned=left, **options)
    place.empty()
    return value


def limit_page_time() -> AbstractContextManager[Any]:
    return budget.apply_budget(server_pool().settings.budget)
