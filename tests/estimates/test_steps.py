"""Times of operators and steps: rooflines, routers, engines' own, the steady state of a replica."""

import typing
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from recipe_core.base.solvers import find_root
from recipe_core.engines.spec import KernelTimes, engine, engine_names
from recipe_core.estimates.roofline import SORT_TOKENS, experts_s, operator_s, product_dtype
from recipe_core.estimates.serving import continuous_batching as batching
from recipe_core.estimates.serving.continuous_batching import Loop, idle_step, prompt_step
from recipe_core.estimates.serving.kernels import Step, total
from recipe_core.estimates.serving.memory import serving_memory
from recipe_core.estimates.serving.operators import DENSE, kernels_launched, serving_step_parts
from recipe_core.estimates.serving.rates import solve_serving
from recipe_core.estimates.serving.routing import SPREAD, crowding, distinct_experts
from recipe_core.estimates.serving.simulate import simulate_serving
from recipe_core.estimates.serving.speculative import engine_step, engine_steps
from recipe_core.hardware.cluster import device_names, device_profile, priors, roofline
from recipe_core.hardware.profile import Family
from recipe_core.models.catalog import catalog_model
from recipe_core.models.mlp import MoeMlp
from recipe_core.plans.plans import plan_splits
from recipe_core.plans.problem import resolve_problem
from recipe_core.plans.serving_candidates import stated_serving_case
from tests.conftest import LLAMA_70B, make_request
from tests.fixtures.catalogues import table
from tests.fixtures.rows import over

MANY = MoeMlp(experts=256, top_k=8, intermediate=2048)
TOKENS = np.array([1.0, 2.0, 8.0, 64.0, 512.0, 4096.0, 1e6])


def test_every_runtime_has_priors_and_only_experts_sort_tokens_and_move_rows():
    for runtime, families in priors().roofline.items():
        assert set(families) == set(typing.get_args(Family)), runtime
    for name in device_names():
        for family, shapes in device_profile(name).roofline.items():
            for dtype, shape in shapes.items():
                sorts = (shape.row_efficiency is not None, shape.sort_s == 0 or family == "moe")
                assert sorts == (family == "moe", True), f"{name} {family} {dtype}"
    assert roofline(device_profile("h100-sxm"), "mla_decode", "fp8").status == "fitted"
    assert (
        roofline(device_profile("l40s"), "mla_decode", "fp8")
        == priors().roofline["cuda"]["mla_decode"]
    )


def old_processor():
    """A processor whose 16-bit products are emulated, at a fifth of its fp32 rate."""
    machine = device_profile("cpu")
    fast = machine.peak_flops_per_s["fp32"]
    slow = fast.model_copy(update={"value": fast.value / 5})
    return machine.model_copy(update={"peak_flops_per_s": {"fp32": fast, "bf16": slow}})


def test_kernels_that_widen_multiply_in_fp32_only_where_that_is_faster():
    old, flops, none = old_processor(), np.array([1e12]), np.zeros(1)
    assert product_dtype(old, "bf16") == "bf16"
    assert product_dtype(old, "bf16", widens=True) == "fp32"
    assert product_dtype(old, "int4", widens=True) == "fp32"
    assert product_dtype(device_profile("xeon-6980p"), "bf16", widens=True) == "bf16"  # AMX
    assert product_dtype(device_profile("h100-sxm"), "fp8", widens=True) == "fp8"
    slow, fast = (operator_s(old, "gemm", "int4", flops, none, widens=w) for w in (False, True))
    assert slow / fast == pytest.approx(5, rel=0.01)
    assert operator_s(device_profile("h100-sxm"), "gemm", "bf16", none, none) == 0


def test_experts_take_their_products_and_many_tokens_touch_all():
    chip = device_profile("h200-sxm")
    shape = roofline(chip, "moe", "bf16")
    flops, weights, rows, tokens = (np.array([v]) for v in (1e12, 1e9, 1e8, float(SORT_TOKENS)))
    products = operator_s(chip, "moe", "bf16", flops, weights)
    rate = chip.memory_bandwidth_bytes_per_s.value * shape.row_efficiency
    expected = products + shape.sort_s / 2 + 1e8 / rate
    assert experts_s(chip, "bf16", flops, weights, rows, tokens) == pytest.approx(expected)
    touched = distinct_experts(MANY, TOKENS)
    assert touched[0] == pytest.approx(MANY.top_k)
    assert touched[-1] == pytest.approx(MANY.experts, rel=1e-3)
    assert np.all(np.diff(touched) > 0)
    # popular experts are picked again
    uniform = MANY.experts * (1 - (1 - MANY.top_k / MANY.experts) ** TOKENS)
    assert np.all(touched <= uniform * (1 + 1e-12))
    assert touched[3] < 0.95 * uniform[3]
    assert np.all(distinct_experts(MoeMlp(experts=4, top_k=4, intermediate=64), TOKENS) == 4)


