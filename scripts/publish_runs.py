"""Choose the measured runs that the project ships: write
recipe_core/estimates/measured/published/runs.csv.

    python scripts/publish_runs.py TRUTH_DIR

Reads ``serving_calibration.csv.gz`` (one row a measured figure) and says the same in this project's
words: one row a run, devices as files of hw_profiles, engines, dtypes and modes as a request names
them (see recipe_core/estimates/measured/published/README.md). Kept are runs of quality A or B
without speculative decoding, in a mode a request has, on a device there is a profile of, with
split, lengths and load stated.

Of those, ``WANTED`` are shipped. A cell is a source × device × model: each gets one run, and the
others are dealt out in proportion to the square root of a cell's number of runs, so that two large
sources are not all there is. Within a cell the runs come in the order of ``by_curve``. Nothing is
drawn at random: the same data gives the same file.
"""

from __future__ import annotations

import heapq
import math
import re
import sys
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pandas as pd

from recipe_core.base.errors import HardwareError
from recipe_core.calibration.validation.comparison import CELL
from recipe_core.estimates.measured.runs import FIGURES, PUBLISHED, SPLIT, Run
from recipe_core.hardware.cluster import device_profile

WANTED = 400
LOADS_OF_A_CURVE = 3
SPLITS_OF_A_PROBLEM = 2
QUEUED = 10_000  # where an offline run's queue is not stated: enough requests for a steady state

MODES = {
    "fixed_concurrency": "closed",
    "fixed_batch": "static",
    "max_throughput": "offline",
    "offline": "offline",
    "server": "open",
}
METRICS = {name: name for name in FIGURES} | {"output_tokens_per_s_total": "output_tokens_per_s"}
# Engines by a word of their names. AMD's "atom" runs as a plugin of vLLM or alone with the same
# scheduler; research code that is no engine here is held against vLLM, the default.
ENGINES = {
    "sglang": "sglang",
    "vllm": "vllm",
    "atom": "vllm",
    "tensorrt": "tensorrt-llm",
    "fastertransformer": "tensorrt-llm",
}
ENGINES |= {"nim": "tensorrt-llm", "llama.cpp": "llama-cpp"}
SCENARIOS = {"offline": "data set"}  # MLPerf's, over the lengths of a data set; others are exact
DTYPES = {"fp4": "nvfp4", "q4_k_m": "int4", "unset": "bf16", "nan": "auto"}
LONG_FOLDER = "aic-core/src/aiconfigurator_core/systems/"


def serving_device_name(gpu: str) -> str | None:
    """The profile of a device as the data writes it ("H100-SXM-80GB"); None where there is none."""
    for name in (gpu, "-".join(part for part in gpu.split("-") if not part.endswith("GB"))):
        try:
            return device_profile(name).name
        except HardwareError:
            continue
    return None


def engine_name(engine: str) -> str:
    return next((ours for word, ours in ENGINES.items() if word in engine.lower()), "vllm")


def dtype_name(dtype: object) -> str:
    """The dtype as a request names it; one the data is unsure of (``bf16?``) counts as stated."""
    word = str(dtype).lower().rstrip("?")
    return DTYPES.get(word, word)


