"""Fit the numbers of ``hw_profiles/fabrics`` to measured collectives, by the functions of
``recipe_core/estimates/network.py`` themselves.

Three for the library (``efficiency``, ``latency_s``, ``latency_per_rank_s``), to all-reduce,
all-gather, reduce-scatter and all-to-all of NCCL together; three for ``direct`` kernels, to the
all-reduces that engines bring themselves; two for a ``switch`` that sums, to NCCL's large ones.
Sizes are 4 KiB to 256 MiB.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from fit.solve import Array, minimise
from recipe_core.base.documents import write_whole
from recipe_core.base.provenance import Quantity
from recipe_core.estimates.network import (
    Group,
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    dispatch_s,
)
from recipe_core.hardware.cluster import Cluster, cluster, fabric
from recipe_core.hardware.profile import DirectLinks, Fabric
from recipe_core.hardware.request import HardwareRequest

PROFILES = Path(__file__).resolve().parent.parent.parent / "hw_profiles"

# fabric -> a device that is sold with it, and the systems of the collective tables
FABRIC_SYSTEMS = {
    "nvlink3": ("a100-sxm-80gb", "a100_sxm"), "nvlink4": ("h100-sxm", "h100_sxm", "h200_sxm"),
    "nvlink5": ("b200-sxm", "b200_sxm", "b300_sxm"), "nvl72": ("gb200", "gb200", "gb300"),
    "pcie4": ("l40s", "l40s"), "pcie5": ("rtx-pro-6000", "rtx_pro_6000_server"),
}  # fmt: skip
# what the tables say beyond a fit
REMARKS = {
    "nvl72": "; 72 ranks reach 0.93 at 8 GiB",
    "pcie4": "; a server that crosses sockets reaches 0.16 with 4 ranks, 0.06 with 8; "
    "consumer cards without peer access get about half",
    "pcie5": "; alone 0.6 with 2 ranks, 0.4 with 4 and 8",
}
DEEPEP = {
    "H100-SXM-80GB": "nvlink4", "H200-SXM-141GB": "nvlink4", "B200-SXM-180GB": "nvlink5",
    "B300-SXM-288GB": "nvlink5", "GB200-186GB": "nvl72", "GB300-288GB": "nvl72",
}  # fmt: skip
GOOD_PCIE4 = "sglang/0.5.12"  # the one L40S collection from a server with all devices on one socket
AIC = "https://github.com/ai-dynamo/aiconfigurator"
PULL = "https://github.com/vllm-project/vllm/pull/39080"
COLLECTION = "aiconfigurator's operator collection"
LIBRARY = "all-reduce, all-gather, reduce-scatter and all-to-all"
DIRECT = "all-reduce kernels of vLLM, SGLang and TensorRT-LLM"
SOURCES = {
    "library": (f"NCCL's collectives in {COLLECTION}, {LIBRARY}", AIC),
    "direct": (f"{DIRECT} in {COLLECTION}, the median of the three", AIC),
    "aiter": ("vLLM pull request 39080 (closed) timing two all-reduce kernels on 8 x MI355X", PULL),
    "deepep": (f"DeepEP's low-latency kernels on 2 to 8 nodes of 8 H100 in {COLLECTION}", AIC),
}
SMALLEST, LARGEST = 4 << 10, 256 << 20
SUMMED = ("nvlink4", "nvlink5", "nvl72")  # switches with NVLink SHARP, which NCCL uses for
SUMMED_BYTES = 16 << 20  # messages from about this size on
OPERATIONS: dict[str, Callable[[Cluster, Group, Array], Array]] = {
    "all_reduce": all_reduce_s,
    "all_gather": all_gather_s,
    "reduce_scatter": all_gather_s,
    "alltoall": all_to_all_s,
}


@dataclass(frozen=True)
class Links:
    """Fitted efficiency, latency and latency per rank (None: keep the file's), source and note."""

    efficiency: float
    latency_s: float
    per_rank_s: float | None
    source: str
    note: str


def _version(source: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", source.split("/")[1]))


def _sized(rows: pd.DataFrame) -> pd.DataFrame:
    """With size in bytes (the tables count elements of two bytes) and seconds."""
    rows = rows.assign(bytes=rows.message_size * 2.0, seconds=rows.latency / 1e3)
    return rows[rows.bytes.between(SMALLEST, LARGEST) & (rows.seconds > 0)]


def engine_kernels(truth: Path) -> pd.DataFrame:
    """All-reduces of engines in captured graphs: newest version of each, median over engines."""
    rows = pd.read_csv(truth / "op_custom_allreduce.csv.gz", low_memory=False)
    rows = _sized(rows[~rows.kernel_source.str.contains("eager")])
    rows = rows.assign(
        engine=rows.source.str.split("/").str[0],
        version=rows.source.map(_version),
        op_name="all_reduce",
    )
    newest = rows.version == rows.groupby(["system", "engine", "num_gpus"]).version.transform("max")
    rows = rows[np.where(rows.system == "l40s", rows.source == GOOD_PCIE4, newest)]
    # beyond a tray of four only TensorRT-LLM has kernels of its own; what the others measure there
    # is NCCL
    rows = rows[
        ~rows.system.str.startswith("gb")
        | (rows.num_gpus <= 4)
        | rows.kernel_source.str.contains("MNNVL")
    ]
    return _median(_median(rows, "engine"))


def library_kernels(truth: Path) -> pd.DataFrame:
    """NCCL's collectives, the median over its versions."""
    rows = pd.read_csv(truth / "op_nccl.csv.gz", low_memory=False)
    return _median(_sized(rows[(rows.nccl_dtype == "half") & rows.op_name.isin(list(OPERATIONS))]))


def _median(rows: pd.DataFrame, *also: str) -> pd.DataFrame:
    return (
        rows.groupby([*also, "system", "op_name", "num_gpus", "bytes"])
        .seconds.median()
        .reset_index()
    )


def exchanges(truth: Path) -> pd.DataFrame:
    """DeepEP's dispatch (fp8, a scale per 128 values) and combine (bf16), both of its modes."""
    rows = pd.read_csv(truth / "kernels_and_links.csv.gz", low_memory=False)
    rows = rows[
        rows.impl.eq("DeepEP (sglang)") & ~(rows.gpu.str.startswith("H200") & (rows.num_nodes > 1))
    ]  # those are copies of H100's
    row_bytes = rows.n * np.where(rows.dtype == "fp8", 1 + 4 / 128, 2.0)
    return rows.assign(
        fabric=rows.gpu.map(DEEPEP),
        token_bytes=row_bytes,
        seconds=rows.value / 1e6,
        mode=rows.op.str.split("_").str[1],
    )


def _figure(value: float) -> Quantity:
    return Quantity(value=value, source="fits", status="fitted")


def _link_numbers(x: Array, per_rank_s: float | None) -> dict[str, Quantity]:
    """From the scale that is searched: logit of the efficiency, logarithms of the latencies."""
    per_rank = float(np.exp(x[2])) if per_rank_s is None else per_rank_s
    return {
        "efficiency": _figure(1.0 / (1.0 + float(np.exp(-x[0])))),
        "latency_s": _figure(float(np.exp(x[1]))),
        "latency_per_rank_s": _figure(max(per_rank, 1e-8)),
    }


def collectives_s(joined: Cluster, rows: pd.DataFrame) -> Array:
    """The estimator's time of each row's collective."""
    out = np.zeros(len(rows))
    for name, seconds in OPERATIONS.items():
        of = (rows.op_name == name).to_numpy()
        ranks = rows.num_gpus.to_numpy(dtype=float)[of]
        out[of] = seconds(
            joined, Group(ranks, np.ones_like(ranks)), rows.bytes.to_numpy(dtype=float)[of]
        )
    return out


def exchanges_s(joined: Cluster, rows: pd.DataFrame) -> Array:
    """The estimator's time of each row's exchange of tokens."""
    nodes = rows.num_nodes.to_numpy(dtype=float)
    members = Group(rows.num_gpus.to_numpy(dtype=float) / nodes, nodes)
    tokens, token_bytes = rows.m.to_numpy(dtype=float), rows.token_bytes.to_numpy(dtype=float)
    out = np.zeros(len(rows))
    for top_k in sorted(rows.k.unique()):
        in_k = (rows.k == top_k).to_numpy()
        pairs = Group(members.local[in_k], members.remote[in_k])
        out[in_k] = dispatch_s(joined, pairs, tokens[in_k], int(top_k), token_bytes[in_k])
    return out


def _search(
    predicted: Callable[[dict[str, Quantity]], Array], seconds: Array, per_rank_s: float | None
) -> tuple[dict[str, Quantity], float]:
    """The numbers with the least mean |log(predicted / measured)|, and the median error."""
    measured = np.log(seconds)

    def cost(x: Array) -> float:
        pull = 1e-2 * max(0.0, float(np.log(1e-6) - x[1])) ** 2  # nothing starts in no time
        return (
            float(np.mean(np.abs(np.log(predicted(_link_numbers(x, per_rank_s))) - measured)))
            + pull
        )

    size = 3 if per_rank_s is None else 2
    starts = [
        np.array([0.5, np.log(latency), np.log(per_rank)])[:size]
        for latency in (2e-6, 1e-5)
        for per_rank in (1e-7, 2e-6)
    ]
    x, _ = min(
        (minimise(cost, minimise(cost, start)[0]) for start in starts), key=lambda result: result[1]
    )  # the second unfolds the first
    numbers = _link_numbers(x, per_rank_s)
    return numbers, float(np.median(np.abs(predicted(numbers) / seconds - 1.0)))


def _fitted(
    joined: Cluster,
    rows: pd.DataFrame,
    source: str,
    where: str,
    change: Callable[[Fabric, dict[str, Quantity]], Fabric],
    per_rank_s: float | None,
) -> tuple[Cluster, Links]:
    """The cluster with the numbers of its fabric changed to those that fit the rows."""
    seconds = rows.seconds.to_numpy(dtype=float)

    def predicted(numbers: dict[str, Quantity]) -> Array:
        return collectives_s(replace(joined, fabric=change(joined.fabric, numbers)), rows)

    numbers, error = _search(predicted, seconds, per_rank_s)
    fewest_ranks, most_ranks = rows.num_gpus.min(), rows.num_gpus.max()
    ranks = f"{most_ranks:.0f} ranks"
    if fewest_ranks < most_ranks:
        ranks = f"{fewest_ranks:.0f} to {ranks}"
    sizes = f"{rows.bytes.min() / 2**10:.0f} KiB to {rows.bytes.max() / 2**20:.3g} MiB"
    note = f"{len(rows)} points on {where}, {ranks}, {sizes}; median error {error:.0%}"
    return replace(joined, fabric=change(joined.fabric, numbers)), _links(
        numbers, source, note, per_rank_s
    )


def _links(numbers: dict[str, Quantity], source: str, note: str, per_rank_s: float | None) -> Links:
    per_rank = None if per_rank_s is not None else numbers["latency_per_rank_s"].value
    return Links(numbers["efficiency"].value, numbers["latency_s"].value, per_rank, source, note)


def _library(fabric: Fabric, numbers: dict[str, Quantity]) -> Fabric:
    return fabric.model_copy(update=numbers | {"direct": None})


def _direct(fabric: Fabric, numbers: dict[str, Quantity]) -> Fabric:
    return fabric.model_copy(update={"direct": DirectLinks(**numbers)})


def _switch(fabric: Fabric, numbers: dict[str, Quantity]) -> Fabric:
    links = DirectLinks(efficiency=numbers["efficiency"], latency_s=numbers["latency_s"])
    return fabric.model_copy(update={"switch": links})


def _joined(device: str, fabric: str) -> Cluster:
    return cluster(HardwareRequest(device=device, per_node=2, fabric=fabric))


def link_fits(truth: Path) -> Iterator[tuple[str, str, Links]]:
    """Fabric, "library" or "direct", and the numbers."""
    engines, nccl = engine_kernels(truth), library_kernels(truth)
    for name, (device, *systems) in FABRIC_SYSTEMS.items():
        joined, where = _joined(device, name), " and ".join(systems).replace("_", " ")
        rows, kernels = nccl[nccl.system.isin(systems)], engines[engines.system.isin(systems)]
        if (
            joined.fabric.topology == "pcie"
            # engines use the library there; the l40s one crossed sockets with more than two
        ):
            rows = pd.concat([rows[rows.num_gpus == 2] if name == "pcie4" else rows, kernels])
        joined, fit = _fitted(joined, rows, "library", where, _library, None)
        yield name, "library", fit
        if joined.fabric.topology != "pcie":
            joined, fit = _fitted(joined, kernels, "direct", where, _direct, None)
            yield name, "direct", fit
        if name in SUMMED:
            large = (rows.op_name == "all_reduce") & (rows.bytes >= SUMMED_BYTES)
            large &= rows.num_gpus > 2  # of two none is faster so
            joined, fit = _fitted(joined, rows[large], "library", where, _switch, 0.0)
            yield name, "switch", fit
        if name == "nvlink4":
            yield "ib-ndr-400", "direct", _fit_network(joined, exchanges(truth))
    links = pd.read_csv(truth / "kernels_and_links.csv.gz", low_memory=False)
    links = links[
        (links.gpu == "MI355X-288GB") & (links.op == "all_reduce") & (links.metric == "time_us")
    ]
    links = links.assign(bytes=links.size_bytes, seconds=links.value / 1e6, op_name="all_reduce")
    joined = _joined("mi355x", "xgmi-mi350")
    per_rank = joined.fabric.links("direct").latency_per_rank_s
    per_rank_s = per_rank.value if per_rank else 1e-7
    yield (
        "xgmi-mi350",
        "direct",
        _fitted(joined, links, "aiter", "MI355X, two kernels", _direct, per_rank_s)[1],
    )


def _fit_network(joined: Cluster, rows: pd.DataFrame) -> Links:
    """Return what a low-latency exchange adds when it leaves the node."""
    rows = rows[(rows.fabric == joined.fabric.name) & (rows.num_nodes > 1) & (rows["mode"] == "ll")]

    def predicted(numbers: dict[str, Quantity]) -> Array:
        return exchanges_s(replace(joined, network=_direct(joined.network, numbers)), rows)

    numbers, error = _search(predicted, rows.seconds.to_numpy(dtype=float), None)
    note = f"{len(rows)} exchanges of tokens on 16 to 64 H100; median error {error:.0%}"
    return _links(numbers, "deepep", note, None)


def _link_line(key: str, value: float, source: str, note: str = "") -> str:
    number = f"{value:.3f}" if key == "efficiency" else f"{value * 1e6:.2f}e-6"
    remark = f', note: "{note}"' if note else ""
    return f"{key}: {{value: {number}, source: {source}, status: fitted{remark}}}"


def _switch_block(fit: Links) -> str:
    numbers = [("efficiency", fit.efficiency, fit.note), ("latency_s", fit.latency_s, "")]
    lines = [f"  {_link_line(key, value, 'fits', note)}\n" for key, value, note in numbers]
    return "switch:\n" + "".join(lines)


def write_links(name: str, kind: str, fit: Links) -> None:
    """Put the fitted numbers into the fabric's file, and the source that has the command."""
    path = PROFILES / "fabrics" / f"{name}.yaml"
    text = path.read_text(encoding="utf-8")
    if kind == "switch":
        text = re.sub(r"^switch:\n(?:  .*\n)+", "", text, flags=re.MULTILINE)
        text = text.replace("\nsources:\n", f"\n{_switch_block(fit)}sources:\n", 1)
        write_whole(path, text.encode())
        return
    indent = "  " if kind == "direct" else ""
    source = "fits" if kind == "library" else "kernels"
    numbers = {
        "efficiency": fit.efficiency,
        "latency_s": fit.latency_s,
        "latency_per_rank_s": fit.per_rank_s,
    }
    note = fit.note + (REMARKS.get(name, "") if kind == "library" else "")
    if kind == "direct" and "\ndirect:\n" not in text:
        text = text.replace(
            "\nsources:\n",
            "\ndirect:\n  efficiency: {}\n  latency_s: {}\n  latency_per_rank_s: {}\nsources:\n",
            1,
        )
    for key, value in numbers.items():
        if value is not None:
            line = _link_line(key, value, source, note if key == "efficiency" else "")
            text = re.sub(
                rf"^{indent}{key}: .*$",
                lambda _, line=line: indent + line,
                text,
                flags=re.MULTILINE,
            )  # type: ignore[misc]
    text = re.sub(rf"^  {source}:\n(?:    .*\n)+", "", text, flags=re.MULTILINE)
    title, url = SOURCES[fit.source]
    command = "python scripts/fit_profiles.py TRUTH_DIR --fabrics --write"
    entry = [
        f"  {source}:",
        f'    title: "{title}"',
        f"    url: {url}",
        '    date: "2026"',
        f"    command: {command}",
        "",
    ]
    write_whole(path, (text.rstrip("\n") + "\n" + "\n".join(entry)).encode())


def link_errors(truth: Path) -> pd.DataFrame:
    """Median error and bias of what the files say, by fabric and operation; "engines" are the
    kernels that engines bring.
    """
    fabric.cache_clear()  # files may just have been written
    engines, nccl, tokens = engine_kernels(truth), library_kernels(truth), exchanges(truth)
    parts = []
    for name, (device, *systems) in FABRIC_SYSTEMS.items():
        joined = _joined(device, name)
        library = replace(joined, fabric=joined.fabric.model_copy(update={"direct": None}))
        for kind, rows, used in (("engines", engines, joined), ("library", nccl, library)):
            rows = rows[rows.system.isin(systems)]
            parts.append(
                rows.assign(
                    fabric=name, op=kind + " " + rows.op_name, estimated=collectives_s(used, rows)
                )
            )
        rows = tokens[tokens.fabric == name]
        if len(rows):
            place = np.where(rows.num_nodes > 1, "across nodes", "in a node")
            rows = rows.assign(
                estimated=exchanges_s(joined, rows), op=rows.op.str.split("_").str[0] + " " + place
            )
            key = ["gpu", "op", "num_gpus", "m", "n", "k"]
            rows = rows[rows.groupby(key)["mode"].transform("nunique") == 2]
            parts.append(
                rows.loc[rows.groupby(key).seconds.idxmin()]
            )  # of the two modes the quicker, as is estimated
    table = pd.concat(parts)[["fabric", "op", "num_gpus", "estimated", "seconds"]]
    table = table.assign(ratio=table.estimated / table.seconds)
    grouped = table.groupby(["fabric", "op"]).ratio
    return pd.DataFrame(
        {
            "n": grouped.size(),
            "error": grouped.agg(lambda r: (r - 1).abs().median()),
            "bias": grouped.median() - 1,
        }
    )


def fit_fabrics(truth: Path, writing: bool) -> None:
    print(f"{'fabric':12} {'kernels':8} {'efficiency':>10} {'latency':>9} {'per rank':>9}")
    for name, kind, fit in link_fits(truth):
        per_rank = "kept" if fit.per_rank_s is None else f"{fit.per_rank_s * 1e6:.2f}us"
        print(
            f"{name:12} {kind:8} {fit.efficiency:10.3f} {fit.latency_s * 1e6:7.2f}us "
            f"{per_rank:>9}  {fit.note}",
            flush=True,
        )
        if writing:
            write_links(name, kind, fit)
    print(("As fitted" if writing else "As the files have it") + ", against the measured:")
    print(link_errors(truth).round(3).to_string())
