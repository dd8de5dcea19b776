"""Speculative decoding: tokens a step, work a step, memory, and what is refused."""

from itertools import product

import numpy as np
import pytest

from recipe_core.base.errors import InputError
from recipe_core.model.catalog import catalog_model
from recipe_core.physics.serving.speculative import tokens_per_step
from recipe_core.physics.serving.weights import draft_layer, draft_projection
from recipe_core.recipe import make_recipe, relaunch
from recipe_core.request.link import from_query, to_query
from recipe_core.search.plans import estimate_batch, plan, plan_candidate
from tests.conftest import make_request, request_values

LLAMA, DEEPSEEK = "meta-llama/Llama-3.1-70B-Instruct", "deepseek-ai/DeepSeek-V3"
NEXT = "Qwen/Qwen3-Next-80B-A3B-Instruct"
CLOSED = {"mode": "closed", "concurrency": 16}
OPEN = {"mode": "open", "request_rate": 0.5, "concurrency": None}
STATIC = {"mode": "static", "batch": 16, "concurrency": None}
LOADS = [CLOSED, OPEN, STATIC]
SPLIT = {"engine": "vllm", "tp": 8, "pp": 1, "dp": 1}


def estimate_of(model=LLAMA, drafts=None, workload=CLOSED, **candidate):
    load = dict(workload) | ({"speculative": drafts} if drafts else {})
    split = SPLIT | candidate
    return estimate_batch([request_values(model, "h200-sxm", 8, workload=load, candidate=split)])[0]


def tpot_s(*args, **more):
    return estimate_of(*args, **more)["serving"]["tpot_s"]


def drafted(method, acceptance=0.7, tokens=2):
    return {"tokens": tokens, "acceptance": acceptance, "method": method}


def test_a_step_yields_what_the_paper_tabulates():
    """Leviathan et al. 2023, table 1: speed-ups with a draft that costs nothing."""
    table = {(0.6, 2): 1.96, (0.7, 3): 2.53, (0.8, 2): 2.44, (0.8, 5): 3.69}
    table |= {(0.9, 2): 2.71, (0.9, 10): 6.86}
    acceptance, tokens = np.array(list(table)).T
    found = tokens_per_step(tokens, acceptance)
    assert found == pytest.approx(list(table.values()), abs=0.005)
    assert tokens_per_step(np.zeros(3), np.array([0.0, 0.3, 0.99])).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("model", [LLAMA, DEEPSEEK, "openai/gpt-oss-120b", NEXT])
@pytest.mark.parametrize("workload", LOADS, ids=lambda load: load["mode"])
def test_drafts_that_are_never_accepted_only_cost(model, workload):
    split = {"workload": workload, "tp": 2 if model == NEXT else 8}
    plain = estimate_of(model, **split)["serving"]
    for method, tokens in product(("eagle", "ngram"), (1, 3)):
        useless = estimate_of(model, drafted(method, 0, tokens), **split)["serving"]
        assert useless["tpot_s"] > plain["tpot_s"]
        assert useless["output_tokens_per_s"] <= plain["output_tokens_per_s"]


@pytest.mark.parametrize("model", [LLAMA, DEEPSEEK])
def test_longer_drafts_are_more_work_and_higher_acceptance_less_time(model):
    lengths, shares = np.array([1, 2, 4, 8]), np.array([0.0, 0.5, 0.9])
    times = np.array(
        [[tpot_s(model, {"tokens": int(n), "acceptance": a}) for a in shares] for n in lengths]
    )
    yields = tokens_per_step(*np.broadcast_arrays(lengths[:, None] * 1.0, shares))
    assert (np.diff(times * yields, axis=0) >= 0).all()
    assert (np.diff(times, axis=1) < 0).all()


def test_drafts_help_less_where_compute_is_busy_and_deepseek_as_its_makers_say():
    """Verification is free while weights are what takes time, and is not once rows do."""
    drafts = {"tokens": 4, "acceptance": 0.8}
    alone, crowd = (
        tpot_s(workload=load) / tpot_s(drafts=drafts, workload=load)
        for load in (STATIC | {"batch": batch} for batch in (1, 512))
    )
    assert alone > 2 > crowd
    # DeepSeek-V3's report: 85–90 % of second tokens accepted, 1.8 times the tokens per second; two
    # tokens touch more experts than one
    alone = {"mode": "closed", "concurrency": 1}
    plain, drafts = (tpot_s(DEEPSEEK, d, alone) for d in (None, {"tokens": 1, "acceptance": 0.875}))
    assert 1.5 < plain / drafts < 1.8


