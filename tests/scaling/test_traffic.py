"""Loads: shapes, single requests, what a trace shows, gives a workload and reuses, forecasts."""

from collections import OrderedDict
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe_core.base.errors import InputError
from recipe_core.request.over_time import LengthPoint, OverTime
from recipe_core.request.serving_workload import ServingWorkload
from recipe_core.scaling.traces import from_trace
from recipe_core.scaling.traces.describe import (
    burstiness,
    describe_rates,
    describe_trace,
    describe_traffic,
    dispersion,
    interarrival_cv,
    rounding_s,
)
from recipe_core.scaling.traces.forecast import Kalman, Seasonal
from recipe_core.scaling.traces.loads import (
    Lengths,
    Load,
    build_load,
    draw_requests,
    find_shape,
    shape_names,
    shape_rates,
    smooth_hourly_rates,
)
from recipe_core.scaling.traces.trace import (
    Blocks,
    Rates,
    Trace,
    measure_prefix_reuse,
    needed_blocks,
    tokens_in_blocks,
)
from tests.fixtures.sizes import examples

WORKLOAD = ServingWorkload(concurrency=1, input_tokens=1000, output_tokens=100)
ONE = Lengths(np.ones(1), np.ones(1), np.ones(1))


def loaded(**over_time):
    return build_load(OverTime(**over_time), WORKLOAD)


def test_shapes_are_weeks_with_a_mean_of_one_and_what_their_sources_say():
    for name in shape_names():
        week = find_shape(name)
        assert week.rates.shape == (168,)
        assert week.rates.mean() == pytest.approx(1)
        assert (week.rates > 0).all()
        assert week.source
        assert week.to_json()["name"] == name
    code, conversation = shape_rates("azure-code"), shape_rates("azure-conversation")
    assert code.max() == pytest.approx(3.0, abs=0.02)
    assert conversation.max() == pytest.approx(1.65, abs=0.02)
    assert code.max() / code.min() == pytest.approx(29, abs=1)
    assert find_shape("azure-code").to_json()["weekday_to_weekend"] == pytest.approx(3.07, abs=0.02)
    with pytest.raises(InputError, match="'azure_code'") as error:
        loaded(shape="azure_code", mean_rate=1)
    assert "azure-code" in str(error.value.hint)


def test_a_shape_keeps_its_hours_begins_at_one_and_has_no_jumps():
    load = loaded(shape="azure-code", mean_rate=10)
    hours = load.rates.reshape(168, -1).mean(axis=1)
    np.testing.assert_allclose(hours, 10 * shape_rates("azure-code"))
    assert np.abs(np.diff(np.log(load.rates))).max() < 0.25
    assert load.span_s == 7 * 86_400
    late = loaded(shape="azure-code", mean_rate=1, start_hour=30, days=1)
    hours = late.rates.reshape(24, -1).mean(axis=1)
    np.testing.assert_allclose(hours, shape_rates("azure-code")[30:54])


@given(st.lists(st.floats(0, 100), min_size=2, max_size=30))
@settings(max_examples=examples(500), deadline=None)
def test_smooth_rates_keep_means_and_stay_positive(hours):
    joined = smooth_hourly_rates(np.asarray(hours))
    assert (joined >= 0).all()
    np.testing.assert_allclose(joined.reshape(len(hours), -1).mean(axis=1), hours, atol=1e-9)


def test_rates_repeat_and_grow_and_lengths_are_those_of_the_workload():
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


def test_the_same_seed_gives_the_same_bits_and_lengths_have_their_weights():
    load = loaded(shape="azure-code", mean_rate=0.1, burstiness=2)
    one, same, other = (draw_requests(load, seed) for seed in (7, 7, 8))
    assert one.arrival_s.tobytes() == same.arrival_s.tobytes()
    assert one.input_tokens.tobytes() == same.input_tokens.tobytes()
    assert one.arrival_s.tobytes() != other.arrival_s.tobytes()
    lengths = Lengths(*map(np.asarray, ([1.0, 9.0], [2.0, 4.0], [0.25, 0.75])))
    trace = draw_requests(Load(np.full(1, 100.0), 1000.0, lengths), 5)
    assert float(np.mean(trace.input_tokens == 9)) == pytest.approx(0.75, abs=0.01)
    assert ((trace.input_tokens == 9) == (trace.output_tokens == 4)).all()
    with pytest.raises(InputError, match="one by one the limit"):
        draw_requests(Load(np.full(10, 1e5), 3600.0, ONE))


