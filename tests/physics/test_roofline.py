"""Time of an operator, and where a router sends tokens."""

import typing

import numpy as np
import pytest

from recipe_core.hardware.cluster import device, device_names, priors, roofline
from recipe_core.hardware.profile import Family
from recipe_core.model.mlp import MoeMlp
from recipe_core.physics.roofline import SORT_TOKENS, experts_s, operator_s, product_dtype
from recipe_core.physics.serving.routing import SPREAD, crowding, distinct_experts

MANY = MoeMlp(experts=256, top_k=8, intermediate=2048)
TOKENS = np.array([1.0, 2.0, 8.0, 64.0, 512.0, 4096.0, 1e6])


def test_every_runtime_has_priors_and_only_experts_sort_tokens_and_move_rows():
    for runtime, families in priors().roofline.items():
        assert set(families) == set(typing.get_args(Family)), runtime
    for name in device_names():
        for family, shapes in device(name).roofline.items():
            for dtype, shape in shapes.items():
                sorts = (shape.row_efficiency is not None, shape.sort_s == 0 or family == "moe")
                assert sorts == (family == "moe", True), f"{name} {family} {dtype}"
    assert roofline(device("h100-sxm"), "mla_decode", "fp8").status == "fitted"
    assert roofline(device("l40s"), "mla_decode", "fp8") == priors().roofline["cuda"]["mla_decode"]


def old_processor():
    """A processor whose 16-bit products are emulated, at a fifth of its fp32 rate."""
    machine = device("cpu")
    fast = machine.peak_flops_per_s["fp32"]
    slow = fast.model_copy(update={"value": fast.value / 5})
    return machine.model_copy(update={"peak_flops_per_s": {"fp32": fast, "bf16": slow}})


def test_kernels_that_widen_multiply_in_fp32_only_where_that_is_faster():
    old, flops, none = old_processor(), np.array([1e12]), np.zeros(1)
    assert product_dtype(old, "bf16") == "bf16"
    assert product_dtype(old, "bf16", widens=True) == "fp32"
    assert product_dtype(old, "int4", widens=True) == "fp32"
    assert product_dtype(device("xeon-6980p"), "bf16", widens=True) == "bf16"  # AMX
    assert product_dtype(device("h100-sxm"), "fp8", widens=True) == "fp8"
    slow, fast = (operator_s(old, "gemm", "int4", flops, none, widens=w) for w in (False, True))
    assert slow / fast == pytest.approx(5, rel=0.01)
    assert operator_s(device("h100-sxm"), "gemm", "bf16", none, none) == 0


def test_experts_take_their_products_and_many_tokens_touch_all():
    chip = device("h200-sxm")
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
