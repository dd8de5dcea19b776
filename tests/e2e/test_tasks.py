"""What people come for, from the start page, in a real Chromium: with clicks counted."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from recipe_core.base.documents import parse_yaml
from recipe_core.calibration.importers.rows import table_text
from recipe_core.calibration.place import VARIABLE
from recipe_core.compression.advisor.advise import formats_answer
from recipe_core.hardware.prices import HOURS_PER_MONTH
from recipe_core.plans.plan_json import measure_text
from recipe_core.request.link import from_query
from recipe_core.views.by_device import factor_sentence, plan_by_device
from recipe_core.views.formats import best_technique, usable_formats
from recipe_core.views.size_view import dollars
from tests.calibration.test_own_runs import QWEN_32B, times_as_estimated
from tests.fixtures.serve import recipe_serve
from tests.fixtures.wizard import (
    LENSES,
    LLAMA_33,
    NO_PLAYWRIGHT,
    OWN_LOAD,
    PEOPLE_USE,
    PLAN,
    QWEN_235B,
    SCALED,
    answer_of,
    chip_of,
    choose_device,
    open_step,
    planned,
    query,
    recipe_in,
    same_as_library,
    saved_bundle,
    settled,
    ships_what_was_priced,
    type_over,
    unfold,
    upload,
    wait_for_query,
)

expect = pytest.importorskip("playwright.sync_api", reason=NO_PLAYWRIGHT).expect
pytestmark = [pytest.mark.browser, pytest.mark.nightly]


DATA_FILE, REWARD_FILE = "/data/prompts.parquet", "/data/reward.py"


class Hand:
    """A reader with a mouse: every press counts, what is typed after one does not."""

    def __init__(self, page: Any) -> None:
        self.page, self.clicks = page, 0

    def press(self, what: Any) -> None:
        """Press a control, once the page stands still."""
        settled(self.page, PLAN)
        self.page.mouse.move(0, 0)  # what is said of a control below the hand covers others
        what.filter(visible=True).first.click()
        self.clicks += 1

    def press_button(self, name: str | re.Pattern[str]) -> None:
        self.press(self.page.get_by_role("button", name=name))

    def write(self, label: str, text: str) -> None:
        """Type into a box and leave it by Enter."""
        box = self.page.get_by_role("textbox", name=label).filter(visible=True).first
        self.press(self.page.get_by_role("textbox", name=label))
        box.fill(text)
        box.press("Enter")

    def take(self, label: str, option: str) -> None:
        """Open a list and take an option by its first letters."""
        self.press(self.page.get_by_role("combobox", name=label))
        self.page.keyboard.type(option)
        self.page.get_by_role("option", name=re.compile(f"^{option}")).first.click()
        self.clicks += 1

    def find_model(self, text: str, model: str, place: str = "home") -> None:
        """Search as people type, on the start page or a screen that asks for the model."""
        box = self.page.locator(f".st-key-{place}-text input")
        self.press(box)
        box.fill(text)
        box.press("Enter")
        wait_for_query(self.page, "model", model)
        settled(self.page, PLAN)


@pytest.fixture
def hand(page: Any, address: str) -> Hand:
    """A reader on the start page."""
    open_step(page, address, "")
    return Hand(page)


def walk_to_traffic(hand: Hand, door: str, text: str, model: str) -> None:
    """Take a way in and a model, up to the screen that asks for traffic or the run."""
    hand.press_button(door)
    settled(hand.page, "Model")
    hand.find_model(text, model, "model")
    hand.press_button("Next")
    settled(hand.page, "Traffic and limits")


def walk_to_answer(hand: Hand, title: str, device: str, **counts: str) -> Any:
    """Choose hardware from there, the last count no usual one; the answer's card."""
    page = hand.page
    hand.press_button("Next")
    settled(page, "Hardware")
    hand.press(page.get_by_role("radio", name="I choose"))
    choose_device(page, title, device, **counts)
    *_, (name, count) = counts.items()
    wait_for_query(page, f"hardware.{name}", count)
    hand.press_button("Show the answer")
    card = answer_of(page)
    same_as_library(page)
    return card


