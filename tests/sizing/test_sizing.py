"""Which hardware, how many, at what cost, how sure: sizing against enumeration by hand."""

from __future__ import annotations

import itertools
import json
import random

import numpy as np
import pytest

import recipe_core as rb
from recipe_core.base.errors import InputError, NoAnswer
from recipe_core.hardware.cluster import device
from recipe_core.hardware.prices import offers_of
from recipe_core.request.size import SizeRequest
from recipe_core.sizing.answer import Answer
from recipe_core.sizing.market import choices
from recipe_core.sizing.size import size
from tests.fixtures.sizes import examples

LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"
LLAMA_70B = "meta-llama/Llama-3.1-70B-Instruct"


def asked(model=LLAMA_70B, limits=None, objective=None, workload=None, **market):
    return {
        "model": model,
        "hardware": {"any": market},
        "workload": workload
        or {"mode": "closed", "input_tokens": 1024, "output_tokens": 256, "concurrency": 64},
        "objective": {"limits": limits or {}, **(objective or {})},
        "options": {"engines": ["vllm"]},
    }


def sized(*args, **parts):
    return size(SizeRequest.parse(asked(*args, **parts)))


def answered(*args, **parts):
    return Answer(sized(*args, **parts)).to_json()


# What can be had


def test_every_row_adds_up_exactly():
    answer = answered(limits={"tpot_ms": 40}, vendors=["amd", "nvidia"])
    rows = [row for one in answer["devices"] for row in (one, *one["ladder"])]
    assert len(rows) > 100
    for row in rows:
        assert row["devices_rented"] == row["units"] * row["unit_devices"]
        assert row["idle"] == row["devices_rented"] - row["count"] >= 0
        price = row["offer"]["usd_per_device_hour"]
        assert row["usd_per_hour"] == row["devices_rented"] * price
        assert row["usd_per_month"] == row["usd_per_hour"] * 730
        tokens_per_hour = row["figures"]["output_tokens_per_s"] * 3600
        assert row["usd_per_million_output_tokens"] == pytest.approx(
            row["usd_per_hour"] / tokens_per_hour * 1e6
        )
        assert row["kwh_per_month"] == pytest.approx(row["watts"] * 0.73)


def test_machines_of_eight_are_paid_for_whole():
    """12 × MI355X come in two machines of eight: 16 are paid for, in a plan as in a sizing."""
    one = next(row for row in offers_of(device("mi355x")) if row.devices_per_node == 8)
    values = asked(objective={"optimize": "cost"})
    plan = rb.plan(
        {**values, "hardware": {"device": "mi355x", "nodes": 2, "per_node": 8, "offer": one.name}}
    )
    twelve = np.flatnonzero(plan.runs & (plan.columns["gpus"] == 12))
    assert len(twelve)
    assert set(plan.columns["gpus_rented"][twelve].tolist()) == {16}
    assert plan.columns["usd_per_hour"][twelve] == pytest.approx(16 * one.usd_per_device_hour)
    answer = answered(devices=["mi355x"], providers=[one.provider])
    assert {rung["devices_rented"] % 8 for rung in answer["best"]["ladder"]} == {0}


def test_one_device_of_eight_is_rented_alone_where_it_can_be():
    answer = answered(LLAMA_8B, devices=["h100-sxm"])
    assert answer["best"]["offer"]["most_per_node"] == 8
    assert answer["best"]["devices_rented"] == answer["best"]["count"] == 1


def test_the_rows_of_an_answer_are_what_a_plan_of_their_hardware_says():
    answer = answered(limits={"tpot_ms": 40}, devices=["h100-sxm", "mi300x", "gb200"])
    for row in answer["devices"]:
        values = asked(limits={"tpot_ms": 40}) | {"hardware": row["request"]}
        estimate = rb.estimate({**values, "candidate": row["split"]})
        assert estimate.feasible
        assert estimate.tpot_s.value == pytest.approx(row["figures"]["tpot_s"])
        assert estimate.cost.usd_per_hour == pytest.approx(row["usd_per_hour"])
        assert estimate.cost.devices_rented == row["devices_rented"]


