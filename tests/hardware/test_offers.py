"""Offers: their fields, the shipped tables, an operator's own, the default choice, the search."""

from __future__ import annotations

import datetime

import pytest

from recipe_core.hardware import offers, prices
from recipe_core.hardware.cluster import cluster, device, device_names
from recipe_core.hardware.offer_search import offered_devices, select_offers
from recipe_core.hardware.offer_tables import (
    COLUMNS,
    OWN,
    offer_sources,
    parse_table,
    shipped_offers,
    to_table,
)
from recipe_core.hardware.offers import Offer, last_day
from recipe_core.hardware.request import HardwareRequest
from recipe_core.request.edit import change, select_split
from recipe_core.request.link import DEFAULT
from recipe_core.search.plans import plan
from recipe_core.search.problem import resolve
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table

DAY = datetime.date(2026, 11, 23)


def offer(**fields) -> Offer:
    """An offer with a few fields of its own."""
    usual = {"provider": "Somebody", "name": "somebody-h100", "device": "h100-sxm"}
    terms = {"commitment": "on-demand", "date": "2026-11-01", "source": "test"}
    return Offer.model_validate(usual | terms | {"usd_per_device_hour": 2.0} | fields)


@pytest.fixture
def own_table(tmp_path, monkeypatch):
    """A function that writes an operator's own table and names it in the environment."""

    def write(*lines: str):
        path = tmp_path / "mine.csv"
        path.write_text("\n".join([*lines, ""]))
        monkeypatch.setenv(OWN, str(path))
        return path

    return write


def test_a_date_counts_as_its_last_day():
    for text, day in (
        ("2026-10-03", (2026, 10, 3)),
        ("2025-06", (2025, 6, 30)),
        ("2024-02", (2024, 2, 29)),
        ("2025", (2025, 12, 31)),
        ("2026-09 or before", (2026, 9, 30)),
    ):
        assert last_day(text) == datetime.date(*day)
    no_dates = ("", "2026-13", "2026-02-30", "06-2026", "2026-1-1", "or before", "2026-٠٩", "1999")
    for text in no_dates:
        with pytest.raises(ValueError, match=r"date|month|day"):
            last_day(text)


def test_marks_say_what_is_unverified_and_how_old_it_is(monkeypatch):
    assert offer().marks(DAY) == ()
    assert offer(date="2026-08-25").marks(DAY) == ()  # 90 days
    assert offer(date="2026-08-24").marks(DAY) == ("91 days old",)
    both = offer(date="2026-06 or before", status="unverified")
    assert both.marks(DAY) == ("unverified", "146 days old")
    assert (both.age_days(DAY), both.is_stale(DAY)) == (146, True)
    assert offer(date="2026").age_days(DAY) == 0
    monkeypatch.setattr(offers, "current_day", lambda: datetime.date(2027, 11, 1))
    assert offer().marks() == ("365 days old",)
    text = offer(date="2024-01", status="unverified", note="rounded").basis
    assert text == "somebody-h100, on-demand, 2024-01: unverified; rounded"


@over(
    "fields, says",
    [
        ({"commitment": "spot", "term_months": 12}, "only a reserved offer"),
        ({"devices_per_node": 8, "most_per_node": 4}, "less than devices_per_node"),
        ({"note": "<script>"}, "pattern"),
        ({"price": 2}, "Extra"),
        ({"usd_per_device_hour": 0}, "greater than 0"),
    ],
)
def test_an_offer_that_makes_no_sense_is_refused(fields, says):
    with pytest.raises(ValueError, match=says):
        offer(**fields)


def test_every_shipped_offer_has_a_source_a_place_and_a_size():
    shipped = shipped_offers()
    names = {each.name for each in shipped}
    assert len(names) == len(shipped) > 1000
    assert {each.source for each in shipped} == set(offer_sources())
    assert {each.device for each in shipped} <= set(device_names())
    assert {each.status for each in shipped} == {"published", "unverified"}
    assert all(last_day(each.date) <= DAY for each in shipped if each.date != "2026")
    assert parse_table(to_table(shipped), "again") == shipped
    assert tuple(Offer.model_fields) == COLUMNS
    # names that links and recipes have stay
    assert {"aws-h100-sxm", "hyperstack-h100-sxm-reserved", "gcp-h100-sxm-spot"} <= names
    assert {"lambda-h100-sxm", "tensorwave-mi300x", "openrelay-rtx-3090"} <= names
    for each in shipped:  # machines of several sizes are no named instances
        if each.most_per_node is not None:
            assert (each.devices_per_node, each.region) == (1, None), each.name
            assert each.most_per_node <= 8


