"""What pins a recipe: versions, digests, floors and seeds, so that it is the same thing tomorrow."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

from packaging.requirements import InvalidRequirement, Requirement
from pydantic import BaseModel, ConfigDict, Field, field_validator

Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EngineLock(_Part):
    """The engine, how it is installed, and the packages that this holds to versions: a specifier each (``==0.32.0``, ``>=2.11,<2.14``)."""

    name: str
    version: str
    install: str
    packages: dict[str, str] = {}


class ImageLock(_Part):
    """A container image by tag, and by digest where that is known."""

    reference: str
    digest: Digest | None = None

    @field_validator("reference")
    @classmethod
    def _has_a_tag(cls, value: str) -> str:
        tag = value.rpartition("/")[2].partition(":")[2]
        if tag in ("", "latest"):
            raise ValueError(f"the image {value!r} needs a tag that is not 'latest'")
        return value


class Checkpoint(_Part):
    """Weights that were at hand: ``digest`` over the files' own digests (``content``), or over their names, sizes and headers."""

    digest: Digest
    of: str
    files: int


class ModelLock(_Part):
    """The model: a hub id with the revision that was asked for or found in a snapshot, and its checkpoint."""

    id: str
    revision: str | None = None
    architecture_digest: str
    checkpoint: Checkpoint | None = None


class DeviceLock(_Part):
    """The profile that the estimate was made with: a shipped device's changes with its fits."""

    name: str
    profile_digest: str


class Lock(_Part):
    """Everything that is pinned. ``recipe_digest`` is over the recipe without its lock. ``device``: None in recipes of older forms.

    ``floors``: the oldest driver and runtime that the engine's version works with. ``seeds``: by what they seed.
    ``determinism``: options and variables that make a second run equal to the first; none where nothing promises that.
    """

    recipe_digest: str
    engine: EngineLock
    image: ImageLock | None = None
    model: ModelLock
    device: DeviceLock | None = None
    floors: dict[str, str] = {}
    seeds: dict[str, int] = {}
    determinism: dict[str, Any] = {}


def pinned_packages(install: str) -> dict[str, str]:
    """Packages that a shell command holds to versions, by name: ``pip install vllm==0.32.0``."""
    return {
        found.name: str(found.specifier)
        for word in shlex.split(install)
        if (found := _requirement(word)) and found.specifier
    }


def _requirement(word: str) -> Requirement | None:
    try:
        return Requirement(word)
    except InvalidRequirement:
        return None
