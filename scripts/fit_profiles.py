"""Fit the four roofline numbers of ``hw_profiles`` from measured operator latencies.

    python scripts/fit_profiles.py TRUTH_DIR [--device NAME ...] [--write]

For every device, family and dtype it looks for ``compute_efficiency``, ``memory_efficiency``, ``overhead_s`` and ``smoothing`` of
``t = overhead_s + (t_compute^r + t_memory^r)^(1/r)`` that minimise the mean |log(predicted / measured)|, prints a table, and with
``--write`` puts the numbers into the ``roofline:`` section at the end of the device's YAML. The operators' flops and bytes are
defined here as the estimator defines them. Where several engines measured one shape, the fastest kernel counts.

The peak a dtype is held against is the device's own figure for it; a dtype the device does not multiply natively is held against bf16.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipe_core.documents import read_document, write_whole
from recipe_core.hardware.profile import Device

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
    "gh200": "h100-sxm", "h200-nvl": "h200-sxm", "b300-sxm": "b200-sxm", "gb200": "b200-sxm", "gb300": "b200-sxm",
    "rtx-6000-ada": "l40s", "rtx-5090": "rtx-pro-6000", "mi350x": "mi355x",
}  # fmt: skip


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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("truth", type=Path)
    parser.add_argument("--device", action="append", help="only these devices")
    parser.add_argument("--write", action="store_true", help="put the numbers into hw_profiles/*.yaml")
    arguments = parser.parse_args()
    devices = {path.stem: Device.model_validate(read_document(path)) for path in PROFILES.glob("*.yaml") if path.stem != "priors"}
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
