"""Offers: fields, shipped tables, an operator's own, imports, the default choice, every door."""

import datetime
import json
import math

import pytest
from fastapi.testclient import TestClient

from recipe_core.doors.api import create_api
from recipe_core.doors.catalog import offers_for
from recipe_core.hardware import offer_tables, offers, prices
from recipe_core.hardware.cluster import cluster, device_names, device_profile
from recipe_core.hardware.offer_import import Terms, accelerator_device, import_table
from recipe_core.hardware.offer_search import offered_devices, select_offers
from recipe_core.hardware.offers import Offer, last_day
from recipe_core.hardware.request import HardwareRequest
from recipe_core.plans.plans import plan_splits
from recipe_core.plans.problem import resolve_problem
from recipe_core.plans.splits import row_request
from recipe_core.request.edit import change, select_split
from recipe_core.request.link import DEFAULT
from tests.fixtures.command_line import recipe
from tests.fixtures.paths import DATA
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table

DAY = datetime.date(2026, 11, 23)
MI300X = HardwareRequest(device="mi300x")
MI355X = HardwareRequest(device="mi355x")
SPOT = {"hardware.commitment": "spot"}
HEAD = "provider,device,usd_per_device_hour,commitment,date,most_per_node"
CATALOGUE = (DATA / "skypilot-vms.csv").read_text()
UNREADABLE = table("offers", "unreadable")
UNREADABLE += [["CATALOGUE 55.04", {"currency": "EUR", "usd_per_unit": math.nan}, "usd_per_unit"]]


def offer(**fields):
    """An offer with a few fields of its own."""
    usual = {"provider": "Somebody", "name": "somebody-h100", "device": "h100-sxm"}
    terms = {"commitment": "on-demand", "date": "2026-11-01", "source": "test"}
    return Offer.model_validate(usual | terms | {"usd_per_device_hour": 2.0} | fields)


def own_table(folder, patch, *lines):
    """Write an operator's own table and name it in the environment."""
    path = folder / "mine.csv"
    path.write_text("\n".join([*lines, ""]))
    patch.setenv(offer_tables.OWN, str(path))
    return path


def test_a_date_counts_as_its_last_day_and_marks_say_how_old_it_is(monkeypatch):
    days = table("offers", "last_days")
    assert {text: last_day(text).isoformat() for text in days} == days
    for text in table("offers", "no_dates"):
        with pytest.raises(ValueError, match=r"date|month|day"):
            last_day(text)
    assert offer().marks(DAY) == ()
    assert offer().warning(DAY) is None
    old = offer(date="2026-05-18", note="second-hand, from a research note")
    assert old.marks(DAY) == ("second-hand", "189 days old")
    said = "The price that decides, somebody-h100, is 189 days old and second-hand."
    assert old.warning(DAY) == said
    assert offer(date="2026-06-30").warning(DAY) is None  # 146 days
    assert offer(status="unverified").warning(DAY).endswith("is unverified.")
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


@over("fields, says", table("offers", "wrong"))
def test_an_offer_that_makes_no_sense_is_refused(fields, says):
    with pytest.raises(ValueError, match=says):
        offer(**fields)


def test_every_shipped_offer_has_a_source_a_place_and_a_size():
    shipped = offer_tables.shipped_offers()
    names, priced = ({getattr(each, field) for each in shipped} for field in ("name", "device"))
    assert len(names) == len(shipped) > 1000
    assert {each.source for each in shipped} == set(offer_tables.offer_sources())
    wanted = {"h100-sxm", "h200-sxm", "b200-sxm", "a100-sxm-80gb", "l40s", "rtx-4090"}
    assert wanted | {"mi300x", "mi325x", "mi355x"} <= priced <= set(device_names())
    assert {each.status for each in shipped} == {"published", "unverified"}
    assert all(last_day(each.date) <= DAY for each in shipped if each.date != "2026")
    assert offer_tables.parse_table(offer_tables.to_table(shipped), "again") == shipped
    assert tuple(Offer.model_fields) == offer_tables.COLUMNS
    # names that links and recipes have stay
    assert {"aws-h100-sxm", "hyperstack-h100-sxm-reserved", "gcp-h100-sxm-spot"} <= names
    assert {"lambda-h100-sxm", "tensorwave-mi300x", "openrelay-rtx-3090"} <= names
    for each in shipped:  # machines of several sizes are no named instances
        if each.most_per_node is not None:
            assert (each.devices_per_node, each.region) == (1, None), each.name
            assert each.most_per_node <= 8


def choice(per_node, *known, commitment=None):
    request = HardwareRequest(device="h100-sxm", per_node=per_node, commitment=commitment)
    found = prices.default_offer(request, list(known))
    return found.name if found else None


