"""Choose the measured training runs that the project ships: write
recipe_core/estimates/measured/published/training.csv.

    python scripts/publish_training.py TRUTH_DIR

Reads ``training_calibration.csv.gz`` (one row a measured figure) and says the same in this
project's words: one row a run (see recipe_core/estimates/measured/published/README.md). Kept are
runs of quality A or B (pre-training, fine-tuning, LoRA) on a device there is a profile of, with
split, lengths and batch stated; of dense models with dimensions stated whose published parameters
are within 15 % of what the dimensions give (no other mixers that the table leaves out), of models
with experts those of the ``CATALOG``; without 4-bit products, activations on the host, and faults
of the cluster that the source names.

Each source × device × model has at least one run among the ``WANTED`` that are shipped, the others
are dealt out by the square root of a cell's runs. Nothing is drawn at random.
"""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import publish_runs

from recipe_core.calibration.validation.comparison import CELL, group_training_runs
from recipe_core.estimates.measured.runs import (
    DIMENSIONS,
    TRAINING_FIGURES,
    TRAINING_RUNS,
    TrainingRun,
)

WANTED = 180
SIZES = ("layers", "hidden", "heads", "ffn", "vocab")
NEEDED = (
    "seq_len",
    "micro_batch",
    "global_batch",
    "tp",
    "pp",
    "num_gpus",
)
TASKS = {
    "pretrain": "pretrain",
    "pretrain-ci": "pretrain",
    "lora": "lora",
    "sft": "finetune",
    "full-ft": "finetune",
}
CATALOG = {
    "deepseek-v3": "deepseek-ai/DeepSeek-V3",
    "gpt-oss-120b": "openai/gpt-oss-120b",
    "gpt-oss-20b": "openai/gpt-oss-20b",
    "llama4-maverick": "meta-llama/Llama-4-Maverick-17B-128E-Instruct",
    "mixtral-8x7b": "mistralai/Mixtral-8x7B-Instruct-v0.1",
    "nemotron-h-56b": "nvidia/Nemotron-H-56B-Base-8K",
    "nemotron_3_nano": "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "nemotron_3_super": "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16",
    "qwen3-235b-a22b": "Qwen/Qwen3-235B-A22B",
    "qwen3-30b-a3b": "Qwen/Qwen3-30B-A3B",
    "qwen3-next-80b-a3b": "Qwen/Qwen3-Next-80B-A3B-Instruct",
}
"""Models with experts or other mixers; their shapes need more than the table holds."""
GROK = {
    "hidden": 6144,
    "heads": 48,
    "kv_heads": 8,
    "ffn": 32768,
    "vocabulary": 131072,
    "experts": 8,
    "experts_per_token": 2,
    "tied": True,
}
"""Dimensions of Grok-1 (xai-org/grok-1), of which NVIDIA also ran some of its layers."""
HALF_GRADIENTS = {"dgxc", "mbr", "mlp", "mlm"}
"""Sources whose Megatron recipes reduce gradients in 16 bits."""
METRICS = {
    "tokens_per_s_per_gpu": "tokens_per_s_per_gpu",
    "step_time_s": "step_s",
    "peak_memory_gib": "peak_memory_gib",
}
DEVICES = {
    "H100-80GB-SXM": "h100-sxm",
    "A100-80GB-SXM": "a100-sxm-80gb",
    "A100-40GB-SXM": "a100-sxm-40gb",
    "H200-141GB-SXM": "h200-sxm",
}
ENGINES = {"nanotron": "nanotron", "Megatron": "megatron", "NeMo": "megatron", "Primus": "megatron"}
SOURCES = {
    "am": "nemo_automodel",
    "bs": "bigscience",
    "cvs": "rocm_cvs",
    "dgxc": "dgxc",
    "fms": "fms_fsdp",
    "kor": "korthikanti",
    "lf": "llm_foundry",
    "mbr": "megatron_bridge",
    "mlm": "megatron_lm",
    "mlp": "mlperf_training",
    "nano": "nanotron",
    "tt": "torchtitan",
    "amd": "amd_primus",
    "ci": "megatron_ci",
    "lit": "litgpt",
    "pap": "papers",
    "tune": "torchtune",
}
MEMORY_OF = {"nano": "first", "bs": "driver"}


