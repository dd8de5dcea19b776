"""Every state of every page held against axe-core, and its text against its boxes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.test_pages import LIMITED, RUN, SEVERAL, SHORT, simulated, sized
from tests.fixtures.wizard import (
    LENSES,
    LLAMA_70B,
    PAGES,
    PLAN,
    SIDE,
    TP4,
    TP8,
    TRAINING,
    choose,
    find_model,
    fits_sideways,
    open_chip,
    open_lens,
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
CHOSEN = "hardware.device=h100-sxm"
STATES = {
    "serving": f"{LLAMA_70B}&{CHOSEN}&objective.limits.tpot_ms=40&pins={TP8},{TP4}",
    "found": f"{LLAMA_70B}&objective.limits.tpot_ms=40",
    "training": TRAINING,
    "nothing-fits": f"{LLAMA_70B}&hardware.per_node=1",
}
WITHOUT_REQUEST = ("", "evidence", "fleet", "check")
TABS = ("Decision", "Files", "Option provenance", "Other engines", "Fallbacks", "API and CLI")
FOLDED = {
    "model": ("Popular models", "Number formats", "Architecture"),
    "traffic": ("Lengths and more", "More limits"),
    "hardware": (
        *("Price", "More about the hardware", "Device not listed", "Detect this"),
        "Device figures",
    ),
}
"""Folded parts of the walk's screens."""
CHIPS = ("Model", "Traffic", "Limits", "Hardware")
PRIMARY = """() => [...document.querySelectorAll('button[kind=primary]')]
  .filter(button => button.checkVisibility() && !button.disabled)
  .flatMap(button => [button, ...button.querySelectorAll('p, kbd, [data-testid=stIconMaterial]')]
    .filter(part => part.innerText.trim())
    .map(part => [part.innerText, getComputedStyle(button).backgroundColor,
      getComputedStyle(part).color, getComputedStyle(part).opacity]))"""
"""Texts of filled buttons, with the colour below, their own, and how opaque that is."""
DROPZONES = """() => document.querySelectorAll('[data-testid=stFileUploaderDropzone]')
  .forEach(zone => zone.removeAttribute('role'))"""
"""The library names its place for files and says that it means nothing, which no setting changes.
The button inside is what one presses; all else about it is held."""
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
        for step, title in PAGES.items():
            if step in WITHOUT_REQUEST and state != "serving":
                continue
            open_step(page, address, step, "" if step == "" else link)
            if step == "check":
                page.get_by_role("button", name="SGLang").click()
                page.get_by_text("It cannot start.").wait_for()
            yield f"{state}: {step}", title, (WIDE, PHONE, ZOOMED)


def lenses(page: Any, address: str) -> States:
    for state in ("serving", "training"):
        for lens in LENSES:
            open_lens(page, address, lens, STATES[state])
            yield f"{state}: {lens}", PLAN, (WIDE, PHONE, ZOOMED)


def searches(page: Any, address: str) -> States:
    windows = (WIDE, PHONE, ZOOMED)
    open_step(page, address, "model", CHOSEN)
    find_model(page, "llama 3.3 70b", "meta-llama/Llama-3.3-70B-Instruct")
    page.locator(".st-key-model-others button").first.wait_for()
    yield "others", PAGES["model"], windows
    page.locator(".st-key-model-text input").fill("nobody/knows-it")
    page.keyboard.press("Enter")
    page.get_by_text("No model is called").wait_for()
    yield "unmatched", PAGES["model"], windows
    page.get_by_role("button", name="Menu", exact=True).click()
    page.get_by_role("button", name="Glossary").click()
    page.get_by_role("dialog").get_by_text("Time to first token").first.wait_for()
    yield "glossary", PAGES["model"], ()


def folded_parts(page: Any, address: str) -> States:
    for step, parts in FOLDED.items():
        open_step(page, address, step, f"{LLAMA_70B}&{CHOSEN}")
        for part in parts:
            unfold(page, part)
            settled(page, PAGES[step])
        yield step, PAGES[step], (WIDE, PHONE)
    open_step(page, address, "hardware", LLAMA_70B)
    unfold(page, "More filters")
    settled(page, PAGES["hardware"])
    yield "hardware to be found", PAGES["hardware"], (WIDE, PHONE)


def chips(page: Any, address: str) -> States:
    for width, height in (WIDE, PHONE):
        page.set_viewport_size({"width": width, "height": height})
        for state, link in (("found", LLAMA_70B), ("training", f"{TRAINING}&{CHOSEN}")):
            open_step(page, address, "plan", link)
            for chip in CHIPS:
                open_chip(page, chip)
                yield f"{state}, {chip}, {width}", PLAN, ()


def views_of_a_layout(page: Any, address: str) -> States:
    open_lens(page, address, "why", STATES["serving"])
    titles = page.locator(".st-key-views").get_by_role("tab").all_inner_texts()
    assert len(titles) >= 6
    for view in titles[1:]:  # the first is open already
        open_tab(page, view, PLAN)
        yield view, PLAN, ()
    open_step(page, address, "plan", STATES["serving"])
    unfold(page, "Any two figures")
    page.locator(".st-key-tradeoff .main-svg").first.wait_for()
    unfold(page, "Why not the others?")
    page.get_by_text("Tick a row to see").wait_for()
    yield "tradeoff and refused", PLAN, (WIDE, PHONE)


