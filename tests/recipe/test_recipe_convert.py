"""Existing commands and published recipes as recipes: the same server, and no silent loss."""

from __future__ import annotations

import shlex

import pytest

from recipe_core.base.errors import InputError, NoAnswer
from recipe_core.commands.ground import Ground
from recipe_core.recipe import relaunch
from recipe_core.recipe.convert import convert
from recipe_core.recipe.place import Parameters
from recipe_core.recipe.published import read_published

H100 = Ground.of(hardware="h100-sxm:8")


def lost(found) -> str:
    return "\n".join(f"{each.what}: {each.why}" for each in found.lost)


def test_a_command_becomes_the_recipe_that_starts_it():
    command = (
        "vllm serve Qwen/Qwen3-32B -tp 2 --max-model-len 16384 --max-num-seqs 64 --port 9000 "
        "--gpu-memory-utilization 0.9 --tool-call-parser hermes --enable-auto-tool-choice"
    )
    found = convert(command, H100)
    options = found.recipe.engine.options
    wanted = {"tensor_parallel_size": 2, "max_model_len": 16384, "max_num_seqs": 64}
    wanted |= {"gpu_memory_utilization": 0.9, "tool_call_parser": "hermes"}
    assert wanted.items() <= options.items()
    assert found.recipe.parameters.port == 9000
    assert set(found.carried) == {"--tool-call-parser", "--enable-auto-tool-choice"}
    assert found.lost == ()


def test_one_rank_of_several_becomes_the_recipe_of_all():
    command = (
        "CUDA_VISIBLE_DEVICES=3 vllm serve Qwen/Qwen3-30B-A3B --data-parallel-size 8 "
        "--data-parallel-rank 3 --enable-expert-parallel --data-parallel-address 10.0.0.1 "
        "--data-parallel-rpc-port 13345"
    )
    found = convert(command, H100)
    assert found.recipe.engine.options["data_parallel_external_lb"] is True
    every = [process.argv for process in relaunch(found.recipe).processes]
    ranks = [argv[argv.index("--data-parallel-rank") + 1] for argv in every]
    assert ranks == [str(n) for n in range(8)]


def test_a_draft_of_its_own_stays_one_where_the_model_has_draft_layers():
    draft = '{"method":"eagle","num_speculative_tokens":3,"model":"someone/a-draft"}'
    serve = "vllm serve deepseek-ai/DeepSeek-V3 -tp 8 --max-model-len 4096"
    command = f"{serve} --speculative-config '{draft}'"
    found = convert(command, Ground.of(hardware="h200-sxm:8", acceptance=0.7))
    wanted = {"method": "eagle", "num_speculative_tokens": 3, "model": "someone/a-draft"}
    assert found.recipe.engine.options["speculative_config"] == wanted


def test_what_cannot_be_carried_over_is_said():
    command = "HF_TOKEN=hf_secret FOO=1 CUDA_VISIBLE_DEVICES=0,1 VLLM_LOGGING_LEVEL=INFO "
    command += "vllm serve Qwen/Qwen3-8B --api-key k --no-such-flag 3 --seed 7"
    found = convert(command, H100)
    said = lost(found)
    for part in ("--no-such-flag 3", "HF_TOKEN", "FOO", "CUDA_VISIBLE_DEVICES", "--api-key"):
        assert part in said
    assert "hf_secret" not in said
    assert found.recipe.environment["VLLM_LOGGING_LEVEL"] == "INFO"
    assert found.recipe.lock.seeds["seed"] == 7


def test_placeholders_of_a_launch_are_left_open():
    """``launch.json`` holds the words that the launcher fills: they are no address of anything."""
    words = ["vllm", "serve", "Qwen/Qwen3-8B", "--host", "${host}", "--port", "${port}"]
    converted = convert(words, H100)
    assert converted.recipe.parameters == Parameters()
    assert "--host ${host}: left open" in lost(converted)
    assert "--port ${port}: left open" in lost(converted)


def test_an_address_that_no_recipe_can_have_is_refused_by_name():
    for words, field in ((["--host", "a b"], "host"), (["--port", "99999"], "port")):
        with pytest.raises(InputError) as error:
            convert(["vllm", "serve", "Qwen/Qwen3-8B", *words], H100)
        assert error.value.field == f"parameters.{field}"


