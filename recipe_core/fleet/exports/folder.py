"""A placed fleet as one folder: the document, the answer, a bundle a placement, what joins them."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
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
from recipe_core.fleet.answer import FleetAnswer
from recipe_core.fleet.exports.cluster import claim_files, kubernetes_files, pod_templates
from recipe_core.fleet.exports.kueue import HOST_RESOURCES, kueue_files, priority_of, queue_name
from recipe_core.fleet.exports.parts import Part, fleet_parts, label_value, node_labels
from recipe_core.fleet.exports.report import fleet_report
from recipe_core.fleet.exports.router import RouterPlace, router_files
from recipe_core.fleet.exports.schedule import (
    borrows,
    hand_files,
    night_files,
    partition_name,
    service_class,
    slurm_files,
)
from recipe_core.fleet.exports.texts import render_export
from recipe_core.recipe.build import Additions, make_recipe
from recipe_core.recipe.place import Parameters
from recipe_core.request.schema import PlanRequest
from recipe_core.targets.slurm import slurm_files as job_files

_LOOPBACK = Parameters().host


def iter_files(answer: FleetAnswer, parameters: Parameters | None = None) -> Mapping[str, str]:
    """What joins the bundles of a fleet, by path, without them and without overlays over them.

    ``parameters``: of the place, for all bundles; by default the namespace is the fleet's name.
    """
    return _joining_files(answer, fleet_parts(answer), {}, _place(answer, parameters))


def _place(answer: FleetAnswer, parameters: Parameters | None) -> Parameters:
    return parameters or Parameters(namespace=answer.request.name)


def _joining_files(
    answer: FleetAnswer, parts: Sequence[Part], bundles: Mapping[str, Bundle], base: Parameters
) -> dict[str, str]:
    files = {name: bundle.files for name, bundle in bundles.items()}
    launches = {name: bundle.context.launch for name, bundle in bundles.items()}
    place = RouterPlace(
        base.namespace,
        base.port,
        {name: launch.health for name, launch in launches.items()},
        {name: launch.api_model for name, launch in launches.items() if launch.api_model},
    )
    host = {name for f in files.values() for t in pod_templates(f) for name in t.host}
    return {
        **router_files(answer, parts, place),
        **kubernetes_files(parts, files, base.namespace),
        **kueue_files(answer, parts, base.namespace, {*HOST_RESOURCES, *host}),
        **claim_files(parts, files, base.namespace),
        **slurm_files(answer, parts),
        **hand_files(answer, parts, base.port),
        **night_files(answer, parts, files, base.namespace),
        **charge_files(answer),
        **slice_files(answer),
    }


# --- charges and slices


def charge_files(answer: FleetAnswer) -> dict[str, str]:
    """Costs by team, project and cost centre, and the labels by which OpenCost tells them apart."""
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    head = ("team", "project", "cost_centre", "models", "devices", "usd_per_hour", "usd_per_month")
    writer.writerow(head)
    for row in answer.charges:
        money = (f"{row.usd_per_hour:.4f}", f"{row.usd_per_month:.2f}")
        names = (row.team, row.project, row.cost_centre, " ".join(row.models))
        writer.writerow([*map(_plain_cell, names), f"{row.devices:.2f}", *money])
    tags = {
        owner.name: {
            key: text
            for key in ("team", "project", "cost_centre")
            if (text := getattr(owner, key)) is not None
        }
        for owner in (*answer.models, *answer.jobs)
    }
    return {
        "charges/charges.csv": table.getvalue(),
        "charges/tags.json": to_json(tags) + "\n",
        "charges/opencost.yaml": render_export("charges/opencost.yaml.j2", answer=answer),
    }


def _plain_cell(text: str | None) -> str:
    """A text that no spreadsheet takes for a formula."""
    return f"'{text}" if text and text[0] in "=+-@\t\r" else text or ""


def slice_files(answer: FleetAnswer) -> dict[str, str]:
    """Configurations that cut devices, where pools have some that are cut."""
    cuts = {use.name: use.cuts for use in answer.pools if use.cuts}
    if not cuts:
        return {}
    rows = {
        pool: [{"devices": cut.devices, "slices": dict(cut.counts)} for cut in kinds]
        for pool, kinds in cuts.items()
    }
    return {"slices/slices.json": to_json(rows) + "\n"}


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
            "queue": queue_name(part),
            "priority_class": priority_of(part).name,
            "node_selector": {**base.node_selector, **node_labels(part.answer, part.pool)},
        }
    else:
        changes["host"] = "0.0.0.0" if base.host == _LOOPBACK else base.host  # noqa: S104 - for routers
    if part.scheduler == "slurm":
        changes |= {
            "target": "slurm",
            "partition": partition_name(part.pool, preemptible=borrows(part)),
            "queue": service_class(part),
            "account": service_class(part).removesuffix("-jobs"),
            "gpu_type": part.placement.slice or base.gpu_type,
        }
    return base.model_copy(update=changes)


def _replica_files(part: Part, bundle: Bundle) -> dict[str, bytes]:
    """Jobs of Slurm, one a replica with a port of its own, and what their processes read."""
    context = bundle.context
    files: dict[str, bytes] = {}
    for k in range(part.replicas if part.scheduler == "slurm" else 0):
        place = context.parameters.model_copy(update={"port": context.parameters.port + k})
        own_files = {**context.mounted, **job_files(replace(context, parameters=place))}
        files |= {f"slurm/{part.name}/{k}/{n}": text.encode() for n, text in own_files.items()}
    return files


# --- the folder


def fleet_folder(answer: FleetAnswer, parameters: Parameters | None = None) -> dict[str, bytes]:
    """Every file of a fleet's folder by path, the list of digests last.

    Raises:
        RecipeError: for a placement whose bundle cannot be made, by its name.
    """
    base, parts = _place(answer, parameters), fleet_parts(answer)
    bundles: dict[str, Bundle] = {}
    refused: dict[str, str] = {}
    files: dict[str, bytes] = {}
    for part in parts:
        try:
            bundle, reason = placement_bundle(part, base)
        except NoAnswer as error:
            raise NoAnswer(f"{part.name}: {error.message}", field=error.field, hint=error.hint) from None
        bundles[part.name] = bundle
        refused |= {part.name: reason} if reason else {}
        files |= {f"{part.folder}/{name}": content for name, content in bundle.files.items()}
        with suppress(NoAnswer):
            files |= _replica_files(part, bundle)
    joined = _joining_files(answer, parts, bundles, base)
    texts = {
        **joined,
        "fleet.yaml": to_yaml(answer.request.to_json()),
        "answer.json": to_json(answer.to_json()) + "\n",
        "report.html": fleet_report(answer),
        "README.md": render_export(
            "README.md.j2",
            answer=answer,
            parts=parts,
            files={path.split("/")[0] for path in joined},
            refused=refused,
            namespace=base.namespace,
        ),
    }
    files |= {path: text.encode() for path, text in texts.items()}
    digests = {path: hashlib.sha256(files[path]).hexdigest() for path in sorted(files)}
    listed = {"schema_version": 1, "fleet": answer.request.name, "files": digests}
    return {**dict(sorted(files.items())), MANIFEST: to_json(listed).encode()}


def write_fleet(
    answer: FleetAnswer, folder: Path, parameters: Parameters | None = None
) -> Path:
    """Write a fleet's folder, whole or not at all; an older one of a fleet is replaced.

    Raises:
        InputError: when ``folder`` holds what no fleet wrote, or cannot be written.
        RecipeError: as ``fleet_folder``.
    """
    files = fleet_folder(answer, parameters)
    target = folder.resolve()
    _refuse_other_content(target)
    try:
        place = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.swap-"))
    except OSError as error:
        raise _write_error(folder, error) from None
    try:
        new = place / "new"
        for path, content in files.items():
            (new / path).parent.mkdir(parents=True, exist_ok=True)
            with (new / path).open("wb") as file:
                file.write(content)
                (new / path).chmod(file_mode(path))
                flush_to_disk(file)
        if not target.exists():
            new.rename(target)
        elif not exchange_paths(target, new):
            target.rename(place / "old")
            new.rename(target)
    except OSError as error:
        raise _write_error(folder, error) from None
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return folder


def _write_error(folder: Path, error: OSError) -> InputError:
    message = f"cannot write {folder}: {error.strerror}."
    return InputError(message, field="output", hint="Choose another place.")


def _refuse_other_content(target: Path) -> None:
    """Refuse a place with files that no fleet wrote, such as the runs of a bundle.

    Raises:
        InputError: naming the first.
    """
    if not target.exists():
        return
    listed: Any = None
    with suppress(OSError, RecipeError, UnicodeDecodeError):
        listed = parse_json((target / MANIFEST).read_text(encoding="utf-8"), MANIFEST)
    names = listed.get("files", {}) if isinstance(listed, dict) and "fleet" in listed else None
    for parent, _, entries in os.walk(target) if target.is_dir() else [(str(target), [], ["."])]:
        for entry in entries:
            path = (Path(parent) / entry).relative_to(target).as_posix()
            if names is None or path not in {*names, MANIFEST}:
                raise InputError(
                    f"{target} holds {path}, which no fleet wrote.",
                    field="output",
                    hint="Choose an empty or new folder.",
                )
