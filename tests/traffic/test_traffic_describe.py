"""What a trace shows, and what a workload takes from it."""

from typing import Any

import numpy as np
import pytest

from recipe_core.base.errors import InputError
from recipe_core.request.over_time import OverTime
from recipe_core.request.serving_workload import ServingWorkload
from recipe_core.traffic import from_trace
from recipe_core.traffic.arrivals import arrivals
from recipe_core.traffic.bursts import burstiness, dispersion, interarrival_cv, rounding_s
from recipe_core.traffic.describe import describe, describe_rates, description
from recipe_core.traffic.load import Lengths, Load
from recipe_core.traffic.loads import load_of
from recipe_core.traffic.rates import Rates
from recipe_core.traffic.shapes import shape
from recipe_core.traffic.trace import Blocks, Trace

MONDAY_S = 4 * 86_400.0
"""The first Monday after 1970 began, in seconds."""


def made(rate: float = 5.0, hours: float = 1.0, burst: float = 1.0, seed: int = 3) -> Trace:
    """Requests of one rate with lengths that are long-tailed and correlated."""
    one = Lengths(np.ones(1), np.ones(1), np.ones(1))
    plain = arrivals(Load(np.full(1, rate), hours * 3600, one, burst), seed)
    random = np.random.default_rng(seed)
    common = random.normal(size=len(plain))
    other = 0.6 * common + 0.8 * random.normal(size=len(plain))
    lengths = (np.ceil(np.exp(long)).astype(np.int64) for long in (6 + common, 4 + 0.7 * other))
    return Trace(plain.arrival_s - plain.arrival_s[0], *lengths)


def even(count: int, gap_s: float = 1.0, **more: Any) -> Trace:
    ones = np.ones(count, dtype=np.int64)
    return Trace(np.arange(count) * gap_s, 100 * ones, 10 * ones, **more)


def test_gaps_burstiness_and_sessions_are_described_and_one_request_is_a_trace() -> None:
    trace = even(601)
    answer = describe(trace)
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
    found = describe(trace)["sessions"]
    assert found["number"] == 3
    assert found["turns"] == {"mean": 2, "p50": 2, "max": 3}
    assert found["gap_s"]["p50"] == 20
    answer = describe(even(1))
    names = ("requests", "rate_per_s", "interarrival_cv")
    assert [answer[name] for name in names] == [1, 0, None]
    ServingWorkload(**{"request_rate": 1.0, **from_trace.workload_fields(even(1))})


@pytest.mark.parametrize("burst", [1.0, 2.0])
def test_rounded_stamps_do_not_look_like_bursts(burst: float) -> None:
    exact = made(rate=10, hours=4, burst=burst)
    rounded = Trace(np.floor(exact.arrival_s / 3) * 3, exact.input_tokens, exact.output_tokens)
    assert rounding_s(rounded) == 3
    assert rounding_s(exact) is None
    assert interarrival_cv(rounded) > 2.5
    assert burstiness(rounded, 600.0) == pytest.approx(burst, rel=0.15)


def test_lengths_keep_means_percentiles_and_correlation() -> None:
    trace = made(rate=10)
    found = from_trace.lengths_of(trace)
    assert len(found.weight) <= 256
    assert found.mean_input == pytest.approx(trace.input_tokens.mean())
    assert found.mean_output == pytest.approx(trace.output_tokens.mean())
    for side in ("input_tokens", "output_tokens"):
        short, long = getattr(found, side), getattr(trace, side)
        order = np.argsort(short)
        ends = np.cumsum(found.weight[order])
        for percent in (50, 90, 95, 99):
            near = short[order][np.searchsorted(ends, percent / 100)]
            assert near == pytest.approx(np.percentile(long, percent), rel=0.06)
    both = np.cov(found.input_tokens, found.output_tokens, aweights=found.weight)
    linked = both[0, 1] / np.sqrt(both[0, 0] * both[1, 1])
    exact = np.corrcoef(trace.input_tokens, trace.output_tokens)[0, 1]
    assert linked == pytest.approx(exact, abs=0.1)
    few = from_trace.points(from_trace.lengths_of(even(50)))  # few different lengths stay exact
    assert [(one.input_tokens, one.output_tokens, one.weight) for one in few] == [(100, 10, 1)]


@pytest.mark.parametrize("hours", [0.3, 1.0, 30.0])
def test_rates_of_a_trace_keep_its_requests(hours: float) -> None:
    trace = made(rate=2, hours=hours)
    interval_s, rates = from_trace.rates_in(trace, from_trace.interval_of(trace.span_s))
    lost = len(trace) - rates.sum() * interval_s
    assert lost + 1e-6 >= 0
    assert lost <= 2 * rates.max() * interval_s if hours > 24 else lost < 1e-6


def test_a_trace_becomes_a_load_or_is_spread_over_a_published_week() -> None:
    trace = made(rate=3, burst=2)
    workload = ServingWorkload(**from_trace.workload_fields(trace))
    load = load_of(workload.over_time, workload)
    assert load.requests == pytest.approx(len(trace), rel=1e-4)
    assert load.lengths.mean_input == pytest.approx(trace.input_tokens.mean(), rel=1e-3)
    assert len(arrivals(load, 1)) == pytest.approx(len(trace), rel=0.1)
    with pytest.raises(InputError, match="too many"):
        from_trace.over_time_of(made(rate=0.01, hours=24 * 30), interval_s=60)
    # an hour is spread over a published week
    trace = made(rate=4)
    dated = Trace(trace.arrival_s, trace.input_tokens, trace.output_tokens, began_s=MONDAY_S)
    week = from_trace.over_time_of(dated, shape="azure-code")
    assert week.mean_rate == pytest.approx(trace.rate_per_s / shape("azure-code")[0], rel=0.01)
    assert from_trace.over_time_of(trace, shape="azure-code").mean_rate == pytest.approx(
        4, rel=0.05
    )
    assert (week.days, week.start_hour, week.rates) == (7, 0, ())
    assert len(week.lengths) > 100
    hours = [from_trace.hour_of_week(at) for at in (MONDAY_S, MONDAY_S + 25 * 3600, 0, None)]
    assert hours == [0, 25, 72, 0]


def test_reuse_and_rates_go_into_the_workload() -> None:
    blocks, hundred = Blocks(np.tile(np.arange(6), 3), np.arange(4) * 6, 16), np.full(3, 96)
    trace = Trace(np.arange(3.0), hundred, hundred, blocks)
    hits = [one.hit for one in ServingWorkload(**from_trace.workload_fields(trace)).prefix_reuse]
    assert hits[-1] == pytest.approx(2 / 3)
    assert hits == sorted(hits)
    day = 10 + 5 * np.sin(np.arange(144) / 144 * 2 * np.pi)
    rates = Rates(np.tile(day, 14), 600.0, np.zeros(2016, dtype=np.bool_), 2.0, "made")
    answer = description(rates)
    assert answer == describe_rates(rates)
    assert answer["correlation"] == {"day": pytest.approx(1), "week": pytest.approx(1)}
    over_time = OverTime(**from_trace.fields_of(rates)["over_time"])
    assert (over_time.days, over_time.burstiness, len(over_time.rates)) == (14, 2, 2016)
