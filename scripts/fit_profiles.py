"""Fit the four roofline numbers of ``hw_profiles``, and the three of its fabrics, from measured operator latencies.

    python scripts/fit_profiles.py TRUTH_DIR [--device NAME ...] [--fabrics] [--write]

For every device, family and dtype it looks for ``compute_efficiency``, ``memory_efficiency``, ``overhead_s`` and ``smoothing`` of
``t = overhead_s + (t_compute^r + t_memory^r)^(1/r)`` that minimise the mean |log(predicted / measured)|, prints a table, and with
``--write`` puts the numbers into the ``roofline:`` section at the end of the device's YAML. The operators' flops and bytes are
defined here as the estimator defines them. Where several engines measured one shape, the fastest kernel counts.

A fabric's ``latency_s``, ``latency_per_rank_s`` and ``efficiency`` are fitted in the same way to all-reduces, as
``recipe_core/estimate/network.py`` counts them: ``latency + per_rank · (n - 1) + 2 (n - 1)/n · bytes / (bandwidth · efficiency)``.

The peak a dtype is held against is the device's own figure for it; a dtype the device does not multiply natively is held against bf16.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipe_core.documents import read_document, write_whole
from recipe_core.hardware.catalog import SHARED
from recipe_core.hardware.profile import Device, Fabric

Array = NDArray[np.float64]
PROFILES = Path(__file__).resolve().parent.parent / "hw_profiles"
MAX_POINTS = 4000

# bytes an element takes: activation read, weight read (with scales)
ACTIVATION_BYTES = {"bf16": 2.0, "fp8": 1.0, "fp8-block": 1.0, "int8": 1.0, "int4": 2.0, "mxfp4": 0.53, "nvfp4": 0.56}
WEIGHT_BYTES = {"bf16": 2.0, "fp8": 1.0, "fp8-block": 1.0, "int8": 1.0, "int4": 0.53, "mxfp4": 0.53, "nvfp4": 0.56}
DTYPES = {
    "bfloat16": "bf16", "bf16": "bf16", "fp8": "fp8", "fp8_block": "fp8-block", "fp8_per_token": "fp8", "sq": "int8",
    "int4_wo": "int4", "nvfp4": "nvfp4", "mxfp4": "mxfp4", "w4a16_mxfp4": "mxfp4", "w4a8_mxfp4_mxfp8": "mxfp4",
}  # fmt: skip

SYSTEMS = {"a100_sxm": "a100-sxm-80gb", "h100_sxm": "h100-sxm", "h200_sxm": "h200-sxm", "b200_sxm": "b200-sxm"}
# start of the name in kernels_and_links.csv.gz -> devices whose GEMM it measures
LINK_GPUS = {
    "B300-SXM": ("b300-sxm",), "GB200": ("gb200",), "GB300": ("gb300",), "L40S": ("l40s",), "RTX-PRO-6000": ("rtx-pro-6000",),
    "MI300X-192GB (gfx942": ("mi300x", "mi325x"), "MI355X-288GB (gfx950": ("mi355x",),
}  # fmt: skip
MOE_GPUS = {"MI300X-192GB (304": ("mi300x", "mi325x"), "MI355X-288GB (256": ("mi355x",)}
# best rate of a large product where too few shapes are measured for a fit: flops/s by MAMF finder (bf16) and aiter (fp8)
ANCHORS = {
    ("mi300x", "bf16"): 668.4e12, ("mi300x", "fp8"): 1268e12, ("mi325x", "bf16"): 784.9e12, ("mi325x", "fp8"): 1268e12,
}  # fmt: skip
MIN_POINTS = 12
# no measurements of their own: take what is missing from the nearest relative
RELATIVES = {
    "a100-pcie-80gb": "a100-sxm-80gb", "a100-sxm-40gb": "a100-sxm-80gb", "h100-pcie": "h100-sxm", "h100-nvl": "h100-sxm",
    "gh200": "h100-sxm", "gh200-144gb": "h100-sxm", "h200-nvl": "h200-sxm", "b300-sxm": "b200-sxm", "gb200": "b200-sxm",
    "gb300": "b200-sxm", "rtx-6000-ada": "l40s", "rtx-5090": "rtx-pro-6000", "mi350x": "mi355x",
}  # fmt: skip

# fabric -> systems of the collective tables
FABRIC_SYSTEMS = {
    "nvlink3": ("a100_sxm",), "nvlink4": ("h100_sxm", "h200_sxm"), "nvlink5": ("b200_sxm", "b300_sxm"), "nvl72": ("gb200", "gb300"),
    "pcie4": ("l40s",), "pcie5": ("rtx_pro_6000_server",),
}  # fmt: skip
REMARKS = {
    "nvlink4": "; NVLS reaches 0.95 at 8 ranks and 256 MiB or more", "nvl72": "; 72 ranks reach 0.93 at 8 GiB",
    "pcie4": "; consumer cards without peer access get about half", "pcie5": "; alone 0.62 with 2 ranks, 0.48 with 4, 0.39 with 8",
    "xgmi-mi350": "; how much of it is per rank is assumed",
}  # fmt: skip
AIC, VLLM = "https://github.com/ai-dynamo/aiconfigurator", "https://github.com/vllm-project/vllm"
SMALLEST, LARGEST = 4 << 10, 256 << 20


@dataclass(frozen=True)
class Points:
    """Measured points of one device, family and dtype."""

    device: str
    family: str
    dtype: str
    flops: Array
    bytes: Array
    seconds: Array


@dataclass(frozen=True)
class Fit:
    """The four numbers, with how far they are off."""

    compute_efficiency: float
    memory_efficiency: float
    overhead_s: float
    smoothing: float
    points: int
    median_error: float
    p90_error: float


def _operator(truth: Path, table: str, system: str) -> pd.DataFrame:
    return pd.read_csv(truth / f"op_{table}_{system}.csv.gz", low_memory=False)


def _split(device: str, family: str, rows: pd.DataFrame, shape: list[str]) -> Iterable[Points]:
    """Keep the fastest kernel per shape and cut the rows up by dtype."""
    rows = rows[(rows.seconds > 0) & rows.dtype.notna()]
    best = rows.loc[rows.groupby(["dtype", *shape]).seconds.idxmin()]
    for dtype, group in best.groupby("dtype"):
        if len(group) > MAX_POINTS:
            group = group.sample(MAX_POINTS, random_state=0)
        flops, bytes_, seconds = (group[name].to_numpy(dtype=float) for name in ("flops", "bytes", "seconds"))
        yield Points(device, family, str(dtype), flops, bytes_, seconds)


def _gemm_work(rows: pd.DataFrame) -> pd.DataFrame:
    activation, weight = rows.dtype.map(ACTIVATION_BYTES), rows.dtype.map(WEIGHT_BYTES)
    return rows.assign(
        flops=2.0 * rows.m * rows.n * rows.k,
        bytes=rows.m * rows.k * activation + rows.n * rows.k * weight + rows.m * rows.n * 2.0,
    )


def gemm(truth: Path, system: str, device: str) -> Iterable[Points]:
    rows = _operator(truth, "gemm", system)
    rows = rows[~((rows.backend == "vllm") & (rows.gemm_dtype == "fp8_block"))]  # bound by host dispatch, says the README
    rows = rows.assign(dtype=rows.gemm_dtype.map(DTYPES), seconds=rows.latency / 1e3)
    return _split(device, "gemm", _gemm_work(rows), ["m", "n", "k"])


def gemm_links(truth: Path, prefix: str, device: str) -> Iterable[Points]:
    rows = pd.read_csv(truth / "kernels_and_links.csv.gz", low_memory=False)
    rows = rows[(rows.kind == "gemm") & (rows.metric == "tflops") & (rows.quality != "C") & rows.gpu.str.startswith(prefix)]
    rows = rows[~(rows.impl.str.startswith("vllm") & (rows["dtype"] == "fp8_block"))]
    rows = rows.assign(dtype=rows["dtype"].map(DTYPES), seconds=2.0 * rows.m * rows.n * rows.k / (rows.value * 1e12))
    return _split(device, "gemm", _gemm_work(rows), ["m", "n", "k"])


def attention_prefill(truth: Path, system: str, device: str) -> Iterable[Points]:
    rows = _operator(truth, "context_attention", system)
    tokens, kv_bytes = rows.batch_size * rows.isl, np.where(rows.kv_cache_dtype == "fp8", 1.0, 2.0)
    rows = rows.assign(
        dtype=rows.attn_dtype.map(DTYPES),
        seconds=rows.latency / 1e3,
        flops=4.0 * tokens * rows.isl * rows.num_heads * rows.head_dim * 0.5,
        bytes=tokens * rows.head_dim * (2.0 * 2.0 * rows.num_heads + 2.0 * kv_bytes * rows.num_key_value_heads),
    )
    return _split(device, "attention_prefill", rows, ["num_heads", "num_key_value_heads", "head_dim", "batch_size", "isl"])


def attention_decode(truth: Path, system: str, device: str) -> Iterable[Points]:
    """By dtype of the cache; the multiplication itself runs in bf16. Contexts under 128 tokens are left out: pages are half empty there."""
    rows = _operator(truth, "generation_attention", system)
    impossible = (rows.system == "a100_sxm") & (rows.backend == "trtllm")  # up to 1.6 times the bandwidth of the memory
    rows = rows[~impossible & (rows.step >= 127)]
    context, kv_bytes = rows.step + rows.isl, np.where(rows.kv_cache_dtype == "fp8", 1.0, 2.0)
    per_query = 2.0 * 2.0 * rows.batch_size * rows.num_heads * rows.head_dim
    rows = rows.assign(
        dtype=rows.kv_cache_dtype.map(DTYPES),
        seconds=rows.latency / 1e3,
        flops=4.0 * rows.batch_size * context * rows.num_heads * rows.head_dim,
        bytes=rows.batch_size * context * 2.0 * rows.num_key_value_heads * rows.head_dim * kv_bytes + per_query,
    )
    return _split(device, "attention_decode", rows, ["num_heads", "num_key_value_heads", "head_dim", "batch_size", "step"])


def moe(truth: Path, system: str, device: str) -> Iterable[Points]:
    """One rank's share: T·K/ep rows through experts of width f/tp, and the weights of the distinct local experts touched.

    All T·K rows are moved in and out, as the kernels do that permute first and sum last.
    """
    rows = _operator(truth, "moe", system)
    slow = (rows.backend == "vllm") & (rows.model_shape == "Qwen3-235B-A22B") & rows.moe_dtype.str.startswith("fp8")
    rows = rows[~slow & (rows.distribution == "balanced")]  # imbalance is the estimator's business
    rows = rows.assign(dtype=rows.moe_dtype.map(DTYPES), seconds=rows.latency / 1e3)
    return _split(device, "moe", _moe_work(rows), MOE_SHAPE)


MOE_SHAPE = ["hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size", "num_tokens"]


def _moe_work(rows: pd.DataFrame) -> pd.DataFrame:
    width, picks = rows.inter_size / rows.moe_tp_size, rows.num_tokens * rows.topk
    routed = picks / rows.moe_ep_size
    touched = rows.num_experts / rows.moe_ep_size * (1.0 - (1.0 - rows.topk / rows.num_experts) ** rows.num_tokens)
    weights = touched * 3.0 * rows.hidden_size * width * rows.dtype.map(WEIGHT_BYTES)
    return rows.assign(
        flops=2.0 * routed * 3.0 * rows.hidden_size * width,
        bytes=weights + (picks * 2.0 * rows.hidden_size + routed * 3.0 * width) * 2.0,
    )


def moe_links(truth: Path, prefix: str, device: str) -> Iterable[Points]:
    """Fused expert kernels of AMD: the number of experts and of picks stand in the notes."""
    rows = pd.read_csv(truth / "kernels_and_links.csv.gz", low_memory=False)
    rows = rows[(rows.kind == "moe") & (rows.metric == "time_us") & rows.gpu.str.startswith(prefix)]
    counts = rows.notes.str.extract(r"experts=(\d+) topk=(\d+)").astype(float)
    weight = np.where(rows["dtype"].str.startswith("float4"), "mxfp4", "fp8")
    rows = rows.assign(
        dtype=weight, seconds=rows.value / 1e6, hidden_size=rows.k, inter_size=rows.n, num_tokens=rows.m,
        num_experts=counts[0], topk=counts[1], moe_tp_size=1, moe_ep_size=1,
    )  # fmt: skip
    return _split(device, "moe", _moe_work(rows[rows.num_experts.notna()]), MOE_SHAPE)


def predict(x: Array, compute_s: Array, memory_s: Array) -> Array:
    """``x`` holds logit e_c, logit e_m, log overhead, log(smoothing - 1)."""
    compute, memory = compute_s * (1.0 + np.exp(-x[0])), memory_s * (1.0 + np.exp(-x[1]))
    r = min(1.0 + float(np.exp(x[3])), 20.0)
    larger, smaller = np.maximum(compute, memory), np.minimum(compute, memory)
    return np.asarray(np.exp(x[2]) + larger * (1.0 + (smaller / larger) ** r) ** (1.0 / r), dtype=float)


def minimise(cost: Callable[[Array], float], start: Array, rounds: int = 400) -> tuple[Array, float]:
    """Nelder and Mead's simplex."""
    size = len(start)
    simplex = [start, *(start + 0.6 * np.eye(size)[i] for i in range(size))]
    costs = [cost(x) for x in simplex]
    for _ in range(rounds):
        order = np.argsort(costs)
        simplex, costs = [simplex[i] for i in order], [costs[i] for i in order]
        centre = np.mean(simplex[:-1], axis=0)
        reflected = 2.0 * centre - simplex[-1]
        value = cost(reflected)
        if value < costs[0]:
            further = 3.0 * centre - 2.0 * simplex[-1]
            beyond = cost(further)
            simplex[-1], costs[-1] = (further, beyond) if beyond < value else (reflected, value)
        elif value < costs[-2]:
            simplex[-1], costs[-1] = reflected, value
        else:
            inside = 0.5 * (centre + simplex[-1])
            value = cost(inside)
            if value < costs[-1]:
                simplex[-1], costs[-1] = inside, value
            else:
                simplex = [simplex[0], *(0.5 * (simplex[0] + x) for x in simplex[1:])]
                costs = [costs[0], *(cost(x) for x in simplex[1:])]
    best = int(np.argmin(costs))
    return simplex[best], costs[best]


