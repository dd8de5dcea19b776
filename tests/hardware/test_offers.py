"""Price offers: dates and marks, the shipped tables, an operator's own, and the default choice."""

from __future__ import annotations

import datetime
import time

import pytest

from recipe_core.base.errors import InputError
from recipe_core.hardware import offer_tables, offers, prices
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

DAY = datetime.date(2026, 11, 23)


def offer(**fields) -> Offer:
    """An offer with a few fields of its own."""
    usual = {
        "provider": "Somebody",
        "name": "somebody-h100",
        "device": "h100-sxm",
        "usd_per_device_hour": 2.0,
        "commitment": "on-demand",
        "date": "2026-11-01",
        "source": "test",
    }
    return Offer.model_validate(usual | fields)


@pytest.fixture
def own_table(tmp_path, monkeypatch):
    """A function that writes an operator's own table and names it in the environment."""

    def write(*lines: str):
        path = tmp_path / "mine.csv"
        path.write_text("\n".join([*lines, ""]))
        monkeypatch.setenv(OWN, str(path))
        return path

    return write


# One offer


@pytest.mark.parametrize(
    ("text", "day"),
    [
        ("2026-10-03", (2026, 10, 3)),
        ("2025-06", (2025, 6, 30)),
        ("2024-02", (2024, 2, 29)),
        ("2025", (2025, 12, 31)),
        ("2026-09 or before", (2026, 9, 30)),
    ],
)
def test_a_date_counts_as_its_last_day(text, day):
    assert last_day(text) == datetime.date(*day)


@pytest.mark.parametrize(
    "text", ["", "2026-13", "2026-02-30", "06-2026", "2026-1-1", "or before", "2026-٠٩", "1999"]
)
def test_what_is_no_date_is_refused(text):
    with pytest.raises(ValueError, match=r"date|month|day"):
        last_day(text)


def test_marks_say_what_is_unverified_and_how_old_it_is():
    assert offer().marks(DAY) == ()
    assert offer(date="2026-08-25").marks(DAY) == ()  # 90 days
    assert offer(date="2026-08-24").marks(DAY) == ("91 days old",)
    both = offer(date="2026-06 or before", status="unverified")
    assert both.marks(DAY) == ("unverified", "146 days old")
    assert (both.age_days(DAY), both.is_stale(DAY)) == (146, True)
    assert offer(date="2026").age_days(DAY) == 0


def test_the_day_is_of_one_function(monkeypatch):
    monkeypatch.setattr(offers, "current_day", lambda: datetime.date(2027, 11, 1))
    assert offer().marks() == ("365 days old",)


def test_the_basis_says_status_date_and_note_but_no_age():
    text = offer(date="2024-01", status="unverified", note="rounded").basis
    assert text == "somebody-h100, on-demand, 2024-01: unverified; rounded"


