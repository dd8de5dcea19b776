"""logs: ends of logs, what follows, and files that are no logs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable

import pytest

from recipe_core.launcher import events
from recipe_core.launcher.logs import Follower, run_logs
from recipe_core.launcher.request import Request
from tests.fixtures.bundles import Bundle, run, usual_signals
from tests.fixtures.patience import PATIENCE


@pytest.fixture
def logged(bundle: Bundle) -> Bundle:
    own = bundle.root / "run"
    own.mkdir()
    (own / "server-0.log").write_text("\n".join(f"line {n}" for n in range(100)) + "\n")
    (own / "keeper.log").write_text("\x1b[32mkept\x1b[0m\r 50 %\rdone\n")
    events.append(own, "died", server="server-0", code=-9, cause="killed", reason=None)
    return bundle


def test_the_ends_of_logs(logged, capsys):
    assert logged.run("logs", "--lines", "3") == 0
    assert capsys.readouterr().out.splitlines() == [
        "keeper | kept",
        "keeper |  50 %",
        "keeper | done",
        *(f"server-0 | line {n}" for n in (97, 98, 99)),
    ]
    for words, shown in (
        (["--lines", "1"], ["line 99"]),
        ([], [f"line {n}" for n in range(80, 100)]),
        (["--lines", "0"], []),
    ):
        assert logged.run("logs", "server-0", *words) == 0
        assert capsys.readouterr().out.splitlines() == shown
    assert logged.run("--json", "logs", "--lines", "1") == 0
    assert json.loads(capsys.readouterr().out) == {
        "logs": {"keeper": ["done"], "server-0": ["line 99"]}
    }
    assert logged.run("logs", "events") == 0
    words = capsys.readouterr().out.split()
    assert words[1:] == ["died", "server=server-0", "code=-9", "cause=killed"]


def test_what_is_no_log(logged, tmp_path, capsys):
    (tmp_path / "secret.log").write_text("secret")
    (logged.root / "run" / "elsewhere.log").symlink_to(tmp_path / "secret.log")
    for name in ("nobody", "../secret", "/etc/passwd", "elsewhere"):
        assert logged.run("logs", name) == 2
        shown = capsys.readouterr()
        assert "keeper, server-0, and events" in shown.err
        assert shown.out == ""
    assert logged.run("logs") == 0
    assert "secret" not in capsys.readouterr().out
    for count in ("-1", "2.5", "all", "²"):
        assert logged.run("logs", "--lines", count) == 2
        assert count in capsys.readouterr().err


def test_nothing_was_started(bundle, capsys):
    assert bundle.run("logs") == 0
    assert capsys.readouterr().out == ""
    assert bundle.run("logs", "server-0") == 2
    assert "none yet" in capsys.readouterr().err


def follow(
    bundle: Bundle,
    capsys: pytest.CaptureFixture[str],
    *changes: Callable[[], object],
    **asked: object,
) -> list[str]:
    """What following shows: before the first change, and after each; then Ctrl-C."""
    shown, left = list[str](), iter(changes)

    def sleep(_: float) -> None:
        shown.append(capsys.readouterr().out)
        change = next(left, None)
        if change is None:
            raise KeyboardInterrupt
        change()

    request = Request(bundle.root, "logs", follow=True, **asked)
    assert run_logs(request, sleep=sleep) == 0
    return shown


def test_following(logged, capsys):
    own = logged.root / "run"
    assert follow(
        logged,
        capsys,
        lambda: None,
        lambda: (own / "server-0.log").write_text("again\n"),  # as a restart does
        lambda: (own / "server-1.log").write_text("new\n"),
        lines=1,
    ) == ["keeper | done\nserver-0 | line 99\n", "", "server-0 | again\n", "server-1 | new\n"]
    before, shown = follow(
        logged,
        capsys,
        lambda: events.append(own, "restart", number=1),
        as_json=True,
        name="events",
        lines=0,
    )
    assert before == ""
    line = json.loads(shown)
    assert line["name"] == "events"
    assert line["line"].endswith(" restart number=1")


class TestFollower:
    def test_lines_as_they_become_whole(self, tmp_path):
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
    def test_a_file_that_begins_again(self, tmp_path, how):
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

    def test_odd_files(self, tmp_path):
        endless, pipe = tmp_path / "a.log", tmp_path / "b.log"
        endless.write_text("x" * 200_000)
        assert [len(line) for line in Follower(endless, from_start=True).lines()] == [200_000]
        os.mkfifo(pipe)
        assert Follower(pipe).lines() == []  # it is not waited for


def test_what_failed_to_start_shows_its_logs_until_interrupted(make_bundle):
    """A shell's job in the background ignores Ctrl-C: the follower must start without that."""
    bundle = make_bundle("--behave", "die")
    command = bundle.stand_alone()
    assert run(bundle, "up", "--strict").returncode == 1
    assert "no weights on this shelf" in run(bundle, "logs").stdout
    with subprocess.Popen(
        [*command, "logs", "server-0", "--follow", "--lines", "1"],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=usual_signals,
    ) as following:
        assert following.stdout is not None
        try:
            assert "no weights on this shelf" in following.stdout.readline()
            with (bundle.root / "run" / "server-0.log").open("a") as log:
                log.write("later\n")
            assert following.stdout.readline() == "later\n"
            following.send_signal(signal.SIGINT)
            assert following.wait(PATIENCE) == 0
        finally:
            following.kill()
