"""Signals and lost terminals: a launcher that is ended leaves nothing that cannot be found.

Real processes. The fast tier has one signal for each phase, the nightly one the rest; a signal at
any step of a start is in ``test_launcher_life.py``.
"""

import fcntl
import os
import pty
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.fixtures.bundles import training_bundle, usual_signals, with_variable
from tests.fixtures.patience import PATIENCE, until
from tests.fixtures.ports import free_port

HUP, INT, KILL, TERM = signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM
BENCH = ["bench", "--requests", "500"]
KILLED_AT = """
import os, sys
from pathlib import Path
from recipe_core.payload.launcher import state
from recipe_core.payload.launcher.main import main

save, calls = state.save_state, []

def killed(run, current):
    calls.append(1)
    if len(calls) == int(sys.argv[1]):
        os.kill(os.getpid(), 9)
    save(run, current)

state.save_state = killed
sys.exit(main(sys.argv[3:], root=Path(sys.argv[2])))
"""
"""A launcher that is killed the moment before it writes its state for the n-th time."""


def nightly(*values):
    return pytest.param(*values, marks=pytest.mark.nightly)


def killed_at(nth, bundle, *words):
    program = [sys.executable, "-c", KILLED_AT, str(nth), str(bundle.root), *words]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (-KILL, False)


@pytest.fixture
def alive(monkeypatch, request):
    """What runs of all that a test starts, by a variable that it inherits; killed at the end."""
    value = f"{os.getpid()}-{request.node.name}"
    monkeypatch.setenv("RECIPE_TEST", value)
    yield lambda: with_variable("RECIPE_TEST", value)
    for pid in with_variable("RECIPE_TEST", value):
        os.kill(pid, KILL)


def stand_alone(bundle, *words, **settings):
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "preexec_fn": usual_signals}
    return subprocess.Popen([*bundle.stand_alone(), *words], text=True, **options | settings)


@pytest.mark.parametrize(
    ("nth", "remedy"),
    [(2, "down"), *(nightly(n, how) for n, how in [(1, "up"), (1, "down"), (2, "up"), (3, "up")])],
)
def test_what_a_killed_start_left_is_found_by_its_mark(bundle, alive, nth, remedy):
    second = {"name": "server-1", "port_offset": 1}
    bundle.edit(lambda data: data["processes"].append(data["processes"][0] | second))
    killed_at(nth, bundle, "up")
    started = nth - 1
    until(lambda: len(alive()) == started)  # the variable shows once the program is loaded
    left = alive()
    answer = bundle.answers("status", code=1)
    assert answer["state"] == ("degraded" if started else "down")
    assert answer.get("unrecorded", []) == left[-1:]
    if remedy == "up":
        assert bundle.run("up", "--no-keep") == 0
        assert len(alive()) == 2
        assert bundle.run("status") == 0
    else:
        stopped = bundle.answers("--json", "down")["stopped"]
        assert stopped[-1:] == [f"pid {pid}" for pid in left[-1:]]
    assert bundle.run("down") == 0
    assert (alive(), bundle.up) == ([], False)


@pytest.mark.nightly
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_run_whose_launcher_was_killed_is_found_on_its_node(tmp_path, alive, nodes):
    bundle = training_bundle(tmp_path / "bundle", tmp_path, free_port(), 5000, nodes=nodes)
    node = ["--node", "1", "--head", "127.0.0.1"] if nodes > 1 else []
    killed_at(2, bundle, "up", *node)
    until(alive)
    assert bundle.answers("status", *node, code=1)["state"] == "degraded"
    assert bundle.run("up", "--no-keep", *node) == 0
    assert len(alive()) == 1
    assert bundle.run("down", *node) == 0
    assert alive() == []