def test_the_cheapest_machine_that_holds_a_node_is_taken_and_fallbacks_are_said(monkeypatch):
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
    # a verified price of the last 90 days comes before an older or a market place's cheaper one
    aged = offer(name="aged", usd_per_device_hour=0.5, devices_per_node=8, date="2026-05-24")
    hosts = offer(name="hosts", usd_per_device_hour=0.4, provider="Vast.ai", most_per_node=8)
    assert choice(8, large, aged, hosts, unsure) == "large"
    assert choice(8, small, aged, hosts) == "small"
    assert choice(8, aged, hosts, unsure) == "aged"
    assert choice(8, hosts, unsure) == "unsure"  # as a search for hardware without market places
    assert choice(8, hosts) == "hosts"
    monkeypatch.setenv(offers.TODAY, "2027-06-01")  # all are old: the cheapest verified one
    assert choice(8, large, aged, hosts, unsure) == "aged"
    monkeypatch.setenv(offers.TODAY, "today")
    error = refusal(choice, 8, large, aged)
    assert (error.field, error.hint) == (
        offers.TODAY,
        "Give a day such as 2026-11-20, or leave it out.",
    )
    monkeypatch.undo()
    # AWS costs more per device in larger machines
    known = select_offers("l40s", "aws", "us-east-1", "on-demand")
    prices_of = {each.devices_per_node: each.usd_per_device_hour for each in known[::-1]}
    assert prices_of[8] > 2 * prices_of[1]
    for device_name, per_node, name, said in (
        ("l40s", 8, "aws-l40s", "machine with 1 device, not 8"),
        ("mi300x", 1, "tensorwave-mi300x", "machine with 8 devices, $12.0 per hour"),
        ("mi355x", 8, "tensorwave-mi355x", "unverified"),
    ):
        found = cluster(HardwareRequest(device=device_name, per_node=per_node, offer=name))
        assert said in found.price_note
    assert found.price_basis == "tensorwave-mi355x, on-demand, 2026: unverified; no document found"
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


def test_a_cluster_beside_the_first_is_priced_under_its_commitment_and_term():
    """A spot price beside an on-demand one would compare what is not alike."""
    on_demand = HardwareRequest(device="h200-sxm", commitment="on-demand")
    priced = HardwareRequest(device="b200-sxm", usd_per_device_hour=3.0)
    clusters = resolve_problem(mixed(SPOT, MI300X, MI355X, on_demand, priced)).clusters
    assert [each.commitment for each in clusters] == ["spot", "spot", "spot", "on-demand", None]
    _, spot, unknown, _, stated = clusters
    assert spot.offer.commitment == "spot"
    assert unknown.usd_per_device_hour is None
    assert "No offer for mi355x is spot" in unknown.price_note
    assert stated.usd_per_device_hour == 3.0
    # an unknown price of the first makes no other on demand
    unpriced = {"hardware": {"device": "mi355x", "commitment": "spot"}}
    first, other = resolve_problem(mixed(unpriced, HardwareRequest(device="h100-sxm"))).clusters
    assert (first.usd_per_device_hour, first.price_text()[:8]) == (None, "unknown.")
    assert "reclaim" not in first.price_note
    assert other.commitment == "spot"
    known = [
        each for each in prices.offers_of(device_profile("a100-sxm-40gb")) if each.term_months == 36
    ]
    reserved = next(each.name for each in known if each.status == "published")
    first = {"hardware": {"device": "a100-sxm-40gb", "offer": reserved}}
    own, other = resolve_problem(mixed(first, HardwareRequest(device="l4"))).clusters
    terms = own.price.term_months, other.price.term_months, other.request.term_months
    assert terms == (36, 36, 36)


def test_taking_a_split_of_another_cluster_keeps_the_commitments():
    """Also where only the other one commits to something."""

    def priced(request):
        return [
            (each.device.name, each.usd_per_device_hour)
            for each in resolve_problem(request).clusters
        ]

    back = HardwareRequest(device="mi300x", commitment="spot")
    for request in (mixed(SPOT, MI300X), mixed({}, back)):
        after = change(request, select_split(request, "vllm.bf16.bf16.tp8.pp1.dp1.ep1.on1"))
        assert priced(after) == priced(request)[::-1]
    # the request of a row has the price of the row
    table = plan_splits(mixed(SPOT, MI300X, MI355X))
    rows = {table.setting(int(row)).cluster.device.name: int(row) for row in table.order}
    for row in rows.values():
        found, alone = table.setting(row).cluster, resolve_problem(row_request(table, row)).cluster
        assert alone.usd_per_device_hour == found.usd_per_device_hour
        assert alone.price_note == found.price_note


