"""Fit the few numbers of a training step to published runs, and say how far off the estimates are.

    python scripts/fit_training.py TRUTH_DIR [--fit] [--held-out FILE]

TRUTH_DIR holds ``training_calibration.csv.gz``; runs are those of publish_training.py. ``--fit``
prints the figures for ``recipe_core/engines/training/frameworks.yaml``; ``--held-out`` fits once
without each source, scores it, and writes the table as JSON to FILE. Sources of fewer than ``FEW``
runs are not left out in turn.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import publish_training
from scipy.optimize import least_squares  # type: ignore[import-untyped]

from recipe_core.base.arrays import add
from recipe_core.base.documents import to_json
from recipe_core.calibration.validation.comparison import (
    RunGroup,
    compare_training,
    group_training_runs,
)
from recipe_core.calibration.validation.validate import validation_text
from recipe_core.engines.frameworks import Calibration, Number, training_data
from recipe_core.estimates.columns.training import TrainingSetting
from recipe_core.estimates.measured.runs import TrainingRun
from recipe_core.estimates.training.schedule import training_step_parts

START = {
    "sustained.sm_8": (0.9, 0.5, 1.1),
    "sustained.sm_9": (0.93, 0.5, 1.1),
    "sustained.sm_10": (0.88, 0.5, 1.1),
    "sustained_fp8.sm_9": (1.1, 0.4, 1.3),
    "sustained_fp8.sm_10": (1.05, 0.4, 1.3),
    "torchtitan:products.sm_9": (0.85, 0.6, 1.1),
    "nanotron:products.sm_9": (0.75, 0.6, 1.1),
    "torchtitan:elementwise_passes": (1.5, 1.0, 8.0),
    "megatron:elementwise_passes": (1.3, 1.0, 2.0),
    "nanotron:elementwise_passes": (1.3, 1.0, 8.0),
    "torchtitan:launch_s": (2e-4, 0.0, 2e-3),
    "megatron:launch_s": (5e-4, 0.0, 1e-2),
    "nanotron:launch_s": (4e-3, 0.0, 1e-2),
    "megatron:expert_launch_s": (8e-3, 0.0, 2e-2),
    "nanotron:pipeline_launch_s": (2.5e-3, 0.0, 1e-2),
    "torchtitan:tensor_exposed": (1.0, 0.1, 1.2),
    "megatron:tensor_exposed": (0.7, 0.1, 1.2),
    "nanotron:tensor_exposed": (1.0, 0.1, 1.2),
    "torchtitan:data_overlap": (0.5, 0.0, 1.0),
    "megatron:data_overlap": (0.5, 0.0, 1.0),
    "nanotron:data_overlap": (0.2, 0.0, 1.0),
    "megatron:attention_slowdown": (1.1, 0.8, 2.0),
    "nanotron:attention_slowdown": (1.3, 0.8, 2.0),
    "quantize_passes": (0.8, 0.5, 8.0),
    "step_s": (1.5e-2, 5e-3, 0.5),
    "pipeline_exposed": (0.5, 0.1, 2.0),
    "straggler": (0.012, 0.0, 0.1),
    "attention_slowdown": (1.5, 1.0, 2.0),
}
"""Fitted figures: where the fit starts, and its bounds. ``name:figure`` is a framework's own."""
ASSUMED = Number(value=0.0, source="fits", status="fitted")
"""Stands in for a figure that a framework shares with all until it is fitted."""
STEPS, FEWER_STEPS = 20, 6
"""Evaluations of the gradient in a fit from ``START``, and in one from figures that fit already."""
FEW = 7
SPREAD = 0.1
"""Errors (of the logarithm) beyond which a run counts less."""


def _number(old: Number, value: float) -> Number:
    return old.model_copy(update={"value": float(value)})


def figures_of(base: Calibration, values: dict[str, float]) -> Calibration:
    """The shipped figures with some replaced."""
    update: dict[str, Any] = {}
    for name, value in values.items():
        part, _, generation = name.partition(".")
        if ":" in name:
            continue
        old = update.get(part, getattr(base, part))
        update[part] = (
            old | {generation: _number(old[generation], value)}
            if generation
            else _number(old, value)
        )
    return base.model_copy(update=update)


def with_training_values(setting: TrainingSetting, values: dict[str, float]) -> TrainingSetting:
    """A setting with some figures replaced, its framework's (``name:figure``) too."""
    overheads = {
        key.partition(":")[2]: value
        for key, value in values.items()
        if key.startswith(f"{setting.engine}:")
    }
    update: dict[str, Any] = {}
    for name, value in overheads.items():
        part, _, generation = name.partition(".")
        old = getattr(setting.framework, part)
        update[part] = (
            old | {generation: _number(old[generation], value)}
            if generation
            else _number(old or ASSUMED, value)
        )
    framework = setting.framework.model_copy(update=update)
    return replace(
        setting, framework=framework, calibration=figures_of(setting.calibration, values)
    )


