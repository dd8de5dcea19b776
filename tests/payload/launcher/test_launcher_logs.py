"""Logs and events: their ends, what follows, whole lines of several processes, and odd files."""

import json
import os
import signal
import subprocess
import sys
from datetime import datetime

import pytest

from recipe_core.payload.launcher import events
from recipe_core.payload.launcher.errors import LauncherError
from recipe_core.payload.launcher.logs import Follower, cut_logs, open_log, run_logs
from recipe_core.payload.launcher.request import Request
from tests.fixtures.bundles import run, usual_signals
from tests.fixtures.paths import ROOT
from tests.fixtures.patience import PATIENCE
from tests.fixtures.refusals import refusal


@pytest.fixture
def logged(bundle):
    own = bundle.root / "run"
    own.mkdir()
    (own / "server-0.log").write_text("\n".join(f"line {n}" for n in range(100)) + "\n")
    (own / "keeper.log").write_text("\x1b[32mkept\x1b[0m\r 50 %\rdone\n")
    events.append(own, "died", server="server-0", code=-9, cause="killed", reason=None)
    return bundle


def test_the_ends_of_logs(logged):
    for words, shown in (
        (
            ["--lines", "3"],
            [f"keeper | {word}" for word in ("kept", " 50 %", "done")]
            + [f"server-0 | line {n}" for n in (97, 98, 99)],
        ),
        (["server-0", "--lines", "1"], ["line 99"]),
        (["server-0"], [f"line {n}" for n in range(80, 100)]),
        (["server-0", "--lines", "0"], []),
    ):
        assert logged.says(0, "logs", *words).splitlines() == shown
    assert logged.answers("--json", "logs", "--lines", "1") == {
        "logs": {"keeper": ["done"], "server-0": ["line 99"]}
    }
    words = logged.says(0, "logs", "events").split()
    assert words[1:] == ["died", "server=server-0", "code=-9", "cause=killed"]


def test_a_log_is_cut_at_a_size_while_it_is_written(tmp_path, monkeypatch):
    """And what was in it is kept; what is no plain file is left alone, or refused."""
    log, older = tmp_path / "server-0.log", tmp_path / "server-0.log.1"
    log.write_bytes(b"an earlier start")
    with open_log(log) as output:

        def writes(data):
            output.write(data)
            output.flush()

        assert older.read_bytes() == b"an earlier start"
        follower = Follower(log)
        writes(b"12345\n67890\n")
        assert (cut_logs(tmp_path, limit_bytes=13), follower.lines()) == ([], ["12345", "67890"])
        assert cut_logs(tmp_path, limit_bytes=8) == [log]
        assert (log.read_bytes(), older.read_bytes()) == (b"", b"5\n67890\n")
        writes(b"next\n")
        assert (log.read_bytes(), follower.lines()) == (b"next\n", ["next"])
        read = os.pread
        with monkeypatch.context() as fast:
            fast.setattr(os, "pread", lambda *a: [writes(b"more"), read(*a)][1])
            assert cut_logs(tmp_path, limit_bytes=4) == [log]
        assert older.read_bytes() == b"ext\n"
        writes(b"next\n")
    linked, pipe, folder = (tmp_path / f"{name}.log" for name in ("linked", "pipe", "folder"))
    linked.symlink_to(log)
    os.mkfifo(pipe)
    folder.mkdir()
    assert cut_logs(tmp_path, limit_bytes=1) == [log]
    for path, kind in ((pipe, "a pipe"), (folder, "a folder")):
        refused = refusal(open_log, path, kind=LauncherError)
        assert f"is not a plain file but {kind}" in refused.message
        assert "Remove it" in refused.hint
    with open_log(linked):  # a keeper's restart must not stand still
        assert not linked.is_symlink()
    log.write_bytes(b"old")
    (tmp_path / "backup").hardlink_to(log)
    with open_log(log, anew=False) as output:
        writes(b"new")
    assert ((tmp_path / "backup").read_bytes(), log.read_bytes()) == (b"old", b"new")
    log.unlink()
    (tmp_path / "another.log").touch()
    log.hardlink_to(tmp_path / "another.log")
    with open_log(log) as output:
        writes(b"new")
    assert (tmp_path / "another.log").read_bytes() == b""


