"""The page that simulates replicas over time."""

from __future__ import annotations

from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from recipe_core.present import over_time_view as view
from tests.over_time import answer
from tests.pages.opening import figure, opened, query_of, words

QUESTION = "How many replicas, and when?"
LIMITED = {"objective.limits.ttft_ms": "2000", "objective.limits.tpot_ms": "50"}
SHAPE = {"workload.over_time.shape": "azure-conversation", "workload.over_time.mean_rate": "8"}


class Simulated:
    """In place of a simulation: its answer at once, and what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[dict[str, Any], Any]] = []

    def __call__(self, request: dict[str, Any], *, policies: Any, folders: bool) -> Simulated:
        assert isinstance(folders, bool)
        self.asked.append((request, policies))
        return self

    def to_json(self) -> dict[str, Any]:
        """The answer of every request."""
        return answer()


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> Simulated:
    found = Simulated()
    monkeypatch.setattr("recipe_core.simulate", found, raising=False)
    return found


def page(**query: str) -> AppTest:
    app = opened("over_time.py", **query)
    assert app.title[0].value == QUESTION
    return app


def answered(**query: str) -> AppTest:
    app = page(**{**LIMITED, **SHAPE, **query})
    if not app.button(key="over-time-simulate").disabled:
        app.button(key="over-time-simulate").click().run()
    assert not app.exception, [error.value for error in app.exception]
    return app


def test_the_answer_is_shown_with_every_policy_and_both_bounds(simulated: Simulated) -> None:
    app = answered()
    (request, policies), *more = simulated.asked
    assert not more
    assert policies is None
    assert request["workload"]["over_time"]["shape"] == "azure-conversation"
    assert request["workload"]["over_time"]["mean_rate"] == 8.0
    assert view.verdict(answer())[1] in words(app)
    assert app.dataframe[0].value["key"].tolist() == view.policies_frame(answer())["key"].tolist()
    for chart in ("capacity", "replicas", "first", "share", "cost", "costs", "tradeoff"):
        assert figure(app, f"over-time-{chart}")["data"]


def test_an_answer_is_remembered(simulated: Simulated) -> None:
    for _ in range(2):
        app = answered(**{"workload.over_time.days": "2"})
        assert app.button(key="over-time-simulate").disabled
    assert len(simulated.asked) == 1
