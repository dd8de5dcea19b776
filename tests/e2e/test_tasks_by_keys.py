"""What people come for, by keyboard alone, along the walk; and that the address keeps all of it."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

import recipe_core as rb
from recipe_core.base.documents import parse_yaml
from recipe_core.calibration.importers.rows import table_text
from recipe_core.calibration.place import VARIABLE
from tests.calibration.test_own_runs import QWEN_32B, times_as_estimated
from tests.fixtures.serve import recipe_serve
from tests.fixtures.wizard import (
    LLAMA_33,
    NO_PLAYWRIGHT,
    OWN_LOAD,
    PAGES,
    PEOPLE_USE,
    PLAN,
    QWEN_235B,
    SCALED,
    answer_of,
    checked_bundle,
    choose_device,
    move_to,
    open_lens,
    open_step,
    planned,
    query,
    recipe_in,
    same_as_library,
    saved,
    settled,
    ships_what_was_priced,
    tab_to,
    type_over,
    upload,
    wait_for_query,
)

expect = pytest.importorskip("playwright.sync_api", reason=NO_PLAYWRIGHT).expect
pytestmark = [pytest.mark.browser, pytest.mark.nightly]


def enter(page: Any, name: str, title: str) -> None:
    """Tab to what leads on, take it by Enter, and wait for the page of this title."""
    tab_to(page, name)
    page.keyboard.press("Enter")
    settled(page, title)


def walk_to_traffic(page: Any, address: str, door: str, text: str, model: str) -> None:
    """From the start page through a door to the model, and on to the traffic."""
    open_step(page, address, "")
    enter(page, door, "Model")
    type_over(page, "Model", text)
    wait_for_query(page, "model", model)
    settled(page, "Model")
    enter(page, "Next", "Traffic and limits")


def choose(page: Any, label: str, text: str, name: str, value: str) -> None:
    """Tab to a list, and take an option by what is typed."""
    tab_to(page, label)
    page.keyboard.type(text)
    page.get_by_role("option", name=re.compile(f"^{text}")).first.wait_for()
    page.keyboard.press("Enter")
    wait_for_query(page, name, value)
    settled(page, PLAN)


def choose_hardware(page: Any, name: str, device: str, **counts: str) -> None:
    enter(page, "Next", "Hardware")
    move_to(page, "Hardware", "I choose")
    page.keyboard.press("Space")
    choose_device(page, name, device, **counts)


def ship(page: Any) -> None:
    enter(page, "Ship it", "Ship")


def by_shortcut(page: Any, folder: Path) -> Path:
    return checked_bundle(page, lambda: page.keyboard.press("Control+s"), folder)


def test_a_cheapest_layout_within_a_limit(page: Any, address: str, tmp_path: Path) -> None:
    walk_to_traffic(page, address, "Serve a model", "llama 3.3 70b", LLAMA_33)
    type_over(page, "Time per output token", "40 ms")
    wait_for_query(page, "objective.limits.tpot_ms", "40")
    choose_hardware(page, "H100 SXM", "h100-sxm", per_node="8")
    enter(page, "Show the answer", PLAN)
    expect(answer_of(page)).to_contain_text("8 × H100")
    same_as_library(page)
    ship(page)
    document = recipe_in(by_shortcut(page, tmp_path))
    assert document["request"]["objective"]["limits"]["tpot_ms"] == 40


def test_b_hardware_for_a_rate_a_limit_and_a_budget(page, address, tmp_path):
    walk_to_traffic(page, address, "Serve a model", "qwen3 235b", QWEN_235B)
    choose(page, "Load", "Requests a second", "workload.mode", "open")
    type_over(page, "Requests a second", "5")
    wait_for_query(page, "workload.request_rate", "5")
    type_over(page, "Time to first token", "2 s")
    wait_for_query(page, "objective.limits.ttft_ms", "2000")
    tab_to(page, "More limits")
    page.keyboard.press("Enter")
    type_over(page, "Budget", "$40k")
    page.wait_for_function("() => location.search.includes('usd_per_hour')")
    enter(page, "Next", "Hardware")
    enter(page, "Show the answer", PLAN)
    ships_what_was_priced(page, 40_000, lambda: ship(page))
    assert recipe_in(by_shortcut(page, tmp_path))["request"]["workload"]["request_rate"] == 5


def test_d_adapters_of_a_small_model_on_two_consumer_cards(page, address, tmp_path):
    walk_to_traffic(page, address, "Train or fine-tune", "qwen3 8b", "Qwen/Qwen3-8B")
    choose(page, "Kind of run", "LoRA", "workload.method", "lora")
    choose_hardware(page, "RTX 4090", "rtx-4090", per_node="2")
    wait_for_query(page, "hardware.per_node", "2")
    enter(page, "Show the answer", PLAN)
    expect(answer_of(page)).to_contain_text("2 × RTX 4090")
    same_as_library(page)
    ship(page)
    assert recipe_in(by_shortcut(page, tmp_path))["candidate"]["engine"] in PEOPLE_USE


def test_c_two_devices_are_compared_from_the_gallery(page: Any, address: str) -> None:
    open_step(page, address, "")
    tab_to(page, "DeepSeek R1, AMD or NVIDIA")
    page.keyboard.press("Enter")
    expect(answer_of(page)).to_contain_text("MI300X")
    same_as_library(page)


def test_e_a_long_run_says_days_and_money(page: Any, address: str) -> None:
    walk_to_traffic(page, address, "Train or fine-tune", "llama 2 7b", "meta-llama/Llama-2-7b-hf")
    type_over(page, "Tokens in all", "1e12")
    wait_for_query(page, "workload.tokens", "1000000000000")
    choose_hardware(page, "H100 SXM", "h100-sxm", per_node="8", nodes="8")
    wait_for_query(page, "hardware.nodes", "8")
    enter(page, "Show the answer", PLAN)
    assert re.search(r"[\d.]+ days", answer_of(page).inner_text())
    same_as_library(page)


def test_f_a_config_of_ones_own_ends_in_a_bundle(page, address, tmp_path, tiny_config):
    open_step(page, address, "model", "hardware.device=l40s&hardware.per_node=1")
    tab_to(page, "Popular models")
    page.keyboard.press("Enter")
    tab_to(page, "Or paste it")
    page.keyboard.insert_text(json.dumps(tiny_config))
    page.keyboard.press("Tab")  # leaving the box takes it
    page.get_by_text("Your config.json:").first.wait_for()
    settled(page, "Model")
    enter(page, "Show the answer", PLAN)
    same_as_library(page)
    ship(page)
    by_shortcut(page, tmp_path)


def test_g_a_week_with_autoscaling_ends_in_the_bundle_that_was_priced(page, address, tmp_path):
    open_lens(page, address, "over-time", urlencode(SCALED))
    move_to(page, "Policies to compare", "KEDA")
    page.keyboard.press("Space")
    settled(page, PLAN)
    tab_to(page, "Simulate")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Use KEDA").wait_for(timeout=240_000)
    settled(page, PLAN)
    tab_to(page, "Use KEDA")
    page.keyboard.press("Enter")
    wait_for_query(page, "options.scaling.policy", "keda")
    settled(page, PLAN)
    ship(page)
    priced = page.get_by_text(re.compile(r"keda: \d+ to \d+ like this"))
    [(low, high)] = re.findall(r"(\d+) to (\d+) like", priced.inner_text())
    with zipfile.ZipFile(by_shortcut(page, tmp_path)) as archive:
        name = "targets/kubernetes-keda/scaledobject.yaml"
        written = parse_yaml(archive.read(name).decode(), name)["spec"]
    assert [written["minReplicaCount"], written["maxReplicaCount"]] == [int(low), int(high)]


def test_h_a_format_from_its_lens_ends_in_a_bundle(page, address, tmp_path):
    link = {"model": LLAMA_33, "hardware.device": "h100-sxm", "objective.optimize": "cost"}
    open_lens(page, address, "formats", urlencode(link))
    tab_to(page, "Use ")
    before = query(page)
    page.keyboard.press("Enter")
    page.wait_for_function("before => location.search !== before", arg="?" + urlencode(before))
    settled(page, PLAN)
    ship(page)
    assert recipe_in(by_shortcut(page, tmp_path))["candidate"]["weight_dtype"] == "fp8"


def test_i_a_command_is_judged_and_opened_as_a_plan(page: Any, address: str) -> None:
    open_step(page, address, "")
    enter(page, "I have a command", "Does my command work?")
    tab_to(page, "Command")
    page.keyboard.insert_text(f"vllm serve {LLAMA_33} -tp 4 --max-model-len 8192")
    page.keyboard.press("Control+Enter")
    page.get_by_text("It starts").first.wait_for()
    settled(page, "Does my command work?")
    tab_to(page, "Open as plan")
    page.keyboard.press("Enter")
    wait_for_query(page, "workload.max_context", "8192")
    answer_of(page)


def test_j_choices_are_kept_and_compared(page: Any, address: str) -> None:
    kept: dict[str, str] = {}
    for model in ("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-8B", "Qwen/Qwen3-32B"):
        link = {"model": model, "hardware.device": "h100-sxm", **kept}
        open_step(page, address, "plan", urlencode(link))
        answer_of(page)
        tab_to(page, "Keep")
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Kept", exact=True).first.wait_for()
        settled(page, PLAN)
        kept = {"kept": query(page)["kept"]}
    enter(page, "Compare (3)", "Compare")
    expect(page.get_by_test_id("stTable").first.get_by_role("columnheader")).to_have_count(4)


def test_k_own_runs_are_taken_and_counted(open_page, tmp_path, monkeypatch):
    place = tmp_path / "kept"
    monkeypatch.setenv(VARIABLE, str(place))  # the library's answer reads the same place
    (tmp_path / "mine.csv").write_text(table_text(times_as_estimated(1.5, 3)))
    (tmp_path / "server").mkdir()
    page = open_page()
    with recipe_serve(tmp_path / "server", **{VARIABLE: str(place)}) as own:
        open_step(page, own.url, "evidence", urlencode({"model": QWEN_32B} | OWN_LOAD))
        tab_to(page, "Upload")
        upload(page, tmp_path / "mine.csv")  # the dialog that a press opens is the system's
        page.get_by_text("3 of 3 new runs would count").first.wait_for()
        settled(page, PAGES["evidence"])
        tab_to(page, "Keep these runs")
        page.keyboard.press("Enter")
        page.get_by_text("Runs that are kept").first.wait_for()
        settled(page, PAGES["evidence"])
        enter(page, "Plan", PLAN)
        same_as_library(page)
        assert planned(page).own_runs_effect is not None
        page.goto("about:blank")


def test_l_grpo_asks_what_its_users_think_in(page: Any, address: str, tmp_path: Path) -> None:
    walk_to_traffic(page, address, "Train or fine-tune", "qwen3 8b", "Qwen/Qwen3-8B")
    choose(page, "Kind of run", "GRPO", "workload.method", "grpo")
    tab_to(page, "Lengths and more")
    page.keyboard.press("Enter")
    for label, text in {"Prompts a step": "64", "Answers a prompt": "4"}.items():
        type_over(page, label, text)
    type_over(page, "Data file", "/data/prompts.parquet")
    wait_for_query(page, "workload.data", "/data/prompts.parquet")
    choose_hardware(page, "H200 SXM", "h200-sxm", per_node="8")
    enter(page, "Show the answer", PLAN)
    same_as_library(page)
    ship(page)
    document = recipe_in(by_shortcut(page, tmp_path))
    rollout = document["request"]["workload"]["rollout"]
    assert (document["candidate"]["engine"], rollout["prompts"], rollout["samples"]) == (
        "verl",
        64,
        4,
    )


def test_m_a_fleet_is_placed_a_change_tried_and_taken(page, address, tmp_path):
    open_step(page, address, "")
    tab_to(page, "Menu")
    page.keyboard.press("Enter")
    enter(page, "Fleet", PAGES["fleet"])
    page.get_by_text("Money by team").wait_for()
    move_to(page, "What if", "Lose a node of own")
    page.keyboard.press("Space")
    page.get_by_text("Who moves:").wait_for()
    settled(page, PAGES["fleet"])
    tab_to(page, "Take it")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Take back: Lose a node of own").wait_for()
    page.get_by_text("Money by team").wait_for()
    settled(page, PAGES["fleet"])
    tab_to(page, "The fleet: models, pools and limits")
    page.keyboard.press("Enter")
    page.get_by_label("The fleet as YAML").wait_for()
    settled(page, PAGES["fleet"])
    tab_to(page, "Download", whole=True)
    fleet = saved(page, lambda: page.keyboard.press("Enter"), tmp_path)
    assert parse_yaml(fleet.read_text(), fleet.name)["pools"][0]["nodes"] == 1
    tab_to(page, "Download the answer")
    answer = json.loads(saved(page, lambda: page.keyboard.press("Enter"), tmp_path).read_text())
    again = json.loads(json.dumps(rb.fleet(fleet).to_json()))
    assert [answer[name] for name in FLEET_FIGURES] == [again[name] for name in FLEET_FIGURES]
    tab_to(page, "Make all files")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Download all files").wait_for()
    settled(page, PAGES["fleet"])
    tab_to(page, "Download all files")
    with zipfile.ZipFile(saved(page, lambda: page.keyboard.press("Enter"), tmp_path)) as archive:
        assert archive.testzip() is None
        assert {"answer.json", "fleet.yaml", "report.html"} <= set(archive.namelist())


FLEET_FIGURES = ("schema_version", "status", "usd_per_hour", "probability", "charges")
START = {
    "model": "Qwen/Qwen3-8B",
    "hardware.device": "h100-sxm",
    "objective.optimize": "cost",
    "objective.limits.tpot_ms": "40",
}


def shown(page: Any) -> tuple[dict[str, str], str]:
    """What the address says and what the card shows."""
    return query(page), answer_of(page).inner_text()


def limit_to(page: Any, address: str, tpot_ms: str) -> None:
    """Go back to the limits of what stands, type another, and return to the answer."""
    open_step(page, address, "traffic", urlencode(query(page)))
    type_over(page, "Time per output token", tpot_ms)
    wait_for_query(page, "objective.limits.tpot_ms", tpot_ms)
    settled(page, "Traffic and limits")
    enter(page, "Show the answer", PLAN)


def test_the_address_keeps_all_in_reload_back_tabs_and_restart(
    open_page: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, stranger = open_page(), open_page()
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    with recipe_serve(tmp_path / "first") as server:
        open_step(page, server.url, "plan", urlencode(START))
        first = shown(page)
        limit_to(page, server.url, "12")
        edited = shown(page)
        assert edited[0]["objective.limits.tpot_ms"] == "12"
        assert edited[1] != first[1]
        page.reload()
        settled(page, PLAN)
        assert shown(page) == edited
        while query(page)["objective.limits.tpot_ms"] == "12":
            page.go_back()
            settled(page, PLAN)
        page.go_forward()
        wait_for_query(page, "objective.limits.tpot_ms", "12")
        settled(page, PLAN)
        beside = page.context.new_page()  # another tab of the same browser
        open_step(beside, server.url, "plan", urlencode(edited[0]))
        limit_to(beside, server.url, "25")
        assert query(beside)["objective.limits.tpot_ms"] == "25"
        open_step(page, server.url, "plan", urlencode(edited[0]))
        assert shown(page) == edited
        href = page.get_by_role("link", name="Ship", exact=True).get_attribute("href")
        stranger.goto(f"{server.url}/{str(href).removeprefix('/')}")
        settled(stranger, "Ship")
        where = page.locator(".st-key-decision").get_by_role("heading", level=2).inner_text()
        stranger.get_by_role("heading", level=2, name=where).wait_for()
        link = page.url
        for each in (page, beside, stranger):
            each.goto("about:blank")  # a tab left open would ask in vain meanwhile
    monkeypatch.setattr("tests.fixtures.serve.free_port", lambda: server.port)
    with recipe_serve(tmp_path / "second"):
        page.goto(link)
        settled(page, PLAN)
        assert shown(page) == edited
        page.goto("about:blank")
