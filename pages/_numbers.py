"""Boxes for numbers as people write them: ``1e9``, ``64k``, ``1,000,000``.

A text box, not Streamlit's number box, which reads ``1e9`` as 1 and says nothing of its range. What
a box refuses is said below the group that it stands in, and the old value stays in effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import _common as common
import _session as session
import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.base.numbers import Range, number_text, read_number, read_numbers
from recipe_core.request.edit import range_of, value_of
from recipe_core.views.glossary import field_help

MOST_LOADS = 16
"""Loads that a page takes: each is judged with every layout."""
BOX_PX = 165
"""Width of a box: a wider one says "Press Enter to apply" over the last of its digits."""
_group: ContextVar[str | None] = ContextVar("group of boxes", default=None)


@contextmanager
def group_boxes(name: str) -> Iterator[None]:
    """Boxes that stand together; below them is the place for what one of them refuses."""
    outer = _group.set(name)
    try:
        with st.container(key=f"group-{name}"):
            yield
    finally:
        _group.reset(outer)
    with st.container(key=f"refused-{name}"):
        if text := st.session_state.get("refused_in", {}).pop(name, None):
            st.error(common.escape(text), icon=":material/block:")


def refuse_input(place: str | None, text: str) -> None:
    """Say on the next run what was refused: in a group, or at the top of the page."""
    st.session_state["edited"] = True
    if place is None:
        st.session_state["refused"] = text
    else:
        st.session_state.setdefault("refused_in", {})[place] = text


def box(
    label: str,
    key: str,
    now: Any,
    take: Callable[[Any], None],
    limits: Range,
    *,
    optional: bool = False,
    unit: str = "",
    name: str | None = None,
    show: Callable[[Any], str] = number_text,
    read: Callable[..., Any] = read_number,
    **options: Any,
) -> None:
    """Draw a box on a number that is ``now``; ``take`` gets another, or None where it is emptied.

    ``optional``: it may be empty, else emptying it changes nothing. ``unit``: what people may write
    behind the number. ``name``: what messages call it, where the label says less. ``take`` may
    raise RecipeError: the message then stands where other refusals stand.
    """
    place = _group.get()
    text = "" if now is None else show(now)
    common.seed(key, text)

    def commit() -> None:
        typed = str(st.session_state[key] or "").strip()
        try:
            if typed:
                take(read(typed, limits, unit=unit))
            elif optional:
                take(None)
        except RecipeError as error:
            consequence = f"{text} stays in effect." if text else "It stays empty."
            refusal = f"{error.message} {error.hint or ''}".strip()
            refuse_input(place, f"{name or label}: {refusal} {consequence}")

    takes = f"Takes {limits.text}{f', in {unit}' if unit else ''}."
    plain = "help" in options and options["help"] is None  # what it takes is said if it refuses
    about = options.pop("help", None)
    sentences = None if plain else " ".join(filter(None, (about, takes)))
    st.text_input(
        label,
        key=key,
        on_change=commit,
        help=sentences,
        autocomplete="off",
        **{"width": BOX_PX, **options},
    )


def scaled(value: float, factor: float) -> float:
    """A number in another unit, without the dust of a product of floats; counts stay whole."""
    return value if factor == 1 else float(f"{value * factor:.12g}")


def draw_number(label: str, field: str, *, scale: float = 1.0, **options: Any) -> None:
    """Draw a box on a number of the request; its help is the field's description.

    ``scale``: units of the box in one of the field.
    """
    value = value_of(session.asked(), field)

    def take(typed: float | None) -> None:
        session.change_to({field: None if typed is None else scaled(typed, 1 / scale)})

    now = None if value is None else scaled(value, scale)
    settings: Mapping[str, Any] = {"help": field_help(field), **options}
    box(label, f"_{field}", now, take, range_of(field).scaled(scale), **settings)


def draw_number_list(label: str, field: str, **options: Any) -> None:

    def take(values: tuple[float, ...] | None) -> None:
        session.change_to({field: values or ()})

    settings: Mapping[str, Any] = {
        "help": field_help(field),
        "width": "stretch",
        **options,
    }
    box(
        label,
        f"_{field}",
        value_of(session.asked(), field) or None,
        take,
        range_of(field),
        optional=True,
        show=lambda values: ", ".join(number_text(value).replace(",", "") for value in values),
        read=lambda text, limits, unit: read_numbers(text, limits, limit=MOST_LOADS, unit=unit),
        **settings,
    )
