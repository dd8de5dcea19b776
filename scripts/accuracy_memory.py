"""Hold memory estimates against what engines logged: the memory part of docs/accuracy.md (see accuracy.py)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd

from recipe_core.errors import RecipeError
from recipe_core.plan import PlanTable, chosen_plan
from recipe_core.request import PlanRequest
from recipe_core.units import GIB

DEVICES = {"H100": "h100-sxm", "MI300X": "mi300x", "L40S": "l40s", "RTX 4090": "rtx-4090", "RTX 5090": "rtx-5090", "RTX 3090": "rtx-3090"}
DEVICES |= {"A100": "a100-sxm-80gb", "RTX A6000": "rtx-a6000", "GH200": "gh200"}
QUANTITIES = {
    "weights_per_gpu": lambda m: m["weights_bytes"] / GIB,
    "available_kv_per_gpu": lambda m: m["kv_cache_bytes"] / GIB,
    "kv_cache_tokens": lambda m: m["kv_cache_tokens"],
    "num_gpu_blocks": lambda m: m["kv_cache_tokens"],
}
LIMITS = {"max_num_seqs": "max_num_seqs", "max_num_batched_tokens": "max_batched_tokens"}
NOT_SCORED = ("does not start", "different boots", "fp8 kv; fp8", "offload", "decode-context-parallel")


TOKENS = ("kv_cache_tokens", "num_gpu_blocks")


def _windowed(table: PlanTable) -> bool:
    """Whether a model bounds some layers' caches: vLLM up to about 0.19 logged wrong token counts for those (vllm#40691)."""
    return any(layer.attention is not None and layer.attention.window is not None for layer in table.found.model.layers)


def number(pattern: str, text: str, otherwise: float) -> float:
    found = re.search(pattern, text)
    return float(found.group(1)) if found else otherwise


def request(row: Any) -> dict[str, Any] | None:
    """The start-up a row tells of, as a request; None where its device or engine is not stated."""
    setup = str(row.setup)
    chip = next((device for name, device in DEVICES.items() if name in setup), None)
    if chip is None or "vLLM" not in setup:
        return None
    tp = int(number(r"tp=(\d+)", setup, 1))
    share = number(r"util(?:ization)?[ =]([\d.]+)", setup, 0.9)
    candidate: dict[str, Any] = {"engine": "vllm", "tp": tp, "pp": 1, "dp": 1, "memory_fraction": share}
    candidate |= {ours: int(number(rf"{theirs}=(\d+)", setup, 0)) for theirs, ours in LIMITS.items() if f"{theirs}=" in setup}
    if re.search(r"fp8 KV", setup):
        candidate["kv_dtype"] = "fp8"
    context = int(number(r"max_model_len[=~](\d+)", setup, 8192))
    workload = {"input_tokens": 512, "output_tokens": 512, "concurrency": 1, "max_context": max(context, 1024)}
    return {"model": row.model, "hardware": {"device": chip, "per_node": tp}, "workload": workload, "candidate": candidate}


def measured(row: Any) -> float:
    """The logged figure in the unit of ours (blocks as tokens)."""
    block = number(r"block_size=(\d+)", str(row.setup), 16)
    return float(row.value) * (block if row.quantity == "num_gpu_blocks" else 1)


def compared(path: Path) -> pd.DataFrame:
    """Rows of the table that can be estimated, with estimate, measurement and relative error."""
    facts = pd.read_csv(path)
    text = facts.note.fillna("").str.lower() + facts.setup.str.lower()
    facts = facts[facts.quantity.isin(QUANTITIES) & facts.kind.eq("measured") & ~text.map(lambda t: any(word in t for word in NOT_SCORED))]
    out = []
    for row in facts.itertuples():
        asked = request(row)
        try:
            table, at = chosen_plan(PlanRequest.parse(asked)) if asked else (None, 0)
        except RecipeError:
            table = None
        if table is not None and not (str(row.quantity) in TOKENS and _windowed(table)):
            estimate = float(QUANTITIES[str(row.quantity)](table.estimate(at)["memory"]))
            out.append((row.model, row.setup, row.quantity, measured(row), estimate, estimate / measured(row) - 1))
    return pd.DataFrame(out, columns=["model", "setup", "quantity", "measured", "estimated", "error"])


def capacity(path: Path) -> str:
    """Concurrent sequences that TensorRT-LLM held, against what its estimated cache holds, as a sentence."""
    errors = []
    for row in pd.read_csv(path).itertuples():
        chip = {"h100_sxm": "h100-sxm", "gb300": "gb300"}[str(row.system)]
        workload = {"input_tokens": row.isl, "output_tokens": row.osl, "concurrency": 1, "max_context": row.max_seq_len}
        candidate = {"engine": "tensorrt-llm", "tp": row.tp, "pp": 1, "dp": 1, "memory_fraction": row.free_gpu_memory_fraction}
        asked = {"model": row.model, "hardware": {"device": chip, "per_node": row.tp}, "workload": workload}
        table, at = chosen_plan(PlanRequest.parse(asked | {"candidate": candidate | {"max_batched_tokens": row.max_num_tokens}}))
        held = table.estimate(at)["memory"]["kv_cache_tokens"] / float(row.max_seq_len)
        errors.append(abs(held / float(row.max_concurrent_seqs_measured) - 1))
    worst, middle = max(errors), float(pd.Series(errors).median())
    return f"TensorRT-LLM, {len(errors)} measured capacities on H100 and GB300: median error {middle:.1%}, largest {worst:.1%}."


def report(rows: pd.DataFrame, capacities: str) -> str:
    """A Markdown table of every row, and the shares within the bounds that matter."""
    weights = rows[rows.quantity == "weights_per_gpu"].error.abs()
    cache = rows[rows.quantity != "weights_per_gpu"].error.abs()
    lines = [
        f"Weights: {len(weights)} figures, median error {weights.median():.1%}, {(weights <= 0.03).mean():.0%} within 3 %. "
        f"Cache: {len(cache)} figures, median {cache.median():.1%}, {(cache <= 0.1).mean():.0%} within 10 %. {capacities}",
        "",
        "| model | set-up | figure | logged | estimated | error |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows.itertuples():
        setup = re.sub(r"\s*\([^)]*usable\)|max_num_seqs/max_num_batched_tokens at defaults; ", "", str(row.setup))
        lines.append(f"| {row.model} | {setup} | {row.quantity} | {row.measured:,.2f} | {row.estimated:,.2f} | {row.error:+.1%} |")
    return "\n".join(lines)