def test_the_fullest_rank_has_more_rows_as_drawn_routing_shows():
    assert np.all(crowding(MANY, TOKENS, np.ones(7)) == 1)
    ranks = np.array([2.0, 8.0, 32.0, 64.0])
    assert np.all(np.diff(crowding(MANY, np.full(4, 512.0), ranks)) > 0)
    at_eight = crowding(MANY, TOKENS, np.full(7, 8.0))
    assert np.all(np.diff(at_eight) < 0)
    assert np.all((at_eight > 1) & (at_eight <= 8))
    # Against draws: popularity Gamma distributed, tokens picking at random by it
    random, ranks, tokens = np.random.default_rng(0), 8, 1024
    fullest = []
    for _ in range(200):
        popularity = random.gamma(1 / SPREAD, size=MANY.experts)
        rows = random.poisson(tokens * MANY.top_k * popularity / popularity.sum())
        rows = rows.reshape(ranks, -1).sum(axis=1)
        fullest.append(rows.max() / rows.mean())
    found = crowding(MANY, np.array([float(tokens)]), np.array([float(ranks)]))[0]
    assert found == pytest.approx(np.mean(fullest), rel=0.1)


LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
ENGINES = ("vllm", "sglang", "tensorrt-llm")
MIXTURE = "openai/gpt-oss-120b"


def asked(model=LLAMA, name="vllm", concurrency=32):
    load = {"mode": "closed", "concurrency": concurrency, "output_tokens": 128}
    split = {"engine": name, "tp": 1, "pp": 1, "dp": 1}
    request = make_request(model, per_node=1, workload=load, candidate=split)
    setting, cases = stated_serving_case(resolve_problem(request), request.candidate)
    return setting, cases, serving_memory(setting, cases, np.ones(1))


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
        solve_serving(with_engine(setting, **fixed, **{field: number}), cases, room)
        for number in numbers
    ]


def parts(setting, cases, rows=64.0, prefill=0.0):
    one = np.ones(1)
    step = Step(prefill * one, 512 * one, rows * one, 1024 * one, rows * one)
    return serving_step_parts(setting, cases, step)


@over("kernel dtype part others", table("physics.yaml", "engine_kernels"))
def test_an_engine_s_kernel_scales_its_part_and_no_other(kernel, dtype, part, others):
    setting, cases, _ = asked(MIXTURE)
    plain, slower = (
        parts(with_engine(setting, kernels, expert_row_s=0.0), cases)
        for kernels in (None, {kernel: {dtype: 1.5}})
    )
    [mlp] = {mlp for mlp, _ in setting.model.mlps}
    power = 1 - (mlp.top_k / mlp.experts / DENSE) ** 2 if part == "experts" else 1.0
    assert slower[part] == pytest.approx(1.5**power * plain[part])
    moved = {name for name in plain if plain[name] != pytest.approx(slower[name])}
    assert moved <= {part, *others}


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


@over("name", ENGINES)
def test_prompts_that_start_together_move_waiting_from_tokens_to_first_tokens(name):
    spread, half, bunched = served(name, bunched=(0.0, 0.5, 1.0))
    assert bunched.ttft_s > 1.5 * spread.ttft_s
    assert bunched.tpot_s < spread.tpot_s
    assert bunched.request_latency_s == pytest.approx(spread.request_latency_s, rel=0.15)
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
        means[mixes] = simulate_serving(replace(setting, engine=changed), cases, room).means_s
    assert means[False]["ttft_s"][0] < means[True]["ttft_s"][0]  # no decoding beside the prompt
    assert means[False]["tpot_s"][0] != means[True]["tpot_s"][0]


MODELS = (LLAMA_70B, "deepseek-ai/DeepSeek-V3", "openai/gpt-oss-120b")
MODELS += ("Qwen/Qwen3-Next-80B-A3B-Instruct",)


def legal(model, **options):
    block = plan_splits(make_request(model, nodes=2, options=options)).blocks[0]
    return block.setting, block.cases.take(block.legal)


