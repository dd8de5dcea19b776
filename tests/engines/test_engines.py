from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
import yaml
from pydantic import ValidationError

from recipe_core.base.errors import InputError, NoAnswer
from recipe_core.engines.release import ContainerImage
from recipe_core.engines.spec import default_engine, engine, engine_names
from recipe_core.launch.serving.start import launch
from recipe_core.launcher.plan import Filler, Parameters
from recipe_core.recipe import deployment_of
from recipe_core.search.plans import plan_candidate
from tests.conftest import LLAMA_70B, make_request


def launched(*args, options=None, workload=None, **candidate):
    parts = {
        "candidate": {"pp": 1, "dp": 1} | candidate,
        "options": options or {},
        "workload": workload or {},
    }
    table, row = plan_candidate(make_request(*args, **parts))
    assert table.reasons(row) == []
    return launch(deployment_of(table, row))


def flags(argv):
    """Options of an argv: flag → value (True for switches)."""
    out = {}
    for word, after in zip(argv, (*argv[1:], "--"), strict=True):
        if word.startswith("--"):
            out[word] = True if after.startswith("--") else after
    return out


@pytest.mark.parametrize("name", engine_names())
def test_engines_are_pinned(name):
    spec = engine(name)
    assert re.fullmatch(r"\d+\.\d+\.\d+|b\d+", spec.version)  # llama.cpp numbers its builds
    assert "latest" not in spec.install


@pytest.mark.parametrize("name", engine_names())
def test_containers_and_metrics_are_pinned_and_sourced(name):
    spec = engine(name)
    for image in (image for images in spec.images.values() for image in images):
        assert spec.version.lstrip("b") in image.reference or "tritonserver" in image.reference
        assert image.source in spec.sources
    assert set(spec.images) <= set(spec.runtimes)
    assert spec.metrics is None or spec.metrics.source in spec.sources


def test_a_tag_that_moves_is_refused():
    with pytest.raises(ValidationError, match="latest moves"):
        ContainerImage(reference="vllm/vllm-openai:latest", source="x")


def test_containers_differ_by_architecture():
    one, other = (
        engine("sglang").image("rocm", architecture) for architecture in ("gfx942", "gfx950")
    )
    assert one is not None
    assert other is not None
    assert one.reference != other.reference
    assert engine("sglang").image("rocm", "gfx1100") is None


def test_a_wrapper_has_the_figures_of_what_it_wraps():
    vllm, dynamo = engine("vllm"), engine("dynamo")
    assert (dynamo.wraps, dynamo.wrapped_version) == ("vllm", "0.31.0")
    assert dynamo.memory == vllm.memory
    assert dynamo.overheads == vllm.overheads
    assert dynamo.metrics != vllm.metrics


def test_each_runtime_has_an_engine():
    assert default_engine("cuda").name == default_engine("rocm").name == "vllm"
    assert default_engine("cpu").name == "transformers"


def test_data_parallel_attention_is_one_server_that_shares_experts():
    one = launched("deepseek-ai/DeepSeek-V3", "h200-sxm", tp=1, dp=8, ep=8)
    (process,) = one.processes
    options = flags(process.argv)
    assert options["--data-parallel-size"] == "8"
    assert options["--enable-expert-parallel"] is True
    assert process.devices == tuple(range(8))


def test_replicas_of_a_dense_model_are_vllms_own():
    (process,) = launched("meta-llama/Llama-3.1-8B-Instruct", "h100-sxm", tp=2, dp=4).processes
    assert flags(process.argv)["--data-parallel-size"] == "4"


def test_replicas_of_experts_are_servers_of_their_own():
    """vLLM's data parallelism would split the experts over replicas: not the estimated split."""
    processes = launched("Qwen/Qwen3-30B-A3B", "h100-sxm", tp=2, dp=4).processes
    assert [p.port_offset for p in processes] == [0, 1, 2, 3]
    assert [p.devices for p in processes] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert {flags(p.argv)["--data-parallel-size"] for p in processes} == {"1"}


