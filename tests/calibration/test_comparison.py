"""Runs beside their predictions: the comparison, its tables and its figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from recipe_core.calibration.comparison import RunsCompared, compare_runs
from recipe_core.calibration.own_runs import Measured, of_runs
from recipe_core.measured.serving_runs import published_runs
from recipe_core.present import charts
from recipe_core.present import measured_view as view
from recipe_core.recipe.overlay import Incoming, Overlay
from recipe_core.search.plans import estimate_batch

RUNS = 12


def runs_of(device: str = "h100-sxm") -> list[Measured]:
    """A few published runs of a device."""
    rows = [run for run in published_runs() if run.device == device and not run.exclude]
    return of_runs([row for row in rows if row.tpot_ms][:RUNS])


@pytest.fixture(scope="module")
def compared() -> RunsCompared:
    return compare_runs(runs_of())


def test_formulas_are_what_an_estimate_says_and_a_run_without_one_is_left_out(compared):
    for run in runs_of():
        row = next(r for r in compared.figures if (r.run, r.figure) == (run.name, "tpot_s"))
        estimate = estimate_batch([dict(run.request)])[0]
        assert row.formulas.value == estimate["serving"]["tpot_s"]
        assert row.measured == run.tpot_s
        assert sum(row.parts.values()) == pytest.approx(row.formulas.value, rel=1e-6)
    good, other = runs_of()[:2]
    unknown = replace(other, name="odd", request={**other.request, "model": "nobody/nothing"})
    compared = compare_runs([good, unknown])
    assert {row.run for row in compared.figures} == {good.name}
    assert "nobody/nothing" in compared.left_out["odd"]


def test_runs_that_agree_bring_each_other_nearer_and_none_is_predicted_with_itself():
    run = runs_of()[0]
    assert all(row.corrected == row.formulas for row in compare_runs([run]).figures)
    unknown = dict.fromkeys(("ttft_s", "request_latency_s", "output_tokens_per_s"))
    slow = []
    for load in (4, 8, 16):
        request = {**run.request, "workload": {**run.request["workload"], "concurrency": load}}
        tpot_s = 1.5 * estimate_batch([request])[0]["serving"]["tpot_s"]
        slow.append(replace(run, name=f"{load}", request=request, tpot_s=tpot_s, **unknown))
    rows = [row for row in compare_runs(slow).figures if row.figure == "tpot_s"]
    assert len(rows) == 3
    for row in rows:
        assert row.error == pytest.approx(1 / 3)
        assert row.corrected_error < 0.7 * row.error
        assert "own run" in row.corrected.basis


def test_charts_show_every_run_its_group_and_its_parts(compared):
    rows = view.rows_of(compared, "tpot_s")
    for which in ("formulas", "corrected"):
        _, inside, outside = charts.measured_against(rows, which).data
        assert len(inside.x) + len(outside.x) == len(rows)
        for trace in (inside, outside):
            ends = (trace.error_x.array, trace.error_x.arrayminus)
            for x, y, plus, minus in zip(trace.x, trace.y, *ends, strict=True):
                assert (x - minus <= y <= x + plus) == (trace is inside)
    groups = [view.GROUPS["Model"](row) for row in rows]
    points, medians, *_ = charts.ratios_by_group(rows, groups).data
    assert sorted(medians.y) == sorted(set(groups))
    assert list(points.x) == [row.measured / row.formulas.value for row in rows]
    *parts, measured = charts.parts_against(rows[0]).data
    assert sum(part.x[0] for part in parts) == pytest.approx(rows[0].formulas.value * 1e3)
    assert measured.x[0] == pytest.approx(rows[0].measured * 1e3)


def test_the_tables_say_what_counts(compared, tmp_path: Path):
    added = Overlay.at(tmp_path).add([Incoming(run, "runs.csv", "table") for run in runs_of()])
    entries = added.overlay.entries
    frame = view.runs_frame(entries, sources=True)
    assert len(frame) == RUNS
    assert set(frame["source"]) == {"runs.csv"}
    assert "source" not in view.runs_frame(entries, sources=False)
    counting = sum(entry.counts for entry in entries)
    assert view.verdict(added.overlay, compared).startswith(f"{counting} of {RUNS} runs count;")
    errors = view.errors_frame(compared)
    assert list(errors["figure"]) == [view.TITLES[name] for name in view.figures_of(compared)]
    assert errors["error_formulas"].between(0, 100).all()