def training_device_name(gpu: str) -> str | None:
    """The profile of a device as the data writes it; None where there is none, or where another
    part than the profile's was used.
    """
    if gpu in DEVICES:
        return DEVICES[gpu]
    return None if "(" in gpu or "-" in gpu else publish_runs.serving_device_name(gpu)


def _whole(value: Any, default: int = 1) -> int:
    return default if pd.isna(value) else int(value)


def is_gated(row: Any) -> bool:
    """Return whether three matrices a feed-forward block match the published parameters best."""
    if not np.isfinite(row.params):
        return True
    kv = row.kv_heads if np.isfinite(row.kv_heads) else row.heads
    ends = 1.5  # embedding and head; one matrix if tied, in between where the source says neither
    if "tied_embeddings=True" in str(row.notes):
        ends = 1.0
    elif "tied_embeddings=False" in str(row.notes):
        ends = 2.0
    rest = 2 * row.layers * row.hidden**2 * (1 + kv / row.heads) + ends * row.vocab * row.hidden
    matrix = row.layers * row.hidden * row.ffn
    return bool(abs(rest + 3 * matrix - row.params) < abs(rest + 2 * matrix - row.params))


def _zero_stage(words: str) -> int:
    if re.search("zero2|grad_op", words):
        return 2
    if re.search("hsdp|zero3", words) or ("fsdp" in words and "not stated" not in words):
        return 3
    return 1 if re.search("zero1|distopt", words) else 0


def _recompute(words: str) -> str | None:
    if re.search("specific|see config|unverified|not stated|none stated|nan", words):
        return None
    if words.startswith(("full", "yes")):
        return "full"
    return "selective" if words.startswith(("selective", "[")) else "none"


def _engine(framework: str, source: str, notes: str) -> str:
    """The framework that ran.

    MLPerf's submissions are NeMo or Primus on Transformer Engine, also those that name PyTorch
    only; NeMo AutoModel is FSDP2 over torch, as torchtitan is. Layers one operator at a time, as
    LitGPT's, are plain torch.
    """
    packed = source == "tune" and notes.startswith("+packed")
    if "compile=false" in notes or source == "lit" or packed:
        return "torch"
    if source == "mlp":
        return "megatron"
    engines = {} if "AutoModel" in framework else ENGINES
    return next((ours for word, ours in engines.items() if word in framework), "torchtitan")


def _gradients(source: str, engine: str, precision: str, vendor: str) -> str | None:
    halved = source in HALF_GRADIENTS and engine == "megatron" and vendor == "nvidia"
    return "bf16" if halved and precision == "bf16" else None


def _has_experts(row: Any) -> bool:
    """Return whether ranks share experts: the table leaves some models' active parameters out."""
    fewer = np.isfinite(row.active_params) and row.active_params != row.params
    return bool(fewer or row.model in CATALOG)


def _precision(words: str) -> Literal["fp8", "fp16", "bf16"]:
    if re.search("fp8|float8", words):
        return "fp8"
    return "fp16" if words == "fp16" else "bf16"


def _method(row: Any) -> str:
    """Say what is trained; of a base in 4 bits adapters."""
    method = TASKS[str(row.task)]
    return "qlora" if method == "lora" and "nf4" in str(row.precision) else method


