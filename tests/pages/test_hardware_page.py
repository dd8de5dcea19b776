"""The page that asks where it will run."""

from __future__ import annotations

import json

import pytest
from streamlit.testing.v1 import AppTest

from recipe_core.doors.settings import variable
from tests.fixtures.opening import opened, query_of, words


def test_a_vendor_brings_its_device_and_drops_the_old_offer() -> None:
    app = opened("hardware.py?hardware.offer=lambda-h100-sxm")
    assert "Fitted to operator timings on this device" in words(app)
    app.get_by_key("_vendor").set_value("amd").run()
    assert query_of(app) == {"v": "1", "hardware.device": "mi300x"}
    assert "8 × MI300X" in words(app)
    assert "usual efficiencies" in words(opened("hardware.py?hardware.device=rtx-5090"))


def test_a_cluster_is_put_beside_and_taken_away() -> None:
    app = opened("hardware.py")
    app.selectbox(key="_add").select("mi300x").run()
    assert "mi300x" in query_of(app)["options.hardware"]
    assert "8 × H100 SXM5 or 8 × MI300X" in words(app)
    app.text_input(key="_other_0_nodes").set_value("2").run()
    assert '"nodes":2' in query_of(app)["options.hardware"]
    app.button(key="drop-0").click().run()
    assert "options.hardware" not in query_of(app)
    app = opened("hardware.py?workload.kind=training&workload.tokens=1e9")
    app.selectbox(key="_add").select("mi300x").run()
    assert "8 × H100 SXM5 or 8 × MI300X" in words(app)
    assert "legal splits can run" in app.success[0].value


def test_the_price_of_a_cluster_beside_is_stated_and_taken_back() -> None:
    app = opened("hardware.py?objective.optimize=cost")
    app.selectbox(key="_add").select("mi250x").run()
    note = "No price of Instinct MI250X is known: its splits come last. "
    note += "State a price on the hardware page."
    assert note in words(app)
    app.text_input(key="_other_0_usd_per_device_hour").set_value("6.5").run()
    assert '"usd_per_device_hour":6.5' in query_of(app)["options.hardware"]
    assert note not in words(app)
    app.text_input(key="_other_0_usd_per_device_hour").set_value("").run()
    assert note in words(app)


def test_own_hardware_makes_a_price() -> None:
    app = opened("hardware.py")
    app.get_by_key("_price_mode").set_value("owned").run()
    before = float(query_of(app)["hardware.usd_per_device_hour"])
    app.text_input(key="_own_capex_usd").set_value("60,000").run()
    after = float(query_of(app)["hardware.usd_per_device_hour"])
    assert after > 1.8 * before
    assert "depreciation" in words(app)
    app.text_input(key="_own_years").set_value("0.0").run()
    assert "above 0 and at most 30" in app.error[0].value
    assert app.text_input(key="_own_years").value == "4"
    app.get_by_key("_price_mode").set_value("offer").run()
    assert "hardware.usd_per_device_hour" not in query_of(app)


def test_this_machine_is_described_only_to_those_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(variable("folders"), raising=False)
    assert "does not describe its own" in words(opened("hardware.py"))
    monkeypatch.setenv(variable("folders"), "1")
    app = opened("hardware.py")
    app.button(key="detect").click().run()
    assert "identified by" in words(app)


def test_links_between_devices_are_chosen() -> None:
    app = opened("hardware.py?hardware.nodes=2")
    app.selectbox(key="_network").select("ethernet-100").run()
    assert query_of(app)["hardware.network"] == "ethernet-100"
    app.selectbox(key="_network").select("").run()
    assert "hardware.network" not in query_of(app)


OURS = """
schema_version: 1
name: my-h100
based_on: h100-sxm
memory_bytes: {value: 64e9, source: ours, status: measured}
sources:
  ours: {title: Our runs, date: 2026-11-20}
"""


def upload(app: AppTest, data: bytes) -> None:
    app.file_uploader(key="profile").set_value(("mine.yaml", data, "application/yaml")).run()
    assert not app.exception


