"""The command that learns from measurements, and takes back what it learned."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recipe_core.base.errors import InputError
from recipe_core.doors.cli.app import Json, app, emit, working


@app.command()
def calibrate(
    measurements: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[MEASUREMENT]...",
            help="Bundles that were measured, their run/measurement.json or run/compression.json, "
            "or tables of runs.",
        ),
    ] = None,
    into: Annotated[
        Path | None,
        typer.Option(
            "--into",
            metavar="PATH",
            help="The calibration: a folder, or a .json file.",
        ),
    ] = None,
    dry: Annotated[
        bool, typer.Option("--dry-run", help="Store nothing, and say what would be learned.")
    ] = False,
    listed: Annotated[
        bool, typer.Option("--list", help="Show every run and what was learned.")
    ] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Take the latest addition back; --undo N: the latest N.")
    ] = False,
    clear: Annotated[
        bool, typer.Option("--clear", help="Take everything back, also of a damaged file.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Learn from measured runs: later plans and estimates are corrected by them, and say so."""
    from recipe_core.calibration.calibrate import Knowledge, calibrate, calibration_at, place_of
    from recipe_core.calibration.store import Overlay
    from recipe_core.views.measured import calibration_text

    paths = measurements or []
    if sum((listed, undo, clear, bool(paths) and not undo)) != 1 or (dry and not paths):
        raise InputError(
            "give measurements to learn from, or one of --list, --undo, --clear.",
            field="calibrate",
            hint="For example: recipe calibrate my-bundle.",
        )
    with working("Learning …"):
        if clear:
            knowledge = Knowledge(Overlay.cleared(place_of(into)))
        elif undo:
            overlay, removed = calibration_at(into).undo(_count(paths))
            knowledge = Knowledge(overlay, removed=removed)
        elif listed:
            knowledge = Knowledge(calibration_at(into))
        else:
            knowledge = calibrate(paths, into, dry=dry)
        answer, text = knowledge.to_json(), calibration_text(knowledge, every_run=listed)
    emit(answer) if as_json else typer.echo(text)


def _count(words: list[Path]) -> int:
    """How many additions are to be taken back."""
    if len(words) > 1 or not all(str(word).isdecimal() for word in words):
        raise InputError(
            f"--undo takes one number, not {' '.join(map(str, words))!r:.80}.",
            field="undo",
            hint="For example --undo 2.",
        )
    return int(str(words[0])) if words else 1
