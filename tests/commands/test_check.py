from __future__ import annotations

import json
import subprocess
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from recipe_core.base.errors import InputError, NoAnswer, RecipeError
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
from tests.fixtures.sizes import examples

H100 = Ground.of(hardware="h100-sxm", gpus=8)


def check(command, ground=H100):
    answer = check_command(command, ground, folders=False)
    json.dumps(answer, allow_nan=False)
    assert verdict_text(answer)
    return answer


def found(answer, code):
    return [f for f in answer["findings"] if f["code"] == code]


# Verdicts


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
    promised, told = (
        a["serving"]["output_tokens_per_s"]
        for a in (first["better"]["estimate"], again["estimate"])
    )
    assert told == pytest.approx(promised)
    assert told / first["estimate"]["serving"]["output_tokens_per_s"] - 1 == pytest.approx(
        first["better"]["gain"]
    )
    assert again["better"] is None
    assert again["waste"]["idle"] == 0


def test_what_does_not_fit_says_how_much_and_what_does():
    answer = check("vllm serve meta-llama/Llama-3.1-70B-Instruct")
    assert (answer["ok"], answer["verdict"]) == (False, "cannot start")
    assert "short" in answer["reasons"][0]
    assert answer["better"]["candidate"]["tp"] > 1
    assert answer["better"]["gain"] is None


def test_without_a_limit_the_model_s_whole_context_must_fit():
    """vLLM refuses to start unless one request of the longest context fits; stated short, the same
    command starts.
    """
    ground = Ground.of(hardware="rtx-4090", gpus=1)
    long = check("vllm serve meta-llama/Llama-3.1-8B-Instruct", ground)
    assert long["workload"]["max_context"] == 131072
    assert long["verdict"] == "cannot start"
    assert "the longest request that fits" in long["reasons"][0]
    assert long["changes"]
    assert (
        check("vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192", ground)["ok"]
        is True
    )
    assert (
        check("vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len auto", ground)["ok"]
        is True
    )


def test_a_cache_that_holds_fewer_than_are_in_flight_is_tight():
    ground = Ground.of(hardware="rtx-4090", gpus=1, concurrency=64)
    command = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192"
    assert check(command, ground)["verdict"] == "tight"
    assert (
        check(command, Ground.of(hardware="rtx-4090", gpus=1, concurrency=4))["verdict"] == "fits"
    )


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("vllm serve Qwen/Qwen3-32B -tp 3", "64 attention heads are not divisible by tp 3"),
        ("vllm serve Qwen/Qwen3-32B -tp 16", "16 devices; only 8 available"),
        ("vllm serve Qwen/Qwen3-32B -tp 4 --enable-expert-parallel", "no experts to share"),
        ("vllm serve Qwen/Qwen3-32B -tp 4 --max-model-len 1000000", "exceed the model's context"),
        ("vllm serve Qwen/Qwen3-32B -tp 4 --quantization awq", "awq expects quantised weights"),
        (
            "vllm serve Qwen/Qwen3-32B-FP8 -tp 4 --quantization awq",
            "awq does not load the fp8-block weights",
        ),
        ("vllm serve Qwen/Qwen3-32B -tp 4 --swap-space 4", "no longer has --swap-space"),
        (
            "vllm serve Qwen/Qwen3-32B -tp 4 --max-num-batched-tokens 64 --max-num-seqs 128",
            "less than one for each",
        ),
        (
            "vllm serve Qwen/Qwen3-32B -tp 4 --no-enable-chunked-prefill "
            "--max-num-batched-tokens 2048",
            "without chunked prefill",
        ),
        (
            "vllm serve Qwen/Qwen3-30B-A3B -tp 4 --enable-eplb",
            "balancing experts needs expert parallelism",
        ),
        ("vllm serve Qwen/Qwen3-32B -tp two", "takes int, not 'two'"),
        ("CUDA_VISIBLE_DEVICES=0,1 vllm serve Qwen/Qwen3-32B -tp 4", "sees 2 devices but needs 4"),
        (
            "docker run --ipc=host vllm/vllm-openai:v0.32.0 vllm serve Qwen/Qwen3-32B -tp 4",
            "starts vllm serve by itself",
        ),
        ("sglang serve Qwen/Qwen3-32B --tp 8 --dp 2 --nnodes 2", "do not span 2 nodes"),
        ("vllm serve Qwen/Qwen3-32B other -tp 4", "belongs to no option"),
    ],
)
def test_known_bad_commands_are_refused_with_the_reason(command, says):
    answer = check(command)
    assert answer["verdict"] == "cannot start"
    assert any(says in reason for reason in answer["reasons"]), answer["reasons"]


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


