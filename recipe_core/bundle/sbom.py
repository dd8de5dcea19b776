"""What starting a bundle downloads, as a CycloneDX 1.6 document: model, image, packages."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from recipe_core import __version__
from recipe_core.recipe import Recipe
from recipe_core.recipe.lock import ImageLock, ModelLock
from recipe_core.request.describe import short_name

_NAMESPACE = uuid.UUID("6b1f8a52-6c1e-5d0a-9a39-0d6b9c6a4f11")


def sbom(recipe: Recipe, tools: Iterable[str] = ()) -> dict[str, Any]:
    """The document; it has no time, and its serial number is the recipe's digest.

    ``tools``: requirements of what makes the checkpoint, where the bundle makes one.
    """
    components = _components(recipe)
    known = {part["bom-ref"] for part in components}
    made = [_package(*_requirement(line), extra="compress") for line in tools]
    components += [part for part in made if part["bom-ref"] not in known]
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


def _requirement(line: str) -> tuple[str, str]:
    """Name and versions of a line of requirements, without its extras."""
    name = re.split(r"[\[<>=!~ ]", line, maxsplit=1)[0]
    return name, re.sub(r"^[^<>=!~]*", "", line)


def _package(name: str, specifier: str, extra: str = "") -> dict[str, Any]:
    """A package by its version where it is pinned, else by its range of versions."""
    ref = f"pypi:{name}" + (f":{extra}" if extra else "")
    component: dict[str, Any] = {"type": "library", "bom-ref": ref, "name": name}
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
