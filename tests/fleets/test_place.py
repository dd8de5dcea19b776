"""Placed fleets: two kinds of devices together, data rules, headroom, conflicts, what-if."""

from __future__ import annotations

import copy
import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from recipe_core import fleet
from recipe_core.base.errors import InputError
from recipe_core.doors import public
from recipe_core.fleets import reading
from recipe_core.fleets.answer import NodeShare
from recipe_core.fleets.columns import make_columns
from recipe_core.fleets.nodes import fill_nodes
from recipe_core.fleets.place import place_fleet
from recipe_core.fleets.placing import pose_fleet
from recipe_core.fleets.probability import Stated, joint_probabilities
from recipe_core.fleets.program import solve_fleet
from recipe_core.fleets.request import FleetRequest
from recipe_core.fleets.what_if import FleetChanges, compare_answers
from recipe_core.hardware.slices import is_allowed
from tests.fixtures.rows import over

CHAT = {
    "name": "chat",
    "model": "Qwen/Qwen3-32B",
    "workload": {"mode": "open", "input_tokens": 1024, "output_tokens": 256, "request_rate": 30},
    "objective": {"limits": {"ttft_ms": 2000, "tpot_ms": 50}, "confidence": 0.8},
    "team": "search",
}
SMALL = {
    "name": "small",
    "model": "Qwen/Qwen3-8B",
    "workload": {"mode": "open", "input_tokens": 512, "output_tokens": 128, "request_rate": 12},
    "objective": {"limits": {"ttft_ms": 2000, "tpot_ms": 50}, "confidence": 0.8},
    "team": "tools",
}
OFFLINE = {"mode": "offline", "input_tokens": 800, "output_tokens": 200, "requests": 50_000}
H100 = {"name": "h100", "device": "h100-sxm", "nodes": 1, "per_node": 4, "usd_per_device_hour": 1.2}
MI300X = {
    "name": "mi300x",
    "device": "mi300x",
    "nodes": 1,
    "per_node": 4,
    "usd_per_device_hour": 1.0,
}
CLOUD = {
    "name": "cloud",
    "device": "h100-sxm",
    "nodes": 4,
    "term": "on-demand",
    "usd_per_device_hour": 2.6,
    "rented_by": "node",
}


def fleet_of(*models, pools=(H100, MI300X), **fields):
    return FleetRequest.parse({"models": list(models), "pools": list(pools), **fields})


def placed(*models, **fields):
    return place_fleet(fleet_of(*models, **fields), gap=0.0)


def test_one_model_runs_on_two_kinds_of_devices_with_weights_for_the_router():
    answer = placed(CHAT, pools=[H100, MI300X, CLOUD])
    [chat] = answer.models
    assert answer.status == "optimal"
    assert answer.usd_per_hour <= 8.8 + 1e-6
    assert {part.pool for part in chat.placements} == {"h100", "mi300x"}
    assert sum(part.weight for part in chat.placements) == pytest.approx(1.0)
    for part in chat.placements:
        assert part.load_each["all"] <= part.capacity_each * (1 + 1e-6)
        assert part.confidence >= 0.8
        price = {"h100": 1.2, "mi300x": 1.0}[part.pool]
        assert part.request["hardware"]["usd_per_device_hour"] == price
    # errors of two devices are in part their own: together they are surer than either alone
    assert chat.probability >= 0.8
    assert answer.probability == chat.probability


def test_every_placed_replica_passes_the_check():
    answer = placed(CHAT, SMALL, pools=[H100, MI300X, CLOUD])
    parts = [part for model in answer.models for part in model.placements]
    assert len(parts) >= 3
    for part in parts:
        verdict = public.check(dict(part.request))
        assert verdict["ok"], (part.pool, part.layout, verdict)


