"""The wizard by keyboard alone: what is used keeps the focus, and shows what was last pressed."""

from __future__ import annotations

import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.wizard import (
    LLAMA_70B,
    MOST_TABS,
    PAGES,
    PLAN,
    WALK,
    focused,
    move_to,
    open_step,
    query,
    saved,
    settled,
    tab_to,
    wait_for_query,
)

pytestmark = [pytest.mark.browser, pytest.mark.nightly]

CHOSEN = "hardware.per_node=8"
"""Layouts are judged once hardware is chosen."""
TPOT = "Time per output token, at most (ms)"
LATENCY = "Request latency, at most (s)"
LLAMA = "meta-llama/Llama-3.1-70B-Instruct"
LISTED = """letters => [...document.querySelectorAll("[role=option]")].every(
    option => new RegExp(letters, "i").test(option.innerText))"""
"""Whether only what matches is listed: the list is filtered after the keys, and marked anew."""
MARKED = """() => {
  const marked = document.activeElement.getAttribute('aria-activedescendant')
  return marked ? document.getElementById(marked)?.innerText : null
}"""
"""The option that Enter would take."""
reach = partial(tab_to, whole=True)


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
    settled(page, PAGES[step])
    assert focused(page) == focus


@pytest.mark.parametrize("between_ms", [30, 150, 900])
def test_a_limit_follows_the_arrow_keys_and_keeps_the_focus(page, address, between_ms):
    field, slider = "objective.limits.request_latency_ms", f"{LATENCY}, slider"
    open_step(page, address, "traffic", f"{LLAMA_70B}&{CHOSEN}&{field}=15000")
    reach(page, "More limits")
    press(page, "Enter")
    reach(page, slider)
    for step in ("12 s", "10 s", "8 s", "7 s", "6 s", "5 s", "4 s", "3.5 s", "3 s", "2.5 s"):
        press(page, "ArrowLeft")
        assert slid(page) == step
        page.wait_for_timeout(between_ms)  # the pace of a hand
        assert focused(page) == slider
    arrived(page, "traffic", field, "2500", slider)  # nothing fits: the verdict is longer
    assert slid(page) == "2.5 s"
    assert page.get_by_role("textbox", name=LATENCY, exact=True).input_value() == "2.5"
    press(page, "End")
    arrived(page, "traffic", field, None, slider)
    assert slid(page) == "no limit"


def test_a_refusal_keeps_the_focus_and_what_is_typed_meanwhile_stays(page, address):
    name = "Users at once"
    open_step(page, address, "traffic", f"{LLAMA_70B}&{CHOSEN}")
    box = page.get_by_role("textbox", name=name, exact=True)
    refused = page.get_by_text("'1e9' is out of range. Type a whole number from 1 to 1,048,576.")
    reach(page, name)
    typed(page, "1e9")
    refused.wait_for()
    settled(page, PAGES["traffic"])
    assert (focused(page), box.input_value()) == (name, "64")
    typed(page, "1k")
    arrived(page, "traffic", "workload.concurrency", "1000", name)
    assert (box.input_value(), refused.count()) == ("1,000", 0)
    reach(page, TPOT)
    page.keyboard.type("37")
    press(page, "Enter", "Backspace", "3")
    arrived(page, "traffic", "objective.limits.tpot_ms", "37", TPOT)
    assert page.get_by_role("textbox", name=TPOT, exact=True).input_value() == "33"
    press(page, "Tab")
    wait_for_query(page, "objective.limits.tpot_ms", "33")
    assert focused(page) == "More limits"


TITLE = "() => document.activeElement.tagName === 'H1' && document.activeElement.innerText"
"""The title that has the focus."""


def test_a_turned_page_gives_its_title_the_focus_and_its_first_box_the_next_tab(page, address):
    open_step(page, address, "model", CHOSEN)
    for press_on, role, step in (
        ("Next", "button", "traffic"),
        ("Next", "button", "hardware"),
        ("Check", "link", "check"),
    ):
        page.get_by_role(role, name=press_on, exact=True).focus()
        press(page, "Enter")
        settled(page, PAGES[step])
        page.wait_for_function(f"title => ({TITLE})() === title", arg=PAGES[step])
        if step == "traffic":
            press(page, "Tab")
            assert focused(page) == "Kind of traffic"


