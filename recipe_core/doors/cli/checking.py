"""Commands that judge requests, bundles and engines' commands, and the estimates themselves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from typer import Argument, Option

from recipe_core.base.errors import InputError
from recipe_core.doors.cli.program import (
    GroundOptions,
    Json,
    NoCalibration,
    PublicKey,
    app,
    apply_calibration,
    emit,
    emit_lines,
    find_deployment,
    read_key,
    read_lines,
    read_own_device,
    read_plan_request,
    show,
    show_spinner,
    with_options,
)

if TYPE_CHECKING:
    from recipe_core.calibration.validation.comparison import Comparison
    from recipe_core.targets.deployments.deployment import DeploymentFile


class CommandOptions(GroundOptions):
    """The fields of ``commands.context.CommandContext``."""

    hardware: str | None = Option(None, help="The device of a command: NAME or NAME:COUNT.")
    optimize: str | None = Option(None, help="What to improve: throughput, latency, cost …")
    model: str | None = Option(None, help="The model, if the command names a folder or a variable.")
    acceptance: float | None = Option(None, help="Share of drafted tokens that are accepted.")
    engine_version: str | None = Option(
        None, metavar="RELEASE", help="The release of the engine that runs, e.g. 0.25.0."
    )
    input_spread: float | None = Option(
        None, help="Spread of prompt lengths as a share of their mean; 0 is exact."
    )
    output_spread: float | None = Option(
        None, help="Spread of answer lengths as a share of their mean; 0 is exact."
    )
    images: float | None = Option(None, help="Images per prompt.")
    image_tokens: int | None = Option(None, help="Tokens of a prompt that an image becomes.")


@app.command("check")
@with_options("context", CommandOptions)
def check_command(
    source: str | None = Argument(
        None,
        metavar="[REQUEST|BUNDLE|FILE]",
        help="A request, a bundle, a deployment file, a .jsonl file, or a file of commands.",
    ),
    command: str | None = Option(
        None, help='An engine\'s command line, e.g. "vllm serve …", or a list of words.'
    ),
    folder: Path | None = Option(
        None, "--dir", metavar="DIR", help="Check deployment files and commands in it."
    ),
    context: dict[str, Any] = {},  # noqa: B006 - replaced by its options
    public_key: PublicKey = None,
    no_calibration: NoCalibration = False,
    as_json: Json = False,
) -> None:
    """Judge a request, a bundle or engines' commands: a verdict, the reasons, a better layout."""
    if sum(value is not None for value in (source, command, folder)) != 1:
        raise InputError("give one of: a request or bundle, --command, --dir.", field="check")
    device = read_own_device(context["hardware"], context["gpus"])
    context = {name: value for name, value in context.items() if value is not None} | device
    if source is not None and (Path(source).is_dir() or source.endswith(".zip")):
        _check_bundle(Path(source), public_key, as_json)
        return
    with apply_calibration(no_calibration):
        if command is not None:
            _check_command(command, context, as_json)
        elif folder is not None:
            _check_folder(folder, context, as_json)
        else:
            _check_file(str(source), context, as_json)


def _check_file(source: str, context: dict[str, Any], as_json: bool) -> None:
    from recipe_core.commands.files import check_items, check_values, items_of

    if source.endswith(".jsonl"):
        values = read_lines(Path(source))
        with show_spinner(f"Judging {len(values):,} lines …"):
            answers = list(check_values(values, context))
        emit_lines(answers)
    elif source.endswith((".txt", ".md")):
        items = list(items_of(Path(source), Path(source).name))
        with show_spinner(f"Judging {len(items):,} commands …"):
            answers = list(check_items(items, context))
        emit_lines(answers)
    elif deployment := find_deployment(source):
        _check_deployment(deployment, context, as_json)
    else:
        _check_request(source, as_json)


def _check_request(source: str, as_json: bool) -> NoReturn:
    from recipe_core.commands.verdict import judge_request
    from recipe_core.views.estimates import check_text

    answer = judge_request(read_plan_request(source))
    show(answer, check_text, as_json)
    raise typer.Exit(1 if answer["ok"] is False else 0)


def _check_command(command: str, context: dict[str, Any], as_json: bool) -> NoReturn:
    from recipe_core.commands.context import CommandContext
    from recipe_core.commands.judge import judge_command
    from recipe_core.views.commands import verdict_text

    if "hardware" not in context:
        raise InputError(
            "--command needs a device.",
            field="hardware",
            hint="For example --hardware h100-sxm --gpus 8.",
        )
    answer = judge_command(command, CommandContext.of(**context))
    show(answer, verdict_text, as_json)
    if problem := answer.get("error"):
        error = InputError(problem["message"], field=problem["field"], hint=problem["hint"])
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2)
    raise typer.Exit(1 if answer["ok"] is False else 0)


