"""Commands on what is known: models, hardware, engines, prices."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from recipe_core.base.documents import finite
from recipe_core.base.errors import InputError
from recipe_core.doors.cli.program import (
    Json,
    app,
    emit,
    read_name_values,
    show_spinner,
    with_options,
)

if TYPE_CHECKING:
    from recipe_core.hardware.profile import Device


Name = Annotated[str | None, Argument(metavar="[NAME]", help="Show this one in full.")]


def _print_entries(
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


@app.command("models")
def models_command(
    name: Name = None,
    refresh: str | None = Option(
        None,
        metavar="FROM",
        help="Keep configs of models: of a folder, of the ids in a text file, or of `hub`.",
    ),
    out: Path | None = Option(None, help="With --refresh: the folder to keep them in."),
    search: str | None = Option(
        None, metavar="TEXT", help="Find models by parts of their names: 'llama 3.3 70b'."
    ),
    as_json: Json = False,
) -> None:
    """The model catalog; NAME may also be a folder with a config.json."""
    if search is not None:
        _search_models(search, as_json, alone=name is None and refresh is None and out is None)
        return
    if refresh is not None:
        _refresh_models(refresh, name, out, as_json)
        return
    if out is not None:
        raise InputError("goes with --refresh.", field="out", hint="Leave it out.")
    from recipe_core.doors import catalog
    from recipe_core.models.catalog import catalog_ids, catalog_model

    def line(entry: str) -> str:
        model = catalog_model(entry)
        active = f", {model.active_parameters / 1e9:.3g} B active" if model.is_moe else ""
        return f"{entry:44} {model.parameters / 1e9:7.3g} B{active}  {model.weight_dtype}"

    _print_entries(name, as_json, catalog_ids(), partial(catalog.models, folders=True), line)


def _search_models(text: str, as_json: bool, *, alone: bool) -> None:
    """Print the models that a text means, the best first."""
    from recipe_core.doors import catalog

    if not alone:
        hint = "Leave NAME, --refresh and --out out."
        raise InputError("stands alone.", field="search", hint=hint)
    answer = catalog.models(search=text)
    if as_json:
        emit(answer)
        return
    for row in answer["found"]:
        typer.echo(f"{row['id']:44} {row['description']}")
    if not answer["found"]:
        typer.echo(f"No model is called like {text[:80]!r}.")


def _refresh_models(origin: str, name: str | None, out: Path | None, as_json: bool) -> None:
    """Print what a refresh of this machine's own models found, the reasons included."""
    from recipe_core.models.hub import VARIABLE, default_folder
    from recipe_core.models.refresh import refresh_configs

    folder = out or default_folder()
    if folder is None:
        message = f"{VARIABLE} is empty, which switches the models of this machine off."
        raise InputError(message, field="out", hint="Give a folder: --out FOLDER.")
    with show_spinner("reading configs"):
        answer = refresh_configs(origin, folder, only=name).to_json()
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


@app.command("hardware")
def hardware_command(
    name: Name = None,
    detect: bool = Option(False, "--detect", help="Read this machine instead of the catalog."),
    as_template: bool = Option(False, "--template", help="A YAML profile to edit, based on NAME."),
    as_json: Json = False,
) -> None:
    """The device profiles with their sources; NAME may also be the path of your own profile."""
    if detect:
        _detect_machine(name, as_json)
        return
    from recipe_core.base.units import gib
    from recipe_core.hardware.cluster import device_names, device_profile
    from recipe_core.hardware.prices import offers_of
    from recipe_core.hardware.request import is_profile_path, read_profile
    from recipe_core.hardware.upload import profile_template
    from recipe_core.views.catalog import hardware_view, offers_text

    def profile(entry: str) -> Device:
        return device_profile(read_profile(entry) if is_profile_path(entry) else entry)

    if as_template:
        if name is None:
            message = "--template needs a device to start from."
            hint = "For example: recipe hardware h100-sxm --template."
            raise InputError(message, field="hardware", hint=hint)
        typer.echo(profile_template(profile(name)), nl=False)
        return

    def line(entry: str) -> str:
        d = device_profile(entry)
        memory = f"{gib(d.usable_memory_bytes):>10}"
        bandwidth = f"{d.memory_bandwidth_bytes_per_s.value / 1e12:5.2f} TB/s"
        when = f", announced {d.announced.date}" if d.announced else ""
        return f"{entry:16} {d.vendor:7} {memory}  {bandwidth}  {d.title}{when}"

    def show(entry: str) -> dict[str, Any]:
        view = hardware_view(profile(entry))
        if not as_json:  # as a table below
            del view["offers"]
        return view

    _print_entries(name, as_json, device_names(announced=True), show, line)
    if name is not None and not as_json:
        typer.echo("offers:")
        typer.echo(offers_text(offers_of(profile(name))))


