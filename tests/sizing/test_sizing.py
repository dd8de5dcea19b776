"""Which hardware, how many, at what cost, how sure: sizing against enumeration by hand."""

import datetime
import itertools
import json
import random

import numpy as np
import pytest

import recipe_core as rb
from recipe_core.base.units import significant
from recipe_core.hardware.cluster import device_profile
from recipe_core.hardware.offers import last_day
from recipe_core.hardware.prices import offers_of
from recipe_core.plans.rank import beats_elsewhere
from recipe_core.request.objective import SURE
from recipe_core.request.size import SizeRequest
from recipe_core.sizing.answer import Answer
from recipe_core.sizing.market import iter_device_choices
from recipe_core.sizing.size import size_devices
from recipe_core.views.size_text import size_text
from recipe_core.views.size_view import DOUBT
from tests.conftest import LLAMA_70B
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table
from tests.fixtures.sizes import examples

LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"
CLOSED = {"mode": "closed", "input_tokens": 1024, "output_tokens": 256, "concurrency": 64}
COST = "usd_per_million_output_tokens"


def asked(model=LLAMA_70B, limits=None, objective=None, workload=None, **market):
    return {
        "model": model,
        "hardware": {"any": market},
        "workload": workload or CLOSED,
        "objective": {"limits": limits or {}, **(objective or {})},
        "options": {"engines": ["vllm"]},
    }


def sized(*args, **parts):
    return size_devices(SizeRequest.parse(asked(*args, **parts)))


def answer_to(values):
    return Answer(size_devices(SizeRequest.parse(values))).to_json()


def answered(*args, **parts):
    return answer_to(asked(*args, **parts))


def owning(device, price, limits, others, **market):
    """The answer where 64 of a device are owned at a price."""
    owned = [{"device": device, "count": 64, "usd_per_device_hour": price}]
    return answered(limits=limits, devices=others, owned=owned, **market)


def test_every_row_adds_up_exactly():
    answer = answered(limits={"tpot_ms": 40}, vendors=["amd", "nvidia"])
    rows = [row for device in answer["devices"] for row in (device, *device["ladder"])]
    assert len(rows) > 100
    for row in rows:
        assert row["devices_rented"] == row["units"] * row["unit_devices"]
        assert row["idle"] == row["devices_rented"] - row["count"] >= 0
        hour = row["devices_rented"] * row["offer"]["usd_per_device_hour"]
        assert (row["usd_per_hour"], row["usd_per_month"]) == (hour, hour * 730)
        tokens_per_hour = row["figures"]["output_tokens_per_s"] * 3600
        assert row[COST] == pytest.approx(hour / tokens_per_hour * 1e6)
        assert row["kwh_per_month"] == pytest.approx(row["watts"] * 0.73)


def test_machines_of_eight_are_paid_for_whole_and_one_device_alone_where_it_can_be():
    """12 × MI355X come in two machines of eight: 16 are paid for, in a plan as in a sizing."""
    eight = next(row for row in offers_of(device_profile("mi355x")) if row.devices_per_node == 8)
    hardware = {"device": "mi355x", "nodes": 2, "per_node": 8, "offer": eight.name}
    plan = rb.plan(asked(objective={"optimize": "cost"}) | {"hardware": hardware})
    twelve = np.flatnonzero(plan.runs & (plan.columns["gpus"] == 12))
    assert len(twelve)
    assert set(plan.columns["gpus_rented"][twelve].tolist()) == {16}
    assert plan.columns["usd_per_hour"][twelve] == pytest.approx(16 * eight.usd_per_device_hour)
    best = answered(LLAMA_8B, devices=["h100-sxm"])["best"]
    assert best["offer"]["most_per_node"] == 8
    assert best["devices_rented"] == best["count"] == 1