def _check_deployment(file: DeploymentFile, context: dict[str, Any], as_json: bool) -> NoReturn:
    from recipe_core.targets.deployments.judge import check_deployment
    from recipe_core.views.commands import deployment_text

    with show_spinner(f"Judging {len(file.engines):,} engines …"):
        answer = check_deployment(file, context)
    show(answer, deployment_text, as_json)
    without_answer = not answer["engines"] or any("error" in engine for engine in answer["engines"])
    if answer["ok"] is False:
        raise typer.Exit(1)
    raise typer.Exit(2 if without_answer else 0)


def _check_folder(folder: Path, context: dict[str, Any], as_json: bool) -> NoReturn:
    from recipe_core.targets.deployments.judge import check_folder
    from recipe_core.views.commands import folder_text

    with show_spinner(f"Judging what {folder} starts …"):
        answers = check_folder(folder, context)
    if as_json:
        emit_lines(answers)
    else:
        typer.echo(folder_text(answers))
    raise typer.Exit(int(any(answer.get("ok") is False for answer in answers)))


def _check_bundle(path: Path, public_key: Path | None, as_json: bool) -> None:
    from recipe_core.bundle.verify import check_bundle

    answer = check_bundle(path, read_key(public_key, "public_key"))
    if as_json:
        emit(answer)
        return
    typer.echo(f"ok, {answer['verdict']}")
    typer.echo(f"{answer['recipe']}: {answer['files']} files, every digest matches")
    for note in (*answer["warnings"], *answer["machine"]):
        typer.echo(f"note: {note}")


@app.command("validate")
def validate_command(
    table: Path | None = Argument(
        None, metavar="[TABLE]", help="Measured runs as CSV; default: the shipped ones."
    ),
    by: str | None = Option(
        None, metavar="COLUMN", help="Group by device, model, source or engine."
    ),
    training: bool = Option(False, "--training", help="Training runs instead of serving runs."),
    bands: bool = Option(
        False, "--bands", help="How often runs are inside their 50, 80 and 95 % intervals."
    ),
    sizes: bool = Option(
        False, "--sizes", help="How often measured sizes are inside proposed ranges."
    ),
    regret: bool = Option(
        False, "--regret", help="What choosing by estimates costs beyond the best measured choice."
    ),
    as_json: Json = False,
) -> None:
    """The errors of estimates against measured runs: published ones, or your own table."""
    from recipe_core.calibration.validation.regret import regret_text, regret_view
    from recipe_core.calibration.validation.sizes import sizes_text, sizes_view
    from recipe_core.calibration.validation.validate import (
        coverage_text,
        coverage_view,
        validation_text,
        validation_view,
    )

    flags = {"--by COLUMN": by is not None, "--bands": bands, "--sizes": sizes, "--regret": regret}
    questions = [name for name, is_set in flags.items() if is_set]
    if len(questions) > 1:
        raise InputError(f"{' and '.join(questions)} are two questions.", hint="Ask one at a time.")
    if (sizes or regret) and training:
        name = "sizes" if sizes else "regret"
        message = f"{name} {'are' if sizes else 'is'} of serving runs."
        raise InputError(message, field=name, hint="Leave --training out.")
    comparison = _compare_runs(table, training)
    figures = comparison.figures
    if bands:
        emit(coverage_view(figures)) if as_json else typer.echo(coverage_text(figures))
    elif sizes:
        emit(sizes_view(figures)) if as_json else typer.echo(sizes_text(figures))
    elif regret:
        emit(regret_view(figures)) if as_json else typer.echo(regret_text(figures))
    else:
        view = validation_view(comparison, by) if as_json else None
        emit(view) if as_json else typer.echo(validation_text(comparison, by))


def _compare_runs(table: Path | None, training: bool) -> Comparison:
    """The comparison of a table's runs with their estimates."""
    from recipe_core.calibration.validation.comparison import (
        compare_training,
        compare_with_estimates,
    )
    from recipe_core.estimates.measured.runs import (
        published_runs,
        published_training_runs,
        read_runs,
        read_training_runs,
    )

    if training:
        trained = published_training_runs() if table is None else read_training_runs(table)
        with show_spinner(f"Estimating {len(trained):,} runs …"):
            return compare_training(trained)
    runs = published_runs() if table is None else read_runs(table)
    with show_spinner(f"Estimating {len(runs):,} runs …"):
        return compare_with_estimates(runs)
