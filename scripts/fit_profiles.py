"""Fit the roofline numbers of ``hw_profiles``, and those of its fabrics, from measured operator
latencies.

    python scripts/fit_profiles.py TRUTH_DIR [--device NAME ...] [--fabrics] [--write]

For every device, family and dtype it looks for ``compute_efficiency``, ``memory_efficiency``,
``overhead_s`` and ``smoothing`` of ``t = overhead_s + (t_compute^r + t_memory^r)^(1/r)`` that
minimise the mean |log(predicted / measured)|, prints a table, and with ``--write`` puts the numbers
into the ``roofline:`` section at the end of the device's YAML. Experts have two more,
``row_efficiency`` and ``sort_s``: what sorts tokens and moves rows to experts and back takes its
own time beside the products. The operators' flops and bytes are defined in ``fit/`` as the
estimator defines them. Where several engines measured one shape, the fastest kernel counts.

The peak a dtype is held against is the device's own figure for it; a dtype the device does not
multiply natively is held against bf16.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fit.attention import attention_decode, attention_prefill, mla_decode, mla_prefill
from fit.dense import LINK_GPUS, gemm_links, gemm_points
from fit.experts import MOE_GPUS, moe, moe_links
from fit.links import PROFILES, fit_fabrics
from fit.solve import Fit, Points, fit_roofline
from fit.tables import SYSTEMS

from recipe_core.base.documents import read_document, write_whole
from recipe_core.hardware.cluster import SHARED
from recipe_core.hardware.profile import Device

# best rate of a large product where too few shapes are measured for a fit: flops/s by MAMF finder
# (bf16) and aiter (fp8)
ANCHORS = {
    ("mi300x", "bf16"): 668.4e12, ("mi300x", "fp8"): 1268e12,
    ("mi325x", "bf16"): 784.9e12, ("mi325x", "fp8"): 1268e12,
}  # fmt: skip
MIN_POINTS = 30
# Experts have six numbers: with fewer points than this they are those of a device of the same die
# that has more, where there is one.
MIN_EXPERT_POINTS = 100
SAME_DIE = {"h200-sxm": "h100-sxm"}
# no measurements of their own: take what is missing from the nearest relative
RELATIVES = {
    "a100-pcie-80gb": "a100-sxm-80gb", "a100-sxm-40gb": "a100-sxm-80gb", "h100-pcie": "h100-sxm",
    "h100-nvl": "h100-sxm", "gh200": "h100-sxm", "gh200-144gb": "h100-sxm", "h200-nvl": "h200-sxm",
    "b300-sxm": "b200-sxm", "gb200": "b200-sxm", "gb300": "b200-sxm", "rtx-6000-ada": "l40s",
    "rtx-5090": "rtx-pro-6000", "mi350x": "mi355x", "mi300x": "mi355x", "mi325x": "mi355x",
}  # fmt: skip


def all_points(truth: Path) -> Iterable[Points]:
    for system, device in SYSTEMS.items():
        for family in (
            gemm_points,
            attention_prefill,
            attention_decode,
            mla_prefill,
            mla_decode,
            moe,
        ):
            yield from family(truth, system, device)
    for read, gpus in ((gemm_links, LINK_GPUS), (moe_links, MOE_GPUS)):
        for prefix, devices in gpus.items():
            for device in devices:
                yield from read(truth, prefix, device)


Section = dict[str, dict[str, str]]


def _roofline_line(roofline: Fit, status: str, note: str) -> str:
    rows = ""
    if roofline.row_efficiency is not None:
        rows = f"row_efficiency: {roofline.row_efficiency:.3f}, sort_s: {roofline.sort_s:.2e}, "
    return (
        f"{{compute_efficiency: {roofline.compute_efficiency:.3f}, "
        f"memory_efficiency: {roofline.memory_efficiency:.3f}, "
        f"overhead_s: {roofline.overhead_s:.2e}, smoothing: {roofline.smoothing:.2f}, "
        f'{rows}source: fits, status: {status}, note: "{note}"}}'
    )


def settle_fits(fits: dict[tuple[str, str, str], Fit]) -> dict[tuple[str, str, str], Fit]:
    """Put right what the tables of operators cannot tell of engines.

    They quantise the inputs of fp8 products by kernels of their own. Engines fuse those into norms,
    before two of a layer's four products: the start lies halfway to that of 16 bits.
    """
    settled = dict(fits)
    for (device, family, dtype), kernel_fit in fits.items():
        wide = fits.get((device, "gemm", "bf16"))
        if family == "gemm" and dtype == "fp8" and wide:
            start_s = min(kernel_fit.overhead_s, (kernel_fit.overhead_s + wide.overhead_s) / 2)
            settled[device, family, dtype] = replace(kernel_fit, overhead_s=start_s)
        twin = fits.get((SAME_DIE.get(device, ""), family, dtype))
        if family == "moe" and twin and kernel_fit.points < MIN_EXPERT_POINTS <= twin.points:
            settled[device, family, dtype] = twin
    return settled


def sections(
    fits: dict[tuple[str, str, str], Fit], devices: dict[str, Device]
) -> dict[str, Section]:
    """The roofline lines of every device: its own fits, then single anchors, then a relative's."""
    result: dict[str, Section] = {}
    for (device, family, dtype), roofline in fits.items():
        note = f"n {roofline.points}, median error {roofline.median_error:.1%}"
        if device == "mi325x":
            note += ", measured on MI300X (same die)"
        result.setdefault(device, {}).setdefault(family, {})[dtype] = _roofline_line(
            roofline, "fitted", note
        )
    for (device, dtype), best in ANCHORS.items():
        base = fits.get((device, "gemm", "fp8-block"))
        if base:
            share = (
                best
                / {name: figure.value for name, figure in devices[device].peak_flops_per_s.items()}[
                    dtype
                ]
            )  # type: ignore[index]
            note = f"best measured rate {best / 1e12:.0f} TFLOP/s; the rest as fp8-block"
            result[device]["gemm"][dtype] = _roofline_line(
                replace(base, compute_efficiency=share), "published", note
            )
    for device, relative in RELATIVES.items():
        for (source, family, dtype), roofline in fits.items():
            if source == relative:
                result.setdefault(device, {}).setdefault(family, {}).setdefault(
                    dtype, _roofline_line(roofline, "assumed", f"as {relative}")
                )
    for section in result.values():
        for lines in section.values():
            lines["any"] = lines.get("bf16", next(iter(lines.values())))
    return result


