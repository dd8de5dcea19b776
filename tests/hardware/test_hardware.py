from __future__ import annotations

import json

import pytest

from recipe_core.base.documents import read_document
from recipe_core.base.errors import HardwareError
from recipe_core.base.provenance import Quantity
from recipe_core.base.resources import root
from recipe_core.hardware.cluster import (
    cluster,
    device,
    device_names,
    dtypes,
    fabric,
    fabric_names,
    in_nodes,
    priors,
    roofline,
)
from recipe_core.hardware.offers import Offer
from recipe_core.hardware.prices import offers, offers_of
from recipe_core.hardware.profile import Device, Fabric
from recipe_core.hardware.request import HardwareRequest
from recipe_core.measured.serving_runs import published_runs
from recipe_core.measured.training_runs import published_training_runs
from recipe_core.present.views import hardware_view
from recipe_core.request.schema import PlanRequest
from recipe_core.search.plans import plan

WANTED = [
    "h100-sxm",
    "h200-sxm",
    "b200-sxm",
    "a100-sxm-80gb",
    "l40s",
    "rtx-4090",
    "mi300x",
    "mi325x",
    "mi355x",
    "cpu",
]

# every device there is, but the CPU, with the gigabytes it is marketed with (one die of an MI250X)
MARKETED = {
    "a100-sxm-80gb": 80, "a100-pcie-80gb": 80, "a100-sxm-40gb": 40, "h100-sxm": 80, "h100-pcie": 80,
    "h100-nvl": 94, "h200-sxm": 141, "h200-nvl": 141, "gh200": 96, "gh200-144gb": 144,
    "b200-sxm": 180, "b300-sxm": 288, "gb200": 186, "gb300": 288, "l4": 24, "l40s": 48,
    "a10g": 24, "a40": 48, "rtx-3090": 24, "rtx-4090": 24, "rtx-5090": 32, "rtx-6000-ada": 48,
    "rtx-a6000": 48, "rtx-pro-6000": 96, "dgx-spark": 128, "mi250x": 64, "mi300x": 192,
    "mi325x": 256, "mi350x": 288, "mi355x": 288, "rx-7900-xtx": 24, "radeon-pro-w7900": 48,
    "gaudi3": 128, "h800-sxm": 80, "h20": 96, "h20-141gb": 141, "h100-sxm-96gb": 96, "mi308x": 192,
    "tpu-v5e": 16, "tpu-v5p": 95, "tpu-v6e": 32, "trainium2": 96,
    "radeon-ai-pro-r9700": 32, "rx-9070-xt": 16, "arc-b580": 12, "arc-pro-b60": 24,
}  # fmt: skip
# devices that share their memory with the processor, of which the system keeps a part
SHARED = {
    "jetson-agx-orin-64gb": 64, "jetson-orin-nx-16gb": 16, "jetson-orin-nano-8gb": 8,
    "jetson-agx-thor": 128, "apple-m4-max-128gb": 128, "apple-m3-ultra-512gb": 512,
    "strix-halo-128gb": 128, "intel-npu-lunar-lake": 32,
}  # fmt: skip
PROCESSORS = ("cpu", "xeon-6980p", "epyc-9755", "graviton4")
UNITS = ("_bytes", "_bytes_per_s", "_flops_per_s", "_watts", "_s", "_usd", "efficiency")


@pytest.mark.parametrize("name", device_names())
def test_every_profile_is_complete(name):
    profile = device(name)
    assert profile.name == name
    assert fabric(profile.node.fabric).kind == "scale-up"
    assert fabric(profile.node.network).kind == "scale-out"
    assert profile.runtime in priors().roofline
    assert {"bf16", "fp16", "fp32"} & set(profile.kv_dtypes)


def test_the_wanted_devices_are_there():
    assert set(MARKETED) | set(SHARED) | set(PROCESSORS) <= set(
        device_names()
    )  # a new device needs no test of its own


def _figures(value, key=""):
    """Every figure as a plain value, with the key that has its unit (rates by dtype lie deeper)."""
    if isinstance(value, dict) and {"value", "source", "status"} <= set(value):
        yield key, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _figures(item, key if key.endswith("_per_s") else name)


FILES = [f"{name}.yaml" for name in device_names()] + [
    f"fabrics/{name}.yaml" for name in fabric_names()
]


@pytest.mark.parametrize("file", FILES)
def test_every_figure_has_unit_source_and_status(file):
    raw = read_document(root("hw_profiles") / file)
    figures = list(_figures(raw))
    assert len(figures) >= 3
    for key, figure in figures:
        assert key.endswith(UNITS), f"{key} has no unit"
        assert Quantity.model_validate(figure).source in raw["sources"]
    fitted = {figure["source"] for _, figure in figures if figure["status"] == "fitted"}
    assert all("command" in raw["sources"][source] for source in fitted), (
        "a fitted number without the command that fits it"
    )
    assert all(
        source.get("url")
        or source.get("date")
        or source.get("command")
        or len(source["title"]) > 10
        for source in raw["sources"].values()
    )


