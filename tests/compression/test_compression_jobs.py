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

from recipe_core.base.errors import InputError, NoAnswer, RecipeError
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

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def chosen(technique: str, name: str = "auto", method: str = "auto", **more: Any) -> Chosen:
    request = Compression.model_validate(
        {"technique": technique, "tool": name, "method": method, **more.pop("request", {})}
    )
    values = {"engine": "vllm", "runtime": "cuda", **more}
    dtype = planned_dtype(technique) or "int4"
    answer = choose(request, dtype, values["engine"], values["runtime"], needed=True)
    assert answer is not None
    return answer


def every_way() -> Iterator[tuple[str, str, str]]:
    for name, one in tools().items():
        words = [f"gguf_{word.lower()}" for word in one.gguf_types] or list(one.makes)
        yield from ((name, made, method) for made in words for method in one.ways(made))


# What is chosen


def test_every_name_is_a_technique_and_its_loaders_are_engines() -> None:
    assert {made for _, made, _ in every_way()} <= set(techniques())
    assert {usual_technique(dtype) for dtype in ("fp8", "int8", "int4")} <= set(techniques())


@pytest.mark.parametrize(
    ("engine", "runtime", "technique", "tool_name"),
    [
        ("vllm", "cuda", "int4_weight_only", "llm-compressor"),
        ("tensorrt-llm", "cuda", "fp8_w8a8", "modelopt"),
        ("vllm", "rocm", "mxfp4_w4a4", "quark"),
        ("tgi", "cuda", "int4_weight_only", "gptqmodel"),
        ("llama-cpp", "cpu", "gguf_q4_k_m", "llama-cpp"),
    ],
)
def test_the_tool_is_one_whose_result_the_engine_loads(
    engine: str, runtime: str, technique: str, tool_name: str
) -> None:
    assert chosen(technique, engine=engine, runtime=runtime).tool == tool_name


