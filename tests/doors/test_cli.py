"""The command line as users see it: text, JSON, exit codes; real processes where they matter."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest

from recipe_core.base.documents import to_yaml
from tests.conftest import request_values
from tests.fixtures.command_line import ROOT, recipe


@pytest.fixture
def request_file(tmp_path):
    def write(**parts) -> str:
        path = tmp_path / "request.yaml"
        path.write_text(to_yaml(request_values(**parts)))
        return str(path)

    return write


def test_plan_prints_the_contract(request_file):
    answer = json.loads(recipe("plan", request_file(), "--json").stdout)
    first = answer["candidates"][0]
    assert first["rank"] == 1
    assert {"engine", "tp", "pp", "dp", "ep", "weight_dtype", "kv_dtype"} <= set(first["candidate"])
    assert {"memory", "serving", "cost", "energy", "bands", "basis", "breakdown_s"} <= set(
        first["estimate"]
    )
    assert all(row["reasons"] for row in answer["refused"])
    assert answer["nearest"] is None


def test_plan_says_no_with_exit_code_1(request_file):
    done = recipe("plan", request_file(per_node=1))
    assert done.returncode == 1
    assert "short" in done.stdout
    assert "It works with" in done.stdout


@pytest.mark.parametrize("suffix", ["csv", "parquet", "json"])
def test_all_rows_are_written(request_file, tmp_path, suffix):
    import pandas as pd

    target = tmp_path / f"all.{suffix}"
    assert recipe("plan", request_file(), "--all", str(target)).returncode == 0
    frame = {"csv": pd.read_csv, "parquet": pd.read_parquet, "json": pd.read_json}[suffix](target)
    assert len(frame) == 38


def test_an_unknown_suffix_writes_nothing(request_file, tmp_path):
    done = recipe("plan", request_file(), "--all", str(tmp_path / "all.docx"))
    assert done.returncode == 2
    assert not (tmp_path / "all.docx").exists()


def test_estimate_answers_lines_in_order(tmp_path):
    good = request_values(candidate={"engine": "vllm", "tp": 8, "pp": 1, "dp": 1})
    path = tmp_path / "many.jsonl"
    path.write_text(
        "\n".join(
            [json.dumps(good), "{broken", json.dumps(good | {"model": "nope"}), json.dumps(good)]
        )
    )
    answers = [
        json.loads(line) for line in recipe("estimate", str(path), "--json").stdout.splitlines()
    ]
    assert [("error" in answer) for answer in answers] == [False, True, True, False]
    assert answers[0] == answers[3]
    assert "line 2" in answers[1]["error"]["message"]


def test_thousands_of_lines_are_answered_together(tmp_path):
    loads = range(1, 2001)
    lines = [
        json.dumps(
            request_values(
                workload={"concurrency": n}, candidate={"engine": "vllm", "tp": 8, "pp": 1, "dp": 1}
            )
        )
        for n in loads
    ]
    (tmp_path / "many.jsonl").write_text("\n".join(lines))
    answers = [
        json.loads(line)
        for line in recipe("estimate", str(tmp_path / "many.jsonl")).stdout.splitlines()
    ]
    rates = [answer["serving"]["output_tokens_per_s"] for answer in answers]
    assert len(rates) == 2000
    assert rates[0] < rates[63] < rates[1023]


def process(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """``recipe`` as a shell starts it."""
    done = subprocess.run(
        [sys.executable, "-m", "recipe_core", *words],
        input=stdin,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert "Traceback" not in done.stderr
    return done


def test_requests_come_from_standard_input_too():
    done = process("estimate", "-", "--json", stdin=to_yaml(request_values(candidate={"tp": 8})))
    assert json.loads(done.stdout)["feasible"] is True
    assert (done.returncode, done.stderr) == (0, "")


def test_a_process_ends_with_the_code_of_its_answer():
    """As in this process, so in one of its own: the other tests here may trust
    ``tests.fixtures.command_line``.
    """
    no, bad = to_yaml(request_values(per_node=1)), to_yaml(request_values(model="llama-9"))
    for stdin, code in ((no, 1), (bad, 2)):
        alone, inside = (
            process("plan", "-", "--json", stdin=stdin),
            recipe("plan", "-", "--json", stdin=stdin),
        )
        assert alone.returncode == code
        assert (alone.stdout, alone.stderr) == (inside.stdout, inside.stderr)
        assert inside.returncode == code


def test_a_reader_that_leaves_early_is_no_error():
    """As in ``recipe models --json | head -c 1``, with more written than a pipe holds."""
    words = [sys.executable, "-m", "recipe_core", "models", "--json"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as writer:
        assert writer.stdout
        assert writer.stderr
        assert writer.stdout.read(1) == b"["
        writer.stdout.close()
        assert writer.stderr.read() == b""
        assert writer.wait(60) == 0


@pytest.mark.parametrize(
    ("values", "field"),
    [
        (request_values(model="llama-9"), "model"),
        (request_values(device="h101"), "hardware.device"),
        (request_values(per_node=0), "hardware.per_node"),
        (request_values(workload={"input_tokens": -1}), "workload.input_tokens"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(values, field):
    done = recipe("plan", "-", "--json", stdin=to_yaml(values))
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    error = json.loads(done.stdout)["error"]
    assert error["field"] == field
    assert error["hint"] or "got" in error["message"]


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "missing.yaml"),
        ("plan",),
        ("fly",),
        ("check",),
        ("up", "missing.zip"),
        ("serve", "--port", "99999"),
    ],
)
def test_bad_words_are_exit_code_2(words):
    assert recipe(*words).returncode == 2


def test_a_yaml_bomb_is_refused():
    bomb = "a: &a [x]\nb: &b [*a, *a]\nmodel: *b\n"
    done = recipe("plan", "-", stdin=bomb)
    assert done.returncode == 2
    assert "alias" in done.stderr


def test_build_check_and_a_tampered_bundle(request_file, tmp_path):
    bundle = tmp_path / "b.zip"
    built = recipe("build", request_file(), "-o", str(bundle), "--json")
    assert json.loads(built.stdout)["candidate"]["tp"] == 8
    assert recipe("check", str(bundle)).returncode == 0
    data = bytearray(bundle.read_bytes())
    data[len(data) // 2] ^= 0xFF
    bundle.write_bytes(bytes(data))
    refused = recipe("check", str(bundle))
    assert refused.returncode == 1
    assert len(refused.stderr.strip().splitlines()) == 1


def test_a_signed_bundle_for_two_kinds_of_devices(request_file, tmp_path):
    """From a key to a bundle for other hardware, and what differs between the two."""
    pytest.importorskip("cryptography", reason="needs cryptography (the extra 'sign')")
    key, bundle, other = (str(tmp_path / name) for name in ("k.pem", "b.zip", "other.zip"))
    assert recipe("keygen", key).returncode == 0
    assert recipe("keygen", key).returncode == 2  # never overwritten
    words = (
        "--sign",
        key,
        "--set",
        "port=9000",
        "--option",
        "seed=1",
        "--env",
        "VLLM_LOGGING_LEVEL=INFO",
        "--for",
        "mi300x:8",
    )
    assert recipe("build", request_file(), "-o", bundle, *words).returncode == 0
    checked = json.loads(
        recipe("check", bundle, "--public-key", str(tmp_path / "k.pub.pem"), "--json").stdout
    )
    assert checked["signed"]["trusted"]
    assert json.loads(recipe("lock", bundle, "--json").stdout)["seeds"]["seed"] == 1
    resolved = recipe("resolve", bundle, "--hardware", "mi300x:8", "-o", other)
    assert "mi300x-8" in resolved.stdout
    rows = json.loads(recipe("diff", bundle, other, "--json").stdout)["changed"]["device"]
    assert {"field": "device.vendor", "before": "nvidia", "after": "amd"} in rows


def test_a_profile_of_ones_own_from_template_to_bundle(request_file, tmp_path):
    """A device named by the path of its profile; the bundle does not need the file any more."""
    profile, bundle = tmp_path / "mine.yaml", str(tmp_path / "b.zip")
    text = recipe("hardware", "h100-sxm", "--template").stdout
    profile.write_text(text.replace("value: 85520809984.0", "value: 64e9"))
    assert (
        json.loads(recipe("hardware", str(profile), "--json").stdout)["memory_bytes"]["value"]
        == 64e9
    )
    assert (
        recipe(
            "build", request_file(device=str(profile)), "-o", bundle, "--for", f"{profile}:4"
        ).returncode
        == 0
    )
    command = (
        "--command",
        "vllm serve Qwen/Qwen3-32B -tp 2 --max-model-len 4096",
        "--hardware",
        f"{profile}:2",
        "--json",
    )
    assert (
        json.loads(recipe("check", *command).stdout)["hardware"]["device"]["name"] == "my-h100-sxm"
    )
    lines = tmp_path / "many.jsonl"
    lines.write_text(
        json.dumps(request_values(device=str(profile)))
        + "\n"
        + json.dumps(request_values(device="none.yaml"))
    )
    first, second = map(json.loads, recipe("estimate", str(lines)).stdout.splitlines())
    assert first["feasible"]
    assert "cannot read" in second["error"]["message"]
    profile.write_text("name: [")
    bad = recipe("plan", request_file(device=str(profile)))
    assert bad.returncode == 2
    assert "not valid YAML" in bad.stderr
    profile.unlink()
    checked = json.loads(recipe("check", bundle, "--json").stdout)
    assert checked["ok"]
    assert not checked["warnings"]
    gone = recipe("plan", request_file(device=str(profile)))
    assert gone.returncode == 2
    assert "hardware.device: cannot read" in gone.stderr


def test_a_lock_says_what_is_not_as_it_was(request_file, tmp_path):
    bundle = str(tmp_path / "b.zip")
    recipe("build", request_file(), "-o", bundle)
    done = recipe("lock", bundle, "--verify", "--json")
    found = {each["what"]: each["level"] for each in json.loads(done.stdout)["found"]}
    assert found["recipe"] == "same"
    assert done.returncode == (1 if "differs" in found.values() else 0)


def test_a_command_is_converted_into_a_bundle(tmp_path):
    bundle = str(tmp_path / "b.zip")
    done = recipe(
        "convert",
        "vllm serve Qwen/Qwen3-32B -tp 2 --nope 1",
        "--hardware",
        "h100-sxm:2",
        "-o",
        bundle,
    )
    assert "not carried over: --nope 1" in done.stdout
    assert recipe("check", bundle).returncode == 0
    assert recipe("convert", "vllm serve Qwen/Qwen3-32B").returncode == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--set", "port"), "NAME=VALUE"),
        (("--set", "prot=1"), "parameters.prot"),
        (("--option", "tensor_parallel_size=2"), "tensor_parallel_size"),
        (("--env", "HF_TOKEN=x"), "HF_TOKEN"),
        (("--for", "nosuch"), "nosuch"),
        (("--sign", "missing.pem"), "missing.pem"),
    ],
)
def test_wrong_additions_write_nothing(request_file, tmp_path, words, says):
    done = recipe("build", request_file(), "-o", str(tmp_path / "b.zip"), *words)
    assert done.returncode == 2
    assert says in done.stderr
    assert not (tmp_path / "b.zip").exists()


def test_what_does_not_fit_is_not_built(request_file, tmp_path):
    done = recipe("build", request_file(per_node=1), "-o", str(tmp_path / "b.zip"))
    assert done.returncode == 1
    assert "It works with" in done.stderr
    assert not (tmp_path / "b.zip").exists()


def test_check_a_command():
    fits = recipe(
        "check",
        "--command",
        "vllm serve Qwen/Qwen3-32B -tp 2 --max-model-len 40960",
        "--hardware",
        "h100-sxm:2",
        "--json",
    )
    assert json.loads(fits.stdout)["ok"] is True
    tight = recipe(
        "check",
        "--command",
        "vllm serve Qwen/Qwen3-32B --max-model-len=40960 --foo bar --gpu-memory-utilization .85",
        "--hardware",
        "h100-sxm:1",
        "--json",
    )
    answer = json.loads(tight.stdout)
    assert tight.returncode == 1
    assert "longest request that fits" in answer["reasons"][0]
    assert answer["unread"] == ["--foo", "bar"]


@pytest.mark.parametrize(
    ("command", "hardware", "says"),
    [
        ("nginx -g daemon", "h100-sxm", "known engine"),
        ("vllm serve", "h100-sxm", "no model"),
        ("vllm serve 'x", "h100-sxm", "words"),
        ("vllm serve x --swap-space 4", "h100-sxm", "unknown model"),
    ],
)
def test_commands_that_mean_nothing(command, hardware, says):
    done = recipe("check", "--command", command, "--hardware", hardware)
    assert done.returncode == 2
    assert says in done.stderr


@pytest.mark.parametrize("what", ["models", "hardware", "engines"])
def test_listings(what):
    listed = json.loads(recipe(what, "--json").stdout)
    assert len(listed) >= 2
    name = listed[0]["name"]
    assert name in recipe(what).stdout
    assert recipe(what, name).returncode == 0
    assert recipe(what, "no-such-thing").returncode == 2


def test_a_model_says_its_parameters():
    answer = json.loads(recipe("models", "openai/gpt-oss-120b", "--json").stdout)
    assert answer["parameters"] == pytest.approx(116.83e9, rel=0.005)
    assert answer["active_parameters"] < answer["parameters"]


def test_a_busy_port_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = process("serve", "--port", str(port))
    assert done.returncode == 2
    assert str(port) in done.stderr
    assert "--port" in done.stderr


def test_the_surface_is_frozen():
    """What commands and options there are; change it knowingly."""
    commands = [
        line.split()[0]
        for line in recipe("--help").stdout.split("Commands:")[1].splitlines()
        if line.startswith("  ") and line[2] != " "
    ]
    assert commands == [
        "models",
        "hardware",
        "engines",
        "profile",
        "offers",
        "plan",
        "size",
        "estimate",
        "compress",
        "simulate",
        "cold-start",
        "check",
        "validate",
        "build",
        "lock",
        "resolve",
        "diff",
        "convert",
        "keygen",
        "preflight",
        "up",
        "bench",
        "status",
        "restart",
        "down",
        "logs",
        "doctor",
        "serve",
        "mcp",
        "import",
        "reconcile",
        "calibrate",
        "trace",
        "verify",
        "tune",
    ]


def test_the_options_are_frozen():
    """Options by command; change them knowingly, with docs/."""
    import typer

    from recipe_core.doors.cli import app

    commands = typer.main.get_command(app).commands
    options = {
        name: {word for each in command.params for word in each.opts if word.startswith("--")}
        for name, command in commands.items()
    }
    ground = {
        "--hardware",
        "--gpus",
        "--nodes",
        "--input-tokens",
        "--output-tokens",
        "--concurrency",
    }
    found = {name: words - {"--json"} for name, words in options.items()}
    assert {name: words for name, words in found.items() if words} == {
        "models": {"--refresh", "--out"},
        "hardware": {"--detect", "--template"},
        "offers": {
            *("--device", "--provider", "--region", "--commitment", "--all", "--import"),
            *("--output", "--currency", "--usd-per-unit", "--date", "--status", "--accelerator"),
        },
        "compress": {"--measured", "--no-calibration", "--technique"},
        "plan": {"--all", "--measured", "--no-calibration", "--sensitivity", "--top"},
        "size": {"--ladder", "--measured", "--no-calibration", "--top"},
        "simulate": {
            *("--days", "--measured", "--no-calibration", "--output", "--policy", "--trace"),
        },
        "estimate": {"--measured", "--no-calibration", "--trace"},
        "check": ground
        | {
            "--acceptance",
            "--command",
            "--dir",
            "--engine-version",
            "--model",
            "--optimize",
            "--image-tokens",
            "--images",
            "--public-key",
            "--no-calibration",
        },
        "validate": {"--bands", "--by", "--sizes", "--training"},
        "import": {"--output", "--request", "--set"},
        "reconcile": {"--no-calibration", "--request"},
        "build": {
            "--env",
            "--for",
            "--measured",
            "--no-calibration",
            "--option",
            "--output",
            "--set",
            "--sign",
            "--variants",
        },
        "lock": {"--model", "--online", "--output", "--sign", "--verify"},
        "profile": {"--device", "--disk", "--output", "--quick", "--ranks", "--seconds"},
        "resolve": {"--hardware", "--output"},
        "convert": ground | {"--choice", "--output"},
        "calibrate": {"--clear", "--dry-run", "--into", "--list", "--undo"},
        "trace": {"--days", "--model", "--shape", "--shapes", "--unit", "--workload"},
        "verify": {"--against", "--output", "--prompts", "--timeout", "--tokens"},
        "tune": {
            *("--minutes", "--objective", "--output", "--patience", "--repeats", "--resume"),
            *("--splits", "--timeout", "--trials"),
        },
        "serve": {
            *("--host", "--port", "--token", "--no-auth", "--allow-host", "--metrics"),
            *("--workers", "--queue", "--max-candidates", "--max-seconds", "--max-memory"),
        },
    }
