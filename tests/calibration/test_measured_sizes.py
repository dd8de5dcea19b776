"""Sizes that were measured, held against the ranges that estimates propose."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from recipe_core.calibration.sizes import sizes, sizes_text, sizes_view
from tests.fixtures.command_line import recipe

SHARED = {"source": "lab", "model": "m", "device": "h100-sxm", "vendor": "nvidia", "engine": "vllm"}
SHARED |= {"version": "1", "mode": "closed", "scenario": None, "input_tokens": 1000}
SHARED |= {"output_tokens": 100, "weight_dtype": "bf16", "kv_dtype": "bf16", "nodes": 1}
SHARED |= {"per_node": 8, "pp": 1, "dp": 1, "ep": 1, "load": 32.0, "exclude": None}
SHARED |= {"figure": "tpot_ms"}


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
    measured = [40.0, 22.0, 13.0]
    cases = sizes(table(measured, [41.0, 21.0, 12.5], spread=1.05))
    assert cases.measured.tolist() == [2, 1]
    assert cases.inside.all()
    assert (cases["last"] - cases["first"]).max() <= 1
    wrong = table(measured, [12.0, 6.0, 3.0], spread=1.02)  # and sure of itself
    assert not sizes(wrong).inside.any()
    assert sizes_view(wrong)["inside"] == 0


def test_limits_on_throughput_are_the_least_and_loads_of_a_split_are_a_ladder():
    cases = sizes(table([100.0, 190.0], [105.0, 200.0], spread=1.05, figure="output_tokens_per_s"))
    assert cases.limit.tolist() == pytest.approx([np.sqrt(100 * 190)])
    assert cases.measured.tolist() == [1]
    assert cases.inside.all()
    rows = table([10.0, 20.0, 40.0], [11.0, 19.0, 41.0], spread=1.05)
    cases = sizes(rows.assign(tp=8, load=[8.0, 16.0, 32.0]))
    assert set(cases.ladder) == {"load"}
    assert cases.inside.all()


def test_excluded_runs_and_single_ones_make_no_case():
    rows = table([40.0, 22.0], [41.0, 21.0])
    assert not len(sizes(rows.assign(exclude="a copy")))
    assert not len(sizes(rows.iloc[:1]))
    assert "No runs differ" in sizes_text(rows.iloc[:1])


@pytest.mark.nightly
def test_shipped_runs_lie_in_the_ranges_more_often_than_in_three_of_four_cases():
    view = json.loads(recipe("validate", "--sizes", "--json").stdout)
    assert view["cases"] > 200
    assert view["inside"] >= 0.75
    assert view["range_rungs"] < view["rungs"]
    vendors = {part["vendor"] for part in view["groups"] if "vendor" in part}
    assert vendors == {"amd", "nvidia"}
    assert "cases inside" in recipe("validate", "--sizes").stdout
    for more in (["--bands"], ["--by", "device"], ["--training"]):
        assert recipe("validate", "--sizes", *more).returncode == 2
