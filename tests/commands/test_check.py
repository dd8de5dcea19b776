"""Verdicts on commands: refusals and their reasons, better and changed commands, every door."""

import json
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from recipe_core.base.errors import NoAnswer, RecipeError
from recipe_core.commands.arguments import Arguments
from recipe_core.commands.context import CommandContext
from recipe_core.commands.files import check_items, check_values, items_of, parse_item
from recipe_core.commands.judge import Item, judge_command, judge_items
from recipe_core.commands.launches import first_launch
from recipe_core.commands.option_meanings import Meant
from recipe_core.commands.render import render_commands
from recipe_core.commands.verdict import OK
from recipe_core.commands.words import read_script
from recipe_core.doors.api import create_api
from recipe_core.estimates.serving.starts import start_errors
from recipe_core.launch.process import Candidate, Deployment
from recipe_core.plans.plans import plan_splits
from recipe_core.recipe import row_deployment
from recipe_core.views.commands import verdict_text, words_text
from tests.commands.test_commands import forbid_processes
from tests.conftest import make_request, request_values
from tests.fixtures.command_line import recipe
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table
from tests.fixtures.sizes import examples
from tests.fixtures.verdicts import assert_says, levels_of

COMMANDS = table("check", "batch")
MODELS = table("check", "models")
KEYS = [
    (model, engine, weights, cache)
    for model in MODELS
    for engine in ("vllm", "sglang", "tensorrt-llm")
    for weights, cache in (("auto", "auto"), ("auto", "fp8"), ("fp8", "auto"))
    if not (weights == "fp8" and (model in MODELS[2:] or engine == "tensorrt-llm"))
]
STARTS = ["", "vllm serve Qwen/Qwen3-32B ", "trtllm-serve ", "sglang serve Qwen/Qwen3-32B "]
MINIMAX = "vllm serve MiniMaxAI/MiniMax-M2 --tensor-parallel-size 4 --reasoning-parser minimax_m2"
MINIMAX += " --gpu-memory-utilization 0.86"
PUBLISHED = table("check", "published")


def ground(hardware="h100-sxm", **values):
    return CommandContext.of(hardware=hardware, **values)


H100, H200 = ground(gpus=8), ground("h200-sxm", gpus=8)


def check(command, judged_on=H100):
    answer = judge_command(command, judged_on, folders=False)
    json.dumps(answer, allow_nan=False)
    assert verdict_text(answer)
    return answer


def test_the_better_command_is_as_good_as_it_says_and_ends_the_search():
    """A better command, judged again, keeps its promise, and nothing better is offered."""
    first = check("vllm serve Qwen/Qwen3-32B -tp 2 -dp 4 --max-model-len 16384")
    (command,) = first["better"]["commands"]
    again = check(command["argv"])
    promised, said, before = (
        answer["estimate"]["serving"]["output_tokens_per_s"]
        for answer in (first["better"], again, first)
    )
    assert said == pytest.approx(promised)
    assert said / before - 1 == pytest.approx(first["better"]["gain"])
    assert again["better"] is None
    assert again["waste"]["idle"] == 0
    command = "vllm serve Qwen/Qwen3-32B -tp 2"
    assert "wasted: 6 of 8 devices are idle" in verdict_text(check(command))
    fast, cheap = (check(command, ground(optimize=goal)) for goal in ("tpot", "cost"))
    for answer in (fast, cheap):  # output, whatever is improved
        wasted, own = answer["waste"], answer["estimate"]["serving"]["output_tokens_per_s"]
        assert wasted["gain"] == pytest.approx(wasted["output_tokens_per_s"] / own - 1)
        assert wasted["gain"] > 0
    tpot_s = fast["estimate"]["serving"]["tpot_s"]
    assert fast["better"]["estimate"]["serving"]["tpot_s"] < tpot_s
    assert cheap["better"] is None or cheap["better"]["gain"] > 0.02


