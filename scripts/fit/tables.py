"""Reading the measured tables: systems, number formats, and the fastest kernel per shape."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from fit.solve import NONE, Points

MAX_POINTS = 4000
SYSTEMS = {
    "a100_sxm": "a100-sxm-80gb",
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200-sxm",
    "b200_sxm": "b200-sxm",
}

# bytes an element takes: activation read, weight read (with scales)
ACTIVATION_BYTES = {
    "bf16": 2.0,
    "fp8": 1.0,
    "fp8-block": 1.0,
    "int8": 1.0,
    "int4": 2.0,
    "mxfp4": 0.53,
    "nvfp4": 0.56,
}
WEIGHT_BYTES = {
    "bf16": 2.0,
    "fp8": 1.0,
    "fp8-block": 1.0,
    "int8": 1.0,
    "int4": 0.53,
    "mxfp4": 0.53,
    "nvfp4": 0.56,
}
DTYPES = {
    "bfloat16": "bf16", "bf16": "bf16", "fp8": "fp8", "fp8_block": "fp8-block",
    "fp8_per_token": "fp8", "sq": "int8", "int4_wo": "int4", "nvfp4": "nvfp4", "mxfp4": "mxfp4",
    "w4a16_mxfp4": "mxfp4", "w4a8_mxfp4_mxfp8": "mxfp4",
}  # fmt: skip


def operator(truth: Path, table: str, system: str) -> pd.DataFrame:
    """One table of operator latencies (milliseconds)."""
    return pd.read_csv(truth / f"op_{table}_{system}.csv.gz", low_memory=False)


def split(device: str, family: str, rows: pd.DataFrame, shape: list[str]) -> Iterable[Points]:
    """Keep the fastest kernel per shape and cut the rows up by dtype."""
    rows = rows[(rows.seconds > 0) & rows.dtype.notna()]
    best = rows.loc[rows.groupby(["dtype", *shape]).seconds.idxmin()]
    for dtype, group in best.groupby("dtype"):
        if len(group) > MAX_POINTS:
            group = group.sample(MAX_POINTS, random_state=0)
        flops, bytes_, seconds = (
            group[name].to_numpy(dtype=float) for name in ("flops", "bytes", "seconds")
        )
        beside = [
            group[name].to_numpy(dtype=float) if family == "moe" else NONE
            for name in ("row_bytes", "num_tokens", "weight")
        ]
        yield Points(device, family, str(dtype), flops, bytes_, seconds, *beside)
