"""The wizard in a real headless Chromium, against the app started as a user starts it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.fixtures.wizard import (
    LLAMA_70B,
    NO_PLAYWRIGHT,
    PAGES,
    QUESTIONS,
    choose,
    follow,
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

MODEL = "meta-llama/Llama-3.1-70B-Instruct"
PINNED = "() => new URLSearchParams(location.search).get('pins')?.startsWith('vllm.')"
PLACE_IN_CHART = """point => {
  const drag = point.closest('.js-plotly-plot').querySelector('.nsewdrag')
  const [mark, plot] = [point, drag].map(part => part.getBoundingClientRect())
  return {x: mark.x + mark.width / 2 - plot.x, y: mark.y + mark.height / 2 - plot.y}
}"""
NO_DOUBLE_CLICK = "chart => Date.now() - chart._mouseDownTime > chart._context.doubleClickDelay"
"""Whether the chart takes the next click for one of its own, not for the second of two."""


def test_the_tour_takes_the_enter_key_alone(page: Any, address: str) -> None:
    stops = ("", "objective", "hardware", "compare", "recipe", "check")
    open_step(page, address, "")
    page.get_by_role("button", name="Take the tour").focus()
    page.keyboard.press("Enter")
    for number, step in enumerate(stops, 1):
        expect(page.get_by_role("status").filter(has_text=f"Tour, stop {number}")).to_be_visible()
        settled(page, PAGES[step])
        if number == 1:  # the button that began it is gone: the next one is a Tab away
            page.get_by_role("button", name="Next stop").focus()
        if number < len(stops):
            expect(page.get_by_role("button", name="Next stop")).to_be_focused()
            page.keyboard.press("Enter")
    page.get_by_role("button", name="End tour").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text("Tour, stop")).to_have_count(0)


def test_back_and_forward_restore_choice_and_page(page: Any, address: str) -> None:
    page.goto(f"{address}/model")
    settled(page, QUESTIONS[""])
    assert page.evaluate("location.pathname") == "/"
    choose(page, "Model", "qwen3-8b", "Qwen/Qwen3-8B")
    wait_for_query(page, "model", "Qwen/Qwen3-8B")
    follow(page, "Next", QUESTIONS["objective"])
    for go, step, model in (
        (page.go_back, "", "Qwen3-8B"),
        (page.go_back, "", "Llama-3.1-8B-Instruct"),
        (page.go_forward, "", "Qwen3-8B"),
        (page.go_forward, "objective", "Qwen3-8B"),
    ):
        go()
        page.get_by_text(f"{model} · 8 × H100 SXM").wait_for()
        settled(page, QUESTIONS[step])


def test_points_and_rows_are_pinned(page: Any, address: str) -> None:
    """A point by a click, and unpinned by another; a row of the table by keys."""
    open_step(page, address, "compare", LLAMA_70B)
    chart, remove = page.locator(".js-plotly-plot").first, page.get_by_role("button", name="Remove")

    def click_best() -> None:
        point = chart.locator(".scatterlayer .trace").last.locator(".points path").first
        place = point.evaluate(PLACE_IN_CHART)
        chart.locator(".nsewdrag").hover(position=place)
        chart.locator(".hovertext").first.wait_for()
        chart.locator(".nsewdrag").click(position=place)

    click_best()
    remove.wait_for()
    page.wait_for_function(PINNED)
    settled(page, QUESTIONS["compare"])
    page.wait_for_function(NO_DOUBLE_CLICK, arg=chart.element_handle())
    click_best()
    remove.wait_for(state="detached")
    wait_for_query(page, "pins", None)
    settled(page, QUESTIONS["compare"])
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
    page.goto(f"{address}/objective?{slow}")
    page.get_by_text("Simulating requests").wait_for()
    page.get_by_role("button", name="Use means instead").click()
    wait_for_query(page, "objective.limits.percentile", None)
    settled(page, QUESTIONS["objective"])
    assert query(page)["objective.limits.tpot_ms"] == "400"
    page.get_by_text("hold the load").first.wait_for()
    expect(page.get_by_text("Simulating requests")).to_have_count(0)


def test_a_profile_of_ones_own_is_started_from_uploaded_and_linked(page, address, tmp_path):
    open_step(page, address, "hardware")
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


def test_a_chart_and_the_filtered_table_are_saved(page: Any, address: str, tmp_path: Path) -> None:
    open_step(page, address, "compare", f"{LLAMA_70B}&{BESIDE}")
    chart = page.get_by_test_id("stPlotlyChart").first

    def camera() -> None:
        chart.hover()
        chart.locator(".modebar-btn[data-title^='Download']").click()

    picture = saved(page, camera, tmp_path)
    assert picture.name == f"{NAME}-tradeoff.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    page.get_by_role("button", name="Export").first.click()
    html = saved(page, "Interactive chart", tmp_path)
    assert html.name == f"{NAME}-tradeoff.html"
    assert b"Throughput per GPU" in html.read_bytes()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Interactive chart").wait_for(state="hidden")
    devices = page.get_by_role("combobox", name="Device", exact=True)
    devices.scroll_into_view_if_needed()  # a list closes where the page moves below it
    settled(page, QUESTIONS["compare"])
    devices.press("ArrowDown")
    page.get_by_role("option", name="MI300X").click()
    page.get_by_text("splits pass the filters").wait_for()
    page.keyboard.press("Escape")
    settled(page, QUESTIONS["compare"])
    page.get_by_role("button", name="Export").nth(1).click()
    menu = page.get_by_test_id("stPopoverBody")
    csv, parquet = (
        saved(page, menu.get_by_role("button", name=kind).click, tmp_path)
        for kind in ("CSV", "Parquet")
    )
    assert csv.name == f"{NAME}-splits.csv"
    frame = pd.read_csv(csv)
    assert set(frame["Device"]) == {"MI300X"}
    assert pd.read_parquet(parquet)["Split"].tolist() == frame["Split"].tolist()


TPOT = "objective.limits.tpot_ms"
COUNT_STEP_BUTTONS = """
window.most = {Next: 0, Back: 0}
new MutationObserver(() => {
  const buttons = [...document.querySelectorAll('button')]
    .filter(button => button.checkVisibility())
  const count = name => buttons.filter(button => button.innerText.includes(name)).length
  for (const name in window.most)
    window.most[name] = Math.max(window.most[name], count(name))
}).observe(document, {subtree: true, childList: true, attributes: true, characterData: true})
"""


def test_no_change_shows_a_button_of_the_frame_twice(page: Any, address: str) -> None:
    """Counted at every change of the document, from a plan that no other test asks for.

    The run that makes a plan draws more than the next one, which a step then cuts short.
    """
    page.add_init_script(COUNT_STEP_BUTTONS)
    open_step(page, address, "", f"{LLAMA_70B}&workload.concurrency=97")
    questions = list(QUESTIONS.values())
    for button, way in (("Next", questions[1:]), ("Back", questions[-2::-1])):
        for question in way:
            follow(page, button, question)
    for name, step in (("Compare", "compare"), ("Check a command", "check"), ("Model", "")):
        follow(page, name, PAGES[step], "link")
    assert page.evaluate("window.most") == {"Next": 1, "Back": 1}


@pytest.mark.parametrize(("width", "height", "most"), [(1440, 900, 120), (390, 844, 200)])
def test_the_bar_moves_nothing_when_the_answer_changes(page, address, width, height, most):
    """From a limit that many splits keep to one that none does, and back."""
    page.set_viewport_size({"width": width, "height": height})
    places = []
    for limit in ("70", "1", "35"):
        open_step(page, address, "objective", f"{LLAMA_70B}&hardware.per_node=8&{TPOT}={limit}")
        bar = page.get_by_test_id("stBottom").bounding_box()
        assert bar["y"] + bar["height"] == height
        assert bar["height"] <= most
        headings = page.get_by_role("heading").all()
        places.append([round(heading.bounding_box()["y"]) for heading in headings])
        assert page.get_by_role("button", name="Next").bounding_box()["y"] < height
    assert places[0] == places[1] == places[2]


def test_a_wide_window_shows_tiles_and_half_of_the_tradeoff(page, address):
    page.set_viewport_size({"width": 1440, "height": 900})
    open_step(page, address, "compare", f"{LLAMA_70B}&{TPOT}=40&objective.optimize=cost")
    bar = page.get_by_test_id("stBottom").bounding_box()
    chart = page.locator(".st-key-frontier .js-plotly-plot .nsewdrag").first.bounding_box()
    tiles = [tile.bounding_box() for tile in page.get_by_test_id("stMetric").all()]
    assert all(tile["y"] + tile["height"] < bar["y"] for tile in tiles)
    assert chart["y"] + chart["height"] / 2 < bar["y"]