@over("command, judged_on, wanted", table("check", "answers"))
def test_answers_are_those_of_the_table(command, judged_on, wanted):
    """VLLM starts only if one request of the longest context fits; a checkpoint decides over
    ``--dtype``; an older image makes unknown flags a warning; many devices are several nodes.
    """
    assert_says(check(command, ground(**judged_on) if judged_on else H100), wanted)


def test_what_does_not_start_gets_changes_and_a_split_that_does():
    assert check("vllm serve meta-llama/Llama-3.1-70B-Instruct")["better"]["candidate"]["tp"] > 1
    assert check("vllm serve meta-llama/Llama-3.1-8B-Instruct", ground("rtx-4090:1"))["changes"]
    # an automatic context stays automatic
    (offered,) = check("vllm serve Qwen/Qwen3-32B -tp 2 --max-model-len auto")["better"]["commands"]
    assert offered["argv"][offered["argv"].index("--max-model-len") + 1] == "auto"
    # a better command on several nodes says their number once
    command = "sglang serve deepseek-ai/DeepSeek-V3 --tp 16 --nnodes 2 --node-rank 0"
    answer = check(f"{command} --dist-init-addr a:1", ground())
    assert answer["better"]["commands"][0]["argv"].count("--nnodes") == 1
    command = "vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 8 --max-model-len 8192"
    answer = check(f"{command} --disable-log-requests --port 9000")
    assert answer["verdict"] == "cannot start"
    (corrected,) = answer["changes"]  # which is the best layout already
    assert answer["better"] is None
    assert corrected["command"] == f"{command} --no-enable-log-requests --port 9000"
    assert check(corrected["argv"])["ok"] is True
    # options that say nothing of the split are passed on
    kept = "--tool-call-parser hermes --served-model-name q --trust-remote-code"
    for command in (
        f"vllm serve Qwen/Qwen3-32B {kept} --enable-auto-tool-choice",
        f"sglang serve Qwen/Qwen3-32B {kept}",
    ):
        (offered,) = check(command)["better"]["commands"]
        assert set(kept.split()) <= set(offered["argv"])


def test_names_that_are_no_model_are_unknown_and_what_is_judged_on_is_checked():
    for values, field in table("check", "what_is_judged_on_is_checked"):
        assert refusal(CommandContext.of, **values).field == field, values
    for name in ("~0", "x" * 4000, "a/../..", "-", "a b", "$", "{", "....//"):
        answer = check(["vllm", "serve", "--model", name])
        assert (answer["ok"], answer["verdict"]) == (None, "unknown"), name
    # what is no command is one error
    words = ("nginx -g daemon", "", "[1, 2]", '["vllm"', "vllm serve 'x", "x" * 70_000)
    for command in (*words, ["vllm"] * 20_000, {"a": 1}):
        refusal(judge_command, command, H100)


def test_drafts_are_estimated_once_their_acceptance_is_known():
    draft = '{"method": "mtp", "num_speculative_tokens": 1}'
    command = f"vllm serve deepseek-ai/DeepSeek-V3 -tp 8 --speculative-config '{draft}'"
    plain = check(command, ground("h200-sxm"))
    assert levels_of(plain, "unmodelled")
    drafted = check(command, ground("h200-sxm", acceptance=0.8))
    assert drafted["candidate"]["speculative"]["tokens"] == 1
    assert drafted["estimate"]["serving"]["tpot_s"] < plain["estimate"]["serving"]["tpot_s"]
    assert "--speculative-config" in drafted["better"]["commands"][0]["argv"]


def test_files_and_lines_of_commands(tmp_path):
    for name, text in table("check", "files").items():
        (tmp_path / name).write_text(text)
    items = [item for file in sorted(tmp_path.iterdir()) for item in items_of(file, file.name)]
    answers = list(check_items(items, {"hardware": "h100-sxm:8"}))
    assert table("check", "of_files") == {
        answer["source"]: answer.get("verdict", answer.get("error", {}).get("field"))
        for answer in answers
    }
    assert all("estimate" not in answer for answer in answers)
    assert answers[2]["serving"]["output_tokens_per_s"] > 0
    request = request_values("Qwen/Qwen3-32B", candidate={"tp": 4, "pp": 1, "dp": 1})
    commands = [{"command": command} for command in (COMMANDS[0], "ls", COMMANDS[1])]
    values = [request, *commands[:2], {"bad": 1}, commands[2]]
    first, second, third, fourth, fifth = check_values(values, {"hardware": "h100-sxm"})
    assert first == {"ok": True, "reasons": []}
    assert second["verdict"] == "fits"
    assert "no known engine" in third["error"]["message"]
    assert "error" in fourth
    assert fifth["verdict"] == "cannot start"
    assert parse_item("x", {"argv": ["vllm"], "gpus": 2}).ground == {"gpus": 2}
    assert parse_item("x", {"command": 3}).error.field == "command"


