"""Fit the few numbers of a training step to published runs, and say how far off the estimates are.

    python scripts/fit_training.py TRUTH_DIR [--fit] [--held-out] [--as-llama]

TRUTH_DIR holds ``training_calibration.csv.gz`` and ``training_failed_runs.csv.gz``. ``--fit`` prints the figures for
``recipe_core/training/frameworks.yaml``; ``--held-out`` fits once without each source and scores it. Models whose parameter count says that
the feed-forward block has two matrices are modelled so (``--as-llama``: all have three, as a request that states no more).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares  # type: ignore[import-untyped]

from recipe_core.errors import RecipeError
from recipe_core.estimate.cases import add
from recipe_core.request import PlanRequest
from recipe_core.training.cases import TrainingCases, TrainingSetting, stack_cases
from recipe_core.training.frameworks import Figures, Number
from recipe_core.training.memory import memory
from recipe_core.training.plan import one_case, resolve_training, setting_key, training_setting
from recipe_core.training.schedule import step_parts
from recipe_core.units import GIB

NEEDED = ("layers", "hidden", "heads", "ffn", "vocab", "seq_len", "micro_batch", "global_batch", "tp", "pp", "num_gpus")
METRICS = ("tokens_per_s_per_gpu", "step_time_s", "peak_memory_gib")
START = {
    "sustained.sm_8": (0.9, 0.5, 1.1),
    "sustained.sm_9": (0.8, 0.5, 1.1),
    "sustained.sm_10": (0.8, 0.5, 1.1),
    "sustained_fp8.sm_9": (0.8, 0.4, 1.1),
    "sustained_fp8.sm_10": (0.8, 0.4, 1.1),
    "torchtitan:elementwise_passes": (3.0, 1.0, 8.0),
    "megatron:elementwise_passes": (1.5, 1.0, 8.0),
    "torchtitan:launch_s": (1e-3, 0.0, 1e-2),
    "quantize_passes": (1.0, 0.5, 8.0),
    "megatron:launch_s": (3e-3, 0.0, 1e-2),
    "nanotron:launch_s": (4e-3, 0.0, 1e-2),
    "step_s": (2e-2, 5e-3, 0.5),
    "torchtitan:tensor_exposed": (0.6, 0.1, 1.2),
    "megatron:tensor_exposed": (0.6, 0.1, 1.2),
    "nanotron:tensor_exposed": (1.0, 0.1, 3.0),
    "pipeline_exposed": (0.5, 0.1, 2.0),
    "torchtitan:data_overlap": (0.6, 0.0, 1.0),
    "megatron:data_overlap": (0.6, 0.0, 1.0),
    "nanotron:data_overlap": (0.3, 0.0, 1.0),
    "straggler": (0.01, 0.0, 0.1),
    "attention_slowdown": (1.2, 0.8, 2.0),
}
"""Fitted figures: where the fit starts, and its bounds."""
SPREAD = 0.1
"""Errors (of the logarithm) beyond which a run counts less."""


@dataclass(frozen=True)
class Group:
    """Runs that share a setting."""

    setting: TrainingSetting
    cases: TrainingCases
    rows: np.ndarray


def device_name(gpu: str) -> str | None:
    """A profile's name for a GPU of the tables."""
    plain = (
        re.sub(r"-(?P<size>\d+GB)(-(?P<form>SXM|PCIe|NVL))?$", lambda m: f"-{m['form'] or ''}-{m['size']}", gpu).lower().replace("--", "-")
    )
    names = {"h100-sxm-80gb": "h100-sxm", "h200-sxm-141gb": "h200-sxm", "a100-sxm-80gb": "a100-sxm-80gb", "a100-sxm-40gb": "a100-sxm-40gb"}
    own = {
        "b200": "b200-sxm",
        "b300": "b300-sxm",
        "gb200": "gb200",
        "gb300": "gb300",
        "mi355x": "mi355x",
        "mi350x": "mi350x",
        "mi325x": "mi325x",
        "mi300x": "mi300x",
    }
    return (names | own).get(plain)


def gated(row: Any) -> bool:
    """Whether three matrices a block meet the published parameter count better than two."""
    if not np.isfinite(row.params):
        return True
    kv = row.kv_heads if np.isfinite(row.kv_heads) else row.heads
    attention = 2 * row.hidden**2 * (1 + kv / row.heads)
    rest = row.layers * attention + 1.5 * row.vocab * row.hidden
    matrix = row.layers * row.hidden * row.ffn
    return bool(abs(rest + 3 * matrix - row.params) < abs(rest + 2 * matrix - row.params))