@pytest.mark.parametrize(
    ("model", "candidate", "expected"),
    [
        (
            "meta-llama/Llama-3.1-8B-Instruct",
            {"tp": 1},
            {"--dtype": "bfloat16", "--kv-cache-dtype": "auto"},
        ),
        (
            "meta-llama/Llama-3.1-8B-Instruct",
            {"tp": 1, "weight_dtype": "fp8"},
            {"--quantization": "fp8"},
        ),
        (
            "meta-llama/Llama-3.1-8B-Instruct",
            {"tp": 1, "kv_dtype": "fp8"},
            {"--kv-cache-dtype": "fp8"},
        ),
        (
            "meta-llama/Llama-3.1-8B-Instruct",
            {"tp": 1, "weight_dtype": "fp16"},
            {"--dtype": "float16"},
        ),
        ("Qwen/Qwen3-32B-FP8", {"tp": 2}, {"--dtype": "bfloat16", "--quantization": None}),
        (
            "Qwen/Qwen3-32B",
            {"tp": 4, "max_num_seqs": 17, "block_size": 32},
            {"--max-num-seqs": "17", "--block-size": "32"},
        ),
    ],
)
def test_dtypes_and_limits_reach_the_command(model, candidate, expected):
    options = flags(launched(model, "h100-sxm", **candidate).processes[0].argv)
    assert {name: options.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"tensor_paralel_size": 2}, "tensor_parallel_size"),
        ({"max_num_seqs": "8"}, "takes int"),
        ({"dtype": "fp9"}, "bfloat16"),
    ],
)
def test_options_are_typed_and_known(values, says):
    with pytest.raises(InputError, match=says):
        engine("vllm").argv(values)


def test_every_word_is_one_argument():
    argv = launched("meta-llama/Llama-3.1-8B-Instruct", "h100-sxm", tp=1).processes[0].argv
    assert all(" " not in word and word for word in argv)