def test_filters_narrow_what_is_chosen_from():
    def names(**market):
        request = SizeRequest.parse(asked(**market))
        return {choice.profile.name for choice in choices(request)}

    every = names()
    assert "cpu" not in every
    assert len(every) >= 30
    assert names(vendors=["amd"]) == {name for name in every if device(name).vendor == "amd"}
    assert names(devices=["l4", "mi300x"]) == {"l4", "mi300x"}
    assert "l40s" not in names(memory_bytes_at_least=90e9)
    assert "cpu" in names(vendors=["cpu"])
    by_provider = sized(providers=["Oracle"])
    offered = {one.plan.setting(0).cluster.offer.provider for one in by_provider.devices}
    assert offered == {"Oracle Cloud"}
    by_region = sized(devices=["h100-sxm"], providers=["AWS"], regions=["eu"])
    for one in by_region.devices:
        assert one.plan.setting(0).cluster.offer.region.startswith("eu")
    spot = answered(devices=["h100-sxm"], commitments=["spot"])
    assert spot["best"]["offer"]["commitment"] == "spot"


def test_most_devices_budget_and_power_bound_every_row():
    answer = answered(devices=["h100-sxm", "l40s"], most_devices=6)
    assert max(rung["devices_rented"] for rung in answer["best"]["ladder"]) <= 6
    answer = answered(devices=["h100-sxm"], usd_per_month=9000)
    held = [rung for rung in answer["best"]["ladder"] if rung["holds"]]
    assert held
    assert max(rung["usd_per_month"] for rung in held) <= 9000
    answer = answered(devices=["h100-sxm"], limits={"watts": 2500})
    assert answer["best"]["watts"] <= 2500


def test_machines_that_one_has_are_chosen_from_up_to_their_number():
    answer = answered(
        LLAMA_8B,
        devices=["h100-sxm"],
        owned=[{"device": "a100-sxm-80gb", "count": 2, "usd_per_device_hour": 0.3}],
    )
    mine = next(row for row in answer["devices"] if row["owned"])
    assert mine["device"] == "a100-sxm-80gb"
    assert mine["offer"] is None
    assert mine["usd_per_hour"] == mine["devices_rented"] * 0.3
    assert max(rung["devices_rented"] for rung in mine["ladder"]) <= 2
    assert answer["best"]["owned"]


def test_devices_that_cannot_be_had_say_why():
    answer = answered(devices=["mi355x"], providers=["Lambda"])
    assert answer["best"] is None
    [refused] = answer["refused"]
    assert "Oracle" in refused["reasons"][0]
    answer = answered(devices=["l4"], most_devices=2)
    assert "GiB" in answer["refused"][0]["reasons"][0]


# Prices


def test_a_device_without_a_price_never_changes_the_order_of_the_others():
    priced = ["h100-sxm", "mi300x", "l40s", "b200-sxm"]
    before = answered(limits={"tpot_ms": 60}, devices=priced)
    order = [row["device"] for row in before["devices"]]
    assert len(order) >= 3
    for unpriced in ("gh200-144gb", "mi250x", "gaudi3"):
        for place in range(len(priced) + 1):
            named = [*priced[:place], unpriced, *priced[place:]]
            after = answered(limits={"tpot_ms": 60}, devices=named)
            assert [row["device"] for row in after["devices"]] == order


def test_a_device_without_a_price_wins_below_the_price_that_is_said():
    limits = {"tpot_ms": 60}
    answer = answered(limits=limits, devices=["mi250x", "h100-sxm"])
    [row] = answer["unpriced"]
    price = row["usd_per_device_hour_to_win"]
    assert row["usd_per_hour"] is None
    assert "mi250x" not in [one["device"] for one in answer["devices"]]
    for factor, best in ((0.99, "mi250x"), (1.01, "h100-sxm")):
        owned = {"device": "mi250x", "count": 64, "usd_per_device_hour": price * factor}
        found = answered(limits=limits, devices=["h100-sxm"], owned=[owned])
        assert found["best"]["device"] == best


def test_a_budget_says_what_a_device_without_a_price_may_cost():
    answer = answered(devices=["mi250x", "h100-sxm"], usd_per_month=2190)  # $3 an hour
    [row] = answer["unpriced"]
    price = row["usd_per_device_hour_to_win"]
    for factor, found in ((0.99, True), (1.01, False)):
        owned = {"device": "mi250x", "count": 64, "usd_per_device_hour": price * factor}
        again = answered(devices=["l4"], owned=[owned], usd_per_month=2190)
        assert ("mi250x" in [one["device"] for one in again["devices"]]) == found


