"""Devices, fabrics, clusters and prices as their files have them; what runs on edge devices."""

import json

import pytest

from recipe_core.base.documents import read_document
from recipe_core.base.errors import HardwareError
from recipe_core.base.provenance import Quantity
from recipe_core.base.resources import shipped_path
from recipe_core.estimates.measured.runs import published_runs, published_training_runs
from recipe_core.hardware import cluster as clusters
from recipe_core.hardware.cluster import device_names, device_profile, fabric, fabric_names
from recipe_core.hardware.market_places import is_on_market_place
from recipe_core.hardware.prices import all_offers, offers_of
from recipe_core.hardware.profile import RUNTIMES, Fabric
from recipe_core.hardware.request import HardwareRequest, validate_profile
from recipe_core.payload.launcher.devices import parse_xpu_smi
from recipe_core.plans.plan_json import plan_launch_note
from recipe_core.plans.plans import plan_splits
from recipe_core.plans.rank import refused_rows
from recipe_core.plans.splits import row_reasons
from recipe_core.request.schema import PlanRequest
from recipe_core.request.size import SizeRequest
from recipe_core.sizing.market import iter_device_choices
from recipe_core.views.catalog import hardware_view
from recipe_core.views.plans import plan_text
from scripts.edge_speeds import ratios
from tests.fixtures.command_line import recipe
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table

PROFILES = shipped_path("hw_profiles")


def cluster(**fields):
    return clusters.cluster(HardwareRequest(**fields))


@over("name", device_names())
def test_every_profile_is_complete_and_shown(name):
    profile = device_profile(name)
    node = profile.node
    assert profile.name == name
    assert (fabric(node.fabric).kind, fabric(node.network).kind) == ("scale-up", "scale-out")
    assert profile.runtime in clusters.priors().roofline
    assert {"bf16", "fp16", "fp32"} & set(profile.kv_dtypes)
    assert offers_of(profile) == [offer for offer in all_offers() if offer.device == name]
    shown = hardware_view(profile)
    assert set(shown["links"]) == {node.fabric, node.network, *node.alternatives}
    assert shown["dtype_support"]
    assert all(row["source"]["title"] for row in shown["dtype_support"].values())
    assert shown["sources"]
    # what profiles of machines measure is in no shipped file or dump, and so in no digest
    kept, speed = json.loads(profile.model_dump_json()), clusters.host_speed(profile)
    assert not {"host", "transfers", "collectives"} & {*kept, *kept["node"]}
    assert (speed.layers, speed.sequences, speed.requests, speed.spread) == (1, 1, 1, 0)
    rows = [row for row in clusters.dtypes().support if profile.architecture in row.architectures]
    native = {row.dtype for row in rows if row.silicon == "native"}
    run = {row.dtype for row in rows if set(row.engines.values()) != {"none"}}
    assert set(profile.weight_dtypes) <= run
    assert set(profile.peak_flops_per_s) <= native
    if profile.vendor in ("nvidia", "amd"):
        assert native - {"fp8-block"} == set(profile.peak_flops_per_s)


def figures_of(value, key=""):
    """Every figure as a plain value, with the key that has its unit (rates by dtype lie deeper)."""
    if isinstance(value, dict) and {"value", "source", "status"} <= set(value):
        yield key, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from figures_of(item, key if key.endswith("_per_s") else name)


@over("file", [*device_names(announced=True), *(f"fabrics/{name}" for name in fabric_names())])
def test_every_figure_has_unit_source_and_status(file):
    raw = read_document(PROFILES / f"{file}.yaml")
    figures = list(figures_of(raw))
    assert len(figures) >= 3
    units = (
        "_bytes",
        "_bytes_per_s",
        "_flops_per_s",
        "_watts",
        "_s",
        "_usd",
        "_share",
        "efficiency",
    )
    for key, figure in figures:
        assert key.endswith(units), f"{key} has no unit"
        assert Quantity.model_validate(figure).source in raw["sources"]
        assert figure["status"] != "fitted" or "command" in raw["sources"][figure["source"]]
    for source in raw["sources"].values():
        assert {"url", "date", "command"} & set(source) or len(source["title"]) > 10


def test_memory_is_near_the_marketed_size_and_the_system_keeps_a_part_of_shared_memory():
    marketed, shared = table("hardware", "marketed"), table("hardware", "shared")
    for name, gigabytes in (marketed | shared).items():
        profile = device_profile(name)
        memory_bytes = profile.memory_bytes.value
        assert 0.92 <= memory_bytes / (gigabytes * 1e9) <= 1.075, name
        kept = 1 - profile.usable_memory_bytes / memory_bytes
        if name in shared:
            assert (0.03 < kept <= 0.5, profile.node.devices) == (True, 1), name
        else:
            assert 0 <= kept < 0.1, name
    for name, gib in (("h100-sxm", 79.18), ("mi300x", 191.98), ("rtx-4090", 23.52)):
        assert device_profile(name).usable_memory_bytes / 2**30 == pytest.approx(gib, abs=0.05)


