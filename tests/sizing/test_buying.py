"""Buying, renting and mixtures, and how long a size lasts: by hand and by every number of units."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from recipe_core.hardware.prices import HOURS_PER_MONTH, OwnershipCost
from recipe_core.sizing.growth import Step, grow_ladders, load_by_month
from recipe_core.sizing.growth import grow_ladder as grow_steps
from recipe_core.sizing.lifetime import buy_or_rent, cheapest_mixture, highest_price, monthly_cost
from tests.fixtures.refusals import refusal

STATED = {"capex_usd": 24_000, "years": 4, "watts": 1000, "usd_per_kwh": 0.1, "pue": 1.0}
PLAIN = OwnershipCost(**STATED, upkeep=0.05, use=1.0)  # a month: 500 capital, 100 upkeep, 73 power

ENDS = {"capex_usd": (100, 1e5), "years": (0.5, 8), "residual": (0, 0.9), "watts": (0, 2000)}
ENDS |= {"upkeep": (0, 0.3), "staff": (0, 0.3), "use": (0.1, 1)}
OWN = st.builds(OwnershipCost, **{name: st.floats(*ends) for name, ends in ENDS.items()})
PRICES = st.floats(0.01, 20)
LOADS = st.lists(st.floats(0, 100), min_size=24, max_size=24).filter(any)


def test_an_owned_month_and_its_staff_by_hand():
    month = monthly_cost(PLAIN)
    assert (month.capital_usd, month.upkeep_usd) == pytest.approx((500, 100))
    assert (month.staff_usd, month.power_usd) == pytest.approx((0, 73))
    assert (month.running_usd, month.total_usd) == pytest.approx((173, 673))
    three = monthly_cost(PLAIN.model_copy(update={"residual": 0.2, "staff": 0.1, "use": 0.5}), 3)
    assert (three.capital_usd, three.upkeep_usd) == pytest.approx((1200, 300))
    assert (three.staff_usd, three.power_usd) == pytest.approx((600, 109.5))
    own = OwnershipCost.of(devices_per_engineer=100, engineer_usd_per_year=180_000)
    assert monthly_cost(own).staff_usd == pytest.approx(150)
    assert own.standing_staff_usd_per_hour == pytest.approx(1800 / 8760)
    engineer = {"devices_per_engineer": 10, "engineer_usd_per_year": 1e5}
    for bad in (engineer | {"staff": 0.1}, *({name: value} for name, value in engineer.items())):
        error = refusal(OwnershipCost.of, **bad)
        assert error.field == "staff"
        assert "devices_per_engineer" in str(error)


@given(OWN)
def test_an_hour_of_use_pays_the_idle_ones(own):
    hour = own.idle_usd_per_hour / own.use + own.power_usd_per_hour
    assert own.usd_per_device_hour == pytest.approx(hour)
    staff = own.standing_staff_usd_per_hour / own.use
    parts = own.capital_usd_per_hour + own.upkeep_usd_per_hour + staff
    assert own.usd_per_device_hour == pytest.approx(parts + own.power_usd_per_hour)
    assert monthly_cost(own).total_usd == pytest.approx(own.usd_per_device_hour * own.use * 730)


def test_buying_pays_back_by_hand_and_renting_may_stay_cheaper():
    # 24,000 / (1,173 - 173 a month) = 24 months.
    found = buy_or_rent(PLAIN, 1173 / 730, devices=2, months=12)
    assert found.break_even_month == 24
    assert len(found.rented) == len(found.owned_up_front) == 13
    assert found.owned_up_front[:2] == pytest.approx((48_000, 48_346))
    assert found.owned_written_off[12] == pytest.approx(2 * 673 * 12)
    assert found.rented[12] == pytest.approx(2 * 1173 * 12) == found.rented_usd_per_month * 12
    half = buy_or_rent(PLAIN, 2 * 1173 / 730, rented_share=0.5)
    assert half.break_even_month == 24
    assert buy_or_rent(PLAIN, 0.2).break_even_month is None
    assert buy_or_rent(PLAIN, 0.9).break_even_month is None  # 657 a month: below 673
    # 673 a month is what owning costs over a life: paid with its last month, beyond the curves.
    assert buy_or_rent(PLAIN, 673 / 730).break_even_month == 48
    assert buy_or_rent(PLAIN.model_copy(update={"capex_usd": 0.0}), 0.2).break_even_month == 1


def test_a_device_is_replaced_at_the_end_of_its_life_and_has_a_highest_price():
    own = PLAIN.model_copy(update={"years": 1.0, "residual": 0.25})
    paid = buy_or_rent(own, 1.0, months=25).owned_up_front
    assert paid[11] == pytest.approx(24_000 + 11 * 173)
    assert paid[12] == pytest.approx(18_000 + 12 * 173)
    assert paid[13] == pytest.approx(42_000 + 13 * 173)
    assert paid[25] == pytest.approx(24_000 * 3 - 6_000 * 2 + 25 * 173)
    # 24 · (1,073 - 73) / (1 + 24 · 0.05 / 12) = 24,000 / 1.1
    assert highest_price(PLAIN, 1073 / 730, 24) == pytest.approx(24_000 / 1.1)
    assert highest_price(PLAIN, 0.05, 24) is None
    assert highest_price(PLAIN, 0.1, 24) == pytest.approx(0, abs=1e-9)


@given(OWN, PRICES, st.integers(1, 120), st.floats(0.1, 1))
def test_break_even_is_the_first_month_that_costs_no_more(own, price, months, share):
    found = buy_or_rent(own, price, 3, months=months, rented_share=share)
    month = found.break_even_month
    pairs = list(zip(found.owned_up_front, found.rented, strict=True))
    for owned, rented in pairs[1 : months + 1 if month is None else min(month, months + 1)]:
        assert owned > rented
    if month is not None and month <= months:
        assert pairs[month][0] <= pairs[month][1] * (1 + 1e-9)
    one = buy_or_rent(own, price, months=months, rented_share=share)
    assert found.rented == pytest.approx([3 * usd for usd in one.rented])
    assert found.owned_up_front == pytest.approx([3 * usd for usd in one.owned_up_front])


@given(OWN, PRICES, st.integers(1, 60))
def test_the_highest_price_is_where_buying_just_pays(own, price, months):
    highest = highest_price(own, price, months)
    if highest is None:
        assert price * 730 < monthly_cost(own.model_copy(update={"capex_usd": 0.0})).running_usd
        return
    assume(1 < highest < 1e8)

    def pays(capex):
        month = buy_or_rent(own.model_copy(update={"capex_usd": capex}), price).break_even_month
        return month is not None and month <= months

    assert pays(highest * (1 - 1e-6))
    assert not pays(highest * (1 + 1e-6))


OFFICE = [1.0] * 8 + [4.0] * 8 + [1.0] * 8


def test_mixtures_and_relative_loads_by_hand():
    """The second to fourth unit work 8 of 24 hours: renting them costs 16 a day, owning 24."""
    found, dear = (cheapest_mixture(OFFICE, 1.0, 1.0, price) for price in (2.0, 4.0))
    assert (found.owned_units, found.idle_share) == (1, 0)
    assert found.usd_per_month == pytest.approx((24 + 48) * 730 / 24)
    assert found.all_owned_usd_per_month == pytest.approx(96 * 730 / 24)
    assert found.all_rented_usd_per_month == pytest.approx(96 * 730 / 24)
    assert (dear.owned_units, dear.idle_share) == (4, pytest.approx(48 / 96))
    assert cheapest_mixture(OFFICE, 10.0, 1.0, 2.0, peak_load=40.0) == found
    assert cheapest_mixture([0.1] * 24, 0.05, 1.0, 2.0, peak_load=0.3).needed_units[0] == 6


@given(LOADS, st.floats(0.5, 20), PRICES, PRICES, st.floats(0, 1))
def test_the_mixture_is_the_cheapest_of_all(load, capacity, owned, rented, idle):
    found = cheapest_mixture(load, capacity, owned, rented, owned_idle_usd_per_hour=owned * idle)
    costs = []
    for base in range(max(found.needed_units) + 1):
        day = 0.0
        for need in found.needed_units:
            works = min(base, need)
            day += works * owned + (base - works) * owned * idle + (need - works) * rented
        costs.append(day * HOURS_PER_MONTH / 24)
    assert found.curve == pytest.approx(costs)
    assert found.usd_per_month == pytest.approx(min(costs))
    assert costs[found.owned_units] == pytest.approx(min(costs))
    assert found.usd_per_month <= min(found.all_rented_usd_per_month, found.all_owned_usd_per_month)
    for value, need, peak in zip(load, found.needed_units, found.rented_units, strict=True):
        assert min(found.owned_units, need) + peak == need
        assert need * capacity >= value * (1 - 1e-6) - 1e-6 * capacity
        assert need == 0 or (need - 1) * capacity < value
        assert math.isfinite(value)


def grow_ladder(ladder, load, growth, months=36):
    return grow_steps(tuple(ladder), load_by_month(load, growth, months), growth)


LADDER = [Step(1, 8, 10.0, 20.0), Step(2, 16, 20.0, 40.0), Step(4, 32, 40.0, 70.0)]


@st.composite
def ladders(draw):
    counts = sorted(draw(st.sets(st.integers(1, 50), min_size=1, max_size=6)))
    numbers = st.floats(0.1, 1e3)
    return [Step(n, 8 * n, draw(numbers), draw(numbers)) for n in counts]


def test_moments_of_loads_that_double_stay_fall_or_leave_the_ladder_by_hand():
    def moments(ladder, *loads):
        found = grow_ladder(ladder, *loads)
        return found.holds_until, found.next_unit_month, found.ends_month

    assert grow_ladder(LADDER, 8.0, 1.0, 4).load == (8, 16, 32, 64)
    assert moments(LADDER, 8.0, 1.0, 4) == (0, 1, 3)
    # 8 · 1.1^2 = 9.68 and 8 · 1.1^3 = 10.6; 8 · 1.1^16 = 36.8 and 8 · 1.1^17 = 40.4
    assert moments(LADDER, 8.0, 0.1) == (2, 3, 17)
    assert len(grow_ladder(LADDER, 8.0, 0.1).load) == 36
    assert moments(LADDER, 10.0, 0.0, 12) == (11, None, None)
    assert moments(LADDER, 32.0, -0.5, 4) == (3, None, None)
    assert moments(LADDER, 50.0, 0.1, 3) == (None, None, 0)
    assert moments(LADDER[:1], 8.0, 1.0, 3) == (0, None, 1)
    shrinks = grow_ladder(LADDER, 50.0, -0.5, 3)
    assert (shrinks.steps, shrinks.next_unit_month) == ((None, 2, 1), None)
    # a larger step that costs less is taken
    ladder = [Step(1, 8, 10.0, 50.0), Step(2, 16, 30.0, 40.0), Step(3, 24, 20.0, 40.0)]
    assert grow_ladder(ladder, 5.0, 1.0, 3).steps == (2, 2, 2)
    assert grow_ladder(ladder, 25.0, 0.0, 1).steps == (1,)


@given(ladders(), st.floats(0.1, 1e3), st.floats(-0.5, 1), st.integers(1, 60))
def test_the_cheapest_step_that_carries_the_load_is_paid(ladder, load, growth, months):
    found = grow_ladder(ladder, load, growth, months)
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


@given(st.lists(ladders(), min_size=1, max_size=4), st.floats(0.1, 100), st.floats(-0.3, 0.3))
def test_choices_together_are_those_alone(several, load, growth):
    named = {str(place): ladder for place, ladder in enumerate(several)}
    found = grow_ladders(named, load, growth, 12)
    alone = {name: grow_ladder(ladder, load, growth, 12) for name, ladder in named.items()}
    assert found.growths == alone
    totals = {name: each.total_usd for name, each in alone.items() if each.total_usd is not None}
    assert totals.get(found.cheapest) == min(totals.values(), default=None)
    assert all(found.cheapest_by_month[month - 1] != name for month, name in found.changes)
    current = found.cheapest_by_month[0]
    for month, name in enumerate(found.cheapest_by_month):
        current = dict(found.changes).get(month, current)
        assert name == current
        costs = {each: of.usd_by_month[month] for each, of in alone.items()}
        known = [cost for cost in costs.values() if cost is not None]
        assert costs.get(name) == min(known, default=None)


def test_too_many_units_are_refused_by_name():
    for load, capacity in ((OFFICE, 1e-9), ([1e30] * 24, 1e-300)):
        error = refusal(cheapest_mixture, load, capacity, 1, 1)
        assert (error.field, bool(error.hint)) == ("capacity_per_unit", True)
