"""What the choice by estimates costs beside the best that was measured."""

import json

import pandas as pd
import pytest

from recipe_core.calibration.validation import regret
from recipe_core.estimates.measured.runs import published_runs, sources_in_doubt
from recipe_core.hardware.offers import TODAY
from tests.conftest import LLAMA_70B
from tests.fixtures.command_line import recipe

PLAIN = {
    "source": "lab",
    "model": LLAMA_70B,
    "engine": "vllm",
    "version": "1",
    "weight_dtype": "bf16",
    "kv_dtype": "auto",
    "max_num_seqs": None,
    "memory_fraction": None,
    "max_batched_tokens": None,
    "mode": "closed",
    "scenario": "",
    "input_tokens": 512,
    "output_tokens": 100,
    "device": "h100-sxm",
    "vendor": "nvidia",
    "nodes": 1,
    "pp": 1,
    "dp": 1,
    "ep": 1,
    "exclude": "",
    "load": 16.0,
}


def figures(*rows):
    """Figures as a comparison gives them: (TP, changes, figure → measured and estimated)."""
    out = []
    for n, (tp, changes, seen) in enumerate(rows):
        for figure, (measured, estimated) in seen.items():
            row = PLAIN | {"tp": tp, "per_node": tp} | changes | {"id": f"run{n}"}
            out.append(row | {"figure": figure, "measured": measured, "estimated": estimated})
    return pd.DataFrame(out)


def queued(tp, measured, estimated, **changes):
    seen = {"output_tokens_per_s": (measured, estimated)}
    return tp, {"mode": "offline", "load": 1000.0} | changes, seen


def choices(*rows):
    return regret.regret_choices(figures(*rows))


def test_queued_layouts_are_compared_by_device_seconds_a_token():
    # per device 100, 120 and 60 tokens/s measured; by estimate the first is best
    (row,) = choices(queued(1, 100, 110), queued(2, 240, 200), queued(4, 240, 300)).itertuples()
    assert (row.choice, row.compared, row.options) == ("layout", "all queued", 3)
    assert (row.chosen, row.best) == ("h100-sxm, TP 1", "h100-sxm, TP 2")
    assert row.regret == pytest.approx(0.2)
    assert row.at_random == pytest.approx((0.2 + 0.0 + 1.0) / 3)
    assert (row.largest_tp, row.fewest_devices) == (pytest.approx(1.0), pytest.approx(0.2))
    # total tokens say the same
    in_total = [(1, {"mode": "offline"}, {"total_tokens_per_s": (612.0, 612.0)}), queued(2, 210, 1)]
    assert choices(*in_total).regret.tolist() == [pytest.approx(0.05)]
    # estimates that are equal choose neither: the mean counts
    equal = choices(queued(1, 100, 100), queued(2, 400, 200))
    assert equal.regret.tolist() == [pytest.approx(0.5)]


def test_layouts_on_as_many_devices_are_compared_by_time_at_the_same_load():
    time = {"tpot_ms": (10.0, 12.0)}
    deep = (4, {"pp": 2, "per_node": 8}, {"tpot_ms": (15.0, 11.0)})
    (row,) = choices((8, {}, time), deep).itertuples()
    assert (row.compared, row.at, row.regret) == ("same load", "load 16", pytest.approx(0.5))
    assert row.chosen == "h100-sxm, TP 4 × PP 2"
    for other in (
        (4, {}, {"tpot_ms": (15.0, 11.0)}),
        (4, {"pp": 2, "per_node": 8, "load": 8.0}, {"tpot_ms": (15.0, 11.0)}),
        (4, {"pp": 2, "per_node": 8, "version": "2"}, {"tpot_ms": (15.0, 11.0)}),
        (8, {}, {"tpot_ms": (15.0, 11.0)}),
    ):
        assert choices((8, {}, time), other).empty
    # the median of repeated runs counts
    again = (8, {}, {"tpot_ms": (14.0, 12.0)})
    (row,) = choices((8, {}, time), again, deep).itertuples()
    assert row.regret == pytest.approx(15 / 12 - 1)


def curve(tp, *points):
    """Runs by load: (load, ms per token measured, estimated); no time to the first token."""
    return [
        (
            tp,
            {"load": load},
            {"tpot_ms": seen, "request_latency_ms": (100 * seen[0], 100 * seen[1])},
        )
        for load, *seen in points
    ]


def test_at_a_limit_curves_are_compared_where_both_were_measured():
    # cost per token: devices · time / load. TP 2 from 10 to 40 ms, TP 4 from 5 to 20 ms
    rows = [*curve(2, (10, 10, 10), (40, 40, 40)), *curve(4, (10, 5, 5), (160, 20, 20))]
    found = choices(*rows)
    assert found["at"].tolist() == ["10 ms per token", "20 ms per token"]
    assert set(found.compared) == {"at a limit"}
    assert (found.sweep.nunique(), found.weight.tolist()) == (1, [0.5, 0.5])
    # at 20 ms TP 2 costs 2 ms of a device, TP 4 2 · 20 / 160 = 0.5
    assert found.regret.tolist() == [0.0, 0.0]
    assert found.at_random.tolist()[1] == pytest.approx((2 / 0.5 - 1) / 2)
    # estimates of TP 4 that are 8 × too slow are followed beyond their points
    slow = [*rows[:2], *curve(4, (10, 5, 40), (160, 20, 160))]
    assert choices(*slow).regret.tolist()[1] == pytest.approx(3.0)
    assert choices(*rows[:2], *curve(4, (10, 5, 5))).empty  # one load is no curve
    assert choices(*rows[:2], *curve(4, (10, 50, 5), (20, 60, 6))).empty  # apart


