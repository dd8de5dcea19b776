"""Reading a bundle from anybody: verified before use, and never written outside its folder."""

from __future__ import annotations

import datetime
import os
import stat
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from recipe_core.base.documents import parse_yaml
from recipe_core.base.errors import BundleError, InputError, NoAnswer, RecipeError
from recipe_core.bundle.host_check import fit_here
from recipe_core.bundle.manifest import MANIFEST, Manifest
from recipe_core.bundle.signing import SIGNATURE, Signed, check_signature
from recipe_core.bundle.write import RUN_FOLDER, replace_folder
from recipe_core.recipe import Recipe, recipe_request
from recipe_core.recipe.decision import decide
from recipe_core.recipe.expected import HEADLINE
from recipe_core.recipe.migrate import migrate

DRIFT = 0.01
"""Relative difference between estimates of two versions that needs no warning."""
MAX_FILES, MAX_FILE_BYTES, MAX_TOTAL_BYTES = 500, 4 << 20, 32 << 20


@dataclass(frozen=True, slots=True)
class Checked:
    """A complete, unchanged bundle; ``signed`` is None for one without a signature."""

    recipe: Recipe
    files: dict[str, bytes]
    warnings: tuple[str, ...]
    signed: Signed | None = None


def read_bundle(path: Path, public_key: bytes | None = None) -> Checked:
    """Read a bundle (zip or folder), verify digests and signature, and parse its recipe.

    With ``public_key`` (PEM) it must be signed by that key; else a signature is checked against the
    key it names. Nothing is written or run.

    Raises:
        BundleError: for anything damaged, changed, foreign or dangerous.
        InputError: when nothing is at ``path``, or the key is not a public key.
    """
    if path.is_dir():
        files = _folder_files(path)
    elif path.is_file():
        files = _zip_files(path)
    else:
        raise InputError(
            f"there is no bundle at {str(path)!r}.",
            field="bundle",
            hint="Give a zip or folder that `recipe build` wrote.",
        )
    manifest = Manifest.parse(_text(files, MANIFEST))
    listed = {name: data for name, data in files.items() if name not in (MANIFEST, SIGNATURE)}
    manifest.verify(listed)
    signed = _signed(files, public_key)
    values = parse_yaml(_text(files, "recipe.yaml"), "recipe.yaml")
    recipe = Recipe.parse(values)
    return Checked(recipe, files, (*migrate(values)[1], *_drift(recipe)), signed)


def check_bundle(path: Path, public_key: bytes | None = None) -> dict[str, Any]:
    """What `recipe check` reports of a bundle that verifies, as JSON values.

    Raises:
        RecipeError: as ``read_bundle``.
    """
    checked = read_bundle(path, public_key)
    recipe, host, signed = checked.recipe, fit_here(checked.recipe), None
    if checked.signed:
        signed = {"key": checked.signed.fingerprint, "trusted": checked.signed.trusted}
    return {
        "ok": True,
        "recipe": recipe.name,
        "kind": recipe.kind,
        "digest": recipe.digest,
        "files": len(checked.files),
        "signed": signed,
        "warnings": [*checked.warnings, *_lock_and_claims(recipe)],
        "fits_here": host.ok,
        "machine": [
            *host.reasons,
            *(f"variant {name} is for this machine: recipe resolve" for name in host.variants),
        ],
    }


def _lock_and_claims(recipe: Recipe) -> list[str]:
    """Warnings of a lock made for other content, and of measurements that no longer apply."""
    warnings = []
    if recipe.lock and recipe.lock.recipe_digest != recipe.digest:
        warnings.append("The lock was made for a different version of the recipe.")
    today = datetime.datetime.now(tz=datetime.UTC).date()
    return warnings + [
        f"The measurement of {claim.date} {', '.join(doubts)}."
        for claim in recipe.claims
        if (doubts := claim.doubts(recipe, today))
    ]


def _signed(files: dict[str, bytes], public_key: bytes | None) -> Signed | None:
    if SIGNATURE in files:
        return check_signature(files[MANIFEST], files[SIGNATURE], public_key)
    if public_key is not None:
        raise BundleError(
            "the bundle is not signed.",
            hint="Get a signed one from its author, or omit --public-key.",
        )
    return None


def _text(files: dict[str, bytes], name: str) -> str:
    try:
        return files[name].decode()
    except KeyError:
        raise BundleError(
            f"{name} is missing: this is not a recipe bundle.",
            hint="Build one with `recipe build`.",
        ) from None
    except UnicodeDecodeError:
        raise BundleError(f"{name} is not UTF-8 text.", hint="Build the bundle again.") from None


