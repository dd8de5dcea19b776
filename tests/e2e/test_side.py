"""Choices of different models and devices, kept, named and compared in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest

from recipe_core.request.edit import change, select_split
from recipe_core.request.link import DEFAULT
from recipe_core.request.shelf import Kept, keep, shelf_of, shelf_query
from tests.fixtures.wizard import (
    LLAMA_70B,
    NO_PLAYWRIGHT,
    QUESTIONS,
    SIDE,
    TP8,
    choose,
    fits_sideways,
    query,
    settled,
)

expect = pytest.importorskip("playwright.sync_api", reason=NO_PLAYWRIGHT).expect
pytestmark = pytest.mark.browser

KEPT_IN_LINK = "n => (new URLSearchParams(location.search).get('kept') ?? '').length > n"
TP4 = "vllm.bf16.bf16.tp4.pp1.dp1.ep1"


def asked(key: str, **fields: Any) -> Any:
    request = change(DEFAULT, fields)
    return change(request, select_split(request, key))


SEVERAL = urlencode(
    shelf_query(
        keep(
            (
                Kept("Llama on H100", asked(TP8, model="meta-llama/Llama-3.1-70B-Instruct")),
                Kept("Llama on MI300X", asked(TP4, **{"hardware.device": "mi300x"})),
            ),
            asked(
                "torchtitan.bf16.tp1.pp1.v1.cp1.ep1.dp8.z3.mb2.full",
                **{"workload.kind": "training"},
            ),
        )
    )
)


def go(page: Any, name: str, question: str) -> None:
    """Open a page of the navigation."""
    page.get_by_role("link", name=name, exact=True).first.click()
    settled(page, question)


def test_two_models_on_two_devices_are_kept_named_and_compared(
    open_page: Callable[..., Any], address: str
) -> None:
    page = open_page(viewport={"width": 1440, "height": 1000})
    page.goto(f"{address}/compare?{LLAMA_70B}&pins={TP8}")
    settled(page, QUESTIONS["compare"])
    page.get_by_role("button", name="Keep", exact=True).click()
    page.get_by_role("button", name="Kept", exact=True).wait_for()
    page.wait_for_function(KEPT_IN_LINK, arg=0)
    one = len(query(page)["kept"])

    go(page, "Model", QUESTIONS[""])
    choose(page, "Model", "Qwen3-32B", "Qwen/Qwen3-32B")
    page.get_by_text("Qwen3-32B · 8 ×").first.wait_for()
    page.goto(f"{page.url}&hardware.device=mi300x")
    settled(page, QUESTIONS[""])
    go(page, "Recipe", QUESTIONS["recipe"])
    page.get_by_role("button", name="Keep", exact=True).click()
    page.get_by_role("button", name="Kept", exact=True).wait_for()
    page.wait_for_function(KEPT_IN_LINK, arg=one)

    go(page, "Side by side", SIDE)
    page.get_by_role("button", name="MI300X").click()
    name = page.get_by_role("textbox", name="Name").filter(visible=True)
    name.fill("Qwen, two of them")
    name.press("Enter")
    page.get_by_role("columnheader", name="Qwen, two of them").first.wait_for()
    settled(page, SIDE)
    shelf, ignored = shelf_of(query(page))
    assert ignored == []
    assert [kept.name for kept in shelf][1] == "Qwen, two of them"
    link = page.url

    other = open_page(viewport={"width": 1440, "height": 1000})  # nothing but the link
    other.goto(link)
    settled(other, SIDE)
    table = other.get_by_test_id("stTable").first
    row = table.get_by_role("row").filter(has_text="Output per GPU")
    expect(row.get_by_role("cell")).to_have_count(3)
    assert "%" in row.get_by_role("cell").nth(2).inner_text()
    expect(table.get_by_role("row").filter(has_text="MI300X").first).to_be_visible()
    other.locator(".st-key-side-chart .main-svg").first.wait_for()


def test_figures_and_the_chart_are_saved(page: Any, address: str) -> None:
    page.goto(f"{address}/side?{SEVERAL}")
    settled(page, SIDE)
    for label, start in (("CSV", b"name,kind,state"), ("Parquet", b"PAR1")):
        with page.expect_download() as download:
            page.get_by_role("button", name=label).click()
        assert download.value.path().read_bytes().startswith(start)
    for kind, start in (("PNG", b"\x89PNG"), ("SVG", b"<svg")):
        page.get_by_role("radio", name=kind).click()
        settled(page, SIDE)
        chart = page.locator(".st-key-side-chart .js-plotly-plot")
        chart.hover()
        with page.expect_download() as download:
            chart.locator("[data-title*='Download plot']").click()
        assert download.value.suggested_filename == f"side-by-side.{kind.lower()}"
        assert download.value.path().read_bytes().startswith(start)


def test_a_choice_is_opened_and_removed(page: Any, address: str) -> None:
    page.goto(f"{address}/side?{SEVERAL}")
    settled(page, SIDE)
    page.get_by_role("button", name="Llama on MI300X").click()
    page.get_by_role("button", name="Open in Compare").filter(visible=True).click()
    settled(page, QUESTIONS["compare"])
    assert query(page)["hardware.device"] == "mi300x"
    go(page, "Side by side", SIDE)
    page.get_by_role("button", name="Llama on H100").click()
    page.get_by_role("button", name="Remove").filter(visible=True).click()
    expect(page.get_by_role("columnheader", name="Llama on H100")).to_have_count(0)
    settled(page, SIDE)
    shelf, _ = shelf_of(query(page))
    assert shelf[0].name == "Llama on MI300X"
    page.go_back()
    page.get_by_role("columnheader", name="Llama on H100").first.wait_for()


def test_the_link_of_a_page_is_copied_from_its_frame(page: Any, address: str) -> None:
    page.goto(f"{address}/hardware?{LLAMA_70B}&{SEVERAL}")
    settled(page, QUESTIONS["hardware"])
    page.get_by_role("button", name="Link", exact=True).click()
    shown = page.get_by_test_id("stPopoverBody").locator("code").inner_text()
    assert shown == page.url


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_full_page_has_no_violation_and_does_not_scroll_sideways(
    open_page: Callable[..., Any], address: str, width: int, scheme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page = open_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.goto(f"{address}/side?{SEVERAL}")
    settled(page, SIDE)
    fits_sideways(page)
    found = axe.Axe().run(page).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found] == []
    page.get_by_role("button", name="Link", exact=True).click()
    page.get_by_test_id("stPopoverBody").locator("code").wait_for()
    found = axe.Axe().run(page).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found] == []
