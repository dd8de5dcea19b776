"""How surely limits must hold where a request does not say, and what more certainty costs."""

import pytest

from recipe_core.base.errors import InputError
from recipe_core.doors.answers import priced_plan_json
from recipe_core.estimates.training.starts import SURE as STARTS
from recipe_core.plans.confidence_prices import CONFIDENCES, price_confidences
from recipe_core.plans.plans import plan_candidate, plan_estimated, plan_splits
from recipe_core.plans.splits import broken_rules
from recipe_core.request.edit import change
from recipe_core.request.link import DEFAULT, from_query, to_query
from recipe_core.request.objective import SURE, Objective
from recipe_core.request.open_hardware import size_request
from recipe_core.request.schema import PlanRequest
from recipe_core.request.size import Market
from recipe_core.views.plan_words import confidence_prices_text
from recipe_core.views.plans import plan_text

LLAMA_70B = "meta-llama/Llama-3.1-70B-Instruct"
COST = {"model": LLAMA_70B, "objective.optimize": "cost"}
SEARCHED = change(DEFAULT, COST | {"objective.limits.tpot_ms": 40.0})
STATED = change(SEARCHED, {"workload.concurrency": 48, "objective.limits.tpot_ms": 33.0})


def asked(request, confidence):
    return change(request, {"objective.confidence": confidence})


@pytest.mark.parametrize("request_", [SEARCHED, STATED], ids=["searched", "stated"])
def test_limits_hold_with_80_percent_unless_a_request_says_otherwise(request_):
    said_nothing, said = plan_splits(request_), plan_splits(asked(request_, SURE))
    assert said_nothing.request.objective.confidence is None
    assert (said_nothing.order == said.order).all()
    assert (said_nothing.columns["load"] == said.columns["load"]).all()
    assert (said_nothing.chances[said_nothing.order] >= SURE).all()
    by_estimate = plan_splits(asked(request_, 0.5))
    assert by_estimate.chances[by_estimate.best_row] < SURE
    assert "confidence" not in by_estimate.rules
    assert SURE == STARTS == Objective().required_confidence == 0.8
    assert size_request(request_, Market()).objective.confidence == SURE


def test_the_searched_load_is_the_largest_at_which_the_limit_is_sure():
    plan, by_estimate = plan_splits(SEARCHED), plan_splits(asked(SEARCHED, 0.5))
    row = plan.best_row
    load = plan.columns["load"][row]
    assert load < 0.9 * by_estimate.columns["load"][row]
    more = change(
        SEARCHED, {"workload.concurrency": int(load * 1.02), "candidate": plan.candidate(row)}
    )
    judged, at = plan_candidate(more)
    assert broken_rules(judged, at) == {"confidence"}


def test_without_limits_a_confidence_changes_nothing():
    free = change(DEFAULT, {"model": LLAMA_70B})
    plans = [plan_splits(asked(free, confidence)) for confidence in (None, 0.5, 0.99)]
    answers = [priced_plan_json(plan, 5) for plan in plans]
    assert answers[0] == answers[1] == answers[2]
    assert "confidence_prices" not in answers[0]


def test_a_link_states_a_confidence_only_where_the_request_does():
    assert "objective.confidence" not in to_query(SEARCHED)
    for confidence in (0.5, 0.8, 0.95):
        query = to_query(asked(SEARCHED, confidence))
        assert from_query(query)[0].objective.confidence == confidence
    schema = PlanRequest.model_json_schema()["$defs"]["Objective"]["properties"]["confidence"]
    assert schema["default"] == SURE
    with pytest.raises(InputError, match="confidence"):
        asked(SEARCHED, 0.4)


def test_an_estimate_under_a_stated_load_says_what_is_expected():
    row = plan_splits(asked(STATED, 0.5)).best
    stated = change(STATED, {"candidate": row.candidate})
    plan, at = plan_estimated(stated)
    assert plan.feasible[at]
    assert not plan_candidate(stated)[0].feasible[0]
    plan, at = plan_estimated(asked(stated, SURE))
    assert broken_rules(plan, at) == {"confidence"}
    assert plan_estimated(SEARCHED)[0].request == SEARCHED  # the load of the plan


@pytest.mark.parametrize("request_", [SEARCHED, STATED], ids=["searched", "stated"])
def test_the_price_of_a_confidence_is_that_of_the_plan_that_asks_for_it(request_):
    plan = plan_splits(request_)
    prices = price_confidences(plan)
    assert [price.confidence for price in prices] == [*CONFIDENCES]
    for price in prices:
        again = plan_splits(asked(request_, price.confidence))
        if again.best_row is None:
            assert price.candidate is None
            continue
        assert price.candidate == again.candidate(again.best_row)
        name = price.measure
        assert price.value == pytest.approx(again.values(name)[again.best_row])
        now = plan.values(name)[plan.best_row]
        assert price.change == pytest.approx(price.value / now - 1)
        if request_ is SEARCHED:
            assert price.load == again.columns["load"][again.best_row]
    values = [price.value for price in prices if price.value is not None]
    assert values == sorted(values)  # more certainty is never cheaper
    answer = priced_plan_json(plan, 3)["confidence_prices"]
    assert answer == [price.to_json() for price in prices]
    text = confidence_prices_text(prices, SURE)
    assert f"80 %: {prices[1].figure} ·" in text
    assert "50 %: $" in text
    assert f"price of certainty: {text}" in plan_text(plan, 3).splitlines()


def test_certainty_has_no_price_without_limits_and_by_simulated_percentiles():
    assert price_confidences(plan_splits(change(DEFAULT, {"model": LLAMA_70B}))) == ()
    slow = change(SEARCHED, {"objective.limits.percentile": 95.0})
    assert price_confidences(plan_splits(slow)) == ()
