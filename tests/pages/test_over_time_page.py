"""The page that simulates replicas over time."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from recipe_core.base.errors import NoAnswer
from recipe_core.present import over_time_view as view
from tests.fixtures.opening import figure, opened, press, put, query_of, words
from tests.fixtures.over_time import answer

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
    assert not app.exception, [error.value for error in app.exception]
    return app


def answered(**query: str) -> AppTest:
    app = page(**{**LIMITED, **SHAPE, **query})
    if not app.button(key="over-time-simulate").disabled:
        app.button(key="over-time-simulate").click().run()
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
    app.selectbox(key="over-time-day").select("Tue").run()
    drawn = figure(app, "over-time-replicas")["data"][0]
    assert drawn["x"][0].startswith("2024-01-02T00:00")
    assert len(drawn["x"]) == 25


def test_an_answer_is_remembered_and_an_edit_asks_for_another(simulated: Simulated) -> None:
    query = {**LIMITED, **SHAPE, "workload.over_time.days": "2"}
    answered(**query)
    app = page(**query)
    assert view.verdict(answer())[1] in words(app)
    assert len(simulated.asked) == 1
    assert query_of(put(app, "_over-time-mean_rate", "16"))["workload.over_time.mean_rate"] == "16"
    assert view.verdict(answer())[1] not in words(app)
    app.get_by_key("over-time-compared").set_value(["keda", "hpa"]).run()
    app.button(key="over-time-simulate").click().run()
    assert simulated.asked[-1][0]["workload"]["over_time"]["mean_rate"] == 16.0
    assert simulated.asked[-1][1] == ["keda", "hpa"]


@pytest.mark.nightly
def test_a_policy_is_looked_at_and_used() -> None:
    app = answered(**{"workload.over_time.days": "4"})
    app.selectbox(key="_over-time-policy").select("hpa").run()
    hpa = next(one for one in answer()["policies"] if one["name"] == "hpa")
    assert view.facts(hpa) in words(app)
    app.button(key="over-time-use").click().run()
    query = query_of(app)
    assert query["options.scaling.policy"] == "hpa"
    assert query["options.scaling.max_replicas"] == str(hpa["scaling"]["max_replicas"])
    assert query["candidate.tp"] == "2"
    assert app.button(key="over-time-use").disabled
    assert "options.scaling.policy" not in query_of(press(app, "over-time-none"))


def test_without_a_limit_published_ones_are_offered() -> None:
    app = page(**SHAPE)
    assert app.button(key="over-time-simulate").disabled
    assert query_of(press(app, "over-time-limits-chat"))["objective.limits.ttft_ms"] == "2000"
    assert query_of(app)["objective.limits.tpot_ms"] == "200"
    assert not app.button(key="over-time-simulate").disabled


def test_a_shape_becomes_rates_that_are_typed() -> None:
    app = page(**{**LIMITED, **SHAPE})
    app.get_by_key("_over-time-from").set_value("rates").run()
    rates = query_of(app)["workload.over_time.rates"]
    assert rates.count(",") == 167
    assert "workload.over_time.shape" not in query_of(app)
    assert query_of(put(app, "_over-time-rates", "1, 2\n3"))["workload.over_time.rates"] == "1,2,3"
    assert "3 rates: 3 h" in words(app)
    assert "many" in put(app, "_over-time-rates", "1, many").error[0].value
    assert query_of(put(app, "_over-time-from", "shape"))["workload.over_time.mean_rate"] == "2"


def test_figures_are_typed_and_impossible_ones_refused_beside_their_box() -> None:
    app = page(**{**LIMITED, **SHAPE})
    before = next(text for text in words(app).split("\n") if text.startswith("A replica answers"))
    assert "Days" in put(app, "_over-time-days", "9999").error[0].value
    app.text_input(key="_over-time-growth_per_month").set_value("10").run()
    assert query_of(app)["workload.over_time.growth_per_month"] == "0.1"
    app.get_by_key("_over-time-attainment").set_value(0.999).run()
    assert query_of(app)["workload.over_time.attainment"] == "0.999"
    assert query_of(put(app, "_options.start.node", "ready"))["options.start.node"] == "ready"
    after = next(text for text in words(app).split("\n") if text.startswith("A replica answers"))
    assert after != before
    assert not press(app, "over-time-saving-0").error
    assert [name for name in query_of(app) if name.startswith("options.start.")] != [
        "options.start.node"
    ]


def trace(lines: int = 240) -> bytes:
    """A trace in Mooncake's form: a request every other second, half of its blocks shared."""
    lengths = ({"input_length": 1024, "output_length": 100 + n % 50} for n in range(lines))
    rows = ({"timestamp": 2000 * n, "hash_ids": [0, 1 + n]} | row for n, row in enumerate(lengths))
    return "\n".join(map(json.dumps, rows)).encode()


def test_a_trace_is_described_and_used() -> None:
    app = page(**LIMITED)
    app.get_by_key("_over-time-from").set_value("trace").run()
    upload = app.file_uploader(key="over-time-file")
    upload.set_value(("x.csv", b"\x00\x01", "text/csv")).run()
    assert len(app.error) == 1
    for data in (trace(), gzip.compress(trace())):
        upload = app.file_uploader(key="over-time-file")
        upload.set_value(("mine.jsonl", data, "text/plain")).run()
        assert not app.error
    described = next(table for table in app.table if "trace holds" in table.proto.alt)
    assert "240 in" in described.value.to_string()
    assert figure(app, "over-time-trace-3")["data"]
    app.button(key="over-time-use-trace").click().run()
    query = query_of(app)
    assert query["workload.mode"] == "open"
    assert float(query["workload.request_rate"]) == pytest.approx(0.5, rel=0.02)
    assert query["workload.prefix_reuse"]
    assert query["workload.over_time.rates"]
    assert app.button(key="over-time-use-trace").disabled
    app.selectbox(key="over-time-trace-shape").select("azure-code").run()
    assert query_of(press(app, "over-time-use-trace"))["workload.over_time.shape"] == "azure-code"


def test_training_is_told_that_this_is_about_serving() -> None:
    app = page(**{"workload.kind": "training"})
    assert "about serving" in app.info[0].value
    assert "workload.kind" not in query_of(press(app, "over-time-serve"))
    assert app.get_by_key("_over-time-from")


def test_what_cannot_be_simulated_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise NoAnswer("no split can run.", field="hardware")

    monkeypatch.setattr("recipe_core.simulate", refuse, raising=False)
    app = answered(**{"workload.over_time.days": "6"})
    assert "no split can run" in app.error[0].value
