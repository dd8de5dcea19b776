"""What embeds, and servers that wait to fill a batch: against a simulation event by event."""

import json

import numpy as np
import pytest

from recipe_core.base.errors import ModelError, NoAnswer
from recipe_core.commands.context import CommandContext
from recipe_core.commands.judge import judge_command
from recipe_core.estimates.serving import batch_window
from recipe_core.estimates.serving.batch_window import (
    Window,
    arriving_batches,
    batch_capacity,
    circulating_batches,
)
from recipe_core.models.catalog import load_model_spec
from recipe_core.models.config.read import read_model_config
from recipe_core.plans.plans import plan_candidate, plan_splits
from recipe_core.recipe.decision import decide
from recipe_core.request.schema import PlanRequest
from recipe_core.views.charts.views import VIEWS, Focus
from recipe_core.views.estimates import estimate_text
from recipe_core.views.explanations.serving_time import serving_times
from tests.fixtures.catalogues import table
from tests.fixtures.recipes import bundle_for_request
from tests.fixtures.rows import over

BGE, QWEN_8B, SMALL = "BAAI/bge-m3", "Qwen/Qwen3-8B", "Qwen/Qwen3-Embedding-0.6B"
OPEN = {"mode": "open", "concurrency": None}
STATIC = {"mode": "static", "batch": 32, "concurrency": None}


def request(model=BGE, workload=None, **more):
    load = {"concurrency": 64, "input_tokens": 512, **(workload or {})}
    load = {name: value for name, value in load.items() if value is not None}
    hardware = {"device": "l4", "per_node": 1}
    return PlanRequest.parse({"model": model, "hardware": hardware, "workload": load, **more})


def planned(engine="vllm", model=BGE, workload=None, **candidate):
    split = {"engine": engine, "tp": 1, "pp": 1, "dp": 1, **candidate}
    return plan_candidate(request(model, workload, candidate=split))


def estimate(*args, **parts):
    checked, row = planned(*args, **parts)
    return checked.estimate(row)


def rate(**workload):
    return estimate(workload=workload).serving.requests_per_s


def test_an_encoder_has_no_cache_and_no_tokens_and_plans_beside_others_on_a_processor():
    for engine in ("vllm", "tei"):
        checked, row = planned(engine)
        result = checked.estimate(row)
        assert "Requests per second" in estimate_text(checked.candidate(row), result.to_json())
        assert (result.memory.kv_needed_bytes, result.memory.kv_cache_tokens) == (0, 0)
        figures = result.serving.to_json()
        assert (figures["tpot_s"], figures["ttft_s"]) == (0, figures["request_latency_s"])
        assert figures["requests_per_s"] == pytest.approx(figures["output_tokens_per_s"])
        assert figures["input_tokens_per_s"] == pytest.approx(512 * figures["requests_per_s"])
        assert "tpot_s" not in result.bands
        assert "head" not in result.breakdown_s.prefill
    assert plan_splits(PlanRequest.parse({**request().to_json(), "hardware": {"device": "cpu"}}))


def test_more_load_never_lowers_throughput_and_arrivals_are_served_below_it():
    rates = [rate(concurrency=load) for load in (1, 2, 4, 16, 64, 256, 1024)]
    assert np.all(np.diff(rates) > -1e-6 * np.array(rates[1:]))
    assert rate(**OPEN, request_rate=rates[-1] * 0.9) == pytest.approx(rates[-1] * 0.9)
    near = estimate(workload=OPEN | {"request_rate": rates[-1] * 1.2})
    assert near.arrivals.keeps_up_probability < 0.5
    assert not estimate(workload=OPEN | {"request_rate": rates[-1] * 12}).feasible


def test_a_bundle_says_how_it_is_asked_unless_a_decoder_needs_overrides_to_score():
    for engine, path, options, processes in table("encoders.yaml", "bundled"):
        split = {"engine": engine, "tp": 1, "pp": 1, "dp": 2}
        hardware = {"device": "l4", "per_node": 2}
        value = request(SMALL).to_json() | {"hardware": hardware, "candidate": split}
        bundle = bundle_for_request(PlanRequest.parse(value))
        launch = json.loads(bundle.files["launch.json"])
        words = launch["processes"][0]["argv"]
        assert launch["api"]["path"] == path
        assert {flag: words[words.index(flag) + 1] for flag in options} == options
        assert (words[0] == "text-embeddings-router") is (engine == "tei")
        assert len(launch["processes"]) == processes
    with pytest.raises(NoAnswer, match="hf_overrides"):
        decide(request("Qwen/Qwen3-Reranker-0.6B")).started()
    assert decide(request("jinaai/jina-reranker-m0")).started().processes


