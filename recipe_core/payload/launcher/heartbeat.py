"""A keeper's signs of life: its lock, when it last touched it, and what systemd is told.

systemd is told (sd_notify(3)) by datagrams to the socket that ``NOTIFY_SOCKET`` names, a path or,
after an ``@``, an abstract name.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import LauncherError
from .files import make_run, open_own
from .limits import Supervision
from .plan import LaunchPlan
from .procs import Clock
from .state import Keeper
from .world import HERE, World

_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


def notify_ready(text: str = "") -> bool:
    """The service has started; whether systemd was told."""
    return _send("READY=1", *_status(text))


def notify_status(text: str) -> bool:
    """Return what ``systemctl status`` shows."""
    return _send(*_status(text))


def notify_stopping(text: str = "") -> bool:
    return _send("STOPPING=1", *_status(text))


def notify_watchdog() -> bool:
    """A sign of life; without a watchdog for this process nothing is sent."""
    return watchdog_period() is not None and _send("WATCHDOG=1")


def watchdog_period() -> float | None:
    """Seconds between signs of life, half of ``WATCHDOG_USEC`` as its manual asks.

    None where there is no watchdog, or one for another process.
    """
    owner, period = os.environ.get("WATCHDOG_PID"), os.environ.get("WATCHDOG_USEC", "")
    if owner and owner != str(os.getpid()):
        return None
    return int(period) / 2e6 if period.isdigit() and int(period) else None


def drop_notify_variables(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in _VARIABLES}


def _status(text: str) -> tuple[str, ...]:
    line = " ".join(text.split())
    return (f"STATUS={line}",) if line else ()


def _send(*lines: str) -> bool:
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not lines or address[:1] not in ("/", "@"):
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
        sending.settimeout(1.0)  # whoever listens may be stopped
        sending.connect(address)
        sending.sendall("\n".join(lines).encode("utf-8", errors="replace"))
        return True
    return False


NAME = "keeper.lock"
# However soon a hang counts, a look at many servers and at the machine takes seconds.
_LEAST_S = 20.0
# What seems silent is watched for so long: a clock may have been set, or the machine slept.
_CONFIRMED_S = 3.0


def silence_s(limits: Supervision) -> float:
    """Return how long a keeper may give no sign before it counts as dead, in seconds."""
    return 3 * limits.poll_s + max(limits.hang_s, _LEAST_S)


class Heartbeat:
    """The lock of the one keeper of a bundle, touched whenever the keeper waits."""

    def __init__(self, plan: LaunchPlan, limits: Supervision, clock: Clock) -> None:
        self._path, self._root, self._clock = plan.own / NAME, plan.root, clock
        self._bundle = plan.root.stat()
        self._every_s = min(limits.poll_s, watchdog_period() or limits.poll_s)
        self._beat_at = -float("inf")
        self._descriptor = self._locked()

    def _locked(self) -> int:
        make_run(self._path.parent)
        descriptor = open_own(self._path, os.O_WRONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise LauncherError(
                "another keeper supervises this bundle.", hint="See: python launch.py status"
            ) from None
        return descriptor

    def beat(self) -> None:
        """Give a sign of life, to systemd too, unless there was one a moment ago."""
        now = self._clock.monotonic()
        if now - self._beat_at >= self._every_s:
            self._beat_at = now
            notify_watchdog()
            at = self._clock.now().timestamp()
            with suppress(OSError):  # a disk that became read-only
                os.utime(self._descriptor, (at, at))

    def follow(
        self,
        save: Callable[[], object],
        stop: Callable[[], object],
        say: Callable[[str], object],
    ) -> str:
        """Say why the keeper has to end, as its bundle moved or went; nothing where it stays.

        A ``run/`` that alone was removed is made anew, and the state with it. Of a removed bundle
        everything is stopped: no command would find it any more.

        Raises:
            LauncherError: where the state cannot be written, or a process does not end.
        """
        if self._is_at(self._path, os.fstat(self._descriptor)):
            return ""
        if self._is_at(self._root, self._bundle):
            try:
                descriptor = self._locked()
            except LauncherError:
                return ""  # something else lies there: the lock that it has is as good
            os.close(self._descriptor)
            self._descriptor = descriptor
            save()
            say(f"{self._path.parent} was removed: made it anew")
            return ""
        if (place := self.moved_to()) is not None:
            say(f"the bundle was moved: `up` starts a keeper for it there ({place})")
            return "the bundle was moved"
        say("the bundle was removed: stopping what it started")
        stop()
        return "the bundle was removed"

    def moved_to(self) -> Path | None:
        """Return where the run folder is now; None where it was removed."""
        path = Path(f"/proc/self/fd/{self._descriptor}").readlink()
        return path.parent if self._is_at(path, os.fstat(self._descriptor)) else None

    @staticmethod
    def _is_at(path: Path, status: os.stat_result) -> bool:
        try:
            return os.path.samestat(path.stat(), status)
        except OSError:
            return False

    def close(self) -> None:
        os.close(self._descriptor)


@contextmanager
def only_keeper(plan: LaunchPlan, limits: Supervision, clock: Clock) -> Iterator[Heartbeat]:
    """Be the one keeper of a bundle, whose every wait is a sign of life.

    The kernel forgets the lock when this process ends.

    Raises:
        LauncherError: while another keeper lives.
    """
    heartbeat = Heartbeat(plan, limits, clock)
    before, clock.waits = clock.waits, heartbeat.beat
    try:
        heartbeat.beat()
        yield heartbeat
    finally:
        clock.waits = before
        heartbeat.close()


def is_keeper_silent(node_folder: Path, keeper: Keeper, *, world: World = HERE) -> bool:
    """Return whether a keeper that runs gives no sign of life: it is stopped, or it hangs."""
    stat = world.processes.read_stat(keeper.pid)
    if stat is not None and stat.state in "Tt":
        return True
    first = _touched(node_folder)
    if keeper.silence_s is None or first is None:
        return False
    if abs(world.clock.now().timestamp() - first) <= keeper.silence_s:
        return False
    end = world.clock.monotonic() + _CONFIRMED_S
    while world.clock.monotonic() < end:
        if _touched(node_folder) != first:
            return False
        world.clock.sleep(0.1)
    return True


def _touched(node_folder: Path) -> float | None:
    try:
        return (node_folder / NAME).stat().st_mtime
    except OSError:
        return None
