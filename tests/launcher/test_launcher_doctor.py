"""doctor: what the archive holds, and what it must not hold."""

from __future__ import annotations

import json
import stat
import tarfile
from pathlib import Path

import pytest

from recipe_core.launcher import events
from recipe_core.launcher.redact import HIDDEN, Redactor, is_secret_name
from tests.fixtures.bundles import Bundle

HUB = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWx"
SECRETS = [
    f"HF_TOKEN={HUB}",
    f'"hf_token": "{HUB}"',
    f"loading with {HUB}, then",
    "Authorization: Bearer abcdef0123456789",
    '"authorization": "Bearer abcdef0123456789"',
    "curl -H 'Authorization: Basic dXNlcjpwYXNzd29yZA=='",
    "vllm serve m --api-key s3cret-and-long --port 8000",
    '["vllm", "serve", "--api-key", "s3cret-and-long", "--port"]',
    "Namespace(api_key='s3cret-and-long', port=8000)",
    "api_key: s3cret-and-long",
    "RECIPE_BUILDER_TOKEN=s3cret-and-long",
    "password = 'it\\'s s3cret-and-long'",
    "AWS_SECRET_ACCESS_KEY=s3cret/and+long",
    "aws_access_key_id = AKIAIOSFODNN7EXAMPLE",
    "https://somebody:s3cret@example.org/simple",
    "https://s3.example.org/x?X-Amz-Signature=0123456789abcdef&b=1",
    "sk-proj-0123456789abcdefghij",
    "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\n-----END OPENSSH PRIVATE KEY-----",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
]
PARTS = (HUB, "abcdef0123456789", "dXNlcj", "s3cret", "AKIAIOS", "b3BlbnN", "eyJzdW")
HARMLESS = [
    "max_tokens=512, prompt_tokens: 44, bos_token='<s>', eos_token_id=2, tokenizer='/m'",
    '"special_tokens_map": {"pad_token": "<pad>"}',
    "api_key=None, token=None, password=''",
    "--tokenizer /models/x --max-num-batched-tokens 2048",
    "Loading safetensors checkpoint shards: 100% | 2/2",
    "digest sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    "http://127.0.0.1:8000/v1/completions",
    "GET /metrics?name=vllm:num_requests_running HTTP/1.1",
]


def test_secrets_are_taken_out_and_other_words_stay():
    wrong = []
    for text in SECRETS:
        redactor = Redactor({})
        left = redactor.text(f"before {text}\nafter")
        shown = any(secret in left for secret in PARTS)
        kept = left.startswith("before ") and left.endswith("after")
        if shown or not kept or HIDDEN not in left or not redactor.count:
            wrong.append((text, left))
    assert wrong == []
    redactor = Redactor({})
    assert [redactor.text(text) for text in HARMLESS] == HARMLESS
    assert redactor.count == 0
    own = Redactor({"MY_API_KEY": "plain word", "MY_TOKEN": "123456", "COLOUR": "plain"})
    assert own.text("it logged plain word, 123456") == f"it logged {HIDDEN}, 123456"
    for name in ("HF_TOKEN", "token", "OPENAI_API_KEY", "PASSWORD", "x-secret"):
        assert is_secret_name(name)
        assert not is_secret_name(f"{name}izer_count")


def test_people_and_machines_are_not_named(monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "node7.example.org")
    homes = "/".join(["", "home"])
    redactor = Redactor({"HOME": f"{homes}/jane", "USER": "jane"})
    text = f"{homes}/jane/models {homes}/john/x node7.example.org jane@node7: janet {homes}s"
    assert redactor.text(text) == f"~/models {homes}/USER/x HOST USER@HOST: janet {homes}s"


def test_prompts_in_logs_are_taken_out():
    line = "INFO Received request cmpl-1: prompt: 'my \\'own\\' \"words\"', params: max_tokens=16"
    assert Redactor({}).text(line, of_log=True) == (
        f"INFO Received request cmpl-1: prompt: {HIDDEN}, params: max_tokens=16"
    )
    body = '{"model": "m", "messages": [{"role": "user", "content": "my words"}]}'
    assert "my words" not in Redactor({}).text(body, of_log=True)
    assert Redactor({}).text(line) == line