def _scored(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows that say everything a request needs, on devices with a profile."""
    needed = rows[["tp", "isl_eff", "osl_eff"]].notna().all(axis=1)
    mode = rows["mode"].map(MODES)
    stated_load = rows.request_rate.where(mode.eq("open"), rows.concurrency_or_batch)
    needed &= stated_load.notna() | mode.eq("offline")
    good = rows.quality.isin(["A", "B"]) & rows.spec_decode.isin(["none", "none_assumed"])
    rows = rows[
        needed & good & rows["mode"].isin(MODES) & rows.metric.isin(METRICS) & rows.value.gt(0)
    ]
    names = {gpu: serving_device_name(gpu) for gpu in rows.gpu.unique()}
    rows = rows.assign(device=rows.gpu.map(names)).dropna(subset="device")
    # a reason not to score a figure of a run that counts otherwise: the figure is left out
    counts = rows.exclude.isna()
    return rows[counts | ~counts.groupby(rows.group_id).transform("any")]


def _reference(source: str) -> str:
    """Return where a figure was read: repository, commit and place."""
    return re.sub(r"\s+", " ", source.replace(LONG_FOLDER, "").replace('"', ""))


def _degrees(groups: pd.DataFrame) -> dict[str, pd.Series[int]]:
    """The split; attention that is data parallel over the tensor-parallel group is dp, as in a
    request.
    """
    tp, pp, dp, ep = (groups[name].fillna(1).astype(int) for name in ("tp", "pp", "dp", "ep"))
    apart, ranks = groups.attention_dp.eq(1), tp * dp
    return {
        "tp": tp.mask(apart, 1),
        "pp": pp,
        "dp": dp.mask(apart, ranks),
        "ep": ep.mask(apart, np.maximum(ep, ranks)),
    }


def published_serving_runs(truth: Path) -> pd.DataFrame:
    """Every run that can be compared with an estimate, as rows of the shipped table, by id."""
    rows = _scored(pd.read_csv(truth / "serving_calibration.csv.gz", low_memory=False))
    figures = rows.assign(metric=rows.metric.map(METRICS)).pivot(
        index="group_id", columns="metric", values="value"
    )
    groups = rows.drop_duplicates("group_id").set_index("group_id")
    nodes = groups.num_nodes.fillna(1).clip(lower=1).astype(int)
    per_node = (groups.num_gpus // nodes).clip(lower=1)
    mode = groups["mode"].map(MODES)
    load = groups.concurrency_or_batch.where(mode.ne("offline"), groups.requests.fillna(QUEUED))
    load = np.floor(load).where(mode.ne("open"), groups.request_rate).astype(float)
    engine = groups.engine.map(engine_name)
    versions = (groups.engine + " " + groups.engine_version.fillna("")).str.strip().str.slice(0, 64)
    out = pd.DataFrame(
        {"model": groups.model_hf_id, "device": groups.device, "nodes": nodes, "per_node": per_node}
    )
    out = out.assign(
        engine=engine,
        **_degrees(groups),
        weight_dtype=groups.weight_dtype.map(dtype_name),
        kv_dtype=groups.kv_dtype.map(dtype_name),
        max_num_seqs=groups.max_num_seqs.astype("Int64"),
        memory_fraction=groups.memory_fraction,
        max_batched_tokens=groups.max_batched_tokens.astype("Int64"),
    )
    out = out.assign(
        mode=mode,
        scenario=groups["mode"].map(SCENARIOS).fillna(""),
        input_tokens=groups.isl_eff.round().clip(lower=1).astype(int),
    )
    out = out.assign(
        output_tokens=groups.osl_eff.round().clip(lower=1).astype(int),
        length_spread=groups.length_spread,
        load=load,
    ).join(figures)
    date = groups.date_version.fillna("").astype(str)
    out = out.assign(
        source=groups.src_key,
        version=versions,
        reference=groups.source.map(_reference),
        date=date,
        exclude=groups.exclude.fillna("").astype(str),
    ).reset_index(names="id")
    return out.reindex(columns=list(Run.model_fields)).sort_values("id", ignore_index=True)


def as_runs(table: pd.DataFrame) -> list[Run]:
    """Rows of the table as measured runs."""
    return [
        Run.model_validate({name: value for name, value in row.items() if pd.notna(value)})
        for row in table.to_dict(orient="records")
    ]


def _ends_first(count: int) -> list[int]:
    """Positions of a sorted list: lowest, highest, then the middles of the widest gaps."""
    order = [0, count - 1] if count > 1 else [0]
    while len(order) < count:
        picked = sorted(order)
        low, high = max(pairwise(picked), key=lambda ends: ends[1] - ends[0])
        order.append((low + high) // 2)
    return order


def _split_devices(split: tuple[int, ...]) -> int:
    return split[0] * split[1]


def by_curve(cell: pd.DataFrame) -> Iterator[int]:
    """The runs of a cell, most telling first.

    A problem is all but split and load; problems come by their number of runs. Of each, two splits,
    the most measured and the next (of as many devices, if there is one), and of each split the
    lowest, the highest and the middle load: enough to see a curve and to compare two splits. Then
    what is left.
    """
    rest: list[int] = []
    same = [
        name
        for name in Run.model_fields
        if name not in {"id", "load", "reference", "date", "exclude", *SPLIT, *FIGURES}
    ]
    problems = sorted(
        cell.groupby(same, dropna=False), key=lambda part: (-len(part[1]), str(part[0]))
    )
    for _, problem in problems:
        curves = sorted(problem.groupby(list(SPLIT)), key=lambda part: (-len(part[1]), part[0]))
        devices = _split_devices(curves[0][0])
        curves[1:] = sorted(curves[1:], key=lambda part: _split_devices(part[0]) != devices)
        for n, (_, curve) in enumerate(curves):
            ordered = curve.sort_values(["load", "id"]).index
            ordered = [int(ordered[position]) for position in _ends_first(len(ordered))]
            loads = LOADS_OF_A_CURVE if n < SPLITS_OF_A_PROBLEM else 0
            yield from ordered[:loads]
            rest += ordered[loads:]
    yield from rest


def choose_serving_runs(table: pd.DataFrame, size: int = WANTED) -> pd.DataFrame:
    """About ``size`` runs: one per cell at least, the rest by square roots of cell sizes."""
    cells = dict(iter(table.groupby(list(CELL), dropna=False)))
    seats = dict.fromkeys(cells, 1)
    queue = [(-math.sqrt(len(rows)) / 2, key) for key, rows in cells.items() if len(rows) > 1]
    heapq.heapify(queue)
    for _ in range(size - len(cells)):
        if not queue:
            break
        _, key = heapq.heappop(queue)
        seats[key] += 1
        if seats[key] < len(cells[key]):
            heapq.heappush(queue, (-math.sqrt(len(cells[key])) / (seats[key] + 1), key))
    picked = [row for key, rows in cells.items() for row in islice(by_curve(rows), seats[key])]
    return table.loc[picked].sort_values(
        [*CELL, "mode", "input_tokens", "output_tokens", *SPLIT, "load", "id"], ignore_index=True
    )


def main() -> None:
    table = published_serving_runs(Path(sys.argv[1]))
    shipped = choose_serving_runs(table)
    shipped.to_csv(PUBLISHED, index=False, float_format="%.6g", lineterminator="\n")
    print(
        f"{len(shipped)} of {len(table)} runs, {len(shipped.groupby(list(CELL)))} cells, "
        f"{PUBLISHED.stat().st_size:,} bytes: {PUBLISHED}"
    )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(str(__doc__))
    main()
