from __future__ import annotations

import re

import pytest

from recipe_core.engines.launch import launch
from recipe_core.engines.spec import default_engine, engine, engine_names
from recipe_core.errors import InputError
from recipe_core.plan import chosen_plan
from recipe_core.recipe import deployment_of
from tests.conftest import make_request


def launched(*args, **candidate):
    table, row = chosen_plan(make_request(*args, candidate={"pp": 1, "dp": 1} | candidate))
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
    """vLLM's data parallelism would cut the experts over the replicas: another split than the one estimated."""
    processes = launched("Qwen/Qwen3-30B-A3B", "h100-sxm", tp=2, dp=4).processes
    assert [p.port_offset for p in processes] == [0, 1, 2, 3]
    assert [p.devices for p in processes] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert {flags(p.argv)["--data-parallel-size"] for p in processes} == {"1"}


@pytest.mark.parametrize(
    ("model", "candidate", "expected"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", {"tp": 1}, {"--dtype": "bfloat16", "--kv-cache-dtype": "auto"}),
        ("meta-llama/Llama-3.1-8B-Instruct", {"tp": 1, "weight_dtype": "fp8"}, {"--quantization": "fp8"}),
        ("meta-llama/Llama-3.1-8B-Instruct", {"tp": 1, "kv_dtype": "fp8"}, {"--kv-cache-dtype": "fp8"}),
        ("meta-llama/Llama-3.1-8B-Instruct", {"tp": 1, "weight_dtype": "fp16"}, {"--dtype": "float16"}),
        ("Qwen/Qwen3-32B-FP8", {"tp": 2}, {"--dtype": "bfloat16", "--quantization": None}),
        ("Qwen/Qwen3-32B", {"tp": 4, "max_num_seqs": 17, "block_size": 32}, {"--max-num-seqs": "17", "--block-size": "32"}),
    ],
)
def test_dtypes_and_limits_reach_the_command(model, candidate, expected):
    options = flags(launched(model, "h100-sxm", **candidate).processes[0].argv)
    assert {name: options.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("values", "says"),
    [({"tensor_paralel_size": 2}, "tensor_parallel_size"), ({"max_num_seqs": "8"}, "takes int"), ({"dtype": "fp9"}, "bfloat16")],
)
def test_options_are_typed_and_known(values, says):
    with pytest.raises(InputError, match=says):
        engine("vllm").argv(values)


def test_every_word_is_one_argument():
    argv = launched("meta-llama/Llama-3.1-8B-Instruct", "h100-sxm", tp=1).processes[0].argv
    assert all(" " not in word and word for word in argv)
