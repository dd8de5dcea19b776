"""Replicas that are up, spares and spot capacity, against every outcome counted one by one."""

import itertools
import json
import math
import operator
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe_core.base import numbers
from recipe_core.base.numbers import bounded_float, bounded_integer
from recipe_core.hardware import failures as shipped
from recipe_core.hardware.failures import FailureFile, failure_file, node_failures, repair_hours
from recipe_core.hardware.failures import spot_market as market
from recipe_core.hardware.prices import all_offers
from recipe_core.sizing import spares
from recipe_core.sizing.spares import (
    Domains,
    chance_up_at_least,
    find_spares,
    price_spot,
    up_distribution,
)
from tests.fixtures.paths import ROOT
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import table

SHARES = st.floats(0, 1)
HOURS = st.floats(0.01, 1e5)
PACKED = st.builds(Domains, st.integers(1, 9), replicas_per_node=st.integers(1, 4))
SPANNING = st.builds(Domains, st.integers(1, 4), nodes_per_replica=st.integers(1, 3))


def by_outcome(domains, share):
    """The distribution, from every combination of nodes that are up or down."""
    out = np.zeros(domains.replicas + 1)
    for nodes in itertools.product([True, False], repeat=domains.nodes):
        up = 0
        for replica in range(domains.replicas):
            first = replica // domains.replicas_per_node * domains.nodes_per_replica
            up += all(nodes[first : first + domains.nodes_per_replica])
        out[up] += math.prod(share if up else 1 - share for up in nodes)
    return out


@given(PACKED | SPANNING, SHARES)
def test_the_distribution_is_that_of_every_outcome(domains, share):
    found = up_distribution(domains, share)
    assert found == pytest.approx(by_outcome(domains, share), abs=1e-12)
    mean = (found * np.arange(domains.replicas + 1)).sum() / domains.replicas
    assert mean == pytest.approx(spares.expected_share(domains, share), abs=1e-12)


def test_availability_packing_and_spares_by_hand():
    assert spares.node_availability(99, 1) == 0.99
    assert spares.node_availability(5, 0) == 1
    for devices, packed in (
        (4, Domains(5, replicas_per_node=2)),
        (3, Domains(5, replicas_per_node=2)),
        (8, Domains(5)),
        (16, Domains(5, nodes_per_replica=2)),
        (12, Domains(5, nodes_per_replica=2)),
    ):
        assert Domains.of(5, devices, 8) == packed
    assert Domains.of(5, 1, 1) == Domains(5)
    assert [Domains(n, replicas_per_node=2).nodes for n in (1, 2, 3)] == [1, 1, 2]
    assert Domains(3, nodes_per_replica=2).nodes == 6
    found = find_spares(Domains(4), 0.99, 0.999)
    # P(at least 4 of 5) = 0.99^5 + 5 · 0.01 · 0.99^4 = 0.99902
    assert (found.spares, found.nodes) == (1, 5)
    assert found.up_probability == pytest.approx(0.99**5 + 0.05 * 0.99**4)
    assert found.up_probability_without == pytest.approx(0.99**4)
    # The second replica of a node that holds two is no spare: it fails with the first.
    assert find_spares(Domains(1, replicas_per_node=2), 0.99, 0.999).spares == 2
    # many are counted without overflow, and a target out of reach is named
    assert 10 < find_spares(Domains(5000, replicas_per_node=2), 0.998, 0.9999).spares < 50
    assert up_distribution(Domains(100_000), 0.5).sum() == pytest.approx(1)
    for share in (0.0, 1e-9):
        error = refusal(find_spares, Domains(10), share, 0.9)
        assert (error.field, "0.9" in error.message, bool(error.hint)) == ("target", True, True)


@given(HOURS, HOURS, HOURS)
def test_availability_rises_with_time_between_failures_and_falls_with_repair(mtbf, repair, more):
    share = spares.node_availability(mtbf, repair)
    assert 0 < share < 1
    assert spares.node_availability(mtbf + more, repair) >= share
    assert spares.node_availability(mtbf, repair + more) <= share


