"""The page that judges formats."""

from __future__ import annotations

import pytest
from streamlit.testing.v1 import AppTest

from recipe_core.formats.answer import formats_answer
from recipe_core.present import formats_view as view
from recipe_core.request.link import from_query
from tests.fixtures.opening import LLAMA_70B, figure, opened, press, put, words

SERVE = {
    "model": LLAMA_70B,
    "hardware.per_node": "4",
    "objective.optimize": "cost",
    "objective.limits.accuracy_recovery": "0.98",
}


@pytest.fixture(scope="module")
def page() -> AppTest:
    return opened("formats.py", **SERVE)


def test_the_page_shows_what_the_core_answers(page: AppTest) -> None:
    answer = formats_answer(from_query(SERVE)[0].to_json())
    best = view.best_row(answer)
    assert best is not None
    assert f"**{best['title']}**" in words(page)
    table = page.dataframe[0].value
    assert table["technique"].tolist() == [row["title"] for row in view.shown_rows(answer)]
    assert table["accuracy"].tolist()[0] == view.kept_text(best)


def test_every_point_has_a_band_and_cells_say_whose_word_they_are(page: AppTest) -> None:
    drawn = [trace for trace in figure(page, "formats-accuracy")["data"] if "error_y" in trace]
    assert {trace["name"] for trace in drawn} >= {"Weights", "KV cache"}
    heat = figure(page, "formats-cells")["data"][0]
    said = [cell for row in heat["customdata"] for cell in row]
    assert any("refused" in cell and "Source:" in cell for cell in said)


def test_a_refused_technique_says_why_and_the_best_goes_into_the_request() -> None:
    app = opened("formats.py", **SERVE)
    assert not put(app, "formats-refused", True).exception
    table = app.dataframe[0].value
    assert "Why not" not in table
    assert table.set_index("technique")["why"]["Unstructured sparsity"].startswith("Zeros are")
    assert press(app, "formats-use-best").title[0].value == "Which split?"
    request = app.session_state["request"]
    assert request.options.weight_dtypes != ("auto",) or request.model != LLAMA_70B


def test_training_has_no_formats_to_choose() -> None:
    app = opened("formats.py", **{"workload.kind": "training", "model": LLAMA_70B})
    assert "served" in words(app)
    assert not app.dataframe
