"""Encoders and decoders that embed: their tensors, memory, times, commands and bundles."""

import json

import numpy as np
import pytest

from recipe_core.base.errors import ModelError, NoAnswer
from recipe_core.commands.ground import Ground
from recipe_core.commands.judge import check_command
from recipe_core.explain.serving_time import serving_times
from recipe_core.model.catalog import load_model
from recipe_core.model.config.read import read_config
from recipe_core.present.charts.views import VIEWS, Focus
from recipe_core.recipe.decision import decide
from recipe_core.request.schema import PlanRequest
from recipe_core.search.plans import plan, plan_candidate
from tests.fixtures.catalogues import table
from tests.fixtures.command_line import recipe
from tests.fixtures.rows import over

BGE, QWEN_8B, SMALL = "BAAI/bge-m3", "Qwen/Qwen3-8B", "Qwen/Qwen3-Embedding-0.6B"
OPEN = {"mode": "open", "concurrency": None}
OFFLINE = {"mode": "offline", "concurrency": None}
STATIC = {"mode": "static", "concurrency": None}


@over("config parameters context", table("encoders.yaml", "counted"))
def test_every_parameter_of_an_encoder_is_counted(config, parameters, context):
    model = read_config(config, "x")
    assert model.parameters == parameters
    assert model.max_context == context
    assert (model.task, model.is_encoder) == ("embed", True)
    assert not any(layer.attention.kv_values_per_head for layer in model.layers)


def test_windows_and_tasks_are_read():
    layers = read_config({"model_type": "modernbert"}, "x").layers
    assert [layer.attention.window for layer in layers[:4]] == [None, 128, 128, None]
    config = {"model_type": "xlm-roberta", "architectures": ["XLMRobertaForSequenceClassification"]}
    assert read_config(config, "x").task == "score"
    assert load_model("Qwen/Qwen3-Reranker-4B").task == "score"
    assert load_model(QWEN_8B).task == "generate"
    # a decoder that sees all is an encoder
    config = load_model("google/gemma-3-270m-it").config | {"use_bidirectional_attention": True}
    model = read_config(config, "x")
    assert (model.is_encoder, model.task) == (True, "embed")


@over("config says", table("encoders.yaml", "refused"))
def test_what_is_no_encoder_is_refused(config, says):
    with pytest.raises(ModelError, match=says):
        read_config(config, "x")


def request(model=BGE, workload=None, **more):
    load = {"input_tokens": 512, "concurrency": 64, **(workload or {})}
    hardware = {"device": "l4", "per_node": 1}
    return PlanRequest.parse({"model": model, "hardware": hardware, "workload": load, **more})


def estimate(engine="vllm", model=BGE, workload=None, **candidate):
    split = {"engine": engine, "tp": 1, "pp": 1, "dp": 1, **candidate}
    checked, row = plan_candidate(request(model, workload, candidate=split))
    return checked.estimate(row)


def rate(**workload):
    return estimate(workload=workload).serving.requests_per_s


@pytest.mark.parametrize("engine", ["vllm", "tei"])
def test_an_encoder_has_no_cache_and_no_tokens(engine):
    result = estimate(engine)
    assert (result.memory.kv_needed_bytes, result.memory.kv_cache_tokens) == (0, 0)
    figures = result.serving.to_json()
    assert figures["tpot_s"] == 0
    assert figures["requests_per_s"] == pytest.approx(figures["output_tokens_per_s"])
    assert figures["input_tokens_per_s"] == pytest.approx(512 * figures["requests_per_s"])
    assert figures["ttft_s"] == figures["request_latency_s"]
    assert "tpot_s" not in result.bands
    parts = result.breakdown_s.prefill
    assert sum(parts.values()) == pytest.approx(figures["ttft_s"])
    assert "head" not in parts


