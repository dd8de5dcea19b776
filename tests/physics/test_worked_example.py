"""The worked example of docs/physics.md: its text is current, its arithmetic is the library's."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from recipe_core.physics.roofline import operator_s
from recipe_core.physics.serving.continuous_batching import Loop as LibraryLoop
from recipe_core.physics.serving.continuous_batching import decode_step
from recipe_core.physics.serving.estimates import estimate
from recipe_core.physics.serving.memory import activation_bytes
from recipe_core.physics.serving.operators import Step, step_parts, total
from recipe_core.physics.serving.rates import resident_limit
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.schema import PlanRequest
from recipe_core.search.problem import resolve
from recipe_core.search.serving_candidates import one_case
from scripts import example_arithmetic as example
from scripts import worked_example


@cache
def read():
    return example.read()


@cache
def library():
    """Setting, cases and estimate of the example's request."""
    request = PlanRequest.parse(example.REQUEST)
    setting, cases = one_case(resolve(request), request.candidate or CandidateRequest())
    return setting, cases, estimate(setting, cases)


@pytest.fixture(scope="module")
def loop():
    return example.Loop(read())


@pytest.fixture(scope="module")
def state(loop):
    return loop.solve()


def near(value):
    return pytest.approx(value, rel=1e-6)


def test_page_is_current():
    text = worked_example.PAGE.read_text(encoding="utf-8")
    assert text == worked_example.renewed(text), "run python scripts/worked_example.py"


def test_memory_and_products():
    setting, cases, judged = library()
    data, memory = read(), judged.memory
    held = example.memory(data)
    for worked, name in (
        (held.weights, "weights_bytes"),
        (held.workspace, "activations_bytes"),
        (held.runtime, "runtime_bytes"),
        (data.usable, "capacity_bytes"),
        (held.pool, "pool_bytes"),
        (held.sequence, "sequence_bytes"),
    ):
        assert worked == near(getattr(memory, name)[0]), name
    assert held.pool_tokens == memory.pool_tokens[0]
    assert held.longest == cases.max_context[0]
    assert held.limit == resident_limit(setting, cases, memory)[0]
    # fewer sequences make the sampler's buffers the smaller ones
    few = example.memory(replace(data, max_sequences=64))
    fewer = activation_bytes(setting, replace(cases, max_num_seqs=np.full(1, 64.0)))
    assert few.workspace == near(fewer[0])
    assert few.workspace == few.layer_workspace
    setting, data = library()[0], read()
    device, engine = setting.cluster.device, setting.engine
    kernel = engine.kernel_time(device.architecture, "gemm", "bf16")
    for rows in (1.0, 15.6, 1039.5):
        product = example.gemm("mlp", "gate, up", rows, data.model.h, 2 * data.model.f)
        flops, moved = np.array([product.flops]), np.array([product.moved])
        plain = operator_s(device, "gemm", "bf16", flops, moved)[0]
        assert product.once_s(data) == near(kernel * plain)


@pytest.mark.parametrize("decoding", [1.0, 15.6, 64.0])
@pytest.mark.parametrize("prompts", [0.0, 1.0, 3.0])
def test_step_by_part(decoding, prompts):
    (setting, cases, _), data = library(), read()
    tokens = prompts * example.INPUT
    beside = decode_step(cases, np.array([decoding]))
    context, sampled = np.array([example.INPUT / 2]), beside.sampled + prompts
    step = Step(np.array([tokens]), context, beside.sequences, beside.context, sampled)
    parts = step_parts(setting, cases, step)
    plain = example.step(data, decoding, prompts, tokens)
    by_part = {"launch": plain.launch_s, "engine": plain.engine_s}
    for kernel in plain.operators:
        by_part[kernel.part] = by_part.get(kernel.part, 0.0) + kernel.seconds(data)
    some = {name: seconds.item() for name, seconds in parts.items() if seconds.any()}
    assert {name: seconds for name, seconds in by_part.items() if seconds} == near(some)
    assert plain.seconds == near(total(parts).item())


def test_step_that_the_launches_bind():
    setting, cases, _ = library()
    zero, one = np.zeros(1), np.ones(1)
    parts = step_parts(setting, cases, Step(8 * one, 4 * one, one, 1152 * one, one))
    device_s = total(parts).item() - parts["launch"].item() - parts["engine"].item()
    assert parts["launch"].item() == near(example.launches_s(read()) - device_s)
    assert step_parts(setting, cases, Step(zero, zero, one, 1152 * one, one))["launch"] == 0