@pytest.mark.parametrize("burst", [0.5, 1.0, 3.0])
def test_intervals_have_their_rate_and_gaps_the_burstiness(burst):
    load, edges = Load(np.asarray([1.0, 0, 5, 2]), 100.0, ONE, burst), np.arange(5) * 100.0
    drawn = [np.histogram(draw_requests(load, seed).arrival_s, edges)[0] for seed in range(200)]
    mean, error = np.mean(drawn, axis=0), np.std(drawn, axis=0) / 200**0.5
    assert (np.abs(mean - [100, 0, 500, 200]) <= 4 * error).all()
    assert not np.asarray(drawn)[:, 1].any()
    gaps = np.diff(draw_requests(Load(np.full(10, 50.0), 1000.0, ONE, burst), 1).arrival_s)
    assert gaps.std() / gaps.mean() == pytest.approx(burst, rel=0.03)
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.02)


MONDAY_S = 4 * 86_400.0  # the first of 1970


def made(rate=5.0, hours=1.0, burst=1.0, seed=3):
    """Requests of one rate with lengths that are long-tailed and correlated."""
    plain = draw_requests(Load(np.full(1, rate), hours * 3600, ONE, burst), seed)
    random = np.random.default_rng(seed)
    common = random.normal(size=len(plain))
    other = 0.6 * common + 0.8 * random.normal(size=len(plain))
    lengths = (np.ceil(np.exp(long)).astype(np.int64) for long in (6 + common, 4 + 0.7 * other))
    return Trace(plain.arrival_s - plain.arrival_s[0], *lengths)


def even(count, gap_s=1.0, **more):
    ones = np.ones(count, dtype=np.int64)
    return Trace(np.arange(count) * gap_s, 100 * ones, 10 * ones, **more)


def test_gaps_burstiness_and_sessions_are_described_and_one_request_is_a_trace():
    trace = even(601)
    answer = describe_trace(trace)
    assert answer["interarrival_cv"] == 0
    assert answer["dispersion"] == {"1_s": 0, "60_s": 0}
    assert answer["rate_per_s"] == pytest.approx(601 / 600)
    assert answer["minute"] == {"min": 60, "median": 60, "max": 60}
    assert answer["length_correlation"] is None
    trace = made(rate=20)  # a Poisson process
    assert interarrival_cv(trace) == pytest.approx(1, abs=0.03)
    assert dispersion(trace, 1.0) == pytest.approx(1, abs=0.1)
    assert burstiness(trace, 60.0) == pytest.approx(1, abs=0.05)
    for burst in (0.5, 2.0, 4.0):
        assert burstiness(made(rate=30, burst=burst), 600.0) == pytest.approx(burst, rel=0.1)
    trace = even(6, 10.0, sessions=np.asarray([0, 1, 0, 1, 0, 2]))
    found = describe_trace(trace)["sessions"]
    assert (found["number"], found["gap_s"]["p50"]) == (3, 20)
    assert found["turns"] == {"mean": 2, "p50": 2, "max": 3}
    alone = {"requests": 1, "rate_per_s": 0, "interarrival_cv": None}
    assert alone.items() <= describe_trace(even(1)).items()
    ServingWorkload(**{"request_rate": 1.0, **from_trace.workload_fields(even(1))})


@pytest.mark.parametrize("burst", [1.0, 2.0])
def test_rounded_stamps_do_not_look_like_bursts(burst):
    exact = made(rate=10, hours=4, burst=burst)
    rounded = Trace(np.floor(exact.arrival_s / 3) * 3, exact.input_tokens, exact.output_tokens)
    assert rounding_s(rounded) == 3
    assert rounding_s(exact) is None
    assert interarrival_cv(rounded) > 2.5
    assert burstiness(rounded, 600.0) == pytest.approx(burst, rel=0.15)


def test_lengths_keep_means_percentiles_and_correlation():
    trace = made(rate=10)
    found = from_trace.group_trace_lengths(trace)
    assert len(found.weight) <= 256
    assert found.mean_input == pytest.approx(trace.input_tokens.mean())
    assert found.mean_output == pytest.approx(trace.output_tokens.mean())
    percents = [50, 90, 95, 99]
    for side in ("input_tokens", "output_tokens"):
        short, long = getattr(found, side), getattr(trace, side)
        order = np.argsort(short)
        ends = np.searchsorted(np.cumsum(found.weight[order]), np.divide(percents, 100))
        assert short[order][ends] == pytest.approx(np.percentile(long, percents), rel=0.06)
    both = np.cov(found.input_tokens, found.output_tokens, aweights=found.weight)
    linked = both[0, 1] / np.sqrt(both[0, 0] * both[1, 1])
    exact = np.corrcoef(trace.input_tokens, trace.output_tokens)[0, 1]
    assert linked == pytest.approx(exact, abs=0.1)
    few = from_trace.length_points_of(
        from_trace.group_trace_lengths(even(50))
    )  # few different lengths stay exact
    assert [(one.input_tokens, one.output_tokens, one.weight) for one in few] == [(100, 10, 1)]


