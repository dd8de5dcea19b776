"""Intervals around estimates: how they are made, what they hold, what they say of two splits."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from recipe_core.base.intervals import LEVELS, NORMAL, probability_below
from recipe_core.calibration.intervals import (
    bands,
    common_share,
    comparisons,
    correlations,
    coverage,
    covered,
    left_out,
    quantiles,
    residuals,
)
from recipe_core.calibration.validate import compare
from recipe_core.measured.serving_runs import published_runs
from recipe_core.physics.bands import BandFile, better_score, probability
from recipe_core.physics.serving import bands as serving_bands
from recipe_core.physics.training import bands as training_bands
from recipe_core.search.plans import plan
from tests.conftest import make_request
from tests.fixtures.command_line import ROOT, recipe
from tests.fixtures.rows import table
from tests.fixtures.sizes import examples

GROUPS = serving_bands.GROUPS


def synthetic(
    sigma: float, *, common: float = 0.0, sources: int = 12, runs: int = 6, seed: int = 1
) -> pd.DataFrame:
    """Residuals of known spread: ``common`` to a cell's runs, and ``sigma`` of each run."""
    draw = np.random.default_rng(seed)
    same = {"metric": "tpot_s", "setup": "same", "load": 8.0, "estimated": 1.0, "basis": "fitted"}
    rows = []
    for source, device, model in itertools.product(range(sources), range(2), range(2)):
        shared = draw.normal(0, common)
        cell = {"source": f"s{source}", "device": f"d{device}", "model": f"m{model}"}
        cell |= {"engine": f"e{source % 2}", "architecture": f"a{device}", "vendor": "v"}
        # sources differ in size by two orders of magnitude
        for k in range(runs if source else 40 * runs):
            run = {"run": f"{source} {device} {model} {k}", "split": str(k)}
            measured = math.exp(shared + draw.normal(0, sigma))
            rows.append(same | cell | run | {"measured": measured})
    return residuals(pd.DataFrame(rows))


def again(*tables: pd.DataFrame) -> pd.DataFrame:
    """Residuals of changed rows."""
    return residuals(pd.concat(tables).drop(columns=["residual", "weight"]))


def bands_of(rows: pd.DataFrame) -> dict:
    return {band.key: band for band in bands(rows, GROUPS, "test").bands}


EVERYTHING = ("tpot_s", None, None, None, None)


@pytest.mark.parametrize("common", [0.0, 0.2])
def test_intervals_hold_the_share_that_they_name(common: float):
    rows = synthetic(0.2, common=common, sources=30)
    rated = coverage(left_out(rows, GROUPS), [])
    for level in LEVELS:
        assert rated[f"inside_{level}"][0] == pytest.approx(int(level) / 100, abs=0.05)
    sigma = math.hypot(0.2, common)
    everything = bands_of(rows)[EVERYTHING]
    for level in LEVELS:
        score = NORMAL.inv_cdf((1 + int(level) / 100) / 2)
        low, high = everything.factors[level]
        assert math.log(high / low) / 2 == pytest.approx(score * sigma, rel=0.25)


def test_cells_weigh_alike_and_the_common_part_is_told_from_the_rest():
    """The large source's runs are off by another factor, and move the intervals no more."""
    rows = synthetic(0.1)
    moved = rows.assign(measured=rows.measured.where(rows.source.ne("s0"), 10.0))
    assert (rows.source == "s0").mean() > 0.7
    assert bands_of(again(moved))[EVERYTHING].factors["50"][1] < 2
    assert common_share(synthetic(0.2, common=0.0, sources=40)) < 0.15
    rows = synthetic(0.1, common=0.3, sources=40)
    assert common_share(rows) == pytest.approx(0.09 / 0.10, abs=0.06)
    values, weights = np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 2.0])
    shares = {0.0: 1.0, 0.25: 1.0, 0.26: 2.0, 0.75: 2.0, 0.76: 3.0, 1.0: 3.0}
    assert quantiles(values, weights, list(shares)).tolist() == list(shares.values())


def test_figures_of_a_run_correlate_small_groups_are_the_wider_one_and_priors_no_better():
    rows = synthetic(0.2)
    falling = rows.assign(metric="output_tokens_per_s", measured=1 / rows.measured)
    assert correlations(again(rows, falling)) == {"output_tokens_per_s": {"tpot_s": -1.0}}
    rows = synthetic(0.1, sources=12)
    odd = rows.source.eq("s1") & rows.device.eq("d0") & rows.model.eq("m0")
    engine, measured = rows.engine.where(~odd, "odd"), rows.measured.where(~odd, 3.0)
    by_key = bands_of(again(rows.assign(engine=engine, measured=measured)))
    alone = by_key["tpot_s", "fitted", "odd", "a0", None]
    assert (alone.runs, alone.cells) == (6, 1)
    assert alone.factors["50"][1] < 2 < alone.factors["95"][1] < 10
    rows = synthetic(0.3)
    exact = rows.assign(basis="prior", measured=1.0, source=rows.source + "p")
    by_key = bands_of(again(rows, exact))
    fitted, prior = (
        by_key["tpot_s", basis, None, None, None].factors["80"] for basis in ("fitted", "prior")
    )
    assert prior[0] <= fitted[0] + 0.002
    assert prior[1] >= fitted[1] - 0.002