def test_steady_state(loop, state):
    setting, cases, judged = library()
    served = judged.serving
    for name in ("decoding", "step_s", "prompt_s"):
        assert getattr(state, name) == near(getattr(served, name)[0])
    resident, share = np.full(1, float(example.REQUESTS)), np.full(1, loop.others)
    found = LibraryLoop(setting, cases, resident, share)
    balance = found.balance(served.decoding, served.step_s, served.prompt_s)
    assert state.mean_s == near(balance.step_mean_s[0])
    for name in ("rate", "interference_s", "queue_s", "ttft_s"):
        assert getattr(state, name) == near(getattr(balance, name)[0])


def test_identities_of_the_loop(loop, state):
    """The balance holds at D as closely as the search goes, and nowhere near it."""
    assert state.rate * loop.steps * state.mean_s == near(state.decoding)
    assert state.rate * state.ttft_s + state.decoding == near(state.resident)
    assert state.resident == pytest.approx(example.REQUESTS, rel=example.ASTRAY)
    for share in (0.9, 1.1):
        elsewhere = loop.balance(share * state.decoding).resident
        assert abs(elsewhere - example.REQUESTS) > 0.05 * example.REQUESTS


def test_client(loop, state):
    judged = library()[2].serving
    client = example.served(read(), loop, state)
    assert client.ttft_s == near(judged.ttft_s[0])
    assert client.tpot_s == near(judged.tpot_s[0])
    assert client.latency_s == near(judged.request_latency_s[0])
    assert client.output_tokens_per_s == near(judged.output_tokens_per_s[0])
    prefill = {name: seconds.item() for name, seconds in judged.prefill.items()}
    assert client.schedule_s == near(prefill["schedule"])
    assert client.ahead_s == near(prefill["prompts_ahead"])
    assert client.request_s == near(prefill["request"])
    assert client.interference_s == near(judged.decode["prefill_interference"].item())
    # Little's law, and the sums of the parts
    assert client.rate * client.latency_s == near(example.REQUESTS)
    assert client.ttft_s + loop.steps * client.tpot_s == near(client.latency_s)


@pytest.mark.parametrize(
    ("prompt", "answer", "requests"),
    [
        *((1024, 8, 16), (4000, 1000, 40), (1024, 256, 1), (512, 2, 64), (64, 4, 256)),
        # prompts that wait share steps: in few of them, and in full ones
        *((18, 20, 90), (192, 12, 30), (734, 173, 353), (586, 17, 185), (327, 3, 330)),
    ],
)
def test_arithmetic_of_other_loads(monkeypatch, prompt, answer, requests):
    """Where prompts share steps, launches bind and a search needs more nodes: the same holds."""
    data = read()
    for name, value in (("INPUT", prompt), ("OUTPUT", answer), ("REQUESTS", requests)):
        monkeypatch.setattr(example, name, value)
    workload = {"input_tokens": prompt, "output_tokens": answer, "concurrency": requests}
    request = PlanRequest.parse({**example.REQUEST, "workload": workload})
    judged = estimate(*one_case(resolve(request), request.candidate or CandidateRequest()))
    loop = example.Loop(data)
    state = loop.solve()
    client = example.served(data, loop, state)
    assert example.memory(data).pool_tokens == judged.memory.pool_tokens[0]
    assert state.decoding == near(judged.serving.decoding[0])
    for name in ("ttft_s", "tpot_s", "output_tokens_per_s"):
        assert getattr(client, name) == near(getattr(judged.serving, name)[0])


def test_data_that_need_other_terms_are_refused(monkeypatch):
    """An engine whose pool, or a model whose head, this arithmetic does not describe."""
    for engine, model, says in (
        ("sglang", example.MODEL, "share of the device"),
        ("vllm", "meta-llama/Llama-3.2-1B-Instruct", "two matrices"),
    ):
        monkeypatch.setattr(example, "ENGINE", engine)
        monkeypatch.setattr(example, "MODEL", model)
        with pytest.raises(SystemExit, match=says):
            example.read()
