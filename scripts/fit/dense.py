"""Measured dense products."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from fit.solve import Points
from fit.tables import ACTIVATION_BYTES, DTYPES, WEIGHT_BYTES, operator, split

# start of the name in kernels_and_links.csv.gz -> devices whose GEMM it measures
LINK_GPUS = {
    "B300-SXM": ("b300-sxm",), "GB200": ("gb200",), "GB300": ("gb300",), "L40S": ("l40s",),
    "RTX-PRO-6000": ("rtx-pro-6000",),
    "MI300X-192GB (gfx942": ("mi300x", "mi325x"), "MI355X-288GB (gfx950": ("mi355x",),
}  # fmt: skip


def _gemm_work(rows: pd.DataFrame) -> pd.DataFrame:
    activation, weight = rows.dtype.map(ACTIVATION_BYTES), rows.dtype.map(WEIGHT_BYTES)
    return rows.assign(
        flops=2.0 * rows.m * rows.n * rows.k,
        bytes=rows.m * rows.k * activation + rows.n * rows.k * weight + rows.m * rows.n * 2.0,
    )


def gemm_points(truth: Path, system: str, device: str) -> Iterable[Points]:
    rows = operator(truth, "gemm", system)
    rows = rows[
        ~((rows.backend == "vllm") & (rows.gemm_dtype == "fp8_block"))
    ]  # bound by host dispatch, says the README
    rows = rows.assign(dtype=rows.gemm_dtype.map(DTYPES), seconds=rows.latency / 1e3)
    return split(device, "gemm", _gemm_work(rows), ["m", "n", "k"])


def gemm_links(truth: Path, prefix: str, device: str) -> Iterable[Points]:
    rows = pd.read_csv(truth / "kernels_and_links.csv.gz", low_memory=False)
    rows = rows[
        (rows.kind == "gemm")
        & (rows.metric == "tflops")
        & (rows.quality != "C")
        & rows.gpu.str.startswith(prefix)
    ]
    rows = rows[~(rows.impl.str.startswith("vllm") & (rows["dtype"] == "fp8_block"))]
    rows = rows.assign(
        dtype=rows["dtype"].map(DTYPES),
        seconds=2.0 * rows.m * rows.n * rows.k / (rows.value * 1e12),
    )
    return split(device, "gemm", _gemm_work(rows), ["m", "n", "k"])
