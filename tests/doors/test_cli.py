"""The command line as users see it: text, JSON, exit codes; real processes where they matter."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_type_hints

import pandas as pd
import pytest

from recipe_core.base.documents import to_yaml
from recipe_core.commands.context import CommandContext
from recipe_core.doors.cli import COMMANDS, load_commands
from recipe_core.doors.cli.checking import CommandOptions
from recipe_core.doors.cli.launching import SettingOptions
from recipe_core.doors.settings import ServerSettings
from tests.conftest import request_values
from tests.fixtures.command_line import recipe
from tests.fixtures.paths import ROOT
from tests.fixtures.patience import PATIENCE
from tests.fixtures.rows import table

SPLIT = {"engine": "vllm", "tp": 8, "pp": 1, "dp": 1}


def request_file(folder: Path, **parts: Any) -> str:
    path = folder / "request.yaml"
    path.write_text(to_yaml(request_values(**parts)))
    return str(path)


def answered(*words: str) -> Any:
    return json.loads(recipe(*words, "--json").stdout)


def estimated(path: Path, requests: Iterable[str]) -> list[dict[str, Any]]:
    """Answers to lines, one a line."""
    path.write_text("\n".join(requests))
    return [json.loads(line) for line in recipe("estimate", str(path)).stdout.splitlines()]


# Processes

PROCESS = [sys.executable, "-m", "recipe_core"]
"""``recipe`` as a shell starts it."""


def test_a_process_reads_standard_input_and_ends_with_the_code_of_its_answer() -> None:
    """As in this process: other tests may trust ``tests.fixtures.command_line``."""
    words = ("plan", "-", "--json")
    streams: Any = {"capture_output": True, "text": True, "timeout": PATIENCE}
    for values, code in ((request_values(per_node=1), 1), (request_values(model="llama-9"), 2)):
        stdin = to_yaml(values)
        alone = subprocess.run([*PROCESS, *words], input=stdin, cwd=ROOT, **streams)
        inside = recipe(*words, stdin=stdin)
        assert "Traceback" not in alone.stderr
        assert (alone.returncode, inside.returncode) == (code, code)
        assert (alone.stdout, alone.stderr) == (inside.stdout, inside.stderr)


def test_a_reader_that_leaves_early_is_no_error() -> None:
    """As in ``recipe models --json | head -c 1``, with more written than a pipe holds."""
    streams: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*PROCESS, "models", "--json"], cwd=ROOT, **streams) as writer:
        assert writer.stdout
        assert writer.stderr
        assert writer.stdout.read(1) == b"["
        writer.stdout.close()
        assert (writer.stderr.read(), writer.wait(PATIENCE)) == (b"", 0)


# Plans and estimates


def test_all_rows_are_written_in_the_format_of_the_suffix(tmp_path: Path) -> None:
    request = request_file(tmp_path)
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


@pytest.mark.parametrize("count", [1024, pytest.param(2000, marks=pytest.mark.nightly)])
def test_a_thousand_lines_are_answered_together(count: int, tmp_path: Path) -> None:
    loads = ({"concurrency": number} for number in range(1, count + 1))
    lines = (json.dumps(request_values(workload=load, candidate=SPLIT)) for load in loads)
    answers = estimated(tmp_path / "many.jsonl", lines)
    rates = [answer["serving"]["output_tokens_per_s"] for answer in answers]
    assert len(rates) == count
    assert rates[0] < rates[63] < rates[1023]


# Bad input


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


def test_build_check_lock_and_a_tampered_bundle(tmp_path: Path) -> None:
    bundle = tmp_path / "b.zip"
    assert answered("build", request_file(tmp_path), "-o", str(bundle))["candidate"]["tp"] == 8
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


def test_a_profile_of_ones_own_from_template_to_bundle(tmp_path: Path) -> None:
    """A device named by the path of its profile; the bundle does not need the file any more."""
    profile, bundle = tmp_path / "mine.yaml", str(tmp_path / "b.zip")
    text = recipe("hardware", "h100-sxm", "--template").stdout
    profile.write_text(text.replace("value: 85520809984.0", "value: 64e9"))
    assert answered("hardware", str(profile))["memory_bytes"]["value"] == 64e9
    request = request_file(tmp_path, device=str(profile))
    assert recipe("build", request, "-o", bundle, "--for", f"{profile}:4").returncode == 0
    command = "vllm serve Qwen/Qwen3-32B -tp 2 --max-model-len 4096"
    judged = answered("check", "--command", command, "--hardware", f"{profile}:2")
    assert judged["hardware"]["device"]["name"] == "my-h100-sxm"
    profile.write_text("name: [")
    bad = recipe("plan", request)
    profile.unlink()
    gone = recipe("plan", request)
    assert (bad.returncode, gone.returncode) == (2, 2)
    assert "not valid YAML" in bad.stderr
    assert "hardware.device: cannot read" in gone.stderr
    checked = answered("check", bundle)
    assert (checked["ok"], checked["warnings"]) == (True, [])


# Transcripts: what a user types, step by step, and what the command line answers

SESSIONS = table("transcripts", "sessions")


def at(value: Any, path: str) -> Any:
    """What lies at a dotted path; ``*`` stands for every entry of a list."""
    head, _, rest = path.partition(".")
    if not head:
        return value
    if head == "*":
        return [at(entry, rest) for entry in value]
    return at(value[int(head)] if isinstance(value, list) else value[head], rest)


@pytest.mark.parametrize("name", SESSIONS)
def test_a_transcript(name: str, tmp_path) -> None:
    buyer = table("transcripts", "buyer")
    for step in [{"request": {}, "buyer": {}}, *SESSIONS[name]]:
        if "needs" in step:
            pytest.importorskip(step["needs"])
        if "request" in step:
            (tmp_path / "request.yaml").write_text(to_yaml(request_values(**step["request"])))
        if "buyer" in step:
            (tmp_path / "buyer.yaml").write_text(to_yaml(buyer | step["buyer"]))
        if "run" not in step:
            continue
        words = shlex.split(step["run"])
        done = recipe(*words, stdin=step.get("stdin", ""), cwd=tmp_path, columns=200)
        assert done.returncode == step.get("code", 0), (step, done)
        for texts, given in (
            (step.get("out", []), done.stdout),
            (step.get("first", []), done.stdout.partition("\n")[0]),
            (step.get("err", []), done.stderr),
        ):
            assert [text for text in texts if text not in given] == [], step
        assert not (step.get("silent") and done.stdout), step
        if "refused" in step:
            error = json.loads(done.stdout)["error"]
            assert (error["field"], len(done.stderr.strip().splitlines())) == (step["refused"], 1)
            assert error["hint"] or "got" in error["message"], step
        for path, value in step.get("json", {}).items():
            assert at(json.loads(done.stdout), path) == value, step
        for path, value in step.get("json_has", {}).items():
            assert value in at(json.loads(done.stdout), path), step
        assert all((tmp_path / file).exists() for file in step.get("files", [])), step
        assert not any((tmp_path / file).exists() for file in step.get("no", [])), step


def test_options_are_the_fields_that_they_set() -> None:
    assert get_type_hints(CommandOptions).keys() == CommandContext.model_fields.keys()
    assert get_type_hints(SettingOptions).keys() == ServerSettings.model_fields.keys() - {"folders"}


def test_every_command_is_loaded_from_its_module() -> None:
    commands = load_commands().registered_commands
    modules = {command.name: command.callback.__module__ for command in commands}
    assert modules == {name: f"recipe_core.doors.cli.{module}" for name, module in COMMANDS.items()}
    assert list(modules) == list(COMMANDS)
