"""doctor: what the archive holds, and what it must not hold."""

from __future__ import annotations

import json
import stat
import tarfile
from functools import partial
from pathlib import Path

import pytest

from recipe_core.launcher import events
from recipe_core.launcher.redact import HIDDEN, Redactor, is_secret_name
from tests.fixtures.rows import over, table

HUB = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWx"
ROWS = partial(table, "launcher_doctor")


@over("text", ROWS("secret"))
def test_secrets_are_taken_out(text):
    redactor = Redactor({})
    left = redactor.text(f"before {text}\nafter".replace("HUB", HUB))
    assert not any(part.replace("HUB", HUB) in left for part in ROWS("parts"))
    assert left.startswith("before ")
    assert left.endswith("after")
    assert HIDDEN in left
    assert redactor.count


def test_other_words_stay():
    redactor = Redactor({})
    assert [redactor.text(text) for text in ROWS("harmless")] == ROWS("harmless")
    assert redactor.count == 0
    own = Redactor({"MY_API_KEY": "plain word", "MY_TOKEN": "123456", "COLOUR": "plain"})
    assert own.text("it logged plain word, 123456") == f"it logged {HIDDEN}, 123456"
    for name in ("HF_TOKEN", "token", "OPENAI_API_KEY", "PASSWORD", "x-secret"):
        assert is_secret_name(name)
        assert not is_secret_name(f"{name}izer_count")
    line = "INFO Received request cmpl-1: prompt: 'my \\'own\\' \"words\"', params: max_tokens=16"
    hidden = f"INFO Received request cmpl-1: prompt: {HIDDEN}, params: max_tokens=16"
    assert Redactor({}).text(line, of_log=True) == hidden
    assert Redactor({}).text(line) == line
    body = '{"model": "m", "messages": [{"role": "user", "content": "my words"}]}'
    assert "my words" not in Redactor({}).text(body, of_log=True)


def test_people_and_machines_are_not_named(monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "node7.example.org")
    homes = "/".join(["", "home"])
    redactor = Redactor({"HOME": f"{homes}/jane", "USER": "jane"})
    text = f"{homes}/jane/models {homes}/john/x node7.example.org jane@node7: janet {homes}s"
    assert redactor.text(text) == f"~/models {homes}/USER/x HOST USER@HOST: janet {homes}s"


def packed(bundle, *words):
    """The texts of a new archive by their names."""
    answer = bundle.answers("--json", "doctor", *words)
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


def test_the_archive_of_what_runs(make_bundle, monkeypatch):
    bundle = make_bundle("--metrics")
    monkeypatch.setenv("HF_TOKEN", HUB)
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    bundle.edit(lambda data: data["processes"][0]["env"].update(HUGGING_FACE_HUB_TOKEN=HUB))
    assert bundle.run("up") == 0
    own = bundle.root / "run"
    with (own / "server-0.log").open("a") as log:
        log.write(f"loaded with {HUB}\nprompt: 'my words'\n")
    events.append(own, "died", reason=f"no access with {HUB}")
    texts = packed(bundle)
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
def test_broken_bundles(bundle, tmp_path, damage):
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
    texts = packed(bundle, "-o", str(tmp_path / "report.tar.gz"))
    assert "machine.json" in texts
    assert "root:" not in "".join(texts.values())
    problems = json.loads(texts["about.json"])["problems"]
    assert any("launch.json" in problem for problem in problems) == (damage == "launch")


def test_nothing_of_a_changed_bundle_is_run(bundle, tmp_path):
    planted = tmp_path / "engine"
    planted.write_text(f"#!/bin/sh\ntouch {tmp_path}/was-run\n")
    planted.chmod(0o755)
    path = bundle.root / "launch.json"
    data = json.loads(path.read_text())
    data["engine"]["program"] = str(planted)
    path.write_text(json.dumps(data))
    assert "engine_python" not in json.loads(packed(bundle)["versions.json"])
    assert not (tmp_path / "was-run").exists()


def test_targets_that_can_and_cannot_be_written(bundle, tmp_path):
    assert ".tar.gz" in bundle.says(2, "doctor", "-o", str(tmp_path / "report.zip"))
    refusal = bundle.says(1, "doctor", "-o", str(tmp_path / "no" / "report.tar.gz"))
    assert "report.tar.gz: No such file or directory" in refusal
    assert not list(tmp_path.glob("**/*.tar.gz*"))
    shown = bundle.says(0, "doctor", "--output", str(tmp_path / "a.tgz"))
    assert f"packed {tmp_path / 'a.tgz'}\n" in shown
    assert "  checks.json  " in shown
    assert "read it all the same" in shown


def test_fake_tools_are_asked(bundle, tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    tool = folder / "nvidia-smi"
    tool.write_text('#!/bin/sh\n[ "$1" = -q ] && { echo gone >&2; exit 9; }\necho "smi $*"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    texts = packed(bundle)
    assert "checks.json" in texts
    assert not any(name.startswith(("logs/", "metrics/")) for name in texts)  # it never ran
    assert texts["tools/nvidia_smi.txt"] == "smi \n"
    assert texts["tools/nvidia_smi_q.txt"] == "exit code 9\ngone\n"
    assert texts["tools/nvidia_smi_topo_m.txt"] == "smi topo -m\n"
