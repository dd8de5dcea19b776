"""The world outside of supervision: time, chance, processes, answers and devices.

Everything that looks, waits, starts or ends takes a ``World``; ``HERE`` is this machine.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from .machine import Machine, detect_machine
from .procs import CLOCK, Clock, Processes
from .procs import HERE as PROCESSES

_ESTABLISHED = "01"
# Status and first bytes of what a server answers, once it does.
Answer = Future[tuple[int | None, bytes]]


class World:
    """The outside as it is, with a clock, processes and chance that may be others."""

    def __init__(
        self,
        clock: Clock = CLOCK,
        processes: Processes = PROCESSES,
        chance: random.Random | None = None,
    ) -> None:
        self.clock, self.processes = clock, processes
        self.chance = chance or random.Random()  # noqa: S311 - spreads restarts, hides nothing

    def ask(
        self,
        host: str,
        port: int,
        path: str,
        *,
        method: str = "GET",
        body: dict[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float,
        most_bytes: int = 0,
    ) -> tuple[int | None, bytes]:
        """Status and first bytes of what a server answers; None where it does not.

        ``headers``: such as those of `client.api_headers`.
        """
        connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
        sent = {**({} if body is None else {"Content-Type": "application/json"}), **(headers or {})}
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, body=text, headers=sent)
            with connection.getresponse() as answer:
                return answer.status, answer.read(most_bytes)
        except (OSError, http.client.HTTPException):
            return None, b""
        finally:
            connection.close()

    def ask_later(self, host: str, port: int, path: str, **sent: Any) -> Answer:
        """As ``ask``, of what may never answer: nobody has to wait, also not at the end."""
        answer: Answer = Future()

        def wait() -> None:
            try:
                answer.set_result(self.ask(host, port, path, **sent))
            except Exception as error:
                answer.set_exception(error)

        threading.Thread(target=wait, name="ask", daemon=True).start()
        return answer

    def detect(self) -> Machine:
        return detect_machine()

    def threads(self, count: int, name: str) -> Executor:
        return ThreadPoolExecutor(count, thread_name_prefix=name)

    def oom_kills(self, pids: Iterable[int]) -> dict[str, int]:
        """The kernel's counts of kills for want of memory: of the machine, and of pids' groups."""
        counts = {}
        machine = _counter(Path("/proc/vmstat"), "oom_kill")
        if machine is not None:
            counts["machine"] = machine
        for place in {_control_group(pid) for pid in pids} - {None}:
            kills = _counter(Path(f"/sys/fs/cgroup{place}/memory.events"), "oom_kill")
            if kills is not None:
                counts[str(place)] = kills
        return counts

    def connections(self, ports: Iterable[int]) -> int:
        """Established connections to ports of this machine: what still talks to a server.

        For engines that do not publish how many requests run.
        """
        hex_ports = {f"{port:04X}" for port in ports}
        count = 0
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            with suppress(OSError):
                for line in Path(table).read_text(encoding="utf-8").splitlines()[1:]:
                    words = line.split()
                    local, state = words[1].rpartition(":")[2], words[3]
                    count += local in hex_ports and state == _ESTABLISHED
        return count


def _control_group(pid: int) -> str | None:
    """The control group (v2) of a process."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8").splitlines():
            if line.startswith("0::"):
                return line[3:].rstrip("/")
    return None


def _counter(path: Path, name: str) -> int | None:
    with suppress(OSError, ValueError):
        for line in path.read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    return None


HERE = World()
