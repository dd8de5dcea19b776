"""What starting a bundle downloads, as a CycloneDX 1.6 document: model, image, packages."""

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
    """The document; it has no time, and its serial number is the recipe's digest."""
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
        "dependencies": [{"ref": "recipe", "dependsOn": [part["bom-ref"] for part in components]}],
    }


def _components(recipe: Recipe) -> list[dict[str, Any]]:
    lock = recipe.lock
    if lock is None:
        return []
    packages = [_package(name, specifier) for name, specifier in lock.engine.packages.items()]
    return [_model(lock.model), *([_image(lock.image)] if lock.image else []), *packages]


def _package(name: str, specifier: str) -> dict[str, Any]:
    """A package by its version where it is pinned, else by its range of versions."""
    component: dict[str, Any] = {"type": "library", "bom-ref": f"pypi:{name}", "name": name}
    if specifier.startswith("==") and "," not in specifier:
        version = specifier.removeprefix("==")
        return {
            **component,
            "version": version,
            "purl": f"pkg:pypi/{name.lower()}@{quote(version)}",
        }
    component["purl"] = f"pkg:pypi/{name.lower()}"
    component["properties"] = [{"name": "recipe-builder:specifier", "value": specifier}]
    return component


def _model(model: ModelLock) -> dict[str, Any]:
    on_hub = not model.id.startswith("/") and model.id.count("/") == 1
    component: dict[str, Any] = {
        "type": "machine-learning-model",
        "bom-ref": "model",
        "name": model.id if on_hub else short_name(model.id),
    }
    if model.revision:
        component["version"] = model.revision
    if on_hub:
        revision = f"@{model.revision.lower()}" if model.revision else ""
        component["purl"] = f"pkg:huggingface/{quote(model.id)}{revision}"
    digests = {"architecture-digest": model.architecture_digest}
    if model.checkpoint:
        digests[f"checkpoint-{model.checkpoint.of}-digest"] = model.checkpoint.digest
    component["properties"] = [
        {"name": f"recipe-builder:{name}", "value": digest} for name, digest in digests.items()
    ]
    return component


def _image(image: ImageLock) -> dict[str, Any]:
    """The image with its OCI package URL: by digest where it is known, else by tag."""
    repository, _, tag = image.reference.rpartition(":")
    name = repository.rpartition("/")[2]
    digest = f"@{quote(image.digest, safe='')}" if image.digest else ""
    component: dict[str, Any] = {
        "type": "container",
        "bom-ref": "image",
        "name": repository,
        "version": tag,
        "purl": f"pkg:oci/{name}{digest}?repository_url={quote(repository, safe='')}&tag={tag}",
    }
    if image.digest:
        content = image.digest.removeprefix("sha256:")
        component["hashes"] = [{"alg": "SHA-256", "content": content}]
    return component
