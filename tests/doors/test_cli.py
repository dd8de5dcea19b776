"""The command line as users see it: text, JSON, exit codes; real processes where they matter."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import typer

from recipe_core.base.documents import read_document, to_yaml
from recipe_core.doors.cli import app
from tests.conftest import request_values
from tests.fixtures.command_line import recipe
from tests.fixtures.paths import DATA, ROOT
from tests.fixtures.patience import PATIENCE

Write = Callable[..., str]
SPLIT = {"engine": "vllm", "tp": 8, "pp": 1, "dp": 1}


@pytest.fixture
def request_file(tmp_path: Path) -> Write:
    def write(**parts: Any) -> str:
        path = tmp_path / "request.yaml"
        path.write_text(to_yaml(request_values(**parts)))
        return str(path)

    return write


def answered(*words: str, stdin: str = "") -> Any:
    return json.loads(recipe(*words, "--json", stdin=stdin).stdout)


def estimated(path: Path, requests: Iterable[str]) -> list[dict[str, Any]]:
    """Answers to lines, one a line."""
    path.write_text("\n".join(requests))
    return [json.loads(line) for line in recipe("estimate", str(path)).stdout.splitlines()]


# Processes


def process(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """``recipe`` as a shell starts it."""
    done = subprocess.run(
        [sys.executable, "-m", "recipe_core", *words],
        input=stdin,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=PATIENCE,
    )
    assert "Traceback" not in done.stderr
    return done


def test_a_process_reads_standard_input_and_ends_with_the_code_of_its_answer() -> None:
    """As in this process, so in one of its own: other tests may trust
    ``tests.fixtures.command_line``.
    """
    words = ("plan", "-", "--json")
    for values, code in ((request_values(per_node=1), 1), (request_values(model="llama-9"), 2)):
        stdin = to_yaml(values)
        alone, inside = process(*words, stdin=stdin), recipe(*words, stdin=stdin)
        assert (alone.returncode, inside.returncode) == (code, code)
        assert (alone.stdout, alone.stderr) == (inside.stdout, inside.stderr)


def test_a_reader_that_leaves_early_is_no_error() -> None:
    """As in ``recipe models --json | head -c 1``, with more written than a pipe holds."""
    words = [sys.executable, "-m", "recipe_core", "models", "--json"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as writer:
        assert writer.stdout
        assert writer.stderr
        assert writer.stdout.read(1) == b"["
        writer.stdout.close()
        assert (writer.stderr.read(), writer.wait(PATIENCE)) == (b"", 0)


# Plans and estimates


def test_plan_prints_the_contract(request_file: Write) -> None:
    answer = answered("plan", request_file())
    first = answer["candidates"][0]
    assert first["rank"] == 1
    assert {"engine", "tp", "pp", "dp", "ep", "weight_dtype", "kv_dtype"} <= set(first["candidate"])
    assert {"memory", "serving", "cost", "energy", "bands", "basis", "breakdown_s"} <= set(
        first["estimate"]
    )
    assert all(row["reasons"] for row in answer["refused"])
    assert answer["nearest"] is None


def test_what_does_not_fit_is_no_with_exit_code_1(request_file: Write, tmp_path: Path) -> None:
    done = recipe("plan", request_file(per_node=1))
    assert done.returncode == 1
    assert "short" in done.stdout
    assert "It works with" in done.stdout
    done = recipe("build", request_file(per_node=1), "-o", str(tmp_path / "b.zip"))
    assert done.returncode == 1
    assert "It works with" in done.stderr
    assert not (tmp_path / "b.zip").exists()


def test_all_rows_are_written_in_the_format_of_the_suffix(
    request_file: Write, tmp_path: Path
) -> None:
    request = request_file()
    for suffix in ("csv", "parquet", "json"):
        target = tmp_path / f"all.{suffix}"
        assert recipe("plan", request, "--all", str(target)).returncode == 0
        assert len(getattr(pd, f"read_{suffix}")(target)) == 38
    assert recipe("plan", request, "--all", str(tmp_path / "all.docx")).returncode == 2
    assert not (tmp_path / "all.docx").exists()


def test_estimate_answers_lines_in_order(tmp_path: Path) -> None:
    good = request_values(candidate=SPLIT)
    lines = [json.dumps(good), "{broken", json.dumps(good | {"model": "nope"}), json.dumps(good)]
    answers = estimated(tmp_path / "many.jsonl", lines)
    assert [("error" in answer) for answer in answers] == [False, True, True, False]
    assert answers[0] == answers[3]
    assert "line 2" in answers[1]["error"]["message"]


def test_a_thousand_lines_are_answered_together(tmp_path: Path) -> None:
    loads = ({"concurrency": number} for number in range(1, 1025))
    lines = (json.dumps(request_values(workload=load, candidate=SPLIT)) for load in loads)
    answers = estimated(tmp_path / "many.jsonl", lines)
    rates = [answer["serving"]["output_tokens_per_s"] for answer in answers]
    assert len(rates) == 1024
    assert rates[0] < rates[63] < rates[1023]


# Bad input


def test_bad_input_is_one_line_and_exit_code_2() -> None:
    for values, field in (
        (request_values(model="llama-9"), "model"),
        (request_values(device="h101"), "hardware.device"),
        (request_values(per_node=0), "hardware.per_node"),
        (request_values(workload={"input_tokens": -1}), "workload.input_tokens"),
    ):
        done = recipe("plan", "-", "--json", stdin=to_yaml(values))
        assert (done.returncode, len(done.stderr.strip().splitlines())) == (2, 1)
        error = json.loads(done.stdout)["error"]
        assert error["field"] == field
        assert error["hint"] or "got" in error["message"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("plan missing.yaml", "missing.yaml"),
        ("plan", ""),
        ("fly", "fly"),
        ("check", ""),
        ("up missing.zip", "missing.zip"),
        ("serve --port 99999", ""),
        ("convert 'vllm serve Qwen/Qwen3-32B'", ""),
        ("check --hardware h100-sxm --command 'nginx -g daemon'", "known engine"),
        ("check --hardware h100-sxm --command 'vllm serve'", "no model"),
        ('check --hardware h100-sxm --command "vllm serve \'x"', "words"),
        ("check --hardware h100-sxm --command 'vllm serve x --swap-space 4'", "unknown model"),
    ],
)
def test_bad_words_are_exit_code_2(line: str, says: str) -> None:
    done = recipe(*shlex.split(line))
    assert done.returncode == 2
    assert says in done.stderr


def test_a_yaml_bomb_is_refused() -> None:
    bomb = "a: &a [x]\nb: &b [*a, *a]\nmodel: *b\n"
    done = recipe("plan", "-", stdin=bomb)
    assert done.returncode == 2
    assert "alias" in done.stderr


def test_wrong_additions_write_nothing(request_file: Write, tmp_path: Path) -> None:
    request = request_file()
    for words, says in (
        (("--set", "port"), "NAME=VALUE"),
        (("--set", "prot=1"), "parameters.prot"),
        (("--option", "tensor_parallel_size=2"), "tensor_parallel_size"),
        (("--env", "HF_TOKEN=x"), "HF_TOKEN"),
        (("--for", "nosuch"), "nosuch"),
        (("--sign", "missing.pem"), "missing.pem"),
    ):
        done = recipe("build", request, "-o", str(tmp_path / "b.zip"), *words)
        assert done.returncode == 2
        assert says in done.stderr
        assert not (tmp_path / "b.zip").exists()


def test_a_busy_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = recipe("serve", "--port", port)
    assert done.returncode == 2
    assert port in done.stderr
    assert "--port" in done.stderr


# Bundles and recipes


def test_build_check_lock_and_a_tampered_bundle(request_file: Write, tmp_path: Path) -> None:
    bundle = tmp_path / "b.zip"
    assert answered("build", request_file(), "-o", str(bundle))["candidate"]["tp"] == 8
    assert recipe("check", str(bundle)).returncode == 0
    locked = recipe("lock", str(bundle), "--verify", "--json")
    found = {each["what"]: each["level"] for each in json.loads(locked.stdout)["found"]}
    assert found["recipe"] == "same"
    assert locked.returncode == (1 if "differs" in found.values() else 0)
    data = bytearray(bundle.read_bytes())
    data[len(data) // 2] ^= 0xFF
    bundle.write_bytes(bytes(data))
    refused = recipe("check", str(bundle))
    assert (refused.returncode, len(refused.stderr.strip().splitlines())) == (1, 1)


def test_a_signed_bundle_for_two_kinds_of_devices(request_file: Write, tmp_path: Path) -> None:
    """From a key to a bundle for other hardware, and what differs between the two."""
    pytest.importorskip("cryptography", reason="needs cryptography (the extra 'sign')")
    key, bundle, other = (str(tmp_path / name) for name in ("k.pem", "b.zip", "other.zip"))
    assert recipe("keygen", key).returncode == 0
    assert recipe("keygen", key).returncode == 2  # never overwritten
    additions = f"--sign {key} --set port=9000 --option seed=1 --for mi300x:8"
    words = (*additions.split(), "--env", "VLLM_LOGGING_LEVEL=INFO")
    assert recipe("build", request_file(), "-o", bundle, *words).returncode == 0
    checked = answered("check", bundle, "--public-key", str(tmp_path / "k.pub.pem"))
    assert checked["signed"]["trusted"]
    assert answered("lock", bundle)["seeds"]["seed"] == 1
    resolved = recipe("resolve", bundle, "--hardware", "mi300x:8", "-o", other)
    assert "mi300x-8" in resolved.stdout
    rows = answered("diff", bundle, other)["changed"]["device"]
    assert {"field": "device.vendor", "before": "nvidia", "after": "amd"} in rows


def test_a_profile_of_ones_own_from_template_to_bundle(request_file: Write, tmp_path: Path) -> None:
    """A device named by the path of its profile; the bundle does not need the file any more."""
    profile, bundle = tmp_path / "mine.yaml", str(tmp_path / "b.zip")
    text = recipe("hardware", "h100-sxm", "--template").stdout
    profile.write_text(text.replace("value: 85520809984.0", "value: 64e9"))
    assert answered("hardware", str(profile))["memory_bytes"]["value"] == 64e9
    request = request_file(device=str(profile))
    assert recipe("build", request, "-o", bundle, "--for", f"{profile}:4").returncode == 0
    command = "vllm serve Qwen/Qwen3-32B -tp 2 --max-model-len 4096"
    judged = answered("check", "--command", command, "--hardware", f"{profile}:2")
    assert judged["hardware"]["device"]["name"] == "my-h100-sxm"
    lines = [json.dumps(request_values(device=name)) for name in (str(profile), "none.yaml")]
    first, second = estimated(tmp_path / "many.jsonl", lines)
    assert first["feasible"]
    assert "cannot read" in second["error"]["message"]
    profile.write_text("name: [")
    bad = recipe("plan", request)
    assert bad.returncode == 2
    assert "not valid YAML" in bad.stderr
    profile.unlink()
    checked = answered("check", bundle)
    assert (checked["ok"], checked["warnings"]) == (True, [])
    gone = recipe("plan", request)
    assert gone.returncode == 2
    assert "hardware.device: cannot read" in gone.stderr


def test_a_command_is_converted_into_a_bundle(tmp_path: Path) -> None:
    bundle = str(tmp_path / "b.zip")
    command = "vllm serve Qwen/Qwen3-32B -tp 2 --nope 1"
    done = recipe("convert", command, "--hardware", "h100-sxm:2", "-o", bundle)
    assert "not carried over: --nope 1" in done.stdout
    assert recipe("check", bundle).returncode == 0


def test_check_a_command() -> None:
    command = "vllm serve Qwen/Qwen3-32B -tp 2 --max-model-len 40960"
    assert answered("check", "--command", command, "--hardware", "h100-sxm:2")["ok"] is True
    command = "vllm serve Qwen/Qwen3-32B --max-model-len=40960 --foo bar"
    command += " --gpu-memory-utilization .85"
    tight = recipe("check", "--command", command, "--hardware", "h100-sxm:1", "--json")
    answer = json.loads(tight.stdout)
    assert tight.returncode == 1
    assert "longest request that fits" in answer["reasons"][0]
    assert answer["unread"] == ["--foo", "bar"]


# What there is


@pytest.mark.parametrize("what", ["models", "hardware", "engines"])
def test_listings(what: str) -> None:
    listed = answered(what)
    assert len(listed) >= 2
    name = listed[0]["name"]
    assert name in recipe(what).stdout
    assert (recipe(what, name).returncode, recipe(what, "no-such-thing").returncode) == (0, 2)


def test_a_model_says_its_parameters() -> None:
    answer = answered("models", "openai/gpt-oss-120b")
    assert answer["parameters"] == pytest.approx(116.83e9, rel=0.005)
    assert answer["active_parameters"] < answer["parameters"]


def test_the_surface_is_frozen() -> None:
    """Commands in the order of ``--help``, and their options."""
    frozen = read_document(DATA / "doors.yaml")["commands"]
    lines = recipe("--help").stdout.split("Commands:")[1].splitlines()
    listed = [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "]
    assert listed == list(frozen)
    options = {
        name: {word for each in command.params for word in each.opts if word.startswith("--")}
        for name, command in typer.main.get_command(app).commands.items()
    }
    found = {name: words - {"--json"} for name, words in options.items()}
    assert found == {name: set((words or "").split()) for name, words in frozen.items()}
