"""The service of a plan's row against the scheduler that the plan's percentiles come from."""

from __future__ import annotations

import numpy as np
import pytest

from recipe_core.base.errors import NoAnswer
from recipe_core.fleet.fleet import Fleet, StartTime
from recipe_core.fleet.requests import simulate_requests
from recipe_core.fleet.service import service_of
from recipe_core.physics.serving.simulate import Spread, simulate
from recipe_core.request.schema import PlanRequest
from recipe_core.search.plans import plan_candidate
from recipe_core.traffic.trace import Trace
from tests.conftest import request_values

LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"
LLAMA_70B = "meta-llama/Llama-3.1-70B-Instruct"


class One:
    interval_s = 60.0

    def decide(self, seen):
        return np.ones(1)


def planned(model, device, rate, inputs, outputs, **candidate):
    workload = {"mode": "open", "request_rate": rate, "concurrency": None}
    workload |= {"input_tokens": inputs, "output_tokens": outputs}
    values = request_values(model, device, workload=workload)
    values["candidate"] = {"engine": "vllm", "tp": 1, "pp": 1, "dp": 1, "ep": 1} | candidate
    return plan_candidate(PlanRequest.parse(values))


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
    exact = simulate(
        block.setting, block.cases.take([i]), memory, spread=Spread(0.5, 0.5), requests=2000
    )
    rng, count = np.random.default_rng(0), 2750
    trace = Trace(
        np.cumsum(rng.exponential(1 / rate, count)),
        rng.integers(inputs // 2, inputs * 3 // 2 + 1, count),
        rng.integers(outputs // 2, outputs * 3 // 2 + 1, count),
    )
    fleet = Fleet(service_of(plan, row), StartTime(1.0, 1.0, 1.0), 1, None, {})
    out = simulate_requests(fleet, trace, One(), begin=1, interval_s=trace.span_s / 11)
    ttft_s = np.average(out.series.ttft_s[2:10], weights=out.series.arrived[2:10])
    assert ttft_s == pytest.approx(exact.means_s["ttft_s"][0], rel=0.06)
    inside = (out.series.running + out.series.waiting)[2:10].mean() / rate
    assert inside == pytest.approx(exact.means_s["request_latency_s"][0], rel=0.06)


def test_two_pools_have_no_service():
    candidate = {"prefill": {"tp": 1, "replicas": 1}}
    plan, row = planned(LLAMA_8B, "h100-sxm", 2, 1024, 256, **candidate)
    with pytest.raises(NoAnswer, match="prefill pool"):
        service_of(plan, row)


def test_an_embedding_ends_with_its_prompt():
    plan, row = planned("BAAI/bge-large-en-v1.5", "l40s", 20, 256, 1)
    service = service_of(plan, row)
    count = 2000
    trace = Trace(np.arange(count) / 20, np.full(count, 256), np.ones(count, dtype=np.int64))
    fleet = Fleet(service, StartTime(1.0, 1.0, 1.0), 1, None, {"ttft_s": 1.0})
    out = simulate_requests(fleet, trace, One(), begin=1)
    estimates, place = plan.detail(row)
    assert out.kept == count
    assert np.nanmean(out.series.ttft_s) == pytest.approx(estimates.serving.ttft_s[place], rel=0.25)