@pytest.mark.parametrize("name", MARKETED)
def test_memory_is_near_the_marketed_size(name):
    profile = device(name)
    assert 0.92 <= profile.memory_bytes.value / (MARKETED[name] * 1e9) <= 1.075
    assert (
        0.9 * profile.memory_bytes.value < profile.usable_memory_bytes <= profile.memory_bytes.value
    )


@pytest.mark.parametrize("name", SHARED)
def test_the_system_keeps_a_part_of_shared_memory(name):
    profile = device(name)
    assert 0.92 <= profile.memory_bytes.value / (SHARED[name] * 1e9) <= 1.075
    kept = profile.memory_bytes.value - profile.usable_memory_bytes
    assert 0.03 < kept / profile.memory_bytes.value <= 0.5
    assert profile.node.devices == 1


@pytest.mark.parametrize("name", device_names())
def test_weight_formats_are_explained(name):
    profile = device(name)
    rows = [row for row in dtypes().support if profile.architecture in row.architectures]
    native = {row.dtype for row in rows if row.silicon == "native"}
    assert set(profile.weight_dtypes) <= {
        row.dtype for row in rows if set(row.engines.values()) != {"none"}
    }
    assert set(profile.peak_flops_per_s) <= native
    if profile.vendor in ("nvidia", "amd"):
        assert native - {"fp8-block"} == set(profile.peak_flops_per_s), (
            "a native format has a rate, and only a native one"
        )


def test_fp8_encodings_differ_between_amd_generations():
    encodings = {
        arch: row.encoding
        for row in dtypes().support
        if row.dtype == "fp8"
        for arch in row.architectures
    }
    assert (encodings["gfx942"], encodings["gfx950"], encodings["sm_90"]) == (
        "e4m3fnuz",
        "e4m3",
        "e4m3",
    )


@pytest.mark.parametrize("name", device_names())
def test_the_view_shows_links_formats_and_sources(name):
    shown = hardware_view(device(name))
    node = device(name).node
    assert set(shown["links"]) == {node.fabric, node.network, *node.alternatives}
    assert shown["dtype_support"]
    assert all(row["source"]["title"] for row in shown["dtype_support"].values())
    assert shown["sources"]


@pytest.mark.parametrize("name", fabric_names())
def test_every_fabric_validates(name):
    found = fabric(name)
    assert found.name == name
    assert (found.beyond is None) or fabric(found.beyond).kind == "scale-up"


@pytest.mark.parametrize(
    ("wanted", "domain", "beyond"),
    [
        ({"device": "mi300x", "per_node": 6}, 8, None),
        ({"device": "l40s", "per_node": 2, "fabric": "pcie4"}, 8, None),
        ({"device": "gb200", "per_node": 4, "nodes": 18}, 72, None),
        ({"device": "h100-nvl", "per_node": 2}, 2, None),
        ({"device": "h100-nvl", "per_node": 8}, 2, "pcie5"),
        ({"device": "a100-pcie-80gb", "per_node": 4, "fabric": "nvlink3-bridge"}, 2, "pcie4"),
        ({"device": "gh200", "per_node": 1, "nodes": 4}, 8, None),
        ({"device": "h100-sxm", "per_node": 8, "nodes": 2, "network": "efa-400"}, 8, None),
    ],
)
def test_node_and_fabric_are_said_apart(wanted, domain, beyond):
    joined = cluster(HardwareRequest(**wanted))
    assert joined.fabric.domain == domain
    assert (joined.beyond.name if joined.beyond else None) == beyond
    assert joined.per_node == wanted["per_node"]
    assert joined.rack_scale == (joined.fabric.name == "nvl72"), (
        "PCIe and bridges end at the node, however few devices it holds"
    )


@pytest.mark.parametrize(
    ("wanted", "advice"),
    [
        ({"device": "h100-sxm", "per_node": 16}, "per_node: 8 and nodes: 2"),
        ({"device": "mi300x", "per_node": 12, "nodes": 2}, "per_node: 6 and nodes: 4"),
        ({"device": "l40s", "per_node": 9, "fabric": "pcie5"}, "per_node: 5 and nodes: 2"),
    ],
)
def test_a_node_holds_no_more_than_its_fabric_joins(wanted, advice):
    with pytest.raises(HardwareError, match="connects 8") as caught:
        cluster(HardwareRequest(**wanted))
    assert caught.value.field == "hardware.per_node"
    assert advice in str(caught.value)


