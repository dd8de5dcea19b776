"""Expected accuracy of compressed models: published facts, properties, and the contract."""

import json
import math
from itertools import product

import numpy as np
import pytest

from recipe_core.accuracy.accuracy import (
    answer_lines,
    combine_retained,
    estimate_retained,
)
from recipe_core.accuracy.effects import Known, fitted_model
from recipe_core.accuracy.names import named_benchmark, named_model, size_in
from recipe_core.accuracy.published import published_figures, published_keys
from recipe_core.accuracy.technique import techniques
from scripts.fit.compression import (
    Losses,
    Prepared,
    as_strangers,
    count_bands,
    losses_in_bands,
    losses_in_bands_of_others,
    predict_left_out,
    relative_lines,
)
from tests.fixtures.command_line import recipe
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table

UNKNOWN = "somebody/Weasel-9B-Instruct"


def test_sizes_kinds_and_bases_are_read_from_names():
    sizes, kinds = (table("compression_accuracy", key) for key in ("sizes", "kinds"))
    assert {name: size_in(name) for name in sizes} == pytest.approx(sizes, rel=0.01)
    assert size_in("no/size") is None
    assert {name: named_benchmark(name).kind for name in kinds} == kinds
    for name, *base in table("compression_accuracy", "bases"):
        model = named_model(name)
        assert [model.name, model.generation, model.line] == base


def test_every_published_figure_refers_to_what_is_listed():
    for row in published_figures():
        assert row.model in published_keys().models
        assert row.benchmark in published_keys().benchmarks
        assert row.source in published_keys().sources
        assert 0 < row.retained < 2
    # numbers say how they were found
    numbers = fitted_model()
    assert numbers.figures == len(published_figures())
    assert set(numbers.bands.by_known) == set(Known)
    for bands in numbers.bands.by_known.values():
        assert all(band.low < 0 < band.high for band in bands.values())
    assert all(math.isfinite(value) for value in numbers.spreads.by_term.values())


MODELS = ["meta-llama/Llama-2-13b-hf", "Qwen/Qwen2.5-32B", UNKNOWN]
LESS_AND_LESS = table("compression_accuracy", "fewer_bits")


@over("model, names, benchmark", product(MODELS, LESS_AND_LESS, ("", "MMLU", "wikitext2_ppl")))
def test_more_bits_never_lose_more(model, names, benchmark):
    answers = [estimate_retained(model, name, benchmark=benchmark) for name in names]
    values = [answer.value for answer in answers if answer.is_known]
    assert len(values) > 1
    assert values == sorted(values, reverse=True)


TECHNIQUES = ("int4_weight_only", "gguf_q2_k", "sparse_2_4", "nvfp4_w4a4")


@over("technique, benchmark", product(TECHNIQUES, ("", "MMLU", "GSM8K", "wikitext2_ppl")))
def test_larger_models_lose_no_more(technique, benchmark):
    models = [f"somebody/Weasel-{size}B" for size in (1, 8, 30, 70)]
    answers = [estimate_retained(model, technique, benchmark=benchmark) for model in models]
    if not answers[0].is_known:
        assert not any(answer.is_known for answer in answers)
        return
    values = [answer.value for answer in answers]
    assert values == sorted(values)
    # a size that is given goes first
    small, large = (
        estimate_retained(UNKNOWN, technique, benchmark=benchmark, parameters_b=size).value
        for size in (1, 70)
    )
    assert small < large


BENCHMARKS = ("", "MMLU", "AIME25", "wikitext2_ppl", "kl_divergence", "code")


@over("technique, benchmark", product(sorted(techniques()), BENCHMARKS))
def test_bands_contain_the_value(technique, benchmark):
    answer = estimate_retained(UNKNOWN, technique, benchmark=benchmark)
    if answer.is_known:
        assert 0 < answer.low <= answer.value <= answer.high < 1.3
    else:
        assert math.isnan(answer.value)
        assert answer.basis.startswith("Unknown: ")