def test_a_cheapest_layout_within_a_limit_on_eight_devices(hand: Hand, tmp_path: Path) -> None:
    page = hand.page
    hand.find_model("llama 3.3 70b", LLAMA_33)
    hand.press(chip_of(page, "Hardware").locator("summary"))
    hand.press(page.get_by_role("radio", name="I choose"))
    choose_device(page, "H100 SXM", "h100-sxm", per_node="8")  # the next box is a Tab away
    hand.press(chip_of(page, "Limits").locator("summary"))
    settled(page, PLAN)
    type_over(page, "Time per output token", "40 ms")
    wait_for_query(page, "objective.limits.tpot_ms", "40")
    card = answer_of(page)
    expect(card).to_contain_text("80 %")
    expect(card).to_contain_text("8 × H100")
    same_as_library(page)
    hand.press_button("Ship it")
    settled(page, "Ship")
    assert hand.clicks <= 5
    document = recipe_in(saved_bundle(page, tmp_path))
    assert document["request"]["objective"]["limits"]["tpot_ms"] == 40
    assert document["request"]["hardware"]["device"] == "h100-sxm"


def test_b_hardware_for_a_rate_a_limit_and_a_budget(hand: Hand, tmp_path: Path) -> None:
    page = hand.page
    walk_to_traffic(hand, "Serve a model", "qwen3 235b", QWEN_235B)
    hand.take("Load", "Requests a second")
    wait_for_query(page, "workload.mode", "open")
    settled(page, "Traffic and limits")
    hand.write("Requests a second", "5")
    wait_for_query(page, "workload.request_rate", "5")
    type_over(page, "Time to first token", "2 s")
    wait_for_query(page, "objective.limits.ttft_ms", "2000")
    hand.clicks += 1
    unfold(page, "More limits")
    type_over(page, "Budget", "$40k/month")
    page.wait_for_function("() => location.search.includes('usd_per_hour')")
    settled(page, "Traffic and limits")
    hand.press_button("Show the answer")
    where = ships_what_was_priced(page, 40_000, lambda: hand.press_button("Ship it"))
    document = recipe_in(saved_bundle(page, tmp_path))
    month = dollars(document["estimate"]["cost"]["usd_per_hour"] * HOURS_PER_MONTH)
    assert f"{month} a month" in where
    uneven = (
        128 % document["candidate"]["ep"]
    )  # shares of its experts: vLLM alone takes uneven ones
    assert not uneven or document["candidate"]["engine"] == "vllm"
    assert document["request"]["workload"]["request_rate"] == 5
    assert hand.clicks <= 9


def test_c_two_devices_are_compared_from_the_gallery(hand: Hand) -> None:
    hand.press(hand.page.get_by_role("link", name="AMD or NVIDIA"))
    card = answer_of(hand.page)
    expect(card).to_contain_text("MI300X")
    assert hand.clicks == 1
    same_as_library(hand.page)
    first, second, *_ = plan_by_device(planned(hand.page))
    why = factor_sentence(first, second)
    assert "H200" in why
    expect(hand.page.get_by_text(why)).to_be_visible()


def test_d_adapters_of_a_small_model_on_two_consumer_cards(hand: Hand, tmp_path: Path) -> None:
    page = hand.page
    walk_to_traffic(hand, "Train or fine-tune", "qwen3 8b", "Qwen/Qwen3-8B")
    hand.take("Kind of run", "LoRA")
    wait_for_query(page, "workload.method", "lora")
    card = walk_to_answer(hand, "RTX 4090", "rtx-4090", per_node="2")
    expect(card).to_contain_text("2 × RTX 4090")
    starts = re.search(r"starts with (\d+) %", card.inner_text())
    assert starts is not None
    assert int(starts[1]) >= 80
    hand.press_button("Ship it")
    settled(page, "Ship")
    assert recipe_in(saved_bundle(page, tmp_path))["candidate"]["engine"] in PEOPLE_USE
    assert hand.clicks <= 9


def test_e_a_long_run_says_days_and_money(hand: Hand) -> None:
    page = hand.page
    walk_to_traffic(hand, "Train or fine-tune", "llama 2 7b", "meta-llama/Llama-2-7b-hf")
    hand.write("Tokens in all", "1e12")
    wait_for_query(page, "workload.tokens", "1000000000000")
    card = walk_to_answer(hand, "H100 SXM", "h100-sxm", per_node="8", nodes="8")
    plan = planned(page)
    for name in ("wall", "usd_run"):
        expect(card).to_contain_text(measure_text(plan, name, plan.best_row)[0])
    assert re.search(r"[\d.]+ days", card.inner_text())
    assert hand.clicks <= 7


def test_f_a_config_of_ones_own_ends_in_a_bundle(
    page: Any, address: str, tmp_path: Path, tiny_config: dict[str, Any]
) -> None:
    open_step(page, address, "model", "hardware.device=l40s&hardware.per_node=1")
    hand = Hand(page)
    (tmp_path / "config.json").write_text(json.dumps(tiny_config))
    hand.clicks += 2  # the folded part, and the file
    unfold(page, "config.json")
    upload(page, tmp_path / "config.json")
    page.get_by_text("Your config.json:").first.wait_for()
    settled(page, "Model")
    hand.press_button("Show the answer")
    same_as_library(page)
    hand.press_button("Ship it")
    settled(page, "Ship")
    saved_bundle(page, tmp_path)
    assert hand.clicks <= 4


