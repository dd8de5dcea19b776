"""Accuracy in plans: which techniques formats are, the limit, the goal, the front of three axes."""

import json
from functools import cache

import numpy as np
import pytest

from recipe_core.accuracy.published import Retained
from recipe_core.estimates.serving import accuracy
from recipe_core.estimates.serving.accuracy import ROUNDED, accuracy_of, applied_techniques
from recipe_core.models.variants import base_checkpoint, stored_as
from recipe_core.plans.alternatives import find_alternatives
from recipe_core.plans.evaluation import band_ends
from recipe_core.plans.plan_json import checkpoint_of
from recipe_core.plans.plans import estimate_batch, plan_splits
from recipe_core.plans.problem import resolve_problem
from recipe_core.plans.rank import front_of_columns, front_with_accuracy, nearest_row, pareto_front
from recipe_core.plans.remedies import fixes
from recipe_core.plans.serving_kind import AS_GOOD, accuracy_lost, explain_estimate
from recipe_core.plans.serving_settings import requested_engine, serving_setting
from recipe_core.plans.splits import row_reasons
from recipe_core.request.edit import change
from recipe_core.request.presets import aims, request_aim
from recipe_core.views.charts.formats import cost_against_loss, three_axes
from recipe_core.views.explanations.formats import format_points
from tests.conftest import make_request
from tests.fixtures.rows import over, table

SMALL, MIDDLE = "Qwen/Qwen3-0.6B", "Qwen/Qwen3-8B"
FORMATS = {"weight_dtypes": ["auto", "fp8", "int4"], "kv_dtypes": ["auto", "fp8"]}


def formats_of(model, weights, cache_="auto", device="h100-sxm", engine=None, **parts):
    """The setting of a model's formats on a device."""
    problem = resolve_problem(make_request(model, device, 1, **parts))
    return serving_setting(problem, requested_engine(engine, problem.cluster), weights, cache_)


@cache
def planned(model=MIDDLE, **objective):
    whole = {k: dict(v) if isinstance(v, tuple) else v for k, v in objective.items()}
    return plan_splits(make_request(model, per_node=2, options=FORMATS, objective=whole))


def at_least(share):
    return (("accuracy_recovery", share),)


def test_formats_are_techniques_by_what_the_engine_does_on_the_device():
    for device, weights, technique in table("accuracy_in_plans", "formats"):
        done = applied_techniques(formats_of(MIDDLE, weights, device=device))
        assert done.techniques == (technique,), (device, weights)
    for weights, techniques in table("accuracy_in_plans", "with_fp8_cache").items():
        assert applied_techniques(formats_of(MIDDLE, weights, "fp8")).techniques == tuple(
            techniques
        )
    assert applied_techniques(formats_of(MIDDLE, "fp8")).method == ROUNDED  # what loading makes
    made = applied_techniques(formats_of(MIDDLE, "int4", device="rtx-4090", engine="llama-cpp"))
    assert made.techniques == ("gguf_q4_k_m",)
    for model, base, method in table("accuracy_in_plans", "checkpoints"):
        done = applied_techniques(formats_of(model, "auto"))
        assert (done.base, done.method, bool(done.techniques)) == (base, method, True), model
        if method == "GPTQ":  # with 16-bit activations on any device
            assert done.techniques == ("int8_weight_only",)
    for engine, weights, technique, method, *counts in table("accuracy_in_plans", "made"):
        options = {"compression": {"technique": technique, "method": method}}
        done = applied_techniques(formats_of(MIDDLE, weights, engine=engine, options=options))
        assert [*done.techniques, done.method] == counts, (engine, weights)


@over("device technique reason", table("accuracy_in_plans", "run"))
def test_a_plan_refuses_what_the_engine_refuses_in_its_words(device, technique, reason):
    options = {"engines": ["vllm"], "compression": {"technique": technique}}
    made = plan_splits(make_request(SMALL, device, 1, options=options))
    nearest = nearest_row(made)
    assert (nearest is None) == (not reason)
    assert nearest is None or any(reason in sentence for sentence in row_reasons(made, nearest))


