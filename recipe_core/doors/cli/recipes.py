"""Commands on recipes: build, lock, resolve, diff, convert, keygen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer import Argument, Option

from recipe_core.base.documents import parse_json, read_document, read_text, to_yaml, write_whole
from recipe_core.base.errors import BundleError, InputError
from recipe_core.doors.cli.program import (
    Bundle,
    GroundOptions,
    Json,
    NoCalibration,
    RequestFile,
    app,
    emit,
    find_deployment,
    learn_own_runs,
    read_key,
    read_name_values,
    read_own_device,
    read_plan_request,
    show_spinner,
    with_options,
)

if TYPE_CHECKING:
    from recipe_core.targets.deployments.deployment import DeploymentFile

Output = Annotated[
    Path | None,
    Option("--output", "-o", metavar="BUNDLE", help="A folder, or a file that ends in .zip."),
]
Key = Annotated[
    Path | None,
    Option("--sign", metavar="KEY.pem", help="Sign with this ed25519 key; see keygen."),
]
Pairs = list[str] | None


def _read_parameters(words: Pairs, flag: str) -> dict[str, str]:
    return read_name_values(words, flag, "NAME=VALUE", "port=9000")


class BuildOptions:
    """The parts of a bundle beside the decision."""

    sets: Pairs = Option(
        None,
        "--set",
        metavar="NAME=VALUE",
        help="A parameter: port, namespace, image, model_cache …",
    )
    options: Pairs = Option(
        None, "--option", metavar="NAME=VALUE", help="An option for the engine."
    )
    env: Pairs = Option(None, metavar="NAME=VALUE", help="An environment variable for the engine.")
    devices: Pairs = Option(
        None, "--for", metavar="DEVICE:COUNT", help="Add a variant for this hardware."
    )
    variants: Path | None = Option(None, metavar="FILE", help="Your own variants, as YAML.")
    measured: list[Path] | None = Option(None, metavar="FILE", help="Add a run/measurement.json.")


@app.command("build")
@with_options("parts", BuildOptions)
def build_command(
    request: RequestFile,
    output: Path = Option(
        ..., "--output", "-o", metavar="BUNDLE", help="A folder, or a file that ends in .zip."
    ),
    parts: dict[str, Any] = {},  # noqa: B006 - replaced by its options
    no_calibration: NoCalibration = False,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Plan, pick the best layout (or the request's candidate) and write the bundle."""
    from recipe_core.bundle.write import write_bundle
    from recipe_core.estimates.columns.scopes import correct_by_default
    from recipe_core.views.overview import build_text

    corrections = learn_own_runs(None, no_calibration)
    values = read_plan_request(request, corrections)
    with correct_by_default(lambda: corrections):
        recipe = _make_recipe(values, **parts)
        write_bundle(recipe, output, read_key(key, "sign"))
    runs = _runs_text(output)
    if not as_json:
        typer.echo(build_text(recipe, output, runs))
        return
    answer = {"bundle": str(output), "name": recipe.name, "digest": recipe.digest}
    answer["candidate"] = recipe.candidate
    if scaling := recipe.estimate.get("scaling"):
        answer["scaling"] = scaling
    if runs:
        answer["kept"] = runs
    emit(answer)


def _make_recipe(
    request: Any,
    sets: Pairs,
    options: Pairs,
    env: Pairs,
    devices: Pairs,
    variants: Path | None,
    measured: list[Path] | None,
) -> Any:
    from recipe_core.recipe import Additions, make_recipe, passing_on, with_claims, with_variants
    from recipe_core.recipe.place import parse_recipe_variants, read_parameters
    from recipe_core.recipe.resolve import hardware_named

    values = passing_on(request, _read_parameters(options, "option"), _read_parameters(env, "env"))
    additions = Additions(
        parameters=read_parameters(_read_parameters(sets, "set")),
        variants=parse_recipe_variants(read_document(variants, field="variants"))
        if variants
        else (),
    )
    with show_spinner("Building …"):
        recipe = make_recipe(values, additions)
        if devices:
            machines = [hardware_named(name, "for", files=True) for name in devices]
            recipe = with_variants(recipe, values, additions, machines)
        if measured:
            runs = [parse_json(read_text(path, field="measured"), str(path)) for path in measured]
            recipe = with_claims(recipe, runs)
    return recipe