def test_the_shipped_bands_are_nested_and_complete():
    for module, metrics in (
        (serving_bands, (*serving_bands.METRICS, "request_latency_s")),
        (training_bands, ("step_s", "peak_memory_bytes")),
    ):
        file = module.bands()
        assert {band.metric for band in file.bands} == set(metrics)
        for band in file.bands:
            ends = [band.factors[level] for level in LEVELS]
            (a, b), (c, d), (e, f) = ends
            assert e <= c <= a <= 1 <= b <= d <= f
            assert band.common > 0 or band.independent > 0
            assert band.runs <= file.runs
            assert band.cells <= file.cells


def test_a_bad_file_is_refused():
    factors = {"50": [0.9, 1.1], "80": [0.8, 1.3], "95": [0.5, 2.0]}
    band = {"metric": "tpot_s", "runs": 3, "cells": 1, "factors": factors}
    band |= {"common": 0.2, "independent": 0.1}
    file = {"schema_version": 2, "source": "test", "runs": 3, "cells": 1, "bands": [band]}
    assert BandFile.model_validate(file).bands[0].high == 1.3
    changed = [([band | change], said) for change, said in table("calibration", "bands")]
    for several, said in (*changed, ([band, band], "same metric and group")):
        with pytest.raises(ValidationError, match=said):
            BandFile.model_validate(file | {"bands": several})


def test_the_narrowest_group_that_there_is():
    file = serving_bands.bands()
    known = {"basis": "fitted", "engine": "vllm", "architecture": "sm_90", "vendor": "nvidia"}
    for changed, group in (
        ({}, ("fitted", "vllm", "sm_90", None)),
        ({"architecture": "sm_999"}, ("fitted", "vllm", None, None)),
        ({"engine": "another"}, ("fitted", None, None, "nvidia")),
        ({"vendor": "intel"}, ("fitted", None, None, None)),
    ):
        known |= changed
        assert file.band("tpot_s", GROUPS, known).key[1:] == group
    with pytest.raises(KeyError):
        file.band("luck", GROUPS, known)


def test_the_probability_of_a_limit():
    intervals = {"50": (0.8, 1.25), "80": (0.5, 2.0), "95": (0.25, 4.0)}
    shares = {0.25: 0.025, 0.5: 0.10, 0.8: 0.25, 1.0: 0.5, 1.25: 0.75, 2.0: 0.90, 4.0: 0.975}
    assert {limit: probability_below(intervals, limit) for limit in shares} == pytest.approx(shares)
    assert 0 < probability_below(intervals, 0.01) < 0.001
    assert 0.999 < probability_below(intervals, 100.0) < 1
    with pytest.raises(ValueError, match=r"limit must be above 0 \(got -1\)"):
        probability_below(intervals, -1.0)
    assert probability_below(dict.fromkeys(LEVELS, (2.0, 2.0)), 2.0) == 1.0
    assert probability_below(dict.fromkeys(LEVELS, (2.0, 2.0)), 1.9) == 0.0


@given(limits=st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=5).map(sorted))
def test_the_probability_of_a_limit_rises_with_it(limits: list[float]):
    intervals = {"50": (1.0, 1.25), "80": (1.0, 2.0), "95": (0.25, 4.0)}
    shares = [probability_below(intervals, limit) for limit in limits]
    assert all(0 <= share <= 1 for share in shares)
    assert shares == sorted(shares)


SIGMA = st.floats(0.0, 2.0)


@settings(max_examples=examples(200))
@given(
    gain=st.floats(-2, 2),
    moves=st.lists(st.floats(0, 2), min_size=4, max_size=4),
    sigmas=st.lists(SIGMA, min_size=4, max_size=4),
    shared=st.booleans(),
)
def test_either_is_better(gain: float, moves: list[float], sigmas: list[float], shared: bool):
    """P(A beats B) + P(B beats A) = 1."""
    one, two = np.array(moves[:2]), np.array(moves[2:])
    mine = (np.diag(np.square(sigmas[:2])), np.diag(np.square(sigmas[2:])))
    theirs = mine if shared else tuple(2 * part for part in mine)
    forward = better_score(np.array([gain]), one[None], two, (mine, theirs), shared=shared)
    backward = better_score(np.array([-gain]), two[None], one, (theirs, mine), shared=shared)
    (ahead,), (behind,) = probability(forward), probability(backward)
    assert ahead + behind == pytest.approx(1)
    assert (ahead > 0.5) <= (gain > 0)