def test_an_uploaded_profile_is_the_device_and_travels_in_the_link() -> None:
    app = opened("hardware.py?hardware.offer=lambda-h100-sxm&hardware.per_node=4")
    upload(app, OURS.encode())
    assert app.get_by_key("_hardware.device").value == "my-h100"
    text = words(app)
    assert "4 × my-h100" in text
    assert "Your profile has fitted or measured" in text
    assert "59.6 GiB" in [metric.value for metric in app.metric]
    link = query_of(app)
    assert "hardware.offer" not in link
    assert json.loads(link["hardware.device"])["based_on"] == "h100-sxm"
    again = opened("compare.py", **link)
    assert again.success
    for page in ("compare.py", "model.py", "objective.py", "recipe.py"):
        again.switch_page(page).run()
        assert "4 × my-h100" in words(again), page
    again.switch_page("check.py").run()
    assert "NVIDIA H100 SXM5 80 GB, customised" in again.selectbox[0].options


def test_a_listed_device_takes_the_place_of_ones_own() -> None:
    app = opened("hardware.py")
    app.text_area(key="paste-profile").set_value(OURS).run()
    assert "8 × my-h100" in words(app)
    app.text_input(key="_hardware.nodes").set_value("2").run()
    assert "16 × my-h100 in 2 nodes" in words(app)
    app.get_by_key("_hardware.device").set_value("h200-sxm").run()
    assert query_of(app) == {"v": "1", "hardware.device": "h200-sxm", "hardware.nodes": "2"}
    assert "my-h100" not in app.get_by_key("_hardware.device").options


def test_a_bad_profile_or_path_is_refused_and_the_device_stays() -> None:
    app = opened("?hardware.device=/etc/mine.yaml")
    assert "paths are not read here" in words(app)
    app.switch_page("hardware.py").run()
    for data, says in (
        (b"PK\x03\x04", "is not text"),
        (b"x" * (33 << 10), "the limit is"),
        (b"!!python/object/apply:os.system [id]", "YAML tag"),
        (OURS.replace("64e9", "64").encode(), "hardware.device.memory_bytes.value"),
        (OURS.replace("my-h100", "h100-sxm").encode(), "my-h100-sxm"),
    ):
        upload(app, data)
        assert says in app.error[0].value.replace("\\", "")
        assert query_of(app) == {"v": "1"}


def test_an_offer_says_what_is_rented_and_what_to_doubt() -> None:
    app = opened("hardware.py?hardware.device=mi355x&hardware.offer=tensorwave-mi355x")
    assert "per hour of a machine with 8 devices" in words(app)
    assert "unverified: check it before use" in words(app)
    labels = app.selectbox(key="_price").options
    assert any("tensorwave-mi355x" in label and "unverified" in label for label in labels)
    old = opened("hardware.py?hardware.device=mi325x")
    assert "days old" in old.table[0].value.to_string()
    app = opened("hardware.py?hardware.device=mi355x&hardware.commitment=spot")  # nobody offers it
    assert "its price is unknown" in words(app)
    assert app.get_by_key("_commitment").value == "spot"
    assert "unknown" in app.table[0].value.to_string()


def test_a_commitment_brings_its_cheapest_offer() -> None:
    app = opened("hardware.py")
    app.get_by_key("_commitment").set_value("spot").run()
    assert query_of(app)["hardware.commitment"] == "spot"
    assert "may reclaim the devices" in words(app)
    assert "spot" in app.table[0].value.to_string()
    app.selectbox(key="_price").select("gcp-h100-sxm-spot").run()
    assert query_of(app) == {"v": "1", "hardware.offer": "gcp-h100-sxm-spot"}
    assert app.get_by_key("_commitment").value == "spot"
    app.get_by_key("_commitment").set_value("reserved").run()
    assert query_of(app) == {"v": "1", "hardware.commitment": "reserved"}
    app.get_by_key("_commitment").set_value("on-demand").run()
    assert query_of(app) == {"v": "1"}


def test_a_price_of_ones_own_has_a_term() -> None:
    app = opened("hardware.py")
    app.get_by_key("_price_mode").set_value("stated").run()
    app.text_input(key="_hardware.usd_per_device_hour").set_value("1.5").run()
    assert query_of(app)["hardware.usd_per_device_hour"] == "1.5"
    app.get_by_key("_hardware.commitment").set_value("reserved").run()
    app.text_input(key="_hardware.term_months").set_value("12").run()
    assert query_of(app)["hardware.term_months"] == "12"
    assert "reserved for 12 months" in app.table[0].value.to_string()
    app.get_by_key("_hardware.commitment").set_value("spot").run()
    assert "hardware.term_months" not in query_of(app)
    app.get_by_key("_price_mode").set_value("offer").run()
    assert query_of(app) == {"v": "1"}
