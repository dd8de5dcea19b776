"""What a deployment costs and draws."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from recipe_core.base.errors import HardwareError
from recipe_core.hardware.cluster import cluster, device
from recipe_core.hardware.prices import offers
from recipe_core.hardware.request import HardwareRequest
from recipe_core.physics.serving.cost import Cost, at_work, busy, cost
from recipe_core.physics.serving.estimates import estimate
from recipe_core.physics.serving.operators import Step, step_parts, total
from recipe_core.search.plans import plan, plan_candidate
from recipe_core.search.problem import resolve
from recipe_core.search.serving_candidates import every_split, one_case, settings
from tests.conftest import make_request, request_values

LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"
ONE = {"engine": "vllm", "tp": 1, "pp": 1, "dp": 1, "ep": 1}
DEVICES = ["h100-sxm", "mi300x", "b200-sxm", "l4", "rx-7900-xtx"]


def estimate_of(*args, hardware=None, **parts):
    values = request_values(*args, **parts)
    values["hardware"] |= hardware or {}
    table, row = plan_candidate(type(make_request()).parse(values))
    return table.estimate(row).to_json()


@pytest.mark.parametrize(
    "workload",
    [
        {},
        {"mode": "static", "batch": 16, "concurrency": None},
        {"mode": "offline", "requests": 500, "concurrency": None},
    ],
)
def test_cost_adds_up(workload):
    found = estimate_of(
        workload=workload, candidate=ONE | {"tp": 4}, hardware={"usd_per_device_hour": 2.5}
    )
    cost, tokens_per_s = found["cost"], found["serving"]["output_tokens_per_s"]
    assert cost["usd_per_hour"] == pytest.approx(10)
    assert cost["usd_per_million_output_tokens"] == pytest.approx(10 / (tokens_per_s * 3600) * 1e6)
    assert cost["usd_per_request"] == pytest.approx(
        cost["usd_per_million_output_tokens"] * 256 / 1e6
    )
    shares = (
        1024 * cost["usd_per_million_input_tokens_alone"]
        + 256 * cost["usd_per_million_output_tokens_alone"]
    )
    assert shares / 1e6 == pytest.approx(cost["usd_per_request"])
    assert cost["usd_per_million_input_tokens_alone"] * 1024 / 1e6 == pytest.approx(
        cost["prefill_share"] * cost["usd_per_request"]
    )
    assert 0 < cost["prefill_share"] < 1


def test_twice_the_price_costs_twice_as_much():
    once, twice = (
        estimate_of(candidate=ONE | {"tp": 2}, hardware={"usd_per_device_hour": usd})["cost"]
        for usd in (2.0, 4.0)
    )
    assert {name: value / once[name] for name, value in twice.items()} == pytest.approx(
        dict.fromkeys(once, 2.0) | {"prefill_share": 1.0, "devices_rented": 1.0}
    )


@pytest.mark.parametrize(("machine", "paid"), [(1, 2), (2, 2), (4, 4), (8, 8)])
def test_a_named_offer_is_taken_and_said(machine, paid):
    """Of a machine that is rented whole, devices that the split leaves idle are paid for too."""
    named = next(
        offer
        for offer in offers()
        if (offer.device, offer.provider) == ("h100-sxm", "Lambda")
        and (offer.devices_per_node, offer.commitment) == (machine, "on-demand")
    )
    found = estimate_of(candidate=ONE | {"tp": 2}, hardware={"offer": named.name})
    assert found["cost"]["devices_rented"] == paid
    assert found["cost"]["usd_per_hour"] == pytest.approx(paid * named.usd_per_device_hour)
    assert named.name in found["basis"]["usd_per_hour"]
    assert named.date in found["basis"]["usd_per_hour"]
    with pytest.raises(HardwareError, match="not both"):
        cluster(HardwareRequest(device="h100-sxm", offer=named.name, usd_per_device_hour=1.0))


def test_without_a_price_nothing_is_said_of_money():
    found = estimate_of(LLAMA_8B, "radeon-pro-w7900", 1, candidate=ONE)
    assert found["basis"]["usd_per_hour"] == "unknown"
    known = {name for name, value in found["cost"].items() if value is not None}
    assert known == {"prefill_share", "devices_rented"}
    assert found["energy"]["watts"] > 0


def test_every_offer_is_in_dollars_dated_and_sourced():
    for offer in offers():
        assert offer.usd_per_device_hour > 0
        assert offer.date[:4].isdigit()
        assert offer.source


@pytest.mark.parametrize(
    ("workload", "low", "high"),
    [
        ({"input_tokens": 8192, "output_tokens": 1}, 0.99, 1.0),
        ({"input_tokens": 8192, "output_tokens": 64}, 0.5, 1.0),
        ({"input_tokens": 16, "output_tokens": 2048}, 0.0, 0.05),
    ],
)
def test_prompts_bear_their_share_of_the_busy_time(workload, low, high):
    found = estimate_of(LLAMA_8B, per_node=1, workload=workload, candidate=ONE)
    assert low <= found["cost"]["prefill_share"] <= high


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize(
    "workload",
    [{}, {"concurrency": 1}, {"mode": "open", "request_rate": 0.01, "concurrency": None}],
)
def test_power_is_between_idle_and_the_limit(name, workload):
    table = plan(make_request(LLAMA_8B, name, 4, workload=workload))
    profile, rows = device(name), table.columns
    some = rows["feasible"]
    assert some.any()
    assert np.all(rows["watts"][some] >= rows["gpus"][some] * profile.idle_watts.value)
    assert np.all(rows["watts"][some] <= rows["gpus"][some] * profile.tdp_watts.value * (1 + 1e-12))


def test_a_replica_that_waits_draws_little():
    quiet, full = (
        estimate_of(
            LLAMA_8B,
            per_node=1,
            workload={"mode": "open", "request_rate": rate, "concurrency": None},
            candidate=ONE,
        )["energy"]
        for rate in (0.001, 10.0)
    )
    assert quiet["watts"] == pytest.approx(device("h100-sxm").idle_watts.value, rel=0.05)
    assert full["watts"] > 3 * quiet["watts"]
    assert full["joules_per_token"] < quiet["joules_per_token"] / 100


def test_prompts_draw_more_than_decoding():
    prompts, tokens = (
        estimate_of(LLAMA_8B, per_node=1, workload=lengths | {"concurrency": 8}, candidate=ONE)[
            "energy"
        ]["watts"]
        for lengths in (
            {"input_tokens": 8192, "output_tokens": 2},
            {"input_tokens": 16, "output_tokens": 1024},
        )
    )
    assert prompts > 1.3 * tokens


@pytest.mark.parametrize(("concurrency", "watts", "tolerance"), [(1, 300, 0.15), (128, 600, 0.25)])
def test_an_h100_draws_what_was_measured(concurrency, watts, tolerance):
    """ML.ENERGY 3.0, as vLLM's fleet simulator cites it."""
    workload = {"input_tokens": 512, "output_tokens": 512, "concurrency": concurrency}
    found = estimate_of(LLAMA_8B, per_node=1, workload=workload, candidate=ONE)["energy"]
    assert found["watts"] == pytest.approx(watts, rel=tolerance)
    assert found["watts_limit"] == 700