def test_what_is_no_log(make_bundle, logged, tmp_path):
    (tmp_path / "secret.log").write_text("secret")
    (logged.root / "run" / "elsewhere.log").symlink_to(tmp_path / "secret.log")
    for name in ("nobody", "../secret", "/etc/passwd", "elsewhere"):
        shown = logged.says(2, "logs", name)
        assert shown.startswith("launch: ")
        assert "keeper, server-0, and events" in shown
    assert "secret" not in logged.says(0, "logs")
    for count in ("-1", "2.5", "all", "²"):
        assert count in logged.says(2, "logs", "--lines", count)
    bundle = make_bundle()
    assert bundle.says(0, "logs") == ""
    assert "none yet" in bundle.says(2, "logs", "server-0")


@pytest.fixture
def follow(logged, capsys):
    """What following shows: before the first change, and after each; then Ctrl-C."""

    def shown_by(*changes, **asked):
        shown, left = [], iter(changes)

        def sleep(_):
            shown.append(capsys.readouterr().out)
            change = next(left, None)
            if change is None:
                raise KeyboardInterrupt
            change()

        assert run_logs(Request(logged.root, "logs", follow=True, **asked), sleep=sleep) == 0
        return shown

    return shown_by


def test_following(logged, follow):
    own = logged.root / "run"
    assert follow(
        lambda: None,
        lambda: (own / "server-0.log").write_text("again\n"),  # as a restart does
        lambda: (own / "server-1.log").write_text("new\n"),
        lines=1,
    ) == ["keeper | done\nserver-0 | line 99\n", "", "server-0 | again\n", "server-1 | new\n"]
    asked = {"as_json": True, "name": "events", "lines": 0}
    before, shown = follow(lambda: events.append(own, "restart", number=1), **asked)
    assert before == ""
    line = json.loads(shown)
    assert line["name"] == "events"
    assert line["line"].endswith(" restart number=1")


def test_lines_are_followed_as_they_become_whole(tmp_path):
    path, pipe = tmp_path / "a.log", tmp_path / "b.log"
    path.write_text("before\n")
    follower = Follower(path)
    assert follower.lines() == []
    with path.open("a") as file:
        file.write("one\ntw")
        file.flush()
        assert follower.lines() == ["one"]
        file.write("o\n")
    assert follower.lines() == ["two"]
    path.write_text("x" * 200_000)  # without an end
    assert [len(line) for line in Follower(path, from_start=True).lines()] == [200_000]
    os.mkfifo(pipe)
    assert Follower(pipe).lines() == []  # it is not waited for


def test_a_file_that_begins_again(tmp_path):
    for how in ("cut short", "replaced", "removed"):
        path = tmp_path / how
        path.write_text("a long line before\n")
        follower = Follower(path)
        if how == "replaced":
            path.rename(tmp_path / "a.log.1")
        if how == "removed":
            path.unlink()
            assert follower.lines() == []
        path.write_text("after\n")
        assert follower.lines() == ["after"]


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
        try:
            assert "no weights on this shelf" in following.stdout.readline()
            with (bundle.root / "run" / "server-0.log").open("a") as log:
                log.write("later\n")
            assert following.stdout.readline() == "later\n"
            following.send_signal(signal.SIGINT)
            assert following.wait(PATIENCE) == 0
        finally:
            following.kill()


# Events


