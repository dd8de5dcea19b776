"""The lock of a recipe: versions, digests, floors, seeds, so that it stays the same thing."""

from __future__ import annotations

import shlex
from typing import Annotated, Any
from urllib.parse import unquote

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import parse_wheel_filename
from pydantic import Field, field_validator

from recipe_core.base.documented import DescribedModel

Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]


class EngineLock(DescribedModel):
    """The engine and how it is installed."""

    name: str
    """Name of the engine, or of the training framework."""

    version: str
    """Version that is installed."""

    install: str
    """Shell command that installs it."""

    packages: dict[str, str] = {}
    """Packages that this command holds to versions, a specifier each (``==0.32.0``,
    ``>=2.11,<2.14``)."""


class ImageLock(DescribedModel):
    """A container image by tag, and by digest where that is known."""

    reference: str
    """Name and tag of the image; the tag is never ``latest``."""

    digest: Digest | None = None
    """Digest of the image, where it is known."""

    @property
    def pinned(self) -> str:
        return f"{self.reference}@{self.digest}" if self.digest else self.reference

    @field_validator("reference")
    @classmethod
    def _has_a_tag(cls, value: str) -> str:
        tag = value.rpartition("/")[2].partition(":")[2]
        if tag in ("", "latest"):
            raise ValueError(f"the image {value!r} needs a tag that is not 'latest'")
        return value


class Checkpoint(DescribedModel):
    """The weights, where they were at hand."""

    digest: Digest
    """Digest over all files of weights."""

    of: str
    """What the digest covers: the files' ``content``, or their names, sizes and ``headers``."""

    files: int
    """Files of weights."""


class ModelLock(DescribedModel):
    """The model at its revision, and its checkpoint."""

    id: str
    """Id of the model on the hub, or the folder that held it."""

    revision: str | None = None
    """Revision that was asked for, or found in a snapshot of the hub's cache."""

    architecture_digest: str
    """Hash of the architecture that was counted."""

    checkpoint: Checkpoint | None = None
    """Fingerprint of the weights, where they were at hand."""


class DeviceLock(DescribedModel):
    """The profile that the estimate was made with."""

    name: str
    """Name of the device's profile."""

    profile_digest: str
    """Hash of all figures of the profile; a shipped one changes with its fits."""


class Lock(DescribedModel):
    """Everything that is pinned."""

    recipe_digest: str
    """Hash of the recipe's content without this lock."""

    engine: EngineLock
    """Engine at its version."""

    image: ImageLock | None = None
    """Container image; null where none is known."""

    model: ModelLock
    """Model at its revision."""

    device: DeviceLock | None = None
    """Profile that the estimate was made with; null in recipes of older forms."""

    floors: dict[str, str] = {}
    """Oldest driver or runtime that the engine's version works with, by what it is the version
    of."""

    seeds: dict[str, int] = {}
    """Seeds of random numbers, by what they seed."""

    determinism: dict[str, Any] = {}
    """Options and variables that make a second run equal to the first; empty where nothing
    promises that."""


def pinned_packages(install: str) -> dict[str, str]:
    """Packages that a shell command holds to versions, by name: ``pip install vllm==0.32.0``."""
    words = shlex.split(install)
    requirements = [_parse_requirement(word) for word in words]
    pins = {pin.name: str(pin.specifier) for pin in requirements if pin and pin.specifier}
    return pins | dict(_wheel(word) for word in words if word.endswith(".whl"))


def _wheel(word: str) -> tuple[str, str]:
    """Name and version of a wheel by its address, as a pin."""
    name, version, *_ = parse_wheel_filename(unquote(word.rpartition("/")[2]))
    return name, f"=={version}"


def _parse_requirement(word: str) -> Requirement | None:
    try:
        return Requirement(word)
    except InvalidRequirement:
        return None
