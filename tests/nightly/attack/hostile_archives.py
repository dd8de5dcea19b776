"""Hostile archives: changed bytes, names that lead elsewhere, odd members, bombs."""

from __future__ import annotations

import io
import random
import stat
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

from recipe_core.bundle.write import zipped
from tests.nightly.attack.hostile_bundles import Files, Hostile, Material, lay, mutate, pack, seal


def zip_bytes_changed(r: random.Random, place: Path, material: Material, _: int) -> Hostile:
    files = material.files(r)
    (place / "b.zip").write_bytes(mutate(r, zipped(files)))
    return Hostile(place / "b.zip", files, r.choice((None, material.public)))


def zip_directory_changed(r: random.Random, place: Path, material: Material, _: int) -> Hostile:
    """Changes where the archive describes itself, whose bytes are few among those of contents."""
    files = material.files(r)
    data = zipped(files)
    start = data.rindex(b"PK\x05\x06")
    (directory,) = struct.unpack("<L", data[start + 16 : start + 20])
    (place / "b.zip").write_bytes(data[:directory] + mutate(r, data[directory:]))
    return Hostile(place / "b.zip", files, r.choice((None, material.public)))


def zip_cut(r: random.Random, place: Path, material: Material, _: int) -> Hostile:
    files = material.files(r)
    data = zipped(files)
    at = r.choice((r.randrange(len(data)), len(data) - r.randrange(1, 64)))
    (place / "b.zip").write_bytes(data[:at] if r.random() < 0.8 else data[at:])
    return Hostile(place / "b.zip", files)


def file_changed(r: random.Random, place: Path, material: Material, index: int) -> Hostile:
    """Every file in turn, in a folder or a zip, its digest left as it was."""
    files = material.files(r)
    name = sorted(files)[index % len(files)]
    changed = {**files, name: mutate(r, files[name])}
    key = r.choice((None, material.public))
    path = lay(changed, place / "b") if r.random() < 0.5 else pack(changed, place / "b.zip")
    return Hostile(path, files, key)


_PRINTABLE = r"""
../outside ../../outside a/../../outside launcher/../../outside /tmp/outside /etc/passwd
//outside ./outside a//b a/./b a/ .. . C:outside C:/outside C:\outside \\host\share\x
a\..\..\outside ..\outside a. ~ ~/.bashrc $HOME/x ${HOME}/x `id` $(id) -rf --help a;b a|b a*b
Launch.py LAUNCH.PY launch.py. RECIPE.yaml manifest.json Run/x %2e%2e/x ..%2fx CON NUL aux.txt
COM1 launch.py::$DATA a:b LPT1.json desktop.ini launch.py/x recipe.yaml/y launcher
launcher/main.py/x MANIFEST.json/x SIGNATURE/x .git/config .env run run/state.json run/lock
RUN/state.json run/checkpoints/step-9/x run/../x __pycache__/launch.cpython-311.pyc
launcher/__pycache__/main.cpython-311.pyc json.pyc launcher/main.pyc launcher/_x.so
x.cpython-311-x86_64-linux-gnu.so x.pyd x.pth json.py launcher/json.py sitecustomize.py
usercustomize.py encodings/utf_8.py launcher/__init__.pyw launcher.py trainer.py
launcher/__main__.py os.py
"""
NAMES = (
    *_PRINTABLE.split(),
    *("", "a\0b", "launch.py\0.txt", "\0", "a\nb", "a\rb", "\x1b[31m", "a\tb", " ", "a "),
    *("launch.py ", "lau\u200bnch.py", "\u202eyp.hcnual", "ｌaunch.py", "launch\u0441.py"),
    *("\ufeffx", "e\u0301", "\u2025/x", "\uff0e\uff0e/x", "\u2215etc", "a\u2044b"),
    *("\ud83d\ude00", "x" * 199, "x" * 5000, "/".join("a" * 60), "a/" * 90 + "b"),
)