def test_a_shared_error_cancels():
    """It does so as far as both move alike, so that less uncertainty is left on one device."""
    one, gain = np.ones((1, 1)), np.array([0.1])
    errors = (np.array([[0.09]]), np.array([[0.01]]))
    same = better_score(gain, one, one[0], (errors, errors), shared=True)
    apart = better_score(gain, one, one[0], (errors, errors), shared=False)
    assert same == pytest.approx(0.1 / math.sqrt(0.02))
    assert apart == pytest.approx(0.1 / math.sqrt(0.2))


def test_comparisons_are_as_sure_as_they_say():
    """Estimates that know splits apart, errors in common and alone as the bands have them."""
    rows = synthetic(0.15, common=0.5, sources=20, runs=8)
    told = np.exp(np.random.default_rng(2).normal(0, 0.3, len(rows)))
    rows = again(rows.assign(estimated=told, measured=rows.measured * told))
    rated = comparisons(rows, bands(rows, GROUPS, "test"), GROUPS)
    assert rated.pairs.sum() > 2000
    assert (rated.probability - rated.better).abs().max() < 0.06


def test_splits_of_a_plan_are_compared():
    rated = plan(make_request(options={"engines": ["vllm"]}))
    best, rows = rated.best_row, rated.order[~rated.queues[rated.order]]  # the others come after
    chances = rated.beats(rows, best)
    assert chances[0] == 0.5
    assert chances == sorted(chances, reverse=True)
    rated = plan(make_request(objective={"optimize": "latency"}))  # moves with two figures
    best, rows = rated.best_row, rated.order[~rated.queues[rated.order]]
    chances = rated.beats(rows, best)
    assert max(chances) == chances[0] == 0.5
    back = [rated.beats([best], int(row))[0] for row in rows]
    assert np.add(chances, back) == pytest.approx(1)
    assert rated.tied == sum(chance >= 0.4 for chance in chances) - 1
    rated = plan(make_request(objective={"optimize": "gpus"}))  # whose number is certain
    holding = rated.order[rated.holds[rated.order]]
    assert set(rated.beats(holding, rated.best_row)) <= {0.0, 0.5}


def test_one_engine_is_compared_more_surely_than_two():
    """Splits as far apart by estimate: on one device and engine less of the error is left."""
    rated = plan(make_request(options={"engines": ["vllm", "sglang"]}))
    best = rated.best_row
    engines = np.array([rated.candidate(int(row))["engine"] for row in rated.order])
    scores = [NORMAL.inv_cdf(max(chance, 1e-12)) for chance in rated.beats(rated.order, best)]
    rate = rated.columns["output_tokens_per_s"]
    gains = np.log(rate[rated.order] / rate[best])
    known = (gains < -0.05) & (gains > -0.6)
    sigma = gains[known] / np.array(scores)[known]
    same = engines[known] == engines[0]
    assert 0 < same.sum() < len(same)
    assert sigma[same].max() < sigma[~same].min()


@pytest.mark.nightly
def test_published_runs_are_inside():
    """In sample: the engines' numbers are fitted to these runs among others."""
    tables = covered(compare(published_runs()).figures)
    (inside,) = tables["all"].inside_80
    assert inside == pytest.approx(0.8, abs=0.05)
    assert set(tables["vendors"].vendor) == {"amd", "nvidia"}


def test_sources_left_out_are_inside():
    """As docs/accuracy.md says: overall and by vendor, within five points of 80 %."""
    report = json.loads((ROOT / "docs" / "intervals.json").read_text())["serving"]
    for row in (*report["all"], *report["vendors"]):
        assert row["inside_80"] == pytest.approx(0.8, abs=0.05), row
    sure = [row["better"] - row["probability"] for row in report["comparisons"]]
    assert min(sure) > -0.05  # a split is not called better more surely than it is


def test_the_command_line_counts_them(tmp_path):
    path = tmp_path / "runs.csv"
    run = published_runs()[0].model_dump(exclude_none=True)
    pd.DataFrame([run]).to_csv(path, index=False)
    command = ["validate", str(path), "--bands"]
    told = json.loads(recipe(*command, "--json").stdout)
    assert told["levels"] == {"inside_50": 0.5, "inside_80": 0.8, "inside_95": 0.95}
    assert set(told) == {"levels", "all", "figures", "vendors", "engines"}
    assert "in 80 %" in recipe(*command).stdout
    refused = recipe(*command, "--by", "model")
    assert refused.returncode == 2
    assert "two questions" in refused.stderr
