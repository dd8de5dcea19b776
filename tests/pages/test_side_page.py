"""The page of kept choices: keeping, names, links, and what the links no longer hold."""

from __future__ import annotations

import re
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from recipe_core.request.edit import change, select_split
from recipe_core.request.link import DEFAULT, from_query
from recipe_core.request.packed import pack
from recipe_core.request.schema import PlanRequest
from recipe_core.request.shelf import MAX_KEPT, Kept, Shelf, keep, shelf_of, shelf_query
from tests.fixtures.opening import (
    LLAMA_70B,
    PAGES,
    TP8,
    edited,
    figure,
    opened,
    press,
    put,
    query_of,
    words,
)
from tests.pages.test_markdown import MODEL, payload, profile

TP4 = "vllm.bf16.bf16.tp4.pp1.dp1.ep1"
QUESTION = "What differs?"


def asked(key: str, **fields: Any) -> PlanRequest:
    request = change(DEFAULT, fields)
    return change(request, select_split(request, key))


EIGHT = asked(TP8, model=LLAMA_70B)
AMD = asked(TP4, **{"hardware.device": "mi300x", "workload.concurrency": 16})
RUN = asked("torchtitan.bf16.tp1.pp1.v1.cp1.ep1.dp8.z3.mb2.full", **{"workload.kind": "training"})
TWO = keep(keep((), EIGHT), AMD)


def side(shelf: Shelf, **query: str) -> AppTest:
    return opened("side.py", **shelf_query(shelf), **query)


def compared(app: AppTest, place: int = 0) -> dict[str, list[str]]:
    """A table of the page by its first column, without Markdown's escapes."""
    frame = app.table[place].value
    return {
        str(cells[0]).replace("\\", ""): [str(cell).replace("\\", "") for cell in cells[1:]]
        for cells in frame.itertuples(index=False)
    }


def kept_of(app: AppTest) -> list[str]:
    return [kept.name for kept in app.session_state["kept"]]


def test_a_pin_is_kept_and_survives_another_model_and_device() -> None:
    app = opened("compare.py", model=LLAMA_70B, pins=TP8)
    assert press(app, f"keep-{TP8}").button(key=f"keep-{TP8}").disabled
    app.switch_page("model.py").run()
    app.selectbox(key="_model").select("Qwen/Qwen3-32B").run()
    app.switch_page("hardware.py").run()
    edited(app, {"hardware.device": "mi300x"})
    app.switch_page("recipe.py").run()
    app.button(key="keep").click().run()
    app.switch_page("side.py").run()
    rows = compared(app)
    assert rows["Model"] == [LLAMA_70B, "Qwen/Qwen3-32B"]
    assert [text.split(" × ")[1] for text in rows["Devices"]] == ["H100 SXM5", "MI300X"]
    assert "%" in rows["Output"][1]
    shelf, ignored = shelf_of(query_of(app))
    assert (ignored, [kept.name for kept in shelf]) == ([], kept_of(app))


def test_a_link_restores_names_figures_and_the_difference() -> None:
    shelf = (Kept("ours", EIGHT), Kept("theirs, cheap", AMD))
    app = side(shelf)
    assert not app.warning[0].value.startswith("**Parts")
    rows = compared(app)
    assert list(app.table[0].value.columns[1:]) == ["ours", "theirs, cheap"]
    assert rows["State"] == ["holds the load"] * 2 if "State" in rows else True
    assert re.search(r" ms +\n[\d.]+ – [\d.]+ ms$", rows["Time per output token"][0])
    assert "State: holds the load" in words(app)
    app.selectbox(key="_baseline").select(1).run()
    swapped = compared(app)
    assert swapped["Time per output token"][0].count("\n") == 2
    assert swapped["Time per output token"][1].count("\n") == 1


def test_a_name_is_edited_in_place_and_a_bad_one_is_refused() -> None:
    app = side(TWO)
    assert kept_of(put(app, "_name-0", "  the one  "))[0] == "the one"
    assert shelf_of(query_of(app))[0][0].name == "the one"
    assert "name of another choice" in put(app, "_name-1", "the one").error[0].value
    assert (kept_of(app)[1], app.text_input(key="_name-1").value) == (TWO[1].name, TWO[1].name)


def test_a_removed_choice_leaves_the_link_and_the_baseline_where_it_was() -> None:
    shelf = keep(TWO, RUN)
    app = side(shelf)
    app.selectbox(key="_baseline").select(2).run()
    assert kept_of(press(app, "remove-0")) == [shelf[1].name, shelf[2].name]
    assert app.selectbox(key="_baseline").value == 1
    assert press(app, "remove-1").session_state["baseline"] == 0
    assert "kept" not in query_of(press(app, "remove-0"))


def test_a_choice_becomes_the_request_and_what_is_kept_stays() -> None:
    app = side(TWO)
    assert press(app, "recipe.py-1").title[0].value == PAGES["recipe.py"]
    assert (from_query(query_of(app))[0], len(shelf_of(query_of(app))[0])) == (AMD, 2)
    app.switch_page("side.py").run()
    assert press(app, "compare.py-0").session_state["request"] == EIGHT


