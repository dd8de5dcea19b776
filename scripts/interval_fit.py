"""Intervals around estimates that hold the share of measured runs that they name.

Made from residuals log(measured / estimated) of runs that took no part in the fit behind their
estimate, each cell (source × device × model) weighing alike.

* A group's distribution is that of its own cells and of the next wider group's, which counts as
  ``POOLED`` cells: a group with few cells of its own is mostly the wider one (partial pooling).
  Ways in which requests come (``mode``) differ more than engines do: theirs count all other runs as
  ``MODE_POOLED`` cells only, and each has conformal numbers of its own from ``MODE_CELLS`` on.
* Ends are conformal predictive quantiles. A run of a reader is of a source, or of a model, that no
  fit has seen, so what is conformal is the ``unit`` that rows name: a source, or a model of it
  (Dunn, Wasserman and Ramdas 2022, "Distribution-free prediction sets for two-layer hierarchical
  models"; CV+ of Barber, Candès, Ramdas and Tibshirani 2021, "Predictive inference with the
  jackknife+"): the runs of each unit are held against the distributions of all others, in units of
  the distance from the median to the end of the middle 80 % on that side, and an interval reaches
  as many of these as hold the share that it names: three numbers a figure and mode (as in Romano,
  Patterson and Candès 2019, "Conformalized quantile regression").
* An interval always holds the estimate itself, and ends where the farthest residual is at the
  latest.

Coverage is measured with the stretch of the other units, too: what a run is held against has seen
nothing of its unit but through the engines' constants that other units' residuals rest on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from recipe_core.base.arrays import Float
from recipe_core.base.intervals import BAND, LEVELS, Level, quantile_score
from recipe_core.calibration.validation.comparison import CELL
from recipe_core.estimates.bands import (
    KEYS,
    Band,
    BandFile,
    EngineGap,
    better_score,
    normal_probability,
)

# Cells that the next wider group counts as, and that all modes count as beside one of them.
POOLED, MODE_POOLED = 20.0, 4.0
# Cells from which a mode has conformal numbers of its own, and a group a band.
MODE_CELLS, GROUP_CELLS = 6, 4
# The same of what two engines differ by.
GAP_CELLS = 3
# Least distance of an end from the median: what two runs of one configuration differ by anyway.
LEAST = 0.02
# Share of residuals at each side that count as the quantile there when variances are taken.
TRIMMED = 0.025
Groups = Sequence[Sequence[str]]
_SIDES = ("median", "below", "above")


def measured_residuals(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of ``metric``, ``run`` and CELL with their residual, weight and unit.

    ``weight``: one over the runs of the cell that have the figure. ``unit``: what is held against
    all others together; the source where rows name none.
    """
    out = rows.assign(residual=np.log(rows.measured.astype(float) / rows.estimated.astype(float)))
    out = out[np.isfinite(out.residual)].reset_index(drop=True)
    sizes = out.groupby(["metric", *CELL]).residual.transform("size")
    unit = out.unit if "unit" in out else out.source
    weighed: pd.DataFrame = out.assign(weight=1.0 / sizes, unit=unit)
    return weighed


def weighted_quantiles(values: Float, weights: Float, shares: Sequence[float]) -> Float:
    """Quantiles of weighted values: the least value with at least that share up to it."""
    order = np.argsort(values)
    upto = np.cumsum(weights[order])
    places = np.searchsorted(upto, np.asarray(shares) * upto[-1] * (1 - 1e-12))
    return np.asarray(values[order][np.minimum(places, len(order) - 1)])


def _pooled_spread(
    rows: pd.DataFrame, groups: Groups, values: Mapping[str, Any]
) -> tuple[float, float, float]:
    """Median of a group, and how far below and above it the ends of the middle 80 % are."""
    parts: list[tuple[Float, Float]] = []
    unassigned = 1.0
    for names in groups:
        if not set(names) <= set(values):
            continue
        inside = np.ones(len(rows), dtype=np.bool_)
        for name in names:
            inside &= (rows[name] == values[name]).to_numpy()
        group_rows = rows[inside]
        cells = float(group_rows.weight.sum())
        if not cells:
            continue
        wider = MODE_POOLED if tuple(names) == ("mode",) else POOLED
        share = cells / (cells + wider) if names else 1.0
        parts.append(
            (
                group_rows.residual.to_numpy(),
                group_rows.weight.to_numpy() * unassigned * share / cells,
            )
        )
        unassigned *= 1 - share
    pooled = np.concatenate([residual for residual, _ in parts])
    weights = np.concatenate([weight for _, weight in parts])
    tail = (1 - int(BAND) / 100) / 2
    low, median, high = weighted_quantiles(pooled, weights, [tail, 0.5, 1 - tail]).tolist()
    if values.get("basis") == "prior" and (rows.basis == "fitted").any():
        centre, down, up = _pooled_spread(rows, groups, {**values, "basis": "fitted"})
        low, high = min(low, centre - down), max(high, centre + up)
    return median, max(median - low, LEAST), max(high - median, LEAST)