def test_teams_pay_for_what_they_use_and_nothing_is_charged_twice():
    answer = placed(CHAT, SMALL, pools=[H100, MI300X, CLOUD])
    assert sum(charge.usd_per_hour for charge in answer.charges) == pytest.approx(
        answer.usd_per_hour
    )
    assert {charge.team for charge in answer.charges} >= {"search", "tools"}
    reserved = placed(SMALL, pools=[{**H100, "term": "reserved"}])
    idle = next(charge for charge in reserved.charges if not charge.models)
    assert reserved.usd_per_hour == pytest.approx(4 * 1.2)
    assert idle.usd_per_hour > 0


def test_a_fleet_that_cannot_be_served_names_a_smallest_conflict_and_serves_the_rest():
    big = {**CHAT, "workload": {**CHAT["workload"], "request_rate": 200}, "priority": 1}
    answer = placed(big, {**SMALL, "priority": 500})
    assert answer.status == "partial"
    assert answer.models[1].unmet == 0
    assert answer.models[0].unmet > 0
    assert set(answer.conflict.members) == {"models.0", "pools.0.nodes", "pools.1.nodes"}
    # without any one of them the rest goes together
    more = [{**H100, "nodes": 16}, {**MI300X, "nodes": 16}]
    assert placed(big, SMALL, pools=[more[0], MI300X]).status == "optimal"
    assert placed(big, SMALL, pools=[H100, more[1]]).status == "optimal"
    pools = [{**H100, "region": "us"}, {**MI300X, "nodes": 0, "region": "eu"}]
    forbidden = placed({**CHAT, "where": {"regions": ["eu"]}}, pools=pools)
    assert "within its limits in eu" in forbidden.conflict.text
    assert forbidden.conflict.members == ("models.0", "pools.1.nodes")


def test_rules_on_data_headroom_and_budgets_hold():
    inside = {**CHAT, "where": {"on_premises": True}}
    kept = placed(inside, SMALL, pools=[{**H100, "nodes": 4}, CLOUD])
    assert {part.pool for part in kept.models[0].placements} == {"h100"}
    without = placed(SMALL, pools=[{**H100, "nodes": 3}])
    spare = placed(SMALL, pools=[{**H100, "nodes": 3}], headroom={"failures": 1, "domain": "node"})
    [part] = spare.models[0].placements
    by_node = [share.replicas for share in part.nodes]
    left = part.most_replicas - max(by_node)
    assert left * part.capacity_each >= SMALL["workload"]["request_rate"]
    assert spare.usd_per_hour > without.usd_per_hour
    poor = placed(CHAT, pools=[H100, MI300X], objective={"usd_per_month": 3000})
    assert "objective.usd_per_month" in poor.conflict.members
    assert poor.usd_per_month <= 3000


def test_regions_far_away_take_their_time_from_the_limit_on_the_first_token():
    near = {**SMALL, "users": {"eu": 1}, "objective": {"limits": {"ttft_ms": 150}}}
    regions = [{"name": "eu", "round_trip_ms": {"us": 140}}, {"name": "us"}]
    pools = [{**H100, "region": "us"}, {**MI300X, "region": "eu", "usd_per_device_hour": 9}]
    here = placed(near, pools=pools, regions=regions)
    there = placed({**near, "users": {"us": 1}}, pools=pools, regions=regions)
    assert {part.pool for part in here.models[0].placements} == {"mi300x"}
    assert {part.pool for part in there.models[0].placements} == {"h100"}
    far = placed({**near, "users": {"eu": 1}}, pools=pools[:1], regions=regions)
    assert "140 ms away" in far.conflict.text
    assert far.probability == 0
    both = placed({**near, "users": {"us": 1, "eu": 1}}, pools=pools, regions=regions)
    assert {part.pool for part in both.models[0].placements} == {"h100", "mi300x"}
    assert both.models[0].placements[0].weight == pytest.approx(0.5)


