"""A placed fleet as one folder: the document, the answer, a bundle a placement, what joins them."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from recipe_core.base.documents import flush_to_disk, parse_json, to_json, to_yaml
from recipe_core.base.errors import InputError, NoAnswer, RecipeError
from recipe_core.bundle.contents import file_mode
from recipe_core.bundle.replace import exchange_paths
from recipe_core.bundle.signing import MANIFEST
from recipe_core.bundle.write import Bundle, bundle_of
from recipe_core.fleets.answer import FleetAnswer
from recipe_core.fleets.exports import cluster, kueue, router, schedule
from recipe_core.fleets.exports.parts import Part, fleet_parts, node_labels, pool_vendor
from recipe_core.fleets.exports.report import fleet_report
from recipe_core.fleets.exports.texts import render_export
from recipe_core.fleets.slice_files import (
    NodeCuts,
    amd_partition_commands,
    mig_parted_config,
    nodes_cuts,
)
from recipe_core.recipe.build import Additions, make_recipe
from recipe_core.recipe.place import Parameters
from recipe_core.request.schema import PlanRequest
from recipe_core.targets import slurm as slurm_target
from recipe_core.targets.context import Context

_CHARGES = ("team", "project", "cost_centre", "models", "devices", "usd_per_hour", "usd_per_month")
_LOOPBACK = Parameters().host


# --- what joins the bundles


def iter_files(answer: FleetAnswer, parameters: Parameters | None = None) -> Mapping[str, str]:
    """Files that join the bundles of a fleet, by path, without them and without overlays over them.

    ``parameters``: of the place, for all bundles; by default the namespace is the fleet's name.
    """
    base = parameters or Parameters(namespace=answer.request.name)
    return _joining_files(answer, fleet_parts(answer), {}, base)


def _joining_files(
    answer: FleetAnswer, parts: Sequence[Part], bundles: Mapping[str, Bundle], base: Parameters
) -> dict[str, str]:
    files = {name: bundle.files for name, bundle in bundles.items()}
    contexts = {name: bundle.context for name, bundle in bundles.items()}
    place = router.RouterPlace(
        base.namespace,
        base.port,
        {name: context.launch.health for name, context in contexts.items()},
        {name: served_name(context) for name, context in contexts.items()},
    )
    templates = (t for bundle in files.values() for t in cluster.pod_templates(bundle))
    host_resources = set(kueue.HOST_RESOURCES).union(*(t.host for t in templates))
    return {
        **router.router_files(answer, parts, place),
        **cluster.cluster_files(parts, files, base.namespace),
        **kueue.kueue_files(answer, parts, base.namespace, host_resources),
        **cluster.claim_files(parts, files, base.namespace),
        **schedule.partition_files(answer, parts),
        **schedule.hand_files(answer, parts, base.port),
        **schedule.night_files(answer, parts, files, base.namespace),
        **charge_files(answer),
        **slice_files(answer),
    }


def served_name(context: Context) -> str:
    """The model's name to its servers, of which some are told the folder or id that they load."""
    name = context.launch.api_model
    return context.model_source if name == "${model}" else name


def charge_files(answer: FleetAnswer) -> dict[str, str]:
    """Costs by team, project and cost centre, tags, and the labels of OpenCost."""
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(_CHARGES)
    for row in answer.charges:
        names = (row.team, row.project, row.cost_centre, " ".join(row.models))
        # a sign before what a spreadsheet would take for a formula
        cells = [f"'{text}" if text and text[0] in "=+-@" else text or "" for text in names]
        numbers = (f"{row.devices:.2f}", f"{row.usd_per_hour:.4f}", f"{row.usd_per_month:.2f}")
        writer.writerow([*cells, *numbers])
    templates = ("tags.json", "opencost.yaml")
    files = {name: render_export(f"charges/{name}.j2", answer=answer) for name in templates}
    files["charges.csv"] = table.getvalue()
    return {f"charges/{name}": text for name, text in files.items()}


def slice_files(answer: FleetAnswer) -> dict[str, str]:
    """Files that cut devices, a configuration of mig-parted or a script of amd-smi a node.

    Raises:
        HardwareError: for a cut that a device does not allow.
    """
    configurations: dict[str, NodeCuts] = {}
    files: dict[str, str] = {}
    for use in answer.pools:
        cuts = [(cut.devices, cut.counts) for cut in use.cuts]
        for k, node in enumerate(nodes_cuts(use.device, use.per_node, cuts)):
            if pool_vendor(answer.request.pool(use.name)) == "amd":
                files[f"slices/{use.name}-{k}.sh"] = amd_partition_commands(node)
            else:
                configurations[f"{use.name}-{k}"] = node
    if configurations:
        files["slices/mig-parted.yaml"] = mig_parted_config(configurations)
    return files


# --- bundles


def placement_bundle(part: Part, base: Parameters) -> tuple[Bundle, str | None]:
    """The bundle of a placement, and why it is not for its scheduler, where it is not.

    Raises:
        InputError: for a request that cannot be read, or parameters that it cannot have.
        NoAnswer: where the layout cannot be started.
    """
    request = PlanRequest.parse(dict(part.placement.request))
    recipe = make_recipe(request, Additions(parameters=_part_place(part, base)), folders=False)
    recipe = recipe.model_copy(update={"name": part.name}).locked()
    try:
        return bundle_of(recipe), None
    except InputError as error:
        if error.field != "parameters.target":
            raise
        free = recipe.parameters.model_copy(update={"target": None})
        return bundle_of(recipe.model_copy(update={"parameters": free}).locked()), error.message


