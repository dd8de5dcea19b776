"""Commands that plan, size, estimate and compress."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import typer
from typer import Argument, Option

from recipe_core.base.documents import finite
from recipe_core.base.errors import InputError
from recipe_core.base.resources import load_tool
from recipe_core.compression.required import detail_row_estimate
from recipe_core.doors.cli.program import (
    Json,
    Measured,
    NoCalibration,
    RequestFile,
    app,
    emit,
    emit_lines,
    learn_own_runs,
    read_lines,
    read_own_checkpoints,
    read_plan_request,
    read_request,
    show_spinner,
)
from recipe_core.plans.splits import row_estimates
from recipe_core.request.objective import BY_ESTIMATE


@app.command("plan")
def plan_command(
    request: RequestFile,
    top: int | None = Option(None, min=0, help="How many of the ranked layouts to print."),
    everything: Path | None = Option(
        None, "--all", metavar="FILE", help="Write every row as .csv, .parquet or .json."
    ),
    flips: bool = Option(
        False, "--sensitivity", help="Also show what would change the choice: price, lengths, load."
    ),
    confidence: float | None = Option(
        None,
        min=BY_ESTIMATE,
        max=0.99,
        help="Probability with which all limits must hold (the request's, else 0.8); "
        "0.5 judges by the estimates themselves.",
    ),
    measured: Measured = None,
    no_calibration: NoCalibration = False,
    as_json: Json = False,
) -> None:
    """Judge and rank every layout over the cluster."""
    from recipe_core.doors.answers import priced_plan_json
    from recipe_core.doors.public import plan
    from recipe_core.views.plans import plan_text

    corrections = learn_own_runs(measured, no_calibration)
    values = read_plan_request(request, corrections, confidence)
    with show_spinner("Judging every layout …"):
        result = plan(values, measured=corrections or "none")
        if everything is not None:
            _write_rows(result, everything)
        sensitivity = result.sensitivity() if flips else None
    if as_json:
        answer = priced_plan_json(result, top)
        if sensitivity is not None:
            answer["sensitivity"] = [flip.to_json() for flip in sensitivity]
        emit(answer)
    else:
        typer.echo(plan_text(result, 10 if top is None else top, sensitivity))
    raise typer.Exit(0 if len(result.order) else 1)


def _write_rows(plan: Any, path: Path) -> None:
    import io

    from recipe_core.base.documents import write_whole

    writers: dict[str, Callable[[Any, io.BytesIO], Any]] = {
        ".csv": lambda frame, buffer: frame.to_csv(buffer, index=False),
        ".parquet": lambda frame, buffer: frame.to_parquet(buffer, index=False),
        ".json": lambda frame, buffer: frame.to_json(buffer, orient="records"),
    }
    if path.suffix not in writers:
        raise InputError(
            f"{path.name!r} has an unknown suffix.", field="all", hint=f"Use {', '.join(writers)}."
        )
    buffer = io.BytesIO()
    writers[path.suffix](plan.to_frame(), buffer)
    write_whole(path, buffer.getvalue())


@app.command("size")
def size_command(
    request: RequestFile,
    top: int | None = Option(None, min=1, help="How many devices to print (default: all)."),
    ladder: str | None = Option(None, metavar="DEVICE", help="Also print every count of a device."),
    consumer_cards: bool = Option(
        False, "--consumer-cards", help="Also consumer and workstation cards and edge devices."
    ),
    market_places: bool = Option(
        False, "--market-places", help="Also offers of providers that rent out machines of others."
    ),
    several_machines: bool = Option(
        False, "--several-machines", help="A replica may span several machines."
    ),
    older_prices: bool = Option(
        False, "--older-prices", help="Prices more than 90 days old count as newer ones do."
    ),
    unpriced: bool = Option(
        False, "--unpriced", help="Also devices that nobody is known to offer."
    ),
    measured: Measured = None,
    no_calibration: NoCalibration = False,
    as_json: Json = False,
) -> None:
    """Say which hardware, how many, at what cost and how sure: REQUEST with `hardware: any`."""
    from recipe_core.request.size import SizeRequest
    from recipe_core.sizing.answer import Answer
    from recipe_core.sizing.size import size_devices
    from recipe_core.views.size_text import size_text

    values = SizeRequest.parse(read_request(request)).letting_in(
        consumer_cards=consumer_cards,
        market_places=market_places,
        several_machines=several_machines,
        older_prices=older_prices,
        unpriced=unpriced,
    )
    corrections = learn_own_runs(measured, no_calibration)
    with show_spinner("Sizing every device …"):
        sizing = size_devices(values, corrections=corrections)
        answer = Answer(sizing)
        text = "" if as_json else size_text(answer, top, ladder)
    if as_json:
        emit(answer.to_json())
    else:
        typer.echo(text)
    raise typer.Exit(0 if sizing.best else 1)


@app.command("estimate")
def estimate_command(
    request: RequestFile,
    traced: bool = Option(
        False,
        "--trace",
        help="Also build the real model without weights and compare (torch extra).",
    ),
    measured: Measured = None,
    no_calibration: NoCalibration = False,
    as_json: Json = False,
) -> None:
    """Estimate the layout in REQUEST.candidate, or the best that matches it; .jsonl: every line."""
    from recipe_core.doors.answers import priced_estimate_json
    from recipe_core.plans.plans import plan_estimated
    from recipe_core.views.estimates import estimate_text

    if request.endswith(".jsonl"):
        if traced:
            raise InputError(
                "--trace takes one request, not a .jsonl file.",
                field="trace",
                hint="Trace its lines one by one.",
            )
        _estimate_lines(Path(request), learn_own_runs(measured, no_calibration))
        return
    corrections = learn_own_runs(measured, no_calibration)
    values = read_plan_request(request, corrections)
    with show_spinner("Estimating …"):
        plan, row = plan_estimated(values, corrections=corrections)
        answer = detail_row_estimate(plan, row).to_json()
    with show_spinner("Tracing the model …"):
        trace, text = _trace_real_model(plan, row) if traced else (None, "")
    if as_json:
        added = {} if trace is None else {"trace": trace}
        emit(priced_estimate_json(plan, row, answer | added))
    else:
        rows = [("Price", plan.setting(row).cluster.price_text())]
        if plan.kind == "serving":  # of a queue that is worked off
            job = (plan.measures[name] for name in ("wall", "usd_run") if name in plan.measures)
            rows += [(of.title, of.show(float(plan.columns[of.column][row]))) for of in job]
        typer.echo(estimate_text(plan.candidate(row), answer, rows) + text)
    raise typer.Exit(0 if answer["feasible"] else 1)


def _trace_real_model(plan: Any, row: int) -> tuple[dict[str, Any], str]:
    """The trace of the real model with a row's layout, as JSON and as text."""
    oracle = load_tool("oracle")
    text = import_module("oracle.text")
    if plan.kind == "training":
        measured = import_module("oracle.training").trace_training(*row_estimates(plan, row))
        return measured, f"\n\n{text.training_trace_text(measured)}"
    measured = oracle.trace(plan, row)
    return measured, f"\n\n{text.trace_text(measured)}"