def concerns(name: str, setting: TrainingSetting) -> bool:
    """Return whether a figure changes the steps of a setting: its framework's, its generation's."""
    owner, _, figure = name.rpartition(":")
    generation = figure.partition(".")[2]
    architecture = setting.cluster.device.architecture
    return owner in ("", setting.engine) and generation in ("", architecture[:-1])


class Steps:
    """Seconds of a step of every run, by figures; groups that a figure leaves alone are kept."""

    KEPT = 64
    """Answers of a group that are kept: more than a gradient has figures."""

    def __init__(self, groups: list[RunGroup], runs: int) -> None:
        self._groups, self._runs = groups, runs
        self._answers: list[dict[tuple[float, ...], np.ndarray]] = [{} for _ in groups]

    def __call__(self, values: dict[str, float]) -> np.ndarray:
        out = np.full(self._runs, np.nan)
        for group, answers in zip(self._groups, self._answers, strict=True):
            own_values = {name: x for name, x in values.items() if concerns(name, group.setting)}
            key = tuple(own_values.values())
            if key not in answers:
                parts = training_step_parts(
                    with_training_values(group.setting, own_values), group.cases
                )
                if len(answers) >= self.KEPT:
                    answers.clear()
                answers[key] = add(parts.values())
            out[group.rows] = answers[key]
        return out


def shipped(groups: list[RunGroup]) -> dict[str, float]:
    """The figures as they are shipped, inside the bounds: where fits without a source start."""
    frameworks, figures = training_data().frameworks, groups[0].setting.calibration
    out: dict[str, float] = {}
    for name, (first, low, high) in START.items():
        owner, _, of = name.rpartition(":")
        part, _, generation = of.partition(".")
        number = getattr(frameworks[owner] if owner else figures, part)
        number = number[generation] if generation else number
        out[name] = min(max(number.value if number else first, low), high)
    return out


def fit_training_figures(
    groups: list[RunGroup],
    runs: list[TrainingRun],
    measured: np.ndarray,
    included: np.ndarray,
    start: dict[str, float] | None = None,
) -> dict[str, float]:
    """Figures that fit best; sources weigh by number of models, outliers little (Cauchy).

    From ``start``, a fit to nearly the same runs, a few steps are enough.
    """
    by_source = pd.DataFrame([{"source": run.source, "model": run.model} for run in runs])[
        included
    ].groupby("source")
    weight = np.sqrt(
        (by_source.model.transform("nunique") / by_source.model.transform("size")).to_numpy()
    )
    steps = Steps([group for group in groups if included[group.rows].any()], len(runs))

    def residual(x: np.ndarray) -> np.ndarray:
        estimated = steps(dict(zip(START, x, strict=True)))
        far = np.log(estimated / measured)[included] / SPREAD
        return np.asarray(np.sqrt(np.log1p(far**2)) * weight)

    first, low, high = (np.array([bounds[k] for bounds in START.values()]) for k in range(3))
    if start is not None:
        edge = 1e-6 * (high - low)
        first = np.clip(list(start.values()), low + edge, high - edge)
    done = least_squares(
        residual,
        first,
        bounds=(low, high),
        x_scale=high - low,
        max_nfev=STEPS if start is None else FEWER_STEPS,
        diff_step=1e-3,
    )
    return dict(zip(START, map(float, done.x), strict=True))


def held_out(groups: list[RunGroup], runs: list[TrainingRun], measured: np.ndarray) -> pd.DataFrame:
    """Median and p90 of each source's error in a fit to all others, and its number of runs."""
    source, timed, estimated = (
        np.array([run.source for run in runs]),
        np.isfinite(measured),
        np.full(len(runs), np.nan),
    )
    for name in sorted(set(source[timed])):
        in_source = source == name
        if (in_source & timed).sum() < FEW:
            continue
        values = fit_training_figures(groups, runs, measured, timed & ~in_source, shipped(groups))
        estimated[in_source] = Steps(groups, len(runs))(values)[in_source]
    told_of = timed & np.isfinite(estimated)
    error = pd.DataFrame(
        {"source": source[told_of], "error": np.abs(estimated / measured - 1)[told_of]}
    )
    both = pd.concat([error, error.assign(source="all")])
    return (
        both.groupby("source")
        .error.agg(runs="size", median="median", p90=lambda e: e.quantile(0.9))
        .reset_index()
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("truth", type=Path)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--held-out", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    runs = publish_training.published_training_runs(arguments.truth)
    groups, _ = group_training_runs(runs)
    measured = np.array([run.measured_step_s or np.nan for run in runs])
    if arguments.fit:
        best = fit_training_figures(groups, runs, measured, np.isfinite(measured))
        print("\n".join(f"{name}: {value:.4g}" for name, value in best.items()))
    if arguments.held_out:
        table = held_out(groups, runs, measured)
        arguments.held_out.write_text(to_json(table.round(4).to_dict(orient="records")) + "\n")
        print(table.to_string())
    print(validation_text(compare_training(runs)))


if __name__ == "__main__":
    main()
