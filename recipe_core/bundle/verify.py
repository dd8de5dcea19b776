"""Read a bundle from anybody: verified before use, and never written outside its folder.

One that nobody vouches for is held against the bundle that its recipe gives in this version.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from recipe_core import __version__
from recipe_core.base.documents import parse_json, parse_yaml
from recipe_core.base.errors import BundleError, InputError, NoAnswer, RecipeError
from recipe_core.bundle.contents import folder_files, zip_files
from recipe_core.bundle.signing import MANIFEST, SIGNATURE, Manifest, Signed, check_signature
from recipe_core.bundle.write import bundle_of
from recipe_core.payload.launcher import machine
from recipe_core.payload.launcher.checks import find_unmet
from recipe_core.payload.launcher.errors import LauncherError
from recipe_core.payload.launcher.plan import read_choices, read_needs
from recipe_core.payload.launcher.preflight import check_variants
from recipe_core.payload.launcher.typed_json import Fields
from recipe_core.recipe import Recipe, recipe_request
from recipe_core.recipe.decision import decide
from recipe_core.recipe.figures import HEADLINE
from recipe_core.recipe.schema import migrate

# Relative difference between estimates of two versions that needs no warning.
DRIFT = 0.01

# Differing files that a sentence names.
_LISTED = 8


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
    manifest = Manifest.parse(_bundle_text(files, MANIFEST))
    listed = {name: data for name, data in files.items() if name not in (MANIFEST, SIGNATURE)}
    manifest.verify(listed)
    signed = _signing_key(files, public_key)
    values = parse_yaml(_bundle_text(files, "recipe.yaml"), "recipe.yaml")
    recipe = Recipe.parse(values)
    return Checked(recipe, files, (*migrate(values)[1], *_estimate_drift(recipe)), signed)


def check_bundle(path: Path, public_key: bytes | None = None) -> dict[str, Any]:
    """The report of `recipe check` on a bundle that verifies, as JSON values.

    Raises:
        RecipeError: as ``read_bundle``.
    """
    checked = read_bundle(path, public_key)
    recipe, signed = checked.recipe, None
    fits, remarks = _fit_here(checked.files, path)
    if checked.signed:
        signed = {"key": checked.signed.fingerprint, "trusted": checked.signed.trusted}
    difference, doubts = None, []
    if signed is None or not signed["trusted"]:
        difference = bundle_differences(recipe, checked.files)
        doubts = difference_texts(recipe, difference)
    return {
        "ok": True,
        "verdict": _trust_verdict(checked.signed),
        "recipe": recipe.name,
        "kind": recipe.kind,
        "digest": recipe.digest,
        "files": len(checked.files),
        "signed": signed,
        "differs": difference.to_json() if difference else None,
        "warnings": [*doubts, *checked.warnings, *_lock_and_claims(recipe)],
        "fits_here": fits,
        "machine": remarks,
    }


def _trust_verdict(signed: Signed | None) -> str:
    """Name whoever vouches for a bundle whose digests all match."""
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


def _signing_key(files: dict[str, bytes], public_key: bytes | None) -> Signed | None:
    if SIGNATURE in files:
        return check_signature(files[MANIFEST], files[SIGNATURE], public_key)
    if public_key is not None:
        raise BundleError(
            "the bundle is not signed.",
            hint="Get a signed one from its author, or omit --public-key.",
        )
    return None


def _bundle_text(files: dict[str, bytes], name: str) -> str:
    try:
        return files[name].decode()
    except KeyError:
        raise BundleError(
            f"{name} is missing: this is not a recipe bundle.",
            hint="Build one with `recipe build`.",
        ) from None
    except UnicodeDecodeError:
        raise BundleError(f"{name} is not UTF-8 text.", hint="Build the bundle again.") from None


def _estimate_drift(recipe: Recipe) -> list[str]:
    """A warning if this version refuses the split or estimates it differently; else empty."""
    try:
        decision = decide(recipe_request(recipe))
    except NoAnswer as error:
        return [f"This version refuses the layout: {error.message}"]
    except RecipeError as error:
        return [f"This version cannot estimate the recipe again: {error}"]
    part, name = HEADLINE[recipe.kind]
    then, now = (estimate[part][name] for estimate in (recipe.estimate, decision.estimate))
    if abs(now / then - 1) <= DRIFT:
        return []
    return [f"This version estimates {now:,.0f} tokens/s ({name}); the bundle says {then:,.0f}."]


def unpack_bundle(
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
    from recipe_core.bundle.replace import recover_build, replace_folder  # needs file locks

    target = unpacked_path(path)
    recover_build(target)
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
    """Tell if a folder holds the same bundle, complete and with nothing added."""
    if not target.is_dir():
        return False
    try:
        return folder_files(target) == checked.files
    except BundleError:
        return False


@dataclass(frozen=True, slots=True)
class Differences:
    """Files that differ from what the recipe gives, that are missing, and additional ones.

    ``refusal``: why this version builds no bundle of the recipe; then nothing was compared.
    """

    changed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    refusal: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def bundle_differences(recipe: Recipe, files: Mapping[str, bytes]) -> Differences:
    """Compare a bundle's files with those that this version writes for its recipe."""
    try:
        expected = bundle_of(recipe).files
    except RecipeError as error:
        return Differences(refusal=str(error))
    listed = set(files) - {MANIFEST, SIGNATURE}
    planned = set(expected) - {MANIFEST}
    return Differences(
        changed=tuple(sorted(name for name in listed & planned if files[name] != expected[name])),
        missing=tuple(sorted(planned - listed)),
        added=tuple(sorted(listed - planned)),
    )


def difference_texts(recipe: Recipe, difference: Differences) -> list[str]:
    """The differences as sentences; empty where there are none."""
    this = f"recipe-builder {__version__}"
    if difference.refusal:
        return [
            f"Its files could not be compared: {this} cannot build its recipe: {difference.refusal}"
        ]
    parts = asdict(difference)
    del parts["refusal"]
    kind_texts = [f"{kind}: {_listed_names(names)}" for kind, names in parts.items() if names]
    if not kind_texts:
        return []
    text = f"It differs from what {this} builds from its recipe ({'; '.join(kind_texts)})."
    if recipe.built_by != this:
        text += f" Its recipe names {recipe.built_by}, and versions write different files."
    return [text]


def _listed_names(names: tuple[str, ...]) -> str:
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")


def _fit_here(files: dict[str, bytes], bundle: Path) -> tuple[bool, list[str]]:
    """Tell if this machine, as its vendors' tools describe it, can be a node of the first choice.

    With why not, and the variants that are for it.
    """
    try:
        text = _bundle_text(files, "launch.json")
        launch = Fields({"json": parse_json(text, "launch.json")}, "launch").child("json")
        choices, needs = read_choices(launch), read_needs(launch)
        nodes = launch.optional_integer("nodes", low=1) or 1
    except (RecipeError, LauncherError) as error:
        return False, [str(error)]
    host = machine.detect_machine()
    reason = find_unmet(replace(needs, count=needs.per_node or needs.count), host, running=True)
    if reason is None:
        return True, []
    checks = check_variants(choices, host, nodes, bundle)
    return False, [reason, *(f"{check.detail}. {check.hint}" for check in checks)]