def peak_of(device: Device, points: Points) -> float:
    peaks = {name: figure.value for name, figure in device.peak_flops_per_s.items()}
    if points.family == "attention_decode":
        return peaks["bf16"]
    return peaks.get({"fp8-block": "fp8"}.get(points.dtype, points.dtype), peaks["bf16"])  # type: ignore[call-overload, no-any-return]


def fit(points: Points, device: Device) -> Fit:
    compute_s = points.flops / peak_of(device, points)
    memory_s = points.bytes / device.memory_bandwidth_bytes_per_s.value
    measured = np.log(points.seconds)

    # a share close to 1 or a start in no time is not believed of a kernel: a faint pull keeps in place what the data do not reach
    def cost(x: Array) -> float:
        pull = 1e-3 * float(np.sum(np.maximum(np.abs(x[:2]) - 3.0, 0.0) ** 2) + max(0.0, float(x[3]) - 1.8) ** 2)
        pull += 1e-2 * max(0.0, float(np.log(1.5e-6) - x[2])) ** 2
        return float(np.mean(np.abs(np.log(predict(x, compute_s, memory_s)) - measured))) + pull

    starts = [np.array([1.0, 1.0, np.log(overhead), 0.3]) for overhead in (3e-6, 2e-5)]
    x, _ = min((minimise(cost, start) for start in starts), key=lambda result: result[1])
    error = np.abs(predict(x, compute_s, memory_s) / points.seconds - 1.0)
    share = 1.0 / (1.0 + np.exp(-x[:2]))
    return Fit(
        float(share[0]), float(share[1]), float(np.exp(x[2])), min(1.0 + float(np.exp(x[3])), 20.0),
        len(measured), float(np.median(error)), float(np.quantile(error, 0.9)),
    )  # fmt: skip


