"""Compare memory estimates with engine logs: the memory part of docs/accuracy.md."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from recipe_core.base.errors import RecipeError
from recipe_core.base.units import GIB
from recipe_core.physics.serving.memory import Memory, memory
from recipe_core.request.schema import PlanRequest
from recipe_core.search.plans import plan_candidate
from recipe_core.search.serving_plan import ServingPlan
from recipe_core.space.serving import Setting

DEVICES = {
    "H100": "h100-sxm",
    "MI300X": "mi300x",
    "L40S": "l40s",
    "RTX 4090": "rtx-4090",
    "RTX 5090": "rtx-5090",
    "RTX 3090": "rtx-3090",
}
DEVICES |= {"A100": "a100-sxm-80gb", "RTX A6000": "rtx-a6000", "GH200": "gh200"}
QUANTITIES: dict[str, Callable[[Memory], Any]] = {
    "weights_per_gpu": lambda m: m.weights_bytes / GIB,
    "available_kv_per_gpu": lambda m: m.pool_bytes / GIB,
    "kv_needed_for_max_len": lambda m: (
        (m.start_bytes - m.weights_bytes - m.activations_bytes - m.runtime_bytes) / GIB
    ),
    "kv_cache_tokens": lambda m: m.pool_tokens,
    "num_gpu_blocks": lambda m: m.pool_tokens,
}
PARTS = ("weights_per_gpu", "peak_activation_per_gpu", "non_torch_per_gpu", "available_kv_per_gpu")
LIMITS = {"max_num_seqs": "max_num_seqs", "max_num_batched_tokens": "max_batched_tokens"}
# The last: pipeline stages cut by hand.
NOT_SCORED = (
    "does not start",
    "different boots",
    "fp8 kv; fp8",
    "offload",
    "decode-context-parallel",
    "(layers",
)


TOKENS = ("kv_cache_tokens", "num_gpu_blocks")


@dataclass(frozen=True, slots=True)
class Difference:
    """How the engine behind a source's logs differed from the pinned version, with a reference."""

    source: str
    was: str
    change: Callable[[Setting], Setting]


def _scales_kept_twice(setting: Setting) -> Setting:
    """Triton kernels kept the checkpoint's mxfp4 scales (a byte per 32 values) beside a copy."""
    stored = setting.model.quantization
    if stored is None or stored.dtype != "mxfp4":
        return setting
    twice = replace(stored, value_bytes=stored.bytes_of("experts", setting.model.dtype) + 1 / 32)
    return replace(setting, model=replace(setting.model, quantization=twice))


def _marlin_on_hopper(setting: Setting) -> Setting:
    """Wheels without Triton kernels took Marlin for mxfp4 experts on every NVIDIA device."""
    use = setting.engine.memory
    tiles = tuple(t for t in use.expert_tiles if "sm_90" not in t.architectures)
    return replace(
        setting,
        engine=setting.engine.model_copy(
            update={"memory": use.model_copy(update={"expert_tiles": tiles})}
        ),
    )


def _quark_as_fp8(setting: Setting) -> Setting:
    """Per-tensor checkpoints of AMD Quark went through the fp8 loader, which pads rows."""
    use = setting.engine.memory
    if use.row_padding is None:
        return setting
    rule = use.row_padding.model_copy(
        update={"schemes": (*use.row_padding.schemes, "quark/tensor")}
    )
    return replace(
        setting,
        engine=setting.engine.model_copy(
            update={"memory": use.model_copy(update={"row_padding": rule})}
        ),
    )


DIFFERENCES = (
    Difference(
        "llm-d-planner", "mxfp4 scales kept twice until June 2026 (vllm#46549)", _scales_kept_twice
    ),
    Difference(
        "vllm/issues/27508",
        "mxfp4 through Marlin on Hopper, as in the 0.10 log of vllm#23278",
        _marlin_on_hopper,
    ),
    Difference(
        "dstackai/benchmarks",
        "Quark checkpoints through the fp8 loader in AMD's vLLM of 2024 (ROCm/vllm#47)",
        _quark_as_fp8,
    ),
)


