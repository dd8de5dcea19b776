import json
import subprocess
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from recipe_core.base.errors import NoAnswer, RecipeError
from recipe_core.commands.arguments import read_arguments
from recipe_core.commands.files import check_items, check_values, item, read_items
from recipe_core.commands.ground import Ground
from recipe_core.commands.judge import check_command, check_commands
from recipe_core.commands.launches import launch_of
from recipe_core.commands.meaning import meaning_of, settle
from recipe_core.commands.render import render
from recipe_core.commands.verdict import OK
from recipe_core.doors.api import create_api
from recipe_core.launch.process import Candidate, Deployment
from recipe_core.present.command_text import verdict_text
from recipe_core.recipe import deployment_of
from recipe_core.search.plans import plan
from tests.conftest import make_request, request_values
from tests.fixtures.command_line import recipe
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table
from tests.fixtures.sizes import examples
from tests.fixtures.verdicts import assert_says, levels_of

H100 = Ground.of(hardware="h100-sxm", gpus=8)


def ground(hardware="h100-sxm", **values):
    return Ground.of(hardware=hardware, **values)


def check(command, judged_on=H100):
    answer = check_command(command, judged_on, folders=False)
    json.dumps(answer, allow_nan=False)
    assert verdict_text(answer)
    return answer


def test_a_command_that_fits_and_wastes():
    answer = check("vllm serve Qwen/Qwen3-32B -tp 2 --max-model-len 40960")
    assert (answer["ok"], answer["verdict"], answer["reasons"]) == (True, "fits", [])
    assert answer["waste"]["idle"] == 6
    assert answer["waste"]["replicas"] == 4
    assert answer["waste"]["gain"] > 0.02
    better = answer["better"]
    assert better["gain"] >= answer["waste"]["gain"]
    assert better["candidate"]["tp"] * better["candidate"]["pp"] * better["candidate"]["dp"] == 8
    assert "wasted: 6 of 8 devices are idle" in verdict_text(answer)


def test_the_better_command_is_as_good_as_it_says_and_ends_the_search():
    """A better command, judged again, keeps its promise, and nothing better is offered."""
    first = check("vllm serve Qwen/Qwen3-32B -tp 8 --max-model-len 16384")
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
    # also by its goal
    command = "vllm serve Qwen/Qwen3-32B -tp 2"
    fast, cheap = (check(command, ground(optimize=goal)) for goal in ("tpot", "cost"))
    tpot_s = fast["estimate"]["serving"]["tpot_s"]
    assert fast["better"]["estimate"]["serving"]["tpot_s"] < tpot_s
    assert cheap["better"] is None or cheap["better"]["gain"] > 0.02


@over("command, judged_on, wanted", table("check", "answers"))
def test_answers_are_those_of_the_table(command, judged_on, wanted):
    """VLLM starts only if one request of the longest context fits; a checkpoint decides over
    ``--dtype``; an older image makes unknown flags a warning; many devices are several nodes.
    """
    assert_says(check(command, ground(**judged_on) if judged_on else H100), wanted)


@over("command, says", table("check", "known_bad_commands_are_refused_with_the_reason"))
def test_known_bad_commands_are_refused_with_the_reason(command, says):
    assert_says(check(command), {"verdict": "cannot start", "says": says})


def test_what_does_not_fit_gets_changes_and_a_split_that_does():
    assert check("vllm serve meta-llama/Llama-3.1-70B-Instruct")["better"]["candidate"]["tp"] > 1
    assert check("vllm serve meta-llama/Llama-3.1-8B-Instruct", ground("rtx-4090:1"))["changes"]
    # an automatic context stays automatic
    (offered,) = check("vllm serve Qwen/Qwen3-32B -tp 2 --max-model-len auto")["better"]["commands"]
    assert offered["argv"][offered["argv"].index("--max-model-len") + 1] == "auto"
    # a better command on several nodes says their number once
    command = "sglang serve deepseek-ai/DeepSeek-V3 --tp 16 --nnodes 2 --node-rank 0"
    answer = check(f"{command} --dist-init-addr a:1", ground())
    assert answer["better"]["commands"][0]["argv"].count("--nnodes") == 1


def test_a_split_that_is_fine_gets_a_command_without_what_is_refused():
    answer = check(
        "vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 8 --max-model-len 8192 "
        "--disable-log-requests --port 9000"
    )
    assert answer["verdict"] == "cannot start"
    (command,) = answer["better"]["commands"]
    assert "--disable-log-requests" not in command["argv"]
    assert command["argv"][command["argv"].index("--port") + 1] == "9000"
    assert check(command["argv"])["ok"] is True
    # options that say nothing of the split are passed on
    kept = "--tool-call-parser hermes --served-model-name q --trust-remote-code"
    for command in (
        f"vllm serve Qwen/Qwen3-32B {kept} --enable-auto-tool-choice",
        f"sglang serve Qwen/Qwen3-32B {kept}",
    ):
        (offered,) = check(command)["better"]["commands"]
        assert set(kept.split()) <= set(offered["argv"])


