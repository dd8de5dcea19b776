"""Intervals around estimates: how they are made, what they hold, what they say of two splits, and
of sizes that were measured.
"""

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
from recipe_core.calibration.validation.comparison import compare_with_estimates
from recipe_core.calibration.validation.sizes import size_cases, sizes_text, sizes_view
from recipe_core.calibration.validation.validate import coverage_tables, interval_coverage
from recipe_core.estimates.bands import BandFile, better_score, normal_probability
from recipe_core.estimates.measured.runs import published_runs
from recipe_core.estimates.serving import bands as serving_bands
from recipe_core.estimates.training import starts
from recipe_core.plans.plans import plan_splits
from recipe_core.plans.rank import beats, count_ties
from recipe_core.views.plan_words import against_best
from scripts import interval_fit as intervals
from tests.conftest import make_request
from tests.fixtures.command_line import ROOT, recipe
from tests.fixtures.rows import table
from tests.fixtures.sizes import examples

GROUPS = serving_bands.GROUPS
EVERYTHING = ("tpot_s", None, None, None, None, None)
FOUR = st.lists(st.floats(0, 2), min_size=4, max_size=4)


def synthetic(sigma, *, common=0.0, sources=12, runs=6):
    """Residuals of known spread: ``common`` to a cell's runs, and ``sigma`` of each run."""
    draw = np.random.default_rng(1)
    same = {
        "metric": "tpot_s",
        "mode": "closed",
        "setup": "same",
        "load": 8.0,
        "estimated": 1.0,
        "basis": "fitted",
    }
    rows = []
    for source, device, model in itertools.product(range(sources), range(2), range(2)):
        shared = draw.normal(0, common)
        cell = {"source": f"s{source}", "device": f"d{device}", "model": f"m{model}"}
        cell |= {"engine": f"e{source % 2}", "architecture": f"a{device}", "vendor": "v"}
        # sources differ in size by two orders of magnitude
        for k in range(runs if source else 40 * runs):
            run = {"run": f"{source} {device} {model} {k}", "split": str(k)}
            rows.append(same | cell | run | {"measured": math.exp(shared + draw.normal(0, sigma))})
    return intervals.measured_residuals(pd.DataFrame(rows))


def again(*tables):
    """Residuals of changed rows."""
    return intervals.measured_residuals(
        pd.concat(tables).drop(columns=["residual", "weight", "unit"])
    )


def bands_of(rows):
    return {band.key: band for band in intervals.fit_bands(rows, GROUPS, "test").bands}


@pytest.mark.parametrize("common", [0.0, 0.2])
def test_intervals_hold_the_share_that_they_name(common):
    rows = synthetic(0.2, common=common, sources=30)
    rated = interval_coverage(intervals.left_out_intervals(rows, GROUPS), [])
    everything = bands_of(rows)[EVERYTHING]
    for level in LEVELS:
        share = int(level) / 100
        assert rated[f"inside_{level}"][0] == pytest.approx(share, abs=0.05)
        low, high = everything.factors[level]
        sigma = math.log(high / low) / 2 / NORMAL.inv_cdf((1 + share) / 2)
        assert sigma == pytest.approx(math.hypot(0.2, common), rel=0.25)


def test_cells_weigh_alike_and_the_common_part_is_told_from_the_rest():
    """The large source's runs are off by another factor, and move the intervals no more."""
    rows = synthetic(0.1)
    moved = rows.assign(measured=rows.measured.where(rows.source.ne("s0"), 10.0))
    assert (rows.source == "s0").mean() > 0.7
    assert bands_of(again(moved))[EVERYTHING].factors["50"][1] < 2
    assert intervals.common_share(synthetic(0.2, common=0.0, sources=40)) < 0.15
    shared = intervals.common_share(synthetic(0.1, common=0.3, sources=40))
    assert shared == pytest.approx(0.09 / 0.10, abs=0.06)
    values, weights = np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 2.0])
    shares = {0.0: 1.0, 0.25: 1.0, 0.26: 2.0, 0.75: 2.0, 0.76: 3.0, 1.0: 3.0}
    assert intervals.weighted_quantiles(values, weights, list(shares)).tolist() == list(
        shares.values()
    )