def _windowed(table: ServingPlan) -> bool:
    """Whether a model bounds some layers' caches: vLLM up to about 0.19 logged wrong token counts
    for those (vllm#40691).
    """
    return any(
        layer.attention is not None and layer.attention.window is not None
        for layer in table.problem.model.layers
    )


def number(pattern: str, text: str, otherwise: float) -> float:
    match = re.search(pattern, text)
    return float(match.group(1)) if match else otherwise


def budget_shares(facts: pd.DataFrame) -> dict[tuple[str, str], float]:
    """The utilisation that a boot's own parts add up to, for boots that print them all and the
    usable memory, by model and set-up.

    vLLM gives the cache what its share of the device leaves, so weights, peak activation, non-torch
    memory and cache are that share.
    """
    logged = facts[facts.quantity.isin(PARTS)].pivot_table(
        index=["model", "setup"], columns="quantity", values="value"
    )
    totals = logged.reindex(columns=list(PARTS)).dropna().sum(axis=1)
    out = {}
    for (model, setup), total in zip(totals.index, totals, strict=True):
        usable = number(r"\(([\d.]+) GiB usable\)", setup, 0.0)
        if usable:
            out[model, setup] = round(float(total) / usable, 2)
    return out


def request(row: Any, shares: dict[tuple[str, str], float]) -> dict[str, Any] | None:
    """The start-up a row tells of, as a request; None where its device or engine is not stated."""
    setup = str(row.setup)
    chip = next((device for name, device in DEVICES.items() if name in setup), None)
    if chip is None or "vLLM" not in setup:
        return None
    tp = int(number(r"tp=(\d+)", setup, 1))
    share = shares.get((row.model, setup), number(r"util(?:ization)?[ =]([\d.]+)", setup, 0.9))
    candidate: dict[str, Any] = {
        "engine": "vllm",
        "tp": tp,
        "pp": 1,
        "dp": 1,
        "memory_fraction": share,
    }
    candidate |= {
        ours: int(number(rf"{theirs}=(\d+)", setup, 0))
        for theirs, ours in LIMITS.items()
        if f"{theirs}=" in setup
    }
    if re.search(r"fp8 KV", setup):
        candidate["kv_dtype"] = "fp8"
    context = int(number(r"max_model_len[=~](\d+)", setup, 8192))
    workload = {
        "input_tokens": 512,
        "output_tokens": 512,
        "concurrency": 1,
        "max_context": max(context, 1024),
    }
    return {
        "model": row.model,
        "hardware": {"device": chip, "per_node": tp},
        "workload": workload,
        "candidate": candidate,
    }


def measured(row: Any) -> float:
    """The logged figure in the unit of ours (blocks as tokens)."""
    block = number(r"block_size=(\d+)", str(row.setup), 16)
    return float(row.value) * (block if row.quantity == "num_gpu_blocks" else 1)


def as_logged(row: Any, table: ServingPlan, at: int) -> tuple[Memory, Memory, str]:
    """Memory of a row's start-up with what its engine did otherwise than the pinned version,
    without that, and what it was.
    """
    block = next(block for block in table.blocks if block.setting is table.setting(at))
    at -= sum(len(other.cases) for other in table.blocks[: table.blocks.index(block)])
    setting, cases = block.setting, block.cases.take([at])
    difference = next((d for d in DIFFERENCES if d.source in row.source), None)
    changed = difference.change(setting) if difference else setting
    then, now = (memory(s, cases, np.ones(1)) for s in (changed, setting))
    return (
        then,
        now,
        difference.was if difference and then.weights_bytes[0] != now.weights_bytes[0] else "",
    )


def described(row: Any, shares: dict[tuple[str, str], float], was: str) -> str:
    """A row's set-up in short, with what was taken otherwise than it says."""
    setup = re.sub(
        r"\s*\([^)]*usable\)|max_num_seqs/max_num_batched_tokens at defaults; ", "", str(row.setup)
    )
    share, logged = (
        shares.get((row.model, row.setup)),
        number(r"util(?:ization)?[ =]([\d.]+)", setup, 0.9),
    )
    if share is not None and share != logged:
        setup += f"; its parts add up to {share:g}, not {logged:g}, of the device"
    return f"{setup}; {was}" if was else setup