def on_lens(page: Any, address: str, lens: str, **link: str) -> Hand:
    """A reader on a lens of the plan."""
    open_step(page, address, "plan", urlencode({**link, "lens": lens}))
    page.get_by_role("tab", name=LENSES[lens], selected=True).wait_for()
    settled(page, PLAN)
    return Hand(page)


def test_g_a_week_with_autoscaling_ends_in_the_bundle_that_was_priced(
    page: Any, address: str, tmp_path: Path
) -> None:
    hand = on_lens(page, address, "over-time", **SCALED)
    hand.press(page.get_by_test_id("stButtonGroup").get_by_text("KEDA", exact=True))
    hand.press_button("Simulate")
    page.get_by_role("button", name="Use KEDA").wait_for(timeout=240_000)
    hand.press_button("Use KEDA")
    wait_for_query(page, "options.scaling.policy", "keda")
    settled(page, PLAN)
    expect(page.get_by_role("button", name=re.compile("KEDA .*replicas"))).to_be_visible()
    hand.press_button("Ship it")
    settled(page, "Ship")
    priced = page.get_by_text(re.compile(r"keda: \d+ to \d+ like this"))
    expect(priced).to_be_visible()
    replicas = [int(text) for text in re.findall(r"(\d+) to (\d+)", priced.inner_text())[0]]
    with zipfile.ZipFile(saved_bundle(page, tmp_path)) as archive:
        name = "targets/kubernetes-keda/scaledobject.yaml"
        written = parse_yaml(archive.read(name).decode(), name)["spec"]
    assert [written["minReplicaCount"], written["maxReplicaCount"]] == replicas
    assert hand.clicks <= 4


@pytest.mark.parametrize(("how", "weights"), [("checkpoint", "fp8"), ("made here", "int4")])
def test_h_a_format_from_its_lens_ends_in_a_bundle(
    page: Any, address: str, tmp_path: Path, how: str, weights: str
) -> None:
    """The recommended one by its checkpoint; one without a checkpoint is made by compression."""
    link = {"model": LLAMA_33, "hardware.device": "h100-sxm", "objective.optimize": "cost"}
    hand = on_lens(page, address, "formats", **link)
    judged = formats_answer(from_query(query(page))[0].to_json(), folders=True)
    if how == "checkpoint":
        fields = best_technique(judged)["set"]
        hand.press_button(re.compile("^Use "))
    else:
        rows = usable_formats(judged)
        number = next(n for n, row in enumerate(rows) if row["technique"] == "int4_weight_only")
        fields = rows[number]["set"]
        tick_row(page, hand, number)
        hand.press_button("Use INT4 weights")
    made = fields.get("options.compression")
    if made:
        page.get_by_role("button", name="Checkpoint to be made").first.wait_for()
    else:
        wait_for_query(page, "model", fields["model"])
    settled(page, PLAN)
    hand.press_button("Ship it")
    settled(page, "Ship")
    bundle = saved_bundle(page, tmp_path)
    document = recipe_in(bundle)
    assert document["candidate"]["weight_dtype"] == weights
    assert document["request"]["model"] == fields.get("model", LLAMA_33)
    assert (document["request"]["options"].get("compression") or {}).get("technique") == (
        made and made["technique"]
    )
    assert hand.clicks <= 3


def tick_row(page: Any, hand: Hand, number: int) -> None:
    """Tick a row of the lens's table, which is a picture: by keys, from its first cell."""
    table = page.get_by_test_id("stDataFrame").filter(visible=True).first
    table.scroll_into_view_if_needed()
    settled(page, PLAN)
    table.locator("canvas").first.focus()
    for _ in range(number):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Shift+Space")
    hand.clicks += 1  # one by mouse


def test_i_a_command_is_judged_and_opened_as_a_plan(hand: Hand) -> None:
    hand.press_button("I have a command")
    settled(hand.page, "Does my command work?")
    box = hand.page.get_by_role("textbox", name="Command")
    hand.press(box)
    box.fill(f"vllm serve {LLAMA_33} -tp 4 --quantization fp8 --max-model-len 8192")
    box.press("Control+Enter")
    hand.page.get_by_text("It starts").first.wait_for()
    settled(hand.page, "Does my command work?")
    hand.press_button("Open as plan")
    wait_for_query(hand.page, "workload.max_context", "8192")
    answer_of(hand.page)
    assert query(hand.page)["options.weight_dtypes"] == "fp8"
    assert hand.clicks <= 3


