"""How errors of an open loop grow with its load, and how surely a server keeps up."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe_core.base.intervals import LEVELS, quantile_score, scores_below, scores_between
from recipe_core.estimates.bands import Stretch, narrow_interval
from recipe_core.estimates.columns.columns import stack_columns
from recipe_core.estimates.serving.bands import bands_of
from recipe_core.estimates.serving.estimates import estimate_serving
from recipe_core.estimates.serving.load_error import (
    ARRIVALS_SPREAD,
    MOST,
    keeping_up_scores,
    load_stretches,
    slowed_steps,
)
from recipe_core.plans.plans import estimate_batch, plan_candidate, plan_splits
from recipe_core.plans.rank import beats
from recipe_core.plans.splits import row_reasons
from recipe_core.request.schema import PlanRequest
from tests.conftest import make_request, request_values

LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"
SPLIT = {"engine": "vllm", "tp": 1, "pp": 1, "dp": 1}


def at_rates(rates, model=LLAMA_8B, **candidate):
    """The estimates of one layout under arrivals of several rates."""
    split = SPLIT | candidate
    per_node = split["tp"] * split["pp"] * split["dp"]
    workload = {"mode": "open", "concurrency": None, "request_rate": 1.0}
    request = make_request(model, per_node=per_node, workload=workload, candidate=split)
    first = plan_candidate(request)[0].blocks[0].estimates
    cases = [replace(first.cases, load=np.array([float(rate)])) for rate in rates]
    return estimate_serving(first.setting, stack_columns(cases))


def capacity(**candidate):
    """Requests a second that a full server is estimated to serve."""
    return 1 / float(at_rates([1.0], **candidate).serving.load_factor[0])


@pytest.mark.parametrize("candidate", [{}, {"tp": 2}, {"dp": 2}])
@pytest.mark.parametrize("factor", [0.8, 0.9, 1.1, 1.2])
def test_a_slower_step_grows_with_the_queue_as_the_steady_state_at_a_higher_rate(factor, candidate):
    """Steps that all take f times as long are those of f times the rate, f-fold."""
    rates = capacity(**candidate) * np.array([0.05, 0.3, 0.5, 0.7])
    plain, faster = at_rates(rates, **candidate), at_rates(rates * factor, **candidate)
    solved = factor * faster.serving.tpot_s / plain.serving.tpot_s
    assert slowed_steps(plain.serving, factor) == pytest.approx(solved, rel=0.07)


def test_an_error_weighs_the_more_the_fuller_a_server_is():
    estimates = at_rates(capacity() * np.array([0.01, 0.2, 0.4, 0.6, 0.8, 0.95]))
    for name, stretch in load_stretches(estimates.serving, estimates.cases).items():
        # steps take no longer than those of a full server, which a nearly full one comes close to
        assert (np.diff(stretch.above[: None if name == "ttft_s" else -1]) >= 0).all()
        assert (stretch.below >= 1).all()
        assert stretch.below[0] < stretch.below[-1]
    assert load_stretches(estimates.serving, estimates.cases)["tpot_s"].above[0] < 1.05
    ends = [answer.intervals["ttft_s"]["95"] for answer in estimates.rows(np.arange(6), [[]] * 6)]
    assert all(low < high for low, high in ends)
    assert ends[-1][1] / ends[-1][0] > 3 * ends[0][1] / ends[0][0]


def test_a_server_is_refused_only_where_it_surely_does_not_keep_up():
    most = capacity()
    estimates = at_rates(most * np.array([0.5, 0.9, 0.99, 1.01, 1.1, 4.0]))
    chances = estimates.keeps_up
    assert (np.diff(chances) <= 0).all()
    assert chances[0] > 0.95
    assert chances[2] > 0.3
    assert chances[3] < 0.7
    assert estimates.feasible.tolist() == [True] * 5 + [False]
    [answer] = estimates.rows(np.array([4]), [[]])
    assert answer.arrivals.keeps_up_probability == pytest.approx(chances[4])
    assert answer.arrivals.load_factor == pytest.approx(1.1)
    assert any("those of a full server" in note for note in answer.notes)
    assert answer.intervals["ttft_s"]["80"][1] > MOST / 1.2 * answer.serving.ttft_s


@pytest.mark.parametrize("load_factor", [0.3, 0.8, 0.95, 1.2])
def test_no_more_is_served_than_arrives_nor_than_a_full_server_does(load_factor):
    estimates = at_rates([load_factor * capacity()])
    full = bands_of(estimates.setting)["output_tokens_per_s"].factors
    [answer] = estimates.rows(np.array([0]), [[]])
    served, least = answer.serving.output_tokens_per_s, min(load_factor, 1.0)
    for level, (low, high) in full.items():
        ends = np.array(answer.intervals["output_tokens_per_s"][level]) / served
        varied = np.exp(quantile_score(level) * ARRIVALS_SPREAD + 1e-9)
        arriving = load_factor / least
        assert min(low / least, arriving) / varied <= ends[0] <= min(low / least, arriving) + 1e-9
        assert min(high / least, arriving) - 1e-9 <= ends[1] <= min(high / least, arriving) * varied
        cost = np.array(answer.intervals["usd_per_million_output_tokens"][level])
        assert cost / answer.cost.usd_per_million_output_tokens == pytest.approx(1 / ends[::-1])
    # with runs of one's own it is known better whether the server keeps up
    of = estimates.setting, estimates.serving.load_factor
    known, unknown = (keeping_up_scores(*of, share)[0] for share in (np.array([0.5]), None))
    assert abs(known) > abs(unknown)
    assert known * unknown > 0


def test_cost_of_what_keeps_up_is_compared_by_what_arrives():
    """Throughputs of two layouts that keep up do not err apart: fewer GPUs cost less, surely."""
    values = request_values(
        LLAMA_8B,
        workload={"mode": "open", "concurrency": None, "request_rate": 1.0},
        objective={"optimize": "cost"},
    )
    values["hardware"] = {"device": "h100-sxm", "per_node": 4, "usd_per_device_hour": 2.0}
    plan = plan_splits(PlanRequest.parse(values))
    best = int(plan.order[0])
    gpus = np.asarray(plan.columns["gpus"])
    more = [int(row) for row in plan.order if gpus[row] > gpus[best]]
    assert more
    assert beats(plan, [best], more[0])[0] > 0.999


def test_a_search_keeps_to_what_is_estimated_to_keep_up():
    rate = 1.05 * capacity()
    values = request_values(
        LLAMA_8B, workload={"mode": "open", "concurrency": None, "request_rate": rate}
    )
    values["hardware"] = {"device": "h100-sxm", "per_node": 1}
    plan = plan_splits(PlanRequest.parse(values))
    assert not plan.feasible.any()
    reasons = {reason for row in range(len(plan)) for reason in row_reasons(plan, row)}
    assert any("requests a second arrive; this layout serves" in reason for reason in reasons)
    [answer] = estimate_batch([values | {"candidate": SPLIT}])
    assert answer["feasible"]
    assert answer["arrivals"]["keeps_up_probability"] < 0.5


ENDS = {"50": (0.9, 1.1), "80": (0.8, 1.3), "95": (0.5, 1.9)}


@given(
    limit=st.floats(0.05, 20),
    below=st.floats(0.2, 5),
    above=st.floats(0.2, 5),
    share=st.floats(0.1, 1),
)
def test_intervals_of_one_case_score_as_those_of_all(limit, below, above, share):
    stretch = Stretch(*(np.array([value]) for value in (share, below, above)))
    low, high = stretch.ends(ENDS)
    by_level = {level: (float(low[0, k]), float(high[0, k])) for k, level in enumerate(LEVELS)}
    expected = scores_below(by_level, np.array([limit]))
    assert scores_between(low, high, np.array([[limit]]))[0] == pytest.approx(expected, abs=1e-4)
    plain = [narrow_interval(ENDS[level], share) for level in LEVELS]
    assert np.array(list(by_level.values())) == pytest.approx(
        np.array([(a**below, b**above) for a, b in plain])
    )
