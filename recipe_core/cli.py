"""The command line: parse, ask, print. Exit codes: 0 ok, 1 the answer is "no", 2 bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from recipe_core import __version__
from recipe_core.documents import finite, parse_json, parse_yaml, read_document, read_text, to_json
from recipe_core.errors import InputError, RecipeError

app = typer.Typer(
    name="recipe",
    help="From model, hardware and objective to every split judged and one runnable bundle.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
RequestFile = Annotated[str, typer.Argument(metavar="REQUEST", help="A request as YAML or JSON; - reads standard input.")]
Bundle = Annotated[Path, typer.Argument(metavar="BUNDLE", help="A zip or folder that `recipe build` wrote.")]
Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="One of them, in full.")]


def main() -> None:
    """Entry point: errors become one line on standard error (JSON on standard output with --json) and an exit code."""
    try:
        app()
    except RecipeError as error:
        fail(error)
    except BrokenPipeError:
        sys.stderr.close()
        raise SystemExit(0) from None


def fail(error: RecipeError) -> NoReturn:
    """Print an error and leave with its code."""
    if "--json" in sys.argv:
        typer.echo(to_json(error.to_json(), indent=None))
    typer.echo(f"error: {error}", err=True)
    raise SystemExit(error.exit_code)


def emit(value: Any) -> None:
    """Print JSON."""
    typer.echo(to_json(value))


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show that something is going on, when a person is watching."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


def read_request(source: str) -> Any:
    """The plain values of a request file."""
    if source == "-":
        return parse_yaml(sys.stdin.read(), "standard input")
    return read_document(Path(source), field="request")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"recipe {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Options of every command."""


def _listing(name: str | None, as_json: bool, names: list[str], show: Callable[[str], dict[str, Any]], line: Callable[[str], str]) -> None:
    """A list of everything, or one in full."""
    if name is not None:
        value = show(name)
        emit(value) if as_json else _print_facts(value)
    elif as_json:
        emit([show(each) for each in names])
    else:
        for each in names:
            typer.echo(line(each))


def _print_facts(value: dict[str, Any], indent: str = "") -> None:
    for key, item in value.items():
        if isinstance(item, dict) and item and not {"value", "compute_efficiency"} & set(item):
            typer.echo(f"{indent}{key}:")
            _print_facts(item, indent + "  ")
        else:
            typer.echo(f"{indent}{key}: {json.dumps(finite(item), ensure_ascii=False, default=str)}")


@app.command()
def models(name: Name = None, as_json: Json = False) -> None:
    """The model catalog; NAME may also be a folder with a config.json."""
    from recipe_core.model.catalog import catalog_entry, catalog_ids, catalog_model, in_catalog, load_model
    from recipe_core.views import model_view

    def show(each: str) -> dict[str, Any]:
        return model_view(load_model(each), catalog_entry(each) if in_catalog(each) else None)

    def line(each: str) -> str:
        model = catalog_model(each)
        active = f", {model.active_parameters / 1e9:.3g} B active" if model.is_moe else ""
        return f"{each:44} {model.parameters / 1e9:7.3g} B{active}  {model.weight_dtype}"

    _listing(name, as_json, catalog_ids(), show, line)


@app.command()
def hardware(
    name: Name = None,
    detect: Annotated[bool, typer.Option("--detect", help="Read this machine instead of the catalog.")] = False,
    as_json: Json = False,
) -> None:
    """The device profiles, each figure with its source."""
    if detect:
        _detect(name, as_json)
        return
    from recipe_core.hardware.catalog import device, device_names, offers
    from recipe_core.units import gib
    from recipe_core.views import hardware_view

    def line(each: str) -> str:
        d = device(each)
        return (
            f"{each:16} {d.vendor:7} {gib(d.usable_memory_bytes):>10}  {d.memory_bandwidth_bytes_per_s.value / 1e12:5.2f} TB/s  {d.title}"
        )

    _listing(name, as_json, device_names(), lambda each: hardware_view(device(each), offers()), line)


def _detect(name: str | None, as_json: bool) -> None:
    from recipe_core.hardware.detect import describe, detect

    if name is not None:
        raise InputError("--detect reads this machine and takes no name.", field="hardware", hint=f"Leave out {name!r}, or --detect.")
    with working("Reading this machine …"):
        found = detect()
    emit(found.to_json()) if as_json else typer.echo(describe(found))