@over("model engine", product(MODELS, ENGINES))
def test_the_decoding_sequences_make_the_loop_hold_its_requests(model, engine):
    sweep = {"loads": [1, 7, 64, 1000, 20_000], "max_batched_tokens": [512, 8192]}
    setting, cases = legal(model, engines=[engine], **sweep)
    most = np.maximum(cases.load / cases.replicas, 1.0)
    loop = Loop(setting, cases, most, np.maximum(most - 1, 0) / most)
    found = loop.settle(None)[0]
    full = found >= loop.most  # prompts fill every step: what they leave waiting is held too
    assert setting.engine.mixes_prompts or not (full & (found < most)).any()
    for side, sign in ((found * (1 - 1e-9), -1), (found * (1 + 1e-9), 1)):
        balance = loop.balance(side, *loop.interpolated(side))
        beyond = sign * (balance.rate * balance.ttft_s + side - most) >= 0
        assert (beyond | (full & (sign > 0))).all()


def test_prompts_of_several_chunks_take_a_step_each():
    """As many requests a second as steps with a chunk allow; the others wait for their prompts."""
    setting, cases = legal(LLAMA_70B, engines=["vllm"], loads=[500], max_batched_tokens=[512])
    long, short, requests = (np.full(len(cases), size) for size in (20_000.0, 16.0, 500.0))
    cases = replace(cases, input_tokens=long, output_tokens=short)
    flow = batching.closed_loop_flow(setting, cases, requests)
    chunk_s = flow.step_s + flow.prompt_s / np.ceil(20_000 / 512)
    assert flow.requests_per_s * 20_000 / 512 * chunk_s / cases.pp == pytest.approx(1, rel=0.03)
    in_flight = flow.requests_per_s * (flow.ttft_s + 15 * flow.tpot_s)
    assert in_flight == pytest.approx(requests, rel=1e-9)


def test_roots_are_found_past_corners_and_near_ends_and_rows_end_as_alone():
    corner = np.array([1e-6, 0.1, 0.5, 0.999])

    def bent(x):
        return np.where(x < corner, 1.0, 20.0) * (x - corner)

    assert find_root(bent, np.zeros(4), -corner, np.ones(4)) == pytest.approx(corner, rel=1e-9)
    assert find_root(lambda x: x - 2, np.zeros(1), np.array([-2.0]), np.ones(1)) == 1
    # one output token: what decodes is a millionth of what waits
    at, most = np.array([1e-7, 3e-7, 1e-5]), np.full(3, 42.0)
    found = find_root(lambda x: most * (x - at) / (x + at), np.zeros(3), -most, most)
    assert found == pytest.approx(at, rel=1e-8)
    # rows that search on end as alone
    setting, cases = legal("openai/gpt-oss-120b")
    rate = np.full(len(cases), 1.5)
    together = Loop(setting, cases, cases.max_num_seqs, np.ones(len(cases))).settle(rate)[0]
    for row in range(0, len(cases), 7):
        one = cases.take(np.array([row]))
        alone = Loop(setting, one, one.max_num_seqs, np.ones(1)).settle(rate[:1])[0]
        assert alone[0] == together[row]


@pytest.mark.parametrize("model", MODELS)
def test_steps_side_by_side_are_steps_alone(model):
    setting, cases = legal(model)
    decode = batching.decode_step(cases, np.multiply.outer((1.0, 8.0), np.ones(len(cases))))
    steps = (decode, prompt_step(setting, cases, decode, np.ones(len(cases)))[0], idle_step(cases))
    for together, step in zip(engine_steps(setting, cases, *steps), steps, strict=True):
        alone = engine_step(setting, cases, step)
        assert together.keys() == alone.keys()
        assert all((together[name] == alone[name]).all() for name in alone)


@over("model engine", product(MODELS, ENGINES))
def test_an_open_loop_decodes_what_serves_its_rate(model, engine):
    """Few of the requests that a replica could hold decode, far from the nodes of interpolation."""
    setting, cases = legal(model, engines=[engine])
    loop = Loop(setting, cases, cases.max_num_seqs, np.ones(len(cases)))
    rate = np.full(len(cases), 0.5)
    for nodes in (batching.MORE_NODES, 0):  # without more of them every step is computed
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(batching, "MORE_NODES", nodes)
            decoding, decode, prompt = loop.settle(rate)
        balance = loop.balance(decoding, total(decode), total(prompt))
        off = np.abs(balance.rate / rate - 1)
        assert (off[decoding < loop.capacity] < 0.011).all(), nodes
