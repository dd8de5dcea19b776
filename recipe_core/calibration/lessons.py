"""Measurements taken into a calibration, and each number it has learned, with scope and runs.

A scale is a sum of effects, one a scope (``space.corrections``). The best linear unbiased
prediction of an effect ``u`` with the variance ``s·T`` (its scope's share of the scale's) is

    u = b·C⁻¹·y      variance left = s·T - b·C⁻¹·bᵀ      weight = 1 - variance left / (s·T)

with ``b`` the covariance of the effect with what the runs show. ``weight`` is its credibility: 0
where runs say nothing of it, 1 where they settle it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from recipe_core.accuracy.accuracy import estimate_retained
from recipe_core.accuracy.checkpoints import PERPLEXITY, MeasuredCompression, with_own_figure
from recipe_core.accuracy.published import Retained
from recipe_core.base.arrays import Float
from recipe_core.base.errors import RecipeError
from recipe_core.calibration.records import Stored, StoredCompression
from recipe_core.calibration.residuals import Measured
from recipe_core.calibration.run_files import read_incoming
from recipe_core.calibration.store import Added, Overlay
from recipe_core.estimates.columns.corrections import Corrections, DeviceRuns, OwnRun
from recipe_core.estimates.columns.prior import WIDE_TO_NARROW
from recipe_core.estimates.columns.serving import Setting
from recipe_core.estimates.serving.estimates import estimate_serving

# The scales, as ``Residual`` orders them.
SCALES = ("steps", "prompts")

# Least credibility of a number that is listed.
SETTLED = 0.01

# Runs that are left out one by one: each is estimated anew.
MOST_LEFT_OUT = 300

FIGURES = ("tpot_s", "ttft_s", "request_latency_s", "output_tokens_per_s")


@dataclass(frozen=True, slots=True)
class LearnedNumber:
    """One effect: ``factor`` on the times of steps or prompts in a scope, learned from ``runs``.

    ``of`` names the scope: device, engine and version, model, formats, as far as it goes. ``low``
    and ``high`` hold the factor with 80 %. ``weight``: its credibility, 0 to 1.
    """

    scale: str
    scope: str
    of: tuple[str, ...]
    factor: float
    low: float
    high: float
    weight: float
    runs: tuple[str, ...]


def learned_numbers(corrections: Corrections) -> list[LearnedNumber]:
    """Every number that the runs taught, wide scopes first."""
    by_device: dict[str, list[OwnRun]] = defaultdict(list)
    for run in corrections.runs:
        by_device[run.setting.cluster.device.digest].append(run)
    return [
        number
        for runs in by_device.values()
        for number in _learn_device_numbers(DeviceRuns(corrections.prior, runs), runs)
    ]


def _learn_device_numbers(device: DeviceRuns, runs: Sequence[OwnRun]) -> Iterator[LearnedNumber]:
    solved, inverse = device.believed
    shared = device.with_each_other().same
    for level, scope in enumerate(WIDE_TO_NARROW[:-1]):  # loads have no names
        shares, listed_groups = device.prior.shares_of(scope), set[bytes]()
        for first in range(len(runs)):
            members = shared[level, first] > 0
            if members.tobytes() in listed_groups:
                continue
            listed_groups.add(members.tobytes())
            names = tuple(run.name for run, member in zip(runs, members, strict=True) if member)
            for k, scale in enumerate(SCALES):
                if not shares[k]:
                    continue
                variance = shares[k] * float(device.priors[k])
                tells = members[device.row] * device.weights[:, k] * variance
                effect = float(tells @ solved)
                posterior_variance = max(variance - float(tells @ inverse @ tells), 0.0)
                weight = 1 - posterior_variance / variance
                if weight < SETTLED:
                    continue
                yield LearnedNumber(
                    scale=scale,
                    scope=scope,
                    of=_scope_names(runs[first], scope),
                    factor=float(np.exp(effect)),
                    low=float(np.exp(effect - Z80 * np.sqrt(posterior_variance))),
                    high=float(np.exp(effect + Z80 * np.sqrt(posterior_variance))),
                    weight=weight,
                    runs=names,
                )


# Standard deviations within which eight of ten normal values lie.
Z80 = 1.2816


def _scope_names(run: OwnRun, scope: str) -> tuple[str, ...]:
    """Device, engine, model and split of a run, as far as a scope goes."""
    setting, case = run.setting, run.case
    device, engine = setting.cluster.device.name, setting.engine.name
    split = " ".join(
        f"{name}{int(getattr(case, name)[0])}"
        for name in ("tp", "pp", "dp", "ep")
        if int(getattr(case, name)[0]) > 1
    )
    return {
        "device": (device,),
        "version": (device, f"{engine} {run.version}"),
        "model": (device, engine, setting.model.name),
        "deployment": (
            device,
            f"{engine} {run.version}",
            setting.model.name,
            f"{setting.weight_dtype} weights, {setting.kv_dtype} cache",
            split or "one device",
        ),
    }[scope]


# What it is worth


@dataclass(frozen=True, slots=True)
class LeftOneOut:
    """Median |estimate / measured - 1| of a figure over ``runs``, each estimated without itself.

    ``before``: by the formulas alone; ``after``: with what all other runs teach.
    """

    figure: str
    runs: int
    before: float
    after: float


def left_one_out(measured: Sequence[Measured], corrections: Corrections) -> tuple[LeftOneOut, ...]:
    """Errors of the runs that count before and after learning from the others, by figure.

    Only the latest ``MOST_LEFT_OUT`` are left out. ``measured`` are their figures, by name.
    """
    figures = {run.name: run for run in measured}
    ratios: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for run in corrections.runs[-MOST_LEFT_OUT:]:
        other_runs = tuple(other_run for other_run in corrections.runs if other_run is not run)
        before = _estimate_own_run(run, None)
        after = _estimate_own_run(run, replace(corrections, runs=other_runs))
        for figure in FIGURES:
            value = getattr(figures[run.name], figure)
            if value:
                ratios[figure].append((before[figure] / value, after[figure] / value))
    out = []
    for figure in FIGURES:
        if pairs := ratios.get(figure):
            errors = np.median(np.abs(np.array(pairs) - 1), axis=0)
            out.append(LeftOneOut(figure, len(pairs), float(errors[0]), float(errors[1])))
    return tuple(out)


def _estimate_own_run(run: OwnRun, corrections: Corrections | None) -> dict[str, float]:
    """The figures of a run's own case, corrected as if its version were the assumed one."""
    setting = run.setting
    if corrections is not None:
        setting = replace(setting, correction=corrections.of(setting_as_ran(setting, run.version)))
    served = estimate_serving(setting, run.case).serving
    values: dict[str, Float] = {figure: getattr(served, figure) for figure in FIGURES}
    return {figure: float(value[0]) for figure, value in values.items()}


