"""Places of the names of points, and axes that one outlier does not stretch.

A name stands beside its point, on no other name and no mark, inside the plot; where there is no
such place, it is left out, and pointing at the mark says it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from recipe_core.views.charts.style import Drawing

# Width of a plot in pixels for which names are laid out; in a wider one they stand further apart.
PLOT_PX = 620.0
# Size of the names, and of a letter and a line of them, in pixels.
FONT_PX, LETTER_PX, LINE_PX = 11, 6.2, 15.0
# Distance of a name from the middle of its mark, and half the width of a mark, in pixels.
AWAY_PX, MARK_PX = 9.0, 6.0
# An end of an axis is cut where the farthest value is so many times the spread of the middle 80 %
# beyond it.
FAR = 2.0
# Room at the ends of an axis, as a share of it.
ROOM = 0.08

Range = tuple[float, float]
Point = tuple[float, float]
# A name's side of its point: steps to the right and up.
SIDES = ((1, 1), (1, -1), (-1, 1), (-1, -1), (1, 0), (-1, 0), (0, 1), (0, -1))
# Distances that are tried, in multiples of ``AWAY_PX``.
REACHES = (1.0, 2.2)


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle in pixels from the lower left corner of the plot."""

    left: float
    low: float
    right: float
    high: float

    def overlaps(self, box: Box) -> bool:
        """True where both cover a common place."""
        across = self.left < box.right and box.left < self.right
        return across and self.low < box.high and box.low < self.high


@dataclass(frozen=True, slots=True)
class Plane:
    """The ranges of both axes, and the size of the plot in pixels."""

    x: Range
    y: Range
    height_px: float
    width_px: float = PLOT_PX

    def at_pixels(self, point: Point) -> tuple[float, float]:
        """The place of a point in pixels from the lower left corner."""
        (x, y), (x_low, x_high), (y_low, y_high) = point, self.x, self.y
        return (
            (x - x_low) / (x_high - x_low) * self.width_px,
            (y - y_low) / (y_high - y_low) * self.height_px,
        )

    def holds(self, box: Box) -> bool:
        """True for a rectangle inside the plot."""
        inside = box.left >= 0 and box.right <= self.width_px
        return inside and box.low >= 0 and box.high <= self.height_px


@dataclass(frozen=True, slots=True)
class Label:
    """A name with its place: the middle of its box from its point, in pixels."""

    text: str
    point: Point
    right_px: float
    up_px: float
    box: Box


def lay_out_labels(
    plane: Plane,
    names: Sequence[tuple[str, Sequence[Point]]],
    marks: Sequence[Point] = (),
) -> list[Label]:
    """The names that find a place, the first ones first.

    Args:
        plane: the plot.
        names: each name with its points, at the first of which with room it is written once.
        marks: other points that no name may cover.
    """
    points = [*marks, *(point for _, places in names for point in places[:1])]
    boxes = [_mark_box(plane.at_pixels(point)) for point in points]
    labels = []
    for text, places in names:
        label = next(
            (
                label
                for point in places
                for label in _places(plane, text, point)
                if plane.holds(label.box) and not any(label.box.overlaps(box) for box in boxes)
            ),
            None,
        )
        if label is not None:
            labels.append(label)
            boxes.append(label.box)
    return labels


def add_labels(
    draw: Drawing,
    plane: Plane,
    names: Sequence[tuple[str, Sequence[Point], str]],
    marks: Sequence[Point] = (),
) -> None:
    """Write names beside their points, each with its colour; those without a place are left out."""
    colours = {(text, point): colour for text, places, colour in names for point in places}
    for label in lay_out_labels(plane, [(text, places) for text, places, _ in names], marks):
        draw.note(
            label.text,
            colours[label.text, label.point],
            FONT_PX,
            x=label.point[0],
            y=label.point[1],
            xshift=label.right_px,
            yshift=label.up_px,
            xanchor="center",
            yanchor="middle",
        )


def _mark_box(middle: tuple[float, float]) -> Box:
    x, y = middle
    return Box(x - MARK_PX, y - MARK_PX, x + MARK_PX, y + MARK_PX)


def _places(plane: Plane, text: str, point: Point) -> Iterator[Label]:
    """Places around a point, the nearest first, and corners before sides: bars lead along these."""
    width, (across, up) = LETTER_PX * len(text) + 4, plane.at_pixels(point)
    for reach in REACHES:
        for right, above in SIDES:
            away = AWAY_PX * reach * (0.75 if right and above else 1.0)
            dx, dy = right * (away + width / 2), above * (away + LINE_PX / 2)
            middle = (across + dx, up + dy)
            box = Box(
                middle[0] - width / 2,
                middle[1] - LINE_PX / 2,
                middle[0] + width / 2,
                middle[1] + LINE_PX / 2,
            )
            yield Label(text, point, dx, dy, box)


def range_without_outliers(
    values: Sequence[float], *values_inside: float, from_zero: bool = False
) -> Range:
    """The range of an axis over values without those that lie far out, with room at its ends.

    Args:
        values: what is drawn; those beyond the range are outliers, for ``edge_names``.
        values_inside: others that have to be inside.
        from_zero: whether the axis starts at zero.
    """
    finite = np.array([value for value in values if np.isfinite(value)], dtype=np.float64)
    inside = [*values_inside, *([0.0] if from_zero else [])]
    if len(finite):
        low, high = np.quantile(finite, (0.1, 0.9))
        spread = max(float(high - low), 1e-12)
        close_values = finite[(finite >= low - FAR * spread) & (finite <= high + FAR * spread)]
        inside += [float(close_values.min()), float(close_values.max())]
    lowest, highest = min(inside, default=0.0), max(inside, default=1.0)
    room = ROOM * (highest - lowest or abs(highest) or 1.0)
    return (0.0 if from_zero else lowest - room), highest + room


def is_outside(point: Point, plane: Plane) -> bool:
    """True for a point beyond an end of either axis."""
    (x, y), (x_low, x_high), (y_low, y_high) = point, plane.x, plane.y
    return not (x_low <= x <= x_high and y_low <= y <= y_high)


def edge_names(plane: Plane, points: Sequence[tuple[str, Point]]) -> list[tuple[str, Point]]:
    """Names of the outliers among points, with an arrow, at the edge where they would lie."""
    names = []
    for text, (x, y) in points:
        if not is_outside((x, y), plane):
            continue
        if x < plane.x[0]:
            name = f"← {text}"
        elif x > plane.x[1]:
            name = f"{text} →"
        else:
            name = f"{text} {'↑' if y > plane.y[1] else '↓'}"
        edge = (min(max(x, plane.x[0]), plane.x[1]), min(max(y, plane.y[0]), plane.y[1]))
        names.append((name, edge))
    return names
