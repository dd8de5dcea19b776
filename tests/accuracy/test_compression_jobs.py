"""Checkpoints that a bundle makes: what is chosen, the scripts, the estimate, and the bundle."""

import ast
import json
from dataclasses import replace
from functools import cache

import pytest

import recipe_core as rb
from recipe_core.accuracy.choice import (
    choose_tool,
    makers,
    planned_dtype,
    tool,
    tools,
    usual_technique,
)
from recipe_core.accuracy.technique import techniques
from recipe_core.base.errors import NoAnswer, RecipeError
from recipe_core.compression.jobs import Job, estimate_job, job_numbers
from recipe_core.compression.scripts.work import SCRIPT, compression_launch
from recipe_core.hardware.cluster import device_profile
from recipe_core.models.catalog import catalog_model
from recipe_core.recipe.decision import decide
from recipe_core.request.compression import Compression
from scripts.compression_jobs import job_estimate, published
from tests.conftest import make_request
from tests.fixtures.paths import DATA
from tests.fixtures.recipes import bundle_for_request
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def chosen(technique, name="auto", method="auto", engine="vllm", runtime="cuda"):
    request = Compression(technique=technique, tool=name, method=method)
    return choose_tool(request, planned_dtype(technique) or "int4", engine, runtime, needed=True)


def every_way():
    for name, known in tools().items():
        words = [f"gguf_{word.lower()}" for word in known.gguf_types] or list(known.makes)
        yield from ((name, made, method) for made in words for method in known.ways(made))


def test_the_tool_is_one_whose_result_the_engine_loads():
    for engine, runtime, technique, name in table("compression_jobs", "tools"):
        assert chosen(technique, engine=engine, runtime=runtime).tool == name
    # what no checkpoint holds means the usual technique
    answer = choose_tool(Compression(), "int4", "vllm", "cuda", needed=True)
    assert (answer.technique, answer.method, answer.samples) == ("int4_weight_only", "GPTQ", 512)
    assert choose_tool(Compression(), "bf16", "vllm", "cuda", needed=False) is None
    # every name is a technique
    assert {made for _, made, _ in every_way()} <= set(techniques())
    assert {usual_technique(dtype) for dtype in ("fp8", "int8", "int4")} <= set(techniques())


def test_what_cannot_be_combined_names_the_field_and_the_fix():
    for parts, field in table("compression_jobs", "impossible"):
        error = refusal(chosen, **parts)
        assert (error.field, bool(error.hint)) == (f"options.compression.{field}", True)
    nothing = refusal(chosen, "nf4_weight_only", kind=NoAnswer)
    assert "no tool makes nf4_weight_only that vllm loads" in str(nothing)
    assert makers("gguf_q4_k_m") == ("llama-cpp",)
    options = {"compression": {"technique": "gguf_q8_0", "tool": "quark"}}
    error = refusal(make_request, LLAMA, options=options, kind=RecipeError)
    assert "is made by llama-cpp, not quark" in str(error)


BASE = catalog_model("meta-llama/Llama-3.1-8B")
APIS = json.loads((DATA / "compressor_apis.json").read_text())
"""Interfaces of the tools, as ``scripts/compressor_apis.py`` read them of their sources."""


@cache
def script_of(name, technique, method):
    fields = {"technique": technique, "tool": name, "method": method}
    scheme, compression = tool(name).ways(technique)[method].scheme, Compression(**fields)
    answer = replace(chosen("int4_weight_only"), **fields, scheme=scheme, request=compression)
    launch = compression_launch(answer, BASE, tool(name).runtimes[0])
    return list(ast.walk(ast.parse(launch.files.get(SCRIPT) or "")))


@over("name, technique, method", every_way(), share=5)
def test_scripts_call_what_the_pinned_tool_has(name, technique, method):
    known = APIS.get(name.replace("llm-compressor", "llmcompressor"), {})
    used = 0
    for node in script_of(name, technique, method):
        if isinstance(node, ast.Call):
            called = getattr(node.func, "id", None) or getattr(node.func, "attr", "")
            words = {word.arg for word in node.keywords if word.arg}
            assert called not in known or words <= set(known[called]), called
            used += called in known
    assert used or not known


def test_schemes_are_the_tools_own_names():
    lists = {
        "llm-compressor": "compressed_tensors",
        "modelopt": "modelopt_presets",
        "quark": "quark_schemes",
    }
    for name, words in lists.items():
        for made, ways in tool(name).makes.items():
            for way in ways.values() if techniques()[made].kind != "sparsity" else ():
                schemes = {way.scheme, *way.by_format.values()}
                assert schemes <= set(APIS["words"][words]), (name, made)