@pytest.mark.parametrize(
    ("fields", "says"),
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


# The shipped tables


def test_every_shipped_offer_has_a_source_a_place_and_a_size():
    every = shipped_offers()
    assert len(every) > 1000
    assert len({each.name for each in every}) == len(every)
    assert {each.source for each in every} == set(offer_sources())
    assert {each.device for each in every} <= set(device_names())
    assert {each.status for each in every} == {"published", "unverified"}
    assert all(last_day(each.date) <= DAY for each in every if each.date != "2026")
    assert parse_table(to_table(every), "again") == every


def test_machines_of_several_sizes_are_no_named_instances():
    for each in shipped_offers():
        if each.most_per_node is not None:
            assert (each.devices_per_node, each.region) == (1, None), each.name
            assert each.most_per_node <= 8


def test_names_that_links_and_recipes_have_stay():
    names = {each.name for each in shipped_offers()}
    assert {"aws-h100-sxm", "hyperstack-h100-sxm-reserved", "gcp-h100-sxm-spot"} <= names
    assert {"lambda-h100-sxm", "tensorwave-mi300x", "openrelay-rtx-3090"} <= names


def test_reading_all_offers_is_quick():
    folder = offer_tables.root("hw_profiles") / "offers"
    shipped_offers()  # the schema is built once
    seconds = []
    for _ in range(5):
        offer_tables._shipped.cache_clear()
        start = time.perf_counter()
        offer_tables._shipped(folder)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.06


# The default choice


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


def test_aws_costs_more_per_device_in_larger_machines():
    found = {
        size: min(
            each.usd_per_device_hour
            for each in select_offers("l40s", "aws", "us-east-1", "on-demand")
            if each.devices_per_node == size
        )
        for size in (1, 8)
    }
    assert found[8] > 2 * found[1]


def test_a_fallback_and_a_share_of_a_machine_are_said():
    node = cluster(HardwareRequest(device="l40s", per_node=8, offer="aws-l40s"))
    assert "machine with 1 device, not 8" in node.price_note
    share = cluster(HardwareRequest(device="mi300x", per_node=1, offer="tensorwave-mi300x"))
    assert "machine with 8 devices, $12.0 per hour" in share.price_note
    unsure = cluster(HardwareRequest(device="mi355x", offer="tensorwave-mi355x"))
    assert "unverified" in unsure.price_note
    assert unsure.price_basis == (
        "tensorwave-mi355x, on-demand, 2026: unverified; no document found"
    )


def test_the_price_in_words_has_its_age_and_the_note_does_not(monkeypatch):
    monkeypatch.setattr(offers, "current_day", lambda: datetime.date(2026, 12, 25))
    found = cluster(HardwareRequest(device="mi300x", offer="tensorwave-mi300x"))
    assert found.price_text() == (
        "$1.50 per device-hour, 221 days old "
        "(tensorwave-mi300x, on-demand, 2026-05-18: second-hand, from a research note)"
    )
    assert "days old" not in f"{found.price_basis}{found.price_note}"


def test_a_cluster_beside_the_first_is_priced_under_its_commitment():
    """A spot price beside an on-demand one would compare what is not alike."""
    mixed = change(
        DEFAULT,
        {
            "hardware.commitment": "spot",
            "options.hardware": (
                HardwareRequest(device="mi300x"),
                HardwareRequest(device="mi355x"),
                HardwareRequest(device="h200-sxm", commitment="on-demand"),
                HardwareRequest(device="b200-sxm", usd_per_device_hour=3.0),
            ),
        },
    )
    first, spot, unknown, own, stated = resolve(mixed).clusters
    assert (first.commitment, spot.commitment, own.commitment) == ("spot", "spot", "on-demand")
    assert spot.offer.commitment == "spot"
    assert unknown.usd_per_device_hour is None
    assert "No offer for mi355x is spot" in unknown.price_note
    assert (stated.usd_per_device_hour, stated.commitment) == (3.0, None)


def test_an_unknown_price_of_the_first_makes_no_other_on_demand():
    mixed = change(
        DEFAULT,
        {
            "hardware": {"device": "mi355x", "commitment": "spot"},
            "options.hardware": (HardwareRequest(device="h100-sxm"),),
        },
    )
    first, other = resolve(mixed).clusters
    assert (first.usd_per_device_hour, first.price_text()[:8]) == (None, "unknown.")
    assert "reclaim" not in first.price_note
    assert other.commitment == "spot"


def test_a_term_goes_with_the_commitment():
    mixed = change(
        DEFAULT,
        {
            "hardware": {"device": "a100-sxm-40gb", "offer": reserved("a100-sxm-40gb", 36)},
            "options.hardware": (HardwareRequest(device="l4"), HardwareRequest(device="h200-sxm")),
        },
    )
    clusters = resolve(mixed).clusters
    assert [each.price.term_months for each in clusters[:2]] == [36, 36]
    assert clusters[1].asked.term_months == 36


def reserved(name: str, months: int) -> str:
    return next(
        each.name
        for each in prices.offers_of(device(name))
        if each.term_months == months and each.status == "published"
    )


def test_taking_a_split_of_another_cluster_keeps_the_commitments():
    mixed = change(
        DEFAULT,
        {"hardware.commitment": "spot", "options.hardware": (HardwareRequest(device="mi300x"),)},
    )
    before = [(each.device.name, each.usd_per_device_hour) for each in resolve(mixed).clusters]
    after = change(mixed, select_split(mixed, "vllm.bf16.bf16.tp8.pp1.dp1.ep1.on1"))
    found = [(each.device.name, each.usd_per_device_hour) for each in resolve(after).clusters]
    assert found == before[::-1]
    # and where only the other one commits to something
    back = HardwareRequest(device="mi300x", commitment="spot")
    mixed = change(DEFAULT, {"options.hardware": (back,)})
    before = [(each.device.name, each.usd_per_device_hour) for each in resolve(mixed).clusters]
    after = change(mixed, select_split(mixed, "vllm.bf16.bf16.tp8.pp1.dp1.ep1.on1"))
    found = [(each.device.name, each.usd_per_device_hour) for each in resolve(after).clusters]
    assert found == before[::-1]


def test_the_request_of_a_row_has_the_price_of_the_row():
    mixed = change(
        DEFAULT,
        {
            "hardware.commitment": "spot",
            "options.hardware": (
                HardwareRequest(device="mi300x"),
                HardwareRequest(device="mi355x"),
            ),
        },
    )
    table = plan(mixed)
    for row in {
        table.setting(int(row)).cluster.device.name: int(row) for row in table.order
    }.values():
        asked = table.setting(row).cluster
        alone = resolve(table.request_of(row)).cluster
        assert (alone.usd_per_device_hour, alone.price_note) == (
            asked.usd_per_device_hour,
            asked.price_note,
        )


# An operator's own table

HEAD = "provider,device,usd_per_device_hour,commitment,date,most_per_node"


def test_an_operators_prices_are_read_beside_the_shipped_ones(own_table):
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


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["provider,device"], "line 1: the column 'usd_per_device_hour' is missing"),
        ([HEAD + ",price"], "line 1: unknown column 'price'"),
        ([HEAD + ",date"], "line 1: the column 'date' is there twice"),
        ([HEAD, "a,h100-sxm,two,spot,2026-11,"], "line 2, usd_per_device_hour: .*'two'"),
        ([HEAD, "a,h100-sxm,nan,spot,2026-11,"], "line 2, usd_per_device_hour"),
        (
            [HEAD, "a,h100-sxm,2,spot,2026-11,", "a,h100-sxm,2,hourly,2026-11,"],
            "line 3, commitment",
        ),
        ([HEAD, "a,h100-sxm,2,spot,yesterday,"], "line 2, date: .*'yesterday'"),
        ([HEAD, "a,h100-sxm,2,spot,2026-11,8,9"], "line 2: 7 cells under 6 headings"),
        ([HEAD, ",h100-sxm,2,spot,2026-11,8"], "line 2, provider: is empty"),
        ([HEAD, "a,h100-sxm,2,spot,2026-11,0"], "line 2, most_per_node"),
        ([HEAD, '"a,h100-sxm,2'], "is not CSV"),
        ([HEAD + ",name", "a,h100-sxm,2,spot,2026-11,8,aws-h100-sxm"], "a shipped offer"),
        (
            [HEAD + ",name", *["a,h100-sxm,2,spot,2026-11,8,x"] * 2],
            "line 3, name: 'x' is there twice",
        ),
    ],
)
def test_a_bad_table_is_named_with_line_column_and_fix(own_table, lines, says):
    own_table(*lines)
    with pytest.raises(InputError, match=says) as caught:
        prices.offers()
    assert caught.value.field == OWN
    assert caught.value.hint
    assert "mine.csv" in caught.value.message
    assert "/" not in caught.value.message


