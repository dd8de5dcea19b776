"""Compare memory estimates with engine logs: the memory part of docs/reference/accuracy.md."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from memory_readings import LAYOUT, Reading, reading_of

from recipe_core.base.errors import RecipeError
from recipe_core.base.units import GIB
from recipe_core.engines.spec import engine, release_key
from recipe_core.estimates.columns.serving import Setting
from recipe_core.estimates.serving.cache import COUNTED_RIGHT
from recipe_core.estimates.serving.memory import Memory, serving_memory
from recipe_core.models.catalog import load_model_spec
from recipe_core.plans.plan import Plan
from recipe_core.plans.plans import plan_candidate
from recipe_core.request.schema import PlanRequest

DEVICES = {
    r"A100[- ](PCIe[- ])?40 ?GB": "a100-sxm-40gb",
    r"H100[- ]PCIe": "h100-pcie",
    r"H100[- ]NVL": "h100-nvl",
    r"RTX A6000": "rtx-a6000",
    r"RTX PRO 6000": "rtx-pro-6000",
    r"RTX 6000 Ada": "rtx-6000-ada",
    r"RTX 3090": "rtx-3090",
    r"RTX 4090": "rtx-4090",
    r"RTX 5090": "rtx-5090",
    r"GH200": "gh200",
    r"H100": "h100-sxm",
    r"H200": "h200-sxm",
    r"GB200": "gb200",
    r"B200": "b200-sxm",
    r"A100": "a100-sxm-80gb",
    r"A10G\b": "a10g",
    r"A40\b": "a40",
    r"L40S": "l40s",
    r"L4\b": "l4",
    r"MI300X": "mi300x",
    r"MI325X": "mi325x",
}
"""Devices by what set-ups call them; the first that is found counts."""
QUANTITIES: dict[str, Callable[[Memory], Any]] = {
    "weights_per_gpu": lambda m: m.weights_bytes / GIB,
    "available_kv_per_gpu": lambda m: m.kv_cache_bytes / GIB,
    "kv_needed_for_max_len": lambda m: (
        (m.start_bytes - m.weights_bytes - m.activations_bytes - m.runtime_bytes) / GIB
    ),
    "kv_cache_tokens": lambda m: m.kv_cache_tokens,
    "num_gpu_blocks": lambda m: m.kv_cache_tokens,
}
PARTS = ("weights_per_gpu", "peak_activation_per_gpu", "non_torch_per_gpu", "available_kv_per_gpu")
LIMITS = {"max_num_seqs": "max_num_seqs", "max_num_batched_tokens": "max_batched_tokens"}
# Words of a row's note or set-up for which it is not scored, and which of its figures are.
NOT_SCORED: dict[str, tuple[str, ...]] = {
    "does not start": (),
    "int8-kv": (),  # a cache format of that build alone
    # Weights of both ranks are the same, and the tokens are those of the rank that samples; cache
    # and activations are the other's, which lacks the sampler's 1.2 GiB.
    "different boots": ("weights_per_gpu", "kv_cache_tokens"),
    "fp8 kv; fp8": (),
    "offload": (),
    "(layers": ("kv_needed_for_max_len", "estimated_max_model_len"),
}


TOKENS = ("kv_cache_tokens", "num_gpu_blocks")
SIZED = ("kv_cache_tokens", "estimated_max_model_len")
ANY_DEVICE = "h200-sxm"
"""Where what no device changes is worked out: weights, and tokens of a cache of a logged size."""

RELEASED = {
    1_190: "0.2.0",
    7_150: "0.5.4",
    10_350: "0.6.4",
    11_270: "0.6.5",
    15_050: "0.8.0",
    16_600: "0.8.4",
    18_850: "0.9.0",
    19_450: "0.9.1",
    40_900: "0.20.0",
    52_400: "0.28.0",
}
"""About the first thread of vLLM's repository after each release that changed memory rules, by the
dates of both."""
BOOTS = Path(__file__).parents[1] / "tests/data/vllm-boots.csv"


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of a source's engine from the pinned version, with a reference."""

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


def _miscounted(table: Plan, release: str | None) -> bool:
    """Return whether a release may have logged wrong token counts (bounded caches of layers)."""
    windowed = any(
        layer.attention is not None and layer.attention.window is not None
        for layer in table.problem.model.layers
    )
    return windowed and (release is None or release_key(release) < release_key(COUNTED_RIGHT))


