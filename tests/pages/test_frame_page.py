"""The frame of the wizard: every page and state, links, Back and Next."""

from __future__ import annotations

import pytest
from streamlit.testing.v1 import AppTest

from tests.fixtures.opening import LLAMA_70B, PAGES, TP8, opened, query_of, shown

TRAIN = "workload.kind=training"
SMALL_CPU = "model=Qwen/Qwen3-0.6B&hardware.device=cpu&hardware.per_node=1"
CLUSTERS = 'options.hardware=[{"device":"mi300x","per_node":8}]&objective.limits.tpot_ms=40'
STATES = {
    "mla": "model=deepseek-ai/DeepSeek-V3&hardware.device=mi300x",
    "moe-open": "model=Qwen/Qwen3-30B-A3B&options.weight_dtypes=auto,fp8&workload.mode=open",
    "cpu": SMALL_CPU,
    "too-small": f"model={LLAMA_70B}&hardware.per_node=1",
    "static-pinned": f"workload.mode=static&hardware.usd_per_device_hour=2.5&pins={TP8}",
    "limit": "workload.mode=offline&objective.limits.usd_per_hour=0.01",
    "unknown-model": "model=nobody/nothing",
    "too-many": "hardware.nodes=100000",
    "clusters": CLUSTERS,
    "engines": "options.engines=vllm,sglang&options.kv_dtypes=auto,fp8"
    "&objective.orientation=balanced",
    "train": f"{TRAIN}&workload.tokens=1e10",
    "train-limit": f"{TRAIN}&hardware.nodes=2&candidate.engine=megatron&objective.limits.gpus=8",
    "train-lora": f"{TRAIN}&model={LLAMA_70B}&workload.method=lora&objective.optimize=cost",
    "train-too-small": f"{TRAIN}&model={LLAMA_70B}&hardware.per_node=1",
    "train-cpu": f"{TRAIN}&{SMALL_CPU}",
}


@pytest.mark.parametrize("page", PAGES)
def test_every_page_asks_its_question_and_gives_a_verdict(page: str) -> None:
    app = opened(page)
    assert app.title[0].value == PAGES[page]
    assert "legal splits hold the load" in app.success[0].value
    assert "Best: **" in app.success[0].value


def assert_drawn(state: str, page: str) -> None:
    app = opened(f"{page}?{STATES[state]}")
    assert app.title[0].value == PAGES[page]
    assert len(app.success) + len(app.warning) + len(app.error) >= 1


DRAWN = ("objective.py", "compare.py", "recipe.py")


@pytest.mark.parametrize("state", list(STATES)[::2])
def test_a_page_draws_a_state(state: str) -> None:
    """A share of the next test: every other state, each on one page."""
    assert_drawn(state, DRAWN[list(STATES).index(state) % len(DRAWN)])


@pytest.mark.nightly
@pytest.mark.parametrize("page", DRAWN)
@pytest.mark.parametrize("state", STATES)
def test_every_page_draws_every_state(state: str, page: str) -> None:
    assert_drawn(state, page)


def test_next_and_back_keep_the_choice_and_ask_for_traffic_before_hardware() -> None:
    app = opened(hardware_chosen=False)
    app.selectbox(key="_model").select("Qwen/Qwen3-8B").run()
    for number, (page, question) in enumerate(PAGES.items()):
        if number:
            app.button(key="next").click().run()
        assert app.title[0].value == question
        assert (page == "objective.py") == (number == 1)
        assert query_of(app) == {"v": "1", "model": "Qwen/Qwen3-8B"}
    assert "next" not in [button.key for button in app.button]
    for _ in range(len(PAGES) - 1):
        app.button(key="back").click().run()
    assert app.selectbox(key="_model").value == "Qwen/Qwen3-8B"


def test_a_bad_link_is_repaired_and_named() -> None:
    app = opened("?hardware.device=h100-smx&workload.input_tokens=-5&hardware.nodes=2&pins=tp8")
    warning = app.warning[0].value.replace("\\", "")
    assert "Did you mean 'h100-sxm'" in warning
    assert "workload.input_tokens=-5" in warning
    assert "pins" in warning
    assert query_of(app) == {"v": "1", "hardware.nodes": "2"}
    assert not app.run().warning  # said once


def bar(app: AppTest) -> str:
    """The two lines at the foot of the window; empty without them."""
    texts = (str(text.value).replace("\\", "") for text in app.markdown)
    return next((text for text in texts if "]\n:small[" in text), "")


def test_no_hardware_is_judged_that_nobody_chose() -> None:
    app = opened(hardware_chosen=False, model=LLAMA_70B)
    for page in ("model.py", "objective.py"):
        if page != "model.py":
            app.switch_page(page).run()
        assert "No hardware is chosen yet" in bar(app)
        assert "8 × H100 SXM5 assumed until you choose" in bar(app)
        assert not app.success
        assert not app.error
    app.switch_page("hardware.py").run()
    assert "hold the load" in bar(app)
    app.switch_page("model.py").run()
    assert "hold the load" in bar(app)  # it was shown, and left as it is
    assert "No hardware is chosen yet" in bar(shown(app, **{"hardware-chosen": False}))
    unknown = opened("?model=nobody/nothing", hardware_chosen=False)
    assert "The request cannot be planned" in bar(unknown)
    assert "nobody/nothing" in unknown.error[0].value.replace("\\", "")


def test_a_link_that_names_hardware_has_chosen_it() -> None:
    for query in ("hardware.per_node=8", "hardware.device=mi300x", "hardware.offer=x"):
        assert "hold the load" in bar(opened(f"?{query}", hardware_chosen=False)), query


@pytest.mark.parametrize("limit", ["400", "35", "5"], ids=["sure", "doubtful", "nothing"])
def test_the_bar_has_two_lines_whatever_the_answer_is(limit: str) -> None:
    app = opened(f"objective.py?objective.limits.tpot_ms={limit}", model=LLAMA_70B)
    assert len(bar(app).split("\n")) == 2
    above = [element.value for kind in (app.title, app.caption) for element in kind][:2]
    assert above[0] == PAGES["objective.py"]  # nothing but title and caption precedes the fields
    assert "Llama" in above[1]


def test_beside_the_steps_there_is_no_bar() -> None:
    assert not bar(opened("check.py"))