def test_what_was_measured_of_one_model_alone_is_unknown_of_others():
    measured = "moonshotai/Moonlight-16B-A3B"
    assert estimate_retained(measured, "expert_pruning", benchmark="GSM8K-Platinum").is_known
    for benchmark in ("", "MMLU"):
        answer = estimate_retained(UNKNOWN, "expert_pruning", benchmark=benchmark)
        assert not answer.is_known
        assert "one model alone, moonshotai/Moonlight-16B-A3B" in answer.basis
        assert answer.to_json()["retained"] is None
        assert answer.nearest  # what there is, is shown
    assert not estimate_retained(UNKNOWN, "sparse_4_8", benchmark="MMLU").is_known
    assert estimate_retained(UNKNOWN, "sparse_4_8", benchmark="wikitext2_ppl").is_known


def test_a_cache_of_two_bits_is_known_only_where_it_was_measured():
    for benchmark in ("LongBench", "RULER-64K", "wikitext2_ppl"):
        assert estimate_retained(UNKNOWN, "kv_int2", benchmark=benchmark).is_known
    for benchmark in ("", "GSM8K", "AIME25"):
        answer = estimate_retained(UNKNOWN, "kv_int2", benchmark=benchmark)
        assert not answer.is_known
        assert "a cache of 2 bits" in answer.basis
        assert estimate_retained(UNKNOWN, "kv_int4", benchmark=benchmark).is_known


def test_generated_answers_share_less_noise_than_chosen_ones():
    """HumanEval has 164 items: two answers in three that differ are chance."""
    width = {}
    for benchmark in ("HumanEval", "OpenBookQA", "MMLU"):
        answer = estimate_retained(UNKNOWN, "fp8_w8a8", benchmark=benchmark)
        width[benchmark] = answer.high - answer.low
    assert width["HumanEval"] > 3 * width["OpenBookQA"] > 3 * width["MMLU"] / 2
    assert named_benchmark("HumanEval").generated
    assert not named_benchmark("MMLU").generated


def test_a_published_figure_answers_its_own_question():
    row = next(row for row in published_figures() if row.technique == "int2_weight_only")
    answer = estimate_retained(row.model, row.technique, method=row.method, benchmark=row.benchmark)
    assert answer.nearest[0].model == row.model
    assert answer.nearest[0].benchmark == row.benchmark
    assert answer.low < row.retained < answer.high
    # FP8 loses next to nothing
    answer = estimate_retained("meta-llama/Llama-3.1-8B-Instruct", "fp8_w8a8", benchmark="MMLU")
    assert answer.value == pytest.approx(1, abs=0.01)
    assert answer.nearest[0].technique.startswith("fp8")
    # methods are known in any letters
    model, technique, benchmark = "meta-llama/Llama-2-7b-hf", "sparse_2_4", "wikitext2_ppl"
    as_published = estimate_retained(model, technique, method="wanda", benchmark=benchmark)
    assert estimate_retained(model, technique, method="Wanda", benchmark=benchmark) == as_published
    assert estimate_retained(model, technique, benchmark=benchmark) != as_published


def test_what_is_unknown_is_named_or_has_no_value():
    error = refusal(estimate_retained, UNKNOWN, "int4_weight_onli")
    assert (error.field, "int4_weight_only" in error.hint) == ("technique", True)
    assert "int4_weight_onli" in error.message
    answer = estimate_retained(
        UNKNOWN, "fp8_w8a8", benchmark="FID"
    )  # a benchmark of another nature
    assert (answer.is_known, answer.to_json()["retained"]) == (False, None)
    (answer,) = answer_lines([{"model": "a", "technique": "fp8_w8a8", "bench": "MMLU"}])
    assert answer["error"]["field"] == "bench"
    # less is known of new lines, and told
    models = ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3-9B", UNKNOWN)
    techniques = ("int4_weight_only", "gguf_q2_k", "kv_int4")
    for technique, benchmark in product(techniques, ("MMLU", "wikitext2_ppl")):
        found = [estimate_retained(name, technique, benchmark=benchmark) for name in models]
        widths = [(answer.high - answer.low) / (1 - answer.value) for answer in found]
        assert widths[2] > widths[1]
    told = [estimate_retained(name, "kv_int4", benchmark="MMLU").basis for name in models]
    assert "none of this model" not in told[0]
    assert told[1].endswith("none of this model")
    assert told[2].endswith("none of this model or its series")