def test_an_operators_prices_are_read_beside_the_shipped_ones(monkeypatch, tmp_path):
    lines = ["Our cloud,h100-sxm,1.5,on-demand,2026-11-20,8", "", "Ours,mi300x,1.2,spot,2026-11,"]
    path = own_table(tmp_path, monkeypatch, HEAD, *lines)
    found = cluster(HardwareRequest(device="h100-sxm"))
    assert found.usd_per_device_hour == 1.5
    assert found.price_basis == "our-cloud-h100-sxm, on-demand, 2026-11-20: quoted"
    assert (found.offer.status, found.offer.source) == ("quoted", "mine.csv")
    assert len(prices.all_offers()) == len(offer_tables.shipped_offers()) + 2
    path.write_text(f"{HEAD}\nOur cloud,h100-sxm,1.4,on-demand,2026-11-21,8\n")
    assert cluster(HardwareRequest(device="h100-sxm")).usd_per_device_hour == 1.4
    # a missing table is an error without its folder
    monkeypatch.setenv(offer_tables.OWN, str(tmp_path / "none.csv"))
    assert "cannot read 'none.csv'" in str(refusal(cluster, HardwareRequest(device="h100-sxm")))


@over("lines, place, value", table("offers", "bad_tables"))
def test_a_bad_table_is_named_with_line_column_and_fix(tmp_path, monkeypatch, lines, place, value):
    own_table(tmp_path, monkeypatch, *(line.replace("HEAD", HEAD) for line in lines))
    error = refusal(prices.all_offers)
    assert (error.field, bool(error.hint), "/" in error.message) == (offer_tables.OWN, True, False)
    for part in ("mine.csv", place, value):
        assert part in error.message


def test_offers_are_found_and_listed_by_the_command_line_and_the_api():
    found = select_offers("NVIDIA H100 80GB HBM3", "aws", "US-EAST", "spot")
    places = {(each.device, each.provider, each.commitment) for each in found}
    assert places == {("h100-sxm", "Amazon Web Services", "spot")}
    assert all("us-east" in each.region for each in found)
    assert found == sorted(found, key=lambda each: each.usd_per_device_hour)
    assert select_offers("mi250x") == []
    assert sum(offered_devices().values()) == len(offer_tables.shipped_offers())
    for field, value in (("device", "h1000"), ("provider", "nobody"), ("commitment", "weekly")):
        error = refusal(select_offers, **{field: value})
        assert (error.field, bool(error.hint)) == (field, True)
    done = recipe("offers", "--device", "l40s", "--provider", "aws", "--region", "us-east-1")
    lines = done.stdout.splitlines()
    heads = "$/device-hour $/machine-hour devices device commitment region date name marks"
    assert lines[1].split() == heads.split()
    row = next(line for line in lines if " aws-l40s" in line)
    assert row.split()[:4] == ["1.861", "1.861", "1", "l40s"]
    first = recipe("offers").stdout.splitlines()
    count = len(offer_tables.shipped_offers())
    assert first[-1] == f"40 of {count:,} offers; --all shows every one."
    assert len(recipe("offers", "--all").stdout.splitlines()) == count + 4
    found = json.loads(recipe("offers", "--device", "mi355x", "--json").stdout)
    mine = next(offer for offer in found if offer["name"] == "tensorwave-mi355x")
    more = {"age_days", "stale", "source_title", "source_url"}
    assert set(Offer.model_fields) | more < set(mine)
    assert mine["usd_per_machine_hour"] == pytest.approx(8 * 2.95)
    assert (mine["status"], mine["marks"][0]) == ("unverified", "unverified")
    lines = recipe("hardware", "mi325x").stdout.splitlines()
    assert "days old" in next(line for line in lines if "tensorwave-mi325x" in line)
    assert "unverified" in recipe("hardware", "mi355x").stdout
    client = TestClient(create_api(folders=False))
    found = client.get("/offers?device=h100-sxm&commitment=spot").json()
    assert {offer["commitment"] for offer in found["offers"]} == {"spot"}
    wrong = client.get("/offers?commitment=weekly")
    assert (wrong.status_code, wrong.json()["error"]["field"]) == (422, "commitment")
    assert len(client.get("/offers").json()["offers"]) == count
    assert len(offers_for("gb300")["offers"]) == offers_for()["devices"]["gb300"]