@app.command()
def engines(name: Name = None, as_json: Json = False) -> None:
    """The engines and their pinned versions."""
    from recipe_core.engines.spec import engine, engine_names
    from recipe_core.views import engine_view

    def line(each: str) -> str:
        e = engine(each)
        return f"{each:14} {e.version:10} {', '.join(e.runtimes):16} {e.title}"

    _listing(name, as_json, engine_names(), lambda each: engine_view(engine(each)), line)


@app.command("plan")
def plan_command(
    request: RequestFile,
    top: Annotated[int | None, typer.Option(min=0, help="How many of the ranked splits to print.")] = None,
    everything: Annotated[Path | None, typer.Option("--all", metavar="FILE", help="Write every row, as .csv, .parquet or .json.")] = None,
    flips: Annotated[bool, typer.Option("--sensitivity", help="Also say what would flip the decision: price, lengths, load.")] = False,
    as_json: Json = False,
) -> None:
    """Every split of the cluster, judged and ranked."""
    from recipe_core.plan import plan
    from recipe_core.request import PlanRequest
    from recipe_core.sensitivity import sensitivity
    from recipe_core.terminal import plan_text
    from recipe_core.views import plan_view

    asked = PlanRequest.parse(read_request(request))
    if asked.workload.kind == "training":
        _training_plan(asked, top, everything, flips, as_json)
    with working("Judging every split …"):
        table = plan(asked)
        if everything is not None:
            _write_rows(table, everything)
        changes = sensitivity(table) if flips else None
    if as_json:
        emit(plan_view(table, top) | ({} if changes is None else {"sensitivity": [change.to_json() for change in changes]}))
    else:
        typer.echo(plan_text(table, 10 if top is None else top, changes))
    raise typer.Exit(0 if len(table.ranked) else 1)


def _training_plan(asked: Any, top: int | None, everything: Path | None, flips: bool, as_json: bool) -> NoReturn:
    from recipe_core.training.plan import training_plan
    from recipe_core.training.text import training_plan_text

    if flips:
        raise InputError("what would flip a training plan is not computed by this version.", field="sensitivity", hint="Leave it out.")
    with working("Judging every split …"):
        table = training_plan(asked)
    if everything is not None:
        _write_rows(table, everything)
    emit(table.view(top)) if as_json else typer.echo(training_plan_text(table, 10 if top is None else top))
    raise typer.Exit(0 if len(table.ranked) else 1)


def _write_rows(table: Any, path: Path) -> None:
    import io

    from recipe_core.documents import write_whole

    writers: dict[str, Callable[[Any, io.BytesIO], Any]] = {
        ".csv": lambda frame, buffer: frame.to_csv(buffer, index=False),
        ".parquet": lambda frame, buffer: frame.to_parquet(buffer, index=False),
        ".json": lambda frame, buffer: frame.to_json(buffer, orient="records"),
    }
    if path.suffix not in writers:
        raise InputError(f"{path.name!r} has no known suffix.", field="all", hint=f"Use {', '.join(writers)}.")
    buffer = io.BytesIO()
    writers[path.suffix](table.frame(), buffer)
    write_whole(path, buffer.getvalue())


@app.command()
def estimate(
    request: RequestFile,
    traced: Annotated[bool, typer.Option("--trace", help="Also build the real model without data and compare (torch extra).")] = False,
    as_json: Json = False,
) -> None:
    """Exactly the split in REQUEST.candidate (or the best that agrees with it); a .jsonl file answers line by line."""
    from recipe_core.plan import chosen_plan
    from recipe_core.request import PlanRequest
    from recipe_core.terminal import estimate_text

    if request.endswith(".jsonl"):
        if traced:
            raise InputError("--trace takes one request, not a .jsonl file.", field="trace", hint="Trace its lines one by one.")
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
        from recipe_core.trace.text import trace_text

        typer.echo(f"\n{trace_text(found)}")
    raise typer.Exit(0 if answer["feasible"] else 1)


def _training_estimate(asked: Any, traced: bool, as_json: bool) -> NoReturn:
    from recipe_core.training.plan import chosen_training
    from recipe_core.training.text import training_text

    if traced:
        raise InputError("--trace takes serving requests.", field="trace", hint="Leave it out.")
    estimates, row = chosen_training(asked)
    answer = {"candidate": estimates.candidate(row)} | estimates.row(row)
    emit(answer) if as_json else typer.echo(training_text(answer))
    raise typer.Exit(0 if answer["feasible"] else 1)