def _part_place(part: Part, base: Parameters) -> Parameters:
    """The parameters of a placement: its replicas, queue, priority and nodes."""
    changes: dict[str, Any] = {"min_replicas": part.replicas, "max_replicas": part.replicas}
    if part.scheduler == "kubernetes":
        changes |= {
            "target": "jobset" if part.trains else "kubernetes",
            "queue": kueue.queue_name(part),
            "priority_class": kueue.priority_of(part).name,
            "node_selector": {**base.node_selector, **node_labels(part.answer, part.pool)},
        }
    else:
        changes["host"] = "0.0.0.0" if base.host == _LOOPBACK else base.host  # noqa: S104 - for routers
    if part.scheduler == "slurm":
        changes |= {
            "target": "slurm",
            "partition": schedule.partition_name(part.pool, preemptible=part.borrows),
            "queue": part.team + ("-jobs" if part.borrows else ""),
            "account": part.team,
            "gpu_type": part.placement.slice or base.gpu_type,
        }
    return base.model_copy(update=changes)


def _replica_jobs(part: Part, parts: Sequence[Part], bundle: Bundle) -> Iterator[tuple[str, bytes]]:
    """Jobs of Slurm, one a replica with a port of its own, and what their processes read."""
    context, parameters = bundle.context, bundle.context.parameters
    if part.scheduler != "slurm" or isinstance(bundle.targets["slurm"], str):
        return
    for k, (_, port, _) in enumerate(router.replica_places(part, parts, parameters.port)):
        moved = replace(context, parameters=parameters.model_copy(update={"port": port}))
        for name, text in {**context.mounted, **slurm_target.slurm_files(moved)}.items():
            yield f"slurm/{part.name}/{k}/{name}", text.encode()


# --- the folder


def fleet_folder(answer: FleetAnswer, parameters: Parameters | None = None) -> dict[str, bytes]:
    """Every file of a fleet's folder by path, the list of digests last.

    Raises:
        RecipeError: for a placement whose bundle cannot be made, by its name.
    """
    base, parts = parameters or Parameters(namespace=answer.request.name), fleet_parts(answer)
    bundles: dict[str, Bundle] = {}
    refused: dict[str, str] = {}
    files: dict[str, bytes] = {}
    for part in parts:
        try:
            bundle, reason = placement_bundle(part, base)
        except RecipeError as error:
            message = f"no bundle of {part.name}: {error.message}"
            raise NoAnswer(message, field=error.field, hint=error.hint) from None
        bundles[part.name] = bundle
        refused |= {part.name: reason} if reason else {}
        files |= {f"{part.folder}/{name}": content for name, content in bundle.files.items()}
        files.update(_replica_jobs(part, parts, bundle))
    joined = _joining_files(answer, parts, bundles, base)
    readme = {"answer": answer, "parts": parts, "refused": refused, "namespace": base.namespace}
    folders = {path.split("/")[0] for path in joined}
    texts = {
        **joined,
        "fleet.yaml": to_yaml(answer.request.to_json()),
        "answer.json": to_json(answer.to_json()) + "\n",
        "report.html": fleet_report(answer),
        "README.md": render_export("README.md.j2", folders=folders, **readme),
    }
    files |= {path: text.encode() for path, text in texts.items()}
    digests = {path: hashlib.sha256(files[path]).hexdigest() for path in sorted(files)}
    listed = {"schema_version": 1, "fleet": answer.request.name, "files": digests}
    return {**dict(sorted(files.items())), MANIFEST: to_json(listed).encode()}


def write_fleet(answer: FleetAnswer, folder: Path, parameters: Parameters | None = None) -> Path:
    """Write a fleet's folder, whole or not at all; an older one of a fleet is replaced.

    Raises:
        InputError: when ``folder`` holds what no fleet wrote, or cannot be written.
        RecipeError: as ``fleet_folder``.
    """
    target = folder.resolve()
    try:
        if (foreign := _foreign_file(target)) is not None:
            raise InputError(
                f"{target} holds {foreign}, which no fleet wrote.",
                field="output",
                hint="Choose an empty or new folder.",
            )
        place = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.swap-"))
        try:
            _put_whole(fleet_folder(answer, parameters), target, place)
        finally:
            shutil.rmtree(place, ignore_errors=True)
    except OSError as error:
        message = f"cannot write {folder}: {error.strerror}."
        raise InputError(message, field="output", hint="Choose another place.") from None
    return folder


def _foreign_file(target: Path) -> str | None:
    """A file of a folder that no fleet wrote, such as a bundle's runs; None where there is none."""
    if target.exists() and not target.is_dir():
        return "a file"
    listed: Any = None
    with suppress(OSError, RecipeError, UnicodeDecodeError):
        listed = parse_json((target / MANIFEST).read_text(encoding="utf-8"), MANIFEST)
    is_fleet = isinstance(listed, dict) and "fleet" in listed
    names = {MANIFEST, *listed["files"]} if is_fleet else set[str]()
    for parent, _, entries in os.walk(target):
        paths = [(Path(parent) / entry).relative_to(target) for entry in entries]
        for path in paths:
            if path.as_posix() not in names and path.parent.name != "__pycache__":
                return path.as_posix()
    return None


def _put_whole(files: Mapping[str, bytes], target: Path, place: Path) -> None:
    """Write the files into ``place`` and have them trade places with what is at ``target``.

    Raises:
        OSError: when something cannot be written; what was at ``target`` is there again.
    """
    new, old = place / "new", place / "old"
    for name, content in files.items():
        (new / name).parent.mkdir(parents=True, exist_ok=True)
        with (new / name).open("wb") as file:
            file.write(content)
            (new / name).chmod(file_mode(name))
            flush_to_disk(file)
    if target.exists() and exchange_paths(target, new):
        return
    if target.exists():
        target.rename(old)
    try:
        new.rename(target)
    except OSError:
        if old.exists():
            old.rename(target)
        raise
