"""The load of a closed loop, searched within limits on time: the best one of every split."""

import math
from functools import cache

import numpy as np
import pytest

import recipe_core as rb
from recipe_core.base.budget import Budget, apply_budget
from recipe_core.base.errors import LimitError
from recipe_core.commands.verdict import judge_request
from recipe_core.plans.load import CLOSE, least_loads
from recipe_core.plans.plan_json import split_label
from recipe_core.plans.plans import (
    count_keeping,
    estimate_batch,
    plan_candidate,
    plan_splits,
)
from recipe_core.plans.rank import UNMEASURED_GAIN, log_score
from recipe_core.plans.splits import find_row, row_key, row_reasons, row_request, row_state
from recipe_core.recipe.build import make_recipe, rebuild_recipe, recipe_request
from recipe_core.request.describe import request_summary
from recipe_core.request.edit import change, select_split
from recipe_core.request.link import DEFAULT, from_query, to_query
from recipe_core.request.presets import preset_changes, preset_of
from recipe_core.request.schema import PlanRequest
from recipe_core.request.size import SizeRequest
from recipe_core.request.split_key import key_load, key_split
from tests.conftest import LLAMA_70B, request_values
from tests.fixtures.recipes import fallback_request
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table

LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"
LONG = {"max_context": 24_576}
"""At TP 2 the cache of one such request just fits on an H100, so that a start is uncertain."""
DENSE = sorted({round(load) for load in np.geomspace(1, 4096, 250)})


def values(*place, limits=None, workload=None, options=None, **more):
    """A closed loop without a load, by default within 40 ms a token; the rest are objectives."""
    named = {name: more.pop(name) for name in ("model", "device", "per_node") if name in more}
    more |= {"limits": {"tpot_ms": 40} if limits is None else limits}
    parts = {"workload": {"concurrency": None} | (workload or {}), "options": options or {}}
    return request_values(*place, **named, **parts, objective=more)


def request(*args, **more):
    return PlanRequest.parse(values(*args, **more))


@cache
def searched_70b():
    return plan_splits(request())


def by_split(splits):
    """The best row of every split."""
    out = {}
    names = ("engine", "tp", "pp", "dp", "ep", "cp", "kv_dtype")
    for row in map(int, [*splits.order, *np.flatnonzero(~splits.feasible)]):
        candidate = splits.candidate(row)
        out.setdefault(tuple(candidate[name] for name in names), row)
    return out


@over("case", [values(**parts) for parts in table("search", "loads").values()], share=2)
def test_every_split_is_at_its_best_load(case):
    searched = plan_splits(PlanRequest.parse(case))
    listed = {"workload": {"mode": "closed", "concurrency": DENSE[0]}}
    listed |= {"options": case["options"] | {"loads": DENSE[1:]}}
    dense = plan_splits(PlanRequest.parse(case | listed))
    assert (searched.request.load_searched, dense.request.load_searched) == (True, False)
    best, mine = by_split(dense), by_split(searched)
    assert set(mine) == set(best)
    assert len(mine) == len(searched)  # one row a split
    for split, row in best.items():
        if dense.holds[row]:
            own = mine[split]
            assert searched.holds[own], split
            assert log_score(dense, [row])[0] - log_score(searched, [own])[0] >= -CLOSE, split
    best_gain = log_score(dense, [dense.best_row])[0] - log_score(searched, [searched.best_row])[0]
    assert best_gain >= -CLOSE / 4


def test_the_best_within_a_limit_is_not_that_of_one_load_and_moves_are_of_the_limit():
    stated, searched = plan_splits(request(workload={"concurrency": 64})), searched_70b()
    assert (str(stated.best), str(searched.best)) == ("TP 8", "TP 4 × DP 2")
    assert searched.columns["load"][searched.best_row] > 1.5 * 64
    outputs = [s.columns["output_tokens_per_s"][s.best_row] for s in (stated, searched)]
    assert outputs[1] > 1.37 * outputs[0]
    searched = searched_70b()
    flips = [flip.title for flip in searched.sensitivity()]
    assert "limit on time per output token -20 %" in flips
    assert not any(what.startswith("concurrency") for what in flips)
    for step in (16.0, 40.0, 60.0):
        again = plan_splits(change(searched.request, {"objective.limits.tpot_ms": step}))
        assert count_keeping(searched, "tpot", step) == len(again.order)


