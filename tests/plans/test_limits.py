"""Limits, how sure they are kept, what lets splits run, and choices beside the best."""

import pickle
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recipe_core as rb
from recipe_core.base.intervals import NORMAL, factor_at, probability_below, scores_below
from recipe_core.base.units import chance_text
from recipe_core.doors.worker import pickle_message
from recipe_core.engines.spec import engine
from recipe_core.plans import alternatives as beside
from recipe_core.plans.alternatives import find_alternatives
from recipe_core.plans.confidence import joint_probability, signed_correlation
from recipe_core.plans.limits import LIMITS, limits_phrase
from recipe_core.plans.plan_json import measure_text, split_label
from recipe_core.plans.plans import count_keeping, estimate_batch, plan_splits
from recipe_core.plans.rank import (
    NO_DIFFERENCE,
    beats,
    beats_elsewhere,
    count_ties,
    is_tie,
    nearest_row,
    refused_rows,
    rows_beyond_limits,
    tied_rows,
    ties_elsewhere,
)
from recipe_core.plans.remedies import (
    advice_text,
    change_label,
    fixes,
    helpful_changes,
    looser_limits,
    nearest_feasible,
)
from recipe_core.plans.splits import broken_rules, find_row, row_key, row_reasons
from recipe_core.request.edit import change
from recipe_core.request.link import DEFAULT, from_query
from recipe_core.views.plan_words import against_best, confidence_text, unpriced_note
from recipe_core.views.plans import plan_text
from tests.conftest import request_values
from tests.fixtures.rows import over, table
from tests.fixtures.sizes import examples
from tests.fixtures.training import training_request

CASES = table("search", "alternatives")
LLAMA, LIMITED = CASES["throughput"], CASES["cost"]


def planned(query):
    request, ignored = from_query(query)
    assert not ignored
    return plan_splits(request)


@cache
def case(name):
    return planned(CASES[name])


@over("changes code", table("search", "fixed"))
def test_a_change_that_is_offered_lets_the_split_run(changes, code):
    board = plan_splits(change(DEFAULT, changes))
    rows = [int(row) for row in refused_rows(board) if code in broken_rules(board, int(row))]
    row, fix = next((row, fix) for row in rows for fix in fixes(board, row) if fix.fields)
    after = plan_splits(change(board.request, fix.fields))
    key = row_key(board, row)
    if weights := fix.fields.get("options.weight_dtypes"):
        key = key.replace(".bf16.", f".{weights[0]}.", 1)
    assert after.feasible[find_row(after, key)]
    assert change_label(fix.fields)


@pytest.mark.parametrize("query", [LLAMA, {"workload.kind": "training", "hardware.nodes": "2"}])
def test_the_nearest_split_that_fits_differs_least(query):
    board = planned(query)
    row = int(refused_rows(board)[0])
    near = nearest_feasible(board, row)
    assert board.feasible[near]
    assert fixes(board, row)[-1].key == row_key(board, near)
    assert fixes(board, near) == []
    if query == LLAMA:
        odd = nearest_feasible(board, find_row(board, "vllm.bf16.bf16.tp7.pp1.dp1.ep1"))
        assert row_key(board, odd) == "vllm.bf16.bf16.tp8.pp1.dp1.ep1"


@over("changes", table("search", "nothing_fits"), share=3)
def test_where_nothing_fits_changes_let_something_in(changes):
    board = plan_splits(change(DEFAULT, changes))
    assert board.best is None
    offered = helpful_changes(board)
    assert 1 <= len(offered) <= 3
    assert [remedy.fields for remedy in board.changes()] == [remedy.fields for remedy in offered]
    for remedy in offered:
        after = plan_splits(change(board.request, remedy.fields))
        assert after.best.candidate == remedy.candidate
        assert remedy.split == split_label(after, after.best_row) or after.kind == "serving"
        assert str(remedy).startswith(next(iter(remedy.fields)))
        if changes == LLAMA | {"hardware.per_node": 1}:  # only weights that the engine can load
            assert remedy.fields.get("options.weight_dtypes") in (None, ("fp8",))
    free = case("throughput")
    assert (nearest_row(free), helpful_changes(free)) == (None, [])


