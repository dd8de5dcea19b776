"""Ends of logs and what they mean (``tests/data/ends_of_logs.yaml``), and where a log says why."""

from __future__ import annotations

import re

import yaml

from recipe_core.launcher import causes
from recipe_core.launcher.diagnosis import LONGEST_LINE, MOST_LINES, diagnose, signal_of
from recipe_core.launcher.failure import failure_text, last_failure, shown, without_questions
from tests.fixtures.paths import DATA, ROOT
from tests.fixtures.rows import over

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


def test_causes_are_sound_and_have_examples_and_a_document():
    ids = [cause.id for cause in causes.KNOWN]
    assert len(set(ids)) == len(ids)
    assert set(ids) <= set(ENDS["lines"]) | {case["cause"] for case in ENDS["cases"]}
    text = (ROOT / "docs" / "operations.md").read_text()
    for cause in causes.KNOWN:
        answer = "restart" if cause.transient else "next choice, or stop"
        assert f"| `{cause.id}` | {cause.title} | {answer} |" in text
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

REASON = (
    "ValueError: Available memory on node 0 (17.64/21.84 GiB) on startup is less than desired CPU"
    " memory utilization (0.92, 20.1 GiB)."
)


def start_log(reason=REASON):
    """Three processes that fail one after the other, as vLLM's log has them."""
    worker, core = "(Worker pid=3) ERROR 11-24 [a.py:9] ", "(EngineCore pid=2) ERROR 11-24 [c.py] "
    passed_on = "Exception: WorkerProc initialization failed due to an exception in the background"

    def frames(prefix, count):
        lines = [f'  File "engine.py", line {number}, in step' for number in range(count)]
        return [prefix + line for line in ("Traceback (most recent call last):", *lines)]

    return [
        "(APIServer pid=1) WARNING 11-24 errors like `OSError: [Errno 24] Too many open files`",
        *[f"(APIServer pid=1) INFO 11-24 [config.py:{number}] line" for number in range(60)],
        *frames(worker, 20),
        worker + reason,
        "(EngineCore pid=2) INFO 11-24 waiting for the worker",
        *frames(core, 40),
        core + passed_on,
        *frames("", 40),
        passed_on,
        *frames("(APIServer pid=1) ", 30),
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core",
    ]


def test_the_reason_150_lines_above_the_end(make_bundle, tmp_path):
    log = tmp_path / "server-0.log"
    log.write_text("\n".join([*start_log(), ""]))
    diagnosis = diagnose(failure_text(log, 20), 1, ready=False)
    assert diagnosis.cause == "host-memory"
    assert diagnosis.lines[0].endswith(REASON)
    assert diagnosis.fix.startswith("Only 17.64 of 21.84 GiB were free")
    # An unknown reason is shown before what passes it on.
    text = "\n".join(last_failure(start_log("KeyError: 'rope_mystery'"), 20))
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
    log = ["ERROR torch.OutOfMemoryError: of another day", *calm, *start_log()]
    text = "\n".join(last_failure(log, 20))
    for before in ("Too many open files", "config.py", "of another day"):
        assert before not in text
    for last in ("ValueError: bad", "done"):  # a log that refers to nothing keeps its tail
        log = [*start_log()[:-1], *[f"INFO line {number}" for number in range(40)], last]
        assert last_failure(log, 20) == log[-20:]


def test_the_evidence_is_shown_once_without_questions():
    log = [str(number) for number in range(50)]
    assert shown(log, ("3", "49"), 5).splitlines() == ["3", "...", "45", "46", "47", "48", "49"]
    assert shown(log, ("49",), 2).splitlines() == ["48", "49"]
    log = [
        'INFO:     127.0.0.1:36862 - "GET /health HTTP/1.1" 200 OK',
        'INFO:     127.0.0.1:36863 - "GET /health HTTP/1.1" 500 Internal Server Error',
        "srv  log_server_r: done request: GET /metrics 127.0.0.1 200",
        '"GET /v1/models HTTP/1.1" 200 -',
        '"GET /health HTTP/1.1" 200 -fatal: the oven went out',
        'fatal: the oven went out"GET /health HTTP/1.1" 200 -',
    ]
    assert without_questions(log, ("/health", "/metrics")) == log[3:]