def test_a_server_is_spread_over_machines_only_where_full_nodes_are_rented():
    """Devices rented one by one may stand anywhere, also where a machine may have eight of them."""
    offline = {"mode": "offline", "input_tokens": 800, "output_tokens": 200, "requests": 1_000_000}
    for name, most in (("rtx-5090", 8), ("rtx-3090", 4), ("gh200", 1)):
        values = asked("Qwen/Qwen3-32B", workload=offline, devices=[name], most_devices=16)
        values["options"] = {"disaggregated": name == "gh200"}
        for row in (best := answer_to(values)["best"], *best["ladder"]):
            split = row["split"]
            assert row["offer"]["devices_per_node"] == 1
            assert split["tp"] * split["pp"] <= most
            assert "prefill" not in split or row["count"] <= most
        assert best["ladder"][-1]["count"] > 8  # replicas need no network
    large = asked("deepseek-ai/DeepSeek-V3", devices=["h100-sxm"], most_devices=16)
    best = answer_to(large)["best"]
    assert best["offer"]["devices_per_node"] == 8
    assert best["count"] > 8


def test_the_rows_of_an_answer_are_what_an_estimate_of_their_hardware_says():
    limits = {"tpot_ms": 40, COST: 9}
    rows = answered(limits=limits, devices=["h100-sxm", "mi300x", "gb200"])["devices"]
    assert "mi300x" in [row["device"] for row in rows]
    for row in rows:
        split = {"hardware": row["request"], "candidate": row["split"]}
        estimate = rb.estimate(asked(limits=limits) | split)
        assert estimate.feasible
        assert estimate.tpot_s.value == pytest.approx(row["figures"]["tpot_s"])
        assert estimate.cost.usd_per_hour == pytest.approx(row["usd_per_hour"])
        assert estimate.cost.devices_rented == row["devices_rented"]
        for name, column, factor in (("tpot_ms", "tpot_s", 1e3), (COST, COST, 1.0)):
            low, high = estimate.bands[column]
            found = row["headroom"][name]
            assert (found["low"], found["high"]) == pytest.approx((low * factor, high * factor))
            assert found["share_left"] == pytest.approx(1 - found["value"] / found["limit"])
        offer = row["offer"]
        assert (offer["age_days"] > 90) == any("days old" in mark for mark in offer["marks"])


def test_filters_narrow_what_is_chosen_from():
    def names(**market):
        request = SizeRequest.parse(asked(**market))
        return {choice.profile.name for choice in iter_device_choices(request)}

    every = names()
    assert "cpu" not in every
    assert len(every) >= 20
    assert names(vendors=["amd"]) == {
        name for name in every if device_profile(name).vendor == "amd"
    }
    assert names(devices=["l4", "mi300x"]) == {"l4", "mi300x"}
    assert "l40s" not in names(memory_bytes_at_least=90e9)
    assert "cpu" in names(vendors=["cpu"])
    offered = [row.plan.setting(0).cluster.offer for row in sized(providers=["Oracle"]).devices]
    assert {offer.provider for offer in offered} == {"Oracle Cloud"}
    by_region = sized(devices=["h100-sxm"], providers=["AWS"], regions=["eu"])
    for row in by_region.devices:
        assert row.plan.setting(0).cluster.offer.region.startswith("eu")
    spot = answered(devices=["h100-sxm"], commitments=["spot"])
    assert spot["best"]["offer"]["commitment"] == "spot"


def test_most_devices_budget_and_power_bound_every_row_or_say_why_none_is_left():
    [refused] = answered(devices=["mi355x"], providers=["Lambda"])["refused"]
    assert "Oracle" in refused["reasons"][0]
    small = answered(devices=["l4"], most_devices=2)
    assert small["best"] is None
    assert "GiB" in small["refused"][0]["reasons"][0]
    ladder = answered(devices=["h100-sxm", "l40s"], most_devices=6)["best"]["ladder"]
    assert max(rung["devices_rented"] for rung in ladder) <= 6
    ladder = answered(devices=["h100-sxm"], usd_per_month=9000)["best"]["ladder"]
    assert 0 < max(rung["usd_per_month"] for rung in ladder if rung["holds"]) <= 9000
    assert answered(devices=["h100-sxm"], limits={"watts": 2500})["best"]["watts"] <= 2500


