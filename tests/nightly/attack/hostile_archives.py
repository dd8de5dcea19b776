"""Hostile archives: changed bytes, names that lead elsewhere, odd members, bombs."""

from __future__ import annotations

import io
import stat
import struct
import zipfile
from collections.abc import Callable

from recipe_core.bundle.write import zipped
from tests.nightly.attack.hostile_bundles import Draw, Files, Hostile, mutate, seal


def zip_bytes_changed(draw: Draw) -> Hostile:
    return draw.zip(mutate(draw.r, zipped(draw.files)), draw.key())


def _directory(data: bytes | bytearray) -> int:
    """Where an archive describes itself."""
    start = data.rindex(b"PK\x05\x06")
    return int.from_bytes(data[start + 16 : start + 20], "little")


def zip_directory_changed(draw: Draw) -> Hostile:
    """Changes where the archive describes itself, whose bytes are few among those of contents."""
    data = zipped(draw.files)
    at = _directory(data)
    return draw.zip(data[:at] + mutate(draw.r, data[at:]), draw.key())


def zip_cut(draw: Draw) -> Hostile:
    data, r = zipped(draw.files), draw.r
    at = r.choice((r.randrange(len(data)), len(data) - r.randrange(1, 64)))
    return draw.zip(data[:at] if r.random() < 0.8 else data[at:])


def file_changed(draw: Draw) -> Hostile:
    """Every file in turn, in a folder or a zip, its digest left as it was."""
    name = sorted(draw.files)[draw.index % len(draw.files)]
    return draw.either({**draw.files, name: mutate(draw.r, draw.files[name])}, draw.key())


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
        data = zipped({**draw.files, old.decode(): b"x"})
        return draw.zip(data.replace(old, wanted[: len(old)].ljust(len(old), b"_")))


FIELDS = (
    *((4, 2), (6, 2), (8, 2), (10, 2), (12, 4), (16, 4), (20, 4), (24, 4), (34, 2), (36, 2)),
    *((38, 4), (42, 4), (40, 2)),
)
"""Places and sizes of what the directory says of a member."""


def odd_member(draw: Draw) -> Hostile:
    """Random attributes, flags, methods, versions, sizes and places of a member."""
    r, data = draw.r, bytearray(zipped(draw.files))
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
        return draw.zip(bytes(40 << 20) + zipped(draw.files))
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
    data = bytearray(zipped(seal({**draw.files, "big": bytes(64 << 20)})))
    for signature, offset in ((b"PK\x01\x02", 24), (b"PK\x03\x04", 22)):
        at = data.rindex(b"big") - (46 if signature == b"PK\x01\x02" else 30)
        at = at if data[at : at + 4] == signature else data.index(b"big") - 30
        size = draw.r.choice((0, 1, 100, 4 << 20))
        data[at + offset : at + offset + 4] = size.to_bytes(4, "little")
    return bytes(data)


def _overlapping(draw: Draw) -> bytes:
    """Many entries of the directory that point at one and the same content."""
    data = zipped(seal({**draw.files, "z" * 10: bytes(3 << 20)}))
    start = data.rindex(b"PK\x05\x06")
    at = data.rindex(b"z" * 10) - 46
    entry = data[at : at + 56]
    more = b"".join(entry.replace(b"z" * 10, b"%010d" % n) for n in range(400))
    count, size, offset = struct.unpack("<HLL", data[start + 10 : start + 20])
    end = bytearray(data[start:])
    end[8:20] = struct.pack("<HHLL", count + 400, count + 400, size + len(more), offset)
    return data[:start] + more + bytes(end)
