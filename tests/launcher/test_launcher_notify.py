"""sd_notify(3): datagrams to a socket by path or abstract name; nothing without one."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from recipe_core.launcher import notify


@pytest.fixture(params=["path", "abstract"])
def systemd(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[socket.socket]:
    name = f"recipe-{uuid.uuid4().hex}"
    shown, bound = f"@{name}", f"\0{name}"
    if request.param == "path":
        shown = bound = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiving:
        receiving.bind(bound)
        receiving.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", shown)
        monkeypatch.delenv("WATCHDOG_PID", raising=False)
        monkeypatch.delenv("WATCHDOG_USEC", raising=False)
        yield receiving


def test_every_message(systemd: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    assert notify.ready("serves m-8b")
    assert systemd.recv(4096) == b"READY=1\nSTATUS=serves m-8b"
    assert notify.status("restarts server-0\nREADY=1")  # no line of the text becomes a word of ours
    assert systemd.recv(4096) == b"STATUS=restarts server-0 READY=1"
    assert notify.extend(2.5)
    assert systemd.recv(4096) == b"EXTEND_TIMEOUT_USEC=2500000"
    assert notify.stopping()
    assert systemd.recv(4096) == b"STOPPING=1"
    monkeypatch.setenv("WATCHDOG_USEC", "30000000")
    assert notify.watchdog()
    assert systemd.recv(4096) == b"WATCHDOG=1"
    assert not notify.status("  ")


def test_the_watchdog_is_for_one_process(monkeypatch):
    own = str(os.getpid())
    for period, owner, seconds in (
        ("30000000", None, 15.0),
        ("30000000", own, 15.0),
        ("30000000", "1", None),
        *((period, None, None) for period in ("", "0", "soon", "-5")),
    ):
        monkeypatch.setenv("WATCHDOG_USEC", period)
        monkeypatch.delenv("WATCHDOG_PID", raising=False)
        if owner:
            monkeypatch.setenv("WATCHDOG_PID", owner)
        assert notify.watchdog_period() == seconds


def test_without_systemd_nothing_happens(monkeypatch):
    monkeypatch.setenv("WATCHDOG_USEC", "1000000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert (notify.ready(), notify.watchdog()) == (False, False)
    for address in ("", "relative", "/no/such/socket", "@no-such-name"):
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        assert (notify.ready(), notify.watchdog()) == (False, False)


def test_children_do_not_speak_for_the_service():
    names = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
    assert notify.without({"PATH": "/", **dict.fromkeys(names, "1")}) == {"PATH": "/"}
