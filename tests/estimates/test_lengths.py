"""How lengths vary: waves of exact ones, shapes, and the drain of a burst."""

import heapq
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from recipe_core.estimates.serving.drain import drain_of
from recipe_core.estimates.serving.rates import solve_serving
from recipe_core.estimates.serving.simulate import EXACT, PER_SLOT, Spread, simulate_serving
from recipe_core.plans.plans import estimate_batch, plan_candidate
from recipe_core.request.lengths import LengthShape, mean_length, relative_lengths
from tests.conftest import make_request, request_values
from tests.fixtures.rows import over, table

LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"
EXACTLY = {"input_spread": 0, "output_spread": 0}


def estimates(engine="vllm", model=LLAMA_8B, **workload):
    """The estimates of one replica on one device."""
    candidate = {"engine": engine, "tp": 1, "pp": 1, "dp": 1}
    request = make_request(model, per_node=1, workload=workload, candidate=candidate)
    return plan_candidate(request)[0].blocks[0].estimates


def random_loads(count, seed=7):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        inputs = int(np.exp(rng.uniform(np.log(128), np.log(6000))))
        outputs = int(np.exp(rng.uniform(np.log(64), np.log(1500))))
        yield inputs, outputs, int(2 ** rng.uniform(1, 6.5))


@over("engine", ["vllm", "tensorrt-llm", "sglang"])
def test_the_waves_of_exact_lengths_are_those_that_the_simulator_shows(engine):
    """Ten requests for each at once: as the share of a loop's first prompts counts them."""
    ttft, tpot, without = [], [], []
    for inputs, outputs, users in random_loads(24):
        load = {"input_tokens": inputs, "output_tokens": outputs, "concurrency": users}
        asked = estimates(engine, **load, **EXACTLY)
        # what an engine does every so many steps is counted apart, on top of either
        every = np.ones(1)
        cases = replace(asked.cases, stream_interval=every, recv_interval=every)
        solved = solve_serving(asked.setting, cases, asked.memory)
        steady = solve_serving(replace(asked.setting, exact=False), cases, asked.memory)
        shown = simulate_serving(
            asked.setting, cases, asked.memory, spread=EXACT, requests=PER_SLOT * users
        ).means_s
        for errors, figures, name in ((ttft, solved, "ttft_s"), (tpot, solved, "tpot_s")):
            errors.append(abs(np.log(getattr(figures, name)[0] / shown[name][0])))
        without.append(abs(np.log(steady.ttft_s[0] / shown["ttft_s"][0])))
    assert np.median(ttft) < 0.07
    assert np.quantile(ttft, 0.9) < 0.2
    assert np.median(tpot) < 0.005
    assert np.quantile(tpot, 0.9) < 0.03
    assert np.median(without) > 8 * np.median(ttft)


def test_waves_need_both_spreads_users_who_come_again_and_no_drafts():
    load = {"input_tokens": 1024, "output_tokens": 256, "concurrency": 32}
    unstated, waves = estimates(**load), estimates(**load, **EXACTLY)
    assert waves.serving.ttft_s[0] > 2 * unstated.serving.ttft_s[0]
    assert waves.serving.tpot_s[0] < unstated.serving.tpot_s[0]
    said = [any("in waves" in note for note in e.row(0).notes) for e in (unstated, waves)]
    assert said == [False, True]
    for spreads in ({"input_spread": 0}, {"output_spread": 0}, {**EXACTLY, "output_spread": 0.05}):
        other = estimates(**load, **spreads).serving
        assert other.ttft_s[0] == unstated.serving.ttft_s[0]
    alone = {**load, "concurrency": 1}
    assert estimates(**alone, **EXACTLY).serving.tpot_s[0] == pytest.approx(
        estimates(**alone).serving.tpot_s[0], rel=1e-3
    )
    drafts = {"speculative": {"tokens": 2, "acceptance": 0.5, "method": "ngram"}}
    exact, varied = (estimates(**load, **drafts, **spreads) for spreads in (EXACTLY, {}))
    assert exact.serving.ttft_s[0] == varied.serving.ttft_s[0]
    queue = {**load, "concurrency": None, "mode": "offline", "requests": 1000}
    assert estimates(**queue, **EXACTLY).serving.ttft_s[0] == estimates(**queue).serving.ttft_s[0]


def test_a_batch_of_requests_with_and_without_waves_is_as_each_alone():
    load = {"input_tokens": 1024, "output_tokens": 256, "concurrency": 32}
    split = {"engine": "vllm", "tp": 1, "pp": 1, "dp": 1}
    values = [
        request_values(LLAMA_8B, per_node=1, workload={**load, **spreads}, candidate=split)
        for spreads in ({}, EXACTLY, {"input_spread": 0.2}, EXACTLY)
    ]
    answers = estimate_batch(values)
    ttft = [answer["serving"]["ttft_s"] for answer in answers]
    assert ttft[1] == ttft[3] > 2 * ttft[0] == 2 * ttft[2]


# Shapes


SKEWED = {"shape": "lognormal", "cv": 1.0}


