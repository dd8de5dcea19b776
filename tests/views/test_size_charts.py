"""Figures and texts of a sizing's answer."""

from functools import cache

import pytest

from recipe_core.request.size import SizeRequest
from recipe_core.sizing.answer import Answer
from recipe_core.sizing.size import size_devices
from recipe_core.views import columns, size_text, size_view
from recipe_core.views.charts.size import (
    axes_of,
    cheapest_points,
    confidence_curves,
    cost_against,
    cost_bars,
    growth_costs,
    owned_or_rented,
)
from tests.fixtures.rows import table


@cache
def found(name, **limits):
    value = table("size_charts", name)
    value["objective"]["limits"] = limits
    return Answer(size_devices(SizeRequest.parse(value)))


@cache
def sized(name, **limits):
    return found(name, **limits).to_json()


def answer(tpot_ms=40.0):
    return sized("service", tpot_ms=tpot_ms)


def training():
    return sized("run", wall_hours=336.0)


def test_a_bar_is_the_cost_of_a_month_in_work_and_idle():
    for found in (answer(), training()):
        rows = sorted(found["devices"], key=lambda row: row["usd_per_month"])
        bars = cost_bars(found, size_view.key(rows[0])).data
        for n, row in enumerate(rows):
            assert sum(bar.x[n] for bar in bars) == pytest.approx(row["usd_per_month"])
            assert size_view.short(row) in bars[0].y[n]
            assert size_view.money(row, "month") in bars[-1].text[n]
        assert bars[0].y[0].startswith("<b>")
    with_idle = answer()["best"] | {"idle": 1, "devices_rented": 4}
    work, idle = cost_bars({"devices": [with_idle]}).data
    assert (work.name, idle.name) == ("Devices at work", "Idle devices")
    assert idle.x[0] == pytest.approx(with_idle["usd_per_month"] / 4)
    assert idle.marker.pattern.shape
    assert "idle" in idle.text[0]


def test_cost_falls_along_the_frontier_which_nothing_beats():
    points = [(1.0, 9.0, {}), (2.0, 5.0, {}), (3.0, 6.0, {}), (4.0, 1.0, {})]
    assert [x for x, _, _ in cheapest_points(points)] == [1.0, 2.0, 4.0]
    assert [x for x, _, _ in cheapest_points(points, higher=True)] == [4.0]
    for axis in axes_of(answer()):
        figure = cost_against(answer(), axis, limit=40.0)
        front = next(trace for trace in figure.data if trace.name == "Cheapest of all devices")
        assert list(front.y) == sorted(front.y, reverse=axis != "tokens_per_s_per_user")
        assert figure.layout.shapes[0].x0 == {
            "tokens_per_s_per_user": 25.0,
            "request_latency_s": 0.04,
        }.get(axis, 40.0)
        open_marks = [trace for trace in figure.data if trace.name.endswith("over a limit")]
        filled = [trace for trace in figure.data if trace.mode == "lines+markers"]
        assert len(open_marks) == len(filled) == len(answer()["devices"])
    assert axes_of(training()) == ["wall_s"]
    figure = cost_against(training(), "wall_s", limit=336.0)
    assert figure.layout.yaxis.title.text == "$ for the run"
    assert training()["best"]["wall_s"] / 3600 in [x for trace in figure.data for x in trace.x]


def test_confidence_leaves_out_counts_that_cost_more_for_nothing_and_curves_differ():
    figure = confidence_curves(answer(), "mi300x", confidence=0.9)
    assert figure.layout.shapes[0].y0 == 90.0
    curves = {trace.name: trace for trace in figure.data}
    rows = [*answer()["devices"], *answer()["unpriced"]]
    assert set(curves) == {size_view.short(row) for row in rows}
    for row in rows:
        curve = curves[size_view.short(row)]
        kept = [rung for rung in row["ladder"] if not rung["dominated"]]
        assert list(curve.x) == [rung["devices_rented"] for rung in kept]
    widest = max(figure.data, key=lambda trace: trace.line.width)
    assert widest.name == "Instinct MI300X 192 GB"
    for dark in (False, True):
        figure = confidence_curves(answer(), dark=dark)
        named = [trace for trace in figure.data if trace.showlegend]
        for look in ("color", "dash"):
            assert len({trace.line[look] for trace in named}) == len(named)
        assert len({trace.marker.symbol for trace in named}) == len(named)