def test_a_chip_of_the_plan_opens_and_its_first_box_is_the_next_stop(page, address):
    open_step(page, address, "plan", f"{LLAMA_70B}&hardware.device=h100-sxm")
    reach(page, "Limits")
    press(page, "Enter")
    page.get_by_role("textbox", name=TPOT, exact=True).filter(visible=True).wait_for()
    settled(page, PLAN)
    for _ in range(2):  # past the limit on the first token
        press(page, "Tab")
    assert focused(page) == TPOT
    typed(page, "40")
    wait_for_query(page, "objective.limits.tpot_ms", "40")
    settled(page, PLAN)
    assert focused(page) == TPOT
    page.locator(".st-key-decision").get_by_text("holds 40 ms per token").wait_for()


def pick(page: Any, label: str, letters: str, option: str) -> None:
    """Type into a select box, and take the option that starts so."""
    reach(page, label)
    page.keyboard.type(letters)
    page.get_by_role("option", name=option).first.wait_for()
    page.wait_for_function(LISTED, arg=".*".join(letters))
    for _ in range(MOST_TABS):
        marked = page.evaluate(MARKED)
        if str(marked).startswith(option):
            break
        press(page, "ArrowDown")
        page.wait_for_function(f"before => ({MARKED})() !== before", arg=marked)
    press(page, "Enter")


def on_model(page: Any) -> None:
    """A model by its name, then what is done with it."""
    reach(page, "Serve")
    reach(page, "Model")
    typed(page, "llama 3.1 70b")
    arrived(page, "model", "model", LLAMA, "Model")


def on_traffic(page: Any) -> None:
    """A limit, and what counts beside it."""
    reach(page, TPOT)
    typed(page, "50")
    arrived(page, "traffic", "objective.limits.tpot_ms", "50", TPOT)
    reach(page, "More limits")
    press(page, "Enter")
    pick(page, "Optimise for", "energy", "Energy")
    arrived(page, "traffic", "objective.optimize", "energy", "Optimise for")


def on_hardware(page: Any) -> None:
    """Hardware that is chosen, another device, and fewer of them."""
    move_to(page, "Hardware", "I choose")
    press(page, "Enter")
    arrived(page, "hardware", "hardware.device", "h100-sxm", "I choose")
    pick(page, "Device", "h200sxm", "H200 SXM")
    arrived(page, "hardware", "hardware.device", "h200-sxm", "Device")
    reach(page, "Devices per node")
    typed(page, "4")
    arrived(page, "hardware", "hardware.per_node", "4", "Devices per node")


def test_from_an_empty_walk_to_a_bundle(page: Any, address: str, tmp_path: Path) -> None:
    open_step(page, address, "model")
    does = {"model": on_model, "traffic": on_traffic, "hardware": on_hardware}
    assert list(does) == list(WALK)
    for here, following in zip(WALK, [*list(WALK)[1:], "plan"], strict=True):
        does[here](page)
        if following == "plan":
            press(page, "Control+Enter")
        else:
            reach(page, "Next")
            press(page, "Enter")
        page.wait_for_url(f"**/{following}?**")
        settled(page, PAGES[following])
    page.locator(".st-key-decision").get_by_text("4 × H200").wait_for()
    reach(page, "Ship it")
    press(page, "Enter")
    page.wait_for_url("**/ship?**")
    settled(page, PAGES["ship"])
    stated = {"hardware.device": "h200-sxm", "hardware.per_node": "4", "model": LLAMA}
    stated |= {"objective.limits.tpot_ms": "50", "objective.optimize": "energy"}
    assert stated.items() <= query(page).items()
    bundle = saved(page, lambda: press(page, "Control+s"), tmp_path)
    assert any(name.endswith("recipe.yaml") for name in zipfile.ZipFile(bundle).namelist())
