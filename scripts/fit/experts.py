"""Measured mixture-of-experts layers: which rows reach which expert, and the work that makes.

The tables name a distribution of the routing, not the loads. They are drawn here as the collection
drew them (its description, in aiconfigurator's collector): ``balanced`` deals tokens round,
``power_law_a`` draws each expert's load from a power law with exponent ``a`` between 1 and 0.8
tokens (0.01 and 2 where there are fewer picks than experts), rescaled to all picks and cut at one
per token; what is timed is the rank with the most rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fit.solve import Points, peak_of
from fit.tables import DTYPES, WEIGHT_BYTES, operator, split
from recipe_core.hardware.cluster import device_profile
from recipe_core.hardware.profile import Device

SHAPE = [
    "hidden_size",
    "inter_size",
    "topk",
    "num_experts",
    "moe_tp_size",
    "moe_ep_size",
    "num_tokens",
    "distribution",
]
DRAWS = 12
START_S = 2e-5  # of a layer without work
WEIGHT_ONLY = ("w4a16_mxfp4", "int4_wo")
MOE_GPUS = {"MI300X-192GB (304": ("mi300x", "mi325x"), "MI355X-288GB (256": ("mi355x",)}

# (backend, moe_dtype, start of the kernel's name) left out on Blackwell and before; the reasons are
# inferred from timings
LEFT_OUT = {
    True: [
        # it multiplies fp4 with fp8
        ("sglang", "w4a16_mxfp4", ""), ("vllm", "w4a16_mxfp4", ""), ("trtllm", "w4a16_mxfp4", ""),
        # not tuned for it
        ("sglang", "bfloat16", "sglang_fused_moe_triton"),
        ("sglang", "fp8_block", "sglang_fused_moe_triton"),
        # half as fast as its other kernel wherever both were measured
        ("trtllm", "nvfp4", "moe_torch_flow_cutlass"),
    ],
    False: [
        ("vllm", "fp8", ""),  # falls into a kernel four times slower than bf16, says the README
        # not tuned for these shapes: 0.2 of the peak where the others reach 0.6
        ("sglang", "bfloat16", ""),
        # widen the weights to bf16 in memory and read those
        ("sglang", "w4a16_mxfp4", ""), ("trtllm", "w4a16_mxfp4", ""),
    ],
}  # fmt: skip


def _dealt(tokens: int, experts: int, top_k: int) -> NDArray[np.int64]:
    """Rows of each expert when all get as many."""
    token, pick = np.arange(tokens)[:, None], np.arange(top_k)[None]
    stride = -(-experts // top_k)
    spread = token if tokens >= stride else token * stride // tokens
    return np.bincount(((spread + pick * stride) % experts).ravel(), minlength=experts)


def _drawn(
    tokens: int, experts: int, top_k: int, exponent: float, random: np.random.Generator
) -> NDArray[np.int64]:
    """Rows of each expert when loads follow a power law."""
    picks = tokens * top_k
    low, high = (1.0, 0.8 * tokens) if picks > experts else (0.01, 2.0)
    a = 1.0 - exponent
    load = ((high**a - low**a) * random.random(experts) + low**a) ** (1.0 / a)
    rows = np.minimum(np.round(load / load.sum() * picks).astype(np.int64), tokens)
    lightest, missing, turn = np.argsort(rows), picks - int(rows.sum()), 0
    while missing:
        expert, turn, step = lightest[turn % experts], turn + 1, 1 if missing > 0 else -1
        if 0 <= rows[expert] + step <= tokens:
            rows[expert] += step
            missing -= step
    return rows


@cache
def hottest(
    tokens: int, experts: int, top_k: int, ranks: int, distribution: str
) -> tuple[float, float]:
    """Rows and distinct experts of the rank with the most rows, on average over draws."""
    exponent, random = (
        (0.0 if distribution == "balanced" else float(distribution.rsplit("_", 1)[1])),
        np.random.default_rng(0),
    )
    loads = []
    for _ in range(DRAWS if exponent else 1):
        rows = (
            _drawn(tokens, experts, top_k, exponent, random)
            if exponent
            else _dealt(tokens, experts, top_k)
        )
        by_rank = rows.reshape(ranks, -1)
        rank = by_rank[np.argmax(by_rank.sum(axis=1))]
        loads.append((float(rank.sum()), float(np.count_nonzero(rank))))
    return float(np.mean([r for r, _ in loads])), float(np.mean([t for _, t in loads]))


def _work(rows: pd.DataFrame, routed: pd.Series[float], touched: pd.Series[float]) -> pd.DataFrame:
    """Products of ``routed`` rows with the matrices of ``touched`` experts, and what is moved
    beside them.

    Beside: all tokens are read and their sums written; routed rows are copied in and out, and pass
    between the two products thrice.
    """
    width, hidden = rows.inter_size / rows.moe_tp_size, rows.hidden_size
    return rows.assign(
        flops=2.0 * routed * 3.0 * hidden * width,
        bytes=touched * 3.0 * hidden * width * rows.dtype.map(WEIGHT_BYTES),
        row_bytes=2.0 * (2.0 * rows.num_tokens * hidden + routed * (2.0 * hidden + 3.0 * width)),
    )


def moe(truth: Path, system: str, device: str) -> Iterable[Points]:
    """One rank's share as engines deploy it: experts at least 96 wide, on at most 32 ranks, by the
    kernels engines use, of which the fastest at so many tokens counts (`_fastest`).

    SGLang and vLLM route DeepSeek's shape by groups of experts, which the named distributions do
    not describe: how many rows a rank gets is known only where one has all experts. Kernels that
    widen 4-bit weights go through all picks with expert parallelism, which engines spare themselves
    by cutting experts. Layers whose ranks have all experts count as much as those that share them,
    of which there are five times as many.
    """
    rows = operator(truth, "moe", system)
    blackwell = system.startswith("b")
    for backend, dtype, kernel in LEFT_OUT[blackwell]:
        rows = rows[
            ~(
                (rows.backend == backend)
                & (rows.moe_dtype == dtype)
                & rows.kernel_source.str.startswith(kernel)
            )
        ]
    rows = rows[(rows.inter_size / rows.moe_tp_size >= 96) & (rows.moe_ep_size <= 32)]
    grouped = (rows.model_shape == "DeepSeek-V3") & (rows.backend != "trtllm")
    rows = rows[~grouped | (rows.moe_ep_size == 1)]
    if not blackwell:
        rows = rows[~rows.moe_dtype.isin(WEIGHT_ONLY) | (rows.moe_ep_size == 1)]
    keys = rows[["num_tokens", "num_experts", "topk", "moe_ep_size", "distribution"]].itertuples(
        index=False
    )
    loads = pd.DataFrame(
        [hottest(*key) for key in keys], index=rows.index, columns=["routed", "touched"]
    )
    rows = rows.assign(dtype=rows.moe_dtype.map(DTYPES), seconds=rows.latency / 1e3)
    rows = _fastest(_work(rows, loads.routed, loads.touched), device_profile(device))
    has_all = rows.moe_ep_size == 1
    share = has_all.groupby(rows.dtype).transform("mean")
    rows["weight"] = np.where(share.isin([0, 1]), 1.0, 0.5 / np.where(has_all, share, 1 - share))
    return split(device, "moe", rows, SHAPE)


def _fastest(rows: pd.DataFrame, device: Device) -> pd.DataFrame:
    """The rows of the kernel that is fastest for a layer, a layout and up to four times the tokens.

    Samples of two kernels seldom share a shape. The fastest takes the least of what the work takes
    at the device's own rates, in the median.
    """
    peaks = rows.dtype.map({dtype: peak_of(device, "moe", dtype) for dtype in rows.dtype.unique()})
    moved_s = (rows.bytes + rows.row_bytes) / device.memory_bandwidth_bytes_per_s.value
    rows = rows.assign(
        slowness=rows.seconds / (rows.flops / peaks + moved_s + START_S),
        tokens=np.log2(rows.num_tokens) // 2,
    )
    work = ["dtype", *SHAPE[:6], "tokens"]
    by_kernel = rows.groupby([*work, "kernel_source"]).slowness.median().reset_index()
    fastest = by_kernel.loc[by_kernel.groupby(work).slowness.idxmin()]
    return rows.merge(fastest[[*work, "kernel_source"]])


def moe_links(truth: Path, prefix: str, device: str) -> Iterable[Points]:
    """AMD's fused expert kernels with random routing; the notes have experts and picks."""
    rows = pd.read_csv(truth / "kernels_and_links.csv.gz", low_memory=False)
    rows = rows[(rows.kind == "moe") & (rows.metric == "time_us") & rows.gpu.str.startswith(prefix)]
    counts = rows.notes.str.extract(r"experts=(\d+) topk=(\d+)").astype(float)
    weight = np.where(rows["dtype"].str.startswith("float4"), "mxfp4", "fp8")
    rows = rows.assign(
        dtype=weight, seconds=rows.value / 1e6, hidden_size=rows.k, inter_size=rows.n,
        num_tokens=rows.m, num_experts=counts[0], topk=counts[1], moe_tp_size=1, moe_ep_size=1,
        distribution="random",
    )  # fmt: skip
    rows = rows[rows.num_experts.notna()]
    touched = rows.num_experts * (1.0 - (1.0 - rows.topk / rows.num_experts) ** rows.num_tokens)
    rows = _work(rows, rows.num_tokens * rows.topk, touched).assign(weight=1.0)
    return split(device, "moe", rows, SHAPE)