def test_the_command_line_and_the_api_judge_commands(tmp_path):
    (tmp_path / "x.txt").write_text("\n".join(COMMANDS[:2]))
    done = recipe(
        "check", "--dir", str(tmp_path), "--hardware", "h100-sxm", "--gpus", "8", "--json"
    )
    verdicts = [json.loads(line)["verdict"] for line in done.stdout.splitlines()]
    assert (done.returncode, verdicts) == (1, ["fits", "cannot start"])
    for command, words, code, says in table("check", "exits"):
        done = recipe("check", "--command", command, *words.split())
        assert done.returncode == code
        assert says in done.stdout
        assert len(done.stderr.strip().splitlines()) == (code == 2)
    client = TestClient(create_api(folders=False))

    def judged(**values):
        answer = client.post("/check", json={"hardware": "h100-sxm"} | values)
        said = answer.json()
        return answer.status_code, said.get("error", {}).get("field", said.get("verdict"))

    assert judged(command=COMMANDS[0], gpus=8) == (200, "fits")
    assert judged(command="vllm serve /etc") == (422, "model")
    assert judged(command=COMMANDS[0], gpu=8) == (422, "gpu")
    assert judged(command=3)[0] == 422


@cache
def feasible(model, engine, weights, cache):
    options = {"engines": [engine], "weight_dtypes": [weights], "kv_dtypes": [cache]}
    table = plan_splits(make_request(model, "h100-sxm", 8, options=options))
    return [row_deployment(table, int(row)) for row in table.order]


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_rendered_commands_mean_the_candidate_they_were_rendered_from(data):
    key = data.draw(st.sampled_from(sorted(KEYS)))
    deployments = feasible(*key)
    if not deployments:
        return
    chosen = data.draw(st.sampled_from(deployments))
    limits = {
        "max_num_seqs": data.draw(st.integers(1, 512)),
        "max_batched_tokens": data.draw(st.integers(512, 16384)),
        "memory_fraction": data.draw(st.sampled_from([0.5, 0.8, 0.9, 0.95])),
    }
    wanted = {name: getattr(chosen.candidate, name) for name in chosen.candidate.__slots__} | limits
    candidate, length = Candidate(**wanted), data.draw(st.integers(2048, 8192))
    deployment = Deployment(chosen.setting, candidate, length, 1 << 20, "m")
    try:
        rendered = render_commands(deployment, key[0], {})
    except NoAnswer:
        return
    launch, files = first_launch(rendered[0].argv), rendered[0].files
    arguments = Arguments(launch.engine, launch.args)
    meant = Meant(arguments)
    options = [finding.option for finding in arguments.findings]
    assert options == ["--config"] * len(files)
    # what the file adds to the command
    if any("enable_attention_dp: true" in text for text in files.values()):
        meant.candidate |= {"tp": 1, "dp": meant.candidate["tp"]}
    meant.settle(chosen.setting.model)
    assert (meant.model, meant.max_context) == (key[0], deployment.max_context)
    servers = sum("--headless" not in each.argv for each in rendered)
    assert meant.candidate["dp"] * servers == wanted["dp"]
    for name in ("tp", "pp", "ep", *limits):
        assert meant.candidate[name] == wanted[name], name
    assert meant.candidate.get("cp", 1) == wanted["cp"]
    weights = meant.candidate.get("weight_dtype", chosen.setting.model.weight_dtype)
    assert weights == wanted["weight_dtype"]
    assert meant.candidate.get("kv_dtype", "auto") in (wanted["kv_dtype"], "auto")


