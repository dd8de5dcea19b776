"""The command that simulates a load over time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from recipe_core.base.errors import InputError, NoAnswer
from recipe_core.doors.cli.app import (
    Json,
    Measured,
    NoCalibration,
    RequestFile,
    app,
    emit,
    own_runs,
    plan_request,
)


@app.command("simulate")
def simulate_command(
    request: RequestFile,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="A trace of requests, in place of over_time."),
    ] = None,
    policies: Annotated[
        list[str] | None,
        typer.Option("--policy", metavar="NAME", help="A policy to compare; repeat it for more."),
    ] = None,
    days: Annotated[
        float | None, typer.Option(help="Days to simulate (default: those of the load).")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="REQUEST", help="Write the request with the chosen policy."
        ),
    ] = None,
    measured: Measured = None,
    no_calibration: NoCalibration = False,
    as_json: Json = False,
) -> None:
    """Simulate policies that scale replicas over a load, and find the one that costs least."""
    from recipe_core.doors.public import simulate
    from recipe_core.views.over_time import over_time_text

    corrections = own_runs(measured, no_calibration)
    values = plan_request(request, corrections)
    with _counted("Simulating …"):
        answer = simulate(
            values,
            trace=trace,
            policies=policies or None,
            days=days,
            measured=corrections or "none",
        )
    if output is not None:
        _write_request(values, answer, trace, output)
    emit(answer.to_json()) if as_json else typer.echo(over_time_text(answer.to_json()))
    raise typer.Exit(0 if answer.best else 1)


def _write_request(values: Any, answer: Any, trace: Path | None, path: Path) -> None:
    """Write the request whose bundle is scaled as the chosen policy was simulated."""
    from recipe_core.base.documents import to_json, to_yaml, write_whole
    from recipe_core.doors.public import trace_of
    from recipe_core.scaling.chosen import request_with

    if answer.chosen is None:
        raise NoAnswer(
            f"no policy keeps the limits for {answer.attainment_wanted:.2%} of requests; "
            f"{path} is not written.",
            hint="Loosen a limit, or lower workload.over_time.attainment.",
        )
    if path.suffix not in (".yaml", ".yml", ".json"):
        raise InputError(
            f"{path.name!r} has an unknown suffix.", field="output", hint="Use .yaml or .json."
        )
    load = None if trace is None else trace_of(trace)
    plain = request_with(values, answer, trace=load).to_json()
    text = to_json(plain) + "\n" if path.suffix == ".json" else to_yaml(plain)
    write_whole(path, text.encode())


@contextmanager
def _counted(status: str) -> Iterator[None]:
    """Show on a terminal's standard error how far a calculation is."""
    import sys

    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    from recipe_core.base.progress import watched

    with Console(stderr=True).status(status) as shown:

        def report(done: int, steps: int) -> None:
            shown.update(f"{status} {done / max(steps, 1):.0%}")

        with watched(report):
            yield