@pytest.mark.parametrize("hours", [0.3, 1.0, 30.0])
def test_rates_of_a_trace_keep_its_requests(hours):
    trace = made(rate=2, hours=hours)
    interval_s, rates = from_trace.rates_in(trace, from_trace.trace_interval_of(trace.span_s))
    lost = len(trace) - rates.sum() * interval_s
    assert lost + 1e-6 >= 0
    assert lost <= 2 * rates.max() * interval_s if hours > 24 else lost < 1e-6


def test_a_trace_becomes_a_load_or_is_spread_over_a_published_week():
    trace = made(rate=3, burst=2)
    workload = ServingWorkload(**from_trace.workload_fields(trace))
    load = build_load(workload.over_time, workload)
    assert load.requests == pytest.approx(len(trace), rel=1e-4)
    assert load.lengths.mean_input == pytest.approx(trace.input_tokens.mean(), rel=1e-3)
    assert len(draw_requests(load, 1)) == pytest.approx(len(trace), rel=0.1)
    with pytest.raises(InputError, match="too many"):
        from_trace.over_time_of(made(rate=0.01, hours=24 * 30), interval_s=60)
    # an hour is spread over a published week
    trace = made(rate=4)
    dated = Trace(trace.arrival_s, trace.input_tokens, trace.output_tokens, began_s=MONDAY_S)
    week = from_trace.over_time_of(dated, shape="azure-code")
    assert week.mean_rate == pytest.approx(
        trace.rate_per_s / shape_rates("azure-code")[0], rel=0.01
    )
    undated = from_trace.over_time_of(trace, shape="azure-code")
    assert undated.mean_rate == pytest.approx(4, rel=0.05)
    assert (week.days, week.start_hour, week.rates) == (7, 0, ())
    assert len(week.lengths) > 100
    hours = [from_trace.trace_hour_of_week(at) for at in (MONDAY_S, MONDAY_S + 25 * 3600, 0, None)]
    assert hours == [0, 25, 72, 0]


def test_reuse_and_rates_go_into_the_workload():
    blocks, hundred = Blocks(np.tile(np.arange(6), 3), np.arange(4) * 6, 16), np.full(3, 96)
    trace = Trace(np.arange(3.0), hundred, hundred, blocks)
    hits = [one.hit for one in ServingWorkload(**from_trace.workload_fields(trace)).prefix_reuse]
    assert hits[-1] == pytest.approx(2 / 3)
    assert hits == sorted(hits)
    day = 10 + 5 * np.sin(np.arange(144) / 144 * 2 * np.pi)
    rates = Rates(np.tile(day, 14), 600.0, np.zeros(2016, dtype=np.bool_), 2.0, "made")
    answer = describe_traffic(rates)
    assert answer == describe_rates(rates)
    assert answer["correlation"] == {"day": pytest.approx(1), "week": pytest.approx(1)}
    over_time = OverTime(**from_trace.traffic_fields(rates)["over_time"])
    assert (over_time.days, over_time.burstiness, len(over_time.rates)) == (14, 2, 2016)


REQUESTS = st.lists(st.lists(st.integers(0, 12), max_size=7), min_size=1, max_size=25)


def blocks_of(requests, tokens=16):
    ids = np.asarray([one for request in requests for one in request], dtype=np.int64)
    starts = np.concatenate(([0], np.cumsum([len(request) for request in requests])))
    return Blocks(ids, starts.astype(np.int64), tokens)


def played(requests, size):
    """Hits of an LRU cache of ``size`` blocks that is looked up and then used, last block first."""
    cache = OrderedDict()
    hits = []
    for request in requests:
        found = True
        for block in request:
            found = found and block in cache
            hits.append(found)
        for block in reversed(list(dict.fromkeys(request))):
            cache.pop(block, None)
            cache[block] = None
            if len(cache) > size:
                cache.popitem(last=False)
    return hits


def trace_of(requests, lengths):
    count = len(requests)
    columns = np.asarray(lengths, dtype=np.int64), np.ones(count, dtype=np.int64)
    return Trace(np.arange(float(count)), *columns, blocks_of(requests))


@given(REQUESTS, st.sampled_from([1, 2, 3, 5, 8, 100]))
@settings(max_examples=examples(2000), deadline=None)
def test_hits_are_those_of_a_played_cache(requests, size):
    needed = needed_blocks(blocks_of(requests))
    assert (needed <= size).tolist() == played(requests, size)