@over("kind limits", table("search", "limits"))
def test_each_limit_refuses_and_looser_ones_let_the_named_split_in(kind, limits):
    fields = {f"objective.limits.{name}": value for name, value in limits.items()}
    base = change(DEFAULT, {"workload.kind": kind})
    board = plan_splits(change(base, fields))
    assert not len(board.order)
    [looser] = looser_limits(board)
    assert sorted(looser.fields) == sorted(fields)
    if len(limits) == 1:
        row = nearest_row(board)
        assert {LIMITS[code].name for code in broken_rules(board, row)} == limits.keys()
        after = plan_splits(change(base, looser.fields))
        assert looser.candidate in (board.candidate(row), after.best.candidate)
        assert board.changes()[0].fields == looser.fields
    elif kind == "training":
        assert [len(row_reasons(board, row)) for row in rows_beyond_limits(board)[:3]] == [2, 2, 2]
    assert looser.key in {split.key for split in plan_splits(change(base, looser.fields)).ranked}


@pytest.mark.parametrize("name", CASES)
def test_each_is_what_its_own_plan_says_and_improves_the_goal_or_gains_for_it(name):
    before = case(name)
    choices = find_alternatives(before)
    assert choices
    assert len({choice.kind for choice in choices}) == len(choices) <= 5
    trades = [bool(choice.gained) for choice in choices if choice.kind != "sure"]
    assert trades == sorted(trades)  # those that improve the goal come first
    for choice in choices:
        after = plan_splits(change(before.request, choice.fields))
        row = find_row(after, choice.key)
        assert row is not None, choice
        assert after.feasible[row]
        assert after.candidate(row) == choice.candidate
        assert choice.figure in {measure_text(after, measure, row) for measure in after.measures}
        assert choice.label.startswith(f"{choice.title}: ")
        assert choice.gain > 0
        if not choice.gained and len(before.request.objective.goals) == 1:
            assert abs(choice.change) >= beside.LEAST_GAIN * 0.9
        if choice.gained:  # another format without a gain is no choice
            assert choice.kind in ("fewer", "more", "sure")
        if name == "stated" and choice.kind not in ("fewer", "more"):
            assert choice.fields["candidate"] is None  # left to the ranking again
    if name == "clusters":  # another process gives the same
        sent = find_alternatives(pickle.loads(pickle_message(before)))
        assert [choice.label for choice in sent] == [choice.label for choice in choices]


def test_cheaper_formats_are_offered_and_nothing_beside_a_large_plan_or_where_nothing_runs():
    choices = find_alternatives(planned(LIMITED | {"workload.concurrency": "48"}))
    assert choices[0].to_json()["set"] == dict(choices[0].fields)
    by_kind = {choice.kind: choice for choice in choices}
    assert by_kind["weights"].fields == {"options.weight_dtypes": ("fp8",)}
    assert by_kind["weights"].change < -0.1
    assert by_kind["weights"].accuracy is not None
    assert by_kind["cache"].title == "fp8 cache"
    assert by_kind["checkpoint"].fields["model"] != LLAMA["model"]
    assert by_kind["more"].gained
    assert by_kind["more"].accuracy is None
    chosen = planned(LIMITED | {"hardware.device": "a100-sxm-80gb"})
    device = chosen.problem.cluster.device
    known = {"cache": device.kv_dtypes, "weights": device.weight_dtypes}
    for choice in find_alternatives(chosen):
        if choice.kind in known:
            assert choice.title.removesuffix(f" {choice.kind}") in known[choice.kind]
    large = planned(CASES["training"] | {"hardware.nodes": "2"})
    assert len(large) > beside.MOST_ROWS
    choices = find_alternatives(large)
    assert {choice.kind for choice in choices} <= {"fewer", "more"}
    assert all("hardware.nodes" not in choice.fields for choice in choices)
    assert find_alternatives(planned(LLAMA | {"hardware.per_node": "1"})) == []
    shares = {-0.152: "−15 %", 0.001: "same", 12.0: "+1,200 %", -0.004: "same"}
    assert {share: beside.share_change_text(share) for share in shares} == shares


@pytest.mark.parametrize("name", ["throughput", "cost"])
def test_runners_up_name_another_engine_and_another_format_also_where_they_are_worse(name):
    before = case(name)
    setting = before.setting(before.best_row)
    beside_best = {choice.kind: choice for choice in find_alternatives(before, runners_up=True)}
    other = beside_best["engine"]
    (engine_name,) = other.fields["options.engines"]
    assert engine_name != setting.engine.name == "vllm"
    assert other.title == engine(engine_name).title
    assert set(beside_best) & set(beside.FORMATS)
    for choice in beside_best.values():  # each is what its own plan says
        after = plan_splits(change(before.request, choice.fields))
        row = find_row(after, choice.key)
        assert row is not None
        assert choice.figure in {measure_text(after, measure, row) for measure in after.measures}
        chance = beats_elsewhere(after, row, before, before.best_row)
        alike = after.queues[row] == before.queues[before.best_row]
        assert choice.tie == (alike and is_tie(chance))
        assert choice.tie == (NO_DIFFERENCE in choice.label)
    assert other.tie  # the engines share the layout
    assert other.label == f"{other.title}: {other.figure}, {NO_DIFFERENCE}"
    engines = {choice.kind for choice in find_alternatives(before)} & {"engine"}
    assert engines == set()  # unless asked for