def test_every_fabric_validates_and_runs_of_a_rack_are_read_in_its_nodes():
    for name in fabric_names():
        found = fabric(name)
        assert found.name == name
        assert (found.beyond is None) or fabric(found.beyond).kind == "scale-up"
    raw = read_document(PROFILES / "fabrics" / "nvlink4-bridge.yaml")
    for change in ({"domain": None}, {"kind": "scale-out"}, {"bandwidth_gb": 1}):
        with pytest.raises(ValueError, match=r"domain|must not have|Extra inputs"):
            Fabric.model_validate(raw | change)
    # Tables call what a job took of a rack one node.
    assert clusters.in_nodes("gb200", 8, 1) == {"device": "gb200", "per_node": 4, "nodes": 2}
    for name, per_node in (("gb200", 2), ("gb200", 6), ("h100-sxm", 16), ("no-device", 8)):
        place = {"device": name, "per_node": per_node, "nodes": 1}
        assert clusters.in_nodes(*place.values()) == place
    requests = [run.request() for run in (*published_runs(), *published_training_runs())]
    for place in {json.dumps(request["hardware"]) for request in requests}:
        cluster(**json.loads(place))


def test_a_node_holds_what_its_fabric_or_profile_joins():
    for wanted, domain, beyond in table("hardware", "node_and_fabric_are_said_apart"):
        found = cluster(**wanted)
        beyond_it = found.beyond.name if found.beyond else None
        place = (found.fabric.domain, beyond_it, found.per_node)
        assert place == (domain, beyond, wanted["per_node"]), wanted
        # PCIe and bridges end at the node, however few devices it holds
        assert found.rack_scale == (found.fabric.name == "nvl72"), wanted
    for said, wanted, per_node, nodes in table("hardware", "nodes_too_large"):
        error = refusal(cluster, **wanted, kind=HardwareError)
        assert error.field == "hardware.per_node"
        for part in (said, f"per_node: {per_node} and nodes: {nodes}"):
            assert part in str(error)


def test_devices_that_are_announced_say_so_and_are_chosen_by_nobody_else():
    names = set(device_names(announced=True)) - set(device_names())
    assert names == {"mi455x", "vr200"}
    listed = recipe("hardware").stdout
    for name in names:
        profile = device_profile(name)
        assert profile.announced.source in profile.sources
        assert hardware_view(profile)["announced"]["date"] == "2026-01"
        assert any(name in line and "announced 2026-01" in line for line in listed.splitlines())
        said = profile.announcement
        assert "from the vendor's announcement, and no engine was seen on it" in said
        values = {
            "model": "Qwen/Qwen3-8B",
            "hardware": {"device": name, "per_node": 4},
            "workload": {"concurrency": 4},
            "options": {"engines": ["vllm"]},
        }
        found = plan_splits(PlanRequest.parse(values))
        assert said in plan_text(found, 1)
        estimate = found.estimate(found.best_row).to_json()
        assert estimate["notes"].count(said) == 1
        assert estimate["memory"]["start_probability"] <= 0.5
        assert any("nobody has run one" in note for note in estimate["notes"])
        workload = {"kind": "training", "sequence_length": 512, "global_batch": 8}
        trained = planned(name, "Qwen/Qwen3-0.6B", 4, workload)
        estimate = trained.estimate(trained.best_row).to_json()
        assert said in estimate["notes"]
        assert estimate["memory"]["start_probability"] <= 0.5
    anything = {"model": "Qwen/Qwen3-8B", "hardware": "any", "workload": {"concurrency": 4}}
    chosen = {each.profile.name for each in iter_device_choices(SizeRequest.parse(anything))}
    assert {"h100-sxm", "l4"} <= chosen
    assert not names & chosen
    with pytest.raises(HardwareError, match="mi455x"):
        device_profile("mi455y")  # named where it is what was meant