def test_the_next_larger_load_misses_the_limit_or_queues():
    searched = plan_splits(request(workload=LONG))
    for row in map(int, searched.order[searched.certain[searched.order]]):
        loaded = row_request(searched, row)
        load = loaded.workload.concurrency
        assert load == searched.columns["load"][row]
        more = change(loaded, {"workload.concurrency": load + 1 + int(load * CLOSE)})
        after, place = plan_candidate(more)
        assert not (after.feasible & ~after.spec.overloaded(after))[place]
        again, place = plan_candidate(loaded)
        assert (again.feasible & ~again.spec.overloaded(again))[place]
        assert again.holds[place] == (row_state(searched, row) == "holds")
    assert {row_state(searched, row) for row in map(int, searched.order)} == {"holds", "uncertain"}
    for percentile in (None, 95.0):  # what may not start is under the load that it holds if it does
        limits = {"tpot_ms": 80, "percentile": percentile}
        searched = plan_splits(request(per_node=2, limits=limits, workload=LONG))
        doubtful = [
            row for row in map(int, searched.order) if row_state(searched, row) == "uncertain"
        ]
        assert doubtful
        loads = searched.columns["load"][doubtful]
        assert (loads <= searched.columns["held_requests"][doubtful]).all()
        least = np.concatenate([least_loads(block.cases) for block in searched.blocks])
        assert (loads > least[doubtful]).all()


def test_a_split_that_keeps_the_limit_at_no_load_says_so_of_the_smallest():
    searched = plan_splits(request(limits={"tpot_ms": 30}))
    row = find_row(searched, "vllm.bf16.bf16.tp1.pp2.dp1.ep1")
    assert (searched.columns["load"][row], row_state(searched, row)) == (1, "cannot run")
    assert row_reasons(searched, row)[0].startswith("at one user: time per output token 52")
    pair = find_row(searched, "vllm.bf16.bf16.tp1.pp2.dp2.ep1")
    assert row_reasons(searched, pair)[0].startswith("at 2 users at once: ")
    nothing = plan_splits(request(limits={"tpot_ms": 5}))
    assert nothing.best is None
    for offered in nothing.changes():
        assert plan_splits(change(nothing.request, offered.fields)).best is not None


def test_a_load_that_cannot_be_searched_has_to_be_stated():
    for more, said in table("search", "unsearchable"):
        refused = refusal(request, **more)
        assert refused.field == "workload.concurrency"
        assert said in str(refused)
        assert not request(**more, workload={"concurrency": 3}).load_searched
    assert "request_rate" in str(refusal(request, workload={"mode": "open"}))
    sized = refusal(SizeRequest.parse, {**values(), "hardware": "any"})
    assert sized.field == "workload.concurrency"
    with apply_budget(Budget(candidates=60)):
        assert refusal(plan_splits, request(), kind=LimitError).field == "workload.concurrency"


def test_a_link_keeps_whether_the_load_is_searched_and_without_one_it_is_where_it_can_be():
    for limits in ({}, {"tpot_ms": 40}, {"usd_per_hour": 50}):
        for load in (None, 7, 64) if "tpot_ms" in limits else (7, 64):
            asked = request(limits=limits, workload={"concurrency": load})
            query = to_query(asked)
            assert from_query(query) == (asked, [])
            assert asked.load_searched is (load is None)
            written = load == 7 or (load == 64 and "tpot_ms" in limits)
            assert ("workload.concurrency" in query) is written
    limit = {"objective.limits.tpot_ms": "40"}
    assert from_query(limit)[0].load_searched
    for query in ({**limit, "objective.optimize": "tpot"}, {**limit, "options.loads": "16,64"}, {}):
        opened, ignored = from_query(query)
        assert (ignored, load_after(opened)) == ([], 64)
    broken, ignored = from_query({"objective.limits.tpot_ms": "soon"})
    assert (broken, len(ignored)) == (DEFAULT, 1)