def test_what_no_checkpoint_holds_means_the_usual_technique() -> None:
    answer = choose(Compression(), "int4", "vllm", "cuda", needed=True)
    assert answer is not None
    assert (answer.technique, answer.method, answer.samples) == ("int4_weight_only", "GPTQ", 512)
    assert choose(Compression(), "bf16", "vllm", "cuda", needed=False) is None


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"technique": "int5_weight_only"}, "technique"),
        ({"technique": "nvfp4_w4a4", "name": "gptqmodel"}, "tool"),
        ({"technique": "int4_weight_only", "name": "quark", "method": "AutoRound"}, "method"),
        ({"technique": "int4_weight_only", "name": "gptqmodel", "engine": "tensorrt-llm"}, "tool"),
        (
            {
                "technique": "int4_weight_only",
                "name": "llm-compressor",
                "method": "AWQ",
                "runtime": "cpu",
            },
            "method",
        ),
    ],
)
def test_what_cannot_be_combined_names_the_field_and_the_fix(
    fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(InputError) as refused:
        chosen(**fields)
    assert refused.value.field == f"options.compression.{field}"
    assert refused.value.hint


def test_what_no_tool_makes_for_an_engine_is_no_answer() -> None:
    with pytest.raises(NoAnswer, match="no tool makes nf4_weight_only that vllm loads"):
        chosen("nf4_weight_only")


def test_gguf_is_made_by_llama_cpp_or_the_bundle_itself() -> None:
    assert makers("gguf_q4_k_m") == ("llama-cpp", "embedded")
    with pytest.raises(RecipeError, match="is made by llama-cpp or embedded"):
        make_request(LLAMA, options={"compression": {"technique": "gguf_q8_0", "tool": "quark"}})


# Scripts


@cache
def apis() -> dict[str, Any]:
    """Interfaces of the tools, as ``scripts/compressor_apis.py`` read them of their sources."""
    return dict(json.loads((DATA / "compressor_apis.json").read_text()))


@cache
def script_of(name: str, technique: str, method: str) -> ast.Module:
    compression = Compression(technique=technique, tool=name, method=method)  # type: ignore[arg-type]
    answer = replace(
        chosen("int4_weight_only"),
        technique=technique,
        tool=name,
        method=method,
        scheme=tool(name).ways(technique)[method].scheme,
        request=compression,
    )
    launch = compression_launch(
        answer, catalog_model("meta-llama/Llama-3.1-8B"), tool(name).runtimes[0]
    )
    return ast.parse(launch.files.get(SCRIPT) or "")


def calls(tree: ast.Module) -> Iterator[tuple[str, list[str]]]:
    """Names that are called, with their keywords."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", None) or getattr(node.func, "attr", "")
            yield name, [word.arg for word in node.keywords if word.arg]


@pytest.mark.parametrize("way", [*every_way()], ids="-".join)
def test_scripts_call_what_the_pinned_tool_has(way: tuple[str, str, str]) -> None:
    package = {"llm-compressor": "llmcompressor"}.get(way[0], way[0])
    known = apis().get(package, {})
    used = [(name, words) for name, words in calls(script_of(*way)) if name in known]
    for name, words in used:
        assert set(words) <= set(known[name]), name
    assert used or not known


def test_schemes_are_the_tools_own_names() -> None:
    words = apis()["words"]
    lists = {
        "llm-compressor": words["compressed_tensors"],
        "modelopt": words["modelopt_presets"],
        "quark": words["quark_schemes"],
    }
    for name, names in lists.items():
        for made, ways in tool(name).makes.items():
            if techniques()[made].kind == "sparsity":
                continue
            for way in ways.values():
                assert {way.scheme, *way.by_format.values()} <= set(names), (name, made)


@pytest.mark.parametrize("name", ["optimum-openvino", "optimum-onnx"])
def test_words_of_optimum_are_options_of_its_commands(name: str) -> None:
    options = {word for words in apis()["optimum"].values() for word in words}
    for made, ways in tool(name).makes.items():
        tree = script_of(name, made, next(iter(ways)))
        texts = [
            str(node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and str(node.value).startswith("--")
        ]
        assert {text for text in texts if text != "--"} <= options


def test_the_job_is_what_the_program_reads() -> None:
    job = job_document(chosen("int4_weight_only"), catalog_model("meta-llama/Llama-3.1-8B"))
    assert job["schema_version"] == 1
    assert (job["tool"], job["method"], job["format"]) == ("llm-compressor", "gptq", "safetensors")
    assert job["options"]["group"] == 128
    assert job["verify"]["least_retained"] == 0.95


def test_encoders_are_exported_and_not_quantised_as_decoders() -> None:
    encoder = catalog_model("BAAI/bge-m3")
    with pytest.raises(NoAnswer, match="go on with texts"):
        compression_launch(chosen("int8_w8a8"), encoder, "cuda")


# What it takes


def published() -> list[dict[str, str]]:
    with (DATA / "compression_jobs.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


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


def test_times_are_near_published_ones() -> None:
    factor = numbers().factor.value
    ratios = [predicted(row).seconds.value / 60 / float(row["minutes"]) for row in published()]
    inside = [1 / factor <= ratio <= factor for ratio in ratios]
    assert sum(inside) >= 0.8 * len(inside)
    of_gptq = [
        ratio for ratio, row in zip(ratios, published(), strict=True) if row["source"] == "gptq"
    ]
    assert all(0.8 <= ratio <= 1.25 for ratio in of_gptq)


def test_memory_of_a_device_is_near_published_ones() -> None:
    for row in published():
        if row["gigabytes"]:
            assert predicted(row).device_bytes / 1e9 / float(row["gigabytes"]) == pytest.approx(
                1, abs=0.15
            )


def job(method: str, samples: int = 128, tokens: int = 2048, **more: Any) -> CompressionEstimate:
    values = {"tool": "", "technique": "int4_weight_only", "weight_bits": 4, **more}
    model = catalog_model("meta-llama/Llama-3.1-8B")
    one = Job(model=model, method=method, samples=samples, tokens=tokens, **values)
    return estimate(one, device("h100-sxm"), usd_per_device_hour=3.6)


def test_more_text_takes_longer_and_the_host_holds_the_base() -> None:
    short, long = job("GPTQ", 128), job("GPTQ", 512)
    assert long.seconds.value > short.seconds.value
    assert short.host_bytes > 16e9
    assert short.usd == pytest.approx(short.seconds.value / 1000)
    assert sum(short.phases_s.values()) == pytest.approx(short.seconds.value)


def test_hessians_lie_on_the_device_and_rounding_alone_needs_little() -> None:
    assert job("RTN", 0).device_bytes < job("GPTQ").device_bytes < job("AutoRound").device_bytes
    assert job("RTN", 0).seconds.value < 90


def test_a_resident_model_fills_the_device() -> None:
    assert job("RTN", resident=True).device_bytes > 16e9


# Plans and bundles


@pytest.fixture(scope="module")
def request_int4() -> PlanRequest:
    options = {"engines": ["vllm"], "compression": {"technique": "int4_weight_only"}}
    return make_request(LLAMA, options=options)


@pytest.fixture(scope="module")
def bundle(request_int4: PlanRequest) -> Bundle:
    return bundle_for_request(request_int4)


def test_the_plan_chooses_weights_that_no_checkpoint_holds(request_int4: PlanRequest) -> None:
    best = plan(request_int4).best
    assert best is not None
    assert best.candidate["weight_dtype"] == "int4"
    takes = best.estimate.to_json()["compression"]
    assert takes["tool"] == "llm-compressor"
    assert takes["seconds"]["low"] < takes["seconds"]["value"] < takes["seconds"]["high"]


def test_without_it_such_weights_are_still_refused() -> None:
    asked = make_request(LLAMA, options={"engines": ["vllm"]}, candidate={"weight_dtype": "int4"})
    with pytest.raises(NoAnswer, match=r"options\.compression"):
        decide(asked).started()


def test_the_launch_serves_what_is_made(bundle: Bundle) -> None:
    launch = json.loads(bundle.files["launch.json"])
    made = launch["compression"]
    assert launch["parameters"]["model"] == made["output"]
    assert made["source"] == LLAMA
    assert made["needs"]["host_bytes"] > 0
    assert "--quantization" not in launch["processes"][0]["argv"]


def test_the_bundle_has_the_job_the_script_and_what_checks_it(bundle: Bundle) -> None:
    for path in ("compress/job.json", "compress/make.py", "compress/slurm.sh", "compress.py"):
        assert path in bundle.files
    assert b"llmcompressor==0.14.0.1" in bundle.files["compress/requirements.txt"]
    compile(bundle.files["compress.py"], "compress.py", "exec")
    assert b"python launch.py compress" in bundle.files["README.md"]
    names = [part["name"] for part in json.loads(bundle.files["sbom.json"])["components"]]
    assert "llmcompressor" in names


def test_clusters_are_told_that_it_is_made_first(bundle: Bundle) -> None:
    reasons = [reason for reason in bundle.targets.values() if isinstance(reason, str)]
    assert any("python launch.py compress" in reason for reason in reasons)


def test_an_fp8_checkpoint_is_not_quantised_again_while_loading() -> None:
    options = {"engines": ["vllm"], "compression": {"technique": "fp8_w8a8"}}
    launch = decide(make_request(LLAMA, options=options)).started()
    assert "--quantization" not in launch.processes[0].argv


def test_llama_cpp_is_given_the_file_that_is_made() -> None:
    options = {"engines": ["llama-cpp"], "compression": {"technique": "gguf_q4_k_m"}}
    files = bundle_for_request(make_request(LLAMA, options=options)).files
    launch = json.loads(files["launch.json"])
    assert launch["parameters"]["model"].endswith("/model.gguf")
    assert b"TYPE = 'Q4_K_M'" in files["compress/make.py"]


def test_bundles_that_make_nothing_have_nothing_of_it() -> None:
    files = bundle_for_request(make_request(LLAMA, options={"engines": ["vllm"]})).files
    assert not [path for path in files if path.startswith(("compress/", "compressor/"))]
    assert "compression" not in json.loads(files["launch.json"])