def test_old_devices_compute_in_fp16_and_engines_without_kernels_for_them_are_refused():
    """A T4 and a V100 have no bf16: checkpoints in it are loaded as fp16."""
    engines = ["vllm", "sglang", "transformers", "llama-cpp"]
    for name, model, weights, runs in table("hardware", "fp16_alone"):
        values = {
            "model": model,
            "hardware": {"device": name, "per_node": 1},
            "workload": {"input_tokens": 512, "output_tokens": 64, "concurrency": 1},
            "options": {"engines": engines},
        }
        found = plan_splits(PlanRequest.parse(values))
        split = found.candidate(found.best_row)
        assert (split["weight_dtype"], split["kv_dtype"]) == (weights, "fp16"), name
        able = {found.candidate(int(row))["engine"] for row in found.order}
        assert able == set(runs), (name, model)
        said = {text for row in refused_rows(found) for text in row_reasons(found, int(row))}
        for engine in {"vllm", "sglang"} - set(runs):
            title = {"vllm": "vLLM", "sglang": "SGLang"}[engine]
            assert any(title in text and "does not start" in text for text in said), (name, engine)
    assert not {"bf16", "fp8"} & set(device_profile("v100-sxm-16gb").weight_dtypes)
    assert "bf16" not in device_profile("t4").peak_flops_per_s