def test_what_is_published_in_a_narrow_or_16_bit_format_is_its_own_base():
    for model in ("deepseek-ai/DeepSeek-V3", "openai/gpt-oss-120b"):
        narrow = formats_of(model, "auto")
        kept = accuracy_of(narrow)
        assert (base_checkpoint(model), kept.value, kept.low, kept.high) == (None, 1.0, 1.0, 1.0)
        assert f"published in {narrow.model.weight_dtype}" in kept.basis
    copy = applied_techniques(formats_of("nvidia/DeepSeek-V3.1-NVFP4", "auto", device="b200-sxm"))
    assert (copy.base, copy.techniques) == ("deepseek-ai/DeepSeek-V3", ("nvfp4_w4a4_kv_fp8",))
    plain = accuracy_of(formats_of(MIDDLE, "auto"))
    assert (plain.value, plain.low, plain.nearest) == (1.0, 1.0, ())
    problem = resolve_problem(make_request("Qwen/Qwen3-Embedding-8B", per_node=1))
    vectors = serving_setting(
        problem, requested_engine(None, problem.cluster, "embed"), "fp8", "auto"
    )
    assert not accuracy_of(vectors).is_known  # figures are of models that generate text


def test_a_limit_refuses_int4_of_a_small_model_and_a_confidence_its_band():
    fp8, int4 = (accuracy_of(formats_of(SMALL, name)).value for name in ("fp8", "int4"))
    made = planned(SMALL, limits=at_least(round((fp8 + 3 * int4) / 4, 3)))
    refused = np.flatnonzero(made.rules["limit-accuracy"])
    kept, lost = ({made.setting(int(row)).weight_dtype for row in r} for r in (made.order, refused))
    assert kept >= {"bf16", "fp8"}
    assert lost >= {"int4"}
    assert "int4" not in kept
    (sentence,) = row_reasons(made, int(refused[-1]))
    assert "is below the required 9" in sentence
    assert "INT4 weights" in sentence
    likely, sure = planned(limits=at_least(0.98)), planned(limits=at_least(0.98), confidence=0.95)
    assert set(sure.order) < set(likely.order)
    certain = [row for row in likely.order if likely.columns["accuracy_low"][row] == 1.0]
    assert set(certain) <= set(sure.order)
    assert (sure.chances[sure.order] >= 0.95).all()


def test_what_is_unknown_does_not_keep_a_limit_and_says_so(monkeypatch):
    nobody = Retained(np.nan, np.nan, np.nan, "no published figure is near.", is_known=False)
    real = accuracy._retained_accuracy

    def kept(done, *rest):
        return nobody if "int4_weight_only" in done.techniques else real(done, *rest)

    monkeypatch.setattr(accuracy, "_retained_accuracy", kept)
    request = make_request(MIDDLE, per_node=1, options={"weight_dtypes": ["int4"]})
    limited = change(request, {"objective.limits.accuracy_recovery": 0.5})
    made, free = plan_splits(limited), plan_splits(request)
    assert len(free.order) > len(made.order) == 0
    (sentence,) = row_reasons(made, 0)
    assert "unknown: no published figure is near" in sentence
    assert "50 % cannot be judged" in sentence
    assert free.best.estimate.to_json()["accuracy"]["value"] is None


def test_a_refused_format_is_helped_by_the_smallest_that_keeps_the_limit_and_siblings_are_named():
    request = make_request("Qwen/Qwen3-8B-AWQ", per_node=1, options={"kv_dtypes": ["auto"]})
    made = plan_splits(change(request, {"objective.limits.accuracy_recovery": 0.9999}))
    first = made.changes()[0]
    assert first.fields["model"] in (MIDDLE, stored_as(MIDDLE, "fp8"))
    assert len(plan_splits(change(made.request, first.fields)).order)
    assert "model" in fixes(made, 0)[0].fields
    request = make_request(MIDDLE, per_node=1, objective={"optimize": "cost"})
    offered = find_alternatives(
        plan_splits(change(request, {"objective.limits.accuracy_recovery": 0.98}))
    )
    changed = [choice for choice in offered if choice.accuracy]
    assert changed
    for choice in changed:  # alternatives say what other formats keep
        assert choice.accuracy.value >= 0.98
        assert choice.accuracy_text.startswith("Keeps ")
    assert checkpoint_of(formats_of(MIDDLE, "fp8")) == MIDDLE  # the engine makes it
    options = {"weight_dtypes": ["int4", "auto"]}
    for model, name, words in (
        (MIDDLE, "Qwen/Qwen3-8B-AWQ", "the catalog has Qwen/Qwen3-8B-AWQ"),
        (SMALL, None, "make one with recipe compress"),
    ):
        assert checkpoint_of(formats_of(model, "int4")) == name
        answer = plan_splits(make_request(model, per_node=1, options=options)).to_json()
        by_format = {case["candidate"]["weight_dtype"]: case for case in answer["candidates"]}
        assert by_format["int4"]["checkpoint"] == name
        assert "checkpoint" not in by_format["bf16"]
        assert any(words in note for note in by_format["int4"]["estimate"]["notes"])