def _rows_by_keys(
    rows: pd.DataFrame, names: Sequence[str]
) -> list[tuple[dict[str, Any], pd.DataFrame]]:
    """Rows by their values of some keys."""
    if not names:
        return [({}, rows)]
    return [(dict(zip(names, key, strict=True)), part) for key, part in rows.groupby(list(names))]


def score_against_others(rows: pd.DataFrame, groups: Groups) -> pd.DataFrame:
    """Rows of one metric against the distributions of all other units.

    Adds ``median``, ``below`` and ``above`` (distances of the ends), and ``score``: how many times
    the distance on its side the residual is from the median.
    """
    names = [name for name in KEYS if name in rows]
    parts = []
    for unit in rows.unit.unique():
        other_units = rows[rows.unit != unit]
        if not len(other_units):
            continue
        for values, part in _rows_by_keys(rows[rows.unit == unit], names):
            median, below, above = _pooled_spread(other_units, groups, values)
            away = part.residual - median
            score = np.where(away > 0, away / above, -away / below)
            # an interval holds the estimate itself, and so what lies between it and the median
            between = (part.residual * median > 0) & (part.residual.abs() <= abs(median))
            score = np.where(between, 0.0, score)
            parts.append(part.assign(median=median, below=below, above=above, score=score))
    return pd.concat(parts, ignore_index=True) if parts else rows.iloc[:0]


def mode_stretches(scored: pd.DataFrame) -> dict[str | None, Float]:
    """The factors of ``level_stretches`` by mode, and of all together (None)."""
    out: dict[str | None, Float] = {None: level_stretches(scored)}
    if "mode" in scored:
        out |= {
            str(mode): level_stretches(part)
            for mode, part in scored.groupby("mode")
            if part.groupby(list(CELL)).ngroups >= MODE_CELLS
        }
    return out


def level_stretches(of_others: pd.DataFrame) -> Float:
    """By level the factor on distances with which as many cells are inside as it says.

    With the correction of a finite sample: a share of (n + 1) / n, n the number of cells. Without
    other units, those of a normal distribution.
    """
    if not len(of_others):
        scores = [quantile_score(level) for level in LEVELS]
        return np.array(scores) / quantile_score(BAND)
    weights = of_others.weight.to_numpy()
    cells = float(weights.sum())
    shares = [min(1.0, int(level) / 100 * (1 + 1 / cells)) for level in LEVELS]
    return weighted_quantiles(of_others.score.to_numpy(), weights, shares)


def interval_ends(
    median: Float, below: Float, above: Float, stretch: Float, observed: Float
) -> tuple[Float, Float]:
    """Ends of cases by level (the last axis) as logarithms.

    They hold the estimate itself (0), and none is beyond the farthest of the residuals ``seen``.
    """
    low = np.clip(median[..., None] - stretch * below[..., None], min(observed.min(), 0.0), 0.0)
    high = np.clip(median[..., None] + stretch * above[..., None], 0.0, max(observed.max(), 0.0))
    return low, high


def left_out_intervals(rows: pd.DataFrame, groups: Groups) -> pd.DataFrame:
    """Every residual with the intervals that the other units give it.

    Adds ``low_…`` and ``high_…`` by level, factors on the estimate.
    """
    parts = []
    for _, of_metric in rows.groupby("metric"):
        table = score_against_others(of_metric, groups)
        modes = [name for name in ("mode",) if name in table]
        for unit, part in table.groupby("unit"):
            other_units = table[table.unit != unit]
            stretches, observed = mode_stretches(other_units), other_units.residual.to_numpy()
            observed = observed if len(observed) else part.residual.to_numpy()
            for values, of_mode in _rows_by_keys(part, modes):
                stretch = stretches.get(values.get("mode"), stretches[None])
                median, below, above = (of_mode[name].to_numpy() for name in _SIDES)
                low, high = interval_ends(median, below, above, stretch, observed)
                columns = {f"low_{level}": np.exp(low[:, k]) for k, level in enumerate(LEVELS)}
                columns |= {f"high_{level}": np.exp(high[:, k]) for k, level in enumerate(LEVELS)}
                parts.append(of_mode.assign(**columns))
    return pd.concat(parts, ignore_index=True)