def test_a_json_word_has_no_blanks_and_only_known_keys():
    assert (
        engine("vllm")
        .argv({"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}})[1]
        .count(" ")
        == 0
    )
    with pytest.raises(InputError, match="kv_conector"):
        engine("vllm").argv({"kv_transfer_config": {"kv_conector": "NixlConnector"}})


def test_a_split_over_nodes_is_one_process_a_node():
    head, worker = launched(LLAMA_70B, "h100-sxm", 8, 2, tp=8, pp=2).processes
    assert [flags(p.argv)["--node-rank"] for p in (head, worker)] == ["0", "1"]
    assert {flags(p.argv)["--master-addr"] for p in (head, worker)} == {"${head}"}
    assert (head.role, worker.role) == ("server", "worker")
    assert "--headless" in worker.argv
    assert "--port" not in worker.argv
    assert not worker.answers


def test_sglang_meets_at_the_head():
    head, worker = launched(LLAMA_70B, "mi300x", 8, 2, engine="sglang", tp=8, pp=2).processes
    assert flags(worker.argv)["--dist-init-addr"].startswith("${head}:")
    assert flags(worker.argv)["--node-rank"] == "1"
    assert head.env["SGLANG_USE_AITER"] == "1"


def test_tensorrt_llm_starts_its_ranks_by_mpi():
    started = launched(
        "deepseek-ai/DeepSeek-V3", "h200-sxm", 8, 2, engine="tensorrt-llm", tp=1, dp=16, ep=16
    )
    head, worker = started.processes
    assert head.argv[:5] == ("mpirun", "-np", "16", "-H", "${node0}:8,${node1}:8")
    assert "trtllm-llmapi-launch" in head.argv
    assert worker.argv[0].endswith("sshd")
    assert "enable_attention_dp: true" in started.files["engine/tensorrt-llm.yaml"]


def test_replicas_that_fill_nodes_are_servers_of_their_own():
    processes = launched(LLAMA_70B, "h100-sxm", 8, 2, tp=8, dp=2).processes
    assert [(p.node, p.group, p.role) for p in processes] == [(0, 0, "server"), (1, 1, "server")]


@pytest.mark.parametrize(
    ("name", "program"), [("vllm", "vllm-router"), ("sglang", "sglang_router.launch_router")]
)
def test_pools_stand_behind_a_router(name, program):
    started = launched(
        LLAMA_70B, "h100-sxm", 8, 2, engine=name, tp=4, replicas=2, prefill={"tp": 2, "replicas": 3}
    )
    router, *servers = started.processes
    assert program in router.argv
    assert router.devices == ()
    assert [p.role for p in servers] == ["prefill"] * 3 + ["decode"] * 2
    for process in servers:
        assert f"http://${{node{process.node}}}:${{port{process.port_offset}}}" in router.argv
    assert len({p.port_offset for p in started.processes}) == 6


def test_engines_that_stay_in_a_node_are_refused_more():
    table, row = plan_candidate(
        make_request(
            LLAMA_70B, "h100-sxm", 8, 2, candidate={"engine": "tgi", "tp": 16, "pp": 1, "dp": 1}
        )
    )
    assert any(
        "cannot span nodes: it needs 16 devices, a node has 8" in reason
        for reason in table.reasons(row)
    )


def test_groups_that_do_not_pack_are_refused():
    table, row = plan_candidate(
        make_request("Qwen/Qwen3-30B-A3B", "h100-sxm", 3, 2, candidate={"tp": 2, "pp": 1, "dp": 3})
    )
    assert "do not fit into 2 nodes" in table.reasons(row)[0]
    with pytest.raises(NoAnswer, match="do not fit into 2 nodes"):
        launch(deployment_of(table, row))


@pytest.mark.parametrize(
    ("draft", "model", "expected"),
    [
        (
            {"method": "mtp"},
            "deepseek-ai/DeepSeek-V3",
            '{"method":"mtp","num_speculative_tokens":2}',
        ),
        (
            {"method": "eagle", "model": "a/EAGLE3-b"},
            LLAMA_70B,
            '{"method":"eagle3","num_speculative_tokens":2,"model":"a/EAGLE3-b"}',
        ),
        (
            {"method": "ngram"},
            LLAMA_70B,
            '"method":"ngram","num_speculative_tokens":2,"prompt_lookup_max":2',
        ),
    ],
)
def test_drafts_reach_the_command(draft, model, expected):
    one = launched(
        model, "h200-sxm", tp=8, workload={"speculative": {"tokens": 2, "acceptance": 0.7} | draft}
    )
    assert expected in flags(one.processes[0].argv)["--speculative-config"]


def test_an_eagle_draft_needs_its_checkpoint():
    with pytest.raises(InputError, match="checkpoint of its own"):
        launched(
            LLAMA_70B,
            "h100-sxm",
            tp=8,
            workload={"speculative": {"tokens": 2, "acceptance": 0.7, "method": "eagle"}},
        )


def test_the_users_options_are_passed_on():
    options = {
        "engine_options": {"tool_call_parser": "hermes", "enable_lora": True},
        "environment": {"NCCL_SOCKET_IFNAME": "ens3"},
    }
    started = launched("Qwen/Qwen3-32B", "h100-sxm", tp=4, options=options)
    assert flags(started.processes[0].argv)["--tool-call-parser"] == "hermes"
    assert started.processes[0].env["NCCL_SOCKET_IFNAME"] == "ens3"
    assert started.options["enable_lora"] is True


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"engine_options": {"max_num_seqs": 4}}, "set by the recipe"),
        ({"engine_options": {"enforce_eager": True}}, "changes the split that was estimated"),
        ({"engine_options": {"tool_call_parsr": "hermes"}}, "tool_call_parser"),
        ({"engine_options": {"max_loras": "two"}}, "takes int"),
        ({"engine_options": {"api_key": "x"}}, "is a secret"),
        ({"environment": {"HF_TOKEN": "x"}}, "is a secret"),
        ({"environment": {"A B": "x"}}, "not a valid environment variable name"),
    ],
)
def test_options_that_contradict_or_leak_are_refused(options, says):
    with pytest.raises(InputError, match=says):
        launched("Qwen/Qwen3-32B", "h100-sxm", tp=4, options=options)


@pytest.mark.parametrize(
    ("model", "device", "name", "says"),
    [
        ("Qwen/Qwen3-32B-FP8", "a100-sxm-80gb", "tensorrt-llm", "no kernels for fp8-block weights"),
        ("openai/gpt-oss-120b", "h100-sxm", "tgi", "no kernels for mxfp4 weights"),
        ("Qwen/Qwen3-32B-FP8", "a100-sxm-80gb", "vllm", None),
    ],
)
def test_weights_without_kernels_are_refused(model, device, name, says):
    table, row = plan_candidate(
        make_request(model, device, candidate={"engine": name, "tp": 4, "pp": 1, "dp": 1})
    )
    assert (says is None and table.reasons(row) == []) or any(
        str(says) in reason for reason in table.reasons(row)
    )


def test_rules_by_hardware_reach_the_environment():
    rack = launched("deepseek-ai/DeepSeek-V3", "gb200", 4, 4, tp=1, dp=16, ep=16).processes[0].env
    assert rack["NCCL_MNNVL_ENABLE"] == "1"
    one = launched("Qwen/Qwen3-32B", "mi300x", tp=1).processes[0].env
    assert one["VLLM_ROCM_USE_AITER"] == "1"
    assert "NCCL_MIN_NCHANNELS" not in one