def test_weights_move_the_choice_to_accuracy_and_the_front_of_three_axes_has_no_dominated_row():
    by_cost = planned(weights=(("cost", 1.0), ("accuracy", 0.01)))
    by_accuracy = planned(weights=(("cost", 0.01), ("accuracy", 1.0)))
    first, other = by_cost.best_row, by_accuracy.best_row
    for column in ("usd_per_million_output_tokens", "accuracy"):
        assert by_cost.columns[column][first] < by_accuracy.columns[column][other]
    assert by_accuracy.setting(other).weight_dtype == "bf16"
    kept = np.array([1.0, 1 - AS_GOOD, np.nan, 1.02])  # a score's noise counts as twice the cost
    assert accuracy_lost(kept) / AS_GOOD == pytest.approx([1.0, 2.0, 51.0, 1.0])
    chosen = change(make_request(MIDDLE), dict(aims(make_request(MIDDLE))["all-three"].changes))
    assert request_aim(chosen) == "all-three"
    assert set(chosen.objective.goals) == {"accuracy", "cost", "tpot"}
    made = planned(optimize="cost")
    names = ("usd_per_million_output_tokens", "tpot_s", "accuracy_lost")
    on = pareto_front(*(made.columns[name] for name in names), among=made.holds)
    assert front_with_accuracy(made).tolist() == on.tolist()  # none beats them: test_search
    assert on.sum() > front_of_columns(made, *names[:2]).sum()
    marks = [case["pareto_accuracy"] for case in planned().to_json(top=50)["candidates"]]
    assert any(marks)
    alone = plan_splits(make_request(MIDDLE, per_node=1))
    assert front_with_accuracy(alone) is None
    assert "pareto_accuracy" not in alone.to_json(top=1)["candidates"][0]


def row_in(made, weights, cache_="auto"):
    """The first row whose weights and cache are in formats."""
    return next(
        int(row)
        for row in made.order
        if made.setting(int(row)).weight_dtype == weights
        and cache_ in ("auto", made.setting(int(row)).kv_dtype)
    )


def test_an_estimate_has_the_same_accuracy_alone_and_in_a_column_with_its_nearest_figures():
    split = {"tp": 1, "pp": 1, "weight_dtype": "fp8", "kv_dtype": "fp8"}
    requests = [
        make_request(MIDDLE, per_node=2, candidate=split | {"dp": dp}).to_json() for dp in (1, 2)
    ]
    together = [answer["accuracy"] for answer in estimate_batch(requests)]
    assert together == [estimate_batch([request])[0]["accuracy"] for request in requests]
    made, perplexity = planned(), planned(accuracy_of="perplexity")
    row = row_in(made, "fp8", "fp8")
    assert together[0]["value"] == float(made.columns["accuracy"][row])
    assert json.loads(json.dumps(together[0])) == together[0]
    answer = explain_estimate(made, row).to_json()["accuracy"]
    assert answer["techniques"] == ["fp8_w8a8_kv_fp8"]
    assert {"model", "technique", "benchmark", "retained", "source"} <= set(answer["nearest"][0])
    assert "nearest" not in made.estimate(row).to_json()["accuracy"]
    assert answer["low"] <= answer["value"] <= answer["high"]
    assert band_ends(made, "accuracy", [row]) == ([answer["low"]], [answer["high"]])
    row = row_in(made, "int4")
    assert made.columns["accuracy"][row] != perplexity.columns["accuracy"][row]


def test_formats_are_points_joined_by_their_cache_and_splits_have_three_axes():
    made = planned()
    points = format_points(made, made.best_row)
    (own,) = [point for point in points if point.planned]
    assert own.tpot_s == pytest.approx(float(made.columns["tpot_s"][made.best_row]))
    assert {point.weight_dtype for point in points} >= {"bf16", "fp8", "int4"}
    traces = cost_against_loss({"split": points}).data
    assert {trace.name for trace in traces} == {f"{point.kv_dtype} cache" for point in points}
    assert all(trace.error_x.array is not None for trace in traces)
    drawn = [trace for trace in three_axes(made).data if trace.marker.coloraxis]
    assert sum(len(trace.x) for trace in drawn) == made.holds.sum()
    colours = np.concatenate([trace.marker.color for trace in drawn])
    assert sorted(colours) == pytest.approx(sorted(made.values("accuracy", made.holds)))
