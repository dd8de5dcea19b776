"""``MANIFEST.json``: the SHA-256 of every other file of a bundle."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from recipe_core.base.described import DESCRIBED
from recipe_core.base.documents import parse_json
from recipe_core.base.errors import BundleError, InputError

MANIFEST = "MANIFEST.json"
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_CHANGED = "The bundle was changed; build it again or get it from its author."


class Manifest(BaseModel):
    """The recipe's name and digest, and files by path."""

    model_config = DESCRIBED

    schema_version: Literal[1] = 1
    """Version of this schema."""

    recipe: str
    """Name of the recipe that the bundle was made from."""

    recipe_digest: Sha256
    """SHA-256 of the recipe's content, in hexadecimal digits."""

    files: Annotated[dict[str, Sha256], Field(min_length=1)]
    """SHA-256 of every other file, in hexadecimal digits, by its path in the bundle."""

    @classmethod
    def of(cls, name: str, digest: str, files: Mapping[str, bytes]) -> Manifest:
        """The manifest of ``files``, each with its SHA-256."""
        digests = {path: hashlib.sha256(data).hexdigest() for path, data in sorted(files.items())}
        return cls(recipe=name, recipe_digest=digest, files=digests)

    @classmethod
    def parse(cls, text: str) -> Manifest:
        """A manifest from JSON.

        Raises:
            BundleError: when it is not a manifest.
        """
        try:
            return cls.model_validate(_manifest_values(text))
        except InputError as error:
            raise BundleError(error.message, hint="Build the bundle again.") from None
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            path = ".".join(str(step) for step in first["loc"])
            message = f"{MANIFEST}: {path}: {first['msg']}."
            raise BundleError(message, hint="Build the bundle again.") from None

    def verify(self, files: Mapping[str, bytes]) -> None:
        """Compare ``files`` with the digests.

        Raises:
            BundleError: for the first file that is missing, added or changed.
        """
        present, listed = set(files), set(self.files)
        if missing := listed - present:
            raise BundleError(f"{min(missing)} is missing.", hint=_CHANGED)
        if added := present - listed:
            raise BundleError(f"{min(added)} is not in the manifest.", hint=_CHANGED)
        for name in sorted(present):
            if hashlib.sha256(files[name]).hexdigest() != self.files[name]:
                raise BundleError(f"{name} differs from its digest in the manifest.", hint=_CHANGED)


def _manifest_values(text: str) -> Any:
    value = parse_json(text, MANIFEST)
    if not isinstance(value, dict) or not isinstance(value.get("files"), dict):
        raise InputError(f"{MANIFEST} lists no files.")
    return value
