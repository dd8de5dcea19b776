"""Figures and words of a simulation over time."""

import numpy as np
import pytest

from recipe_core.base.units import percent_text
from recipe_core.request.over_time import DAY_S
from recipe_core.views import over_time as view
from recipe_core.views.charts.over_time import (
    first_tokens,
    hours_of_week,
    load_and_capacity,
    money_so_far,
    part,
    replicas_over_time,
    so_far,
    weekly,
    within_limits,
)
from recipe_core.views.charts.policies import cost_against_share, missed, policy_costs, start_phases
from recipe_core.views.columns import column_frame
from tests.fixtures.over_time import CAPACITY, answer, policy, rates, start, without_price
from tests.fixtures.rows import table

WEEK = answer()
WHOLE = (0.0, WEEK["load"]["span_s"])
KEDA, FIXED, HPA = WEEK["policies"]
DAY = view.days_of_load(WEEK["load"])["Tue"]


@pytest.mark.parametrize("window", [WHOLE, DAY], ids=["week", "day"])
@pytest.mark.parametrize("dark", [False, True])
def test_every_curve_covers_its_window(window, dark):
    curves = (load_and_capacity, replicas_over_time, first_tokens)
    for draw in (*curves, within_limits, money_so_far):
        for trace in draw(WEEK, KEDA, window, dark=dark).data:
            assert trace.x[0].startswith(f"2024-01-0{2 if window == DAY else 1}T00:00:00")
            assert len(trace.x) == len(trace.y) == round((window[1] - window[0]) / 3600) + 1


def test_ready_replicas_are_capacity_limits_are_lines_and_hours_without_requests_gaps():
    load, capacity = load_and_capacity(WEEK, KEDA, WHOLE).data
    assert list(load.y[:-1]) == pytest.approx(rates(7))
    assert capacity.y[12] == KEDA["series"]["ready"][12] * CAPACITY
    ready, starting, wanted = replicas_over_time(WEEK, KEDA, DAY).data
    assert ready.stackgroup == starting.stackgroup
    assert starting.fillpattern.shape
    assert wanted.stackgroup is None
    there = np.add(ready.y, starting.y)
    assert np.all(there[:-1] == np.array(wanted.y[:-1]))
    layout = first_tokens(WEEK, KEDA, WHOLE).layout
    assert layout.shapes[0].y0 == 2.0
    assert "2.00 s" in layout.annotations[0].text
    quiet = policy("keda", [1] * 24, [0.0] * 3 + [1.0] * 21)
    share = within_limits(WEEK, quiet, (0.0, DAY_S)).data[0]
    assert list(share.y[:4]) == [None, None, None, 100.0]
    assert within_limits(WEEK, HPA, WHOLE).layout.shapes[0].y0 == 99.0


def test_cost_so_far_ends_at_the_whole_cost_and_without_a_price_at_the_hours():
    paid = (WEEK["bounds"]["always_peak"], KEDA, WEEK["bounds"]["clairvoyant"])
    for cost, trace in zip(paid, money_so_far(WEEK, KEDA, WHOLE).data, strict=True):
        assert trace.y[0] == 0
        assert trace.y[-1] == pytest.approx(cost["usd"])
        assert list(trace.y) == sorted(trace.y)
    _, paid = so_far(KEDA["series"], KEDA["usd"], DAY)
    assert 0 < paid[0] < paid[-1] < KEDA["usd"]
    found = without_price(answer())
    assert policy_costs(found).layout.xaxis.title.text == "GPU-hours"
    hours = [KEDA["gpu_hours"], FIXED["gpu_hours"]]
    assert list(cost_against_share(found).data[0].y) == hours
    assert "GPU-hours" in view.over_time_verdict(found)[1]
    money = money_so_far(found, found["policies"][0], WHOLE)
    assert money.data[1].y[-1] == pytest.approx(KEDA["gpu_hours"])


def test_many_intervals_and_hours_of_a_week_are_drawn_as_fewer_that_keep_counts_and_means():
    count = 10_080
    series = {"interval_s": 60.0, "arrived": [2] * count, "ready": [3] * count}
    seconds, arrived, step = part(series, "arrived", (0.0, count * 60.0))
    assert len(arrived) <= 1500
    assert arrived.sum() == pytest.approx(2 * count)
    assert set(part(series, "ready", (0.0, count * 60.0))[1]) == {3.0}
    assert seconds[1] == step
    means = weekly(np.repeat(rates(14), 2), 1800.0, 0)
    assert means.shape == (7, 24)
    assert (means[0, 12], means[6, 12]) == pytest.approx((9.0, 4.5))
    tuesday = weekly(np.ones(24), 3600.0, 24)
    assert np.isnan(tuesday[0]).all()
    assert (tuesday[1] == 1).all()
    drawn = hours_of_week([1.0] * 24, 3600.0, 24).data[0]
    assert (drawn.z[0][0], drawn.z[1][0]) == (None, 1.0)