@over("config parameters context", table("encoders.yaml", "counted"))
def test_every_parameter_of_an_encoder_is_counted(config, parameters, context):
    model = read_model_config(config, "x")
    assert model.parameters == parameters
    assert model.max_context == context
    assert (model.task, model.is_encoder) == ("embed", True)
    assert not any(layer.attention.kv_values_per_head for layer in model.layers)


def test_windows_and_tasks_are_read():
    layers = read_model_config({"model_type": "modernbert"}, "x").layers
    assert [layer.attention.window for layer in layers[:4]] == [None, 128, 128, None]
    config = {"model_type": "xlm-roberta", "architectures": ["XLMRobertaForSequenceClassification"]}
    assert read_model_config(config, "x").task == "score"
    assert load_model_spec("Qwen/Qwen3-Reranker-4B").task == "score"
    assert load_model_spec(QWEN_8B).task == "generate"
    # a decoder that sees all is an encoder
    config = load_model_spec("google/gemma-3-270m-it").config | {
        "use_bidirectional_attention": True
    }
    model = read_model_config(config, "x")
    assert (model.is_encoder, model.task) == (True, "embed")


@over("config says", table("encoders.yaml", "refused"))
def test_what_is_no_encoder_is_refused(config, says):
    with pytest.raises(ModelError, match=says):
        read_model_config(config, "x")


@over("command verdict says", table("encoders.yaml", "commands"))
def test_commands_that_embed_are_judged(command, verdict, says):
    answer = judge_command(command, CommandContext.of(hardware="h100-sxm:1"))
    assert answer["verdict"] == verdict
    assert says in json.dumps(answer)
    if verdict == "fits":
        assert answer["estimate"]["serving"]["requests_per_s"] > 0


@over("load", [{"concurrency": 64}, OPEN | {"request_rate": 50}, STATIC], share=3)
def test_every_view_of_a_split_is_drawn(load):
    board = plan_splits(request(workload=load))
    row = int(board.order[0])
    for view in VIEWS.values():
        if "serving" in view.kinds:
            for measure in view.choices(board) or [""]:
                assert list(view.draw(Focus(board, row, measure=measure))) is not None
    lines = serving_times(board, row).lines["Parts of the request latency"]
    assert {"Attention", "Feed-forward"} <= {line.name for line in lines}


FIXED_S, EACH_S = 0.004, 0.0005


def service(most, host_s=0.0, rows=1):
    device = FIXED_S + EACH_S * np.arange(most + 1)
    return batch_window.Service(np.full((rows, most + 1), host_s), np.tile(device, (rows, 1)))


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


def served(rate, most, window_s):
    return arriving_batches(np.array([rate]), service(most), window(most, window_s))


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
    most = batch_capacity(service(16), window(16, 0.0))
    assert most == pytest.approx(16 / (FIXED_S + 16 * EACH_S))
    for window_s in (0.0, 0.05):
        batches = arriving_batches(0.98 * most, service(16), window(16, window_s))
        assert batches.mean > 14
        assert batches.busy > 0.96
    one, two = (batch_capacity(service(8, 0.008), window(8, 0.0, count))[0] for count in (1, 2))
    assert one == pytest.approx(8 / (0.008 + FIXED_S + 8 * EACH_S))
    assert two == pytest.approx(8 / (FIXED_S + 8 * EACH_S))
    for window_s in (0.0, 0.02):
        sent, outside = np.array([500.0]), np.array([0.001])
        batches = circulating_batches(sent, outside, service(16), window(16, window_s))
        assert batches.rate == pytest.approx(batch_capacity(service(16), window(16, 0.0)), rel=1e-3)
        assert batches.wait_s + batches.service_s + 0.001 == pytest.approx(500 / batches.rate)


