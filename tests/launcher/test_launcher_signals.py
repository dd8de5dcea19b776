"""Signals and lost terminals: a launcher that is ended leaves nothing that cannot be found."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from recipe_core.launcher.interrupts import interruptible, uninterrupted
from tests.fixtures.bundles import Bundle, training_bundle, usual_signals, with_variable
from tests.fixtures.ports import free_port

Make = Callable[..., Bundle]
KILLED_AT = """
import os, sys
from pathlib import Path
from recipe_core.launcher import state
from recipe_core.launcher.main import main

save, calls = state.save, []

def killed(run, current):
    calls.append(1)
    if len(calls) == int(sys.argv[1]):
        os.kill(os.getpid(), int(sys.argv[2]))
    save(run, current)

state.save = killed
sys.exit(main(sys.argv[4:], root=Path(sys.argv[3])))
"""
"""A launcher that a signal meets the moment before it writes its state for the n-th time."""


def until(reached: Callable[[], object], limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def signalled_at(nth: int, number: signal.Signals, bundle: Bundle, *words: str) -> int:
    program = [sys.executable, "-c", KILLED_AT, str(nth), str(int(number)), str(bundle.root)]
    done = subprocess.run(
        [*program, *words], capture_output=True, text=True, check=False, preexec_fn=usual_signals
    )
    assert "Traceback" not in done.stderr
    return done.returncode


def killed_at(nth: int, bundle: Bundle, *words: str) -> None:
    assert signalled_at(nth, signal.SIGKILL, bundle, *words) == -signal.SIGKILL


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[str]:
    """A variable that all that a test starts inherits; what has it at the end is killed."""
    value = f"{os.getpid()}-{request.node.name}"
    monkeypatch.setenv("RECIPE_TEST", value)
    yield value
    for pid in alive(value):
        os.kill(pid, signal.SIGKILL)


def alive(token: str) -> list[int]:
    return with_variable("RECIPE_TEST", token)


def second_server(bundle: Bundle, **more: object) -> Bundle:
    second = {"name": "server-1", "port_offset": 1, **more}
    bundle.edit(lambda data: data["processes"].append(data["processes"][0] | second))
    return bundle


@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("remedy", ["up", "down"])
def test_what_a_killed_start_left_is_found_by_its_mark(
    bundle: Bundle, token: str, capsys: pytest.CaptureFixture[str], nth: int, remedy: str
) -> None:
    second_server(bundle)
    killed_at(nth, bundle, "up")
    started = nth - 1
    until(lambda: len(alive(token)) == started)  # the variable shows once the program is loaded
    assert bundle.run("status") == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["state"] == ("degraded" if started else "down")
    assert answer.get("unrecorded", []) == alive(token)[-1:]
    assert bundle.run(*(["up", "--no-keep"] if remedy == "up" else ["down"])) == 0
    assert len(alive(token)) == (2 if remedy == "up" else 0)
    assert bundle.run("status") == (0 if remedy == "up" else 1)
    assert bundle.run("down") == 0
    assert alive(token) == []
    assert not bundle.up


@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("words", [["up"], ["bench", "--requests", "3"]], ids=["up", "bench"])
def test_a_hangup_at_any_step_of_a_start_leaves_nothing(
    bundle: Bundle, token: str, nth: int, words: list[str]
) -> None:
    assert signalled_at(nth, signal.SIGHUP, bundle, *words) == 130
    assert (alive(token), bundle.up) == ([], False)


def test_an_interrupted_up_leaves_what_ran_before(bundle: Bundle, token: str) -> None:
    """It asks a server that another launcher started, and waits for an answer."""
    assert bundle.run("up", "--no-keep") == 0
    state_file = bundle.root / "run" / "state.json"
    state_file.write_text(state_file.read_text().replace('"ready": true', '"ready": false'))
    (pid,) = alive(token)
    os.kill(pid, signal.SIGSTOP)
    waiting = stand_alone(bundle, "up")
    until(lambda: _locked(bundle.root / "run" / "lock"))
    waiting.send_signal(signal.SIGTERM)
    waiting.communicate(timeout=60)
    assert alive(token) == [pid]
    os.kill(pid, signal.SIGCONT)
    assert bundle.run("down") == 0


def _locked(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_bench_starts_again_what_a_killed_bench_left(bundle: Bundle, token: str) -> None:
    killed_at(2, bundle, "bench", "--requests", "3")
    until(lambda: alive(token))
    assert bundle.run("bench", "--requests", "3") == 0
    assert alive(token) == []
    assert not bundle.up


def test_down_names_what_its_state_does_not(
    bundle: Bundle, token: str, capsys: pytest.CaptureFixture[str]
) -> None:
    killed_at(2, bundle, "up")
    until(lambda: alive(token))
    (pid,) = alive(token)
    assert bundle.run("--json", "down") == 0
    assert json.loads(capsys.readouterr().out)["stopped"] == [f"pid {pid}"]


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_run_whose_launcher_was_killed_is_found_on_its_node(
    tmp_path: Path, token: str, capsys: pytest.CaptureFixture[str], nodes: int
) -> None:
    bundle = training_bundle(tmp_path / "bundle", tmp_path, free_port(), 5000, nodes=nodes)
    node = ["--node", "1", "--head", "127.0.0.1"] if nodes > 1 else []
    killed_at(2, bundle, "up", *node)
    until(lambda: alive(token))
    assert bundle.run("status", *node) == 1
    assert json.loads(capsys.readouterr().out)["state"] == "degraded"
    assert bundle.run("up", "--no-keep", *node) == 0
    assert len(alive(token)) == 1
    assert bundle.run("down", *node) == 0
    assert alive(token) == []


def stand_alone(bundle: Bundle, *words: str, **settings: object) -> subprocess.Popen[str]:
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "preexec_fn": usual_signals}
    program = [*bundle.stand_alone(), *words]
    return subprocess.Popen(program, text=True, **(options | settings))  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_a_followed_server_stops_cleanly(
    bundle: Bundle, token: str, number: signal.Signals, times: int
) -> None:
    shown = stand_alone(bundle, "up", "--foreground")
    assert shown.stdout is not None
    assert "ready" in shown.stdout.readline()
    for _ in range(times):
        shown.send_signal(number)
    _, errors = shown.communicate(timeout=60)
    assert (shown.returncode, alive(token), bundle.up) == (0, [], False), errors
    assert "Traceback" not in errors


def test_a_hangup_stops_a_start_that_waits(make_bundle: Make, token: str) -> None:
    bundle = make_bundle("--behave", "hang")
    waiting = stand_alone(bundle, "up")
    until(lambda: bundle.up and bundle.state()["servers"])
    waiting.send_signal(signal.SIGHUP)
    waiting.communicate(timeout=60)
    assert (waiting.returncode, alive(token), bundle.up) == (130, [], False)


def test_a_hangup_stops_what_bench_started(make_bundle: Make, token: str) -> None:
    bundle = make_bundle("--delay", "0.2")
    measuring = stand_alone(bundle, "bench", "--requests", "500")
    until(lambda: bundle.up and bundle.state()["ready"])
    measuring.send_signal(signal.SIGHUP)
    measuring.communicate(timeout=60)
    assert (measuring.returncode, alive(token), bundle.up) == (130, [], False)


def test_nohup_is_respected(bundle: Bundle, token: str) -> None:
    def ignored() -> None:
        usual_signals()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    shown = stand_alone(bundle, "up", "--foreground", preexec_fn=ignored)
    assert shown.stdout is not None
    assert "ready" in shown.stdout.readline()
    shown.send_signal(signal.SIGHUP)
    time.sleep(0.5)  # nothing is to happen, so there is no state to wait for
    assert shown.poll() is None
    assert bundle.run("status") == 0
    shown.send_signal(signal.SIGTERM)
    shown.communicate(timeout=60)
    assert (shown.returncode, alive(token)) == (0, [])


def test_servers_of_a_background_job_take_interrupts(bundle: Bundle) -> None:
    """A shell starts such jobs with SIGINT ignored, which programs they start would inherit."""
    job = stand_alone(bundle, "up", preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    job.communicate(timeout=60)
    status = Path(f"/proc/{bundle.state()['servers'][0]['pid']}/status").read_text()
    ignored = int(status.split("SigIgn:")[1].split()[0], 16)
    assert not ignored & 1 << (signal.SIGINT - 1)


@pytest.mark.parametrize("words", [["up", "--foreground"], ["bench", "--requests", "500"]])
def test_a_lost_terminal_stops_everything(make_bundle: Make, token: str, words: list[str]) -> None:
    """The kernel sends SIGHUP, and every write to the terminal fails from then on."""
    bundle = make_bundle("--delay", "0.2")
    program = [*bundle.stand_alone(), *words]
    pid, terminal = pty.fork()
    if not pid:
        usual_signals()
        os.execv(program[0], program)
    until(lambda: bundle.up and bundle.state()["ready"])
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.WIFEXITED(status)
    assert (alive(token), bundle.up) == ([], False)


def test_a_reader_that_left_does_not_end_what_is_followed(bundle: Bundle, token: str) -> None:
    shown = stand_alone(bundle, "up", "--foreground")
    assert shown.stdout is not None
    shown.stdout.close()
    until(lambda: bundle.up and bundle.state()["ready"])
    assert shown.stderr is not None
    until(lambda: "ready after" in shown.stderr.readline())  # type: ignore[union-attr]
    shown.send_signal(signal.SIGTERM)
    errors = shown.stderr.read()
    shown.stderr.close()
    assert shown.wait(timeout=60) in (0, 1)
    assert "Traceback" not in errors
    assert "Exception ignored" not in errors
    assert (alive(token), bundle.up) == ([], False)


def test_ctrl_c_while_python_imports_is_quiet(bundle: Bundle) -> None:
    program = bundle.stand_alone()
    module = bundle.root / "launcher" / "errors.py"
    module.unlink()
    os.mkfifo(module)  # the import waits for somebody to write
    importing = subprocess.Popen(
        [*program, "status"], stderr=subprocess.PIPE, text=True, preexec_fn=usual_signals
    )
    writing: list[int] = []

    def imports() -> bool:
        with suppress(OSError):  # until somebody reads
            writing.append(os.open(module, os.O_WRONLY | os.O_NONBLOCK))
        return bool(writing)

    until(imports)
    importing.send_signal(signal.SIGINT)
    os.close(writing[0])  # ends the read that a signal came too early to interrupt
    assert importing.communicate(timeout=60)[1] == ""
    assert importing.returncode == 130


def stop_in_the_middle(done: list[str]) -> None:
    with interruptible():
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGTERM)
            done.append("stopped")
        done.append("never")


def test_a_part_that_must_not_be_cut_in_two_is_finished() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        stop_in_the_middle(done)
    assert done == ["stopped"]


@pytest.fixture
def hangup_ends() -> Iterator[None]:
    """Whoever runs the tests may ignore it, as nohup does."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangup_ends")
def test_a_second_signal_at_once_is_the_same_end() -> None:
    done = []
    with interruptible():
        try:
            os.kill(os.getpid(), signal.SIGHUP)
        except KeyboardInterrupt:
            os.kill(os.getpid(), signal.SIGHUP)
            done.append("stopped")
    assert done == ["stopped"]