def test_a_slower_point_of_less_load_costs_as_much_as_the_load_beyond_it():
    uneven = curve(2, (10, 10, 10), (20, 30, 30), (40, 20, 20))
    steady = curve(4, (10, 5, 5), (80, 30, 30))
    at_30 = choices(*uneven, *steady).set_index("at").loc["30 ms per token"]
    # load 40 at 30 ms or less: 2 · 20 / 40 = 1 beats 4 · 30 / 80
    assert (at_30.best, at_30.at_random) == ("h100-sxm, TP 2", pytest.approx(0.25))
    # and a higher load that costs more is not taken: 4 · 5 / 10 = 2, 4 · 30 / 40 = 3
    at_30 = choices(*uneven, *curve(4, (10, 5, 5), (40, 30, 30))).set_index("at")
    assert at_30.loc["30 ms per token"].at_random == pytest.approx(0.5)


def test_devices_are_compared_by_list_prices_that_are_the_same_on_every_day(monkeypatch):
    h100, a100 = regret.list_price("h100-sxm"), regret.list_price("a100-sxm-80gb")
    assert 0 < a100[0] < h100[0]
    rows = queued(1, 100, 100), queued(1, 90, 40, device="a100-sxm-80gb")
    (row,) = choices(*rows).itertuples()
    assert (row.choice, row.options) == ("device and layout", 2)
    assert row.best == "a100-sxm-80gb, TP 1"
    assert row.regret == pytest.approx((h100[0] / 100) / (a100[0] / 90) - 1)
    assert choices(rows[0], queued(1, 90, 90, device="apple-m4-max-128gb")).empty  # no price
    regret.list_price.cache_clear()
    monkeypatch.setenv(TODAY, "2030-01-01")
    assert regret.list_price("h100-sxm") == h100


def test_excluded_runs_and_sources_in_doubt_take_no_part_and_are_named():
    doubt = next(iter(sources_in_doubt()))
    rows = [queued(1, 100, 100), queued(2, 100, 300)]
    assert choices(rows[0], queued(2, 100, 300, exclude="a copy")).empty
    in_doubt = figures(*(queued(tp, 100, 100, source=doubt) for tp in (1, 2)))
    assert regret.regret_choices(in_doubt).empty
    view = regret.regret_view(in_doubt)
    assert (view["all"], view["worst"], view["left_out"]) == ([], [], [doubt])
    text = regret.regret_text(in_doubt)
    assert f"in doubt: {doubt}." in text
    assert "Regret: median / p90\n  none" in text
    assert "in doubt: none." in regret.regret_text(figures(*rows))


def test_sweeps_count_alike_however_many_choices_they_have():
    frame = pd.DataFrame({"regret": [0.0] * 9 + [1.0], "weight": [1 / 9] * 9 + [1.0], "sweep": 0})
    frame = frame.assign(choice="layout", **dict.fromkeys(regret.RULES, 0.5))
    (row,) = regret.group_regrets(frame, ["choice"]).to_dict(orient="records")
    assert (row["sweeps"], row["choices"], row["as_good"]) == (2, 10, pytest.approx(0.5))
    assert (row["median"], row["p90"], row["at_random_p90"]) == (0.0, 1.0, 0.5)


def test_the_command_says_what_choices_cost_over_the_shipped_runs():
    view = json.loads(recipe("validate", "--regret", "--json").stdout)
    by_choice = {row["choice"]: row for row in view["all"]}
    assert by_choice["layout"]["sweeps"] >= 25
    assert by_choice["device and layout"]["sweeps"] >= 15
    for row in view["all"]:  # what a buyer is promised
        assert row["median"] <= 0.02
        assert row["p90"] <= 0.10
        assert row["p90"] < min(row[f"{rule}_p90"] for rule in regret.RULES)
    vendors = {row["vendor"] for row in view["vendors"]}
    assert vendors >= {"amd", "nvidia"}
    assert {row["source"] for row in view["sources"]}.isdisjoint(sources_in_doubt())
    assert set(view["left_out"]) == {run.source for run in published_runs()} & sources_in_doubt()
    assert {"device", "usd_per_device_hour", "as_of"} == set(view["prices"][0])
    text = recipe("validate", "--regret").stdout
    for part in ("fewest devices", "List prices", view["worst"][0]["chosen"]):
        assert part in text
    for more in (["--bands"], ["--by", "device"], ["--training"]):
        assert recipe("validate", "--regret", *more).returncode == 2
