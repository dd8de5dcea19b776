"""Accuracy in plans: which techniques formats are, the limit, the goal, the front of three axes."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest

from recipe_core.compression.retained import Retained
from recipe_core.explain.formats import format_points
from recipe_core.model.variants import base_of, stored_as
from recipe_core.physics.serving import accuracy
from recipe_core.present.charts.accuracy import cost_against_loss, three_axes
from recipe_core.request.edit import change
from recipe_core.request.presets import aim_of, aims
from recipe_core.search.accuracy import AS_GOOD, accuracy_of, applied, checkpoint_of, lost
from recipe_core.search.alternatives import alternatives
from recipe_core.search.changes import fixes
from recipe_core.search.plans import estimate_batch, plan
from recipe_core.search.problem import resolve
from recipe_core.search.serving_candidates import engine_of, setting
from recipe_core.search.serving_plan import ServingPlan
from recipe_core.space.applied import ROUNDED
from tests.conftest import make_request
from tests.fixtures.rows import over, table

SMALL = "Qwen/Qwen3-0.6B"
MIDDLE = "Qwen/Qwen3-8B"
FORMATS = {"weight_dtypes": ["auto", "fp8", "int4"], "kv_dtypes": ["auto", "fp8"]}


def formats_of(
    model: str, weights: str, cache_: str = "auto", device: str = "h100-sxm", engine: str = ""
) -> Any:
    """The setting of a model's formats on a device."""
    problem = resolve(make_request(model, device, 1))
    spec = engine_of(engine or None, problem.cluster)
    return setting(problem, spec, weights, cache_)


@cache
def planned(model: str = MIDDLE, **objective: Any) -> ServingPlan:
    objective = {
        name: dict(value) if isinstance(value, tuple) else value
        for name, value in objective.items()
    }
    made = plan(make_request(model, per_node=2, options=FORMATS, objective=objective))
    assert isinstance(made, ServingPlan)
    return made


def at_least(share: float) -> Any:
    return (("accuracy_recovery", share),)


@over("device weights technique", table("accuracy_in_plans", "formats"))
def test_formats_are_techniques_by_what_the_engine_does_on_the_device(
    device: str, weights: str, technique: str
) -> None:
    assert applied(formats_of(MIDDLE, weights, device=device)).techniques == (technique,)


def test_a_cache_is_a_technique_unless_tables_have_both_and_what_loading_makes_is_rounded() -> None:
    for weights, techniques in (
        ("auto", ("kv_fp8",)),
        ("fp8", ("fp8_w8a8_kv_fp8",)),
        ("int4", ("int4_weight_only", "kv_fp8")),
    ):
        assert applied(formats_of(MIDDLE, weights, "fp8")).techniques == techniques
    assert applied(formats_of(MIDDLE, "fp8")).method == ROUNDED
    made = applied(formats_of(MIDDLE, "int4", device="rtx-4090", engine="llama-cpp"))
    assert made.techniques == ("gguf_q4_k_m",)


@over("model base method", table("accuracy_in_plans", "checkpoints"))
def test_a_checkpoint_says_its_base_and_how_it_was_made(model: str, base: str, method: str) -> None:
    done = applied(formats_of(model, "auto"))
    assert (done.base, done.method) == (base, method)
    assert done.techniques
    if method == "GPTQ":  # with 16-bit activations on any device
        assert done.techniques == ("int8_weight_only",)


@over("engine weights technique method counts by", table("accuracy_in_plans", "made"))
def test_the_technique_that_is_made_counts_and_not_the_usual_one_of_its_format(
    engine: str, weights: str, technique: str, method: str, counts: str, by: str
) -> None:
    options = {"compression": {"technique": technique, "method": method}}
    problem = resolve(make_request(MIDDLE, "h100-sxm", 1, options=options))
    done = applied(setting(problem, engine_of(engine, problem.cluster), weights, "auto"))
    assert (done.techniques, done.method) == ((counts,), by)


@over("device technique reason", table("accuracy_in_plans", "run"))
def test_a_plan_refuses_what_the_engine_refuses_in_its_words(
    device: str, technique: str, reason: str
) -> None:
    options = {"engines": ["vllm"], "compression": {"technique": technique}}
    made = plan(make_request(SMALL, device, 1, options=options))
    nearest = made.nearest_row()
    assert (nearest is None) == (not reason)
    assert nearest is None or any(reason in sentence for sentence in made.reasons(nearest))