def test_a_longer_window_makes_larger_batches_and_a_row_is_the_same_among_others():
    windows = np.array([0.0, 0.002, 0.005, 0.01, 0.02])
    of = Window.of(windows, np.full(5, 32), np.ones(5, dtype=int))
    batches = arriving_batches(np.full(5, 200.0), service(32, rows=5), of)
    assert np.all(np.diff(batches.mean) > 0)
    assert np.all(np.diff(batches.busy) < 0)
    assert batches.wait_s[-1] > batches.wait_s[0]
    rates = np.array([30.0, 300.0, 700.0])
    of = Window.of(np.full(3, 0.004), np.full(3, 16), np.ones(3, dtype=int))
    together = arriving_batches(rates, service(16, rows=3), of)
    alone = arriving_batches(rates[1:2], service(16), window(16, 0.004))
    assert together.wait_s[1] == alone.wait_s[0]


@pytest.mark.parametrize("clients", [1, 4, 12])
def test_a_closed_loop_that_cannot_fill_a_batch_waits_in_every_round(clients):
    sent = np.array([float(clients)])
    outside = np.array([1e-9])  # all come back at once
    batches = circulating_batches(sent, outside, service(16), window(16, 0.02))
    assert batches.rate == pytest.approx(clients / (0.02 + FIXED_S + clients * EACH_S), rel=1e-3)


@over("rate most window_s more", table("encoders.yaml", "windows"))
def test_means_within_2_and_tails_within_5_percent_of_single_events(rate, most, window_s, more):
    latencies, sizes = event_by_event(rate, most, window_s, **more)
    of = window(most, window_s, more.get("instances", 1), more.get("preferred"))
    given = np.array([float(rate)]), service(most, more.get("host_s", 0.0)), of
    batches = arriving_batches(*given)
    assert batches.wait_s + batches.service_s == pytest.approx(latencies.mean(), rel=0.02)
    assert batches.mean == pytest.approx(sizes.mean(), rel=0.02)
    assert batches.shared == pytest.approx((sizes**2).sum() / sizes.sum(), rel=0.02)
    middle, tail = batch_window.latency_percentiles(*given, (50.0, 99.0))[:, 0]
    assert middle == pytest.approx(np.percentile(latencies, 50), rel=0.03)
    assert tail == pytest.approx(np.percentile(latencies, 99), rel=0.05)


ARRIVALS = OPEN | {"input_tokens": 256, "request_rate": 40}
TRITON = "triton-onnxruntime"


def test_a_plan_judges_every_window_and_says_what_each_costs_and_saves():
    options = {"engines": [TRITON, "tei"], "batch_windows_ms": [0, 5, 20]}
    table = plan_splits(request(workload=ARRIVALS, options=options))
    order = list(map(int, table.order))
    rows = {table.candidate(row).get("batch_window_ms"): table.estimate(row) for row in order}
    assert set(rows) == {0.0, 5.0, 20.0, None}  # TEI waits for nobody, and is judged once
    latency = [rows[ms].serving.request_latency_s for ms in (0.0, 5.0, 20.0)]
    watts = [rows[ms].energy.watts for ms in (0.0, 5.0, 20.0)]
    assert latency == sorted(latency)
    assert watts == sorted(watts, reverse=True)
    assert rows[20.0].breakdown_s.prefill["window"] > 0.01
    assert table.candidate(order[0]).get("batch_window_ms") in (0.0, None)


def test_percentiles_of_arrivals_are_there_little_s_law_holds_and_a_queue_ends_a_window_later():
    checked, row = planned(TRITON, workload=ARRIVALS, batch_window_ms=10)
    figures = checked.spec.detailed(checked, row).serving.to_json()
    middle, tail = (figures[f"request_latency_p{p}_s"] for p in (50, 99))
    assert figures["request_latency_s"] == pytest.approx(middle, rel=0.3)
    assert tail > 1.05 * figures["request_latency_s"]
    for load in (1, 16, 500):
        closed = {"input_tokens": 256, "concurrency": load}
        served = estimate(TRITON, BGE, closed, batch_window_ms=5).serving
        assert served.requests_per_s * served.request_latency_s == pytest.approx(load)
    queue = {"input_tokens": 256, "mode": "offline", "concurrency": None, "requests": 100}
    quick, slow = (
        100 / estimate(TRITON, BGE, queue, batch_window_ms=ms).serving.requests_per_s
        for ms in (0, 1000)
    )
    assert slow - quick == pytest.approx(1.0, rel=0.01)
