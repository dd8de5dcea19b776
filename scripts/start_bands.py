"""The bands of cold starts, counted on starts whose sources were left out of the fit.

Cells, a source each, count alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from start_prediction import SCORED, MeasuredStart, cold_start_errors, predict_start

from recipe_core.estimates.serving.cold_start import BAND_OF, ColdStart
from recipe_core.estimates.serving.start_numbers import StartBands, StartNumbers, start_numbers

Array = NDArray[np.float64]
# Share of starts that a band holds, and sources at which a group's own band counts half.
SHARE, WEIGHT = 0.8, 8.0


def counted_starts(runs: Sequence[MeasuredStart]) -> list[MeasuredStart]:
    """The runs that count, and state what their figure depends on."""
    return [run for run in runs if not run.exclude and predict_start(run) is not None]


def estimate_of(run: MeasuredStart, numbers: StartNumbers) -> ColdStart:
    """The estimate of a run that counts."""
    estimate = predict_start(run, numbers)
    assert estimate is not None, run.id
    return estimate


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A run and its estimate by numbers that were fitted without its source."""

    run: MeasuredStart
    estimate: ColdStart

    @property
    def off(self) -> float:
        """Logarithm of what was measured over the estimate."""
        return float(np.log(self.run.seconds / self.estimate.seconds))

    @property
    def band(self) -> str:
        """The group of phases whose band it tells of; "" of a whole start."""
        run = self.run
        if run.phase == "total":
            return ""
        if run.phase == "weights":
            return "disk" if run.place == "disk" else "weights"
        if run.phase in ("engine init", "memory profile"):
            return "engine" if run.kernels == "none" or run.compile_cache else "kernels"
        return BAND_OF.get(run.phase, run.phase)


def fit_bands(left_out: Sequence[LeftOut]) -> StartBands:
    """The bands that hold as many left-out starts as they say; cells, a source each, count alike.

    Of a group of phases: the quantile of how far its figures are off to either side, drawn towards
    that of all phases, the more the fewer sources it has (``WEIGHT``). Of totals: the narrowest
    pair of factors that holds enough of them beside what their phases vary.
    """
    shipped = start_numbers().bands
    parts = [left for left in left_out if left.band]
    overall = _far(parts)
    factors = {}
    for name in shipped.phases:
        of_group = [left for left in parts if left.band == name]
        share = (sources := len({left.run.source for left in of_group})) / (sources + WEIGHT)
        far = share * _far(of_group) + (1 - share) * overall if of_group else overall
        factors[name] = round(float(np.exp(far)), 2)
    bands = shipped.model_copy(update={"phases": factors, "sooner": 1.0, "later": 1.0})
    totals = [left for left in left_out if not left.band]
    spread = np.array([_part_spread(left, bands) for left in totals])
    off = np.array([left.off for left in totals])
    needed = np.sqrt(np.maximum(off**2 - spread**2, 0.0))
    weight = _weights(totals)
    early, late = np.where(off < 0, needed, 0.0), np.where(off > 0, needed, 0.0)
    pairs = [
        (a + b, a, b)
        for a in {0.0, *early.tolist()}
        for b in {0.0, *late.tolist()}
        if weight[(early <= a) & (late <= b)].sum() >= SHARE - 1e-9
    ]
    _, sooner, later = min(pairs)
    update = {"sooner": np.exp(sooner), "later": np.exp(later)}
    rounded = {name: max(1.0, float(np.ceil(100 * value) / 100)) for name, value in update.items()}
    return bands.model_copy(update=rounded)


def _part_spread(left: LeftOut, bands: StartBands) -> float:
    """Logarithm of a total's band by its phases alone."""
    numbers = start_numbers().model_copy(update={"bands": bands})
    estimate = estimate_of(left.run, numbers)
    return float(np.log(estimate.high_s / estimate.seconds))


def _weights(left_out: Sequence[LeftOut]) -> Array:
    rows = Counter(left.run.source for left in left_out)
    return np.array([1 / rows[left.run.source] for left in left_out]) / len(rows)


def _far(left_out: Sequence[LeftOut]) -> float:
    off = np.abs([left.off for left in left_out])
    order = np.argsort(off)
    share = np.cumsum(_weights(left_out)[order])
    return float(off[order][np.searchsorted(share, SHARE - 1e-9)])


def held_starts(left_out: Sequence[LeftOut]) -> list[bool]:
    """Mark left-out starts that lie in their bands, which are counted without their source too."""
    is_held = dict.fromkeys((left.run.id for left in left_out), False)
    for source in {left.run.source for left in left_out}:
        bands = fit_bands([left for left in left_out if left.run.source != source])
        for left in left_out:
            if left.run.source == source:
                is_held[left.run.id] = _is_held(left, bands)
    return [is_held[left.run.id] for left in left_out]


def _is_held(left: LeftOut, bands: StartBands) -> bool:
    numbers = start_numbers().model_copy(update={"bands": bands})
    shipped, scale = estimate_of(left.run, numbers), left.estimate.seconds
    low, high = shipped.low_s / shipped.seconds, shipped.high_s / shipped.seconds
    return low * scale <= left.run.seconds <= high * scale


# What is printed


def start_report(left_out: Sequence[LeftOut], runs: Sequence[MeasuredStart]) -> str:
    """Errors and bands with each source left out, and of all by the shipped numbers."""
    head = "| left out | figure | rows | sources | median error | by sources | p90 "
    lines = [head + "| inside the 80 % band | by sources |", f"|{'---|' * 9}"]
    is_held = held_starts(left_out)
    phases = Counter(left.run.phase for left in left_out)
    for phase in (*SCORED, *(name for name in phases if name not in SCORED), "all phases"):
        both = [
            (left, inside)
            for left, inside in zip(left_out, is_held, strict=True)
            if phase in (left.run.phase, "all phases")
        ]
        lines.append(_report_line("its source", phase, both))
    for phase in SCORED:
        of = cold_start_errors(runs, phase)
        shares = f"{of.median:.0%} | | {of.p90:.0%} | {of.covered:.0%} |"
        lines.append(f"| nothing | {phase} | {of.runs} | | {shares} |")
    return "\n".join(lines)


def _report_line(name: str, phase: str, both: Sequence[tuple[LeftOut, bool]]) -> str:
    error = np.array([abs(np.expm1(-left.off)) for left, _ in both])
    inside = np.array([inside for _, inside in both])
    source = np.array([left.run.source for left, _ in both])
    cells = [source == name for name in sorted(set(source))]
    shares = (
        np.median(error),
        np.median([np.median(error[cell]) for cell in cells]),
        np.quantile(error, 0.9),
        inside.mean(),
        np.mean([inside[cell].mean() for cell in cells]),
    )
    text = " | ".join(f"{share:.0%}" for share in shares)
    return f"| {name} | {phase} | {len(both)} | {len(cells)} | {text} |"
