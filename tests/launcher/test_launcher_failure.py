"""The reason of a failed start is found in its log, not the last process's word of one."""

from __future__ import annotations

import pytest

from recipe_core.launcher.diagnosis import diagnose
from recipe_core.launcher.failure import failure_text, last_failure, shown, without_questions

REASON = (
    "ValueError: Available memory on node 0 (17.64/21.84 GiB) on startup is less than desired CPU"
    " memory utilization (0.92, 20.1 GiB)."
)
LAST = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s)"


def frames(prefix: str, count: int) -> list[str]:
    """A traceback without its last line."""
    lines = [f'{prefix}  File "engine.py", line {number}, in step' for number in range(count)]
    return [f"{prefix}Traceback (most recent call last):", *lines]


def start_log(reason: str) -> list[str]:
    """Three processes that fail one after the other, as vLLM's log has them."""
    worker, core = "(Worker pid=3) ERROR 11-24 [a.py:9] ", "(EngineCore pid=2) ERROR 11-24 [c.py] "
    return [
        "(APIServer pid=1) WARNING 11-24 errors like `OSError: [Errno 24] Too many open files`",
        *[f"(APIServer pid=1) INFO 11-24 [config.py:{number}] line" for number in range(60)],
        *frames(worker, 20),
        worker + reason,
        "(EngineCore pid=2) INFO 11-24 waiting for the worker",
        *frames(core, 40),
        core + "Exception: WorkerProc initialization failed due to an exception in the background",
        *frames("", 40),
        "Exception: WorkerProc initialization failed due to an exception in the background",
        *frames("(APIServer pid=1) ", 30),
        LAST,
    ]


def test_the_reason_150_lines_above_the_end(tmp_path):
    log = tmp_path / "server-0.log"
    log.write_text("\n".join(start_log(REASON)))
    diagnosis = diagnose(failure_text(log, 20), 1, ready=False)
    assert diagnosis.cause == "host-memory"
    assert diagnosis.lines[0].endswith(REASON)
    assert diagnosis.fix.startswith("Only 17.64 of 21.84 GiB were free")


def test_an_unknown_reason_is_shown_before_what_passes_it_on():
    text = "\n".join(last_failure(start_log("KeyError: 'rope_mystery'"), 20))
    diagnosis = diagnose(text, 1, ready=False)
    assert diagnosis.lines[0].endswith("KeyError: 'rope_mystery'")


def test_lines_before_the_failure_and_an_earlier_one_are_no_reason():
    calm = [f"INFO serving request {number}" for number in range(200)]
    log = ["ERROR torch.OutOfMemoryError: of another day", *calm, *start_log(REASON)]
    text = "\n".join(last_failure(log, 20))
    for before in ("Too many open files", "config.py", "of another day"):
        assert before not in text


@pytest.mark.parametrize("last", ["ValueError: bad", "done"])
def test_a_log_that_refers_to_nothing_keeps_its_tail(last):
    log = [*start_log(REASON)[:-1], *[f"INFO line {number}" for number in range(40)], last]
    assert last_failure(log, 20) == log[-20:]


def test_the_evidence_is_shown_once():
    log = [str(number) for number in range(50)]
    assert shown(log, ("3", "49"), 5).splitlines() == ["3", "...", "45", "46", "47", "48", "49"]
    assert shown(log, ("49",), 2).splitlines() == ["48", "49"]


def test_up_names_the_reason(make_bundle, tmp_path, capsys):
    text = tmp_path / "failed.log"
    text.write_text("\n".join(start_log(REASON)) + "\n")
    bundle = make_bundle()
    fails = ["sh", "-c", f"cat {text}; exit 1"]
    bundle.edit(lambda data: data["processes"][0].update(argv=fails))
    assert bundle.run("up", "--no-keep") == 1
    words = capsys.readouterr().err
    assert "the machine's memory does not suffice" in words
    assert "Only 17.64 of 21.84 GiB were free" in words
    assert REASON in words


def test_questions_are_left_out_of_a_log_but_not_a_last_word_on_their_line():
    log = [
        'INFO:     127.0.0.1:36862 - "GET /health HTTP/1.1" 200 OK',
        'INFO:     127.0.0.1:36863 - "GET /health HTTP/1.1" 500 Internal Server Error',
        "srv  log_server_r: done request: GET /metrics 127.0.0.1 200",
        '"GET /v1/models HTTP/1.1" 200 -',
        '"GET /health HTTP/1.1" 200 -fatal: the oven went out',
        'fatal: the oven went out"GET /health HTTP/1.1" 200 -',
    ]
    assert without_questions(log, ("/health", "/metrics")) == log[3:]