def test_bars_are_costs_and_names_that_find_no_room_are_left_to_the_hover():
    figure = policy_costs(WEEK, "keda")
    keeps, misses = figure.data[:2]
    assert list(keeps.x) == [KEDA["usd_per_month"], FIXED["usd_per_month"]]
    assert list(keeps.y) == ["<b>KEDA</b>", "Fixed number"]
    assert misses.marker.pattern.shape
    bounds = [bound["usd_per_month"] for bound in WEEK["bounds"].values()]
    assert {shape.x0 for shape in figure.layout.shapes} == set(bounds)
    figure = cost_against_share(WEEK, "keda")
    keeps, misses, lines = figure.data
    assert misses.x[0] == pytest.approx(1 - HPA["attainment"]["value"])
    assert list(lines.y) == bounds
    assert figure.layout.shapes[0].x0 == missed(0.99)
    assert figure.layout.xaxis.range[0] > figure.layout.xaxis.range[1]  # more to the right
    assert keeps.marker.size[0] > keeps.marker.size[1]
    crowd = [{**KEDA, "name": name} for name in ("keda", "kpa", "hpa", "skyserve")]
    points = cost_against_share(answer(policies=crowd), "skyserve").data[0]
    named = dict(zip(points.text, points.textposition, strict=True))
    named.pop("")
    assert named == {"<b>SkyServe</b>": "top center", "KEDA": "bottom center"}
    assert {names[0] for names in points.customdata} >= {"Kubernetes HPA", "Knative KPA"}


def test_the_verdict_names_the_cheapest_policy_or_what_is_nearest():
    good, said = view.over_time_verdict(WEEK)
    assert good
    assert said.startswith("Cheapest is KEDA: $13,")
    assert "100 % within the limits" in said
    assert "50 % of what replicas for the peak cost" in said
    good, said = view.over_time_verdict(answer(best=None, policies=[HPA]))
    assert not good
    assert said.startswith("No policy keeps the limits for 99 % of the requests. Nearest is Kub")
    assert view.over_time_verdict(answer(best=None, policies=[])) == (
        False,
        "No policy was simulated",
    )


def test_moments_days_phases_shares_and_parameters_are_named_and_every_policy_is_in_the_table():
    assert view.week_time(0) == "Mon 00:00"
    assert view.week_time(14.5 * 3600, start_hour=24) == "Tue 14:30"
    assert view.week_time(8 * DAY_S) == "Tue 00:00 (day 9)"
    days = view.days_of_load({"span_s": 2 * DAY_S, "start_hour": 12})
    assert list(days) == ["Whole", "Mon", "Tue", "Wed"]
    assert days["Mon"] == (0.0, DAY_S / 2)
    assert days["Wed"] == (1.5 * DAY_S, 2 * DAY_S)
    assert list(view.days_of_load({"span_s": 3600.0, "start_hour": 0})) == ["Whole"]
    assert "Mon, week 2" in view.days_of_load({"span_s": 8 * DAY_S, "start_hour": 0})
    *phases, whole = start_phases(start()).data
    assert [bar.name for bar in phases] == ["Node", "Image", "Weights"]
    assert sum(bar.x[0] for bar in phases) == whole.x[0] == whole.error_x.array[0] == 195.0
    shares = table("over_time_charts", "shares")  # below all none reads as all
    assert {share: percent_text(share) for share in shares} == shares
    rows = view.scaling_rows(table("over_time_charts", "scaling"))
    assert table("over_time_charts", "named").items() <= rows.items()
    keda = view.scaling_rows(KEDA["scaling"])
    assert keda["Target of requests at once"] == "12 a replica"
    columns = view.policy_columns(WEEK)
    table_of = column_frame(view.policies_and_bounds(WEEK), columns)
    assert table_of["Policy"].tolist()[:3] == ["KEDA", "Fixed number", "Kubernetes HPA"]
    assert table_of["Keeps limits"].tolist() == ["yes", "yes", "no", "bound", "bound"]
    assert table_of["Within limits"][2] == HPA["attainment"]["value"]


def test_the_verdict_says_how_sure_the_cheapest_is_where_that_decides_or_lacks():
    first, *rest = WEEK["policies"]
    assert first["name"] == WEEK["best"]
    cheap = {**rest[0], "meets": True, "confidence": 0.4, "gpu_hours": first["gpu_hours"] / 2}
    sure = {**first, "confidence": 1.0}
    answer = {**WEEK, "policies": [sure, cheap], "confidence_wanted": 0.8}
    assert view.over_time_verdict(answer)[1].startswith("Cheapest that is 80 % sure is ")
    assert view.over_time_verdict({**answer, "policies": [sure]})[1].startswith("Cheapest is ")
    unsure = {**answer, "policies": [{**first, "confidence": 0.6}]}
    start = "None is 80 % sure; cheapest (60 % of the repetitions keep the limits) is "
    assert view.over_time_verdict(unsure)[1].startswith(start)