def _drift(recipe: Recipe) -> list[str]:
    """A warning if this version refuses the split or estimates it differently; else empty."""
    try:
        decision = decide(recipe_request(recipe))
    except NoAnswer as error:
        return [f"This version refuses the split: {error.message}"]
    except RecipeError as error:
        return [f"This version cannot estimate the recipe again: {error}"]
    part, name = HEADLINE[recipe.kind]
    then, now = (estimate[part][name] for estimate in (recipe.estimate, decision.estimate))
    if abs(now / then - 1) <= DRIFT:
        return []
    return [f"This version estimates {now:,.0f} tokens/s ({name}); the bundle says {then:,.0f}."]


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


def _zip_files(path: Path) -> dict[str, bytes]:
    """Members of a zip; what a bundle never contains is refused before anything is decompressed."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            _refuse_dangerous(members)
            return {m.filename: archive.read(m) for m in members}
    except zipfile.BadZipFile:
        raise BundleError(
            f"{path.name} is not a complete zip archive.", hint="Download or build it again."
        ) from None
    except _UNREADABLE as error:
        raise BundleError(
            f"{path.name} cannot be read: {error}.", hint="Download or build it again."
        ) from None


def _refuse_dangerous(members: list[zipfile.ZipInfo]) -> None:
    names = [m.filename for m in members]
    if len(names) > MAX_FILES:
        raise BundleError(f"the archive has {len(names):,} members; a bundle may have {MAX_FILES}.")
    if len({name.casefold() for name in names}) != len(names):
        raise BundleError("the archive contains a file name twice.")
    for member in members:
        if danger := _danger(member):
            message = f"the archive member {member.filename!r} {danger}."
            raise BundleError(message, hint="Do not use this file.")
    if sum(m.file_size for m in members) > MAX_TOTAL_BYTES:
        raise BundleError(
            f"the archive would unpack to over {MAX_TOTAL_BYTES:,} bytes.",
            hint="Do not use this file.",
        )


def _danger(member: zipfile.ZipInfo) -> str | None:
    """Why a member must not be unpacked; None where it may."""
    if not _is_safe(member.filename):
        return "leads outside the bundle"
    if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG) or member.is_dir():
        return "is not a plain file"
    if member.flag_bits & 1:
        return "is encrypted"
    if member.file_size > MAX_FILE_BYTES:
        return f"would be {member.file_size:,} bytes; the limit is {MAX_FILE_BYTES:,}"
    return None


def _is_safe(name: str) -> bool:
    """Whether a member's name stays inside: relative, with plain parts, on every system."""
    parts = PurePosixPath(name).parts
    plain = all(
        part not in ("", ".", "..") and not any(c in part for c in '\\:\0<>"|?*') for part in parts
    )
    return bool(parts) and plain and not name.startswith("/") and len(name) < 200


def _folder_files(root: Path) -> dict[str, bytes]:
    """Files of a bundle's folder without those of runs; links and oversized files are refused."""
    files: dict[str, bytes] = {}
    total = 0
    for folder, folders, names in os.walk(root):
        parent = Path(folder)
        folders[:] = sorted(
            n for n in folders if n != "__pycache__" and not (parent == root and n == RUN_FOLDER)
        )
        for name in [*names, *(n for n in folders if (parent / n).is_symlink())]:
            path = parent / name
            relative = path.relative_to(root).as_posix()
            if path.is_symlink() or not path.is_file():
                raise BundleError(
                    f"{relative} is not a plain file.", hint="Do not use this folder."
                )
            size = path.stat().st_size
            total += size
            if size > MAX_FILE_BYTES or total > MAX_TOTAL_BYTES or len(files) >= MAX_FILES:
                raise BundleError(f"{relative} makes the folder larger than a bundle may be.")
            files[relative] = path.read_bytes()
    return files


def unpack(path: Path) -> Path:
    """The folder of a bundle: itself, or for a zip a verified copy beside it.

    A copy of the same bundle is reused.

    Raises:
        BundleError: when the bundle does not verify, or a folder of that name is something else.
    """
    checked = read_bundle(path)
    if path.is_dir():
        return path
    target = path.with_suffix("")
    if target.is_dir() and any(target.iterdir()):
        try:
            same = _folder_files(target)[MANIFEST] == checked.files[MANIFEST]
        except (BundleError, KeyError):
            same = False
        if same:
            return target
    replace_folder(target, checked.files)
    return target