def test_machines_that_one_has_are_chosen_from_up_to_their_number():
    owned = [{"device": "a100-sxm-80gb", "count": 2, "usd_per_device_hour": 0.3}]
    answer = answered(LLAMA_8B, devices=["h100-sxm"], owned=owned)
    mine = next(row for row in answer["devices"] if row["owned"])
    assert (mine["device"], mine["offer"]) == ("a100-sxm-80gb", None)
    assert mine["usd_per_hour"] == mine["devices_rented"] * 0.3
    assert max(rung["devices_rented"] for rung in mine["ladder"]) <= 2
    assert answer["best"]["owned"]


def devices_of(answer):
    return [row["device"] for row in answer["devices"]]


@over("shift", range(3), share=3)
def test_a_device_without_a_price_never_changes_the_order_of_the_others(shift):
    """A device at each place; at night every device at every place."""
    priced, limits = ["h100-sxm", "mi300x", "l40s", "b200-sxm"], {"tpot_ms": 60}
    order = devices_of(answered(limits=limits, devices=priced))
    assert len(order) >= 3
    unpriced = ("gh200-144gb", "mi250x", "gaudi3")
    for place in range(len(priced) + 1):
        named = [*priced[:place], unpriced[(place + shift) % 3], *priced[place:]]
        assert devices_of(answered(limits=limits, devices=named)) == order


def test_a_device_wins_below_the_price_that_is_said():
    limits = {"tpot_ms": 60}
    answer = answered(limits=limits, devices=["mi250x", "h100-sxm"])
    [row] = answer["unpriced"]
    price = row["usd_per_device_hour_to_win"]
    assert row["usd_per_hour"] is None
    assert "mi250x" not in devices_of(answer)
    for factor, best in ((0.99, "mi250x"), (1.01, "h100-sxm")):
        found = owning("mi250x", price * factor, limits, ["h100-sxm"])
        assert found["best"]["device"] == best
    month = {"usd_per_month": 2190}  # $3 an hour
    [row] = answered(devices=["mi250x", "h100-sxm"], **month)["unpriced"]
    price = row["usd_per_device_hour_to_win"]
    for factor, found in ((0.99, True), (1.01, False)):
        again = owning("mi250x", price * factor, None, ["l4"], **month)
        assert ("mi250x" in devices_of(again)) == found
    limits, names = {"tpot_ms": 40}, ["h100-sxm", "b200-sxm", "mi300x"]
    second = answered(limits=limits, devices=names)["devices"][1]
    price = second["wins_at"]["usd_per_device_hour"]
    assert price < second["offer"]["usd_per_device_hour"]
    others = [name for name in names if name != second["device"]]
    found = owning(second["device"], price * 0.99, limits, others)
    assert found["best"]["device"] == second["device"]


@pytest.mark.parametrize("objective", [{}, {"confidence": 0.8}])
def test_the_limit_at_which_a_device_wins_makes_it_win(objective):
    names = ["l40s", "h100-sxm", "b200-sxm", "mi300x"]
    limits = {"tpot_ms": 40, "ttft_ms": 1500}
    answer = answered(limits=limits, objective=objective, devices=names)
    moved = [(row["device"], row["wins_at"]["limits"]) for row in answer["devices"][1:]]
    assert any(changes for _, changes in moved)
    for name, changes in moved:
        for limit, value in changes.items():
            found = answered(limits=limits | {limit: value}, objective=objective, devices=names)
            assert found["best"]["device"] == name, (limit, value)


def test_more_confidence_never_takes_fewer_devices_and_the_smallest_is_taken():
    counts, limits = [], {"tpot_ms": 30, "ttft_ms": 1500}
    for confidence in (0.5, 0.7, 0.9):
        objective = {"confidence": confidence, "optimize": "gpus"}
        best = answered(limits=limits, objective=objective, devices=["h100-sxm"])["best"]
        assert best["confidence"] >= confidence
        smaller = [r for r in best["ladder"] if r["devices_rented"] < best["devices_rented"]]
        assert all(rung["highest_confidence"] < confidence for rung in smaller)
        counts.append(best["devices_rented"])
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