@given(PACKED | SPANNING, SHARES, SHARES, st.integers(0, 12))
def test_more_replicas_and_better_nodes_keep_more_up(domains, one, other, k):
    worse, better = sorted((one, other))
    chance = chance_up_at_least(domains, worse, k)
    assert 0 <= chance <= 1
    assert chance_up_at_least(domains, better, k) >= chance - 1e-12
    assert chance_up_at_least(domains.resized(domains.replicas + 1), worse, k) >= chance - 1e-12
    assert chance_up_at_least(domains, worse, k + 1) <= chance + 1e-12
    assert chance_up_at_least(domains, worse, 0) == pytest.approx(1)
    assert chance_up_at_least(domains, worse, domains.replicas + 1) == 0


@given(PACKED | SPANNING, st.floats(0.5, 1), st.floats(0.01, 0.9999))
def test_spares_are_the_fewest(domains, share, target):
    found = find_spares(domains, share, target)
    wanted = domains.replicas
    larger = (domains.resized(wanted + k) for k in itertools.count())
    chances = (chance_up_at_least(group, share, wanted) for group in larger)
    assert found.spares == next(k for k, chance in enumerate(chances) if chance >= target - 1e-12)
    assert found.replicas == domains.replicas + found.spares
    assert found.nodes == domains.resized(found.replicas).nodes >= found.nodes_needed
    assert found.up_probability >= max(target, found.up_probability_without) - 1e-12
    assert found.hours_short_per_month == pytest.approx(730 * (1 - found.up_probability))
    assert find_spares(domains, share, 1 - (1 - target) / 2).spares >= found.spares


def test_numbers_of_every_kind_are_taken_and_what_makes_no_sense_is_refused_by_name():
    assert [bounded_float("x", np.float64(2)), bounded_integer("n", np.int64(3))] == [2.0, 3]
    assert isinstance(bounded_float("x", 2), float)
    infinite = ["bounded_float", math.inf, {}, "must be a number"]
    for name, value, limits, said in [infinite, *table("availability", "numbers")]:
        assert said in str(refusal(getattr(numbers, name), "x", value, **limits))
    for name, args, options, field in table("availability", "refused"):
        call = operator.attrgetter(name)(sys.modules[__name__])
        error = refusal(call, *args, **options)
        assert (error.field, bool(error.hint)) == (field, True), (name, args)


def test_spot_by_hand():
    found = price_spot(0.5, 720, usd_per_hour=2.0, devices=10)
    assert found.useful_share == pytest.approx(math.exp(-0.1))
    assert found.lost_share == pytest.approx(1 - math.exp(-0.1))
    assert found.usd_per_useful_hour == pytest.approx(2 / math.exp(-0.1))
    assert found.extra_devices == 2  # 10 / 0.905 = 11.05
    assert price_spot(0.5, 720, devices=10, devices_per_instance=8).extra_devices == 6
    assert price_spot(0.5, 720, devices=10, held_share=0.5).extra_devices == 13
    assert price_spot(0.5, 720, instances_per_replica=3).useful_share == pytest.approx(
        math.exp(-0.3)
    )
    free = price_spot(0, 720, devices=10)
    assert (free.extra_devices, free.lost_share, free.usd_per_useful_hour) == (0, 0, None)
    # the useful share is that of drawn lives
    lives = np.random.default_rng(1).exponential(1 / 0.5, 200_000)
    useful = np.maximum(lives - 0.2, 0).sum() / lives.sum()
    assert price_spot(0.5, 720).useful_share == pytest.approx(useful, rel=0.005)


