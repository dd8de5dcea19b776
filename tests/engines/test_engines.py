import json
import re
import subprocess
import sys

import pytest
import yaml
from pydantic import ValidationError

from recipe_core.base.errors import NoAnswer
from recipe_core.engines.release import ContainerImage
from recipe_core.engines.spec import default_engine, engine, engine_names
from recipe_core.launch.serving.start import launch
from recipe_core.launcher.plan import Filler, Parameters
from recipe_core.recipe import deployment_of
from recipe_core.search.plans import plan_candidate
from tests.conftest import LLAMA_70B, make_request
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table

LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"


def planned(*args, options=None, workload=None, **candidate):
    parts = {"options": options or {}, "workload": workload or {}}
    split = {"pp": 1, "dp": 1} | candidate
    return plan_candidate(make_request(*args, candidate=split, **parts))


def launched(*args, **parts):
    table, row = planned(*args, **parts)
    assert table.reasons(row) == []
    return launch(deployment_of(table, row))


def flags(argv):
    """Options of an argv: flag → value (True for switches)."""
    out = {}
    for word, after in zip(argv, (*argv[1:], "--"), strict=True):
        if word.startswith("--"):
            out[word] = True if after.startswith("--") else after
    return out


def vllm_flags(*args, **parts):
    return flags(launched(*args, **parts).processes[0].argv)


@over("name", engine_names())
def test_engines_containers_and_metrics_are_pinned_and_sourced(name):
    spec = engine(name)
    assert re.fullmatch(r"\d+\.\d+\.\d+|b\d+", spec.version)  # llama.cpp numbers its builds
    assert "latest" not in spec.install
    for image in (image for images in spec.images.values() for image in images):
        assert spec.version.lstrip("b") in image.reference or "tritonserver" in image.reference
        assert image.source in spec.sources
    assert set(spec.images) <= set(spec.runtimes)
    assert spec.metrics is None or spec.metrics.source in spec.sources


def test_containers_differ_by_architecture_and_have_no_tag_that_moves():
    names = ("gfx942", "gfx950", "gfx1100")
    older, newer, missing = (engine("sglang").image("rocm", name) for name in names)
    assert older.reference != newer.reference
    assert missing is None
    with pytest.raises(ValidationError, match="latest moves"):
        ContainerImage(reference="vllm/vllm-openai:latest", source="x")
    # each runtime has one engine
    assert default_engine("cuda").name == default_engine("rocm").name == "vllm"
    assert default_engine("cpu").name == "transformers"
    usual = [(runtime, name) for name in engine_names() for runtime in engine(name).default_on]
    assert len(dict(usual)) == len(usual)
    assert {runtime: default_engine(runtime).name for runtime, _ in usual} == dict(usual)
    # a wrapper has the figures of what it wraps
    vllm, dynamo = engine("vllm"), engine("dynamo")
    assert (dynamo.wraps, dynamo.wrapped_version) == ("vllm", "0.31.0")
    assert dynamo.memory == vllm.memory
    assert dynamo.overheads == vllm.overheads
    assert dynamo.metrics != vllm.metrics


def test_data_parallel_attention_is_one_server_that_shares_experts():
    (process,) = launched("deepseek-ai/DeepSeek-V3", "h200-sxm", tp=1, dp=8, ep=8).processes
    options = flags(process.argv)
    assert options["--data-parallel-size"] == "8"
    assert options["--enable-expert-parallel"] is True
    assert process.devices == tuple(range(8))
    # replicas of a dense model are vLLM's own
    (process,) = launched(LLAMA_8B, "h100-sxm", tp=2, dp=4).processes
    assert flags(process.argv)["--data-parallel-size"] == "4"
    # replicas of experts are servers of their own: data parallelism would split the experts
    processes = launched("Qwen/Qwen3-30B-A3B", "h100-sxm", tp=2, dp=4).processes
    assert [p.port_offset for p in processes] == [0, 1, 2, 3]
    assert [p.devices for p in processes] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert {flags(p.argv)["--data-parallel-size"] for p in processes} == {"1"}
    # so are replicas that fill nodes
    processes = launched(LLAMA_70B, "h100-sxm", 8, 2, tp=8, dp=2).processes
    assert [(p.node, p.group, p.role) for p in processes] == [(0, 0, "server"), (1, 1, "server")]


@over("model, candidate, expected", table("engines", "dtypes_and_limits"))
def test_dtypes_and_limits_reach_the_command(model, candidate, expected):
    argv = launched(model, "h100-sxm", **candidate).processes[0].argv
    options = flags(argv)
    assert {name: options.get(name) for name in expected} == expected
    assert all(" " not in word and word for word in argv)  # every word is one argument