def _runs_text(output: Path) -> str | None:
    """Say which runs a bundle's folder holds that was built again."""
    if not output.is_dir():
        return None
    from recipe_core.bundle.runs import kept_text

    return kept_text(output)


def _echo_runs(output: Path) -> None:
    if runs := _runs_text(output):
        typer.echo(f"{output}: {runs}", err=True)


@app.command("lock")
def lock_command(
    bundle: Bundle,
    verify: bool = Option(
        False, "--verify", help="Compare the lock with this version and what is installed here."
    ),
    model: Path | None = Option(None, metavar="DIR", help="The model's folder, to verify as well."),
    online: bool = Option(False, "--online", help="Ask the image's registry for its digest."),
    output: Output = None,
    sign: Key = None,
    as_json: Json = False,
) -> None:
    """Show what a bundle pins: versions, image, revision, digests, minimum versions, seeds.

    With --online the image's digest too; -o writes the bundle that starts it by that digest.
    """
    from recipe_core.bundle.verify import read_bundle
    from recipe_core.recipe.locking import without_digest

    checked = read_bundle(bundle)
    recipe, pins = checked.recipe, checked.recipe.lock
    if pins is None:
        raise BundleError(
            "the recipe has an older format without a lock.", hint="Build the bundle again."
        )
    if (output or sign) and not (online and output):
        raise InputError(
            "writes what --online found.",
            field="output" if output else "sign",
            hint="Add --online and -o BUNDLE.",
        )
    if online:
        recipe, pins = _pin_image(recipe, output, sign)
        if output and checked.signed and not sign:
            typer.echo(f"{output} is not signed; --sign KEY.pem signs it.", err=True)
    if verify:
        _verify_pins(recipe, pins, model, as_json)
    if remark := without_digest(pins):
        typer.echo(remark, err=True)
    values = pins.model_dump(mode="json")
    emit(values) if as_json else typer.echo(to_yaml(values).rstrip())


def _verify_pins(recipe: Any, pins: Any, model: Path | None, as_json: bool) -> NoReturn:
    from recipe_core.recipe.comparison import verify_lock
    from recipe_core.views.overview import lock_text

    comparison = verify_lock(recipe, pins, model)
    differs = any(item.level == "differs" for item in comparison)
    if as_json:
        emit({"ok": not differs, "found": [item.to_json() for item in comparison]})
    else:
        typer.echo(lock_text(comparison))
    raise typer.Exit(1 if differs else 0)


def _pin_image(recipe: Any, output: Path | None, sign: Path | None) -> tuple[Any, Any]:
    """The recipe with its image's digest, and its lock; a bundle too where that is asked for."""
    from recipe_core.bundle.write import write_bundle
    from recipe_core.recipe.build import with_image_digest

    key = read_key(sign, "sign")
    with show_spinner("Asking the registry …"):
        pinned = with_image_digest(recipe)
    if output is not None:
        write_bundle(pinned, output, key)
        _echo_runs(output)
    return pinned, pinned.lock


