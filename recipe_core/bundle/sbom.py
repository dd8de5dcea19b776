"""What starting a bundle pulls, as a CycloneDX 1.6 document: the model, the container image, the packages."""

from __future__ import annotations

import uuid
from typing import Any
from urllib.parse import quote

from recipe_core import __version__
from recipe_core.recipe import Recipe
from recipe_core.recipe.lock import ImageLock, ModelLock
from recipe_core.request.describe import short_name

_NAMESPACE = uuid.UUID("6b1f8a52-6c1e-5d0a-9a39-0d6b9c6a4f11")


def sbom(recipe: Recipe) -> dict[str, Any]:
    """The document; the same recipe gives the same one (no time, a serial number from its digest)."""
    components = _components(recipe)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, recipe.digest)}",
        "version": 1,
        "metadata": {
            "tools": {
                "components": [
                    {"type": "application", "name": "recipe-builder", "version": __version__}
                ]
            },
            "component": {
                "type": "application",
                "bom-ref": "recipe",
                "name": recipe.name,
                "version": recipe.digest[:12],
            },
        },
        "components": components,
        "dependencies": [{"ref": "recipe", "dependsOn": [each["bom-ref"] for each in components]}],
    }


def _components(recipe: Recipe) -> list[dict[str, Any]]:
    lock = recipe.lock
    if lock is None:
        return []
    packages = [_package(name, specifier) for name, specifier in lock.engine.packages.items()]
    return [_model(lock.model), *([_image(lock.image)] if lock.image else []), *packages]


def _package(name: str, specifier: str) -> dict[str, Any]:
    """A package by its version where it is held to one, else by the range it is held to."""
    out = {"type": "library", "bom-ref": f"pypi:{name}", "name": name}
    if specifier.startswith("==") and "," not in specifier:
        version = specifier.removeprefix("==")
        return out | {"version": version, "purl": f"pkg:pypi/{name.lower()}@{version}"}
    return out | {
        "purl": f"pkg:pypi/{name.lower()}",
        "properties": [{"name": "recipe-builder:specifier", "value": specifier}],
    }


def _model(model: ModelLock) -> dict[str, Any]:
    on_hub = not model.id.startswith("/") and model.id.count("/") == 1
    out = {
        "type": "machine-learning-model",
        "bom-ref": "model",
        "name": model.id if on_hub else short_name(model.id),
    }
    if model.revision:
        out["version"] = model.revision
    if on_hub:
        out["purl"] = f"pkg:huggingface/{model.id}" + (
            f"@{model.revision.lower()}" if model.revision else ""
        )
    properties = [
        {"name": "recipe-builder:architecture-digest", "value": model.architecture_digest}
    ]
    if model.checkpoint:
        properties.append(
            {
                "name": f"recipe-builder:checkpoint-{model.checkpoint.of}-digest",
                "value": model.checkpoint.digest,
            }
        )
    return out | {"properties": properties}


def _image(image: ImageLock) -> dict[str, Any]:
    """The image as an OCI package URL: by digest where it is known, else by its tag."""
    repository, _, tag = image.reference.rpartition(":")
    name = repository.rpartition("/")[2]
    digest = f"@{quote(image.digest, safe='')}" if image.digest else ""
    out: dict[str, Any] = {
        "type": "container",
        "bom-ref": "image",
        "name": repository,
        "version": tag,
    }
    out["purl"] = f"pkg:oci/{name}{digest}?repository_url={quote(repository, safe='')}&tag={tag}"
    return out | (
        {"hashes": [{"alg": "SHA-256", "content": image.digest.removeprefix("sha256:")}]}
        if image.digest
        else {}
    )
