from __future__ import annotations

import pytest

from recipe_core.documents import read_document
from recipe_core.errors import HardwareError
from recipe_core.hardware.catalog import cluster, device, device_names, fabric, offers, priors, roofline
from recipe_core.hardware.profile import Device
from recipe_core.request import HardwareRequest
from recipe_core.resources import root

WANTED = ["h100-sxm", "h200-sxm", "b200-sxm", "a100-sxm-80gb", "l40s", "rtx-4090", "mi300x", "mi325x", "mi355x", "cpu"]


@pytest.mark.parametrize("name", device_names())
def test_every_profile_is_complete(name):
    profile = device(name)
    assert profile.name == name
    assert fabric(profile.node.fabric).kind == "scale-up"
    assert fabric(profile.node.network).kind == "scale-out"
    assert profile.runtime in priors().roofline
    assert {"bf16", "fp32"} & set(profile.kv_dtypes)


def test_the_wanted_devices_are_there():
    assert set(WANTED) <= set(device_names())


def test_aliases_are_unambiguous():
    names = [alias.casefold() for name in device_names() for alias in device(name).aliases]
    assert len(names) == len(set(names))
    assert not set(names) & set(device_names()) - {n for n in device_names() if n in [a.casefold() for a in device(n).aliases]}
    assert device("NVIDIA H100 80GB HBM3").name == "h100-sxm"


@pytest.mark.parametrize(("name", "gib"), [("h100-sxm", 79.18), ("mi300x", 191.98), ("rtx-4090", 23.52)])
def test_memory_is_what_a_process_gets(name, gib):
    assert device(name).usable_memory_bytes / 2**30 == pytest.approx(gib, abs=0.05)


def test_every_wanted_gpu_has_a_dated_offer():
    priced = {offer.device for offer in offers()}
    assert set(WANTED) - {"cpu"} <= priced
    assert all(offer.date and offer.usd_per_device_hour > 0 for offer in offers())
    assert priced <= set(device_names())


def test_a_figure_without_a_listed_source_is_refused():
    raw = read_document(root("hw_profiles") / "l40s.yaml")
    raw["memory_bytes"]["source"] = "hearsay"
    with pytest.raises(ValueError, match="hearsay"):
        Device.model_validate(raw)


def test_own_roofline_comes_before_the_prior():
    own = roofline(device("h100-sxm"), "gemm", "bf16")
    assert own.status == "fitted"
    assert roofline(device("rtx-4090"), "gemm", "bf16") == priors().roofline["cuda"]["gemm"]


def test_the_price_is_stated_named_or_the_cheapest():
    stated = cluster(HardwareRequest(device="h100-sxm", usd_per_device_hour=1.25))
    assert (stated.usd_per_device_hour, stated.price_basis) == (1.25, "stated in the request")
    on_demand = [offer for offer in offers() if offer.device == "h100-sxm" and offer.commitment == "on-demand"]
    assert cluster(HardwareRequest(device="h100-sxm")).usd_per_device_hour == min(offer.usd_per_device_hour for offer in on_demand)
    named = cluster(HardwareRequest(device="h100-sxm", offer=on_demand[-1].name))
    assert named.usd_per_device_hour == on_demand[-1].usd_per_device_hour


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (HardwareRequest(device="h1000"), "h100"),
        (HardwareRequest(device="h100-sxm", fabric="ib-ndr-400"), "network"),
        (HardwareRequest(device="h100-sxm", network="carrier-pigeon"), "carrier-pigeon"),
        (HardwareRequest(device="h100-sxm", offer="free"), "free"),
    ],
)
def test_unknown_hardware_is_named(request_, says):
    with pytest.raises(HardwareError, match=says):
        cluster(request_)
