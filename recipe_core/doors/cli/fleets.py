"""The command that places a fleet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from recipe_core.base.documents import read_text
from recipe_core.doors.cli.program import (
    Json,
    Measured,
    NoCalibration,
    app,
    emit,
    learn_own_runs,
    read_name_values,
    read_request,
    show_spinner,
    with_options,
)

if TYPE_CHECKING:
    from recipe_core.doors.fleets import FleetQuestion

Named = list[str] | None
# Changes that options state as NAME=NUMBER.
CHANGES = {"lose": "lose_nodes", "lose_racks": "lose_racks", "price": "prices", "load": "loads"}


class ChangeOptions:
    """Changes of a fleet that are tried."""

    lose: Named = Option(None, metavar="POOL=NODES", help="What if machines of a pool are lost.")
    lose_racks: Named = Option(None, metavar="POOL=RACKS", help="What if whole racks are lost.")
    price: Named = Option(None, metavar="POOL=USD", help="What if a device-hour costs this.")
    load: Named = Option(
        None, metavar="MODEL=FACTOR", help="What if a model has so many times its load."
    )
    drop: Named = Option(None, metavar="NAME", help="What if a model, job or pool is gone.")


@app.command("fleet")
@with_options("changes", ChangeOptions)
def fleet_command(
    file: Annotated[str, typer.Argument(metavar="FLEET", help="A fleet.yaml, or - for stdin.")],
    month: float = Option(0.0, min=0, max=600, help="Months of growth ahead of today."),
    seconds: float = Option(60.0, min=0.1, max=600, help="Longest search."),
    *,
    changes: dict[str, Named],
    inventory: list[Path] | None = Option(
        None,
        metavar="FILE",
        help="Machines as kubectl, sinfo, SkyPilot, a CSV, Kueue or OpenCost list them.",
    ),
    output: Path | None = Option(
        None, "--output", "-o", metavar="DIR", help="Write bundles, and what joins them."
    ),
    measured: Measured = None,
    no_calibration: NoCalibration = False,
    as_json: Json = False,
) -> None:
    """Place many models on owned and rented machines: who runs where, cost, how sure all of it."""
    from recipe_core.fleets.columns import Sources
    from recipe_core.fleets.exports.folder import write_fleet
    from recipe_core.views.fleets import answered_text

    question = _read_question(file, inventory or [], changes)
    sources = Sources(corrections=learn_own_runs(measured, no_calibration))
    with show_spinner("Placing the fleet …"):
        answered = question.answer(month=month, seconds=seconds, sources=sources)
    wrote = "" if output is None else f"\nwrote {write_fleet(answered.answer, output)}"
    if as_json:
        emit(answered.to_json())
    else:
        text = answered_text(answered.answer, answered.moves, answered.changed)
        typer.echo(f"{text}{wrote}")
    raise typer.Exit(0 if (answered.changed or answered.answer).complete else 1)


def _read_question(file: str, paths: list[Path], changes: dict[str, Named]) -> FleetQuestion:
    """Read the fleet, the machines that inventories list, and what is tried."""
    from recipe_core.doors.fleets import read_fleet_question

    tried: dict[str, Any] = {"drop": changes["drop"]} if changes["drop"] else {}
    for option, field in CHANGES.items():
        if words := changes[option]:
            flag = option.replace("_", "-")
            tried[field] = read_name_values(words, flag, "NAME=NUMBER", "h100=1")
    texts = [(path.name, read_text(path, field="inventory")) for path in paths]
    return read_fleet_question(read_request(file), tried or None, texts)
