"""A sizing in parts, the market of a link, and a row that becomes the wizard's own."""

import json

import pytest

from recipe_core.base.errors import RecipeError
from recipe_core.plans.plans import plan_splits
from recipe_core.plans.splits import find_row
from recipe_core.request import open_hardware
from recipe_core.request.edit import change
from recipe_core.request.link import DEFAULT, from_query
from recipe_core.request.objective import SURE
from recipe_core.request.size import Market
from recipe_core.request.split_key import candidate_key
from recipe_core.sizing import evaluated
from recipe_core.sizing.answer import Answer, _latest_parts, answer_in_parts
from recipe_core.sizing.size import size_devices
from tests.fixtures.recalled import forget_all
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table

DEVICES = ("h100-sxm", "mi300x", "b200-sxm", "l40s", "a10g", "gh200-144gb", "h200-sxm", "l4")
LIMITS = {"objective.limits.tpot_ms": 40.0, "model": "meta-llama/Llama-3.1-70B-Instruct"}


MARKET = open_hardware.changed_market(Market(), {"devices": DEVICES})


def wizard(**changes):
    return change(DEFAULT, LIMITS | changes)


REQUEST = open_hardware.size_request(wizard(), MARKET)


def in_parts(request, parts):
    return answer_in_parts(request.model_dump(mode="json", exclude_none=True), parts)


@over("percentile", [None, 95.0], share=2)
def test_the_last_part_is_the_whole_answer(percentile):
    own = wizard(**{"objective.limits.percentile": percentile})
    request = open_hardware.size_request(own, MARKET)
    whole = Answer(size_devices(request)).to_json()
    assert in_parts(request, 9) == {**whole, "sized": 8, "of": 8}
    assert in_parts(request, 2)["best"] == whole["best"]


def test_a_part_has_a_row_for_each_of_its_devices_and_growth_sizes_nothing_again(monkeypatch):
    part = in_parts(REQUEST, 1)
    assert (part["sized"], part["of"]) == (6, 8)
    assert {row["device"] for row in part["devices"]} <= set(DEVICES[:6])
    assert all(row["usd_per_month"] > 0 for row in part["devices"])
    in_parts(REQUEST, 2)
    monkeypatch.setattr("recipe_core.sizing.answer.size_devices", None)
    grown = open_hardware.size_request(wizard(), MARKET, growth={"per_month": 0.05})
    assert in_parts(grown, 2)["growth"]["cheapest"]


def placed(own, request, row):
    """The wizard's request once it took a row, its plan, and the row's place in it."""
    taken = change(own, open_hardware.take_size_row(own, request, row))
    planned = plan_splits(taken)
    place = find_row(planned, candidate_key(taken.candidate.model_dump()))
    assert place is not None
    assert planned.feasible[place]
    return taken, planned, place


def test_a_row_becomes_the_wizards_own():
    answer = in_parts(REQUEST, 2)
    rows = {row["device"]: row for row in answer["devices"] + answer["unpriced"]}
    for device in ("b200-sxm", "mi300x", "gh200-144gb", "h200-sxm"):
        row = rows[device]
        taken, planned, place = placed(wizard(), REQUEST, row)
        assert taken.hardware.devices == row["devices_rented"]
        assert planned.columns["tpot_s"][place] == pytest.approx(row["figures"]["tpot_s"])
        if row["usd_per_hour"]:
            assert planned.columns["usd_per_hour"][place] == pytest.approx(row["usd_per_hour"])
    run = change(DEFAULT, {"workload.kind": "training", "objective.limits.wall_hours": 100.0})
    request = open_hardware.size_request(run, Market(devices=("h100-sxm", "mi300x", "l4")))
    placed(run, request, in_parts(request, 9)["best"])


def test_a_market_travels_in_a_link():
    fields = {"vendors": ["amd"], "commitments": ["spot", "reserved"], "unverified": False}
    fields |= {"owned": [{"device": "h100-sxm", "count": 8}], "usd_per_month": 20_000.0}
    market = open_hardware.changed_market(Market(), fields)
    query = open_hardware.market_query(market)
    assert open_hardware.market_of(query) == (market, [])
    assert set(json.loads(query["any"])) == set(fields)
    assert open_hardware.market_query(Market()) == {}
    assert from_query({"v": "1", **query}) == (DEFAULT, [])


@over("text said counted", table("request", "markets"))
def test_a_bad_part_of_a_market_is_named_and_left_out(text, said, counted):
    market, (ignored,) = open_hardware.market_of({"any": text})
    assert said in ignored
    assert market == Market(most_devices=8 if counted else 64)


def test_a_market_falls_back_to_its_defaults_and_the_wizards_goal_to_cost():
    market = open_hardware.changed_market(Market(most_devices=8), {"most_devices": None})
    assert market == Market()
    none = {"most_devices": 0}
    error = refusal(open_hardware.changed_market, Market(), none, kind=RecipeError)
    assert "most_devices" in str(error)
    own = wizard(**{"options.hardware": [{"device": "mi300x"}], "objective.optimize": "throughput"})
    request = open_hardware.size_request(own, Market())
    assert request.objective.optimize == "cost"
    assert request.objective.confidence == SURE
    assert not request.options.hardware
    assert open_hardware.size_request(own, Market(), "gpus").objective.optimize == "gpus"


EDITS = [
    {},
    {"objective.limits.ttft_ms": 900.0},
    {"objective.limits.tpot_ms": None},
    {"objective.confidence": 0.6},
    {"workload.concurrency": 96},
    {"workload.concurrency": 96, "objective.limits.ttft_ms": 900.0},
    {"workload.mode": "open", "workload.request_rate": 3.0},
    {"workload.mode": "open", "workload.request_rate": 4.0},
    {"workload.output_tokens": 100},
]


def test_an_edit_is_answered_as_in_a_process_that_knows_nothing():
    """What is known of a search is judged by the limits, and under the load, of now."""
    market = open_hardware.changed_market(Market(), {"devices": DEVICES[:4]})
    requests = [open_hardware.size_request(wizard(**edit), market) for edit in EDITS]
    edited = [in_parts(request, 9) for request in requests]
    for request, answer in zip(requests, edited, strict=True):
        evaluated._searches.clear()
        forget_all()
        _latest_parts.cache_clear()
        assert in_parts(request, 9) == answer
