"""The wizard by keyboard alone: what is used keeps the focus, and shows what was last pressed."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.wizard import LLAMA_70B, QUESTIONS, query, settled, wait_for_query

pytestmark = pytest.mark.browser

MOST_TABS = 120
"""Presses of a key after which a control counts as out of reach."""
CHOSEN = "hardware.per_node=8"
"""Splits are judged once hardware is chosen."""
TPOT = "Time per output token, at most (ms)"
LLAMA = "meta-llama/Llama-3.1-70B-Instruct"
LISTED = """letters => [...document.querySelectorAll("[role=option]")].every(
    option => new RegExp(letters, "i").test(option.innerText))"""
"""Whether only what matches is listed: the list is filtered after the keys, and marked anew."""
MARKED = """() => {
  const marked = document.activeElement.getAttribute('aria-activedescendant')
  return marked ? document.getElementById(marked)?.innerText : null
}"""
"""The option that Enter would take."""
GROUP = """() => document.activeElement.parentElement
  ?.closest('[role=radiogroup], [role=toolbar], [role=group]')?.getAttribute('aria-label')"""
FOCUSED = """() => {
  const [one, input] = [document.activeElement, document.activeElement.tagName === 'INPUT']
  const said = one.getAttribute('aria-label') || (input ? '' : one.innerText) || ''
  return [said.trim(), one.getAttribute('type') || one.tagName]
}"""


def focused(page: Any) -> str:
    """The name of what has the focus; the page's body has none."""
    name, kind = page.evaluate(FOCUSED)
    return "" if kind == "BODY" else str(name)


def tab_to(page: Any, name: str) -> None:
    """Press Tab until the control of this name has the focus."""
    for _ in range(MOST_TABS):
        if focused(page) == name:
            return
        page.keyboard.press("Tab")
    pytest.fail(f"{name} is out of reach of the Tab key")


def move_to(page: Any, group: str, name: str) -> None:
    """Press Tab until a group of buttons has the focus, then arrows until one of them has it."""
    for _ in range(MOST_TABS):
        if page.evaluate(GROUP) == group:
            break
        page.keyboard.press("Tab")
    for arrow in ("ArrowRight", "ArrowLeft"):
        before = ""
        while focused(page) not in (name, before):
            before = focused(page)
            page.keyboard.press(arrow)
    assert focused(page) == name, f"{name} of {group} is out of reach of the keys"


def at(page: Any) -> str:
    """The path of the page."""
    return str(page.evaluate("location.pathname")).strip("/")


def slid(page: Any) -> str:
    """What the slider that has the focus says."""
    return str(page.evaluate("document.activeElement.getAttribute('aria-valuetext')"))


@pytest.mark.parametrize("between_ms", [30, 150, 900])
def test_a_limit_follows_the_arrow_keys_and_keeps_the_focus(
    page: Any, address: str, between_ms: int
) -> None:
    page.goto(f"{address}/objective?{LLAMA_70B}&{CHOSEN}&objective.limits.tpot_ms=50")
    settled(page, QUESTIONS["objective"])
    tab_to(page, f"{TPOT}, slider")
    for step in ("40 ms", "35 ms", "30 ms", "25 ms", "20 ms", "15 ms", "12 ms"):
        page.keyboard.press("ArrowLeft")
        assert slid(page) == step
        page.wait_for_timeout(between_ms)
        assert focused(page) == f"{TPOT}, slider"
    wait_for_query(page, "objective.limits.tpot_ms", "12")  # nothing fits: the verdict is longer
    settled(page, QUESTIONS["objective"])
    assert (focused(page), slid(page)) == (f"{TPOT}, slider", "12 ms")
    assert page.get_by_role("textbox", name=TPOT, exact=True).input_value() == "12"
    page.keyboard.press("End")
    wait_for_query(page, "objective.limits.tpot_ms", None)
    settled(page, QUESTIONS["objective"])
    assert (focused(page), slid(page)) == (f"{TPOT}, slider", "no limit")


def test_what_is_typed_meanwhile_is_not_overwritten(page: Any, address: str) -> None:
    page.goto(f"{address}/objective?{LLAMA_70B}&{CHOSEN}")
    settled(page, QUESTIONS["objective"])
    box = page.get_by_role("textbox", name=TPOT, exact=True)
    tab_to(page, TPOT)
    page.keyboard.type("37")
    page.keyboard.press("Enter")
    page.keyboard.press("Backspace")
    page.keyboard.type("3")
    wait_for_query(page, "objective.limits.tpot_ms", "37")
    settled(page, QUESTIONS["objective"])
    assert (focused(page), box.input_value()) == (TPOT, "33")
    page.keyboard.press("Tab")
    wait_for_query(page, "objective.limits.tpot_ms", "33")
    assert focused(page) == f"{TPOT}, slider"


