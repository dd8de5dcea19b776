"""Widgets on fields of the request, facts and charts, as all pages draw them.

Pages compute nothing: they edit the request by field name and draw what the core says about it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import _session as session
import streamlit as st

from recipe_core.hardware.cluster import device_profile, is_own
from recipe_core.hardware.profile import Device
from recipe_core.plans.plan import Plan
from recipe_core.request.edit import value_of
from recipe_core.request.schema import PlanRequest
from recipe_core.request.shelf import shelf_holds
from recipe_core.views.glossary import field_help
from recipe_core.views.plain import plain_words
from recipe_core.views.verdict import calibrated_sentence


def escape(text: object) -> str:
    """Text where Markdown is read: model names have underscores, prices dollar signs.

    Names of fields, which messages for the command line give, become words.
    """
    return re.sub(r"([\\`*_\[\]$<>~#|:])", r"\\\1", plain_words(str(text)))


def dark() -> bool:
    return st.context.theme.type == "dark"


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
    seed(key, read(value_of(session.asked(), field)))  # the request is the only source of its value

    def commit() -> None:
        value = st.session_state[key]
        if optional or value not in (None, []):
            session.apply_changes({field: None if value is None else write(value)})

    widget(label, key=key, on_change=commit, **{"help": field_help(field), **titled(options)})


def draw_kind(**options: Any) -> None:
    """Ask whether to serve or to train; what each kind asked is kept for the way back."""
    kinds = {"serving": "Serve", "training": "Train"}
    draw_choice(
        st.segmented_control,
        "Serve or train",
        "_workload.kind",
        session.asked().workload.kind,
        session.turn_kind,
        options=kinds,
        required=True,
        **options,
    )


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
    value = session.request().hardware.device
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
            session.apply_changes(fields)

    widget(label, key=key, on_change=commit, **titled(options))


def keep_button(split_request: PlanRequest, key: str, **options: Any) -> None:
    """A button that keeps the request of one split; it says so where that is kept already."""
    on_shelf = shelf_holds(session.shelf(), split_request)
    st.button(
        "Kept" if on_shelf else "Keep",
        key=key,
        icon=":material/bookmark_added:" if on_shelf else ":material/bookmark_add:",
        disabled=on_shelf,
        on_click=session.keep_split,
        args=(split_request,),
        help="Compare it side by side with layouts of other models, devices, loads and formats",
        **options,
    )


def edit_button(
    label: str, key: str, changes: Mapping[str, Any], icon: str | None = None, **options: Any
) -> bool:
    """Draw a button that changes the request."""
    more = {"on_click": session.apply_changes, "args": (changes,), **options}
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


def calibration_note(plan: Plan, row: int) -> None:
    """Say what measured runs did to a split's figures, where they did something."""
    if text := calibrated_sentence(plan, row):
        st.caption(f":material/tune: {escape(text)}")
