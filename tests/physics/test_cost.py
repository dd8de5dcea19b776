"""What a deployment costs and draws."""

import numpy as np
import pytest

from recipe_core.base.errors import HardwareError
from recipe_core.hardware.cluster import cluster, device
from recipe_core.hardware.prices import offers
from recipe_core.hardware.request import HardwareRequest
from recipe_core.physics.serving.cost import at_work, busy
from recipe_core.physics.serving.estimates import estimate
from recipe_core.physics.serving.operators import Step, step_parts, total
from recipe_core.request.schema import PlanRequest
from recipe_core.search.plans import plan, plan_candidate
from recipe_core.search.problem import resolve
from recipe_core.search.serving_candidates import one_case
from tests.conftest import LLAMA_70B, make_request, request_values

LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"
ONE = {"engine": "vllm", "tp": 1, "pp": 1, "dp": 1, "ep": 1}


def estimate_of(model=LLAMA_70B, *args, hardware=None, tp=2, **parts):
    values = request_values(model, *args, **({"candidate": ONE | {"tp": tp}} | parts))
    values["hardware"] |= hardware or {}
    table, row = plan_candidate(PlanRequest.parse(values))
    return table.estimate(row).to_json()


def test_cost_adds_up_and_twice_the_price_costs_twice_as_much():
    static, offline = {"mode": "static", "batch": 16}, {"mode": "offline", "requests": 500}
    none = {"concurrency": None}
    for workload in ({}, static | none, offline | none):
        found, twice = (
            estimate_of(workload=workload, tp=4, hardware={"usd_per_device_hour": usd})
            for usd in (2.5, 5.0)
        )
        cost, tokens_per_s = found["cost"], found["serving"]["output_tokens_per_s"]
        per_million, per_request = cost["usd_per_million_output_tokens"], cost["usd_per_request"]
        assert cost["usd_per_hour"] == pytest.approx(10)
        assert per_million == pytest.approx(10 / (tokens_per_s * 3600) * 1e6)
        assert per_request == pytest.approx(per_million * 256 / 1e6)
        prompts = 1024 * cost["usd_per_million_input_tokens_alone"] / 1e6
        answers = 256 * cost["usd_per_million_output_tokens_alone"] / 1e6
        assert prompts + answers == pytest.approx(per_request)
        assert prompts == pytest.approx(cost["prefill_share"] * per_request)
        assert 0 < cost["prefill_share"] < 1
        factors = dict.fromkeys(cost, 2.0) | {"prefill_share": 1.0, "devices_rented": 1.0}
        assert {n: value / cost[n] for n, value in twice["cost"].items()} == pytest.approx(factors)


@pytest.mark.parametrize(("machine", "paid"), [(1, 2), (2, 2), (4, 4), (8, 8)])
def test_a_named_offer_is_taken_and_said(machine, paid):
    """Of a machine that is rented whole, devices that the split leaves idle are paid for too."""
    wanted = ("h100-sxm", "Lambda", machine, "on-demand")
    named = next(
        o for o in offers() if (o.device, o.provider, o.devices_per_node, o.commitment) == wanted
    )
    found = estimate_of(hardware={"offer": named.name})
    assert found["cost"]["devices_rented"] == paid
    assert found["cost"]["usd_per_hour"] == pytest.approx(paid * named.usd_per_device_hour)
    assert named.name in found["basis"]["usd_per_hour"]
    assert named.date in found["basis"]["usd_per_hour"]
    with pytest.raises(HardwareError, match="not both"):
        cluster(HardwareRequest(device="h100-sxm", offer=named.name, usd_per_device_hour=1.0))


def test_missing_offers_are_silent_and_spot_prices_noted():
    found = estimate_of(LLAMA_8B, "radeon-pro-w7900", 1, tp=1)
    assert found["basis"]["usd_per_hour"] == "unknown"
    known = {name for name, value in found["cost"].items() if value is not None}
    assert known == {"prefill_share", "devices_rented"}
    assert found["energy"]["watts"] > 0
    assert "spot" in estimate_of(hardware={"commitment": "spot"})["basis"]["usd_per_hour"]
    assert not any("price" in note for note in estimate_of()["notes"])


@pytest.mark.parametrize("name", ["h100-sxm", "mi300x", "b200-sxm", "l4", "rx-7900-xtx"])
@pytest.mark.parametrize(
    "workload",
    [{}, {"concurrency": 1}, {"mode": "open", "concurrency": None, "request_rate": 0.01}],
)
def test_power_is_between_idle_and_the_limit(name, workload):
    table = plan(make_request(LLAMA_8B, name, 4, workload=workload))
    profile, rows = device(name), table.columns
    some = rows["feasible"]
    assert some.any()
    each = rows["watts"][some] / rows["gpus"][some]
    assert np.all(each >= profile.idle_watts.value * (1 - 1e-12))
    assert np.all(each <= profile.tdp_watts.value * (1 + 1e-12))


def test_energy_is_power_over_rate_and_can_be_the_objective():
    found = estimate_of(tp=8)
    energy, rate = found["energy"], found["serving"]["output_tokens_per_s"]
    assert energy["joules_per_token"] == pytest.approx(energy["watts"] / rate)
    assert energy["joules_per_request"] == pytest.approx(256 * energy["joules_per_token"])
    for words in ("70.0 W idle (assumed) to 700 W", "without hosts"):
        assert words in found["basis"]["watts"]
    table = plan(make_request(objective={"optimize": "energy"}))
    holding = table.order[~table.queues[table.order]]  # those that queue come after
    joules = table.columns["joules_per_token"][holding]
    assert np.all(np.diff(joules) >= -1e-3 * joules[1:])
    assert joules[0] < joules[-1]


def test_a_full_replica_is_busy_all_the_time_and_what_waits_for_no_work_draws_nothing():
    full, block = (
        estimate(*one_case(resolve(request), request.candidate))
        for request in (
            make_request(candidate=ONE | {"tp": 4}, workload=workload)
            for workload in ({"concurrency": 4000}, {})
        )
    )
    found = busy(full.setting, full.cases, full.serving)
    assert 0.5 < found.prefill[0] + found.decode[0] <= 1.1
    one = np.ones(1)
    step = Step(0 * one, 0 * one, 64 * one, 1024 * one, 64 * one)
    free, real = (
        step_parts(setting, block.cases, step)
        for setting in (at_work(block.setting), block.setting)
    )
    assert [free[name][0] for name in ("all_reduce", "engine", "launch")] == [0, 0, 0]
    assert 0 < total(free)[0] < total(real)[0]
    assert free["qkv"][0] > 0
