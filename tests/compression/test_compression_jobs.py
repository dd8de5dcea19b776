"""Checkpoints that a bundle makes: what is chosen, the scripts, the estimate, and the bundle."""

from __future__ import annotations

import ast
import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from recipe_core.base.errors import NoAnswer, RecipeError
from recipe_core.bundle.write import Bundle
from recipe_core.compression.choice import Chosen, choose, planned_dtype
from recipe_core.compression.technique import techniques
from recipe_core.compression.tools import makers, tool, tools, usual_technique
from recipe_core.hardware.cluster import device
from recipe_core.launch.compression.start import compression_launch, job_document
from recipe_core.launch.compression.work import SCRIPT
from recipe_core.model.catalog import catalog_model
from recipe_core.physics.compression import CompressionEstimate, Job, estimate
from recipe_core.physics.compression.numbers import numbers
from recipe_core.recipe.decision import decide
from recipe_core.request.compression import Compression
from recipe_core.request.schema import PlanRequest
from recipe_core.search.plans import plan
from tests.conftest import make_request
from tests.fixtures.paths import DATA
from tests.fixtures.recipes import bundle_for_request
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def chosen(technique, name="auto", method="auto", engine="vllm", runtime="cuda") -> Chosen:
    asked = {"technique": technique, "tool": name, "method": method}
    request, dtype = Compression.model_validate(asked), planned_dtype(technique) or "int4"
    return choose(request, dtype, engine, runtime, needed=True)


def every_way() -> Iterator[tuple[str, str, str]]:
    for name, known in tools().items():
        words = [f"gguf_{word.lower()}" for word in known.gguf_types] or list(known.makes)
        yield from ((name, made, method) for made in words for method in known.ways(made))


def test_the_tool_is_one_whose_result_the_engine_loads():
    for engine, runtime, technique, name in (
        ("vllm", "cuda", "int4_weight_only", "llm-compressor"),
        ("tensorrt-llm", "cuda", "fp8_w8a8", "modelopt"),
        ("vllm", "rocm", "mxfp4_w4a4", "quark"),
        ("tgi", "cuda", "int4_weight_only", "gptqmodel"),
        ("llama-cpp", "cpu", "gguf_q4_k_m", "llama-cpp"),
    ):
        assert chosen(technique, engine=engine, runtime=runtime).tool == name
    # what no checkpoint holds means the usual technique
    answer = choose(Compression(), "int4", "vllm", "cuda", needed=True)
    assert (answer.technique, answer.method, answer.samples) == ("int4_weight_only", "GPTQ", 512)
    assert choose(Compression(), "bf16", "vllm", "cuda", needed=False) is None
    # every name is a technique
    assert {made for _, made, _ in every_way()} <= set(techniques())
    assert {usual_technique(dtype) for dtype in ("fp8", "int8", "int4")} <= set(techniques())


def test_what_cannot_be_combined_names_the_field_and_the_fix():
    int4 = "int4_weight_only"
    for words, more, field in (
        (("int5_weight_only",), {}, "technique"),
        (("nvfp4_w4a4", "gptqmodel"), {}, "tool"),
        ((int4, "quark", "AutoRound"), {}, "method"),
        ((int4, "gptqmodel"), {"engine": "tensorrt-llm"}, "tool"),
        ((int4, "llm-compressor", "AWQ"), {"runtime": "cpu"}, "method"),
    ):
        error = refusal(chosen, *words, **more)
        assert (error.field, bool(error.hint)) == (f"options.compression.{field}", True)
    nothing = refusal(chosen, "nf4_weight_only", kind=NoAnswer)
    assert "no tool makes nf4_weight_only that vllm loads" in str(nothing)
    # GGUF is made by llama.cpp or the bundle itself
    assert makers("gguf_q4_k_m") == ("llama-cpp", "embedded")
    options = {"compression": {"technique": "gguf_q8_0", "tool": "quark"}}
    error = refusal(make_request, LLAMA, options=options, kind=RecipeError)
    assert "llama-cpp or embedded" in str(error)


@cache
def apis() -> dict[str, Any]:
    """Interfaces of the tools, as ``scripts/compressor_apis.py`` read them of their sources."""
    return dict(json.loads((DATA / "compressor_apis.json").read_text()))


@cache
def script_of(name: str, technique: str, method: str) -> ast.Module:
    fields = {"technique": technique, "tool": name, "method": method}
    scheme, compression = tool(name).ways(technique)[method].scheme, Compression(**fields)
    answer = replace(chosen("int4_weight_only"), **fields, scheme=scheme, request=compression)
    model = catalog_model("meta-llama/Llama-3.1-8B")
    launch = compression_launch(answer, model, tool(name).runtimes[0])
    return ast.parse(launch.files.get(SCRIPT) or "")


