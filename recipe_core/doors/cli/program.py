"""The program that all commands share: its options, exit codes, answers and errors."""

from __future__ import annotations

import gc
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, get_type_hints

import typer
from typer import Argument, Option

from recipe_core import __version__
from recipe_core.base.documents import parse_json, parse_yaml, read_document, read_text, to_json
from recipe_core.base.errors import InputError, RecipeError

if TYPE_CHECKING:
    from recipe_core.targets.deployments.deployment import DeploymentFile

app = typer.Typer(
    name="recipe",
    help="Judge every layout of a model over your hardware, and write one runnable bundle.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

# New containers between garbage collections: at Python's 700 they take a tenth of a command.
COLLECT_AFTER = 100_000

Json = Annotated[bool, Option("--json", help="Print JSON.")]
RequestFile = Annotated[
    str,
    Argument(metavar="REQUEST", help="A request as YAML or JSON; - reads standard input."),
]
Measured = Annotated[
    list[Path] | None,
    Option(
        "--measured",
        metavar="TABLE",
        help="Runs of your own that correct the estimates: a CSV, a bundle, a measurement.json.",
    ),
]
NoCalibration = Annotated[
    bool,
    Option("--no-calibration", help="Estimate without the calibration of this machine."),
]
Bundle = Annotated[
    Path, Argument(metavar="BUNDLE", help="A zip or folder that `recipe build` wrote.")
]
PublicKey = Annotated[
    Path | None,
    Option(metavar="KEY.pub.pem", help="The key that the bundle must be signed with."),
]


class GroundOptions:
    """The hardware and the load of an engine's command."""

    hardware: str | None = Option(None, help="The device: NAME or NAME:COUNT.")
    gpus: int | None = Option(None, help="Devices per node.")
    nodes: int | None = Option(None, help="Nodes.")
    input_tokens: int | None = Option(None, help="Tokens per prompt.")
    output_tokens: int | None = Option(None, help="Tokens per answer.")
    concurrency: int | None = Option(None, help="Users at once.")


def with_options(
    parameter: str, options: type
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a class, whose values it takes as one mapping."""
    types = get_type_hints(options)

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def command(**arguments: Any) -> None:
            values = {name: arguments.pop(name) for name in types}
            function(**arguments, **{parameter: values})

        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        added = [
            inspect.Parameter(name, kind, default=getattr(options, name), annotation=annotation)
            for name, annotation in types.items()
        ]
        parameters: list[inspect.Parameter] = []
        for declared in inspect.signature(function, eval_str=True).parameters.values():
            parameters += added if declared.name == parameter else [declared]
        # Typer reads both.
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {declared.name: declared.annotation for declared in parameters}
        return command

    return decorate


def run_program() -> None:
    """Entry point: an error becomes an exit code and a line on standard error.

    With --json also JSON on standard output.
    """
    gc.set_threshold(COLLECT_AFTER)
    try:
        with _limit_candidates():
            app()
    except RecipeError as error:
        exit_with_error(error)
    except BrokenPipeError:
        sys.stderr.close()
        raise SystemExit(0) from None
    finally:
        gc.freeze()  # the process ends: no need to search its objects for cycles


def _limit_candidates() -> AbstractContextManager[object]:
    """The limit on candidates where the environment states one; seconds are the caller's own."""
    if not os.environ.get("RECIPE_BUILDER_CANDIDATES"):
        return nullcontext()
    from recipe_core.base.budget import Budget, apply_budget
    from recipe_core.doors.settings import ServerSettings

    return apply_budget(Budget(ServerSettings.of_environment().candidates))


def exit_with_error(error: RecipeError) -> NoReturn:
    """Print an error and exit with its code."""
    if "--json" in sys.argv:
        typer.echo(to_json(error.to_json(), indent=None))
    typer.echo(f"error: {error}", err=True)
    raise SystemExit(error.exit_code)


def emit(value: Any) -> None:
    """Print JSON."""
    typer.echo(to_json(value))


def emit_lines(values: Iterable[Any]) -> None:
    """Print JSON, one value a line."""
    for value in values:
        typer.echo(to_json(value, indent=None))


def show(answer: Any, text: Callable[[Any], str], as_json: bool) -> None:
    """Print an answer: as JSON, or the text that is made of it."""
    if as_json:
        emit(answer)
    else:
        typer.echo(text(answer))


def read_name_values(
    words: Iterable[str] | None, flag: str, form: str, example: str
) -> dict[str, str]:
    """``NAME=VALUE`` words as a mapping; ``form`` and ``example`` are for the error."""
    pairs: dict[str, str] = {}
    for word in words or ():
        name, equals, value = word.partition("=")
        if not equals or not name:
            hint = f"For example --{flag} {example}."
            raise InputError(f"{word!r} is not {form}.", field=flag, hint=hint)
        pairs[name] = value
    return pairs


def learn_own_runs(paths: list[Path] | None, off: bool = False) -> Any:
    """Learn from runs of one's own; print on standard error how many count. None without any.

    Those of the calibration count too, unless it is ``off`` or the only path is ``none``.
    """
    _check_source(paths, off)
    from recipe_core.calibration.place import calibration_stamp

    if off or not (
        paths or calibration_stamp()
    ):  # nothing heavy is loaded to learn that there is nothing
        return None
    from recipe_core.calibration.run_files import corrections_from_sources, own_runs_text

    corrections = corrections_from_sources(paths)
    if corrections is not None:
        typer.echo("\n".join(own_runs_text(corrections)), err=True)
    return corrections


def find_deployment(source: str) -> DeploymentFile | None:
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


def read_own_checkpoints(paths: list[Path] | None, off: bool = False) -> Any:
    """Measured checkpoints of the calibration and of files; learns nothing from runs beside them.

    None of the calibration's where it is ``off``.
    """
    _check_source(paths, off)
    from recipe_core.calibration.place import calibration_stamp

    if off or not (paths or calibration_stamp()):
        return ()
    from recipe_core.calibration.run_files import measured_checkpoints

    return measured_checkpoints(paths)


def _check_source(paths: list[Path] | None, off: bool) -> None:
    if off and paths:
        raise InputError(
            "--no-calibration goes with no --measured.", field="measured", hint="Leave one out."
        )


@contextmanager
def apply_calibration(off: bool) -> Iterator[None]:
    """Correct estimates in this block by the calibration of this machine, unless it is ``off``."""
    from recipe_core.estimates.columns.scopes import correct_by_default

    corrections = learn_own_runs(None, off)
    with correct_by_default(lambda: corrections):
        yield


@contextmanager
def show_spinner(status: str) -> Iterator[None]:
    """Show a spinner on standard error, if that is a terminal: ``status``, and how far it is."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    from recipe_core.base.budget import watched
    from recipe_core.base.units import share_text

    with Console(stderr=True).status(status) as shown:

        def report(done: int, steps: int, stage: str) -> None:
            shown.update(stage or f"{status} {share_text(done / max(steps, 1))}")

        with watched(report):
            yield


def read_request(source: str) -> Any:
    """The values of a request file; a device that is the path of a profile is read in."""
    from recipe_core.hardware.request import with_profiles

    if source == "-":
        return with_profiles(parse_yaml(sys.stdin.read(), "standard input"))
    return with_profiles(read_document(Path(source), field="request"))


def read_plan_request(source: str, corrections: Any = None, confidence: float | None = None) -> Any:
    """The plan's request in a file; hardware that is open is sized, and what was chosen is said.

    ``confidence``: with which limits must hold, in place of the request's.
    """
    from recipe_core.request.schema import PlanRequest, asks_for_any

    values = read_request(source)
    if confidence is not None:
        objective = values.get("objective") or {}
        values = {**values, "objective": {**objective, "confidence": confidence}}
    if not asks_for_any(values):
        return PlanRequest.parse(values)
    from recipe_core.request.size import SizeRequest
    from recipe_core.sizing.size import size_devices
    from recipe_core.views.size_text import choice_text

    with show_spinner("Sizing every device …"):
        sizing = size_devices(SizeRequest.parse(values), corrections=corrections)
        request = sizing.choice
    typer.echo(choice_text(sizing), err=True)
    return request


def read_own_device(hardware: str | None, gpus: int | None) -> dict[str, Any]:
    """The profile, and the count if any, of ``mine.yaml`` or ``mine.yaml:8``; empty for a name.

    Raises:
        InputError: for a bad count, or one that contradicts ``gpus``.
    """
    from recipe_core.hardware.request import is_profile_path, read_profile, split_count

    path = (hardware or "").partition(":")[0]
    if not is_profile_path(path):
        return {}
    count = split_count(hardware or "")[1]
    if count and gpus not in (None, count):
        message = f"{hardware!r} contradicts --gpus."
        raise InputError(message, field="hardware", hint="State the count once.")
    values: dict[str, Any] = {"hardware": read_profile(path)}
    return {**values, "gpus": count} if count else values


def read_key(path: Path | None, field: str) -> bytes | None:
    """The content of a key file; None without a path."""
    return read_text(path, field=field, limit=64 << 10).encode() if path else None


def _print_version(show: bool) -> None:
    if show:
        typer.echo(f"recipe {__version__}")
        raise typer.Exit


@app.callback()
def common_options(
    version: bool = Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Options of every command."""


def read_lines(path: Path) -> list[Any]:
    """One entry per line of a .jsonl file that is not empty: its value, or its error."""
    lines = read_text(path, field="request", limit=None).splitlines()
    return [_parse_request_line(line, n) for n, line in enumerate(filter(str.strip, lines), 1)]


def _parse_request_line(line: str, number: int) -> Any:
    from recipe_core.hardware.request import with_profiles

    try:
        return with_profiles(parse_json(line, f"line {number}"))
    except RecipeError as error:
        return error