def test_events_are_read_as_they_were_written(tmp_path):
    own = tmp_path / "run"
    assert events.read_events(own) == []
    events.append(own, "died", server="server-0", code=-9, reason=None)
    events.append(own, "restart", wait_s=float("inf"), path=tmp_path)
    # Letters that are no text are kept apart.
    events.append(own, "stop", log=os.fsdecode(b"caf\xe9"), end="\n")
    first, second, third = events.read_events(own)
    assert (first["event"], first["server"], first["code"]) == ("died", "server-0", -9)
    assert datetime.fromisoformat(first["time"]).utcoffset() is not None
    assert (second["wait_s"], second["path"]) == (None, str(tmp_path))
    assert third["log"] == os.fsdecode(b"caf\xe9")
    lines = (own / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["died", "restart", "stop"]


def test_a_torn_line_loses_only_itself_and_what_is_no_event_is_left_out(tmp_path):
    def kinds():
        return [event["event"] for event in events.read_events(tmp_path)]

    events.append(tmp_path, "start")
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(b'{"time": "2026-01-01T00:00:00Z", "event": "di')
    assert kinds() == ["start"]
    events.append(tmp_path, "restart")
    assert kinds() == ["start", "restart"]
    lines = ["[1]", '{"event": 3}', '{"event": "stop"}', "[" * 100_000]
    (tmp_path / "events.jsonl").write_text("\n".join(lines))
    assert events.read_events(tmp_path) == [{"event": "stop"}]


def test_a_long_file_is_moved_aside_once(tmp_path, monkeypatch):
    monkeypatch.setattr(events, "LIMIT_BYTES", 1000)
    for number in range(100):
        events.append(tmp_path, "restart", number=number)
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert set(sizes) == {"events.jsonl", "events.jsonl.1"}
    assert max(sizes.values()) < 1100
    numbers = [event["number"] for event in events.read_events(tmp_path)]
    assert numbers == list(range(numbers[0], 100))


def appending(text, *words):
    """Another process that appends events."""
    program = f"import resource, sys\nfrom recipe_core.payload.launcher import events\n{text}"
    command = [sys.executable, "-c", program, *map(str, words)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("limit", [1 << 30, 50_000])
def test_lines_of_several_processes_do_not_mix(tmp_path, limit):
    """Also where they move a file aside: what was moved is not itself written over."""
    writes = """
from pathlib import Path
events.LIMIT_BYTES = int(sys.argv[3])
for number in range(200):
    events.append(Path(sys.argv[1]), "restart", writer=sys.argv[2], number=number, text="x" * 300)
"""
    writers = [appending(writes, tmp_path, name, limit) for name in "abc"]
    for writer in writers:
        writer.communicate(timeout=PATIENCE)
        assert writer.returncode == 0
    written = events.read_events(tmp_path)
    text = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    # An empty line parts a line from one that seemed cut short while it was being written.
    assert len(written) == len([line for line in text.splitlines() if line])
    assert len(written) * 380 > 50_000
    if limit > len(text):
        for name in "abc":
            assert [e["number"] for e in written if e["writer"] == name] == list(range(200))


def test_a_full_disk_stops_nothing_and_what_it_refused_is_written_later(tmp_path):
    """No file may grow: as on a disk without space, without needing one."""
    writes = """
from pathlib import Path
own = Path(sys.argv[1])
for most in (0, 30, 5000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, 5000))
    events.append(own, "died", most=most)
    print(len(events.read_events(own)))
"""
    assert appending(writes, tmp_path).communicate()[0].split() == ["0", "0", "3"]
    assert [event["most"] for event in events.read_events(tmp_path)] == [0, 30, 5000]


@pytest.mark.parametrize("odd", ["folder", "link", "pipe"])
def test_odd_files_are_left_alone(tmp_path, odd):
    elsewhere, path = tmp_path / "elsewhere", tmp_path / "events.jsonl"
    elsewhere.write_text('{"event": "mine"}\n')
    if odd == "folder":
        path.mkdir()
    elif odd == "link":
        path.symlink_to(elsewhere)
    else:
        os.mkfifo(path)
    events.append(tmp_path, "died")
    assert events.read_events(tmp_path) == []
    assert elsewhere.read_text() == '{"event": "mine"}\n'