def calls(tree: ast.Module) -> Iterator[tuple[str, list[str]]]:
    """Names that are called, with their keywords."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", None) or getattr(node.func, "attr", "")
            yield name, [word.arg for word in node.keywords if word.arg]


@over("name, technique, method", every_way(), share=5)
def test_scripts_call_what_the_pinned_tool_has(name, technique, method):
    known = apis().get(name.replace("llm-compressor", "llmcompressor"), {})
    script = script_of(name, technique, method)
    used = [(called, words) for called, words in calls(script) if called in known]
    for called, words in used:
        assert set(words) <= set(known[called]), called
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
                assert schemes <= set(apis()["words"][words]), (name, made)


@over("name", ["optimum-openvino", "optimum-onnx"])
def test_words_of_optimum_are_options_of_its_commands(name):
    options = {word for words in apis()["optimum"].values() for word in words}
    for made, ways in tool(name).makes.items():
        nodes = ast.walk(script_of(name, made, next(iter(ways))))
        texts = {str(node.value) for node in nodes if isinstance(node, ast.Constant)}
        assert {text for text in texts if text.startswith("--") and text != "--"} <= options


def test_the_job_is_what_the_program_reads():
    job = job_document(chosen("int4_weight_only"), catalog_model("meta-llama/Llama-3.1-8B"))
    assert job["schema_version"] == 1
    assert (job["tool"], job["method"], job["format"]) == ("llm-compressor", "gptq", "safetensors")
    assert job["options"]["group"] == 128
    assert job["verify"]["least_retained"] == 0.95
    # encoders are exported and not quantised as decoders
    asked = chosen("int8_w8a8"), catalog_model("BAAI/bge-m3"), "cuda"
    assert "go on with texts" in str(refusal(compression_launch, *asked, kind=NoAnswer))


with (DATA / "compression_jobs.csv").open(encoding="utf-8") as file:
    PUBLISHED = list(csv.DictReader(file))


def predicted(row: dict[str, str]) -> CompressionEstimate:
    job = Job(
        model=catalog_model(row["model"]),
        tool="",
        technique="int4_weight_only",
        method=row["method"],
        samples=int(row["samples"]),
        tokens=int(row["tokens"]),
        weight_bits=4,
        observed=row["observed"] == "yes",
        everywhere=row["everywhere"] == "yes",
    )
    return estimate(job, device(row["device"]))


def test_times_and_memory_are_near_published_ones():
    factor = numbers().factor.value
    ratios = [predicted(row).seconds.value / 60 / float(row["minutes"]) for row in PUBLISHED]
    inside = [1 / factor <= ratio <= factor for ratio in ratios]
    assert sum(inside) >= 0.8 * len(inside)
    for row, ratio in zip(PUBLISHED, ratios, strict=True):
        assert row["source"] != "gptq" or 0.8 <= ratio <= 1.25
        if row["gigabytes"]:
            gigabytes = predicted(row).device_bytes / 1e9
            assert gigabytes / float(row["gigabytes"]) == pytest.approx(1, abs=0.15)


def job(method: str, samples: int = 128, **more: Any) -> CompressionEstimate:
    values = {"tool": "", "technique": "int4_weight_only", "weight_bits": 4, "tokens": 2048, **more}
    model = catalog_model("meta-llama/Llama-3.1-8B")
    asked = Job(model=model, method=method, samples=samples, **values)
    return estimate(asked, device("h100-sxm"), usd_per_device_hour=3.6)


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


def asked(technique: str | None, engine: str = "vllm", **parts: Any) -> PlanRequest:
    compression = {"compression": {"technique": technique}} if technique else {}
    return make_request(LLAMA, options={"engines": [engine], **compression}, **parts)


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return bundle_for_request(asked("int4_weight_only"))


def test_the_plan_chooses_weights_that_no_checkpoint_holds():
    best = plan(asked("int4_weight_only")).best
    assert best.candidate["weight_dtype"] == "int4"
    takes = best.estimate.to_json()["compression"]
    assert takes["tool"] == "llm-compressor"
    assert takes["seconds"]["low"] < takes["seconds"]["value"] < takes["seconds"]["high"]
    # without it such weights are still refused
    decision = decide(asked(None, candidate={"weight_dtype": "int4"}))
    assert "options.compression" in str(refusal(decision.started, kind=NoAnswer))


def test_the_launch_serves_what_is_made(bundle):
    launch = json.loads(bundle.files["launch.json"])
    made = launch["compression"]
    assert launch["parameters"]["model"] == made["output"]
    assert made["source"] == LLAMA
    assert made["needs"]["host_bytes"] > 0
    assert "--quantization" not in launch["processes"][0]["argv"]
    # an FP8 checkpoint is not quantised again while loading
    fp8 = decide(asked("fp8_w8a8")).started()
    assert "--quantization" not in fp8.processes[0].argv
    # the bundle has the job, the script and what checks it
    for path in ("compress/job.json", "compress/make.py", "compress/slurm.sh", "compress.py"):
        assert path in bundle.files
    assert b"llmcompressor==0.14.0.1" in bundle.files["compress/requirements.txt"]
    compile(bundle.files["compress.py"], "compress.py", "exec")
    assert b"python launch.py compress" in bundle.files["README.md"]
    names = [part["name"] for part in json.loads(bundle.files["sbom.json"])["components"]]
    assert "llmcompressor" in names
    # clusters are told that it is made first
    reasons = [reason for reason in bundle.targets.values() if isinstance(reason, str)]
    assert any("python launch.py compress" in reason for reason in reasons)


def test_bundles_that_make_nothing_have_nothing_of_it():
    files = bundle_for_request(asked(None)).files
    assert not [path for path in files if path.startswith(("compress/", "compressor/"))]
    assert "compression" not in json.loads(files["launch.json"])
    # llama.cpp is given the file that is made
    files = bundle_for_request(asked("gguf_q4_k_m", "llama-cpp")).files
    launch = json.loads(files["launch.json"])
    assert launch["parameters"]["model"].endswith("/model.gguf")
    assert b"TYPE = 'Q4_K_M'" in files["compress/make.py"]
