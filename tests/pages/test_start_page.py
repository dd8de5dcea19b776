"""The start: examples, the tour, the glossary, and names that no model has."""

from __future__ import annotations

import pytest
from streamlit.testing.v1 import AppTest

from recipe_core.model.catalog import catalog_ids
from recipe_core.present.glossary import glossary
from recipe_core.request.examples import examples
from recipe_core.request.link import link_query
from tests.fixtures.opening import LLAMA_70B, opened, press, put, query_of, words

TOUR = ("model.py", "objective.py", "hardware.py", "compare.py", "recipe.py", "check.py")


def test_every_case_of_the_gallery_is_a_card() -> None:
    said = words(opened())
    for example in examples().values():
        assert example.text in said
        assert example.question in said


@pytest.mark.parametrize("name", ["chat-70b", "lora"])
def test_a_case_opens_on_its_comparison(name: str) -> None:
    query = link_query(examples()[name].asked)
    app = opened("compare.py", **query)
    assert query_of(app) == query
    assert app.dataframe[0].value["key"].size


def test_the_tour_walks_the_pages_with_its_example() -> None:
    assert not app_has(opened(model=LLAMA_70B), "tour-start")
    app = opened()  # it is offered on an empty link alone
    app.button(key="tour-start").click().run()
    query = link_query(examples()["chat-70b"].asked)
    for number, page in enumerate(TOUR, 1):
        assert app.session_state["page"] == page
        assert f"stop {number} of {len(TOUR)}" in words(app)
        assert query_of(app) == query
        assert not app.exception
        if number < len(TOUR):
            app.button(key="tour-next").click().run()
    assert press(app, "tour-own").session_state["page"] == "model.py"
    assert query_of(app) == {"v": "1"}
    assert app_has(app, "tour-start")


def test_the_tour_ends_where_one_likes_and_keeps_the_request() -> None:
    app = opened()
    app.button(key="tour-start").click().run()
    assert "stop 2" in words(press(app, "tour-next"))
    app.switch_page("measured.py").run()
    assert "does not stop here" in words(app)
    assert "does not stop here" not in words(press(app, "tour-end"))
    assert app.session_state["page"] == "measured.py"
    app.switch_page(TOUR[1]).run()
    assert "stop 2" not in words(app)
    assert query_of(app)["model"] == LLAMA_70B


@pytest.mark.nightly
def test_the_glossary_opens_on_every_page() -> None:
    for page in ("model.py", "compare.py", "check.py"):
        app = opened(page)
        assert not press(app, "glossary").exception
        for name in ("ttft", "gqa", "mfu", "commitment"):
            assert glossary().terms[name].text in words(app)


def test_a_name_without_a_model_keeps_the_model_and_offers_the_nearest() -> None:
    app = opened(model="Qwen/Qwen3-8B")
    typed(app, "llama70b")
    assert query_of(app)["model"] == "Qwen/Qwen3-8B"
    assert "No model is called “llama70b”. **Qwen/Qwen3-8B** stays." in words(app)
    labels = [app.button(key=f"page-near-{n}").label.replace("\\", "") for n in range(5)]
    assert LLAMA_70B in labels
    assert set(labels) <= set(catalog_ids())
    assert query_of(press(app, f"page-near-{labels.index(LLAMA_70B)}"))["model"] == LLAMA_70B
    assert "No model is called" not in words(app)


def test_nonsense_offers_nothing_but_the_upload() -> None:
    app = opened(model="Qwen/Qwen3-8B")
    typed(app, "asdfghjkl")
    said = words(app)
    assert "Nothing in the catalog is like it." in said
    assert "config.json below" in said
    assert not app_has(app, "page-near-0")
    assert "Nothing in the catalog" not in words(put(app, "_model", "Qwen/Qwen3-32B"))
    assert query_of(app)["model"] == "Qwen/Qwen3-32B"


def test_a_link_to_an_unknown_model_leads_back_to_the_one_before() -> None:
    app = opened(model="Qwen/Qwen3-8B", **{"hardware.nodes": "2"})
    app.query_params["model"] = "someone/Llama-3.1-80B-Instruct"
    app.run()
    assert app_has(app, "start-over")
    assert app_has(app, "page-near-0")
    app.button(key="page-former-model").click().run()
    assert query_of(app) == {"v": "1", "model": "Qwen/Qwen3-8B", "hardware.nodes": "2"}


def typed(app: AppTest, text: str) -> None:
    """Type a name that is not in the list, as the box accepts it."""
    box = app.selectbox(key="_model")
    box.options.append(text)  # AppTest sends only what it finds there
    box.set_value(text).run()
    assert not app.exception


def app_has(app: AppTest, key: str) -> bool:
    """Whether a button is on the page."""
    return any(button.key == key for button in app.button)
