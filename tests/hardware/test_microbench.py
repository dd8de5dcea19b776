"""Micro-benchmarks: clocks, budgets, cases, the token loop, disks, collectives."""

import math
import sys
from unittest.mock import Mock, call

import numpy as np
import pytest

from recipe_core.base.errors import NoAnswer
from recipe_core.hardware.microbench import host, run
from recipe_core.hardware.microbench.collectives import (
    SIZES,
    measure_collectives,
    parse_collectives,
)
from recipe_core.hardware.microbench.points import (
    Bench,
    Case,
    Deadline,
    EventClock,
    HostClock,
    in_turn,
    log_spread,
    measure_cases,
    time_work,
)
from tests.fixtures.refusals import refusal

torch = pytest.importorskip("torch", reason="NOT TESTED: micro-benchmarks, torch is missing")

from recipe_core.hardware.microbench import operators  # noqa: E402 (needs torch)

HERE = Bench(torch.device("cpu"), HostClock(), 1 << 20, 1 << 30)


class Ticks:
    """A clock whose every call takes as long as it is told."""

    def __init__(self, *seconds):
        self.each, self.calls = seconds, 0

    def seconds(self, work, calls):
        work()
        self.calls += 1
        return calls * self.each[self.calls % len(self.each)]


def steps(slow, late):
    """Steps of a host that is so many times slower than the reference."""
    start, layer, sequence = (host.REFERENCE[name] for name in ("step_s", "layer_s", "sequence_s"))
    return {
        (n, tokens): math.sqrt(slow * late) * start + slow * layer * n + late * sequence * tokens
        for n in host.LAYERS
        for tokens in host.SEQUENCES
    }


def test_a_time_is_the_median_of_batches_and_events_count_what_the_stream_does():
    steady = time_work(lambda: None, Ticks(1e-3), budget_s=0.0)
    assert (steady.seconds, steady.spread, steady.batches) == (pytest.approx(1e-3), 0.0, 3)
    wild = time_work(lambda: None, Ticks(1e-3, 1e-3, 4e-3), budget_s=0.02)
    assert wild.seconds == pytest.approx(1e-3)
    # spread: the standard deviation of logarithms without outliers
    draws = np.exp(np.random.default_rng(0).normal(0, 0.1, 2000)).tolist()
    assert log_spread(draws) == pytest.approx(0.1, rel=0.1)
    assert log_spread([*draws, 1e9]) == pytest.approx(0.1, rel=0.1)
    cuda = Mock()
    start, end = cuda.Event.side_effect = (cuda.start, cuda.end)
    start.elapsed_time.return_value = 4.0
    assert EventClock(cuda).seconds(cuda.work, 2) == 4e-3
    assert cuda.mock_calls == [
        *[call.Event(enable_timing=True)] * 2,
        *[call.synchronize(), call.start.record(), call.work(), call.work()],
        *[call.end.record(), call.end.synchronize(), call.start.elapsed_time(end)],
    ]
    assert Deadline(-1).left_s == 0 < Deadline(1e6).left_s <= 1e6
    turns = []
    work = in_turn([lambda: turns.append(0), lambda: turns.append(1)])
    for _ in range(3):
        work()
    assert turns == [0, 1, 0]


def case(flops=1e6, *, dtype="bf16", fails=False):
    def make():
        if fails:
            raise RuntimeError("not implemented for 'Float8'\nand a long trace")
        return lambda: None

    return Case("gemm", dtype, "1 x 1", flops, 8.0, make)


def test_what_a_device_refuses_or_time_does_not_allow_is_left_out_and_said_once():
    notes = []
    fails = [case(dtype="fp8", fails=True)] * 2
    points = list(measure_cases([*fails, case()], HERE, Deadline(60), 1.0, notes))
    assert [point.dtype for point in points] == ["bf16"]
    bench = Bench(torch.device("cpu"), Ticks(1e-3), 1, 1)
    assert len(list(measure_cases([case(1.0), case(1e12)], bench, Deadline(60), 1.0, notes))) == 1
    assert notes == [
        "not measured, gemm fp8 1 x 1: not implemented for 'Float8'",
        "1 of 2 shapes of gemm did not fit in the time",
    ]
    # the first cases are measured however late it is
    assert len(list(measure_cases([case()] * 3, HERE, Deadline(-1), 1.0, [], needed=2))) == 2


