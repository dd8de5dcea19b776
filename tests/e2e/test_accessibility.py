"""Every page held against axe-core, and its text against its boxes, in all windows and schemes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.fixtures.wizard import (
    LLAMA_70B,
    PAGES,
    QUESTIONS,
    TP4,
    TP8,
    TRAINING,
    choose,
    fits_sideways,
    open_tab,
    settled,
)

axe = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="axe-playwright-python is missing: not tested"
)

pytestmark = pytest.mark.browser

WINDOWS = {"wide": (1440, 900), "phone": (390, 844), "zoomed": (720, 450)}
"""Widths and heights in CSS pixels; the last is 1440 × 900 at 200 % zoom."""
STATES = {
    "serving": f"{LLAMA_70B}&objective.limits.tpot_ms=40&pins={TP8},{TP4}",
    "training": TRAINING,
    "nothing-fits": f"{LLAMA_70B}&hardware.per_node=1",
}
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


def violations(page: Any) -> list[str]:
    """Violations of any impact, each with the first place where it is."""
    return [
        f"{each['id']} ({each['impact']}): {each['nodes'][0]['html'][:200]}"
        for each in axe.Axe().run(page).response["violations"]
    ]


def look(page: Any, question: str) -> dict[str, list[str]]:
    """What is wrong with a page in each window."""
    wrong = {}
    for name, (width, height) in WINDOWS.items():
        page.set_viewport_size({"width": width, "height": height})
        settled(page, question)
        fits_sideways(page)
        wrong[f"{name}, axe"] = violations(page)
        wrong[f"{name}, cut"] = page.evaluate(CUT)
    return {name: parts for name, parts in wrong.items() if parts}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("state", STATES)
def test_no_page_has_a_violation_or_cuts_a_text(
    open_page: Callable[..., Any], address: str, state: str, scheme: str
) -> None:
    page = open_page(color_scheme=scheme)
    wrong = {}
    for step, question in PAGES.items():
        page.set_viewport_size({"width": 1440, "height": 900})
        page.goto(f"{address}/{step}?{STATES[state]}")
        settled(page, question)
        if step == "check":
            page.get_by_role("button", name="SGLang").click()
            page.get_by_text("It cannot start.").wait_for()
            settled(page, question)
        wrong[step] = look(page, question)
    assert not any(wrong.values()), wrong


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_start_has_no_violation(
    open_page: Callable[..., Any], address: str, scheme: str
) -> None:
    """The gallery, the tour, a name without a model, the glossary."""
    page, question = open_page(color_scheme=scheme), QUESTIONS[""]
    page.goto(address)
    settled(page, question)
    wrong = {"gallery": look(page, question)}
    page.get_by_role("button", name="Take the tour").click()
    page.get_by_text("Tour, stop 1").wait_for()
    wrong["tour"] = look(page, question)
    page.get_by_role("button", name="End tour").click()
    page.get_by_text("Tour, stop 1").wait_for(state="detached")
    choose(page, "Model", "llama70x", "Add: llama70x")
    page.get_by_text("No model is called").wait_for()
    wrong["unmatched"] = look(page, question)
    page.get_by_role("button", name="Glossary", exact=True).click()
    page.get_by_role("dialog").get_by_text("Time to first token").first.wait_for()
    settled(page, question)
    wrong["glossary"] = {"axe": violations(page)} if violations(page) else {}
    assert not any(wrong.values()), wrong


@pytest.mark.parametrize("view", ["Time", "Arithmetic", "Why not?"])
def test_no_view_of_a_split_has_a_violation(page: Any, address: str, view: str) -> None:
    page.goto(f"{address}/compare?{STATES['serving']}")
    settled(page, PAGES["compare"])
    open_tab(page, view, PAGES["compare"])
    assert violations(page) == []
