"""A bundle's folder is put in place whole; what an older one left in ``run/`` moves into it.

Beside the folder NAME, ``.NAME.swap-XXXXXXXX`` holds ``new``, the bundle as it is written. Where an
older bundle stands at NAME and nothing of it runs:

1. ``run/`` trades places with an empty one in ``new``, whose lock is held as well: no launcher
   starts meanwhile, in either.
2. ``new`` and NAME trade places.
3. The older bundle, now ``new``, is removed file by file: those of its manifest and nothing else.

Files and names are on the disk before the first step, and what a step moved before the next: a loss
of power is no other end than a kill.

Either step is one call of the kernel, so a complete bundle stands at NAME at every moment; between
the two, its ``run/`` looks empty. Whoever is ended there leaves the runs in ``new``, and the next
build or start of NAME puts them back (``recover_build``). Where a file system cannot exchange,
``run/`` is renamed into ``new``, NAME to ``old``, and ``new`` to NAME; ``recover_build`` ends that
as well. The folder ``run/`` is only ever renamed: nothing copies it, and nothing removes it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from recipe_core.base.documents import flush_folder_names, flush_to_disk
from recipe_core.base.errors import BundleError, InputError
from recipe_core.bundle.contents import RUN_FOLDER, bundle_paths, file_mode, refuse_odd_runs
from recipe_core.bundle.runs import (
    has_runs,
    lock_runs,
    node_folders,
    refuse_running,
    remove_idle_run,
)
from recipe_core.bundle.signing import MANIFEST, SIGNATURE, Manifest

_NEW, _OLD = "new", "old"

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


def replace_folder(target: Path, files: Mapping[str, bytes]) -> None:
    """Put ``files`` at ``target`` as a whole; an older bundle there leaves its ``run/``.

    Raises:
        InputError: when ``target`` is not writable, runs, or holds files of its user.
    """
    if target.exists() and not target.is_dir():
        raise InputError(
            f"{target} exists and is not a folder.",
            field="output",
            hint="Choose another name, or one that ends in .zip.",
        )
    place = target.resolve()
    try:
        with _folder_lock(place.parent):
            _recover_leftovers(place, files)
            _refuse_foreign(place, files)
            try:
                _put_files(place, files)
            finally:
                _recover_leftovers(place, files)
    except OSError as error:
        raise InputError(
            f"cannot write {target}: {error.strerror}.",
            field="output",
            hint="Choose another place.",
        ) from None


def recover_build(target: Path) -> None:
    """Bring to an end what a build of ``target`` left when it was ended in between.

    Raises:
        InputError: when it left runs and ``target`` has others, or cannot be written.
    """
    place = target.resolve()
    if not _leftover_folders(place):
        return
    try:
        with _folder_lock(place.parent):
            _recover_leftovers(place)
    except OSError as error:
        raise InputError(
            f"cannot finish an interrupted build of {target}: {error.strerror}.", field="bundle"
        ) from None


def _put_files(target: Path, files: Mapping[str, bytes]) -> None:
    """Write the files beside ``target``, and put them there.

    Raises:
        InputError: while an older bundle there runs.
        OSError: when something cannot be written; ``_recover_leftovers`` puts back what has moved.
    """
    new = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.swap-")) / _NEW
    # The manifest first: by it, whoever finds a half-written folder knows which files are ours.
    for name in sorted(files, key=lambda name: (name != MANIFEST, name)):
        path = new / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(files[name])
            path.chmod(file_mode(name))
            flush_to_disk(file)
    new.chmod(0o755)
    for folder in (target.parent, *(Path(parent) for parent, _, _ in os.walk(new.parent))):
        flush_folder_names(folder)
    if not target.is_dir() or not any(target.iterdir()):
        new.replace(target)
        _sync_names(new, target)
        return
    nodes = node_folders(target) | node_folders(new)
    with lock_runs(target, nodes, target), lock_runs(new, nodes, target):
        refuse_running(target)
        _swap_folders(target, new)


def _swap_folders(target: Path, new: Path) -> None:
    """Put ``new`` at ``target`` with its ``run/``; on the disk before anything is removed."""
    run, empty = target / RUN_FOLDER, new / RUN_FOLDER
    exchanged = exchange_paths(run, empty)
    if not exchanged:
        remove_idle_run(new)
        run.rename(empty)
    _sync_names(run, empty)
    if exchanged:
        exchange_paths(target, new)
    else:
        target.rename(new.with_name(_OLD))
        new.rename(target)
    _sync_names(target, new)


def _sync_names(*moved: Path) -> None:
    for folder in {path.parent for path in moved}:
        flush_folder_names(folder)


def _recover_leftovers(target: Path, planned: Collection[str] = ()) -> None:
    """Put back what is in folders that builds left, and remove the rest of them.

    Raises:
        InputError: for runs here and there, of which neither may be removed.
        OSError: when something cannot be moved.
    """
    for leftover in _leftover_folders(target):
        new, old = leftover / _NEW, leftover / _OLD
        for folder in (new, old):
            # NAME is missing only between the last two renames, or when its user removed it.
            if not target.exists() and folder.is_dir() and (has_runs(folder) or old.is_dir()):
                folder.rename(target)
                _sync_names(folder, target)
            if has_runs(folder):
                _return_runs(folder, target)
            _discard_bundle(folder, planned)
        with suppress(OSError):  # what remains in it appeared meanwhile and is nobody's to remove
            leftover.rmdir()


def _return_runs(folder: Path, target: Path) -> None:
    """Move ``run/`` of a build's folder to where it was taken from.

    Raises:
        InputError: when ``target`` has runs too.
        OSError: when it cannot be moved.
    """
    run, empty = folder / RUN_FOLDER, target / RUN_FOLDER
    with lock_runs(target, node_folders(target), target):
        if has_runs(target):
            raise InputError(
                f"{run} holds runs of {target} that an interrupted build left, "
                "and it has others since.",
                field="output",
                hint=f"Move {run} to where you want to keep it.",
            )
        if not exchange_paths(run, empty):
            remove_idle_run(target)
            run.rename(empty)
        _sync_names(run, empty)


def _leftover_folders(target: Path) -> list[Path]:
    """Folders that ended builds of ``target`` by this user left beside it."""
    name = re.compile(rf"\.{re.escape(target.name)}\.swap-\w+")
    try:
        swap_folders = [path for path in target.parent.iterdir() if name.fullmatch(path.name)]
        return sorted(
            p for p in swap_folders if not p.is_symlink() and p.stat().st_uid == os.geteuid()
        )
    except OSError:
        return []


def _discard_bundle(folder: Path, planned: Collection[str]) -> None:
    """Remove a bundle file by file: what is not of its manifest stays, and what is in ``run/``.

    The manifest goes last, so that whoever goes on with this still has it.

    Raises:
        OSError: when something cannot be removed.
    """
    if not folder.is_dir():
        return
    remove_idle_run(folder)
    paths, foreign = list(bundle_paths(folder)), set(_foreign_files(folder, planned))
    for path in sorted(set(paths) - foreign, key=lambda path: path == folder / MANIFEST):
        path.unlink()
    for parent, folders, _ in os.walk(folder, topdown=False):
        for name in folders:
            with suppress(OSError):
                Path(parent, name).rmdir()
    with suppress(OSError):
        folder.rmdir()


def _refuse_foreign(target: Path, planned: Collection[str]) -> None:
    """Refuse to replace a folder with files that no build wrote.

    Raises:
        InputError: naming the first.
    """
    if not target.is_dir() or not any(target.iterdir()):
        return
    if not (target / MANIFEST).is_file():
        raise InputError(
            f"{target} is a folder with other content.",
            field="output",
            hint="Choose an empty or new folder.",
        )
    refuse_odd_runs(target)
    if foreign := _foreign_files(target, planned):
        raise InputError(
            f"{foreign[0]} is not a file of the bundle, and would be lost.",
            field="output",
            hint="Move it away, or choose another folder.",
        )


def _foreign_files(folder: Path, planned: Collection[str]) -> list[Path]:
    """Files of a bundle's folder beside its listed ones, ``planned`` ones and Python's caches."""
    names = {MANIFEST, SIGNATURE, *planned}
    with suppress(BundleError, OSError, UnicodeDecodeError):
        names |= set(Manifest.parse((folder / MANIFEST).read_text(encoding="utf-8")).files)
    return [
        path
        for path in bundle_paths(folder)
        if path.relative_to(folder).as_posix() not in names
        and not (path.parent.name == "__pycache__" and path.suffix == ".pyc")
    ]


@contextmanager
def _folder_lock(parent: Path) -> Iterator[None]:
    """Let one build at a time swap folders in ``parent``.

    Where its file system has no locks on folders, nothing keeps two builds of one bundle apart.

    Raises:
        OSError: when ``parent`` cannot be opened.
    """
    descriptor = os.open(parent, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def exchange_paths(first: Path, second: Path) -> bool:
    """Have two paths trade places; False on systems and file systems that cannot.

    Python has no binding of ``renameat2``, hence the call of the C library's.

    Raises:
        OSError: when a path is missing, or its folder is not writable.
    """
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None or not sys.platform.startswith("linux"):
        return False
    paths = (os.fsencode(first), os.fsencode(second))
    if rename(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNSUPPORTED:
        return False
    raise OSError(code, os.strerror(code), str(first), None, str(second))