def test_an_interrupted_up_leaves_what_ran_before(bundle, alive):
    """It asks a server that another launcher started, and waits for an answer."""
    assert bundle.run("up", "--no-keep") == 0
    state_file = bundle.root / "run" / "state.json"
    state_file.write_text(state_file.read_text().replace('"ready": true', '"ready": false'))
    (pid,) = alive()
    os.kill(pid, signal.SIGSTOP)
    waiting = stand_alone(bundle, "up")

    def locked():
        with (bundle.root / "run" / "lock").open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    until(locked)
    waiting.send_signal(TERM)
    waiting.communicate(timeout=PATIENCE)
    assert alive() == [pid]
    os.kill(pid, signal.SIGCONT)
    assert bundle.run("down") == 0


def ignores(pid, number):
    text = Path(f"/proc/{pid}/status").read_text()
    return bool(int(text.split("SigIgn:")[1].split()[0], 16) & 1 << (number - 1))


@pytest.mark.parametrize(
    ("number", "times", "ignored"),
    [(INT, 2, 0), (TERM, 1, HUP), nightly(INT, 1, 0), nightly(HUP, 2, 0), nightly(TERM, 2, 0)],
)
def test_a_followed_server_stops_cleanly(bundle, alive, number, times, ignored):
    """Once or twice asked, and though nohup has it ignore another signal."""

    def nohup():
        usual_signals()
        if ignored:
            signal.signal(ignored, signal.SIG_IGN)

    shown = stand_alone(bundle, "up", "--foreground", preexec_fn=nohup)
    assert "ready" in shown.stdout.readline()
    if ignored:
        assert ignores(shown.pid, ignored)  # the kernel drops it
        shown.send_signal(ignored)
        assert bundle.run("status") == 0
    for _ in range(times):
        shown.send_signal(number)
    _, errors = shown.communicate(timeout=PATIENCE)
    assert (shown.returncode, alive(), bundle.up) == (0, [], False), errors
    assert "Traceback" not in errors


def test_servers_of_a_background_job_take_interrupts(bundle):
    """A shell starts such jobs with SIGINT ignored, which programs they start would inherit."""
    job = stand_alone(bundle, "up", preexec_fn=lambda: signal.signal(INT, signal.SIG_IGN))
    job.communicate(timeout=PATIENCE)
    assert not ignores(bundle.state()["servers"][0]["pid"], INT)


@pytest.mark.parametrize("number", [HUP, nightly(TERM), nightly(INT)])
@pytest.mark.parametrize(
    ("words", "server", "ready"),
    [(["up"], ["--behave", "hang"], False), (BENCH, ["--delay", "0.2"], True)],
    ids=["up", "bench"],
)
def test_a_signal_stops_what_was_started(make_bundle, alive, number, words, server, ready):
    bundle = make_bundle(*server)
    waiting = stand_alone(bundle, *words)
    until(lambda: bundle.up and bundle.state()["servers"] and bundle.state()["ready"] == ready)
    waiting.send_signal(number)
    waiting.communicate(timeout=PATIENCE)
    assert (waiting.returncode, alive(), bundle.up) == (130, [], False)


@pytest.mark.parametrize("words", [["up", "--foreground"], nightly(BENCH)])
def test_a_lost_terminal_stops_everything(make_bundle, alive, words):
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
    assert (alive(), bundle.up) == ([], False)


def test_a_reader_that_left_does_not_end_what_is_followed(bundle, alive):
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
    assert (alive(), bundle.up) == ([], False)


def test_ctrl_c_while_python_imports_is_quiet(bundle):
    program = bundle.stand_alone()
    module = bundle.root / "launcher" / "errors.py"
    module.unlink()
    os.mkfifo(module)  # the import waits for somebody to write
    importing = subprocess.Popen(
        [*program, "status"], stderr=subprocess.PIPE, text=True, preexec_fn=usual_signals
    )
    writing = []

    def imports():
        with suppress(OSError):  # until somebody reads
            writing.append(os.open(module, os.O_WRONLY | os.O_NONBLOCK))
        return bool(writing)

    until(imports)
    importing.send_signal(INT)
    os.close(writing[0])  # ends the read that a signal came too early to interrupt
    assert importing.communicate(timeout=PATIENCE)[1] == ""
    assert importing.returncode == 130
