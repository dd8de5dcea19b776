"""Commands on what is known: models, hardware, engines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recipe_core.base.documents import finite
from recipe_core.base.errors import InputError
from recipe_core.doors.cli.app import Json, Name, app, emit, working

if TYPE_CHECKING:
    from recipe_core.hardware.profile import Device


def _listing(
    name: str | None,
    as_json: bool,
    names: list[str],
    show: Callable[[str], dict[str, Any]],
    line: Callable[[str], str],
) -> None:
    """Print one entry in full, or a line (with --json an object) for each of ``names``."""
    if name is not None:
        value = show(name)
        emit(value) if as_json else _print_facts(value)
    elif as_json:
        emit([show(entry) for entry in names])
    else:
        for entry in names:
            typer.echo(line(entry))


def _print_facts(value: dict[str, Any], indent: str = "") -> None:
    for key, item in value.items():
        if isinstance(item, dict) and item and not {"value", "compute_efficiency"} & set(item):
            typer.echo(f"{indent}{key}:")
            _print_facts(item, indent + "  ")
        else:
            text = json.dumps(finite(item), ensure_ascii=False, default=str)
            typer.echo(f"{indent}{key}: {text}")


@app.command()
def models(
    name: Name = None,
    refresh: Annotated[
        str | None,
        typer.Option(
            "--refresh",
            metavar="FROM",
            help="Keep configs of models: of a folder, of the ids in a text file, or of `hub`.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="With --refresh: the folder to keep them in."),
    ] = None,
    as_json: Json = False,
) -> None:
    """The model catalog; NAME may also be a folder with a config.json."""
    if refresh is not None:
        _refresh(refresh, name, out, as_json)
        return
    if out is not None:
        raise InputError("goes with --refresh.", field="out", hint="Leave it out.")
    from recipe_core.models.catalog import (
        catalog_entry,
        catalog_ids,
        catalog_model,
        in_catalog,
        load_model,
    )
    from recipe_core.views.views import model_view

    def show(entry: str) -> dict[str, Any]:
        return model_view(load_model(entry), catalog_entry(entry) if in_catalog(entry) else None)

    def line(entry: str) -> str:
        model = catalog_model(entry)
        active = f", {model.active_parameters / 1e9:.3g} B active" if model.is_moe else ""
        return f"{entry:44} {model.parameters / 1e9:7.3g} B{active}  {model.weight_dtype}"

    _listing(name, as_json, catalog_ids(), show, line)


def _refresh(origin: str, name: str | None, out: Path | None, as_json: bool) -> None:
    """Print what a refresh of this machine's own models found, the reasons included."""
    from recipe_core.models.own_models import VARIABLE, default_folder
    from recipe_core.models.refresh import refresh

    folder = out or default_folder()
    if folder is None:
        message = f"{VARIABLE} is empty, which switches the models of this machine off."
        raise InputError(message, field="out", hint="Give a folder: --out FOLDER.")
    with working("reading configs"):
        answer = refresh(origin, folder, only=name).to_json()
    if as_json:
        emit(answer)
        return
    for state in ("new", "changed"):
        for model_id in answer[state]:
            typer.echo(f"{state}: {model_id}")
    for entry in answer["not_modelled"]:
        typer.echo(f"not modelled: {entry['id']}: {entry['reason']}")
    counts = (
        f"{len(answer['new'])} new, {len(answer['changed'])} changed, {answer['same']} the same"
    )
    typer.echo(f"{counts}, {len(answer['not_modelled'])} not modelled; kept in {folder}")


@app.command()
def hardware(
    name: Name = None,
    detect: Annotated[
        bool, typer.Option("--detect", help="Read this machine instead of the catalog.")
    ] = False,
    as_template: Annotated[
        bool, typer.Option("--template", help="A YAML profile to edit, based on NAME.")
    ] = False,
    as_json: Json = False,
) -> None:
    """The device profiles with their sources; NAME may also be the path of your own profile."""
    if detect:
        _detect(name, as_json)
        return
    from recipe_core.base.units import gib
    from recipe_core.hardware.cluster import device, device_names
    from recipe_core.hardware.custom import is_path, read_profile
    from recipe_core.hardware.prices import offers_of
    from recipe_core.hardware.upload import template
    from recipe_core.views.views import hardware_view, offers_text

    def profile(entry: str) -> Device:
        return device(read_profile(entry) if is_path(entry) else entry)

    if as_template:
        if name is None:
            raise InputError(
                "--template needs a device to start from.",
                field="hardware",
                hint="For example: recipe hardware h100-sxm --template.",
            )
        typer.echo(template(profile(name)), nl=False)
        return

    def line(entry: str) -> str:
        d = device(entry)
        memory = f"{gib(d.usable_memory_bytes):>10}"
        bandwidth = f"{d.memory_bandwidth_bytes_per_s.value / 1e12:5.2f} TB/s"
        when = f", announced {d.announced.date}" if d.announced else ""
        return f"{entry:16} {d.vendor:7} {memory}  {bandwidth}  {d.title}{when}"

    def show(entry: str) -> dict[str, Any]:
        view = hardware_view(profile(entry))
        if not as_json:  # as a table below
            del view["offers"]
        return view

    _listing(name, as_json, device_names(announced=True), show, line)
    if name is not None and not as_json:
        typer.echo("offers:")
        for row in offers_text(offers_of(profile(name))):
            typer.echo(f"  {row}")


def _detect(name: str | None, as_json: bool) -> None:
    from recipe_core.hardware.detect.machine import describe, detect

    if name is not None:
        raise InputError(
            "--detect reads this machine and takes no name.",
            field="hardware",
            hint=f"Omit {name!r}, or --detect.",
        )
    with working("Reading this machine …"):
        machine = detect()
    emit(machine.to_json()) if as_json else typer.echo(describe(machine))


@app.command()
def engines(name: Name = None, as_json: Json = False) -> None:
    """The engines and their pinned versions."""
    from recipe_core.engines.spec import engine, engine_names
    from recipe_core.views.views import engine_view

    def line(entry: str) -> str:
        e = engine(entry)
        return f"{entry:14} {e.version:10} {', '.join(e.runtimes):16} {e.title}"

    _listing(name, as_json, engine_names(), lambda entry: engine_view(engine(entry)), line)
