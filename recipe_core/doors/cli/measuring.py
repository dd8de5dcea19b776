"""Commands on what other programs measured: import it, set it beside an estimate."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recipe_core.base.documents import parse_yaml, read_document, write_whole
from recipe_core.base.errors import InputError
from recipe_core.doors.cli.app import Json, NoCalibration, app, calibrated, emit, working

if TYPE_CHECKING:
    from recipe_core.calibration.importers.content import Content

Files = Annotated[
    list[Path],
    typer.Argument(metavar="FILE...", help="Results of benchmarks, logs, metrics of engines."),
]
Ran = Annotated[
    str | None,
    typer.Option(
        "--request", metavar="REQUEST|BUNDLE", help="What ran: a request, a recipe or a bundle."
    ),
]


def ran_request(source: str) -> tuple[dict[str, Any], str | None]:
    """The plain values of the request of what ran, and the path of its device profile if any.

    Raises:
        InputError: for a file that is neither a request, a recipe nor a bundle.
    """
    from recipe_core.hardware.custom import is_path, with_profiles

    path = Path(source)
    if source != "-" and (path.is_dir() or path.suffix == ".zip"):
        return _of_recipe(source), None
    text = sys.stdin.read() if source == "-" else None
    raw: Any = (
        read_document(path, field="request") if text is None else parse_yaml(text, "standard input")
    )
    if not isinstance(raw, dict):
        raise InputError("is not an object.", field="request", hint="Give a request or a bundle.")
    if "lock" in raw and "request" in raw:
        return _of_recipe(source), None
    hardware = raw.get("hardware")
    name = hardware.get("device") if isinstance(hardware, dict) else None
    values: dict[str, Any] = with_profiles(raw)
    return values, name if is_path(name) else None


def _of_recipe(source: str) -> dict[str, Any]:
    """The request of a recipe or bundle, with the split that it launches."""
    from recipe_core.doors.public import read

    recipe = read(source)
    values = dict(recipe.request)
    if recipe.max_context is not None:
        values["workload"] = {**values["workload"], "max_context": recipe.max_context}
    return {**values, "candidate": dict(recipe.candidate)}


@app.command("import")
def import_command(
    files: Files,
    request: Ran = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="TABLE.csv", help="Add the rows to this table; else print it."
        ),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="COLUMN=VALUE", help="A column that the files leave open."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make rows of a table of measured runs from what other programs measured."""
    from recipe_core.calibration.importers.content import Content
    from recipe_core.calibration.importers.rows import table_text
    from recipe_core.calibration.run_rows import imported_table, rows_there
    from recipe_core.views.reconciled import imported_text

    contents = [Content.of_file(path) for path in files]
    values, device_path = ran_request(request) if request else (None, None)
    training = _training(values)
    there = rows_there(output, training) if output is not None else []
    with working("Reading …"):
        table = imported_table(
            contents,
            values,
            _columns(sets),
            device_path=device_path,
            taken=[row.id for row in there],
        )
    rows = [*there, *(one.row for one in table.rows)]
    if output is not None and table.rows:
        if there and type(there[0]) is not type(table.rows[0].row):
            raise InputError(
                f"{output} is a table of other runs.", field="output", hint="Choose another file."
            )
        write_whole(output, table_text(rows).encode())
    typer.echo(imported_text(table, output, len(there)), err=True)
    if as_json:
        emit(table.to_json())
    elif output is None and table.rows:
        typer.echo(table_text(rows), nl=False)
    raise typer.Exit(0 if table.rows else 1)


def _training(values: dict[str, Any] | None) -> bool:
    workload = (values or {}).get("workload")
    return isinstance(workload, dict) and workload.get("kind") == "training"


def _columns(words: list[str] | None) -> dict[str, str]:
    columns: dict[str, str] = {}
    for word in words or []:
        name, equals, value = word.partition("=")
        if not equals or not name or not value:
            raise InputError(
                f"{word!r} is not COLUMN=VALUE.", field="set", hint="For example --set tp=8."
            )
        columns[name] = value
    return columns


@app.command("reconcile")
def reconcile_command(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG|URL|FILE...",
            help="A log, results of a benchmark, or the address of a server's metrics.",
        ),
    ],
    request: Annotated[
        str,
        typer.Option(
            "--request", metavar="REQUEST|BUNDLE", help="What ran: a request, a recipe or a bundle."
        ),
    ],
    no_calibration: NoCalibration = False,
    as_json: Json = False,
) -> None:
    """Set each measured figure beside its estimate: a match, explained, or not explained."""
    from recipe_core.calibration.importers.registry import read_imported
    from recipe_core.calibration.validation.reconcile import reconcile
    from recipe_core.views.reconciled import reconciled_text

    values, _ = ran_request(request)
    contents = [_content(source) for source in sources]
    pairs = [(content.name, one) for content in contents for one in read_imported(content)]
    with working("Estimating …"), calibrated(no_calibration):
        answers = reconcile(pairs, values)
    if as_json:
        emit(
            {
                "ok": all(answer.ok for answer in answers),
                "measurements": [answer.to_json() for answer in answers],
            }
        )
    else:
        typer.echo(reconciled_text(answers, sources, request))
    raise typer.Exit(0 if all(answer.ok for answer in answers) else 1)


def _content(source: str) -> Content:
    from recipe_core.calibration.importers.content import Content
    from recipe_core.doors.cli.scraping import is_url, scraped

    if is_url(source):
        return Content(source, scraped(source))
    return Content.of_file(Path(source))
