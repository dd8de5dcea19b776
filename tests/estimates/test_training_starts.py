"""With which probability training starts, what says so, and what is ranked behind."""

import csv

import numpy as np
import pytest

from recipe_core.base.intervals import factor_at, scores_below
from recipe_core.commands.files import check_values
from recipe_core.estimates.bands import enclosing_band, normal_probability
from recipe_core.estimates.serving.starts import DOUBT, start_errors
from recipe_core.estimates.training.estimates import estimate_training
from recipe_core.estimates.training.starts import (
    SURE,
    is_training_uncertain,
    training_band,
    training_bands,
    training_errors,
    training_start_probability,
)
from recipe_core.plans.plan_json import doubt_text
from recipe_core.plans.plans import estimate_batch, plan_splits
from recipe_core.plans.problem import resolve_problem
from recipe_core.plans.rank import front_of_columns
from recipe_core.plans.training_candidates import stated_training_case
from recipe_core.request.edit import change
from recipe_core.request.schema import PlanRequest
from recipe_core.views.plans import plan_text, state_text
from tests.fixtures.catalogues import DATA, table
from tests.fixtures.training import training_request, training_setting, training_values

SPLIT = {"engine": "torchtitan", "tp": 1, "pp": 1, "dp": 8, "zero_stage": 3}
SPLIT |= {"micro_batch": 1, "recompute": "none"}
LORA = {"hardware": {"device": "rtx-4090", "per_node": 2}, "model": "Qwen/Qwen3-8B"}
LORA |= {"nodes": 1, "method": "lora", "global_batch": 16}
GRPO = table("relations.yaml", "bases")["grpo"]


def values(sequence, **more):
    return training_values(SPLIT | more, nodes=1, global_batch=64, sequence_length=sequence)


def test_the_probability_is_that_of_the_band_at_what_is_usable():
    shared, usable = training_setting(), 80e9
    factors = training_band(shared, "peak_memory_bytes").factors
    median = factor_at(factors, 0.0)
    peaks = usable / np.array([10.0, factors["80"][1], median, 1.0, factors["80"][0], 0.1])
    far_below, high, middle, whole, low, far_above = training_start_probability(
        shared, peaks, usable
    )
    assert far_below > 0.9999
    assert far_above < 1e-4
    assert (high, middle, low) == pytest.approx((0.9, 0.5, 0.1))
    assert whole == pytest.approx(normal_probability(scores_below(factors, np.ones(1)))[0])
    assert low < whole < middle  # measured peaks are above their estimates more often than below
    assert np.isnan(training_start_probability(shared, np.array([np.nan]), usable)[0])
    fullest = np.array([1 / (1 + shared.calibration.tight.value)])  # what no rule refuses
    for one in training_bands().bands:
        if one.metric == "peak_memory_bytes":
            assert is_training_uncertain(
                np.array(normal_probability(scores_below(one.factors, fullest)))
            ).all()


def test_estimates_and_checks_of_requests_say_it_and_why():
    small, close, over = (values(length) for length in (2048, 8192, 32_768))
    sure, doubtful, refused = estimate_batch([small, close, over])
    chances = [answer["memory"]["start_probability"] for answer in (sure, doubtful, refused)]
    low, high = start_errors().bounds
    assert chances[0] > high > chances[1] > low > chances[2]
    assert [answer["feasible"] for answer in (sure, doubtful, refused)] == [True, True, False]
    said = [note for note in doubtful["notes"] if note.startswith(DOUBT)]
    peak, usable = (doubtful["memory"][name] / 2**30 for name in ("total_bytes", "usable_bytes"))
    assert f"needs {peak:.1f} GiB per GPU, {usable:.1f} GiB usable" in said[0]
    assert said[0].endswith(f"a probability of {int(chances[1] * 100)} %")
    for answer in (sure, refused):
        assert not any(note.startswith(DOUBT) for note in answer["notes"])
    checked = list(check_values([small, close, over, values(2048, dp=16)], {}))
    assert [answer["ok"] for answer in checked] == [True, None, False, False]
    assert checked[1] == {
        "ok": None,
        "verdict": "uncertain",
        "start_probability": chances[1],
        "reasons": said,
    }