def test_figures_of_a_run_correlate_small_groups_are_the_wider_one_and_priors_no_better():
    rows = synthetic(0.2)
    falling = rows.assign(metric="output_tokens_per_s", measured=1 / rows.measured)
    assert intervals.error_correlations(again(rows, falling)) == {
        "output_tokens_per_s": {"tpot_s": -1.0}
    }
    rows = synthetic(0.1)
    odd = rows.source.eq("s1")
    engine, measured = rows.engine.where(~odd, "odd"), rows.measured.where(~odd, 3.0)
    by_key = bands_of(again(rows.assign(engine=engine, measured=measured)))
    alone = by_key["tpot_s", "closed", "fitted", "odd", None, None]
    assert (alone.runs, alone.cells) == (24, 4)
    assert ("tpot_s", "closed", "fitted", "odd", "a0", None) not in by_key  # two cells tell nothing
    assert alone.factors["50"][1] < 2 < alone.factors["95"][1] < 10
    rows = synthetic(0.3)
    exact = rows.assign(basis="prior", measured=1.0, source=rows.source + "p")
    by_key = bands_of(again(rows, exact))
    fitted, prior = (
        by_key["tpot_s", "closed", basis, None, None, None] for basis in ("fitted", "prior")
    )
    assert prior.factors["80"][0] <= fitted.factors["80"][0] + 0.002
    assert prior.factors["80"][1] >= fitted.factors["80"][1] - 0.002


def test_the_shipped_bands_are_nested_and_complete_and_the_narrowest_is_taken():
    for file, metrics in (
        (serving_bands.serving_bands(), {*serving_bands.METRICS, "request_latency_s"}),
        (starts.training_bands(), {"step_s", "peak_memory_bytes", "sampled_step_s"}),
    ):
        assert {band.metric for band in file.bands} == metrics
        for band in file.bands:
            (a, b), (c, d), (e, f) = (band.factors[level] for level in LEVELS)
            assert e <= c <= a <= 1 <= b <= d <= f
            assert band.common > 0 or band.independent > 0
            assert band.runs <= file.runs
            assert band.cells <= file.cells
    factors = {"50": [0.9, 1.1], "80": [0.8, 1.3], "95": [0.5, 2.0]}
    band = {"metric": "tpot_s", "runs": 3, "cells": 1, "factors": factors}
    band |= {"common": 0.2, "independent": 0.1}
    file = {"schema_version": 2, "source": "test", "runs": 3, "cells": 1, "bands": [band]}
    assert BandFile.model_validate(file).bands[0].high == 1.3
    changed = [([band | change], said) for change, said in table("calibration", "bands")]
    for several, said in (*changed, ([band, band], "same metric and group")):
        with pytest.raises(ValidationError, match=said):
            BandFile.model_validate(file | {"bands": several})
    file = serving_bands.serving_bands()
    known = {
        "mode": "closed",
        "basis": "fitted",
        "engine": "vllm",
        "architecture": "sm_90",
        "vendor": "nvidia",
    }
    for changed, group in table("calibration", "narrowest"):
        known |= changed
        assert file.band("tpot_s", GROUPS, known).key[1:] == tuple(group)
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
def test_the_probability_of_a_limit_rises_with_it(limits):
    intervals = {"50": (1.0, 1.25), "80": (1.0, 2.0), "95": (0.25, 4.0)}
    shares = [probability_below(intervals, limit) for limit in limits]
    assert shares == sorted(shares)
    assert 0 <= shares[0] <= shares[-1] <= 1


@settings(max_examples=examples(200))
@given(gain=st.floats(-2, 2), moves=FOUR, sigmas=FOUR, shared=st.booleans())
def test_either_is_better(gain, moves, sigmas, shared):
    """P(A beats B) + P(B beats A) = 1."""
    one, two = np.array(moves[:2]), np.array(moves[2:])
    mine = (np.diag(np.square(sigmas[:2])), np.diag(np.square(sigmas[2:])))
    theirs = mine if shared else tuple(2 * part for part in mine)
    forward = better_score(np.array([gain]), one[None], two, (mine, theirs), shared=shared)
    backward = better_score(np.array([-gain]), two[None], one, (theirs, mine), shared=shared)
    (ahead,), (behind,) = normal_probability(forward), normal_probability(backward)
    assert ahead + behind == pytest.approx(1)
    assert (ahead > 0.5) <= (gain > 0)


