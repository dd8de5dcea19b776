"""Fit the intervals around estimates: write the ``bands.yaml`` of serving and of training.

    python scripts/fit_bands.py TRUTH_DIR [--write] [--residuals FOLDER] [--only serving|training]

Fits the engines' numbers again without each source, and without each fold of models
(scripts/fit_serving.py), estimates the runs left out both times and once more with the shipped
numbers, and makes intervals of how far off these three estimates are (``scripts/interval_fit.py``
has the method). What a queue makes of the errors of open loops is taken back first
(load_error.py). Training is done the same way, by source (scripts/fit_training.py);
sources of fewer than ``FEW`` runs keep the estimates of the fit that is shipped.

Prints how often measured runs of sources left out are inside, and what choices by such estimates
cost beyond the best measured ones. ``--write`` writes both files,
docs/reference/accuracy/intervals.json with the same tables for the accuracy page, and
docs/images/intervals.svg.
``--residuals`` keeps the estimates of runs left out in FOLDER, as CSV, and takes them from there
where they are, which saves most of the quarter of an hour that this takes. ``--only`` leaves the
other kind's file and tables as they are.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fit_training
import numpy as np
import pandas as pd
import publish_training
from fit_serving import FOLDS, Problem
from interval_fit import (
    Groups,
    count_comparisons,
    fit_bands,
    left_out_intervals,
    measured_residuals,
)
from publish_runs import as_runs
from publish_runs import published_serving_runs as published

from recipe_core.base.documents import to_yaml, write_whole
from recipe_core.base.intervals import LEVELS
from recipe_core.calibration.validation.comparison import (
    QUANTITIES,
    compare_training,
    compare_with_estimates,
    group_training_runs,
)
from recipe_core.calibration.validation.regret import group_regrets, regret_choices
from recipe_core.calibration.validation.validate import interval_coverage
from recipe_core.estimates.bands import BandFile
from recipe_core.estimates.measured.runs import SPLIT, listing_ids
from recipe_core.estimates.serving import bands as serving_bands
from recipe_core.estimates.serving.load_error import load_stretches
from recipe_core.estimates.serving.rates import solve_serving
from recipe_core.estimates.training import starts
from recipe_core.hardware.cluster import device_profile, roofline

ROOT = Path(__file__).parent.parent
PHYSICS = ROOT / "recipe_core" / "estimates"
REPORT = ROOT / "docs" / "reference" / "accuracy" / "intervals.json"
PICTURE = ROOT / "docs" / "images" / "intervals.svg"
SAMPLED_STEPS = ROOT / "tests" / "data" / "grpo-steps.csv"
SERVING_SETUP = ("engine", "version", "weight_dtype", "kv_dtype", "mode", "lengths")
TRAINING_SETUP = ("engine", "sequence")
TABLES = {
    "all": [],
    "metrics": ["metric"],
    "vendors": ["vendor"],
    "vendors by metric": ["vendor", "metric"],
    "engines by architecture": ["engine", "architecture"],
    "modes by vendor": ["mode", "vendor", "metric"],
}


def left_out_groups(rows: pd.DataFrame) -> Iterator[tuple[str, pd.Series[str]]]:
    """Yield what to leave out: sources, and folds of models, by the name of each.

    Where only one source has measured an engine on a kind of runtime, its runs are left out by
    model both times: without the source there would be no fit of that engine.
    """
    models = sorted(rows.model.unique())
    fold = {model: f"models {k % FOLDS + 1} of {FOLDS}" for k, model in enumerate(models)}
    runtimes = rows.device.map(
        {name: device_profile(name).runtime for name in rows.device.unique()}
    )
    keys = rows.run.map(lambda run: run.engine) + "/" + runtimes
    alone = keys.map(rows.source.groupby(keys).nunique()).eq(1).to_numpy()
    yield "source", rows.source.mask(alone)
    yield "models", rows.model.map(fold)


def estimates_left_out(problem: Problem) -> Iterator[pd.DataFrame]:
    """Yield every row with the estimates of fits to all, without its source, without its models.

    A reader's run may be any of them: of a source or of a model that nobody has measured, or of a
    deployment like one that is known.
    """
    x = problem.shipped()
    yield problem.errors(x, np.ones(len(problem.rows), dtype=bool)).assign(left_out="nothing")
    for kind, groups in left_out_groups(problem.rows):
        for group in sorted(groups.dropna().unique()):
            out = (groups == group).to_numpy()
            # all of a source takes no part, also rows that are estimated elsewhere
            unseen = out | problem.rows.source.eq(group).to_numpy()
            estimates = problem.errors(problem.solve(~unseen, x), out)
            print(f"without {group}: median error {estimates.error.median():.1%}", flush=True)
            yield estimates.assign(left_out=kind)


def serving_rows(truth: Path) -> pd.DataFrame:
    """Estimates of serving runs left out: of each metric, and of request latency as a sum."""
    runs = [
        run
        for run in as_runs(published(truth))
        if not run.exclude and run.source not in listing_ids()
    ]
    problem = Problem(runs)
    estimates = pd.concat(list(estimates_left_out(problem)))
    # what arrives at a server with room says nothing of how much it serves
    is_open = np.array([run.mode == "open" for run in estimates.run])
    arriving = is_open & estimates.figure.eq("output_tokens_per_s")
    estimates = estimates[estimates.figure.ne("total_tokens_per_s") & ~arriving]
    run = estimates.run
    names = {figure: QUANTITIES[figure][0] for figure in estimates.figure.unique()}
    table = estimates[["source", "device", "model", "measured", "estimated", "left_out"]].assign(
        place=estimates.place,
        metric=estimates.figure.map(names),
        run=[of.id for of in run],
        engine=[of.engine for of in run],
        version=[of.version for of in run],
        weight_dtype=[of.weight_dtype for of in run],
        kv_dtype=[of.kv_dtype for of in run],
        mode=[of.mode for of in run],
        lengths=[f"{of.input_tokens} + {of.output_tokens}" for of in run],
        load=[of.load for of in run],
        split=[" ".join(str(getattr(of, name)) for name in SPLIT) for of in run],
        output_tokens=[of.output_tokens for of in run],
    )
    added = [_latencies(part) for _, part in table.groupby("left_out")]
    out = pd.concat([table, *added], ignore_index=True)
    stretches, unstretched = queue_stretches(problem), np.ones(len(runs))
    sides = {
        side: [stretches.get((of.metric, side), unstretched)[of.place] for of in out.itertuples()]
        for side in ("below", "above")
    }
    return out.drop(columns="place").assign(**sides, unit=out.source + " " + out.model)


def queue_stretches(problem: Problem) -> dict[tuple[str, str], np.ndarray[Any, Any]]:
    """The exponents of intervals by a queue, of each run, by metric and side; 1 without one."""
    out: dict[tuple[str, str], np.ndarray[Any, Any]] = {}
    for block in problem.blocks:
        if block.setting.mode != "open":
            continue
        served = solve_serving(block.setting, block.cases, block.memory)
        for metric, stretch in load_stretches(served, block.cases).items():
            for side in ("below", "above"):
                column = out.setdefault((metric, side), np.ones(problem.runs))
                column[block.places] = getattr(stretch, side)
    return out


def _latencies(table: pd.DataFrame) -> pd.DataFrame:
    """Request latency of runs that have it in two parts: first token, and the rest."""
    wide = table.pivot_table(index="run", columns="metric", values=["measured", "estimated"])
    runs_with_latency = set(table.run[table.metric.eq("request_latency_s")])
    first_rows = table.drop_duplicates("run").set_index("run")
    sums = {
        side: wide[side]["ttft_s"] + wide[side]["tpot_s"] * (first_rows.output_tokens - 1)
        for side in ("measured", "estimated")
    }
    added = first_rows.assign(metric="request_latency_s", **sums).dropna(
        subset=["measured", "estimated"]
    )
    return added[~added.index.isin(runs_with_latency)].reset_index()


def label_residuals(table: pd.DataFrame, setup: tuple[str, ...]) -> pd.DataFrame:
    """Residuals with the groups that they are of."""
    devices = {name: device_profile(name) for name in table.device.unique()}
    fitted = {
        name: "fitted" if roofline(of, "gemm", "any").status in ("fitted", "measured") else "prior"
        for name, of in devices.items()
    }
    words = table[list(setup)].fillna("").astype(str)
    rows = measured_residuals(
        table.assign(
            basis=table.device.map(fitted),
            architecture=table.device.map({name: of.architecture for name, of in devices.items()}),
            vendor=table.device.map({name: of.vendor for name, of in devices.items()}),
            setup=words.agg(" | ".join, axis=1),
        )
    )
    if "below" not in rows:
        return rows
    # what a queue made of an error is taken back, as the intervals of such runs add it again
    stretch = np.where(rows.residual > 0, rows.above, rows.below)
    residual = rows.residual / stretch
    return rows.assign(residual=residual, measured=rows.estimated * np.exp(residual))


def training_rows(truth: Path) -> pd.DataFrame:
    """Estimates of training: steps of sources left out, peak memory, which nothing is fitted to."""
    runs = publish_training.published_training_runs(truth)
    groups, _ = group_training_runs(runs)
    measured = np.array([run.measured_step_s or np.nan for run in runs])
    timed = np.isfinite(measured)
    source = np.array([run.source for run in runs])
    estimated = {}
    for name in sorted(set(source[timed])):
        inside = source == name
        if (inside & timed).sum() < fit_training.FEW:
            continue
        shipped = fit_training.shipped(groups)
        values = fit_training.fit_training_figures(groups, runs, measured, timed & ~inside, shipped)
        step_seconds = fit_training.Steps(groups, len(runs))(values)
        estimated |= {runs[i].id: step_seconds[i] for i in np.flatnonzero(inside & timed)}
        print(f"training without {name}", flush=True)
    figures = compare_training(runs).figures
    step = figures.figure.eq("step_s")
    estimated_s = figures.id.map(estimated).where(step)
    by_id = {run.id: run for run in runs}
    return figures.assign(
        estimated=estimated_s.fillna(figures.estimated),
        metric=np.where(step, "step_s", "peak_memory_bytes"),
        run=figures.id,
        sequence=[by_id[name].sequence_length for name in figures.id],
    )


def sampled_rows() -> pd.DataFrame:
    """Published steps that sample answers, with their estimates (docs/method/training.md)."""
    table = pd.read_csv(SAMPLED_STEPS)
    runs = [f"grpo-{n}" for n in range(len(table))]
    return table.assign(metric="sampled_step_s", run=runs, engine="megatron", version="")


def with_sampled(file: BandFile) -> BandFile:
    """The bands of training with that of steps that sample answers, which is of all groups."""
    rows = label_residuals(sampled_rows(), ("placement",))
    sampled = fit_bands(rows, ((),), file.source)
    return file.model_copy(
        update={
            "runs": file.runs + sampled.runs,
            "cells": file.cells + sampled.cells,
            "bands": (*file.bands, *sampled.bands),
        }
    )


def tables(rows: pd.DataFrame, groups: Groups, file: BandFile) -> dict[str, Any]:
    """Coverage of runs left out, as JSON values, and the reliability of comparisons."""
    left_out_bands = left_out_intervals(rows, groups)
    out = {
        name: interval_coverage(left_out_bands, by).round(4).to_dict(orient="records")
        for name, by in TABLES.items()
        if set(by) <= set(left_out_bands)
    }
    if "split" in rows:
        out["comparisons"] = count_comparisons(rows, file, groups).to_dict(orient="records")
    return out


def left_out_regrets(truth: Path, table: pd.DataFrame) -> list[dict[str, Any]]:
    """Count what choices cost by estimates of fits without a run's source, or without its model.

    ``table``: as ``serving_rows`` returns it. The latter where one source alone tells an engine.
    """
    ratios = {
        kind: part.set_index(["run", "metric"]).eval("estimated / measured")
        for kind, part in table.groupby("left_out")
    }
    unseen = ratios["source"].combine_first(ratios["models"])
    figures = compare_with_estimates(as_runs(published(truth))).figures
    metrics = figures.figure.map({figure: metric for figure, (metric, _) in QUANTITIES.items()})
    ratio = unseen.reindex(pd.MultiIndex.from_arrays([figures.id, metrics])).to_numpy()
    figures = figures.assign(estimated=figures.measured * ratio)[np.isfinite(ratio)]
    return group_regrets(regret_choices(figures), ("choice",)).round(4).to_dict(orient="records")


def printed(title: str, of: dict[str, Any]) -> None:
    """The tables as text."""
    for name, records in of.items():
        print(f"{title}, {name}\n{pd.DataFrame(records).to_string(index=False)}\n")


COLORS = {
    "ttft_s": "#d62728",
    "tpot_s": "#1f77b4",
    "request_latency_s": "#9467bd",
    "output_tokens_per_s": "#2ca02c",
}
SIZE, EDGE = 360, 48


def _place(x: float, y: float) -> str:
    """A point of the unit square in the picture."""
    inner = SIZE - 2 * EDGE
    return f"{EDGE + inner * x:.1f},{SIZE - EDGE - inner * y:.1f}"


def diagram(report: dict[str, Any]) -> str:
    """Shares of measured runs inside intervals against the shares these name, as SVG."""
    names = {"ttft_s": "first token", "tpot_s": "per token"}
    names |= {"request_latency_s": "request", "output_tokens_per_s": "throughput"}
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIZE} {SIZE}" role="img" '
        'font-family="sans-serif" font-size="11">',
        "<title>Measured runs inside intervals, of sources left out</title>",
        f'<rect width="{SIZE}" height="{SIZE}" fill="white"/>',
        f'<polyline points="{_place(0, 0)} {_place(1, 1)}" stroke="#999" stroke-dasharray="4"/>',
        f'<polyline points="{_place(0, 1)} {_place(0, 0)} {_place(1, 0)}" fill="none" '
        'stroke="#333"/>',
    ]
    for level in LEVELS:
        share = int(level) / 100
        for at, anchor, dx, dy in (((share, 0), "middle", 0, 16), ((0, share), "end", -6, 4)):
            x, y = map(float, _place(*at).split(","))
            lines.append(
                f'<text x="{x + dx:.1f}" y="{y + dy:.1f}" text-anchor="{anchor}">{level} %</text>'
            )
    for k, row in enumerate(report["serving"]["metrics"]):
        name, color = names[row["metric"]], COLORS[row["metric"]]
        points = [(int(level) / 100, row[f"inside_{level}"]) for level in LEVELS]
        path = " ".join(_place(x, y) for x, y in [(0.0, 0.0), *points])
        lines.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        for x, y in points:
            left, top = _place(x, y).split(",")
            lines.append(f'<circle cx="{left}" cy="{top}" r="3.5" fill="{color}"/>')
        lines.append(f'<text x="{EDGE + 12}" y="{EDGE + 14 * k}" fill="{color}">{name}</text>')
    middle = SIZE / 2
    lines += [
        f'<text x="{middle}" y="{SIZE - 8}" text-anchor="middle">interval</text>',
        f'<text x="12" y="{middle}" text-anchor="middle" '
        f'transform="rotate(-90 12 {middle})">measured runs inside</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def write_bands(path: Path, file: BandFile) -> None:
    """A bands.yaml."""
    value = file.model_dump(mode="json", exclude_none=True)
    write_whole(path, to_yaml(value).encode())


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("truth", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--residuals", type=Path, metavar="FOLDER")
    parser.add_argument("--only", choices=("serving", "training"))
    arguments = parser.parse_args()
    truth, folder = arguments.truth, arguments.residuals
    report = json.loads(REPORT.read_text()) if arguments.only else {}
    for name, module, rows_of, setup in (
        ("serving", serving_bands, serving_rows, SERVING_SETUP),
        ("training", starts, training_rows, TRAINING_SETUP),
    ):
        if arguments.only not in (None, name):
            continue
        cached_rows = None if folder is None else folder / f"{name}.csv"
        if cached_rows is not None and cached_rows.exists():
            table = pd.read_csv(cached_rows)
        else:
            table = rows_of(truth)
            if cached_rows is not None:
                folder.mkdir(parents=True, exist_ok=True)
                table.to_csv(cached_rows, index=False)
        rows = label_residuals(table, setup)
        source = (
            f"residuals of {rows.run.nunique():,} published runs left out of the fit, "
            "cells weighted alike; scripts/fit_bands.py"
        )
        file = fit_bands(rows, module.GROUPS, source)
        if name == "training":
            file = with_sampled(file)
        report[name] = tables(rows, module.GROUPS, file)
        if name == "serving":
            report[name]["regret"] = left_out_regrets(truth, table)
        printed(name, report[name])
        if arguments.write:
            write_bands(PHYSICS / name / "bands.yaml", file)
    if arguments.write:
        write_whole(REPORT, (json.dumps(report, indent=1) + "\n").encode())
        write_whole(PICTURE, diagram(report).encode())


if __name__ == "__main__":
    main()
