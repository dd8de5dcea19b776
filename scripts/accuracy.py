"""Compare estimates with published runs and logs: write the bands and docs/accuracy.md.

    python scripts/accuracy.py TRUTH_DIR

Reads ``serving_calibration.csv.gz`` (one row a measured figure) of runs whose model, device and engine this version knows. A band
is the p10–p90 range of measured / estimated over the runs of devices with fitted rooflines; devices that rest on priors get the
same range, widened by ``PRIOR`` on a log scale, because no run here tells.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import accuracy_memory
import numpy as np
import pandas as pd

from recipe_core.documents import to_yaml
from recipe_core.engines.spec import engine_names
from recipe_core.errors import HardwareError
from recipe_core.estimate.result import Band, BandFile
from recipe_core.hardware.catalog import device
from recipe_core.many import estimate_many

ROOT = Path(__file__).parent.parent
PRIOR = 1.5
MODES = {"fixed_concurrency": ("closed", "concurrency"), "fixed_batch": ("static", "batch"), "max_throughput": ("offline", None)}
FIGURES = {"ttft_ms": ("ttft_s", 1e3), "tpot_ms": ("tpot_s", 1e3), "request_latency_ms": ("request_latency_s", 1e3)}
FIGURES |= {"output_tokens_per_s_total": ("output_tokens_per_s", 1.0)}


def device_name(gpu: str) -> str | None:
    """The profile of a device as the table writes it ("H100-SXM-80GB")."""
    for name in (gpu, "-".join(part for part in gpu.split("-") if not part.endswith("GB"))):
        try:
            return device(name).name
        except HardwareError:
            continue
    return None


def request(run: Any) -> dict[str, Any]:
    """One measured run as a request."""
    mode, load = MODES[run.mode]
    workload = {"mode": mode, "input_tokens": max(1, round(run.isl_eff)), "output_tokens": max(2, round(run.osl_eff))}
    workload |= {load: int(run.concurrency_or_batch)} if load else {"requests": 10_000}
    split = {name: 1 if pd.isna(getattr(run, name)) else int(getattr(run, name)) for name in ("tp", "pp", "dp", "ep")}
    nodes = 1 if pd.isna(run.num_nodes) else max(1, int(run.num_nodes))
    hardware = {"device": device_name(run.gpu), "per_node": max(1, int(run.num_gpus) // nodes), "nodes": nodes}
    engine = next((name for name in engine_names() if name in str(run.engine).lower()), None)
    return {"model": run.model_hf_id, "hardware": hardware, "workload": workload, "candidate": split | {"engine": engine}}


def runs(path: Path) -> pd.DataFrame:
    """Rows worth comparing: good quality, no speculation, everything stated, an engine and device we know."""
    rows = pd.read_csv(path, low_memory=False)
    stated = rows[["tp", "isl_eff", "osl_eff", "num_gpus"]].notna().all(axis=1) & (
        rows.concurrency_or_batch.notna() | rows["mode"].eq("max_throughput")
    )
    plain = rows.quality.isin(["A", "B"]) & rows.spec_decode.isin(["none", "none_assumed"])
    known = rows["mode"].isin(MODES) & rows.metric.isin(FIGURES) & rows.engine.str.contains("vllm", case=False, na=False)
    known &= rows.gpu.map(lambda gpu: device_name(str(gpu)) is not None)
    return rows[stated & plain & known]


def compared(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with ``ratio`` = measured / estimated, for those the model catalog covers."""
    each = rows.drop_duplicates("group_id")
    answers = dict(zip(each.group_id, estimate_many(request(run) for run in each.itertuples()), strict=True))
    refused = sum(1 for answer in answers.values() if answer.get("feasible") is False)
    print(f"{len(answers)} runs, {sum('error' in a for a in answers.values())} not covered, {refused} refused though measured")
    figures = [answers[row.group_id].get("serving", {}).get(FIGURES[row.metric][0], np.nan) for row in rows.itertuples()]
    scale = rows.metric.map(lambda metric: FIGURES[metric][1])
    out = rows.assign(estimated=np.array(figures, dtype=float) * scale, figure=rows.metric.map(lambda metric: FIGURES[metric][0]))
    out = out[out.estimated.gt(0) & out.value.gt(0)]
    vendor = out.gpu.map(lambda gpu: device(device_name(gpu) or "").vendor)
    return out.assign(ratio=out.value / out.estimated, vendor=vendor, cell=out.src_key + "|" + out.gpu + "|" + out.model_hf_id)


