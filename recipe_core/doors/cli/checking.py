"""Commands that judge requests, bundles and engines' commands, and the estimates themselves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from recipe_core.base.documents import to_json
from recipe_core.base.errors import InputError
from recipe_core.doors.cli.app import (
    Json,
    NoCalibration,
    PublicKey,
    app,
    calibrated,
    deployment_at,
    emit,
    own_device,
    plan_request,
    read_key,
    read_lines,
    working,
)

if TYPE_CHECKING:
    from pandas import DataFrame

    from recipe_core.targets.deployments.deployed import DeploymentFile


@app.command()
def check(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[REQUEST|BUNDLE|FILE]",
            help="A request, a bundle, a deployment file, a .jsonl file, or a file of commands.",
        ),
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(
            "--command", help='An engine\'s command line, e.g. "vllm serve …", or a list of words.'
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--dir", metavar="DIR", help="Check deployment files and commands in it."),
    ] = None,
    hardware: Annotated[
        str | None, typer.Option(help="The device of a command: NAME or NAME:COUNT.")
    ] = None,
    gpus: Annotated[int | None, typer.Option(help="Devices per node.")] = None,
    nodes: Annotated[int | None, typer.Option(help="Nodes.")] = None,
    input_tokens: Annotated[int | None, typer.Option(help="Tokens per prompt.")] = None,
    output_tokens: Annotated[int | None, typer.Option(help="Tokens per answer.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Requests in flight.")] = None,
    optimize: Annotated[
        str | None,
        typer.Option(help="What to improve: throughput, latency, cost …"),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="The model, if the command names a folder or a variable."),
    ] = None,
    acceptance: Annotated[
        float | None, typer.Option(help="Share of drafted tokens that are accepted.")
    ] = None,
    engine_version: Annotated[
        str | None,
        typer.Option(metavar="RELEASE", help="The release of the engine that runs, e.g. 0.25.0."),
    ] = None,
    images: Annotated[float | None, typer.Option(help="Images per prompt.")] = None,
    image_tokens: Annotated[
        int | None, typer.Option(help="Tokens of a prompt that an image becomes.")
    ] = None,
    public_key: PublicKey = None,
    no_calibration: NoCalibration = False,
    as_json: Json = False,
) -> None:
    """Judge a request, a bundle or engines' commands: a verdict, the reasons, a better split."""
    if sum(source is not None for source in (what, command, folder)) != 1:
        raise InputError("give one of: a request or bundle, --command, --dir.", field="check")
    ground = {
        "hardware": hardware,
        "gpus": gpus,
        "nodes": nodes,
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "concurrency": concurrency,
        "optimize": optimize,
        "model": model,
        "acceptance": acceptance,
        "images": images,
        "image_tokens": image_tokens,
        "engine_version": engine_version,
    }
    ground = {name: value for name, value in ground.items() if value is not None}
    ground |= own_device(hardware, gpus)
    source, path = str(what), Path(str(what))
    if what is not None and (path.is_dir() or source.endswith(".zip")):
        _check_bundle(path, public_key, as_json)
        return
    with calibrated(no_calibration):
        if command is not None:
            _check_command(command, ground, as_json)
        elif folder is not None:
            _check_folder(folder, ground, as_json)
        elif source.endswith(".jsonl"):
            _check_lines(path, ground)
        elif source.endswith((".txt", ".md")):
            _check_list(path, ground)
        elif deployment := deployment_at(source):
            _check_deployment(deployment, ground, as_json)
        else:
            _check_request(source, as_json)


def _check_request(source: str, as_json: bool) -> NoReturn:
    from recipe_core.plans.verdict import check_request
    from recipe_core.views.terminal import check_text

    answer = check_request(plan_request(source))
    emit(answer) if as_json else typer.echo(check_text(answer))
    raise typer.Exit(1 if answer["ok"] is False else 0)


def _check_command(command: str, ground: dict[str, Any], as_json: bool) -> NoReturn:
    from recipe_core.commands.ground import Ground
    from recipe_core.commands.judge import check_command
    from recipe_core.views.commands import verdict_text

    if "hardware" not in ground:
        raise InputError(
            "--command needs a device.",
            field="hardware",
            hint="For example --hardware h100-sxm --gpus 8.",
        )
    answer = check_command(command, Ground.of(**ground))
    emit(answer) if as_json else typer.echo(verdict_text(answer))
    if problem := answer.get("error"):
        error = InputError(problem["message"], field=problem["field"], hint=problem["hint"])
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2)
    raise typer.Exit(1 if answer["ok"] is False else 0)


