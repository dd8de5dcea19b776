"""The scheduler with steps of one second; then properties of simulations of real settings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from recipe_core.base.errors import InputError
from recipe_core.physics.serving.operators import Step, step_parts, total
from recipe_core.physics.serving.scheduler import Replica, Rules, StepTimes
from recipe_core.physics.serving.simulate import (
    EXACT,
    FIGURES,
    MOST,
    Spread,
    _step_times,
    requests_each,
    simulate,
)
from recipe_core.request.schema import PlanRequest
from recipe_core.search.changes import helpful_changes
from recipe_core.search.plans import estimate_batch, plan, plan_candidate
from recipe_core.search.serving_plan import NEAREST
from tests.conftest import make_request, request_values
from tests.fixtures.sizes import examples

LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"
A_SECOND = StepTimes([[0.0, 1.0]] * 4, [[[[1.0] * 2] * 2] * 2] * 2)


def rules(**changes) -> Rules:
    usual = {
        "step_tokens": 10,
        "slots": 8,
        "pool_tokens": 1000,
        "block_tokens": 0,
        "stages": 1,
        "cached": 0.0,
    }
    return Rules(**(usual | {"reserves": False, "chunked": True, "mixes": True} | changes))


def ran(lengths: list[tuple[int, int]], sent: list[float] | None = None, **changes) -> Replica:
    """A replica after requests of (input, output) tokens, all sent at once unless ``sent`` says
    when.
    """
    replica = Replica(
        rules(**changes),
        A_SECOND,
        [i for i, _ in lengths],
        [o for _, o in lengths],
        [0.0] * len(lengths),
    )
    for at in sent or [0.0] * len(lengths):
        replica.send(at)
    replica.run(closed=False)
    return replica


def case(workload, model=LLAMA_8B, device="h100-sxm", **candidate):
    """The estimates of one split."""
    split = {"engine": "vllm", "tp": 1, "pp": 1, "dp": 1} | candidate
    request = make_request(
        model, device, split["tp"] * split["pp"] * split["dp"], workload=workload, candidate=split
    )
    block = plan_candidate(request)[0].blocks[0]
    assert block.feasible[0], block.reasons(0)
    return block.estimates


def simulation(block, **options):
    return simulate(block.setting, block.cases, block.memory, **options)


# --- the scheduler
# --------------------------------------------------------------------------------------------------


def test_a_request_takes_a_step_for_its_prompt_and_one_for_each_further_token():
    one = ran([(10, 5)])
    assert (one.first, one.done) == ([1.0], [5.0])


def test_prompts_share_the_budget_in_order():
    """15 and 5 tokens, 10 a step: ten of the first, then its other five and all of the second."""
    two = ran([(15, 1), (5, 1)])
    assert two.first == [2.0, 2.0]


def test_decoding_takes_its_tokens_before_prompts_do():
    """While one decodes nine tokens a step are left for the prompt of eighteen."""
    two = ran([(1, 9), (18, 1)], sent=[0.0, 1.0])
    assert two.first == [1.0, 3.0]


def test_no_more_requests_run_than_there_are_slots():
    two = ran([(1, 4), (1, 4)], slots=1)
    assert two.done == [4.0, 8.0]


def test_the_newest_request_is_put_back_when_the_cache_overflows():
    """Both prompts fit into 30 tokens, but not 2 × 25 in the end: the second is preempted."""
    two = ran([(10, 15), (10, 15)], pool_tokens=30, step_tokens=20)
    assert two.order == [0, 1]
    assert two.done[0] == 15.0
    assert two.first[1] == 1.0
    assert two.done[1] > 2 * 15.0 - 6


def test_an_engine_that_reserves_lets_nobody_in_whom_it_would_put_back():
    two = ran([(10, 15), (10, 15)], pool_tokens=30, step_tokens=20, reserves=True)
    assert two.done == [15.0, 30.0]
    assert two.first == [1.0, 16.0]


def test_whole_prompts_pause_decoding():
    """An engine without chunked prefill: the second prompt (30 tokens, over the budget) goes in one
    step while the first request waits.
    """
    two = ran([(5, 4), (30, 1)], sent=[0.0, 1.0], chunked=False, mixes=False)
    assert two.first == [1.0, 2.0]
    assert two.done[0] == 5.0


def test_chunks_pause_decoding_where_prompts_come_first():
    """Three steps of a prompt, over budgets of ten tokens, before the first request goes on."""
    lengths = [(5, 4), (30, 1)]
    first = ran(lengths, sent=[0.0, 1.0], mixes=False)
    mixed = ran(lengths, sent=[0.0, 1.0], mixes=True)
    assert (first.first[1], first.done[0]) == (4.0, 7.0)
    assert (mixed.first[1], mixed.done[0]) == (5.0, 4.0)


def test_a_cached_prefix_is_not_computed():
    assert ran([(40, 1)], cached=0.5).first == [2.0]


def test_an_arrival_waits_for_the_step_under_way():
    two = ran([(1, 100), (1, 1)], sent=[0.0, 50.5])
    assert two.first[1] == 52.0


@hypothesis_settings(deadline=None, max_examples=examples(150))
@given(
    st.lists(
        st.tuples(st.integers(1, 60), st.integers(1, 30), st.floats(0, 100)),
        min_size=1,
        max_size=30,
    ),
    st.integers(1, 40),
    st.integers(1, 5),
    st.integers(90, 300),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1, 4]),
)
def test_every_request_ends_once_and_frees_its_cache(
    requests, budget, slots, pool, reserves, mixes, stages
):
    sent = sorted(at for _, _, at in requests)
    end = ran(
        [(i, o) for i, o, _ in requests],
        sent,
        step_tokens=budget,
        slots=slots,
        pool_tokens=pool,
        reserves=reserves,
        chunked=mixes,
        mixes=mixes,
        stages=stages,
    )
    assert sorted(end.order) == list(range(len(requests)))
    assert (end._allocated, end._context, len(end._running)) == (0, 0, 0)
    for (_, output, _), at, first, done in zip(requests, sent, end.first, end.done, strict=True):
        assert at + 1 <= first + 1e-9
        assert done >= first + output - 1 - 1e-9


def test_a_closed_loop_keeps_its_number_of_requests():
    """A request is sent when one ends: with 3 in flight of 12, the k-th end sends request k + 2."""
    replica = Replica(rules(), A_SECOND, [5] * 12, list(range(2, 14)), [0.0] * 12)
    for _ in range(3):
        replica.send(0.0)
    replica.run(closed=True)
    assert sorted(replica.sent[3:]) == sorted(replica.done[r] for r in replica.order[:9])


# --- step times
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [LLAMA_8B, "openai/gpt-oss-20b"])
def test_step_times_follow_the_operators(model):
    block = case({"input_tokens": 4096, "output_tokens": 512, "concurrency": 128}, model)
    times = _step_times(block.setting, block.cases, Spread(0.2, 0.2))[0]
    rng = np.random.default_rng(1)
    points = np.exp(
        rng.uniform(np.log([1, 100, 1, 4000]), np.log([8192, 4096, 128, 5000]), (400, 4))
    )
    tokens, seen, sequences, context = points.T
    prompts = np.maximum(tokens / 4096, 1)
    columns = block.cases.take(np.zeros(400, dtype=int))
    exact = total(
        step_parts(
            block.setting, columns, Step(tokens, seen, sequences, context, sequences + prompts)
        )
    )
    errors = np.array([times.mixed_s(*point) for point in points]) / exact - 1
    assert np.abs(errors).mean() < 0.02
    assert np.abs(errors).max() < 0.10
    zero = np.zeros(400)
    alone = total(
        step_parts(block.setting, columns, Step(zero, zero, sequences, context, sequences))
    )
    assert np.array([times.decode_s(*point) for point in points[:, 2:]]) == pytest.approx(
        alone, rel=0.03
    )


# --- simulations
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "tp", "pp"),
    [(LLAMA_8B, 1, 1), ("meta-llama/Llama-3.1-70B-Instruct", 2, 2), ("openai/gpt-oss-20b", 1, 1)],
)
def test_one_request_at_a_time_takes_what_the_formula_says(model, tp, pp):
    block = case(
        {"input_tokens": 2000, "output_tokens": 200, "concurrency": 1}, model, tp=tp, pp=pp
    )
    found = simulation(block, spread=EXACT, requests=5)
    assert found.means_s["request_latency_s"] == pytest.approx(
        block.serving.request_latency_s, rel=0.03
    )
    assert found.output_tokens_per_s == pytest.approx(block.serving.output_tokens_per_s, rel=0.05)


def test_a_static_batch_takes_what_the_formula_says():
    block = case(
        {
            "mode": "static",
            "input_tokens": 1024,
            "output_tokens": 256,
            "concurrency": None,
            "batch": 32,
        }
    )
    found = simulation(block)
    for figure in FIGURES:
        assert found.means_s[figure] == pytest.approx(getattr(block.serving, figure), rel=0.03)
        assert found.percentiles_s[figure][99.0] == pytest.approx(found.means_s[figure])


@pytest.mark.parametrize(
    ("tp", "pp", "dp", "concurrency"), [(1, 1, 1, 48), (2, 1, 1, 200), (1, 2, 1, 64), (1, 1, 3, 64)]
)
def test_what_is_in_flight_is_throughput_times_latency(tp, pp, dp, concurrency):
    block = case({"concurrency": concurrency}, tp=tp, pp=pp, dp=dp)
    found = simulation(block, requests=60 * concurrency // dp)
    in_flight = (
        found.output_tokens_per_s / block.cases.output_tokens * found.means_s["request_latency_s"]
    )
    assert in_flight == pytest.approx(concurrency, rel=0.05)


@pytest.mark.parametrize(
    "workload", [{"concurrency": 256}, {"mode": "offline", "concurrency": None, "requests": 2000}]
)
def test_throughput_stays_below_what_full_decode_steps_give(workload):
    block = case(workload)
    zero, full = np.zeros(1), np.full(1, 1024.0)
    best = full / total(
        step_parts(
            block.setting, block.cases, Step(zero, zero, full, block.cases.input_tokens, full)
        )
    )
    assert 0 < simulation(block).output_tokens_per_s < best


@pytest.mark.parametrize(
    "workload",
    [
        {"concurrency": 7},
        {"concurrency": 64, "prefix_hit": 0.5},
        {"mode": "open", "concurrency": None, "request_rate": 8},
    ],
)
def test_percentiles_are_ordered_and_the_seed_decides(workload):
    block = case(workload)
    one, same, other = simulation(block), simulation(block), simulation(block, seed=1)
    for figure in FIGURES:
        by = one.percentiles_s[figure]
        assert by[50.0] <= by[90.0] <= by[95.0] <= by[99.0]
        assert by == same.percentiles_s[figure]
        assert by != other.percentiles_s[figure]


def test_the_start_of_a_closed_loop_lifts_the_mean_over_the_median():
    """28 published runs that state both have a median ratio of 2.1 (SGLang cookbook); without the
    start they would be equal.
    """
    found = simulation(case({"concurrency": 64}))
    assert found.means_s["ttft_s"] > 1.4 * found.percentiles_s["ttft_s"][50.0]
    assert found.means_s["tpot_s"] == pytest.approx(found.percentiles_s["tpot_s"][50.0], rel=0.05)


def test_a_quiet_open_loop_has_the_formula_s_means():
    block = case({"mode": "open", "concurrency": None, "request_rate": 5})
    found = simulation(block)
    for figure in FIGURES:
        assert found.means_s[figure] == pytest.approx(getattr(block.serving, figure), rel=0.05)
    assert found.output_tokens_per_s == pytest.approx(block.serving.output_tokens_per_s, rel=0.05)


def test_the_queue_grows_without_end_when_more_arrives_than_is_served():
    block = (
        plan_candidate(
            make_request(
                LLAMA_8B,
                per_node=1,
                workload={"mode": "open", "concurrency": None, "request_rate": 60},
                candidate={"engine": "vllm", "tp": 1, "pp": 1, "dp": 1},
            )
        )[0]
        .blocks[0]
        .estimates
    )
    assert block.serving.unstable[0]
    waits = [float(simulation(block, requests=n).means_s["ttft_s"][0]) for n in (2000, 4000, 8000)]
    assert waits[0] < 0.6 * waits[1] < 0.36 * waits[2]


def test_spread_lengths_spread_latency():
    block = case({"concurrency": 4})
    narrow, wide = (
        simulation(block, spread=Spread(0.0, s)).percentiles_s["request_latency_s"]
        for s in (0.05, 0.9)
    )
    assert wide[95.0] / wide[50.0] > 1.3 * narrow[95.0] / narrow[50.0]


def test_goodput_is_the_share_of_requests_that_keep_every_limit():
    block = case({"concurrency": 16})
    plain = simulation(block, percentiles=(50.0, 80.0))
    assert np.isnan(plain.goodput_per_s[0])
    served = float(plain.output_tokens_per_s[0] / block.cases.output_tokens[0])
    limits = {
        figure: float(plain.percentiles_s[figure][80.0][0]) for figure in ("ttft_s", "tpot_s")
    }
    each = [
        float(simulation(block, limits={figure: most}).goodput_per_s[0])
        for figure, most in limits.items()
    ]
    assert each == pytest.approx([0.8 * served] * 2, rel=0.02)
    both = float(simulation(block, limits=limits).goodput_per_s[0])
    assert 0.6 * served < both <= min(each)
    assert float(simulation(block, limits={"ttft_s": 1e9}).goodput_per_s[0]) == pytest.approx(
        served, rel=0.02
    )


def test_an_estimate_says_goodput_where_times_have_limits():
    request = {"candidate": {"engine": "vllm", "tp": 1, "pp": 1, "dp": 1}, "per_node": 1}
    assert (
        "goodput_requests_per_s"
        not in plan_candidate(make_request(LLAMA_8B, **request))[0].detailed(0).serving.to_json()
    )
    found = (
        plan_candidate(make_request(LLAMA_8B, objective={"limits": {"ttft_ms": 400}}, **request))[0]
        .detailed(0)
        .to_json()
    )
    serving = found["serving"]
    assert 0 < serving["goodput_requests_per_s"] < serving["output_tokens_per_s"] / 256
    assert (
        found["bands"]["goodput_requests_per_s"][0]
        < serving["goodput_requests_per_s"]
        < found["bands"]["goodput_requests_per_s"][1]
    )


def test_cases_are_independent_columns():
    block = plan(make_request(LLAMA_8B, per_node=4)).blocks[0].estimates
    rows = np.flatnonzero(block.feasible)
    together = block.simulated(rows).simulation
    alone = block.simulated(rows[2:3]).simulation
    assert together is not None
    assert alone is not None
    assert (
        together.percentiles_s["ttft_s"][95.0][rows[2]]
        == alone.percentiles_s["ttft_s"][95.0][rows[2]]
    )
    assert np.isnan(alone.percentiles_s["ttft_s"][95.0][rows[0]])


def test_too_many_requests_are_not_simulated():
    block = case({"mode": "offline", "concurrency": None, "requests": MOST + 1})
    assert requests_each(block.setting, block.cases)[0] == MOST + 1
    assert np.isnan(simulation(block).means_s["ttft_s"][0])


# --- limits
# --------------------------------------------------------------------------------------------------


def limited_plan(**limits):
    return plan(make_request(objective={"limits": limits}))


def best_figures(percentile: float) -> dict[str, float]:
    """The figures of the best split, with a percentile."""
    table = limited_plan(percentile=percentile)
    return table.estimate(int(table.order[0])).serving.to_json()


def test_a_limit_on_a_percentile_refuses_what_its_mean_would_pass():
    best = best_figures(95)
    assert best["ttft_s"] < best["ttft_p95_s"]
    limit_ms = 1e3 * (best["ttft_s"] + best["ttft_p95_s"]) / 2
    by_mean, by_p95 = limited_plan(ttft_ms=limit_ms), limited_plan(ttft_ms=limit_ms, percentile=95)
    assert len(by_p95.order) < len(by_mean.order)
    for row in by_p95.order:
        assert by_p95.estimate(int(row)).ttft_p95_s.value <= limit_ms / 1e3
    said = [reason for row in range(len(by_p95)) for reason in by_p95.reasons(row)]
    assert any(
        reason.startswith("p95 of time to first token")
        and "exceeds the limit" in reason
        and "the mean is" in reason
        for reason in said
    )


def test_what_breaks_a_limit_by_its_mean_is_not_simulated_and_says_so():
    table = limited_plan(ttft_ms=1, percentile=95)
    said = [reason for row in range(len(table)) for reason in table.reasons(row)]
    assert "p95 is not simulated: its means exceed the limits already" in said
    assert sum(reason.startswith("p95 of time to first token") for reason in said) == NEAREST


def test_a_higher_percentile_passes_no_more():
    limit_ms = 1e3 * (best_figures(50)["tpot_p50_s"] + best_figures(99.9)["tpot_p99.9_s"]) / 2
    passing = [set(limited_plan(tpot_ms=limit_ms, percentile=p).order) for p in (50, 95, 99.9)]
    assert passing[2] <= passing[1] <= passing[0]
    assert passing[2] < passing[0]


def test_a_remedy_for_a_percentile_works():
    request = make_request(objective={"limits": {"ttft_ms": 50, "percentile": 95}})
    remedy = helpful_changes(plan(request))[0]
    (field, value), *_ = remedy.fields.items()
    assert field == "objective.limits.ttft_ms"
    assert len(limited_plan(ttft_ms=value, percentile=95).order)


def test_percentiles_are_in_the_estimate_of_one_candidate_and_in_lists_only_when_asked():
    values = request_values(
        LLAMA_8B, per_node=1, candidate={"engine": "vllm", "tp": 1, "pp": 1, "dp": 1}
    )
    figures = plan_candidate(PlanRequest.parse(values))[0].detailed(0).serving.to_json()
    assert figures["ttft_p50_s"] <= figures["ttft_p95_s"] <= figures["ttft_p99_s"]
    asked = values | {"objective": {"limits": {"percentile": 95}}}
    plain, with_p95, longer = estimate_batch(
        [values, asked, asked | {"workload": values["workload"] | {"output_tokens": 512}}]
    )
    assert not [name for name in plain["serving"] if "_p95" in name]
    assert {"ttft_p95_s", "tpot_p95_s", "request_latency_p95_s"} <= set(with_p95["serving"])
    assert with_p95["serving"]["ttft_p95_s"] == figures["ttft_p95_s"]
    assert with_p95["bands"]["ttft_p95_s"][0] < with_p95["serving"]["ttft_p95_s"]
    assert longer["serving"]["request_latency_p95_s"] > with_p95["serving"]["request_latency_p95_s"]


@pytest.mark.parametrize(
    ("parts", "field"),
    [
        ({"objective": {"limits": {"percentile": 100}}}, "objective.limits.percentile"),
        ({"objective": {"limits": {"percentile": 40}}}, "objective.limits.percentile"),
        ({"workload": {"output_spread": 1.5}}, "workload.output_spread"),
        (
            {"workload": {"mode": "static", "concurrency": None, "batch": 4, "input_spread": 0.2}},
            "workload",
        ),
        ({"workload": {"max_context": 1280, "output_spread": 0.2}}, "workload"),
    ],
)
def test_impossible_percentiles_and_spreads_are_refused(parts, field):
    with pytest.raises(InputError) as caught:
        make_request(**parts)
    assert caught.value.field == field


def test_a_stated_spread_lengthens_the_context_that_is_served():
    exact, spread = (
        plan(make_request(workload={"input_tokens": 1500, "output_tokens": 500, "input_spread": s}))
        .blocks[0]
        .cases
        for s in (0, 0.2)
    )
    assert exact.max_context[0] == 2048
    assert spread.max_context[0] == 3072