def test_options_are_typed_and_known():
    argv = engine("vllm").argv
    for values, says in (
        ({"tensor_paralel_size": 2}, "tensor_parallel_size"),
        ({"max_num_seqs": "8"}, "takes int"),
        ({"dtype": "fp9"}, "bfloat16"),
        ({"kv_transfer_config": {"kv_conector": "NixlConnector"}}, "kv_conector"),
    ):
        assert says in str(refusal(argv, values))
    draft = {"method": "mtp", "num_speculative_tokens": 1}
    assert " " not in argv({"speculative_config": draft})[1]


def test_a_split_over_nodes_is_one_process_a_node():
    head, worker = launched(LLAMA_70B, "h100-sxm", 8, 2, tp=8, pp=2).processes
    assert [flags(p.argv)["--node-rank"] for p in (head, worker)] == ["0", "1"]
    assert {flags(p.argv)["--master-addr"] for p in (head, worker)} == {"${head}"}
    assert (head.role, worker.role) == ("server", "worker")
    assert "--headless" in worker.argv
    assert "--port" not in worker.argv
    assert not worker.answers
    # SGLang meets at the head
    head, worker = launched(LLAMA_70B, "mi300x", 8, 2, engine="sglang", tp=8, pp=2).processes
    assert flags(worker.argv)["--dist-init-addr"].startswith("${head}:")
    assert flags(worker.argv)["--node-rank"] == "1"
    assert head.env["SGLANG_USE_AITER"] == "1"


def test_tensorrt_llm_starts_its_ranks_by_mpi():
    split = {"engine": "tensorrt-llm", "tp": 1, "dp": 16, "ep": 16}
    started = launched("deepseek-ai/DeepSeek-V3", "h200-sxm", 8, 2, **split)
    head, worker = started.processes
    assert head.argv[:5] == ("mpirun", "-np", "16", "-H", "${node0}:8,${node1}:8")
    assert "trtllm-llmapi-launch" in head.argv
    assert worker.argv[0].endswith("sshd")
    assert "enable_attention_dp: true" in started.files["engine/tensorrt-llm.yaml"]


POOLS = {"tp": 4, "replicas": 2, "prefill": {"tp": 2, "replicas": 3}}


@over("name, program", [("vllm", "vllm-router"), ("sglang", "sglang_router.launch_router")])
def test_pools_stand_behind_a_router(name, program):
    started = launched(LLAMA_70B, "h100-sxm", 8, 2, engine=name, **POOLS)
    router, *servers = started.processes
    assert program in router.argv
    assert router.devices == ()
    assert [p.role for p in servers] == ["prefill"] * 3 + ["decode"] * 2
    for process in servers:
        assert f"http://${{node{process.node}}}:${{port{process.port_offset}}}" in router.argv
    assert len({p.port_offset for p in started.processes}) == 6


def test_what_does_not_fit_into_nodes_is_refused():
    table, row = planned(LLAMA_70B, "h100-sxm", 8, 2, engine="tgi", tp=16)
    said = "cannot span nodes: it needs 16 devices, a node has 8"
    assert any(said in reason for reason in table.reasons(row))
    table, row = planned("Qwen/Qwen3-30B-A3B", "h100-sxm", 3, 2, tp=2, dp=3)
    assert "do not fit into 2 nodes" in table.reasons(row)[0]
    error = refusal(launch, deployment_of(table, row), kind=NoAnswer)
    assert "do not fit into 2 nodes" in str(error)

    # so are weights without kernels
    def reasons(model, device, name):
        table, row = planned(model, device, engine=name, tp=4)
        return " ".join(table.reasons(row))

    fp8 = ("Qwen/Qwen3-32B-FP8", "a100-sxm-80gb")
    assert "no kernels for fp8-block weights" in reasons(*fp8, "tensorrt-llm")
    assert "no kernels for mxfp4 weights" in reasons("openai/gpt-oss-120b", "h100-sxm", "tgi")
    assert reasons(*fp8, "vllm") == ""


def drafted(target, **draft):
    workload = {"speculative": {"tokens": 2, "acceptance": 0.7} | draft}
    return vllm_flags(target, "h200-sxm", tp=8, workload=workload)["--speculative-config"]


def test_drafts_reach_the_command():
    mtp = drafted("deepseek-ai/DeepSeek-V3", method="mtp")
    assert mtp == '{"method":"mtp","num_speculative_tokens":2}'
    eagle = json.loads(drafted(LLAMA_70B, method="eagle", model="a/EAGLE3-b"))
    assert eagle == {"method": "eagle3", "num_speculative_tokens": 2, "model": "a/EAGLE3-b"}
    ngram = json.loads(drafted(LLAMA_70B, method="ngram"))
    wanted = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}
    assert ngram.items() >= wanted.items()
    assert "checkpoint of its own" in str(refusal(drafted, LLAMA_70B, method="eagle"))


