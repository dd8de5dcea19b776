"""Signals and lost terminals: a launcher that is ended leaves nothing that cannot be found.

Real processes. The fast tier has one signal for each phase, the nightly one the rest; a signal at
any step of a start is in ``test_launcher_life.py``.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from recipe_core.launcher.interrupts import interruptible, uninterrupted
from tests.fixtures.bundles import Bundle, training_bundle, usual_signals, with_variable
from tests.fixtures.fake_world import FakeClock
from tests.fixtures.kept import until
from tests.fixtures.patience import PATIENCE
from tests.fixtures.ports import free_port

HUP, INT, KILL, TERM = signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM
BENCH = ["bench", "--requests", "500"]
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


def nightly(*values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.nightly)


def signalled_at(nth: int, number: signal.Signals, bundle: Bundle, *words: str) -> int:
    program = [sys.executable, "-c", KILLED_AT, str(nth), str(int(number)), str(bundle.root)]
    done = subprocess.run(
        [*program, *words], capture_output=True, text=True, check=False, preexec_fn=usual_signals
    )
    assert "Traceback" not in done.stderr
    return done.returncode


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[str]:
    """A variable that all that a test starts inherits; what has it at the end is killed."""
    value = f"{os.getpid()}-{request.node.name}"
    monkeypatch.setenv("RECIPE_TEST", value)
    yield value
    for pid in alive(value):
        os.kill(pid, KILL)


def alive(token: str) -> list[int]:
    return with_variable("RECIPE_TEST", token)


def stand_alone(bundle: Bundle, *words: str, **settings: object) -> subprocess.Popen[str]:
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "preexec_fn": usual_signals}
    program = [*bundle.stand_alone(), *words]
    return subprocess.Popen(program, text=True, **(options | settings))  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize(
    ("nth", "remedy"),
    [(2, "down"), *(nightly(n, how) for n, how in [(1, "up"), (1, "down"), (2, "up"), (3, "up")])],
)
def test_what_a_killed_start_left_is_found_by_its_mark(bundle, token, capsys, nth, remedy):
    second = {"name": "server-1", "port_offset": 1}
    bundle.edit(lambda data: data["processes"].append(data["processes"][0] | second))
    assert signalled_at(nth, KILL, bundle, "up") == -KILL
    started = nth - 1
    until(lambda: len(alive(token)) == started)  # the variable shows once the program is loaded
    left = alive(token)
    assert bundle.run("status") == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["state"] == ("degraded" if started else "down")
    assert answer.get("unrecorded", []) == left[-1:]
    if remedy == "up":
        assert bundle.run("up", "--no-keep") == 0
        assert len(alive(token)) == 2
        assert bundle.run("status") == 0
    else:
        assert bundle.run("--json", "down") == 0
        stopped = json.loads(capsys.readouterr().out)["stopped"]
        assert stopped[-1:] == [f"pid {pid}" for pid in left[-1:]]
    assert bundle.run("down") == 0
    assert (alive(token), bundle.up) == ([], False)


@pytest.mark.nightly
@pytest.mark.parametrize(("number", "nth"), [(HUP, 1), (HUP, 2), (HUP, 3), (KILL, 2)])
def test_a_bench_that_ends_at_any_step_leaves_nothing_for_long(bundle, token, number, nth):
    words = ["bench", "--requests", "3"]
    assert signalled_at(nth, number, bundle, *words) == (130 if number == HUP else -KILL)
    if number == KILL:  # the next one ends what it left, and starts it again
        until(lambda: alive(token))
        assert bundle.run(*words) == 0
    assert (alive(token), bundle.up) == ([], False)


@pytest.mark.nightly
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_run_whose_launcher_was_killed_is_found_on_its_node(tmp_path, token, capsys, nodes):
    bundle = training_bundle(tmp_path / "bundle", tmp_path, free_port(), 5000, nodes=nodes)
    node = ["--node", "1", "--head", "127.0.0.1"] if nodes > 1 else []
    assert signalled_at(2, KILL, bundle, "up", *node) == -KILL
    until(lambda: alive(token))
    assert bundle.run("status", *node) == 1
    assert json.loads(capsys.readouterr().out)["state"] == "degraded"
    assert bundle.run("up", "--no-keep", *node) == 0
    assert len(alive(token)) == 1
    assert bundle.run("down", *node) == 0
    assert alive(token) == []


def test_an_interrupted_up_leaves_what_ran_before(bundle, token):
    """It asks a server that another launcher started, and waits for an answer."""
    assert bundle.run("up", "--no-keep") == 0
    state_file = bundle.root / "run" / "state.json"
    state_file.write_text(state_file.read_text().replace('"ready": true', '"ready": false'))
    (pid,) = alive(token)
    os.kill(pid, signal.SIGSTOP)
    waiting = stand_alone(bundle, "up")

    def locked() -> bool:
        with (bundle.root / "run" / "lock").open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    until(locked)
    waiting.send_signal(TERM)
    waiting.communicate(timeout=PATIENCE)
    assert alive(token) == [pid]
    os.kill(pid, signal.SIGCONT)
    assert bundle.run("down") == 0


@pytest.mark.parametrize(
    ("number", "times"), [(INT, 2), nightly(INT, 1), nightly(HUP, 2), nightly(TERM, 2)]
)
def test_a_followed_server_stops_cleanly(bundle, token, number, times):
    shown = stand_alone(bundle, "up", "--foreground")
    assert "ready" in shown.stdout.readline()
    for _ in range(times):
        shown.send_signal(number)
    _, errors = shown.communicate(timeout=PATIENCE)
    assert (shown.returncode, alive(token), bundle.up) == (0, [], False), errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("number", [HUP, nightly(TERM), nightly(INT)])
@pytest.mark.parametrize(
    ("words", "server", "ready"),
    [(["up"], ["--behave", "hang"], False), (BENCH, ["--delay", "0.2"], True)],
    ids=["up", "bench"],
)
def test_a_signal_stops_what_was_started(make_bundle, token, number, words, server, ready):
    bundle = make_bundle(*server)
    waiting = stand_alone(bundle, *words)
    until(lambda: bundle.up and bundle.state()["servers"] and bundle.state()["ready"] == ready)
    waiting.send_signal(number)
    waiting.communicate(timeout=PATIENCE)
    assert (waiting.returncode, alive(token), bundle.up) == (130, [], False)


def ignored(pid: int) -> int:
    """The signals that a process ignores, a bit each."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split("SigIgn:")[1].split()[0], 16)