def all_points(truth: Path) -> Iterable[Points]:
    for system, device in SYSTEMS.items():
        for family in (gemm, attention_prefill, attention_decode, moe):
            yield from family(truth, system, device)
    for prefix, devices in LINK_GPUS.items():
        for device in devices:
            yield from gemm_links(truth, prefix, device)
    for prefix, devices in MOE_GPUS.items():
        for device in devices:
            yield from moe_links(truth, prefix, device)


Section = dict[str, dict[str, str]]


def _line(found: Fit, status: str, note: str) -> str:
    return (
        f"{{compute_efficiency: {found.compute_efficiency:.3f}, memory_efficiency: {found.memory_efficiency:.3f}, "
        f'overhead_s: {found.overhead_s:.2e}, smoothing: {found.smoothing:.2f}, source: fits, status: {status}, note: "{note}"}}'
    )


def sections(fits: dict[tuple[str, str, str], Fit], devices: dict[str, Device]) -> dict[str, Section]:
    """The roofline lines of every device: its own fits first, then single anchors, then what a relative can lend."""
    result: dict[str, Section] = {}
    for (device, family, dtype), found in fits.items():
        note = f"n {found.points}, median error {found.median_error:.1%}"
        if device == "mi325x":
            note += ", measured on MI300X (same die)"
        result.setdefault(device, {}).setdefault(family, {})[dtype] = _line(found, "fitted", note)
    for (device, dtype), best in ANCHORS.items():
        base = fits.get((device, "gemm", "fp8-block"))
        if base:
            share = best / {name: figure.value for name, figure in devices[device].peak_flops_per_s.items()}[dtype]  # type: ignore[index]
            note = f"best measured rate {best / 1e12:.0f} TFLOP/s; the rest as fp8-block"
            result[device]["gemm"][dtype] = _line(replace(base, compute_efficiency=share), "published", note)
    for device, relative in RELATIVES.items():
        for (source, family, dtype), found in fits.items():
            if source == relative:
                result.setdefault(device, {}).setdefault(family, {}).setdefault(dtype, _line(found, "assumed", f"as {relative}"))
    for section in result.values():
        for lines in section.values():
            lines["any"] = lines.get("bf16", next(iter(lines.values())))
    return result