def test_shapes_have_the_moments_and_quantiles_that_they_are_asked_for():
    for cv in (0.3, 1.0):
        lengths = np.asarray(relative_lengths(LengthShape(shape="lognormal", cv=cv)))
        assert lengths.mean() == pytest.approx(1)
        assert lengths.std() == pytest.approx(cv, rel=0.01)
    lengths = np.asarray(relative_lengths(LengthShape(shape="exponential")))
    assert lengths.std() == pytest.approx(1, rel=0.01)
    assert np.quantile(lengths, 0.9) == pytest.approx(np.log(10), rel=0.01)
    # answers of the code service of Azure's trace of 2023: mean 27.9, cv 2.15, longest 1,899
    stated = {"p50": 13, "p90": 55, "p95": 90, "p99": 252}
    shape = LengthShape(quantiles=stated)
    tokens = np.asarray(relative_lengths(shape)) * mean_length(shape)
    for name, value in stated.items():
        assert np.quantile(tokens, int(name[1:]) / 100) == pytest.approx(value, rel=0.02)
    assert tokens.mean() == pytest.approx(27.9, rel=0.02)
    assert tokens.std() / tokens.mean() == pytest.approx(2.15, rel=0.1)
    assert set(relative_lengths(LengthShape(shape="fixed"))) == {1.0}


def test_long_answers_are_held_longer_than_they_are_frequent():
    load = {"input_tokens": 512, "output_tokens": 1024, "concurrency": 64}
    plain, fixed, mild, wide = (
        estimates(**load, output_lengths=shape)
        for shape in (None, {"shape": "fixed"}, {"shape": "lognormal", "cv": 0.01}, SKEWED)
    )
    assert fixed.serving.tpot_s[0] == plain.serving.tpot_s[0]
    assert mild.serving.tpot_s[0] == pytest.approx(plain.serving.tpot_s[0], rel=1e-3)
    assert wide.cases.held_tokens[0] == pytest.approx(1024, rel=0.02)
    assert wide.serving.tpot_s[0] > 1.05 * plain.serving.tpot_s[0]
    queue = {**load, "concurrency": None, "mode": "offline", "requests": 5000}
    for engine in ("vllm", "tensorrt-llm"):  # one reserves a request's full length
        held = [
            estimates(engine, **queue, output_lengths=shape).serving.resident[0]
            for shape in (None, SKEWED)
        ]
        assert held[1] < 0.85 * held[0]


@over("engine", ["vllm", "sglang"])
def test_the_steady_state_of_shapes_is_that_of_the_simulator(engine):
    errors = []
    for inputs, outputs, users in random_loads(10, seed=3):
        load = {"input_tokens": inputs, "output_tokens": outputs, "concurrency": users}
        asked = estimates(engine, **load, input_lengths=SKEWED, output_lengths=SKEWED)
        every = np.ones(1)
        cases = replace(asked.cases, stream_interval=every, recv_interval=every)
        shape = relative_lengths(LengthShape(**SKEWED))
        spread = Spread(inputs=shape, outputs=shape)
        count = max(30 * users, 300)
        shown = simulate_serving(
            asked.setting, cases, asked.memory, spread=spread, requests=count
        ).means_s
        solved = solve_serving(asked.setting, cases, asked.memory)
        errors.append(abs(np.log(solved.tpot_s[0] / shown["tpot_s"][0])))
    assert np.median(errors) < 0.04
    assert max(errors) < 0.2


def test_fixed_shapes_come_in_waves_as_spreads_of_zero_do():
    load = {"input_tokens": 1024, "output_tokens": 256, "concurrency": 32}
    fixed = {"shape": "fixed"}
    by_shape = estimates(**load, input_lengths=fixed, output_lengths=fixed)
    mixed = estimates(**load, input_spread=0, output_lengths=fixed)
    by_spread = estimates(**load, **EXACTLY)
    assert by_shape.serving.ttft_s[0] == mixed.serving.ttft_s[0] == by_spread.serving.ttft_s[0]


# Bursts


def burst(requests, shape=SKEWED, engine="vllm", **workload):
    load = {"input_tokens": 300, "output_tokens": 200, **workload}
    queue = {"mode": "offline", "concurrency": None, "requests": requests}
    return estimates(engine, **load, **queue, output_lengths=shape)


def wall_s(asked):
    return float(asked.cases.load[0] * 200 / asked.serving.output_tokens_per_s[0])


def test_a_burst_ends_with_its_longest_answers():
    """Later for more requests and wider shapes; of a long queue the end hardly counts."""
    by_count = [wall_s(burst(count)) for count in (10, 100, 1000, 10_000)]
    assert by_count == sorted(by_count)
    by_shape = [
        wall_s(burst(1000, shape))
        for shape in (
            {"shape": "fixed"},
            {"shape": "lognormal", "cv": 0.3},
            {"shape": "lognormal", "cv": 0.6},
            {"shape": "lognormal", "cv": 1.2},
        )
    ]
    assert by_shape == sorted(by_shape)
    steady = {count: wall_s(burst(count, None)) for count in (1000, 1_000_000)}
    assert by_shape[0] == pytest.approx(steady[1000], rel=0.15)
    assert by_shape[-1] > 2 * steady[1000]
    million = {"shape": "lognormal", "cv": 0.3}
    assert wall_s(burst(1_000_000, million)) == pytest.approx(steady[1_000_000], rel=0.05)
    notes = burst(1000).row(0).notes
    assert any("longest answer" in note for note in notes)


