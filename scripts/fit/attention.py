"""Measured attention, over a prompt and over a cache: grouped-query, and latent (MLA)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from fit.solve import Points
from fit.tables import DTYPES, operator, split

LATENT, ROPE, NOPE, VALUE = (
    512,
    64,
    128,
    128,
)  # DeepSeek-V3's widths, which all rows of the MLA tables have


def attention_prefill(truth: Path, system: str, device: str) -> Iterable[Points]:
    rows = operator(truth, "context_attention", system)
    tokens, kv_bytes = rows.batch_size * rows.isl, np.where(rows.kv_cache_dtype == "fp8", 1.0, 2.0)
    rows = rows.assign(
        dtype=rows.attn_dtype.map(DTYPES),
        seconds=rows.latency / 1e3,
        flops=4.0 * tokens * rows.isl * rows.num_heads * rows.head_dim * 0.5,
        bytes=tokens
        * rows.head_dim
        * (2.0 * 2.0 * rows.num_heads + 2.0 * kv_bytes * rows.num_key_value_heads),
    )
    return split(
        device,
        "attention_prefill",
        rows,
        ["num_heads", "num_key_value_heads", "head_dim", "batch_size", "isl"],
    )


def attention_decode(truth: Path, system: str, device: str) -> Iterable[Points]:
    """By dtype of the cache; the multiplication itself runs in bf16.

    Contexts under 128 tokens are left out: pages are half empty there.
    """
    rows = operator(truth, "generation_attention", system)
    impossible = (rows.system == "a100_sxm") & (
        rows.backend == "trtllm"
    )  # up to 1.6 times the bandwidth of the memory
    rows = rows[~impossible & (rows.step >= 127)]
    context, kv_bytes = rows.step + rows.isl, np.where(rows.kv_cache_dtype == "fp8", 1.0, 2.0)
    per_query = 2.0 * 2.0 * rows.batch_size * rows.num_heads * rows.head_dim
    rows = rows.assign(
        dtype=rows.kv_cache_dtype.map(DTYPES),
        seconds=rows.latency / 1e3,
        flops=4.0 * rows.batch_size * context * rows.num_heads * rows.head_dim,
        bytes=rows.batch_size * context * 2.0 * rows.num_key_value_heads * rows.head_dim * kv_bytes
        + per_query,
    )
    return split(
        device,
        "attention_decode",
        rows,
        ["num_heads", "num_key_value_heads", "head_dim", "batch_size", "step"],
    )


def mla_prefill(truth: Path, system: str, device: str) -> Iterable[Points]:
    """Latents expanded to a key and a value a head before they are attended to."""
    rows = operator(truth, "mla_sample", system)
    rows = rows[(rows.table == "context_mla_perf") & (rows.kv_cache_dtype == "bfloat16")]
    absorbed = (rows.backend == "sglang") & (
        rows.kernel_source == "flash_attention"
    )  # attends over the latent: 3.4 times the products
    rows = rows[~absorbed]
    tokens, heads = rows.batch_size * rows.isl, rows.num_heads * (NOPE + ROPE + VALUE)
    rows = rows.assign(
        dtype=rows.mla_dtype.map(DTYPES),
        seconds=rows.latency / 1e3,
        flops=2.0 * tokens * rows.isl * heads * 0.5,
        bytes=tokens * (2.0 * 2.0 * heads + (LATENT + ROPE) * 2.0),
    )
    return split(device, "mla_prefill", rows, ["num_heads", "batch_size", "isl"])


def mla_decode(truth: Path, system: str, device: str) -> Iterable[Points]:
    """Absorbed: all heads attend over the latent itself. By dtype of the cache."""
    rows = operator(truth, "mla_sample", system)
    rows = rows[(rows.table == "generation_mla_perf") & (rows.step >= 127)]
    rows = rows[rows.system != "a100_sxm"]  # one kernel, five times off any form: not made for it
    widened = (rows.kernel_source == "flash_attention") & (
        rows.kv_cache_dtype == "fp8"
    )  # rewrites the cache in 16 bit at each step
    rows = rows[~widened]
    context, cached = rows.step + rows.isl, np.where(rows.kv_cache_dtype == "fp8", 1.0, 2.0)
    per_pair = rows.num_heads * (2 * LATENT + ROPE)
    rows = rows.assign(
        dtype=rows.kv_cache_dtype.map(DTYPES),
        seconds=rows.latency / 1e3,
        flops=2.0 * rows.batch_size * context * per_pair,
        bytes=rows.batch_size * (context * (LATENT + ROPE) * cached + 2.0 * per_pair),
    )
    return split(device, "mla_decode", rows, ["num_heads", "batch_size", "step"])
