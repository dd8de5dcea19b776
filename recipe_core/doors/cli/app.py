"""What all commands share: the program, its exit codes, and how it prints answers and errors."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from recipe_core import __version__
from recipe_core.base.documents import parse_json, parse_yaml, read_document, read_text, to_json
from recipe_core.base.errors import InputError, RecipeError

if TYPE_CHECKING:
    from recipe_core.targets.deployments.deployed import DeploymentFile

app = typer.Typer(
    name="recipe",
    help="Judge every split of a model over your hardware, and write one runnable bundle.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

COLLECT_AFTER = 100_000
"""New containers between garbage collections: at Python's 700 they take a tenth of a command."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
RequestFile = Annotated[
    str,
    typer.Argument(metavar="REQUEST", help="A request as YAML or JSON; - reads standard input."),
]
Measured = Annotated[
    list[Path] | None,
    typer.Option(
        "--measured",
        metavar="TABLE",
        help="Runs of your own that correct the estimates: a CSV, a bundle, a measurement.json.",
    ),
]
NoCalibration = Annotated[
    bool,
    typer.Option("--no-calibration", help="Estimate without the calibration of this machine."),
]
Bundle = Annotated[
    Path, typer.Argument(metavar="BUNDLE", help="A zip or folder that `recipe build` wrote.")
]
PublicKey = Annotated[
    Path | None,
    typer.Option(metavar="KEY.pub.pem", help="The key that the bundle must be signed with."),
]
Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="Show this one in full.")]


def main() -> None:
    """Entry point: an error becomes an exit code and a line on standard error.

    With --json also JSON on standard output.
    """
    gc.set_threshold(COLLECT_AFTER)
    try:
        with _limited():
            app()
    except RecipeError as error:
        fail(error)
    except BrokenPipeError:
        sys.stderr.close()
        raise SystemExit(0) from None
    finally:
        gc.freeze()  # the process ends: no need to search its objects for cycles


def _limited() -> AbstractContextManager[object]:
    """The limit on candidates where the environment states one; seconds are the caller's own."""
    if not os.environ.get("RECIPE_BUILDER_CANDIDATES"):
        return nullcontext()
    from recipe_core.base.budget import Budget, limited
    from recipe_core.doors.settings import ServerSettings

    return limited(Budget(ServerSettings.of_environment().candidates))


def fail(error: RecipeError) -> NoReturn:
    """Print an error and exit with its code."""
    if "--json" in sys.argv:
        typer.echo(to_json(error.to_json(), indent=None))
    typer.echo(f"error: {error}", err=True)
    raise SystemExit(error.exit_code)


def emit(value: Any) -> None:
    """Print JSON."""
    typer.echo(to_json(value))


def own_runs(paths: list[Path] | None, off: bool = False) -> Any:
    """What runs of one's own teach; says on standard error how many count. None without any.

    Those of the calibration count too, unless it is ``off`` or the only path is ``none``.
    """
    _check_source(paths, off)
    from recipe_core.calibration.store import stamp

    if off or not (paths or stamp()):  # nothing heavy is loaded to learn that there is nothing
        return None
    from recipe_core.calibration.run_files import corrections_of, own_runs_text

    corrections = corrections_of(paths)
    if corrections is not None:
        typer.echo("\n".join(own_runs_text(corrections)), err=True)
    return corrections


def deployment_at(source: str) -> DeploymentFile | None:
    """The deployment file at a path; None for a request, and for no file.

    Raises:
        InputError: when it is neither, or cannot be read.
    """
    from recipe_core.targets.deployments.documents import MAX_BYTES
    from recipe_core.targets.deployments.read import SCRIPTS, is_deployment, read_deployment

    path = Path(source)
    if source == "-" or not path.is_file():
        return None
    if path.suffix.casefold() not in SCRIPTS and path.stat().st_size > MAX_BYTES:
        return None
    text = read_text(path, field="file", limit=MAX_BYTES)
    return read_deployment(text, path.name) if is_deployment(text, path.name) else None


def own_checkpoints(paths: list[Path] | None, off: bool = False) -> Any:
    """Measured checkpoints of the calibration and of files; learns nothing from runs beside them.

    None of the calibration's where it is ``off``.
    """
    _check_source(paths, off)
    from recipe_core.calibration.store import stamp

    if off or not (paths or stamp()):
        return ()
    from recipe_core.calibration.run_files import compressed_of

    return compressed_of(paths)


def _check_source(paths: list[Path] | None, off: bool) -> None:
    if off and paths:
        raise InputError(
            "--no-calibration goes with no --measured.", field="measured", hint="Leave one out."
        )


@contextmanager
def calibrated(off: bool) -> Iterator[None]:
    """Correct estimates in this block by the calibration of this machine, unless it is ``off``."""
    from recipe_core.estimates.columns.standing import by_default

    corrections = own_runs(None, off)
    with by_default(lambda: corrections):
        yield


@contextmanager
def working(status: str) -> Iterator[None]:
    """Show a spinner with ``status`` on standard error, if that is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(status):
        yield


def read_request(source: str) -> Any:
    """The values of a request file; a device that is the path of a profile is read in."""
    from recipe_core.hardware.custom import with_profiles

    if source == "-":
        return with_profiles(parse_yaml(sys.stdin.read(), "standard input"))
    return with_profiles(read_document(Path(source), field="request"))


def plan_request(source: str, corrections: Any = None) -> Any:
    """The plan's request in a file; hardware that is open is sized, and what was chosen is said."""
    from recipe_core.request.schema import PlanRequest, asks_for_any

    values = read_request(source)
    if not asks_for_any(values):
        return PlanRequest.parse(values)
    from recipe_core.request.size import SizeRequest
    from recipe_core.sizing.size import size
    from recipe_core.views.size_text import chosen_text

    with working("Sizing every device …"):
        sizing = size(SizeRequest.parse(values), corrections=corrections)
        request = sizing.choice
    typer.echo(chosen_text(sizing), err=True)
    return request


def own_device(hardware: str | None, gpus: int | None) -> dict[str, Any]:
    """The profile, and the count if any, of ``mine.yaml`` or ``mine.yaml:8``; empty for a name.

    Raises:
        InputError: for a bad count, or one that contradicts ``gpus``.
    """
    from recipe_core.hardware.custom import is_path, read_profile

    path, _, count = (hardware or "").partition(":")
    if not is_path(path):
        return {}
    if count and (not count.isdecimal() or gpus not in (None, int(count))):
        raise InputError(
            f"{hardware!r} is not PROFILE:COUNT, or contradicts --gpus.",
            field="hardware",
            hint="For example mine.yaml:8.",
        )
    values: dict[str, Any] = {"hardware": read_profile(path)}
    return {**values, "gpus": int(count)} if count else values


def read_key(path: Path | None, field: str) -> bytes | None:
    """The content of a key file; None without a path."""
    return read_text(path, field=field, limit=64 << 10).encode() if path else None


def _version(show: bool) -> None:
    if show:
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
    """One entry per line of a .jsonl file that is not empty: its value, or its error."""
    lines = read_text(path, field="request", limit=None).splitlines()
    return [_parsed(line, n) for n, line in enumerate(filter(str.strip, lines), 1)]


def _parsed(line: str, number: int) -> Any:
    from recipe_core.hardware.custom import with_profiles

    try:
        return with_profiles(parse_json(line, f"line {number}"))
    except RecipeError as error:
        return error
