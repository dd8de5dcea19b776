"""Cases of products, attention and elementwise work, with flops and bytes as the estimate has them.

docs/method/physics.md has the expressions ("Operators of a step"). Weights and caches are read from
memory: a case has as many copies of them as the last-level cache does not hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from recipe_core.hardware.microbench.points import ACTIVATION_BYTES, Bench, Case, Work, in_turn
from recipe_core.hardware.profile import Dtype

if TYPE_CHECKING:
    import torch

BYTES: dict[Dtype, float] = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}
# Formats of products, the most important first.
FORMATS: tuple[Dtype, ...] = ("bf16", "fp32", "fp16", "fp8", "int8")
WIDTHS = ((1024, 1024), (384, 1024), (2048, 2048), (4096, 4096), (1024, 4096))
# Rows of products from skinny to square, in the order of what they tell.
ROWS = (1, 4, 128, 1024, 16, 64, 512, 2048)
QUICK_WIDTHS, QUICK_ROWS = ((1024, 1024), (384, 1024), (2048, 2048)), (1, 4, 128, 1024, 16)
HEADS, HEAD_WIDTH = 8, 64
MOST_COPIES_BYTES = 1 << 28


def torch_dtype(dtype: Dtype) -> torch.dtype:
    """Torch's word for a format."""
    import torch

    torch_dtypes: dict[str, torch.dtype] = {
        "fp32": torch.float32,
        "bf16": torch.bfloat16,
        "fp16": torch.float16,
        "fp8": torch.float8_e4m3fn,
        "int8": torch.int8,
    }
    return torch_dtypes[dtype]


@cache
def _shared_store(bench: Bench) -> torch.Tensor:
    """Bytes that no cache holds, which all cases read: numbers of a normal distribution in bf16.

    In the other formats the same bits are numbers too; how fast a product is does not depend on
    which.
    """
    import torch

    store_bytes = min(4 * bench.cache_bytes, MOST_COPIES_BYTES, bench.memory_bytes / 8)
    some = torch.randn(1 << 21, device=bench.device).bfloat16()
    repeated = some.repeat(max(1, math.ceil(store_bytes / some.nbytes)) + 1)
    return repeated.view(torch.uint8)