def test_options_that_say_nothing_of_the_split_are_passed_on():
    kept = (
        "--tool-call-parser hermes --enable-auto-tool-choice "
        "--served-model-name q --trust-remote-code"
    )
    for command in (
        f"vllm serve Qwen/Qwen3-32B {kept}",
        f"sglang serve Qwen/Qwen3-32B {kept.replace('--enable-auto-tool-choice', '')}",
    ):
        (offered,) = check(command)["better"]["commands"]
        for word in (
            "--tool-call-parser",
            "hermes",
            "--served-model-name",
            "q",
            "--trust-remote-code",
        ):
            assert word in offered["argv"]


def test_an_older_image_makes_unknown_flags_a_warning():
    command = (
        "docker run --gpus all --ipc=host vllm/vllm-openai:v0.9.1 "
        "--model Qwen/Qwen3-32B -tp 4 --disable-log-requests"
    )
    answer = check(command)
    assert answer["ok"] is True
    assert found(answer, "unknown")[0]["level"] == "warning"
    assert found(answer, "version")
    assert check(command.replace("v0.9.1", "v0.32.0"))["ok"] is False
    assert found(check(command.replace(":v0.9.1", "")), "unpinned")
    assert found(check(command.replace("--ipc=host", "")), "shared-memory")


def test_several_nodes():
    command = (
        "sglang serve deepseek-ai/DeepSeek-V3 --tp 16 --nnodes 2 --node-rank 0 --dist-init-addr a:1"
    )
    answer = check(command, Ground.of(hardware="h100-sxm"))
    assert (answer["hardware"]["nodes"], answer["ok"]) == (2, True)
    assert answer["better"]["commands"][0]["argv"].count("--nnodes") == 1
    assert found(
        check("vllm serve deepseek-ai/DeepSeek-V3 -tp 16", Ground.of(hardware="h100-sxm")), "nodes"
    )
    assert check(command, Ground.of(hardware="h100-sxm", gpus=8, nodes=3))["ok"] is False


@pytest.mark.parametrize("hardware", ["h200-sxm:16", "mi300x:32"])
def test_more_devices_than_a_node_holds_are_several_nodes(hardware):
    answer = check("vllm serve moonshotai/Kimi-K2-Instruct -tp 16", Ground.of(hardware=hardware))
    assert answer["hardware"]["per_node"] == 8
    assert answer["hardware"]["nodes"] * 8 == int(hardware.partition(":")[2])
    assert found(answer, "nodes")
    assert answer["ok"] is True
    rack = check("vllm serve Qwen/Qwen3-8B", Ground.of(hardware="gb200:72"))["hardware"]
    assert (rack["per_node"], rack["nodes"]) == (4, 18)


def test_what_is_left_open_is_chosen():
    answer = check("vllm serve Qwen/Qwen3-32B --tensor-parallel-size $TP")
    assert answer["ok"] is True
    assert answer["candidate"]["dp"] == 1
    assert found(answer, "open")


def test_a_longer_context_may_be_asked_for():
    scaled = (
        '{"rope_parameters": {"rope_type": "yarn", "factor": 4.0, '
        '"original_max_position_embeddings": 32768}}'
    )
    command = "vllm serve Qwen/Qwen3-32B -tp 8 --max-model-len 131072"
    assert check(command)["ok"] is False
    assert check(f"{command} --hf-overrides '{scaled}'")["ok"] is True
    allowed = check(f"VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 {command}")
    assert allowed["ok"] is True
    assert found(allowed, "long-context")