def test_a_dynamo_graph_has_a_component_for_each_pool():
    started = launched(
        LLAMA_70B,
        "h100-sxm",
        8,
        2,
        engine="dynamo",
        tp=4,
        replicas=2,
        prefill={"tp": 2, "replicas": 3},
    )
    graph = yaml.safe_load(started.files["engine/dynamo-graph.yaml"])
    components = {each["name"]: each for each in graph["spec"]["components"]}
    assert {name: each["replicas"] for name, each in components.items()} == {
        "Frontend": 1,
        "PrefillWorker": 3,
        "DecodeWorker": 2,
    }
    worker = components["PrefillWorker"]["podTemplate"]["spec"]["containers"][0]
    assert worker["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    assert worker["args"][worker["args"].index("--tensor-parallel-size") + 1] == "2"


def test_a_model_repository_holds_the_engines_options():
    started = launched("Qwen/Qwen3-32B", "h100-sxm", engine="triton", tp=4, dp=2)
    assert [p.devices for p in started.processes] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    (path,) = [path for path in started.files if path.endswith("model.json")]
    assert json.loads(started.files[path])["tensor_parallel_size"] == 4
    assert 'backend: "vllm"' in started.files[path.replace("1/model.json", "config.pbtxt")]


def pools_of_tensorrt_llm(*hardware):
    split = {"tp": 2, "replicas": 2, "prefill": {"tp": 1, "pp": 1, "dp": 1, "ep": 1, "replicas": 3}}
    return launched("meta-llama/Llama-3.1-8B-Instruct", *hardware, engine="tensorrt-llm", **split)


def test_pools_of_tensorrt_llm_stand_behind_its_own_server():
    found = pools_of_tensorrt_llm("h100-sxm", 8)
    front, *servers = found.processes
    assert [p.role for p in servers] == ["prefill"] * 3 + ["decode"] * 2
    known = {
        "prefill": "engine/tensorrt-llm-prefill.yaml",
        "decode": "engine/tensorrt-llm-decode.yaml",
    }
    assert all(flags(p.argv)["--config"] == f"${{root}}/{known[p.role]}" for p in servers)
    prefill, decode = (yaml.safe_load(found.files[name]) for name in known.values())
    assert prefill["cache_transceiver_config"] == decode["cache_transceiver_config"]
    assert prefill["disable_overlap_scheduler"] is True
    assert "disable_overlap_scheduler" not in decode
    assert front.argv[front.argv.index("--") + 1 :][:4] == (
        "trtllm-serve",
        "disaggregated",
        "-c",
        "${run}/pools.yaml",
    )


def test_the_file_of_pools_is_filled_when_they_start(tmp_path):
    """By the program in the bundle, with the launcher's values: addresses and ports of servers."""
    found = pools_of_tensorrt_llm("h100-sxm", 4, 2)
    for name, text in found.files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    fill = Filler(Parameters("m", "0.0.0.0", 8000, "10.0.0.1,10.0.0.2"), tmp_path)
    words = [fill.text(word) for word in found.processes[0].argv]
    end = words.index("--")
    done = subprocess.run(
        [sys.executable, *words[1:end], "--", sys.executable, "-c", "print('started')"],
        capture_output=True,
        text=True,
    )
    assert done.stdout == "started\n", done.stderr
    content = yaml.safe_load((tmp_path / "run/pools.yaml").read_text())
    assert (content["hostname"], content["port"]) == ("0.0.0.0", 8000)
    there = {
        role: [
            f"10.0.0.{1 + p.node}:{8000 + p.port_offset}" for p in found.processes if p.role == role
        ]
        for role in ("prefill", "decode")
    }
    assert content["context_servers"] == {"num_instances": 3, "urls": there["prefill"]}
    assert content["generation_servers"] == {"num_instances": 2, "urls": there["decode"]}
    assert {p.node for p in found.processes} == {0, 1}


def test_a_runtime_has_one_default_engine_at_most():
    runtimes = [runtime for name in engine_names() for runtime in engine(name).default_on]
    assert len(runtimes) == len(set(runtimes))
    assert {runtime: default_engine(runtime).name for runtime in runtimes} == {
        r: n for n in engine_names() for r in engine(n).default_on
    }
