"""Bundles with a keeper: quick limits, and waiting for what it does."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from recipe_core.launcher import events, procs
from tests.launcher.bundles import Bundle

LIMITS = {
    "crash_budget": 3,
    "window_s": 600,
    "backoff_s": 0.05,
    "backoff_most_s": 0.2,
    "stable_s": 600,
    "hang_s": 4,
    "slow_s": 1.5,
    "drain_s": 60,
    "poll_s": 0.1,
}


def kept(bundle: Bundle, **limits: float) -> Bundle:
    """The bundle with quick limits; ``limits`` differ."""
    bundle.edit(lambda data: data.update(supervision=LIMITS | limits))
    return bundle


def until(reached: Callable[[], object], limit_s: float = 90.0) -> Any:
    """What ``reached`` answers once it is true; on a busy machine that may take long."""
    deadline = time.monotonic() + limit_s
    while not (value := reached()):
        assert time.monotonic() < deadline, reached
        time.sleep(0.03)
    return value


def happened(bundle: Bundle, kind: str, **fields: object) -> list[dict[str, Any]]:
    """Events of a kind with these fields, oldest first."""
    known = [event for event in events.read(bundle.root / "run") if event["event"] == kind]
    return [e for e in known if all(e.get(key) == value for key, value in fields.items())]


def kinds(bundle: Bundle) -> list[str]:
    return [event["event"] for event in events.read(bundle.root / "run")]


def servers(bundle: Bundle) -> dict[str, int]:
    """Pids of the recorded servers, by name."""
    return {server["name"]: server["pid"] for server in bundle.state()["servers"]}


def keeper(bundle: Bundle) -> int:
    return int(bundle.state()["keeper"]["pid"])


def runs(pid: int) -> bool:
    stat = procs.read_stat(pid)
    return stat is not None and stat.state not in "ZX"


def serves(bundle: Bundle, count: int | None = None) -> bool:
    """Whether all is ready, and the count of restarts is at least ``count``."""
    if not bundle.up:
        return False
    current = bundle.state()
    return bool(current["ready"]) and (count is None or current["restarts"] >= count)


def status(bundle: Bundle, capsys: Any) -> dict[str, Any]:
    capsys.readouterr()
    bundle.run("status")
    return dict(json.loads(capsys.readouterr().out))


def page(bundle: Bundle, path: str) -> tuple[int, str]:
    """What the keeper answers."""
    port = bundle.state()["keeper"]["metrics_port"]
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:  # not yet
        return 0, ""


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    os.kill(pid, number)


class Client(threading.Thread):
    """Sends requests one after the other until it is told to stop; counts what it got."""

    def __init__(self, port: int, tokens: int = 5) -> None:
        super().__init__(daemon=True)
        self.url = f"http://127.0.0.1:{port}/v1/completions"
        self.body = json.dumps({"prompt": "a b", "max_tokens": tokens}).encode()
        self.answers, self.errors, self.ends = 0, [], threading.Event()

    def run(self) -> None:
        while not self.ends.is_set():
            try:
                with urllib.request.urlopen(self.url, self.body, timeout=120) as answer:
                    text = answer.read().decode()
                assert "[DONE]" in text
                self.answers += 1
            except Exception as error:
                self.errors.append(repr(error))

    def stop(self) -> None:
        self.ends.set()
        self.join(120)
