"""The wizard by keyboard alone: what is used keeps the focus, and shows what was last pressed."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.wizard import (
    LLAMA_70B,
    MOST_TABS,
    QUESTIONS,
    open_step,
    query,
    saved,
    settled,
    wait_for_query,
)

pytestmark = [pytest.mark.browser, pytest.mark.nightly]

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


def slid(page: Any) -> str:
    return str(page.evaluate("document.activeElement.getAttribute('aria-valuetext')"))


def press(page: Any, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def typed(page: Any, text: str) -> None:
    """Replace what the box says, and leave it by Enter."""
    press(page, "Control+a")
    page.keyboard.type(text)
    press(page, "Enter")


def arrived(page: Any, step: str, name: str, value: str | None, focus: str) -> None:
    """Wait until the address says so; what was used has kept the focus."""
    wait_for_query(page, name, value)
    settled(page, QUESTIONS[step])
    assert focused(page) == focus


@pytest.mark.parametrize("between_ms", [30, 150, 900])
def test_a_limit_follows_the_arrow_keys_and_keeps_the_focus(page, address, between_ms):
    field, slider = "objective.limits.tpot_ms", f"{TPOT}, slider"
    open_step(page, address, "objective", f"{LLAMA_70B}&{CHOSEN}&{field}=50")
    tab_to(page, slider)
    for step in ("40 ms", "35 ms", "30 ms", "25 ms", "20 ms", "15 ms", "12 ms"):
        press(page, "ArrowLeft")
        assert slid(page) == step
        page.wait_for_timeout(between_ms)  # the pace of a hand
        assert focused(page) == slider
    arrived(page, "objective", field, "12", slider)  # nothing fits: the verdict is longer
    assert slid(page) == "12 ms"
    assert page.get_by_role("textbox", name=TPOT, exact=True).input_value() == "12"
    press(page, "End")
    arrived(page, "objective", field, None, slider)
    assert slid(page) == "no limit"


def test_a_refusal_keeps_the_focus_and_what_is_typed_meanwhile_stays(page, address):
    name = "Requests in flight"
    open_step(page, address, "objective", f"{LLAMA_70B}&{CHOSEN}")
    box = page.get_by_role("textbox", name=name, exact=True)
    refused = page.get_by_text("'1e9' is out of range. Type a whole number from 1 to 1,048,576.")
    tab_to(page, name)
    typed(page, "1e9")
    refused.wait_for()
    settled(page, QUESTIONS["objective"])
    assert (focused(page), box.input_value()) == (name, "64")
    typed(page, "1k")
    arrived(page, "objective", "workload.concurrency", "1000", name)
    assert (box.input_value(), refused.count()) == ("1,000", 0)
    tab_to(page, TPOT)
    page.keyboard.type("37")
    press(page, "Enter", "Backspace", "3")
    arrived(page, "objective", "objective.limits.tpot_ms", "37", TPOT)
    assert page.get_by_role("textbox", name=TPOT, exact=True).input_value() == "33"
    press(page, "Tab")
    wait_for_query(page, "objective.limits.tpot_ms", "33")
    assert focused(page) == f"{TPOT}, slider"


def on_model(page: Any) -> None:
    """A model by its name, then what is done with it."""
    tab_to(page, "Serve")
    tab_to(page, "Model")
    press(page, "Control+a")
    page.keyboard.type("llama3.170b")
    page.get_by_role("option", name=LLAMA).first.wait_for()
    page.wait_for_function(LISTED, arg="l.*l.*a.*m.*a.*3.*1.*7.*0.*b")
    for _ in range(MOST_TABS):
        marked = page.evaluate(MARKED)
        if marked == LLAMA:
            break
        press(page, "ArrowDown")
        page.wait_for_function(f"before => ({MARKED})() !== before", arg=marked)
    press(page, "Enter")
    arrived(page, "", "model", LLAMA, "Model")


def on_hardware(page: Any) -> None:
    """Another vendor, another device, fewer of them, and back."""
    for group, name, device in (
        ("Vendor", "AMD", "mi300x"),
        ("Vendor", "NVIDIA", None),
        ("Device", "H200 SXM 141 GB", "h200-sxm"),
    ):
        move_to(page, group, name)
        press(page, "Enter")
        arrived(page, "hardware", "hardware.device", device, name)
    tab_to(page, "Devices per node")
    typed(page, "4")
    arrived(page, "hardware", "hardware.per_node", "4", "Devices per node")


def on_objective(page: Any) -> None:
    """What counts, and a limit on the slider."""
    move_to(page, "Optimise for", "Cost")
    press(page, "Enter")
    arrived(page, "objective", "objective.optimize", "cost", "Cost")
    tab_to(page, f"{TPOT}, slider")
    press(page, *["ArrowLeft"] * 13)  # from no limit over 500 ms
    arrived(page, "objective", "objective.limits.tpot_ms", "50", f"{TPOT}, slider")
    assert slid(page) == "50 ms"


def test_from_an_empty_wizard_to_a_bundle(page: Any, address: str, tmp_path: Path) -> None:
    open_step(page, address, "")
    does = {"": on_model, "hardware": on_hardware, "objective": on_objective}
    seen: list[str] = []
    while (here := str(page.evaluate("location.pathname")).strip("/")) != "recipe":
        seen.append(here)
        assert len(seen) == len(set(seen)), f"Next leads in a circle: {seen}"
        does.get(here, lambda page: None)(page)
        press(page, "Control+Enter")
        page.wait_for_function("here => location.pathname.replace('/', '') !== here", arg=here)
        settled(page, QUESTIONS[page.evaluate("location.pathname").strip("/")])
    assert set(seen) == set(QUESTIONS) - {"recipe"}
    stated = {"hardware.device": "h200-sxm", "hardware.per_node": "4"}
    stated["objective.limits.tpot_ms"] = "50"
    assert stated.items() <= query(page).items()
    bundle = saved(page, lambda: press(page, "Control+s"), tmp_path)
    assert any(name.endswith("recipe.yaml") for name in zipfile.ZipFile(bundle).namelist())