def request(row: Any, *, as_llama: bool) -> dict[str, Any]:
    """A run as a request."""

    def whole(value: Any, default: int = 1) -> int:
        return default if pd.isna(value) else int(value)

    kind = "llama" if as_llama or gated(row) else "nemotron"
    config = {
        "model_type": kind,
        "hidden_size": whole(row.hidden),
        "num_hidden_layers": whole(row.layers),
        "num_attention_heads": whole(row.heads),
        "num_key_value_heads": whole(row.kv_heads, whole(row.heads)),
        "intermediate_size": whole(row.ffn),
        "vocab_size": whole(row.vocab),
        "max_position_embeddings": whole(row.seq_len),
        "tie_word_embeddings": "tied_embeddings=True" in str(row.notes),
    }
    source = row.source_key
    zero, recompute = str(row.zero_or_fsdp).lower(), str(row.recompute)
    hybrid = "hsdp" in zero
    sharded = hybrid or ("fsdp" in zero and not re.search("grad_op|zero2|not stated", zero)) or "zero3" in zero
    stage = 3 if sharded else 2 if re.search("zero2|grad_op", zero) else 1 if re.search("zero1|distopt", zero) else 0
    gpus, each = whole(row.num_gpus), whole(row.gpus_per_node, 8)
    parallel = not (source == "bs" or (source == "kor" and "seqpar" not in recompute))  # older than sequence parallelism, or without it
    megatron = re.search("Megatron|NeMo|nanotron|Primus", str(row.framework))
    return {
        "model": config,
        "hardware": {"device": device_name(row.gpu), "per_node": min(each, gpus), "nodes": max(1, gpus // each)},
        "workload": {
            "kind": "training",
            "sequence_length": whole(row.seq_len),
            "global_batch": whole(row.global_batch),
            "fused_loss": source == "lf",
        },
        "candidate": {
            "engine": "nanotron" if source == "nano" else "megatron" if megatron else "torchtitan",
            "tp": whole(row.tp),
            "pp": whole(row.pp),
            "virtual_stages": whole(row.vp),
            "cp": whole(row.cp),
            "ep": whole(row.ep),
            "dp": whole(row.dp),
            "zero_stage": stage,
            "micro_batch": whole(row.micro_batch),
            "recompute": "full" if recompute.startswith(("full", "yes")) else "selective" if recompute.startswith("selective") else "none",
            "precision": "fp8" if re.search("fp8|float8", str(row.precision)) else "fp16" if row.precision == "fp16" else "bf16",
            **({"shard": min(each, gpus)} if hybrid else {}),
            **({} if parallel else {"sequence_parallel": False}),
        },
    }


def load(path: Path) -> pd.DataFrame:
    """Dense runs of known devices with all that a request needs, outliers that their source names left in."""
    rows = pd.read_csv(path, low_memory=False)
    keep = rows.quality.isin(["A", "B"]) & rows.task.isin(["pretrain", "pretrain-ci"]) & rows.metric.isin(METRICS)
    keep &= rows.gpu.map(device_name).notna() & (rows.active_params.isna() | rows.active_params.eq(rows.params))
    for column in NEEDED:
        keep &= rows[column].notna()
    rows = rows[keep].reset_index(drop=True)
    return rows.assign(source_key=rows.id.str.split("-").str[0])


def groups(rows: pd.DataFrame, *, as_llama: bool) -> list[Group]:
    """Runs by setting; those that cannot be asked for are left out."""
    found: dict[str, list[tuple[int, TrainingSetting, TrainingCases]]] = {}
    for n, row in enumerate(rows.itertuples()):
        try:
            asked = resolve_training(PlanRequest.parse(request(row, as_llama=as_llama)))
        except RecipeError:
            continue
        case, setting = one_case(asked), training_setting(asked)
        assert case is not None
        found.setdefault(setting_key(asked, setting), []).append((n, setting, case))
    return [Group(m[0][1], stack_cases([c for _, _, c in m]), np.array([n for n, _, _ in m])) for m in found.values()]


def _number(old: Number, value: float) -> Number:
    return old.model_copy(update={"value": float(value)})


def figures_of(base: Figures, values: dict[str, float]) -> Figures:
    """The shipped figures with some replaced."""
    update: dict[str, Any] = {}
    for name, value in values.items():
        part, _, generation = name.partition(".")
        if ":" in name:
            continue
        old = update.get(part, getattr(base, part))
        update[part] = old | {generation: _number(old[generation], value)} if generation else _number(old, value)
    return base.model_copy(update=update)


def with_values(setting: TrainingSetting, values: dict[str, float]) -> TrainingSetting:
    """A setting with some figures replaced, its framework's (``name:figure``) too."""
    own = {key.partition(":")[2]: value for key, value in values.items() if key.startswith(f"{setting.engine}:")}
    framework = setting.framework.model_copy(update={name: _number(getattr(setting.framework, name), value) for name, value in own.items()})
    return replace(setting, framework=framework, figures=figures_of(setting.figures, values))


def steps(found: list[Group], values: dict[str, float], n: int) -> np.ndarray:
    """Seconds of a step of every run."""
    out = np.full(n, np.nan)
    for group in found:
        out[group.rows] = add(step_parts(with_values(group.setting, values), group.cases).values())
    return out


def described(found: list[Group], rows: pd.DataFrame) -> np.ndarray:
    """Runs that a request can say.

    Published parameters are within 15 % of what the dimensions give (no experts or other mixers that the table leaves out), products are
    not in 4 bits, and the source names no fault of the cluster.
    """
    out = np.zeros(len(rows), dtype=bool)
    for group in found:
        out[group.rows] = np.abs(group.setting.model.parameters / rows.params.to_numpy()[group.rows] - 1) < 0.15
    usual = ~(rows.precision.str.contains("fp4") | rows.notes.astype(str).str.contains("pathology"))
    return out & usual.to_numpy()


def stage_memory(found: list[Group], rows: pd.DataFrame) -> np.ndarray:
    """GiB of the stage that a source measured: nanotron's first, the fullest of others."""
    out = np.full(len(rows), np.nan)
    for group in found:
        mem = memory(group.setting, group.cases)
        first = rows.source_key.to_numpy()[group.rows] == "nano"
        out[group.rows] = np.where(first, mem.by_stage[:, 0], mem.peak_bytes) / GIB
    return out


def measured_step(rows: pd.DataFrame) -> np.ndarray:
    """Seconds of a step as measured; NaN for memory."""
    rate = rows.global_batch * rows.seq_len / (rows.value * rows.num_gpus)
    return np.select([rows.metric == "step_time_s", rows.metric == "tokens_per_s_per_gpu"], [rows.value, rate], np.nan)


def fit(found: list[Group], rows: pd.DataFrame, chosen: np.ndarray) -> dict[str, float]:
    """Figures that fit the chosen runs best; each source by its number of models, far runs little (Cauchy)."""
    measured = measured_step(rows)
    by_source = rows[chosen].groupby("source_key")
    weight = np.sqrt((by_source.model.transform("nunique") / by_source.source_key.transform("size")).to_numpy())
    keep = [replace(g, rows=g.rows) for g in found if chosen[g.rows].any()]

    def residual(x: np.ndarray) -> np.ndarray:
        told = steps(keep, dict(zip(START, x, strict=True)), len(rows))
        wrong = np.log(told / measured)[chosen]
        far = np.where(np.isfinite(wrong), wrong, 0) / SPREAD
        return np.asarray(np.sqrt(np.log1p(far**2)) * weight)

    first, low, high = (np.array([each[k] for each in START.values()]) for k in range(3))
    done = least_squares(residual, first, bounds=(low, high), x_scale=high - low, max_nfev=25, diff_step=1e-3)
    return dict(zip(START, map(float, done.x), strict=True))


def table(rows: pd.DataFrame, told: np.ndarray, measured: np.ndarray, by: list[str]) -> str:
    """Median and p90 of the error, and the bias."""
    scored = rows.assign(ratio=told / measured)
    scored = scored[np.isfinite(scored.ratio)].assign(error=lambda s: (s.ratio - 1).abs())
    pick: dict[str, tuple[str, str | Callable[[Any], Any]]] = {
        "n": ("error", "size"),
        "median": ("error", "median"),
        "p90": ("error", lambda e: e.quantile(0.9)),
        "bias": ("ratio", lambda r: float(r.median() - 1)),
    }
    return str(scored.groupby(by).agg(**pick).round(3).to_string())


def refused(path: Path, *, as_llama: bool) -> str:
    """Of runs that failed, how many are refused for memory."""
    rows = pd.read_csv(path, low_memory=False)
    rows = rows.assign(source_key=np.where(rows.framework.str.startswith("nanotron"), "nano", ""), notes="")
    short = np.zeros(len(rows), dtype=bool)
    for group in groups(rows, as_llama=as_llama):
        mem = memory(group.setting, group.cases)
        short[group.rows] = mem.peak_bytes > mem.capacity_bytes
    return str(rows.assign(short=short).groupby(["framework", "status"]).short.agg(["size", "mean"]).round(3).to_string())


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("truth", type=Path)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--as-llama", action="store_true")
    asked = parser.parse_args()
    rows = load(asked.truth / "training_calibration.csv.gz")
    found = groups(rows, as_llama=asked.as_llama)
    measured = measured_step(rows)
    best: dict[str, float] = {}
    timed = np.isfinite(measured)
    usual = timed if asked.as_llama else timed & described(found, rows)
    if asked.fit:
        best = fit(found, rows, usual)
        print("\n".join(f"{name}: {value:.4g}" for name, value in best.items()))
    told = steps(found, best, len(rows))
    if asked.held_out:
        for source in sorted(rows.source_key[timed].unique()):
            mine = (rows.source_key == source).to_numpy()
            best = fit(found, rows, usual & ~mine)
            told[mine] = steps(found, best, len(rows))[mine]
    print(table(rows, told, measured, ["source_key", "gpu"]))
    print(table(rows[timed], told[timed], measured[timed], ["source_key"]))
    print(table(rows[usual], told[usual], measured[usual], ["source_key"]))
    print(table(rows[usual].assign(all="described"), told[usual], measured[usual], ["all"]))
    held = stage_memory(found, rows)
    memory_rows = (rows.metric == "peak_memory_gib").to_numpy()
    print(table(rows[memory_rows], held[memory_rows], rows.value.to_numpy()[memory_rows], ["source_key", "gpu"]))
    print("failed runs that are refused for memory:\n" + refused(asked.truth / "training_failed_runs.csv.gz", as_llama=asked.as_llama))


if __name__ == "__main__":
    main()
