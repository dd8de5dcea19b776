"""How long a size lasts: by hand, and what holds of every ladder."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe_core.sizing.growth import Step, grow, grow_all, load_by_month
from tests.fixtures.refusals import refusal

LADDER = [Step(1, 8, 10.0, 20.0), Step(2, 16, 20.0, 40.0), Step(4, 32, 40.0, 70.0)]


@st.composite
def ladders(draw):
    counts = sorted(draw(st.sets(st.integers(1, 50), min_size=1, max_size=6)))
    numbers = st.floats(0.1, 1e3)
    return [Step(n, 8 * n, draw(numbers), draw(numbers)) for n in counts]


def test_loads_that_double_stay_fall_or_leave_the_ladder_by_hand():
    found = grow(LADDER, 8.0, 1.0, 4)
    assert found.load == (8, 16, 32, 64)
    assert found.steps == (0, 1, 2, None)
    assert found.usd_by_month == (20 * 730, 40 * 730, 70 * 730, None)
    assert (found.holds_until, found.next_unit_month, found.ends_month) == (0, 1, 3)
    assert found.total_usd is None
    shorter = grow(LADDER, 8.0, 1.0, 3)
    assert shorter.ends_month is None
    assert shorter.total_usd == 130 * 730
    assert json.loads(json.dumps(found.to_json()))["ladder"][2]["count"] == 4
    assert LADDER[0].to_json() == {"count": 1, "units": 8, "capacity": 10.0, "usd_per_hour": 20.0}

    def moments(found):
        return found.holds_until, found.next_unit_month, found.ends_month

    tenth = grow(LADDER, 8.0, 0.1)
    # 8 · 1.1^2 = 9.68 and 8 · 1.1^3 = 10.6; 8 · 1.1^16 = 36.8 and 8 · 1.1^17 = 40.4
    assert moments(tenth) == (2, 3, 17)
    assert len(tenth.load) == 36
    same = grow(LADDER, 10.0, 0.0, 12)
    assert (set(same.steps), moments(same)) == ({0}, (11, None, None))
    falling = grow(LADDER, 32.0, -0.5, 4)
    assert (falling.steps, moments(falling)[:2]) == ((2, 1, 0, 0), (3, None))
    assert falling.total_usd == 150 * 730
    beyond = grow(LADDER, 50.0, 0.1, 3)
    assert (beyond.steps, moments(beyond)) == ((None, None, None), (None, None, 0))
    shrinks = grow(LADDER, 50.0, -0.5, 3)
    assert (shrinks.steps, shrinks.next_unit_month) == ((None, 2, 1), None)
    assert moments(grow(LADDER[:1], 8.0, 1.0, 3)) == (0, None, 1)
    # a larger step that costs less is taken
    ladder = [Step(1, 8, 10.0, 50.0), Step(2, 16, 30.0, 40.0), Step(3, 24, 20.0, 40.0)]
    assert grow(ladder, 5.0, 1.0, 3).steps == (2, 2, 2)
    assert grow(ladder, 25.0, 0.0, 1).steps == (1,)


@given(ladders(), st.floats(0.1, 1e3), st.floats(-0.5, 1), st.integers(1, 60))
def test_the_cheapest_step_that_carries_the_load_is_paid(ladder, load, growth, months):
    found = grow(ladder, load, growth, months)
    for value, place, usd in zip(found.load, found.steps, found.usd_by_month, strict=True):
        enough = [step.usd_per_hour for step in ladder if step.capacity >= value]
        if place is None:
            assert (enough, usd) == ([], None)
        else:
            assert ladder[place].capacity >= value
            assert usd == pytest.approx(min(enough) * 730)
    used = [ladder[place] for place in found.steps if place is not None]
    if growth < 0:
        used.reverse()
    assert used == sorted(used, key=lambda step: (step.usd_per_hour, step.capacity))
    assert [step.capacity for step in used] == sorted(step.capacity for step in used)
    if found.total_usd is not None:
        assert found.ends_month is None
        assert found.total_usd == pytest.approx(sum(found.usd_by_month))
    if found.holds_until is not None:
        capacity = ladder[found.steps[0]].capacity
        assert all(value <= capacity for value in found.load[: found.holds_until + 1])
        assert all(value > capacity for value in found.load[found.holds_until + 1 :])


def test_the_cheapest_choice_changes():
    small = [Step(n, n, 10.0 * n, 10.0 * n) for n in range(1, 4)]
    large = [Step(1, 8, 100.0, 25.0)]
    found = grow_all({"small": small, "large": large}, 8.0, 1.0, 5)
    # 8, 16, 32, 64, 128
    assert found.cheapest_by_month == ("small", "small", "large", "large", None)
    assert found.changes == ((2, "large"), (4, None))
    assert found.cheapest is None
    shorter = grow_all({"small": small, "large": large}, 8.0, 1.0, 4)
    assert shorter.cheapest == "large"
    assert grow_all({"small": small, "large": large}, 8.0, 1.0, 2).cheapest == "small"
    out = json.loads(json.dumps(found.to_json()))
    assert out["changes"] == [{"month": 2, "cheapest": "large"}, {"month": 4, "cheapest": None}]
    assert out["growths"]["large"]["ends_month"] == 4


@given(st.lists(ladders(), min_size=1, max_size=4), st.floats(0.1, 100), st.floats(-0.3, 0.3))
def test_choices_together_are_those_alone(several, load, growth):
    named = {str(place): ladder for place, ladder in enumerate(several)}
    found = grow_all(named, load, growth, 12)
    alone = {name: grow(ladder, load, growth, 12) for name, ladder in named.items()}
    assert found.growths == alone
    totals = [each.total_usd for each in alone.values() if each.total_usd is not None]
    if totals:
        assert alone[found.cheapest].total_usd == min(totals)
    else:
        assert found.cheapest is None
    current = found.cheapest_by_month[0]
    for month, name in enumerate(found.cheapest_by_month):
        current = dict(found.changes).get(month, current)
        assert name == current
        costs = [each.usd_by_month[month] for each in alone.values()]
        known = [cost for cost in costs if cost is not None]
        assert (name is None) == (not known)
        if known:
            assert alone[name].usd_by_month[month] == min(known)


def test_what_makes_no_sense_is_refused_by_name():
    calls = [
        ("count", Step, 0, 8, 1.0, 1.0),
        ("units", Step, 1, 0, 1.0, 1.0),
        ("capacity", Step, 1, 8, 0.0, 1.0),
        ("usd_per_hour", Step, 1, 8, 1.0, -1.0),
        ("load", load_by_month, 0, 0.1),
        ("growth_per_month", load_by_month, 1, -1),
        ("months", load_by_month, 1, 0.1, 121),
        ("ladder", grow, [], 1, 0.1),
        ("ladder", grow, LADDER[::-1], 1, 0.1),
        ("ladders", grow_all, {}, 1, 0.1),
        ("ladders.b", grow_all, {"a": LADDER, "b": LADDER[:1] * 2}, 1, 0.1),
    ]
    errors = [refusal(*call) for _, *call in calls]
    assert [error.field for error in errors] == [field for field, *_ in calls]
    assert all(error.hint for error in errors)