def bands(rows: pd.DataFrame) -> BandFile:
    """p10–p90 of measured / estimated by figure."""
    fitted: dict[str, Band] = {}
    for figure in ("ttft_s", "tpot_s", "output_tokens_per_s"):
        ratio = rows.ratio[rows.figure == figure]
        fitted[figure] = Band(low=round(float(ratio.quantile(0.1)), 2), high=round(float(ratio.quantile(0.9)), 2))
    fitted["request_latency_s"] = Band(low=min(fitted["tpot_s"].low, 1.0), high=max(fitted["tpot_s"].high, 1.0))
    fitted["output_tokens_per_s_per_gpu"] = fitted["output_tokens_per_s"]
    prior = {name: Band(low=round(band.low / PRIOR, 2), high=round(band.high * PRIOR, 2)) for name, band in fitted.items()}
    source = f"p10 to p90 of measured / estimated over {rows.group_id.nunique()} published vLLM runs; scripts/accuracy.py"
    return BandFile(schema_version=1, source=source, bands={"fitted": fitted, "prior": prior})


def table(rows: pd.DataFrame, by: list[str]) -> str:
    """Errors as a Markdown table."""
    error = (rows.estimated / rows.value - 1).abs()
    grouped = rows.assign(error=error).groupby(by)
    lines = ["| " + " | ".join([*by, "n", "median error", "p90 error", "median estimated / measured"]) + " |", "|" + "---|" * (len(by) + 4)]
    for key, group in grouped:
        names = [str(part) for part in (key if isinstance(key, tuple) else (key,))]
        bias = float(np.exp(np.log(group.estimated / group.value).median()))
        lines.append(f"| {' | '.join(names)} | {len(group)} | {group.error.median():.0%} | {group.error.quantile(0.9):.0%} | {bias:.2f} |")
    return "\n".join(lines)


def report(rows: pd.DataFrame, memory: str) -> str:
    """docs/accuracy.md."""
    errors = rows.assign(error=(rows.estimated / rows.value - 1).abs())
    cells = errors.groupby(["figure", "cell"]).error.median().groupby("figure").mean()
    means = "\n".join(f"| {figure} | {value:.0%} |" for figure, value in cells.items())
    return f"""# How wrong the numbers are

## Speed

Written by `python scripts/accuracy.py TRUTH_DIR` from {rows.group_id.nunique()} published vLLM runs of
{rows.model_hf_id.nunique()} models on {rows.gpu.nunique()} devices that this version covers. One number of the serving model was fitted
to these runs (the share of a closed loop that moves in waves); operators and links were fitted to operator measurements, engine
overheads are assumed.
Error is |estimated / measured - 1|.

By figure and vendor:

{table(rows, ["figure", "vendor"])}

By device and model:

{table(rows[rows.figure == "tpot_s"], ["gpu", "model_hf_id"])}

Mean over source × GPU × model cells of the cell's median error:

| figure | error |
|---|---|
{means}

The time to first token under load is mostly queueing, which a steady state underestimates where a benchmark starts with a burst.
Mixture-of-experts models in mxfp4 are overestimated most: their kernels are the worst fitted operator. Of the NVIDIA throughput runs
35 are one experiment with a nightly engine (Qwen3.5-397B-A17B on H200) that read prompts at a few percent of the device's rate.

## Memory

Weights and cache are also held against the real transformers models on torch's meta device (`tests/test_trace.py`, 28 model × split cases:
weights within 0.07 %, cache per token exact). Below: what vLLM logged when it started, against the estimate at the same limits.
gpt-oss logs its weights while they are being shuffled; the cache it then has tells what they settle to. Old versions
allowed small cards 1,024 sequences (L40S).

{memory}
"""


def main() -> None:
    truth = Path(sys.argv[1])
    rows = compared(runs(truth / "serving_calibration.csv.gz"))
    capacities = accuracy_memory.capacity(truth / "kv_capacity_trtllm.csv")
    memory = accuracy_memory.report(accuracy_memory.compared(truth / "memory_facts.csv"), capacities)
    (ROOT / "recipe_core" / "estimate" / "bands.yaml").write_text(to_yaml(bands(rows).model_dump(mode="json")))
    (ROOT / "docs" / "accuracy.md").write_text(report(rows, memory))
    print(table(rows, ["figure", "vendor"]))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(str(__doc__))
    main()