def test_nights_are_cheaper_and_jobs_fill_them():
    periods = [{"name": "day", "hours": 14}, {"name": "night", "hours": 10}]
    chat = {**CHAT, "load": {"night": 0.2}}
    job = {
        "name": "batch",
        "model": "Qwen/Qwen3-8B",
        "workload": OFFLINE,
        "periods": ["night"],
    }
    answer = placed(chat, periods=periods, jobs=[job])
    nights = {
        name: sum(part.replicas["night"] for part in model.placements)
        for name, model in zip(("chat", "batch"), (*answer.models, *answer.jobs), strict=True)
    }
    days = sum(part.replicas["day"] for part in answer.models[0].placements)
    assert 0 < nights["chat"] < days
    assert nights["batch"] > 0
    assert all(part.replicas["day"] == 0 for part in answer.jobs[0].placements)
    assert answer.jobs[0].hours <= 10
    assert answer.usd_per_hour < 8.8


def test_reserving_pays_for_what_runs_all_day():
    periods = [{"name": "day", "hours": 12}, {"name": "night", "hours": 12}]
    reserve = {"usd_per_device_hour": 1.6, "months": 12}
    chat = {**CHAT, "load": {"night": 0.25}}
    answer = placed(chat, pools=[{**CLOUD, "per_node": 2, "reserve": reserve}], periods=periods)
    [pool] = answer.pools
    paid = pool.paid
    assert 0 < pool.reserved < paid["day"]
    assert pool.reserved <= paid["night"]


def test_reservations_count_the_months_in_which_the_load_grows():
    """A reserved node pays where it is used for 1.0 / 2.6 of the time, today or later."""
    pool = {**CLOUD, "nodes": 24, "reserve": {"usd_per_device_hour": 1.0, "months": 12}}
    many = {**CHAT, "workload": {**CHAT["workload"], "request_rate": 160}}
    flat = placed(many, pools=[pool]).pools[0]
    assert flat.reserved == flat.paid["all"]
    grows = {"growth": {"per_month": 0.1, "months": 12}}
    growing = placed(many, pools=[pool], **grows).pools[0]
    later = place_fleet(fleet_of(many, pools=[pool], **grows), month=12).pools[0]
    # more than today needs, as half of the months need them; fewer than the last one does
    assert flat.reserved < growing.reserved < later.paid["all"]
    # they are paid from today on, used or not
    assert growing.usd_per_hour == pytest.approx(growing.reserved * 1.0)


def test_a_job_that_may_not_be_preempted_runs_in_all_of_its_hours():
    periods = [{"name": "day", "hours": 14}, {"name": "night", "hours": 10}]
    job = {"name": "batch", "model": "Qwen/Qwen3-8B", "workload": OFFLINE, "preemptible": False}
    chat = {**CHAT, "load": {"night": 0.2}}
    free = placed(chat, pools=[CLOUD], periods=periods, jobs=[{**job, "preemptible": True}])
    fixed = placed(chat, pools=[CLOUD], periods=periods, jobs=[job])
    [keeps] = fixed.jobs
    assert sum(part.most_replicas for part in keeps.placements) >= 1
    assert all(len({*part.replicas.values()}) == 1 for part in keeps.placements)
    assert free.usd_per_hour <= fixed.usd_per_hour


def test_a_cheaper_offer_or_one_more_machine_never_costs_more():
    rng = np.random.default_rng(3)
    for _ in range(6):
        rate = float(rng.uniform(5, 60))
        chat = {**CHAT, "workload": {**CHAT["workload"], "request_rate": rate}}
        pools = [H100, MI300X, CLOUD]
        base = placed(chat, SMALL, pools=pools)
        if not base.complete:
            continue
        k = int(rng.integers(0, 3))
        cheaper, more = copy.deepcopy(pools), copy.deepcopy(pools)
        cheaper[k]["usd_per_device_hour"] *= float(rng.uniform(0.3, 0.99))
        more[k]["nodes"] += 1
        for changed in (cheaper, more):
            after = placed(chat, SMALL, pools=changed)
            assert after.usd_per_hour <= base.usd_per_hour * (1 + 1e-5)