def test_j_three_choices_are_kept_and_shared(open_page: Callable[..., Any], address: str) -> None:
    page, other = open_page(), open_page()
    hand = Hand(page)
    for model in ("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-8B", "Qwen/Qwen3-32B"):
        kept = query(page).get("kept", "") if page.url.startswith("http") else ""
        link = {"model": model, "hardware.device": "h100-sxm", **({"kept": kept} if kept else {})}
        open_step(page, address, "plan", urlencode(link))
        answer_of(page)
        hand.press(page.get_by_role("button", name="Keep", exact=True))
        page.get_by_role("button", name="Kept", exact=True).first.wait_for()
        settled(page, PLAN)
    hand.press(page.get_by_role("link", name="Compare (3)"))
    settled(page, "Compare")
    other.goto(page.url)  # nothing but the link
    settled(other, "Compare")
    own, others = (each.get_by_test_id("stTable") for each in (page, other))
    expect(others.first.get_by_role("columnheader")).to_have_count(4)
    assert others.all_inner_texts() == own.all_inner_texts()
    assert query(other) == query(page)
    assert hand.clicks == 4


def test_k_own_runs_are_dropped_and_named_in_the_answer(
    open_page: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "kept"
    monkeypatch.setenv(VARIABLE, str(place))  # the library's answer reads the same place
    (tmp_path / "mine.csv").write_text(table_text(times_as_estimated(1.5, 3)))
    link = {"model": QWEN_32B} | OWN_LOAD
    (tmp_path / "server").mkdir()
    page = open_page()
    with recipe_serve(tmp_path / "server", **{VARIABLE: str(place)}) as own:
        open_step(page, own.url, "plan", urlencode(link))
        before = answer_of(page).inner_text()
        hand = Hand(page)
        hand.press(page.get_by_role("link", name="Evidence"))
        settled(page, "How right are the numbers?")
        hand.clicks += 1  # the drop
        upload(page, tmp_path / "mine.csv")
        page.get_by_text("3 of 3 new runs would count").first.wait_for()
        hand.press_button("Keep these runs")
        page.get_by_text("Runs that are kept").first.wait_for()
        hand.press(page.get_by_role("link", name="Plan", exact=True))
        card = answer_of(page)
        same_as_library(page)
        effect = planned(page).own_runs_effect
        assert effect is not None
        said = f"{effect.text[:1].upper()}{effect.text[1:]}."
        expect(page.get_by_text(said)).to_be_visible()
        assert card.inner_text() != before
        assert hand.clicks <= 4
        page.goto("about:blank")


def test_l_grpo_asks_what_its_users_think_in(hand: Hand, tmp_path: Path) -> None:
    page = hand.page
    hand.press_button("Train or fine-tune")
    settled(page, "Model")
    hand.find_model("qwen3 8b", "Qwen/Qwen3-8B", "model")
    hand.press_button("Next")
    settled(page, "Traffic and limits")
    hand.take("Kind of run", "GRPO")
    wait_for_query(page, "workload.method", "grpo")
    settled(page, "Traffic and limits")
    hand.clicks += 1
    unfold(page, "Lengths and more")
    hand.write("Prompts a step", "64")
    for label, text in {"Answers a prompt": "4", "Longest answer": "3072"}.items():
        type_over(page, label, text)
    wait_for_query(page, "workload.rollout.max_response_tokens", "3072")
    settled(page, "Traffic and limits")
    type_over(page, "Data file", DATA_FILE)
    wait_for_query(page, "workload.data", DATA_FILE)
    type_over(page, "Reward file", REWARD_FILE)
    wait_for_query(page, "workload.rollout.reward_file", REWARD_FILE)
    hand.press_button("Next")
    settled(page, "Hardware")
    hand.press(page.get_by_role("radio", name="I choose"))
    wait_for_query(page, "hardware.device", "h100-sxm")
    hand.press_button("Show the answer")
    answer_of(page)
    same_as_library(page)
    hand.press_button("Ship it")
    settled(page, "Ship")
    bundle = saved_bundle(page, tmp_path)
    document = recipe_in(bundle)
    assert document["candidate"]["engine"] == "verl"
    rollout = document["request"]["workload"]["rollout"]
    asked = {"prompts": 64, "samples": 4, "max_response_tokens": 3072}
    assert {name: rollout[name] for name in asked} == asked
    with zipfile.ZipFile(bundle) as archive:
        written = b"".join(map(archive.read, archive.namelist())).decode(errors="ignore")
    assert DATA_FILE in written
    assert REWARD_FILE in written
    assert hand.clicks <= 11