def _model(row: Any) -> dict[str, Any]:
    """The model of a row: of the catalog, or its dimensions."""
    if str(row.model).startswith("grok1"):
        return {**GROK, "layers": _whole(row.layers)}
    if row.model in CATALOG:
        return {"catalog": CATALOG[row.model]}
    values = (row.layers, row.hidden, row.heads, row.kv_heads, row.ffn, row.vocab)
    sizes = dict(zip(DIMENSIONS, map(_whole, values), strict=True))
    if not np.isfinite(row.kv_heads):
        sizes["kv_heads"] = sizes["heads"]
    tied = "tied_embeddings=True" in str(row.notes)
    return {**sizes, "gated": is_gated(row), "tied": tied}


def run_of(row: Any, name: str, figures: dict[str, float]) -> TrainingRun:
    """A row of the data as a run; ``row`` has the data's columns."""
    zero, precision, source = str(row.zero_or_fsdp).lower(), str(row.precision), str(row.source_key)
    gpus, node_gpus = _whole(row.num_gpus), _whole(row.gpus_per_node, 8)
    notes = str(row.notes)
    engine = _engine(str(row.framework), source, notes)
    halved = "params+optim bf16" in precision or "bf16-true" in precision
    in_pieces = source == "lf" or "chunked CE" in notes or "activation ckpt (cumulative)" in notes
    older = source == "bs" or (
        source == "kor" and "seqpar" not in str(row.recompute)
    )  # than sequence parallelism, or without it
    return TrainingRun(
        id=name,
        model=str(row.model),
        **_model(row),
        device=str(training_device_name(row.gpu)),
        nodes=max(1, gpus // node_gpus),
        per_node=min(node_gpus, gpus),
        engine=engine,
        tp=_whole(row.tp),
        pp=_whole(row.pp),
        virtual_stages=_whole(row.vp),
        cp=_whole(row.cp),
        ep=_whole(row.ep) if _has_experts(row) else 1,
        dp=_whole(row.dp, gpus // (_whole(row.tp) * _whole(row.pp) * _whole(row.cp))),
        shard=min(node_gpus, gpus) if "hsdp" in zero else None,
        zero_stage=_zero_stage(zero),
        sequence_parallel=not older,
        micro_batch=_whole(row.micro_batch),
        recompute=_recompute(str(row.recompute)),  # type: ignore[arg-type]
        precision=_precision(precision),
        # MLPerf's reference and LitGPT's default adapt attention only
        lora_targets="attention" if source in ("mlp", "lit") else "all",
        method=_method(row),  # type: ignore[arg-type]
        state_dtype="bf16" if halved else None,
        gradient_dtype=_gradients(source, engine, _precision(precision), str(row.vendor)),  # type: ignore[arg-type]
        attention="eager" if source in ("bs", "kor") else "flash",
        fused_loss=in_pieces,
        sequence_length=_whole(row.seq_len),
        global_batch=_whole(row.global_batch),
        **figures,
        memory_of=MEMORY_OF.get(source, "fullest"),  # type: ignore[arg-type]
        source=SOURCES.get(source, source),
        version=str(row.framework)[:64],
        reference=re.sub(r"\s+", " ", str(row.source).replace('"', "")),
    )


def _asked_for(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows that say all that a request needs, on devices with a profile."""
    keep = rows.gpu.map({gpu: training_device_name(gpu) for gpu in rows.gpu.unique()}).notna()
    dense = rows.active_params.isna() | rows.active_params.eq(rows.params)
    grok = rows.model.astype(str).str.startswith("grok1")
    shaped = rows.model.isin(CATALOG) | grok
    keep &= shaped | (dense & rows[list(SIZES)].notna().all(axis=1))
    return rows[keep & rows[list(NEEDED)].notna().all(axis=1)]


def published_training_runs(truth: Path) -> list[TrainingRun]:
    """Every run of the data that a request can say, ordered by id; figures of one run together."""
    rows = pd.read_csv(truth / "training_calibration.csv.gz", low_memory=False)
    rows = rows[
        rows.quality.isin(["A", "B"])
        & rows.task.isin(TASKS)
        & rows.metric.isin(METRICS)
        & rows.value.gt(0)
    ]
    rows = _asked_for(rows).assign(source_key=lambda r: r.id.str.split("-").str[0])
    faulty = rows.notes.astype(str).str.contains("pathology") & rows.metric.ne("peak_memory_gib")
    unsaid = rows.precision.str.contains("fp4") | rows.recompute.astype(str).str.contains("offload")
    # states on the host, updates in the backward pass, lengths or devices that are not stated
    unsaid |= rows.notes.astype(str).str.contains(
        "CPU offload|opt-in-bwd|optim in bwd|baseline unpacked|on Multiple GPUs"
    )
    rows = rows[~(unsaid | faulty)]
    same = [
        name for name in rows.columns if name not in ("id", "metric", "value", "notes", "quality")
    ]
    out: list[TrainingRun] = []
    parameters: dict[str, float] = {}
    for _, part in rows.groupby(same, dropna=False, sort=False):
        figures = {
            METRICS[metric]: float(values.median())
            for metric, values in part.groupby("metric").value
        }
        row = next(part.itertuples())
        out.append(run_of(row, str(row.id), figures))
        parameters[str(row.id)] = float(row.params)
    return sorted(_described(out, parameters), key=lambda run: run.id)


def _described(runs: list[TrainingRun], parameters: dict[str, float]) -> list[TrainingRun]:
    """Runs whose dimensions give the published number of parameters."""
    groups, _ = group_training_runs(runs)
    counted = {
        runs[n].id: group.setting.model.language_parameters
        for group in groups
        for n in map(int, group.rows)
    }
    return [
        run
        for run in runs
        if run.id in counted
        and (run.catalog or run.experts or abs(counted[run.id] / parameters[run.id] - 1) < 0.15)
    ]


def failed(truth: Path) -> list[TrainingRun]:
    """Runs that ran out of memory, crashed or timed out (one label); their figures are missing, a
    step of one second stands in.
    """
    rows = pd.read_csv(truth / "training_failed_runs.csv.gz", low_memory=False)
    rows = _asked_for(rows).assign(
        notes="",
        task="pretrain",
        vendor="nvidia",
        source_key=lambda r: np.where(r.framework.str.startswith("nanotron"), "nano", "other"),
    )
    return [run_of(row, f"failed-{n}", {"step_s": 1.0}) for n, row in enumerate(rows.itertuples())]


def training_run_table(rows: list[TrainingRun]) -> pd.DataFrame:
    """Runs as rows, in the columns of the shipped table."""
    return pd.DataFrame([run.model_dump() for run in rows], columns=list(TrainingRun.model_fields))


def choose_training_runs(everything: pd.DataFrame, size: int = WANTED) -> pd.DataFrame:
    """About ``wanted`` rows: at least one of each cell, evenly spread over its splits."""
    cells = dict(iter(everything.groupby(list(CELL))))
    weight = {key: math.sqrt(len(rows)) for key, rows in cells.items()}
    remaining = max(size - len(cells), 0)
    picked: list[int] = []
    for key, rows in cells.items():
        seats = min(1 + round(remaining * weight[key] / sum(weight.values())), len(rows))
        ordered = rows.sort_values(["nodes", "tp", "pp", "micro_batch", "id"]).index.to_numpy()
        picked += [
            int(ordered[place])
            for place in np.unique(np.linspace(0, len(ordered) - 1, seats).round().astype(int))
        ]
    return everything.loc[picked].sort_values([*CELL, "id"], ignore_index=True)


def main() -> None:
    everything = training_run_table(published_training_runs(Path(sys.argv[1])))
    shipped = choose_training_runs(everything)
    shipped.to_csv(TRAINING_RUNS, index=False, float_format="%.6g", lineterminator="\n")
    measured = shipped[list(TRAINING_FIGURES)].notna().sum().to_dict()
    print(
        f"{len(shipped)} of {len(everything)} runs, {len(shipped.groupby(list(CELL)))} cells, "
        f"{measured}: {TRAINING_RUNS}"
    )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(str(__doc__))
    main()