def release_of_start(row: Any) -> str | None:
    """The release that a row's set-up names, or the newest when the thread of its source began.

    None where neither is there, or the rules of that release are not known.
    """
    version_match = re.search(r"vLLM v?(\d+\.\d+(?:\.\d+)?)", str(row.setup))
    thread = re.search(r"vllm-project/vllm/(?:issues|pull)/(\d+)", str(row.source))
    release = version_match.group(1) if version_match else None
    if thread and not version_match:
        earlier = [version for first, version in RELEASED.items() if first <= int(thread.group(1))]
        release = earlier[-1] if earlier else None
    try:
        engine("vllm").at(release or "", 0)
    except RecipeError:
        return None
    return release


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


def start_request(
    row: Any, shares: dict[tuple[str, str], float], reading: Reading
) -> dict[str, Any] | None:
    """The start-up a row tells of, as a request; None where its engine is not vLLM."""
    setup = str(row.setup)
    if "vLLM" not in setup:
        return None
    chip = device_of(row) or ANY_DEVICE
    tp = int(number(r"tp=(\d+)", setup, 1))
    share = shares.get((row.model, setup), number(r"util(?:ization)?[ =]([\d.]+)", setup, 0))
    candidate: dict[str, Any] = {"engine": "vllm", "tp": tp, "pp": 1, "dp": 1}
    if share or not (reading.release or reading.meant):
        candidate["memory_fraction"] = share or 0.9
    candidate |= {
        ours: int(number(rf"{theirs}=(\d+)", setup, 0))
        for theirs, ours in LIMITS.items()
        if f"{theirs}=" in setup
    }
    if re.search(r"fp8 KV", setup):
        candidate["kv_dtype"] = "fp8"
    model = reading.meant or str(row.model)
    context = int(number(r"max_model_len[=~](\d+)", setup, load_model_spec(model).max_context))
    workload = {
        "input_tokens": 512,
        "output_tokens": 512,
        "concurrency": 1,
        "max_context": max(context, 1024),
    }
    return {
        "model": model,
        "hardware": {"device": chip, "per_node": tp},
        "workload": workload,
        "candidate": candidate | reading.candidate,
    }


def device_of(row: Any) -> str | None:
    """The device that a row states; None without one."""
    chips = (chip for name, chip in DEVICES.items() if re.search(name, str(row.setup)))
    return next(chips, None)


def measured_memory(row: Any) -> float:
    """The logged figure in the unit of ours (blocks as tokens)."""
    block = number(r"block_size=(\d+)", str(row.setup), 16)
    return float(row.value) * (block if row.quantity == "num_gpu_blocks" else 1)


def memory_of(
    values: dict[str, Any], release: str | None, change: Callable[[Setting], Setting] | None = None
) -> tuple[Memory, Plan]:
    """Memory of a start-up at a release (None: the pinned one), with a change to its setting."""
    candidate = values["candidate"] | ({"engine_version": release} if release else {})
    table, _ = plan_candidate(PlanRequest.parse(values | {"candidate": candidate}))
    block = table.blocks[0]
    return serving_memory(
        change(block.setting) if change else block.setting, block.cases, np.ones(1)
    ), table


def describe_start(
    row: Any, shares: dict[tuple[str, str], float], was: str, release: str | None
) -> str:
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
    if release and release not in setup:
        setup += f"; rules from {release} on, by its thread"
    return f"{setup}; {was}" if was else setup


def scored(row: Any) -> bool:
    """Return whether a row is a measured figure that can be compared."""
    text = f"{'' if pd.isna(row.note) else row.note} {row.setup}".lower()
    figure_sets = [figures for word, figures in NOT_SCORED.items() if word in text]
    return (
        (row.quantity in QUANTITIES or row.quantity in LAYOUT)
        and row.kind == "measured"
        and all(row.quantity in figures for figures in figure_sets)
    )


def compare_memory(path: Path) -> pd.DataFrame:
    """Rows of the table that can be estimated, with estimate, measurement and relative error."""
    facts = pd.read_csv(path)
    shares, caches = budget_shares(facts), logged_caches(facts)
    rows = [
        row_figures
        for row in filter(scored, facts.itertuples())
        if (row_figures := _compared(row, shares, caches))
    ]
    columns = ["source", "model", "setup", "quantity", "measured", "estimated", "error"]
    return pd.DataFrame(rows, columns=[*columns, "error_pinned"])


def logged_caches(facts: pd.DataFrame) -> dict[tuple[str, str], float]:
    """The logged size of the cache in bytes, by source and model."""
    sizes = facts[facts.quantity == "available_kv_per_gpu"]
    return {(row.source, row.model): row.value * GIB for row in sizes.itertuples()}


