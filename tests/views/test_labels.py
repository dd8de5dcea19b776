"""Names beside points: none on another, on a mark or outside; outliers at the edge."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe_core.base.documents import finite
from recipe_core.compression.advisor.advise import advise
from recipe_core.plans.splits import row_key
from recipe_core.request.schema import PlanRequest
from recipe_core.views import formats as view
from recipe_core.views.charts import labels
from recipe_core.views.charts.formats import PLOT_HEIGHT_PX, accuracy_against, cost_against_loss
from recipe_core.views.charts.frontier import frontier_figure
from recipe_core.views.charts.labels import (
    Box,
    Plane,
    edge_names,
    lay_out_labels,
    range_without_outliers,
)
from recipe_core.views.explanations.formats import format_points
from tests.fixtures.plans import BESIDE, planned
from tests.fixtures.rows import over

MODELS = ("meta-llama/Llama-3.3-70B-Instruct", "Qwen/Qwen3-8B")
SHARES = st.floats(0, 1, allow_nan=False)
TRAINED = (("workload.kind", "training"), ("workload.tokens", 1e10))
NAMES = st.lists(
    st.tuples(st.text("abcdef 48", min_size=1, max_size=30), st.tuples(SHARES, SHARES)), max_size=25
)


@cache
def advised(model: str) -> dict:
    values = {
        "model": model,
        "hardware": {"device": "h100-sxm", "per_node": 8},
        "workload": {"input_tokens": 1024, "output_tokens": 256, "concurrency": 32},
        "objective": {"optimize": "cost"},
    }
    return finite(advise(PlanRequest.parse(values)).to_json())


def boxes_of(figure, height_px: float, width_px: float = labels.PLOT_PX) -> list[Box]:
    """The boxes of the names written in a figure whose plot has this size."""
    axes = figure.layout.xaxis.range, figure.layout.yaxis.range
    plane = Plane(tuple(axes[0]), tuple(axes[1]), height_px, width_px)
    boxes = []
    for note in figure.layout.annotations:
        if note.xanchor != "center" or note.yref == "paper":
            continue
        across, up = plane.at_pixels((note.x, note.y))
        half = (labels.LETTER_PX * len(note.text) + 4) / 2
        middle = (across + note.xshift, up + note.yshift)
        line = labels.LINE_PX / 2
        boxes.append(Box(middle[0] - half, middle[1] - line, middle[0] + half, middle[1] + line))
    return boxes


def assert_apart(boxes: list[Box], width_px: float, height_px: float) -> None:
    for first, second in itertools.combinations(boxes, 2):
        assert not first.overlaps(second)
    for box in boxes:
        assert Plane((0, 1), (0, 1), height_px + 1, width_px + 1).holds(box)


@given(NAMES)
def test_names_that_are_written_stand_on_nothing(names) -> None:
    plane = Plane((0.0, 1.0), (0.0, 1.0), 300.0)
    placed = lay_out_labels(plane, [(text, [point]) for text, point in names])
    assert_apart([label.box for label in placed], plane.width_px, plane.height_px)
    for label in placed:
        for _, point in names:
            across, up = plane.at_pixels(point)
            assert not label.box.overlaps(Box(across - 2, up - 2, across + 2, up + 2))


def test_a_name_moves_to_where_there_is_room_or_is_left_out() -> None:
    plane = Plane((0.0, 10.0), (0.0, 10.0), 300.0)
    (alone,) = lay_out_labels(plane, [("int4", [(5.0, 5.0)])])
    (at_the_edge,) = lay_out_labels(plane, [("int4", [(10.0, 10.0)])])
    assert alone.right_px > 0 > at_the_edge.right_px
    crowd = [(x, y) for x in np.arange(0, 10, 0.2) for y in np.arange(0, 10, 0.2)]
    assert lay_out_labels(plane, [("int4", [(5.0, 5.0)])], crowd) == []
    moved = lay_out_labels(
        plane, [("H100", [(5.0, 5.0), (9.0, 9.0)])], [p for p in crowd if p[0] < 7]
    )
    assert [label.point for label in moved] == [(9.0, 9.0)]


def test_an_outlier_does_not_stretch_the_axis_and_is_named_at_its_edge() -> None:
    values = [0.8, 0.82, 0.85, 0.9, 0.95, 1.0, 0.83, 0.87, 0.92, 0.98, 12.0]
    low, high = range_without_outliers(values, 1.0)
    assert low < 0.8 < 1.0 < high < 1.2
    plane = Plane((low, high), (0.0, 1.0), 300.0)
    assert edge_names(plane, [("here", (0.9, 0.5)), ("far", (12.0, 0.5))]) == [
        ("far →", (high, 0.5))
    ]
    assert edge_names(plane, [("low", (0.9, -4.0))]) == [("low ↓", (0.9, 0.0))]
    assert range_without_outliers([1.0, 2.0, 3.0])[1] > 3.0
    assert range_without_outliers([]) == pytest.approx((-0.08, 0.08), abs=1.1)
    assert range_without_outliers([5.0], from_zero=True)[0] == 0.0


@over("model, split", list(itertools.product(MODELS, ("same_split", "best_split"))))
def test_formats_are_named_apart_and_every_one_is_in_sight(model: str, split: str) -> None:
    answer = advised(model)
    rows = view.usable_formats(answer)
    for dark, name in itertools.product((False, True), view.AXES):
        figure = accuracy_against(rows, name, split, dark=dark)
        assert_apart(boxes_of(figure, PLOT_HEIGHT_PX), labels.PLOT_PX, PLOT_HEIGHT_PX)
        assert_apart(boxes_of(figure, PLOT_HEIGHT_PX, 1000.0), 1000.0, PLOT_HEIGHT_PX)
        texts = " ".join(note.text for note in figure.layout.annotations)
        assert "★" in texts  # the recommended one is named
        drawn = sum(len(trace.x) for trace in figure.data if trace.error_y.array is not None)
        arrows = sum(texts.count(arrow) for arrow in "←→↑↓")
        with_figures = [row for row in rows if view.figure_ratio(row, name, split)]
        assert drawn <= len(with_figures) <= drawn + max(arrows, len(with_figures) - drawn)
        low, high = figure.layout.yaxis.range
        assert high - low < 30  # no empty plane below what formats keep


def test_formats_of_a_split_are_named_apart() -> None:
    splits = planned()
    figure = cost_against_loss({"best": format_points(splits, splits.best_row)})
    boxes = boxes_of(figure, PLOT_HEIGHT_PX)
    assert len(boxes) >= 3
    assert_apart(boxes, labels.PLOT_PX, PLOT_HEIGHT_PX)
    assert not any("text" in (trace.mode or "") for trace in figure.data)


# The default chart


def test_the_frontier_has_a_band_each_device_a_shaded_limit_and_the_chosen_split() -> None:
    splits = planned(("objective.limits.tpot_ms", 40.0))
    figure = frontier_figure(splits, splits.best_row)
    assert figure.layout.shapes[0]["x1"] == 25.0
    assert any("slower than 40" in note.text for note in figure.layout.annotations)
    low, high, curve, star = figure.data
    assert high.fill == "tonexty"
    assert all(a <= y <= b for a, y, b in zip(low.y, curve.y, high.y, strict=True))
    assert max(np.array(high.y) / np.array(low.y)) > 1.1
    assert list(curve.x) == sorted(curve.x)
    assert list(curve.y) == sorted(curve.y, reverse=True)
    assert star.x[0] == pytest.approx(splits.raw("interactivity")[splits.best_row])
    assert star.y[0] == pytest.approx(splits.raw("per_gpu")[splits.best_row])
    assert max(curve.y) > 0.5 * figure.layout.yaxis.range[1]  # no empty plane


def test_marks_of_pinned_splits_have_rings_at_every_load() -> None:
    for changes in ([("objective.limits.tpot_ms", 40.0)], [*TRAINED, ("hardware.nodes", 4)]):
        splits = planned(*changes)
        key = row_key(splits, splits.best_row)
        figure = frontier_figure(splits, splits.best_row, pins=[key])
        *marks, rings = figure.data
        assert rings.name == "Pinned"
        assert (rings.x[-1], rings.y[-1]) == (marks[-1].x[0], marks[-1].y[0])  # the star
        of_key = [
            about[0]
            for trace in marks
            if trace.customdata is not None
            for about in trace.customdata
        ]
        assert len(rings.x) == of_key.count(key) < len(of_key)
        unpinned = frontier_figure(
            splits, splits.best_row, pins=["vllm.bf16.bf16.tp64.pp1.dp1.ep1"]
        )
        assert len(unpinned.data) == len(marks)


def test_devices_with_prices_are_compared_by_output_per_dollar() -> None:
    splits = planned(BESIDE)
    figure = frontier_figure(splits, splits.best_row)
    assert "per dollar" in figure.layout.yaxis.title.text
    curves = [trace for trace in figure.data if trace.customdata is not None][:-1]
    assert len(curves) == 2
    for curve in curves:
        assert list(curve.y) == sorted(curve.y, reverse=True)
    usd = splits.raw("usd")[splits.best_row]
    assert figure.data[-1].y[0] == pytest.approx(1 / usd)
    texts = [note.text for note in figure.layout.annotations]
    assert {curve.name for curve in curves} <= set(texts)
    assert_apart(boxes_of(figure, 340.0), labels.PLOT_PX, 340.0)


def test_a_run_is_drawn_by_its_numbers_of_devices_and_never_on_a_line_by_definition() -> None:
    splits = planned(*TRAINED, ("hardware.nodes", 8))
    figure = frontier_figure(splits, splits.best_row)
    curve = figure.data[0]
    texts = [note.text for note in figure.layout.annotations]
    assert sum(text.endswith(" GPUs") for text in texts) == len(curve.x) > 1
    products = np.array(curve.y) / np.array(curve.x)
    assert products.max() > 1.5 * products.min()
    assert_apart(boxes_of(figure, 340.0), labels.PLOT_PX, 340.0)
    one = planned(*TRAINED)
    if len(set(one.raw("gpus")[one.order])) == 1:
        assert "Memory" in frontier_figure(one, one.best_row).layout.yaxis.title.text


def test_a_load_that_cannot_vary_is_drawn_as_a_tradeoff() -> None:
    splits = planned(("workload.mode", "offline"), ("workload.requests", 1000))
    assert any(
        trace.name == "Best tradeoffs" for trace in frontier_figure(splits, splits.best_row).data
    )
