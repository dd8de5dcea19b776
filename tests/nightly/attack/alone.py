"""A namespace of processes for the attack: what a fault ends by mistake is none of this machine's.

Launchers that are attacked see, and so can end, only what the attack started; whatever is left
of it ends with the namespace. Processes there can also be given chosen ids.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_OUTSIDE = "RECIPE_ATTACK_OUTSIDE"
"""The variable with the namespace that the attack was started in."""
_WAYS = ((), ("--user", "--map-root-user"))
"""With the rights of root, and as any user where the kernel lets users make namespaces."""
_LAST_PID = Path("/proc/sys/kernel/ns_last_pid")


def _namespace() -> str:
    return str(Path("/proc/self/ns/pid").readlink())


def is_alone() -> bool:
    """Whether this process sees no other than the attack's."""
    sees_itself = str(Path("/proc/self").readlink()) == str(os.getpid())
    return os.environ.get(_OUTSIDE) not in (None, _namespace()) and sees_itself


def go_there(command: Sequence[str]) -> None:
    """Go on as ``command`` in a namespace of its own; returns where that cannot be."""
    if _OUTSIDE in os.environ or shutil.which("unshare") is None:
        return
    for way in _WAYS:
        words = ["unshare", *way, "--pid", "--fork", "--mount-proc", "--kill-child"]
        if subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0:
            os.environ[_OUTSIDE] = _namespace()
            # The first process there collects orphans, which a shell does while it waits.
            os.execvp("unshare", [*words, "sh", "-c", '"$@"; exit $?', "sh", *command])


def set_next_pid(pid: int) -> bool:
    """Have the kernel give the next process this id, if it is free; whether it could be told so."""
    with suppress(OSError):
        if is_alone():
            _LAST_PID.write_text(str(pid - 1))
            return True
    return False