def test_the_price_at_which_a_device_wins_makes_it_win():
    names = ["h100-sxm", "b200-sxm", "mi300x"]
    answer = answered(limits={"tpot_ms": 40}, devices=names)
    second = answer["devices"][1]
    price = second["wins_at"]["usd_per_device_hour"]
    assert price < second["offer"]["usd_per_device_hour"]
    others = [name for name in names if name != second["device"]]
    owned = {"device": second["device"], "count": 64, "usd_per_device_hour": price * 0.99}
    found = answered(limits={"tpot_ms": 40}, devices=others, owned=[owned])
    assert found["best"]["device"] == second["device"]


@pytest.mark.parametrize("objective", [{}, {"confidence": 0.8}])
def test_the_limit_at_which_a_device_wins_makes_it_win(objective):
    names = ["l40s", "h100-sxm", "b200-sxm", "mi300x"]
    limits = {"tpot_ms": 40, "ttft_ms": 1500}
    answer = answered(limits=limits, objective=objective, devices=names)
    moved = [(row, *limit) for row in answer["devices"][1:] for limit in _limits_of(row)]
    assert moved
    for row, name, value in moved:
        found = answered(limits=limits | {name: value}, objective=objective, devices=names)
        assert found["best"]["device"] == row["device"], (row["device"], name, value)


def _limits_of(row):
    return row["wins_at"]["limits"].items()


def test_notes_age_and_status_of_prices_stand_in_every_row():
    answer = answered(devices=["mi300x", "mi355x"])
    for row in answer["devices"]:
        offer = row["offer"]
        assert {"provider", "region", "commitment", "date", "status", "note", "marks"} <= set(offer)
        assert (offer["age_days"] > 90) == any("days old" in mark for mark in offer["marks"])


# Confidence


def test_more_confidence_never_takes_fewer_devices_and_the_smallest_is_taken():
    counts = []
    for confidence in (0.5, 0.7, 0.9):
        answer = answered(
            limits={"tpot_ms": 30, "ttft_ms": 1500},
            objective={"confidence": confidence, "optimize": "gpus"},
            devices=["h100-sxm"],
        )
        best = answer["best"]
        assert best["confidence"] >= confidence
        smaller = [r for r in best["ladder"] if r["devices_rented"] < best["devices_rented"]]
        assert all(rung["highest_confidence"] < confidence for rung in smaller)
        counts.append(best["devices_rented"])
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


def test_devices_state_how_likely_they_are_better_than_the_best():
    sizing = sized(limits={"tpot_ms": 40}, devices=["h100-sxm", "mi300x", "b200-sxm", "l40s"])
    answer = Answer(sizing).to_json()
    chances = [row["beats_best"] for row in answer["devices"]]
    assert chances[0] is None
    assert all(0 < chance <= 0.5 for chance in chances[1:])
    costs = [row["usd_per_million_output_tokens"] for row in answer["devices"]]
    assert costs == sorted(costs)
    first, second = sizing.devices[:2]
    back = first.plan.beats_other(first.best, second.plan, second.best)
    assert back + chances[1] == pytest.approx(1.0)


def test_a_ladder_has_every_number_of_devices_and_marks_the_dominated():
    best = answered(limits={"tpot_ms": 30}, devices=["h100-sxm"])["best"]
    rented = [rung["devices_rented"] for rung in best["ladder"]]
    assert rented == sorted(set(rented))
    kept = [rung for rung in best["ladder"] if not rung["dominated"]]
    assert [r["confidence"] for r in kept] == sorted(r["confidence"] for r in kept)
    assert len(kept) < len(best["ladder"])


# The largest load