def test_names_that_are_no_model_are_unknown():
    for name in ("~0", "x" * 4000, "a/../..", "-", "a b", "$", "{", "....//"):
        answer = check(["vllm", "serve", "--model", name])
        assert (answer["ok"], answer["verdict"]) == (None, "unknown"), name
    # what is no command is one error
    words = ("nginx -g daemon", "", "[1, 2]", '["vllm"', "vllm serve 'x", "x" * 70_000)
    for command in (*words, ["vllm"] * 20_000, {"a": 1}):
        refusal(check_command, command, H100)


def test_drafts_are_estimated_once_their_acceptance_is_known():
    draft = '{"method": "mtp", "num_speculative_tokens": 1}'
    command = f"vllm serve deepseek-ai/DeepSeek-V3 -tp 8 --speculative-config '{draft}'"
    plain = check(command, ground("h200-sxm"))
    assert levels_of(plain, "unmodelled")
    drafted = check(command, ground("h200-sxm", acceptance=0.8))
    assert drafted["candidate"]["speculative"]["tokens"] == 1
    assert drafted["estimate"]["serving"]["tpot_s"] < plain["estimate"]["serving"]["tpot_s"]
    assert "--speculative-config" in drafted["better"]["commands"][0]["argv"]
    mtp = "vllm serve Qwen/Qwen3-32B -tp 4 --spec-method mtp --spec-tokens 1"
    without = check(mtp, ground(acceptance=0.8))
    assert_says(without, {"says": "no draft layers"})


@over("values, field", table("check", "what_is_judged_on_is_checked"))
def test_what_is_judged_on_is_checked(values, field):
    assert refusal(Ground.of, **values).field == field


COMMANDS = [
    "vllm serve Qwen/Qwen3-32B -tp 2 --max-model-len 8192",
    "vllm serve Qwen/Qwen3-32B -tp 3",
    "sglang serve Qwen/Qwen3-32B --tp 4 --context-length 8192",
    "vllm serve Qwen/Qwen3-30B-A3B -tp 4 -ep --gpu-memory-utilization 0.85",
    "trtllm-serve meta-llama/Llama-3.1-8B-Instruct --tp_size 1",
    "vllm serve Qwen/Qwen3-32B -tp 8 --max-model-len 32768 --max-num-seqs 32",
]


def test_alone_and_together_commands_get_the_same_verdict():
    together = [answers[0] for answers in check_commands(COMMANDS, H100, folders=False)]
    for command, answer in zip(COMMANDS, together, strict=True):
        alone = check(command)
        assert answer | {"changes": []} == alone | {"changes": []}


def test_files_of_commands(tmp_path):
    texts = {
        "a.sh": "export TP=4\nvllm serve Qwen/Qwen3-32B \\\n  -tp $TP\n"
        "vllm serve Qwen/Qwen3-32B -tp 3 &\n",
        "b.txt": f"# a list\n{COMMANDS[0]}\n\nvllm serve 'open\n{COMMANDS[2]}\n",
        "c.md": f"Text, don't read.\n```bash\n{COMMANDS[3]}\n```\nmore\n~~~\nls\n~~~\n",
        "d.jsonl": f'{{"command": "{COMMANDS[4]}", "hardware": "h200-sxm"}}\n'
        '{"argv": ["vllm", "serve", "Qwen/Qwen3-32B", "-tp", "4"]}\n{"x": 1}\nnot json\n',
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "e.png").write_bytes(b"\x89PNG")
    answers = list(check_items(list(read_items(tmp_path)), {"hardware": "h100-sxm:8"}))
    verdicts = {
        answer["source"]: answer.get("verdict", answer.get("error", {}).get("field"))
        for answer in answers
    }
    assert verdicts == {
        "a.sh:1#1": "fits", "a.sh:1#2": "cannot start", "b.txt:2": "fits", "b.txt:4": "command",
        "b.txt:5": "fits", "c.md:2": "fits", "d.jsonl:1": "fits", "d.jsonl:2": "fits",
        "d.jsonl:3": "command", "d.jsonl:4": None,
    }  # fmt: skip
    assert all("estimate" not in answer for answer in answers)
    assert answers[2]["serving"]["output_tokens_per_s"] > 0


def test_lines_may_be_requests_or_commands_in_any_order(tmp_path):
    request = request_values("Qwen/Qwen3-32B", candidate={"tp": 4, "pp": 1, "dp": 1})
    commands = [{"command": command} for command in (COMMANDS[0], "ls", COMMANDS[1])]
    values = [request, *commands[:2], {"bad": 1}, commands[2]]
    first, second, third, fourth, fifth = check_values(values, {"hardware": "h100-sxm"})
    assert first == {"ok": True, "reasons": []}
    assert second["verdict"] == "fits"
    assert "no known engine" in third["error"]["message"]
    assert "error" in fourth
    assert fifth["verdict"] == "cannot start"
    assert item("x", {"argv": ["vllm"], "gpus": 2}).ground == {"gpus": 2}
    refusal(item, "x", {"command": 3})
    # a folder without commands is an error
    for folder in (tmp_path, tmp_path / "none"):
        refusal(lambda path: list(read_items(path)), folder)


