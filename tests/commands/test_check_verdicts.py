"""Verdicts that a publisher would sign: uncertain starts, the same command mended, its files."""

import json
import shlex

import pytest

from recipe_core.commands.files import check_items, item
from recipe_core.commands.ground import Ground
from recipe_core.commands.judge import check_command, check_commands
from recipe_core.commands.words import read_script
from recipe_core.physics.serving.starts import start_errors
from recipe_core.present.command_text import verdict_text, words_text
from tests.fixtures.command_line import recipe
from tests.fixtures.rows import over, table

H100 = Ground.of(hardware="h100-sxm", gpus=8)
H200 = Ground.of(hardware="h200-sxm", gpus=8)
MINIMAX = (
    "vllm serve MiniMaxAI/MiniMax-M2 --tensor-parallel-size 4 --reasoning-parser minimax_m2 "
    "--gpu-memory-utilization 0.86"
)


def check(command, ground=H100):
    answer = check_command(command, ground, folders=False)
    json.dumps(answer, allow_nan=False)
    return answer


PUBLISHED = table("check_verdicts", "published")


@over("command", PUBLISHED)
def test_no_published_command_is_refused_without_proof(command):
    answer = check(command, Ground.of(hardware=PUBLISHED[command], gpus=8))
    assert answer["verdict"] in ("fits", "tight", "uncertain")
    low, high = start_errors().bounds
    uncertain = answer["verdict"] == "uncertain"
    assert answer["start_probability"] >= (low if uncertain else high)
    assert (answer["ok"] is None) == uncertain
    assert bool(answer["reasons"]) == uncertain


@over(
    "command, hardware",
    [
        ("vllm serve meta-llama/Llama-4-Scout-17B-16E-Instruct -tp 8", "h100-sxm"),  # 10 M tokens
        ("vllm serve meta-llama/Llama-3.3-70B-Instruct -tp 1", "b200-sxm"),
        ("vllm serve mistralai/Mistral-Large-Instruct-2407 -tp 2 --max-model-len 131072", "h100"),
    ],
)
def test_what_cannot_fit_beyond_any_error_is_refused(command, hardware):
    answer = check(command, Ground.of(hardware=hardware, gpus=8))
    assert (answer["ok"], answer["verdict"]) == (False, "cannot start")
    assert answer["start_probability"] < start_errors().bounds[0]
    assert "short" in answer["reasons"][0]


def test_an_uncertain_start_names_probability_and_the_command_that_starts():
    answer = check(MINIMAX)
    assert (answer["ok"], answer["verdict"]) == (None, "uncertain")
    assert "starts with a probability of" in answer["reasons"][0]
    first = answer["changes"][0]
    length = first["set"]["workload.max_context"]
    assert first["options"] == {"--max-model-len": length}
    assert first["command"] == f"{MINIMAX} --max-model-len {length}"
    again = check(first["command"])
    assert again["ok"] is True
    assert again["start_probability"] == pytest.approx(first["start_probability"])
    assert again["start_probability"] >= start_errors().sure
    text = verdict_text(answer)
    assert text.startswith("uncertain: ")
    assert f"starts with --max-model-len {length}" in text
    assert first["command"] in text
    assert text.count("may not start") == 1
    # other topologies stand after it
    assert text.index(first["command"]) < text.index("better")
    assert answer["better"]["estimate"]["memory"]["start_probability"] >= start_errors().bounds[1]
    # what surely starts has no changes
    sure = check(f"{MINIMAX} --max-model-len 32768")
    assert (sure["verdict"], sure["changes"]) == ("fits", [])


@over("spelling", ["--max-model-len {}", "--max-model-len={}", "--max_model_len {}"])
def test_a_word_that_stands_there_keeps_its_spelling(spelling):
    before = "vllm serve meta-llama/Llama-3.3-70B-Instruct -tp 2"
    answer = check(f"{before} {spelling.format(131072)} --port 8001")
    assert answer["verdict"] == "cannot start"
    first = answer["changes"][0]
    length = first["set"]["workload.max_context"]
    assert first["command"].startswith(f"{before} {spelling.format(length)} --port 8001")
    assert check(first["command"])["ok"] is True