def test_a_checkpoint_decides_over_dtype():
    answer = check("vllm serve Qwen/Qwen3-32B-FP8 -tp 4 --dtype bfloat16")
    assert (answer["ok"], answer["candidate"]["weight_dtype"]) == (True, "fp8-block")
    online = check("vllm serve Qwen/Qwen3-32B -tp 4 -q fp8 --kv-cache-dtype fp8_e4m3")
    assert (online["candidate"]["weight_dtype"], online["candidate"]["kv_dtype"]) == ("fp8", "fp8")


def test_a_model_that_is_not_known_still_gets_its_findings():
    answer = check("vllm serve $MODEL --swap-space 4 -tp 8")
    assert (answer["ok"], answer["verdict"]) == (None, "unknown")
    assert "open" in answer["error"]["message"]
    assert found(answer, "unknown")
    named = check("vllm serve $MODEL -tp 8", Ground.of(hardware="h100-sxm", model="Qwen/Qwen3-32B"))
    assert named["ok"] is True
    assert check("vllm serve /models/x", H100)["verdict"] == "unknown"


def test_a_stated_load_must_fit_the_context():
    answer = check(
        "vllm serve Qwen/Qwen3-32B -tp 4 --max-model-len 2048",
        Ground.of(hardware="h100-sxm", input_tokens=4000),
    )
    assert answer["ok"] is False
    assert found(answer, "too-long")


def test_an_automatic_context_stays_automatic():
    (offered,) = check("vllm serve Qwen/Qwen3-32B -tp 2 --max-model-len auto")["better"]["commands"]
    assert offered["argv"][offered["argv"].index("--max-model-len") + 1] == "auto"


def test_drafts_are_estimated_once_their_acceptance_is_known():
    draft = '{"method": "mtp", "num_speculative_tokens": 1}'
    command = f"vllm serve deepseek-ai/DeepSeek-V3 -tp 8 --speculative-config '{draft}'"
    plain = check(command, Ground.of(hardware="h200-sxm"))
    assert found(plain, "unmodelled")
    drafted = check(command, Ground.of(hardware="h200-sxm", acceptance=0.8))
    assert drafted["candidate"]["speculative"]["tokens"] == 1
    assert drafted["estimate"]["serving"]["tpot_s"] < plain["estimate"]["serving"]["tpot_s"]
    assert "--speculative-config" in drafted["better"]["commands"][0]["argv"]
    without = check(
        "vllm serve Qwen/Qwen3-32B -tp 4 --spec-method mtp --spec-tokens 1",
        Ground.of(hardware="h100-sxm", acceptance=0.8),
    )
    assert any("no draft layers" in reason for reason in without["reasons"])


@pytest.mark.parametrize("name", ["~0", "x" * 4000, "a/../..", "-", "a b", "$", "{", "....//"])
def test_names_that_are_no_model(name):
    answer = check(["vllm", "serve", "--model", name])
    assert (answer["ok"], answer["verdict"]) == (None, "unknown")


def test_goals():
    answers = {
        goal: check(
            "vllm serve Qwen/Qwen3-32B -tp 2", Ground.of(hardware="h100-sxm", optimize=goal)
        )
        for goal in ("tpot", "cost")
    }
    tpot = [answers["tpot"][side]["serving"]["tpot_s"] for side in ("estimate",)]
    assert answers["tpot"]["better"]["estimate"]["serving"]["tpot_s"] < tpot[0]
    assert answers["cost"]["better"] is None or answers["cost"]["better"]["gain"] > 0.02


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"hardware": "h100-sxm:0"}, "hardware"),
        ({"hardware": "h100-sxm:x"}, "hardware"),
        ({"hardware": "h100-smx"}, "hardware.device"),
        ({"hardware": "h100-sxm:8", "gpus": 4}, "gpus"),
        ({"hardware": "h100-sxm", "gpus": 0}, "gpus"),
        ({"hardware": "h100-sxm", "optimize": "fun"}, "optimize"),
        ({"hardware": "h100-sxm", "colour": "red"}, "colour"),
        ({}, "hardware"),
    ],
)
def test_what_is_judged_on_is_checked(values, field):
    with pytest.raises(InputError) as caught:
        Ground.of(**values)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "command",
    [
        "nginx -g daemon",
        "",
        "[1, 2]",
        '["vllm"',
        "vllm serve 'x",
        "x" * 70_000,
        ["vllm"] * 20_000,
        {"a": 1},
    ],
)
def test_what_is_no_command_is_one_error(command):
    with pytest.raises(InputError):
        check_command(command, H100)


