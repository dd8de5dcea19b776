"""Tells systemd how the launcher is: ready, alive, stopping (sd_notify(3)); else does nothing.

Datagrams to the socket that ``NOTIFY_SOCKET`` names, a path or, after an ``@``, an abstract name.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress

_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


def ready(text: str = "") -> bool:
    """The service has started; whether systemd was told."""
    return _send("READY=1", *_status(text))


def notify_status(text: str) -> bool:
    """What ``systemctl status`` shows."""
    return _send(*_status(text))


def stopping(text: str = "") -> bool:
    return _send("STOPPING=1", *_status(text))


def extend(seconds: float) -> bool:
    """A start or a stop needs this much longer from now on (``EXTEND_TIMEOUT_USEC``)."""
    return _send(f"EXTEND_TIMEOUT_USEC={max(1, int(seconds * 1e6))}")


def watchdog() -> bool:
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