def _compared(
    row: Any, shares: dict[tuple[str, str], float], caches: dict[tuple[str, str], float]
) -> tuple[Any, ...] | None:
    """A row beside its estimates: of the release that ran, and of the pinned one."""
    reading, quantity = reading_of(row), str(row.quantity)
    difference = next((d for d in DIFFERENCES if d.source in str(row.source)), None)
    release = reading.release or release_of_start(row)
    try:
        values = start_request(row, shares, reading)
        if values is None:
            return None
        now, table = memory_of(values, None)
        change = difference.change if difference else None
        plain, (then, _) = memory_of(values, release)[0], memory_of(values, release, change)
    except RecipeError:
        return None
    placed, cache = device_of(row) is not None, caches.get((row.source, row.model))
    if quantity in TOKENS and _miscounted(table, release):
        return None
    was = difference.was if difference and then.weights_bytes != plain.weights_bytes else ""
    tables = [memory_of(values, stated_release)[1].blocks[0] for stated_release in (release, None)]
    if not placed or (quantity in LAYOUT and quantity not in TOKENS):
        if quantity == "weights_per_gpu":
            estimates = [float(memory.weights_bytes[0]) / GIB for memory in (then, now)]
        elif quantity not in LAYOUT or (quantity in SIZED and cache is None):
            return None
        else:
            estimates = [LAYOUT[quantity](t.setting, t.cases, cache or 0.0) for t in tables]
            was = was or ("at the logged size of the cache" if quantity in SIZED else "")
    elif quantity == "kv_cache_tokens":
        pools = [float(memory.kv_cache_bytes[0]) for memory in (then, now)]
        rule = LAYOUT[quantity]
        logged_counts = [
            rule(t.setting, t.cases, pool) for t, pool in zip(tables, pools, strict=True)
        ]
        cache_tokens = [float(memory.kv_cache_tokens[0]) for memory in (then, now)]
        estimates = [
            tokens if math.isnan(count) else count
            for count, tokens in zip(logged_counts, cache_tokens, strict=True)
        ]
    else:
        estimates = [float(QUANTITIES[quantity](memory)[0]) for memory in (then, now)]
    reasons = "; ".join(filter(None, (was, reading.why)))
    stated_release = None if reading.release else release
    logged, setup = measured_memory(row), describe_start(row, shares, reasons, stated_release)
    errors = [estimate / logged - 1 for estimate in estimates]
    return str(row.source), row.model, setup, quantity, logged, estimates[0], *errors


def compare_starts(path: Path = BOOTS) -> pd.DataFrame:
    """Published start-ups of vLLM with their release: as ``compared``."""
    names = {"weights": "weights_per_gpu", "cache": "available_kv_per_gpu", "tokens": TOKENS[0]}
    out = []
    for row in pd.read_csv(path).itertuples():
        candidate = {"engine": "vllm", "tp": row.tp, "pp": 1, "dp": 1}
        candidate["memory_fraction"] = row.memory_fraction
        if not pd.isna(row.max_num_seqs):
            candidate["max_num_seqs"] = int(row.max_num_seqs)
        lengths = {"input_tokens": 512, "output_tokens": 512, "max_context": row.max_context}
        values = {
            "model": row.model,
            "hardware": {"device": row.device, "per_node": row.tp},
            "workload": lengths | {"concurrency": 1},
            "candidate": candidate,
        }
        quantity = names[row.quantity]
        then, now = (
            float(QUANTITIES[quantity](memory_of(values, release)[0])[0])
            for release in (row.release, None)
        )
        setup = f"vLLM {row.release}; {row.tp} × {row.device}; {row.max_context:,} tokens"
        out.append(
            (row.model, setup, quantity, row.value, then, then / row.value - 1, now / row.value - 1)
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
        f"median error {100 * middle:.1f} %, largest {100 * worst:.1f} %."
    )


def shares_within(rows: pd.DataFrame, error: str = "error") -> tuple[float, float, float]:
    """Of the figures of a cache: how many, the share within 10 %, and the median error."""
    errors = rows[rows.quantity != "weights_per_gpu"][error].abs()
    return len(errors), float((errors <= 0.1).mean()), float(errors.median())