def test_a_missing_table_is_an_error_without_its_folder(monkeypatch, tmp_path):
    monkeypatch.setenv(OWN, str(tmp_path / "none.csv"))
    with pytest.raises(InputError, match=r"cannot read 'none\.csv'"):
        cluster(HardwareRequest(device="h100-sxm"))


# The search


def test_offers_are_found_by_device_provider_region_and_commitment():
    found = select_offers("NVIDIA H100 80GB HBM3", "aws", "US-EAST", "spot")
    assert found
    assert {each.device for each in found} == {"h100-sxm"}
    assert {each.provider for each in found} == {"Amazon Web Services"}
    assert {each.commitment for each in found} == {"spot"}
    assert all("us-east" in each.region for each in found)
    assert found == sorted(found, key=lambda each: each.usd_per_device_hour)
    assert select_offers("mi250x") == []
    assert sum(offered_devices().values()) == len(shipped_offers())


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"device": "h1000"}, "device"),
        ({"provider": "nobody"}, "provider"),
        ({"commitment": "weekly"}, "commitment"),
    ],
)
def test_an_unknown_filter_is_named(fields, field):
    with pytest.raises(InputError) as caught:
        select_offers(**fields)
    assert caught.value.field == field
    assert caught.value.hint


def test_columns_are_the_fields_of_an_offer():
    assert tuple(Offer.model_fields) == COLUMNS
