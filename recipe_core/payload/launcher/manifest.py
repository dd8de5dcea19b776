"""Checks every file of the bundle against the digests of MANIFEST.json."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from .errors import LauncherError
from .files import read_object, sha256

NAME = "MANIFEST.json"
SIGNATURE = "SIGNATURE"  # of the list; `recipe check` verifies it


@dataclass(frozen=True, slots=True)
class Findings:
    """Differences, as paths in the bundle."""

    missing: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()

    @property
    def sound(self) -> bool:
        return not (self.missing or self.changed or self.added)


def verify_manifest(root: Path) -> tuple[int, Findings]:
    """The number of files listed, and how the folder differs from the list."""
    files = read_object(root / NAME).get("files")
    if not isinstance(files, dict) or not files:
        raise LauncherError(
            f"{NAME} lists no files.", hint="Build the bundle again with `recipe build`."
        )
    outside = [name for name in files if not _is_inside_bundle(name)]
    if outside:
        raise LauncherError(
            f"{NAME} lists a path outside the bundle: {outside[0]!r}.",
            hint="Do not use this bundle; build it again.",
        )
    present = set(list_bundle_files(root))
    return len(files), Findings(
        missing=tuple(sorted(set(files) - present)),
        changed=tuple(
            sorted(name for name in present & set(files) if not _same(root / name, files[name]))
        ),
        added=tuple(sorted(present - set(files))),
    )


def digest(root: Path) -> str | None:
    """The digest of the manifest itself, which identifies the bundle."""
    path = root / NAME
    return sha256(path) if path.is_file() else None


def list_bundle_files(root: Path) -> list[str]:
    """All files but the manifest, its signature and the folder ``run/``."""
    paths = []
    for parent, folders, names in os.walk(root):
        folder = Path(parent)
        folders[:] = [name for name in folders if folder != root or name != "run"]
        # A linked folder is one entry; os.walk does not follow it.
        links = [name for name in folders if (folder / name).is_symlink()]
        paths += [(folder / name).relative_to(root).as_posix() for name in (*names, *links)]
    return [path for path in paths if path not in (NAME, SIGNATURE)]


def _is_inside_bundle(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and name == path.as_posix()


def _same(path: Path, expected: object) -> bool:
    return path.is_file() and not path.is_symlink() and sha256(path) == expected