def test_devices_say_how_likely_they_are_better_and_ladders_mark_the_dominated():
    sizing = sized(limits={"tpot_ms": 40}, devices=["h100-sxm", "mi300x", "b200-sxm", "l40s"])
    rows = Answer(sizing).to_json()["devices"]
    chances = [row["beats_best"] for row in rows]
    assert chances[0] is None
    assert all(0 < chance <= 0.5 for chance in chances[1:])
    costs = [row["usd_per_month"] for row in rows]
    assert costs == sorted(costs)
    first, second = sizing.devices[:2]
    gain = np.log(costs[1] / costs[0])
    back = beats_elsewhere(first.plan, first.best, second.plan, second.best, gain=gain)
    assert back + chances[1] == pytest.approx(1.0)
    ladder = answered(limits={"tpot_ms": 30}, devices=["h100-sxm"])["best"]["ladder"]
    rented = [rung["devices_rented"] for rung in ladder]
    assert rented == sorted(set(rented))  # every number of devices
    kept = [rung["confidence"] for rung in ladder if not rung["dominated"]]
    assert kept == sorted(kept)
    assert len(kept) < len(ladder)


@pytest.mark.parametrize("name", ["h100-sxm", "mi300x", "l40s"])
@over("mode field least", [("closed", "concurrency", 32), ("open", "request_rate", 2.0)])
def test_the_largest_load_holds_and_the_next_does_not(name, mode, field, least):
    workload = {"mode": mode, "input_tokens": 512, "output_tokens": 128, field: least}
    limits = {"tpot_ms": 40, "ttft_ms": 1000}
    best = answered(LLAMA_8B, limits=limits, workload=workload, devices=[name])["best"]
    load = best["largest_load"]
    assert load["bounded"]
    assert load["monotone"]
    assert load["value"] >= least
    split = {"hardware": best["request"], "candidate": best["split"]}
    step = 1 if mode == "closed" else load["value"] * 0.01
    for moved, holds in ((load["value"], True), (load["value"] + step, False)):
        values = asked(LLAMA_8B, limits, {"confidence": SURE}, workload | {field: moved})
        assert rb.estimate(values | split).feasible == holds


def test_a_percentile_is_simulated_and_its_largest_load_is_below_that_of_the_means():
    workload = {"mode": "open", "input_tokens": 512, "output_tokens": 64, "request_rate": 2.0}
    limits = {"ttft_ms": 300, "tpot_ms": 30}
    means, found = (
        answered(LLAMA_8B, limits=limits | more, workload=workload, devices=["l4"])["best"]
        for more in ({}, {"percentile": 95})
    )
    load = found["largest_load"]["value"]
    assert 2.0 <= load < means["largest_load"]["value"]
    request = asked(LLAMA_8B, limits | {"percentile": 95}, {"confidence": SURE}, workload)
    request |= {"hardware": found["request"], "candidate": found["split"]}
    for factor, holds in ((1.0, True), (1.25, False)):
        moved = {"workload": workload | {"request_rate": load * factor}}
        assert rb.estimate(request | moved).feasible == holds
    first_ms = found["headroom"]["ttft_ms"]["value"]
    percentiles = rb.estimate(request).serving.percentiles_s
    assert 0 < first_ms == pytest.approx(percentiles["ttft_p95_s"] * 1e3, rel=1e-6)
    assert first_ms <= 300


def test_loads_that_hold_are_one_range():
    """Scanned load by load on many devices: times do not fall as the load rises."""
    for name, tp in itertools.product(("h100-sxm", "l40s", "mi300x", "b200-sxm"), (1, 2)):
        values = asked(LLAMA_8B) | {"hardware": {"device": name, "per_node": 2}}
        values["options"] = {"engines": ["vllm"], "loads": list(range(2, 257))}
        values["workload"] = {**values["workload"], "concurrency": 1}
        plan = rb.plan(values)
        rows = np.flatnonzero(plan.runs & (plan.columns["tp"] == tp) & (plan.columns["gpus"] == tp))
        rows = rows[np.argsort(plan.columns["load"][rows])]
        assert len(rows) > 200
        for column in ("tpot_s", "ttft_s"):
            times = plan.columns[column][rows]
            assert (np.diff(times) >= -0.002 * times[:-1]).all(), (name, tp, column)


EVERYTHING = dict.fromkeys(
    ("consumer_cards", "market_places", "several_machines", "older_prices"), True
)


