"""Lenses of the plan, choices side by side, and what is taken from the end, in a real Chromium."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from recipe_core.base.documents import parse_yaml
from recipe_core.request.edit import change, select_split
from recipe_core.request.link import DEFAULT, from_query
from recipe_core.request.open_hardware import size_request
from recipe_core.request.shelf import Kept, keep_choice, shelf_of, shelf_query
from recipe_core.request.size import Market
from recipe_core.sizing.size import size_devices
from tests.fixtures.wizard import (
    LLAMA_70B,
    MOST_TABS,
    NO_PLAYWRIGHT,
    PAGES,
    PLAN,
    SIDE,
    TP8,
    choose,
    fill,
    find_model,
    follow,
    open_chip,
    open_lens,
    open_step,
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
LIMITED = f"{LLAMA_70B}&hardware.device=h100-sxm&objective.limits.tpot_ms=40"


def sized(page: Any) -> None:
    """Wait until every device is sized and drawn."""
    page.get_by_role("button", name="Take").wait_for()
    settled(page, PLAN)


def test_from_an_empty_start_to_the_bundle_of_the_cheapest_hardware(page, address, tmp_path):
    open_step(page, address, "")
    find_model(page, "llama 3.1 70b", MODEL, "home")
    open_chip(page, "Traffic")
    fill(page, "Users at once", "32")
    wait_for_query(page, "workload.concurrency", "32")
    settled(page, PLAN)
    open_chip(page, "Limits")
    fill(page, "Time per output token", "40", exact=False)
    wait_for_query(page, "objective.limits.tpot_ms", "40")
    settled(page, PLAN)
    choose(page, "How sure", "90", "90 %")
    wait_for_query(page, "objective.confidence", "0.9")
    page.get_by_role("tab", name="Hardware", exact=True).click()
    sized(page)
    request, _ = from_query(query(page))
    cheapest = size_devices(size_request(request, Market())).choice.hardware
    assert not any(name.startswith("hardware.") for name in query(page))
    page.get_by_role("tab", name="Hardware", exact=True).focus()  # it is taken by keys
    for _ in range(MOST_TABS):
        page.keyboard.press("Tab")
        if "Take" in page.evaluate("document.activeElement.textContent"):
            break
    page.keyboard.press("Enter")
    wait_for_query(page, "hardware.offer", cheapest.offer)
    settled(page, PLAN)
    page.go_back()
    wait_for_query(page, "hardware.offer", None)
    sized(page)
    assert query(page)["objective.limits.tpot_ms"] == "40"
    page.go_forward()
    wait_for_query(page, "hardware.offer", cheapest.offer)
    settled(page, PLAN)
    follow(page, "Ship it", PAGES["ship"])
    assert query(page)["objective.confidence"] == "0.9"
    with zipfile.ZipFile(saved_bundle(page, tmp_path)) as archive:
        written = parse_yaml(archive.read("recipe.yaml").decode(), "recipe.yaml")
    assert cheapest.device in str(written)


BOUND = "hardware.device=h100-sxm&objective.limits.ttft_ms=2000&objective.limits.tpot_ms=50"
SHORT = f"{BOUND}&workload.over_time.rates=1,4,2&workload.over_time.days=0.125"
OBJECT = "targets/kubernetes-keda/scaledobject.yaml"


def trace(path: Path) -> Path:
    """A trace in Mooncake's form: an hour, busy in its middle."""
    seconds = sorted([n * 4.0 for n in range(900)] + [1200.0 + n for n in range(1200)])
    rows = (
        {"timestamp": round(1000 * at), "input_length": 1024, "output_length": 64 + n % 64}
        | {"hash_ids": [0, n + 1]}
        for n, at in enumerate(seconds)
    )
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def simulated(page: Any) -> None:
    """Simulate KEDA alone, and wait until its answer is drawn."""
    page.get_by_test_id("stButtonGroup").get_by_text("KEDA", exact=True).click()
    page.get_by_role("button", name="Simulate", exact=True).click()
    page.get_by_role("button", name="Use KEDA").wait_for()
    settled(page, PLAN)