@app.command("resolve")
def resolve_command(
    bundle: Bundle,
    hardware: str = Option(..., help="The machine: DEVICE or DEVICE:COUNT."),
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Show which variants of a bundle apply to other hardware; -o writes the bundle for it."""
    from recipe_core.bundle.verify import read_bundle
    from recipe_core.bundle.write import write_bundle
    from recipe_core.recipe.resolve import hardware_named, machine_of, recipe_for, resolve_recipe
    from recipe_core.views.overview import resolved_text

    recipe, machine = read_bundle(bundle).recipe, hardware_named(hardware, files=True)
    resolution = resolve_recipe(recipe, machine_of(machine, recipe))
    if output is not None:
        with show_spinner("Building …"):
            write_bundle(recipe_for(recipe, machine)[0], output)
        _echo_runs(output)
    if as_json:
        emit(resolution.to_json())
        return
    typer.echo(resolved_text(recipe, resolution))
    if output is not None:
        typer.echo(f"wrote {output}")


@app.command("diff")
def diff_command(
    before: Path = Argument(..., metavar="A", help="A bundle or a request."),
    after: Path = Argument(..., metavar="B", help="A bundle or a request."),
    as_json: Json = False,
) -> None:
    """The differences between two recipes and between their estimates."""
    from recipe_core.recipe.comparison import diff_recipes, diff_text

    differences = diff_recipes(_read_recipe(before), _read_recipe(after))
    emit(differences) if as_json else typer.echo(diff_text(differences))


def _read_recipe(path: Path) -> Any:
    """The recipe of a bundle, or of a request's best layout."""
    from recipe_core.bundle.verify import read_bundle
    from recipe_core.hardware.request import with_profiles
    from recipe_core.recipe import make_recipe
    from recipe_core.request.schema import PlanRequest

    if path.is_dir() or path.suffix == ".zip":
        return read_bundle(path).recipe
    return make_recipe(PlanRequest.parse(with_profiles(read_document(path, field="request"))))


@app.command("convert")
@with_options("context", GroundOptions)
def convert_command(
    source: str = Argument(
        ...,
        metavar="COMMAND|FILE",
        help="An engine's command, or a file: of a deployment, or a published recipe.",
    ),
    context: dict[str, Any] = {},  # noqa: B006 - replaced by its options
    choice: str | None = Option(
        None, help="Which configuration or engine, if the file has several."
    ),
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Turn a vLLM or SGLang command, or a published recipe, into a recipe; -o writes its bundle."""
    from recipe_core.bundle.write import write_bundle
    from recipe_core.commands.context import CommandContext
    from recipe_core.recipe.convert import convert_to_recipe
    from recipe_core.views.overview import conversion_text

    published, device = _read_source(source, context["hardware"], choice)
    if device is None:
        raise InputError(
            "is missing: the device that the server runs on.",
            field="hardware",
            hint="For example --hardware h100-sxm:8.",
        )
    context |= {"hardware": device, **read_own_device(device, context["gpus"])}
    with show_spinner("Converting …"):
        conversion = convert_to_recipe(published, CommandContext.of(**context))
        if output is not None:
            write_bundle(conversion.recipe, output)
            _echo_runs(output)
    emit(conversion.to_json()) if as_json else typer.echo(conversion_text(conversion, output))


def _read_source(source: str, hardware: str | None, choice: str | None) -> tuple[Any, str | None]:
    """The command or published recipe of a file or of the text itself, and its device."""
    from recipe_core.recipe.published import Published, read_published

    suffix = Path(source).suffix.casefold() if "\n" not in source and len(source) < 4096 else ""
    if suffix in (".sh", ".bash", ".txt"):
        return Published(command=read_text(Path(source), field="convert")), hardware
    if suffix and (deployment := find_deployment(source)):
        return _read_deployed_engine(deployment, hardware, choice)
    if suffix in (".yaml", ".yml", ".json"):
        document = read_document(Path(source), field="convert")
        device_name = hardware.partition(":")[0] if hardware else None
        published = read_published(document, device_name, choice)
        return published, hardware or published.hardware
    return Published(command=source), hardware


def _read_deployed_engine(
    file: DeploymentFile, hardware: str | None, choice: str | None
) -> tuple[Any, str | None]:
    """The engine of a deployment file, and its device.

    Raises:
        InputError: where there is none, or several of which ``choice`` does not name one.
    """
    from recipe_core.recipe.published import Published

    engines = [engine for engine in file.engines if choice is None or choice in engine.where]
    if len(engines) != 1:
        names = "; ".join(engine.where for engine in file.engines[:12]) or "none"
        message = f"the file starts {len(engines)} engines that fit."
        hint = f"Choose one with --choice. In the file: {names}."
        raise InputError(message, field="convert", hint=hint)
    engine = engines[0]
    place = engine.place
    device = place.device
    if device and place.per_node:
        device = f"{device}:{place.per_node}"
    rest = tuple(
        f"{beside.where}: another engine" for beside in file.engines if beside is not engine
    )
    published = Published(engine.launch, nodes=place.nodes, unread=rest, model=engine.model)
    return published, hardware or device


@app.command("keygen")
def keygen_command(
    path: Path = Argument(
        ...,
        metavar="KEY.pem",
        help="The private key; the public key goes beside it, to KEY.pub.pem.",
    ),
) -> None:
    """Make an ed25519 key to sign bundles with."""
    from recipe_core.bundle.signing import new_key

    public_path = path.with_name(f"{path.stem}.pub.pem")
    for file in (path, public_path):
        if file.exists():
            raise InputError(f"{file} already exists.", field="key", hint="Choose another name.")
    private, public = new_key()
    write_whole(path, private, private=True)
    write_whole(public_path, public)
    typer.echo(f"wrote {path} (keep it secret) and {public_path} (give it to your recipients)")