@pytest.mark.parametrize(
    "workload",
    [*LOADS, {"mode": "offline", "requests": 500, "concurrency": None}],
    ids=lambda load: load["mode"],
)
def test_parts_add_up_with_a_draft_among_them(workload):
    for method, named in (("eagle", True), ("ngram", False)):
        answer = estimate_of(LLAMA, drafted(method, tokens=3), workload)
        decode, prefill = answer["breakdown_s"]["decode"], answer["breakdown_s"]["prefill"]
        assert ("draft" in decode) is named
        assert sum(decode.values()) == pytest.approx(answer["serving"]["tpot_s"], rel=1e-12)
        assert sum(prefill.values()) == pytest.approx(answer["serving"]["ttft_s"], rel=1e-12)


def test_memory_counts_draft_layers_and_their_cache():
    """DeepSeek-V3's README_WEIGHTS: 11.5 billion in the multi-token-prediction module, besides
    shared embedding and head.
    """
    model = catalog_model(DEEPSEEK)
    held = sum(item.numel for item in draft_layer(model).tensors(model.hidden))
    assert held + draft_projection(model) == pytest.approx(11.5e9, rel=0.01)
    plain, mtp, ngram = (
        estimate_of(DEEPSEEK, drafts)["memory"]
        for drafts in (None, drafted("mtp"), drafted("ngram"))
    )
    assert mtp["kv_needed_bytes"] / plain["kv_needed_bytes"] == pytest.approx(62 / 61)
    # fp8 and scales; the projection is held whole
    assert 11.5e9 / 8 < mtp["weights_bytes"] - plain["weights_bytes"] < 11.5e9 / 8 * 1.3
    assert {n: v for n, v in ngram.items() if n.endswith("bytes") and v != plain[n]} == {}


def test_the_method_left_out_is_the_model_s_and_a_plan_ranks_with_drafts():
    for model, method in ((DEEPSEEK, "mtp"), (LLAMA, "eagle")):
        left_out = estimate_of(model, {"tokens": 2, "acceptance": 0.7})
        assert left_out["serving"] == estimate_of(model, drafted(method))["serving"]
    stated = SPLIT | {"speculative": drafted("ngram")}
    load = {"speculative": {"tokens": 5, "acceptance": 0.1}}
    table, row = plan_candidate(make_request(workload=load, candidate=stated))
    assert table.candidate(row)["speculative"] == drafted("ngram")
    plain, drafts = (
        plan(make_request(workload={"concurrency": 4, **more})).best.estimate.serving
        for more in ({}, {"speculative": {"tokens": 3, "acceptance": 0.8}})
    )
    assert drafts.output_tokens_per_s > 1.5 * plain.output_tokens_per_s


EAGLE = {"speculative": drafted("eagle")}


def test_an_eagle_draft_needs_its_checkpoint_and_links_keep_drafts():
    with pytest.raises(InputError, match="checkpoint of its own"):
        make_recipe(make_request(candidate={"engine": "vllm", "tp": 8} | EAGLE))
    split = {"tp": 8, "speculative": drafted("ngram")}
    request = make_request(workload=EAGLE, candidate=split)
    assert from_query(to_query(request)) == (request, [])


@pytest.mark.parametrize("split", [{"tp": 8, "pp": 1, "dp": 1}, {}])
@pytest.mark.parametrize("where", ["workload", "candidate"])
def test_recipes_start_what_drafts(where, split):
    """The checkpoint of a draft stays with the recipe, wherever it was named."""
    parts = {"candidate": {"engine": "vllm"} | split, "workload": {}}
    parts[where]["speculative"] = drafted("eagle") | {"model": "org/eagle-draft"}
    recipe = make_recipe(make_request(**parts))
    assert recipe.candidate["speculative"]["model"] == "org/eagle-draft"
    drafting = relaunch(recipe).options["speculative_config"]
    assert (drafting["model"], drafting["num_speculative_tokens"]) == ("org/eagle-draft", 2)
