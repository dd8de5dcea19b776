"""Times of kernels by their kind: wide and narrow experts, quantised products, sparse attention."""

from dataclasses import replace

import numpy as np
import pytest

from recipe_core.engines.spec import KernelTimes
from recipe_core.estimates.roofline import SORT_TOKENS, experts_s
from recipe_core.estimates.serving.kernels import Step
from recipe_core.estimates.serving.operators import DENSE, GRAPHED, serving_step_parts
from recipe_core.hardware.cluster import device_profile, roofline
from recipe_core.plans.plans import plan_candidate
from recipe_core.plans.splits import row_estimates
from recipe_core.request.schema import PlanRequest

WIDE = "mistralai/Mixtral-8x7B-v0.1"
SPARSE = "deepseek-ai/DeepSeek-V3"
SMALL = "openai/gpt-oss-120b"
INDEXED = "deepseek-ai/DeepSeek-V3.2"


def planned(model, device, devices, engine, weight_dtype, **workload):
    request = {
        "model": model,
        "hardware": {"device": device, "per_node": devices},
        "workload": {"mode": "closed", "input_tokens": 1000, "output_tokens": 1000, **workload},
        "candidate": {"engine": engine, "tp": devices, "weight_dtype": weight_dtype},
    }
    return plan_candidate(PlanRequest.parse(request))


def served(*arguments, **workload):
    table, row = planned(*arguments, **workload)
    return table.estimate(row).to_json()["serving"]


def parts_of(setting, cases, sequences, context=1024.0):
    numbers = [np.full(len(cases), float(n)) for n in (0, 0, sequences, context, sequences)]
    return serving_step_parts(setting, cases, Step(*numbers))


def found(model, device, devices, engine, weight_dtype):
    table, row = planned(model, device, devices, engine, weight_dtype, concurrency=8)
    estimates, row = row_estimates(table, row)
    return estimates.setting, estimates.cases.take([row])


@pytest.mark.parametrize("engine", ["tensorrt-llm", "vllm", "sglang"])
@pytest.mark.parametrize(("device", "devices"), [("h100-sxm", 2), ("h100-sxm", 8), ("h200-sxm", 4)])
def test_wide_experts_are_no_slower_in_fp8_than_in_16_bits(engine, device, devices):
    """TensorRT-LLM's documentation: 1.4 to 1.6 times the rate of fp16, Mixtral on H100."""
    for load in ({"concurrency": 8}, {"concurrency": 256}, {"mode": "offline", "requests": 3000}):
        narrow, wide = (
            served(WIDE, device, devices, engine, dtype, **load)["output_tokens_per_s"]
            for dtype in ("fp8", "fp16")
        )
        assert narrow > wide, load


def test_an_engines_own_time_of_experts_fades_where_tokens_choose_many_of_them():
    """Two of 8 experts are a quarter of all, where nothing of it is left; 8 of 256 keep it."""
    for model, left in ((WIDE, 0.0), (SPARSE, 1 - (8 / 256 / DENSE) ** 2)):
        setting, cases = found(model, "h100-sxm", 8, "vllm", "fp8")
        seconds = []
        for time in (1.0, 2.0):
            times = {"moe": {setting.stored_dtype("experts"): time}}
            kernels = KernelTimes(times=times, source="test", status="fitted")
            engine = setting.engine.model_copy(update={"kernels": {"sm_90": kernels}})
            parts = parts_of(replace(setting, engine=engine), cases, 16)
            seconds.append(parts["experts"][0])
        assert seconds[1] / seconds[0] == pytest.approx(2.0**left, rel=0.01)


def test_experts_take_longer_the_more_rows_and_start_faster_in_a_graph():
    setting, cases = found(SMALL, "h200-sxm", 2, "vllm", "mxfp4")
    steps = [parts_of(setting, cases, rows)["experts"][0] for rows in (1, 4, 16, 64, 256, 1024)]
    assert np.all(np.diff(steps) > 0)
    chip, none = device_profile("h200-sxm"), np.zeros(1)
    tokens, shape = np.array([float(SORT_TOKENS)]), roofline(chip, "moe", "bf16")
    fixed_s = shape.overhead_s + shape.sort_s / 2
    for starts in (1.0, GRAPHED, 0.0):
        seconds = experts_s(chip, "bf16", none, none, none, tokens, starts=starts)
        assert seconds == pytest.approx(starts * fixed_s)


def test_small_experts_are_faster_on_the_device_of_the_same_die_with_more_bandwidth():
    for concurrency in (4, 64):
        h100, h200 = (
            served(SMALL, device, 2, "tensorrt-llm", "mxfp4", concurrency=concurrency)["tpot_s"]
            for device in ("h100-sxm", "h200-sxm")
        )
        assert h200 < h100


@pytest.mark.parametrize("device", ["b200-sxm", "h200-sxm"])
def test_a_dense_model_is_faster_in_fp8_than_in_16_bits_at_any_load(device):
    for concurrency in (1, 16, 128):
        narrow, wide = (
            served("meta-llama/Llama-3.3-70B-Instruct", device, 8, "vllm", dtype,
                   concurrency=concurrency)["tpot_s"]
            for dtype in ("fp8", "bf16")
        )  # fmt: skip
        assert narrow < wide


def test_an_indexer_writes_and_reads_a_score_for_every_token_before():
    setting, cases = found(INDEXED, "mi355x", 8, "vllm", "fp8")
    near, far = (parts_of(setting, cases, 64, context)["indexer"][0] for context in (4e3, 64e3))
    layers = sum(count for attention, count in setting.model.mixers if attention.index_heads)
    bandwidth = setting.cluster.device.memory_bandwidth_bytes_per_s.value
    assert far - near > layers * 64 * 60e3 * 8 / bandwidth
