"""Commands on traffic: what a trace of requests shows, and published shapes of a week."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from recipe_core.base.errors import InputError
from recipe_core.doors.cli.app import Json, app, emit, working


@app.command("trace")
def trace_command(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE]",
            help="A trace, a table or an access log, gzip or not; - reads standard input.",
        ),
    ] = None,
    shapes: Annotated[
        bool, typer.Option("--shapes", help="List the published shapes of a week.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME", help="Whose rates, of a table with several."),
    ] = None,
    unit: Annotated[
        str | None,
        typer.Option("--unit", metavar="s|ms|us|ns", help="Unit of times that do not say theirs."),
    ] = None,
    workload: Annotated[
        bool, typer.Option("--workload", help="Print the fields of a request's workload.")
    ] = False,
    days: Annotated[
        float | None,
        typer.Option("--days", metavar="DAYS", help="With --workload: repeat the trace so long."),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option("--shape", metavar="NAME", help="With --workload: spread it over this week."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Describe a trace of requests: rates, bursts, lengths, reuse of prefixes, sessions."""
    if shapes == (file is not None):
        raise InputError(
            "needs either a file or --shapes.",
            field="trace",
            hint="For example recipe trace log.csv.",
        )
    if file is None:
        _print_shapes(as_json)
        return
    from recipe_core.base.documents import to_yaml
    from recipe_core.scaling.traces.describe import description
    from recipe_core.scaling.traces.from_trace import fields_of
    from recipe_core.scaling.traces.read import read_load
    from recipe_core.views.traces import traffic_text

    name = "" if file == "-" else Path(file).name
    with working("Reading …"):
        traffic = read_load(_bytes(file), name, unit=unit, model=model)
        answer = fields_of(traffic, days=days, shape=shape) if workload else description(traffic)
    if as_json:
        emit(answer)
    elif workload:
        typer.echo(to_yaml({"workload": answer}), nl=False)
    else:
        typer.echo(traffic_text(answer))


def _print_shapes(as_json: bool) -> None:
    from recipe_core.scaling.traces.shapes import published, shape_names
    from recipe_core.views.traces import shapes_text

    answers = [published(name).to_json() for name in shape_names()]
    if as_json:
        emit(answers)
    else:
        typer.echo(shapes_text(answers))


def _bytes(file: str) -> bytes:
    """The bytes of a file, or of standard input.

    Raises:
        InputError: when it cannot be read, or is larger than any trace may be.
    """
    from recipe_core.scaling.traces.formats.content import MOST_BYTES

    if file == "-":
        return sys.stdin.buffer.read(MOST_BYTES + 1)
    try:
        with Path(file).open("rb") as stream:
            return stream.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"cannot read {file}: {reason}.", field="trace", hint="Check the path."
        ) from None