def test_growth_marks_the_next_unit_and_owning_meets_renting_where_the_curves_do():
    figure = growth_costs(answer(), "mi300x")
    marks = [trace for trace in figure.data if trace.mode == "markers"]
    for row in answer()["devices"]:
        at = [mark.x[0] for mark in marks if mark.name.startswith(size_view.short(row))]
        month = row["growth"]["next_unit_month"]
        assert at == ([] if month is None else [month])
        said = size_text.growth_text(row)
        assert month is None or f"Month {month} needs" in said
    cheapest = size_text.cheapest_sentence(answer()["growth"], answer()["devices"])
    assert "Cheapest over all months" in cheapest
    bought = answer()["best"]["purchase"]
    figure = owned_or_rented(bought)
    rented, up_front, written_off = (curve.y for curve in figure.data)
    month = bought["break_even_month"]
    assert figure.layout.shapes[0].x0 == month
    assert up_front[month] <= rented[month]
    assert up_front[month - 1] > rented[month - 1]
    assert written_off[0] == 0
    said = size_text.purchase_text(answer()["best"])
    assert f"has paid after {month} months" in said
    assert "By the hours of a day" in said


def test_text_tells_what_comes_after_of_the_best_and_energy_where_it_is_asked(monkeypatch):
    monkeypatch.setenv("COLUMNS", "240")
    text = size_text.size_text(found("service", tpot_ms=40.0))
    best = answer()["best"]
    lines = text.splitlines()
    assert lines[0] == size_view.split_sentence(best)
    cheapest = size_text.cheapest_sentence(answer()["growth"], answer()["devices"])
    assert f"growth: {size_text.growth_text(best)} {cheapest}" in lines
    for name, words in size_text.availability_facts(best).items():
        assert f"  {name}: {words}" in lines
    assert f"purchase: {size_text.purchase_text(best)}" in lines
    assert "Energy" not in text
    watts = size_text.size_text(found("service", tpot_ms=40.0, watts=20000.0))
    assert "Energy" in watts
    assert f" {best['watts']:,.0f} " in watts


def test_a_price_to_doubt_is_marked_and_a_verdict_says_what_is_lacking_or_would_win():
    sure = answer()["best"]
    row = {**sure, "offer": {**sure["offer"], "marks": ["unverified", "142 days old"]}}
    for text in (size_view.sentence, size_view.price_text, size_view.money):
        assert size_view.DOUBT in text(row)
        assert size_view.DOUBT not in text(sure)
    texts = [size_text.purchase_text(row), size_view.offer_facts(row)["Price"]]
    texts.append(size_text.availability_facts(row)["Cost with spares"])
    assert all(size_view.DOUBT in text for text in texts)
    good, said = size_view.size_verdict(answer(1.0))
    assert not good
    assert answer(1.0)["refused"][0]["title"] in said
    assert size_view.size_verdict({"devices": [], "refused": []})[0] is False
    best, second = answer()["devices"][:2]
    assert "stays the cheapest up to" in size_view.wins_sentence(best, best=True)
    assert "below $" in size_view.wins_sentence(second, best=False)
    wins = {**second, "wins_at": {"limits": {"tpot_ms": 25.0}, "load": 32.0}}
    said = size_view.wins_sentence(wins, best=False)
    assert "time per output token limited to 25.0 ms" in said
    assert "with 32 users at once" in said


def test_tables_hold_every_row():
    for found in (answer(), training()):
        rows = found["devices"]
        table = columns.column_frame(rows, size_view.size_columns(rows))
        assert len(table) == len(rows)
        assert table["month"].tolist() == [row["usd_per_month"] for row in rows]
        assert {"confidence", "price", "wins"} <= set(table)
        assert ("run" in table) == (found is training())
        row = found["best"]
        texts = columns.cell_texts(
            row["ladder"], size_view.size_columns(row["ladder"], ladder=True)
        )
        assert [cells[0] for cells in texts] == [size_view.rented(rung) for rung in row["ladder"]]
        assert len(size_view.headroom_rows(row)) == 1
    assert len(columns.cell_texts(answer()["refused"], size_view.REFUSED)) == len(
        answer()["refused"]
    )