def test_work_of_every_family_runs_here_and_is_counted_as_the_estimate_counts_it():
    for quick in (True, False):
        every = {
            "gemm": operators.product_cases(HERE, quick),
            "attention_prefill": operators.prefill_cases(HERE, quick),
            "attention_decode": operators.decode_cases(HERE, quick),
            "elementwise": operators.elementwise_cases(HERE, quick),
        }
        for family, cases in every.items():
            assert {each.family for each in cases} == {family}
            assert len(cases) == len({(each.shape, each.dtype) for each in cases}) >= 4
            smallest = min(cases, key=lambda each: each.flops)
            smallest.make()()
            assert smallest.flops > 0 < smallest.moved_bytes
        rows = {int(each.shape.split(" ")[0]) for each in every["gemm"]}
        assert min(rows) == 1 < max(rows) >= 1024
    products = operators.product_cases(HERE, True)
    product = next(each for each in products if each.shape == "4 x 1024 x 1024")
    width, cached = 8 * 2 * 64, 8 * 2 * 64 * 2
    moved = 2 * 1024 * 1024 + 2 * 4 * 2048
    for work, flops, moved_bytes in (
        (product, 2 * 4 * 1024 * 1024, moved),
        # 128 tokens
        (operators.prefill_cases(HERE, True)[0], 2 * 128 * 64 * width, 128 * 2 * (width + cached)),
        # one sequence of 256 tokens
        (operators.decode_cases(HERE, True)[0], 2 * 256 * width, 256 * cached + 2 * width),
    ):
        assert (work.flops, work.moved_bytes) == (flops, moved_bytes)
    assert product.dtype == "bf16"
    for dtype in ("bf16", "fp32", "fp16", "int8"):
        assert tuple(operators._product_case(HERE, dtype, 4, 64, 128).make()().shape) == (4, 128), (
            dtype
        )
    # weights are more than a cache holds
    arrays = operators.stored_arrays(HERE, "bf16", 128, 128)
    assert sum(each.nbytes for each in arrays) >= 4 * HERE.cache_bytes
    assert len({each.data_ptr() for each in arrays}) == len(arrays)
    assert torch.isfinite(arrays[0].float()).all()
    large = operators.stored_arrays(HERE, "fp32", 1 << 12, 1 << 11)
    assert [tuple(each.shape) for each in large] == [(1 << 12, 1 << 11)] * 2


def test_the_loop_serves_every_token_to_a_client_in_another_process():
    seen = []

    def step(sequences):
        seen.append(sequences)
        return [7] * sequences

    with host.TokenLoop(step) as loop:
        first_s, token_s = host.client_times(loop.port, 3, 5, 60.0)
    assert sum(seen) == 15
    assert first_s > 0 < token_s
    # the loop has ended: a client that fails is an answer
    assert "less busy" in str(refusal(host.client_times, loop.port, 1, 1, 30.0, kind=NoAnswer))


def test_layers_are_steps_of_real_operators_and_the_host_is_measured_once_at_least():
    tokens = host.Layers(2).step(3)
    assert len(tokens) == 3
    assert all(0 <= token < 256 for token in tokens)
    times = host.measure_host(Deadline(600), 0.0, tokens=3)
    assert times.rounds == 1
    assert set(times.steps) == {(2, 1), (2, 4), (8, 1), (8, 4)}
    assert min(times.steps.values()) > 0
    # rounds and measurements are put together
    cells = {(2, 1): (5e-3, 1e-3), (8, 1): (9e-3, 4e-3), (2, 4): (6e-3, 2e-3), (8, 4): (1e-2, 5e-3)}
    slower = {cell: (2 * first, 2 * step) for cell, (first, step) in cells.items()}
    middle = host.host_times([cells, cells, slower])
    assert middle.steps == {cell: step for cell, (_, step) in cells.items()}
    assert middle.request_s == pytest.approx(5e-3)
    both = host.merge_host_times([host.host_times([cells]), host.host_times([slower])])
    assert (both.steps[2, 1], both.rounds) == (pytest.approx(math.sqrt(2) * 1e-3), 2)
    found = host.host_ratios(host.HostTimes(steps(1, 1), host.REFERENCE["request_s"], 0.0, 1))
    assert (found.layers, found.sequences, found.requests) == pytest.approx((1, 1, 1))
    for slow, late in ((1, 1), (3, 3), (2, 1), (1, 2)):
        request_s = 2 * host.REFERENCE["request_s"]
        found = host.host_ratios(host.HostTimes(steps(slow, late), request_s, 0.0, 1))
        # what tells a layer from a token is held to what both have in common
        assert (found.layers, found.sequences) == pytest.approx((slow, late), rel=0.25)
        assert found.requests == pytest.approx(math.sqrt(2 * math.sqrt(slow * late)), rel=0.1)