def test_the_first_of_several_servers_is_judged():
    answer = check(
        "vllm serve Qwen/Qwen3-32B -tp 2 & vllm serve meta-llama/Llama-3.1-8B-Instruct &"
    )
    assert answer["model"] == "Qwen/Qwen3-32B"
    assert found(answer, "several")


# Many at once


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
    (tmp_path / "a.sh").write_text(
        "export TP=4\nvllm serve Qwen/Qwen3-32B \\\n  -tp $TP\nvllm serve Qwen/Qwen3-32B -tp 3 &\n"
    )
    (tmp_path / "b.txt").write_text(f"# a list\n{COMMANDS[0]}\n\nvllm serve 'open\n{COMMANDS[2]}\n")
    (tmp_path / "c.md").write_text(
        f"Text, don't read.\n```bash\n{COMMANDS[3]}\n```\nmore\n~~~\nls\n~~~\n"
    )
    lines = [
        {"command": COMMANDS[4], "hardware": "h200-sxm"},
        {"argv": ["vllm", "serve", "Qwen/Qwen3-32B", "-tp", "4"]},
        {"x": 1},
    ]
    (tmp_path / "d.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines) + "not json\n"
    )
    (tmp_path / "e.png").write_bytes(b"\x89PNG")
    answers = list(check_items(list(read_items(tmp_path)), {"hardware": "h100-sxm:8"}))
    verdicts = [
        (answer["source"], answer.get("verdict", answer.get("error", {}).get("field")))
        for answer in answers
    ]
    assert verdicts == [
        ("a.sh:1#1", "fits"),
        ("a.sh:1#2", "cannot start"),
        ("b.txt:2", "fits"),
        ("b.txt:4", "command"),
        ("b.txt:5", "fits"),
        ("c.md:2", "fits"),
        ("d.jsonl:1", "fits"),
        ("d.jsonl:2", "fits"),
        ("d.jsonl:3", "command"),
        ("d.jsonl:4", None),
    ]
    assert all("estimate" not in answer for answer in answers)
    assert answers[2]["serving"]["output_tokens_per_s"] > 0


def test_a_folder_without_commands_is_an_error(tmp_path):
    with pytest.raises(InputError):
        list(read_items(tmp_path))
    with pytest.raises(InputError):
        list(read_items(tmp_path / "none"))


def test_lines_may_be_requests_or_commands_in_any_order():
    request = request_values("Qwen/Qwen3-32B", candidate={"tp": 4, "pp": 1, "dp": 1})
    values = [
        request,
        {"command": COMMANDS[0]},
        {"command": "ls"},
        {"bad": 1},
        {"command": COMMANDS[1]},
    ]
    first, second, third, fourth, fifth = check_values(values, {"hardware": "h100-sxm"})
    assert first == {"ok": True, "reasons": []}
    assert second["verdict"] == "fits"
    assert "no known engine" in third["error"]["message"]
    assert "error" in fourth
    assert fifth["verdict"] == "cannot start"


def test_an_item_is_a_command_with_what_to_judge_it_on():
    assert item("x", {"argv": ["vllm"], "gpus": 2}).ground == {"gpus": 2}
    with pytest.raises(InputError):
        item("x", {"command": 3})


# Doors