@given(REQUESTS)
@settings(max_examples=examples(500), deadline=None)
def test_a_larger_cache_never_holds_less(requests):
    curve = measure_prefix_reuse(
        trace_of(requests, [16 * len(one) + 1 for one in requests]), per_octave=2
    )
    if curve is None:
        assert not any(requests)
        return
    assert (np.diff(curve.hit) >= 0).all()
    assert curve.hit[-1] == pytest.approx(curve.unlimited)
    assert 0 <= curve.unlimited < 1
    assert (np.diff(curve.cache_tokens) > 0).all()


def test_the_last_block_is_not_full_and_without_blocks_there_is_no_curve():
    trace = trace_of([[1, 2], [1, 2, 3]], [20, 40])
    assert tokens_in_blocks(trace.blocks, trace.input_tokens).tolist() == [16, 4, 16, 16, 8]
    curve = measure_prefix_reuse(trace)
    assert curve.unlimited == pytest.approx(32 / 60)
    assert curve.block_unlimited == pytest.approx(2 / 5)
    ones = np.ones(3, dtype=np.int64)
    assert measure_prefix_reuse(Trace(np.arange(3.0), ones, ones)) is None


DAY = 24


def days(number, noise=0.0):
    hours = np.arange(number * DAY)
    busy = 100 + 60 * np.sin(2 * np.pi * hours / DAY)
    return np.asarray(busy * (1 + noise * np.random.default_rng(0).normal(size=len(hours))))


def learnt(made, history):
    """A forecast that has seen a series."""
    for value in history:
        made.observe(float(value))
    return made


def error_of(series, ahead, first):
    """Mean absolute error over the mean, of the season and of the last value, after ``first``."""
    made, errors = learnt(Seasonal(DAY), series[:first]), []
    for n in range(first, len(series) - ahead):
        later = series[n + ahead - 1]
        errors.append((abs(made.predict(ahead)[-1] - later), abs(series[n - 1] - later)))
        made.observe(float(series[n]))
    return np.mean(errors, axis=0) / series[first:].mean()


@pytest.mark.parametrize("kind", [Kalman, partial(Seasonal, DAY)])
def test_forecasts_begin_at_nothing_keep_a_level_stay_positive_and_repeat(kind):
    def forecast(history, ahead):
        return learnt(kind(), history).predict(ahead)

    assert kind().predict(3).tolist() == [0, 0, 0]
    np.testing.assert_allclose(forecast(np.full(5 * DAY, 40.0), 6), 40, rtol=1e-3)
    fall = np.maximum(200.0 - 2 * np.arange(101), 0)
    assert (forecast(fall, 50) >= 0).all()
    series = days(4, noise=0.1)
    assert forecast(series, 5).tobytes() == forecast(series, 5).tobytes()


def test_a_kalman_filter_repeats_until_it_has_five_values_and_is_that_of_its_equations():
    made = Kalman()
    for value in (10.0, 12.0, 14.0, 16.0):
        made.observe(value)
        assert made.predict(2).tolist() == [value, value]
    made.observe(18.0)
    assert made.predict(2)[1] > made.predict(2)[0] > 16
    line = learnt(Kalman(), 10 + 3 * np.arange(200.0))
    np.testing.assert_allclose(line.predict(3), 10 + 3 * np.arange(200, 203), rtol=1e-3)
    series = np.random.default_rng(1).normal(50, 10, 40)
    state, spread = np.asarray([series[0], 0.0]), np.diag([10.0, 1.0])
    move, noise = np.asarray([[1.0, 1], [0, 1]]), np.diag([1.0, 0.1])
    for value in series[1:]:
        state, spread = move @ state, move @ spread @ move.T + noise
        gain = spread[:, 0] / (spread[0, 0] + 10)
        state = state + gain * (value - state[0])
        spread = spread - np.outer(gain, spread[0])
    ahead = learnt(Kalman(), series).predict(1)
    assert ahead[0] == pytest.approx((move @ state)[0])


def test_a_season_is_learnt_and_goes_on_between_fits():
    series = days(8, noise=0.03)
    seasonal, last = error_of(series, 4, 4 * DAY)
    assert seasonal < 0.06
    assert last > 4 * seasonal
    series, expected = days(9, noise=0.03), days(9)[8 * DAY + 7 : 8 * DAY + 13]
    made = learnt(Seasonal(DAY), series[: 8 * DAY + 7])
    np.testing.assert_allclose(made.predict(6), expected, rtol=0.1)