def test_changes_are_tried_and_told_as_differences():
    before = fleet_of(CHAT, SMALL, pools=[{**H100, "nodes": 2, "racks": 2}, MI300X, CLOUD])
    changes = FleetChanges.parse({"lose_racks": {"h100": 1}, "loads": {"small": 2}})
    changed = changes.apply(before)
    assert changed.pools[0].nodes == 1
    assert changed.models[1].peak == 24
    told = compare_answers(place_fleet(before), place_fleet(changed))
    assert told["usd_per_hour"] > 0
    assert any(row["before"] != row["after"] for row in told["replicas"])
    with pytest.raises(InputError, match="Did you mean 'h100'"):
        FleetChanges.parse({"lose_nodes": {"h10": 1}}).apply(before)


def test_all_limits_hold_together_less_likely_than_each_alone():
    columns = [
        make_columns(
            FleetRequest.parse({"models": [m], "pools": [H100]}).models[0], d, 4, 1, top_load=1000
        )
        for m, d in ((CHAT, "h100-sxm"), (SMALL, "h100-sxm"), (SMALL, "mi300x"))
    ]
    first, second, other = (
        next(column for column in found.columns if column.engine == "vllm") for found in columns
    )
    alike = [Stated(name, c, 1, c.capacity) for name, c in (("a", first), ("b", second))]
    apart = [Stated(name, c, 1, c.capacity) for name, c in (("a", first), ("b", other))]
    joint, single = joint_probabilities(alike)
    joint_apart, _ = joint_probabilities(apart)
    for value in single.values():
        assert value == pytest.approx(0.8, abs=0.03)
    # software in common: they hold together more often than by chance, less than one alone
    assert joint_apart + 0.02 < joint < min(single.values())
    assert joint_apart == pytest.approx(single["a"] * single["b"], abs=0.02)


def test_nodes_fail_and_are_reclaimed_with_all_that_stands_on_them():
    model = fleet_of(SMALL).models[0]
    column = make_columns(model, "h100-sxm", 4, 1, top_load=1000).columns[0]

    def joint(*placements, up=0.9):
        """The joint probability of owners, each with its replicas by node, and its load in them."""
        return joint_probabilities(
            [
                Stated(
                    name,
                    column,
                    sum(nodes.values()),
                    load * column.capacity,
                    up=up,
                    nodes=[NodeShare(node, "r0", n, n) for node, n in nodes.items()],
                )
                for name, nodes, load in placements
            ]
        )[0]

    sure = joint(("a", {"n0": 1}, 0.35), up=1.0)
    assert sure > 0.99
    assert joint(("a", {"n0": 1}, 0.35)) == pytest.approx(0.9, abs=0.01)
    # what stands on one node goes down together, what stands on two apart
    assert joint(("a", {"n0": 1}, 0.35), ("b", {"n0": 1}, 0.35)) == pytest.approx(0.9, abs=0.015)
    assert joint(("a", {"n0": 1}, 0.35), ("b", {"n1": 1}, 0.35)) == pytest.approx(0.81, abs=0.015)
    # one of three nodes may be lost where two carry the load, one of one may not
    assert joint(("a", {"n0": 2, "n1": 2, "n2": 2}, 2.4)) == pytest.approx(0.972, abs=0.01)
    assert joint(("a", {"n0": 6}, 2.4)) == pytest.approx(0.9, abs=0.015)
    spots = [{**CLOUD, "term": "spot", "reclaims": {"per_hour": rate}} for rate in (0, 1)]
    calm, restless = (placed(CHAT, pools=[pool]) for pool in spots)
    assert restless.probability < calm.probability - 0.05
    spare = placed(CHAT, pools=spots[1:], headroom={"failures": 1})
    assert spare.probability > restless.probability + 0.05
    assert any("one by one" in note for note in spare.notes)


