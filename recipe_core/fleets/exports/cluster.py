"""Kubernetes: overlays over the bundles' objects, and claims of devices by DRA.

An overlay gives a placement its team's labels and spreads its replicas over racks. A second one
over it claims devices in place of a plugin's resource; a cluster takes one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recipe_core.base.documents import parse_yaml
from recipe_core.fleets.exports.kueue import priority_levels, priority_of
from recipe_core.fleets.exports.parts import Part, pool_vendor
from recipe_core.fleets.exports.texts import render_export
from recipe_core.targets.names import cluster_names

Files = Mapping[str, bytes]
# Folders of bundles with objects for Kubernetes, by what is run.
TARGETS = ("kubernetes", "jobset")
# Vendors with a driver of DRA.
CLAIMED_VENDORS = ("nvidia", "amd")
# Where an object's pod templates are.
_TEMPLATES = {
    "Deployment": ("/spec/template",),
    "LeaderWorkerSet": (
        "/spec/leaderWorkerTemplate/leaderTemplate",
        "/spec/leaderWorkerTemplate/workerTemplate",
    ),
    "JobSet": ("/spec/replicatedJobs/0/template/spec/template",),
}


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """A template of pods in an object of a bundle: where it is, and what its containers ask for.

    ``devices``: by the number of a container that has some the resource, and how many of it.
    ``host``: names of what else they ask for. ``annotated``: whether it has annotations.
    """

    kind: str
    name: str
    path: str
    devices: Mapping[int, tuple[str, int]]
    host: frozenset[str]
    annotated: bool


def bundle_target(files: Files) -> str | None:
    """The bundle's target for Kubernetes; None where it has none."""
    return next((t for t in TARGETS if f"targets/{t}/kustomization.yaml" in files), None)


def pod_templates(files: Files) -> list[PodTemplate]:
    """The templates of pods in a bundle's objects for Kubernetes."""
    folder = f"targets/{bundle_target(files)}/"
    documents = [
        parse_yaml(text.decode(), path)
        for path, text in sorted(files.items())
        if path.startswith(folder) and path.endswith(".yaml")
    ]
    return [template for document in documents for template in _templates_in(document)]


def _templates_in(document: Any) -> Iterator[PodTemplate]:
    kind = document.get("kind") if isinstance(document, dict) else None
    vendors = {str(names.resource).partition("/")[0] for names in cluster_names().vendors.values()}
    for path in _TEMPLATES.get(str(kind), ()):
        place: Any = document
        for step in path.strip("/").split("/"):
            place = place[int(step)] if isinstance(place, list) else place.get(step, {})
        devices, host = dict[int, tuple[str, int]](), set[str]()
        for k, container in enumerate(place.get("spec", {}).get("containers", ())):
            resources = container.get("resources", {})
            amounts = {**resources.get("requests", {}), **resources.get("limits", {})}
            for name, amount in amounts.items():
                if name.partition("/")[0] in vendors and "rdma" not in name:
                    devices[k] = (name, int(amount))
                else:
                    host.add(name)
        if place:
            name = document["metadata"]["name"]
            annotated = bool(place.get("metadata", {}).get("annotations"))
            yield PodTemplate(str(kind), name, path, devices, frozenset(host), annotated)


def cluster_files(
    parts: Sequence[Part], bundles: Mapping[str, Files], namespace: str
) -> dict[str, str]:
    """The namespace, priorities and overlays, for ``kubectl apply -k kubernetes``.

    ``bundles``: files of a placement's bundle by its name; overlays are of those that are given.
    """
    inside = [part for part in parts if part.scheduler == "kubernetes"]
    if not inside:
        return {}
    values = {"levels": priority_levels(inside), "namespace": namespace}
    names = ("namespace.yaml", "priorities.yaml")
    files = {
        f"kubernetes/{name}": render_export(f"kubernetes/{name}.j2", **values) for name in names
    }
    resources = [*names]
    for part in inside:
        bundle = bundles.get(part.name, {})
        if target := bundle_target(bundle):
            resources.append(part.name)
            files[f"kubernetes/{part.name}/kustomization.yaml"] = render_export(
                "kubernetes/overlay.yaml.j2",
                part=part,
                bundle=f"../../{part.folder}/targets/{target}",
                level=priority_of(part),
                templates=pod_templates(bundle),
            )
    listed = render_export("kustomization.yaml.j2", resources=resources)
    return {**files, "kubernetes/kustomization.yaml": listed}


def claim_files(
    parts: Sequence[Part], bundles: Mapping[str, Files], namespace: str
) -> dict[str, str]:
    """Claims a placement, with the overlay that has its pods take them, below ``dra/``.

    Without a bundle there is the claim alone, of the devices that a replica has on a node.
    """
    files: dict[str, str] = {}
    for part in parts:
        vendor = pool_vendor(part.pool)
        if part.scheduler != "kubernetes" or vendor not in CLAIMED_VENDORS:
            continue
        templates = [t for t in pod_templates(bundles.get(part.name, {})) if t.devices]
        per_node = min(part.devices_each, part.pool.per_node or part.devices_each)
        values = {
            "part": part,
            "namespace": namespace,
            "vendor": vendor,
            "templates": templates,
            "requests": [[n for _, n in t.devices.values()] for t in templates] or [[per_node]],
        }
        names = ("claims.yaml", "kustomization.yaml") if templates else ("claims.yaml",)
        for name in names:
            files[f"dra/{part.name}/{name}"] = render_export(f"dra/{name}.j2", **values)
    return files
