"""The wizard in a real headless Chromium, against the app started as a user starts it."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.fixtures.paths import ROOT
from tests.fixtures.wizard import (
    LLAMA_70B,
    NO_PLAYWRIGHT,
    PAGES,
    PLAN,
    TRAINING,
    WALK,
    chip_of,
    choose,
    fill,
    find_model,
    follow,
    open_chip,
    open_step,
    query,
    saved,
    settled,
    unfold,
    upload,
    wait_for_query,
)

expect = pytest.importorskip("playwright.sync_api", reason=NO_PLAYWRIGHT).expect

pytestmark = [pytest.mark.browser, pytest.mark.nightly]

CHOSEN = "hardware.device=h100-sxm"
"""A link without hardware leaves it open."""
PINNED = "() => new URLSearchParams(location.search).get('pins')?.startsWith('vllm.')"
PLACE_IN_CHART = """point => {
  const drag = point.closest('.js-plotly-plot').querySelector('.nsewdrag')
  const [mark, plot] = [point, drag].map(part => part.getBoundingClientRect())
  return {x: mark.x + mark.width / 2 - plot.x, y: mark.y + mark.height / 2 - plot.y}
}"""
SCROLLED = "document.querySelector('[data-testid=stMain]').scrollTop"
NO_DOUBLE_CLICK = "chart => Date.now() - chart._mouseDownTime > chart._context.doubleClickDelay"
"""Whether the chart takes the next click for one of its own, not for the second of two."""


def test_back_and_forward_restore_choice_and_page(page: Any, address: str) -> None:
    open_step(page, address, "model", CHOSEN)
    find_model(page, "qwen3 8b", "Qwen/Qwen3-8B")
    follow(page, "Next", PAGES["traffic"])
    for go, step, model in (
        (page.go_back, "model", "Qwen3-8B"),
        (page.go_back, "model", "Llama-3.1-8B-Instruct"),
        (page.go_forward, "model", "Qwen3-8B"),
        (page.go_forward, "traffic", "Qwen3-8B"),
    ):
        go()
        page.get_by_text(f"{model} · 8 × H100 SXM").wait_for()
        settled(page, PAGES[step])


def test_a_page_starts_at_its_top(page: Any, address: str) -> None:
    """However far down the page before was read."""
    page.set_viewport_size({"width": 1280, "height": 400})
    open_step(page, address, "plan", f"{LLAMA_70B}&{CHOSEN}")
    for name, title in (("Ship it", PAGES["ship"]), ("Check", PAGES["check"]), ("Plan", PLAN)):
        page.locator(".st-key-foot").scroll_into_view_if_needed()
        page.wait_for_function(f"() => {SCROLLED} > 0")
        role = "button" if name == "Ship it" else "link"
        page.get_by_role(role, name=name, exact=True).first.evaluate("control => control.click()")
        page.get_by_role("heading", level=1, name=title or "Llama").first.wait_for()
        settled(page, title)
        page.wait_for_function(f"() => {SCROLLED} === 0")


def test_points_and_rows_are_pinned(page: Any, address: str) -> None:
    """A point by a click, and unpinned by another; a row of the table by keys."""
    open_step(page, address, "plan", f"{LLAMA_70B}&{CHOSEN}")
    chart, remove = page.locator(".js-plotly-plot").first, page.get_by_role("button", name="Remove")

    best = chart.locator(".scatterlayer .trace").last.locator(".points path").first
    best.scroll_into_view_if_needed()
    place = best.evaluate(PLACE_IN_CHART)

    def click_best() -> None:
        chart.locator(".nsewdrag").hover(position=place)
        chart.locator(".hovertext").first.wait_for()
        chart.locator(".nsewdrag").click(position=place)

    click_best()
    remove.wait_for()
    page.wait_for_function(PINNED)
    settled(page, PLAN)
    rings = chart.locator(".scatterlayer .trace").last.locator(".points path[d*='A']")
    expect(rings.last).to_be_visible()
    page.wait_for_function(NO_DOUBLE_CLICK, arg=chart.element_handle())
    click_best()
    remove.wait_for(state="detached")
    wait_for_query(page, "pins", None)
    settled(page, PLAN)
    table = page.get_by_test_id("stDataFrame").first
    table.scroll_into_view_if_needed()
    table.locator("canvas").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Shift+Space")
    page.wait_for_function(PINNED)
    remove.wait_for()


def test_a_simulation_shows_how_far_it_is_and_is_given_up_by_a_click(page, address):
    limits = "objective.limits.tpot_ms=400&objective.limits.percentile=95"
    slow = f"model=Qwen%2FQwen3-30B-A3B&hardware.nodes=8&workload.concurrency=2048&{limits}"
    page.goto(f"{address}/traffic?{slow}")
    page.get_by_text("Simulating requests").wait_for()
    page.get_by_role("button", name="Use means instead").click()
    wait_for_query(page, "objective.limits.percentile", None)
    settled(page, PAGES["traffic"])
    assert query(page)["objective.limits.tpot_ms"] == "400"
    page.get_by_text("hold the load").first.wait_for()
    expect(page.get_by_text("Simulating requests")).to_have_count(0)


def test_a_profile_of_ones_own_is_started_from_uploaded_and_linked(page, address, tmp_path):
    open_step(page, address, "hardware", CHOSEN)
    unfold(page, "More about the hardware")
    unfold(page, "Device not listed")
    text = saved(page, "Start from", tmp_path).read_text()
    (tmp_path / "mine.yaml").write_text(text.replace("value: 85520809984.0", "value: 64e9"))
    upload(page, tmp_path / "mine.yaml")
    page.get_by_text("8 × my-h100-sxm").first.wait_for()
    page.get_by_text("59.6 GiB").first.wait_for()
    page.wait_for_function("() => location.search.includes('hardware.device=~1.')")
    assert len(page.url) < 4000  # what proxies and mail programs take
    page.reload()
    settled(page, PAGES["hardware"])
    page.get_by_text("59.6 GiB").first.wait_for()
    page.go_back()
    page.get_by_text("79.6 GiB").first.wait_for()


BESIDE = "options.hardware=%5B%7B%22device%22%3A%22mi300x%22%2C%22per_node%22%3A8%7D%5D"
NAME = "llama-3.1-70b-instruct-8x-h100-sxm"


def test_charts_and_the_filtered_table_are_saved(page: Any, address: str, tmp_path: Path) -> None:
    open_step(page, address, "plan", f"{LLAMA_70B}&{BESIDE}")
    chart = page.get_by_test_id("stPlotlyChart").first

    def camera() -> None:
        chart.hover()
        chart.locator(".modebar-btn[data-title^='Download']").click()

    for number, (subject, axis) in enumerate(
        (("frontier", b"Output tokens per dollar"), ("tradeoff", b"Throughput per GPU"))
    ):
        if subject == "tradeoff":
            unfold(page, "Any two figures")
            page.locator(".st-key-tradeoff .main-svg").first.wait_for()
            settled(page, PLAN)
            chart = page.locator(".st-key-tradeoff [data-testid=stPlotlyChart]")
        picture = saved(page, camera, tmp_path)
        assert picture.name == f"{NAME}-{subject}.png"
        assert picture.read_bytes().startswith(b"\x89PNG")
        page.get_by_role("button", name="Export").nth(2 * number).click()  # between is the table's
        in_html = page.get_by_role("button", name="Interactive chart").filter(visible=True)
        html = saved(page, in_html.click, tmp_path)
        assert html.name == f"{NAME}-{subject}.html"
        assert axis in html.read_bytes()
        page.keyboard.press("Escape")
        expect(in_html).to_have_count(0)
    devices = page.get_by_test_id("stMultiSelect").get_by_role(
        "combobox", name="Device", exact=True
    )
    devices.scroll_into_view_if_needed()  # a list closes where the page moves below it
    settled(page, PLAN)
    devices.press("ArrowDown")
    page.get_by_role("option", name="MI300X").click()
    page.get_by_text("layouts pass the filters").wait_for()
    page.keyboard.press("Escape")
    settled(page, PLAN)
    page.get_by_role("button", name="Export").nth(1).click()
    menu = page.get_by_test_id("stPopoverBody").filter(visible=True)
    csv, parquet = (
        saved(page, menu.get_by_role("button", name=kind).click, tmp_path)
        for kind in ("CSV", "Parquet")
    )
    assert csv.name == f"{NAME}-splits.csv"
    frame = pd.read_csv(csv)
    assert set(frame["Device"]) == {"MI300X"}
    assert pd.read_parquet(parquet)["Layout"].tolist() == frame["Layout"].tolist()


TPOT = "objective.limits.tpot_ms"
FRAME = ("Next", "Back", "Show the answer", "Menu", "Ship it")
COUNT_FRAME = f"""
window.most = {dict.fromkeys(FRAME, 0)}
new MutationObserver(() => {{
  const buttons = [...document.querySelectorAll('button')]
    .filter(button => button.checkVisibility())
  const count = name => buttons.filter(button => button.innerText.includes(name)).length
  for (const name in window.most)
    window.most[name] = Math.max(window.most[name], count(name))
}}).observe(document, {{subtree: true, childList: true, attributes: true, characterData: true}})
"""


def test_no_change_shows_a_button_of_the_frame_twice(page: Any, address: str) -> None:
    """Counted at every change of the document, from a plan that no other test asks for.

    The run that makes a plan draws more than the next one, which a step then cuts short.
    """
    page.add_init_script(COUNT_FRAME)
    open_step(page, address, "model", f"{LLAMA_70B}&{CHOSEN}&workload.concurrency=97")
    titles = list(WALK.values())
    for button, way in (("Next", titles[1:]), ("Back", titles[-2::-1])):
        for title in way:
            follow(page, button, title)
    follow(page, "Show the answer", PLAN)
    page.get_by_role("button", name="Ship it").wait_for()
    for name, step in (("Check", "check"), ("Plan", "plan"), ("Ship", "ship")):
        page.get_by_role("link", name=name, exact=True).first.click()
        page.get_by_role("heading", level=1, name=PAGES[step] or "Llama").first.wait_for()
        settled(page, PAGES[step])
    assert page.evaluate("window.most") == dict.fromkeys(FRAME, 1)


PLACES = """() => [...document.querySelectorAll('[data-testid=stMain] :is(h1, label, summary)')]
  .filter(part => part.checkVisibility())
  .map(part => [part.innerText, Math.round(part.getBoundingClientRect().y)])"""
"""Texts of the titles and boxes of a page, and how far down they are (px)."""


@pytest.mark.parametrize(("width", "height", "most"), [(1440, 900, 120), (390, 844, 200)])
def test_the_bar_moves_nothing_when_the_answer_changes(page, address, width, height, most):
    """From a limit that many layouts keep to one that none does, and back."""
    page.set_viewport_size({"width": width, "height": height})
    places = []
    for limit in ("70", "1", "35"):
        open_step(page, address, "traffic", f"{LLAMA_70B}&hardware.per_node=8&{TPOT}={limit}")
        bar = page.get_by_test_id("stBottom").bounding_box()
        assert bar["y"] + bar["height"] == height
        assert bar["height"] <= most
        places.append(page.evaluate(PLACES))
        for button in ("Back", "Next", "Show the answer"):
            box = page.get_by_role("button", name=button).bounding_box()
            assert box["y"] + box["height"] <= height
    assert len(places[0]) > 6
    assert places[0] == places[1] == places[2]


@pytest.mark.parametrize("hardware", ["", "hardware.device=h100-sxm"], ids=["found", "chosen"])
def test_a_wide_window_shows_the_whole_decision(page, address, hardware):
    """Its figures, what is done with it, its runners-up, and where the chart begins."""
    page.set_viewport_size({"width": 1440, "height": 900})
    link = f"{LLAMA_70B}&{TPOT}=40&objective.optimize=cost&{hardware}"
    open_step(page, address, "plan", link)
    card = page.locator(".st-key-decision").bounding_box()
    tiles = [tile.bounding_box() for tile in page.get_by_test_id("stMetric").all()]
    assert len(tiles) == 3
    assert all(tile["y"] + tile["height"] < card["y"] + card["height"] for tile in tiles)
    assert card["y"] + card["height"] < 900 * 2 / 3
    runners_up = page.locator(".st-key-alternatives").bounding_box()
    assert runners_up["y"] + runners_up["height"] < 900
    assert page.locator(".st-key-frontier").bounding_box()["y"] < 900


def test_a_chip_shows_what_holds_now_and_changes_only_what_is_edited(page: Any, address: str):
    """Also where another place changed it while the chip was closed."""
    link = f"{LLAMA_70B}&{CHOSEN}&{TPOT}=40&objective.limits.ttft_ms=2000"
    open_step(page, address, "plan", link)
    body = chip_of(page, "Limits")
    first, sure = (
        body.get_by_role("textbox", name="Time to first token"),
        body.get_by_role("combobox", name="How sure"),
    )
    for chance, token_ms in (("80 %", "35"), ("90 %", "30")):
        open_chip(page, "Limits")
        expect(first).to_have_value("2,000")
        expect(sure).to_have_value(chance)
        expect(body.get_by_role("combobox", name="Optimise for")).to_have_value("Throughput")
        settled(page, PLAN)
        fill(page, "Time per output token", token_ms, exact=False)
        wait_for_query(page, TPOT, token_ms)
        settled(page, PLAN)
        expect(first).to_be_visible()
        body.locator("summary").click()
        first.wait_for(state="detached")
        settled(page, PLAN)
        choose(page, "How sure", "90", "90 %")
        wait_for_query(page, "objective.confidence", "0.9")
        settled(page, PLAN)
    asked = query(page)
    assert (asked[TPOT], asked["objective.limits.ttft_ms"]) == ("30", "2000")
    assert asked.keys() & {"objective.optimize", "objective.orientation"} == set()


MOST_IN_SIGHT = 15
LIMITED = f"{LLAMA_70B}&{TPOT}=40"


LIMITED_H100 = f"{LIMITED}&{CHOSEN}"


@pytest.mark.parametrize(
    ("step", "link"),
    [
        *((step, link) for step in (*WALK, "plan") for link in (LIMITED, LIMITED_H100, TRAINING)),
        *((step, "") for step in ("", "model", "fleet", "check", "evidence")),
        *(("ship", LIMITED_H100), ("ship", TRAINING), ("side", LIMITED_H100)),
    ],
)
def test_the_first_screen_asks_little(page, address, monkeypatch, step, link):
    """Controls in sight, counted as the benchmark of the pages does."""
    monkeypatch.syspath_prepend(str(Path(ROOT) / "benchmarks"))
    in_sight = runpy.run_path(str(Path(ROOT) / "benchmarks" / "pages.py"))["IN_SIGHT"]
    page.set_viewport_size({"width": 1440, "height": 900})
    open_step(page, address, step, link)
    assert 3 <= page.evaluate(in_sight) <= MOST_IN_SIGHT