def write(device: str, section: Section) -> None:
    path = PROFILES / f"{device}.yaml"
    text = path.read_text(encoding="utf-8")
    text = text.split("\nroofline:")[0].split("\n  fits:\n")[0].rstrip("\n")
    amd = device.startswith("mi")
    origin = "tuned-kernel tables of ROCm aiter" if amd else "operator latencies collected by ai-dynamo/aiconfigurator (Apache-2.0)"
    url = "https://github.com/ROCm/aiter" if amd else "https://github.com/ai-dynamo/aiconfigurator"
    lines = [
        "  fits:", f"    title: Roofline fits to the {origin}", f"    url: {url}", '    date: "2026"',
        "    command: python scripts/fit_profiles.py TRUTH_DIR --write", "roofline:",
    ]  # fmt: skip
    for family, by_dtype in section.items():
        lines += [f"  {family}:", *(f"    {dtype}: {line}" for dtype, line in by_dtype.items())]
    write_whole(path, "\n".join([text, *lines, ""]).encode())


@dataclass(frozen=True)
class LinkFit:
    """The three numbers of a fabric; those that are None were not fitted, and the file keeps its own."""

    efficiency: float | None
    latency_s: float
    per_rank_s: float | None
    note: str


def all_reduces(truth: Path) -> pd.DataFrame:
    """The fastest all-reduce per system, rank count and size in bytes: engines' own kernels and NCCL."""
    own = pd.read_csv(truth / "op_custom_allreduce.csv.gz", low_memory=False)
    nccl = pd.read_csv(truth / "op_nccl.csv.gz", low_memory=False)
    rows = pd.concat([own, nccl[(nccl.op_name == "all_reduce") & (nccl.nccl_dtype == "half")]], ignore_index=True)
    rows = rows.assign(bytes=rows.message_size * 2.0, seconds=rows.latency / 1e3)
    rows = rows[rows.bytes.between(SMALLEST, LARGEST) & (rows.seconds > 0)]
    return rows.loc[rows.groupby(["system", "num_gpus", "bytes"]).seconds.idxmin()]


