"""The steady state of a replica: its root is found closely whatever the model and load, and steps
side by side are steps alone.
"""

from dataclasses import replace

import numpy as np
import pytest

from recipe_core.physics.root import root
from recipe_core.physics.serving.continuous_batching import (
    Loop,
    closed_loop,
    decode_step,
    idle_step,
    prompt_step,
)
from recipe_core.physics.serving.operators import total
from recipe_core.physics.serving.speculative import engine_step, engine_steps
from recipe_core.search.plans import plan
from tests.conftest import LLAMA_70B, make_request

MODELS = (LLAMA_70B, "deepseek-ai/DeepSeek-V3", "openai/gpt-oss-120b")
MODELS += ("Qwen/Qwen3-Next-80B-A3B-Instruct",)


def legal(model, **options):
    block = plan(make_request(model, nodes=2, options=options)).blocks[0]
    return block.setting, block.cases.take(block.legal)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
@pytest.mark.parametrize("model", MODELS)
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


def test_prompts_of_several_chunks_take_a_step_each() -> None:
    """As many requests a second as steps with a chunk allow; the others wait for their prompts."""
    setting, cases = legal(LLAMA_70B, engines=["vllm"], loads=[500], max_batched_tokens=[512])
    long, short, requests = (np.full(len(cases), size) for size in (20_000.0, 16.0, 500.0))
    cases = replace(cases, input_tokens=long, output_tokens=short)
    flow = closed_loop(setting, cases, requests)
    chunk_s = flow.step_s + flow.prompt_s / np.ceil(20_000 / 512)
    assert flow.requests_per_s * 20_000 / 512 * chunk_s / cases.pp == pytest.approx(1, rel=0.03)
    in_flight = flow.requests_per_s * (flow.ttft_s + 15 * flow.tpot_s)
    assert in_flight == pytest.approx(requests, rel=1e-9)


def test_roots_are_found_past_corners_and_near_ends_and_rows_end_as_alone():
    corner = np.array([1e-6, 0.1, 0.5, 0.999])

    def bent(x):
        return np.where(x < corner, 1.0, 20.0) * (x - corner)

    assert root(bent, np.zeros(4), -corner, np.ones(4)) == pytest.approx(corner, rel=1e-9)
    assert root(lambda x: x - 2, np.zeros(1), np.array([-2.0]), np.ones(1)) == 1
    # one output token: what decodes is a millionth of what waits
    at, most = np.array([1e-7, 3e-7, 1e-5]), np.full(3, 42.0)
    found = root(lambda x: most * (x - at) / (x + at), np.zeros(3), -most, most)
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
    decode = decode_step(cases, np.multiply.outer((1.0, 8.0), np.ones(len(cases))))
    steps = (decode, prompt_step(setting, cases, decode, np.ones(len(cases)))[0], idle_step(cases))
    for together, step in zip(engine_steps(setting, cases, *steps), steps, strict=True):
        alone = engine_step(setting, cases, step)
        assert together.keys() == alone.keys()
        assert all((together[name] == alone[name]).all() for name in alone)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
@pytest.mark.parametrize("model", MODELS)
def test_an_open_loop_decodes_what_serves_its_rate(model, engine):
    """Few of the requests that a replica could hold decode, far from the nodes of interpolation."""
    setting, cases = legal(model, engines=[engine])
    loop = Loop(setting, cases, cases.max_num_seqs, np.ones(len(cases)))
    rate = np.full(len(cases), 0.5)
    decoding, decode, prompt = loop.settle(rate)
    balance = loop.balance(decoding, total(decode), total(prompt))
    off = np.abs(balance.rate / rate - 1)
    assert (off[decoding < loop.capacity] < 0.011).all()