def hardware(page: Any, address: str) -> States:
    for name, link in (("training", f"{TRAINING}&{CHOSEN}"), ("serving", LIMITED)):
        open_lens(page, address, "hardware", link)
        sized(page)
        for part in ("Growth", "Availability", "Buy or rent"):
            if page.locator("summary").filter(has_text=part).count():
                unfold(page, part)
                sized(page)
        yield f"{name}, unfolded", PLAN, (WIDE, PHONE)
    for tab in ("Cost against a limit", "Confidence"):
        open_tab(page, tab, PLAN)
        yield tab, PLAN, ()


def recipe(page: Any, address: str) -> States:
    large = f"model=meta-llama%2FLlama-3.1-405B-Instruct&{CHOSEN}&hardware.nodes=2"
    for link, window in ((large, WIDE), (RUN, NARROW)):
        open_step(page, address, "ship", link)
        if link == large:
            unfold(page, "Deployment settings")
            choose(page, "Target", "Compose", "Compose")
            page.get_by_text("is not available").wait_for()
        for tab in TABS:
            open_tab(page, tab, PAGES["ship"])
            yield tab, PAGES["ship"], (window,)


def replicas(page: Any, address: str) -> States:
    open_lens(page, address, "over-time", SHORT)
    simulated(page)
    unfold(page, "What is written into the bundle")
    yield "simulated", PLAN, (WIDE, PHONE, ZOOMED)


def choices(page: Any, address: str) -> States:
    for width, height in (WIDE, PHONE):
        page.set_viewport_size({"width": width, "height": height})
        open_step(page, address, "side", SEVERAL)
        yield f"side, {width}", SIDE, ()
        page.get_by_role("button", name="Menu", exact=True).click()
        page.get_by_test_id("stPopoverBody").locator("code").wait_for()
        yield f"menu, {width}", SIDE, ()


def fleets(page: Any, address: str) -> States:
    title = PAGES["fleet"]
    open_step(page, address, "fleet")
    page.get_by_text("Money by team").wait_for()
    yield "fleet", title, (WIDE, PHONE, ZOOMED)
    page.get_by_role("button", name="Lose a node of own").click()
    page.get_by_text("Who moves:").wait_for()
    unfold(page, "The fleet")
    settled(page, title)
    yield "a change is tried, unfolded", title, (WIDE, PHONE)
    page.get_by_label("The fleet as YAML").fill("models: 1")
    page.get_by_label("The fleet as YAML").press("Control+Enter")
    page.get_by_text("The fleet before stays").wait_for()
    yield "refused", title, (WIDE, PHONE)


@pytest.mark.parametrize("scheme", GROUNDS)
@pytest.mark.parametrize(
    "states",
    [
        *(pages, lenses, searches, folded_parts, chips, views_of_a_layout, hardware),
        *(recipe, replicas, choices, fleets),
    ],
)
def test_no_state_of_a_page_has_a_violation_or_is_cut(open_page, address, states, scheme):
    """Rules that no colour changes are held in the light alone, in a wide window and on a phone."""
    page, wrong = open_page(color_scheme=scheme), {}
    page.set_viewport_size(sized_as(WIDE))
    for state, title, windows in states(page, address):
        for window in windows or (None,):
            if scheme == "dark" and window == ZOOMED:
                continue
            if window:
                page.set_viewport_size(sized_as(window))
            settled(page, title)
            try:
                fits_sideways(page)
            except Error as error:
                wrong[state, window, "wide"] = str(error)
            by_colour = scheme == "dark" or window in (ZOOMED, NARROW)
            rules = ("color-contrast",) if by_colour else ()
            page.evaluate(DROPZONES)
            wrong[state, window, "axe"] = violations(page, *rules)
            wrong[state, window, "cut"] = page.evaluate(CUT)
        wrong[state, "ground"] = page.evaluate(GROUND).replace(GROUNDS[scheme], "")
        if windows:
            page.set_viewport_size(sized_as(WIDE))
    assert not any(wrong.values()), {name: parts for name, parts in wrong.items() if parts}


@pytest.mark.parametrize("scheme", GROUNDS)
def test_the_first_button_is_filled_and_its_text_is_read(open_page, address, scheme):
    """Also where the theme's colour is light, and its shortcut, which the library draws paler."""
    page = open_page(color_scheme=scheme)
    for step in ("model", "plan", "ship", "check"):
        open_step(page, address, step, f"{LLAMA_70B}&{CHOSEN}")
        texts = page.evaluate(PRIMARY)
        assert texts, step
        for text, below, colour, opacity in texts:
            assert contrast(below, ground(page)) >= 3, (step, text, below)
            assert contrast(mixed(colour, below, float(opacity)), below) >= 4.5, (step, text)


def ground(page: Any) -> str:
    return str(page.evaluate(GROUND))


def channels(colour: str) -> list[float]:
    """Red, green and blue of an opaque colour, from 0 to 255."""
    words = colour.removeprefix("rgb(").removesuffix(")").split(",")
    assert len(words) == 3, f"{colour} is not opaque"
    return [float(word) for word in words]


def mixed(colour: str, below: str, opacity: float) -> str:
    pairs = zip(channels(colour), channels(below), strict=True)
    return f"rgb({','.join(str(opacity * a + (1 - opacity) * b) for a, b in pairs)})"


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2.2."""

    def luminance(colour: str) -> float:
        shares = [value / 255 for value in channels(colour)]
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in shares]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def sized_as(window: tuple[int, int]) -> dict[str, int]:
    return {"width": window[0], "height": window[1]}