def test_a_tie_is_of_rows_in_one_state_whose_figures_tell_nothing():
    both = planned(LLAMA | {"options.engines": "vllm,tensorrt-llm"})
    best = both.best_row
    rows = np.arange(len(both))
    tied = tied_rows(both, rows)
    assert tied.sum() == count_ties(both) > 0
    assert not tied[best]
    assert both.holds[tied].all()
    elsewhere = [ties_elsewhere(both, int(row), both, best) for row in np.flatnonzero(tied)]
    assert all(elsewhere)
    crowded = planned(LLAMA | {"workload.concurrency": "2048"})
    waiting = np.flatnonzero(crowded.queues & crowded.feasible)
    assert len(waiting)
    for row in map(int, waiting[:5]):
        assert ties_elsewhere(crowded, row, crowded, row)  # beside itself
        assert not ties_elsewhere(crowded, row, both, best)
    refused = int(refused_rows(crowded)[0])
    assert not ties_elsewhere(crowded, refused, crowded, refused)
    nothing = planned(LLAMA | {"hardware.per_node": "1"})
    assert not tied_rows(nothing, np.arange(len(nothing))).any()


def test_what_is_worse_is_a_runner_up_only_and_says_by_how_much():
    """A checkpoint in 4 bits with a cache in 8 has the smallest formats: all others are slower."""
    smallest = {"model": "Qwen/Qwen3-32B-AWQ", "options.kv_dtypes": "fp8"}
    quantised = planned(smallest | {"objective.optimize": "tpot"})
    assert not [c for c in find_alternatives(quantised) if c.kind in (*beside.FORMATS, "engine")]
    choices = {c.kind: c for c in find_alternatives(quantised, runners_up=True)}
    order = [choice.kind for choice in find_alternatives(quantised, runners_up=True)]
    traded = [kind for kind in order if choices[kind].gained]
    assert order[len(order) - len(traded) :] == traded
    for kind in ("cache", "checkpoint"):
        assert choices[kind].gain < 0 < choices[kind].change
        assert choices[kind].gained == ""
        said = NO_DIFFERENCE if choices[kind].tie else "+"
        begins = f"{choices[kind].title}: {choices[kind].figure}, {said}"
        assert choices[kind].label.startswith(begins)
    assert not choices["checkpoint"].tie  # of twice the size
    other = planned(LLAMA | {"hardware.device": "mi300x"})
    (slower,) = (c for c in find_alternatives(other, runners_up=True) if c.kind == "engine")
    assert slower.gain < 0 > slower.change  # of throughput


def test_the_safe_split_is_the_best_of_the_sure_ones_and_a_surer_load_is_offered_first():
    stated = LIMITED | {"objective.limits.tpot_ms": "33", "workload.concurrency": "48"}
    doubtful = planned(stated | {"objective.confidence": "0.5"})
    best = doubtful.best_row
    assert doubtful.chances[best] < beside.SURE
    kept = doubtful.order[doubtful.holds[doubtful.order]]
    safe = int(kept[doubtful.chances[kept] >= beside.SURE][0])
    asked = plan_splits(change(doubtful.request, {"objective.confidence": beside.SURE}))
    assert asked.candidate(asked.best_row) == doubtful.candidate(safe)
    assert find_alternatives(case("searched"))[0].kind != "sure"  # it is
    searched = plan_splits(change(case("searched").request, {"objective.confidence": 0.5}))
    assert searched.chances[searched.best_row] < beside.SURE
    first = find_alternatives(searched)[0]
    assert (first.kind, first.fields) == ("sure", {"objective.confidence": beside.SURE})
    assert first.change > 0  # it costs more
    assert "holds 40 ms per token with 8" in first.label
    sure = plan_splits(change(searched.request, first.fields))
    assert sure.chances[sure.best_row] >= beside.SURE


INTERVALS = {"50": (0.9, 1.1), "80": (0.8, 1.3), "95": (0.6, 1.8)}