def test_a_model_without_load_lowers_nothing():
    idle = {**CHAT, "name": "idle", "load": {"all-day": 0}}
    answer = placed(SMALL, idle, periods=[{"name": "all-day", "hours": 24}])
    assert (answer.models[1].probability, answer.models[1].placements) == (1.0, ())
    assert answer.probability == answer.models[0].probability > 0.5
    assert placed(idle, periods=[{"name": "all-day", "hours": 24}]).probability == 1.0


def test_what_single_estimates_do_not_count_is_said_once_with_its_models(monkeypatch):
    models = [
        {**SMALL, "name": name, "options": {"engines": ["vllm"], "engine_options": options}}
        for name, options in (
            ("a", {"enable_dbo": True}),
            ("b", {"enable_dbo": True, "attention_backend": "FLASHINFER"}),
        )
    ]
    notes = [note for note in placed(SMALL, *models).notes if "is not in the estimate" in note]
    assert [note.partition(" is ")[0] for note in notes] == [
        "a, b: --enable-dbo",
        "b: --attention-backend",
    ]
    monkeypatch.setattr(reading, "MOST_NOTES", 1)
    assert "1 more note." in placed(SMALL, *models).notes[-1]


@over(
    "change, field",
    [
        ({"models": [{**CHAT, "where": {"pools": ["h10"]}}]}, "models.0.where.pools"),
        ({"pools": [{**H100, "device": "h1000"}]}, "pools.0.device"),
        ({"pools": [{**H100, "slices": ["9g.1gb"]}]}, "pools.0.slices"),
        ({"periods": [{"name": "day", "hours": 10}]}, "periods"),
        ({"pools": [{**H100, "reserve": {"usd_per_device_hour": 1}}]}, "pools.0.reserve"),
        (
            {"models": [{**CHAT, "objective": {"limits": {"usd_per_hour": 3}}}]},
            "models.0.objective.limits.usd_per_hour",
        ),
        (
            {"pools": [{**CLOUD, "rented_by": "device", "reserve": {"usd_per_device_hour": 1.5}}]},
            "pools.0.rented_by",
        ),
        ({"models": [{**CHAT, "workload": OFFLINE}]}, "models.0.workload.mode"),
        ({"models": [CHAT, CHAT]}, "models"),
        (
            {
                "pools": [{**H100, "term": "reserved"}],
                "objective": {"usd_per_month": 1000},
            },
            "objective.usd_per_month",
        ),
        (
            {"models": [{**CHAT, "options": {"disaggregated": True}}]},
            "models.0.options.disaggregated",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_field(change, field):
    with pytest.raises(InputError) as error:
        fleet({"models": [CHAT], "pools": [H100], **change})
    assert (error.value.field or "").startswith(field)
    assert error.value.hint


def test_adapters_share_a_base_and_models_that_sleep_share_a_device():
    base = placed(SMALL, pools=[H100])
    many = placed({**SMALL, "adapters": {"count": 64, "rank": 64}}, pools=[H100])
    [part] = many.models[0].placements
    assert part.request["options"]["engine_options"]["enable_lora"] is True
    assert part.capacity_each < base.models[0].placements[0].capacity_each
    rare = [
        {
            **SMALL,
            "name": f"rare-{k}",
            "workload": {**SMALL["workload"], "request_rate": 0.02},
            "sleep": {"wakes_per_hour": 6, "longest_wake_s": 20},
        }
        for k in range(8)
    ]
    # contexts of eight engines, 2 GB each, are more than what one of them leaves free of 80 GB
    assert placed(*rare, pools=[H100]).pools[0].used["all"] > 1
    rare = rare[:3]
    asleep = placed(*rare, pools=[H100])
    assert asleep.pools[0].used["all"] == 1
    assert asleep.usd_per_hour == pytest.approx(1.2)
    assert all(part.shared for model in asleep.models for part in model.placements)
    # others may be awake when a request comes, which counts
    assert asleep.models[0].probability < 0.99
    awake = [{**model, "sleep": {"wakes_per_hour": 6, "longest_wake_s": 0.1}} for model in rare]
    assert placed(*awake, pools=[H100]).pools[0].used["all"] == 3
    safe = placed(*rare, pools=[{**H100, "nodes": 2}], headroom={"failures": 1})
    assert safe.pools[0].used["all"] == 6
    assert not any(part.shared for model in safe.models for part in model.placements)


def test_growth_of_the_load_takes_more_machines_month_by_month():
    grows = fleet_of(SMALL, pools=[{**H100, "nodes": 8}], growth={"per_month": 0.3, "months": 12})
    costs = [place_fleet(grows, month=month).usd_per_hour for month in (0, 6, 12)]
    assert costs[0] < costs[1] < costs[2]


def test_the_whole_holds_as_surely_as_is_asked():
    pools = [{**H100, "nodes": 4}, {**MI300X, "nodes": 4}]
    plain = placed(CHAT, SMALL, pools=pools)
    sure = placed(CHAT, SMALL, pools=pools, objective={"confidence": 0.97})
    assert plain.probability < 0.97 <= sure.probability
    assert sure.usd_per_hour > plain.usd_per_hour


def test_small_models_and_an_embedding_model_share_a_device_in_slices_that_its_vendor_allows():
    names = ("Qwen/Qwen3-1.7B", "meta-llama/Llama-3.2-3B-Instruct", "Qwen/Qwen3-8B")
    workload = {"mode": "open", "input_tokens": 256, "output_tokens": 64, "request_rate": 1.0}
    limits = {"limits": {"ttft_ms": 2000, "tpot_ms": 80}}
    models = [
        {"name": f"m{k}", "model": name, "workload": workload, "objective": limits}
        for k, name in enumerate(names)
    ]
    embed = {"task": "embed", "mode": "open", "input_tokens": 512, "request_rate": 5}
    beside = {"limits": {"request_latency_ms": 300}}
    models.append({"name": "embed", "model": "BAAI/bge-m3", "workload": embed, "objective": beside})
    for pool in ({**H100, "slices": ["any"], "sharing": ["mps"]}, {**MI300X, "slices": ["any"]}):
        answer = placed(*models, pools=[pool])
        [use] = answer.pools
        assert use.used["all"] == 1
        [cut] = use.cuts
        assert is_allowed(pool["device"], cut.counts)
        parts = [part for model in answer.models for part in model.placements]
        assert len(parts) == 4
        for part in parts:
            assert part.slice in cut.counts
            assert public.check(dict(part.request))["ok"]
        assert sum(charge.usd_per_hour for charge in answer.charges) == pytest.approx(
            pool["usd_per_device_hour"]
        )
        assert any("MPS" in note for note in answer.notes) == ("sharing" in pool)
        assert any("is a slice of" in note and "m1" in note for note in answer.notes)
    alone = placed(*models, pools=[H100])
    assert alone.pools[0].used["all"] == 4
    with pytest.raises(InputError, match="modes that devices of one machine"):
        placed(*models, pools=[{**MI300X, "slices": ["cpx-nps1", "cpx-nps4"]}])
    with pytest.raises(InputError, match="cpx-nps2, dpx-nps2 need modes"):  # memory of one mode
        placed(*models, pools=[{**MI300X, "device": "mi355x", "slices": ["cpx-nps2", "dpx-nps2"]}])


def test_each_objective_is_best_by_its_own_measure_and_power_is_bounded():
    clean = [{"name": "north", "g_co2_per_kwh": 20}, {"name": "south", "g_co2_per_kwh": 700}]
    pools = [
        {**H100, "nodes": 2, "region": "south", "usd_per_device_hour": 1.0},
        {**MI300X, "nodes": 3, "region": "north", "usd_per_device_hour": 1.5},
        {**CLOUD, "device": "b200-sxm", "nodes": 1, "region": "south", "usd_per_device_hour": 6.0},
    ]

    def measures(goal):
        answer = placed(CHAT, SMALL, pools=pools, regions=clean, objective={"optimize": goal})
        used = {pool.name: pool.used["all"] for pool in answer.pools}
        share = max(used[pool.name] / pool.devices for pool in answer.pools)
        return {
            "money": answer.usd_per_hour,
            "power": answer.watts,
            "co2": answer.kg_co2_per_hour,
            "devices": sum(used.values()),
            "spread": share,
        }

    found = {goal: measures(goal) for goal in ("money", "power", "co2", "devices", "spread")}
    for goal, values in found.items():
        for beside in found.values():
            assert values[goal] <= beside[goal] * (1 + 1e-4) + 1e-9, goal
    assert len({round(values["money"], 3) for values in found.values()}) > 2
    capped = placed(CHAT, SMALL, pools=[{**H100, "nodes": 4, "power_kw": 3}, CLOUD])
    assert capped.pools[0].watts <= 3000
    assert capped.pools[1].used["all"] > 0


def test_a_search_that_time_ends_claims_no_conflict(monkeypatch):
    from recipe_core.fleets import program

    monkeypatch.setattr(program, "run_solver", lambda *_: None)
    monkeypatch.setattr(program, "proves_infeasible", lambda *_: False)
    answer = placed(CHAT)
    assert answer.status == "partial"
    assert answer.models[0].unmet == 1
    assert answer.conflict.members == ()
    assert "Time ended the search" in answer.conflict.text


def test_replicas_of_a_full_pool_stand_on_nodes_as_their_headroom_needs():
    rng = np.random.default_rng(11)
    for _ in range(4):
        models = [
            {
                **SMALL,
                "name": f"m{k}",
                "workload": {**SMALL["workload"], "request_rate": float(rng.uniform(2, 60))},
            }
            for k in range(8)
        ]
        answer = placed(
            *models, pools=[{**H100, "nodes": 6}], headroom={"failures": 1, "domain": "node"}
        )
        assert not any("spread them by hand" in note for note in answer.notes)
        assert answer.pools[0].used["all"] > 12
        for model in answer.models:
            by_node = Counter()
            for part in model.placements:
                assert sum(share.replicas for share in part.nodes) == part.most_replicas
                for share in part.nodes:
                    by_node[share.node] += share.replicas * part.capacity_each
            remaining = sum(by_node.values()) - max(by_node.values())
            assert remaining >= model.served["all"] * (1 - 1e-6)
        for node in {share.node for part in parts_of(answer) for share in part.nodes}:
            shares = [s for part in parts_of(answer) for s in part.nodes if s.node == node]
            assert sum(share.devices for share in shares) <= 4


def test_slices_of_one_device_are_no_spares_for_each_other():
    load = {**SMALL, "workload": {**SMALL["workload"], "request_rate": 0.5}}
    pool = {**MI300X, "nodes": 4, "per_node": 1, "racks": 2, "slices": ["cpx-nps4"]}
    for failures, domain, devices in ((1, "node", 2), (2, "node", 3), (1, "rack", 2)):
        headroom = {"failures": failures, "domain": domain}
        answer = placed(load, pools=[pool], headroom=headroom)
        [part] = answer.models[0].placements
        assert (answer.complete, answer.pools[0].used["all"]) == (True, devices)
        assert len({share.node for share in part.nodes}) == devices
        assert not any("spread them by hand" in note for note in answer.notes)
    without = placed(load, pools=[pool], headroom={"failures": 2, "domain": "rack"})
    assert (without.status, without.models[0].unmet) == ("partial", 1)
    assert without.conflict.members == ("models.0", "models.0.headroom")


def test_what_is_served_in_part_survives_what_it_has_headroom_for():
    load = {**SMALL, "workload": {**SMALL["workload"], "request_rate": 200}}
    pool = {**H100, "nodes": 3, "per_node": 1}
    [model] = placed(load, pools=[pool], headroom={"failures": 1}).models
    [part] = model.placements
    assert part.replicas["all"] == 3
    assert model.served["all"] == pytest.approx(2 * part.capacity_each, rel=1e-4)


def test_a_lost_rack_that_takes_too_much_is_said(monkeypatch):
    load = {**SMALL, "workload": {**SMALL["workload"], "request_rate": 30}}
    fleet = {"pools": [{**H100, "nodes": 4, "racks": 2}], "headroom": {"domain": "rack"}}
    assert not any("by hand" in note for note in placed(load, **fleet).notes)
    inner = reading.fill_nodes

    def crowd(*args):
        shares, cuts = inner(*args)
        crowded = {
            k: [replace(share, rack="h100-r0") for share in listed] for k, listed in shares.items()
        }
        return crowded, cuts

    monkeypatch.setattr(reading, "fill_nodes", crowd)
    assert any("with any rack down" in note for note in placed(load, **fleet).notes)


def test_layouts_of_jobs_that_cannot_run_are_none():
    trains = {"kind": "training", "sequence_length": 2048, "global_batch": 64, "tokens": 1e7}
    job = {"name": "tune", "model": "Qwen/Qwen3-8B", "workload": trains}
    little = {**H100, "name": "little", "device": "l40s", "per_node": 2}
    answer = placed(SMALL, pools=[H100, little], jobs=[{**job, "where": {"pools": ["h100"]}}])
    json.dumps(answer.to_json(), allow_nan=False)
    problem = pose_fleet(fleet_of(SMALL, pools=[little], jobs=[job]))
    assert all(np.isfinite(option.watts) for option in problem.instance.options)
    assert not any(option.job for option in problem.instance.options)
    assert problem.reasons["tune"]["little"]


def test_users_of_a_replica_are_whole():
    few = {"mode": "closed", "input_tokens": 512, "output_tokens": 128, "concurrency": 3}
    answer = placed(
        {**SMALL, "workload": few, "load": {"night": 0.1}, "headroom": {"failures": 1}},
        pools=[{**H100, "nodes": 2}],
        periods=[{"name": "night", "hours": 24}],
    )
    [part] = answer.models[0].placements
    assert part.load_each["night"] == pytest.approx(0.15)
    assert public.check(dict(part.request))["ok"]
    assert part.request["workload"]["concurrency"] == 1


def test_a_pool_whose_devices_are_all_cut_says_why_nothing_runs_there():
    answer = placed(CHAT, pools=[{**MI300X, "slices": ["cpx-nps4"]}])
    assert "mi300x" in answer.conflict.text
    assert answer.models[0].reason


def test_devices_are_cut_where_they_leave_whole_nodes_to_what_needs_them():
    wide, tiny = {**CHAT, "candidate": {"tp": 4}}, {**SMALL, "model": "Qwen/Qwen3-1.7B"}
    problem = pose_fleet(fleet_of(wide, tiny, pools=[{**H100, "nodes": 2, "slices": ["1g.10gb"]}]))
    slices = [option.slice for option in problem.instance.options]
    replicas = np.zeros((len(slices), 1), dtype=int)
    replicas[0], replicas[slices.index("1g.10gb")] = 1, 14
    solution = solve_fleet(problem.instance)
    nodes, cuts = fill_nodes(
        problem, replace(solution, replicas=replicas, cuts=(np.array([2]),)), 1
    )
    [whole], [cut] = nodes.values()
    assert (whole.replicas, whole.devices, cut.replicas) == (1, 4, 14)
    assert whole.node != cut.node
    assert cuts == {(0, 0): {cut.node: 2}}


def parts_of(answer):
    return [part for model in answer.models for part in model.placements]