def test_a_container_keeps_all_before_the_changed_words():
    before = "HF_HOME=/cache docker run --gpus all --ipc=host -v /m:/m vllm/vllm-openai:v0.32.0"
    answer = check(f"{before} meta-llama/Llama-3.3-70B-Instruct -tp 2")
    change = answer["changes"][0]["command"]
    assert change.startswith(f"{before} meta-llama/Llama-3.3-70B-Instruct -tp 2 --max-model-len ")
    [read] = read_script(change).commands
    assert read.env == {"HF_HOME": "/cache"}
    assert check(change)["ok"] is True


def test_several_words_where_one_is_not_enough():
    command = "vllm serve moonshotai/Kimi-K2-Instruct -tp 8"
    answer = check(command, H200)
    assert answer["verdict"] in ("cannot start", "uncertain")
    assert answer["changes"]
    for change in answer["changes"]:
        assert check(change["argv"], H200)["verdict"] == change["verdict"]
        assert set(change["set"]) >= {"workload.max_context"} or len(change["set"]) == 1
    # words left open make no command
    opened = check("vllm serve meta-llama/Llama-3.3-70B-Instruct -tp 2 --api-key $KEY")
    assert opened["changes"]
    assert all("command" not in change and change["options"] for change in opened["changes"])
    # and what no words mend has no changed words
    answer = check("docker run --gpus all vllm/vllm-openai:v0.32.0 vllm serve Qwen/Qwen3-32B-FP8")
    assert answer["verdict"] == "cannot start"
    assert not [change for change in answer["changes"] if "options" in change]


def test_graphs_without_memory_are_answered_by_fewer_sequences_or_none():
    command = (
        "vllm serve Inferact/Qwen3.8-27B-NVFP4 --max-model-len 32768 --kv-cache-dtype fp8 "
        "--gpu-memory-utilization 0.93 --no-enforce-eager"
    )
    ground = Ground.of(hardware="rtx-5090", gpus=1)
    answer = check(command, ground)
    assert answer["verdict"] == "cannot start"
    assert "CUDA graphs need a block of cache" in answer["reasons"][0]
    fewer, eager = answer["changes"]
    sequences = fewer["set"]["candidate.max_num_seqs"]
    assert fewer["command"] == f"{command} --max-num-seqs {sequences}"
    assert eager["set"] == {"candidate.eager": True}
    assert eager["command"] == command.replace("--no-enforce-eager", "--enforce-eager")
    assert "starts with --enforce-eager (" in verdict_text(answer)
    for change in (fewer, eager):
        assert check(change["command"], ground)["ok"] is True
    doubled = f"{command} --max-num-seqs {2 * sequences}"
    assert check(doubled, ground)["start_probability"] < start_errors().sure


def test_refused_words_are_left_out_or_replaced():
    command = "vllm serve Qwen/Qwen3-32B-FP8 --swap-space 4 --task generate --fooo --port 80"
    answer = check(command)
    assert answer["verdict"] == "cannot start"
    [change] = answer["changes"]
    assert "--fooo" not in change["command"]
    assert "--swap-space" not in change["command"]
    assert change["command"].endswith("--port 80")
    assert change["options"]["--fooo"] is None
    again = check(change["command"])
    assert again["ok"] is True
    assert not [finding for finding in again["findings"] if finding["level"] == "error"]
    assert "without --fooo" in words_text(change)


def test_a_key_that_is_gone_leaves_the_others():
    config = '{"backend":"FLASH_ATTN","no_such_key":true}'
    command = ["vllm", "serve", "Qwen/Qwen3-32B-FP8", "--attention-config", config]
    answer = check(command)
    assert answer["verdict"] == "cannot start"
    [change] = answer["changes"]
    assert json.loads(change["argv"][-1]) == {"backend": "FLASH_ATTN"}
    assert check(change["argv"])["ok"] is True
    # a better split has a command too
    better = answer["better"]
    assert better["commands"]
    assert "why_no_command" not in better
    nested = check("vllm serve Qwen/Qwen3-32B-FP8 --attention-config.no_such_key true --port 80")
    assert nested["changes"][0]["command"] == "vllm serve Qwen/Qwen3-32B-FP8 --port 80"


