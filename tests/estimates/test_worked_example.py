"""The worked example of docs/method/physics.md: its arithmetic is the library's."""

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest

from recipe_core.estimates.roofline import operator_s
from recipe_core.estimates.serving.continuous_batching import Loop as LibraryLoop
from recipe_core.estimates.serving.continuous_batching import decode_step
from recipe_core.estimates.serving.estimates import estimate_serving
from recipe_core.estimates.serving.kernels import Step, total
from recipe_core.estimates.serving.memory import activation_bytes
from recipe_core.estimates.serving.operators import serving_step_parts
from recipe_core.estimates.serving.rates import resident_limit
from recipe_core.plans.problem import resolve_problem
from recipe_core.plans.serving_candidates import stated_serving_case
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.schema import PlanRequest
from scripts import example_arithmetic as example
from tests.fixtures.catalogues import table
from tests.fixtures.rows import over


@cache
def read():
    return example.read()


@cache
def library():
    """Setting, cases and estimate of the example's request."""
    request = PlanRequest.parse(example.REQUEST)
    setting, cases = stated_serving_case(
        resolve_problem(request), request.candidate or CandidateRequest()
    )
    return setting, cases, estimate_serving(setting, cases)


def near(value):
    return pytest.approx(value, rel=1e-6)


def test_memory_and_products():
    setting, cases, judged = library()
    data, memory = read(), judged.memory
    held = example.memory(data)
    for worked, name in (
        (held.weights, "weights_bytes"),
        (held.workspace, "activations_bytes"),
        (held.runtime, "runtime_bytes"),
        (data.usable, "capacity_bytes"),
        (held.pool, "kv_cache_bytes"),
        (held.sequence, "sequence_bytes"),
    ):
        assert worked == near(getattr(memory, name)[0]), name
    assert held.pool_tokens == memory.kv_cache_tokens[0]
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
        product = example.gemm_work("mlp", "gate, up", rows, data.model.h, 2 * data.model.f)
        flops, moved = np.array([product.flops]), np.array([product.moved])
        plain = operator_s(device, "gemm", "bf16", flops, moved)[0]
        assert product.once_s(data) == near(kernel * plain)


@over("decoding prompts", product([1.0, 15.6, 64.0], [0.0, 1.0, 3.0]))
def test_step_by_part(decoding, prompts):
    (setting, cases, _), data = library(), read()
    tokens = prompts * example.INPUT
    beside = decode_step(cases, np.array([decoding]))
    context, sampled = np.array([example.INPUT / 2]), beside.sampled + prompts
    step = Step(np.array([tokens]), context, beside.sequences, beside.context, sampled)
    parts = serving_step_parts(setting, cases, step)
    plain = example.step_arithmetic(data, decoding, prompts, tokens)
    by_part = {"launch": plain.launch_s, "engine": plain.engine_s}
    for kernel in plain.operators:
        by_part[kernel.part] = by_part.get(kernel.part, 0.0) + kernel.seconds(data)
    some = {name: seconds.item() for name, seconds in parts.items() if seconds.any()}
    assert {name: seconds for name, seconds in by_part.items() if seconds} == near(some)
    assert plain.seconds == near(total(parts).item())


def test_step_that_the_launches_bind():
    setting, cases, _ = library()
    zero, one = np.zeros(1), np.ones(1)
    parts = serving_step_parts(setting, cases, Step(8 * one, 4 * one, one, 1152 * one, one))
    device_s = total(parts).item() - parts["launch"].item() - parts["engine"].item()
    assert parts["launch"].item() == near(example.launches_s(read()) - device_s)
    assert serving_step_parts(setting, cases, Step(zero, zero, one, 1152 * one, one))["launch"] == 0


@over("prompt answer requests", table("physics.yaml", "example_loads"))
def test_arithmetic_of_loads(monkeypatch, prompt, answer, requests):
    """Where prompts share steps, launches bind and a search needs more nodes: the same holds."""
    for name, value in (("INPUT", prompt), ("OUTPUT", answer), ("REQUESTS", requests)):
        monkeypatch.setattr(example, name, value)
    workload = {"input_tokens": prompt, "output_tokens": answer, "concurrency": requests}
    request = PlanRequest.parse({**example.REQUEST, "workload": workload})
    setting, cases = stated_serving_case(
        resolve_problem(request), request.candidate or CandidateRequest()
    )
    judged = estimate_serving(setting, cases)
    served, data = judged.serving, read()
    loop = example.Loop(data)
    state = loop.solve()
    client = example.served_figures(data, loop, state)
    assert example.memory(data).pool_tokens == judged.memory.kv_cache_tokens[0]
    share = np.full(1, loop.others)
    balance = LibraryLoop(setting, cases, np.full(1, float(requests)), share).balance(
        served.decoding, served.step_s, served.prompt_s
    )
    for worked, found, names in (
        (state, served, ("decoding", "step_s", "prompt_s")),
        (state, balance, ("rate", "interference_s", "queue_s", "ttft_s")),
        (client, served, ("ttft_s", "tpot_s", "output_tokens_per_s")),
    ):
        for name in names:
            assert getattr(worked, name) == near(getattr(found, name)[0]), name
    assert state.mean_s == near(balance.step_mean_s[0])
    assert client.latency_s == near(served.request_latency_s[0])
    prefill = {name: seconds.item() for name, seconds in served.prefill.items()}
    assert client.schedule_s == near(prefill["schedule"])
    assert client.ahead_s == near(prefill["prompts_ahead"])
    assert client.request_s == near(prefill["request"])
    assert client.interference_s == near(served.decode["prefill_interference"].item())
    # Little's law, and the sums of the parts
    assert client.rate * client.latency_s == near(requests)
    assert client.ttft_s + loop.steps * client.tpot_s == near(client.latency_s)
    # the balance holds at D as closely as the search goes, and nowhere near it
    assert state.rate * loop.steps * state.mean_s == near(state.decoding)
    assert state.rate * state.ttft_s + state.decoding == near(state.resident)
    assert state.resident == pytest.approx(requests, rel=example.ASTRAY)
    if (prompt, answer, requests) == (1024, 256, 16):
        for share in (0.9, 1.1):
            elsewhere = loop.balance(share * state.decoding).resident
            assert abs(elsewhere - requests) > 0.05 * requests


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