@given(
    rate=st.floats(0, 2),
    restart=st.floats(0, 3600),
    devices=st.integers(1, 1000),
    size=st.sampled_from([1, 4, 8]),
    held=st.floats(0.1, 1),
)
def test_extra_devices_hold_the_goodput_and_no_instance_is_idle(rate, restart, devices, size, held):
    found = price_spot(rate, restart, devices=devices, devices_per_instance=size, held_share=held)
    share = 1 - found.lost_share
    asked = devices + found.extra_devices
    assert asked % size == 0
    assert asked * share >= devices * (1 - 1e-6)
    assert (asked - size) * share < devices
    assert price_spot(rate + 0.1, restart).useful_share <= found.useful_share
    assert price_spot(rate, restart + 1).useful_share <= found.useful_share


def test_rates_are_those_of_fleets_and_traces_and_documented():
    llama = next(fleet for fleet in failure_file().fleets if "Llama 3" in fleet.fleet)
    rate = llama.failures_per_1000_node_days.value
    assert rate == pytest.approx(419 / (2048 * 54) * 1e3, rel=1e-3)
    h100 = node_failures("sm_90")
    assert h100.mtbf_hours == pytest.approx(24_000 / 3.79)
    assert "Imbue" in h100.basis
    assert (h100.low_hours, h100.high_hours) == pytest.approx((24_000 / 6.5, 24_000 / 2.3))
    other = node_failures("gfx942")
    assert other == node_failures()
    assert (other.mtbf_hours, other.basis) == (pytest.approx(24_000 / 4.29), "median of 7 fleets")
    assert node_failures("sm_90", 4).mtbf_hours == pytest.approx(h100.mtbf_hours / (1 - 0.587 / 2))
    # own nodes are mended and rented ones replaced
    assert repair_hours() == pytest.approx(0.37 * 24 + 0.63 * 68 / 60, rel=1e-3)
    assert repair_hours("rented") == pytest.approx(5 / 60, rel=1e-3)
    assert market("sm_80").reclaims_per_hour == pytest.approx(76 / 341)
    assert market("sm_70").reclaims_per_hour == pytest.approx(802 / 3498)
    anything = market()
    assert anything == market("sm_90")
    assert anything.reclaims_per_hour == pytest.approx((802 + 76) / (3498 + 341))
    assert anything.low <= anything.reclaims_per_hour <= anything.high
    host = market("x86_64")
    assert host.reclaims_per_hour == pytest.approx(3 / 182)
    assert host.held > 0.98 > anything.held
    assert market(provider="Google Cloud") == market("sm_80")
    assert host.basis.startswith("Google Cloud CPU")
    file, document = failure_file(), shipped.FILE.read()
    for trace in file.spot:
        hours = trace.held * trace.instances * trace.days * 24
        assert trace.instance_hours == pytest.approx(hours, rel=0.05, abs=2)
    used = {trace.provider for trace in file.spot} | set(file.reclaim_notice_s)
    used |= {each.provider for each in file.agreements}
    assert used - {offer.provider for offer in all_offers()} == {"io.net"}
    cited = json.dumps(document)
    for name in document["sources"]:
        assert f'"source": "{name}"' in cited
    document["repair"]["repair_hours"]["value"] = -1
    error = refusal(shipped.FILE.validated, document, FailureFile)
    assert "failures.yaml: repair.repair_hours.value" in str(error)
    page = (ROOT / "docs" / "method" / "sizing.md").read_text(encoding="utf-8")
    text = " ".join(page.split())
    every, spots, hosts = node_failures(), market(), market("x86_64")
    for figure in (
        *(f"| {fleet.failures_per_1000_node_days.value:g} |" for fleet in failure_file().fleets),
        f"{every.mtbf_hours:,.0f} hours between failures",
        f"({every.low_hours:,.0f} to {every.high_hours:,.0f})",
        f"{repair_hours():.1f} h`",
        f"{spots.reclaims_per_hour:.3f} an hour (from {spots.low:.2f} to {spots.high:g} by zone)",
        f"{market('sm_80').reclaims_per_hour:.3f} on A100",
        f"{hosts.reclaims_per_hour:.3f} for machines without GPUs",
        f"held {spots.held * 100:.0f} % of",
        f"({hosts.held * 100:.0f} % without GPUs)",
    ):
        assert figure in text, figure
