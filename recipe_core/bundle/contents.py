"""The files of a bundle from anybody, read into memory within limits; what none has is refused."""

from __future__ import annotations

import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NoReturn

from recipe_core.base.errors import BundleError
from recipe_core.payload.launcher.errors import LauncherError
from recipe_core.payload.launcher.files import own_entries, refuse_odd_run

# Characters of a file that a preview shows.
PREVIEWED = 60_000

# What files are for, by name or folder, in reading order; an engine's own follow launch.py.
_ABOUT = {
    "README.md": "What it is, how to run it",
    "recipe.yaml": "The decision and its request",
    "expected.json": "The estimate",
    "launch.json": "What to start",
    "launch.py": "Starts, measures, stops",
    "fallbacks/": "What to start elsewhere, or where that cannot run",
    "targets/": "Files for other targets",
    "monitoring/": "Rules, scraping, dashboard",
    "trainer/": "The training program",
    "data/": "Sample text to train on",
    "launcher/": "The launcher",
    "sbom.json": "What a start downloads",
    "MANIFEST.json": "Digests of all files",
}
_OTHER = "Read by the engine"
_ORDER = [*_ABOUT]


@dataclass(frozen=True, slots=True)
class ListedFile:
    """One file: its path, its size in bytes and what it is for."""

    path: str
    size: int
    about: str


def bundle_listing(files: Mapping[str, bytes], query: str = "") -> list[ListedFile]:
    """The files whose path or text has all words of ``query``, ignoring case, in reading order."""
    words = query.casefold().split()
    matches = [path for path, data in files.items() if _matches_words(path, data, words)]
    return [
        ListedFile(path, len(files[path]), _ABOUT.get(_top_folder(path), _OTHER))
        for path in sorted(matches, key=_reading_order)
    ]


def _matches_words(path: str, data: bytes, words: list[str]) -> bool:
    if not words:
        return True
    text = f"{path}\n{data.decode('utf-8', 'replace')}".casefold()
    return all(word in text for word in words)


def _top_folder(path: str) -> str:
    folder, slash, _ = path.partition("/")
    return folder + slash


def _reading_order(path: str) -> tuple[int, str]:
    key = _top_folder(path)
    return (_ORDER.index(key) if key in _ORDER else _ORDER.index("launch.py"), path)


def preview_text(data: bytes) -> tuple[str, bool]:
    """A file's text up to ``PREVIEWED`` characters, and whether that is all of it.

    Bytes that are not UTF-8 are replaced.
    """
    text = data.decode("utf-8", "replace")
    return text[:PREVIEWED], len(text) <= PREVIEWED


# The folder in a bundle that what it starts writes to; no digest covers it.
RUN_FOLDER = "run"
# Where the launcher records what it started, in ``run/`` and its ``node-N/``.
STATE = "state.json"
MAX_FILES, MAX_FILE_BYTES, MAX_TOTAL_BYTES = 500, 4 << 20, 32 << 20
MAX_STATE_BYTES = 1 << 20
# Packed bytes: the list of members alone of a larger archive would take seconds to read.
MAX_ARCHIVE_BYTES = 16 << 20

_PART = re.compile(r"[A-Za-z0-9._+@=-]+")
_COMPILED = (".pyc", ".pyo", ".so", ".pyd", ".dll", ".dylib", ".pth")
_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_DISTRUST_ARCHIVE, _DISTRUST_FOLDER = "Do not use this file.", "Do not use this folder."

# What zipfile raises for damaged members, besides BadZipFile.
_UNREADABLE = (
    NotImplementedError,
    RuntimeError,
    OSError,
    EOFError,
    ValueError,
    zlib.error,
    struct.error,
)


def file_mode(name: str) -> int:
    return 0o755 if name == "launch.py" or name.endswith(".sh") else 0o644


def zip_files(path: Path) -> dict[str, bytes]:
    """The members of a zip, by name; nothing is decompressed before all of them are judged.

    Raises:
        BundleError: for an archive that is damaged, too large, or holds what no bundle does.
    """
    try:
        size = path.stat().st_size
        if size > MAX_ARCHIVE_BYTES:
            raise BundleError(
                f"{path.name} has {size:,} bytes; the limit is {MAX_ARCHIVE_BYTES:,}.",
                hint=_DISTRUST_ARCHIVE,
            )
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            _refuse_members(members)
            return {member.filename: _read_member(archive, member) for member in members}
    except zipfile.BadZipFile:
        raise BundleError(
            f"{path.name} is not a complete zip archive.", hint="Download or build it again."
        ) from None
    except _UNREADABLE as error:
        raise BundleError(
            f"{path.name} cannot be read: {error}.", hint="Download or build it again."
        ) from None


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """A member's bytes, of which no more are unpacked than it states: ``read()`` asks for a GiB."""
    with archive.open(member) as stream:
        data = stream.read(member.file_size + 1)
    if len(data) != member.file_size:
        raise zipfile.BadZipFile
    return data


def _refuse_members(members: list[zipfile.ZipInfo]) -> None:
    names = [m.filename for m in members]
    if len(names) > MAX_FILES:
        raise BundleError(f"the archive has {len(names):,} members; a bundle may have {MAX_FILES}.")
    if len({name.casefold() for name in names}) != len(names):
        raise BundleError("the archive contains a file name twice.")
    for member in members:
        if danger := name_danger(member.filename) or _member_danger(member):
            message = f"the archive member {member.filename!r} {danger}."
            raise BundleError(message, hint=_DISTRUST_ARCHIVE)
    if name := _file_and_folder(names):
        raise BundleError(f"the archive has {name!r} as a file and as a folder.")
    if sum(m.file_size for m in members) > MAX_TOTAL_BYTES:
        raise BundleError(
            f"the archive would unpack to over {MAX_TOTAL_BYTES:,} bytes.", hint=_DISTRUST_ARCHIVE
        )


