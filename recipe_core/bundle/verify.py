"""Reading a bundle from anybody: verified before use, and never written outside its folder."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe_core.base.documents import parse_yaml
from recipe_core.base.errors import BundleError, InputError, NoAnswer, RecipeError
from recipe_core.bundle.compare import difference_texts, differences
from recipe_core.bundle.contents import folder_files, zip_files
from recipe_core.bundle.host_check import fit_here
from recipe_core.bundle.manifest import MANIFEST, Manifest
from recipe_core.bundle.signing import SIGNATURE, Signed, check_signature
from recipe_core.recipe import Recipe, recipe_request
from recipe_core.recipe.decision import decide
from recipe_core.recipe.expected import HEADLINE
from recipe_core.recipe.migrate import migrate

DRIFT = 0.01
"""Relative difference between estimates of two versions that needs no warning."""


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
        files = folder_files(path)
    elif path.is_file():
        files = zip_files(path)
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
    difference, doubts = None, []
    if signed is None or not signed["trusted"]:
        difference = differences(recipe, checked.files)
        doubts = difference_texts(recipe, difference)
    return {
        "ok": True,
        "verdict": _verdict(checked.signed),
        "recipe": recipe.name,
        "kind": recipe.kind,
        "digest": recipe.digest,
        "files": len(checked.files),
        "signed": signed,
        "differs": difference.to_json() if difference else None,
        "warnings": [*doubts, *checked.warnings, *_lock_and_claims(recipe)],
        "fits_here": host.ok,
        "machine": [
            *host.reasons,
            *(f"variant {name} is for this machine: recipe resolve" for name in host.variants),
        ],
    }


def _verdict(signed: Signed | None) -> str:
    """Who vouches for a bundle whose digests all match."""
    if signed is None:
        return "unsigned: anyone may have changed it and made its manifest anew"
    if signed.trusted:
        return f"signed by {signed.fingerprint}, the given key"
    return f"signed by {signed.fingerprint}, not compared with a key of yours"


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


def unpack(
    path: Path,
    *,
    public_key: bytes | None = None,
    replaced: Callable[[Path], None] | None = None,
) -> Path:
    """The folder of a bundle: itself, or for a zip a verified copy beside it.

    With ``public_key`` (PEM) it must be signed by that key.

    A copy of the same bundle is reused. One of another bundle is replaced but for its ``run/``, and
    ``replaced`` is called with it. An interrupted build of the folder is brought to an end first.

    Raises:
        BundleError: when the bundle does not verify.
        InputError: when a folder of that name is something else, or runs, and for no public key.
    """
    from recipe_core.bundle.replace import recover, replace_folder  # needs file locks

    target = unpacked_path(path)
    recover(target)
    checked = read_bundle(path, public_key)
    if path != target and not _is_copy(target, checked):
        existed = target.exists()
        replace_folder(target, checked.files)
        if existed and replaced:
            replaced(target)
    return target


def unpacked_path(path: Path) -> Path:
    """The folder that a bundle is started in: beside a zip, the one of its name."""
    return path.with_suffix("") if path.is_file() else path


def _is_copy(target: Path, checked: Checked) -> bool:
    """Whether a folder holds the same bundle, complete and with nothing added."""
    if not target.is_dir():
        return False
    try:
        return folder_files(target) == checked.files
    except BundleError:
        return False
