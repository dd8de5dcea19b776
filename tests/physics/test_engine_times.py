"""What engines cost beside the device's operators: kernels of their own, launches, schedules."""

from dataclasses import replace

import numpy as np
import pytest

from recipe_core.engines.spec import KernelTimes, engine, engine_names
from recipe_core.model.catalog import catalog_model
from recipe_core.physics.serving.memory import memory
from recipe_core.physics.serving.operators import Step, kernels_launched, step_parts, total
from recipe_core.physics.serving.rates import serving
from recipe_core.physics.serving.simulate import simulate
from recipe_core.search.problem import resolve
from recipe_core.search.serving_candidates import one_case
from tests.conftest import make_request

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
MIXTURE = "openai/gpt-oss-120b"


def asked(model=LLAMA, name="vllm", concurrency=32):
    load = {"mode": "closed", "concurrency": concurrency, "output_tokens": 128}
    split = {"engine": name, "tp": 1, "pp": 1, "dp": 1}
    request = make_request(model, per_node=1, workload=load, candidate=split)
    setting, cases = one_case(resolve(request), request.candidate)
    return setting, cases, memory(setting, cases, np.ones(1))


def with_engine(setting, kernels=None, **overheads):
    """The setting with other numbers of its engine; its kernels are the profile's unless given."""
    runtime, architecture = setting.cluster.device.runtime, setting.cluster.device.architecture
    overhead = setting.engine.overhead(runtime).model_copy(update=overheads)
    times = KernelTimes(times=kernels or {}, source="fits", status="fitted")
    changed = {
        "overheads": {runtime: overhead},
        "kernels": {architecture: times} if kernels else {},
    }
    return replace(setting, engine=setting.engine.model_copy(update=changed))


def served(name="vllm", **overheads):
    """What is served under each number of one overhead."""
    setting, cases, room = asked(name=name)
    [(field, numbers)] = overheads.items()
    fixed = {} if field == "bunched" else {"bunched": 0.0}
    return [
        serving(with_engine(setting, **fixed, **{field: number}), cases, room) for number in numbers
    ]


def parts(setting, cases, rows=64.0, prefill=0.0):
    one = np.ones(1)
    step = Step(prefill * one, 512 * one, rows * one, 1024 * one, rows * one)
    return step_parts(setting, cases, step)


@pytest.mark.parametrize(
    ("kernel", "dtype", "part"),
    [
        ("attention_decode", "any", "attention"),
        ("gemm", "bf16", "qkv"),
        ("moe", "mxfp4", "experts"),
        ("host", "any", "engine"),
    ],
)
def test_an_engine_s_kernel_scales_its_part_and_no_other(kernel, dtype, part):
    setting, cases, _ = asked(MIXTURE)
    plain = parts(with_engine(setting, expert_row_s=0.0), cases)
    slower = parts(with_engine(setting, {kernel: {dtype: 1.5}}, expert_row_s=0.0), cases)
    assert slower[part] == pytest.approx(1.5 * plain[part])
    others = {name for name in plain if plain[name] != pytest.approx(slower[name])} - {part}
    products = {"o", "router", "mlp", "head"} if kernel == "gemm" else set()
    assert others <= products


def test_a_dtype_without_a_time_takes_any_and_shipped_times_are_near_one():
    times = KernelTimes(times={"gemm": {"fp8": 0.8, "any": 1.1}}, source="s", status="fitted")
    spec = engine("vllm").model_copy(update={"kernels": {"sm_90": times}})
    assert spec.kernel_time("sm_90", "gemm", "fp8") == 0.8
    assert spec.kernel_time("sm_90", "gemm", "bf16") == 1.1
    assert spec.kernel_time("sm_90", "moe", "fp8") == 1.0
    assert spec.kernel_time("sm_75", "gemm", "fp8") == 1.0
    # A kernel is a kernel: more than 3 × the profile's time is another cause
    for name in engine_names():
        for times in engine(name).kernels.values():
            for kernel, by_dtype in times.times.items():
                bound = 30 if kernel == "request" else 3
                assert all(1 / bound < time < bound for time in by_dtype.values()), (name, kernel)


def test_rows_of_experts_cost_more_the_more_there_are():
    setting, cases, _ = asked(MIXTURE)
    slow, fast = (with_engine(setting, expert_row_s=cost) for cost in (1e-7, 0.0))
    few, many = (
        parts(slow, cases, rows)["experts"] - parts(fast, cases, rows)["experts"]
        for rows in (8.0, 512.0)
    )
    assert few == pytest.approx(8 * 4 * 36 * 1e-7)  # 4 experts a token, 36 layers
    assert many == pytest.approx(64 * few)


def test_layers_launch_as_many_kernels_as_they_have_parts_and_a_step_takes_at_least_these():
    def launched(name):
        return {kernels_launched(layer) for layer in catalog_model(name).layers}

    assert launched(LLAMA) == {9}  # 5 of attention, 4 of the feed-forward
    assert launched(MIXTURE) == {14}  # routing, selection, sorting, combining and a copy
    assert launched("deepseek-ai/DeepSeek-V3") == {13, 21}  # MLA, and a shared expert
    assert max(launched("deepseek-ai/DeepSeek-V3.2")) == 27  # an indexer
    setting, cases, _ = asked()
    slow = with_engine(setting, launch_s=1e-3)
    step = parts(slow, cases, rows=1.0, prefill=16.0)
    assert total(step) - step["engine"] == pytest.approx(32 * 9 * 1e-3)
    assert parts(slow, cases, rows=1.0)["launch"] == 0  # decoding replays a graph


@pytest.mark.parametrize("name", ["vllm", "sglang", "tensorrt-llm"])
def test_prompts_that_start_together_move_waiting_from_tokens_to_first_tokens(name):
    spread, half, bunched = served(name, bunched=(0.0, 0.5, 1.0))
    assert bunched.ttft_s > 1.5 * spread.ttft_s
    assert bunched.tpot_s < spread.tpot_s
    assert bunched.request_latency_s == pytest.approx(spread.request_latency_s, rel=0.15)
    for found in (spread, bunched):
        assert total(found.decode) == pytest.approx(found.tpot_s)
        assert total(found.prefill) == pytest.approx(found.ttft_s)
    if name == "vllm":
        assert half.tpot_s == pytest.approx((spread.tpot_s + bunched.tpot_s) / 2)
        assert half.ttft_s == pytest.approx((spread.ttft_s + bunched.ttft_s) / 2)


def test_late_steps_delay_the_first_token_and_the_simulator_runs_prompts_first():
    none, late = served(late_steps=(0.0, 4.0))
    assert 3 * none.step_s < late.ttft_s - none.ttft_s < 5 * none.tpot_s
    assert late.output_tokens_per_s < none.output_tokens_per_s
    # the simulator runs prompts first where the engine does
    means = {}
    for mixes in (True, False):
        setting, cases, room = asked(concurrency=64)
        changed = setting.engine.model_copy(update={"mixes_prompts": mixes})
        means[mixes] = simulate(replace(setting, engine=changed), cases, room).means_s
    assert means[False]["ttft_s"][0] < means[True]["ttft_s"][0]  # no decoding beside the prompt
    assert means[False]["tpot_s"][0] != means[True]["tpot_s"][0]
