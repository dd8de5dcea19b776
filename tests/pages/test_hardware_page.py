"""The page that asks where it will run."""

from __future__ import annotations

import json

import pytest
from streamlit.testing.v1 import AppTest

from recipe_core.doors.settings import variable
from tests.fixtures.opening import assert_says, opened, press, put, query_of, words


def test_a_vendor_brings_its_device_and_drops_the_old_offer() -> None:
    app = opened("hardware.py?hardware.offer=lambda-h100-sxm")
    assert "Fitted to operator timings on this device" in words(app)
    assert query_of(put(app, "_vendor", "amd")) == {"v": "1", "hardware.device": "mi300x"}
    assert "8 × MI300X" in words(app)
    assert "usual efficiencies" in words(opened("hardware.py?hardware.device=rtx-5090"))


def test_a_cluster_is_put_beside_and_taken_away() -> None:
    app = opened("hardware.py")
    assert "mi300x" in query_of(put(app, "_add", "mi300x"))["options.hardware"]
    assert "8 × H100 SXM5 or 8 × MI300X" in words(app)
    assert '"nodes":2' in query_of(put(app, "_other_0_nodes", "2"))["options.hardware"]
    assert "options.hardware" not in query_of(press(app, "drop-0"))
    app = opened("hardware.py?workload.kind=training&workload.tokens=1e9")
    assert "8 × H100 SXM5 or 8 × MI300X" in words(put(app, "_add", "mi300x"))
    assert "legal splits can run" in app.success[0].value


@pytest.mark.nightly
def test_the_price_of_a_cluster_beside_is_stated_and_taken_back() -> None:
    app = opened("hardware.py?objective.optimize=cost")
    app.selectbox(key="_add").select("mi250x").run()
    note = "No price of Instinct MI250X is known: its splits come last. "
    note += "State a price on the hardware page."
    assert note in words(app)
    app.text_input(key="_other_0_usd_per_device_hour").set_value("6.5").run()
    assert '"usd_per_device_hour":6.5' in query_of(app)["options.hardware"]
    assert note not in words(app)
    assert note in words(put(app, "_other_0_usd_per_device_hour", ""))


def test_own_hardware_makes_a_price() -> None:
    app = opened("hardware.py")
    app.get_by_key("_price_mode").set_value("owned").run()
    before = float(query_of(app)["hardware.usd_per_device_hour"])
    app.text_input(key="_own_capex_usd").set_value("60,000").run()
    after = float(query_of(app)["hardware.usd_per_device_hour"])
    assert after > 1.8 * before
    assert "depreciation" in words(app)
    assert "above 0 and at most 30" in put(app, "_own_years", "0.0").error[0].value
    assert app.text_input(key="_own_years").value == "4"
    assert "hardware.usd_per_device_hour" not in query_of(put(app, "_price_mode", "offer"))


def test_this_machine_is_described_only_to_those_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(variable("folders"), raising=False)
    assert "does not describe its own" in words(opened("hardware.py"))
    monkeypatch.setenv(variable("folders"), "1")
    app = opened("hardware.py")
    assert "identified by" in words(press(app, "detect"))


def test_links_between_devices_are_chosen() -> None:
    app = opened("hardware.py?hardware.nodes=2")
    assert query_of(put(app, "_network", "ethernet-100"))["hardware.network"] == "ethernet-100"
    assert "hardware.network" not in query_of(put(app, "_network", ""))


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
    assert "8 × my-h100" in words(put(app, "paste-profile", OURS))
    assert "16 × my-h100 in 2 nodes" in words(put(app, "_hardware.nodes", "2"))
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
    assert_says(app, "per hour of a machine with 8 devices", "unverified: check it before use")
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
    assert query_of(put(app, "_commitment", "spot"))["hardware.commitment"] == "spot"
    assert "may reclaim the devices" in words(app)
    assert "spot" in app.table[0].value.to_string()
    app.selectbox(key="_price").select("gcp-h100-sxm-spot").run()
    assert query_of(app) == {"v": "1", "hardware.offer": "gcp-h100-sxm-spot"}
    assert app.get_by_key("_commitment").value == "spot"
    app.get_by_key("_commitment").set_value("reserved").run()
    assert query_of(app) == {"v": "1", "hardware.commitment": "reserved"}
    assert query_of(put(app, "_commitment", "on-demand")) == {"v": "1"}


def test_a_price_of_ones_own_has_a_term() -> None:
    app = opened("hardware.py")
    app.get_by_key("_price_mode").set_value("stated").run()
    app.text_input(key="_hardware.usd_per_device_hour").set_value("1.5").run()
    assert query_of(app)["hardware.usd_per_device_hour"] == "1.5"
    app.get_by_key("_hardware.commitment").set_value("reserved").run()
    assert query_of(put(app, "_hardware.term_months", "12"))["hardware.term_months"] == "12"
    assert "reserved for 12 months" in app.table[0].value.to_string()
    assert "hardware.term_months" not in query_of(put(app, "_hardware.commitment", "spot"))
    assert query_of(put(app, "_price_mode", "offer")) == {"v": "1"}
