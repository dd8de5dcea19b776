"""The command on prices: what is offered, and tables of others as offers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from recipe_core.base.errors import InputError
from recipe_core.doors.cli.app import Json, app, emit

SHOWN = 40
"""Offers that are shown without --all."""


@app.command()
def offers(
    device: Annotated[
        str | None, typer.Option("--device", help="Only for this device, by name or alias.")
    ] = None,
    provider: Annotated[
        str | None, typer.Option("--provider", help="Only of this provider; with --import, its.")
    ] = None,
    region: Annotated[
        str | None, typer.Option("--region", help="Only in regions whose name has this.")
    ] = None,
    commitment: Annotated[
        str | None, typer.Option("--commitment", help="Only on-demand, spot or reserved.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help=f"Also those after the {SHOWN} cheapest.")
    ] = False,
    table: Annotated[
        Path | None,
        typer.Option(
            "--import",
            metavar="FILE",
            help="Turn a SkyPilot catalogue or a table of your own into offers.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where --import writes the offers.")
    ] = None,
    currency: Annotated[str, typer.Option(help="Of the prices that --import reads.")] = "USD",
    usd_per_unit: Annotated[
        float | None, typer.Option(help="Dollars for one unit of --currency.")
    ] = None,
    date: Annotated[
        str | None, typer.Option(help="Day of imported prices without one; by default today.")
    ] = None,
    status: Annotated[
        str | None,
        typer.Option(help="Of imported prices: published, quoted (default) or unverified."),
    ] = None,
    accelerator: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=DEVICE", help="What an imported table calls a device."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Prices of device-hours with source and date, cheapest first; --import reads a table."""
    if table is not None:
        _refuse_filters(device, region, commitment, everything)
        if output is None:
            raise InputError("--import needs a file to write.", field="output", hint="Add -o FILE.")
        terms = {"provider": provider, "currency": currency, "usd_per_unit": usd_per_unit}
        _import(table, output, as_json, accelerator or [], status, {**terms, "date": date})
        return
    _refuse_import_options(output, currency, usd_per_unit, date, status, accelerator)
    from recipe_core.hardware.offer_search import select_offers
    from recipe_core.views.views import offer_view, offers_text

    found = select_offers(device, provider, region, commitment)
    if as_json:
        emit([offer_view(offer) for offer in found])
        return
    shown = found if everything else found[:SHOWN]
    for line in offers_text(shown):
        typer.echo(line)
    if found[len(shown) :]:
        typer.echo(f"{len(shown)} of {len(found):,} offers; --all shows every one.")


def _refuse_import_options(output: Path | None, currency: str, *others: Any) -> None:
    if output is not None or currency != "USD" or any(others):
        raise InputError(
            "--output, --currency, --usd-per-unit, --date, --status and --accelerator go with "
            "--import.",
            field="import",
            hint="Add --import FILE, or leave them out.",
        )


def _refuse_filters(*filters: Any) -> None:
    if any(filters):
        raise InputError(
            "--device, --region, --commitment and --all are of the list, not of --import.",
            field="import",
            hint="Import the whole table; --device and the others filter it when it is read.",
        )


def _import(
    table: Path,
    output: Path,
    as_json: bool,
    accelerators: list[str],
    status: str | None,
    terms: dict[str, Any],
) -> None:
    from recipe_core.hardware.offer_import import imported_table

    done = imported_table(table, output, accelerators, status, terms)
    if as_json:
        emit(done.to_json())
        return
    for line in done.lines():
        typer.echo(line)
    typer.echo(f"{output}: read it with RECIPE_BUILDER_OFFERS={output}")