def _detect_machine(name: str | None, as_json: bool) -> None:
    from recipe_core.hardware.detect.machine import detect_machine, detected_text

    if name is not None:
        raise InputError(
            "--detect reads this machine and takes no name.",
            field="hardware",
            hint=f"Omit {name!r}, or --detect.",
        )
    with show_spinner("Reading this machine …"):
        machine = detect_machine()
    emit(machine.to_json()) if as_json else typer.echo(detected_text(machine))


@app.command("engines")
def engines_command(name: Name = None, as_json: Json = False) -> None:
    """The engines and their pinned versions."""
    from recipe_core.doors import catalog
    from recipe_core.engines.spec import engine, engine_names

    def line(entry: str) -> str:
        e = engine(entry)
        return f"{entry:14} {e.version:10} {', '.join(e.runtimes):16} {e.title}"

    _print_entries(name, as_json, engine_names(), catalog.engines, line)


# Offers that are shown without --all.
SHOWN = 40


class FilterOptions:
    """The filters of listed offers."""

    device: str | None = Option(None, help="Only for this device, by name or alias.")
    provider: str | None = Option(None, help="Only of this provider; with --import, its.")
    region: str | None = Option(None, help="Only in regions whose name has this.")
    commitment: str | None = Option(None, help="Only on-demand, spot or reserved.")


class ImportOptions:
    """The terms of prices in a table that is imported."""

    currency: str = Option("USD", help="Of the prices that --import reads.")
    usd_per_unit: float | None = Option(None, help="Dollars for one unit of --currency.")
    date: str | None = Option(None, help="Day of imported prices without one; by default today.")
    status: str | None = Option(
        None, help="Of imported prices: published, quoted (default) or unverified."
    )
    accelerator: list[str] | None = Option(
        None, metavar="NAME=DEVICE", help="What an imported table calls a device."
    )


@app.command("offers")
@with_options("filters", FilterOptions)
@with_options("terms", ImportOptions)
def offers_command(
    filters: dict[str, Any] = {},  # noqa: B006 - replaced by its options
    everything: bool = Option(False, "--all", help=f"Also those after the {SHOWN} cheapest."),
    table: Path | None = Option(
        None,
        "--import",
        metavar="FILE",
        help="Turn a SkyPilot catalogue or a table of your own into offers.",
    ),
    output: Path | None = Option(None, "--output", "-o", help="Where --import writes the offers."),
    terms: dict[str, Any] = {},  # noqa: B006 - replaced by its options
    as_json: Json = False,
) -> None:
    """Prices of device-hours with source and date, cheapest first; --import reads a table."""
    if table is not None:
        _import_offers(table, output, as_json, {**filters, "all": everything}, terms)
        return
    if output is not None or terms.pop("currency") != "USD" or any(terms.values()):
        raise InputError(
            "--output, --currency, --usd-per-unit, --date, --status and --accelerator go with "
            "--import.",
            field="import",
            hint="Add --import FILE, or leave them out.",
        )
    from recipe_core.hardware.offer_search import select_offers
    from recipe_core.views.catalog import offer_view, offers_text

    offers = select_offers(**filters)
    if as_json:
        emit([offer_view(offer) for offer in offers])
        return
    shown = offers if everything else offers[:SHOWN]
    typer.echo(offers_text(shown))
    if offers[len(shown) :]:
        typer.echo(f"{len(shown)} of {len(offers):,} offers; --all shows every one.")


def _import_offers(
    table: Path, output: Path | None, as_json: bool, filters: dict[str, Any], terms: dict[str, Any]
) -> None:
    provider = filters.pop("provider")
    if any(filters.values()):
        raise InputError(
            "--device, --region, --commitment and --all are of the list, not of --import.",
            field="import",
            hint="Import the whole table; --device and the others filter it when it is read.",
        )
    if output is None:
        raise InputError("--import needs a file to write.", field="output", hint="Add -o FILE.")
    from recipe_core.hardware.offer_import import import_offer_file

    pairs = terms.pop("accelerator")
    devices = read_name_values(pairs, "accelerator", "NAME=DEVICE", "H100=h100-pcie")
    all_terms = {"provider": provider, "accelerators": devices, **terms}
    imported = import_offer_file(table, output, all_terms)
    if as_json:
        emit(imported.to_json())
        return
    for line in imported.lines():
        typer.echo(line)
    typer.echo(f"{output}: read it with RECIPE_BUILDER_OFFERS={output}")
