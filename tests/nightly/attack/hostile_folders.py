"""Hostile folders: links, pipes, sockets, devices, depth, numbers, sizes, planted files."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from recipe_core.bundle.manifest import MANIFEST
from tests.nightly.attack.hostile_bundles import Draw, Hostile, lay, mutate


@dataclass(frozen=True)
class Scene:
    """A bundle's folder, one of its files, and a file outside."""

    folder: Path
    some: Path
    outside: Path


Change = Callable[[Scene], object]


def _link(at: Scene) -> None:
    at.some.unlink()
    at.some.symlink_to(at.outside)


def _hard_link(at: Scene) -> None:
    at.some.unlink()
    os.link(at.outside, at.some)


def _pipe(at: Scene) -> None:
    at.some.unlink()
    os.mkfifo(at.some)


def _pipes(at: Scene) -> None:
    for name in ("lock", "state.json", "stop"):
        os.mkfifo(at.folder / "run" / name)


def _socket(at: Scene) -> None:
    """Bound below /proc, as the name of a socket is short."""
    parent = os.open(at.folder, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"/proc/self/fd/{parent}/socket")
    os.close(parent)


def _device(at: Scene) -> None:
    """/dev/zero, which never ends; only root may make one."""
    try:
        os.mknod(at.folder / "zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    except PermissionError:
        os.mkfifo(at.folder / "zero")


def _folder_for_file(at: Scene) -> None:
    at.some.unlink()
    at.some.mkdir()


def _deep(at: Scene) -> None:
    deep = at.folder
    for _ in range(300):
        deep = deep / "d"
    deep.mkdir(parents=True)
    (deep / "x").write_bytes(b"x")


def _many(make: str) -> Change:
    def change(at: Scene) -> None:
        for n in range(3000):
            getattr(at.folder / f"n{n}", make)()

    return change


def _sparse(name: str, size: int) -> Change:
    def change(at: Scene) -> None:
        with (at.folder / name).open("ab") as file:
            file.truncate(size)

    return change


def linked_runs(at: Scene) -> None:
    for name in ("lock", "state.json", "server-0.log"):
        (at.folder / "run" / name).symlink_to(at.outside)


def _linked_run(at: Scene) -> None:
    (at.folder / "run").rename(at.folder.parent / "moved")
    (at.folder / "run").symlink_to(at.folder.parent / "moved")


def _added(name: str) -> Change:
    def change(at: Scene) -> None:
        path = at.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")

    return change


def _undecodable(at: Scene) -> None:
    (at.folder / os.fsdecode(b"\xff\xfe")).touch()


planted_code = _added("launcher/__pycache__/main.cpython-311.pyc")
CHANGES: tuple[Change, ...] = (
    *(_link, _hard_link, _pipe, _pipes, _socket, _device, _folder_for_file, _deep),
    *(_many("mkdir"), _many("touch"), linked_runs, _linked_run, _undecodable),
    *(_sparse("sparse", 1 << 40), _sparse("README.md", 1 << 36), _sparse("run/log", 1 << 40)),
    *(_sparse("run/state.json", 1 << 30), _sparse("recipe.yaml", 5 << 20)),
    *(planted_code, _added("launcher/__pycache__")),
    *(_added("json.pyc"), _added("launcher/x.so"), _added("\n\x1b[2J"), _added(".hidden")),
    *(_added("run/state.json"), _added("run/node-0/state.json"), _added("notes/mine.txt")),
    lambda at: (at.folder / "launcher" / "link").symlink_to(at.outside.parent),
    lambda at: (at.folder / "loop").symlink_to(at.folder),
    lambda at: (at.folder / "nowhere").symlink_to(at.folder / "missing"),
    lambda at: os.mkfifo(at.folder / "launcher" / "pipe"),
    lambda at: os.link(at.outside, at.folder / "hard"),
    lambda at: (at.folder / "run" / "node-0").symlink_to(at.outside.parent),
    lambda at: (at.folder / "empty" / "folders").mkdir(parents=True),
    lambda at: (at.folder / "launcher").chmod(0),
    lambda at: at.some.chmod(0),
)


def odd_folder(draw: Draw) -> Hostile:
    """One change of a folder, sometimes two."""
    folder = lay(draw.files, draw.place / "b")
    outside = draw.place.parent / "outside" / "secret"
    some = folder / draw.r.choice(("launch.json", "launcher/main.py", "README.md", MANIFEST))
    CHANGES[draw.index % len(CHANGES)](Scene(folder, some, outside))
    if draw.r.random() < 0.2 and (state := folder / "run" / "state.json").is_file():
        state.write_bytes(mutate(draw.r, b'{"schema_version": 1, "servers": [], "mark": "x"}'))
    return Hostile(folder, draw.files, draw.key())
