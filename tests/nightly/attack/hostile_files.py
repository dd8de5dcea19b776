"""Hostile archives and folders: changed bytes, names, members, bombs, links, planted files."""

from __future__ import annotations

import io
import os
import socket
import stat
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from recipe_core.bundle.signing import MANIFEST
from recipe_core.bundle.write import zip_bundle
from tests.nightly.attack.hostile_bundles import NAMES, Draw, Files, Hostile, lay, mutate, seal


def zip_bytes_changed(draw: Draw) -> Hostile:
    return draw.zip(mutate(draw.r, zip_bundle(draw.files)), draw.key())


def _directory(data: bytes | bytearray) -> int:
    """Where an archive describes itself."""
    start = data.rindex(b"PK\x05\x06")
    return int.from_bytes(data[start + 16 : start + 20], "little")


def zip_directory_changed(draw: Draw) -> Hostile:
    """Changes where the archive describes itself, whose bytes are few among those of contents."""
    data = zip_bundle(draw.files)
    at = _directory(data)
    return draw.zip(data[:at] + mutate(draw.r, data[at:]), draw.key())


def zip_cut(draw: Draw) -> Hostile:
    data, r = zip_bundle(draw.files), draw.r
    at = r.choice((r.randrange(len(data)), len(data) - r.randrange(1, 64)))
    return draw.zip(data[:at] if r.random() < 0.8 else data[at:])


def file_changed(draw: Draw) -> Hostile:
    """Every file in turn, in a folder or a zip, its digest left as it was."""
    name = sorted(draw.files)[draw.index % len(draw.files)]
    return draw.either({**draw.files, name: mutate(draw.r, draw.files[name])}, draw.key())


def name_added(draw: Draw) -> Hostile:
    """A hostile name in an archive, mostly listed in a manifest made anew."""
    name = NAMES[draw.index % len(NAMES)]
    sealed = draw.r.random() < 0.7
    try:
        added = {**draw.files, name: draw.r.choice((b"x", b"import os\n", b""))}
        return draw.packed(seal(added) if sealed else added, sealed=sealed)
    except (ValueError, UnicodeError):  # zipfile writes no such name: put it in by its bytes
        wanted = name.encode(errors="replace")
        old = b"Q" * max(1, min(len(wanted), 60))
        data = zip_bundle({**draw.files, old.decode(): b"x"})
        return draw.zip(data.replace(old, wanted[: len(old)].ljust(len(old), b"_")))


FIELDS = (
    *((4, 2), (6, 2), (8, 2), (10, 2), (12, 4), (16, 4), (20, 4), (24, 4), (34, 2), (36, 2)),
    *((38, 4), (42, 4), (40, 2)),
)
"""Places and sizes of what the directory says of a member."""


def odd_member(draw: Draw) -> Hostile:
    """Random attributes, flags, methods, versions, sizes and places of a member."""
    r, data = draw.r, bytearray(zip_bundle(draw.files))
    at, entries = _directory(data), []
    while data[at : at + 4] == b"PK\x01\x02":
        entries.append(at)
        lengths = struct.unpack("<HHH", data[at + 28 : at + 34])
        at += 46 + sum(lengths)
    entry = r.choice(entries)
    offset, size = r.choice(FIELDS)
    kinds = (stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFSOCK, stat.S_IFDIR)
    number = r.choice((0, 1, 0xFFFFFFFF, 0x7FFFFFFF, r.getrandbits(32), r.choice(kinds) << 16))
    data[entry + offset : entry + offset + size] = number.to_bytes(4, "little")[:size]
    if offset == 40:
        data[entry + 38 : entry + 42] = ((r.choice(kinds) | 0o777) << 16).to_bytes(4, "little")
    return draw.zip(bytes(data), draw.key())


def bomb(draw: Draw) -> Hostile:
    """Archives that are small and would be large."""
    more: tuple[Callable[[], Files], ...] = (
        lambda: {f"z{n}": bytes(4 << 20) for n in range(20)},
        lambda: {"big": bytes(64 << 20)},
        lambda: {"nested.zip": _nested()},
        lambda: {f"f{n}": b"" for n in range(70_000)},
        lambda: {f"d{n}/" + "x" * 60: bytes(100_000) for n in range(400)},
        lambda: {"packed": bytes(3 << 20)},
        lambda: {"packed": bytes(3 << 20)},
    )
    kind = draw.index % (len(more) + 3)
    if kind < len(more):
        method = {5: zipfile.ZIP_LZMA, 6: zipfile.ZIP_BZIP2}.get(kind, zipfile.ZIP_DEFLATED)
        return draw.packed(seal({**draw.files, **more[kind]()}), method=method)
    if kind == len(more):
        return draw.zip(bytes(40 << 20) + zip_bundle(draw.files))
    lies = _lying if kind == len(more) + 1 else _overlapping
    return draw.zip(lies(draw), sealed=True)


def _nested() -> bytes:
    inner = b"\0" * (8 << 20)
    for _ in range(4):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for n in range(4):
                archive.writestr(f"{n}.zip", inner)
        inner = buffer.getvalue()
    return inner


def _lying(draw: Draw) -> bytes:
    """A member whose declared size is not that of its content."""
    data = bytearray(zip_bundle(seal({**draw.files, "big": bytes(64 << 20)})))
    for signature, offset in ((b"PK\x01\x02", 24), (b"PK\x03\x04", 22)):
        at = data.rindex(b"big") - (46 if signature == b"PK\x01\x02" else 30)
        at = at if data[at : at + 4] == signature else data.index(b"big") - 30
        size = draw.r.choice((0, 1, 100, 4 << 20))
        data[at + offset : at + offset + 4] = size.to_bytes(4, "little")
    return bytes(data)


def _overlapping(draw: Draw) -> bytes:
    """Many entries of the directory that point at one and the same content."""
    data = zip_bundle(seal({**draw.files, "z" * 10: bytes(3 << 20)}))
    start = data.rindex(b"PK\x05\x06")
    at = data.rindex(b"z" * 10) - 46
    entry = data[at : at + 56]
    more = b"".join(entry.replace(b"z" * 10, b"%010d" % n) for n in range(400))
    count, size, offset = struct.unpack("<HLL", data[start + 10 : start + 20])
    end = bytearray(data[start:])
    end[8:20] = struct.pack("<HHLL", count + 400, count + 400, size + len(more), offset)
    return data[:start] + more + bytes(end)


@dataclass(frozen=True)
class Scene:
    """A bundle's folder, one of its files, and a file outside."""

    folder: Path
    some: Path
    outside: Path


Change = Callable[[Scene], object]


def _in_place(make: Callable[[Path, Path], object]) -> Change:
    def change(at: Scene) -> None:
        at.some.unlink()
        make(at.some, at.outside)

    return change


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


def _linked_runs(at: Scene) -> None:
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


CHANGES: tuple[Change, ...] = (
    *(
        _in_place(Path.symlink_to),
        _in_place(Path.hardlink_to),
        _in_place(lambda some, _: some.mkdir()),
    ),
    *(_in_place(lambda some, _: os.mkfifo(some)), _pipes, _socket, _device, _deep),
    *(_many("mkdir"), _many("touch"), _linked_runs, _linked_run, _undecodable),
    *(_sparse("sparse", 1 << 40), _sparse("README.md", 1 << 36), _sparse("run/log", 1 << 40)),
    *(_sparse("run/state.json", 1 << 30), _sparse("recipe.yaml", 5 << 20)),
    *(_added("launcher/__pycache__/main.cpython-311.pyc"), _added("launcher/__pycache__")),
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
