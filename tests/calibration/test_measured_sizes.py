"""Sizes that were measured, held against the ranges that estimates propose."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from recipe_core.calibration.sizes import sizes, sizes_text, sizes_view
from recipe_core.calibration.validate import compare
from recipe_core.measured.serving_runs import published_runs
from tests.fixtures.command_line import recipe

SHARED = {
    "source": "lab",
    "model": "m",
    "device": "h100-sxm",
    "vendor": "nvidia",
    "engine": "vllm",
    "version": "1",
    "mode": "closed",
    "scenario": None,
    "input_tokens": 1000,
    "output_tokens": 100,
    "weight_dtype": "bf16",
    "kv_dtype": "bf16",
    "nodes": 1,
    "per_node": 8,
    "pp": 1,
    "dp": 1,
    "ep": 1,
    "load": 32.0,
    "exclude": None,
    "figure": "tpot_ms",
}


def table(measured, estimated, spread=1.2, **changed):
    """Runs on 1, 2, 4 … devices, each estimate with intervals of a normal error."""
    rows = []
    for k, (run, value) in enumerate(zip(measured, estimated, strict=True)):
        ends = {
            f"{side}{name}": value * spread ** (sign * score)
            for name, score in (("_50", 0.674), ("", 1.282), ("_95", 1.96))
            for side, sign in (("low", -1), ("high", 1))
        }
        rows.append({**SHARED, **changed, "tp": 2**k, "measured": run, **ends})
    return pd.DataFrame(rows)


def test_a_good_estimate_has_the_measured_count_inside_its_range():
    cases = sizes(table([40.0, 22.0, 13.0], [41.0, 21.0, 12.5], spread=1.05))
    assert cases.measured.tolist() == [2, 1]
    assert cases.inside.all()
    assert (cases["last"] - cases["first"]).max() <= 1


def test_a_bad_estimate_that_is_sure_of_itself_has_not():
    cases = sizes(table([40.0, 22.0, 13.0], [12.0, 6.0, 3.0], spread=1.02))
    assert not cases.inside.any()
    assert sizes_view(table([40.0, 22.0], [12.0, 6.0], spread=1.02))["inside"] == 0


def test_limits_on_throughput_are_the_least():
    cases = sizes(table([100.0, 190.0], [105.0, 200.0], spread=1.05, figure="output_tokens_per_s"))
    assert cases.limit.tolist() == pytest.approx([np.sqrt(100 * 190)])
    assert cases.measured.tolist() == [1]
    assert cases.inside.all()


def test_loads_of_one_split_are_a_ladder_too():
    rows = table([10.0, 20.0, 40.0], [11.0, 19.0, 41.0], spread=1.05).assign(
        tp=8, load=[8.0, 16.0, 32.0]
    )
    cases = sizes(rows)
    assert set(cases.ladder) == {"load"}
    assert cases.inside.all()


def test_excluded_runs_and_single_ones_make_no_case():
    rows = table([40.0, 22.0], [41.0, 21.0])
    assert not len(sizes(rows.assign(exclude="a copy")))
    assert not len(sizes(rows.iloc[:1]))
    assert "No runs differ" in sizes_text(rows.iloc[:1])


def test_shipped_runs_lie_in_the_ranges_more_often_than_in_three_of_four_cases():
    view = sizes_view(compare(published_runs()).figures)
    assert view["cases"] > 200
    assert view["inside"] >= 0.75
    assert view["range_rungs"] < view["rungs"]
    vendors = {part["vendor"] for part in view["groups"] if "vendor" in part}
    assert vendors == {"amd", "nvidia"}


def test_the_command_counts_them_and_refuses_two_questions():
    done = recipe("validate", "--sizes", "--json")
    assert json.loads(done.stdout)["inside"] >= 0.75
    assert "cases inside" in recipe("validate", "--sizes").stdout
    for more in (["--bands"], ["--by", "device"], ["--training"]):
        assert recipe("validate", "--sizes", *more).returncode == 2
