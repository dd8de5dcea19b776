"""Commands that experiment with a bundle on this machine: verify, tune."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import typer
from typer import Option

from recipe_core.base.documents import to_json, write_whole
from recipe_core.doors.cli.program import Bundle, Json, PublicKey, app, emit, read_key

INTERRUPTED = 130


def _echo_progress(line: str) -> None:
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
    against: list[Path] | None = Option(
        None, metavar="BUNDLE", help="Another bundle of the same model; repeat for more."
    ),
    prompts: int = Option(32, min=1, max=1000, help="Prompts that are asked."),
    tokens: int = Option(64, min=1, max=4096, help="Tokens of each answer."),
    timeout: float | None = Option(None, min=1, help="Seconds until a deployment must answer."),
    output: Path | None = Option(
        None, "--output", "-o", metavar="FILE", help="Write the report (JSON)."
    ),
    public_key: PublicKey = None,
    as_json: Json = False,
) -> None:
    """Start a bundle and compare its outputs: again, in a batch, unsplit, in other formats."""
    from recipe_core.calibration.trials.verify import Choice, verify_outputs
    from recipe_core.calibration.trials.workplace import Machine
    from recipe_core.views.reconciliation import verify_text

    _require_signed([bundle, *(against or ())], public_key)
    try:
        choice = Choice(prompts, tokens, timeout)
        report = verify_outputs(bundle, against or (), choice, machine=Machine(_echo_progress))
    except KeyboardInterrupt:
        _echo_progress("interrupted; nothing was left running")
        raise typer.Exit(INTERRUPTED) from None
    if output is not None:
        write_whole(output, to_json(report.to_json()).encode())
    emit(report.to_json()) if as_json else typer.echo(verify_text(report))
    raise typer.Exit(1 if report.verdict == "outside" else 0)


@app.command("tune")
def tune_command(
    bundle: Bundle,
    trials: int = Option(20, min=1, max=10_000, help="Trials that are started."),
    minutes: float = Option(60.0, min=0.1, help="Minutes in all."),
    objective: str | None = Option(
        None,
        metavar="GOAL",
        help="throughput, latency, ttft, tpot or cost; left out, the request's.",
    ),
    splits: int = Option(3, min=1, max=32, help="Best layouts of the plan that are tried."),
    repeats: int = Option(
        3, min=2, max=10, help="Pairs of measurements before a gain is believed."
    ),
    patience: int = Option(8, min=1, help="Trials without a better one that end the search."),
    timeout: float | None = Option(None, min=1, help="Seconds until a deployment must answer."),
    resume: bool = Option(False, "--resume", help="Go on with the search that was interrupted."),
    output: Path | None = Option(
        None,
        "--output",
        "-o",
        metavar="BUNDLE",
        help="Write the better recipe: a folder or a .zip.",
    ),
    public_key: PublicKey = None,
    as_json: Json = False,
) -> None:
    """Search better settings on this machine by starting and measuring the bundle."""
    from recipe_core.calibration.trials.tune import Budget, tune
    from recipe_core.calibration.trials.workplace import Machine
    from recipe_core.views.reconciliation import tune_text

    _require_signed([bundle], public_key)
    budget = Budget(trials, minutes, repeats, patience, splits, timeout_s=timeout)
    try:
        outcome = tune(
            bundle, budget, Machine(_echo_progress), goal=objective, resume=resume, output=output
        )
    except KeyboardInterrupt:
        _echo_progress("interrupted; nothing was left running. Go on with: recipe tune --resume")
        raise typer.Exit(INTERRUPTED) from None
    emit(outcome.to_json()) if as_json else typer.echo(tune_text(outcome, output))
