"""``recipe compress``: what compression costs in accuracy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recipe_core.base.documents import to_json
from recipe_core.base.errors import InputError
from recipe_core.doors.cli.app import Json, app, read_lines


@app.command()
def compress(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A .jsonl file of lines with model, technique, method and benchmark.",
        ),
    ],
    as_json: Json = False,
) -> None:
    """Estimate the accuracy that compressed models retain; .jsonl: every line."""
    if not source.endswith(".jsonl"):
        raise InputError(
            f"{source!r} is not a .jsonl file.",
            field="request",
            hint='Write a line {"model": …, "technique": …, "method": …, "benchmark": …} each.',
        )
    _lines(Path(source), as_json)


def _lines(path: Path, as_json: bool) -> None:
    from recipe_core.compression.lines import answers

    values = read_lines(path)
    replies = answers(values)
    if as_json:
        for reply in replies:
            typer.echo(to_json(reply, indent=None))
        return
    from recipe_core.present.compression_text import lines_text

    typer.echo(lines_text(values, replies))