def load_after(asked, **changes):
    dotted = {name.replace("__", "."): value for name, value in changes.items()}
    return change(asked, dotted).workload.concurrency


def test_the_first_limit_on_time_opens_the_usual_load_and_a_preset_leaves_it_open():
    limited_once = change(DEFAULT, {"objective.limits.tpot_ms": 40})
    twice = change(limited_once, {"objective.limits.ttft_ms": 500})
    once = change(twice, {"objective.limits.tpot_ms": None})
    fast = change(limited_once, {"objective.optimize": "gpus"})
    cheap = change(fast, {"objective.optimize": "cost"})
    assert all(asked.load_searched for asked in (limited_once, twice, once, cheap))
    assert load_after(once, objective__limits__ttft_ms=None) == 64
    own = change(DEFAULT, {"workload.concurrency": 48})
    assert load_after(own, objective__limits__tpot_ms=40) == 48
    assert load_after(limited_once, workload__concurrency=64) == 64
    assert load_after(limited_once, objective__optimize="tpot") == 64
    assert load_after(limited_once, options__loads=(16.0, 32.0)) == 64
    assert load_after(DEFAULT, objective__limits__usd_per_hour=40) == 64
    opened = change(preset(DEFAULT, "rag"), {"objective.limits.tpot_ms": 40})
    code = preset(opened, "code")
    assert (opened.load_searched, preset_of(opened)) == (True, "rag")
    assert (code.load_searched, preset_of(code)) == (True, "code")
    queue = preset(code, "batch")
    assert queue.workload.mode == "offline"
    assert preset(queue, "chat").load_searched
    assert change(queue, {"workload.mode": "closed"}).load_searched
    assert load_after(opened, objective__limits__tpot_ms=None) == 32
    assert load_after(preset(change(opened, {"workload.concurrency": 5}), "chat")) == 64
    assert "as many users as the limits allow" in request_summary(request())


def preset(asked, name):
    return change(asked, preset_changes(asked, name))


def test_json_and_frames_say_load_and_state():
    searched = plan_splits(request(workload=LONG))
    answer = searched.to_json(3)
    loads = searched.columns["load"][searched.order[:3]].tolist()
    assert [case["load"] for case in answer["candidates"]] == loads
    assert {case["state"] for case in answer["candidates"]} == {"holds"}
    counts, states = answer["counts"], searched.to_frame().state
    assert counts["holds"] + counts["uncertain"] == counts["feasible"] > 0
    for state in ("holds", "uncertain"):
        assert (states == state).sum() == counts[state] > 0
    crowded = plan_splits(request(limits={}, workload={"concurrency": 512}))
    answer = crowded.to_json()
    queues = [case for case in answer["candidates"] if case["state"] == "queues"]
    assert queues[0]["queue"].startswith(f"holds {queues[0]['holds_requests']} of 512 at once")
    assert (crowded.to_frame().state == "queues").sum() == len(queues) > 0
    assert answer["counts"]["queues"] == len(queues)