@pytest.mark.parametrize("name", ["h100-sxm", "mi300x", "l40s"])
@pytest.mark.parametrize(
    "workload",
    [
        {"mode": "closed", "input_tokens": 512, "output_tokens": 128, "concurrency": 32},
        {"mode": "open", "input_tokens": 512, "output_tokens": 128, "request_rate": 2.0},
    ],
)
def test_the_largest_load_holds_and_the_next_does_not(name, workload):
    field = "concurrency" if workload["mode"] == "closed" else "request_rate"
    limits = {"tpot_ms": 40, "ttft_ms": 1000}
    best = answered(LLAMA_8B, limits=limits, workload=workload, devices=[name])["best"]
    load = best["largest_load"]
    assert load["bounded"]
    assert load["monotone"]
    assert load["value"] >= workload[field]
    values = asked(LLAMA_8B, limits=limits) | {"hardware": best["request"]}
    step = 1 if field == "concurrency" else load["value"] * 0.01
    for moved, holds in ((load["value"], True), (load["value"] + step, False)):
        estimate = rb.estimate(
            {**values, "workload": {**workload, field: moved}, "candidate": best["split"]}
        )
        assert estimate.feasible == holds


def test_a_largest_load_at_a_percentile_is_below_that_of_the_means():
    workload = {"mode": "open", "input_tokens": 512, "output_tokens": 64, "request_rate": 2.0}
    values = {"limits": {"ttft_ms": 300, "tpot_ms": 30}, "workload": workload, "devices": ["l4"]}
    means = answered(LLAMA_8B, **values)["best"]["largest_load"]["value"]
    values["limits"] = values["limits"] | {"percentile": 95}
    found = answered(LLAMA_8B, **values)["best"]
    load = found["largest_load"]["value"]
    assert 2.0 <= load < means
    for factor, holds in ((1.0, True), (1.25, False)):
        request = asked(LLAMA_8B, limits=values["limits"]) | {"hardware": found["request"]}
        moved = workload | {"request_rate": load * factor}
        estimate = rb.estimate({**request, "workload": moved, "candidate": found["split"]})
        assert estimate.feasible == holds


def test_loads_that_hold_are_one_range():
    """Scanned load by load on many devices: times do not fall as the load rises."""
    for name, tp in itertools.product(("h100-sxm", "l40s", "mi300x", "b200-sxm"), (1, 2)):
        values = asked(LLAMA_8B) | {"hardware": {"device": name, "per_node": 2}}
        values["options"] = {"engines": ["vllm"], "loads": list(range(2, 257))}
        values["workload"] = {**values["workload"], "concurrency": 1}
        plan = rb.plan(values)
        rows = np.flatnonzero(plan.runs & (plan.degree("tp") == tp) & (plan.degree("gpus") == tp))
        rows = rows[np.argsort(plan.columns["load"][rows])]
        assert len(rows) > 200
        for column in ("tpot_s", "ttft_s"):
            times = plan.columns[column][rows]
            assert (np.diff(times) >= -0.002 * times[:-1]).all(), (name, tp, column)


# Against enumeration