def test_batches_say_the_same_as_single_checks():
    commands = [MINIMAX, *PUBLISHED]
    many = check_commands(commands, H200, folders=False)
    for command, [answer] in zip(commands, many, strict=True):
        alone = check(command, H200)
        names = ("verdict", "ok", "start_probability", "reasons", "findings")
        assert {name: answer[name] for name in names} == {name: alone[name] for name in names}
        changed = [change for change in alone["changes"] if "options" in change]
        assert answer["changes"] == changed


def test_lines_and_the_command_line_have_the_verdict_and_the_changed_command():
    ground = {"hardware": "h100-sxm", "gpus": 8}
    [line] = check_items([item("a:1", {"command": MINIMAX})], ground)
    assert (line["verdict"], line["ok"]) == ("uncertain", None)
    assert line["changes"][0]["command"].startswith(MINIMAX)
    assert "estimate" not in line
    words = ("--hardware", "h100-sxm", "--gpus", "8")
    done = recipe("check", "--command", MINIMAX, *words)
    assert done.returncode == 0  # nothing is proven
    assert done.stdout.startswith("uncertain: ")
    large = "vllm serve meta-llama/Llama-3.3-70B-Instruct"
    assert recipe("check", "--command", large, *words).returncode == 1
    # a format by name is said in every answer
    command = "vllm serve acme/MiniMax-M2-FP8 -tp 8"
    answer = check(command, H200)
    assert answer["verdict"] == "uncertain"
    [note] = [finding for finding in answer["findings"] if finding["code"] == "by-name"]
    assert "config.json" in note["message"]
    assert note["message"] in verdict_text(answer)
    ground = {"hardware": "h200-sxm", "gpus": 8}
    [line] = check_items([item("a:1", {"command": command})], ground)
    assert note in line["findings"]


def files(command):
    answer = check(f"{command} --max-model-len 8192")
    return [finding for finding in answer["findings"] if finding["code"] == "file"]


def test_a_template_that_only_the_source_tree_has_is_said():
    template = "examples/tool_chat_template_gemma4.jinja"
    [finding] = files(f"vllm serve Qwen/Qwen3-8B --chat-template {template}")
    assert finding["level"] == "warning"
    assert finding["option"] == "--chat-template"
    assert template in finding["message"]
    assert "does not start without it" in finding["message"]
    assert finding["hint"]
    # folders of an image and adapters
    image = "docker run --gpus all vllm/vllm-openai:v0.32.0 Qwen/Qwen3-8B"
    assert files(f"{image} --chat-template examples/x.jinja") == []
    [finding] = files(f"{image} --enable-lora --lora-modules sql=./adapters/sql")
    assert finding["option"] == "--lora-modules"
    sglang = "python -m sglang.launch_server --model-path Qwen/Qwen3-8B --chat-template {}"
    for template, options in (("./t.jinja", ["--chat-template"]), ("llama-2", [])):
        findings = check(sglang.format(template))["findings"]  # SGLang has llama-2 by name
        assert [each["option"] for each in findings if each["code"] == "file"] == options


def test_in_a_container_the_hint_is_a_mount_that_silences_it():
    image = "docker run --gpus all {}vllm/vllm-openai:v0.32.0 Qwen/Qwen3-8B "
    words = "--reasoning-parser-plugin nano/parser.py"
    [finding] = files(image.format("") + words)
    assert "/vllm-workspace/nano/parser.py" in finding["message"]
    mount = finding["hint"].removeprefix("Mount it: ").removesuffix(".")
    assert mount == '-v "$PWD"/nano/parser.py:/vllm-workspace/nano/parser.py:ro'
    assert shlex.split(mount)[0] == "-v"
    for given_mount in (
        mount,
        "-v ./nano:/vllm-workspace/nano",
        "--mount type=bind,source=/x,target=/vllm-workspace",
        "-w /work -v $PWD:/work",
    ):
        assert files(image.format(f"{given_mount} ") + words) == []
    assert len(files(image.format("-v /data:/data ") + words)) == 1


@over("words", table("check_verdicts", "what_is_no_relative_path_is_silent"))
def test_what_is_no_relative_path_is_silent(words):
    assert files(f"vllm serve Qwen/Qwen3-8B {words}") == []