def stored_arrays(bench: Bench, dtype: Dtype, *shape: int) -> list[torch.Tensor]:
    """Arrays of a shape, of which each is out of the cache when its turn comes again."""
    size = int(math.prod(shape) * BYTES[dtype])
    store, word = _shared_store(bench), torch_dtype(dtype)
    if size > store.nbytes // 2:
        repeated = store.repeat(math.ceil(size / store.nbytes))
        return [part[:size].view(word).view(shape) for part in (repeated, repeated.clone())]
    aligned = -(-size // 64) * 64
    starts = range(0, store.nbytes - size, aligned)
    return [store[start : start + size].view(word).view(shape) for start in starts]


def product_cases(bench: Bench, quick: bool) -> list[Case]:
    """Products of so many rows with a weight, by format, shape by shape over all formats."""
    widths, rows = (QUICK_WIDTHS, QUICK_ROWS) if quick else (WIDTHS, ROWS)
    formats = FORMATS if bench.accelerated else (*FORMATS[:3], "int8")
    if quick:
        formats = formats[:2] if not bench.accelerated else ("bf16", "fp32", "fp8")
    cases = []
    for count in rows:
        for inner, outer in widths:
            if inner == 384 and count > 128:  # the widths of very small models, for their start-up
                continue
            cases += [_product_case(bench, dtype, count, inner, outer) for dtype in formats]
    return cases


def _product_case(bench: Bench, dtype: Dtype, rows: int, inner: int, outer: int) -> Case:
    weight_bytes = BYTES[dtype] * inner * outer
    activation = max(ACTIVATION_BYTES, BYTES[dtype]) if dtype != "fp32" else 4.0

    def make() -> Work:
        return in_turn(list(_product_calls(bench, dtype, rows, inner, outer)))

    return Case(
        "gemm",
        dtype,
        f"{rows} x {inner} x {outer}",
        2.0 * rows * inner * outer,
        weight_bytes + activation * rows * (inner + outer),
        make,
    )


def _product_calls(
    bench: Bench, dtype: Dtype, rows: int, inner: int, outer: int
) -> Iterator[Callable[[], Any]]:
    import torch

    word, weights = torch_dtype(dtype), stored_arrays(bench, dtype, outer, inner)
    if dtype == "int8":
        # fewer rows are refused by torch's kernels on GPUs, whose callers pad them
        x = torch.randint(-8, 8, (max(rows, 32) if bench.accelerated else rows, inner))
        x = x.to(bench.device, torch.int8)
        for w in weights:
            yield partial(torch._int_mm, x, w.t())
        return
    if dtype == "fp8":
        wide = torch.randn(max(rows, 16), inner, device=bench.device)
        x, scale = wide.to(word), torch.ones((), device=bench.device)
        for w in weights:
            scaled = partial(torch._scaled_mm, scale_a=scale, scale_b=scale)
            yield partial(scaled, x, w.t(), out_dtype=torch.bfloat16)
        return
    x = torch.randn(rows, inner, device=bench.device).to(word)
    for w in weights:
        yield partial(torch.nn.functional.linear, x, w)


def prefill_cases(bench: Bench, quick: bool) -> list[Case]:
    """Causal attention over prompts of several lengths."""
    lengths: tuple[int, ...] = (
        (128, 512, 256, 1024) if quick else (128, 512, 1024, 256, 2048, 64, 4096)
    )
    if bench.accelerated:
        lengths = (*lengths, 8192)
    return [_prefill_case(bench, length) for length in lengths]


def _prefill_case(bench: Bench, tokens: int) -> Case:
    import torch

    def make() -> Work:
        shape = (1, HEADS, tokens, HEAD_WIDTH)
        q, k, v = (torch.randn(shape, device=bench.device, dtype=torch.bfloat16) for _ in range(3))
        attend = torch.nn.functional.scaled_dot_product_attention
        return lambda: attend(q, k, v, is_causal=True)

    width = HEADS * 2 * HEAD_WIDTH
    cached = width * ACTIVATION_BYTES
    return Case(
        "attention_prefill",
        "bf16",
        f"{tokens} tokens",
        2.0 * tokens * tokens / 2 * width,
        tokens * (width * ACTIVATION_BYTES + 2 * cached),
        make,
    )


def decode_cases(bench: Bench, quick: bool) -> list[Case]:
    """Attention of one token of several sequences over their caches."""
    grid: tuple[tuple[int, int], ...] = (
        (1, 256),
        (4, 256),
        (8, 1024),
        (1, 1024),
        (16, 512),
        (16, 2048),
        (4, 4096),
        (64, 256),
    )
    grid = grid[:5] if quick else grid
    if bench.accelerated:
        grid = (*grid, (64, 2048), (128, 1024))
    return [_decode_case(bench, sequences, context) for sequences, context in grid]


def _decode_case(bench: Bench, sequences: int, context: int) -> Case:
    import torch

    width = HEADS * 2 * HEAD_WIDTH
    cached = width * ACTIVATION_BYTES

    def make() -> Work:
        q = torch.randn(sequences, HEADS, 1, HEAD_WIDTH, device=bench.device).bfloat16()
        attend = torch.nn.functional.scaled_dot_product_attention
        caches = stored_arrays(bench, "bf16", 2, sequences, HEADS, context, HEAD_WIDTH)
        calls = [partial(attend, q, kv[0], kv[1]) for kv in caches]
        return in_turn(calls)

    return Case(
        "attention_decode",
        "bf16",
        f"{sequences} x {context}",
        2.0 * sequences * context * width,
        sequences * context * cached + sequences * width * ACTIVATION_BYTES,
        make,
    )


def elementwise_cases(bench: Bench, quick: bool) -> list[Case]:
    """Sums of two arrays, from what fits in a cache to what does not."""
    largest = 24 if not quick or bench.accelerated else 22
    sizes = [1 << power for power in (*range(10, largest, 2), largest)]
    return [_elementwise_case(bench, size) for size in sizes]


def _elementwise_case(bench: Bench, values: int) -> Case:
    import torch

    def make() -> Work:
        a, b = (torch.randn(values, device=bench.device).bfloat16() for _ in range(2))
        out = torch.empty_like(a)
        return lambda: torch.add(a, b, out=out)

    moved = 3 * ACTIVATION_BYTES * values
    return Case("elementwise", "bf16", f"{values} values", moved / 2, moved, make)