def test_the_users_options_are_passed_on():
    options = {
        "engine_options": {"tool_call_parser": "hermes", "enable_lora": True},
        "environment": {"NCCL_SOCKET_IFNAME": "ens3"},
    }
    started = launched("Qwen/Qwen3-32B", "h100-sxm", tp=4, options=options)
    assert flags(started.processes[0].argv)["--tool-call-parser"] == "hermes"
    assert started.processes[0].env["NCCL_SOCKET_IFNAME"] == "ens3"
    assert started.options["enable_lora"] is True
    # rules by hardware reach the environment
    rack = launched("deepseek-ai/DeepSeek-V3", "gb200", 4, 4, tp=1, dp=16, ep=16).processes[0].env
    assert rack["NCCL_MNNVL_ENABLE"] == "1"
    alone = launched("Qwen/Qwen3-32B", "mi300x", tp=1).processes[0].env
    assert alone["VLLM_ROCM_USE_AITER"] == "1"
    assert "NCCL_MIN_NCHANNELS" not in alone


@over("options, says", table("engines", "options_that_contradict_or_leak_are"))
def test_options_that_contradict_or_leak_are_refused(options, says):
    request = ("Qwen/Qwen3-32B", "h100-sxm")
    assert says in str(refusal(launched, *request, tp=4, options=options))


def test_a_dynamo_graph_has_a_component_for_each_pool():
    started = launched(LLAMA_70B, "h100-sxm", 8, 2, engine="dynamo", **POOLS)
    graph = yaml.safe_load(started.files["engine/dynamo-graph.yaml"])
    components = {each["name"]: each for each in graph["spec"]["components"]}
    replicas = {name: each["replicas"] for name, each in components.items()}
    assert replicas == {"Frontend": 1, "PrefillWorker": 3, "DecodeWorker": 2}
    worker = components["PrefillWorker"]["podTemplate"]["spec"]["containers"][0]
    assert worker["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    assert worker["args"][worker["args"].index("--tensor-parallel-size") + 1] == "2"
    # a model repository holds the options of the engine
    started = launched("Qwen/Qwen3-32B", "h100-sxm", engine="triton", tp=4, dp=2)
    assert [p.devices for p in started.processes] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    (path,) = [path for path in started.files if path.endswith("model.json")]
    assert json.loads(started.files[path])["tensor_parallel_size"] == 4
    assert 'backend: "vllm"' in started.files[path.replace("1/model.json", "config.pbtxt")]


def pools_of_tensorrt_llm(*hardware):
    split = {"tp": 2, "replicas": 2, "prefill": {"tp": 1, "pp": 1, "dp": 1, "ep": 1, "replicas": 3}}
    return launched(LLAMA_8B, *hardware, engine="tensorrt-llm", **split)


def test_pools_of_tensorrt_llm_stand_behind_its_own_server():
    found = pools_of_tensorrt_llm("h100-sxm", 8)
    front, *servers = found.processes
    assert [p.role for p in servers] == ["prefill"] * 3 + ["decode"] * 2
    known = {role: f"engine/tensorrt-llm-{role}.yaml" for role in ("prefill", "decode")}
    assert all(flags(p.argv)["--config"] == f"${{root}}/{known[p.role]}" for p in servers)
    prefill, decode = (yaml.safe_load(found.files[name]) for name in known.values())
    assert prefill["cache_transceiver_config"] == decode["cache_transceiver_config"]
    assert prefill["disable_overlap_scheduler"] is True
    assert "disable_overlap_scheduler" not in decode
    server = front.argv[front.argv.index("--") + 1 :]
    assert server[:4] == ("trtllm-serve", "disaggregated", "-c", "${run}/pools.yaml")


def test_the_file_of_pools_is_filled_when_they_start(tmp_path):
    """By the program in the bundle, with the launcher's values: addresses and ports of servers."""
    found = pools_of_tensorrt_llm("h100-sxm", 4, 2)
    for name, text in found.files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    fill = Filler(Parameters("m", "0.0.0.0", 8000, "10.0.0.1,10.0.0.2"), tmp_path)
    words = [fill.text(word) for word in found.processes[0].argv]
    end = words.index("--")
    command = [sys.executable, *words[1:end], "--", sys.executable, "-c", "print('started')"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "started\n", done.stderr
    content = yaml.safe_load((tmp_path / "run/pools.yaml").read_text())
    assert (content["hostname"], content["port"]) == ("0.0.0.0", 8000)
    there = {"prefill": [], "decode": []}
    for p in found.processes[1:]:
        there[p.role].append(f"10.0.0.{1 + p.node}:{8000 + p.port_offset}")
    assert content["context_servers"] == {"num_instances": 3, "urls": there["prefill"]}
    assert content["generation_servers"] == {"num_instances": 2, "urls": there["decode"]}
    assert {p.node for p in found.processes} == {0, 1}
