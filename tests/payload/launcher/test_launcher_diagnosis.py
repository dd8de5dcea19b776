"""Ends of logs and what they mean (``tests/data/ends_of_logs.yaml``), and what ``doctor`` packs."""

import json
import re
import stat
import tarfile
from functools import partial
from pathlib import Path

import pytest
import yaml

from recipe_core.payload.launcher import events
from recipe_core.payload.launcher.diagnosis import (
    KNOWN,
    LONGEST_LINE,
    MOST_LINES,
    diagnose,
    excerpt_log,
    failure_text,
    last_failure,
    signal_of,
    without_questions,
)
from recipe_core.payload.launcher.redact import HIDDEN, Redactor, is_secret_name
from tests.fixtures.paths import DATA
from tests.fixtures.rows import over, table

ENDS = yaml.safe_load((DATA / "ends_of_logs.yaml").read_text())
LOGS = ENDS["logs"]


@over("case", ENDS["cases"])
def test_ends_of_logs(case):
    log, kernel = (LOGS.get(name, name) for name in (case["log"], case.get("kernel", "")))
    found = diagnose(log, case["code"], kernel=kernel)
    assert all(getattr(found, name) == case[name] for name in ("cause", "transient", "device"))
    assert found.lines
    assert all(line in (log + kernel) for line in found.lines)
    assert case["fix"] in found.fix
    assert found.title in found.text()


@over("cause line", [(cause, line) for cause, lines in ENDS["lines"].items() for line in lines])
def test_lines(cause, line):
    last = "RuntimeError: Engine core initialization failed."
    found = diagnose(f"INFO 10-02 03:11:40 loading\n{line}\n{last}", 1)
    assert (found.cause, found.lines[0]) == (cause, line)


def test_causes_are_sound_and_have_examples():
    ids = [cause.id for cause in KNOWN]
    assert len(set(ids)) == len(ids)
    assert set(ids) <= set(ENDS["lines"]) | {case["cause"] for case in ENDS["cases"]}
    for cause in KNOWN:
        assert cause.patterns or cause.kernel
        assert cause.title[0].islower() or cause.title.startswith("/")
        assert cause.fix.endswith(".")
        fields = set(re.findall(r"\{(\w+)\}", cause.exact))
        groups = [set(pattern.groupindex) for pattern in cause.patterns if pattern.groupindex]
        assert all(group <= fields for group in groups)
        assert bool(fields) == bool(groups)
        assert any(fields == group for group in groups) or not fields


def test_out_of_memory_before_the_first_answer_comes_again():
    assert diagnose(LOGS["trt memory"], 1).transient
    assert diagnose(LOGS["trt memory"], 1, ready=True).transient
    assert not diagnose(LOGS["trt memory"], 1, ready=False).transient
    assert diagnose(LOGS["transformers port"], 1, ready=False).transient


@over("log code cause", ENDS["not_the_cause"])
def test_what_is_not_the_cause(log, code, cause):
    assert diagnose(log, code).cause == cause


@over("code cause title", ENDS["codes"])
def test_an_end_without_words(code, cause, title):
    diagnosis = diagnose("loading\n\nserving", code)
    assert (diagnosis.cause, diagnosis.lines) == (cause, ("loading", "serving"))
    assert title in diagnosis.title
    signals = [signal_of(code) for code in (None, 0, 1, 128, 255, -9, 143)]
    assert signals == [None, None, None, None, None, 9, 15]


def test_an_error_that_nobody_knows_is_shown():
    log = "Traceback (most recent call last):\n  File 'x.py', line 1\nKeyError: 'rope_theta'\n"
    diagnosis = diagnose(log + "WorkerProc hit an exception.", 1)
    assert (diagnosis.cause, diagnosis.lines) == ("worker-died", ("KeyError: 'rope_theta'",))
    assert diagnose(log, 1).cause == "exception"


def test_lines_are_few_short_and_plain():
    line = "\x1b[31mtorch.OutOfMemoryError: CUDA out of memory.\x1b[0m " + "x" * 5000
    log = "\n".join(f"rank {n}: {line}" for n in range(50)) + "\rdone\x07"
    diagnosis = diagnose(log, 1)
    assert len(diagnosis.lines) == 1  # ranks differ by numbers only
    assert len(diagnosis.lines[0]) == LONGEST_LINE
    assert diagnosis.lines[0].isprintable()
    different = "\n".join(f"{'x' * n} CUDA out of memory" for n in range(50))
    assert len(diagnose(different, 1).lines) == MOST_LINES
    assert diagnose("", -9).lines == ()


def test_odd_text_takes_no_time():
    for piece in ("x", "{", "(", "Error ", "No space ", "memory mismatch for ", "a.b.", "\\"):
        diagnose(piece * 200_000, 1)


# Where the reason lies

FAILED = (DATA / "failed_start.log").read_text()
"""Three processes of vLLM that fail one after the other."""
REASON = (
    "ValueError: Available memory on node 0 (17.64/21.84 GiB) on startup is less than desired CPU"
    " memory utilization (0.92, 20.1 GiB)."
)


def test_the_reason_150_lines_above_the_end(make_bundle, tmp_path):
    log = tmp_path / "server-0.log"
    log.write_text(FAILED)
    diagnosis = diagnose(failure_text(log, 20), 1, ready=False)
    assert diagnosis.cause == "host-memory"
    assert diagnosis.lines[0].endswith(REASON)
    assert diagnosis.fix.startswith("Only 17.64 of 21.84 GiB were free")
    # An unknown reason is shown before what passes it on.
    unknown = FAILED.replace(REASON, "KeyError: 'rope_mystery'")
    text = "\n".join(last_failure(unknown.splitlines(), 20))
    assert diagnose(text, 1, ready=False).lines[0].endswith("KeyError: 'rope_mystery'")
    bundle = make_bundle()
    fails = ["sh", "-c", f"cat {log}; exit 1"]
    bundle.edit(lambda data: data["processes"][0].update(argv=fails))
    words = bundle.says(1, "up", "--no-keep")
    assert "the machine's memory does not suffice" in words
    assert "Only 17.64 of 21.84 GiB were free" in words
    assert REASON in words


def test_lines_before_the_failure_and_an_earlier_one_are_no_reason():
    calm = [f"INFO serving request {number}" for number in range(200)]
    log = ["ERROR torch.OutOfMemoryError: of another day", *calm, *FAILED.splitlines()]
    text = "\n".join(last_failure(log, 20))
    for before in ("Too many open files", "config.py", "of another day"):
        assert before not in text
    for last in ("ValueError: bad", "done"):  # a log that refers to nothing keeps its tail
        log = [*FAILED.splitlines()[:-1], *[f"INFO line {number}" for number in range(40)], last]
        assert last_failure(log, 20) == log[-20:]


def test_the_evidence_is_shown_once_without_questions():
    log = [str(number) for number in range(50)]
    assert excerpt_log(log, ("3", "49"), 5).splitlines() == [
        "3",
        "...",
        "45",
        "46",
        "47",
        "48",
        "49",
    ]
    assert excerpt_log(log, ("49",), 2).splitlines() == ["48", "49"]
    log = ENDS["questions"] + ENDS["no_questions"]
    assert without_questions(log, ("/health", "/metrics")) == ENDS["no_questions"]


HUB = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWx"
ROWS = partial(table, "launcher_diagnosis")


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
