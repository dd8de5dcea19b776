"""With which probability splits keep the limits, if they were measured."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recipe_core as rb
from recipe_core.base.intervals import NORMAL, factor_at, probability_below, scores_below
from recipe_core.request.edit import change
from recipe_core.request.link import from_query, to_query
from recipe_core.search.confidence import signed_correlation, together
from tests.conftest import request_values
from tests.fixtures.refusals import refusal
from tests.fixtures.sizes import examples

INTERVALS = {"50": (0.9, 1.1), "80": (0.8, 1.3), "95": (0.6, 1.8)}


def request(**limits):
    confidence = limits.pop("confidence", None)
    objective = {"optimize": "cost", "limits": limits}
    if confidence is not None:
        objective["confidence"] = confidence
    return request_values(objective=objective)


def test_scores_are_those_of_the_intervals_and_their_inverse():
    for level, share in (("50", 0.75), ("80", 0.9), ("95", 0.975)):
        high = INTERVALS[level][1]
        assert probability_below(INTERVALS, high) == pytest.approx(share)
        assert factor_at(INTERVALS, NORMAL.inv_cdf(share)) == pytest.approx(high)
    limits = np.geomspace(0.1, 10, 50)
    scores = scores_below(INTERVALS, limits)
    assert (np.diff(scores) > 0).all()
    assert [factor_at(INTERVALS, score) for score in scores] == pytest.approx(limits.tolist())


@given(
    st.lists(st.floats(-2.5, 2.5), min_size=2, max_size=3),
    st.floats(-0.95, 0.95),
)
@settings(max_examples=examples(40, least=6), deadline=None)
def test_several_limits_hold_together_as_drawn_normals_do(scores, shared):
    size = len(scores)
    loading = np.full(size, np.sqrt(abs(shared)))
    loading[0] *= np.sign(shared) or 1.0
    correlation = np.outer(loading, loading)
    np.fill_diagonal(correlation, 1.0)
    drawn = np.random.default_rng(1).multivariate_normal(np.zeros(size), correlation, 200_000)
    counted = (drawn <= np.array(scores)).all(axis=1).mean()
    [found] = together(np.array(scores)[:, None], correlation)
    assert found == pytest.approx(counted, abs=0.01)
    assert found <= min(NORMAL.cdf(score) for score in scores) + 1e-9


def test_a_limit_on_what_rises_with_a_figure_counts_against_one_on_what_falls():
    known = {"a": {"b": 0.5}}
    signed = [("a", 1), ("b", -1), ("a", -1)]
    rows = [[1.0, -0.5, -1.0], [-0.5, 1.0, 0.5], [-1.0, 0.5, 1.0]]
    assert signed_correlation(signed, known).tolist() == rows


def test_one_limit_holds_as_its_figure_says_and_what_is_certain_holds_or_does_not():
    plan = rb.plan(request(tpot_ms=30))
    for row in plan.order[:5]:
        own = plan.estimate(row).tpot_s.probability_below(0.030)
        assert plan.confidence([row])[0] == pytest.approx(own)
    answer = plan.to_json(top=3)["candidates"]
    assert answer[0]["confidence"] == pytest.approx(plan.confidence(plan.order[:1])[0])
    plan = rb.plan(request())
    assert plan.to_json(top=1)["candidates"][0]["confidence"] is None
    assert plan.confidence_text(plan.best_row) == ""
    plan = rb.plan(request(gpus=4))
    chance = plan.confidence(np.arange(len(plan)))[plan.runs]
    assert set(np.unique(chance)) == {0.0, 1.0}
    assert (chance == (plan.columns["gpus"][plan.runs] <= 4)).all()


def test_a_looser_limit_never_holds_less_likely_and_a_tight_one_is_a_coin_toss():
    chances = [
        rb.plan(request(tpot_ms=limit, ttft_ms=800)).confidence([0, 5, 11, 17])
        for limit in (15, 20, 30, 60, 200)
    ]
    assert (np.diff(np.nan_to_num(np.stack(chances)), axis=0) >= -1e-9).all()
    free = rb.plan(request())
    tpot = float(free.columns["tpot_s"][free.best_row])
    tight = rb.plan(request(tpot_ms=tpot * 1e3 * 1.001))
    row = tight.find(free.key(free.best_row))
    assert tight.feasible[row]
    assert "coin toss" in tight.confidence_text(row)


@pytest.mark.parametrize("asked", [0.6, 0.8, 0.95])
def test_a_confidence_that_is_asked_for_is_a_rule(asked):
    plan = rb.plan(request(tpot_ms=30, ttft_ms=900, confidence=asked))
    free = rb.plan(request(tpot_ms=30, ttft_ms=900))
    chance = free.confidence(np.arange(len(free)))
    assert (plan.feasible == (free.feasible & (chance >= asked))).all()
    for row in np.flatnonzero(free.feasible & ~plan.feasible)[:3]:
        assert any("is asked for" in reason for reason in plan.reasons(int(row)))


def test_where_nothing_is_sure_enough_the_changes_that_help_are_planned():
    plan = rb.plan(request(tpot_ms=16, confidence=0.99))
    assert plan.best is None
    changes = plan.changes()
    assert changes
    for offered in changes:
        assert rb.plan(change(plan.request, offered.fields)).best is not None


def test_training_holds_a_run_to_its_time_with_a_probability():
    values = {
        "model": "meta-llama/Llama-3.1-8B",
        "hardware": {"device": "h100-sxm", "per_node": 8, "nodes": 1},
        "workload": {"kind": "training", "sequence_length": 4096, "global_batch": 256}
        | {"tokens": 1e9},
    }
    free = rb.plan(values)
    limit = 1.5 * float(free.columns["wall_s"][free.best_row])
    limits = {"optimize": "throughput", "limits": {"wall_hours": limit / 3600}}
    plan = rb.plan({**values, "objective": limits})
    row = plan.best_row
    step, wall = (float(plan.columns[name][row]) for name in ("step_s", "wall_s"))
    own = plan.estimate(row).step_s.probability_below(step * limit / wall)
    assert plan.confidence([row])[0] == pytest.approx(own)


def test_links_carry_the_confidence_and_nonsense_is_named():
    query = to_query(rb.Request.parse(request(tpot_ms=30, confidence=0.9)))
    assert query["objective.confidence"] == "0.9"
    assert from_query(query)[0].objective.confidence == 0.9
    nonsense = refusal(rb.Request.parse, request(confidence=1.5))
    assert nonsense.field == "objective.confidence"