def setting_as_ran(setting: Setting, version: str) -> Setting:
    """A setting whose labels are those of the version that really ran."""
    engine = setting.engine.model_copy(update={"version": version, "as_of": None})
    return replace(setting, engine=engine)


# Measured checkpoints beside what published figures let expect of them


@dataclass(frozen=True, slots=True)
class ComparedCompression:
    """A measured checkpoint beside its predictions, all as shares of the base.

    perplexity: what was predicted of the figure that was measured. tasks: what is expected of the
    mean over accuracy tasks by published figures alone; tasks_now: with the measurement.
    """

    run: MeasuredCompression
    perplexity: Retained
    tasks: Retained
    tasks_now: Retained

    @property
    def in_band(self) -> bool | None:
        """Return whether the measured figure lies in the predicted 80 % band; None without one."""
        if not self.perplexity.is_known:
            return None
        return self.perplexity.low <= self.run.retained <= self.perplexity.high

    def to_json(self) -> dict[str, Any]:
        return {
            "perplexity": _retained_values(self.perplexity),
            "in_band": self.in_band,
            "accuracy": _retained_values(self.tasks),
            "accuracy_with_it": _retained_values(self.tasks_now),
        }


def _retained_values(retention: Retained) -> dict[str, float] | None:
    return dict(retention.to_json()["retained"]) if retention.is_known else None


