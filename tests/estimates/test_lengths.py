"""How lengths vary: waves of exact ones, shapes, and the drain of a burst."""

from dataclasses import replace

import numpy as np
import pytest

from recipe_core.estimates.serving.rates import solve_serving
from recipe_core.estimates.serving.simulate import EXACT, PER_SLOT, simulate_serving
from recipe_core.plans.plans import estimate_batch, plan_candidate
from tests.conftest import make_request, request_values
from tests.fixtures.rows import over

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