def test_an_image_is_taken_over_unless_it_is_open_or_changes_without_notice():
    for tag, kept, why in (
        ("v0.32.0", "vllm/vllm-openai:v0.32.0", ""),
        ("latest", None, "without notice"),
        ("$TAG", None, "vllm/vllm-openai:$TAG: left open"),
    ):
        run = f"docker run --gpus all --ipc=host vllm/vllm-openai:{tag} --model Qwen/Qwen3-8B"
        found = convert(run, H100)
        assert found.recipe.parameters.image == kept
        assert why in lost(found)
        assert ("without notice" in lost(found)) is (tag == "latest")


def test_what_starts_nothing_is_no_recipe():
    for words, error, says in (
        ("nginx -g daemon", InputError, "known engine"),
        ("vllm serve Qwen/Qwen3-8B -tp many", InputError, "takes int"),
        ("vllm serve nobody/nothing", InputError, "unknown model"),
        ("vllm serve meta-llama/Llama-3.1-70B-Instruct", NoAnswer, "short"),
    ):
        with pytest.raises(error, match=says):
            convert(words, H100)


RENDERED = {
    "hf_id": "Qwen/Qwen3-8B",
    "recommended_command": {
        "hardware": "h200",
        "node_count": 1,
        "deploy_type": "single_node",
        "env": {"VLLM_LOGGING_LEVEL": "INFO"},
        "docker_image": "vllm/vllm-openai:latest",
        "argv": shlex.split("vllm serve Qwen/Qwen3-8B -tp 2 --reasoning-parser qwen3"),
        "companions": [{"command": "lmcache server"}],
    },
}


def test_a_published_rendering_is_read():
    source = read_published(RENDERED)
    assert source.hardware == "h200"
    found = convert(source, Ground.of(hardware="h200:2"))
    assert found.recipe.candidate["tp"] == 2
    assert found.recipe.engine.options["reasoning_parser"] == "qwen3"
    assert found.recipe.environment["VLLM_LOGGING_LEVEL"] == "INFO"
    assert "companions: not read" in lost(found)


def test_a_file_of_options_is_read():
    stated = {"tensor_parallel_size": 2, "tool_call_parser": "hermes"}
    stated |= {"enable_auto_tool_choice": True}
    document = {"model": "Qwen/Qwen3-8B", "seed": None} | stated
    assert stated.items() <= convert(read_published(document), H100).recipe.engine.options.items()


def test_a_cookbook_is_read_for_a_device():
    engine = dict.fromkeys(("dp", "ep", "enable_dp_attention")) | {"tp": 4}
    engine |= {"env_vars": {"SGLANG_LOG": "1"}, "extra_args": ["--reasoning-parser", "qwen3"]}
    fast = {"name": "fast", "engine": engine | {"tp": 8}}
    hardware = {
        "H100": {"configurations": [{"name": "default", "engine": engine}, fast]},
        "MI300X": {"configurations": [fast]},
    }
    book = {"families": [{"models": [{"model_path": "Qwen/Qwen3-32B", "hardware": hardware}]}]}
    assert "4" in read_published(book, "h100-sxm").command
    assert "8" in read_published(book, "mi300x").command
    assert read_published(book, "h100-sxm", "fast").command[-3] == "8"
    assert len(read_published(book, "h100-sxm").left) == 2
    with pytest.raises(InputError, match="no configuration"):
        read_published(book, "b200-sxm")


def test_other_documents_are_refused():
    for document, says in (
        ([], "is an object"),
        ({}, "not in a known form"),
        ({"prefill": {"argv": ["vllm"]}, "decode": {}}, "pools"),
        ({"families": []}, "no configuration"),
    ):
        with pytest.raises(InputError, match=says):
            read_published(document)


def test_variables_come_in_three_shapes():
    for env in ({"A": 1}, ["A=1"], [{"name": "A", "value": 1}]):
        assert read_published({"argv": ["vllm", "serve", "x"], "env": env}).env == {"A": "1"}