def test_the_command_line_prints_one_line_a_command_and_exits_with_the_verdict(tmp_path):
    (tmp_path / "x.txt").write_text("\n".join(COMMANDS[:2]))
    done = recipe("check", "--dir", str(tmp_path), "--hardware", "h100-sxm", "--gpus", "8")
    assert done.returncode == 0
    verdicts = [json.loads(line)["verdict"] for line in done.stdout.splitlines()]
    assert verdicts == ["fits", "cannot start"]
    wrong = '["vllm", "serve", "$M", "-tp", "x"]'
    for command, words, code, says in (
        (COMMANDS[0], "--hardware h100-sxm --gpus 8 --concurrency 8", 0, "fits: Qwen/Qwen3-32B"),
        (COMMANDS[1], "--hardware h100-sxm:8", 1, "why: 64 attention heads"),
        (wrong, "--hardware h100-sxm", 2, "takes int, not 'x'"),
        (COMMANDS[0], "", 2, ""),
        (COMMANDS[0], "--dir .", 2, ""),
        (COMMANDS[0], "--hardware h100-sxm --optimize fun", 2, ""),
    ):
        done = recipe("check", "--command", command, *words.split())
        assert done.returncode == code
        assert says in done.stdout
        assert len(done.stderr.strip().splitlines()) == (code == 2)


def test_the_api_judges_commands():
    client = TestClient(create_api(folders=False))

    def judged(**values):
        answer = client.post("/check", json={"hardware": "h100-sxm"} | values)
        return answer.status_code, answer.json()

    status, fine = judged(command=COMMANDS[0], gpus=8)
    assert (status, fine["verdict"]) == (200, "fits")
    for values, field in (
        ({"command": "vllm serve /etc"}, "model"),
        ({"command": COMMANDS[0], "gpu": 8}, "gpu"),
    ):
        status, refused = judged(**values)
        assert (status, refused["error"]["field"]) == (422, field)
    assert judged(command=3)[0] == 422


MODELS = (
    *("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-32B-FP8"),
    "openai/gpt-oss-120b",
)


@cache
def feasible(model, engine, weights, cache):
    options = {"engines": [engine], "weight_dtypes": [weights], "kv_dtypes": [cache]}
    table = plan(make_request(model, "h100-sxm", 8, options=options))
    return [deployment_of(table, int(row)) for row in table.order]


KEYS = [
    (model, engine, weights, cache)
    for model in MODELS
    for engine in ("vllm", "sglang", "tensorrt-llm")
    for weights, cache in (("auto", "auto"), ("auto", "fp8"), ("fp8", "auto"))
    if not (weights == "fp8" and (model in MODELS[2:] or engine == "tensorrt-llm"))
]


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
        rendered = render(deployment, key[0], {})
    except NoAnswer:
        return
    launch, files = launch_of(rendered[0].argv), rendered[0].files
    arguments = read_arguments(launch.engine, launch.args)
    meant = meaning_of(arguments)
    options = [finding.option for finding in (*arguments.findings, *meant.findings)]
    assert options == ["--config"] * len(files)
    # what the file adds to the command
    if any("enable_attention_dp: true" in text for text in files.values()):
        meant.candidate |= {"tp": 1, "dp": meant.candidate["tp"]}
    settle(meant, chosen.setting.model, {})
    assert (meant.model, meant.max_context) == (key[0], deployment.max_context)
    servers = sum("--headless" not in each.argv for each in rendered)
    assert meant.candidate["dp"] * servers == wanted["dp"]
    for name in ("tp", "pp", "ep", *limits):
        assert meant.candidate[name] == wanted[name], name
    assert meant.candidate.get("cp", 1) == wanted["cp"]
    weights = meant.candidate.get("weight_dtype", chosen.setting.model.weight_dtype)
    assert weights == wanted["weight_dtype"]
    assert meant.candidate.get("kv_dtype", "auto") in (wanted["kv_dtype"], "auto")


STARTS = ["", "vllm serve Qwen/Qwen3-32B ", "trtllm-serve ", "sglang serve Qwen/Qwen3-32B "]


@settings(max_examples=examples(60), deadline=None)
@given(st.text(max_size=80), st.sampled_from(STARTS))
def test_any_text_gets_a_verdict_or_one_error_and_starts_no_process(text, start):
    def forbidden(*args, **kwargs):
        raise AssertionError("a process was started")

    with pytest.MonkeyPatch.context() as patch:
        for name in ("Popen", "run", "call"):
            patch.setattr(subprocess, name, forbidden)
        patch.setattr("os.system", forbidden)
        try:
            answer = check_command(start + text, H100, folders=False)
        except RecipeError:
            return
        assert answer["verdict"] in (*OK, "unknown")
        json.dumps(answer, allow_nan=False)