def _check_deployment(file: DeploymentFile, ground: dict[str, Any], as_json: bool) -> NoReturn:
    from recipe_core.targets.deployments.judge import check_deployment
    from recipe_core.views.commands import deployment_text

    with working(f"Judging {len(file.engines):,} engines …"):
        answer = check_deployment(file, ground)
    emit(answer) if as_json else typer.echo(deployment_text(answer))
    without_answer = not answer["engines"] or any("error" in each for each in answer["engines"])
    if answer["ok"] is False:
        raise typer.Exit(1)
    raise typer.Exit(2 if without_answer else 0)


def _check_folder(folder: Path, ground: dict[str, Any], as_json: bool) -> NoReturn:
    from recipe_core.targets.deployments.judge import check_folder
    from recipe_core.views.commands import folder_text

    with working(f"Judging what {folder} starts …"):
        answers = check_folder(folder, ground)
    if as_json:
        for answer in answers:
            typer.echo(to_json(answer, indent=None))
    else:
        typer.echo(folder_text(answers))
    raise typer.Exit(int(any(answer.get("ok") is False for answer in answers)))


def _check_list(path: Path, ground: dict[str, Any]) -> None:
    from recipe_core.commands.files import check_items, read_items

    items = list(read_items(path))
    with working(f"Judging {len(items):,} commands …"):
        answers = list(check_items(items, ground))
    for answer in answers:
        typer.echo(to_json(answer, indent=None))


def _check_lines(path: Path, ground: dict[str, Any]) -> None:
    from recipe_core.commands.files import check_values

    values = read_lines(path)
    with working(f"Judging {len(values):,} lines …"):
        answers = list(check_values(values, ground))
    for answer in answers:
        typer.echo(to_json(answer, indent=None))


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


@app.command()
def validate(
    table: Annotated[
        Path | None,
        typer.Argument(metavar="[TABLE]", help="Measured runs as CSV; default: the shipped ones."),
    ] = None,
    by: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Group by device, model, source or engine.")
    ] = None,
    training: Annotated[
        bool, typer.Option("--training", help="Training runs instead of serving runs.")
    ] = False,
    bands: Annotated[
        bool,
        typer.Option("--bands", help="How often runs are inside their 50, 80 and 95 % intervals."),
    ] = False,
    sizes: Annotated[
        bool,
        typer.Option("--sizes", help="How often measured sizes are inside proposed ranges."),
    ] = False,
    as_json: Json = False,
) -> None:
    """The errors of estimates against measured runs: published ones, or your own table."""
    stated = {"--by COLUMN": by is not None, "--bands": bands, "--sizes": sizes}
    questions = [name for name, one in stated.items() if one]
    if len(questions) > 1:
        raise InputError(f"{' and '.join(questions)} are two questions.", hint="Ask one at a time.")
    if sizes and training:
        raise InputError("sizes are of serving runs.", field="sizes", hint="Leave --training out.")
    if training:
        _validate_training(table, by, bands=bands, as_json=as_json)
        return
    from recipe_core.calibration.validation.validate import (
        compare,
        validation_text,
        validation_view,
    )
    from recipe_core.estimates.measured.serving_runs import published_runs, read_runs

    runs = published_runs() if table is None else read_runs(table)
    with working(f"Estimating {len(runs):,} runs …"):
        comparison = compare(runs)
    if bands:
        _show_coverage(comparison.figures, as_json)
    elif sizes:
        _show_sizes(comparison.figures, as_json)
    elif as_json:
        emit(validation_view(comparison, by))
    else:
        typer.echo(validation_text(comparison, by))


def _show_coverage(figures: DataFrame, as_json: bool) -> None:
    from recipe_core.calibration.validation.intervals import coverage_text, coverage_view

    if as_json:
        emit(coverage_view(figures))
    else:
        typer.echo(coverage_text(figures))


def _show_sizes(figures: DataFrame, as_json: bool) -> None:
    from recipe_core.calibration.validation.sizes import sizes_text, sizes_view

    if as_json:
        emit(sizes_view(figures))
    else:
        typer.echo(sizes_text(figures))


def _validate_training(table: Path | None, by: str | None, *, bands: bool, as_json: bool) -> None:
    from recipe_core.calibration.validation.training_validate import (
        compare_training,
        training_validation_text,
        training_validation_view,
    )
    from recipe_core.estimates.measured.training_runs import (
        published_training_runs,
        read_training_runs,
    )

    runs = published_training_runs() if table is None else read_training_runs(table)
    with working(f"Estimating {len(runs):,} runs …"):
        comparison = compare_training(runs)
    if bands:
        _show_coverage(comparison.figures, as_json)
    elif as_json:
        emit(training_validation_view(comparison, by))
    else:
        typer.echo(training_validation_text(comparison, by))