def test_the_command_line_prints_one_line_a_command(tmp_path):
    (tmp_path / "x.txt").write_text("\n".join(COMMANDS[:2]))
    done = recipe("check", "--dir", str(tmp_path), "--hardware", "h100-sxm", "--gpus", "8")
    assert done.returncode == 0
    assert [json.loads(line)["verdict"] for line in done.stdout.splitlines()] == [
        "fits",
        "cannot start",
    ]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (
            (
                "--command",
                COMMANDS[0],
                "--hardware",
                "h100-sxm",
                "--gpus",
                "8",
                "--concurrency",
                "8",
            ),
            0,
            "fits: Qwen/Qwen3-32B",
        ),
        (("--command", COMMANDS[1], "--hardware", "h100-sxm:8"), 1, "why: 64 attention heads"),
        (
            ("--command", '["vllm", "serve", "$M", "-tp", "x"]', "--hardware", "h100-sxm"),
            2,
            "takes int, not 'x'",
        ),
        (("--command", COMMANDS[0]), 2, ""),
        (("--command", COMMANDS[0], "--dir", "."), 2, ""),
        (("--command", COMMANDS[0], "--hardware", "h100-sxm", "--optimize", "fun"), 2, ""),
    ],
)
def test_exit_codes(words, code, says):
    done = recipe("check", *words)
    assert done.returncode == code
    assert says in done.stdout
    assert len(done.stderr.strip().splitlines()) == (code == 2)


def test_the_api_judges_commands():
    client = TestClient(create_api(folders=False))
    fine = client.post("/check", json={"command": COMMANDS[0], "hardware": "h100-sxm", "gpus": 8})
    assert (fine.status_code, fine.json()["verdict"]) == (200, "fits")
    unknown = client.post("/check", json={"command": "vllm serve /etc", "hardware": "h100-sxm"})
    assert (unknown.status_code, unknown.json()["error"]["field"]) == (422, "model")
    wrong = client.post("/check", json={"command": COMMANDS[0], "hardware": "h100-sxm", "gpu": 8})
    assert (wrong.status_code, wrong.json()["error"]["field"]) == (422, "gpu")
    assert client.post("/check", json={"command": 3, "hardware": "h100-sxm"}).status_code == 422


# There and back


MODELS = (
    "meta-llama/Llama-3.1-8B-Instruct",
    "Qwen/Qwen3-30B-A3B",
    "Qwen/Qwen3-32B-FP8",
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
    deployment = Deployment(
        chosen.setting, Candidate(**wanted), data.draw(st.integers(2048, 8192)), 1 << 20, "m"
    )
    try:
        rendered = render(deployment, key[0], {})
    except NoAnswer:
        return
    launch = launch_of(rendered[0].argv)
    assert launch is not None
    arguments = read_arguments(launch.engine, launch.args)
    meant = meaning_of(arguments)
    assert [finding.option for finding in (*arguments.findings, *meant.findings)] == [
        "--config"
    ] * len(rendered[0].files)
    if any(
        "enable_attention_dp: true" in text for text in rendered[0].files.values()
    ):  # what the file adds to the command
        meant.candidate |= {"tp": 1, "dp": meant.candidate["tp"]}
    settle(meant, chosen.setting.model, {})
    assert (meant.model, meant.max_context) == (key[0], deployment.max_context)
    servers = sum("--headless" not in each.argv for each in rendered)
    assert meant.candidate["dp"] * servers == wanted["dp"]
    for name in ("tp", "pp", "ep", *limits):
        assert meant.candidate[name] == wanted[name], name
    assert meant.candidate.get("cp", 1) == wanted["cp"]
    assert (
        meant.candidate.get("weight_dtype", chosen.setting.model.weight_dtype)
        == wanted["weight_dtype"]
    )
    assert meant.candidate.get("kv_dtype", "auto") in (wanted["kv_dtype"], "auto")


@settings(max_examples=examples(60), deadline=None)
@given(
    st.text(max_size=80),
    st.sampled_from(
        ["", "vllm serve Qwen/Qwen3-32B ", "trtllm-serve ", "sglang serve Qwen/Qwen3-32B "]
    ),
)
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