def test_little_s_law_holds_and_more_load_never_lowers_throughput():
    for load in (1, 3, 64, 5000):
        figures = estimate(workload={"concurrency": load}).serving.to_json()
        assert figures["requests_per_s"] * figures["request_latency_s"] == pytest.approx(load)
    rates = [rate(concurrency=load) for load in (1, 2, 4, 16, 64, 256, 1024)]
    assert np.all(np.diff(rates) > -1e-6 * np.array(rates[1:]))
    assert rate(**OPEN, request_rate=rates[-1] * 0.9) == pytest.approx(rates[-1] * 0.9)
    assert not estimate(workload=OPEN | {"request_rate": rates[-1] * 1.2}).feasible
    # all modes agree on a full server
    closed = pytest.approx(rate(concurrency=4096), rel=0.02)
    assert rate(**OFFLINE, requests=100_000) == closed
    assert rate(**STATIC, batch=4096) == closed


def test_a_decoder_that_embeds_loses_its_head_and_keeps_its_cache_in_vllm_only():
    assert estimate("vllm", SMALL).memory.kv_needed_bytes > 0
    assert estimate("tei", SMALL).memory.kv_needed_bytes == 0
    text, vectors = (
        estimate("vllm", QWEN_8B, {"concurrency": 8, **work}).memory.weights_bytes
        for work in ({"output_tokens": 1}, {"task": "embed"})
    )
    assert text - vectors == pytest.approx(151_936 * 4096 * 2, rel=1e-3)


def test_an_engine_plans_beside_others_on_a_processor():
    assert plan(PlanRequest.parse({**request().to_json(), "hardware": {"device": "cpu"}}))


@over("command verdict says", table("encoders.yaml", "commands"))
def test_commands_that_embed_are_judged(command, verdict, says):
    answer = check_command(command, Ground.of(hardware="h100-sxm:1"))
    assert answer["verdict"] == verdict
    assert says in json.dumps(answer)
    if verdict == "fits":
        assert answer["estimate"]["serving"]["requests_per_s"] > 0


@over("load", [{"concurrency": 64}, OPEN | {"request_rate": 50}, STATIC | {"batch": 32}], share=3)
def test_every_view_of_a_split_is_drawn(load):
    board = plan(request(workload=load))
    row = int(board.order[0])
    for view in VIEWS.values():
        if "serving" in view.kinds:
            for measure in view.offered(board) or [""]:
                assert list(view.draw(Focus(board, row, measure=measure))) is not None
    lines = serving_times(board, row).lines["Parts of the request latency"]
    assert {"Attention", "Feed-forward"} <= {line.name for line in lines}


def test_a_decoder_that_needs_overrides_to_score_is_not_built():
    with pytest.raises(NoAnswer, match="hf_overrides"):
        decide(request("Qwen/Qwen3-Reranker-0.6B")).started()
    assert decide(request("jinaai/jina-reranker-m0")).started().processes


@pytest.mark.parametrize(
    ("engine", "path", "options", "processes"),
    [
        ("vllm", "/v1/embeddings", {"--runner": "pooling", "--convert": "embed"}, 1),
        ("tei", "/embed", {"--dtype": "float16"}, 2),
    ],
)
def test_a_bundle_says_how_it_is_asked(engine, path, options, processes, tmp_path):
    file, bundle = tmp_path / "request.json", tmp_path / "bundle"
    hardware = {"device": "l4", "per_node": 2}
    split = {"engine": engine, "tp": 1, "pp": 1, "dp": 2}
    value = request(SMALL).to_json() | {"hardware": hardware, "candidate": split}
    file.write_text(json.dumps(value))
    done = recipe("build", str(file), "-o", str(bundle))
    assert done.returncode == 0, done.stderr
    assert "Requests per second" in done.stdout
    launch = json.loads((bundle / "launch.json").read_text())
    words = launch["processes"][0]["argv"]
    assert launch["api"]["path"] == path
    assert {flag: words[words.index(flag) + 1] for flag in options} == options
    assert (words[0] == "text-embeddings-router") is (engine == "tei")
    assert len(launch["processes"]) == processes