def compare_compression(run: MeasuredCompression) -> ComparedCompression:
    tasks = _published_expectation(run, "")
    moved = with_own_figure(tasks, [run], run.model, run.technique)
    return ComparedCompression(run, _published_expectation(run, PERPLEXITY), tasks, moved)


def _published_expectation(run: MeasuredCompression, benchmark: str) -> Retained:
    """By published figures; unknown for a technique that this version does not know."""
    try:
        return estimate_retained(
            run.model, run.technique, method=run.method, benchmark=benchmark, nearest=1
        )
    except RecipeError as error:
        return Retained(math.nan, math.nan, math.nan, error.message, is_known=False)


SCHEMA_VERSION = 1


@dataclass(frozen=True, eq=False)
class Knowledge:
    """A calibration with the numbers it has learned, and how much nearer they bring estimates.

    ``added``: what was just stored, or would be (``dry``). ``removed``: what was just taken back.
    """

    overlay: Overlay
    added: Added | None = None
    removed: tuple[Stored, ...] = ()
    dry: bool = False

    @cached_property
    def _corrections(self) -> Any:
        return self.overlay.corrections()

    @cached_property
    def numbers(self) -> tuple[LearnedNumber, ...]:
        """Return what the runs that count taught, wide scopes first."""
        return tuple(learned_numbers(self._corrections)) if self._corrections else ()

    @cached_property
    def errors(self) -> tuple[LeftOneOut, ...]:
        """Errors before and after, each run estimated without itself; none of a single run."""
        if self._corrections is None or len(self._corrections.runs) < 2:
            return ()
        return left_one_out(self.overlay.runs, self._corrections)

    def compared(
        self, entries: Sequence[StoredCompression]
    ) -> list[tuple[StoredCompression, ComparedCompression]]:
        """Measured checkpoints, each beside what published figures let expect of it."""
        return [(entry, compare_compression(entry.measured)) for entry in entries]

    def to_json(self) -> dict[str, Any]:
        added = [entry.to_json() for entry in self.added.entries] if self.added else []
        return {
            "schema_version": SCHEMA_VERSION,
            "path": str(self.overlay.path),
            "dry_run": self.dry,
            "counts": self.overlay.stored._asdict(),
            "added": added,
            "known": list(self.added.repeated_ids) if self.added else [],
            "removed": [run.id for run in self.removed],
            "compressions": [
                {**entry.to_json(), "expected": beside.to_json()}
                for entry, beside in self.compared(self.overlay.compressions)
            ],
            "runs": [entry.to_json() for entry in self.overlay.entries],
            "numbers": [asdict(number) for number in self.numbers],
            "left_one_out": [asdict(error) for error in self.errors],
        }


def calibrate_from_files(
    measurements: Sequence[Path], into: Path | None = None, *, dry: bool = False
) -> Knowledge:
    """Store what files and bundles measured in a calibration.

    Args:
        measurements: what ``read_own_measurements`` reads: tables, bundles,
            ``measurement.json``, ``compression.json``.
        into: the calibration; by default this machine's.
        dry: store nothing, and say what would be.

    Raises:
        InputError: for a file that cannot be read, and as ``Overlay.add``.
    """
    overlay = Overlay.at(into)
    incoming = [run for path in measurements for run in read_incoming(path)]
    added = overlay.add(incoming, dry=dry)
    return Knowledge(added.overlay, added, dry=dry)