@settings(max_examples=examples(60), deadline=None)
@given(st.text(max_size=80), st.sampled_from(STARTS))
def test_any_text_gets_a_verdict_or_one_error_and_starts_no_process(text, start):
    with pytest.MonkeyPatch.context() as patch:
        forbid_processes(patch)
        try:
            answer = check(start + text)
        except RecipeError:
            return
        assert answer["verdict"] in (*OK, "unknown")


@over("command, hardware", PUBLISHED.items())
def test_no_published_command_is_refused_without_proof(command, hardware):
    answer = check(command, ground(hardware, gpus=8))
    low, high = start_errors().bounds
    uncertain = answer["verdict"] == "uncertain"
    assert uncertain or answer["verdict"] in ("fits", "tight")
    assert answer["start_probability"] >= (low if uncertain else high)
    assert (answer["ok"] is None, bool(answer["reasons"])) == (uncertain, uncertain)


@over("command, hardware", table("check", "beyond_any_error"))
def test_what_cannot_fit_beyond_any_error_is_refused(command, hardware):
    answer = check(command, ground(hardware, gpus=8))
    assert_says(answer, {"ok": False, "verdict": "cannot start", "says": "short"})
    assert answer["start_probability"] < start_errors().bounds[0]


def test_an_uncertain_start_names_probability_and_the_command_that_starts():
    answer = check(MINIMAX)
    wanted = {"ok": None, "verdict": "uncertain", "says": "starts with a probability of"}
    assert_says(answer, wanted)
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
    assert text.count("may not start") == 1
    # other topologies stand after it
    assert 0 < text.index(first["command"]) < text.index("better")
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


def test_a_container_keeps_all_before_the_changed_words_of_which_there_may_be_several():
    before = "HF_HOME=/cache docker run --gpus all --ipc=host -v /m:/m vllm/vllm-openai:v0.32.0"
    change = check(f"{before} meta-llama/Llama-3.3-70B-Instruct -tp 2")["changes"][0]["command"]
    assert change.startswith(f"{before} meta-llama/Llama-3.3-70B-Instruct -tp 2 --max-model-len ")
    assert read_script(change).commands[0].env == {"HF_HOME": "/cache"}
    assert check(change)["ok"] is True
    answer = check("vllm serve moonshotai/Kimi-K2-Instruct -tp 8", H200)
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
    command = "vllm serve Inferact/Qwen3.8-27B-NVFP4 --max-model-len 32768 --kv-cache-dtype fp8"
    command += " --gpu-memory-utilization 0.93 --no-enforce-eager"
    rtx_5090 = ground("rtx-5090", gpus=1)
    answer = check(command, rtx_5090)
    assert_says(answer, {"verdict": "cannot start", "says": "CUDA graphs need a block of cache"})
    fewer, eager = answer["changes"]
    sequences = fewer["set"]["candidate.max_num_seqs"]
    assert fewer["command"] == f"{command} --max-num-seqs {sequences}"
    assert eager["set"] == {"candidate.eager": True}
    assert eager["command"] == command.replace("--no-enforce-eager", "--enforce-eager")
    assert "starts with --enforce-eager (" in verdict_text(answer)
    for change in (fewer, eager):
        assert check(change["command"], rtx_5090)["ok"] is True
    doubled = check(f"{command} --max-num-seqs {2 * sequences}", rtx_5090)
    assert doubled["start_probability"] < start_errors().sure


