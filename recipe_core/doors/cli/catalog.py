"""What is known: models, hardware, engines."""

from __future__ import annotations

import json
from collections.abc import Callable
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
    """A list of everything, or one in full."""
    if name is not None:
        value = show(name)
        emit(value) if as_json else _print_facts(value)
    elif as_json:
        emit([show(each) for each in names])
    else:
        for each in names:
            typer.echo(line(each))


def _print_facts(value: dict[str, Any], indent: str = "") -> None:
    for key, item in value.items():
        if isinstance(item, dict) and item and not {"value", "compute_efficiency"} & set(item):
            typer.echo(f"{indent}{key}:")
            _print_facts(item, indent + "  ")
        else:
            typer.echo(
                f"{indent}{key}: {json.dumps(finite(item), ensure_ascii=False, default=str)}"
            )


@app.command()
def models(name: Name = None, as_json: Json = False) -> None:
    """The model catalog; NAME may also be a folder with a config.json."""
    from recipe_core.model.catalog import (
        catalog_entry,
        catalog_ids,
        catalog_model,
        in_catalog,
        load_model,
    )
    from recipe_core.present.views import model_view

    def show(each: str) -> dict[str, Any]:
        return model_view(load_model(each), catalog_entry(each) if in_catalog(each) else None)

    def line(each: str) -> str:
        model = catalog_model(each)
        active = f", {model.active_parameters / 1e9:.3g} B active" if model.is_moe else ""
        return f"{each:44} {model.parameters / 1e9:7.3g} B{active}  {model.weight_dtype}"

    _listing(name, as_json, catalog_ids(), show, line)


@app.command()
def hardware(
    name: Name = None,
    detect: Annotated[
        bool, typer.Option("--detect", help="Read this machine instead of the catalog.")
    ] = False,
    as_template: Annotated[
        bool, typer.Option("--template", help="A profile to start from, based on NAME, as YAML.")
    ] = False,
    as_json: Json = False,
) -> None:
    """The device profiles, each figure with its source; NAME may also be the path of a profile of your own."""
    if detect:
        _detect(name, as_json)
        return
    from recipe_core.base.units import gib
    from recipe_core.hardware.cluster import device, device_names
    from recipe_core.hardware.custom import is_path, read_profile
    from recipe_core.hardware.upload import template
    from recipe_core.present.views import hardware_view

    def named(each: str) -> Device:
        return device(read_profile(each) if is_path(each) else each)

    if as_template:
        if name is None:
            raise InputError(
                "--template starts from a device.",
                field="hardware",
                hint="Name one: recipe hardware h100-sxm --template.",
            )
        typer.echo(template(named(name)), nl=False)
        return

    def line(each: str) -> str:
        d = device(each)
        return f"{each:16} {d.vendor:7} {gib(d.usable_memory_bytes):>10}  {d.memory_bandwidth_bytes_per_s.value / 1e12:5.2f} TB/s  {d.title}"

    _listing(name, as_json, device_names(), lambda each: hardware_view(named(each)), line)


def _detect(name: str | None, as_json: bool) -> None:
    from recipe_core.hardware.detect.machine import describe, detect

    if name is not None:
        raise InputError(
            "--detect reads this machine and takes no name.",
            field="hardware",
            hint=f"Leave out {name!r}, or --detect.",
        )
    with working("Reading this machine …"):
        found = detect()
    emit(found.to_json()) if as_json else typer.echo(describe(found))


@app.command()
def engines(name: Name = None, as_json: Json = False) -> None:
    """The engines and their pinned versions."""
    from recipe_core.engines.spec import engine, engine_names
    from recipe_core.present.views import engine_view

    def line(each: str) -> str:
        e = engine(each)
        return f"{each:14} {e.version:10} {', '.join(e.runtimes):16} {e.title}"

    _listing(name, as_json, engine_names(), lambda each: engine_view(engine(each)), line)