def test_nohup_is_respected(bundle, token):
    def nohup() -> None:
        usual_signals()
        signal.signal(HUP, signal.SIG_IGN)

    shown = stand_alone(bundle, "up", "--foreground", preexec_fn=nohup)
    assert "ready" in shown.stdout.readline()
    assert ignored(shown.pid) & 1 << (HUP - 1)  # the kernel drops it
    shown.send_signal(HUP)
    assert bundle.run("status") == 0
    shown.send_signal(TERM)
    shown.communicate(timeout=PATIENCE)
    assert (shown.returncode, alive(token)) == (0, [])


def test_servers_of_a_background_job_take_interrupts(bundle):
    """A shell starts such jobs with SIGINT ignored, which programs they start would inherit."""
    job = stand_alone(bundle, "up", preexec_fn=lambda: signal.signal(INT, signal.SIG_IGN))
    job.communicate(timeout=PATIENCE)
    assert not ignored(bundle.state()["servers"][0]["pid"]) & 1 << (INT - 1)


@pytest.mark.parametrize("words", [["up", "--foreground"], nightly(BENCH)])
def test_a_lost_terminal_stops_everything(make_bundle, token, words):
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


def test_a_reader_that_left_does_not_end_what_is_followed(bundle, token):
    shown = stand_alone(bundle, "up", "--foreground")
    shown.stdout.close()
    until(lambda: bundle.up and bundle.state()["ready"])
    until(lambda: "ready after" in shown.stderr.readline())
    shown.send_signal(TERM)
    errors = shown.stderr.read()
    shown.stderr.close()
    assert shown.wait(timeout=PATIENCE) in (0, 1)
    assert "Traceback" not in errors
    assert "Exception ignored" not in errors
    assert (alive(token), bundle.up) == ([], False)


def test_ctrl_c_while_python_imports_is_quiet(bundle):
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
    importing.send_signal(INT)
    os.close(writing[0])  # ends the read that a signal came too early to interrupt
    assert importing.communicate(timeout=PATIENCE)[1] == ""
    assert importing.returncode == 130


# In this process


@pytest.fixture
def hangup_ends() -> Iterator[None]:
    """Whoever runs the tests may ignore it, as nohup does."""
    before = signal.signal(HUP, signal.SIG_DFL)
    yield
    signal.signal(HUP, before)


def test_a_part_that_must_not_be_cut_in_two_is_finished():
    done: list[str] = []

    def stop_in_the_middle() -> None:
        with interruptible():
            with uninterrupted():
                os.kill(os.getpid(), TERM)
                done.append("stopped")
            done.append("never")

    with pytest.raises(KeyboardInterrupt):
        stop_in_the_middle()
    assert done == ["stopped"]


@pytest.mark.usefixtures("hangup_ends")
def test_a_second_signal_at_once_is_the_same_end():
    clock, ends = FakeClock(), []
    with interruptible(clock):
        for passed in (2, 0.5, 2):
            clock.at += passed
            try:
                os.kill(os.getpid(), HUP)
            except KeyboardInterrupt:
                ends.append(passed)
    assert ends == [2, 2]