def test_a_shared_error_cancels_and_comparisons_are_as_sure_as_they_say():
    """It does so as far as both move alike, so that less uncertainty is left on one device."""
    one, gain = np.ones((1, 1)), np.array([0.1])
    errors = (np.array([[0.09]]), np.array([[0.01]]))
    for shared, variance in ((True, 0.02), (False, 0.2)):
        score = better_score(gain, one, one[0], (errors, errors), shared=shared)
        assert score == pytest.approx(0.1 / math.sqrt(variance))
    # Estimates that know splits apart, errors in common and alone as the bands have them.
    rows = synthetic(0.15, common=0.5, sources=20, runs=8)
    known = np.exp(np.random.default_rng(2).normal(0, 0.3, len(rows)))
    rows = again(rows.assign(estimated=known, measured=rows.measured * known))
    rated = intervals.count_comparisons(rows, intervals.fit_bands(rows, GROUPS, "test"), GROUPS)
    assert rated.pairs.sum() > 2000
    assert (rated.probability - rated.better).abs().max() < 0.06


def test_splits_of_a_plan_are_compared_and_those_of_one_engine_more_surely():
    for parts in ({"options": {"engines": ["vllm"]}}, {"objective": {"optimize": "latency"}}):
        rated = plan_splits(make_request(**parts))  # latency moves with two figures
        best, rows = rated.best_row, rated.order[~rated.queues[rated.order]]
        chances = beats(rated, rows, best)
        assert max(chances) == chances[0] == 0.5
        if "options" in parts:
            assert chances == sorted(chances, reverse=True)
    back = [beats(rated, [best], int(row))[0] for row in rows]
    assert np.add(chances, back) == pytest.approx(1)
    assert count_ties(rated) == sum(chance >= 0.4 for chance in chances) - 1
    rated = plan_splits(make_request(objective={"optimize": "gpus"}))  # whose number is certain
    holding = rated.order[rated.holds[rated.order]]
    assert set(beats(rated, holding, rated.best_row)) <= {0.0, 0.5}
    # Splits as far apart by estimate: on one device and engine less of the error is left.
    rated = plan_splits(make_request(options={"engines": ["vllm", "sglang"]}))
    best = rated.best_row
    candidates = [rated.candidate(int(row)) for row in rated.order]
    engines = np.array([of["engine"] for of in candidates])
    chances = beats(rated, rated.order, best)
    scores = np.array([NORMAL.inv_cdf(max(chance, 1e-12)) for chance in chances])
    rate = rated.columns["output_tokens_per_s"]
    gains = np.log(rate[rated.order] / rate[best])
    known = (gains < -0.05) & (gains > -0.6) & (np.abs(scores) > 1e-3)
    sigma, same = gains[known] / scores[known], (engines == engines[0])[known]
    assert 0 < same.sum() < len(same)
    assert sigma[same].max() < sigma[~same].min()
    # of one layout no estimate tells which engine measures better
    layouts = [[of.get(name) for name in ("tp", "pp", "dp", "ep", "kv_dtype")] for of in candidates]
    twins = [k for k, of in enumerate(layouts[1:], 1) if of == layouts[0]]
    assert [chances[k] for k in twins] == [pytest.approx(0.5, abs=0.02)] * len(twins)
    assert twins
    assert "No measurable difference" in against_best(rated, int(rated.order[twins[0]]))


def test_two_engines_on_one_layout_err_apart():
    """What they err by together is no error of their difference."""
    rows = synthetic(0.05, common=0.4)
    second = rows.assign(engine="second", measured=rows.measured * 1.2, estimated=rows.estimated)
    gap = intervals.engine_gaps(again(rows.assign(engine="first"), second))
    assert gap == {}  # lengths and formats are not known
    known = {"mode": "closed", "lengths": "1 + 1", "weight_dtype": "fp8"}
    rows, second = rows.assign(engine="first", **known), second.assign(**known)
    gap = intervals.engine_gaps(again(rows, second))["tpot_s"]
    assert gap.apart == pytest.approx(math.log(1.2), rel=0.01)
    assert (gap.measured_share, gap.cells) == (0.0, 4)
    told = second.assign(estimated=second.estimated * 1.2)
    gap = intervals.engine_gaps(again(rows, told))["tpot_s"]
    assert (gap.apart, gap.measured_share) == (0.0, 1.0)