def compared(path: Path) -> pd.DataFrame:
    """Rows of the table that can be estimated, with estimate, measurement and relative error."""
    facts = pd.read_csv(path)
    shares = budget_shares(facts)
    text = facts.note.fillna("").str.lower() + facts.setup.str.lower()
    facts = facts[
        facts.quantity.isin(QUANTITIES)
        & facts.kind.eq("measured")
        & ~text.map(lambda t: any(word in t for word in NOT_SCORED))
    ]
    out = []
    for row in facts.itertuples():
        values = request(row, shares)
        try:
            table, at = plan_candidate(PlanRequest.parse(values)) if values else (None, 0)
        except RecipeError:
            table = None
        if table is not None and not (str(row.quantity) in TOKENS and _windowed(table)):
            *memories, was = as_logged(row, table, at)
            then, now = (float(QUANTITIES[str(row.quantity)](memory)[0]) for memory in memories)
            logged = measured(row)
            out.append(
                (
                    row.model,
                    described(row, shares, was),
                    row.quantity,
                    logged,
                    then,
                    then / logged - 1,
                    now / logged - 1,
                )
            )
    return pd.DataFrame(
        out,
        columns=["model", "setup", "quantity", "measured", "estimated", "error", "error_pinned"],
    )


def capacity(path: Path) -> str:
    """Concurrent sequences of TensorRT-LLM against what its estimated cache holds, as text."""
    errors = []
    for row in pd.read_csv(path).itertuples():
        chip = {"h100_sxm": "h100-sxm", "gb300": "gb300"}[str(row.system)]
        workload = {
            "input_tokens": row.isl,
            "output_tokens": row.osl,
            "concurrency": 1,
            "max_context": row.max_seq_len,
        }
        candidate = {
            "engine": "tensorrt-llm",
            "tp": row.tp,
            "pp": 1,
            "dp": 1,
            "memory_fraction": row.free_gpu_memory_fraction,
        }
        values = {
            "model": row.model,
            "hardware": {"device": chip, "per_node": row.tp},
            "workload": workload,
        }
        table, at = plan_candidate(
            PlanRequest.parse(
                values | {"candidate": candidate | {"max_batched_tokens": row.max_num_tokens}}
            )
        )
        sequences = table.estimate(at).memory.kv_cache_tokens / float(row.max_seq_len)
        errors.append(abs(sequences / float(row.max_concurrent_seqs_measured) - 1))
    worst, middle = max(errors), float(pd.Series(errors).median())
    return (
        f"TensorRT-LLM, {len(errors)} measured capacities on H100 and GB300: "
        f"median error {middle:.1%}, largest {worst:.1%}."
    )


def report(rows: pd.DataFrame, capacities: str) -> str:
    """A Markdown table of every row, and the shares within the bounds that matter."""
    weights, cache = (
        rows[(rows.quantity == "weights_per_gpu") == which] for which in (True, False)
    )
    within = {
        name: ((weights[name].abs() <= 0.03).mean(), (cache[name].abs() <= 0.1).mean())
        for name in ("error", "error_pinned")
    }
    lines = [
        f"Weights: {len(weights)} figures, median error {weights.error.abs().median():.1%}, "
        f"{within['error'][0]:.0%} within 3 %. Cache: {len(cache)} figures, "
        f"median {cache.error.abs().median():.1%}, {within['error'][1]:.0%} within 10 %. "
        f"{capacities}",
        "",
        "Where the logged engine differed from the estimated version in a documented way, the "
        "estimate follows the logged one, and the row says so. With the current version instead, "
        f"{within['error_pinned'][0]:.0%} and {within['error_pinned'][1]:.0%} are within these "
        "bounds.",
        "",
        "| model | set-up | figure | logged | estimated | error |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.model} | {row.setup} | {row.quantity} | {row.measured:,.2f} | "
        f"{row.estimated:,.2f} | {row.error:+.1%} |"
        for row in rows.itertuples()
    ]
    return "\n".join(lines)
