"""logs: ends of logs, what follows, and files that are no logs."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from recipe_core.launcher import events
from recipe_core.launcher.logs import Follower
from tests.fixtures.bundles import Bundle, run


@pytest.fixture
def logged(bundle: Bundle) -> Bundle:
    own = bundle.root / "run"
    own.mkdir()
    (own / "server-0.log").write_text("\n".join(f"line {n}" for n in range(100)) + "\n")
    (own / "keeper.log").write_text("\x1b[32mkept\x1b[0m\r 50 %\rdone\n")
    events.append(own, "died", server="server-0", code=-9, cause="killed", reason=None)
    return bundle


def test_the_end_of_every_log(logged: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    assert logged.run("logs", "--lines", "3") == 0
    assert capsys.readouterr().out.splitlines() == [
        "keeper | kept",
        "keeper |  50 %",
        "keeper | done",
        *(f"server-0 | line {n}" for n in (97, 98, 99)),
    ]


def test_one_log(logged: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    assert logged.run("logs", "server-0", "--lines", "1") == 0
    assert capsys.readouterr().out == "line 99\n"
    assert logged.run("logs", "server-0") == 0
    assert len(capsys.readouterr().out.splitlines()) == 20
    assert logged.run("logs", "server-0", "--lines", "0") == 0
    assert capsys.readouterr().out == ""


def test_logs_as_json(logged: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    assert logged.run("--json", "logs", "--lines", "1") == 0
    assert json.loads(capsys.readouterr().out) == {
        "logs": {"keeper": ["done"], "server-0": ["line 99"]}
    }


def test_events_as_a_log(logged: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    assert logged.run("logs", "events") == 0
    words = capsys.readouterr().out.split()
    assert words[1:] == ["died", "server=server-0", "code=-9", "cause=killed"]


@pytest.mark.parametrize("name", ["nobody", "../secret", "/etc/passwd", "elsewhere"])
def test_what_is_no_log(
    logged: Bundle, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "secret.log").write_text("secret")
    (logged.root / "run" / "elsewhere.log").symlink_to(tmp_path / "secret.log")
    assert logged.run("logs", name) == 2
    shown = capsys.readouterr()
    assert "There are: keeper, server-0, and events." in shown.err
    assert shown.out == ""
    assert logged.run("logs") == 0
    assert "secret" not in capsys.readouterr().out


@pytest.mark.parametrize("count", ["-1", "2.5", "all", "²"])
def test_numbers_of_lines(logged: Bundle, count: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert logged.run("logs", "--lines", count) == 2
    assert "not a whole number" in capsys.readouterr().err


def test_nothing_was_started(bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    assert bundle.run("logs") == 0
    assert capsys.readouterr().out == ""
    assert bundle.run("logs", "server-0") == 2
    assert "none yet" in capsys.readouterr().err


def test_following(logged: Bundle) -> None:
    command = [*logged.stand_alone(), "logs", "--follow", "--lines", "1"]
    own = logged.root / "run"
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        try:
            lines = [following.stdout.readline() for _ in range(2)]
            assert lines == ["keeper | done\n", "server-0 | line 99\n"]
            (own / "server-0.log").write_text("again\n")  # as a restart does
            assert following.stdout.readline() == "server-0 | again\n"
            (own / "server-1.log").write_text("new\n")
            assert following.stdout.readline() == "server-1 | new\n"
            following.send_signal(signal.SIGINT)
            assert following.wait(60) == 0
        finally:
            following.kill()


def test_following_events_as_json(logged: Bundle) -> None:
    command = [*logged.stand_alone(), "--json", "logs", "events", "--follow", "--lines", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        try:
            shown = _first_line(following, logged.root / "run")
            assert shown["name"] == "events"
            assert " restart number=" in shown["line"]
        finally:
            following.kill()


def _first_line(following: subprocess.Popen[str], own: Path) -> dict[str, str]:
    """The next line, with events written until there is one."""
    assert following.stdout is not None
    number = 0
    while not select.select([following.stdout], [], [], 0.1)[0]:
        number += 1
        events.append(own, "restart", number=number)
    return dict(json.loads(following.stdout.readline()))


class TestFollower:
    def test_lines_as_they_become_whole(self, tmp_path: Path) -> None:
        path = tmp_path / "a.log"
        path.write_text("before\n")
        follower = Follower(path)
        assert follower.lines() == []
        with path.open("a") as file:
            file.write("one\ntw")
            file.flush()
            assert follower.lines() == ["one"]
            file.write("o\n")
        assert follower.lines() == ["two"]

    @pytest.mark.parametrize("how", ["cut short", "replaced", "removed"])
    def test_a_file_that_begins_again(self, tmp_path: Path, how: str) -> None:
        path = tmp_path / "a.log"
        path.write_text("a long line before\n")
        follower = Follower(path)
        if how == "replaced":
            path.rename(tmp_path / "a.log.1")
        if how == "removed":
            path.unlink()
            assert follower.lines() == []
        path.write_text("after\n")
        assert follower.lines() == ["after"]

    def test_a_line_without_end(self, tmp_path: Path) -> None:
        path = tmp_path / "a.log"
        path.write_text("x" * 200_000)
        assert [len(line) for line in Follower(path, from_start=True).lines()] == [200_000]

    def test_pipes_are_not_waited_for(self, tmp_path: Path) -> None:
        path = tmp_path / "a.log"
        os.mkfifo(path)
        assert Follower(path).lines() == []


def test_what_failed_to_start_shows_its_logs(make_bundle: Callable[..., Bundle]) -> None:
    bundle = make_bundle("--behave", "die")
    bundle.stand_alone()
    assert run(bundle, "up", "--strict").returncode == 1
    done = run(bundle, "logs")
    assert "no weights on this shelf" in done.stdout