def packed(bundle: Bundle, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, str]:
    """The texts of a new archive by their names."""
    capsys.readouterr()
    assert bundle.run("--json", "doctor", *words) == 0
    answer = json.loads(capsys.readouterr().out)
    path = Path(answer["archive"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    texts, folder = {}, path.name.removesuffix(".tar.gz")
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            above, _, name = member.name.partition("/")
            assert above == folder
            texts[name] = archive.extractfile(member).read().decode()
    assert set(answer["holds"]) == set(texts) - {"about.json"}
    return texts


def test_the_archive_of_what_runs(make_bundle, capsys, monkeypatch):
    bundle = make_bundle("--metrics")
    monkeypatch.setenv("HF_TOKEN", HUB)
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    bundle.edit(lambda data: data["processes"][0]["env"].update(HUGGING_FACE_HUB_TOKEN=HUB))
    assert bundle.run("up") == 0
    own = bundle.root / "run"
    with (own / "server-0.log").open("a") as log:
        log.write(f"loaded with {HUB}\nprompt: 'my words'\n")
    events.append(own, "died", reason=f"no access with {HUB}")
    texts = packed(bundle, capsys)
    assert "fake engine starting" in texts["logs/server-0.log"]
    assert json.loads(texts["bundle/launch.json"])["name"] == "fake-cpu"
    assert json.loads(texts["run/state.json"])["ready"] is True
    checks = json.loads(texts["checks.json"])
    assert [check["status"] for check in checks["checks"] if check["name"] == "bundle"] == ["ok"]
    (process,) = json.loads(texts["processes.json"])
    assert "fake_server.py" in " ".join(process["argv"])
    assert "vllm:generation_tokens_total" in texts["metrics/server-0.txt"]
    assert json.loads(texts["versions.json"])["launcher_python"]
    assert json.loads(texts["machine.json"])["disks"]["bundle"]["total"] > 0
    assert "VLLM_LOGGING_LEVEL=DEBUG" in texts["environment.txt"]
    whole = "".join(texts.values())
    assert HUB not in whole
    assert "my words" not in whole
    assert json.loads(texts["about.json"])["redacted"] >= 4


@pytest.mark.parametrize("damage", ["launch", "state", "manifest", "run"])
def test_broken_bundles(bundle, tmp_path, damage, capsys):
    own = bundle.root / "run"
    own.mkdir()
    if damage == "launch":
        (bundle.root / "launch.json").write_text("{")
    elif damage == "state":
        (own / "state.json").write_text('{"servers": 7}')
    elif damage == "manifest":
        (bundle.root / "MANIFEST.json").unlink()
    else:
        (own / "state.json").mkdir()
        (own / "events.jsonl").symlink_to("/etc/passwd")
        (own / "server-0.log").symlink_to("/etc/passwd")
    texts = packed(bundle, capsys, "-o", str(tmp_path / "report.tar.gz"))
    assert "machine.json" in texts
    assert "root:" not in "".join(texts.values())
    problems = json.loads(texts["about.json"])["problems"]
    assert any("launch.json" in problem for problem in problems) == (damage == "launch")


def test_nothing_of_a_changed_bundle_is_run(bundle, tmp_path, capsys):
    planted = tmp_path / "engine"
    planted.write_text(f"#!/bin/sh\ntouch {tmp_path}/was-run\n")
    planted.chmod(0o755)
    path = bundle.root / "launch.json"
    data = json.loads(path.read_text())
    data["engine"]["program"] = str(planted)
    path.write_text(json.dumps(data))
    assert "engine_python" not in json.loads(packed(bundle, capsys)["versions.json"])
    assert not (tmp_path / "was-run").exists()


def test_targets_that_can_and_cannot_be_written(bundle, tmp_path, capsys):
    assert bundle.run("doctor", "-o", str(tmp_path / "report.zip")) == 2
    assert ".tar.gz" in capsys.readouterr().err
    assert bundle.run("doctor", "-o", str(tmp_path / "no" / "report.tar.gz")) == 1
    assert "report.tar.gz: No such file or directory" in capsys.readouterr().err
    assert not list(tmp_path.glob("**/*.tar.gz*"))
    assert bundle.run("doctor", "--output", str(tmp_path / "a.tgz")) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"packed {tmp_path / 'a.tgz'}\n")
    assert "  checks.json  " in shown
    assert "read it all the same" in shown


def test_fake_tools_are_asked(bundle, tmp_path, capsys, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    tool = folder / "nvidia-smi"
    tool.write_text('#!/bin/sh\n[ "$1" = -q ] && { echo gone >&2; exit 9; }\necho "smi $*"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    texts = packed(bundle, capsys)
    assert "checks.json" in texts
    assert not any(name.startswith(("logs/", "metrics/")) for name in texts)  # it never ran
    assert texts["tools/nvidia_smi.txt"] == "smi \n"
    assert texts["tools/nvidia_smi_q.txt"] == "exit code 9\ngone\n"
    assert texts["tools/nvidia_smi_topo_m.txt"] == "smi topo -m\n"