def _member_danger(member: zipfile.ZipInfo) -> str | None:
    """Say why a member must not be unpacked; None where it may."""
    if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG) or member.is_dir():
        return "is not a plain file"
    if member.flag_bits & 1:
        return "is encrypted"
    if member.compress_type not in _PACKED:
        return "is packed by another method than deflate"
    if member.file_size > MAX_FILE_BYTES:
        return f"would be {member.file_size:,} bytes; the limit is {MAX_FILE_BYTES:,}"
    return None


def name_danger(name: str) -> str | None:
    """Say why no file of a bundle may be called this; None where one may.

    A name stays inside the bundle on every system, and is none that Python would run in place of
    the bundle's own sources.
    """
    parts = PurePosixPath(name).parts
    plain = all(
        part not in ("", ".", "..") and not any(c in part for c in '\\:\0<>"|?*') for part in parts
    )
    if not parts or not plain or name.startswith("/") or len(name) >= 200:
        return "leads outside the bundle"
    if name != "/".join(parts) or not all(
        _PART.fullmatch(part) and not part.endswith(".") for part in parts
    ):
        return "has a name that no file of a bundle has"
    if parts[0].casefold() == RUN_FOLDER:
        return "would lie in run/, which belongs to what the bundle starts"
    folded = name.casefold()
    if "__pycache__" in folded.split("/") or folded.endswith(_COMPILED):
        return "is compiled code, which has no place in a bundle"
    return None


def _file_and_folder(names: Iterable[str]) -> str | None:
    """A name that is also the folder of another one."""
    folded = {name.casefold(): name for name in names}
    folders = {str(p) for name in folded for p in PurePosixPath(name).parents}
    return next((folded[name] for name in sorted(folders & set(folded))), None)


def folder_files(root: Path) -> dict[str, bytes]:
    """The files of a bundle's folder by path, without those of its runs.

    Raises:
        BundleError: for anything but plain files, what has no place in a bundle, and sizes over
            the limits.
    """
    files: dict[str, bytes] = {}
    total = 0
    try:
        for path in plain_paths(root):
            name = path.relative_to(root).as_posix()
            if danger := name_danger(name):
                raise BundleError(f"{name} {danger}.", hint="Delete it, or do not use this folder.")
            data = _read_bounded(path)
            total += len(data)
            if len(data) > MAX_FILE_BYTES or total > MAX_TOTAL_BYTES or len(files) >= MAX_FILES:
                raise BundleError(f"{name} makes the folder larger than a bundle may be.")
            files[name] = data
        refuse_odd_runs(root)
    except OSError as error:
        raise BundleError(
            f"{root} cannot be read: {error.strerror}.", hint="Check its permissions."
        ) from None
    return files


def _read_bounded(path: Path) -> bytes:
    """A file's bytes, a little more than may be at most; never through a link, never waiting."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with os.fdopen(os.open(path, flags), "rb") as file:
        return file.read(MAX_FILE_BYTES + 1)


def plain_paths(root: Path) -> Iterator[Path]:
    """The files of a bundle's folder but for its runs, of which none waits when read, or leads out.

    Raises:
        BundleError: for a link, a pipe, a device or a socket.
        OSError: for a folder that cannot be listed.
    """
    for path in bundle_paths(root):
        if not stat.S_ISREG(path.lstat().st_mode):
            name = path.relative_to(root).as_posix()
            raise BundleError(f"{name} is not a plain file.", hint=_DISTRUST_FOLDER)
        yield path


def bundle_paths(root: Path) -> Iterator[Path]:
    """Everything in a bundle's folder but folders and the runs, Python's caches included.

    A link is one entry, also one to a folder.

    Raises:
        BundleError: for more folders than a bundle may have files.
        OSError: for a folder that cannot be listed: code in it could still be run.
    """
    for count, (parent, folders, names) in enumerate(os.walk(root, onerror=_raise_walk_error)):
        if count > MAX_FILES:
            raise BundleError(f"{root} has more than {MAX_FILES} folders.", hint=_DISTRUST_FOLDER)
        folder = Path(parent)
        links = [name for name in folders if (folder / name).is_symlink()]
        folders[:] = sorted(set(folders) - set(links))
        if folder == root and RUN_FOLDER in folders:
            folders.remove(RUN_FOLDER)
        yield from (folder / name for name in sorted([*names, *links]))


def _raise_walk_error(error: OSError) -> NoReturn:
    raise error


def refuse_odd_runs(root: Path) -> None:
    """Refuse links and devices where the launcher writes: in ``run/`` and its ``node-N/``.

    Writing would follow them out of the bundle, or wait. Linked folders of checkpoints may be. A
    state that would fill the memory is refused, too.

    Raises:
        BundleError: naming the first.
    """
    run = root / RUN_FOLDER
    try:
        refuse_odd_run(run)
    except LauncherError as error:
        raise BundleError(error.message, hint=error.hint) from None
    for entry in own_entries(run):
        if entry.name == STATE and entry.stat().st_size > MAX_STATE_BYTES:
            name = entry.relative_to(root).as_posix()
            raise BundleError(f"{name} is too large to be a state.", hint="Delete it.")