def test_a_table_of_drains_is_what_lists_of_requests_show():
    """Slots that take the next request of a list when theirs ends."""
    rng = np.random.default_rng(1)
    for shape in (SKEWED, {"shape": "exponential"}, {"shape": "fixed"}):
        relative = relative_lengths(LengthShape(**shape))
        for requests, slots in ((64, 64), (300, 100), (3000, 100), (1000, 800)):
            ends = []
            for _ in range(100):
                free = [0.0] * slots
                for length in rng.choice(relative, requests):
                    heapq.heappush(free, heapq.heappop(free) + length)
                ends.append(max(free))
            drain = drain_of(relative, np.array([float(requests)]), np.array([float(slots)]))
            assert drain.spans.sum() == pytest.approx(np.mean(ends), rel=0.1)
            answered = (drain.spans * drain.decoding).sum()
            assert answered == pytest.approx(requests, rel=0.05)


@over("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_bursts_are_those_that_the_simulator_shows(engine):
    errors = {name: [] for name in ("wall", "ttft_s", "tpot_s")}
    for count, (inputs, outputs) in product((30, 300, 1000), ((220, 200), (1024, 256))):
        asked = burst(
            count, engine=engine, input_tokens=inputs, output_tokens=outputs, input_lengths=SKEWED
        )
        shape = relative_lengths(LengthShape(**SKEWED))
        spread = Spread(inputs=shape, outputs=shape)
        runs = [
            simulate_serving(asked.setting, asked.cases, asked.memory, spread=spread, seed=seed)
            for seed in range(5)
        ]
        seconds = np.mean([1 / run.output_tokens_per_s[0] for run in runs])
        errors["wall"].append(np.log(asked.serving.output_tokens_per_s[0] * seconds))
        for name in ("ttft_s", "tpot_s"):
            shown = np.mean([run.means_s[name][0] for run in runs])
            errors[name].append(np.log(getattr(asked.serving, name)[0] / shown))
    assert np.max(np.abs(errors["wall"])) < 0.2
    assert np.median(np.abs(errors["wall"])) < 0.1
    assert np.max(np.abs(errors["ttft_s"])) < 0.15
    assert np.median(np.abs(errors["tpot_s"])) < 0.12


@over("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("shapes", [{}, {"input_lengths": SKEWED, "output_lengths": SKEWED}])
def test_arrivals_at_random_crowd_as_the_simulator_shows(engine, shapes):
    """Steps take longer than in a steady state of the mean; prompts of many lengths longer yet."""
    errors = {"ttft_s": [], "tpot_s": []}
    for rate, (inputs, outputs) in product((8, 16, 24), ((778, 129), (300, 300))):
        load = {"mode": "open", "concurrency": None, "request_rate": rate, **shapes}
        asked = estimates(engine, input_tokens=inputs, output_tokens=outputs, **load)
        shape = relative_lengths(LengthShape(**SKEWED)) if shapes else ()
        spread = Spread(inputs=shape, outputs=shape) if shapes else Spread(0.1, 0.1)
        found = simulate_serving(
            asked.setting, asked.cases, asked.memory, spread=spread, requests=4000
        )
        for name, each in errors.items():
            each.append(np.log(getattr(asked.serving, name)[0] / found.means_s[name][0]))
    assert np.median(np.abs(errors["tpot_s"])) < 0.02
    assert np.max(np.abs(errors["tpot_s"])) < 0.07
    assert np.median(np.abs(errors["ttft_s"])) < 0.06


def test_published_bursts_are_told_where_a_full_queue_is_twice_too_fast():
    """A thousand requests of ShareGPT at once; its lengths are taken as lognormal of cv 1."""
    shapes = {"input_lengths": SKEWED, "output_lengths": SKEWED}
    ratios = {"full": [], "burst": []}
    for model, device, engine, inputs, outputs, seconds in table("lengths", "bursts"):
        for name, lengths in (("full", {}), ("burst", shapes)):
            load = {"mode": "offline", "concurrency": None, "requests": 1000, **lengths}
            load |= {"input_tokens": round(inputs / 1000), "output_tokens": round(outputs / 1000)}
            split = {"engine": engine, "tp": 1, "pp": 1, "dp": 1}
            request = make_request(model, device, per_node=1, workload=load, candidate=split)
            served = plan_candidate(request)[0].blocks[0].estimates.serving
            told_s = 1000 * load["output_tokens"] / served.output_tokens_per_s[0]
            ratios[name].append(seconds / told_s)
    assert np.median(ratios["full"]) > 1.7
    assert 0.85 < np.median(ratios["burst"]) < 1.2
    assert np.median(np.abs(np.log(ratios["burst"]))) < 0.25
