"""Commands that experiment with a bundle on this machine: verify, tune."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from recipe_core.base.documents import to_json, write_whole
from recipe_core.doors.cli.app import Bundle, Json, PublicKey, app, emit, read_key

INTERRUPTED = 130


def _told(line: str) -> None:
    typer.echo(line, err=True)


def _require_signed(bundles: Iterable[Path], public_key: Path | None) -> None:
    """Start nothing of a bundle that is not signed by the key, where one is given.

    Raises:
        BundleError: for the first that is not.
    """
    from recipe_core.bundle.verify import read_bundle

    key = read_key(public_key, "public_key")
    for bundle in bundles if key is not None else ():
        read_bundle(bundle, key)


@app.command("verify")
def verify_command(
    bundle: Bundle,
    against: Annotated[
        list[Path] | None,
        typer.Option(metavar="BUNDLE", help="Another bundle of the same model; repeat for more."),
    ] = None,
    prompts: Annotated[int, typer.Option(min=1, max=1000, help="Prompts that are asked.")] = 32,
    tokens: Annotated[int, typer.Option(min=1, max=4096, help="Tokens of each answer.")] = 64,
    timeout: Annotated[
        float | None, typer.Option(min=1, help="Seconds until a deployment must answer.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the report (JSON).")
    ] = None,
    public_key: PublicKey = None,
    as_json: Json = False,
) -> None:
    """Start a bundle and compare its outputs: again, in a batch, unsplit, in other formats."""
    from recipe_core.calibration.trials.verify import Choice, verify
    from recipe_core.views.trials import verify_text

    _require_signed([bundle, *(against or ())], public_key)
    try:
        choice = Choice(prompts, tokens, timeout)
        report = verify(bundle, against or (), choice, tell=_told)
    except KeyboardInterrupt:
        _told("interrupted; nothing was left running")
        raise typer.Exit(INTERRUPTED) from None
    if output is not None:
        write_whole(output, to_json(report.to_json()).encode())
    emit(report.to_json()) if as_json else typer.echo(verify_text(report))
    raise typer.Exit(1 if report.verdict == "outside" else 0)


@app.command("tune")
def tune_command(
    bundle: Bundle,
    trials: Annotated[int, typer.Option(min=1, max=10_000, help="Trials that are started.")] = 20,
    minutes: Annotated[float, typer.Option(min=0.1, help="Minutes in all.")] = 60.0,
    objective: Annotated[
        str | None,
        typer.Option(
            metavar="GOAL", help="throughput, latency, ttft, tpot or cost; left out, the request's."
        ),
    ] = None,
    splits: Annotated[
        int, typer.Option(min=1, max=32, help="Best splits of the plan that are tried.")
    ] = 3,
    repeats: Annotated[
        int, typer.Option(min=2, max=10, help="Pairs of measurements before a gain is believed.")
    ] = 3,
    patience: Annotated[
        int, typer.Option(min=1, help="Trials without a better one that end the search.")
    ] = 8,
    timeout: Annotated[
        float | None, typer.Option(min=1, help="Seconds until a deployment must answer.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the search that was interrupted.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="BUNDLE", help="Write the better recipe: a folder or a .zip."
        ),
    ] = None,
    public_key: PublicKey = None,
    as_json: Json = False,
) -> None:
    """Search better settings on this machine by starting and measuring the bundle."""
    from recipe_core.calibration.trials.tune import Budget, tune
    from recipe_core.views.trials import tune_text

    _require_signed([bundle], public_key)
    budget = Budget(trials, minutes, repeats, patience, splits, timeout_s=timeout)
    try:
        outcome = tune(bundle, budget, goal=objective, resume=resume, output=output, tell=_told)
    except KeyboardInterrupt:
        _told("interrupted; nothing was left running. Go on with: recipe tune --resume")
        raise typer.Exit(INTERRUPTED) from None
    written = output if outcome.recipe is not None else None
    emit(outcome.to_json()) if as_json else typer.echo(tune_text(outcome, written))