def within(**limits):
    objective = {"optimize": "cost", "confidence": limits.pop("confidence", None)}
    return rb.plan(request_values(objective=objective | {"limits": limits}))


def test_scores_are_those_of_the_intervals_and_what_rises_counts_against_what_falls():
    for level, share in (("50", 0.75), ("80", 0.9), ("95", 0.975)):
        high = INTERVALS[level][1]
        assert probability_below(INTERVALS, high) == pytest.approx(share)
        assert factor_at(INTERVALS, NORMAL.inv_cdf(share)) == pytest.approx(high)
    limits = np.geomspace(0.1, 10, 50)
    scores = scores_below(INTERVALS, limits)
    assert (np.diff(scores) > 0).all()
    assert [factor_at(INTERVALS, score) for score in scores] == pytest.approx(limits.tolist())
    known = {"a": {"b": 0.5}}
    signed = [("a", 1), ("b", -1), ("a", -1)]
    rows = [[1.0, -0.5, -1.0], [-0.5, 1.0, 0.5], [-1.0, 0.5, 1.0]]
    assert signed_correlation(signed, known).tolist() == rows


@given(st.lists(st.floats(-2.5, 2.5), min_size=2, max_size=3), st.floats(-0.95, 0.95))
@settings(max_examples=examples(40, least=6))
def test_several_limits_hold_together_as_drawn_normals_do(scores, shared):
    size = len(scores)
    loading = np.full(size, np.sqrt(abs(shared)))
    loading[0] *= np.sign(shared) or 1.0
    correlation = np.outer(loading, loading)
    np.fill_diagonal(correlation, 1.0)
    drawn = np.random.default_rng(1).multivariate_normal(np.zeros(size), correlation, 200_000)
    counted = (drawn <= np.array(scores)).all(axis=1).mean()
    [found] = joint_probability(np.array(scores)[:, None], correlation)
    assert found == pytest.approx(counted, abs=0.01)
    assert found <= min(NORMAL.cdf(score) for score in scores) + 1e-9


def test_one_limit_holds_as_its_figure_says_also_of_a_run_and_what_is_certain_or_not():
    limited = within(tpot_ms=30)
    for row in limited.order[:5]:
        own = limited.estimate(row).tpot_s.probability_below(0.030)
        assert limited.chances[row] == pytest.approx(own)
    first = limited.to_json(top=3)["candidates"][0]["confidence"]
    assert first == pytest.approx(limited.chances[limited.order[:1]][0])
    free = within()
    assert free.to_json(top=1)["candidates"][0]["confidence"] is None
    assert confidence_text(free, free.best_row) == ""
    few = within(gpus=4)
    chance = few.chances[few.runs]
    assert set(np.unique(chance)) == {0.0, 1.0}
    assert (chance == (few.columns["gpus"][few.runs] <= 4)).all()
    run = training_request(nodes=1, sequence_length=4096, tokens=1e9)
    free = plan_splits(run)
    limit = 1.5 * float(free.columns["wall_s"][free.best_row])
    limited = plan_splits(change(run, {"objective.limits.wall_hours": limit / 3600}))
    row = limited.best_row
    step, wall = (float(limited.columns[name][row]) for name in ("step_s", "wall_s"))
    own = limited.estimate(row).step_s.probability_below(step * limit / wall)
    assert limited.chances[row] == pytest.approx(own)


def test_a_looser_limit_never_holds_less_likely_and_what_makes_one_sure_is_planned():
    plans = [within(tpot_ms=limit, ttft_ms=800) for limit in (15, 20, 30, 60, 200)]
    chances = np.stack([limited.chances[[0, 5, 11, 17]] for limited in plans])
    assert (np.diff(np.nan_to_num(chances), axis=0) >= -1e-9).all()
    free = within()
    limit = float(free.columns["tpot_s"][free.best_row]) * 1e3 * 1.001
    tight = within(tpot_ms=limit, confidence=0.5)
    row = find_row(tight, row_key(free, free.best_row))
    assert tight.feasible[row]
    assert not within(tpot_ms=limit).feasible[row]  # a coin toss is no answer unless asked for
    chance = chance_text(tight.chances[row])
    assert confidence_text(tight, row) == f"Holds {limits_phrase(tight)} with {chance}"
    nothing = within(tpot_ms=16, confidence=0.99)
    assert nothing.best is None
    assert nothing.changes()
    for offered in nothing.changes():
        assert plan_splits(change(nothing.request, offered.fields)).best is not None