@pytest.mark.nightly
def test_published_runs_are_inside():
    """In sample: the engines' numbers are fitted to these runs among others."""
    tables = coverage_tables(compare_with_estimates(published_runs()).figures)
    assert tables["all"].inside_80.tolist() == pytest.approx([0.8], abs=0.05)
    assert set(tables["vendors"].vendor) == {"amd", "nvidia"}


def test_sources_left_out_are_inside():
    """As docs/reference/accuracy.md says: overall and by vendor, within six points of 80 %."""
    path = ROOT / "docs" / "reference" / "accuracy" / "intervals.json"
    report = json.loads(path.read_text())["serving"]
    for row in (*report["all"], *report["vendors"]):
        assert row["inside_80"] == pytest.approx(0.8, abs=0.06), row
    sure = [row["better"] - row["probability"] for row in report["comparisons"]]
    assert min(sure) > -0.05  # a split is not called better more surely than it is


def test_the_command_line_counts_them(tmp_path):
    path = tmp_path / "runs.csv"
    pd.DataFrame([published_runs()[0].model_dump(exclude_none=True)]).to_csv(path, index=False)
    command = ["validate", str(path), "--bands"]
    answer = json.loads(recipe(*command, "--json").stdout)
    assert answer["levels"] == {"inside_50": 0.5, "inside_80": 0.8, "inside_95": 0.95}
    assert set(answer) == {"levels", "all", "figures", "vendors", "engines", "modes"}
    assert "in 80 %" in recipe(*command).stdout
    refused = recipe(*command, "--by", "model")
    assert (refused.returncode, "two questions" in refused.stderr) == (2, True)


def sized(measured, estimated, spread=1.05, **changed):
    """Runs on 1, 2, 4 … devices, each estimate with intervals of a normal error."""
    rows = []
    for k, (run, value) in enumerate(zip(measured, estimated, strict=True)):
        ends = {
            f"{side}{name}": value * spread ** (sign * score)
            for name, score in (("_50", 0.674), ("", 1.282), ("_95", 1.96))
            for side, sign in (("low", -1), ("high", 1))
        }
        rows.append(table("calibration", "shared") | changed | {"tp": 2**k, "measured": run} | ends)
    return pd.DataFrame(rows)


def test_a_good_estimate_has_the_measured_count_inside_its_range():
    measured = [40.0, 22.0, 13.0]
    cases = size_cases(sized(measured, [41.0, 21.0, 12.5]))
    assert cases.measured.tolist() == [2, 1]
    assert cases.inside.all()
    assert (cases["last"] - cases["first"]).max() <= 1
    wrong = sized(measured, [12.0, 6.0, 3.0], spread=1.02)  # and sure of itself
    assert not size_cases(wrong).inside.any()
    assert sizes_view(wrong)["inside"] == 0
    # limits on throughput are the least
    cases = size_cases(sized([100.0, 190.0], [105.0, 200.0], figure="output_tokens_per_s"))
    assert cases.limit.tolist() == pytest.approx([np.sqrt(100 * 190)])
    assert (cases.measured.tolist(), cases.inside.all()) == ([1], True)
    # loads of a split are a ladder
    rows = sized([10.0, 20.0, 40.0], [11.0, 19.0, 41.0])
    cases = size_cases(rows.assign(tp=8, load=[8.0, 16.0, 32.0]))
    assert (set(cases.ladder), cases.inside.all()) == ({"load"}, True)
    # excluded runs and single ones make no case
    assert not len(size_cases(rows.assign(exclude="a copy")))
    assert not len(size_cases(rows.iloc[:1]))
    assert "No runs differ" in sizes_text(rows.iloc[:1])


@pytest.mark.nightly
def test_shipped_runs_lie_in_the_ranges_more_often_than_in_three_of_four_cases():
    view = json.loads(recipe("validate", "--sizes", "--json").stdout)
    assert view["cases"] > 200
    assert view["inside"] >= 0.75
    assert view["range_rungs"] < view["rungs"]
    assert {part["vendor"] for part in view["groups"] if "vendor" in part} == {"amd", "nvidia"}
    assert "cases inside" in recipe("validate", "--sizes").stdout
    for more in (["--bands"], ["--by", "device"], ["--training"]):
        assert recipe("validate", "--sizes", *more).returncode == 2
