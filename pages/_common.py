"""The pages' shared state, in the session and in the link: one PlanRequest, pins, what is kept.

Pages compute nothing: they edit the request by field name and draw what the core says about it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.doors.serve import folders_allowed
from recipe_core.hardware.cluster import device_profile, is_own
from recipe_core.hardware.profile import Device
from recipe_core.models.catalog import load_model_spec
from recipe_core.models.spec import ModelSpec
from recipe_core.plans.plan import Plan
from recipe_core.request.edit import change, select_split, shared_candidate, value_of
from recipe_core.request.link import DEFAULT
from recipe_core.request.open_hardware import changed_market
from recipe_core.request.schema import PlanRequest
from recipe_core.request.shelf import Shelf, keep_choice, shelf_holds
from recipe_core.request.size import Market
from recipe_core.request.split_key import candidate_key
from recipe_core.views.glossary import field_help
from recipe_core.views.plain import plain_words
from recipe_core.views.verdict import calibrated_sentence

MAX_PINS = 4
LENSES = {
    "layouts": "Layouts",
    "hardware": "Hardware",
    "formats": "Formats",
    "over-time": "Over time",
    "why": "Why",
}
"""Views of the plan on its page, by their names in a link: the first is open where none is."""


def escape(text: object) -> str:
    """Text where Markdown is read: model names have underscores, prices dollar signs.

    Names of fields, which messages for the command line give, become words.
    """
    return re.sub(r"([\\`*_\[\]$<>~#|:])", r"\\\1", plain_words(str(text)))


def dark() -> bool:
    return st.context.theme.type == "dark"


# --- state ---------------------------------------------------------------------------------------


def asked() -> PlanRequest:
    """Return what the reader asked; its hardware means nothing while that is to be found."""
    current: PlanRequest = st.session_state["request"]
    return current


def request() -> PlanRequest:
    """Return what is asked, on the hardware that was found for it where that is open."""
    on_found: PlanRequest | None = st.session_state.get("found")
    return on_found if on_found is not None and hardware_is_open() else asked()


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


def selected_key() -> str | None:
    """The key of the split that the request states, None while the ranking decides."""
    candidate = request().candidate
    return candidate_key(candidate.model_dump()) if candidate else None


def states_hardware(names: Iterable[str]) -> bool:
    """Return whether parameters of a link say which hardware it is."""
    return any(name.startswith(("hardware.", "options.hardware")) for name in names)


def current_lens() -> str:
    lens = st.session_state.get("lens")
    return lens if lens in LENSES else next(iter(LENSES))


def change_to(changes: Mapping[str, Any]) -> None:
    """Change the request.

    Raises:
        RecipeError: where that makes it invalid; it stays as it was.
    """
    takes_hardware = hardware_is_open() and any(map(_is_of_hardware, changes.items()))
    changed = change(request() if takes_hardware else asked(), changes)
    st.session_state.update({"edited": True, "request": changed})
    st.session_state.pop("found", None)
    if takes_hardware:  # a layout is one on the hardware that was found: from here that is chosen
        st.session_state["hardware-open"] = False


def _is_of_hardware(changed: tuple[str, Any]) -> bool:
    """Return whether a changed field is hardware, or a layout on it."""
    field, value = changed
    of_layout = field.startswith("candidate") and value is not None and field != "candidate.engine"
    return of_layout or states_hardware([field])


def apply_changes(changes: Mapping[str, Any], undo: str = "") -> None:
    """Change the request; an edit that makes it invalid is refused, and the next run says why.

    ``undo``: what the edit did, where it changes more than the reader typed: the page then offers
    to take it back.
    """
    before, was_open = asked(), hardware_is_open()
    try:
        change_to(changes)
    except RecipeError as error:
        st.session_state["refused"] = str(error)
        return
    if undo and asked() != before:
        st.session_state["undoable"] = (undo, before, was_open, asked())


def seed(key: str, value: Any) -> None:
    """Make a widget show a value; to be called right before it is drawn, on every run.

    A widget that shows it already is left alone: setting it would send the value to the browser,
    where it overwrites what the reader has typed or moved to meanwhile. The browser keeps nothing
    of a widget from another page, even where it has the same key, and of one in a closed popover
    what it showed last: draw such widgets with ``draw_opened``.
    """
    state, page = st.session_state, st.session_state.get("page")
    drawn: dict[str, Any] = state.setdefault("drawn", {})
    if key not in state or drawn.get(key) != page or state[key] != value:
        state[key] = value
    drawn[key] = page


def draw_opened(
    label: str,
    key: str,
    draw: Callable[[], None],
    part: Callable[..., Any] = st.popover,
    **options: Any,
) -> None:
    """Draw a popover, or an expander as ``part``, and, only while it is open, what is in it.

    Widgets of a closed popover would open with what they showed last, or with nothing at all, and
    the next edit would send that as theirs. What lies in an expander is the next stop of the Tab
    key; what lies in a popover is the last. Another ``label`` is another part, which is closed.
    """
    with part(label, key=key, on_change="rerun", **options) as opened:
        if opened.open:
            draw()


def undo_title() -> str | None:
    """Say what the last edit did that can be taken back; None after any other edit."""
    title, _, _, after = st.session_state.get("undoable", (None, None, None, None))
    return title if asked() == after else None


def take_back() -> None:
    """Take the last edit back that changed more than was typed."""
    if undo_title() is None:
        return
    _, before, was_open, _ = st.session_state.pop("undoable")
    st.session_state.update({"request": before, "hardware-open": was_open, "edited": True})
    st.session_state.pop("found", None)


def narrow_to(changes: Mapping[str, Any]) -> None:
    """Change the market to choose from.

    Raises:
        RecipeError: where that makes it invalid; it stays as it was.
    """
    st.session_state["edited"] = True
    st.session_state["market"] = changed_market(current_market(), changes)
    st.session_state.pop("found", None)


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
    seed(key, read(value_of(asked(), field)))  # the request is the only source of its value

    def commit() -> None:
        value = st.session_state[key]
        if optional or value not in (None, []):
            apply_changes({field: None if value is None else write(value)})

    widget(label, key=key, on_change=commit, **{"help": field_help(field), **titled(options)})


def draw_kind(**options: Any) -> None:
    """Ask whether to serve or to train; what each kind asked is kept for the way back."""
    kinds = {"serving": "Serve", "training": "Train"}
    draw_choice(
        st.segmented_control,
        "Serve or train",
        "_workload.kind",
        asked().workload.kind,
        turn_kind,
        options=kinds,
        required=True,
        **options,
    )


def turn_kind(kind: str) -> Mapping[str, Any] | None:
    """Turn the request to serving or training, as it was when it last was that."""
    former: dict[str, PlanRequest] = st.session_state.setdefault("kinds", {})
    former[asked().workload.kind] = asked()
    former_request = former.get(kind)
    if former_request is None:
        return {"workload.kind": kind}
    shared_parts = {"model": asked().model, "hardware": asked().hardware}
    turned = former_request.model_copy(update=shared_parts)
    st.session_state.update({"request": turned, "edited": True})
    st.session_state.pop("found", None)
    return None


def pick_device(
    widget: Callable[..., Any],
    label: str,
    names: Sequence[str],
    title: Callable[[Device], str],
    **options: Any,
) -> None:
    """Draw a widget on the device: ``names``, and the request's where that is a custom profile.

    They stand by their names, the usual card before its variants: what is typed and left by Enter
    takes the first that matches.
    """
    value = request().hardware.device
    current = device_profile(value)
    edit(
        widget,
        label,
        "hardware.device",
        read=lambda _: current.name,
        write=lambda name: value if name == current.name else name,
        options=[*sorted(names), *([current.name] if is_own(current) else [])],
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
        st.toast(f"Kept. Compare has {len(shelf())} of them side by side.")
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


def hardware_is_open() -> bool:
    """Return whether the hardware is to be found: nobody chose it, by an edit or in a link."""
    return bool(st.session_state.get("hardware-open"))


def by_cost(open_request: PlanRequest) -> PlanRequest:
    """Return a request whose hardware is open with cost as what counts.

    Throughput, the usual aim, says nothing of hardware: more of it always gives more.
    """
    return change(open_request, {"objective.optimize": "cost"})


def choose_hardware() -> None:
    """Take the hardware that is shown as chosen; engines and layout stay as they were asked."""
    on_shown = asked().model_copy(update={"hardware": request().hardware})
    st.session_state.update({"request": on_shown, "hardware-open": False, "edited": True})
    st.session_state.pop("found", None)


def open_hardware() -> None:
    """Leave the hardware to be found again, and with it the layout."""
    open_request = asked().model_copy(update={"candidate": shared_candidate(asked())})
    st.session_state.update({"request": open_request, "hardware-open": True, "edited": True})
    st.session_state.pop("found", None)


def follow_edit() -> None:
    """Run the whole page anew after an edit in a fragment; to be called first in each."""
    if st.session_state.get("edited"):  # a whole run has taken the mark away before it comes here
        st.rerun()


def replace_request(new_request: PlanRequest) -> None:
    """Make another request the wizard's; pins are the other plan's."""
    st.session_state.update({"request": new_request, "edited": True, "hardware-open": False})


def start_over() -> None:
    """Back to the request of an empty link; what is kept stays."""
    st.session_state.update(
        {"request": by_cost(DEFAULT), "pins": [], "market": Market(), "edited": True}
        | {"hardware-open": True, "lens": None}
    )
    st.session_state.pop("found", None)


def shared_fields() -> dict[str, Any] | None:
    """The candidate that leaves the split to the ranking: what all training splits share."""
    shared = shared_candidate(request())
    return shared.model_dump(exclude_none=True) if shared else None


def split_fields(key: str) -> dict[str, Any]:
    return select_split(request(), key)


# --- what pages draw in one line -----------------------------------------------------------------


def edit_button(
    label: str, key: str, changes: Mapping[str, Any], icon: str | None = None, **options: Any
) -> bool:
    """Draw a button that changes the request."""
    more = {"on_click": apply_changes, "args": (changes,), **options}
    return bool(st.button(label, key=key, icon=icon, **more))


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