@pytest.mark.parametrize(
    ("wanted", "advice"),
    [
        ({"device": "gb300", "per_node": 8}, "per_node: 4 and nodes: 2"),
        ({"device": "gb200", "per_node": 72}, "per_node: 4 and nodes: 18"),
        ({"device": "gb300", "per_node": 6, "nodes": 2}, "per_node: 4 and nodes: 3"),
        ({"device": "h100-sxm", "per_node": 16, "fabric": "nvl72"}, "per_node: 8 and nodes: 2"),
    ],
)
def test_a_node_of_a_rack_holds_what_its_profile_says(wanted, advice):
    with pytest.raises(HardwareError, match="joins nodes") as caught:
        cluster(HardwareRequest(**wanted))
    assert caught.value.field == "hardware.per_node"
    assert advice in str(caught.value)


def test_runs_of_a_rack_are_read_in_its_nodes():
    """Tables call what a job took of a rack one node."""
    assert in_nodes("gb200", 8, 1) == {"device": "gb200", "per_node": 4, "nodes": 2}
    for stated in (("gb200", 2, 1), ("gb200", 6, 1), ("h100-sxm", 16, 1), ("no-device", 8, 1)):
        assert in_nodes(*stated) == dict(zip(("device", "per_node", "nodes"), stated, strict=True))
    requests = [run.request() for run in (*published_runs(), *published_training_runs())]
    places = {json.dumps(request["hardware"]) for request in requests}
    for place in places:
        cluster(HardwareRequest(**json.loads(place)))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"domain": None}, "needs a domain"),
        ({"kind": "scale-out"}, "a network must not have one"),
        ({"bandwidth_gb": 1}, "Extra inputs"),
    ],
)
def test_a_fabric_that_contradicts_itself_is_refused(change, says):
    raw = read_document(root("hw_profiles") / "fabrics" / "nvlink4-bridge.yaml")
    with pytest.raises(ValueError, match=says):
        Fabric.model_validate(raw | change)


def test_a_device_no_engine_drives_is_refused_with_that_reason():
    request = {
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "hardware": {"device": "gaudi3", "per_node": 8},
        "workload": {"concurrency": 8},
        "options": {"engines": ["vllm"]},
    }
    table = plan(PlanRequest.parse(request))
    assert len(table.order) == 0
    assert all("does not run on hpu" in table.reasons(row)[0] for row in range(len(table)))
    assert all("vllm-gaudi" in table.reasons(row)[0] for row in range(len(table)))


NO_ENGINE = ("gaudi3", "tpu-v5e", "tpu-v5p", "tpu-v6e", "trainium2")


@pytest.mark.parametrize("name", NO_ENGINE)
def test_training_on_a_device_no_framework_drives_is_an_estimate_only(name):
    request = {
        "model": "Qwen/Qwen3-0.6B",
        "hardware": {"device": name, "per_node": 4},
        "workload": {"kind": "training", "sequence_length": 2048, "global_batch": 16},
    }
    table = plan(PlanRequest.parse(request))
    assert len(table.order) > 0
    assert f"a run on {device(name).title}" in table.launch_note


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("H800", "h800-sxm"),
        ("h20", "h20"),
        ("NVIDIA H20-3e", "h20-141gb"),
        ("H100-96GB", "h100-sxm-96gb"),
        ("MI308X", "mi308x"),
        ("v5e", "tpu-v5e"),
        ("Trillium", "tpu-v6e"),
        ("trn2", "trainium2"),
    ],
)
def test_devices_are_found_by_the_names_people_type(said, name):
    assert device(said).name == name


def test_what_tells_export_variants_from_their_originals():
    """H800: NVLink; H20: products and memory; MI308X: compute units of the same package."""
    h800, h100, h20 = (device(name) for name in ("h800-sxm", "h100-sxm", "h20"))
    assert h800.peak_flops_per_s["bf16"].value == h100.peak_flops_per_s["bf16"].value
    link, full = fabric(h800.node.fabric), fabric(h100.node.fabric)
    assert link.bandwidth_bytes_per_s.value == 200e9 < full.bandwidth_bytes_per_s.value
    assert h20.peak_flops_per_s["bf16"].value < 0.16 * h100.peak_flops_per_s["bf16"].value
    assert h20.memory_bandwidth_bytes_per_s.value > h100.memory_bandwidth_bytes_per_s.value
    shares = [
        device("mi308x").peak_flops_per_s[dtype].value / rate.value
        for dtype, rate in device("mi300x").peak_flops_per_s.items()
    ]
    assert shares == pytest.approx([80 / 304] * len(shares), rel=1e-3)