def test_a_refused_number_keeps_the_focus_and_the_old_value(page: Any, address: str) -> None:
    page.goto(f"{address}/objective?{LLAMA_70B}&{CHOSEN}")
    settled(page, QUESTIONS["objective"])
    tab_to(page, "Requests in flight")
    page.keyboard.press("Control+a")
    page.keyboard.type("1e9")
    page.keyboard.press("Enter")
    said = page.get_by_text("'1e9' is out of range. Type a whole number from 1 to 1,048,576.")
    said.wait_for()
    settled(page, QUESTIONS["objective"])
    assert focused(page) == "Requests in flight"
    box = page.get_by_role("textbox", name="Requests in flight", exact=True)
    assert box.input_value() == "64"
    page.keyboard.press("Control+a")
    page.keyboard.type("1k")
    page.keyboard.press("Enter")
    wait_for_query(page, "workload.concurrency", "1000")
    settled(page, QUESTIONS["objective"])
    assert (focused(page), box.input_value()) == ("Requests in flight", "1,000")
    assert said.count() == 0


def on_model(page: Any) -> None:
    """A model by its name, then what is done with it."""
    question = QUESTIONS[""]
    tab_to(page, "Serve")
    tab_to(page, "Model")
    page.keyboard.press("Control+a")
    page.keyboard.type("llama3.170b")
    page.get_by_role("option", name=LLAMA).first.wait_for()
    page.wait_for_function(LISTED, arg="l.*l.*a.*m.*a.*3.*1.*7.*0.*b")
    for _ in range(MOST_TABS):
        marked = page.evaluate(MARKED)
        if marked == LLAMA:
            break
        page.keyboard.press("ArrowDown")
        page.wait_for_function(f"before => ({MARKED})() !== before", arg=marked)
    page.keyboard.press("Enter")
    wait_for_query(page, "model", LLAMA)
    settled(page, question)
    assert focused(page) == "Model"


def on_hardware(page: Any) -> None:
    """Another vendor, another device, fewer of them, and back."""
    question = QUESTIONS["hardware"]
    for vendor, device in (("AMD", "mi300x"), ("NVIDIA", None)):
        move_to(page, "Vendor", vendor)
        page.keyboard.press("Enter")
        wait_for_query(page, "hardware.device", device)
        settled(page, question)
        assert focused(page) == vendor
    move_to(page, "Device", "H200 SXM 141 GB")
    page.keyboard.press("Enter")
    wait_for_query(page, "hardware.device", "h200-sxm")
    settled(page, question)
    assert focused(page) == "H200 SXM 141 GB"
    tab_to(page, "Devices per node")
    page.keyboard.press("Control+a")
    page.keyboard.type("4")
    page.keyboard.press("Enter")
    wait_for_query(page, "hardware.per_node", "4")
    settled(page, question)
    assert focused(page) == "Devices per node"


def on_objective(page: Any) -> None:
    """What counts, and a limit on the slider."""
    question = QUESTIONS["objective"]
    move_to(page, "Optimise for", "Cost")
    page.keyboard.press("Enter")
    wait_for_query(page, "objective.optimize", "cost")
    settled(page, question)
    assert focused(page) == "Cost"
    tab_to(page, f"{TPOT}, slider")
    for _ in range(13):  # from no limit over 500 ms
        page.keyboard.press("ArrowLeft")
    wait_for_query(page, "objective.limits.tpot_ms", "50")
    settled(page, question)
    assert (focused(page), slid(page)) == (f"{TPOT}, slider", "50 ms")


def test_from_an_empty_wizard_to_a_bundle(page: Any, address: str, tmp_path: Path) -> None:
    page.goto(address)
    settled(page, QUESTIONS[""])
    does = {"": on_model, "hardware": on_hardware, "objective": on_objective}
    seen: list[str] = []
    while at(page) != "recipe":
        here = at(page)
        seen.append(here)
        assert len(seen) == len(set(seen)), f"Next leads in a circle: {seen}"
        does.get(here, lambda page: None)(page)
        page.keyboard.press("Control+Enter")
        page.wait_for_function("here => location.pathname.replace('/', '') !== here", arg=here)
        settled(page, QUESTIONS[at(page)])
    assert set(seen) == set(QUESTIONS) - {"recipe"}
    stated = query(page)
    assert stated["hardware.device"] == "h200-sxm"
    assert stated["hardware.per_node"] == "4"
    assert stated["objective.limits.tpot_ms"] == "50"
    with page.expect_download() as download:
        page.keyboard.press("Control+s")
    bundle = tmp_path / "bundle.zip"
    download.value.save_as(bundle)
    assert any(name.endswith("recipe.yaml") for name in zipfile.ZipFile(bundle).namelist())
