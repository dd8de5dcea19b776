"""Plans and estimates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from recipe_core.base.documents import to_json
from recipe_core.base.errors import InputError
from recipe_core.doors.cli.app import (
    Json,
    RequestFile,
    app,
    emit,
    read_lines,
    read_request,
    working,
)


@app.command("plan")
def plan_command(
    request: RequestFile,
    top: Annotated[
        int | None, typer.Option(min=0, help="How many of the ranked splits to print.")
    ] = None,
    everything: Annotated[
        Path | None,
        typer.Option("--all", metavar="FILE", help="Write every row, as .csv, .parquet or .json."),
    ] = None,
    flips: Annotated[
        bool,
        typer.Option(
            "--sensitivity", help="Also say what would flip the decision: price, lengths, load."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Every split of the cluster, judged and ranked."""
    from recipe_core.present.terminal import plan_text
    from recipe_core.present.views import plan_view
    from recipe_core.request.schema import PlanRequest
    from recipe_core.search.sensitivity import sensitivity
    from recipe_core.search.serving_plan import plan

    asked = PlanRequest.parse(read_request(request))
    if asked.workload.kind == "training":
        _training_plan(asked, top, everything, flips, as_json)
    with working("Judging every split …"):
        table = plan(asked)
        if everything is not None:
            _write_rows(table, everything)
        changes = sensitivity(table) if flips else None
    if as_json:
        emit(
            plan_view(table, top)
            | ({} if changes is None else {"sensitivity": [change.to_json() for change in changes]})
        )
    else:
        typer.echo(plan_text(table, 10 if top is None else top, changes))
    raise typer.Exit(0 if len(table.ranked) else 1)


def _training_plan(
    asked: Any, top: int | None, everything: Path | None, flips: bool, as_json: bool
) -> NoReturn:
    from recipe_core.present.training_text import training_plan_text
    from recipe_core.search.training_search import training_plan

    if flips:
        raise InputError(
            "what would flip a training plan is not computed by this version.",
            field="sensitivity",
            hint="Leave it out.",
        )
    with working("Judging every split …"):
        table = training_plan(asked)
    if everything is not None:
        _write_rows(table, everything)
    emit(table.view(top)) if as_json else typer.echo(
        training_plan_text(table, 10 if top is None else top)
    )
    raise typer.Exit(0 if len(table.ranked) else 1)


def _write_rows(table: Any, path: Path) -> None:
    import io

    from recipe_core.base.documents import write_whole

    writers: dict[str, Callable[[Any, io.BytesIO], Any]] = {
        ".csv": lambda frame, buffer: frame.to_csv(buffer, index=False),
        ".parquet": lambda frame, buffer: frame.to_parquet(buffer, index=False),
        ".json": lambda frame, buffer: frame.to_json(buffer, orient="records"),
    }
    if path.suffix not in writers:
        raise InputError(
            f"{path.name!r} has no known suffix.", field="all", hint=f"Use {', '.join(writers)}."
        )
    buffer = io.BytesIO()
    writers[path.suffix](table.frame(), buffer)
    write_whole(path, buffer.getvalue())


@app.command()
def estimate(
    request: RequestFile,
    traced: Annotated[
        bool,
        typer.Option(
            "--trace", help="Also build the real model without data and compare (torch extra)."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Exactly the split in REQUEST.candidate (or the best that agrees with it); a .jsonl file answers line by line."""
    from recipe_core.present.terminal import estimate_text
    from recipe_core.request.schema import PlanRequest
    from recipe_core.search.serving_plan import chosen_plan

    if request.endswith(".jsonl"):
        if traced:
            raise InputError(
                "--trace takes one request, not a .jsonl file.",
                field="trace",
                hint="Trace its lines one by one.",
            )
        _each_line(Path(request))
        return
    asked = PlanRequest.parse(read_request(request))
    if asked.workload.kind == "training":
        _training_estimate(asked, traced, as_json)
    with working("Estimating …"):
        table, row = chosen_plan(asked)
        answer = table.detailed(row)
    found = _trace(table, row) if traced else None
    if as_json:
        emit({"candidate": table.candidate(row)} | answer | ({"trace": found} if found else {}))
    else:
        typer.echo(estimate_text(table.candidate(row), answer))
    if found and not as_json:
        from recipe_core.calibration.trace.text import trace_text

        typer.echo(f"\n{trace_text(found)}")
    raise typer.Exit(0 if answer["feasible"] else 1)


def _training_estimate(asked: Any, traced: bool, as_json: bool) -> NoReturn:
    from recipe_core.present.training_text import training_text
    from recipe_core.search.training_search import chosen_training

    estimates, row = chosen_training(asked)
    answer = {"candidate": estimates.candidate(row)} | estimates.row(row)
    if not traced:
        emit(answer) if as_json else typer.echo(training_text(answer))
        raise typer.Exit(0 if answer["feasible"] else 1)
    from recipe_core.calibration.trace.text import training_trace_text
    from recipe_core.calibration.trace.training import trace_training

    with working("Tracing a step of the model …"):
        found = trace_training(estimates, row)
    emit(answer | {"trace": found}) if as_json else typer.echo(
        f"{training_text(answer)}\n\n{training_trace_text(found)}"
    )
    raise typer.Exit(0 if answer["feasible"] else 1)


def _trace(table: Any, row: int) -> dict[str, Any]:
    from recipe_core.calibration.trace import trace

    with working("Tracing the model …"):
        return trace(table, row)


def _each_line(path: Path) -> None:
    from recipe_core.search.batch import estimate_many

    values = read_lines(path)
    with working(f"Estimating {len(values):,} requests …"):
        answers = estimate_many(values)
    for answer in answers:
        typer.echo(to_json(answer, indent=None))