def choice(per_node: int, *known: Offer, commitment: str | None = None) -> str | None:
    request = HardwareRequest(device="h100-sxm", per_node=per_node, commitment=commitment)
    found = prices.default_offer(request, list(known))
    return found.name if found else None


def test_the_cheapest_machine_that_holds_a_node_is_taken():
    small = offer(name="small", usd_per_device_hour=1.0)
    large = offer(name="large", usd_per_device_hour=2.0, devices_per_node=8)
    any_size = offer(name="any-size", usd_per_device_hour=1.5, most_per_node=8)
    unsure = offer(name="unsure", usd_per_device_hour=0.1, devices_per_node=8, status="unverified")
    assert choice(1, small, large, any_size, unsure) == "small"
    assert choice(8, small, large, any_size, unsure) == "any-size"
    assert choice(8, small, large, unsure) == "large"
    assert choice(8, small, unsure) == "small"
    assert choice(8, unsure) == "unsure"
    assert choice(8, small, large, commitment="spot") is None
    # AWS costs more per device in larger machines
    known = select_offers("l40s", "aws", "us-east-1", "on-demand")
    small, large = (
        min(each.usd_per_device_hour for each in known if each.devices_per_node == size)
        for size in (1, 8)
    )
    assert large > 2 * small


def test_a_fallback_and_a_share_of_a_machine_are_said(monkeypatch):
    node = cluster(HardwareRequest(device="l40s", per_node=8, offer="aws-l40s"))
    assert "machine with 1 device, not 8" in node.price_note
    share = cluster(HardwareRequest(device="mi300x", per_node=1, offer="tensorwave-mi300x"))
    assert "machine with 8 devices, $12.0 per hour" in share.price_note
    unsure = cluster(HardwareRequest(device="mi355x", offer="tensorwave-mi355x"))
    assert "unverified" in unsure.price_note
    basis = "tensorwave-mi355x, on-demand, 2026: unverified; no document found"
    assert unsure.price_basis == basis
    # the price in words has its age, the note has none
    monkeypatch.setattr(offers, "current_day", lambda: datetime.date(2026, 12, 25))
    aged = cluster(HardwareRequest(device="mi300x", offer="tensorwave-mi300x"))
    assert aged.price_text() == (
        "$1.50 per device-hour, 221 days old "
        "(tensorwave-mi300x, on-demand, 2026-05-18: second-hand, from a research note)"
    )
    assert "days old" not in f"{aged.price_basis}{aged.price_note}"


def mixed(first, *others):
    """The default request with fields of its hardware, and clusters beside it."""
    return change(DEFAULT, {**first, "options.hardware": others})


MI300X = HardwareRequest(device="mi300x")
MI355X = HardwareRequest(device="mi355x")
SPOT = {"hardware.commitment": "spot"}


def test_a_cluster_beside_the_first_is_priced_under_its_commitment():
    """A spot price beside an on-demand one would compare what is not alike."""
    on_demand = HardwareRequest(device="h200-sxm", commitment="on-demand")
    priced = HardwareRequest(device="b200-sxm", usd_per_device_hour=3.0)
    request = mixed(SPOT, MI300X, MI355X, on_demand, priced)
    first, spot, unknown, own, stated = resolve(request).clusters
    assert (first.commitment, spot.commitment, own.commitment) == ("spot", "spot", "on-demand")
    assert spot.offer.commitment == "spot"
    assert unknown.usd_per_device_hour is None
    assert "No offer for mi355x is spot" in unknown.price_note
    assert (stated.usd_per_device_hour, stated.commitment) == (3.0, None)
    # an unknown price of the first makes no other on demand
    unpriced = {"hardware": {"device": "mi355x", "commitment": "spot"}}
    first, other = resolve(mixed(unpriced, HardwareRequest(device="h100-sxm"))).clusters
    assert (first.usd_per_device_hour, first.price_text()[:8]) == (None, "unknown.")
    assert "reclaim" not in first.price_note
    assert other.commitment == "spot"