def write_profile(device: str, section: Section) -> None:
    path = PROFILES / f"{device}.yaml"
    text = path.read_text(encoding="utf-8")
    text = text.split("\nroofline:")[0].split("\n  fits:\n")[0].rstrip("\n")
    amd = device.startswith("mi")
    origin = (
        "tuned-kernel tables of ROCm aiter"
        if amd
        else "operator latencies collected by ai-dynamo/aiconfigurator (Apache-2.0)"
    )
    url = "https://github.com/ROCm/aiter" if amd else "https://github.com/ai-dynamo/aiconfigurator"
    lines = [
        "  fits:", f"    title: Roofline fits to the {origin}", f"    url: {url}",
        '    date: "2026"',
        "    command: python scripts/fit_profiles.py TRUTH_DIR --write", "roofline:",
    ]  # fmt: skip
    for family, by_dtype in section.items():
        lines += [f"  {family}:", *(f"    {dtype}: {line}" for dtype, line in by_dtype.items())]
    write_whole(path, "\n".join([text, *lines, ""]).encode())


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
    devices = {
        path.stem: Device.model_validate(read_document(path))
        for path in PROFILES.glob("*.yaml")
        if path.stem not in SHARED
    }
    fits: dict[tuple[str, str, str], Fit] = {}
    numbers = f"{'e_c':>5} {'e_m':>5} {'overhead':>9} {'r':>5} {'e_r':>5} {'sort':>8}"
    print(f"{'device':14} {'family':18} {'dtype':10} {'n':>5} {'median':>7} {'p90':>6}  {numbers}")
    for points in all_points(arguments.truth):
        if len(points.seconds) < MIN_POINTS or (
            arguments.device and points.device not in arguments.device
        ):
            continue
        roofline = fit_roofline(points, devices[points.device])
        fits[points.device, points.family, points.dtype] = roofline
        experts = ""
        if roofline.sort_s is not None:
            experts = f"{roofline.row_efficiency:.3f} {roofline.sort_s * 1e6:6.2f}us"
        print(
            f"{points.device:14} {points.family:18} {points.dtype:10} {roofline.points:5d} "
            f"{roofline.median_error:7.1%} {roofline.p90_error:6.0%}  "
            f"{roofline.compute_efficiency:5.3f} {roofline.memory_efficiency:5.3f} "
            f"{roofline.overhead_s * 1e6:7.2f}us {roofline.smoothing:5.2f} {experts}",
            flush=True,
        )
    if arguments.write:
        for device, section in sections(settle_fits(fits), devices).items():
            if arguments.device is None or device in arguments.device:
                write_profile(device, section)


if __name__ == "__main__":
    main()