def _trace(table: Any, row: int) -> dict[str, Any]:
    from recipe_core.trace import trace

    with working("Tracing the model …"):
        return trace(table, row)


def _each_line(path: Path) -> None:
    from recipe_core.many import estimate_many

    values = _values(path)
    with working(f"Estimating {len(values):,} requests …"):
        answers = estimate_many(values)
    for answer in answers:
        typer.echo(to_json(answer, indent=None))


def _values(path: Path) -> list[Any]:
    """The value of each line of a .jsonl file; of a line that holds none, its error."""
    lines = [line for line in read_text(path, field="request", limit=None).splitlines() if line.strip()]
    return [_parsed(line, n) for n, line in enumerate(lines, 1)]


def _parsed(line: str, number: int) -> Any:
    try:
        return parse_json(line, f"line {number}")
    except InputError as error:
        return error


@app.command()
def check(
    what: Annotated[
        str | None, typer.Argument(metavar="[REQUEST|BUNDLE|FILE]", help="A request, a bundle, a .jsonl, or a file of commands.")
    ] = None,
    command: Annotated[
        str | None, typer.Option("--command", help='An engine\'s command line, e.g. "vllm serve …", or a list of words.')
    ] = None,
    folder: Annotated[Path | None, typer.Option("--dir", metavar="DIR", help="Files of commands: .sh, .txt, .md, .jsonl.")] = None,
    hardware: Annotated[str | None, typer.Option(help="The device of a command: NAME or NAME:COUNT.")] = None,
    gpus: Annotated[int | None, typer.Option(help="Devices in a node.")] = None,
    nodes: Annotated[int | None, typer.Option(help="Nodes.")] = None,
    input_tokens: Annotated[int | None, typer.Option(help="Tokens of a prompt.")] = None,
    output_tokens: Annotated[int | None, typer.Option(help="Tokens of an answer.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Requests in flight.")] = None,
    optimize: Annotated[str | None, typer.Option(help="What a better command is better at: throughput, latency, cost …")] = None,
    model: Annotated[str | None, typer.Option(help="The model, where the command names a folder or leaves it open.")] = None,
    acceptance: Annotated[float | None, typer.Option(help="The share of drafted tokens that is accepted.")] = None,
    as_json: Json = False,
) -> None:
    """A verdict, the reasons, and a better split: on a request, a bundle, or engines' command lines."""
    if sum(each is not None for each in (what, command, folder)) != 1:
        raise InputError("give either a request or bundle, or --command, or --dir.", field="check")
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
    }
    ground = {name: value for name, value in ground.items() if value is not None}
    if command is not None:
        _check_command(command, ground, as_json)
    elif folder is not None:
        _check_folder(folder, ground)
    elif str(what).endswith(".jsonl"):
        _check_lines(Path(str(what)), ground)
    elif str(what).endswith((".sh", ".bash", ".txt", ".md")):
        _check_folder(Path(str(what)), ground)
    elif Path(str(what)).is_dir() or str(what).endswith(".zip"):
        _check_bundle(Path(str(what)), as_json)
    else:
        _check_request(str(what), as_json)


def _check_request(source: str, as_json: bool) -> NoReturn:
    from recipe_core.check import check_request
    from recipe_core.request import PlanRequest
    from recipe_core.terminal import check_text

    answer = check_request(PlanRequest.parse(read_request(source)))
    emit(answer) if as_json else typer.echo(check_text(answer))
    raise typer.Exit(0 if answer["ok"] else 1)


def _check_command(command: str, ground: dict[str, Any], as_json: bool) -> NoReturn:
    from recipe_core.commands.ground import Ground
    from recipe_core.commands.judge import check_command
    from recipe_core.commands.text import verdict_text

    if "hardware" not in ground:
        raise InputError("--command needs the device it runs on.", field="hardware", hint="For example --hardware h100-sxm --gpus 8.")
    answer = check_command(command, Ground.of(**ground))
    emit(answer) if as_json else typer.echo(verdict_text(answer))
    if "error" in answer:
        error = InputError(answer["error"]["message"], field=answer["error"]["field"], hint=answer["error"]["hint"])
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2)
    raise typer.Exit(0 if answer["ok"] else 1)


def _check_folder(folder: Path, ground: dict[str, Any]) -> None:
    from recipe_core.commands.files import check_items, read_items

    items = list(read_items(folder))
    with working(f"Judging the commands of {len(items):,} places …"):
        answers = list(check_items(items, ground))
    for answer in answers:
        typer.echo(to_json(answer, indent=None))