def test_refused_words_and_keys_are_left_out_or_replaced():
    command = "vllm serve Qwen/Qwen3-32B-FP8 --swap-space 4 --task generate --fooo --port 80"
    answer = check(command)
    assert answer["verdict"] == "cannot start"
    [change] = answer["changes"]
    assert not {"--fooo", "--swap-space"} & set(change["command"].split())
    assert change["command"].endswith("--port 80")
    assert change["options"]["--fooo"] is None
    again = check(change["command"])
    assert again["ok"] is True
    assert "error" not in [finding["level"] for finding in again["findings"]]
    assert "without --fooo" in words_text(change)
    config = '{"backend":"FLASH_ATTN","no_such_key":true}'
    answer = check(["vllm", "serve", "Qwen/Qwen3-32B-FP8", "--attention-config", config])
    assert answer["verdict"] == "cannot start"
    [change] = answer["changes"]
    assert json.loads(change["argv"][-1]) == {"backend": "FLASH_ATTN"}
    assert check(change["argv"])["ok"] is True
    # a better split has a command too
    assert answer["better"]["commands"]
    assert "why_no_command" not in answer["better"]
    nested = check("vllm serve Qwen/Qwen3-32B-FP8 --attention-config.no_such_key true --port 80")
    assert nested["changes"][0]["command"] == "vllm serve Qwen/Qwen3-32B-FP8 --port 80"


def test_batches_say_the_same_as_single_checks():
    commands = [MINIMAX, *PUBLISHED, *COMMANDS]
    usual = H200.model_dump(exclude_none=True)
    many = judge_items([Item("", command) for command in commands], usual, folders=False)
    for command, [answer] in zip(commands, many, strict=True):
        alone = check(command, H200)
        changed = [change for change in alone["changes"] if "options" in change]
        assert answer == alone | {"changes": changed}


def test_lines_and_the_command_line_have_the_verdict_and_the_changed_command():
    [line] = check_items([parse_item("a:1", {"command": MINIMAX})], {"hardware": "h100-sxm:8"})
    assert (line["verdict"], line["ok"]) == ("uncertain", None)
    assert line["changes"][0]["command"].startswith(MINIMAX)
    large = "vllm serve meta-llama/Llama-3.3-70B-Instruct"
    for command, code in ((MINIMAX, 0), (large, 1)):  # nothing is proven of the first
        done = recipe("check", "--command", command, "--hardware", "h100-sxm", "--gpus", "8")
        assert done.returncode == code
        assert done.stdout.startswith("uncertain: ") == (code == 0)
    # a format by name is said in every answer
    command = "sglang serve --model-path acme/MiniMax-M2-FP8 --tp 8"
    answer = check(command, H200)
    assert answer["verdict"] == "uncertain"
    [note] = [finding for finding in answer["findings"] if finding["code"] == "by-name"]
    assert "config.json" in note["message"]
    assert note["message"] in verdict_text(answer)
    [line] = check_items([parse_item("a:1", {"command": command})], {"hardware": "h200-sxm:8"})
    assert note in line["findings"]


def files(command):
    answer = check(f"{command} --max-model-len 8192")
    return [finding for finding in answer["findings"] if finding["code"] == "file"]


def test_a_file_that_only_the_source_tree_has_is_said_and_mounted():
    template = "examples/tool_chat_template_gemma4.jinja"
    [finding] = files(f"vllm serve Qwen/Qwen3-8B --chat-template {template}")
    assert (finding["level"], finding["option"]) == ("warning", "--chat-template")
    for said in (template, "does not start without it"):
        assert said in finding["message"]
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
    for words in table("check", "what_is_no_relative_path_is_silent"):
        assert files(f"vllm serve Qwen/Qwen3-8B {words}") == [], words
    # in a container the hint is a mount that silences it
    image = "docker run --gpus all {}vllm/vllm-openai:v0.32.0 Qwen/Qwen3-8B "
    words = "--reasoning-parser-plugin nano/parser.py"
    [finding] = files(image.format("") + words)
    assert "/vllm-workspace/nano/parser.py" in finding["message"]
    mount = finding["hint"].removeprefix("Mount it: ").removesuffix(".")
    assert mount == '-v "$PWD"/nano/parser.py:/vllm-workspace/nano/parser.py:ro'
    for given_mount in (
        mount,
        "-v ./nano:/vllm-workspace/nano",
        "--mount type=bind,source=/x,target=/vllm-workspace",
        "-w /work -v $PWD:/work",
    ):
        assert files(image.format(f"{given_mount} ") + words) == []
    assert len(files(image.format("-v /data:/data ") + words)) == 1