def common_share(rows: pd.DataFrame) -> float:
    """The share of a metric's variance that runs of one device, engine and version have in common.

    By the method of moments: what is left within runs of one cell, engine, version and workload
    (the ``setup``), which differ in split and load, is independent; the rest of the second moment
    is common. Cells weigh alike; residuals are trimmed.
    """
    low, high = weighted_quantiles(
        rows.residual.to_numpy(), rows.weight.to_numpy(), [TRIMMED, 1 - TRIMMED]
    )
    trimmed = rows.assign(residual=rows.residual.clip(low, high))
    within = trimmed.groupby([*CELL, "setup"]).residual
    degrees = within.transform("size") - 1
    # the weight of a cell, spread over its degrees of freedom
    several = trimmed[degrees > 0].assign(
        square=(trimmed.residual - within.transform("mean"))[degrees > 0] ** 2,
        # a row's part of its setup's degrees of freedom
        free=(degrees / (degrees + 1))[degrees > 0],
    )
    total = float(np.average(trimmed.residual**2, weights=trimmed.weight))
    if not len(several) or not total:
        return 0.0
    sums = several.groupby(list(CELL))[["square", "free"]].sum()
    alone = float((sums.square / sums.free).mean())
    return max(0.0, 1 - alone / total)


def error_correlations(rows: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Correlations of the errors of two metrics of one run, about 0, cells alike and trimmed."""
    trimmed = []
    for _, of_metric in rows.groupby("metric"):
        shares = (TRIMMED, 1 - TRIMMED)
        low, high = weighted_quantiles(
            of_metric.residual.to_numpy(), of_metric.weight.to_numpy(), shares
        )
        trimmed.append(of_metric.assign(residual=of_metric.residual.clip(low, high)))
    table = pd.concat(trimmed)
    wide = table.pivot_table(index="run", columns="metric", values="residual")
    cells = table.drop_duplicates("run").set_index("run")[list(CELL)]
    out: dict[str, dict[str, float]] = {}
    names = sorted(map(str, wide))
    for k, metric in enumerate(names):
        for other_metric in names[k + 1 :]:
            both = wide[[metric, other_metric]].dropna()
            if len(both) < 3:
                continue
            sizes = both.join(cells).groupby(list(CELL))[metric].transform("size")
            a, b, weight = both[metric], both[other_metric], 1.0 / sizes
            moment = float((weight * a * b).sum())
            scale = math.sqrt(float((weight * a * a).sum()) * float((weight * b * b).sum()))
            if scale:
                out.setdefault(metric, {})[other_metric] = round(moment / scale, 2)
    return out


# What two engines have alike where they are compared.
_SAME_LAYOUT = ("device", "model", "mode", "lengths", "load", "weight_dtype", "split")


def engine_gaps(rows: pd.DataFrame) -> dict[str, EngineGap]:
    """Measure what estimates tell of two engines on one device, model, layout and load.

    Cells (device × model) weigh alike; differences are trimmed.
    """
    out: dict[str, EngineGap] = {}
    if not set(_SAME_LAYOUT) <= set(rows):
        return out
    for metric, of_metric in rows.groupby("metric"):
        pairs: list[tuple[str, str, float, float]] = []
        for (device, model, *_), part in of_metric.groupby(list(_SAME_LAYOUT)):
            means = np.log(part.groupby("engine")[["measured", "estimated"]].mean())
            first, second = np.triu_indices(len(means), 1)
            differences = means.to_numpy()[first] - means.to_numpy()[second]
            pairs += [(device, model, *difference) for difference in differences.tolist()]
        table = pd.DataFrame(pairs, columns=["device", "model", "measured", "estimated"])
        cells = table.groupby(["device", "model"])
        if cells.ngroups < GAP_CELLS:
            continue
        weights = 1.0 / cells.measured.transform("size")
        table["apart"] = table.measured - table.estimated
        trimmed = table[["measured", "estimated", "apart"]].apply(
            lambda column: column.clip(column.quantile(TRIMMED), column.quantile(1 - TRIMMED))
        )
        squares = {name: float(np.average(trimmed[name] ** 2, weights=weights)) for name in trimmed}
        both = (squares["measured"] + squares["estimated"] - squares["apart"]) / 2
        out[str(metric)] = EngineGap(
            apart=round(math.sqrt(squares["apart"]), 4),
            measured_share=round(min(max(both / max(squares["estimated"], 1e-9), 0.0), 1.0), 2),
            pairs=len(table),
            cells=cells.ngroups,
        )
    return out


# Ends of the classes of probability that comparisons are counted in.
BINS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.97, 1.0)


def count_comparisons(rows: pd.DataFrame, file: BandFile, groups: Groups) -> pd.DataFrame:
    """Count how often the split estimated to be better is better, by its stated probability.

    Pairs of runs of one cell, ``setup`` and ``load`` that differ in ``split``, by each metric.
    Columns: ``from`` and ``to`` (the class of probability), ``pairs``, ``probability`` (the mean)
    and ``better`` (the share). Pairs that were measured alike count half.
    """
    outcomes: list[tuple[float, float]] = []
    for (metric, *_), part in rows.groupby(["metric", *CELL, "setup", "load"]):
        if part.split.nunique() < 2:
            continue
        first, second = np.triu_indices(len(part), 1)
        splits = part.split.to_numpy()
        different = splits[first] != splits[second]
        estimated, measured = np.log(part.estimated.to_numpy()), np.log(part.measured.to_numpy())
        estimated, measured = (
            (estimated[first] - estimated[second])[different],
            (measured[first] - measured[second])[different],
        )
        values = {name: str(part[name].iloc[0]) for name in KEYS}
        band = file.band(str(metric), groups, values)
        error = np.array([[band.common**2]]), np.array([[band.independent**2]])
        unit_scale = np.ones(1)
        scores = better_score(
            np.abs(estimated), np.ones((len(estimated), 1)), unit_scale, (error, error), shared=True
        )
        better = 0.5 + 0.5 * np.sign(estimated) * np.sign(measured)
        outcomes += zip(normal_probability(scores).tolist(), better.tolist(), strict=True)
    table = pd.DataFrame(outcomes, columns=["probability", "better"])
    places = np.searchsorted(BINS[1:-1], table.probability, side="right")
    out = table.groupby(places).agg(
        pairs=("better", "size"), probability=("probability", "mean"), better=("better", "mean")
    )
    ends = {"from": [BINS[k] for k in out.index], "to": [BINS[k + 1] for k in out.index]}
    return pd.concat([pd.DataFrame(ends, index=out.index), out.round(4)], axis=1)


def _round_factors(low: Float, high: Float) -> dict[Level, tuple[float, float]]:
    """Factors to three digits, outwards, so that what is nested stays so."""
    out: dict[Level, tuple[float, float]] = {}
    for k, level in enumerate(LEVELS):
        down, up = math.exp(low[k]) * 1000, math.exp(high[k]) * 1000
        out[level] = (max(math.floor(down + 1e-9), 1) / 1000, math.ceil(up - 1e-9) / 1000)
    return out


def fit_bands(rows: pd.DataFrame, groups: Groups, source: str) -> BandFile:
    """The bands of every metric and group that has a residual."""
    out: list[Band] = []
    for metric, of_metric in rows.groupby("metric"):
        stretches = mode_stretches(score_against_others(of_metric, groups))
        shared, observed = common_share(of_metric), of_metric.residual.to_numpy()
        for k, names in enumerate(groups):
            for values, part in _rows_by_keys(of_metric, names):
                cells = part.groupby(list(CELL)).ngroups
                if set(names) - {"mode"} and cells < GROUP_CELLS:
                    continue  # little but the wider group's
                # a group within one vendor is pooled with that vendor, too
                alike = {name: part[name].iloc[0] for name in KEYS if part[name].nunique() == 1}
                median, below, above = _pooled_spread(of_metric, groups[k:], alike)
                centre, down, up = map(np.asarray, (median, below, above))
                stretch = stretches.get(values.get("mode"), stretches[None])
                low, high = interval_ends(centre, down, up, stretch, observed)
                at = LEVELS.index(BAND)
                score = quantile_score(BAND)
                sigma = float(high[at] - low[at]) / (2 * score)
                out.append(
                    Band(
                        metric=str(metric),
                        **values,
                        runs=part.run.nunique(),
                        cells=cells,
                        factors=_round_factors(low, high),
                        common=round(sigma * math.sqrt(shared), 4),
                        independent=round(sigma * math.sqrt(1 - shared), 4),
                    )
                )
    return BandFile(
        schema_version=2,
        source=source,
        runs=rows.run.nunique(),
        cells=rows.groupby(list(CELL)).ngroups,
        correlation=error_correlations(rows),
        engines=engine_gaps(rows),
        bands=tuple(out),
    )