def _random_request(rng):
    names = rng.sample(["h100-sxm", "mi300x", "l40s", "a10g", "gb200", "mi355x", "l4"], 2)
    some = {"tpot_ms": (0.8, [8, 15, 25, 40, 80]), "ttft_ms": (0.5, [150, 400, 1500])}
    some |= {"usd_per_hour": (0.2, [2.0, 12.0, 60.0])}
    limits = {n: rng.choice(each) for n, (share, each) in some.items() if rng.random() < share}
    objective = {"optimize": rng.choice(["cost", "cost", "gpus", "tpot"])}
    if rng.random() < 0.5:
        objective["confidence"] = rng.choice([0.6, 0.8, 0.9])
    workload = {"mode": "closed", "concurrency": rng.choice([4, 16, 48])}
    if rng.random() < 0.3:
        workload = {"mode": "open", "request_rate": rng.choice([0.5, 4.0])}
    workload["input_tokens"] = rng.choice([128, 1024, 4000])
    workload["output_tokens"] = rng.choice([64, 256])
    market = {"devices": names, "most_devices": rng.choice([2, 8, 12, 16]), **EVERYTHING}
    return asked(LLAMA_8B, limits, objective, workload, **market)


def _packed(per_node, unit, server, count):
    """Devices rented for some servers, counted machine by machine."""
    if server > per_node:
        nodes = count * -(-server // per_node)
    else:
        nodes, room = 0, 0
        for _ in range(count):
            if room < server:
                nodes, room = nodes + 1, per_node
            room -= server
    taken = nodes * per_node if unit >= per_node else count * server
    return -(-taken // unit) * unit


def _enumerated(values):
    """The least score of every device: every offer, every count and split, one at a time."""
    best = {}
    most, goal = values["hardware"]["any"]["most_devices"], values["objective"]["optimize"]
    column = {"cost": "usd_per_hour", "gpus": "gpus", "tpot": "tpot_s"}[goal]
    for name in values["hardware"]["any"]["devices"]:
        profile = device_profile(name)
        offered = [offer for offer in offers_of(profile) if offer.commitment == "on-demand"]
        sure = [offer for offer in offered if offer.status != "unverified"] or offered
        seen = set()
        for offer in sure:
            key = (offer.usd_per_device_hour, offer.devices_per_node, offer.largest)
            if key in seen or offer.devices_per_node > most:
                continue
            seen.add(key)
            per_node = min(offer.largest, most, 4 if name in ("gb200", "gb300") else most)
            place = {"device": name, "per_node": per_node, "nodes": -(-most // per_node)}
            plan = rb.plan({**values, "hardware": place | {"offer": offer.name}})
            degrees = zip(
                *(plan.columns[n][plan.order].tolist() for n in ("tp", "pp", "dp")), strict=True
            )
            for row, (tp, pp, dp) in zip(plan.order.tolist(), degrees, strict=True):
                server = tp * pp
                rented = _packed(per_node, offer.devices_per_node, server, dp)
                full_nodes = offer.devices_per_node >= max(profile.node.devices, 2)
                spans = server > per_node and not full_nodes
                if rented > most or spans:
                    continue
                score = float(plan.columns[column][row])
                if goal == "cost":
                    score = rented * offer.usd_per_device_hour
                best[name] = min(best.get(name, np.inf), score)
                if goal != "cost":
                    break  # rows are in order of their score
    return best


@over("seed", range(8), share=8)
def test_the_answer_is_that_of_enumeration(seed):
    """25 random requests each: the best score of every device, and the best device."""
    rng = random.Random(seed)
    for _ in range(examples(25, least=3)):
        values = _random_request(rng)
        column = {"cost": "usd_per_hour", "gpus": "count"}.get(values["objective"]["optimize"])
        expected = _enumerated(values)
        found = {}
        answer = size_devices(SizeRequest.parse(values))
        for device_rows in answer.devices:
            row = Answer(answer).rows(device_rows, [device_rows.best])[0]
            found[row["device"]] = row[column] if column else row["figures"]["tpot_s"]
        assert found == pytest.approx(expected, rel=1e-3), json.dumps(values)
        if found:
            least = min(expected.values())
            assert next(iter(found.values())) == pytest.approx(least, rel=1e-3)


def test_training_is_sized_over_devices_by_the_cost_of_its_tokens():
    run = {"kind": "training", "sequence_length": 4096, "global_batch": 256, "tokens": 2e9}
    market = {"devices": ["h100-sxm", "mi300x", "a100-sxm-80gb"]}
    values = asked(LLAMA_8B, {"wall_hours": 24}, {"confidence": 0.8}, run, **market)
    rows = answer_to(values | {"options": {}})["devices"]
    assert len(rows) >= 2
    costs = [row["usd_per_million_tokens"] for row in rows]
    assert costs == sorted(costs)
    for row in rows:
        assert row["wall_s"] <= 24 * 3600
        assert row["confidence"] >= 0.8
        assert row["headroom"]["wall_hours"]["limit"] == 24
        assert row["usd"] == pytest.approx(row["usd_per_hour"] * row["wall_s"] / 3600)


def test_busy_hours_say_what_a_load_by_hour_does_and_spares_keep_a_service_up():
    limits = {"tpot_ms": 20, "ttft_ms": 500}
    values = asked(LLAMA_8B, limits=limits, devices=["h100-sxm", "l40s"])
    values["availability"] = {"target": 0.999, "node_mtbf_hours": 500, "repair_hours": 12}
    monthly = []
    for load in ({"load_by_hour": [1] * 12 + [3] * 12}, {"busy_hours": 12, "quiet_share": 1 / 3}):
        best = answer_to(values | {"purchase": {"usd_per_device": 25_000} | load})["best"]
        monthly.append(best["purchase"]["mixture"]["usd_per_month"])
    assert monthly[0] == pytest.approx(monthly[1])
    held = best["availability"]
    assert held["up_probability"] >= 0.999
    assert held["spares"] >= 1
    assert held["node_lost"]["replicas"] < held["needed"]


SPOT = {
    "workload": {"mode": "open", "input_tokens": 1024, "output_tokens": 256, "request_rate": 20},
    "limits": {"ttft_ms": 2000, "tpot_ms": 50},
    "objective": {"confidence": 0.9},
    "commitments": ["spot"],
    "older_prices": True,
}


def test_what_a_spot_market_takes_back_counts_in_devices_price_and_rank():
    """Three pairs of three are up 89.4 % of the time: they are taken back, and start again."""
    workload = SPOT["workload"] | {"request_rate": 16}
    asked_for = asked("Qwen/Qwen3-32B", devices=["h100-sxm"], **SPOT | {"workload": workload})
    asked_for["options"] = {"engines": ["tensorrt-llm"]}
    plain = answer_to(asked_for)["best"]
    kept = answer_to(asked_for | {"availability": {"target": 0.999}})["best"]
    price = plain["offer"]["usd_per_device_hour"]
    assert (plain["count"], plain["spares"], plain["devices_rented"]) == (6, 1, 8)
    assert (kept["count"], kept["spares"], kept["devices_rented"]) == (6, 2, 10)
    assert kept["idle"] == 0
    assert kept["usd_per_hour"] == pytest.approx(10 * price)
    assert kept[COST] / plain[COST] == pytest.approx(10 / 8)
    up = kept["availability"]
    assert up["up_probability_without"] == pytest.approx(0.894, abs=5e-4)
    assert up["spares"] == 2
    assert up["up_probability"] >= 0.999
    failures = up["repair_hours"] / up["node_mtbf_hours"]
    reclaims = up["spot"]["reclaims_per_hour"] * up["spot"]["restart_s"] / 3600
    assert up["node_availability"] == pytest.approx(1 / (1 + failures + reclaims))
    assert "10 × NVIDIA H100 SXM5 80 GB (4 spare), $11.80 an hour" in size_text(
        Answer(size_devices(SizeRequest.parse(asked_for | {"availability": {"target": 0.999}})))
    ).replace(DOUBT, "")


def test_spares_decide_between_devices_and_within_limits_on_money():
    """A device that is cheaper without its spares is not with them."""
    market = {"devices": ["h100-sxm", "h200-sxm"], "commitments": ["spot", "on-demand"]}
    values = asked("Qwen/Qwen3-32B", **{**SPOT, **market})
    for target in (0.9, 0.9999):
        rows = answer_to(values | {"availability": {"target": target}})["devices"]
        costs = [row[COST] for row in rows]
        assert costs == sorted(costs)
        for row in rows:
            assert row["devices_rented"] == row["availability"]["devices_rented"]
            assert row["spares"] == row["availability"]["spares"]
            hour = row["devices_rented"] * row["offer"]["usd_per_device_hour"]
            assert row["usd_per_hour"] == pytest.approx(hour)
    capped = values | {"availability": {"target": 0.9999}}
    capped["objective"]["limits"] = SPOT["limits"] | {"usd_per_hour": rows[0]["usd_per_hour"] - 0.1}
    for row in answer_to(capped)["devices"]:
        assert row["usd_per_hour"] <= capped["objective"]["limits"]["usd_per_hour"]


def test_what_is_to_be_doubted_of_the_price_that_decides_is_said_beside_it():
    limits = {"tpot_ms": 40}
    sizing = sized(LLAMA_8B, limits=limits, devices=["mi300x", "l40s"], providers=["TensorWave"])
    assert Answer(sizing).price_warning is None  # nothing else is offered
    sizing = sized(
        LLAMA_8B, limits=limits, devices=["mi300x", "b300-sxm"], commitments=["on-demand"]
    )
    best = sizing.best.plan.setting(sizing.best.best).cluster.offer
    for days, aged in ((10, False), (200, True)):
        answer = Answer(sizing, last_day(best.date) + datetime.timedelta(days=days))
        warning = answer.price_warning or ""
        assert (f"{days} days old" in warning) == aged
        assert answer.to_json()["price_warning"] == answer.price_warning
        assert (warning in size_text(answer).splitlines()[:2]) == bool(warning)


JOB = {"mode": "offline", "input_tokens": 800, "output_tokens": 200, "requests": 1_000_000}


def test_a_queue_of_requests_has_its_own_price_and_hours_and_a_deadline():
    """10^9 tokens in so many hours at least cost: the cheapest that is done in time."""
    market = {"devices": ["mi300x", "rtx-5090", "l40s"], "most_devices": 8}
    by_estimate = {"confidence": 0.5}
    values = asked("Qwen/Qwen3-32B", objective=by_estimate, workload=JOB, **market)
    for hours in (60, 10):
        values["objective"]["limits"] = {"wall_hours": hours}
        rows = answer_to(values)["devices"]
        assert rows
        assert [row["usd"] for row in rows] == sorted(row["usd"] for row in rows)
        for row in rows:
            wall_s = JOB["requests"] * 200 / row["figures"]["output_tokens_per_s"]
            assert row["wall_s"] == pytest.approx(wall_s)
            assert row["wall_s"] <= hours * 3600
            assert row["usd"] == pytest.approx(row["usd_per_hour"] * wall_s / 3600)
            assert row["headroom"]["wall_hours"]["limit"] == hours
            load = row["largest_load"]
            assert load["limited_by"] == ["limit-wall"]
            in_time = hours * 3600 / wall_s * JOB["requests"]
            assert load["value"] == pytest.approx(in_time, rel=1e-3)
    assert "rtx-5090" not in devices_of({"devices": rows})  # takes 17 hours
    text = size_text(Answer(size_devices(SizeRequest.parse(values)))).replace(DOUBT, "")
    assert f"${rows[0]['usd']:.2f} for the job of {significant(rows[0]['wall_s'] / 3600)} h" in text
    huge = values | {"workload": JOB | {"requests": 10**12}}
    huge["objective"] = {"limits": {}}
    assert answer_to(huge)["best"]["usd"] == pytest.approx(rows[0]["usd"] * 1e6, rel=0.01)


def test_bad_requests_name_the_field_and_the_fix():
    for field, parts in table("sizing", "wrong").items():
        assert field in str(refusal(rb.size, asked() | parts))
    assert "recipe size" in str(refusal(rb.Request.parse, asked() | {"hardware": "any"}))