def fit_link(fabric: Fabric, rows: pd.DataFrame, where: str) -> LinkFit:
    """Columns ``num_gpus``, ``bytes`` and ``seconds``; where they are of one rank count, the file's term per rank is kept."""
    ranks, bytes_, seconds = (rows[column].to_numpy(dtype=float) for column in ("num_gpus", "bytes", "seconds"))
    moved_s, measured = 2.0 * (ranks - 1) / ranks * bytes_ / fabric.bandwidth_bytes_per_s.value, np.log(seconds)
    several = len(np.unique(ranks)) > 1
    kept = fabric.latency_per_rank_s.value if fabric.latency_per_rank_s else 0.0

    def predicted(x: Array) -> Array:
        per_rank = np.exp(x[2]) if several else kept
        return np.asarray(np.exp(x[1]) + per_rank * (ranks - 1) + moved_s * (1.0 + np.exp(-x[0])), dtype=float)

    def cost(x: Array) -> float:
        pull = 1e-2 * max(0.0, float(np.log(1e-6) - x[1])) ** 2  # nothing starts in no time; two terms share what two ranks take
        return float(np.mean(np.abs(np.log(predicted(x)) - measured))) + pull

    starts = [np.array([0.5, np.log(latency), np.log(per_rank)]) for latency in (2e-6, 1e-5) for per_rank in (1e-7, 2e-6)]
    x, _ = min((minimise(cost, minimise(cost, start)[0]) for start in starts), key=lambda result: result[1])  # the second unfolds the first
    error = float(np.median(np.abs(predicted(x) / seconds - 1.0)))
    counts = f"{ranks.min():.0f} to {ranks.max():.0f} ranks" if several else f"{ranks.max():.0f} ranks"
    sizes = f"{bytes_.min() / 2**10:.0f} KiB to {bytes_.max() / 2**20:.3g} MiB"
    note = f"{len(seconds)} points on {where}, {counts}, {sizes}; median error {error:.0%}"
    efficiency, latency_s, per_rank_s = 1.0 / (1.0 + np.exp(-float(x[0]))), float(np.exp(x[1])), float(np.exp(x[2]))
    return LinkFit(efficiency, latency_s, per_rank_s, note) if several else LinkFit(None, latency_s, None, note)