def name_added(r: random.Random, place: Path, material: Material, index: int) -> Hostile:
    """A hostile name in an archive, mostly listed in a manifest made anew."""
    files = material.files(r)
    name = NAMES[index % len(NAMES)]
    sealed = r.random() < 0.7
    try:
        added = {**files, name: r.choice((b"x", b"import os\n", b""))}
        added = seal(added) if sealed else added
        return Hostile(pack(added, place / "b.zip"), files, sealed=sealed)
    except (ValueError, UnicodeError):  # zipfile writes no such name: put it in by its bytes
        short = {**files, "Q" * max(1, min(len(name.encode(errors="replace")), 60)): b"x"}
        data = zipped(short)
        old = list(short)[-1].encode()
        new = name.encode(errors="replace")[: len(old)].ljust(len(old), b"_")
        (place / "b.zip").write_bytes(data.replace(old, new))
        return Hostile(place / "b.zip", files)


FIELDS = (
    *((4, 2), (6, 2), (8, 2), (10, 2), (12, 4), (16, 4), (20, 4), (24, 4), (34, 2), (36, 2)),
    *((38, 4), (42, 4), (40, 2)),
)
"""Places and sizes of what the directory says of a member."""


def odd_member(r: random.Random, place: Path, material: Material, _: int) -> Hostile:
    """Random attributes, flags, methods, versions, sizes and places of a member."""
    files = material.files(r)
    data = bytearray(zipped(files))
    start = data.rindex(b"PK\x05\x06")
    (at,) = struct.unpack("<L", data[start + 16 : start + 20])
    entries = []
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
    (place / "b.zip").write_bytes(bytes(data))
    return Hostile(place / "b.zip", files, r.choice((None, material.public)))


def bomb(r: random.Random, place: Path, material: Material, index: int) -> Hostile:
    """Archives that are small and would be large."""
    files, path = material.files(r), place / "b.zip"
    more: tuple[Callable[[], dict[str, bytes]], ...] = (
        lambda: {f"z{n}": bytes(4 << 20) for n in range(20)},
        lambda: {"big": bytes(64 << 20)},
        lambda: {"nested.zip": _nested()},
        lambda: {f"f{n}": b"" for n in range(70_000)},
        lambda: {f"d{n}/" + "x" * 60: bytes(100_000) for n in range(400)},
        lambda: {"packed": bytes(3 << 20)},
        lambda: {"packed": bytes(3 << 20)},
    )
    kind = index % (len(more) + 3)
    if kind < len(more):
        method = {5: zipfile.ZIP_LZMA, 6: zipfile.ZIP_BZIP2}.get(kind, zipfile.ZIP_DEFLATED)
        pack(seal({**files, **more[kind]()}), path, method=method)
        return Hostile(path, files, sealed=True)
    if kind == len(more):
        path.write_bytes(bytes(40 << 20) + zipped(files))
        return Hostile(path, files)
    return _lying(r, path, files) if kind == len(more) + 1 else _overlapping(path, files)


def _nested() -> bytes:
    inner = b"\0" * (8 << 20)
    for _ in range(4):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for n in range(4):
                archive.writestr(f"{n}.zip", inner)
        inner = buffer.getvalue()
    return inner


def _lying(r: random.Random, path: Path, files: Files) -> Hostile:
    """A member whose declared size is not that of its content."""
    data = bytearray(zipped(seal({**files, "big": bytes(64 << 20)})))
    for signature, offset in ((b"PK\x01\x02", 24), (b"PK\x03\x04", 22)):
        at = data.rindex(b"big") - (46 if signature == b"PK\x01\x02" else 30)
        at = at if data[at : at + 4] == signature else data.index(b"big") - 30
        data[at + offset : at + offset + 4] = r.choice((0, 1, 100, 4 << 20)).to_bytes(4, "little")
    path.write_bytes(bytes(data))
    return Hostile(path, files, sealed=True)


def _overlapping(path: Path, files: Files) -> Hostile:
    """Many entries of the directory that point at one and the same content."""
    data = zipped(seal({**files, "z" * 10: bytes(3 << 20)}))
    start = data.rindex(b"PK\x05\x06")
    at = data.rindex(b"z" * 10) - 46
    entry = data[at : at + 56]
    more = b"".join(entry.replace(b"z" * 10, b"%010d" % n) for n in range(400))
    (size, offset) = struct.unpack("<LL", data[start + 12 : start + 20])
    (count,) = struct.unpack("<H", data[start + 10 : start + 12])
    end = bytearray(data[start:])
    end[8:12] = struct.pack("<HH", count + 400, count + 400)
    end[12:20] = struct.pack("<LL", size + len(more), offset)
    path.write_bytes(data[:start] + more + bytes(end))
    return Hostile(path, files, sealed=True)
