"""How many scatters around an expected loss hold 80 % of left-out losses, by group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from recipe_core.accuracy.band import loss_scatter
from recipe_core.accuracy.effects import Band, loss_centre, question_group, question_measure
from recipe_core.accuracy.left_out import LeftOut, Prepared
from recipe_core.base.arrays import Bool, Float, Int

# Of the counted figures that a band holds, for it to hold 80 % of those of other models.
SHARE = 0.82
# Cells at which a group's own band counts as much as that of all tasks or all texts.
WEIGHT = 8.0
FOLDS = 8


@dataclass(frozen=True, slots=True)
class Losses:
    """Left-out losses and their expectations, as arrays over figures.

    off: losses less their expectations, in scatters. weight: less where many figures share a
    cell, which is a source and a model.
    """

    off: Float
    expected: Float
    scatter: Float
    weight: Float
    cell: Int
    group: Sequence[str]
    measure: Sequence[str]

    @classmethod
    def of(cls, prepared: Prepared, predicted: LeftOut) -> Self:
        """Those of all figures; expectations are multiplied by the centre."""
        questions = prepared.user_questions
        expected = predicted.expected * np.array([loss_centre(question) for question in questions])
        both = zip(questions, expected, predicted.variance, strict=True)
        scatter = np.array([loss_scatter(*case) for case in both])
        cells = [f"{row.source}|{row.model}" for row in prepared.rows]
        return cls(
            (prepared.data.loss - expected) / scatter,
            expected,
            scatter,
            1 / np.sqrt(prepared.data.crowd),
            np.unique(cells, return_inverse=True)[1],
            [question_group(question) for question in questions],
            [question_measure(question) for question in questions],
        )


def count_bands(losses: Losses, among: Bool) -> dict[str, Band]:
    """Bands of all tasks, all texts and each group, counted among some of the figures.

    Those of groups are drawn towards those of all their tasks or texts, the more the fewer cells
    they have.
    """
    bands = {}
    measures, groups = np.array(losses.measure), np.array(losses.group)
    for measure in sorted(set(losses.measure)):
        overall = bands[measure] = _weighted_band(losses, among & (measures == measure))
        for group in sorted(set(groups[among & (measures == measure)])):
            group_band = _weighted_band(losses, among & (groups == group))
            share = group_band.cells / (group_band.cells + WEIGHT)
            bands[str(group)] = Band(
                low=round(share * group_band.low + (1 - share) * overall.low, 3),
                high=round(share * group_band.high + (1 - share) * overall.high, 3),
                cells=group_band.cells,
            )
    return bands


def _weighted_band(losses: Losses, among: Bool) -> Band:
    """Quantiles of weighted figures."""
    off, weight = losses.off[among], losses.weight[among]
    order = np.argsort(off)
    total = np.cumsum(weight[order])
    middle = (total - weight[order] / 2) / total[-1]
    low, high = np.interp([(1 - SHARE) / 2, (1 + SHARE) / 2], middle, off[order])
    cells = len(set(losses.cell[among]))
    return Band(low=round(float(low), 3), high=round(float(high), 3), cells=cells)


def losses_in_bands(losses: Losses, bands: dict[str, Band]) -> Bool:
    """Which losses lie in the bands of their groups, or of their measures where those lack."""
    names = zip(losses.group, losses.measure, strict=True)
    group_bands = [bands.get(group) or bands[measure] for group, measure in names]
    low, high = np.array([(band.low, band.high) for band in group_bands]).T
    return np.asarray((low <= losses.off) & (losses.off <= high), np.bool_)


def losses_in_bands_of_others(
    losses: Losses, judged: Losses, keys: Sequence[str], among: Bool
) -> Bool:
    """Which of the judged losses lie in bands that were counted on figures of other keys.

    Keys are dealt into folds of about as many figures. The bands of a fold are counted on
    ``losses`` of the other folds, ``among`` these figures.
    """
    fold = _folds(keys)
    inside = np.zeros(len(fold), np.bool_)
    for number in range(FOLDS):
        in_fold = fold == number
        inside[in_fold] = losses_in_bands(judged, count_bands(losses, among & ~in_fold))[in_fold]
    return inside


def _folds(keys: Sequence[str]) -> Int:
    names, key, counts = np.unique(keys, return_inverse=True, return_counts=True)
    size = np.zeros(FOLDS)
    fold = np.zeros(len(names), np.int64)
    for number in np.argsort(-counts, kind="stable"):
        fold[number] = size.argmin()
        size[fold[number]] += counts[number]
    return np.asarray(fold[key], np.int64)
