"""A server that waits to fill a batch: against a simulation event by event, and in its limits."""

import math

import numpy as np
import pytest

from recipe_core.physics.serving.batch_window import (
    Service,
    Window,
    arriving,
    capacity,
    circulating,
    latency_percentiles,
)
from recipe_core.request.schema import PlanRequest
from recipe_core.search.plans import plan, plan_candidate

FIXED_S, EACH_S = 0.004, 0.0005


def service(most, host_s=0.0, rows=1):
    device = FIXED_S + EACH_S * np.arange(most + 1)
    return Service(np.full((rows, most + 1), host_s), np.tile(device, (rows, 1)))


def window(most, window_s, instances=1, preferred=None):
    one = np.array([preferred]) if preferred else None
    return Window.of(np.array([window_s]), np.array([most]), np.array([instances]), one)


def event_by_event(rate, most, window_s, host_s=0.0, instances=1, preferred=None, count=60_000):
    """Latencies and sizes, one request after the other: the server as its documentation says."""
    arrivals = np.cumsum(np.random.default_rng(7).exponential(1 / rate, count)).tolist()
    free, device, first = [0.0] * instances, 0.0, 0
    latencies, sizes = [], []
    while first + most < count:
        instance = free.index(min(free))
        full = arrivals[first + (preferred or most) - 1]
        begin = max(free[instance], min(arrivals[first] + window_s, full))
        size = 1
        while size < most and arrivals[first + size] <= begin:
            size += 1
        device = max(begin + host_s, device) + FIXED_S + EACH_S * size
        latencies += [device - came for came in arrivals[first : first + size]]
        sizes.append(size)
        free[instance], first = device, first + size
    return np.array(latencies), np.array(sizes)


@pytest.mark.parametrize(
    ("rate", "most", "window_s", "more"),
    [
        *((50, 16, 0.0, {}), (50, 16, 0.010, {}), (400, 16, 0.005, {}), (1000, 16, 0.005, {})),
        *((600, 64, 0.020, {}), (100, 8, 0.020, {}), (300, 16, 0.010, {"preferred": 4})),
        (300, 16, 0.002, {"host_s": 0.003, "instances": 2}),
    ],
)
def test_means_within_2_and_tails_within_5_percent_of_single_events(rate, most, window_s, more):
    latencies, sizes = event_by_event(rate, most, window_s, **more)
    of = window(most, window_s, more.get("instances", 1), more.get("preferred"))
    given = np.array([float(rate)]), service(most, more.get("host_s", 0.0)), of
    batches = arriving(*given)
    assert batches.wait_s + batches.service_s == pytest.approx(latencies.mean(), rel=0.02)
    assert batches.mean == pytest.approx(sizes.mean(), rel=0.02)
    assert batches.shared == pytest.approx((sizes**2).sum() / sizes.sum(), rel=0.02)
    middle, tail = latency_percentiles(*given, (50.0, 99.0))[:, 0]
    assert middle == pytest.approx(np.percentile(latencies, 50), rel=0.03)
    assert tail == pytest.approx(np.percentile(latencies, 99), rel=0.05)


def served(rate, most, window_s):
    return arriving(np.array([rate]), service(most), window(most, window_s))


def test_a_lone_request_waits_the_window_out_and_without_batches_it_is_m_d_1():
    alone, light = served(0.1, 16, 0.0), served(2.0, 16, 0.02)
    assert alone.wait_s == pytest.approx(0, abs=1e-5)
    assert alone.mean == pytest.approx(1, abs=0.01)
    assert light.wait_s == pytest.approx(0.02, rel=0.03)
    assert light.idle_wait_s == pytest.approx(light.wait_s, rel=0.01)
    assert light.mean == pytest.approx(1 + 2.0 * 0.02, rel=0.02)  # one, and who comes meanwhile
    seconds = FIXED_S + EACH_S
    busy, single = 150.0 * seconds, served(150.0, 1, 0.5)
    assert single.wait_s == pytest.approx(busy * seconds / (2 * (1 - busy)), rel=0.06)
    assert single.busy == pytest.approx(busy, rel=1e-6)


def test_heavy_load_keeps_batches_full_and_a_second_instance_hides_the_hosts_work():
    most = capacity(service(16), window(16, 0.0))
    assert most == pytest.approx(16 / (FIXED_S + 16 * EACH_S))
    for window_s in (0.0, 0.05):
        batches = arriving(0.98 * most, service(16), window(16, window_s))
        assert batches.mean > 14
        assert batches.busy > 0.96
    one, two = (capacity(service(8, 0.008), window(8, 0.0, count))[0] for count in (1, 2))
    assert one == pytest.approx(8 / (0.008 + FIXED_S + 8 * EACH_S))
    assert two == pytest.approx(8 / (FIXED_S + 8 * EACH_S))
    for window_s in (0.0, 0.02):
        sent, outside = np.array([500.0]), np.array([0.001])
        batches = circulating(sent, outside, service(16), window(16, window_s))
        assert batches.rate == pytest.approx(capacity(service(16), window(16, 0.0)), rel=1e-3)
        assert batches.wait_s + batches.service_s + 0.001 == pytest.approx(500 / batches.rate)


