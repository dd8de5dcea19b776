"""A placed fleet as one folder: the document, the answer, a bundle a placement, what joins them."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from recipe_core.base.documents import parse_json, to_json, to_yaml, write_whole
from recipe_core.base.errors import InputError, RecipeError
from recipe_core.bundle.contents import file_mode
from recipe_core.bundle.replace import exchange_paths
from recipe_core.bundle.signing import MANIFEST
from recipe_core.engines.frameworks import framework
from recipe_core.engines.spec import engine, engine_names
from recipe_core.fleets.answer import FleetAnswer, PlacedJob, PlacedModel
from recipe_core.fleets.exports.cluster import cluster_files
from recipe_core.fleets.exports.parts import fleet_parts
from recipe_core.fleets.exports.router import router_files
from recipe_core.fleets.exports.schedule import night_files, partition_files
from recipe_core.fleets.exports.slices import slice_files
from recipe_core.fleets.exports.texts import render_export

_CHARGES = ("team", "project", "cost_centre", "models", "devices", "usd_per_hour", "usd_per_month")


def fleet_folder(answer: FleetAnswer) -> dict[str, bytes]:
    """Every file of a fleet's folder by path, the list of digests last.

    Raises:
        RecipeError: for a placement whose bundle cannot be made, by its name.
    """
    parts = fleet_parts(answer)
    files = {f"{p.folder}/{name}": data for p in parts for name, data in p.bundle.files.items()}
    texts = {
        **router_files(answer, parts),
        **cluster_files(answer, parts),
        **partition_files(answer, parts),
        **night_files(answer, parts),
        **charge_files(answer),
        **slice_files(answer),
    }
    paths = {place for path in texts for place in (path, path.split("/")[0])}
    texts["README.md"] = render_export("README.md.j2", paths=paths, answer=answer, parts=parts)
    texts["fleet.yaml"] = to_yaml(answer.request.to_json())
    texts["answer.json"] = to_json(answer.to_json()) + "\n"
    texts["report.html"] = fleet_report(answer)
    files |= {path: text.encode() for path, text in texts.items()}
    digests = {path: hashlib.sha256(files[path]).hexdigest() for path in sorted(files)}
    listed = {"schema_version": 1, "fleet": answer.request.name, "files": digests}
    return {**dict(sorted(files.items())), MANIFEST: to_json(listed).encode()}


def fleet_report(answer: FleetAnswer) -> str:
    """The answer as one HTML file: it opens offline, runs nothing and requests nothing."""
    engines = engine_names()
    names = {placement.engine for _, placement in answer.placements()}
    titles = {name: (engine if name in engines else framework)(name).title for name in names}
    return render_export("report.html.j2", answer=answer, titles=titles)


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
    owners: list[PlacedModel | PlacedJob] = [*answer.models, *answer.jobs]
    tags = {owner.name: {name: getattr(owner, name) for name in _CHARGES[:3]} for owner in owners}
    return {
        "charges/charges.csv": table.getvalue(),
        "charges/tags.json": to_json(tags),
        "charges/opencost.yaml": render_export("charges/opencost.yaml.j2"),
    }


def write_fleet(answer: FleetAnswer, folder: Path) -> Path:
    """Write a fleet's folder, whole or not at all; an older one of a fleet is replaced.

    Raises:
        InputError: when ``folder`` holds what no fleet wrote, or cannot be written.
        RecipeError: as ``fleet_folder``.
    """
    target = folder.resolve()
    try:
        if (foreign := _foreign_file(target)) is not None:
            message = f"{target} holds {foreign}, which no fleet wrote."
            raise InputError(message, field="output", hint="Choose an empty or new folder.")
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fleet-") as place:
            new = Path(place) / "new"
            for name, content in fleet_folder(answer).items():
                (new / name).parent.mkdir(parents=True, exist_ok=True)
                write_whole(new / name, content)
                (new / name).chmod(file_mode(name))
            if target.exists() and not exchange_paths(target, new):
                target.rename(Path(place) / "old")
            if not target.exists():
                new.rename(target)
    except OSError as error:
        message = f"cannot write {folder}: {error.strerror}."
        raise InputError(message, field="output", hint="Choose another place.") from None
    return folder


def _foreign_file(target: Path) -> str | None:
    """A file of a folder that no fleet wrote, such as a bundle's runs; None where there is none."""
    if target.exists() and not target.is_dir():
        return "a file"
    names = set[str]()
    with suppress(OSError, RecipeError, UnicodeDecodeError, TypeError, KeyError):
        listed = parse_json((target / MANIFEST).read_text(encoding="utf-8"), MANIFEST)
        names = {MANIFEST, *listed["files"]} if listed["fleet"] else names
    for parent, _, entries in os.walk(target):
        for path in ((Path(parent) / entry).relative_to(target) for entry in entries):
            if path.as_posix() not in names and path.parent.name != "__pycache__":
                return path.as_posix()
    return None