def test_what_surely_starts_is_ranked_first_and_the_rest_by_how_likely_it_starts():
    found = plan_splits(training_request(nodes=1, global_batch=64))
    chance, rate = (found.columns[name] for name in ("start_probability", "tokens_per_s"))
    best, unsure = found.best_row, found.uncertain
    assert (unsure == (found.runs & is_training_uncertain(chance))).all()
    assert start_errors().bounds[1] > chance[found.certain].min() >= SURE
    assert rate[best] == pytest.approx(rate[found.certain].max(), rel=1e-3)
    assert rate[found.feasible].max() > 1.02 * rate[best]  # what is faster may not start
    order = found.order
    assert (np.diff(unsure[order].astype(int)) >= 0).all()
    assert (np.diff(chance[order][unsure[order]]) <= 0).all()
    assert not front_of_columns(found)[unsure].any()
    last = int(order[-1])
    assert doubt_text(found, last).startswith(f"{DOUBT}: needs ")
    assert doubt_text(found, best) == ""
    assert state_text(found, last) == f"uncertain: starts with {chance[last] * 100:.0f} %"
    listed = found.to_json(len(order))["candidates"]
    counted = {"holds": int(found.certain.sum()), "uncertain": int(unsure.sum())}
    assert {name: sum(one["state"] == name for one in listed) for name in counted} == counted
    told = [one["estimate"]["memory"]["start_probability"] for one in listed]
    assert told == pytest.approx(chance[order].tolist())


def test_where_no_split_surely_starts_the_most_probable_comes_first_and_says_so():
    found = plan_splits(
        training_request(sequence_length=5120, **LORA, candidate={"engine": "torch"})
    )
    chance = found.columns["start_probability"]
    assert not found.certain.any()
    assert chance[found.best_row] == chance[found.feasible].max() < SURE
    text = plan_text(found, 3)
    assert f"no layout surely starts: 1 {doubt_text(found, found.best_row)}" in text
    assert found.changes()
    for remedy in found.changes():
        after = found.replan(change(found.request, remedy.fields))
        assert after.certain[after.best_row]


@pytest.mark.parametrize(
    "values",
    [
        training_values(sequence_length=2048, **LORA),
        training_values(nodes=4, model="meta-llama/Llama-3.1-70B", tokens=1e10),
        {**GRPO, "candidate": {}},
    ],
    ids=["lora", "pretrain", "grpo"],
)
def test_the_best_split_probably_starts(values):
    answer = plan_splits(PlanRequest.parse(values)).to_json(1)
    (best,) = answer["candidates"]
    memory = best["estimate"]["memory"]
    assert best["state"] == "holds"
    assert memory["start_probability"] >= SURE
    assert memory["total_bytes"] < 0.7 * memory["usable_bytes"]
    assert answer["counts"]["uncertain"] > 0


def test_a_step_that_samples_has_the_range_of_published_ones():
    asked = resolve_problem(PlanRequest.parse(GRPO))
    sampled = estimate_training(*stated_training_case(asked, asked.candidate))
    own = training_band(sampled.setting, "step_s")
    published = next(one for one in training_bands().bands if one.metric == "sampled_step_s")
    with (DATA / "grpo-steps.csv").open(encoding="utf-8") as file:
        ratios = [float(row["measured"]) / float(row["estimated"]) for row in csv.DictReader(file)]
    assert (round(min(ratios), 1), round(max(ratios), 1)) == (1.2, 2.4)
    assert own.low < 1 < min(ratios) < max(ratios) <= own.high
    alone = training_bands().band("step_s", ((),), {})
    assert enclosing_band(alone, published).factors["80"] == (
        alone.low,
        max(alone.high, published.high),
    )
    answer = sampled.row(0).to_json()
    step, (low, high) = answer["training"]["step_s"], answer["bands"]["step_s"]
    assert (low / step, high / step) == pytest.approx((own.low, own.high))
    assert high > 2.4 * step
    said = f"takes {own.low:.1f} to {own.high:.1f} times its estimate"
    assert any(said in note for note in answer["notes"])
    common, alone = training_errors(sampled.setting)
    assert common[0, 0] + alone[0, 0] >= published.independent**2