def test_a_longer_window_makes_larger_batches_and_a_row_is_the_same_among_others():
    windows = np.array([0.0, 0.002, 0.005, 0.01, 0.02])
    of = Window.of(windows, np.full(5, 32), np.ones(5, dtype=int))
    batches = arriving(np.full(5, 200.0), service(32, rows=5), of)
    assert np.all(np.diff(batches.mean) > 0)
    assert np.all(np.diff(batches.busy) < 0)
    assert batches.wait_s[-1] > batches.wait_s[0]
    rates = np.array([30.0, 300.0, 700.0])
    of = Window.of(np.full(3, 0.004), np.full(3, 16), np.ones(3, dtype=int))
    together = arriving(rates, service(16, rows=3), of)
    alone = arriving(rates[1:2], service(16), window(16, 0.004))
    assert together.wait_s[1] == alone.wait_s[0]


@pytest.mark.parametrize("clients", [1, 4, 12])
def test_a_closed_loop_that_cannot_fill_a_batch_waits_in_every_round(clients):
    sent = np.array([float(clients)])
    outside = np.array([1e-9])  # all come back at once
    batches = circulating(sent, outside, service(16), window(16, 0.02))
    assert batches.rate == pytest.approx(clients / (0.02 + FIXED_S + clients * EACH_S), rel=1e-3)


ONE = {"tp": 1, "pp": 1, "dp": 1}


def request(load=None, candidate=None, **options):
    value = {
        "model": "BAAI/bge-m3",
        "hardware": {"device": "l4", "per_node": 1},
        "workload": {"input_tokens": 256, "mode": "open", "request_rate": 40, **(load or {})},
        "options": options,
    }
    return PlanRequest.parse(value | ({"candidate": candidate} if candidate else {}))


def planned(load=None, engine="triton-onnxruntime", **candidate):
    return plan_candidate(request(load, {"engine": engine, **ONE, **candidate}))


def estimate(*args, **candidate):
    checked, row = planned(*args, **candidate)
    return checked.estimate(row)


def test_a_plan_judges_every_window_and_says_what_each_costs_and_saves():
    table = plan(request(engines=["triton-onnxruntime", "tei"], batch_windows_ms=[0, 5, 20]))
    order = list(map(int, table.order))
    rows = {table.candidate(row).get("batch_window_ms"): table.estimate(row) for row in order}
    assert set(rows) == {0.0, 5.0, 20.0, None}  # TEI waits for nobody, and is judged once
    latency = [rows[ms].serving.request_latency_s for ms in (0.0, 5.0, 20.0)]
    watts = [rows[ms].energy.watts for ms in (0.0, 5.0, 20.0)]
    assert latency == sorted(latency)
    assert watts == sorted(watts, reverse=True)
    assert rows[20.0].breakdown_s.prefill["window"] > 0.01
    assert table.candidate(order[0]).get("batch_window_ms") in (0.0, None)


def test_percentiles_of_arrivals_are_there_and_little_s_law_holds_in_a_closed_loop():
    checked, row = planned(batch_window_ms=10)
    figures = checked.detailed(row).serving.to_json()
    middle, tail = (figures[f"request_latency_p{p}_s"] for p in (50, 99))
    assert figures["request_latency_s"] == pytest.approx(middle, rel=0.3)
    assert tail > 1.05 * figures["request_latency_s"]
    for load in (1, 16, 500):
        closed = {"mode": "closed", "request_rate": None, "concurrency": load}
        result = estimate(closed, batch_window_ms=5)
        figures = result.serving.to_json()
        assert figures["requests_per_s"] * figures["request_latency_s"] == pytest.approx(load)
        assert math.fsum(result.breakdown_s.prefill.values()) == pytest.approx(figures["ttft_s"])


def test_lengths_are_padded_instances_hold_weights_and_queues_end_a_window_later():
    even, mixed = (estimate({"input_spread": spread, "request_rate": 120}) for spread in (0.0, 0.9))
    assert mixed.serving.request_latency_s > 1.1 * even.serving.request_latency_s
    one, two = (estimate(instances=count).memory.weights_bytes for count in (1, 2))
    shared = estimate(engine="triton-tensorrt", instances=2).memory.weights_bytes
    assert (two, shared) == (2 * one, one)
    queue = {"mode": "offline", "request_rate": None, "requests": 100}
    quick, slow = (estimate(queue, batch_window_ms=ms) for ms in (0, 1000))
    seconds = [100 / result.serving.requests_per_s for result in (quick, slow)]
    assert seconds[1] - seconds[0] == pytest.approx(1.0, rel=0.01)
