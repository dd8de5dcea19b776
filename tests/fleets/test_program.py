"""The program of a fleet beside an enumeration of every small fleet, and its promises."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from recipe_core.base.budget import Budget, Cancelled, apply_budget
from recipe_core.fleets.instance import (
    Demand,
    Instance,
    Option,
    Supply,
    Work,
)
from recipe_core.fleets.program import solve_fleet

PAID = ("used", "fixed", "nodes", "devices")
CUTS = ({"1g": 7}, {"3g": 2}, {"3g": 1, "1g": 4})


def random_instance(rng):
    """A fleet of one or two models on one or two pools, small enough to enumerate."""
    supplies = []
    for _ in range(rng.integers(1, 3)):
        cut = rng.random() < 0.3
        supplies.append(
            Supply(
                nodes=int(rng.integers(1, 4)),
                per_node=int(rng.choice([1, 2] if cut else [2, 4])),
                usd=float(rng.integers(1, 9)),
                paid=str(rng.choice(PAID)),
                racks=int(rng.integers(1, 3)),
                most_watts=float(rng.integers(3, 12)) if rng.random() < 0.2 else None,
                cuts=CUTS if cut else (),
            )
        )
    demands, options = [], []
    for m in range(rng.integers(1, 3)):
        domain = str(rng.choice(["node", "rack", "pool"]))
        load = np.array([[float(rng.integers(1, 9))]])
        demands.append(Demand(load, failures=int(rng.random() < 0.4), domain=domain))
        for p, supply in enumerate(supplies):
            name = str(rng.choice(["1g", "3g"])) if supply.cuts and rng.random() < 0.7 else None
            devices = 1 / 7 if name else int(rng.choice([1, 2]))
            devices = devices if name else min(devices, supply.per_node)
            capacity, watts = float(rng.integers(1, 5)), float(rng.integers(1, 4))
            options.append(Option(m, p, devices, (capacity,), watts, slice=name))
    return Instance(tuple(demands), tuple(options), tuple(supplies))


def enumerated(instance):
    """The least cost of an hour over every number of replicas, cuts and machines; None if none."""
    supplies, options = instance.supplies, instance.options
    ranges = []
    for option in options:
        supply = supplies[option.pool]
        inside = max((cut.get(option.slice, 0) for cut in supply.cuts), default=0)
        devices = supply.nodes * supply.per_node
        most = devices * inside if option.slice else devices // option.devices
        need = instance.demands[option.owner].loads.sum() / option.capacities[0]
        # beside what the load needs, as many again as a failure may take
        ranges.append(range(min(int(most), int(np.ceil(need)) * 2 + 1) + 1))
    best = None
    for counts in itertools.product(*ranges):
        pools = [pool_states(instance, p, counts) for p in range(len(supplies))]
        if not all(pools):
            continue
        for states in itertools.product(*pools):
            usd = sum(cost for cost, _ in states)
            if (best is None or usd < best) and survives(instance, counts, states):
                best = usd
    return best


def pool_states(instance, p, counts):
    """Each cost of a pool that holds some replicas, with the machines and cuts of these."""
    supply = instance.supplies[p]
    mine = [(o, n) for o, n in zip(instance.options, counts, strict=True) if o.pool == p]
    if supply.most_watts is not None and sum(o.watts * n for o, n in mine) > supply.most_watts:
        return []
    whole = sum(o.devices * n for o, n in mine if o.slice is None)
    wanted = {}
    for option, n in mine:
        if option.slice:
            wanted[option.slice] = wanted.get(option.slice, 0) + n
    devices, out = supply.nodes * supply.per_node, {}
    cut = [range(devices + 1)] * len(supply.cuts) if any(wanted.values()) else [range(1)] * 3
    for numbers in itertools.product(*cut) if supply.cuts else [()]:
        if any(
            sum(k * c.get(name, 0) for k, c in zip(numbers, supply.cuts, strict=True)) < n
            for name, n in wanted.items()
        ):
            continue
        taken = whole + sum(numbers)
        if taken > devices:
            continue
        if supply.paid == "nodes":
            for machines in range(int(-(-taken // supply.per_node)), supply.nodes + 1):
                out[machines, numbers] = machines * supply.per_node * supply.usd
        else:
            paid = devices if supply.paid == "fixed" else taken
            out[supply.nodes, numbers] = paid * supply.usd
    return [(usd, (machines, dict(enumerate(numbers)))) for (machines, numbers), usd in out.items()]


def survives(instance, counts, states):
    for m, demand in enumerate(instance.demands):
        mine = [(o, n) for o, n in zip(instance.options, counts, strict=True) if o.owner == m and n]
        capacity = sum(o.capacities[0] * n for o, n in mine)
        lost = 0.0
        if demand.failures:
            losses = {}
            for option, n in mine:
                supply = instance.supplies[option.pool]
                machines, cut = states[option.pool][1]
                if option.slice:  # those of one device are on one machine
                    holders = (n for k, n in cut.items() if option.slice in supply.cuts[k])
                    machines = min(machines, sum(holders))
                domains = {"node": machines, "rack": supply.racks, "pool": 1}[demand.domain]
                if demand.domain == "rack":
                    racks = supply.racks if supply.racks < supply.nodes else supply.nodes
                    domains = min(racks, machines)
                if demand.domain == "node" and option.slice is None:
                    inside = supply.per_node // option.devices
                    assert domains
                    assert -(-n // domains) <= inside
                lost_here = option.capacities[0] * -(-n // domains)
                losses[option.pool] = losses.get(option.pool, 0.0) + lost_here
            lost = max(losses.values(), default=0.0)
        if capacity - lost < demand.loads.sum() - 1e-9:
            return False
    return True


@pytest.mark.parametrize("seed", range(16))
def test_small_fleets_equal_an_enumeration(seed):
    rng = np.random.default_rng(seed)
    for _ in range(20):
        instance = random_instance(rng)
        best = enumerated(instance)
        solution = solve_fleet(instance, gap=0.0)
        if best is None:
            assert solution.unmet.max() > 0, instance
        else:
            assert solution.unmet.max() == 0, instance
            assert solution.usd_per_hour == pytest.approx(best, abs=1e-4), instance


def test_each_part_of_the_months_ahead_keeps_to_the_budget_and_runs_its_jobs():
    serve, work = Option(0, 0, 1, (1.0,)), Option(0, 0, 1, (0.25,), job=True)
    instance = Instance(
        (Demand(np.array([[3.0, 1.0]])),),
        (serve, work),
        (Supply(nodes=8, per_node=1, usd=1.0),),
        works=(Work(6.0, np.ones(2, dtype=bool)),),
        hours=(12.0, 12.0),
        most_usd=3.0,
        parts=2,
    )
    solution = solve_fleet(instance, gap=0.0)
    # on average four devices would do for the first part, which has the budget for three
    assert solution.replicas.tolist() == [[3, 1], [0, 0]]
    assert (solution.unmet.max(), solution.undone.tolist()) == (0, [1])
    enough = solve_fleet(replace(instance, most_usd=4.0), gap=0.0)
    assert (enough.unmet.max(), enough.undone.max()) == (0, 0)
    assert enough.replicas.tolist() == [[3, 1], [1, 1]]


def test_users_of_each_region_are_served_when_a_node_is_lost():
    anywhere, near_one = Option(0, 0, 1, (2.0, 2.0)), Option(0, 1, 1, (2.0, 0.0))
    supplies = Supply(nodes=3, per_node=1, usd=5.0), Supply(nodes=4, per_node=1, usd=1.0)
    demand = Demand(np.array([[1.0], [1.0]]), failures=1)
    solution = solve_fleet(Instance((demand,), (anywhere, near_one), supplies), gap=0.0)
    assert solution.replicas.tolist() == [[2], [0]]  # the cheap one is no spare for the others
    few = Instance((demand,), (anywhere, near_one), (replace(supplies[0], nodes=1), supplies[1]))
    assert solve_fleet(few, gap=0.0).unmet.max() == 1


def large_instance(rng, models=40, pools=12):
    """A fleet that takes a search: headroom over nodes, whole machines that are rented."""
    supplies = tuple(
        Supply(nodes=6, per_node=8, usd=float(rng.uniform(1, 5)), paid=str(rng.choice(PAID)))
        for _ in range(pools)
    )
    demands = tuple(
        Demand(np.array([[float(rng.uniform(1, 20))]]), failures=1) for _ in range(models)
    )
    options = tuple(
        Option(m, p, devices, (devices * float(rng.uniform(0.5, 3)),), watts=1.0)
        for m in range(models)
        for p in range(pools)
        for devices in (1, 2)
    )
    return Instance(demands, options, supplies)


def test_a_search_says_how_far_it_is_and_ends_when_nobody_waits():
    instance = large_instance(np.random.default_rng(5))
    told = []
    solution = solve_fleet(
        instance, gap=0.05, seconds=30.0, watch=lambda *figures: told.append(figures)
    )
    assert solution.gap <= 0.05
    assert solution.bound <= solution.objective * (1 + 1e-9)
    assert told
    objectives = [objective for objective, _, _ in told]
    assert objectives == sorted(objectives, reverse=True)
    with apply_budget(Budget(), abandoned=lambda: True), pytest.raises(Cancelled):
        solve_fleet(instance, gap=0.0, seconds=30.0)
