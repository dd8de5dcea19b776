"""``recipe compress``: what compression does to a plan, and what it costs in accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from recipe_core.accuracy.checkpoints import MeasuredCompression
from recipe_core.base.documents import to_json
from recipe_core.base.errors import InputError
from recipe_core.doors.cli.advising import advise_request
from recipe_core.doors.cli.app import (
    Json,
    Measured,
    NoCalibration,
    app,
    own_checkpoints,
    read_lines,
)


@app.command()
def compress(
    source: Annotated[
        str,
        typer.Argument(
            metavar="REQUEST",
            help="A request (- reads standard input), or a .jsonl file of lines with model, "
            "technique, method and benchmark.",
        ),
    ],
    technique: Annotated[
        list[str] | None,
        typer.Option(
            "--technique", metavar="NAME", help="A technique to judge; repeat it for more."
        ),
    ] = None,
    measured: Measured = None,
    no_calibration: NoCalibration = False,
    as_json: Json = False,
) -> None:
    """Say what every format does to a served model; .jsonl: the accuracy that each line keeps."""
    if not source.endswith(".jsonl"):
        advise_request(source, technique, measured, no_calibration, as_json)
    if technique:
        raise InputError(
            "lines of questions name their techniques.", field="technique", hint="Leave it out."
        )
    _lines(Path(source), as_json, own_checkpoints(measured, no_calibration))


def _lines(path: Path, as_json: bool, own: Sequence[MeasuredCompression]) -> None:
    from recipe_core.accuracy.lines import answers

    values = read_lines(path)
    replies = answers(values, own)
    if as_json:
        for reply in replies:
            typer.echo(to_json(reply, indent=None))
        return
    from recipe_core.views.formats import retained_text

    typer.echo(retained_text(values, replies))
