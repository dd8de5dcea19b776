"""A recipe as files that start: written deterministically, whole or not at all. ``verify.py`` reads them.

``recipe.yaml`` (the decision), ``expected.json`` (what it should do), ``launch.json`` (what to start), ``launch.py`` and ``launcher/``
(standard library only), what the engine or the trainer reads, ``targets/`` and ``monitoring/`` (other places to start it), ``sbom.json``
(what is pulled), ``README.md``, ``MANIFEST.json`` (SHA-256 of every other file) and, where a key was given, ``SIGNATURE`` over it.
"""

from __future__ import annotations

import io
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe_core.base.documents import to_json, to_yaml, write_whole
from recipe_core.base.errors import InputError
from recipe_core.base.resources import PACKAGE
from recipe_core.base.secrets import refuse_planted
from recipe_core.bundle.manifest import MANIFEST, Manifest
from recipe_core.bundle.readme import bundle_readme
from recipe_core.bundle.sbom import sbom
from recipe_core.bundle.signing import SIGNATURE, sign
from recipe_core.engines.spec import engine
from recipe_core.launch.process import Launch
from recipe_core.launch.training.container import PATH as CONTAINERFILE
from recipe_core.recipe import Recipe
from recipe_core.recipe.build import redecide
from recipe_core.recipe.decision import Decision
from recipe_core.recipe.launch_variants import launch_variants
from recipe_core.request.schema import ServingWorkload
from recipe_core.targets import Context, each_target
from recipe_core.targets.of_recipe import image_file, target_context

EPOCH = (
    1980,
    1,
    1,
    0,
    0,
    0,
)  # the earliest date a zip can hold; the same recipe gives the same bytes
RUN_FOLDER = "run"
LAUNCH_PY = '''#!/usr/bin/env python3
"""Start, measure and stop what this bundle describes: python launch.py preflight | up | bench | status | down."""

from launcher.main import main

if __name__ == "__main__":
    raise SystemExit(main())
'''


@dataclass(frozen=True, slots=True)
class Bundle:
    """A recipe with everything that is made from it.

    ``targets``: each target's files by path, or the sentence that refuses it. ``files``: of the whole bundle, by path, the manifest last.
    """

    recipe: Recipe
    context: Context
    targets: Mapping[str, Mapping[str, str] | str]
    files: Mapping[str, bytes]


def bundle_of(recipe: Recipe) -> Bundle:
    """The bundle of a recipe; raises InputError when a file would hold a secret of this machine."""
    decision = redecide(recipe)
    started = decision.started()
    context = target_context(recipe, decision, started)
    launch = launch_document(recipe, decision, started)
    targets = each_target(context)
    others = dict(started.files)
    if text := image_file(decision, recipe.device.runtime):
        others[CONTAINERFILE] = text
    for made in targets.values():
        others |= made if isinstance(made, dict) else {}
    refused = {name: made for name, made in targets.items() if isinstance(made, str)}
    files = {path: text.encode() for path, text in others.items()} | {
        "README.md": bundle_readme(recipe, launch, others, refused).encode(),
        "expected.json": to_json(recipe.estimate).encode(),
        "launch.json": to_json(launch).encode(),
        "launch.py": LAUNCH_PY.encode(),
        "recipe.yaml": to_yaml(recipe.model_dump(mode="json")).encode(),
        "sbom.json": to_json(sbom(recipe)).encode(),
    }
    files |= {
        f"launcher/{path.name}": path.read_bytes()
        for path in sorted((PACKAGE / "launcher").glob("*.py"))
    }
    refuse_planted(files)
    manifest = Manifest.of(recipe.name, recipe.digest, files)
    return Bundle(
        recipe,
        context,
        targets,
        dict(sorted(files.items())) | {MANIFEST: to_json(manifest.model_dump()).encode()},
    )


def bundle_files(recipe: Recipe, key: bytes | None = None) -> dict[str, bytes]:
    """Every file of the bundle, by path, the manifest last; with a private ``key`` (PEM) also its signature.

    Raises:
        InputError: for a key that is none, and when a file would hold a secret of this machine.
    """
    files = dict(bundle_of(recipe).files)
    return files | ({SIGNATURE: sign(files[MANIFEST], key)} if key else {})