def test_aliases_are_unambiguous():
    names = [alias.casefold() for name in device_names() for alias in device(name).aliases]
    assert len(names) == len(set(names))
    assert not set(names) & set(device_names()) - {
        n for n in device_names() if n in [a.casefold() for a in device(n).aliases]
    }
    assert device("NVIDIA H100 80GB HBM3").name == "h100-sxm"


@pytest.mark.parametrize(
    ("name", "gib"), [("h100-sxm", 79.18), ("mi300x", 191.98), ("rtx-4090", 23.52)]
)
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


def holding(per_node: int, commitment: str) -> list[Offer]:
    """Offers of machines with so many H100 that are not unverified, cheapest first."""
    return [
        offer
        for offer in offers_of(device("h100-sxm"))
        if offer.commitment == commitment
        and offer.largest >= per_node
        and offer.status != "unverified"
    ]


def test_the_price_is_stated_named_or_the_cheapest():
    stated = cluster(HardwareRequest(device="h100-sxm", usd_per_device_hour=1.25))
    assert (stated.usd_per_device_hour, stated.price_basis) == (1.25, "stated in the request")
    on_demand = holding(8, "on-demand")
    usual = cluster(HardwareRequest(device="h100-sxm"))
    assert (usual.offer, usual.usd_per_device_hour) == (
        on_demand[0],
        on_demand[0].usd_per_device_hour,
    )
    named = cluster(HardwareRequest(device="h100-sxm", offer=on_demand[-1].name))
    assert named.usd_per_device_hour == on_demand[-1].usd_per_device_hour


def test_a_commitment_is_the_cheapest_offer_of_its_kind():
    prices = {
        kind: cluster(HardwareRequest(device="h100-sxm", commitment=kind))
        for kind in ("on-demand", "spot", "reserved")
    }
    assert (
        prices["on-demand"].usd_per_device_hour
        == cluster(HardwareRequest(device="h100-sxm")).usd_per_device_hour
    )
    for kind, found in prices.items():
        cheapest = holding(8, kind)[0]
        assert found.usd_per_device_hour == cheapest.usd_per_device_hour
        assert found.price_basis == cheapest.basis
        assert found.price_basis.startswith(f"{cheapest.name}, {kind}, {cheapest.date}")
    assert prices["spot"].usd_per_device_hour < prices["on-demand"].usd_per_device_hour
    assert [found.price_note is None for found in prices.values()] == [True, False, False]
    own = cluster(
        HardwareRequest(
            device="mi300x", usd_per_device_hour=1.1, commitment="reserved", term_months=36
        )
    )
    assert own.price_basis == "stated in the request, reserved for 36 months"


def test_a_spot_price_is_not_above_the_same_machines_on_demand_price():
    machines = {
        (offer.provider, offer.device, offer.instance, offer.region, offer.commitment): offer
        for offer in offers()
        if offer.status == "published" and offer.devices_per_node == 8
    }
    compared = 0
    for (*machine, commitment), offer in machines.items():
        usual = machines.get((*machine, "on-demand"))
        if commitment == "spot" and usual is not None:
            compared += 1
            assert 0.08 * usual.usd_per_device_hour < offer.usd_per_device_hour, offer.name
            assert offer.usd_per_device_hour <= 1.001 * usual.usd_per_device_hour, offer.name
    assert compared > 50


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"device": "mi355x", "commitment": "spot"}, "No offer for mi355x is spot"),
        (
            {"device": "h100-sxm", "commitment": "reserved", "term_months": 7},
            "reserved for 7 months",
        ),
    ],
)
def test_without_an_offer_of_the_commitment_the_price_is_unknown(fields, says):
    found = cluster(HardwareRequest(**fields))
    assert (found.usd_per_device_hour, found.price_basis, found.offer) == (None, None, None)
    assert says in found.price_note
    assert "usd_per_device_hour" in found.price_note


@pytest.mark.parametrize(
    ("fields", "field", "says"),
    [
        (
            {"device": "h100-sxm", "offer": "gcp-h100-sxm-spot", "commitment": "reserved"},
            "hardware.commitment",
            "is spot, not reserved",
        ),
    ],
)
def test_an_offer_and_another_commitment_contradict_each_other(fields, field, says):
    with pytest.raises(HardwareError, match=says) as caught:
        cluster(HardwareRequest(**fields))
    assert caught.value.field == field


def test_a_term_is_that_of_a_reservation():
    with pytest.raises(ValueError, match="commitment: reserved"):
        HardwareRequest(device="h100-sxm", commitment="spot", term_months=12)


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


def test_offers_of_a_device_are_all_there_are():
    for name in device_names():
        profile = device(name)
        assert offers_of(profile) == [offer for offer in offers() if offer.device == profile.name]
