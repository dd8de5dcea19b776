"""Every state of every page held against axe-core, and its text against its boxes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from recipe_core.views.charts.views import VIEWS
from tests.e2e.test_pages import LIMITED, RUN, SEVERAL, SHORT, simulated, sized
from tests.fixtures.wizard import (
    LLAMA_70B,
    OVER_TIME,
    PAGES,
    QUESTIONS,
    SIDE,
    SIZE,
    TP4,
    TP8,
    TRAINING,
    choose,
    fits_sideways,
    open_step,
    open_tab,
    settled,
    unfold,
    violations,
)

Error = pytest.importorskip("playwright.sync_api").Error
pytestmark = [pytest.mark.browser, pytest.mark.nightly]

WIDE, PHONE, ZOOMED, NARROW = (1440, 900), (390, 844), (720, 450), (390, 900)
"""Widths and heights in CSS pixels; the third is 1440 × 900 at 200 % zoom."""
GROUNDS = {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 23, 29)"}
GROUND = "getComputedStyle(document.querySelector('.stApp')).backgroundColor"
STATES = {
    "serving": f"{LLAMA_70B}&objective.limits.tpot_ms=40&pins={TP8},{TP4}",
    "training": TRAINING,
    "nothing-fits": f"{LLAMA_70B}&hardware.per_node=1",
}
WITHOUT_REQUEST = ("measured", "check")
TABS = ("Deploy", "Files", "Option provenance", "Other engines", "Fallbacks", "API and CLI")
CUT = """
() => {
  const boxes = 'button, a, [role=tab], [data-testid=stMetricLabel], [data-testid=stMetricValue]'
  const cut = part => part.clientWidth > 0 && part.scrollWidth > part.clientWidth + 1
    && getComputedStyle(part).overflowX !== 'visible'
  return [...document.querySelectorAll('[data-testid=stMain], [data-testid=stBottom]')]
    .flatMap(main => [...main.querySelectorAll(boxes)])
    .filter(box => box.checkVisibility() && box.innerText.trim())
    .filter(box => [box, ...box.querySelectorAll('*')].some(cut))
    .map(box => box.innerText)
}
"""
"""Texts of buttons, links, tabs and figures that are wider than the box that shows them."""

States = Iterator[tuple[str, str, tuple[tuple[int, int], ...]]]
"""A name, the page's title, and the windows to look at it in; without any it is as it stands."""


def pages(page: Any, address: str) -> States:
    for state, link in STATES.items():
        for step, question in PAGES.items():
            if step in WITHOUT_REQUEST and state != "serving":
                continue
            open_step(page, address, step, link)
            if state == "training" and step in QUESTIONS:
                page.get_by_text("splits can run").first.wait_for()
            if step == "check":
                page.get_by_role("button", name="SGLang").click()
                page.get_by_text("It cannot start.").wait_for()
            yield f"{state}: {step}", question, (WIDE, PHONE, ZOOMED)


def first_page(page: Any, address: str) -> States:
    question, windows = QUESTIONS[""], (WIDE, PHONE, ZOOMED)
    open_step(page, address, "")
    yield "gallery", question, windows
    page.get_by_role("button", name="Take the tour").click()
    page.get_by_text("Tour, stop 1").wait_for()
    yield "tour", question, windows
    page.get_by_role("button", name="End tour").click()
    page.get_by_text("Tour, stop 1").wait_for(state="detached")
    choose(page, "Model", "llama70x", "Add: llama70x")
    page.get_by_text("No model is called").wait_for()
    yield "unmatched", question, windows
    page.get_by_role("button", name="Glossary", exact=True).click()
    page.get_by_role("dialog").get_by_text("Time to first token").first.wait_for()
    yield "glossary", question, ()


def views_of_a_split(page: Any, address: str) -> States:
    open_step(page, address, "compare", STATES["serving"])
    titles = [view.title for view in VIEWS.values() if "serving" in view.kinds]
    for view in [*titles[1:], "Why not?"]:  # the first is open already
        open_tab(page, view, QUESTIONS["compare"])
        yield view, QUESTIONS["compare"], ()


def hardware(page: Any, address: str) -> States:
    for name, link in (("training", TRAINING), ("serving", LIMITED)):
        page.goto(f"{address}/size?{link}")
        sized(page)
        for part in ("Growth", "Availability", "Buy or rent", "More filters"):
            if page.locator("summary").filter(has_text=part).count():
                unfold(page, part)
                sized(page)
        yield f"{name}, unfolded", SIZE, (WIDE, PHONE)
    for tab in ("Cost against a limit", "Confidence"):
        open_tab(page, tab, SIZE)
        yield tab, SIZE, ()


def recipe(page: Any, address: str) -> States:
    large = "model=meta-llama%2FLlama-3.1-405B-Instruct&hardware.nodes=2"
    for link, window in ((large, WIDE), (RUN, NARROW)):
        open_step(page, address, "recipe", link)
        for tab in TABS:
            open_tab(page, tab, PAGES["recipe"])
            if tab == "Deploy" and link == large:
                unfold(page, "Deployment settings")
                page.get_by_role("radio", name="Compose").click()
                page.get_by_text("is not available").wait_for()
            yield tab, PAGES["recipe"], (window,)


def replicas(page: Any, address: str) -> States:
    open_step(page, address, "over_time", SHORT)
    simulated(page)
    unfold(page, "What is written into the bundle")
    yield "simulated", OVER_TIME, (WIDE, PHONE, ZOOMED)


def choices(page: Any, address: str) -> States:
    for width, height in (WIDE, PHONE):
        page.set_viewport_size({"width": width, "height": height})
        open_step(page, address, "side", SEVERAL)
        yield f"side, {width}", SIDE, ()
        page.get_by_role("button", name="Link", exact=True).click()
        page.get_by_test_id("stPopoverBody").locator("code").wait_for()
        yield f"link, {width}", SIDE, ()


@pytest.mark.parametrize("scheme", GROUNDS)
@pytest.mark.parametrize(
    "states", [pages, first_page, views_of_a_split, hardware, recipe, replicas, choices]
)
def test_no_state_of_a_page_has_a_violation_or_is_cut(open_page, address, states, scheme):
    """Rules that no colour changes are held in the light alone, in a wide window and on a phone."""
    page, wrong = open_page(color_scheme=scheme), {}
    page.set_viewport_size(sized_as(WIDE))
    for state, question, windows in states(page, address):
        for window in windows or (None,):
            if scheme == "dark" and window == ZOOMED:
                continue
            if window:
                page.set_viewport_size(sized_as(window))
            settled(page, question)
            try:
                fits_sideways(page)
            except Error as error:
                wrong[state, window, "wide"] = str(error)
            by_colour = scheme == "dark" or window in (ZOOMED, NARROW)
            rules = ("color-contrast",) if by_colour else ()
            wrong[state, window, "axe"] = violations(page, *rules)
            wrong[state, window, "cut"] = page.evaluate(CUT)
        wrong[state, "ground"] = page.evaluate(GROUND).replace(GROUNDS[scheme], "")
        if windows:
            page.set_viewport_size(sized_as(WIDE))
    assert not any(wrong.values()), {name: parts for name, parts in wrong.items() if parts}


def sized_as(window: tuple[int, int]) -> dict[str, int]:
    return {"width": window[0], "height": window[1]}