def test_a_term_goes_with_the_commitment():
    known = [each for each in prices.offers_of(device("a100-sxm-40gb")) if each.term_months == 36]
    reserved = next(each.name for each in known if each.status == "published")
    first = {"hardware": {"device": "a100-sxm-40gb", "offer": reserved}}
    others = (HardwareRequest(device="l4"), HardwareRequest(device="h200-sxm"))
    clusters = resolve(mixed(first, *others)).clusters
    assert [each.price.term_months for each in clusters[:2]] == [36, 36]
    assert clusters[1].asked.term_months == 36


def test_taking_a_split_of_another_cluster_keeps_the_commitments():
    """Also where only the other one commits to something."""

    def priced(request):
        return [(each.device.name, each.usd_per_device_hour) for each in resolve(request).clusters]

    back = HardwareRequest(device="mi300x", commitment="spot")
    for request in (mixed(SPOT, MI300X), mixed({}, back)):
        after = change(request, select_split(request, "vllm.bf16.bf16.tp8.pp1.dp1.ep1.on1"))
        assert priced(after) == priced(request)[::-1]
    # the request of a row has the price of the row
    table = plan(mixed(SPOT, MI300X, MI355X))
    rows = {table.setting(int(row)).cluster.device.name: int(row) for row in table.order}
    for row in rows.values():
        found, alone = table.setting(row).cluster, resolve(table.request_of(row)).cluster
        assert alone.usd_per_device_hour == found.usd_per_device_hour
        assert alone.price_note == found.price_note


HEAD = "provider,device,usd_per_device_hour,commitment,date,most_per_node"


def test_an_operators_prices_are_read_beside_the_shipped_ones(own_table, monkeypatch, tmp_path):
    path = own_table(
        HEAD, "Our cloud,h100-sxm,1.5,on-demand,2026-11-20,8", "", "Ours,mi300x,1.2,spot,2026-11,"
    )
    found = cluster(HardwareRequest(device="h100-sxm"))
    assert found.usd_per_device_hour == 1.5
    assert found.price_basis == "our-cloud-h100-sxm, on-demand, 2026-11-20: quoted"
    assert (found.offer.status, found.offer.source) == ("quoted", "mine.csv")
    assert len(prices.offers()) == len(shipped_offers()) + 2
    path.write_text(f"{HEAD}\nOur cloud,h100-sxm,1.4,on-demand,2026-11-21,8\n")
    assert cluster(HardwareRequest(device="h100-sxm")).usd_per_device_hour == 1.4
    # a missing table is an error without its folder
    monkeypatch.setenv(OWN, str(tmp_path / "none.csv"))
    assert "cannot read 'none.csv'" in str(refusal(cluster, HardwareRequest(device="h100-sxm")))


@over("lines, place, value", table("offers", "bad_tables"))
def test_a_bad_table_is_named_with_line_column_and_fix(own_table, lines, place, value):
    own_table(*(line.replace("HEAD", HEAD) for line in lines))
    error = refusal(prices.offers)
    assert error.field == OWN
    assert error.hint
    for part in ("mine.csv", place, value):
        assert part in error.message
    assert "/" not in error.message


def test_offers_are_found_by_device_provider_region_and_commitment():
    found = select_offers("NVIDIA H100 80GB HBM3", "aws", "US-EAST", "spot")
    places = {(each.device, each.provider, each.commitment) for each in found}
    assert places == {("h100-sxm", "Amazon Web Services", "spot")}
    assert all("us-east" in each.region for each in found)
    assert found == sorted(found, key=lambda each: each.usd_per_device_hour)
    assert select_offers("mi250x") == []
    assert sum(offered_devices().values()) == len(shipped_offers())
    for field, value in (("device", "h1000"), ("provider", "nobody"), ("commitment", "weekly")):
        error = refusal(select_offers, **{field: value})
        assert (error.field, bool(error.hint)) == (field, True)
