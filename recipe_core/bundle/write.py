"""A recipe as a runnable bundle, written deterministically and atomically; ``verify.py`` reads it.

``recipe.yaml`` (the decision), ``expected.json`` (the estimate), ``launch.json`` (what to start),
``launch.py`` and ``launcher/`` (standard library only), what the engine or trainer reads,
``fallbacks/`` (what to start elsewhere), ``targets/`` and ``monitoring/``,
``sbom.json`` (what a start downloads), ``README.md``, ``MANIFEST.json`` (SHA-256 of every other
file) and, with a key, ``SIGNATURE`` over it.
"""

from __future__ import annotations

import io
import re
import stat
import uuid
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from recipe_core import __version__
from recipe_core.base.documents import to_json, to_yaml, write_whole
from recipe_core.base.errors import InputError
from recipe_core.base.resources import PACKAGE
from recipe_core.bundle.choices import launch_choices, launch_document
from recipe_core.bundle.compress import checkpoint_launch, making_files
from recipe_core.bundle.contents import file_mode
from recipe_core.bundle.readme import FAILURES, bundle_readme, failures_text
from recipe_core.bundle.signing import MANIFEST, SIGNATURE, Manifest, sign_manifest
from recipe_core.launch.entry import LAUNCH_PY
from recipe_core.launch.training.sources import PATH as CONTAINERFILE
from recipe_core.recipe import Recipe
from recipe_core.recipe.build import redecide
from recipe_core.recipe.lock import ImageLock, ModelLock
from recipe_core.recipe.secrets import refuse_planted
from recipe_core.request.describe import model_short_name
from recipe_core.targets import Context, each_target, target_names
from recipe_core.targets.notes import cluster_notes, reach_section, scaling_notes, spot_note
from recipe_core.targets.recipe_context import image_file, place_launch, target_context
from recipe_core.targets.restarts import LAUNCHER, restart_rows, target_restarts

_NAMESPACE = uuid.UUID("6b1f8a52-6c1e-5d0a-9a39-0d6b9c6a4f11")


def bundle_sbom(recipe: Recipe, tools: Iterable[str] = ()) -> dict[str, Any]:
    """The document; it has no time, and its serial number is the recipe's digest.

    ``tools``: requirements of what makes the checkpoint, where the bundle makes one.
    """
    components = _locked_components(recipe)
    refs = {part["bom-ref"] for part in components}
    tool_components = [
        _package_component(*_split_requirement(line), extra="compress") for line in tools
    ]
    components += [part for part in tool_components if part["bom-ref"] not in refs]
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


def _locked_components(recipe: Recipe) -> list[dict[str, Any]]:
    lock = recipe.lock
    if lock is None:
        return []
    packages = [
        _package_component(name, specifier) for name, specifier in lock.engine.packages.items()
    ]
    return [
        _model_component(lock.model),
        *([_image_component(lock.image)] if lock.image else []),
        *packages,
    ]


def _split_requirement(line: str) -> tuple[str, str]:
    """Name and versions of a line of requirements, without its extras."""
    name = re.split(r"[\[<>=!~ ]", line, maxsplit=1)[0]
    return name, re.sub(r"^[^<>=!~]*", "", line)


def _package_component(name: str, specifier: str, extra: str = "") -> dict[str, Any]:
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


