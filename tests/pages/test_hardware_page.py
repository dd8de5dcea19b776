"""The page that asks where it will run."""

from __future__ import annotations

import pytest

from recipe_core.serve import FOLDERS
from tests.pages.opening import opened, query_of, said


def test_a_vendor_brings_its_device_and_drops_the_old_offer() -> None:
    app = opened("hardware.py", **{"hardware.offer": "lambda-h100-sxm"})
    app.get_by_key("_vendor").set_value("amd").run()
    assert query_of(app) == {"v": "1", "hardware.device": "mi300x"}
    assert "8 × mi300x" in said(app)


def test_a_price_of_ones_own() -> None:
    app = opened("hardware.py")
    app.get_by_key("_price_mode").set_value("stated").run()
    app.number_input(key="_hardware.usd_per_device_hour").set_value(1.5).run()
    assert query_of(app)["hardware.usd_per_device_hour"] == "1.5"


def test_a_device_says_what_its_estimates_rest_on() -> None:
    assert "timings taken on this device were fitted" in said(opened("hardware.py"))
    assert "usual efficiencies" in said(opened("hardware.py", **{"hardware.device": "rtx-5090"}))


def test_a_cluster_is_put_beside_and_taken_away() -> None:
    app = opened("hardware.py")
    app.selectbox(key="_add").select("mi300x").run()
    assert "mi300x" in query_of(app)["options.hardware"]
    assert "8 × h100-sxm or 8 × mi300x" in said(app)
    app.number_input(key="_other_0_nodes").set_value(2).run()
    assert '"nodes":2' in query_of(app)["options.hardware"]
    app.button(key="drop-0").click().run()
    assert "options.hardware" not in query_of(app)


def test_own_hardware_makes_a_price() -> None:
    app = opened("hardware.py")
    app.get_by_key("_price_mode").set_value("owned").run()
    before = float(query_of(app)["hardware.usd_per_device_hour"])
    app.number_input(key="_own_capex_usd").set_value(60_000.0).run()
    after = float(query_of(app)["hardware.usd_per_device_hour"])
    assert after > 1.8 * before
    assert "written off" in said(app)
    app.number_input(key="_own_years").set_value(0.0).run()
    assert "greater than 0" in app.error[0].value
    assert app.number_input(key="_own_years").value == 4.0
    app.get_by_key("_price_mode").set_value("offer").run()
    assert "hardware.usd_per_device_hour" not in query_of(app)


def test_this_machine_is_described_only_to_those_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDERS, raising=False)
    assert "does not describe its own" in said(opened("hardware.py"))
    monkeypatch.setenv(FOLDERS, "1")
    app = opened("hardware.py")
    app.button(key="detect").click().run()
    assert "found by" in said(app)


def test_links_between_devices_are_chosen() -> None:
    app = opened("hardware.py", **{"hardware.nodes": "2"})
    app.selectbox(key="_network").select("ethernet-100").run()
    assert query_of(app)["hardware.network"] == "ethernet-100"
    app.selectbox(key="_network").select("").run()
    assert "hardware.network" not in query_of(app)