def test_an_estimate_a_verdict_a_batch_and_each_of_several_clusters_search_the_load():
    whole = values()
    stated = whole | {"candidate": {"engine": "vllm", "tp": 4, "pp": 1, "dp": 2}}
    split = PlanRequest.parse(stated)
    alone, row = plan_candidate(split)
    assert len(alone) == 1
    searched = plan_splits(split)
    place = by_split(searched)[("vllm", 4, 1, 2, 1, 1, "bf16")]
    assert alone.columns["load"][row] == searched.columns["load"][place]
    verdict = judge_request(split)
    assert verdict["ok"]
    several = estimate_batch([stated, stated | {"workload": {"concurrency": 64}}, whole])
    first, second, best = (answer["serving"]["tpot_s"] for answer in several)
    assert first == verdict["estimate"]["serving"]["tpot_s"] == best
    assert second < first
    both = plan_splits(request(options={"hardware": [{"device": "h200", "per_node": 8}]}))
    for number, name in enumerate(("h100-sxm", "h200")):
        rows = both.clusters_of_rows == number
        loads = plan_splits(request(device=name)).columns["load"]
        assert both.columns["load"][rows].tolist() == loads.tolist()


def test_a_percentile_lowers_the_load_of_the_best_splits():
    limits = {"ttft_ms": 400, "tpot_ms": 20}
    means = plan_splits(request(LLAMA_8B, per_node=1, limits=limits))
    tails = plan_splits(request(LLAMA_8B, per_node=1, limits={**limits, "percentile": 95}))
    load = tails.columns["load"][tails.best_row]
    assert 1 <= load < means.columns["load"][means.best_row]
    more = change(tails.best.request, {"workload.concurrency": math.ceil(load * 1.3)})
    after, row = plan_candidate(more)
    assert not after.holds[row]


def test_a_recipe_holds_the_load_that_was_found():
    asked = request(LLAMA_8B, per_node=2, limits={"tpot_ms": 20})
    splits = plan_splits(asked)
    recipe = make_recipe(asked)
    found = recipe_request(recipe)
    assert found.workload == splits.best.request.workload
    assert load_after(found) == splits.columns["load"][splits.best_row]
    assert not found.load_searched
    assert {"other-split", "fewer-gpus"} <= {fallback.kind for fallback in recipe.fallbacks}
    for fallback in recipe.fallbacks:
        if "hardware" not in fallback.changes:
            after, row = plan_candidate(fallback_request(found, fallback))
            assert after.holds[row]
    assert rebuild_recipe(recipe) == recipe
    stated = PlanRequest.parse({**values(LLAMA_8B, per_node=2), "candidate": splits.best.candidate})
    assert make_recipe(stated).request["workload"]["concurrency"] > 1
    workload = {k: v for k, v in recipe.request["workload"].items() if k != "concurrency"}
    older = recipe.model_copy(update={"request": recipe.request | {"workload": workload}})
    assert "holds the load" in str(refusal(recipe_request, older))


@pytest.mark.parametrize("users", [8, 64, 256])
def test_a_pipeline_comes_first_only_where_it_is_clearly_better(users):
    """No run shows how long stages wait for each other where requests come and go."""
    plan = plan_splits(change(DEFAULT, {"workload.concurrency": users}))
    stages, best = plan.columns["pp"], plan.best_row
    held = plan.order[plan.holds[plan.order]]
    gains = log_score(plan, held) - log_score(plan, [best])
    if stages[best] > 1:
        assert (gains[stages[held] == 1] >= UNMEASURED_GAIN).all()
    else:
        assert (gains > -UNMEASURED_GAIN).all()
        assert (gains[stages[held] == 1] >= 0).all()
    assert (np.diff(gains[1:]) > -1e-3).all()  # all others by the estimate


def test_a_pipeline_that_is_estimated_a_little_better_is_second():
    plan = plan_splits(DEFAULT)
    first, second = map(int, plan.order[:2])
    gain = log_score(plan, [first])[0] - log_score(plan, [second])[0]
    assert (plan.columns["pp"][first], plan.columns["pp"][second]) == (1, 2)
    assert 0 < gain < UNMEASURED_GAIN


