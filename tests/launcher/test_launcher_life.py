"""up, status, down: real processes of a fake engine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from recipe_core.launcher import procs, state
from tests.fixtures.bundles import Bundle


def test_up_status_down(bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    assert bundle.run("up") == 0
    assert f"http://127.0.0.1:{bundle.port}/v1/completions" in capsys.readouterr().out
    assert bundle.run("status") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["state"] == "up"
    assert answer["servers"][0]["healthy"]
    pid = bundle.state()["servers"][0]["pid"]
    assert bundle.run("down") == 0
    assert procs.read_stat(pid) is None
    assert not bundle.up


def test_up_twice_says_so_and_starts_nothing(
    bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle.run("up")
    before = bundle.state()["servers"]
    capsys.readouterr()
    assert bundle.run("--json", "up") == 0
    assert json.loads(capsys.readouterr().out)["already"] is True
    assert bundle.state()["servers"] == before


def test_down_twice_and_status_when_down(
    bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bundle.run("down") == 0
    assert bundle.run("down") == 0
    assert "nothing was running" in capsys.readouterr().out
    assert bundle.run("status") == 1
    assert json.loads(capsys.readouterr().out)["state"] == "down"


def test_port_on_the_command_line(bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        other = probe.getsockname()[1]
    assert bundle.run("up", "--port", str(other)) == 0
    with urllib.request.urlopen(f"http://127.0.0.1:{other}/health") as answer:
        assert answer.status == 200
    assert bundle.run("status") == 0  # without --port: the state knows
    assert str(other) in capsys.readouterr().out


def test_server_that_dies_shows_its_log(
    make_bundle: Callable[..., Bundle], capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = make_bundle("--behave", "die")
    assert bundle.run("up") == 1
    error = capsys.readouterr().err
    assert "server-0 ended before it was ready" in error
    assert "fatal: no weights on this shelf" in error
    assert not bundle.up


def test_server_that_never_answers_is_stopped(
    make_bundle: Callable[..., Bundle], capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = make_bundle("--behave", "hang")
    assert bundle.run("up", "--timeout", "1") == 1
    error = capsys.readouterr().err
    assert "was not ready after 1 s" in error
    assert "fake engine starting" in error
    pid = int(error.split("pid ")[1].split(",")[0])
    assert procs.read_stat(pid) is None
    assert not bundle.up


def test_unhealthy_is_not_ready(make_bundle: Callable[..., Bundle]) -> None:
    assert make_bundle("--behave", "sick").run("up", "--timeout", "1") == 1


def test_busy_port(bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", bundle.port))
        taken.listen()
        assert bundle.run("up") == 1
    error = capsys.readouterr().err
    assert f"port {bundle.port} on 127.0.0.1 is in use" in error
    assert "--port" in error
    assert not bundle.up


def test_two_servers_share_the_machine(bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    bundle.edit(
        lambda data: data["processes"].append(
            {**data["processes"][0], "name": "server-1", "port_offset": 1}
        )
    )
    assert bundle.run("up") == 0
    servers = bundle.state()["servers"]
    assert [server["port"] for server in servers] == [bundle.port, bundle.port + 1]
    os.kill(servers[1]["pid"], signal.SIGKILL)
    time.sleep(0.2)
    capsys.readouterr()
    assert bundle.run("status") == 1
    assert json.loads(capsys.readouterr().out)["state"] == "degraded"
    assert bundle.run("up") == 0  # what was left is replaced
    assert bundle.run("status") == 0


def test_recycled_pid_is_not_killed(bundle: Bundle) -> None:
    bystander = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True
    )
    try:
        stat = procs.read_stat(bystander.pid)
        assert stat is not None
        server = state.Server(
            "server-0", bystander.pid, stat.started - 100, bundle.port, "server.log"
        )
        run = bundle.root / "run"
        state.save(
            run,
            state.State(
                "no-such-mark", state.boot_id(), "m", "127.0.0.1", bundle.port, True, (server,)
            ),
        )
        assert bundle.run("status") == 1
        assert bundle.run("down") == 0
        assert bystander.poll() is None
        state.save(
            run,
            state.State(
                "no-such-mark", "another-boot", "m", "127.0.0.1", bundle.port, True, (server,)
            ),
        )
        assert bundle.run("down") == 0
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_workers_of_a_dead_parent_are_found_by_their_mark(tmp_path: Path) -> None:
    worker = subprocess.Popen(
        ["sleep", "60"], env={**os.environ, procs.MARK: "mark-1"}, start_new_session=True
    )
    try:
        while not Path(
            f"/proc/{worker.pid}/environ"
        ).read_bytes():  # just after exec the kernel shows none yet
            time.sleep(0.01)
        assert procs.terminate([(2**22 + 1, 5)], "mark-1", grace_s=5)[0]
        assert worker.wait(5) == -signal.SIGTERM
        assert not procs.terminate([(2**22 + 1, 5)], "mark-1", grace_s=1)[0]
    finally:
        worker.kill()
        worker.wait()


def test_sigterm_ignored_then_killed() -> None:
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print('x', flush=True); time.sleep(60)"
    )
    stubborn = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True
    )
    assert stubborn.stdout is not None
    stubborn.stdout.readline()
    stat = procs.read_stat(stubborn.pid)
    assert stat is not None
    stubborn.returncode = -9  # procs reaps it; keep Popen from doing so too
    assert procs.terminate([(stubborn.pid, stat.started)], "none", grace_s=0.5)[0]
    assert not procs.alive(stubborn.pid, stat.started)
    stubborn.stdout.close()


def test_damaged_state_kills_nothing(bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    (bundle.root / "run").mkdir()
    (bundle.root / "run" / "state.json").write_text('{"servers": [{"pid": 1}]}')
    assert bundle.run("down") == 1
    assert "damaged" in capsys.readouterr().err
    (bundle.root / "run" / "state.json").unlink()


def test_foreground_stops_on_sigterm(bundle: Bundle) -> None:
    command = bundle.stand_alone()
    shown = subprocess.Popen(
        [*command, "up", "--foreground"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
    )
    assert shown.stdout is not None
    assert "ready" in shown.stdout.readline()
    pid = bundle.state()["servers"][0]["pid"]
    shown.send_signal(signal.SIGTERM)
    shown.communicate(timeout=20)
    assert shown.returncode == 0
    assert procs.read_stat(pid) is None
    assert not bundle.up


def test_foreground_ends_when_a_server_dies(
    make_bundle: Callable[..., Bundle], capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = make_bundle("--behave", "die-later")
    assert bundle.run("up", "--foreground") == 1
    assert "the oven went out" in capsys.readouterr().err
    assert not bundle.up


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_launcher_ended_while_it_waits(
    make_bundle: Callable[..., Bundle], number: signal.Signals
) -> None:
    bundle = make_bundle("--behave", "hang")
    waiting = subprocess.Popen(
        [*bundle.stand_alone(), "up"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert waiting.stderr is not None
    line = next(line for line in waiting.stderr if line.startswith("started server-0"))
    pid = int(line.split("pid ")[1].split(",")[0])
    deadline = time.monotonic() + 5
    while not bundle.up and time.monotonic() < deadline:
        time.sleep(0.02)
    waiting.send_signal(number)
    waiting.communicate(timeout=20)
    if number == signal.SIGTERM:
        assert waiting.returncode == 130
    else:
        assert bundle.run("status") == 1
        assert (
            bundle.run("down") == 0
        )  # the state was written before health, so nothing is left behind
    stat = procs.read_stat(pid)
    assert stat is None or stat.state == "Z"
    assert not bundle.up


def test_one_launcher_at_a_time(bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    with state.exclusive(bundle.root / "run"):
        assert bundle.run("up") == 1
        assert "another launcher" in capsys.readouterr().err
        assert bundle.run("status") == 1
    assert bundle.run("down") == 0
