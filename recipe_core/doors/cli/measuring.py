"""Commands on measurements: of this machine, of other programs, beside estimates."""

from __future__ import annotations

import sys
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit, urlunsplit

import typer
from typer import Argument, Option

from recipe_core.base.documents import parse_yaml, read_document, write_whole
from recipe_core.base.errors import InputError
from recipe_core.base.web import Deadline, FetchError, fetch_url
from recipe_core.doors.cli.program import (
    Json,
    NoCalibration,
    app,
    apply_calibration,
    emit,
    read_name_values,
    show_spinner,
)

if TYPE_CHECKING:
    from recipe_core.calibration.importers.measurement import Content

# Bytes of metrics: the largest engines write a tenth of it.
MOST_BYTES = 8 << 20
# Time until the last of them is there.
SECONDS = 10.0
METRICS = "/metrics"


Files = Annotated[
    list[Path],
    Argument(metavar="FILE...", help="Results of benchmarks, logs, metrics of engines."),
]
Ran = Annotated[
    str | None,
    Option(
        "--request", metavar="REQUEST|BUNDLE", help="What ran: a request, a recipe or a bundle."
    ),
]


def read_ran_request(source: str) -> tuple[dict[str, Any], str | None]:
    """The plain values of the request of what ran, and the path of its device profile if any.

    Raises:
        InputError: for a file that is neither a request, a recipe nor a bundle.
    """
    from recipe_core.hardware.request import is_profile_path, with_profiles

    path = Path(source)
    if source != "-" and (path.is_dir() or path.suffix == ".zip"):
        return _request_of_recipe(source), None
    text = sys.stdin.read() if source == "-" else None
    raw: Any = (
        read_document(path, field="request") if text is None else parse_yaml(text, "standard input")
    )
    if not isinstance(raw, dict):
        raise InputError("is not an object.", field="request", hint="Give a request or a bundle.")
    if "lock" in raw and "request" in raw:
        return _request_of_recipe(source), None
    hardware = raw.get("hardware")
    name = hardware.get("device") if isinstance(hardware, dict) else None
    values: dict[str, Any] = with_profiles(raw)
    return values, name if is_profile_path(name) else None


def _request_of_recipe(source: str) -> dict[str, Any]:
    """The request of a recipe or bundle, with the layout that it launches."""
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
    output: Path | None = Option(
        None,
        "--output",
        "-o",
        metavar="TABLE.csv",
        help="Add the rows to this table; else print it.",
    ),
    sets: list[str] | None = Option(
        None, "--set", metavar="COLUMN=VALUE", help="A column that the files leave open."
    ),
    as_json: Json = False,
) -> None:
    """Make rows of a table of measured runs from what other programs measured."""
    from recipe_core.calibration.importers.measurement import Content
    from recipe_core.calibration.importers.rows import (
        build_imported_table,
        rows_there,
        table_text,
    )
    from recipe_core.views.reconciliation import imported_text

    contents = [Content.of_file(path) for path in files]
    values, device_path = read_ran_request(request) if request else (None, None)
    training = _is_training(values)
    old_rows = rows_there(output, training) if output is not None else []
    with show_spinner("Reading …"):
        table = build_imported_table(
            contents,
            values,
            _read_columns(sets),
            device_path=device_path,
            reserved_ids=[row.id for row in old_rows],
        )
    rows = [*old_rows, *(added.row for added in table.rows)]
    if output is not None and table.rows:
        if old_rows and type(old_rows[0]) is not type(table.rows[0].row):
            raise InputError(
                f"{output} is a table of other runs.", field="output", hint="Choose another file."
            )
        write_whole(output, table_text(rows).encode())
    typer.echo(imported_text(table, output, len(old_rows)), err=True)
    if as_json:
        emit(table.to_json())
    elif output is None and table.rows:
        typer.echo(table_text(rows), nl=False)
    raise typer.Exit(0 if table.rows else 1)


def _is_training(values: dict[str, Any] | None) -> bool:
    workload = (values or {}).get("workload")
    return isinstance(workload, dict) and workload.get("kind") == "training"


def _read_columns(words: list[str] | None) -> dict[str, str]:
    columns = read_name_values(words, "set", "COLUMN=VALUE", "tp=8")
    if empty := [name for name, value in columns.items() if not value]:
        raise InputError(
            f"{f'{empty[0]}='!r} is not COLUMN=VALUE.",
            field="set",
            hint="For example --set tp=8.",
        )
    return columns


@app.command("reconcile")
def reconcile_command(
    sources: list[str] = Argument(
        ...,
        metavar="LOG|URL|FILE...",
        help="A log, results of a benchmark, or the address of a server's metrics.",
    ),
    request: str = Option(
        ..., metavar="REQUEST|BUNDLE", help="What ran: a request, a recipe or a bundle."
    ),
    no_calibration: NoCalibration = False,
    as_json: Json = False,
) -> None:
    """Set each measured figure beside its estimate: a match, explained, or not explained."""
    from recipe_core.calibration.importers.formats import read_imported
    from recipe_core.calibration.validation.reconcile import reconcile_measurements
    from recipe_core.doors.answers import reconciled_json
    from recipe_core.views.reconciliation import reconciled_text

    values, _ = read_ran_request(request)
    contents = [_read_content(source) for source in sources]
    pairs = [(content.name, run) for content in contents for run in read_imported(content)]
    with show_spinner("Estimating …"), apply_calibration(no_calibration):
        answers = reconcile_measurements(pairs, values)
    answer = reconciled_json(answers)
    emit(answer) if as_json else typer.echo(reconciled_text(answers, sources, request))
    raise typer.Exit(0 if answer["ok"] else 1)