def link_fits(truth: Path, fabrics: dict[str, Fabric]) -> dict[str, LinkFit]:
    rows = all_reduces(truth)
    fits = {
        name: fit_link(fabrics[name], rows[rows.system.isin(systems)], " and ".join(systems).replace("_", " "))
        for name, systems in FABRIC_SYSTEMS.items()
    }
    links = pd.read_csv(truth / "kernels_and_links.csv.gz", low_memory=False)
    links = links[(links.gpu == "MI355X-288GB") & (links.op == "all_reduce") & (links.metric == "time_us")]
    links = links.assign(bytes=links.size_bytes, seconds=links.value / 1e6)
    fits["xgmi-mi350"] = fit_link(fabrics["xgmi-mi350"], links, "MI355X, two kernels of vLLM")
    return fits


def write_link(name: str, found: LinkFit) -> None:
    """Put the fitted numbers into the fabric's file, and the source that has the command."""
    path = PROFILES / "fabrics" / f"{name}.yaml"
    text = path.read_text(encoding="utf-8")
    note = found.note + REMARKS.get(name, "")
    first = "latency_s" if found.efficiency is None else "efficiency"
    values = {"efficiency": found.efficiency, "latency_s": found.latency_s, "latency_per_rank_s": found.per_rank_s}
    for key, value in values.items():
        if value is not None:
            number = f"{value:.3f}" if key == "efficiency" else f"{value * 1e6:.2f}e-6"
            line = f"{key}: {{value: {number}, source: fits, status: fitted" + (f', note: "{note}"}}' if key == first else "}")
            text = re.sub(rf"^{key}: .*$", line, text, flags=re.MULTILINE)
    text = re.sub(r"^  (?:aic|fits):\n(?:    .*\n)+", "", text, flags=re.MULTILINE)
    title, url = "aiconfigurator's operator collection: engines' own all-reduce kernels and NCCL, best per size and rank count", AIC
    if name not in FABRIC_SYSTEMS:
        title, url = "vLLM pull request 39080 (closed) timing two custom all-reduce kernels on 8 x MI355X", f"{VLLM}/pull/39080"
    command = "python scripts/fit_profiles.py TRUTH_DIR --fabrics --write"
    source = ["  fits:", f'    title: "{title}"', f"    url: {url}", '    date: "2026"', f"    command: {command}", ""]
    write_whole(path, (text.rstrip("\n") + "\n" + "\n".join(source)).encode())


