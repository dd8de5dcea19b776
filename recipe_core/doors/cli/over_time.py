"""Commands on loads over time: simulations, starts of replicas, traces."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer
from typer import Argument, Option

from recipe_core.base.errors import InputError, NoAnswer
from recipe_core.base.units import share_text
from recipe_core.doors.cli.program import (
    Json,
    Measured,
    NoCalibration,
    RequestFile,
    app,
    emit,
    learn_own_runs,
    read_plan_request,
    show_spinner,
)


@app.command("simulate")
def simulate_command(
    request: RequestFile,
    trace: Path | None = Option(
        None, metavar="FILE", help="A trace of requests, in place of over_time."
    ),
    policies: list[str] | None = Option(
        None, "--policy", metavar="NAME", help="A policy to compare; repeat it for more."
    ),
    days: float | None = Option(None, help="Days to simulate (default: those of the load)."),
    output: Path | None = Option(
        None, "--output", "-o", metavar="REQUEST", help="Write the request with the chosen policy."
    ),
    measured: Measured = None,
    no_calibration: NoCalibration = False,
    as_json: Json = False,
) -> None:
    """Simulate policies that scale replicas over a load, and find the one that costs least."""
    from recipe_core.doors.public import simulate
    from recipe_core.views.over_time import over_time_text

    corrections = learn_own_runs(measured, no_calibration)
    values = read_plan_request(request, corrections)
    with show_spinner("Simulating …"):
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
    from recipe_core.doors.public import read_trace_file
    from recipe_core.scaling.summary import request_with_policy

    if answer.chosen is None:
        raise NoAnswer(
            f"no policy keeps the limits for {share_text(answer.attainment_wanted, 2)} of "
            f"requests; {path} is not written.",
            hint="Loosen a limit, or lower workload.over_time.attainment.",
        )
    if path.suffix not in (".yaml", ".yml", ".json"):
        raise InputError(
            f"{path.name!r} has an unknown suffix.", field="output", hint="Use .yaml or .json."
        )
    load = None if trace is None else read_trace_file(trace)
    plain = request_with_policy(values, answer, trace=load).to_json()
    text = to_json(plain) + "\n" if path.suffix == ".json" else to_yaml(plain)
    write_whole(path, text.encode())


@app.command("cold-start")
def cold_start_command(request: RequestFile, as_json: Json = False) -> None:
    """Say how long a replica takes to start, by phases, and what would shorten it."""
    from recipe_core.plans.plans import plan_candidate
    from recipe_core.scaling.scenario import start_of
    from recipe_core.views.over_time import start_text

    values = read_plan_request(request)
    with show_spinner("Estimating …"):
        plan, row = plan_candidate(values)
        start, devices = start_of(plan, row)
    if as_json:
        emit({"candidate": plan.candidate(row), "devices": devices, **start.to_json()})
    else:
        typer.echo(start_text(plan.candidate(row), devices, start.to_json()))


@app.command("trace")
def trace_command(
    file: str | None = Argument(
        None,
        metavar="[FILE]",
        help="A trace, a table or an access log, gzip or not; - reads standard input.",
    ),
    shapes: bool = Option(False, "--shapes", help="List the published shapes of a week."),
    model: str | None = Option(None, metavar="NAME", help="Whose rates, of a table with several."),
    unit: str | None = Option(
        None, metavar="s|ms|us|ns", help="Unit of times that do not say theirs."
    ),
    workload: bool = Option(False, "--workload", help="Print the fields of a request's workload."),
    days: float | None = Option(
        None, metavar="DAYS", help="With --workload: repeat the trace so long."
    ),
    shape: str | None = Option(
        None, metavar="NAME", help="With --workload: spread it over this week."
    ),
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
    from recipe_core.scaling.traces.describe import describe_traffic
    from recipe_core.scaling.traces.from_trace import traffic_fields
    from recipe_core.scaling.traces.read import read_load
    from recipe_core.views.traces import traffic_text

    name = "" if file == "-" else Path(file).name
    with show_spinner("Reading …"):
        traffic = read_load(_read_bytes(file), name, unit=unit, model=model)
        answer = (
            traffic_fields(traffic, days=days, shape=shape)
            if workload
            else describe_traffic(traffic)
        )
    if as_json:
        emit(answer)
    elif workload:
        typer.echo(to_yaml({"workload": answer}), nl=False)
    else:
        typer.echo(traffic_text(answer))


def _print_shapes(as_json: bool) -> None:
    from recipe_core.scaling.traces.loads import find_shape, shape_names
    from recipe_core.views.traces import shapes_text

    answers = [find_shape(name).to_json() for name in shape_names()]
    if as_json:
        emit(answers)
    else:
        typer.echo(shapes_text(answers))


def _read_bytes(file: str) -> bytes:
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
