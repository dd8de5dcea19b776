"""Calculations of the core for a page: by the server's workers, or after the page is drawn."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import _session as session
import streamlit as st

from recipe_core.base import budget
from recipe_core.base.errors import RecipeError
from recipe_core.doors.pool import server_pool

Value = TypeVar("Value")

LOOK_EVERY_S = 0.5
"""Seconds between looks whether the reader still waits for what is being calculated."""
BY_MEANS = {"objective.limits.percentile": None}


def later(draw: Callable[[], None]) -> None:
    """Draw something after the page and its address, in a place that the page keeps for it."""
    st.session_state.setdefault("later", []).append(draw)


def draw_later() -> None:
    for draw in st.session_state.pop("later", []):
        draw()


def calculated(
    task: str,
    function: Callable[..., Value],
    *arguments: Any,
    simulated_noun: str = "layouts",
    clock: Callable[[], float] = time.monotonic,
    **options: Any,
) -> Value:
    """The value of a function of the core, calculated by the server's workers.

    Meanwhile the page says what is being done, and how far it is while requests are simulated for
    percentiles, with a way to do without. The button, any other edit, or to leave the page ends
    the work: there Streamlit stops a script, as soon as it draws something.
    ``simulated_noun``: what is counted meanwhile; empty where steps are no simulations.

    Raises:
        RecipeError: as the function, and where the server has too much to do.
    """
    pool, place = server_pool(), st.empty()
    client = st.session_state.setdefault("client", secrets.token_hex(8))
    try:
        with place.container(), st.spinner(task):
            ahead, show = st.empty(), simulation_bar(st.container(), simulated_noun)
            looked = clock()

            def look_at_queue() -> bool:
                nonlocal looked
                if clock() - looked > LOOK_EVERY_S:
                    looked = clock()
                    ahead.caption(
                        f"{pool.waiting} requests wait"
                    ) if pool.waiting else ahead.empty()
                return False

            with budget.watched(show):
                value = pool.run(
                    function, *arguments, client=client, abandoned=look_at_queue, **options
                )
    except RecipeError:
        place.empty()  # the page says why, beside no progress
        raise
    place.empty()
    return value


def simulation_bar(place: Any, noun: str) -> budget.Watcher:
    """Return what shows how far a simulation is, with a way to do without it, once it begins.

    ``noun``: what is counted; empty where nothing is to be shown.
    """
    bars: list[Any] = []

    def begin() -> None:
        bars.append(place.progress(0.0))
        place.button(
            "Use means instead",
            key="no-percentile",
            icon=":material/close:",
            on_click=session.apply_changes,
            args=(BY_MEANS,),
        )

    def show(done: int, steps: int, _stage: str) -> None:
        if not noun:
            return
        if not bars:
            begin()
        text = f"Simulating requests: {done} of {steps} {noun}"
        bars[0].progress(min(done / steps, 1.0), text=text)

    return show


def limit_page_time() -> AbstractContextManager[Any]:
    return budget.apply_budget(server_pool().settings.budget)