def memory_report(rows: pd.DataFrame, capacities: str) -> str:
    """Markdown tables of every row, and the shares within the bounds that matter."""
    weights = rows[rows.quantity == "weights_per_gpu"]
    within = {name: (weights[name].abs() <= 0.03).mean() for name in ("error", "error_pinned")}
    count, share, median = shares_within(rows)
    share_pinned = shares_within(rows, "error_pinned")[1]
    lines = [
        f"Weights: {len(weights)} figures, median error {100 * weights.error.abs().median():.1f} "
        f"%, {100 * within['error']:.0f} % within 3 %. Cache: {count} figures, "
        f"median {100 * median:.1f} %, {100 * share:.0f} % within 10 %. "
        f"{capacities}",
        "",
        "Where the logged engine differed from the estimated version in a documented way, the "
        "estimate follows the logged one, and the row says so. With the current version instead, "
        f"{100 * within['error_pinned']:.0f} % and {100 * share_pinned:.0f} % are within these "
        "bounds.",
        "",
        "| model | set-up | figure | logged | estimated | error |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.model} | {row.setup} | {row.quantity} | {row.measured:,.2f} | "
        f"{row.estimated:,.2f} | {100 * row.error:+.1f} % |"
        for row in rows.itertuples()
    ]
    return "\n".join(
        [*lines, "", *_misses(rows), "", *_by_source(rows), "", *_started(compare_starts())]
    )


CAUSES = {
    ("vllm/pull/17122", "kv_cache_tokens"): "a build of its own; 163,500 tokens with the 1,024 "
    "sequences that were the default until vllm#16158, which it may still have had",
    ("vllm/issues/44376", "available_kv_per_gpu"): "4.6 GiB more were in use: that "
    "release extrapolated the graphs of both modes linearly (vllm#45178), by how much is not known",
}
"""Why figures are beyond the bounds, by parts of their source."""


def beyond(rows: pd.DataFrame) -> pd.DataFrame:
    """Figures of weights more than 3 % off, and of the cache more than 10 %."""
    bounds = rows.quantity.map(lambda name: 0.03 if name == "weights_per_gpu" else 0.1)
    return rows[rows.error.abs() > bounds]


def _misses(rows: pd.DataFrame) -> list[str]:
    """Each figure beyond the bounds with its cause."""
    lines = []
    for row in beyond(rows).itertuples():
        causes = (
            cause
            for (source, figure), cause in CAUSES.items()
            if source in row.source and figure == row.quantity
        )
        cause = next(causes, "not explained")
        lines.append(f"* {row.model}, {row.quantity} ({100 * row.error:+.1f} %): {cause}.")
    return ["Beyond these bounds:", "", *(lines or ["* none"])]


def _by_source(rows: pd.DataFrame) -> list[str]:
    """Figures and shares within the bounds by source."""
    lines = ["| source | figures | within the bounds |", "|---|---|---|"]
    misses = beyond(rows)
    for source, part in rows.groupby("source", sort=False):
        inside = len(part) - int((misses.source == source).sum())
        lines.append(f"| {source} | {len(part)} | {inside} |")
    return lines


def _started(rows: pd.DataFrame) -> list[str]:
    """Start-ups by release, with the rules of then and of the pinned version."""
    parts = {"all": rows, "one half": by_model(rows)[0], "the other": by_model(rows)[1]}
    shares = [
        f"{name}: {count} figures, {100 * then:.0f} % (median {100 * median:.1f} %) instead of "
        f"{100 * now:.0f} % ({100 * median_now:.1f} %)"
        for name, part in parts.items()
        for count, then, median in [shares_within(part)]
        for _, now, median_now in [shares_within(part, "error_pinned")]
    ]
    return [
        "**Earlier releases.** Start-ups of vLLM whose release is known "
        "(`tests/data/vllm-boots.csv` has the sources), with the rules of that release "
        "(`history` in `engines/serving/vllm.yaml`) and with those of the current one. The rules "
        "are vLLM's own, by its pull requests and sources; logs gave what its sampler takes from "
        "0.17 to 0.28, what two devices and more take outside torch, and 0.31 GiB of context, a "
        "median of five logs, two of which are below. Cache within 10 %, models halved by a hash "
        f"of their names: {'; '.join(shares)}.",
        "",
        "| model | start-up | figure | logged | estimated | error | with today's rules |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {row.model} | {row.setup} | {row.quantity} | {row.measured:,.2f} | "
            f"{row.estimated:,.2f} | {100 * row.error:+.1f} % | {100 * row.error_pinned:+.1f} % |"
            for row in rows.itertuples()
        ),
    ]


def by_model(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """Two halves of the rows, all of a model in one of them."""
    digests = rows.model.map(lambda name: int(sha256(name.encode()).hexdigest(), 16) % 2)
    return [rows[digests == half] for half in (0, 1)]