@pytest.mark.parametrize("asked", [0.6, 0.8, 0.95])
def test_a_confidence_that_is_asked_for_is_a_rule(asked):
    sure = within(tpot_ms=30, ttft_ms=900, confidence=asked)
    free = within(tpot_ms=30, ttft_ms=900, confidence=0.5)
    chance = free.chances
    assert (sure.feasible == (free.feasible & (chance >= asked))).all()
    for row in np.flatnonzero(free.feasible & ~sure.feasible)[:3]:
        assert any("is asked for" in reason for reason in row_reasons(sure, int(row)))


@over(
    "tpot_ms ttft_ms near said",
    [
        (30, 380, "TP 4", "objective.confidence: 0.58 (TP 8)."),
        (34, 390, "TP 2 × DP 4", "objective.confidence: 0.66 (TP 4 × DP 2)."),
        (26, 600, "TP 4 × PP 2", "objective.confidence: 0.59 (TP 8)."),
    ],
)
def test_a_remedy_names_the_split_that_works_where_it_is_not_the_nearest(
    tpot_ms, ttft_ms, near, said
):
    nothing = within(tpot_ms=tpot_ms, ttft_ms=ttft_ms, confidence=0.9)
    row, changes = nearest_row(nothing), nothing.changes()
    assert split_label(nothing, row) == near
    assert advice_text(changes, nothing.candidate(row)) == f"It works with {said}"
    assert f"  It works with {said}" in plan_text(nothing, 3).splitlines()
    after = plan_splits(change(nothing.request, changes[0].fields))
    assert after.candidate(after.best_row) == changes[0].candidate
    assert after.chances[after.best_row] >= changes[0].fields["objective.confidence"]


PRICED = ("h100-sxm", "mi300x", "l40s", "b200-sxm")
COST = "usd_per_million_output_tokens"
GH200 = {"device": "gh200-144gb", "per_node": 4}
"""Nobody is known to offer it."""
PRICES = table("search", "priced")
kinds = pytest.mark.parametrize("kind", PRICES)


def priced(kind, places, **objective):
    first, *beside = [place if isinstance(place, dict) else {"device": place} for place in places]
    values = PRICES[kind] | {"hardware": first}
    values |= {"options": {"hardware": beside}, "objective": objective or {"optimize": "cost"}}
    return rb.plan(values)


def order_of(splits, rows=None):
    """Rows by their splits and devices, whatever number their cluster has."""
    return [
        (splits.setting(row).cluster.device.name, row_key(splits, row).partition(".on")[0])
        for row in map(int, splits.order if rows is None else rows)
    ]


JUDGED = table("search", "money")


def test_every_limit_on_money_is_tried_here_and_on_one_stated_split_too():
    assert {rule.name for rule in LIMITS.values() if rule.priced} == {
        name for _, name, *_ in JUDGED
    }
    split = {"engine": "vllm", "tp": 4, "pp": 1, "dp": 1}
    limit = {"limits": {"usd_per_hour": 60}}
    values = request_values("Qwen/Qwen3-32B", "gh200-144gb", 4, candidate=split, objective=limit)
    (answer,) = estimate_batch([values])
    assert not answer["feasible"]
    assert "the limit of $60 an hour cannot be judged" in answer["reasons"][0]


@over("kind name limit said", JUDGED, share=3)
def test_a_limit_on_money_refuses_what_has_no_price(kind, name, limit, said):
    limits = {"limits": {name: limit}}
    alone = priced(kind, [GH200], **limits)
    assert alone.best is None
    row = nearest_row(alone)
    assert broken_rules(alone, row) == {code for code, rule in LIMITS.items() if rule.name == name}
    reason = (
        "no price of NVIDIA GH200 Grace Hopper 144 GB (HBM3e) is known, "
        f"so the limit of {said} cannot be judged; state hardware.usd_per_device_hour"
    )
    assert row_reasons(alone, row) == [reason]
    assert rows_beyond_limits(alone) == fixes(alone, row) == []
    assert reason in plan_text(alone, 3)
    known = priced(kind, [GH200 | {"usd_per_device_hour": 0.001}], **limits)
    assert len(known.order) == int(alone.runs.sum())
    free, beside = (
        priced(kind, places, **limits) for places in (["h100-sxm"], ["h100-sxm", GH200])
    )
    assert {device for device, _ in order_of(beside)} == {"h100-sxm"}
    assert order_of(beside) == order_of(free)
    measure = next(n for n, m in beside.measures.items() if m.limit == "gpus")
    assert count_keeping(beside, measure, None) == len(beside.order)