@over("name", ["gaudi3", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-v7x", "trainium2", "trainium3"])
def test_training_on_a_device_no_framework_drives_is_an_estimate_only(name):
    workload = {"kind": "training", "sequence_length": 2048, "global_batch": 16}
    table = planned(name, "Qwen/Qwen3-0.6B", 4, workload)
    assert len(table.order) > 0
    assert device_profile(name).title in plan_launch_note(table)


def test_devices_are_found_by_the_names_people_type_and_differ_as_published():
    typed = table("hardware", "typed")
    assert {said: device_profile(said).name for said in typed} == typed
    owners = [
        (alias.casefold(), name)
        for name in device_names()
        for alias in device_profile(name).aliases
    ]
    assert len(dict(owners)) == len(owners)
    assert [pair for pair in owners if pair[0] in device_names() and pair[0] != pair[1]] == []
    # H800: NVLink; H20: products and memory; MI308X: compute units of the same package.
    h800, h100, h20 = (device_profile(name) for name in ("h800-sxm", "h100-sxm", "h20"))
    assert h800.peak_flops_per_s["bf16"].value == h100.peak_flops_per_s["bf16"].value
    link, full = fabric(h800.node.fabric), fabric(h100.node.fabric)
    assert link.bandwidth_bytes_per_s.value == 200e9 < full.bandwidth_bytes_per_s.value
    assert h20.peak_flops_per_s["bf16"].value < 0.16 * h100.peak_flops_per_s["bf16"].value
    assert h20.memory_bandwidth_bytes_per_s.value > h100.memory_bandwidth_bytes_per_s.value
    cut, rates = (device_profile(name).peak_flops_per_s for name in ("mi308x", "mi300x"))
    shares = [cut[dtype].value / rate.value for dtype, rate in rates.items()]
    assert shares == pytest.approx([80 / 304] * len(shares), rel=1e-3)
    assert clusters.roofline(device_profile("h100-sxm"), "gemm", "bf16").status == "fitted"
    prior = clusters.priors().roofline["cuda"]["gemm"]
    assert clusters.roofline(device_profile("rtx-4090"), "gemm", "bf16") == prior
    rows = [row for row in clusters.dtypes().support if row.dtype == "fp8"]
    encodings = {name: row.encoding for row in rows for name in row.architectures}
    found = [encodings[name] for name in ("gfx942", "gfx950", "sm_90")]
    assert found == ["e4m3fnuz", "e4m3", "e4m3"]


def holding(per_node, commitment):
    """Offers of machines with so many H100 that count, cheapest first: verified, new, of no market
    place; else verified."""
    known = [
        offer
        for offer in offers_of(device_profile("h100-sxm"))
        if offer.commitment == commitment
        and offer.largest >= per_node
        and offer.status != "unverified"
    ]
    new = [offer for offer in known if offer.is_trusted() and not is_on_market_place(offer)]
    return new or known


def test_every_price_is_stated_named_or_the_cheapest_of_its_commitment_or_unknown():
    stated = cluster(device="h100-sxm", usd_per_device_hour=1.25)
    assert (stated.usd_per_device_hour, stated.price_basis) == (1.25, "stated in the request")
    usual, last = cluster(device="h100-sxm"), holding(8, "on-demand")[-1]
    assert usual.offer == holding(8, "on-demand")[0]
    named = cluster(device="h100-sxm", offer=last.name)
    assert named.usd_per_device_hour == last.usd_per_device_hour
    kinds = ("on-demand", "spot", "reserved")
    prices = {kind: cluster(device="h100-sxm", commitment=kind) for kind in kinds}
    for kind, found in prices.items():
        cheapest = holding(8, kind)[0]
        assert found.usd_per_device_hour == cheapest.usd_per_device_hour
        assert found.price_basis == cheapest.basis
        assert cheapest.basis.startswith(f"{cheapest.name}, {kind}, {cheapest.date}")
    on_demand = prices["on-demand"].usd_per_device_hour
    assert prices["spot"].usd_per_device_hour < on_demand == usual.usd_per_device_hour
    assert [found.price_note is None for found in prices.values()] == [True, False, False]
    term = {"usd_per_device_hour": 1.1, "commitment": "reserved", "term_months": 36}
    own = cluster(device="mi300x", **term)
    assert own.price_basis == "stated in the request, reserved for 36 months"
    # what nobody offers has no price or is refused
    for fields, said in table("hardware", "unpriced"):
        found = cluster(**fields)
        assert (found.usd_per_device_hour, found.price_basis, found.offer) == (None, None, None)
        assert all(part in found.price_note for part in (said, "usd_per_device_hour"))
    for fields, said in table("hardware", "no_clusters"):
        error = refusal(cluster, **fields, kind=HardwareError)
        assert said in str(error)
    assert error.field == "hardware.commitment"  # of the last
    with pytest.raises(ValueError, match="commitment: reserved"):
        HardwareRequest(device="h100-sxm", commitment="spot", term_months=12)
    # a spot price is not above the same machine's on-demand price
    machines = {
        (offer.provider, offer.device, offer.instance, offer.region, offer.commitment): offer
        for offer in all_offers()
        if offer.status == "published" and offer.devices_per_node == 8
    }
    shares = [
        (offer.usd_per_device_hour / machines[(*machine, "on-demand")].usd_per_device_hour, offer)
        for (*machine, commitment), offer in machines.items()
        if commitment == "spot" and (*machine, "on-demand") in machines
    ]
    assert len(shares) > 50
    for share, offer in shares:
        assert 0.08 < share <= 1.001, offer.name


def planned(name, model="Qwen/Qwen3-4B", per_node=1, workload=None, **options):
    hardware = {"device": name, "per_node": per_node}
    request = {"model": model, "hardware": hardware, "workload": workload or {"concurrency": 4}}
    return plan_splits(PlanRequest.parse(request | {"options": options}))


@over("name, engine", table("hardware", "driven").items())
def test_an_edge_device_serves_a_model_that_fits(name, engine):
    table = planned(name)
    best = int(table.order[0])
    weights_bytes, bandwidth = 4.0e9 * 2, device_profile(name).memory_bandwidth_bytes_per_s.value
    assert table.estimate(best).serving.tpot_s > weights_bytes / bandwidth
    assert table.setting(best).engine.name == engine


def test_what_does_not_run_says_why_and_a_vendor_may_have_several_runtimes():
    short = planned("jetson-orin-nano-8gb")
    assert len(short.order) == 0
    assert "short" in row_reasons(short, 0)[0]
    for name, engine, said in table("hardware", "not_driven"):
        found = planned(name, engines=[engine])
        assert len(found.order) == 0
        assert all(said in row_reasons(found, row)[0] for row in range(len(found)))
    assert RUNTIMES["intel"] == ("hpu", "xpu", "npu")
    intel = map(device_profile, ("gaudi3", "arc-b580", "intel-npu-lunar-lake"))
    assert {found.runtime for found in intel} == {*RUNTIMES["intel"]}
    plain = json.loads(device_profile("arc-b580").model_dump_json(exclude_none=True))
    error = refusal(
        validate_profile, plain | {"name": "mine", "runtime": "rocm"}, kind=HardwareError
    )
    assert "hpu or xpu or npu, not rocm" in str(error)
    names = ("Intel(R) Arc(TM) B580 Graphics", "Intel(R) Arc(TM) Pro B60 Graphics")
    rows = [{"device_id": n, "device_name": name} for n, name in enumerate(names)]
    found = parse_xpu_smi("log line\n" + json.dumps({"device_list": rows}))
    assert [gpu.index for gpu in found] == [0, 1]
    assert [device_profile(gpu.name).name for gpu in found] == ["arc-b580", "arc-pro-b60"]


def test_published_speeds_of_llama_cpp_are_met():
    """Within the factors that docs/reference/hardware.md states."""
    found = list(ratios())
    assert all(1 / 1.35 < ratio.tokens < 1.35 for ratio in found)
    apple = [ratio for ratio in found if "apple" in ratio.run.device]
    assert all(1 / 1.15 < ratio.tokens < 1.15 for ratio in apple)
    assert all(ratio.prompt is None or 0.95 < ratio.prompt < 2.5 for ratio in found)
