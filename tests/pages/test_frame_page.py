"""The frame of the wizard: every page and state, links, Back and Next."""

from __future__ import annotations

import pytest
from streamlit.testing.v1 import AppTest

from tests.fixtures.opening import LLAMA_70B, PAGES, TP8, opened, query_of


@pytest.mark.parametrize("page", PAGES)
def test_every_page_asks_its_question_and_gives_a_verdict(page: str) -> None:
    app = opened(page)
    assert app.title[0].value == PAGES[page]
    assert "legal splits hold the load" in app.success[0].value
    assert "Best: **" in app.success[0].value


@pytest.mark.parametrize("page", ["objective.py", "compare.py", "recipe.py"])
@pytest.mark.parametrize(
    "query",
    [
        {"model": "deepseek-ai/DeepSeek-V3", "hardware.device": "mi300x"},
        {
            "model": "Qwen/Qwen3-30B-A3B",
            "options.weight_dtypes": "auto,fp8",
            "workload.mode": "open",
        },
        {"model": "Qwen/Qwen3-0.6B", "hardware.device": "cpu", "hardware.per_node": "1"},
        {"model": LLAMA_70B, "hardware.per_node": "1"},
        {"workload.mode": "static", "hardware.usd_per_device_hour": "2.5", "pins": TP8},
        {"workload.mode": "offline", "objective.limits.usd_per_hour": "0.01"},
        {"model": "nobody/nothing"},
        {"hardware.nodes": "100000"},
        {
            "options.hardware": '[{"device":"mi300x","per_node":8}]',
            "objective.limits.tpot_ms": "40",
        },
        {
            "options.engines": "vllm,sglang",
            "options.kv_dtypes": "auto,fp8",
            "objective.orientation": "balanced",
        },
        {"workload.kind": "training", "workload.tokens": "1e10"},
        {
            "workload.kind": "training",
            "hardware.nodes": "2",
            "candidate.engine": "megatron",
            "objective.limits.gpus": "8",
        },
        {
            "workload.kind": "training",
            "model": LLAMA_70B,
            "workload.method": "lora",
            "objective.optimize": "cost",
        },
        {"workload.kind": "training", "model": LLAMA_70B, "hardware.per_node": "1"},
        {
            "workload.kind": "training",
            "hardware.device": "cpu",
            "hardware.per_node": "1",
            "model": "Qwen/Qwen3-0.6B",
        },
    ],
    ids=[
        *(
            "mla",
            "moe-open",
            "cpu",
            "too-small",
            "static-pinned",
            "limit",
            "unknown-model",
            "too-many",
            "clusters",
            "engines",
        ),
        *("train", "train-limit", "train-lora", "train-too-small", "train-cpu"),
    ],
)
def test_every_page_draws_every_state(page: str, query: dict[str, str]) -> None:
    app = opened(page, **query)
    assert app.title[0].value == PAGES[page]
    assert len(app.success) + len(app.warning) + len(app.error) >= 1


def test_next_and_back_keep_the_choice() -> None:
    app = opened()
    app.selectbox(key="_model").select("Qwen/Qwen3-8B").run()
    app.button(key="next").click().run()
    assert app.title[0].value == PAGES["objective.py"]
    assert query_of(app) == {"v": "1", "model": "Qwen/Qwen3-8B"}
    app.button(key="back").click().run()
    assert app.selectbox(key="_model").value == "Qwen/Qwen3-8B"


def test_a_bad_link_is_repaired_and_named() -> None:
    app = opened(
        **{
            "hardware.device": "h100-smx",
            "workload.input_tokens": "-5",
            "hardware.nodes": "2",
            "pins": "tp8",
        }
    )
    warning = app.warning[0].value.replace("\\", "")
    assert "Did you mean 'h100-sxm'" in warning
    assert "workload.input_tokens=-5" in warning
    assert "pins" in warning
    assert query_of(app) == {"v": "1", "hardware.nodes": "2"}
    assert not app.run().warning  # said once


# The frame's bar


def bar(app: AppTest) -> str:
    """The two lines at the foot of the window."""
    return next(
        str(one.value).replace("\\", "") for one in app.markdown if "]\\\n:small[" in str(one.value)
    )


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
    app.session_state["hardware-chosen"] = False
    app.run()
    assert "No hardware is chosen yet" in bar(app)


@pytest.mark.parametrize(
    "query",
    [{"hardware.per_node": "8"}, {"hardware.device": "mi300x"}, {"hardware.offer": "x"}],
    ids=["stated", "device", "bad"],
)
def test_a_link_that_names_hardware_has_chosen_it(query: dict[str, str]) -> None:
    assert "hold the load" in bar(opened(hardware_chosen=False, **query))


def test_the_model_that_nobody_knows_is_said_before_hardware_is_chosen() -> None:
    app = opened(hardware_chosen=False, model="nobody/nothing")
    assert "The request cannot be planned" in bar(app)
    assert "nobody/nothing" in app.error[0].value.replace("\\", "")


def test_the_steps_ask_for_traffic_before_hardware() -> None:
    app = opened(hardware_chosen=False)
    for question in list(PAGES.values())[1:]:
        app.button(key="next").click().run()
        assert app.title[0].value == question
    assert "next" not in [button.key for button in app.button]
    assert PAGES["objective.py"] == list(PAGES.values())[1]


@pytest.mark.parametrize("limit", ["400", "35", "5"], ids=["sure", "doubtful", "nothing"])
def test_the_bar_has_two_lines_whatever_the_answer_is(limit: str) -> None:
    app = opened("objective.py", model=LLAMA_70B, **{"objective.limits.tpot_ms": limit})
    assert len(bar(app).split("\n")) == 2
    above = [element.value for kind in (app.title, app.caption) for element in kind][:2]
    assert above[0] == PAGES["objective.py"]  # nothing but title and caption precedes the fields
    assert "Llama" in above[1]


def test_beside_the_steps_there_is_no_bar() -> None:
    app = opened("check.py")
    assert not [one for one in app.markdown if "]\\\n:small[" in str(one.value)]