@cache
def mixed(kind, *places):
    return priced(kind, [GH200 if name == GH200["device"] else name for name in places])


@kinds
@settings(max_examples=examples(12, least=5))
@given(
    places=st.lists(st.sampled_from(PRICED), min_size=1, max_size=3, unique=True),
    at=st.integers(0, 3),
)
def test_a_device_without_a_price_changes_the_order_of_no_others(kind, places, at):
    without = mixed(kind, *places)
    splits = mixed(kind, *places[:at], "gh200-144gb", *places[at:])
    assert order_of(splits) == order_of(without) + order_of(mixed(kind, "gh200-144gb"))
    assert count_ties(splits) == count_ties(without)


def test_cost_orders_priced_devices_before_those_without_a_price():
    """One unknown price used to turn the goal into the fewest devices, for all splits."""
    objective = {"optimize": "cost", "limits": {"tpot_ms": 40}}
    splits = priced("serving", ["h100-sxm", GH200], **objective)
    held = splits.order[splits.holds[splits.order]]  # what queues ranks last
    cost = splits.columns[COST][held]
    known = np.isfinite(cost)
    assert known.any()
    assert not known.all()
    assert not (np.diff(known.astype(int)) > 0).any()
    assert (cost[known] >= np.maximum.accumulate(cost[known]) * 0.999).all()
    rate = splits.columns["output_tokens_per_s_per_gpu"][held][~known]
    assert (rate <= np.minimum.accumulate(rate) * 1.001).all()
    places = ["h100-sxm", {"device": "gb300", "per_node": 4}]
    splits = priced("serving", places)
    assert (unpriced_note(splits), splits.to_json(1)["unpriced"]) == (None, [])
    cost, holds = splits.columns[COST][splits.order], splits.holds[splits.order]
    assert np.isfinite(cost).all()
    for part in (cost[holds], cost[~holds]):  # those that queue come after them
        assert (part >= np.maximum.accumulate(part) * 0.999).all()
    assert None not in beats(splits, splits.order[1:], splits.best_row)
    assert {device for device, _ in order_of(splits)} == {"h100-sxm", "gb300"}
    limited = priced("serving", places, limits={"usd_per_hour": 1e4})
    assert len(limited.order) == len(splits.order)


@kinds
def test_costs_are_not_compared_with_unknown_ones_and_the_plan_says_so(kind):
    splits = mixed(kind, "h100-sxm", "gh200-144gb")
    best = splits.best_row
    lacking = [row for row in map(int, splits.order) if "GH200" in split_label(splits, row)]
    known = [row for row in map(int, splits.order[1:]) if "GH200" not in split_label(splits, row)]
    assert set(beats(splits, lacking, best)) == {None}
    assert None not in [*beats(splits, known, best), *beats(splits, lacking, lacking[0])]
    assert against_best(splits, lacking[0]) == ""
    values = splits.to_json(len(splits))
    assert values["unpriced"] == ["gh200-144gb"]
    chances = {case["hardware"]["device"]: case["beats_best"] for case in values["candidates"]}
    assert chances["gh200-144gb"] is None
    assert values["counts"]["tied_with_best"] == count_ties(splits) < len(known) + 1
    note = "No price of GH200 Grace Hopper 144 GB is known: "
    assert unpriced_note(splits) == f"{note}its layouts come last."
    assert f"{unpriced_note(splits)} State usd_per_device_hour" in plan_text(splits, 3)
    assert unpriced_note(mixed(kind, "gh200-144gb")) == f"{note}layouts rank by output per device."
    fast = priced(kind, ["h100-sxm", GH200], optimize="throughput")
    assert (unpriced_note(fast), fast.to_json(1)["unpriced"]) == (None, ["gh200-144gb"])
    assert None not in beats(fast, fast.order, fast.best_row)
    assert mixed(kind, "h100-sxm").to_json(1)["unpriced"] == []


@pytest.mark.parametrize("weights", [{"cost": 1.0, "throughput": 1.0}, {"cost": 3.0, "gpus": 1.0}])
def test_weights_with_cost_put_unknown_prices_last(weights):
    splits = priced("training", ["h100-sxm", GH200], weights=weights)
    without = order_of(priced("training", ["h100-sxm"], weights=weights))
    assert order_of(splits)[: len(without)] == without
    assert {device for device, _ in order_of(splits)[len(without) :]} == {"gh200-144gb"}
