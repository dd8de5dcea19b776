"""Estimates of prefill and decode pools beside published runs: a section of the accuracy page.

    python scripts/accuracy_pools.py TRUTH_DIR

accuracy.py writes the section with the rest of the document; run alone, this replaces the section
only. Only what an engine's hand-off adds to the first token (``handoff_s``) is fitted to these
runs.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import publish_runs

from recipe_core.calibration.validation.validate import format_table
from recipe_core.hardware.cluster import device_profile
from recipe_core.plans.plans import estimate_batch

ROOT = Path(__file__).parent.parent
REPORT = ROOT / "docs" / "reference" / "accuracy.md"
HEADING = "## Disaggregated pools"
RUNS = "serving_disaggregated_calibration.csv.gz"
QUANTITIES = {"tpot_ms": "tpot_s", "ttft_ms": "ttft_s"}
# Limits that a run's notes state, by the field of a layout.
STATED = {
    "max_num_seqs": r"max_num_seqs (\d+)",
    "memory_fraction": r"memory fraction (0?\.\d+)",
}
POOL = ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size", "num_workers")
SMALLEST_LIMIT = 8


def pool(run: pd.Series, name: str, per_node: int) -> dict[str, int]:
    """The split of one pool.

    A converter wrote cut experts beside data-parallel attention where the published launch scripts
    have one of two others: tensor parallelism in a node, experts on all ranks beyond one.
    """
    tp, attention, cut, ep, workers = (int(run[f"{name}_{column}"]) for column in POOL)
    ranks = tp * attention
    if attention > 1 and cut == attention and ep == 1 and ranks <= per_node:
        tp, attention = ranks, 1
    elif attention > 1:
        ep = ranks
    return {"tp": tp, "pp": 1, "dp": attention, "ep": max(ep, 1), "replicas": workers}


def pool_request(run: pd.Series) -> dict[str, Any]:
    """A run as a request; pools start on nodes of their own."""
    profile = device_profile(str(publish_runs.serving_device_name(run.gpu)))
    per_node = profile.node.devices
    prefill, decode = (pool(run, name, per_node) for name in ("prefill", "decode"))
    groups = [p["replicas"] * -(-p["tp"] * p["dp"] // per_node) for p in (prefill, decode)]
    requests_per_rank = int(np.ceil(run.concurrency / decode["replicas"] / decode["dp"]))
    return {
        "model": run.model_hf_id,
        "hardware": {"device": profile.name, "per_node": per_node, "nodes": sum(groups)},
        "workload": {
            "kind": "serving",
            "mode": "closed",
            "input_tokens": int(run.isl),
            "output_tokens": int(run.osl),
            "concurrency": int(run.concurrency),
        },
        "candidate": {
            **decode,
            "engine": publish_runs.engine_name(run.engine),
            "weight_dtype": "auto",
            "kv_dtype": "fp8",  # as the launch scripts state
            "max_num_seqs": max(requests_per_rank, SMALLEST_LIMIT),
            **stated_limits(str(run.notes)),
            "prefill": prefill,
        },
    }


def stated_limits(notes: str) -> dict[str, Any]:
    """Limits of the engine that a run's notes state."""
    matches = {name: re.search(pattern, notes) for name, pattern in STATED.items()}
    return {name: float(match[1]) for name, match in matches.items() if match}


def compare_pools(truth: Path) -> pd.DataFrame:
    """Runs that state both pools and the load: a row per figure, measured and estimated."""
    runs = pd.read_csv(truth / RUNS)
    columns = [f"{name}_{column}" for name in ("prefill", "decode") for column in POOL]
    runs = runs.dropna(subset=["concurrency", "tpot_ms", *columns])
    requests = [pool_request(run) for _, run in runs.iterrows()]
    answers = estimate_batch(requests)
    rows = [
        {
            "id": run.id,
            "figure": figure,
            "model": run.model_hf_id,
            "engine": run.engine,
            "device": request["hardware"]["device"],
            "vendor": device_profile(request["hardware"]["device"]).vendor,
            "decode ranks": _ranks(request),
            "feasible": answer["feasible"],
            "ratio": answer["serving"][quantity] * 1e3 / run[figure]
            if answer["feasible"]
            else np.nan,
        }
        for (_, run), request, answer in zip(runs.iterrows(), requests, answers, strict=True)
        for figure, quantity in QUANTITIES.items()
    ]
    return pd.DataFrame(rows)


def _ranks(request: dict[str, Any]) -> str:
    split, per_node = request["candidate"], request["hardware"]["per_node"]
    if split["dp"] == 1:
        return "tensor parallel"
    beyond = split["dp"] * split["tp"] > per_node
    return "attention data parallel, " + ("over nodes" if beyond else "in a node")


def pool_errors(figures: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Median error and median ratio of the groups."""
    with_ratio = figures.dropna(subset="ratio").assign(error=lambda rows: (rows.ratio - 1).abs())
    grouped = with_ratio.groupby(by)
    return grouped.agg(
        n=("ratio", "size"),
        median=("error", "median"),
        p90=("error", lambda error: error.quantile(0.9)),
        bias=("ratio", "median"),
    ).reset_index()


def pools_markdown(table: pd.DataFrame) -> str:
    """A table in Markdown, as people read it."""
    words = format_table(table)
    lines = [list(map(str, words)), ["---"] * words.shape[1], *words.to_numpy().tolist()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def pools_section(figures: pd.DataFrame) -> str:
    """The section of docs/reference/accuracy.md."""
    refused = figures[~figures.feasible].id.nunique()
    return f"""{HEADING}

Written by `python scripts/accuracy_pools.py TRUTH_DIR`: {figures.id.nunique()} published runs
(InferenceX, Dynamo, ATOMesh) that state prefill and decode pools and the load. {refused} are called
impossible. Only what a hand-off adds to the first token is fitted to them, by engine.

{pools_markdown(pool_errors(figures, ["figure"]))}

{pools_markdown(pool_errors(figures, ["figure", "vendor", "engine"]))}

{pools_markdown(pool_errors(figures, ["figure", "engine", "decode ranks"]))}

Times to the first token that are far off are of pools near their capacity, where the prefill pool's
error becomes a queue: SGLang's prompts on Blackwell are estimated too slow. Or
they are of runs whose launch holds fewer requests than it states. Decode pools of SGLang over the
nodes of a rack dispatch tokens (`--moe-a2a-backend deepep`), as the published launch scripts of
these runs do.
"""


def main() -> None:
    figures = compare_pools(Path(sys.argv[1]))
    rest = re.split(rf"^{HEADING}\n.*?(?=^## )", REPORT.read_text(), flags=re.M | re.S)
    if len(rest) != 2:
        sys.exit(f"{REPORT} has no section {HEADING!r} before another: run scripts/accuracy.py.")
    REPORT.write_text(f"{rest[0]}{pools_section(figures)}\n{rest[1]}")
    print(pools_section(figures))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(str(__doc__))
    main()