def test_memory_and_a_disk_are_read_at_a_rate_and_caches_found(tmp_path, monkeypatch):
    rate, timing = run.memory_bandwidth(Bench(HERE.device, HERE.clock, 1 << 20, 1 << 28), 0.01)
    assert rate > 1e7
    assert timing.batches >= 3
    assert run.launch_s(HERE, 0.01) > 0
    cold, warm = run.disk_rates(tmp_path, 8 << 20)
    assert warm > max(1e6, cold or 0)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert run.model_cache() == tmp_path / "hub"
    assert run.existing_parent(tmp_path / "hub" / "models") == tmp_path
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "elsewhere"))
    assert run.model_cache() == tmp_path / "elsewhere"
    # the largest cache of a processor counts
    for name, size in (("index0", "32K"), ("index3", "96M"), ("index9", "odd")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "size").write_text(f"{size}\n")
    assert run.cpu_cache_bytes(tmp_path) == 96 << 20
    assert run.cpu_cache_bytes(tmp_path / "none") == 32 << 20


@pytest.mark.nightly
@pytest.mark.torchrun
def test_ranks_of_this_machine_reduce_every_size():
    rows = measure_collectives(2, "gloo", 0.1)
    assert [row.size_bytes for row in rows] == list(SIZES)
    assert all(row.seconds > 0 and row.ranks == 2 for row in rows)


def test_ranks_have_a_limit_and_the_device_is_what_torch_sees_or_what_is_named(monkeypatch):
    rows = parse_collectives("warning\n[rank0] collective [1024, 0.5]\ncollective [2048, 1]\nx", 4)
    found = [(row.ranks, row.size_bytes, row.seconds) for row in rows]
    assert found == [(4, 1024.0, 0.5), (4, 2048.0, 1.0)]
    many = {"quick": True, "ranks": 1000, "tell": lambda _: None}
    assert "1000 ranks" in str(refusal(run.measure_device, "cpu", Deadline(60), **many))
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert measure_collectives(2, "gloo", 0.1) == []

    def chosen(seen, hip, name):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: seen)
        monkeypatch.setattr(torch.version, "hip", hip)
        return run.device_kind(name)

    kinds = {
        (False, None, None): "cpu",
        (True, None, None): "cuda",
        (True, "6.4", None): "rocm",
        (True, "6.4", "cpu"): "cpu",
        (True, None, "cuda"): "cuda",
    }
    assert {seen: chosen(*seen) for seen in kinds} == kinds
    for seen, name, says in (
        (False, "cuda", "sees no accelerator. Install torch for cuda"),
        (True, "rocm", "it sees cuda"),
        (True, "tpu", "Use cuda, rocm, cpu"),
    ):
        error = refusal(chosen, seen, None, name)
        assert (error.field, says in str(error)) == ("device", True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'recipe-builder[torch]'" in str(refusal(run.check_torch, kind=NoAnswer))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="NOT TESTED: no GPU in this machine")
def test_an_accelerator_is_measured_by_events():
    found = run.measure_device(
        run.device_kind(None), Deadline(60), quick=True, ranks=0, tell=lambda _: None
    )
    assert found.to_device_bytes_per_s
    assert found.launch_s < 1e-3
    families = {point.family for point in found.points}
    assert {"gemm", "attention_prefill", "attention_decode"} <= families
    assert found.bandwidth_timing.batches