def test_what_is_published_in_a_narrow_or_16_bit_format_is_its_own_base() -> None:
    for model in ("deepseek-ai/DeepSeek-V3", "openai/gpt-oss-120b"):
        narrow = formats_of(model, "auto")
        kept = accuracy_of(narrow)
        assert base_of(model) is None
        assert (kept.value, kept.low, kept.high) == (1.0, 1.0, 1.0)
        assert f"published in {narrow.model.weight_dtype}" in kept.basis
    copy = applied(formats_of("nvidia/DeepSeek-V3.1-NVFP4", "auto", device="b200-sxm"))
    assert copy.base == "deepseek-ai/DeepSeek-V3"
    assert copy.techniques == ("nvfp4_w4a4_kv_fp8",)
    plain = accuracy_of(formats_of(MIDDLE, "auto"))
    assert (plain.value, plain.low, plain.nearest) == (1.0, 1.0, ())
    problem = resolve(make_request("Qwen/Qwen3-Embedding-8B", "h100-sxm", 1))
    vectors = setting(problem, engine_of(None, problem.cluster, "embed"), "fp8", "auto")
    assert not accuracy_of(vectors).known  # figures are of models that generate text


def test_a_limit_refuses_int4_of_a_small_model_and_a_confidence_its_band() -> None:
    fp8, int4 = (accuracy_of(formats_of(SMALL, name)).value for name in ("fp8", "int4"))
    made = planned(SMALL, limits=at_least(round((fp8 + int4) / 2, 3)))
    formats = {made.setting(int(row)).weight_dtype for row in made.order}
    refused = np.flatnonzero(made.rules()["limit-accuracy"])
    assert formats >= {"bf16", "fp8"}
    assert {made.setting(int(row)).weight_dtype for row in refused} >= {"int4"}
    assert "int4" not in formats
    (sentence,) = made.reasons(int(refused[-1]))
    assert "is below the required 9" in sentence
    assert "INT4 weights" in sentence
    likely = planned(limits=at_least(0.98))
    sure = planned(limits=at_least(0.98), confidence=0.95)
    assert set(sure.order) < set(likely.order)
    certain = [row for row in likely.order if likely.columns["accuracy_low"][row] == 1.0]
    assert set(certain) <= set(sure.order)
    assert (sure.confidence(sure.order) >= 0.95).all()


def test_what_is_unknown_does_not_keep_a_limit_and_says_so(monkeypatch: Any) -> None:
    nobody = Retained(np.nan, np.nan, np.nan, "no published figure is near.", known=False)
    real = accuracy._kept
    monkeypatch.setattr(
        accuracy,
        "_kept",
        lambda done, *rest: nobody if "int4_weight_only" in done.techniques else real(done, *rest),
    )
    request = make_request(MIDDLE, per_node=1, options={"weight_dtypes": ["int4"]})
    limited = change(request, {"objective.limits.accuracy_recovery": 0.5})
    made, free = plan(limited), plan(request)
    assert len(free.order)
    assert not len(made.order)
    (sentence,) = made.reasons(0)
    assert "unknown: no published figure is near" in sentence
    assert "50% cannot be judged" in sentence
    assert free.best is not None
    assert free.best.estimate.to_json()["accuracy"]["value"] is None


def test_a_refused_format_is_helped_by_the_smallest_one_that_keeps_the_limit() -> None:
    request = make_request("Qwen/Qwen3-8B-AWQ", per_node=1, options={"kv_dtypes": ["auto"]})
    made = plan(change(request, {"objective.limits.accuracy_recovery": 0.9999}))
    first = made.changes()[0]
    assert first.fields["model"] in (MIDDLE, stored_as(MIDDLE, "fp8"))
    assert len(plan(change(made.request, first.fields)).order)
    assert "model" in fixes(made, 0)[0].fields


def test_weights_move_the_choice_from_cost_to_accuracy() -> None:
    by_cost = planned(weights=(("cost", 1.0), ("accuracy", 0.01)))
    by_accuracy = planned(weights=(("cost", 0.01), ("accuracy", 1.0)))
    first, other = by_cost.best_row, by_accuracy.best_row
    for column in ("usd_per_million_output_tokens", "accuracy"):
        assert by_cost.columns[column][first] < by_accuracy.columns[column][other]
    assert by_accuracy.setting(other).weight_dtype == "bf16"
    kept = np.array([1.0, 1 - AS_GOOD, np.nan, 1.02])  # a score's noise counts as twice the cost
    assert lost(kept) / AS_GOOD == pytest.approx([1.0, 2.0, 51.0, 1.0])
    request = make_request(MIDDLE)
    chosen = change(request, dict(aims(request)["all-three"].changes))
    assert aim_of(chosen) == "all-three"
    assert set(chosen.objective.goals) == {"accuracy", "cost", "tpot"}


