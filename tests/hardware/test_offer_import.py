"""Price tables of others as offers, and the offers by every door."""

import json

import pytest
from fastapi.testclient import TestClient

from recipe_core.doors.answers import offers_for
from recipe_core.doors.api import create_api
from recipe_core.hardware.accelerators import accelerator
from recipe_core.hardware.offer_import import import_table
from recipe_core.hardware.offer_tables import OWN, parse_table, shipped_offers
from recipe_core.hardware.offer_terms import Terms
from recipe_core.hardware.offers import Offer
from tests.fixtures.command_line import recipe
from tests.fixtures.paths import DATA
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table

CATALOGUE = (DATA / "skypilot-vms.csv").read_text()
AWS = Terms(provider="Amazon Web Services", date="2026-11-20", status="published")


def test_a_skypilot_catalogue_has_prices_of_whole_machines():
    done = import_table(CATALOGUE, "vms.csv", AWS)
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
    assert done.unknown == {"V100": 1, "H100 of an unknown form": 1}
    assert done.skipped == {
        "parts of an accelerator": 1,
        "accelerators without a machine": 1,
        "without accelerators": 1,
        "without a price": 1,
    }
    # the caller may say what a name means
    known = {"V100": "l4", "H100": "h100-pcie"}
    done = import_table(CATALOGUE, "vms.csv", Terms(provider="x", accelerators=known))
    assert done.unknown == {}
    boxes = {offer.device for offer in done.offers if offer.instance == "box"}
    assert boxes == {"h100-pcie"}


@over("name, said, device", table("offer_import", "names_of_accelerators"))
def test_names_of_accelerators(name, said, device):
    assert accelerator(name, said, {})[0] == device


def test_a_table_of_ones_own_needs_provider_device_and_price():
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


@over(
    "text, terms, says",
    [
        (CATALOGUE, {}, "does not name its provider"),
        (CATALOGUE.replace("55.04,14.4", "lots,14.4"), {"provider": "x"}, "line 2, Price: 'lots'"),
        (CATALOGUE.replace("55.04,14.4", "-1,14.4"), {"provider": "x"}, "line 2, Price: '-1'"),
        ("provider,device,price\nx,TPU,1\n", {}, "TPU (1)"),
        ("", {}, "no offer for a known device"),
        ("provider,device,euros\nx,l4,1\n", {}, "line 2: unknown column 'euros'"),
        ("device,price\nl4,1\n", {}, "line 2, provider: is empty"),
        (CATALOGUE, {"currency": "EUR"}, "usd_per_unit"),
        (CATALOGUE, {"usd_per_unit": 1.1}, "currency"),
        (CATALOGUE, {"currency": "EUR", "usd_per_unit": 0}, "usd_per_unit"),
        (CATALOGUE, {"currency": "EUR", "usd_per_unit": float("nan")}, "usd_per_unit"),
        (CATALOGUE, {"currency": "euros", "usd_per_unit": 1.1}, "currency"),
        (CATALOGUE, {"accelerators": {"H100": "h1000"}}, "h1000"),
    ],
)
def test_tables_and_terms_that_cannot_be_read_are_named(text, terms, says):
    assert says in str(refusal(lambda: import_table(text, "list.csv", Terms(**terms))))


def test_offers_are_a_table():
    done = recipe("offers", "--device", "l40s", "--provider", "aws", "--region", "us-east-1")
    lines = done.stdout.splitlines()
    heads = "$/device-hour $/machine-hour devices device commitment region date name marks"
    assert lines[0].split() == heads.split()
    row = next(line for line in lines if " aws-l40s" in line)
    assert row.split()[:4] == ["1.861", "1.861", "1", "l40s"]
    first = recipe("offers").stdout.splitlines()
    assert first[-1] == f"40 of {len(shipped_offers()):,} offers; --all shows every one."
    assert len(recipe("offers", "--all").stdout.splitlines()) == len(shipped_offers()) + 1
    # as JSON they have every field
    found = json.loads(recipe("offers", "--device", "mi355x", "--json").stdout)
    mine = next(offer for offer in found if offer["name"] == "tensorwave-mi355x")
    assert set(Offer.model_fields) < set(mine)
    assert mine["usd_per_machine_hour"] == pytest.approx(8 * 2.95)
    assert (mine["status"], mine["marks"][0]) == ("unverified", "unverified")
    assert {"age_days", "stale", "source_title", "source_url"} < set(mine)
    # the hardware command lists them with their marks
    text = recipe("hardware", "mi325x").stdout
    row = next(line for line in text.splitlines() if "tensorwave-mi325x" in line)
    assert "days old" in row
    assert "unverified" in recipe("hardware", "mi355x").stdout


def test_an_import_is_written_and_counted_with_the_shipped_ones(tmp_path, monkeypatch):
    (tmp_path / "vms.csv").write_text(CATALOGUE)
    mine = tmp_path / "mine.csv"
    words = ("--import", str(tmp_path / "vms.csv"), "--provider", "AWS", "-o", str(mine))
    terms = ("--date", "2026-11-20", "--currency", "EUR", "--usd-per-unit", "2")
    done = recipe("offers", *words, *terms)
    assert done.returncode == 0
    assert "4 offers" in done.stdout
    assert "not known: V100 (1), H100 of an unknown form (1)" in done.stdout
    read = {offer.name: offer for offer in parse_table(mine.read_text(), "mine.csv")}
    assert not set(read) & {offer.name for offer in shipped_offers()}
    assert read["aws-g5.xlarge-a10g-us-east-1"].usd_per_device_hour == 2.012
    monkeypatch.setenv(OWN, str(mine))
    listed = json.loads(recipe("offers", "--device", "a10g", "--json").stdout)
    assert "aws-g5.xlarge-a10g-us-east-1" in {offer["name"] for offer in listed}
    counted = recipe("offers", *words, "--json")
    assert json.loads(counted.stdout)["unknown"] == {"V100": 1, "H100 of an unknown form": 1}


@over("words, says", table("offer_import", "options_that_mean_nothing_write_nothing"))
def test_options_that_mean_nothing_write_nothing(tmp_path, words, says):
    (tmp_path / "vms.csv").write_text(CATALOGUE)
    for name, file in (("TABLE", "vms.csv"), ("OUT", "mine.csv"), ("NONE", "none.csv")):
        words = words.replace(name, str(tmp_path / file))
    done = recipe("offers", *words.split())
    assert done.returncode == 2
    assert says in done.stderr
    assert not (tmp_path / "mine.csv").exists()


def test_the_api_and_agents_list_offers():
    client = TestClient(create_api(folders=False))
    found = client.get("/offers", params={"device": "h100-sxm", "commitment": "spot"}).json()
    assert {offer["commitment"] for offer in found["offers"]} == {"spot"}
    assert all("age_days" in offer for offer in found["offers"])
    assert len(client.get("/offers").json()["offers"]) == len(shipped_offers())
    wrong = client.get("/offers", params={"commitment": "weekly"})
    assert (wrong.status_code, wrong.json()["error"]["field"]) == (422, "commitment")
    assert len(offers_for("gb300")["offers"]) == offers_for()["devices"]["gb300"]
