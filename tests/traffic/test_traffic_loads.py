"""Published shapes, the load that a request describes, and its requests one by one."""

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


def loaded(**over_time) -> Load:
    return load_of(OverTime(**over_time), WORKLOAD)


def test_shapes_are_weeks_with_a_mean_of_one_and_what_their_sources_say() -> None:
    for name in shape_names():
        week = published(name)
        assert week.rates.shape == (168,)
        assert week.rates.mean() == pytest.approx(1)
        assert (week.rates > 0).all()
        assert week.source
        assert week.to_json()["name"] == name
    code, conversation = shape("azure-code"), shape("azure-conversation")
    assert code.max() == pytest.approx(3.0, abs=0.02)
    assert conversation.max() == pytest.approx(1.65, abs=0.02)
    assert code.max() / code.min() == pytest.approx(29, abs=1)
    assert published("azure-code").to_json()["weekday_to_weekend"] == pytest.approx(3.07, abs=0.02)
    with pytest.raises(InputError, match="'azure_code'") as error:
        loaded(shape="azure_code", mean_rate=1)
    assert "azure-code" in str(error.value.hint)


def test_a_shape_keeps_its_hours_begins_at_one_and_has_no_jumps() -> None:
    load = loaded(shape="azure-code", mean_rate=10)
    hours = load.rates.reshape(168, -1).mean(axis=1)
    np.testing.assert_allclose(hours, 10 * shape("azure-code"))
    assert np.abs(np.diff(np.log(load.rates))).max() < 0.25
    assert load.span_s == 7 * 86_400
    late = loaded(shape="azure-code", mean_rate=1, start_hour=30, days=1)
    hours = late.rates.reshape(24, -1).mean(axis=1)
    np.testing.assert_allclose(hours, shape("azure-code")[30:54])
    assert hour_of_week(late)[[0, -1]].tolist() == [30, 53]


@given(st.lists(st.floats(0, 100), min_size=2, max_size=30))
@settings(max_examples=examples(500), deadline=None)
def test_smooth_rates_keep_means_and_stay_positive(hours: list[float]) -> None:
    joined = smooth(np.asarray(hours))
    assert (joined >= 0).all()
    np.testing.assert_allclose(joined.reshape(len(hours), -1).mean(axis=1), hours, atol=1e-9)


def test_rates_repeat_and_grow_and_lengths_are_those_of_the_workload() -> None:
    load = loaded(rates=(1, 2, 3), interval_s=3600, mean_rate=4, days=0.25)
    assert load.rates.tolist() == [2, 4, 6, 2, 4, 6]
    grown = loaded(rates=(1.0,), days=90, growth_per_month=0.1)
    assert grown.rates[[0, -1]] == pytest.approx([1, 1.1**3], rel=1e-3)
    with pytest.raises(InputError, match="31,536,000 intervals"):
        loaded(rates=(1.0,), interval_s=1, days=365)
    even = loaded(rates=(1.0,)).lengths
    assert (even.mean_input, even.mean_output) == pytest.approx((1000, 100))
    assert even.input_tokens.min() == 912.5
    short, long = (LengthPoint(input_tokens=n, output_tokens=n * 2 // 5) for n in (10, 20))
    lengths = loaded(rates=(1.0,), lengths=(short.model_copy(update={"weight": 3}), long)).lengths
    assert (lengths.mean_input, lengths.mean_output) == (12.5, 5)


def test_the_same_seed_gives_the_same_bits_and_lengths_have_their_weights() -> None:
    load = loaded(shape="azure-code", mean_rate=0.1, burstiness=2)
    one, same, other = (arrivals(load, seed) for seed in (7, 7, 8))
    assert one.arrival_s.tobytes() == same.arrival_s.tobytes()
    assert one.input_tokens.tobytes() == same.input_tokens.tobytes()
    assert one.arrival_s.tobytes() != other.arrival_s.tobytes()
    lengths = Lengths(*map(np.asarray, ([1.0, 9.0], [2.0, 4.0], [0.25, 0.75])))
    trace = arrivals(Load(np.full(1, 100.0), 1000.0, lengths), 5)
    assert float(np.mean(trace.input_tokens == 9)) == pytest.approx(0.75, abs=0.01)
    assert ((trace.input_tokens == 9) == (trace.output_tokens == 4)).all()
    with pytest.raises(InputError, match="one by one the limit"):
        arrivals(Load(np.full(10, 1e5), 3600.0, ONE))


@pytest.mark.parametrize("burst", [0.5, 1.0, 3.0])
def test_intervals_have_their_rate_and_gaps_the_burstiness(burst: float) -> None:
    load, edges = Load(np.asarray([1.0, 0, 5, 2]), 100.0, ONE, burst), np.arange(5) * 100.0
    drawn = [np.histogram(arrivals(load, seed).arrival_s, edges)[0] for seed in range(200)]
    mean, error = np.mean(drawn, axis=0), np.std(drawn, axis=0) / 200**0.5
    assert (np.abs(mean - [100, 0, 500, 200]) <= 4 * error).all()
    assert not np.asarray(drawn)[:, 1].any()
    gaps = np.diff(arrivals(Load(np.full(10, 50.0), 1000.0, ONE, burst), 1).arrival_s)
    assert gaps.std() / gaps.mean() == pytest.approx(burst, rel=0.03)
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.02)