def launch_document(recipe: Recipe, decision: Decision, started: Launch) -> dict[str, Any]:
    """``launch.json``: the processes with their parameters still open (model, host, port, addresses of nodes)."""
    device = recipe.device
    return {
        "schema_version": 1,
        "kind": recipe.kind,
        "nodes": started.nodes,
        "name": recipe.name,
        "engine": _engine(decision, started),
        "needs": {
            "runtime": device.runtime,
            "device": device.name,
            "title": device.title,
            "names": list(device.names),
            "count": device.count,
            "per_node": device.per_node or device.count,
            "memory_bytes": device.memory_bytes,
            "used_bytes": int(recipe.estimate["memory"]["total_bytes"]),
        },
        "parameters": {
            "model": recipe.parameters.model or recipe.model.id,
            "host": recipe.parameters.host,
            "port": recipe.parameters.port,
        },
        "processes": [
            {
                "name": p.name,
                "argv": list(p.argv),
                "env": p.env,
                "port_offset": p.port_offset,
                "devices": list(p.devices),
                "node": p.node,
                "role": p.role,
                "group": p.group,
            }
            for p in started.processes
        ],
        "health": started.health,
        "startup_timeout_s": started.startup_timeout_s,
        "api": {"path": started.api_path, "model": started.api_model, "body": started.api_body},
        "workload": _traffic(recipe.request["workload"])
        if recipe.kind == "serving"
        else recipe.request["workload"],
        **({"variants": variants} if (variants := launch_variants(recipe)) else {}),
    }


def _engine(decision: Decision, started: Launch) -> dict[str, Any]:
    """The program that is started, the module whose version is looked up, and how to install it."""
    program = (
        engine(decision.engine).program
        if started.kind == "serving"
        else started.processes[0].argv[0]
    )
    named = {
        "name": decision.engine,
        "version": decision.version,
        "program": program,
        "module": decision.module,
    }
    return named | {"install": decision.install, "requires": list(started.requires)}


def _traffic(workload: dict[str, Any]) -> dict[str, Any]:
    """The part of a workload that a load generator needs, defaults included."""
    full = ServingWorkload.model_validate(workload)
    return {
        name: getattr(full, name)
        for name in (
            "mode",
            "input_tokens",
            "output_tokens",
            "concurrency",
            "request_rate",
            "batch",
            "requests",
        )
    }


def zip_bytes(recipe: Recipe, key: bytes | None = None) -> bytes:
    """The bundle as a zip; the same recipe (and key) gives the same bytes."""
    return zipped(bundle_files(recipe, key))


def zipped(files: Mapping[str, bytes]) -> bytes:
    """A bundle's files as a zip."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo(name, EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.create_system = (
                3  # Unix, wherever it is built, so that the permissions below mean something
            )
            info.external_attr = (stat.S_IFREG | _mode(name)) << 16
            archive.writestr(info, data)
    return buffer.getvalue()


def _mode(name: str) -> int:
    return 0o755 if name == "launch.py" or name.endswith(".sh") else 0o644


def write_bundle(recipe: Recipe, target: Path, key: bytes | None = None) -> Path:
    """Write the bundle as ``target``: a zip by its suffix, else a folder. Nothing is left behind when it fails.

    Raises:
        InputError: when the place is not writable, or a folder of that name has other content.
    """
    if target.suffix == ".zip":
        write_whole(target, zip_bytes(recipe, key))
        return target
    replace_folder(target, bundle_files(recipe, key))
    return target


def replace_folder(target: Path, files: dict[str, bytes]) -> None:
    """Put ``files`` into a new folder beside ``target`` and swap it in; only an empty folder or an old bundle is replaced."""
    if target.exists() and not target.is_dir():
        raise InputError(
            f"{target} exists and is not a folder.",
            field="output",
            hint="Choose another name, or one that ends in .zip.",
        )
    if target.is_dir() and any(target.iterdir()) and not (target / MANIFEST).is_file():
        raise InputError(
            f"{target} is a folder with other content.",
            field="output",
            hint="Choose an empty or new folder.",
        )
    if (target / RUN_FOLDER / "state.json").exists():
        raise InputError(
            f"{target} is running.", field="output", hint=f"Stop it first: recipe down {target}"
        )
    try:
        fresh = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    except OSError as error:
        raise InputError(
            f"cannot write {target}: {error.strerror}.",
            field="output",
            hint="Choose another place.",
        ) from None
    try:
        for name, data in files.items():
            path = fresh / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            path.chmod(_mode(name))
        fresh.chmod(0o755)
        if target.exists():
            shutil.rmtree(target)
        fresh.replace(target)
    except OSError as error:
        shutil.rmtree(fresh, ignore_errors=True)
        raise InputError(
            f"cannot write {target}: {error.strerror}.",
            field="output",
            hint="Choose another place.",
        ) from None