def test_energy_is_power_over_rate_and_says_its_basis():
    found = estimate_of(candidate=ONE | {"tp": 8})
    energy, rate = found["energy"], found["serving"]["output_tokens_per_s"]
    assert energy["joules_per_token"] == pytest.approx(energy["watts"] / rate)
    assert energy["joules_per_request"] == pytest.approx(256 * energy["joules_per_token"])
    assert "70.0 W idle (assumed) to 700 W" in found["basis"]["watts"]
    assert "without hosts" in found["basis"]["watts"]


def test_the_energy_objective_ranks_by_joules():
    table = plan(make_request(objective={"optimize": "energy"}))
    holding = table.order[~table.queues[table.order]]  # those that queue come after
    joules = table.columns["joules_per_token"][holding]
    assert np.all(np.diff(joules) >= -1e-3 * joules[1:])
    assert joules[0] < joules[-1]


def _estimates(*args, **parts):
    request = make_request(*args, **({"candidate": ONE | {"tp": 4}} | parts))
    return estimate(*one_case(resolve(request), request.candidate))


def test_columns_are_many_cases_of_one():
    found = resolve(make_request(LLAMA_8B))
    chosen = settings(found)[0]
    block = estimate(chosen, every_split(found, chosen))
    for i in np.flatnonzero(block.feasible)[::7]:
        alone = cost(chosen, block.cases.take([i]), _row(block.serving, i))
        for field in fields(Cost):
            assert getattr(alone, field.name)[0] == pytest.approx(
                getattr(block.cost, field.name)[i], rel=1e-9
            ), field.name


def _row(served, i):
    def pick(value):
        return (
            {name: seconds[[i]] for name, seconds in value.items()}
            if isinstance(value, dict)
            else value[[i]]
        )

    return type(served)(
        **{field.name: pick(getattr(served, field.name)) for field in fields(served)}
    )


def test_busy_shares_are_shares():
    block = _estimates(workload={"concurrency": 4000})
    found = busy(block.setting, block.cases, block.serving)
    assert 0.5 < found.prefill[0] + found.decode[0] <= 1.1, "a full replica is busy all the time"


def test_at_work_only_compute_and_memory_count():
    block = _estimates()
    one = np.ones(1)
    step = Step(0 * one, 0 * one, 64 * one, 1024 * one, 64 * one)
    free, real = (
        step_parts(at_work(block.setting), block.cases, step),
        step_parts(block.setting, block.cases, step),
    )
    assert {name: free[name][0] for name in ("all_reduce", "engine", "launch")} == {
        "all_reduce": 0,
        "engine": 0,
        "launch": 0,
    }
    assert 0 < total(free)[0] < total(real)[0]
    assert free["qkv"][0] > 0


def test_each_pool_pays_and_draws_for_its_own():
    candidate = {
        "engine": "vllm",
        "tp": 2,
        "pp": 1,
        "dp": 1,
        "ep": 1,
        "prefill": {"tp": 4, "pp": 1, "dp": 1},
    }
    found = estimate_of(
        per_node=8,
        workload={"input_tokens": 8192, "output_tokens": 64, "concurrency": 4},
        candidate=candidate,
    )
    assert found["cost"]["prefill_share"] == pytest.approx(4 / 6)
    assert 6 * 70 < found["energy"]["watts"] < found["energy"]["watts_limit"] == 6 * 700


def test_a_spot_price_is_noted_and_named_as_the_basis():
    found = estimate_of(candidate=ONE | {"tp": 2}, hardware={"commitment": "spot"})
    assert "spot" in found["basis"]["usd_per_hour"]
    assert any("reclaim the devices" in note for note in found["notes"])
    usual = estimate_of(candidate=ONE | {"tp": 2})
    assert found["cost"]["usd_per_hour"] < usual["cost"]["usd_per_hour"]
    assert not any("price" in note for note in usual["notes"])
