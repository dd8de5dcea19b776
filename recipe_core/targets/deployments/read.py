"""Which kind of deployment a text is, and its engines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import Any

from recipe_core.base.errors import InputError
from recipe_core.targets.deployments import helm, kserve
from recipe_core.targets.deployments.compose import read_compose
from recipe_core.targets.deployments.deployed import DeployedEngine, DeploymentFile, Kind, Left
from recipe_core.targets.deployments.documents import MAX_BYTES, Mapped, read_documents
from recipe_core.targets.deployments.kubernetes import read_resource
from recipe_core.targets.deployments.shell import read_shell
from recipe_core.targets.deployments.skypilot import read_task
from recipe_core.targets.deployments.slurm import is_slurm, read_slurm

SCRIPTS = (".sh", ".bash", ".zsh", ".sbatch", ".slurm", ".job", ".sub")
DOCUMENTS = (".yaml", ".yml", ".json")
MAX_ENGINES = 500
"""Engines of one file that are read."""

Found = Iterator[DeployedEngine | Left]


def read_deployment(text: str, name: str = "file") -> DeploymentFile:
    """The engines of a file.

    Args:
        text: its content.
        name: its name, whose suffix tells scripts from documents.

    Raises:
        InputError: when it is too large, cannot be read, or is of no known kind.
    """
    if len(text) > MAX_BYTES:
        message = f"has {len(text):,} characters; at most {MAX_BYTES:,} are read."
        raise InputError(message, field="file")
    if _is_script(text, name):
        return (
            _file("slurm", read_slurm(text)) if is_slurm(text) else _file("shell", read_shell(text))
        )
    documents = read_documents(text)
    kinds = [kind for kind in map(kind_of, documents) if kind is not None]
    if not kinds:
        hint = "Known: Compose, Kubernetes, KServe, SkyPilot, Slurm, Helm values, shell scripts."
        raise InputError("is no deployment file of a known kind.", field="file", hint=hint)
    return _file(kinds[0], (each for document in documents for each in _engines(document)))


def _is_script(text: str, name: str) -> bool:
    suffix = PurePath(name).suffix.casefold()
    if suffix in SCRIPTS or text.startswith("#!"):
        return True
    return suffix not in DOCUMENTS and is_slurm(text)


def is_deployment(text: str, name: str) -> bool:
    """Whether a text deploys something, rather than being a request; broken YAML counts as none."""
    if _is_script(text, name):
        return True
    try:
        return any(kind_of(document) for document in read_documents(text))
    except InputError:
        return "apiVersion:" in text or "services:" in text


def _file(kind: Kind, found: Iterable[DeployedEngine | Left]) -> DeploymentFile:
    engines: list[DeployedEngine] = []
    left: list[Left] = []
    for each in found:
        if len(engines) + len(left) >= MAX_ENGINES:
            left.append(Left("file", None, f"more than {MAX_ENGINES} engines; the rest is left."))
            break
        if isinstance(each, DeployedEngine):
            engines.append(each)
        else:
            left.append(each)
    return DeploymentFile(kind, tuple(engines), tuple(left))


def kind_of(document: Any) -> Kind | None:
    """The kind of a YAML document; None for one that deploys nothing."""
    if not isinstance(document, Mapped):
        return None
    if "apiVersion" in document and "kind" in document:
        if document["kind"] in kserve.KINDS:
            return "kserve"
        return "dynamo" if "Dynamo" in str(document["kind"]) else "kubernetes"
    if isinstance(document.get("services"), Mapped):
        return "compose"
    if isinstance(document.get("run"), str):
        return "skypilot"
    image = document.get("image")
    if helm.STACK in document or (isinstance(image, Mapped) and "repository" in image):
        return "helm"
    return None


def _engines(document: Any) -> Found:
    kind = kind_of(document)
    if kind == "kserve":
        yield from kserve.read_service(document)
    elif kind in ("kubernetes", "dynamo"):
        for item in _items(document):
            yield from _engines(item) if item is not document else read_resource(item)
    elif kind == "compose":
        yield from read_compose(document)
    elif kind == "skypilot":
        yield from read_task(document)
    elif kind == "helm":
        yield from helm.read_stack(document)
        yield from helm.read_values(document)


def _items(document: Mapped) -> list[Any]:
    """The documents in a list of documents, else the document."""
    items = document.get("items")
    is_list = isinstance(items, list) and str(document["kind"]).endswith("List")
    return list(items or ()) if is_list else [document]