def _estimate_lines(path: Path, corrections: Any) -> None:
    from recipe_core.compression.required import row_estimate_json
    from recipe_core.plans.plans import estimate_batch

    values = read_lines(path)
    with show_spinner(f"Estimating {len(values):,} requests …"):
        answers = estimate_batch(values, corrections, row_estimate_json)
    emit_lines(answers)


@app.command("compress")
def compress_command(
    source: str = Argument(
        ...,
        metavar="REQUEST",
        help="A request (- reads standard input), or a .jsonl file of lines with model, "
        "technique, method and benchmark.",
    ),
    technique: list[str] | None = Option(
        None, metavar="NAME", help="A technique to judge; repeat it for more."
    ),
    measured: Measured = None,
    no_calibration: NoCalibration = False,
    as_json: Json = False,
) -> None:
    """Say what every format does to a served model; .jsonl: the accuracy that each line keeps."""
    from recipe_core.doors.public import compress
    from recipe_core.views.formats import format_advice_text

    if source.endswith(".jsonl"):
        if technique:
            raise InputError(
                "lines of questions name their techniques.", field="technique", hint="Leave it out."
            )
        _compress_lines(Path(source), as_json, measured, no_calibration)
        return
    corrections = learn_own_runs(measured, no_calibration)
    values = read_plan_request(source, corrections)
    with show_spinner("Judging every format …"):
        advice = compress(values, technique or None, measured=corrections or "none")
    answer = finite(advice.to_json())
    emit(answer) if as_json else typer.echo(format_advice_text(answer))
    raise typer.Exit(0 if advice.best else 1)


def _compress_lines(
    path: Path, as_json: bool, measured: list[Path] | None, no_calibration: bool
) -> None:
    from recipe_core.accuracy.accuracy import answer_lines
    from recipe_core.views.formats import retained_text

    checkpoints = read_own_checkpoints(measured, no_calibration)
    values = read_lines(path)
    replies = answer_lines(values, checkpoints)
    if as_json:
        emit_lines(replies)
    else:
        typer.echo(retained_text(values, replies))
