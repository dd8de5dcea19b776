"""Events: whole lines from several processes, disks that are full, files that are odd."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime

import pytest

from recipe_core.launcher import events
from tests.fixtures.paths import ROOT
from tests.fixtures.patience import PATIENCE


def test_events_are_read_as_they_were_written(tmp_path):
    own = tmp_path / "run"
    events.append(own, "died", server="server-0", code=-9, reason=None)
    events.append(own, "restart", server="server-0", wait_s=float("inf"), path=tmp_path)
    first, second = events.read(own)
    assert (first["event"], first["server"], first["code"]) == ("died", "server-0", -9)
    assert datetime.fromisoformat(first["time"]).utcoffset() is not None
    assert second["wait_s"] is None
    assert second["path"] == str(tmp_path)
    lines = (own / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["died", "restart"]


def test_letters_that_are_no_text_are_kept_apart(tmp_path):
    assert events.read(tmp_path / "run") == []
    events.append(tmp_path, "died", log=os.fsdecode(b"caf\xe9"), end="\n")
    assert events.read(tmp_path)[0]["log"] == os.fsdecode(b"caf\xe9")
    assert (tmp_path / "events.jsonl").read_bytes().count(b"\n") == 1


def test_a_torn_line_loses_only_itself(tmp_path):
    events.append(tmp_path, "start")
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(b'{"time": "2026-01-01T00:00:00Z", "event": "di')
    assert [event["event"] for event in events.read(tmp_path)] == ["start"]
    events.append(tmp_path, "restart")
    assert [event["event"] for event in events.read(tmp_path)] == ["start", "restart"]


def test_what_is_no_event_is_left_out(tmp_path):
    lines = ["[1]", '{"event": 3}', '{"event": "stop"}', "[" * 100_000]
    (tmp_path / "events.jsonl").write_text("\n".join(lines))
    assert events.read(tmp_path) == [{"event": "stop"}]


def test_a_long_file_is_moved_aside_once(tmp_path, monkeypatch):
    monkeypatch.setattr(events, "LIMIT_BYTES", 1000)
    for number in range(100):
        events.append(tmp_path, "restart", number=number)
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert set(sizes) == {"events.jsonl", "events.jsonl.1"}
    assert max(sizes.values()) < 1100
    numbers = [event["number"] for event in events.read(tmp_path)]
    assert numbers == list(range(numbers[0], 100))


WRITER = """
import sys
from pathlib import Path
from recipe_core.launcher import events
events.LIMIT_BYTES = int(sys.argv[3])
for number in range(200):
    events.append(Path(sys.argv[1]), "restart", writer=sys.argv[2], number=number, text="x" * 300)
"""


@pytest.mark.parametrize("limit", [1 << 30, 50_000])
def test_lines_of_several_processes_do_not_mix(tmp_path, limit):
    """Also where they move a file aside: what was moved is not itself written over."""
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [subprocess.Popen([*command, name, str(limit)], cwd=ROOT) for name in "abc"]
    assert [writer.wait(PATIENCE) for writer in writers] == [0, 0, 0]
    written = events.read(tmp_path)
    text = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    # An empty line parts a line from one that seemed cut short while it was being written.
    assert len(written) == len([line for line in text.splitlines() if line])
    assert len(written) * 380 > 50_000
    if limit > len(text):
        for name in "abc":
            assert [e["number"] for e in written if e["writer"] == name] == list(range(200))


def test_a_full_disk_stops_nothing_and_what_it_refused_is_written_later(tmp_path):
    """No file may grow: as on a disk without space, without needing one."""
    text = """
import resource, sys
from pathlib import Path
from recipe_core.launcher import events
own = Path(sys.argv[1])
for most in (0, 30, 5000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, 5000))
    events.append(own, "died", most=most)
    print(len(events.read(own)))
"""
    command = [sys.executable, "-c", text, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "0", "3"]
    assert [event["most"] for event in events.read(tmp_path)] == [0, 30, 5000]


@pytest.mark.parametrize("odd", ["folder", "link", "pipe"])
def test_odd_files_are_left_alone(tmp_path, odd):
    own, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    own.mkdir()
    elsewhere.write_text('{"event": "mine"}\n')
    path = own / "events.jsonl"
    if odd == "folder":
        path.mkdir()
    elif odd == "link":
        path.symlink_to(elsewhere)
    else:
        os.mkfifo(path)
    events.append(own, "died")
    assert events.read(own) == []
    assert elsewhere.read_text() == '{"event": "mine"}\n'