def _random_request(rng):
    names = rng.sample(["h100-sxm", "mi300x", "l40s", "a10g", "gb200", "mi355x", "l4"], 2)
    limits = {}
    if rng.random() < 0.8:
        limits["tpot_ms"] = rng.choice([8, 15, 25, 40, 80])
    if rng.random() < 0.5:
        limits["ttft_ms"] = rng.choice([150, 400, 1500])
    if rng.random() < 0.2:
        limits["usd_per_hour"] = rng.choice([2.0, 12.0, 60.0])
    objective = {"optimize": rng.choice(["cost", "cost", "gpus", "tpot"])}
    if rng.random() < 0.5:
        objective["confidence"] = rng.choice([0.6, 0.8, 0.9])
    workload = {
        "mode": "closed",
        "input_tokens": rng.choice([128, 1024, 4000]),
        "output_tokens": rng.choice([64, 256]),
        "concurrency": rng.choice([4, 16, 48]),
    }
    if rng.random() < 0.3:
        workload.pop("concurrency")
        workload |= {"mode": "open", "request_rate": rng.choice([0.5, 4.0])}
    most = rng.choice([2, 8, 12, 16])
    return asked(
        LLAMA_8B,
        limits=limits,
        objective=objective,
        workload=workload,
        devices=names,
        most_devices=most,
    )


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
    most = values["hardware"]["any"]["most_devices"]
    sign = {"cost": 1, "gpus": 1, "tpot": 1}
    column = {"cost": "usd_per_million_output_tokens", "gpus": "gpus", "tpot": "tpot_s"}
    goal = values["objective"]["optimize"]
    for name in values["hardware"]["any"]["devices"]:
        profile = device(name)
        offered = [o for o in offers_of(profile) if o.commitment == "on-demand"]
        sure = [o for o in offered if o.status != "unverified"] or offered
        seen = set()
        for offer in sure:
            key = (offer.usd_per_device_hour, offer.devices_per_node, offer.largest)
            if key in seen or offer.devices_per_node > most:
                continue
            seen.add(key)
            per_node = min(offer.largest, most)
            if name in ("gb200", "gb300"):
                per_node = min(per_node, 4)
            hardware = {
                "device": name,
                "per_node": per_node,
                "nodes": -(-most // per_node),
                "offer": offer.name,
            }
            plan = rb.plan({**values, "hardware": hardware})
            for row in plan.order.tolist():
                split = plan.candidate(row)
                server = split["tp"] * split["pp"]
                rented = _packed(per_node, offer.devices_per_node, server, split["dp"])
                spans = server > per_node and per_node < profile.node.devices
                if rented > most or spans:
                    continue
                score = sign[goal] * float(plan.columns[column[goal]][row])
                if goal == "cost":
                    rate = plan.estimate(row).serving.output_tokens_per_s
                    score = rented * offer.usd_per_device_hour / (rate * 3600) * 1e6
                best[name] = min(best.get(name, np.inf), score)
                break  # rows are in order of their score
    return best


@pytest.mark.parametrize("seed", range(8))
def test_the_answer_is_that_of_enumeration(seed):
    """25 random requests each: the best score of every device, and the best device."""
    rng = random.Random(seed)
    column = {"cost": "usd_per_million_output_tokens", "gpus": "count"}
    for _ in range(examples(25)):
        values = _random_request(rng)
        goal = values["objective"]["optimize"]
        expected = _enumerated(values)
        found = {}
        answer = size(SizeRequest.parse(values))
        for one in answer.devices:
            row = Answer(answer).rows(one, [one.best])[0]
            score = row["figures"]["tpot_s"] if goal == "tpot" else row[column[goal]]
            found[row["device"]] = score
        assert found == pytest.approx(expected, rel=1e-3), json.dumps(values)
        if found:
            least = min(expected.values())
            assert next(iter(found.values())) == pytest.approx(least, rel=1e-3)


# Both kinds, and all doors


def test_training_is_sized_over_devices_by_the_cost_of_its_tokens():
    values = {
        "model": LLAMA_8B,
        "hardware": {"any": {"devices": ["h100-sxm", "mi300x", "a100-sxm-80gb"]}},
        "workload": {
            "kind": "training",
            "sequence_length": 4096,
            "global_batch": 256,
            "tokens": 2e9,
        },
        "objective": {"limits": {"wall_hours": 24}, "confidence": 0.8},
    }
    answer = Answer(size(SizeRequest.parse(values))).to_json()
    assert len(answer["devices"]) >= 2
    costs = [row["usd_per_million_tokens"] for row in answer["devices"]]
    assert costs == sorted(costs)
    for row in answer["devices"]:
        assert row["wall_s"] <= 24 * 3600
        assert row["confidence"] >= 0.8
        assert row["headroom"]["wall_hours"]["limit"] == 24
        assert row["usd"] == pytest.approx(row["usd_per_hour"] * row["wall_s"] / 3600)


def test_a_percentile_is_simulated_near_the_limits():
    values = asked(
        LLAMA_8B,
        limits={"ttft_ms": 400, "tpot_ms": 30, "percentile": 95},
        workload={"mode": "open", "input_tokens": 512, "output_tokens": 64, "request_rate": 6.0},
        devices=["h100-sxm", "l4"],
    )
    sizing = size(SizeRequest.parse(values))
    best = sizing.best
    row = Answer(sizing).rows(best, [best.best])[0]
    assert 0 < row["headroom"]["ttft_ms"]["value"] <= 400
    estimate = rb.estimate({**values, "hardware": row_hardware(sizing), "candidate": row["split"]})
    assert row["headroom"]["ttft_ms"]["value"] == pytest.approx(
        estimate.serving.percentiles_s["ttft_p95_s"] * 1e3, rel=1e-6
    )


def row_hardware(sizing):
    return sizing.choice.to_json()["hardware"]


def test_a_request_with_open_hardware_is_planned_and_built_on_the_best():
    values = asked(LLAMA_8B, devices=["l40s", "mi300x"], limits={"tpot_ms": 30})
    chosen = rb.size(values).choice
    plan = rb.plan(values)
    assert plan.request.hardware == chosen.hardware
    recipe = rb.build(values)
    assert recipe.device.name == chosen.hardware.device_name
    assert rb.check(values)["ok"]


def test_growth_availability_and_purchase_come_where_they_are_asked_for():
    values = asked(LLAMA_8B, limits={"tpot_ms": 20, "ttft_ms": 500}, devices=["h100-sxm", "l40s"])
    values["growth"] = {"per_month": 0.08, "months": 24}
    values["availability"] = {"target": 0.999, "node_mtbf_hours": 500, "repair_hours": 12}
    values["purchase"] = {"usd_per_device": 25_000, "load_by_hour": [1] * 12 + [3] * 12}
    answer = Answer(size(SizeRequest.parse(values))).to_json()
    best = answer["best"]
    assert len(best["growth"]["load"]) == 24
    assert best["growth"]["load"][0] == 64
    assert answer["growth"]["cheapest"]
    held = best["availability"]
    assert held["up_probability"] >= 0.999
    assert held["spares"] >= 1
    assert held["node_lost"]["replicas"] < held["needed"]
    assert best["purchase"]["highest_usd_per_device"] > 0
    mixed = best["purchase"]["mixture"]
    pure = mixed["all_rented_usd_per_month"], mixed["all_owned_usd_per_month"]
    assert mixed["usd_per_month"] <= min(pure)
    values["purchase"] = {"usd_per_device": 25_000, "busy_hours": 12, "quiet_share": 1 / 3}
    again = Answer(size(SizeRequest.parse(values))).to_json()["best"]["purchase"]["mixture"]
    assert again["usd_per_month"] == pytest.approx(best["purchase"]["mixture"]["usd_per_month"])
    plain = Answer(size(SizeRequest.parse(asked(LLAMA_8B, devices=["l40s"])))).to_json()
    assert not {"growth", "availability", "purchase"} & set(plain["best"])


def test_bad_requests_name_the_field_and_the_fix():
    bad = [
        (asked(devices=["h10"]), "hardware.any.devices.0"),
        (asked(vendors=["foo"]), "vendors"),
        (asked(providers=["AWS", "Nobody"]), "hardware.any.providers.1"),
        (asked() | {"hardware": {"any": {"vendor": []}}}, "hardware.any.vendor"),
        (asked() | {"options": {"loads": [1]}}, "options.loads"),
        (asked() | {"hardware": {"any": {"owned": [{"device": "l4"}]}}}, "owned.0.count"),
        (asked() | {"purchase": {"load_by_hour": [1, 2]}}, "load_by_hour"),
    ]
    for values, field in bad:
        with pytest.raises(InputError) as raised:
            rb.size(values)
        assert field in str(raised.value)
    with pytest.raises(InputError, match="recipe size"):
        rb.Request.parse(asked() | {"hardware": "any"})
    with pytest.raises(NoAnswer, match="no hardware keeps the limits"):
        rb.plan(asked(devices=["l4"], limits={"tpot_ms": 0.5}))


def test_the_band_of_a_limit_is_that_of_the_estimate():
    limits = {"tpot_ms": 40, "usd_per_million_output_tokens": 9}
    best = answered(limits=limits, devices=["mi300x"])["best"]
    values = asked(limits=limits) | {"hardware": best["request"], "candidate": best["split"]}
    estimate = rb.estimate(values)
    for name, column, factor in (
        ("tpot_ms", "tpot_s", 1e3),
        ("usd_per_million_output_tokens", "usd_per_million_output_tokens", 1.0),
    ):
        low, high = estimate.bands[column]
        found = best["headroom"][name]
        assert (found["low"], found["high"]) == pytest.approx((low * factor, high * factor))
        assert found["share_left"] == pytest.approx(1 - found["value"] / found["limit"])
