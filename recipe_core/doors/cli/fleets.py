"""The command that places a fleet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from recipe_core.base.errors import InputError
from recipe_core.doors.cli.program import (
    Json,
    Measured,
    NoCalibration,
    app,
    emit,
    learn_own_runs,
    read_request,
)

Named = list[str] | None


@app.command("fleet")
def fleet_command(
    file: Annotated[str, typer.Argument(metavar="FLEET", help="A fleet.yaml, or - for stdin.")],
    month: float = Option(0.0, min=0, max=600, help="Months of growth ahead of today."),
    seconds: float = Option(60.0, min=0.1, max=600, help="Longest search."),
    lose: Named = Option(
        None, "--lose", metavar="POOL=NODES", help="What if machines of a pool are lost."
    ),
    lose_racks: Named = Option(
        None, "--lose-racks", metavar="POOL=RACKS", help="What if whole racks are lost."
    ),
    price: Named = Option(
        None, "--price", metavar="POOL=USD", help="What if a device-hour costs this."
    ),
    load: Named = Option(
        None, "--load", metavar="MODEL=FACTOR", help="What if a model has so many times its load."
    ),
    drop: Named = Option(
        None, "--drop", metavar="NAME", help="What if a model, job or pool is gone."
    ),
    inventory: list[Path] | None = Option(
        None,
        "--inventory",
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
    from recipe_core.doors.public import fleet
    from recipe_core.fleets.columns import Sources
    from recipe_core.fleets.exports.folder import write_fleet
    from recipe_core.fleets.place import move_fleet
    from recipe_core.fleets.request import FleetRequest
    from recipe_core.fleets.what_if import FleetChanges, compare_answers
    from recipe_core.views.fleets import differences_text, fleet_text, moves_text

    values, notes = _merge_inventories(read_request(file), inventory or [])
    request = FleetRequest.parse(values)
    corrections = learn_own_runs(measured, no_calibration)
    options: dict[str, Any] = {
        "month": month,
        "seconds": seconds,
        "measured": corrections or "none",
    }
    changes = {
        "lose_nodes": _read_numbers("lose", lose, int),
        "lose_racks": _read_numbers("lose-racks", lose_racks, int),
        "prices": _read_numbers("price", price, float),
        "loads": _read_numbers("load", load, float),
        "drop": drop or [],
    }
    answer = fleet(request, **options)
    out, text = answer.to_json(), "\n".join([fleet_text(answer), *notes])
    if (moves := move_fleet(answer, Sources(corrections=corrections))) is not None:
        out["moves"], text = moves.to_json(), f"{text}\n{moves_text(moves)}"
    if output is not None:
        written = write_fleet(answer, output)
        text = f"{text}\nwrote {written}"
    if any(changes.values()):
        changed = fleet(request, what_if=FleetChanges.parse(changes), **options)
        differences = compare_answers(answer, changed)
        out["what_if"] = {"answer": changed.to_json(), "differences": differences}
        text = f"{text}\nwhat if: {differences_text(differences)}\n{fleet_text(changed)}"
        answer = changed
    emit(out) if as_json else typer.echo(text)
    raise typer.Exit(0 if answer.complete else 1)


def _merge_inventories(values: Any, paths: list[Path]) -> tuple[Any, list[str]]:
    """The fleet with the machines that inventories list, and what to know of these."""
    from recipe_core.base.documents import read_text
    from recipe_core.fleets.inventory.read import merge_inventories, read_inventory

    if not paths:
        return values, []
    read = [read_inventory(read_text(path, field="inventory"), path.name) for path in paths]
    merged, notes = merge_inventories(values, read)
    return merged, [f"note: {note}" for listed in read for note in listed.notes] + [
        f"note: {note}" for note in notes
    ]


def _read_numbers(option: str, pairs: Named, kind: type[int] | type[float]) -> dict[str, float]:
    """``NAME=NUMBER`` as a mapping."""
    out: dict[str, float] = {}
    for pair in pairs or ():
        name, sign, text = pair.partition("=")
        try:
            out[name] = kind(text)
        except ValueError:
            sign = ""
        if not sign:
            raise InputError(
                f"{pair!r} is not NAME=NUMBER.",
                field=option,
                hint=f"For example --{option} h100=1.",
            )
    return out