def fit_fabrics(truth: Path, writing: bool) -> None:
    fabrics = {path.stem: Fabric.model_validate(read_document(path)) for path in (PROFILES / "fabrics").glob("*.yaml")}
    print(f"{'fabric':16} {'efficiency':>10} {'latency':>9} {'per rank':>9}")
    for name, found in link_fits(truth, fabrics).items():
        efficiency = "kept" if found.efficiency is None else f"{found.efficiency:.3f}"
        per_rank = "kept" if found.per_rank_s is None else f"{found.per_rank_s * 1e6:.2f}us"
        print(f"{name:16} {efficiency:>10} {found.latency_s * 1e6:7.2f}us {per_rank:>9}  {found.note}", flush=True)
        if writing:
            write_link(name, found)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("truth", type=Path)
    parser.add_argument("--device", action="append", help="only these devices")
    parser.add_argument("--fabrics", action="store_true", help="only the fabrics")
    parser.add_argument("--write", action="store_true", help="put the numbers into hw_profiles/")
    arguments = parser.parse_args()
    if arguments.device is None:
        fit_fabrics(arguments.truth, arguments.write)
    if arguments.fabrics:
        return
    devices = {path.stem: Device.model_validate(read_document(path)) for path in PROFILES.glob("*.yaml") if path.stem not in SHARED}
    fits: dict[tuple[str, str, str], Fit] = {}
    print(f"{'device':14} {'family':18} {'dtype':10} {'n':>5} {'median':>7} {'p90':>6}  {'e_c':>5} {'e_m':>5} {'overhead':>9} {'r':>5}")
    for points in all_points(arguments.truth):
        if len(points.seconds) < MIN_POINTS or (arguments.device and points.device not in arguments.device):
            continue
        found = fit(points, devices[points.device])
        fits[points.device, points.family, points.dtype] = found
        print(
            f"{points.device:14} {points.family:18} {points.dtype:10} {found.points:5d} {found.median_error:7.1%} {found.p90_error:6.0%}  "
            f"{found.compute_efficiency:5.3f} {found.memory_efficiency:5.3f} {found.overhead_s * 1e6:7.2f}us {found.smoothing:5.2f}",
            flush=True,
        )
    if arguments.write:
        for device, section in sections(fits, devices).items():
            if arguments.device is None or device in arguments.device:
                write(device, section)


if __name__ == "__main__":
    main()
