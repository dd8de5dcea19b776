"""Devices on desks, in robots and in laptops: each answers a plan or says what runs on it."""

import json

from recipe_core.base.errors import HardwareError
from recipe_core.hardware.cluster import device
from recipe_core.hardware.custom import validated
from recipe_core.hardware.profile import RUNTIMES
from recipe_core.launcher.machine import parse_xpu_smi
from recipe_core.request.schema import PlanRequest
from recipe_core.search.plans import plan
from scripts.edge_speeds import ratios
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over

DRIVEN = {
    "jetson-agx-orin-64gb": "vllm", "jetson-orin-nx-16gb": "vllm", "jetson-agx-thor": "vllm",
    "apple-m4-max-128gb": "llama-cpp", "apple-m3-ultra-512gb": "llama-cpp",
    "radeon-ai-pro-r9700": "vllm", "rx-9070-xt": "vllm", "strix-halo-128gb": "vllm",
    "arc-b580": "vllm", "arc-pro-b60": "vllm", "xeon-6980p": "transformers",
    "epyc-9755": "transformers", "graviton4": "transformers",
}  # fmt: skip
"""By device, the engine of a request that names none."""


def planned(name, model="Qwen/Qwen3-4B", **options):
    hardware = {"device": name, "per_node": 1}
    request = {"model": model, "hardware": hardware, "workload": {"concurrency": 4}}
    return plan(PlanRequest.parse(request | ({"options": options} if options else {})))


@over("name", DRIVEN)
def test_an_edge_device_serves_a_model_that_fits(name):
    table = planned(name)
    serving = table.estimate(int(table.order[0])).serving
    profile = device(name)
    weights_bytes = 4.0e9 * 2
    assert serving.tpot_s > weights_bytes / profile.memory_bandwidth_bytes_per_s.value
    assert table.setting(int(table.order[0])).engine.name == DRIVEN[name]


def test_what_does_not_run_says_why_and_what_does():
    short = planned("jetson-orin-nano-8gb")
    assert len(short.order) == 0
    assert "short" in short.reasons(0)[0]
    for name, engine, says in (
        ("intel-npu-lunar-lake", "vllm", "what drives it: OpenVINO GenAI"),
        ("apple-m4-max-128gb", "vllm", "on it run llama.cpp"),
        ("arc-pro-b60", "sglang", "on it run llama.cpp server, vLLM"),
        ("graviton4", "tensorrt-llm", "does not run on cpu"),
    ):
        table = planned(name, engines=[engine])
        assert len(table.order) == 0
        assert says in table.reasons(0)[0]


def test_published_speeds_of_llama_cpp_are_met():
    """Within the factors that docs/hardware.md states."""
    found = list(ratios())
    assert all(1 / 1.35 < ratio.tokens < 1.35 for ratio in found)
    apple = [ratio for ratio in found if "apple" in ratio.run.device]
    assert all(1 / 1.15 < ratio.tokens < 1.15 for ratio in apple)
    assert all(ratio.prompt is None or 0.95 < ratio.prompt < 2.5 for ratio in found)


def test_a_vendor_may_have_several_runtimes():
    assert RUNTIMES["intel"] == ("hpu", "xpu", "npu")
    names = ("gaudi3", "arc-b580", "intel-npu-lunar-lake")
    assert {device(name).runtime for name in names} == set(RUNTIMES["intel"])
    plain = json.loads(device("arc-b580").model_dump_json(exclude_none=True))
    error = refusal(validated, plain | {"name": "mine", "runtime": "rocm"}, kind=HardwareError)
    assert "hpu or xpu or npu, not rocm" in str(error)
    # GPUs that xpu-smi lists
    names = ("Intel(R) Arc(TM) B580 Graphics", "Intel(R) Arc(TM) Pro B60 Graphics")
    rows = [{"device_id": n, "device_name": name} for n, name in enumerate(names)]
    found = parse_xpu_smi("log line\n" + json.dumps({"device_list": rows}))
    assert [gpu.index for gpu in found] == [0, 1]
    assert [device(gpu.name).name for gpu in found] == ["arc-b580", "arc-pro-b60"]
