"""Become the process of a container: ``unshare … python enter.py SPEC``, as its first process.

The new root has the machine's programs read-only, and of all else only what SPEC mounts. There is
no network but the loopback. Where SPEC names a hub, it answers there before the process starts.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

SIOCSIFFLAGS, UP = 0x8914, 0x1
DEVICES = ("null", "zero", "full", "random", "urandom")
CLOSED = "nosuid,nodev"


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def loopback() -> None:
    """Bring up the only device of a new network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", UP))


def bind(source: Path, place: Path, *, readonly: bool) -> None:
    if source.is_dir():
        place.mkdir(parents=True, exist_ok=True)
    else:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    mount("--bind", str(source), str(place))
    if readonly:
        mount("-o", "remount,bind,ro", str(place))


def inside(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


def programs(root: Path, paths: list[str]) -> None:
    """What an image brings, from the machine; a link stays one."""
    for path in paths:
        if Path(path).is_symlink():
            inside(root, path).symlink_to(Path(path).readlink())
        elif Path(path).exists():
            bind(Path(path), inside(root, path), readonly=True)


def devices(root: Path) -> None:
    for name in DEVICES:
        bind(Path("/dev", name), root / "dev" / name, readonly=False)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        (root / "dev" / name).symlink_to(f"/proc/self/fd/{number}")
    (root / "dev" / "fd").symlink_to("/proc/self/fd")


def furnish(root: Path, spec: dict[str, Any]) -> None:
    """All that the process will see."""
    mount("-t", "tmpfs", "-o", f"mode=755,{CLOSED}", "life", str(root))
    programs(root, spec["programs"])
    for name, text in spec["etc"].items():
        file = Path(spec["folder"], f"etc-{name}")
        file.write_text(text)
        mount("--bind", str(file), str(root / "etc" / name))
    (root / "proc").mkdir()
    mount("-t", "proc", "proc", str(root / "proc"))
    bind(Path("/sys"), root / "sys", readonly=True)
    devices(root)
    (root / "tmp").mkdir(exist_ok=True)
    (root / "tmp").chmod(0o1777)
    for each in spec["mounts"]:
        place = inside(root, each["place"])
        if each["source"] is None:  # in memory
            place.mkdir(parents=True, exist_ok=True)
            mount("-t", "tmpfs", "-o", f"mode=1777,{CLOSED}", "memory", str(place))
        else:
            bind(Path(each["source"]), place, readonly=each["readonly"])


def main(path: str) -> None:
    spec = json.loads(Path(path).read_text())
    mount("--make-rprivate", "/")
    loopback()
    socket.sethostname(spec["hostname"])
    if hub := spec["hub"]:
        server = subprocess.Popen([sys.executable, *hub], stdout=subprocess.PIPE)
        assert server.stdout
        server.stdout.readline()  # it listens
    root = Path(spec["root"])
    furnish(root, spec)
    os.chroot(root)
    os.chdir(spec["cwd"])
    if (user := spec["user"]) is not None:
        os.setgroups([spec["group"]])
        os.setgid(user)
        os.setuid(user)
    os.umask(0o022)
    # A first process has no default action for signals: the workload is its child, and ends it.
    started = subprocess.Popen(spec["words"], env=spec["env"])
    raise SystemExit(started.wait())


if __name__ == "__main__":
    main(sys.argv[1])
