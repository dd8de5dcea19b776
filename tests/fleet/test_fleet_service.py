"""The service of a plan's row against the scheduler that the plan's percentiles come from."""

import numpy as np
import pytest

from recipe_core.base.errors import NoAnswer
from recipe_core.fleet.fleet import Fleet, StartTime
from recipe_core.fleet.requests import simulate_requests
from recipe_core.fleet.service import service_of
from recipe_core.physics.serving.simulate import Spread, simulate
from recipe_core.search.plans import plan_candidate
from recipe_core.traffic.trace import Trace
from tests.conftest import LLAMA_70B, make_request

LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"


class One:
    interval_s = 60.0

    def decide(self, seen):
        return np.ones(1)


def planned(model, device, rate, inputs, outputs, **candidate):
    load = {"mode": "open", "request_rate": rate, "concurrency": None}
    load |= {"input_tokens": inputs, "output_tokens": outputs}
    split = {"engine": "vllm", "tp": 1, "pp": 1, "dp": 1, "ep": 1} | candidate
    return plan_candidate(make_request(model, device, workload=load, candidate=split))


def served(plan, row, trace, limits, **more):
    fleet = Fleet(service_of(plan, row), StartTime(1.0, 1.0, 1.0), 1, None, limits)
    return simulate_requests(fleet, trace, One(), begin=1, **more)


@pytest.mark.parametrize(
    ("model", "device", "rate", "inputs", "outputs", "candidate"),
    [
        (LLAMA_8B, "h100-sxm", 16, 1024, 256, {}),
        (LLAMA_8B, "l40s", 2, 512, 512, {}),
        (LLAMA_70B, "h100-sxm", 1.5, 4000, 500, {"engine": "sglang", "tp": 4}),
        (LLAMA_70B, "h100-sxm", 3, 1024, 256, {"tp": 2, "pp": 2}),
        ("Qwen/Qwen3-30B-A3B", "mi300x", 5, 2048, 512, {}),
    ],
)
def test_a_server_serves_as_the_plans_own_scheduler_does(
    model, device, rate, inputs, outputs, candidate
):
    plan, row = planned(model, device, rate, inputs, outputs, **candidate)
    (block, i), (estimates, place) = plan.at(row), plan.detail(row)
    memory = estimates.memory.take(np.array([place]))
    setting, cases = block.setting, block.cases.take([i])
    exact = simulate(setting, cases, memory, spread=Spread(0.5, 0.5), requests=2000)
    rng, count = np.random.default_rng(0), 2750
    arrival_s = np.cumsum(rng.exponential(1 / rate, count))
    lengths = (rng.integers(n // 2, n * 3 // 2 + 1, count) for n in (inputs, outputs))
    trace = Trace(arrival_s, *lengths)
    series = served(plan, row, trace, {}, interval_s=trace.span_s / 11).series
    ttft_s = np.average(series.ttft_s[2:10], weights=series.arrived[2:10])
    assert ttft_s == pytest.approx(exact.means_s["ttft_s"][0], rel=0.06)
    inside = (series.running + series.waiting)[2:10].mean() / rate
    assert inside == pytest.approx(exact.means_s["request_latency_s"][0], rel=0.06)


def test_two_pools_have_no_service_and_an_embedding_ends_with_its_prompt():
    pools = {"prefill": {"tp": 1, "replicas": 1}}
    with pytest.raises(NoAnswer, match="prefill pool"):
        service_of(*planned(LLAMA_8B, "h100-sxm", 2, 1024, 256, **pools))
    plan, row = planned("BAAI/bge-large-en-v1.5", "l40s", 20, 256, 1)
    count = 2000
    trace = Trace(np.arange(count) / 20, np.full(count, 256), np.ones(count, dtype=np.int64))
    out = served(plan, row, trace, {"ttft_s": 1.0})
    estimates, place = plan.detail(row)
    assert out.kept == count
    assert np.nanmean(out.series.ttft_s) == pytest.approx(estimates.serving.ttft_s[place], rel=0.25)
