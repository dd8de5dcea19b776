"""What every command shares: the program, its exit codes, and how answers and errors are printed."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from recipe_core import __version__
from recipe_core.base.documents import parse_json, parse_yaml, read_document, read_text, to_json
from recipe_core.base.errors import InputError, RecipeError

app = typer.Typer(
    name="recipe",
    help="From model, hardware and objective to every split judged and one runnable bundle.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

COLLECT_AFTER = 100_000
"""New containers after which cycles among them are looked for: at Python's 700 that is a tenth of the time of a command."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
RequestFile = Annotated[
    str,
    typer.Argument(metavar="REQUEST", help="A request as YAML or JSON; - reads standard input."),
]
Bundle = Annotated[
    Path, typer.Argument(metavar="BUNDLE", help="A zip or folder that `recipe build` wrote.")
]
Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="One of them, in full.")]


def main() -> None:
    """Entry point: errors become one line on standard error (JSON on standard output with --json) and an exit code."""
    gc.set_threshold(COLLECT_AFTER)
    try:
        app()
    except RecipeError as error:
        fail(error)
    except BrokenPipeError:
        sys.stderr.close()
        raise SystemExit(0) from None
    finally:
        gc.freeze()  # the process ends: what it leaves need not be searched for cycles


def fail(error: RecipeError) -> NoReturn:
    """Print an error and leave with its code."""
    if "--json" in sys.argv:
        typer.echo(to_json(error.to_json(), indent=None))
    typer.echo(f"error: {error}", err=True)
    raise SystemExit(error.exit_code)


def emit(value: Any) -> None:
    """Print JSON."""
    typer.echo(to_json(value))


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show that something is going on, when a person is watching."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


def read_request(source: str) -> Any:
    """The plain values of a request file, complete: a device that is the path of a profile is what that file holds."""
    from recipe_core.hardware.custom import with_profiles

    if source == "-":
        return with_profiles(parse_yaml(sys.stdin.read(), "standard input"))
    return with_profiles(read_document(Path(source), field="request"))


def own_device(hardware: str | None, gpus: int | None) -> dict[str, Any]:
    """A device that is named by the path of its profile (``mine.yaml``, ``mine.yaml:8``), read."""
    from recipe_core.hardware.custom import is_path, read_profile

    path, _, count = (hardware or "").partition(":")
    if not is_path(path):
        return {}
    if count and (not count.isdecimal() or gpus not in (None, int(count))):
        raise InputError(
            f"{hardware!r} is not a profile:count, or contradicts --gpus.",
            field="hardware",
            hint="For example mine.yaml:8.",
        )
    return {"hardware": read_profile(path)} | ({"gpus": int(count)} if count else {})


def read_key(path: Path | None, field: str) -> bytes | None:
    """A PEM file."""
    return read_text(path, field=field, limit=64 << 10).encode() if path else None


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"recipe {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of every command."""


def read_lines(path: Path) -> list[Any]:
    """The value of each line of a .jsonl file, as ``read_request`` completes it; of a line that holds none, its error."""
    lines = [
        line for line in read_text(path, field="request", limit=None).splitlines() if line.strip()
    ]
    return [_parsed(line, n) for n, line in enumerate(lines, 1)]


def _parsed(line: str, number: int) -> Any:
    from recipe_core.hardware.custom import with_profiles

    try:
        return with_profiles(parse_json(line, f"line {number}"))
    except RecipeError as error:
        return error