def test_from_a_trace_to_the_object_that_was_simulated(page, address, tmp_path):
    open_lens(page, address, "over-time", BOUND)
    page.get_by_role("radio", name="A trace").click()
    page.locator("input[type=file]").first.wait_for(state="attached")
    upload(page, trace(tmp_path / "mine.jsonl"))
    page.get_by_role("button", name="Use this trace").click()
    wait_for_query(page, "workload.mode", "open")
    settled(page, PLAN)
    simulated(page)
    page.get_by_role("button", name="Use KEDA").click()
    wait_for_query(page, "options.scaling.policy", "keda")
    settled(page, PLAN)
    asked = query(page)
    follow(page, "Ship it", PAGES["ship"])
    with zipfile.ZipFile(saved_bundle(page, tmp_path)) as archive:
        written = parse_yaml(archive.read(OBJECT).decode(), OBJECT)["spec"]
    assert written["maxReplicaCount"] == int(asked["options.scaling.max_replicas"])
    assert written["minReplicaCount"] == int(asked.get("options.scaling.min_replicas", 1))
    behaviour = written["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    if "options.scaling.down_delay_s" in asked:
        down_s = behaviour["scaleDown"]["stabilizationWindowSeconds"]
        assert down_s == float(asked["options.scaling.down_delay_s"])
    targets = [str(trigger["target"]) for trigger in json.loads(asked["options.scaling.triggers"])]
    thresholds = [trigger["metadata"]["threshold"] for trigger in written["triggers"]]
    assert [float(text) for text in thresholds] == [float(text) for text in targets]


KEPT_IN_LINK = "n => (new URLSearchParams(location.search).get('kept') ?? '').length > n"
TP4_ALONE = "vllm.bf16.bf16.tp4.pp1.dp1.ep1"
TITAN = "torchtitan.bf16.tp1.pp1.v1.cp1.ep1.dp8.z3.mb2.full"


def asked(key: str, **fields: Any) -> Any:
    request = change(DEFAULT, fields)
    return change(request, select_split(request, key))


SERVING = (
    Kept("Llama on H100", asked(TP8, model="meta-llama/Llama-3.1-70B-Instruct")),
    Kept("Llama on MI300X", asked(TP4_ALONE, **{"hardware.device": "mi300x"})),
)
SEVERAL = urlencode(
    shelf_query(keep_choice(SERVING, asked(TITAN, **{"workload.kind": "training"})))
)


def keep_it(page: Any, longer_than: int) -> int:
    """Keep the choice; how long the link's part for what is kept is then."""
    page.get_by_role("button", name="Keep", exact=True).first.click()
    page.get_by_role("button", name="Kept", exact=True).first.wait_for()
    page.wait_for_function(KEPT_IN_LINK, arg=longer_than)
    return len(query(page)["kept"])


def test_two_models_on_two_devices_are_kept_named_and_compared(open_page, address):
    page, other = (open_page(viewport={"width": 1440, "height": 1000}) for _ in range(2))
    open_step(page, address, "plan", f"{LLAMA_70B}&pins={TP8}")
    length = keep_it(page, 0)
    open_chip(page, "Model")
    find_model(page, "qwen3 32b", "Qwen/Qwen3-32B", "rail")
    settled(page, "Qwen3-32B")
    page.goto(f"{page.url}&hardware.device=mi300x")
    settled(page, "Qwen3-32B")
    page.locator(".st-key-decision").get_by_text("MI300X").first.wait_for()
    follow(page, "Ship", PAGES["ship"], "link")
    keep_it(page, length)

    follow(page, "Compare (2)", SIDE, "link")
    page.get_by_role("button", name="MI300X").click()
    name = page.get_by_role("textbox", name="Name").filter(visible=True)
    name.fill("Qwen, two of them")
    name.press("Enter")
    page.get_by_role("columnheader", name="Qwen, two of them").first.wait_for()
    settled(page, SIDE)
    shelf, ignored = shelf_of(query(page))
    assert (ignored, shelf[1].name) == ([], "Qwen, two of them")

    other.goto(page.url)  # nothing but the link
    settled(other, SIDE)
    table = other.get_by_test_id("stTable").first
    row = table.get_by_role("row").filter(has_text="Throughput per GPU")
    expect(row.get_by_role("cell")).to_have_count(3)
    assert re.search(r"[+−]\d+ %|× \d+", row.get_by_role("cell").nth(2).inner_text())
    expect(table.get_by_role("row").filter(has_text="MI300X").first).to_be_visible()
    other.locator(".st-key-side-chart .main-svg").first.wait_for()
    other.get_by_role("button", name="Menu", exact=True).click()
    assert other.get_by_test_id("stPopoverBody").locator("code").inner_text() == other.url
    other.keyboard.press("Escape")
    other.get_by_role("button", name="Qwen, two of them").click()
    other.get_by_role("button", name="Remove").filter(visible=True).click()
    gone = other.get_by_role("columnheader", name="Qwen, two of them")
    expect(gone).to_have_count(0)
    settled(other, SIDE)
    other.go_back()
    gone.first.wait_for()


EVERY_FIGURE_DRAWN = """
[...document.querySelectorAll('figure')].every(f => f.querySelector('.js-plotly-plot .main-svg'))
"""
RUN = "workload.kind=training&workload.tokens=1e9&hardware.nodes=2"


def test_a_place_is_filled_in_and_the_bundle_and_the_report_are_taken(page, address, tmp_path):
    open_step(page, address, "ship", f"{LLAMA_70B}&hardware.device=mi300x")
    unfold(page, "Deployment settings")
    fill(page, "Port", "9123")
    page.get_by_text("--port 9123").first.wait_for()
    settled(page, PAGES["ship"])
    namespace = page.get_by_role("textbox", name="Namespace", exact=True)
    assert namespace.count() == 0  # by hand there is none
    choose(page, "Target", "Kubernetes", "Kubernetes")
    namespace.wait_for(state="attached")
    settled(page, PAGES["ship"])
    if not namespace.is_visible():
        unfold(page, "Deployment settings")
    fill(page, "Namespace", "team-llm")
    page.get_by_text(re.compile("Set: .*namespace team-llm")).wait_for()
    settled(page, PAGES["ship"])
    page.get_by_text("namespace: team-llm").first.wait_for()
    settled(page, PAGES["ship"])
    assert "team-llm" not in page.url
    with zipfile.ZipFile(saved_bundle(page, tmp_path)) as archive:
        assert b"namespace: team-llm" in archive.read("targets/kubernetes/deployment.yaml")
        assert b'"port": 9123' in archive.read("launch.json")
    report = saved(page, "Report with charts", tmp_path)
    assert report.stat().st_size < 6_000_000


@pytest.mark.parametrize("link", [LLAMA_70B, RUN], ids=["serving", "training"])
def test_a_report_opens_from_a_file_without_any_request(open_page, address, tmp_path, link):
    page = open_page()
    open_step(page, address, "ship", link)
    report = saved(page, "Report with charts", tmp_path)
    alone = open_page(offline=True, viewport={"width": 390, "height": 844})
    asked: list[str] = []
    alone.on("request", lambda request: asked.append(request.url))
    alone.goto(report.as_uri())
    alone.wait_for_function(EVERY_FIGURE_DRAWN)
    assert alone.locator("figure").count() >= 4
    assert asked == [report.as_uri()]
    assert alone.get_by_text("Edit in Chart Studio").count() == 0
    assert alone.locator("[data-title*='Chart Studio'], [data-title*='cloud']").count() == 0
    assert alone.evaluate("document.documentElement.scrollWidth") <= 390