def test_two_techniques_multiply():
    weights = estimate_retained(UNKNOWN, "int4_weight_only", benchmark="MMLU")
    cache = estimate_retained(UNKNOWN, "kv_int4", benchmark="MMLU")
    both = combine_retained([weights, cache])
    assert both.value == pytest.approx(weights.value * cache.value)
    assert both.low < min(weights.low, cache.low)
    assert "multiplied" in both.basis
    # long chains are less certain
    chains = estimate_retained(UNKNOWN, "int4_weight_only", benchmark="AIME25")
    knowledge = estimate_retained(UNKNOWN, "int4_weight_only", benchmark="MMLU")
    assert chains.high - chains.low > 2 * (knowledge.high - knowledge.low)


def test_lines_answer_in_their_places(tmp_path):
    good = {"model": UNKNOWN, "technique": "int4_weight_only", "method": "GPTQ"}
    lines = [json.dumps(good), "{no json", json.dumps({"model": "a", "technique": "b"}), "[]"]
    (tmp_path / "ask.jsonl").write_text("\n".join([*lines, json.dumps(good)]))
    done = recipe("compress", str(tmp_path / "ask.jsonl"), "--json")
    replies = [json.loads(line) for line in done.stdout.splitlines()]
    assert [("error" in reply) for reply in replies] == [False, True, True, True, False]
    assert replies[0] == replies[4]
    assert set(replies[0]["retained"]) == {"value", "low", "high"}
    assert replies[2]["error"]["field"] == "technique"


@pytest.fixture(scope="module")
def prepared():
    return Prepared.of(published_figures(), fitted_model().scatter)


def predicted(prepared, keys):
    numbers = fitted_model()
    left = predict_left_out(prepared, numbers.spreads.by_term, numbers.scatter, keys, steps=5)
    return left, Losses.of(prepared, left)


def check_coverage(left, losses):
    """Count which losses lie in the shipped bands of what was known of them."""
    bands, known = fitted_model().bands.by_known, np.array(left.scopes)
    inside = np.any([losses_in_bands(losses, bands[how]) & (known == how) for how in Known], axis=0)
    texts = np.array(losses.measure) == "texts"
    for measured in (texts, ~texts):
        assert 0.75 < np.mean(inside[measured]) < 0.87


@pytest.mark.nightly
def test_models_left_out_are_predicted_within_their_bands(prepared):
    keys = [row.model for row in prepared.rows]
    left, losses = predicted(prepared, keys)
    kept = np.exp(-prepared.data.loss)
    precise = [
        min(question.of.act_bits, question.of.weight_bits) >= 4
        and question.quantised
        and not question.benchmark.likelihood
        for question in prepared.user_questions
    ]
    assert np.median(np.abs(np.exp(-losses.expected) - kept)[precise]) < 0.0105
    check_coverage(left, losses)
    # bands hold of models that they were not counted on
    every = np.ones(len(keys), np.bool_)
    by_others = losses_in_bands_of_others(losses, losses, keys, every)
    assert 0.75 < by_others.mean() < losses_in_bands(losses, count_bands(losses, every)).mean()


@pytest.mark.nightly
def test_new_lines_are_predicted_within_wider_bands(prepared):
    left, losses = predicted(as_strangers(prepared), relative_lines(prepared))
    assert set(left.scopes) == {Known.NOTHING}
    check_coverage(left, losses)