def test_tables_of_others_and_of_ones_own_become_offers():
    aws = Terms(provider="Amazon Web Services", date="2026-11-20", status="published")
    done = import_table(CATALOGUE, "vms.csv", aws)
    assert {(each.instance, each.commitment): each.usd_per_device_hour for each in done.offers} == {
        ("p5.48xlarge", "on-demand"): 6.88,
        ("p5.48xlarge", "spot"): 1.7,
        ("p4d.24xlarge", "on-demand"): 2.745,
        ("g5.xlarge", "on-demand"): 1.006,
    }
    spot = next(offer for offer in done.offers if offer.commitment == "spot")
    assert (spot.device, spot.devices_per_node, spot.region) == ("h100-sxm", 8, "us-east-1")
    assert (spot.status, spot.date) == ("published", "2026-11-20")
    assert spot.note == "cheapest zone of the region"
    assert done.unknown == {"K80": 1, "H100 of an unknown form": 1}
    reasons = ("parts of an accelerator", "accelerators without a machine", "without accelerators")
    assert done.skipped == dict.fromkeys((*reasons, "without a price"), 1)
    for name, text, device_name in table("offers", "names_of_accelerators"):
        assert accelerator_device(name, text, {})[0] == device_name, name
    # the caller may say what a name means
    known = {"K80": "l4", "H100": "h100-pcie"}
    done = import_table(CATALOGUE, "vms.csv", Terms(provider="x", accelerators=known))
    boxes = {offer.device for offer in done.offers if offer.instance == "box"}
    assert (dict(done.unknown), boxes) == ({}, {"h100-pcie"})
    text = "provider,device,price,note\nOurs,H100-SXM,2,by letter\nOurs,mi300x,1.5,\nOurs,TPU,1,\n"
    terms = Terms(currency="EUR", usd_per_unit=1.08, date="2026-11-20")
    done = import_table(text, "list.csv", terms)
    first, second = done.offers
    assert (first.device, first.usd_per_device_hour, first.status) == ("h100-sxm", 2.16, "quoted")
    assert first.note == "by letter; EUR at 1.08 USD"
    assert (second.usd_per_device_hour, second.note) == (1.62, "EUR at 1.08 USD")
    assert done.unknown == {"TPU": 1}
    # our own columns are kept
    text = (
        "provider,name,device,usd_per_device_hour,commitment,term_months,devices_per_node,date\n"
        "Ours,mine,l4,0.3,reserved,12,4,2026-10\n"
    )
    (offer,) = import_table(text, "list.csv", Terms()).offers
    found = (offer.name, offer.terms, offer.devices_per_node, offer.date)
    assert found == ("mine", "reserved for 12 months", 4, "2026-10")


@over("text, terms, says", UNREADABLE)
def test_tables_and_terms_that_cannot_be_read_are_named(text, terms, says):
    if text.startswith("CATALOGUE"):
        text = CATALOGUE.replace("55.04,14.4", f"{text.split()[1]},14.4")
    assert says in str(refusal(lambda: import_table(text, "list.csv", Terms.of(**terms))))


def test_an_import_is_written_and_counted_with_the_shipped_ones(tmp_path, monkeypatch):
    (tmp_path / "vms.csv").write_text(CATALOGUE)
    mine = tmp_path / "mine.csv"
    words = ("--import", str(tmp_path / "vms.csv"), "--provider", "AWS", "-o", str(mine))
    terms = ("--date", "2026-11-20", "--currency", "EUR", "--usd-per-unit", "2")
    done = recipe("offers", *words, *terms)
    assert done.returncode == 0
    for said in ("4 offers", "not known: K80 (1), H100 of an unknown form (1)"):
        assert said in done.stdout
    read = {offer.name: offer for offer in offer_tables.parse_table(mine.read_text(), "mine.csv")}
    assert not set(read) & {offer.name for offer in offer_tables.shipped_offers()}
    assert read["aws-g5.xlarge-a10g-us-east-1"].usd_per_device_hour == 2.012
    monkeypatch.setenv(offer_tables.OWN, str(mine))
    listed = json.loads(recipe("offers", "--device", "a10g", "--json").stdout)
    assert "aws-g5.xlarge-a10g-us-east-1" in {offer["name"] for offer in listed}
    counted = json.loads(recipe("offers", *words, "--json").stdout)
    assert counted["unknown"] == {"K80": 1, "H100 of an unknown form": 1}


@over("words, says", table("offers", "options_that_mean_nothing_write_nothing"))
def test_options_that_mean_nothing_write_nothing(tmp_path, words, says):
    (tmp_path / "vms.csv").write_text(CATALOGUE)
    for name, file in (("TABLE", "vms.csv"), ("OUT", "mine.csv"), ("NONE", "none.csv")):
        words = words.replace(name, str(tmp_path / file))
    done = recipe("offers", *words.split())
    assert done.returncode == 2
    assert says in done.stderr
    assert not (tmp_path / "mine.csv").exists()