def _model_component(model: ModelLock) -> dict[str, Any]:
    on_hub = not model.id.startswith("/") and model.id.count("/") == 1
    component: dict[str, Any] = {
        "type": "machine-learning-model",
        "bom-ref": "model",
        "name": model.id if on_hub else model_short_name(model.id),
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


def _image_component(image: ImageLock) -> dict[str, Any]:
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


# The earliest date of a zip, in place of now: the same recipe gives the same bytes.
EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Bundle:
    """A recipe with everything that is built from it.

    ``targets``: each target's files by path, or why it is unavailable. ``files``: all of the
    bundle's, by path, the manifest last.
    """

    recipe: Recipe
    context: Context
    targets: Mapping[str, Mapping[str, str] | str]
    files: Mapping[str, bytes]


def bundle_of(recipe: Recipe) -> Bundle:
    """The bundle of a recipe.

    Raises:
        InputError: when a file would contain a secret of this machine, and for a target that it
            cannot be for.
    """
    decision = redecide(recipe)
    started = place_launch(decision, recipe.parameters)
    context = target_context(recipe, decision, started)
    choices = launch_choices(recipe, started)
    launch = launch_document(recipe, decision, started, choices)
    targets = each_target(context)
    start_files = dict(started.files)
    if text := image_file(decision, recipe.device.runtime):
        start_files[CONTAINERFILE] = text
    refused = {}
    for name, result in targets.items():
        if isinstance(result, str):
            refused[name] = result
        else:
            start_files |= result
    for choice in choices:
        start_files |= choice.files
    making = checkpoint_launch(decision)
    start_files |= making_files(decision)
    available = [name for name in targets if name not in refused]
    target = _chosen_target(context, refused)
    shown_targets = [target] if target else available
    texts = {
        **start_files,
        "README.md": bundle_readme(
            recipe,
            launch,
            start_files,
            {} if target else refused,
            target_restarts(context, target or LAUNCHER),
            [*scaling_notes(context, shown_targets), *cluster_notes(context, shown_targets)],
            reach_section(context, shown_targets),
            spot_note(context, shown_targets),
        ),
        FAILURES: failures_text(restart_rows(context, [LAUNCHER, *available])),
        "expected.json": to_json(recipe.estimate),
        "launch.json": to_json(launch),
        "launch.py": LAUNCH_PY,
        "recipe.yaml": to_yaml(recipe.model_dump(mode="json")),
        "sbom.json": to_json(bundle_sbom(recipe, making.requirements if making else ())),
    }
    files = {path: text.encode() for path, text in texts.items()}
    launcher = PACKAGE / "payload" / "launcher"
    for path in sorted(p for end in ("py", "json") for p in launcher.glob(f"*.{end}")):
        files[f"launcher/{path.name}"] = path.read_bytes()
    refuse_planted(files)
    manifest = Manifest.of(recipe.name, recipe.digest, files)
    files = dict(sorted(files.items()))
    files[MANIFEST] = to_json(manifest.model_dump()).encode()
    return Bundle(recipe, context, targets, files)


def _chosen_target(context: Context, refused: Mapping[str, str]) -> str | None:
    """Return the target that the bundle is for, None where that is left open.

    Raises:
        InputError: for one that has no files here, or starts nothing.
    """
    target = context.parameters.target
    if target is None or (target not in refused and target_restarts(context, target)):
        return target
    starting = [name for name in target_names(context) if target_restarts(context, name)]
    offered = ", ".join(name for name in starting if name not in refused)
    reason = refused.get(target, f"no target {target!r} starts this recipe.")
    hint = f"Choose one of {offered}, or leave it out."
    raise InputError(reason, field="parameters.target", hint=hint)


def bundle_files(recipe: Recipe, key: bytes | None = None) -> dict[str, bytes]:
    """Every file of the bundle, by path; with a private ``key`` (PEM) also its signature.

    Raises:
        InputError: for a bad key, and when a file would contain a secret of this machine.
    """
    files = dict(bundle_of(recipe).files)
    if key:
        files[SIGNATURE] = sign_manifest(files[MANIFEST], key)
    return files


def zip_bytes(recipe: Recipe, key: bytes | None = None) -> bytes:
    """The bundle as a zip; the same recipe and key give the same bytes."""
    return zip_bundle(bundle_files(recipe, key))


def zip_bundle(files: Mapping[str, bytes]) -> bytes:
    """A bundle's files as a zip."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo(name, EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.create_system = 3  # Unix on any system, so that the permissions below apply
            info.external_attr = (stat.S_IFREG | file_mode(name)) << 16
            archive.writestr(info, data)
    return buffer.getvalue()


def write_bundle(recipe: Recipe, target: Path, key: bytes | None = None) -> Path:
    """Write the bundle as ``target``: a zip by its suffix, else a folder; a failure leaves nothing.

    A stopped bundle in that folder is replaced, and its ``run/`` is kept.

    Raises:
        InputError: when ``target`` is not writable, runs, or is a folder with other content.
    """
    from recipe_core.bundle.replace import replace_folder  # needs file locks, as zips do not

    if target.suffix == ".zip":
        write_whole(target, zip_bytes(recipe, key))
        return target
    replace_folder(target, bundle_files(recipe, key))
    return target
