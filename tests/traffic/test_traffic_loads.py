"""Published shapes, the load that a request describes, and its requests one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe_core.base.errors import InputError
from recipe_core.request.over_time import LengthPoint, OverTime
from recipe_core.request.serving_workload import ServingWorkload
from recipe_core.traffic.arrivals import arrivals
from recipe_core.traffic.load import Lengths, Load
from recipe_core.traffic.loads import hour_of_week, load_of, smooth
from recipe_core.traffic.shapes import published, shape, shape_names
from tests.fixtures.sizes import examples

WORKLOAD = ServingWorkload(concurrency=1, input_tokens=1000, output_tokens=100)
ONE = Lengths(np.ones(1), np.ones(1), np.ones(1))


@pytest.mark.parametrize("name", shape_names())
def test_shapes_are_weeks_with_a_mean_of_one_and_a_source(name: str) -> None:
    week = published(name)
    assert week.rates.shape == (168,)
    assert week.rates.mean() == pytest.approx(1)
    assert (week.rates > 0).all()
    assert week.source
    assert week.to_json()["name"] == name


def test_shapes_show_what_their_sources_say() -> None:
    code, conversation = shape("azure-code"), shape("azure-conversation")
    assert code.max() == pytest.approx(3.0, abs=0.02)
    assert conversation.max() == pytest.approx(1.65, abs=0.02)
    assert code.max() / code.min() == pytest.approx(29, abs=1)
    assert published("azure-code").to_json()["weekday_to_weekend"] == pytest.approx(3.07, abs=0.02)


def test_an_unknown_shape_is_named() -> None:
    with pytest.raises(InputError, match="unknown shape 'azure_code'") as error:
        load_of(OverTime(shape="azure_code", mean_rate=1), WORKLOAD)
    assert "azure-code" in str(error.value.hint)


def test_a_shape_keeps_its_hours_and_has_no_jumps() -> None:
    load = load_of(OverTime(shape="azure-code", mean_rate=10), WORKLOAD)
    hours = load.rates.reshape(168, -1).mean(axis=1)
    np.testing.assert_allclose(hours, 10 * shape("azure-code"))
    assert np.abs(np.diff(np.log(load.rates))).max() < 0.25
    assert load.span_s == 7 * 86_400


@given(st.lists(st.floats(0, 100), min_size=2, max_size=30))
@settings(max_examples=examples(500), deadline=None)
def test_smooth_rates_keep_means_and_stay_positive(hours: list[float]) -> None:
    joined = smooth(np.asarray(hours))
    assert (joined >= 0).all()
    np.testing.assert_allclose(joined.reshape(len(hours), -1).mean(axis=1), hours, atol=1e-9)


def test_a_shape_begins_at_its_hour() -> None:
    late = load_of(OverTime(shape="azure-code", mean_rate=1, start_hour=30, days=1), WORKLOAD)
    hours = late.rates.reshape(24, -1).mean(axis=1)
    np.testing.assert_allclose(hours, shape("azure-code")[30:54])
    assert hour_of_week(late)[[0, -1]].tolist() == [30, 53]


def test_rates_repeat_and_are_scaled() -> None:
    load = load_of(OverTime(rates=(1, 2, 3), interval_s=3600, mean_rate=4, days=0.25), WORKLOAD)
    assert load.rates.tolist() == [2, 4, 6, 2, 4, 6]


def test_growth_compounds_by_the_month() -> None:
    grown = load_of(OverTime(rates=(1.0,), days=90, growth_per_month=0.1), WORKLOAD)
    assert grown.rates[-1] == pytest.approx(1.1**3, rel=1e-3)
    assert grown.rates[0] == pytest.approx(1, rel=1e-3)


def test_lengths_are_stated_or_those_of_the_workload() -> None:
    even = load_of(OverTime(rates=(1.0,)), WORKLOAD).lengths
    assert (even.mean_input, even.mean_output) == pytest.approx((1000, 100))
    assert even.input_tokens.min() == 912.5
    stated = (
        LengthPoint(input_tokens=10, output_tokens=4, weight=3),
        LengthPoint(input_tokens=20, output_tokens=8),
    )
    lengths = load_of(OverTime(rates=(1.0,), lengths=stated), WORKLOAD).lengths
    assert (lengths.mean_input, lengths.mean_output) == (12.5, 5)


def test_too_many_intervals_are_refused() -> None:
    with pytest.raises(InputError, match="31,536,000 intervals"):
        load_of(OverTime(rates=(1.0,), interval_s=1, days=365), WORKLOAD)


def test_the_same_seed_gives_the_same_bits() -> None:
    load = load_of(OverTime(shape="azure-code", mean_rate=0.1, burstiness=2), WORKLOAD)
    one, same, other = arrivals(load, 7), arrivals(load, 7), arrivals(load, 8)
    assert one.arrival_s.tobytes() == same.arrival_s.tobytes()
    assert one.input_tokens.tobytes() == same.input_tokens.tobytes()
    assert one.arrival_s.tobytes() != other.arrival_s.tobytes()


@pytest.mark.parametrize("burst", [0.5, 1.0, 3.0])
def test_every_interval_has_its_rate(burst: float) -> None:
    load = Load(np.asarray([1.0, 0, 5, 2]), 100.0, ONE, burst)
    edges = np.arange(5) * 100.0
    counts = np.asarray(
        [np.histogram(arrivals(load, seed).arrival_s, edges)[0] for seed in range(200)]
    )
    mean, error = counts.mean(axis=0), counts.std(axis=0) / 200**0.5
    assert (np.abs(mean - [100, 0, 500, 200]) <= 4 * error).all()
    assert not counts[:, 1].any()


@pytest.mark.parametrize("burst", [0.5, 1.0, 3.0])
def test_gaps_have_the_burstiness(burst: float) -> None:
    gaps = np.diff(arrivals(Load(np.full(10, 50.0), 1000.0, ONE, burst), 1).arrival_s)
    assert gaps.std() / gaps.mean() == pytest.approx(burst, rel=0.03)
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.02)


def test_drawn_lengths_have_the_weights() -> None:
    lengths = Lengths(np.asarray([1.0, 9.0]), np.asarray([2.0, 4.0]), np.asarray([0.25, 0.75]))
    trace = arrivals(Load(np.full(1, 100.0), 1000.0, lengths), 5)
    assert float(np.mean(trace.input_tokens == 9)) == pytest.approx(0.75, abs=0.01)
    assert ((trace.input_tokens == 9) == (trace.output_tokens == 4)).all()


def test_more_requests_than_memory_holds_are_refused() -> None:
    with pytest.raises(InputError, match="one by one the limit"):
        arrivals(Load(np.full(10, 1e5), 3600.0, ONE))