@over("name", ["optimum-openvino", "optimum-onnx"])
def test_words_of_optimum_are_options_of_its_commands(name):
    options = {word for words in APIS["optimum"].values() for word in words}
    for made, ways in tool(name).makes.items():
        nodes = script_of(name, made, next(iter(ways)))
        texts = {str(node.value) for node in nodes if isinstance(node, ast.Constant)}
        assert {text for text in texts if text.startswith("--") and text != "--"} <= options


def test_times_and_memory_are_near_published_ones():
    factor, inside = job_numbers().factor.value, []
    for row in published():
        found = job_estimate(row)
        ratio = found.seconds.value / 60 / float(row["minutes"])
        inside.append(1 / factor <= ratio <= factor)
        assert row["source"] != "gptq" or 0.8 <= ratio <= 1.25
        if row["gigabytes"]:
            gigabytes = found.device_bytes / 1e9
            assert gigabytes / float(row["gigabytes"]) == pytest.approx(1, abs=0.15)
    assert sum(inside) >= 0.8 * len(inside)


def job(method, samples=128, **more):
    values = {"tool": "", "technique": "int4_weight_only", "weight_bits": 4, "tokens": 2048, **more}
    asked = Job(model=BASE, method=method, samples=samples, **values)
    return estimate_job(asked, device_profile("h100-sxm"), usd_per_device_hour=3.6)


def test_more_text_takes_longer_and_the_host_holds_the_base():
    short, long = job("GPTQ", 128), job("GPTQ", 512)
    assert long.seconds.value > short.seconds.value
    assert short.host_bytes > 16e9
    assert short.usd == pytest.approx(short.seconds.value / 1000)
    assert sum(short.phases_s.values()) == pytest.approx(short.seconds.value)
    # Hessians lie on the device, and rounding alone needs little
    assert job("RTN", 0).device_bytes < job("GPTQ").device_bytes < job("AutoRound").device_bytes
    assert job("RTN", 0).seconds.value < 90
    assert job("RTN", resident=True).device_bytes > 16e9  # a resident model fills it


def asked(technique, engine="vllm", **parts):
    compression = {"compression": {"technique": technique}} if technique else {}
    return make_request(LLAMA, options={"engines": [engine], **compression}, **parts)


def test_the_plan_chooses_weights_that_no_checkpoint_holds():
    best = rb.plan(asked("int4_weight_only"), measured="none").best
    assert best.candidate["weight_dtype"] == "int4"
    takes = best.estimate.to_json()["compression"]
    assert takes["tool"] == "llm-compressor"
    assert takes["seconds"]["low"] < takes["seconds"]["value"] < takes["seconds"]["high"]
    # without it such weights are still refused
    decision = decide(asked(None, candidate={"weight_dtype": "int4"}))
    assert "options.compression" in str(refusal(decision.started, kind=NoAnswer))
    # encoders are exported and not quantised as decoders
    encoder = chosen("int8_w8a8"), catalog_model("BAAI/bge-m3"), "cuda"
    assert "go on with texts" in str(refusal(compression_launch, *encoder, kind=NoAnswer))


def test_the_launch_serves_what_is_made():
    bundle = bundle_for_request(asked("int4_weight_only"))
    launch = json.loads(bundle.files["launch.json"])
    made, job = launch["compression"], json.loads(bundle.files["compress/job.json"])
    assert launch["parameters"]["model"] == made["output"]
    assert made["source"] == LLAMA
    assert (job["tool"], job["method"], job["options"]["group"]) == ("llm-compressor", "gptq", 128)
    assert job["verify"]["least_retained"] == 0.95
    # a checkpoint of four bits or FP8 is not quantised again while loading
    fp8 = decide(asked("fp8_w8a8")).started()
    for words in (launch["processes"][0]["argv"], fp8.processes[0].argv):
        assert "--quantization" not in words
    compile(bundle.files["compress.py"], "compress.py", "exec")
    # clusters are told that it is made first
    reasons = [reason for reason in bundle.targets.values() if isinstance(reason, str)]
    assert any("python launch.py compress" in reason for reason in reasons)
    # llama.cpp is given the file that is made
    files = bundle_for_request(asked("gguf_q4_k_m", "llama-cpp")).files
    launch = json.loads(files["launch.json"])
    assert launch["parameters"]["model"].endswith("/model.gguf")
    assert b"TYPE = 'Q4_K_M'" in files["compress/make.py"]
