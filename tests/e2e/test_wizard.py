"""The wizard in a real headless Chromium, against the app started as a user starts it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from recipe_core.present.charts.views import VIEWS
from recipe_core.request.examples import examples
from recipe_core.request.link import link_query
from tests.fixtures.wizard import (
    FORMATS,
    LLAMA_70B,
    NO_PLAYWRIGHT,
    PAGES,
    QUESTIONS,
    TP4,
    TP8,
    choose,
    fill,
    fits_sideways,
    open_step,
    open_tab,
    query,
    saved,
    saved_bundle,
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


def test_from_the_first_page_to_a_bundle(page: Any, address: str, tmp_path: Path) -> None:
    open_step(page, address, "")
    choose(page, "Model", "llama3.170b", MODEL)
    wait_for_query(page, "model", MODEL)
    for step, question in list(QUESTIONS.items())[1:]:
        page.get_by_role("button", name="Next").click()
        settled(page, question)
        assert page.evaluate("location.pathname") == f"/{step}"
        assert query(page)["model"] == MODEL
    with zipfile.ZipFile(saved_bundle(page, tmp_path)) as archive:
        files = {"recipe.yaml", "launch.py", "launch.json", "expected.json", "MANIFEST.json"}
        assert files <= set(archive.namelist())
        assert MODEL.encode() in archive.read("recipe.yaml")
        archive.extractall(tmp_path / "bundle")
    preflight = subprocess.run(
        [sys.executable, "launch.py", "preflight"],
        capture_output=True,
        text=True,
        cwd=tmp_path / "bundle",
    )
    assert preflight.returncode == 1  # this machine has no eight H100
    assert "H100" in preflight.stdout + preflight.stderr
    assert "Traceback" not in preflight.stderr


@pytest.mark.parametrize("name", ["chat-70b", "lora"])
def test_a_case_becomes_a_bundle_in_three_clicks(
    page: Any, address: str, tmp_path: Path, name: str
) -> None:
    example = examples()[name]
    open_step(page, address, "")
    page.get_by_role("link", name=example.title).first.click()
    settled(page, QUESTIONS["compare"])
    assert link_query(example.asked).items() <= query(page).items()
    page.get_by_role("button", name="Next").click()
    settled(page, QUESTIONS["recipe"])
    saved_bundle(page, tmp_path)


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


def test_a_name_without_a_model_keeps_the_model(page: Any, address: str) -> None:
    open_step(page, address, "", "model=Qwen%2FQwen3-8B")
    choose(page, "Model", "llama70x", "Add: llama70x")
    page.get_by_text("No model is called “llama70x”.").wait_for()
    assert query(page)["model"] == "Qwen/Qwen3-8B"


def test_back_and_forward_restore_choice_and_page(page: Any, address: str) -> None:
    open_step(page, address, "")
    choose(page, "Model", "qwen3-8b", "Qwen/Qwen3-8B")
    wait_for_query(page, "model", "Qwen/Qwen3-8B")
    page.get_by_role("button", name="Next").click()
    settled(page, QUESTIONS["objective"])
    for go, step, model in (
        (page.go_back, "", "Qwen3-8B"),
        (page.go_back, "", "Llama-3.1-8B-Instruct"),
        (page.go_forward, "", "Qwen3-8B"),
        (page.go_forward, "objective", "Qwen3-8B"),
    ):
        go()
        page.get_by_text(f"{model} · 8 × H100 SXM").wait_for()
        settled(page, QUESTIONS[step])


def test_the_first_page_has_a_name_and_the_navigation_keeps_the_choice(
    page: Any, address: str
) -> None:
    page.goto(f"{address}/model?{LLAMA_70B}")
    settled(page, QUESTIONS[""])
    assert page.evaluate("location.pathname") == "/"
    assert query(page)["model"] == MODEL
    page.get_by_role("link", name="Traffic and goals").click()
    settled(page, QUESTIONS["objective"])
    wait_for_query(page, "model", MODEL)


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


def test_the_change_that_helps_is_one_click(page: Any, address: str) -> None:
    open_step(page, address, "compare", f"{LLAMA_70B}&hardware.per_node=1")
    page.get_by_text("GiB short").first.wait_for()
    page.get_by_role("button", name="fits").first.click()
    page.get_by_text("the load").first.wait_for()


def test_every_view_of_four_pins_draws_and_one_is_used(page: Any, address: str) -> None:
    pins = [TP8, TP4, "vllm.bf16.bf16.tp4.pp2.dp1.ep1", "vllm.bf16.bf16.tp4.pp1.dp1.ep1"]
    open_step(page, address, "compare", f"{LLAMA_70B}&pins={','.join(pins)}")
    expect(page.get_by_role("button", name="Remove")).to_have_count(4)
    titles = [view.title for view in VIEWS.values() if "serving" in view.kinds]
    for name in [*titles[1:], "Why not?", titles[0]]:  # the first is open already
        panel = open_tab(page, name, QUESTIONS["compare"])
        panel.locator(".js-plotly-plot, table, [data-testid=stDataFrame]").first.wait_for()
    page.get_by_role("button", name="Use this split").nth(1).click()
    settled(page, QUESTIONS["recipe"])
    assert (query(page)["candidate.tp"], query(page)["candidate.dp"]) == ("4", "2")


def test_a_box_over_an_axis_lists_the_splits_that_pass(page: Any, address: str) -> None:
    open_step(page, address, "compare", LLAMA_70B)
    panel = open_tab(page, "Degrees", QUESTIONS["compare"])
    chart = page.locator(".st-key-parallel .js-plotly-plot")
    chart.locator(".nsewdrag").hover()  # brings it onto the screen and waits until it stands still
    tick = chart.locator(".xtick").first.bounding_box()
    plot = chart.locator(".nsewdrag").bounding_box()
    middle = tick["x"] + tick["width"] / 2
    page.mouse.move(middle - 25, plot["y"] + 2)
    page.mouse.down()
    page.mouse.move(middle, plot["y"] + 30)
    page.mouse.move(middle + 25, plot["y"] + plot["height"] * 0.2)
    page.mouse.up()
    page.get_by_text("Splits that pass through").wait_for()
    panel.locator("[data-testid=stDataFrame] canvas").first.wait_for()


def test_a_simulation_shows_how_far_it_is_and_is_given_up_by_a_click(
    page: Any, address: str
) -> None:
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


def test_a_command_is_checked(page: Any, address: str) -> None:
    open_step(page, address, "check")
    command = "vllm serve Qwen/Qwen3-32B -tp 2 --max-model-len 40960"
    page.get_by_role("textbox", name="Command").fill(command)
    page.get_by_role("button", name="Check").click()
    page.get_by_text("devices are idle").wait_for()
    page.get_by_role("heading", name="A better split").wait_for()
    page.get_by_role("button", name="Compare all splits").click()
    settled(page, PAGES["compare"])
    assert query(page)["model"] == "Qwen/Qwen3-32B"


def test_the_best_format_goes_into_the_request(page: Any, address: str) -> None:
    goals = "objective.optimize=cost&objective.limits.accuracy_recovery=0.97"
    open_step(page, address, "formats", f"model=Qwen%2FQwen3-8B&hardware.per_node=1&{goals}")
    assert page.locator(".js-plotly-plot").count() == 2
    page.set_viewport_size({"width": 390, "height": 900})
    settled(page, FORMATS)
    fits_sideways(page)
    page.get_by_role("button", name="Use ").first.click()
    page.get_by_role("heading", level=1, name=QUESTIONS["compare"]).wait_for()
    wait_for_query(page, "objective.optimize", "cost")


def test_a_config_is_uploaded(
    page: Any, address: str, tmp_path: Path, tiny_config: dict[str, Any]
) -> None:
    open_step(page, address, "")
    unfold(page, "Not in the list?")
    (tmp_path / "config.json").write_text(json.dumps(tiny_config))
    upload(page, tmp_path / "config.json")
    page.get_by_text(re.compile(r"^llama-\d+(\.\d+)?m · 8 × H100 SXM")).first.wait_for()
    page.wait_for_function("() => /[?&]model=(~1|%7B|\\{)/.test(location.search)")
    fill(page, "Name", "my-llama")
    page.get_by_text("my-llama · 8 × H100 SXM").first.wait_for()
    settled(page, QUESTIONS[""])
    weights = page.get_by_role("textbox", name="Where its weights are")
    weights.fill("owner/my-llama")
    weights.press("Enter")
    page.get_by_text("the start command asks for the weights").wait_for(state="detached")
    settled(page, QUESTIONS[""])
    unfold(page, "Upload another config.json")
    (tmp_path / "weights.json").write_bytes(b"PK\x03\x04")
    upload(page, tmp_path / "weights.json")
    page.get_by_text("weights are never read").wait_for()


def test_a_profile_of_ones_own_is_started_from_uploaded_and_linked(
    page: Any, address: str, tmp_path: Path
) -> None:
    open_step(page, address, "hardware")
    unfold(page, "Device not listed")
    text = saved(page, "Start from", tmp_path).read_text()
    (tmp_path / "mine.yaml").write_text(text.replace("value: 85520809984.0", "value: 64e9"))
    upload(page, tmp_path / "mine.yaml")
    page.get_by_text("8 × my-h100-sxm").first.wait_for()
    page.get_by_text("59.6 GiB").first.wait_for()
    page.wait_for_function("() => location.search.includes('hardware.device=~1.')")
    assert len(page.url) < 4000  # what proxies and mail programs take
    (tmp_path / "weights.yaml").write_bytes(b"PK\x03\x04")
    upload(page, tmp_path / "weights.yaml")
    page.get_by_text("is not text").wait_for()
    page.reload()
    settled(page, PAGES["hardware"])
    page.get_by_text("59.6 GiB").first.wait_for()
    page.go_back()
    page.get_by_text("79.6 GiB").first.wait_for()


BESIDE = "options.hardware=%5B%7B%22device%22%3A%22mi300x%22%2C%22per_node%22%3A8%7D%5D"
NAME = "llama-3.1-70b-instruct-8x-h100-sxm"


def test_a_chart_is_saved_as_picture_and_page(page: Any, address: str, tmp_path: Path) -> None:
    open_step(page, address, "compare", LLAMA_70B)
    chart = page.get_by_test_id("stPlotlyChart").first

    def camera() -> None:
        chart.hover()
        chart.locator(".modebar-btn[data-title^='Download']").click()

    picture = saved(page, camera, tmp_path)
    assert picture.name == f"{NAME}-tradeoff.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    page.get_by_role("button", name="Export").first.click()
    page.get_by_role("radio", name="SVG").click()
    settled(page, QUESTIONS["compare"])
    html = saved(page, "Interactive chart", tmp_path)
    assert html.name == f"{NAME}-tradeoff.html"
    assert b"Output per GPU" in html.read_bytes()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Interactive chart").wait_for(state="hidden")
    picture = saved(page, camera, tmp_path)
    assert picture.name == f"{NAME}-tradeoff.svg"
    assert b"<svg" in picture.read_bytes()[:200]


def test_the_filtered_table_is_saved(page: Any, address: str, tmp_path: Path) -> None:
    open_step(page, address, "compare", f"{LLAMA_70B}&{BESIDE}")
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


def test_every_device_has_a_line_of_its_frontier(page: Any, address: str) -> None:
    open_step(page, address, "compare", f"{LLAMA_70B}&{BESIDE}&objective.limits.tpot_ms=40")
    panel = open_tab(page, "Frontier", QUESTIONS["compare"])
    legend = panel.locator(".legendtext")
    assert legend.all_text_contents() == ["H100 SXM5", "MI300X", "This split at its load"]
    panel.get_by_text("MI300X over H100 SXM5").wait_for()


LINKS = {
    "Compare": "compare",
    "Check a command": "check",
    "Traffic and goals": "objective",
    "Model": "",
}
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
            page.get_by_role("button", name=button).click()
            settled(page, question)
    for name, step in LINKS.items():
        page.get_by_role("link", name=name).first.click()
        settled(page, PAGES[step])
    assert page.evaluate("window.most") == {"Next": 1, "Back": 1}


@pytest.mark.parametrize(
    ("width", "height", "most"), [(1440, 900, 120), (390, 844, 200)], ids=["wide", "phone"]
)
def test_the_bar_stays_at_the_foot_and_moves_nothing_when_the_answer_changes(
    open_page: Callable[..., Any], address: str, width: int, height: int, most: int
) -> None:
    """From a limit that many splits keep to one that none does, and back."""
    page = open_page(viewport={"width": width, "height": height})
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


def test_a_wide_window_shows_tiles_and_half_of_the_tradeoff(
    open_page: Callable[..., Any], address: str
) -> None:
    page = open_page(viewport={"width": 1440, "height": 900})
    open_step(page, address, "compare", f"{LLAMA_70B}&{TPOT}=40&objective.optimize=cost")
    bar = page.get_by_test_id("stBottom").bounding_box()
    chart = page.locator(".st-key-frontier .js-plotly-plot .nsewdrag").first.bounding_box()
    tiles = [tile.bounding_box() for tile in page.get_by_test_id("stMetric").all()]
    assert all(tile["y"] + tile["height"] < bar["y"] for tile in tiles)
    assert chart["y"] + chart["height"] / 2 < bar["y"]


def test_no_hardware_is_judged_before_it_is_chosen_or_found(page: Any, address: str) -> None:
    open_step(page, address, "", LLAMA_70B)
    page.get_by_text("No hardware is chosen yet").wait_for()
    page.get_by_text("8 × H100 SXM5 assumed until you choose").wait_for()
    page.get_by_role("link", name="Hardware").first.click()
    settled(page, QUESTIONS["hardware"])
    page.get_by_text("hold the load").first.wait_for()
    open_step(page, address, "hardware", f"{LLAMA_70B}&{TPOT}=40")
    page.get_by_role("link", name="Any hardware: find it for me").click()
    settled(page, PAGES["size"])
    page.get_by_role("button", name="Take").first.click()
    settled(page, QUESTIONS["recipe"])
    page.get_by_text("keeps the limit").first.wait_for()


def test_what_helps_is_in_the_details_of_the_bar(page: Any, address: str) -> None:
    open_step(page, address, "objective", f"{LLAMA_70B}&hardware.per_node=8&{TPOT}=1")
    page.get_by_text("None of 32 splits holds a load").wait_for()
    page.get_by_role("button", name="Why?").click()
    page.get_by_role("button", name="Allow").first.click()
    page.get_by_text("may miss the limit").first.wait_for()