def test_the_front_of_three_axes_has_no_dominated_row_and_one_accuracy_has_two_axes() -> None:
    made = planned(optimize="cost")
    names = ("usd_per_million_output_tokens", "tpot_s", "accuracy_lost")
    on = made.accuracy_front
    axes = np.stack([made.columns[name] for name in names], axis=1)
    held = np.flatnonzero(made.holds)
    for row in held:
        others = axes[held[held != row]]
        beaten = ((others <= axes[row]).all(axis=1) & (others < axes[row]).any(axis=1)).any()
        same = (others == axes[row]).all(axis=1).any()
        assert on[row] == (not beaten) or same
    assert on.sum() > made.front_of(*names[:2]).sum()
    made = plan(make_request(MIDDLE, per_node=1))
    assert made.accuracy_front is None
    assert "pareto_accuracy" not in made.to_json(top=1)["candidates"][0]
    marks = [case["pareto_accuracy"] for case in planned().to_json(top=50)["candidates"]]
    assert any(marks)


def test_a_sibling_of_the_catalog_is_named_and_a_missing_one_too() -> None:
    assert checkpoint_of(formats_of(MIDDLE, "fp8")) == MIDDLE  # the engine makes it
    options = {"weight_dtypes": ["int4", "auto"]}
    for model, name, words in (
        (MIDDLE, "Qwen/Qwen3-8B-AWQ", "the catalog has Qwen/Qwen3-8B-AWQ"),
        (SMALL, None, "make one with recipe compress"),
    ):
        assert checkpoint_of(formats_of(model, "int4")) == name
        answer = plan(make_request(model, per_node=1, options=options)).to_json()
        by_format = {case["candidate"]["weight_dtype"]: case for case in answer["candidates"]}
        assert by_format["int4"]["checkpoint"] == name
        assert "checkpoint" not in by_format["bf16"]
        assert any(words in note for note in by_format["int4"]["estimate"]["notes"])


def test_alternatives_say_what_other_formats_keep() -> None:
    request = make_request(MIDDLE, per_node=1, objective={"optimize": "cost"})
    offered = alternatives(plan(change(request, {"objective.limits.accuracy_recovery": 0.98})))
    changed = [choice for choice in offered if choice.formats]
    assert changed
    for choice in changed:
        assert choice.accuracy.value >= 0.98
        assert choice.accuracy_text.startswith("Keeps ")
        assert choice.to_json()["accuracy"]["value"] == choice.accuracy.value


def row_in(made: ServingPlan, dtype: str) -> int:
    """The first row whose weights and cache are in a format."""
    settings = ((int(row), made.setting(int(row))) for row in made.order)
    return next(
        row for row, formats in settings if formats.weight_dtype == formats.kv_dtype == dtype
    )


def test_an_estimate_has_the_same_accuracy_alone_and_in_a_column() -> None:
    splits = [
        {"tp": 1, "pp": 1, "dp": dp, "weight_dtype": "fp8", "kv_dtype": "fp8"} for dp in (1, 2)
    ]
    requests = [make_request(MIDDLE, per_node=2, candidate=split).to_json() for split in splits]
    together = [answer["accuracy"] for answer in estimate_batch(requests)]
    alone = [estimate_batch([request])[0]["accuracy"] for request in requests]
    made = planned()
    assert together == alone
    assert together[0]["value"] == float(made.columns["accuracy"][row_in(made, "fp8")])
    assert json.loads(json.dumps(together[0])) == together[0]


def test_a_split_is_estimated_with_its_nearest_figures_of_the_benchmark() -> None:
    made, perplexity = planned(), planned(accuracy_of="perplexity")
    row = row_in(made, "fp8")
    answer = made.explained(row).to_json()["accuracy"]
    assert answer["techniques"] == ["fp8_w8a8_kv_fp8"]
    assert {"model", "technique", "benchmark", "retained", "source"} <= set(answer["nearest"][0])
    assert "nearest" not in made.estimate(row).to_json()["accuracy"]
    assert answer["low"] <= answer["value"] <= answer["high"]
    assert made.band_ends("accuracy", [row]) == ([answer["low"]], [answer["high"]])
    row = next(int(row) for row in made.order if made.setting(int(row)).weight_dtype == "int4")
    assert made.columns["accuracy"][row] != perplexity.columns["accuracy"][row]


def test_formats_are_points_joined_by_their_cache_and_splits_have_three_axes() -> None:
    made = planned()
    points = format_points(made, made.best_row or 0)
    (own,) = [point for point in points if point.own]
    assert {point.weight_dtype for point in points} >= {"bf16", "fp8", "int4"}
    figure = cost_against_loss({"split": points})
    assert {trace.name for trace in figure.data} == {f"{point.kv_dtype} cache" for point in points}
    assert all(trace.error_x.array is not None for trace in figure.data)
    assert own.tpot_s == pytest.approx(float(made.columns["tpot_s"][made.best_row]))
    drawn = [trace for trace in three_axes(made).data if trace.marker.coloraxis]
    assert sum(len(trace.x) for trace in drawn) == made.holds.sum()
    colours = np.concatenate([trace.marker.color for trace in drawn])
    assert sorted(colours) == pytest.approx(sorted(made.values("accuracy", made.holds)))