def test_a_key_names_the_load_exactly_where_a_plan_has_several():
    asked = request(workload={"concurrency": 64}, options={"loads": [16, 96]})
    listed = plan_splits(asked)
    row = next(row for row in map(int, listed.order) if listed.columns["load"][row] == 96)
    key = row_key(listed, row)
    assert key.endswith(".load96")
    assert key_load(key) == 96
    assert "load" not in (key_split(key) or {})
    assert split_label(listed, row).endswith("96 users at once")
    assert listed.columns["load"][find_row(listed, key.removesuffix(".load96"))] == 64
    settled = change(asked, select_split(asked, key))
    assert (load_after(settled), sorted(settled.options.loads)) == (96, [16, 64])
    after = plan_splits(settled)
    assert after.candidate(find_row(after, key)) == listed.candidate(row)
    alone, only = plan_candidate(settled)
    assert alone.columns["load"][only] == 96
    arriving = {"mode": "open", "request_rate": 0.3}
    listed = plan_splits(request(limits={}, workload=arriving, options={"loads": [1.25]}))
    keys = {row: row_key(listed, row) for row in map(int, listed.order)}
    assert {row: find_row(listed, key) for row, key in keys.items()} == {row: row for row in keys}
    assert set(map(key_load, keys.values())) == {0.3, 1.25}
    assert listed.measures["load"].title == "Requests that arrive"
    searched = searched_70b()
    assert not any("load" in row_key(searched, row) for row in map(int, searched.order))
    assert searched.measures["load"].title == "Users at once"
    assert rb.plan(values()).request.load_searched


LIMITED = change(DEFAULT, {"model": LLAMA_70B, "objective.limits.tpot_ms": 40.0})


@over(
    "changes word admitted",
    [
        ({}, "max_num_seqs", 64),
        ({"options.engines": ("sglang",)}, "max_running_requests", 64),
        ({"options.engines": ("tensorrt-llm",)}, "max_batch_size", 64),
        # a stated load does not narrow it, and arrivals have the same number
        ({"workload.concurrency": 64, "options.nodes": "all"}, "max_num_seqs", 120),
        ({"workload.mode": "open", "workload.request_rate": 8.0}, "max_num_seqs", 64),
        ({"options.admit": "engine"}, "max_num_seqs", 1024),
        ({"objective.limits.tpot_ms": None, "workload.concurrency": 64}, "max_num_seqs", 1024),
        ({"candidate.max_num_seqs": 32}, "max_num_seqs", 32),
    ],
)
def test_an_engine_admits_as_many_requests_as_the_limits_hold_for(changes, word, admitted):
    request = change(LIMITED, changes)
    recipe = make_recipe(request)
    assert recipe.engine.options[word] == recipe.candidate["max_num_seqs"] == admitted
    by_limits = recipe.provenance[f"options.{word}"] == "limits"
    assert by_limits == (admitted not in (32, 1024))
    again = make_recipe(recipe_request(recipe))
    assert (again.candidate, again.estimate) == (recipe.candidate, recipe.estimate)


def test_the_number_admitted_keeps_the_limits_and_is_what_memory_is_counted_for():
    table = plan_splits(LIMITED)
    best = table.best_row
    seats = table.candidate(best)["max_num_seqs"] * table.candidate(best)["dp"]
    assert table.columns["load"][best] <= seats < table.columns["load"][best] + 16
    assert table.columns["held_requests"][best] == seats
    more = plan_splits(change(LIMITED, {"options.admit": "engine"}))
    same = find_row(more, row_key(table, best))
    assert more.columns["load"][same] == table.columns["load"][best]
    assert more.columns["tpot_s"][same] == table.columns["tpot_s"][best] <= 0.04
    # the sampler's buffers are for fewer requests
    assert table.columns["total_bytes"][best] < more.columns["total_bytes"][same]
    # what keeps no limit at one request is told what the engine takes by itself
    missed = plan_splits(change(LIMITED, {"objective.limits.tpot_ms": 0.5}))
    assert not missed.feasible.any()
    assert missed.candidate(0)["max_num_seqs"] == 1024