def _read_content(source: str) -> Content:
    from recipe_core.calibration.importers.measurement import Content

    if is_url(source):
        return Content(source, scrape_metrics(source))
    return Content.of_file(Path(source))


def is_url(source: str) -> bool:
    """True for the address of a server, False for a file."""
    return source.casefold().startswith(("http://", "https://"))


def scrape_metrics(url: str) -> str:
    """The text at an address; ``/metrics`` where it has no path.

    No proxy, no redirect, no credentials, a limit on time and size.

    Raises:
        InputError: for an address that is none, does not answer, or answers something else.
    """
    parts = urlsplit(url)
    try:
        wrong = not parts.hostname or parts.username is not None or parts.port == 0
    except ValueError:  # a port that is no number
        wrong = True
    if wrong:
        raise InputError(
            "is not the address of a server.",
            field="url",
            hint="For example http://127.0.0.1:8000/metrics, without user and password.",
        )
    path = parts.path.rstrip("/") or METRICS
    target = urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))
    deadline = Deadline(SECONDS)
    try:
        answer = fetch_url(
            target, deadline=deadline, most_bytes=MOST_BYTES, plain=True, proxies=False
        )
    except FetchError as error:
        raise InputError(
            f"{target} does not answer: {error}.", field="url", hint="Is the server up?"
        ) from None
    if answer.status != HTTPStatus.OK:
        raise InputError(
            f"{target} answers with status {answer.status}.",
            field="url",
            hint="Give the path of its metrics; TensorRT-LLM has /prometheus/metrics.",
        )
    try:
        return answer.body.decode()
    except UnicodeDecodeError:
        raise InputError(f"{target} is not UTF-8 text.", field="url") from None


@app.command("calibrate")
def calibrate_command(
    measurements: list[Path] | None = Argument(
        None,
        metavar="[MEASUREMENT]...",
        help="Bundles that were measured, their run/measurement.json or run/compression.json, "
        "or tables of runs.",
    ),
    into: Path | None = Option(
        None, metavar="PATH", help="The calibration: a folder, or a .json file."
    ),
    dry: bool = Option(False, "--dry-run", help="Store nothing, and say what would be learned."),
    listed: bool = Option(False, "--list", help="Show every run and what was learned."),
    undo: bool = Option(
        False, "--undo", help="Take the latest addition back; --undo N: the latest N."
    ),
    clear: bool = Option(False, "--clear", help="Take everything back, also of a damaged file."),
    as_json: Json = False,
) -> None:
    """Learn from measured runs: later plans and estimates are corrected by them, and say so."""
    from recipe_core.calibration.lessons import Knowledge, calibrate_from_files
    from recipe_core.calibration.store import Overlay
    from recipe_core.views.measured import calibration_text

    paths = measurements or []
    if sum((listed, undo, clear, bool(paths) and not undo)) != 1 or (dry and not paths):
        raise InputError(
            "give measurements to learn from, or one of --list, --undo, --clear.",
            field="calibrate",
            hint="For example: recipe calibrate my-bundle.",
        )
    with show_spinner("Learning …"):
        if clear:
            knowledge = Knowledge(Overlay.cleared(into))
        elif undo:
            overlay, removed = Overlay.at(into).undo(_count_additions(paths))
            knowledge = Knowledge(overlay, removed=removed)
        elif listed:
            knowledge = Knowledge(Overlay.at(into))
        else:
            knowledge = calibrate_from_files(paths, into, dry=dry)
        answer, text = knowledge.to_json(), calibration_text(knowledge, every_run=listed)
    emit(answer) if as_json else typer.echo(text)


def _count_additions(words: list[Path]) -> int:
    """Return how many additions are to be taken back."""
    if len(words) > 1 or not all(str(word).isdecimal() for word in words):
        raise InputError(
            f"--undo takes one number, not {' '.join(map(str, words))!r:.80}.",
            field="undo",
            hint="For example --undo 2.",
        )
    return int(str(words[0])) if words else 1


@app.command("profile")
def profile_command(
    output: Path = Option(..., "--output", "-o", help="The YAML file to write."),
    device: str | None = Option(None, help="cuda, rocm or cpu; default: what torch sees."),
    seconds: float | None = Option(None, help="Total time; default 180, or 20 if quick."),
    quick: bool = Option(False, "--quick", help="Fewer shapes, in 20 seconds."),
    ranks: int | None = Option(
        None, help="Processes for collectives; default: one per accelerator."
    ),
    disk: Path | None = Option(None, help="Also measure the storage of this folder (1 GiB, 30 s)."),
    as_json: Json = False,
) -> None:
    """Measure this machine and write its profile, for `hardware.device` of a request."""
    from recipe_core.calibration.machine_profile import (
        check_output,
        profile_machine,
        profile_text,
        write_profile,
    )

    check_output(output)
    profiled = profile_machine(
        device,
        seconds=seconds,
        quick=quick,
        ranks=ranks,
        disk=disk,
        tell=lambda part: typer.echo(f"profile: {part} …", err=True),
    )
    write_profile(output, profiled)
    if as_json:
        emit(profiled.values)
        return
    typer.echo("\n".join(profile_text(profiled)))
    typer.echo(f"wrote {output}")
    typer.echo(f"next: set hardware.device of a request to {output}")
