"""The wizard in a real headless Chromium, against the app started as a user starts it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recipe_core.present.charts.views import VIEWS
from tests.fixtures.patience import PATIENCE
from tests.fixtures.wizard import (
    LLAMA_70B,
    NO_PLAYWRIGHT,
    PAGES,
    QUESTIONS,
    TP4,
    TP8,
    TRAINING,
    choose,
    fits_sideways,
    open_tab,
    query,
    settled,
    unfold,
    wait_for_query,
)

expect = pytest.importorskip("playwright.sync_api", reason=NO_PLAYWRIGHT).expect

pytestmark = pytest.mark.browser


PLACE_IN_CHART = """point => {
  const drag = point.closest('.js-plotly-plot').querySelector('.nsewdrag')
  const [mark, plot] = [point, drag].map(part => part.getBoundingClientRect())
  return {x: mark.x + mark.width / 2 - plot.x, y: mark.y + mark.height / 2 - plot.y}
}"""
NO_DOUBLE_CLICK = "chart => Date.now() - chart._mouseDownTime > chart._context.doubleClickDelay"
"""Whether the chart takes the next click for one of its own, not for the second of two."""


def test_from_the_first_page_to_a_bundle(page: Any, address: str, tmp_path: Path) -> None:
    page.goto(address)
    settled(page, QUESTIONS[""])
    choose(page, "Model", "llama3.170b", "meta-llama/Llama-3.1-70B-Instruct")
    wait_for_query(page, "model", "meta-llama/Llama-3.1-70B-Instruct")
    for step, question in list(QUESTIONS.items())[1:]:
        page.get_by_role("button", name="Next").click()
        settled(page, question)
        assert page.evaluate("location.pathname") == f"/{step}"
        assert query(page)["model"] == "meta-llama/Llama-3.1-70B-Instruct"
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download bundle").click()
    bundle = tmp_path / waiting.value.suggested_filename
    waiting.value.save_as(bundle)
    with zipfile.ZipFile(bundle) as archive:
        assert {"recipe.yaml", "launch.py", "launch.json", "expected.json", "MANIFEST.json"} <= set(
            archive.namelist()
        )
        assert b"meta-llama/Llama-3.1-70B-Instruct" in archive.read("recipe.yaml")
        archive.extractall(tmp_path / "bundle")
    checked = subprocess.run(
        [sys.executable, "-m", "recipe_core", "check", str(bundle)], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stderr
    preflight = subprocess.run(
        [sys.executable, "launch.py", "preflight"],
        capture_output=True,
        text=True,
        cwd=tmp_path / "bundle",
    )
    assert preflight.returncode == 1  # this machine has no eight H100
    assert "H100" in preflight.stdout + preflight.stderr
    assert "Traceback" not in preflight.stderr


@pytest.mark.parametrize("step", PAGES)
def test_a_link_opens_on_every_page(page: Any, address: str, step: str) -> None:
    page.goto(f"{address}/{step}?{LLAMA_70B}&hardware.device=mi300x&pins={TP8}")
    settled(page, PAGES[step])
    if step in QUESTIONS:
        page.get_by_text("Llama-3.1-70B-Instruct · 8 × MI300X").wait_for()
    assert query(page)["pins"] == TP8
    assert query(page)["hardware.device"] == "mi300x"


@pytest.mark.parametrize("step", QUESTIONS)
def test_a_link_to_training_opens_on_every_step(page: Any, address: str, step: str) -> None:
    page.goto(f"{address}/{step}?{TRAINING}")
    settled(page, QUESTIONS[step])
    page.get_by_text("splits can run").first.wait_for()


def test_back_and_forward_restore_choice_and_page(page: Any, address: str) -> None:
    page.goto(address)
    settled(page, QUESTIONS[""])
    choose(page, "Model", "qwen3-8b", "Qwen/Qwen3-8B")
    wait_for_query(page, "model", "Qwen/Qwen3-8B")
    page.get_by_role("button", name="Next").click()
    settled(page, QUESTIONS["objective"])
    page.go_back()
    settled(page, QUESTIONS[""])
    page.get_by_text("Qwen3-8B · 8 × H100 SXM").wait_for()
    page.go_back()
    page.get_by_text("Llama-3.1-8B-Instruct · 8 × H100 SXM").wait_for()
    settled(page, QUESTIONS[""])
    page.go_forward()
    page.get_by_text("Qwen3-8B · 8 × H100 SXM").wait_for()
    settled(page, QUESTIONS[""])
    page.go_forward()
    settled(page, QUESTIONS["objective"])
    page.get_by_text("Qwen3-8B · 8 × H100 SXM").wait_for()


def test_a_click_in_the_navigation_keeps_the_choice(page: Any, address: str) -> None:
    page.goto(f"{address}/?{LLAMA_70B}")
    settled(page, QUESTIONS[""])
    page.get_by_role("link", name="Traffic and goals").click()
    settled(page, QUESTIONS["objective"])
    wait_for_query(page, "model", "meta-llama/Llama-3.1-70B-Instruct")


def test_a_click_on_a_point_pins_it_and_again_unpins(page: Any, address: str) -> None:
    page.goto(f"{address}/compare?{LLAMA_70B}")
    settled(page, QUESTIONS["compare"])
    chart = page.locator(".js-plotly-plot").first

    def click_best() -> None:
        point = chart.locator(".scatterlayer .trace").last.locator(".points path").first
        place = point.evaluate(PLACE_IN_CHART)
        chart.locator(".nsewdrag").hover(position=place)
        chart.locator(".hovertext").first.wait_for()
        chart.locator(".nsewdrag").click(position=place)

    click_best()
    remove = page.get_by_role("button", name="Remove")
    remove.wait_for()
    page.wait_for_function(
        "() => new URLSearchParams(location.search).get('pins')?.startsWith('vllm.')"
    )
    settled(page, QUESTIONS["compare"])
    page.wait_for_function(NO_DOUBLE_CLICK, arg=chart.element_handle())
    click_best()
    remove.wait_for(state="detached")
    wait_for_query(page, "pins", None)


def test_the_change_that_helps_is_one_click(page: Any, address: str) -> None:
    page.goto(f"{address}/compare?{LLAMA_70B}&hardware.per_node=1")
    settled(page, QUESTIONS["compare"])
    page.get_by_text("GiB short").first.wait_for()
    page.get_by_role("button", name="fits").first.click()
    page.get_by_text("the load").first.wait_for()


def test_the_first_page_is_also_found_by_its_name(page: Any, address: str) -> None:
    page.goto(f"{address}/model?{LLAMA_70B}")
    settled(page, QUESTIONS[""])
    assert page.evaluate("location.pathname") == "/"
    assert query(page)["model"] == "meta-llama/Llama-3.1-70B-Instruct"


def test_the_api_answers_on_the_same_port(address: str) -> None:
    with urllib.request.urlopen(f"{address}/api/v1/models", timeout=PATIENCE) as answer:
        assert answer.status == 200
        assert b"Llama-3.1-70B" in answer.read()


def test_rows_of_the_table_are_pinned_from_the_keyboard(page: Any, address: str) -> None:
    page.goto(f"{address}/compare?{LLAMA_70B}")
    settled(page, QUESTIONS["compare"])
    table = page.get_by_test_id("stDataFrame").first
    table.scroll_into_view_if_needed()
    table.locator("canvas").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Shift+Space")
    page.wait_for_function(
        "() => new URLSearchParams(location.search).get('pins')?.startsWith('vllm.')"
    )
    page.get_by_role("button", name="Remove").wait_for()


def test_the_tray_holds_four_and_the_oldest_pin_makes_room(page: Any, address: str) -> None:
    pins = [TP8, TP4, "vllm.bf16.bf16.tp4.pp2.dp1.ep1", "vllm.bf16.bf16.tp4.pp1.dp1.ep1"]
    page.goto(f"{address}/compare?{LLAMA_70B}&pins={','.join(pins)}")
    settled(page, QUESTIONS["compare"])
    expect(page.get_by_role("button", name="Remove")).to_have_count(4)
    page.get_by_role("button", name="Use this split").nth(1).click()
    settled(page, QUESTIONS["recipe"])
    assert query(page)["candidate.tp"] == "4"
    assert query(page)["candidate.dp"] == "2"


def test_every_view_of_a_split_draws(page: Any, address: str) -> None:
    page.goto(f"{address}/compare?{LLAMA_70B}&pins={TP8},{TP4}")
    settled(page, QUESTIONS["compare"])
    titles = [view.title for view in VIEWS.values() if "serving" in view.kinds]
    for name in [*titles[1:], "Why not?", titles[0]]:  # the first is open already
        panel = open_tab(page, name, QUESTIONS["compare"])
        panel.locator(".js-plotly-plot, table, [data-testid=stDataFrame]").first.wait_for()


def test_a_box_over_an_axis_lists_the_splits_that_pass(page: Any, address: str) -> None:
    page.goto(f"{address}/compare?{LLAMA_70B}")
    settled(page, QUESTIONS["compare"])
    panel = open_tab(page, "Degrees", QUESTIONS["compare"])
    chart = page.locator(".st-key-parallel .js-plotly-plot")
    chart.locator(".nsewdrag").hover()  # brings it onto the screen and waits until it stands still
    tick, plot = (
        chart.locator(".xtick").first.bounding_box(),
        chart.locator(".nsewdrag").bounding_box(),
    )
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
    page.goto(f"{address}/check")
    settled(page, PAGES["check"])
    page.get_by_role("textbox", name="Command").fill(
        "vllm serve Qwen/Qwen3-32B -tp 2 --max-model-len 40960"
    )
    page.get_by_role("button", name="Check").click()
    page.get_by_text("devices are idle").wait_for()
    page.get_by_role("heading", name="A better split").wait_for()
    page.get_by_role("button", name="Compare all splits").click()
    settled(page, PAGES["compare"])
    assert query(page)["model"] == "Qwen/Qwen3-32B"


def test_a_config_is_uploaded(
    page: Any, address: str, tmp_path: Path, tiny_config: dict[str, Any]
) -> None:
    page.goto(address)
    settled(page, QUESTIONS[""])
    unfold(page, "Not in the list?")
    (tmp_path / "config.json").write_text(json.dumps(tiny_config))
    page.locator("input[type=file]").set_input_files(tmp_path / "config.json")
    page.get_by_text(re.compile(r"^llama-\d+(\.\d+)?m · 8 × H100 SXM")).first.wait_for()
    page.wait_for_function("() => /[?&]model=(~1|%7B|\\{)/.test(location.search)")
    page.get_by_role("textbox", name="Name", exact=True).fill("my-llama")
    page.get_by_role("textbox", name="Name", exact=True).press("Enter")
    page.get_by_text("my-llama · 8 × H100 SXM").first.wait_for()
    page.get_by_role("textbox", name="Where its weights are").fill("owner/my-llama")
    page.get_by_role("textbox", name="Where its weights are").press("Enter")
    page.get_by_text("the start command asks for the weights").wait_for(state="detached")
    settled(page, QUESTIONS[""])
    unfold(page, "Upload another config.json")
    (tmp_path / "weights.json").write_bytes(b"PK\x03\x04")
    page.locator("input[type=file]").set_input_files(tmp_path / "weights.json")
    page.get_by_text("weights are never read").wait_for()


def test_a_profile_of_ones_own_is_started_from_uploaded_and_linked(
    page: Any, address: str, tmp_path: Path
) -> None:
    page.goto(f"{address}/hardware")
    settled(page, PAGES["hardware"])
    unfold(page, "Device not listed")
    with page.expect_download() as download:
        page.get_by_role("button", name="Start from").click()
    text = download.value.path().read_text()
    (tmp_path / "mine.yaml").write_text(text.replace("value: 85520809984.0", "value: 64e9"))
    page.locator("input[type=file]").set_input_files(tmp_path / "mine.yaml")
    page.get_by_text("8 × my-h100-sxm").first.wait_for()
    page.get_by_text("59.6 GiB").first.wait_for()
    page.wait_for_function("() => location.search.includes('hardware.device=~1.')")
    assert len(page.url) < 4000  # what proxies and mail programs take
    settled(page, PAGES["hardware"])  # a file chosen while the page is drawn again may be lost
    (tmp_path / "weights.yaml").write_bytes(b"PK\x03\x04")
    page.locator("input[type=file]").set_input_files(tmp_path / "weights.yaml")
    page.get_by_text("is not text").wait_for()
    page.reload()
    settled(page, PAGES["hardware"])
    page.get_by_text("59.6 GiB").first.wait_for()
    page.go_back()
    page.get_by_text("79.6 GiB").first.wait_for()


@pytest.mark.parametrize("step", PAGES)
def test_narrow_pages_do_not_scroll_sideways(
    open_page: Callable[..., Any], address: str, step: str
) -> None:
    page = open_page(viewport={"width": 390, "height": 844})
    page.goto(f"{address}/{step}?{LLAMA_70B}&pins={TP8}")
    settled(page, PAGES[step])
    fits_sideways(page)


def test_dark_and_light_follow_the_reader(open_page: Callable[..., Any], address: str) -> None:
    grounds = []
    for scheme in ("light", "dark"):
        page = open_page(color_scheme=scheme)
        page.goto(f"{address}/compare?{LLAMA_70B}")
        settled(page, PAGES["compare"])
        page.locator(".js-plotly-plot").first.wait_for()
        shot = page.locator(".js-plotly-plot").first.screenshot()
        assert len(shot) > 5000
        grounds.append(
            page.evaluate("getComputedStyle(document.querySelector('.stApp')).backgroundColor")
        )
    assert grounds == ["rgb(255, 255, 255)", "rgb(18, 23, 29)"]
