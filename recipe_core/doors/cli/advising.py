"""``recipe compress REQUEST``: what every technique of compression would do to a served model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import typer

from recipe_core.base.documents import finite
from recipe_core.doors.cli.app import emit, own_runs, plan_request, working


def advise_request(
    source: str,
    techniques: Sequence[str] | None,
    measured: list[Path] | None,
    no_calibration: bool,
    as_json: bool,
) -> NoReturn:
    """Print what techniques do to the request in a file; exit with 1 where none runs within limits.

    ``source``: the file, or ``-`` for standard input.
    """
    from recipe_core.doors.public import compress
    from recipe_core.views.formats import formats_text

    corrections = own_runs(measured, no_calibration)
    values = plan_request(source, corrections)
    with working("Judging every format …"):
        advice = compress(values, techniques or None, measured=corrections or "none")
    answer = finite(advice.to_json())
    emit(answer) if as_json else typer.echo(formats_text(answer))
    raise typer.Exit(0 if advice.best else 1)
