"""The page that chooses the hardware."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from recipe_core.present import size_view
from recipe_core.request.link import from_query
from recipe_core.request.open_hardware import size_request
from recipe_core.request.size import Market
from recipe_core.sizing.answer import Answer
from recipe_core.sizing.size import size
from tests.fixtures.opening import (
    LLAMA_70B,
    PAGES,
    figure,
    opened,
    press,
    put,
    query_of,
    shown,
    words,
)

QUESTION = "Which hardware, and how much?"
FEW = json.dumps({"devices": ["h100-sxm", "mi300x", "b200-sxm", "a10g", "gh200-144gb"]})
SERVE = {"model": LLAMA_70B, "objective.limits.tpot_ms": "40", "any": FEW}
TRAIN = {
    "model": LLAMA_70B,
    "workload.kind": "training",
    "workload.tokens": "1e10",
    "objective.limits.wall_hours": "336",
    "any": FEW,
}


def sized(**query: str) -> AppTest:
    app = opened("size.py", **query)
    assert app.title[0].value == QUESTION
    return app


def core(query: dict[str, str]) -> dict[str, Any]:
    request, _ = from_query({name: value for name, value in query.items() if name != "any"})
    return Answer(size(size_request(request, Market(**json.loads(query["any"]))))).to_json()


@pytest.mark.parametrize(
    "query", [SERVE, pytest.param(TRAIN, marks=pytest.mark.nightly)], ids=["serving", "training"]
)
def test_the_page_shows_what_the_core_answers(query: dict[str, str]) -> None:
    answer = core(query)
    app = sized(**query)
    assert size_view.sentence(answer["best"]) in words(app)
    table = app.dataframe[0].value
    assert table["key"].tolist() == [size_view.key(row) for row in answer["devices"]]
    assert table["month"].tolist() == [row["usd_per_month"] for row in answer["devices"]]


def test_parts_give_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recipe_core.sizing.parts.PART", 2)
    app = sized(**SERVE | {"objective.limits.ttft_ms": "1900"})
    assert len(app.success) == 1
    assert not app.info
    assert len(app.dataframe[0].value) >= 3


def test_prices_to_doubt_are_marked_wherever_they_are_shown() -> None:
    app = sized(**SERVE)
    doubtful = [size_view.key(row) for row in core(SERVE)["devices"] if size_view.is_doubtful(row)]
    assert doubtful
    assert size_view.DOUBT_MEANS in words(app)
    drawn = figure(app, "size-costs")["data"][-1]
    marked = [text for text in drawn["text"] if size_view.DOUBT in text]
    assert len(marked) == len(doubtful)


def test_the_hardware_is_taken_with_its_price_and_split() -> None:
    best = core(SERVE)["best"]
    app = sized(**SERVE)
    assert press(app, "size-take").title[0].value == PAGES["recipe.py"]
    query = query_of(app)
    assert query["hardware.device"] == best["device"]
    assert query["hardware.offer"] == best["offer"]["name"]
    assert query["candidate.tp"] == str(best["split"]["tp"])
    assert (query["objective.optimize"], query["objective.confidence"]) == ("cost", "0.9")
    assert "does not fit" not in words(app)
    app.switch_page("compare.py").run()
    assert re.search("holds? the load within the limit", words(app))
    assert query["workload.concurrency"] == "64"  # that the hardware was chosen for
    assert json.loads(query["any"]) == json.loads(FEW)


def test_another_device_is_looked_at_kept_and_compared() -> None:
    app = sized(**SERVE)
    second = app.dataframe[0].value["key"][1]
    shown(app, **{"size-device": second})
    app.button(key="size-keep").click().run()
    (kept,) = app.session_state["kept"]
    assert kept.request.hardware.device == second
    assert kept.request.candidate is not None
    assert size_view.short(core(SERVE)["devices"][1]) in app.button(key="size-take").label
    assert press(app, "size-compare").title[0].value == PAGES["compare.py"]
    assert query_of(app)["hardware.device"] == second


def test_limits_confidence_and_market_are_asked_and_travel_in_the_link() -> None:
    app = sized(**SERVE)
    app.get_by_key("_objective.confidence").set_value(60).run()
    app.get_by_key("_any_vendors").set_value(["amd"]).run()
    app.text_input(key="_objective.limits.ttft_ms").set_value("1.5k").run()
    query = query_of(app)
    assert (query["objective.confidence"], query["objective.limits.ttft_ms"]) == ("0.6", "1500")
    assert json.loads(query["any"])["vendors"] == ["amd"]
    assert app.dataframe[0].value["key"].tolist() == ["mi300x"]


def test_a_bad_market_of_a_link_is_named() -> None:
    app = opened(any='{"vendors":["amd"],"providers":3}')
    assert "any.providers" in app.warning[0].value
    assert query_of(app)["any"] == '{"vendors":["amd"]}'


@pytest.mark.nightly
def test_filters_and_own_machines_narrow_the_choice() -> None:
    app = sized(**SERVE)
    shown(app, **{"size-more": True})
    app.selectbox(key="size-own-device").select("h100-sxm").run()
    assert "h100-sxm (owned)" in press(app, "size-own-add").dataframe[0].value["key"].tolist()
    assert "owned" not in json.loads(query_of(press(app, "size-own-0"))["any"])


def test_what_cannot_hold_says_what_the_nearest_device_lacks() -> None:
    app = sized(**SERVE | {"objective.limits.tpot_ms": "1"})
    assert "No device holds the limits. Nearest is" in app.error[0].value
    assert not app.get("plotly_chart")


def test_a_device_without_a_price_stands_apart_and_every_chart_is_drawn() -> None:
    app = sized(**SERVE)
    apart = next(table for table in app.table if "no price" in table.proto.alt)
    assert "GH200" in apart.value.to_string()
    assert "per device-hour" in apart.value.to_string()
    charts = {"Cost against a limit": "size-against", "Confidence": "size-confidence"}
    for title, chart in charts.items():
        assert figure(shown(app, **{"size-views": title}), chart)["data"]


@pytest.mark.nightly
def test_what_counts_is_cost_until_the_reader_chooses() -> None:
    app = sized(**SERVE)
    assert put(app, "_size_goal", "gpus").dataframe[0].value["rented"][0] == "2"
    assert query_of(press(app, "size-take"))["objective.optimize"] == "gpus"


def test_a_folded_part_asks_for_its_answer_and_a_price_draws_both_curves() -> None:
    app = sized(**SERVE)
    for part, said in (
        *(("growth", "today's size lasts"), ("availability", "Enough")),
        ("purchase", "pays within 36 months up to"),
    ):
        shown(app, **{f"size-open-{part}": True})
        assert said in words(app) + "\n".join(number.label for number in app.text_input)
    assert figure(app, "size-growth-chart")["data"]
    app.text_input(key="_size_purchase_usd_per_device").set_value("30k").run()
    assert "At your price it has paid after" in words(app)
    names = [trace["name"] for trace in figure(app, "size-purchase-chart")["data"]]
    assert names == ["Rented", "Owned, paid up front", "Owned, written off"]
    assert "Written off over" in put(app, "_size_purchase_years", "99").error[0].value


def test_the_page_is_entered_from_where_the_hardware_is_unknown() -> None:
    for page in ("model.py", "hardware.py"):
        links = [link.proto.label for link in opened(page).get("page_link")]
        assert "Any hardware: find it for me" in links, page


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("link", "market"),
    [
        ("model=nobody/nothing", None),
        ("", '{"devices":["h100-sxm"],"providers":["nobody"]}'),
        *((link, FEW) for link in ("workload.mode=open", "workload.mode=offline")),
        ("options.engines=tensorrt-llm", FEW),
    ],
    ids=["unknown-model", "no-offer", "open-no-limit", "offline", "one-engine"],
)
def test_every_state_is_drawn(link: str, market: str | None) -> None:
    app = opened(f"size.py?{link}", **({"any": market} if market else {}))
    assert len(app.success) + len(app.error) == 1
