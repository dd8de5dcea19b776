"""A lock held against the recipe, this version's data, and what this machine has installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from recipe_core.models.checkpoint import checkpoint_digest, snapshot_of
from recipe_core.recipe.build import recipe_request
from recipe_core.recipe.decision import decide
from recipe_core.recipe.lock import Lock
from recipe_core.recipe.locking import make_lock
from recipe_core.recipe.schema import Recipe

Level = Literal["same", "differs", "absent"]
TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is pinned: what the lock says, and what this machine has (``actual``).

    ``absent``: this machine has nothing to compare with.
    """

    name: str
    locked: str
    actual: str | None
    level: Level

    def to_json(self) -> dict[str, Any]:
        """``{"what", "locked", "found", "level"}``."""
        return {"what": self.name, "locked": self.locked, "found": self.actual, "level": self.level}


def verify_lock(recipe: Recipe, lock: Lock, model: Path | None = None) -> list[Difference]:
    """Everything pinned against what is here; ``model``: a folder that should hold the model."""
    return [
        *_recipe_difference(recipe, lock),
        *_builder_differences(recipe, lock),
        *_package_differences(lock),
        *_floor_differences(lock),
        *_model_differences(lock, model),
    ]


def _compare_pin(name: str, locked: str, actual: str | None) -> Difference:
    return Difference(name, locked, actual, _level(actual, actual == locked))


def _level(actual: str | None, same: bool) -> Level:
    if actual is None:
        return "absent"
    return "same" if same else "differs"


def _recipe_difference(recipe: Recipe, lock: Lock) -> Iterator[Difference]:
    yield _compare_pin("recipe", lock.recipe_digest, recipe.digest)


def _builder_differences(recipe: Recipe, lock: Lock) -> Iterator[Difference]:
    """What this version of the builder would pin for the same split."""
    decision = decide(recipe_request(recipe))
    now = make_lock(decision, decision.started(), recipe, folders=False)
    yield _compare_pin(
        f"{lock.engine.name} of this builder", lock.engine.version, now.engine.version
    )
    yield _compare_pin(
        "model architecture", lock.model.architecture_digest, now.model.architecture_digest
    )
    if lock.device and now.device:
        yield _compare_pin(
            f"profile of {lock.device.name}", lock.device.profile_digest, now.device.profile_digest
        )
    if lock.image:
        yield _compare_pin(
            "image",
            _image_reference(lock.image),
            _image_reference(now.image) if now.image else None,
        )


def _image_reference(image: Any) -> str:
    return f"{image.reference}@{image.digest}" if image.digest else str(image.reference)


def _package_differences(lock: Lock) -> Iterator[Difference]:
    for name, locked in lock.engine.packages.items():
        try:
            installed: str | None = version(name)
        except PackageNotFoundError:
            installed = None
        same = SpecifierSet(locked).contains(installed, prereleases=True) if installed else False
        yield Difference(f"package {name}", locked, installed, _level(installed, same))


_PROBES = {
    "driver": (
        ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        re.compile(r"^([\d.]+)", re.MULTILINE),
    ),
    "rocm": (("amd-smi", "version"), re.compile(r"ROCm version: ([\d.]+)")),
}


def _floor_differences(lock: Lock) -> Iterator[Difference]:
    for name, floor in lock.floors.items():
        actual = _probe(name)
        enough = actual is not None and _at_least(actual, floor)
        yield Difference(f"{name} (at least)", floor, actual, _level(actual, enough))


def _probe(name: str) -> str | None:
    """A version as the vendor's own tool reports it; None where there is none."""
    words, pattern = _PROBES.get(name, ((), None))
    if pattern is None or shutil.which(words[0]) is None:
        return None
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = pattern.search(done.stdout)
    return match[1] if match else None


def _at_least(actual: str, floor: str) -> bool:
    try:
        return Version(actual) >= Version(floor)
    except InvalidVersion:
        return False


def _model_differences(lock: Lock, folder: Path | None) -> Iterator[Difference]:
    """The revision and the weights of a folder."""
    folder = folder or (Path(lock.model.id) if lock.model.id.startswith("/") else None)
    snapshot = snapshot_of(str(folder)) if folder else None
    if lock.model.revision:
        yield _compare_pin(
            "model revision", lock.model.revision, snapshot.revision if snapshot else None
        )
    if lock.model.checkpoint:
        locked = lock.model.checkpoint
        checkpoint = checkpoint_digest(folder) if folder and folder.is_dir() else None
        # Digests of contents and of headers do not compare.
        comparable = checkpoint is not None and checkpoint.of == locked.of
        digest = checkpoint.digest if checkpoint and comparable else None
        yield _compare_pin(f"checkpoint ({locked.of})", locked.digest, digest)
