"""Collectives: measured times, and what holds for every group."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe_core.base.provenance import Quantity
from recipe_core.hardware.cluster import cluster
from recipe_core.hardware.request import HardwareRequest
from recipe_core.physics.network import (
    EXCHANGE_STARTS,
    Group,
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    dispatch_s,
    low_latency_s,
    rank_group,
    send_s,
)
from recipe_core.physics.serving.operators import Step, step_parts
from recipe_core.search.problem import resolve
from recipe_core.search.serving_candidates import one_case
from recipe_core.space.serving import cases
from tests.conftest import make_request
from tests.fixtures.sizes import examples

KIB, MIB = 1 << 10, 1 << 20
AIC = "operator latencies collected by ai-dynamo/aiconfigurator"


def joined(device="h100-sxm", per_node=8, nodes=1, **more):
    return cluster(HardwareRequest(device=device, per_node=per_node, nodes=nodes, **more))


def members(local, remote=1):
    return Group(np.array([float(local)]), np.array([float(remote)]))


def one(function, where, ranks, size, remote=1):
    return float(function(where, members(ranks, remote), np.array([float(size)]))[0])


@pytest.mark.parametrize(
    ("device", "ranks", "size", "microseconds", "source"),
    [
        ("h100-sxm", 2, 64 * KIB, 3.1, AIC),
        ("h100-sxm", 8, 64 * KIB, 4.8, AIC),
        ("h100-sxm", 8, 1 * MIB, 15, AIC),
        ("h100-sxm", 8, 64 * MIB, 323, AIC),
        ("b200-sxm", 8, 64 * KIB, 6.2, AIC),
        ("b200-sxm", 8, 64 * MIB, 278, AIC),
        ("a100-sxm-80gb", 4, 16 * MIB, 183, AIC),
        ("rtx-pro-6000", 8, 4 * MIB, 346, AIC),
        ("l40s", 2, 16 * MIB, 850, AIC),
        ("mi355x", 8, 24 * KIB, 6.3, "vLLM pull request 39080"),
        ("mi300x", 8, 8 * MIB + 1, 91, "rccl-tests, hpc-ai-envs pull request 30"),
    ],
)
def test_all_reduces_take_what_was_measured(device, ranks, size, microseconds, source):
    assert one(all_reduce_s, joined(device), ranks, size) * 1e6 == pytest.approx(
        microseconds, rel=0.3
    ), source


@pytest.mark.parametrize(
    ("device", "ranks", "size", "microseconds"),
    [
        ("h100-sxm", 8, MIB, 17.1),
        ("h100-sxm", 2, 16 * MIB, 56),
        ("b200-sxm", 4, 16 * KIB, 11.9),
        ("a100-sxm-80gb", 8, 256 * MIB, 1217),
    ],
)
def test_gathers_take_what_nccl_was_measured_to_take(device, ranks, size, microseconds):
    assert one(all_gather_s, joined(device), ranks, size) * 1e6 == pytest.approx(
        microseconds, rel=0.3
    ), AIC


@pytest.mark.parametrize(("nodes", "sent", "back"), [(2, 118, 195), (4, 155, 273), (8, 173, 314)])
def test_tokens_cross_nodes_as_fast_as_deepep_says(nodes, sent, back):
    """Its table, to which nothing was fitted: 128 tokens of 7,168 values a rank to 8 experts, fp8
    there and bf16 back, in microseconds.
    """
    where, tokens = joined(nodes=nodes), np.array([128.0])
    for width, microseconds in ((7168 * (1 + 4 / 128), sent), (7168 * 2.0, back)):
        found = dispatch_s(where, members(8, nodes), tokens, 8, width)
        assert float(found[0]) * 1e6 == pytest.approx(microseconds, rel=0.3)


SIZES = st.floats(min_value=1.0, max_value=1e10)
OPERATIONS = [all_reduce_s, all_gather_s, all_to_all_s]
WHERE = {
    "switch": joined(),
    "nodes": joined(nodes=4),
    "mesh": joined("mi300x"),
    "rack": joined("gb200", per_node=4, nodes=18),
    "pcie": joined("l40s"),
    "bridged": joined("a100-pcie-80gb", fabric="nvlink3-bridge"),
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("name", WHERE)
@given(
    size=SIZES, ranks=st.sampled_from([1, 2, 4, 8]), more=st.floats(min_value=1.0, max_value=100.0)
)
@settings(max_examples=examples(30), deadline=None)
def test_more_bytes_never_take_less(operation, name, size, ranks, more):
    first, second = (
        one(operation, WHERE[name], ranks, size),
        one(operation, WHERE[name], ranks, size * more),
    )
    assert 0 <= first <= second * (1 + 1e-12)
    assert (first == 0) == (ranks == 1)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_columns_are_many_cases_of_one(operation):
    sizes, ranks = np.array([1e3, 1e6, 1e8, 1e6]), np.array([2.0, 4.0, 8.0, 8.0])
    nodes = np.array([1.0, 1.0, 2.0, 4.0])
    together = operation(WHERE["nodes"], Group(ranks, nodes), sizes)
    alone = [
        one(operation, WHERE["nodes"], r, s, n) for r, s, n in zip(ranks, sizes, nodes, strict=True)
    ]
    assert together.tolist() == alone


def test_small_messages_go_in_one_shot_and_large_ones_in_two():
    """Twice the bytes in the second regime cost 2 (n - 1)/n of a link's time each, in the first n -
    1.
    """
    where = WHERE["switch"]
    direct = where.fabric.direct
    a_link_s = MIB / (where.fabric.bandwidth_bytes_per_s.value * direct.efficiency.value)
    slope = {
        size: (one(all_reduce_s, where, 8, size + MIB) - one(all_reduce_s, where, 8, size))
        / a_link_s
        for size in (16 * MIB, 256 * MIB)
    }
    assert list(slope.values()) == pytest.approx([1.75, 1.75])
    small = (
        (one(all_reduce_s, where, 8, 2 * KIB) - one(all_reduce_s, where, 8, KIB))
        / a_link_s
        * (MIB / KIB)
    )
    assert small == pytest.approx(7)


def test_two_of_a_mesh_have_one_link():
    where = WHERE["mesh"]
    rate = where.fabric.bandwidth_bytes_per_s.value / 7 * where.fabric.efficiency.value
    assert one(all_gather_s, where, 2, 1e10) == pytest.approx(0.5e10 / rate, rel=0.01)


def test_pairs_are_quick_and_groups_of_them_go_over_pcie():
    where, plain = WHERE["bridged"], joined("a100-pcie-80gb", fabric="pcie4")
    assert one(all_reduce_s, where, 2, MIB) < one(all_reduce_s, plain, 2, MIB) / 2
    assert one(all_reduce_s, where, 4, MIB) == pytest.approx(one(all_reduce_s, plain, 4, MIB))


def test_a_rack_is_one_island():
    columns = {"per_node": 4, "nodes": 18, "pp": 1, "dp": 1, "ep": 1} | dict.fromkeys(
        (
            "input_tokens",
            "output_tokens",
            "max_context",
            "load",
            "max_batched_tokens",
            "max_num_seqs",
            "memory_fraction",
            "block_tokens",
        ),
        1,
    )
    split = cases(2, tp=np.array([4, 16]), prefix_hit=0, **columns)
    assert rank_group(WHERE["rack"], split, split.tp).remote.tolist() == [1, 1]
    assert rank_group(
        joined(per_node=8, nodes=2), replace(split, per_node=np.array([8, 8])), split.tp
    ).remote.tolist() == [1, 2]


def test_leaving_the_node_costs_at_least_the_slower_network():
    inside, across = (
        one(all_reduce_s, joined(), 8, MIB),
        one(all_reduce_s, joined(nodes=2), 8, MIB, 2),
    )
    assert across > 2 * inside
    large = one(all_reduce_s, joined(nodes=8), 8, 8 << 30, 8)
    busbw = 2 * 63 / 64 * (8 << 30) / large
    assert 200e9 < busbw < 400e9, "64 H100 reach 387 GB/s with SHARP (CoreWeave's nccl-tests)"


def test_larger_messages_than_a_kernel_takes_go_by_the_library():
    where = joined("mi300x")
    limit = where.fabric.direct.largest_bytes.value
    assert one(all_reduce_s, where, 8, limit + 1) > 1.3 * one(all_reduce_s, where, 8, limit)


def test_sending_tokens_to_their_experts_beats_gathering_them_all_when_experts_are_far_apart():
    where, tokens = joined(nodes=8), np.array([512.0])
    width = 7168 * 2.0
    gathered = float(all_gather_s(where, members(8, 8), 64 * tokens * width)[0])
    assert float(dispatch_s(where, members(8, 8), tokens, 8, width)[0]) < 0.7 * gathered


def test_without_direct_kernels_tokens_go_in_bulk():
    where, tokens = joined(), np.array([1.0])
    slow = replace(where, fabric=where.fabric.model_copy(update={"direct": None}))
    assert float(dispatch_s(slow, members(8), tokens, 8, 1e4)[0]) > 1.5 * float(
        dispatch_s(where, members(8), tokens, 8, 1e4)[0]
    )


def test_direct_kernels_send_one_copy_an_expert():
    where, tokens, group = joined("gb200", 4, 8), np.array([64.0]), members(32)
    direct = where.fabric.direct
    rate = where.fabric.bandwidth_bytes_per_s.value * direct.efficiency.value
    seconds = float(low_latency_s(where, group, tokens, 8, 1e4)[0])
    copied = 64 * 8 * 31 / 32 * 1e4 / rate
    start = direct.latency_s.value + 31 * direct.latency_per_rank_s.value
    assert seconds == pytest.approx(EXCHANGE_STARTS * start + copied)
    assert float(dispatch_s(where, group, tokens, 8, 1e4)[0]) <= seconds
    none = replace(where, fabric=where.fabric.model_copy(update={"direct": None}))
    assert np.isinf(low_latency_s(none, group, tokens, 8, 1e4)).all()


def test_a_send_moves_all_its_bytes():
    where, size = joined(nodes=2), np.array([1e9])
    inside, across = float(send_s(where, False, size)[0]), float(send_s(where, True, size)[0])
    assert across > inside
    assert across == pytest.approx(
        1e9 / (where.network.bandwidth_bytes_per_s.value * where.network.efficiency.value), rel=0.01
    )


def _parts(model="deepseek-ai/DeepSeek-V3", change=None, **candidate):
    request = make_request(
        model,
        per_node=8,
        nodes=4,
        candidate={"engine": "vllm", "tp": 1, "pp": 1, "dp": 1, "ep": 1} | candidate,
    )
    chosen, split = one_case(resolve(request), request.candidate)
    if change is not None:
        chosen = replace(chosen, engine=change(chosen.engine))
    batch = np.array([512.0])
    return step_parts(chosen, split, Step(0 * batch, 0 * batch, batch, 1024 + 0 * batch, batch))


def _exchange(**fields):
    def change(engine):
        exchange = engine.split.exchange.model_copy(update=fields)
        return engine.model_copy(
            update={"split": engine.split.model_copy(update={"exchange": exchange})}
        )

    return change


def test_engines_hand_tokens_over_as_their_file_says():
    gather = _parts(dp=32, ep=32)["all_to_all"][0]
    dispatch = _parts(dp=32, ep=32, change=_exchange(ways=("dispatch",)))["all_to_all"][0]
    assert dispatch < gather, "a token goes to at most eight of the 32 ranks"
    assert (
        _parts(dp=32, ep=32, change=_exchange(ways=("gather", "dispatch")))["all_to_all"][0]
        == dispatch
    )
    narrow = _parts(dp=32, ep=32, change=_exchange(ways=("dispatch",), narrow=("fp8-block",)))[
        "all_to_all"
    ][0]
    assert narrow < dispatch, "tokens that leave in fp8 are half as wide"
    half = _parts(dp=32, ep=32, change=_exchange(overlap=0.5))["all_to_all"][0]
    assert half == pytest.approx(gather / 2)
    assert _parts(tp=8, ep=8)["all_to_all"][0] == 0, "tensor-parallel ranks hold the same tokens"


def test_only_boundaries_between_nodes_use_the_network():
    llama = "meta-llama/Llama-3.1-70B-Instruct"
    near, far, both = (
        _parts(llama, **split)["pipeline"][0]
        for split in ({"tp": 4, "pp": 2}, {"tp": 8, "pp": 2}, {"tp": 4, "pp": 4})
    )
    assert near < far
    assert 2 * near < both < near + 3 * far, "of three boundaries one is between nodes"


def test_figures_of_direct_kernels_are_sourced():
    direct = WHERE["switch"].fabric.direct
    assert isinstance(direct.efficiency, Quantity)
    assert direct.efficiency.source in WHERE["switch"].fabric.sources