def test_serving_beside_training_says_what_cannot_be_compared() -> None:
    app = side(keep(TWO, RUN))
    assert "are of different things" in words(app)
    rows = compared(app)
    assert rows["Kind"] == ["Serving", "Serving", "Training"]
    assert rows["Time of a step"][:2] == ["–", "–"]


def test_commands_differ_option_by_option_and_what_is_the_same_is_listed_or_shown() -> None:
    app = side((Kept("eight", EIGHT), Kept("four", asked(TP4, model=LLAMA_70B))))
    assert compared(app, 1) == {"--tensor-parallel-size": ["8", "4"]}
    assert f"vllm serve {LLAMA_70B}" in "\n".join(code.value for code in app.code)
    assert "The same for all" in words(app)
    assert "Model" not in compared(app)
    assert compared(put(app, "differing", False))["Model"] == [LLAMA_70B] * 2
    assert "–" not in compared(put(app, "ranges", False))["Time per output token"][0]


def test_a_choice_that_can_no_longer_be_evaluated_says_why() -> None:
    gone = EIGHT.model_copy(update={"model": "nobody/nothing"})
    app = side((Kept("gone", gone), Kept("here", AMD)))
    assert "cannot be evaluated" in compared(app)["State"][0]
    assert "holds the load" in compared(app)["State"][1]


def test_a_ninth_choice_is_refused_in_words() -> None:
    shelf: Shelf = ()
    for load in range(1, MAX_KEPT + 1):
        shelf = keep(shelf, change(EIGHT, {"workload.concurrency": load}), str(load))
    app = opened("compare.py", pins=TP8, **shelf_query(shelf))
    assert "the most that may be" in press(app, f"keep-{TP8}").error[0].value
    assert len(app.session_state["kept"]) == MAX_KEPT


def test_what_a_link_keeps_and_nobody_can_read_is_named() -> None:
    bad = pack([["bad", {**TWO[0].query, "hardware.device": "h100-smx"}]])
    for text, said in (
        *(("~9.AAAA", "packed in version 9"), ("~1.AAAA", "cut off or changed")),
        (bad, "bad was left out"),
    ):
        app = opened(kept=text)
        assert said in app.warning[0].value.replace("\\", "")
        assert "kept" not in query_of(app)
    app.switch_page("side.py").run()
    assert app.title[0].value == QUESTION
    assert "press Keep" in words(app).replace("*", "")
    assert not app.table


def test_names_models_and_devices_of_others_are_read_as_text() -> None:
    own = change(EIGHT, {"hardware.device": profile("my-gpu")})
    inline = change(AMD, {"model": {**MODEL, "_name_or_path": payload("model")}})
    shelf = (Kept(payload("one")[:70], own), Kept("<b>two</b> | $x$ **y**", inline))
    app = side(shelf)
    for element in (*app.markdown, *app.caption, *app.warning, *app.error):
        assert "![payload" not in element.value
        assert " **payload" not in element.value
    for table in app.table:
        texts = [*map(str, table.value.columns), *map(str, table.value.to_numpy().ravel())]
        assert not any("![payload" in text or "<b>" in text for text in texts)
    assert "<b>" not in str(figure(app, "side-chart"))


def test_a_pin_that_left_the_plan_is_kept_by_a_click_where_the_session_knows_it() -> None:
    app = opened("compare.py", pins=f"{TP8},{TP4}")
    edited(app, {"hardware.per_node": 4})
    assert "is no longer a split of this plan" in words(app)
    assert query_of(app)["pins"] == TP4
    app.button(key=f"keep-{TP8}").click().run()
    (kept,) = app.session_state["kept"]
    assert (kept.request.hardware.per_node, kept.request.candidate.tp) == (8, 8)
    edited(app, DEFAULT)
    assert query_of(app)["pins"] == f"{TP8},{TP4}"


@pytest.mark.nightly
def test_a_split_that_no_longer_fits_is_said_and_in_no_link() -> None:
    app = opened("recipe.py", model=LLAMA_70B)
    assert query_of(put(app, "_split", TP4))["candidate.tp"] == "4"
    edited(app, {"objective.limits.gpus": 2})
    assert "no longer fits" in words(app)
    assert "candidate.tp" not in query_of(app)
    for page in ("model.py", "compare.py"):
        app.switch_page(page).run()
        assert "tp 4, the split that you chose, no longer fits: the link omits it" in words(app)
    edited(app, {"objective.limits.gpus": None})
    assert query_of(app)["candidate.tp"] == "4"
    assert "no longer fits" not in words(app)


@pytest.mark.nightly
def test_every_page_has_a_link_to_copy() -> None:
    app = opened(hardware_chosen=False, model=LLAMA_70B, **shelf_query(TWO))
    for page in (*PAGES, "size.py", "over_time.py", "side.py", "measured.py", "check.py"):
        app.switch_page(page).run()
        (link,) = [code.value for code in app.code if "?v=1&" in code.value]
        assert "model=meta-llama%2FLlama-3.1-70B-Instruct&kept=~1." in link