def _check_lines(path: Path, ground: dict[str, Any]) -> None:
    from recipe_core.commands.files import check_values

    values = _values(path)
    with working(f"Judging {len(values):,} lines …"):
        answers = list(check_values(values, ground))
    for answer in answers:
        typer.echo(to_json(answer, indent=None))


def _check_bundle(path: Path, as_json: bool) -> None:
    from recipe_core.verify import read_bundle

    checked = read_bundle(path)
    if as_json:
        emit(
            {
                "ok": True,
                "recipe": checked.recipe.name,
                "digest": checked.recipe.digest,
                "files": len(checked.files),
                "warnings": checked.warnings,
            }
        )
        return
    typer.echo(f"ok: {checked.recipe.name}, {len(checked.files)} files, every digest matches")
    for warning in checked.warnings:
        typer.echo(f"note: {warning}")


@app.command()
def validate(
    table: Annotated[Path | None, typer.Argument(metavar="[TABLE]", help="Measured runs as CSV; without it, the shipped ones.")] = None,
    by: Annotated[str | None, typer.Option(metavar="COLUMN", help="Also by device, model, source or engine.")] = None,
    training: Annotated[bool, typer.Option("--training", help="Training runs, instead of serving's.")] = False,
    as_json: Json = False,
) -> None:
    """How far estimates are from measured runs: published ones, or a table of your own."""
    if training:
        _validate_training(table, by, as_json)
        return
    from recipe_core.measured import published_runs, read_runs
    from recipe_core.validate import compare, validation_text, validation_view

    runs = published_runs() if table is None else read_runs(table)
    with working(f"Estimating {len(runs):,} runs …"):
        found = compare(runs)
    emit(validation_view(found, by)) if as_json else typer.echo(validation_text(found, by))


def _validate_training(table: Path | None, by: str | None, as_json: bool) -> None:
    from recipe_core.training.measured import published_training_runs, read_training_runs
    from recipe_core.training.validate import compare_training, training_validation_text, training_validation_view

    runs = published_training_runs() if table is None else read_training_runs(table)
    with working(f"Estimating {len(runs):,} runs …"):
        found = compare_training(runs)
    emit(training_validation_view(found, by)) if as_json else typer.echo(training_validation_text(found, by))


@app.command()
def build(
    request: RequestFile,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="BUNDLE", help="A folder, or a file that ends in .zip.")],
    as_json: Json = False,
) -> None:
    """Plan, pick the best split (or the given candidate) and write the bundle."""
    from recipe_core.bundle import write_bundle
    from recipe_core.recipe import make_recipe
    from recipe_core.request import PlanRequest
    from recipe_core.terminal import build_text

    with working("Building …"):
        recipe = make_recipe(PlanRequest.parse(read_request(request)))
        write_bundle(recipe, output)
    if as_json:
        emit({"bundle": str(output), "name": recipe.name, "digest": recipe.digest, "candidate": recipe.candidate})
    else:
        typer.echo(build_text(recipe, output))


def _launcher(command: str, bundle: Path, words: list[str]) -> NoReturn:
    """Run the bundle's own launcher in this interpreter's environment."""
    from recipe_core.verify import unpack

    folder = unpack(bundle)
    raise SystemExit(
        subprocess.call(
            [
                sys.executable,
                str(folder / "launch.py"),
                *(["--json"] if "--json" in words else []),
                command,
                *(w for w in words if w != "--json"),
            ]
        )
    )


_LAUNCHER = {
    "preflight": "Check that this is the machine the bundle needs.",
    "up": "Start the bundle's servers and wait until they are healthy.",
    "bench": "Send real requests; print predicted against measured; write measurement.json.",
    "status": "Whether the bundle's servers run and are healthy.",
    "down": "Stop the bundle's servers.",
}


def _launcher_command(name: str, summary: str) -> None:
    def command(context: typer.Context, bundle: Bundle) -> None:
        _launcher(name, bundle, context.args)

    settings = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(name, help=f"{summary} Options of the bundle's own launcher are passed on.", context_settings=settings)(command)


for _name, _summary in _LAUNCHER.items():
    _launcher_command(_name, _summary)


@app.command()
def serve(
    host: Annotated[str, typer.Option(help="The address to listen on; others than loopback let strangers in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8501,
) -> None:
    """The web builder and the JSON API."""
    from recipe_core.serve import serve as run

    run(host, port)
